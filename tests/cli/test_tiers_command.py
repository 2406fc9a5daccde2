"""`supernode solve`, `verify` and `schema` for tiers of memory, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call, check_solved_and_verified
from instances.io import example_text

EXAMPLES = (
    "v41-engram-placement",
    "remote-kv-idle-and-active",
    "rom-wafers",
    "rom-one-wafer",
    "one-user-8xh100",
    "one-user-58xb200",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_tiers_are_solved_written_and_verified(name: str, capsys: Capture, tmp_path: Path) -> None:
    check_solved_and_verified(name, capsys, tmp_path)


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_report_tells_places_step_thresholds_and_alternatives(capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", "v41-engram-placement", "--threads", "1")
    assert (code, err) == (0, "")
    lines = lines_of(out)
    assert "HBM hbm HBM 80.00 GB 79.94 GB 3.35 TB/s — —" in lines
    assert "host memory host host memory 256.00 GB 25.38 GB 64.00 GB/s 140.1 µs —" in lines
    assert "Engram tables lookup_table host memory host memory 25.38 GB —" in lines
    assert "host memory 35.24 µs 176.4 µs —" in lines
    step = "17.49 ms: reading and computing 15.71 ms, communication and fixed 1.777 ms"
    assert f"step {step}" in lines
    assert any(
        line.startswith("threshold Engram tables in host memory")
        and "shorter than 42.00 µs, at 23,809.5 tokens/s for each user" in line
        for line in lines
    )
    assert "instead with Engram tables in HBM 37 sessions (capacity, not speed)" in lines
    code, out, err = call(capsys, "solve", "remote-kv-idle-and-active", "--threads", "1")
    lines = lines_of(out)
    assert "snapshot snapshot neighbour's HBM copy in own HBM 20.00 GB —" in lines
    assert "neighbour's HBM — — 4.83% of the time" in lines
    code, out, err = call(capsys, "solve", "rom-wafers", "--threads", "1")
    assert "510.29 GB, 54,405 mm2" in out
    assert "4,070.56 tokens/s with the fewest sessions wanted" in " ".join(lines_of(out))


def test_a_plan_that_breaks_rules_is_judged(capsys: Capture, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    homes = {"Engram tables": "host memory"}
    names = [
        data["name"]
        for data in json.loads(example_text("v41-engram-placement"))["tiers"]["classes"]
    ]
    classes = [{"name": name, "tier": homes.get(name, "HBM")} for name in names]
    for num, code_wanted in ((178, 0), (179, 5)):
        plan.write_text(json.dumps({"tiers": {"classes": classes, "num_sessions": num}}))
        code, out, err = call(capsys, "verify", "v41-engram-placement", str(plan))
        assert (code, err) == (code_wanted, "")
    assert "capacity at tier HBM" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tiers": ["ROM"]}, "'KV' is written, but it may lie only in 'ROM'"),
        ({"tiers": ["RAM"]}, "no tier is named 'RAM'"),
    ],
)
def test_kv_in_rom_is_refused_in_one_line(
    change: dict[str, Any], words: str, capsys: Capture, tmp_path: Path
) -> None:
    document = json.loads(example_text("rom-wafers"))
    for data in document["tiers"]["classes"]:
        if data["name"] == "KV":
            data |= change
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(document))
    code, out, err = call(capsys, "solve", str(file))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_no_reads_in_flight_are_refused_in_one_line(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("remote-kv-idle-and-active"))
    document["tiers"]["tiers"][1]["access"]["in_flight"] = 0
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(document))
    code, out, err = call(capsys, "solve", str(file))
    assert (code, out) == (2, "")
    assert "in_flight" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        *('{"tiers": [3]}', '{"slices": []}', '{"tiers": {"classes": []}}', '{"plan": null}'),
        '{"tiers": {"classes": [], "num_sessions": 1, "price": 1}}',
        '{"tiers": {"classes": [{"name": "KV", "tier": "RAM"}], "num_sessions": 1}}',
    ],
)
def test_what_is_no_plan_is_refused(text: str, capsys: Capture, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    code, out, err = call(capsys, "verify", "rom-wafers", str(plan))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
