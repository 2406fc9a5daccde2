"""Sweeps and frontiers against one whole-process solve; deselected by default. Run it with

    python -m pytest tests/bench/test_sweep_speed.py -m bench -n 0 -s

Each command runs in turns with `supernode solve four-sessions-128k`; printed (and kept in
extra_info) is the ratio of the medians. The goals are 15 for 1,000 deadlines with two jobs and 5
for the exact frontier.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.bench
SUPERNODE = str(Path(sys.executable).with_name("supernode"))
SOLVE = ("solve", "four-sessions-128k")
COMMANDS = {
    "1000 deadlines, 2 jobs": (
        *("sweep", "four-sessions-128k", "--deadline", "50ms:1049ms:1ms", "--jobs", "2"),
    ),
    "1000 deadlines, 1 job": ("sweep", "four-sessions-128k", "--deadline", "50ms:1049ms:1ms"),
    "exact frontier": ("sweep", "four-sessions-128k", "--exact"),
    "exact curves of three TP": ("sweep", "deadlines-128k"),
    "sensitivity of all inputs": ("sensitivity", "four-sessions-128k"),
    "plans within 100%": (*SOLVE, "--within", "100%"),
    "why nothing fits": ("explain", "infeasible-deadline"),
}
ROUNDS = 5


def process(*command: str) -> Callable[[], None]:
    def run() -> None:
        done = subprocess.run([SUPERNODE, *command], capture_output=True, check=False)
        assert done.returncode in (0, 3), done.stderr

    return run


def seconds(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@pytest.mark.parametrize("name", COMMANDS)
def test_against_one_solve(benchmark: BenchmarkFixture, name: str) -> None:
    base: list[float] = []
    solve, command = process(*SOLVE), process(*COMMANDS[name])

    def setup() -> None:
        base.append(seconds(solve))

    benchmark.group = "against one whole-process solve"
    benchmark.pedantic(command, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    ratio = benchmark.stats.stats.median / median(base)
    benchmark.extra_info["ratio"] = round(ratio, 2)
    print(f"\n{name}: {ratio:.2f} times one solve ({median(base):.2f} s)")
