"""The README's Python runs as it stands, and finds what the README says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def ran(text: str) -> dict[str, Any]:
    """Run the block that has a text; returns its names."""
    (block,) = [block for block in BLOCKS if text in block]
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_first_library_example_runs() -> None:
    names = ran("from optimizer import SolveOptions, evaluate, solve, verify")
    assert names["result"].termination == "optimal"


def test_the_capacity_planning_loop_runs() -> None:
    names = ran("demand = sweep(")
    # 4 x TP2 on each server serves four sessions within 130 ms: one server for every four
    assert {n: servers for n, (servers, _, _) in names["needed"].items()} == {4: 1, 8: 2, 12: 3}
    assert round(names["shortest_s"], 4) == 0.1191
    assert len(names["close"]) == 2
    assert names["threshold"].status == "changes"
    assert names["fixes"]


def test_every_command_is_in_the_table() -> None:
    from cli.main import cli

    for name in cli.commands:
        assert f"| `supernode {name}" in README, name
