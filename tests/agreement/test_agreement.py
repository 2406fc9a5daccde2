"""Brute force, CP-SAT, HiGHS and CBC agree on random tiny problem instances, exactly."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import get_args

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances.instance import Instance
from instances.objective import Objective, ObjectiveName
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_many
from optimizer.generate import tiny_instance
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, SolveRequest, Termination

NUM_SEEDS = 320
NUM_SINGLE = 3
BLOCK = 20
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
BACKENDS: tuple[type[Formulation], ...] = (CpSatDeployment, HighsDeployment, CbcDeployment)


def check_backend(
    backend: type[Formulation], instance: Instance, expected: tuple[Fraction, ...] | None
) -> None:
    """Solve with one backend: same values as brute force, and the evaluator accepts the plan."""
    tables = build_tables(instance)
    terms = objective_terms(instance)
    outcome = backend().solve(SolveRequest(tables, terms, time.monotonic() + 30))
    where = f"{instance.name} {instance.objective} {backend.__name__}"
    if expected is None:
        assert outcome.termination is Termination.INFEASIBLE, where
        return
    assert outcome.termination is Termination.OPTIMAL, where
    assert tuple(claim.value for claim in outcome.claims) == expected, where
    for claim, value in zip(outcome.claims, expected, strict=True):
        assert claim.bound is not None, where
        # CP-SAT's sums are as exact as its ticks; everything else meets its bound
        slack = abs(value) / 10**6 if backend is CpSatDeployment else 0
        assert value - slack <= claim.bound <= value, where
    assert outcome.selection is not None
    evaluation = evaluate(instance, plan_of(tables, outcome.selection))
    assert evaluation.violations == (), where
    assert tuple(evaluation.objective(term.name) for term in terms) == expected, where


def variants(seed: int) -> list[Instance]:
    """The instance of a seed with its own list of objectives, and with three single ones.

    Which three goes round with the seed, so every objective meets every third instance or more.
    """
    instance = tiny_instance(seed)
    billing = instance.objective.billing
    names = [OBJECTIVES[(seed * NUM_SINGLE + i) % len(OBJECTIVES)] for i in range(NUM_SINGLE)]
    single = [Objective(minimise=(name,), billing=billing) for name in names]
    return [
        instance,
        *(Instance.model_validate({**dict(instance), "objective": o}) for o in single),
    ]


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_backends_agree_with_brute_force(first: int) -> None:
    """Lists and single objectives, every backend, 20 seeds at a time."""
    for seed in range(first, first + BLOCK):
        problems = variants(seed)
        results = solve_many(problems[0], [p.objective for p in problems])
        for number, (problem, result) in enumerate(zip(problems, results, strict=True)):
            # CBC starts a process for every question, so it takes every third problem
            backends = BACKENDS if (seed + number) % 3 == 0 else BACKENDS[:2]
            for backend in backends:
                check_backend(backend, problem, result.values)
