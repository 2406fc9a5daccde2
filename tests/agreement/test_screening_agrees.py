"""Thinning out a search never loses the optimum: brute force over all of it agrees."""

from __future__ import annotations

import time

import pytest

import optimizer.screening as screening
from formulations.milp_engine import HighsDeployment
from optimizer.decode import plan_of
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively
from optimizer.generate import tiny_instance
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import SolveRequest, Termination

SEEDS = range(7000, 7120)
BLOCK = 30


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, BLOCK))
def test_screened_tables_keep_the_optimum(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is screened, however small; candidates must leave, and no value may change."""
    monkeypatch.setattr(screening, "SCREEN_FROM", 0)
    num_dominated = 0
    for seed in range(first, first + BLOCK):
        instance = tiny_instance(seed)
        try:
            best = solve_exhaustively(instance)
        except TooLargeError:
            continue
        tables = build_tables(instance)
        num_dominated += sum(r.rule == "dominated" for r in tables.rejections)
        request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 30)
        outcome = HighsDeployment().solve(request)
        if best.values is None:
            assert outcome.termination is Termination.INFEASIBLE, seed
            continue
        assert outcome.termination is Termination.OPTIMAL, seed
        assert tuple(claim.value for claim in outcome.claims) == best.values, seed
        assert outcome.selection is not None
        assert evaluate(instance, plan_of(tables, outcome.selection)).violations == (), seed
    assert num_dominated


def test_small_searches_are_kept_whole_for_the_reader() -> None:
    instance = tiny_instance(SEEDS.start)
    assert not [r for r in build_tables(instance).rejections if r.rule == "dominated"]
