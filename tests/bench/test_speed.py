"""Speed, for people to compare; deselected by default and never asserted. Run it with

    python -m pytest tests/bench -m bench -n 0 --benchmark-group-by=group

Whole processes are compared with the least a Python process can do: `ratio` in extra_info (shown
with --benchmark-verbose or --benchmark-json) is the median over that of the baseline, which runs
just before it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from formulations.cpsat_engine import CpSatEngine
from formulations.patterns import build_patterns
from instances import Instance, parse_instance
from instances.io import example_names, load_instance
from optimizer import SolveOptions, solve
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively
from optimizer.explain import candidate_reports
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import SolveRequest

pytestmark = pytest.mark.bench
SUPERNODE = str(Path(sys.executable).with_name("supernode"))
ROUNDS = 7


def process(*command: str) -> Callable[[], None]:
    """Return a call that runs a command to its end."""

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    return run


def compare(benchmark: BenchmarkFixture, command: Callable[[], None], base: Any) -> None:
    """Measure a command and note its ratio to a baseline measured in turns with it.

    Taking turns keeps a machine that slows down half-way out of the ratio.
    """
    ours: list[float] = []
    theirs: list[float] = []

    def in_turns() -> tuple[tuple[()], dict[str, Any]]:
        for run, seconds in ((base, theirs), (command, ours)):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        return (), {}

    benchmark.pedantic(command, setup=in_turns, rounds=ROUNDS, iterations=1)
    benchmark.extra_info["ratio"] = round(median(ours) / median(theirs), 3)
    print(f"\nratio to the baseline: {benchmark.extra_info['ratio']}")


IMPORT_CP_SAT = process(sys.executable, "-c", "from ortools.sat.python import cp_model")
DO_NOTHING = process(sys.executable, "-c", "pass")


@pytest.mark.benchmark(group="solve as a process")
def test_python_that_imports_cp_sat(benchmark: BenchmarkFixture) -> None:
    """Baseline of a solve: a Python process that imports CP-SAT and ends."""
    benchmark.pedantic(IMPORT_CP_SAT, rounds=ROUNDS, iterations=1)


@pytest.mark.benchmark(group="solve as a process")
def test_supernode_solve_as_a_process(benchmark: BenchmarkFixture) -> None:
    """The first decision of the source, proven, verified and printed."""
    compare(benchmark, process(SUPERNODE, "solve", "four-sessions-128k"), IMPORT_CP_SAT)


@pytest.mark.benchmark(group="help as a process")
def test_python_that_does_nothing(benchmark: BenchmarkFixture) -> None:
    """Baseline of the help: a Python process that starts and ends."""
    benchmark.pedantic(DO_NOTHING, rounds=ROUNDS, iterations=1)


@pytest.mark.benchmark(group="help as a process")
def test_supernode_help_as_a_process(benchmark: BenchmarkFixture) -> None:
    """No solver may be imported for a help text."""
    compare(benchmark, process(SUPERNODE, "--help"), DO_NOTHING)


@pytest.mark.benchmark(group="solve in process")
@pytest.mark.parametrize("name", example_names())
def test_solve_an_example(benchmark: BenchmarkFixture, name: str) -> None:
    """Every bundled example, all imports done."""
    instance = load_instance(name)
    options = SolveOptions(threads=1)
    solve(instance, options)
    benchmark.pedantic(solve, args=(instance, options), rounds=5, iterations=1)


def wide_pool() -> Instance:
    """Return 64 servers of 8 cards with spans of every size, 100 sessions of 10,000 tokens."""
    pool = {"name": "hgx", "server": "hgx-h100", "num_servers": 64, "fabric_between": "nvlink-4"}
    cohorts = [
        {"name": f"c{i}", "num_sessions": 25, "context_tokens": 1000 * i, "new_tokens": 10_000}
        for i in range(4)
    ]
    return parse_instance(
        {
            "name": "wide",
            "model": "qwen3-32b",
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": cohorts},
            "search": {"deployment": "uniform"},
            "objective": {"minimise": "makespan"},
        }
    )


@pytest.mark.benchmark(group="pricing")
def test_price_a_pool_of_64_servers(benchmark: BenchmarkFixture) -> None:
    """build_tables; extra_info has candidates (priced or rejected) a second."""
    instance = wide_pool()
    tables = benchmark(build_tables, instance)
    count = len(tables.candidates) + len(tables.rejections)
    benchmark.extra_info["candidates"] = count
    if benchmark.stats is not None:
        benchmark.extra_info["candidates_per_s"] = round(count / benchmark.stats.stats.median)
    print(f"\n{benchmark.extra_info}")


@pytest.mark.benchmark(group="parts")
def test_evaluate_a_plan_of_100_sessions(benchmark: BenchmarkFixture) -> None:
    """One exact evaluation, card by card and step by step, on 512 cards."""
    instance = wide_pool()
    plan = next(candidate_reports(build_tables(instance))).plan
    benchmark.pedantic(evaluate, args=(instance, plan), rounds=5, iterations=1)


@pytest.mark.benchmark(group="parts")
def test_list_patterns_of_mixed_wins(benchmark: BenchmarkFixture) -> None:
    """Columns of the MILP."""
    tables = build_tables(load_instance("mixed-wins"))
    benchmark(build_patterns, tables, lambda: False)


@pytest.mark.benchmark(group="parts")
def test_scale_ticks_of_mixed_wins(benchmark: BenchmarkFixture) -> None:
    """Ticks of CP-SAT, with every end of every queue."""
    instance = load_instance("mixed-wins")
    request = SolveRequest(build_tables(instance), objective_terms(instance), float("inf"))
    benchmark(CpSatEngine, request)


@pytest.mark.benchmark(group="parts")
def test_enumerate_all_plans_of_mixed_wins(benchmark: BenchmarkFixture) -> None:
    """Brute force, as the second opinion of small problems."""
    instance = load_instance("mixed-wins")
    benchmark.pedantic(solve_exhaustively, args=(instance,), rounds=5, iterations=1)
