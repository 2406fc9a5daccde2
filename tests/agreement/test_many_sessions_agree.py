"""Counting sessions that fit, in the millions: all backends find what brute force finds."""

from __future__ import annotations

import time

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances.instance import Instance
from instances.io import parse_instance
from optimizer.errors import TooLargeError
from optimizer.exhaustive import solve_exhaustively
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, SolveRequest, Termination


def capacity_problem(memory_bytes: int) -> Instance:
    """Return a fleet on which splits hold almost equally many sessions: sums meet in high digits.

    TP1 and TP2 hold the same per card but for what weights and rounding leave.
    """
    accelerator = {
        "name": "card",
        "memory_bytes": memory_bytes,
        "memory_bandwidth_bytes_per_s": "2GB/s",
        "peak_flops_per_s": {"bf16": "1TFLOP/s"},
    }
    link = {"name": "link", "alpha_s": "1us", "bandwidth_bytes_per_s": "50MB/s"}
    server = {"name": "s", "accelerator": accelerator, "num_cards": 4, "fabric": link}
    return parse_instance(
        {
            "name": "many",
            "model": {
                "name": "tiny",
                "num_layers": 2,
                "hidden_size": 64,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 8,
                "ffn_size": 129,
                "vocab_size": 101,
            },
            "fleet": {
                "pools": [{"name": "p", "server": {**server, "power_w": 700}, "num_servers": 2}]
            },
            "workload": {
                "cohorts": [{"name": "a", "num_sessions": 3, "context_tokens": 6, "new_tokens": 2}]
            },
            "runtime": {"workspace_bytes": 0},
            "search": {"tp": [1, 2, 4], "collectives": ["ring"], "deployment": "uniform"},
            "objective": {"maximise": "held_sessions", "minimise": ["energy", "max_latency"]},
        }
    )


@pytest.mark.parametrize("memory_bytes", [10**8, 10**9, 10**10, 10**12])
@pytest.mark.parametrize("backend", [CpSatDeployment, HighsDeployment, CbcDeployment])
def test_millions_of_sessions_are_counted_exactly(
    backend: type[Formulation], memory_bytes: int
) -> None:
    """A sum of negative digits lost its sign here: a true optimum looked infeasible."""
    instance = capacity_problem(memory_bytes)
    best = solve_exhaustively(instance).values
    assert best is not None
    assert -best[0] > 8 * (memory_bytes // 1100)
    tables = build_tables(instance)
    request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 30)
    if backend is CpSatDeployment and memory_bytes == 10**12:
        with pytest.raises(TooLargeError, match="sessions held exceed"):
            backend().solve(request)
        return
    outcome = backend().solve(request)
    assert outcome.termination is Termination.OPTIMAL
    assert tuple(claim.value for claim in outcome.claims) == best
