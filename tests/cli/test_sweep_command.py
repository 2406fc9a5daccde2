"""`supernode sweep` and `supernode pareto`: rows, files, sweep files, what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from commands import Capture, call
from instances.io import example_text, sweep_names
from instances.sweep import SweepFile, load_sweep
from optimizer.sweeps.rows import FrontierPiece, SweepPoint


def refused(capsys: Capture, *arguments: str) -> str:
    """Expect exit code 2 with one line; returns it."""
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def rows_of(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    code, out, _ = call(capsys, "sweep", *arguments, "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_rows_name_everything_a_reader_needs(capsys: Capture) -> None:
    rows = rows_of(capsys, "four-sessions-128k", "--deadline", "119ms:120ms:1ms")
    assert [row["termination"] for row in rows] == ["infeasible", "optimal"]
    wanted = "deadline_s termination plan value bound gap on_time cost energy_j reason"
    assert set(wanted.split()) <= set(rows[0])
    late, best = rows
    assert late["reason"].startswith("every plan needs a deadline of at least 119.1 ms")
    assert best["plan"] == "8 cards = 4 instances × TP2 (ring)"
    assert best["value"] == best["bound"] == best["cost"]
    assert best["gap"] == 0
    assert best["on_time"] == 4


def test_a_table_joins_rows_with_the_same_outcome(capsys: Capture) -> None:
    code, out, err = call(capsys, "sweep", "four-sessions-128k", "--deadline", "50ms:200ms:1ms")
    assert (code, err) == (0, "")
    assert "151 points, 70 infeasible, 81 optimal" in out
    assert "120.0 ms – 200.0 ms" in out
    assert len(out.splitlines()) == 4


def test_several_fields_are_crossed(capsys: Capture) -> None:
    sets = ("--set", "search.tp=2,4", "--set", "workload.cohorts[0].num_sessions=4,8")
    rows = rows_of(capsys, "four-sessions-128k", *sets, "--deadline", "130ms,300ms")
    assert len(rows) == 8
    assert [row["search.tp"] for row in rows] == [2] * 4 + [4] * 4
    assert [row["on_time"] for row in rows] == [4, 4, None, 8, 4, 4, None, 8]


def test_wildcards_set_every_element(capsys: Capture) -> None:
    path = "fleet.pools[*].server.accelerator.memory_bytes"
    rows = rows_of(capsys, "four-sessions-128k", "--set", f"{path}=50GB,80GB")
    assert [row["termination"] for row in rows] == ["optimal", "optimal"]
    assert [row["plan"].split("× ")[1] for row in rows] == ["TP4 (ring)", "TP2 (ring)"]


@pytest.mark.parametrize("name", sweep_names())
def test_every_bundled_sweep_runs_to_proof(capsys: Capture, name: str) -> None:
    rows = rows_of(capsys, name)
    assert rows
    assert {row["termination"] for row in rows} <= {"optimal", "infeasible"}
    assert any(row["termination"] == "optimal" for row in rows)
    kind = FrontierPiece if "from_s" in rows[0] else SweepPoint
    _, file, _ = load_sweep(name)
    assert file is not None
    for row in rows:
        swept = {path: row.pop(path) for path in file.set}
        if "deadline_s" in row:
            swept["deadline_s"] = row.pop("deadline_s")
        kind.model_validate({**row, "swept": swept})
    jsonschema.validate(json.loads(example_text(name)), SweepFile.model_json_schema())


def test_a_sweep_file_finds_an_instance_beside_it(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(example_text("four-sessions-32k"))
    asked = {"kind": "sweep", "name": "s", "instance": "mine.json", "deadline": ["0.1", 0.2]}
    (tmp_path / "sweep.json").write_text(json.dumps(asked))
    rows = rows_of(capsys, str(tmp_path / "sweep.json"))
    assert [row["instance"] for row in rows] == ["four-sessions-32k"] * 2
    assert [row["deadline_s"] for row in rows] == [0.1, 0.2]


def test_the_command_line_takes_the_place_of_the_file(capsys: Capture) -> None:
    rows = rows_of(capsys, "contexts", "--set", "workload.cohorts[0].context_tokens=1000")
    assert [row["workload.cohorts[0].context_tokens"] for row in rows] == [1000]


def test_an_instance_may_stand_in_the_sweep_file(capsys: Capture, tmp_path: Path) -> None:
    inner = json.loads(example_text("four-sessions-128k"))
    asked = {"kind": "sweep", "name": "s", "instance": inner, "exact": True}
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(asked))
    assert len(rows_of(capsys, str(path))) == 2
    inner["workload"]["cohorts"][0]["num_sessions"] = 0
    path.write_text(json.dumps(asked))
    assert "instance: workload.cohorts[0].num_sessions = 0" in refused(capsys, "sweep", str(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deadlines": "1s"}, "deadlines = '1s': no such field"),
        ({"instance": "nobody"}, "instance = 'nobody': no such file"),
        ({"set": {"x": "1"}}, "x: no such field"),
        ({"deadline": "1s:2s"}, "deadline_s = '1s:2s': is no range"),
        ({"deadline": {"from": 1}}, "deadline_s"),
        ({"exact": True, "deadline": [1]}, "needs FIRST:LAST"),
        ({"exact": 1}, "exact"),
    ],
)
def test_a_wrong_sweep_file_is_one_clear_line(
    capsys: Capture, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "sweep.json"
    asked = {"kind": "sweep", "name": "s", "instance": "four-sessions-128k", **change}
    path.write_text(json.dumps(asked))
    assert said in refused(capsys, "sweep", str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["four-sessions-128k"], "sweeps nothing"),
        (["four-sessions-128k", "--set", "search.tp"], "needs PATH=RANGE"),
        (["four-sessions-128k", "--deadline", "1ms", "--resume"], "--resume needs -o"),
        (["four-sessions-128k", "--deadline", "1ms", "-o", "rows.xml"], "ends in none of"),
        (["four-sessions-128k", "--deadline", "1ms", "--jobs", "0"], "'--jobs'"),
        (["nobody", "--deadline", "1ms"], "no such file, and no bundled example"),
        (["four-sessions-128k", "--deadline", "1ms", "--time-limit", "-1"], "is negative"),
    ],
)
def test_wrong_arguments_are_one_clear_line(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "sweep", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_files_of_every_kind_hold_the_same_rows(capsys: Capture, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    asked = ("sweep", "deadlines-fault", "-o")
    for suffix in ("jsonl", "csv", "parquet"):
        assert call(capsys, *asked, str(tmp_path / f"rows.{suffix}"))[0] == 0
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == rows
    with open(tmp_path / "rows.csv", newline="") as file:
        text = list(csv.DictReader(file))
    shown = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    assert text == shown
    assert len(list(tmp_path.iterdir())) == 3


def test_failed_rows_are_counted_on_standard_error(capsys: Capture) -> None:
    asked = ("four-sessions-128k", "--set", "workload.min_on_time_fraction=1,2")
    code, out, err = call(capsys, "sweep", *asked)
    assert code == 0
    assert err == "warning: 1 of 2 rows failed; `reason` says why\n"
    assert "failed: " in out


def test_a_time_limit_of_a_moment_leaves_rows_that_say_so(capsys: Capture) -> None:
    asked = ("mixed-wins", "--deadline", "100ms,130ms", "--time-limit", "0.001")
    rows = rows_of(capsys, *asked)
    assert len(rows) == 2
    for row in rows:
        assert row["termination"] in ("feasible", "no_solution_found", "optimal", "infeasible")
        if row["termination"] == "feasible":
            assert row["gap"] is None or row["gap"] >= 0


def test_a_pareto_set_is_printed_with_its_proof(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "pareto.csv"
    asked = ("pareto", "mixed-wins", "makespan", "cards", "-o", str(path))
    code, out, err = call(capsys, *asked)
    assert (code, err) == (0, "")
    assert "no plan has less cards than the last point" in out
    with open(path, newline="") as file:
        points = list(csv.DictReader(file))
    cards = [float(p["value"]) for p in points]
    assert cards == sorted(set(cards), reverse=True)
    assert [p["objective"] for p in points] == ["cards"] * len(points)
    assert "is no objective" in refused(capsys, "pareto", "mixed-wins", "makespan", "speed")
    assert "named twice" in refused(capsys, "pareto", "mixed-wins", "energy", "energy")


def test_a_problem_without_a_plan_has_no_pareto_set(capsys: Capture) -> None:
    code, out, _ = call(capsys, "pareto", "infeasible-deadline", "makespan", "cards")
    assert code == 3
    assert "no plan at all" in out
