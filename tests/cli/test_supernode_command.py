"""`supernode solve` and `verify` for the size of supernodes, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call, check_solved_and_verified
from instances.io import example_text

EXAMPLES = ("v41-supernode-size", "v41-64-cards-eight-servers")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_size_is_solved_written_and_verified(name: str, capsys: Capture, tmp_path: Path) -> None:
    document = check_solved_and_verified(name, capsys, tmp_path)
    best = json.loads(call(capsys, "examples", name, "--best")[1])
    assert document["plan"] == best["plan"]
    assert document["evaluation"] == best["evaluation"]


def test_the_report_has_every_size_and_what_decides(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = call(capsys, "solve", "v41-supernode-size", "--threads", "1")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "cards tables weights sessions read compute exchange step tokens/s",
        "8 HBM 71.01 GB 37 13.64 ms 1.500 ms 419.4 µs 14.06 ms 2,632",
        "64 HBM 17.22 GB 335 8.473 ms 13.58 ms 3.668 ms 17.25 ms 19,420",
        "(8) host 45.67 GB 178 15.71 ms 7.217 ms 1.767 ms 17.48 ms 10,185",
        "why 8 cards: 16,789 less (7.4 times): capacity, 37 sessions a card fit; 15,825 with as "
        "many as the plan",
        "why 64 cards, tables on the host: better, but not asked for",
        "lookup 16,080 rows a step: 10.11 µs, of which up to 431.3 µs is hidden",
    ):
        assert line in lines
    plan = tmp_path / "plan.json"
    chosen = {"size": 64, "tables": "hbm", "sessions": 336}
    plan.write_text(json.dumps({"supernode": chosen}), encoding="utf-8")
    code, out, err = call(capsys, "verify", "v41-supernode-size", str(plan))
    assert (code, err) == (5, "")
    assert "memory at 64 cards: 80.08 GB on a card, 80.85 MB more than it holds" in out
    page = tmp_path / "report.md"
    result = tmp_path / "result.json"
    result.write_text(call(capsys, "examples", "v41-supernode-size", "--best")[1], "utf-8")
    code, out, err = call(capsys, "report", str(result), "-o", str(page))
    assert code == 0, err
    assert "37 sessions a card fit" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": [8, 48]}, ("supernode.sizes = 48", "must divide the 256 cards")),
        ({"step_target_s": 0}, ("step_target_s",)),
        ({"host": None, "tables": ["host"]}, ("need supernode.host",)),
        ({"attention_tp": [3]}, ("attention_tp = 3",)),
        ({"sizes": []}, ("sizes",)),
    ],
)
def test_bad_sections_are_one_line(
    changes: dict[str, Any], words: tuple[str, ...], capsys: Capture, tmp_path: Path
) -> None:
    document = json.loads(example_text("v41-supernode-size"))
    document["supernode"] |= changes
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    code, out, err = call(capsys, "solve", str(path))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_a_context_of_nothing_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("v41-supernode-size"))
    document["workload"]["cohorts"][0]["context_tokens"] = 0
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    code, out, err = call(capsys, "solve", str(path))
    assert (code, out) == (2, "")
    assert "workload.cohorts[0].context_tokens = 0: sessions of a supernode need a context" in err
    assert len(err.splitlines()) == 1
