"""`supernode solve`, `verify` and `schema` for mixes of accelerators, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Capture, call, check_solved_and_verified

EXAMPLES = ("mix-two-gpus", "mix-rate-82", "mix-tight-slo")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_mix_is_solved_written_and_verified(name: str, capsys: Capture, tmp_path: Path) -> None:
    check_solved_and_verified(name, capsys, tmp_path)


def test_the_report_has_loads_prices_and_pieces(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = call(capsys, "solve", "mix-two-gpus", "--threads", "1")
    assert (code, err) == (0, "")
    assert "plan       3 x A10G + 1 x A100-80GB: 6.70 an hour (one kind alone 7.34)\n" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "Accelerators" in lines
    assert "accelerator count at most load price an hour" in lines
    assert "A10G 3 any 3 3.03" in lines
    assert "Pieces of each bucket" in lines
    assert "bucket requests/s A10G A100-80GB" in lines
    assert "saved 0.64 an hour: one kind alone costs 7.34" in lines
    # three A10G and one A100 hold; an A10G less is too few by one
    pieces = [[0, 1], [0, 1], [1, 0], [0, 1]]
    plan = tmp_path / "plan.json"
    for counts, code_wanted in (([3, 1], 0), ([2, 1], 5)):
        plan.write_text(json.dumps({"mix": {"counts": counts, "pieces": pieces}}))
        code, out, err = call(capsys, "verify", "mix-two-gpus", str(plan))
        assert (code, err) == (code_wanted, "")
    assert "short at accelerator A10G: 2 of A10G for a load of 3: 1 more are needed" in out


@pytest.mark.parametrize(
    "text",
    [
        *('{"mix": [3, 1]}', '{"slices": []}', '{"mix": {"counts": [3, 1]}}', '{"plan": null}'),
        *('{"mix": {"counts": [3.5, 1], "pieces": []}}', '{"mix": {"counts": "3", "pieces": []}}'),
        '{"mix": {"counts": [3, 1], "pieces": [], "price": 1}}',
    ],
)
def test_what_is_no_mix_is_refused(text: str, capsys: Capture, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    code, out, err = call(capsys, "verify", "mix-two-gpus", str(plan))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
