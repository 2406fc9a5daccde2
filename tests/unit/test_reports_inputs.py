"""Files of a report: recognised by content, converted, and refused in one clear line."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from instances.errors import InputError
from instances.io import example_names, example_text
from optimizer.reports import read_report_inputs
from optimizer.sweeps.rows import FrontierPiece, SweepPoint

PIECE = FrontierPiece(
    instance="four-sessions-128k",
    swept={"search.tp": 8},
    from_s=0.1235,
    from_exact="247/2000",
    to_s=None,
    termination="optimal",
    plan="8 cards = 1 instance × TP8 (ring)",
    objective="cost_per_on_time_session",
    unit="card*s",
    value=0.4392,
    on_time=3,
    sessions=4,
)
POINT = SweepPoint(
    instance="four-sessions-128k",
    swept={"fleet.pools[0].server.fabric.alpha_s": 8.22e-7, "search.tp": 2},
    termination="infeasible",
    objective="cost_per_on_time_session",
    unit="card*s",
    reason="every plan needs a deadline of at least 119.1 ms",
)
ROWS: list[dict[str, Any]] = [PIECE.record(), POINT.record()]


def saved(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        whole = [{name: row.get(name) for name in names} for row in rows]
        parquet.write_table(pyarrow.Table.from_pylist(whole), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refusal(path: Path, text: str | None = None) -> str:
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_report_inputs([path])
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".json"])
@pytest.mark.parametrize("row", [PIECE, POINT], ids=["piece", "point"])
def test_rows_come_back_as_they_were_from_every_kind_of_file(
    tmp_path: Path, suffix: str, row: SweepPoint
) -> None:
    inputs = read_report_inputs([saved(tmp_path / f"rows{suffix}", [row.record()])])
    assert [item.document for item in inputs.rows] == [row]
    assert inputs.sources == [f"rows{suffix}"]
    assert type(inputs.rows[0].document.swept["search.tp"]) is int


def test_columns_of_another_sweep_in_the_same_file_are_no_swept_fields(tmp_path: Path) -> None:
    """Parquet fills the columns that a row does not have with nulls."""
    inputs = read_report_inputs([saved(tmp_path / "rows.parquet", ROWS)])
    assert [item.document for item in inputs.rows] == [PIECE, POINT]


def test_a_value_that_is_not_a_number_is_none(tmp_path: Path) -> None:
    row = POINT.record() | {"value": math.nan, "cost": None}
    inputs = read_report_inputs([saved(tmp_path / "rows.parquet", [row])])
    assert inputs.rows[0].document.value is None


@pytest.mark.parametrize("name", example_names())
def test_every_bundled_result_is_recognised(tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(example_text(name, ".best.json"), encoding="utf-8")
    inputs = read_report_inputs([path, path])
    found = [*inputs.results, *inputs.side_results]
    assert [item.document.instance for item in found] == [name]


def test_pareto_points_are_rows_of_one_objective_against_the_other(tmp_path: Path) -> None:
    point = {"first": 0.1, "second": 900.0, "first_exact": "1/10", "second_exact": "900"}
    point |= {"plan": "p", "on_time": 4, "makespan_s": 0.1, "cost": 1.0, "energy_j": 900.0}
    document = {"kind": "pareto", "instance": "i", "instance_sha256": "0", "is_complete": True}
    document |= {
        "objectives": ["makespan", "energy"],
        "units": ["s", "J"],
        "proof": "",
        "plans": [],
    }
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document | {"points": [point | {"proof": "highs"}]}))
    row = read_report_inputs([path]).rows[0].document
    assert (row.swept, row.objective, row.unit, row.value) == (
        {"makespan": 0.1},
        "energy",
        "J",
        900,
    )


def test_a_file_without_rows_says_so(tmp_path: Path) -> None:
    assert "holds no rows" in refusal(tmp_path / "a.jsonl", "\n")
    assert "holds no rows" in refusal(tmp_path / "a.csv", ",".join(PIECE.record()) + "\n")
    assert "holds no rows" in refusal(tmp_path / "a.json", "[]")
    with pytest.raises(InputError, match="no input"):
        read_report_inputs([])


def test_a_row_says_where_it_stands_and_what_is_wrong(tmp_path: Path) -> None:
    good = json.dumps(PIECE.record())
    cut = refusal(tmp_path / "a.jsonl", f"{good}\n{good[:40]}")
    assert "line 2: is not JSON; continue the sweep with --resume" in cut
    wrong = refusal(saved(tmp_path / "a.csv", [PIECE.record() | {"value": "much"}]))
    assert "line 2: value = 'much'" in wrong
    text = refusal(saved(tmp_path / "b.csv", [PIECE.record() | {"note": "hello"}]))
    assert "line 2: note = 'hello': is neither a column" in text
    endless = refusal(saved(tmp_path / "c.csv", [PIECE.record() | {"value": "inf"}]))
    assert "value = inf: must be a finite number" in endless
    lacking = refusal(tmp_path / "d.csv", "a,b\n1,2\n")
    assert "it lacks instance, termination, objective, unit" in lacking
    assert "has not as many cells as the header (2)" in refusal(tmp_path / "e.csv", "a,b\n1\n")
    assert "is no row of a sweep" in refusal(tmp_path / "f.jsonl", "[1]\n")


def test_other_documents_are_told_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert "is a problem instance" in refusal(path, example_text("mixed-wins"))
    result = json.loads(example_text("mixed-wins", ".best.json"))
    assert "is a plan alone" in refusal(path, json.dumps(result["plan"]))
    assert "is not a result, rows of a sweep" in refusal(path, "{}")
    assert "is a number" in refusal(path, "3")
    assert "is null" in refusal(path, "null")
    assert "seconds = 'soon'" in refusal(path, json.dumps(result | {"seconds": "soon"}))
    assert "not JSON at line 1" in refusal(path, "{")
    assert "instance: this field is required" in refusal(path, '{"kind": "sensitivity"}')
    assert "no such file" in refusal(tmp_path / "none.json")
    assert "no such file" in refusal(tmp_path / "none.parquet")
    assert "not a Parquet file" in refusal(tmp_path / "y.parquet", "PAR1 and so on")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "rows.parquet", [PIECE.record()])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "install supernode-planner[parquet]" in refusal(path)
