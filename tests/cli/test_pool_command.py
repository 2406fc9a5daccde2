"""`supernode solve`, `verify` and `schema` for pools, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call, check_solved_and_verified
from instances.io import example_text


def written(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_a_pool_is_solved_written_and_verified(capsys: Capture, tmp_path: Path) -> None:
    check_solved_and_verified("borrow-20gb", capsys, tmp_path)


def test_the_report_tells_who_lends_and_when_that_changes(capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", "borrow-20gb", "--threads", "1")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "plan n1 lends 20.00 GB of task 0 to n0: slowest read 400.0 ms, 20.00 GB far from their "
        "readers",
        "n0 80.00 GB 100.00 GB 80.00 GB — 20.00 GB 0 B",
        "n1 80.00 GB 60.00 GB 80.00 GB 20.00 GB — 0 B",
        "n2 80.00 GB 40.00 GB 40.00 GB — — 40.00 GB",
        "free 100.00 GB before anything is lent, 80.00 GB after",
        "task 0 n1 n0 20.00 GB exclusive 0 s open",
        "n0<-n1 adapter of n0 50 GB/s 50 GB/s 1,469 in flight 20.00 GB 400.0 ms",
        "adapter of n0 400.0 ms 40 %",
        "threshold n1 stays a lender to n0 down to 41,784,888,889 B/s of n0<-n1; at "
        "41,784,888,888 B/s n2 lends to n0; its round trip may grow to 9.000 µs",
    ):
        assert line in lines


def test_a_slowed_path_changes_the_lender(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("borrow-20gb"))
    document["pool"]["paths"][0]["access"]["bandwidth_bytes_per_s"] = 41_784_888_888
    slow = written(tmp_path / "slow.json", document)
    code, out, _ = call(capsys, "solve", slow, "--threads", "1")
    assert code == 0
    assert "n2 lends 20.00 GB of task 0 to n0: slowest read 478.6 ms" in out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda pool: pool["paths"][0]["access"].update(in_flight=0),
            "pool.paths[0].access.in_flight = 0: must be at least 1",
        ),
        (
            lambda pool: pool["paths"][0].update(lender="n7"),
            "pool: paths[0].lender: no node is named 'n7', so there is no such path",
        ),
        (
            lambda pool: pool.update(horizon_s="9s") or pool["items"][0].update(until_s="10s"),
            "pool: items[0].until_s: 10 s is after the horizon of 9 s; a lease cannot be longer "
            "than that",
        ),
    ],
)
def test_bad_input_is_one_line(change: Any, line: str, capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("borrow-20gb"))
    change(document["pool"])
    bad = written(tmp_path / "bad.json", document)
    code, out, err = call(capsys, "solve", bad)
    assert (code, out) == (2, "")
    assert err == f"error: {bad}: {line}\n"


def test_a_plan_over_a_path_that_does_not_exist(capsys: Capture, tmp_path: Path) -> None:
    plan = json.loads(example_text("borrow-20gb", ".best.json"))["plan"]["pool"]
    plan["leases"][0]["readers"][0]["path"] = "n0<-n7"
    wrong = written(tmp_path / "plan.json", {"pool": plan})
    code, out, err = call(capsys, "verify", "borrow-20gb", wrong)
    assert (code, out) == (2, "")
    field = "pool.leases[0].readers[0].path"
    assert err == f"error: {wrong}: {field}: there is no path 'n0<-n7' in the instance\n"


def test_broken_rules_are_printed(capsys: Capture, tmp_path: Path) -> None:
    plan = json.loads(example_text("borrow-20gb", ".best.json"))["plan"]["pool"]
    plan["leases"][0]["bytes"] = 19 * 10**9
    short = written(tmp_path / "plan.json", {"pool": plan})
    code, out, err = call(capsys, "verify", "borrow-20gb", short)
    assert (code, err) == (5, "")
    assert "placed at item task 0: item task 0: 1,000,000,000 B of 100,000,000,000 B are" in out


def test_what_cannot_be_placed_says_how_much_is_short(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("borrow-20gb"))
    document["pool"]["items"][0]["bytes"] = "190GB"
    large = written(tmp_path / "large.json", document)
    code, out, _ = call(capsys, "solve", large, "--threads", "1")
    assert code == 3
    assert "10,000,000,000 B are short" in " ".join(out.split())
