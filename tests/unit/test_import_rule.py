"""Imports run one way: instances <- optimizer <- formulations <- cli (checked on the source)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("instances", "optimizer", "formulations", "cli")
#: What a room may import of the project besides itself.
ALLOWED = {
    "instances": set(),
    "optimizer": {"instances"},
    "formulations": {"instances", "optimizer"},
    "cli": {"instances", "optimizer"},
}
#: Modules of `optimizer` that formulations may see (the rest is how results are made).
SEEN_BY_FORMULATIONS = {
    "tables",
    "protocols",
    "errors",
    "result",
    "stages.problem",
    "experts.problem",
    "slices.problem",
    "ring_order.problem",
    "mix.problem",
    "tiers.problem",
    "placement.problem",
    "capacity.problem",
    "capacity.plan",
    "capacity.loads",
    "capacity.multipliers",
    "pooling.problem",
    "supernode.problem",
}


def imported(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        for module in imported(path):
            top = module.split(".")[0]
            if top in ROOMS and top != room:
                assert top in ALLOWED[room], f"{path.relative_to(ROOT)} imports {module}"


def test_formulations_see_tables_and_protocols_only() -> None:
    for path in sorted((ROOT / "formulations").glob("*.py")):
        for module in imported(path):
            if module.startswith("optimizer."):
                room = module.removeprefix("optimizer.")
                assert room in SEEN_BY_FORMULATIONS, f"{path.name}: {module}"


def test_evaluator_and_tables_do_not_know_each_other() -> None:
    apart = {
        "evaluate": {"optimizer.tables", "optimizer.pricing"},
        "checks": {"optimizer.tables", "optimizer.pricing"},
        "timeline": {"optimizer.tables", "optimizer.pricing"},
        "tables": {"optimizer.evaluate", "optimizer.timeline"},
        "pricing": {"optimizer.evaluate", "optimizer.timeline"},
    }
    for name, banned in apart.items():
        found = set(imported(ROOT / "optimizer" / f"{name}.py"))
        assert not found & banned, f"{name} imports {found & banned}"


def test_the_front_door_loads_no_study_before_it_is_asked_for() -> None:
    code = (
        "import sys, optimizer; rooms = ('sweeps', 'frontiers', 'sensitivities', 'conflicts', "
        "'near_optimal', 'reports'); early = [m for m in sys.modules if m.startswith("
        "tuple(f'optimizer.{r}' for r in rooms))]; "
        "late = [n for n in optimizer.__all__ if not hasattr(optimizer, n)]; print(early, late)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[] []\n"


def test_only_the_command_line_prints() -> None:
    for room in ("instances", "optimizer", "formulations"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
                assert not is_print, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} prints"


def test_files_and_functions_stay_short() -> None:
    """House rule: files at most 400 lines, functions at most 60."""
    for room in (*ROOMS, "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            assert text.count("\n") <= 400, f"{path.relative_to(ROOT)} is too long"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert lines <= 60, f"{path.relative_to(ROOT)}:{node.name} has {lines} lines"
