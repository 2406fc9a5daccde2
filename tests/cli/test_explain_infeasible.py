"""`supernode explain` where nothing fits: what conflicts, what would help, and how to get there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import Capture, call
from instances.io import example_text
from optimizer.conflicts.document import ConflictDocument, RelaxationDocument


def short_of_memory(tmp_path: Path, **changes: Any) -> str:
    """Write four-sessions-128k with TP1 alone, which lacks 22.03 GB a card; return its path."""
    document = json.loads(example_text("four-sessions-128k"))
    document["workload"]["cohorts"][0].pop("deadline_s")
    document |= {"search": {"tp": [1], "collectives": ["ring"]}} | changes
    path = tmp_path / "my fleet.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_an_impossible_deadline_is_explained(capsys: Capture) -> None:
    code, out, err = call(capsys, "explain", "infeasible-deadline")
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[0] == "infeasible-deadline: infeasible, proven"
    assert lines[1].startswith("reason     cohort 'chat' has 30.00 ms to its deadline; the fastest")
    assert "Conflict: this constraint cannot hold, whatever else is dropped" in lines
    assert "  deadline of cohort 'chat': 30.00 ms; 3 of all 4 sessions must be on time" in lines
    at = lines.index(next(line for line in lines if line.startswith("Any one of these would do")))
    assert lines[at + 1].split() == ["change", "to", "plan", "cost_per_on_time_session"]
    assert lines[at + 2].split("  ")[0] == " deadline of cohort 'chat' +89.11 ms"
    assert "119.1 ms  8 cards = 4 instances × TP2 (ring)" in lines[at + 2]
    assert lines[at + 2].endswith("0.2382 card·s ")
    at = lines.index("No help alone")
    assert "  memory of pool 'hgx': not even 1.00 PB a card" in lines[at:]


def test_two_constraints_and_a_choice(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = call(capsys, "explain", short_of_memory(tmp_path))
    assert (code, err) == (3, "")
    lines = out.splitlines()
    at = lines.index("Conflict: these 2 constraints cannot hold together")
    assert lines[at + 1 : at + 3] == [
        "  memory of pool 'hgx': 80.00 GB a card",
        "  search.tp: only 1",
    ]
    assert " memory of pool 'hgx' +22.03 GB" in out
    assert "  102.03 GB  " in out
    assert " without search.tp " in out


def test_the_document_is_all_that_json_prints(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = call(capsys, "explain", short_of_memory(tmp_path), "--json", "--card", "3")
    assert (code, err) == (3, "")
    document = ConflictDocument.model_validate_json(out)
    assert document.to_json() == out
    assert (document.kind, document.termination) == ("conflict", "infeasible")
    assert [c.name for c in document.constraints] == ["memory of pool 'hgx'", "search.tp"]
    assert document.relaxations[0].value_exact == "102031468544"
    assert [choice.name for choice in document.choices] == ["search.tp"]


def test_names_are_printed_as_they_are_written(capsys: Capture, tmp_path: Path) -> None:
    pools = [{"name": "[red]p[/]", "server": "hgx-h100", "num_servers": 1}]
    path = short_of_memory(tmp_path, name="[b]x[/]", fleet={"pools": pools})
    code, out, _ = call(capsys, "explain", path)
    assert code == 3
    assert out.startswith("[b]x[/]: infeasible, proven\n")
    assert "  memory of pool '[red]p[/]': 80.00 GB a card" in out
    assert " memory of pool '[red]p[/]' +22.03 GB" in out


def test_what_is_not_exact_says_which_way_it_may_be_better() -> None:
    from cli.render_conflict import _change, _to

    item = RelaxationDocument(
        path="workload.cohorts[0].num_sessions",
        unit="sessions",
        change=-3,
        value=5,
        value_exact="5",
        exact=False,
        width=2,
        message="",
        plan="",
        objective_value=None,
        proof="",
    )
    assert _to(item) == "5 sessions or more"
    assert _to(item.model_copy(update={"change": 3})) == "5 sessions or less"
    assert _to(item.model_copy(update={"exact": True})) == "5 sessions"
    assert _change(item) == "workload.cohorts[0].num_sessions −3 sessions"


def test_a_solve_without_a_plan_says_where_to_look(capsys: Capture, tmp_path: Path) -> None:
    last = "says which constraints conflict and what would help"
    code, out, _ = call(capsys, "solve", "infeasible-deadline")
    assert code == 3
    assert out.splitlines()[-1] == f"supernode explain infeasible-deadline {last}"
    path = short_of_memory(tmp_path)
    code, out, _ = call(capsys, "solve", path)  # the name as it was typed, fit for a shell
    assert (code, out.splitlines()[-1]) == (3, f"supernode explain '{path}' {last}")
    assert last not in call(capsys, "solve", "four-sessions-128k")[1]
    assert last not in call(capsys, "solve", "infeasible-deadline", "--json")[1]
