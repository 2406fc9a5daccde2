"""`supernode solve`, `verify`, `report` and `schema` for capacity, and what they refuse.

The plan is by hand and the solver a stand-in: what is tested is what the commands say of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from cli.render_capacity import power_lines, render_capacity, render_not_used
from cli.tables import MAX_ROWS
from commands import Capture, call
from instances.io import parse_instance
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.protocols import Termination
from optimizer.result import ParallelDocument
from optimizer.second_opinion import SecondOpinion
from optimizer.side import capacity_kind
from optimizer.side import decisions as side_decisions
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    LostCandidateDocument,
    NotUsedDocument,
    PlacedRackDocument,
    PlacedServerDocument,
    PowerDocument,
    RuleCountDocument,
)
from optimizer.side.capacity_kind import CapacityKind

#: Racks of 40 kW hold three servers of 10.2 kW; the second tier comes with the 65th card.
HALL: dict[str, Any] = {
    "name": "hall",
    "decision": "capacity",
    "models": ["qwen3-32b"],
    "fleet": {
        "mode": "purchase",
        "pools": [
            {
                "name": "hgx",
                "server": "hgx-h100",
                "num_servers": 20,
                "price_per_hour": 100,
                "rack_units": 8,
            }
        ],
        "racks": [{"name": "air", "count": 6, "units": 42, "power_w": "40kW"}],
        "power": {"budget_w": "120kW", "fixed_w": "5kW"},
        "switch_tiers": [{"name": "spine", "above_endpoints": 64, "power_w": "10.2kW"}],
    },
    "workload": {
        "cohorts": [
            {
                "name": "long",
                "num_sessions": 28,
                "context_tokens": 131064,
                "new_tokens": 8,
                "deadline_s": "130ms",
            }
        ]
    },
    "search": {"tp": [1, 2]},
    "capacity": {
        "goals": ["price_per_hour", "racks"],
        "failures": [{"kind": "card", "min_on_time_fraction": "50%"}],
    },
}


def plan() -> CapacityPlan:
    """Seven servers in racks of three, three and one, each with four TP2."""

    def loads(number: int) -> tuple[GroupLoad, ...]:
        return (GroupLoad(0, number, (LaneLoad(1, ((0, 1),)),)),)

    return CapacityPlan(
        racks=(RackFill(0, 2, ((0, 3),)), RackFill(0, 1, ((0, 1),))),
        servers=(ServerFill(0, 7, ((0, 4),)),),
        loads=loads(28),
        loads_after=(loads(27),),
    )


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the instance; a stand-in solver knows the plan."""

    def solver(problem: Any, backend: str, **limits: Any) -> Any:
        value = CapacityKind(parse_instance(HALL)).value(plan())
        return SimpleNamespace(
            termination=Termination.OPTIMAL, plan=plan(), value=value, bound=value
        )

    opinion = SecondOpinion("a test", True, "says so")
    monkeypatch.setattr(side_decisions, "load_solver", lambda decision: solver)
    monkeypatch.setattr(capacity_kind, "first_capacity", lambda problem, is_over: None)
    monkeypatch.setattr(CapacityKind, "opinion", lambda self, value: opinion)
    path = tmp_path / "hall.json"
    path.write_text(json.dumps(HALL))
    return str(path)


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_plan_is_written_and_verified(hall: str, capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    code, out, err = call(capsys, "solve", hall, "--json", "-o", str(target), "--threads", "1")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    assert document == json.loads(target.read_text())
    schema = json.loads(call(capsys, "schema", "side-result")[1])
    jsonschema.Draft202012Validator(schema).validate(document)
    assert (document["decision"], document["termination"]) == ("capacity", "optimal")
    assert [o["verified_exact"] for o in (document["objective"], *document["then"])] == ["700", "3"]
    code, out, err = call(capsys, "verify", hall, str(target), "--json")
    assert (code, err) == (0, "")
    judged = json.loads(out)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["objective"] == {"price_per_hour": "700", "racks": "3"}
    assert judged["evaluation"] == document["evaluation"]
    code, out, err = call(capsys, "verify", hall, str(target))
    assert (code, err) == (0, "")
    assert "hall: the plan holds" in out
    assert "objective  price_per_hour = 700" in out
    assert "Where everything stands" in out


def test_the_report_says_who_is_served_and_what_breaks_first(hall: str, capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", hall, "--threads", "1")
    assert (code, err) == (0, "")
    lines = squeezed(out)
    sentence = "7 servers of hgx in 3 racks = 28 instances of qwen3-32b TP2 (ring): "
    assert f"plan {sentence}700.00 an hour, 3 racks" in lines
    for line in (
        "long qwen3-32b 28 28 28 130.0 ms",
        "qwen3-32b TP2 (ring) 28 2 28",
        "servers of hgx 7 20 — 100 an hour",
        "racks air 3 6 — —",
        "switch tier spine 0 1 — — from endpoint 65 on",
        "servers of hgx 7 10,200 W 71,400 W",
        # 5 + 7 · 10.2 = 76.4 kW; one more is a spine at 65 cards, 10.2 more: 43.6 - 10.2 = 33.4
        "left 43,600 W",
        "power for 3 more of hgx (6-11)",
        "power of the fullest rack air 30,600 W 40,000 W 9,400 W binding",
        "a card of qwen3-32b, TP2 (ring) on hgx 27 of at least 14 27",
        "2 x air: 24 of 42 U, 30,600 of 40,000 W 3 x hgx 4 x qwen3-32b TP2 (ring)",
        "air: 8 of 42 U, 10,200 of 40,000 W 1 x hgx 4 x qwen3-32b TP2 (ring)",
        "Candidates not used",
        "qwen3-32b TP1 on hgx: a card needs 102.03 GB of its 80.00 GB for one session: 22.03 GB "
        "(22031468544 B) short",
    ):
        assert line in lines
    assert any(line.startswith("by rule: ") and "memory 1" in line for line in lines)
    assert "Power, line by line" not in out


def test_the_power_is_explained_line_by_line(hall: str, capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", hall, "--threads", "1", "--explain-power")
    assert (code, err) == (0, "")
    lines = squeezed(out)
    start = lines.index("Power, line by line")
    # floor((120 - 5) / 10.2) = 11; seven servers have 56 cards, the 65th brings the spine
    assert lines[start + 1 : start + 9] == [
        "fixed 1 x 5,000 W = 5,000 W",
        "servers of hgx 7 x 10,200 W = 71,400 W",
        "tier spine 0 x 10,200 W = 0 W",
        "total = 76,400 W",
        "budget = 120,000 W",
        "left = 43,600 W",
        "servers of hgx alone: floor((120,000 - 5,000 - 0) / 10,200) = 11 (6-11); beside the plan "
        "3 more",
        "56 endpoints; switch tier spine (10,200 W) is needed from endpoint 65 on, after 8 more",
    ]
    # the document holds the same numbers
    code, out, err = call(capsys, "solve", hall, "--threads", "1", "--explain-power", "--json")
    power = json.loads(out)["evaluation"]["capacity"]["power"]
    assert (power["total_w"], power["left_w"], power["servers"][0]["alone"]) == (76400, 43600, 11)


@pytest.mark.parametrize("name", ["mix-two-gpus", "four-sessions-128k"])
def test_other_decisions_have_no_power_to_explain(name: str, capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", name, "--explain-power")
    assert (code, out) == (2, "")
    decision = "mix" if name.startswith("mix") else "deployment"
    assert err == (
        f"error: --explain-power: is for decision 'capacity'; {name} decides '{decision}'\n"
    )


def test_without_a_budget_the_sum_has_no_limit() -> None:
    power = PowerDocument(
        parts=[], fixed_w=0, tiers_w=0, total_w=7, budget_w=None, left_w=None, servers=[]
    )
    assert squeezed("\n".join(power_lines(power))) == ["total = 7 W", "no budget limits the sum"]


def test_a_broken_plan_is_named_with_its_amount(hall: str, capsys: Capture, tmp_path: Path) -> None:
    call(capsys, "solve", hall, "-o", str(tmp_path / "result.json"))
    document = json.loads((tmp_path / "result.json").read_text())
    document["plan"]["capacity"]["racks"][0]["servers"][0]["count"] = 4
    document["plan"]["capacity"]["racks"][1]["count"] = 0
    target = tmp_path / "broken.json"
    target.write_text(json.dumps({"capacity": document["plan"]["capacity"]}))
    code, out, err = call(capsys, "verify", hall, str(target))
    assert (code, err) == (5, "")
    assert "the plan does not hold" in out
    # four servers draw 40.8 kW of 40, and eight stand where seven are
    lines = squeezed(out)
    assert "rack_power at rack air: rack air: servers draw 40800 of 40000 W" in lines
    assert any(line.startswith("rack_servers at ") and "racks hold 8" in line for line in lines)
    assert "Where everything stands" not in out
    target.write_text(json.dumps(document))
    code, out, err = call(capsys, "verify", hall, str(target))
    assert code == 5
    assert "the plan was changed after it was certified" in out


@pytest.mark.parametrize(
    "text",
    [
        *('{"capacity": [3, 1]}', '{"mix": null}', '{"capacity": null}', '{"plan": null}', "{}"),
        '{"capacity": {"instances": [], "servers": []}}',
        '{"capacity": {"instances": [], "servers": [], "loads": [], "cost": 1}}',
        '{"capacity": {"instances": [], "servers": [{"pool": "x", "count": 1}], "loads": []}}',
        '{"capacity": {"instances": [], "servers": [{"pool": "hgx", "count": 1.5}], "loads": []}}',
        '{"capacity": {"instances": [], "servers": [], "loads": []}}',
    ],
)
def test_what_is_no_plan_is_refused(text: str, hall: str, capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text(text)
    code, out, err = call(capsys, "verify", hall, str(target))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {target}: ")
    assert len(err.splitlines()) == 1


def test_a_page_and_a_picture_are_made(hall: str, capsys: Capture, tmp_path: Path) -> None:
    result = str(tmp_path / "result.json")
    call(capsys, "solve", hall, "-o", result)
    page, picture = tmp_path / "page.html", tmp_path / "racks.svg"
    assert call(capsys, "report", result, "-o", str(page))[0] == 0
    assert "Cards of 3 racks" in page.read_text()
    assert call(capsys, "report", result, "-o", str(picture), "--chart", "racks")[0] == 0
    assert picture.read_text().startswith("<?xml")
    assert call(capsys, "report", result, "-o", str(tmp_path / "page.md"))[0] == 0
    assert "What breaks first" in (tmp_path / "page.md").read_text()


def test_long_tables_say_how_many_more_there_are(capsys: Capture) -> None:
    servers = [
        PlacedServerDocument(
            pool=f"pool-{n}",
            count=1,
            numbers="",
            num_cards=8,
            free_cards=8,
            rack_units=None,
            instances=[],
            spanned_by=None,
        )
        for n in range(MAX_ROWS + 3)
    ]
    loose = PlacedRackDocument(
        rack=None,
        count=1,
        units=None,
        used_units=None,
        limit_w=None,
        power_w=0,
        servers=servers,
    )
    account = CapacityAccountDocument(
        cohorts=[],
        instances=[],
        servers=[],
        racks=[],
        endpoints=0,
        tiers=[],
        power=PowerDocument(parts=[], fixed_w=0, tiers_w=0, total_w=0, budget_w=None, left_w=None),
        resources=[],
        placement=[loose],
    )
    console = Console(width=200)
    render_capacity(console, account)
    lines = squeezed(capsys.readouterr().out)
    assert f"1 x pool-{MAX_ROWS - 1} idle" in lines
    assert f"1 x pool-{MAX_ROWS} idle" not in lines
    assert "… and 3 more (--json lists them)" in lines
    lost = LostCandidateDocument(
        model="m",
        label="TP1",
        pool="hgx",
        parallel=ParallelDocument(tp=1),
        num_servers=1,
        collective=None,
        rule="memory",
        amount=1,
        unit="B",
        message="1 B short",
    )
    rules = [RuleCountDocument(rule="memory", number=20)]
    render_not_used(console, NotUsedDocument(possible=0, rules=rules, examples=[lost] * 13))
    lines = squeezed(capsys.readouterr().out)
    assert lines.count("m TP1 on hgx: 1 B short") == 12
    assert "… and 8 more (--json lists them)" in lines
    assert "by rule: memory 20" in lines
    render_not_used(console, NotUsedDocument(possible=0, rules=[], examples=[]))
    assert capsys.readouterr().out == ""
