"""Brute force, CP-SAT, HiGHS and CBC agree on random tiny fleets, exactly, on both sides."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from formulations.capacity import solve_capacity
from formulations.integer_program import BACKENDS
from instances.instance import Instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.exhaustive import CapacityOptimum, capacity_optimum
from optimizer.capacity.generate import tiny_capacity
from optimizer.capacity.plan import CapacityPlan, ServerFill
from optimizer.capacity.problem import CapacityProblem, FailureEvent
from optimizer.protocols import Termination

NUM_SEEDS = 320
BLOCK = 16


@cache
def drawn(seed: int) -> tuple[Instance, CapacityProblem, CapacityOptimum | None]:
    """The instance of a seed, its problem, and what brute force finds."""
    instance = tiny_capacity(seed)
    problem = build_capacity(instance).problem
    return instance, problem, capacity_optimum(problem)


def survivors(
    problem: CapacityProblem, plan: CapacityPlan, event: FailureEvent
) -> tuple[ServerFill, ...]:
    """The servers that an event leaves in use; what it breaks elsewhere stands idle."""
    whole: Counter[tuple[int, int]] = Counter()  # servers, by option and cell, that it takes
    left = list[ServerFill]()
    for fill in plan.servers:
        if fill.server_class not in event.classes:
            left.append(fill)
        elif fill.spanned_by is not None:
            whole[fill.spanned_by, problem.classes[fill.server_class].cell] += fill.count
    idle: Counter[tuple[int, int]] = Counter()
    for (option, cell), taken in whole.items():
        others = problem.options[option].num_servers - 1
        kept = sum(
            fill.count
            for fill in left
            if fill.spanned_by == option and problem.classes[fill.server_class].cell == cell
        )
        idle[option, cell] = min(taken * others, kept)
    lost, found = event.option, list[ServerFill]()
    if lost is not None and problem.options[lost].num_servers > 1:
        holders = [fill for fill in left if fill.spanned_by == lost]
        if holders:
            cell = problem.classes[holders[0].server_class].cell
            idle[lost, cell] += problem.options[lost].num_servers
            lost = None
    for fill in left:
        if fill.spanned_by is not None:
            key = fill.spanned_by, problem.classes[fill.server_class].cell
            gone = min(idle[key], fill.count)
            idle[key] -= gone
            found.append(replace(fill, count=fill.count - gone))
        elif lost is not None and dict(fill.blocks).get(lost):
            fewer = dict(fill.blocks)
            fewer[lost] -= 1
            blocks = tuple((o, n) for o, n in fewer.items() if n)
            found += [replace(fill, count=1, blocks=blocks), replace(fill, count=fill.count - 1)]
            lost = None
        else:
            found.append(fill)
    return tuple(f for f in found if f.count and (f.blocks or f.spanned_by is not None))


def check_failures(instance: Instance, problem: CapacityProblem, plan: CapacityPlan) -> None:
    """What every single failure leaves is a legal plan by itself: existing servers, no failure."""
    for event, loads in zip(problem.events, plan.loads_after, strict=True):
        least = zip(problem.cohorts, event.min_sessions, strict=True)
        left = replace(
            problem,
            cohorts=tuple(replace(cohort, min_sessions=n) for cohort, n in least),
            events=(),
            is_purchase=False,
        )
        alone = CapacityPlan((), survivors(problem, plan, event), loads)
        judged = evaluate_capacity(instance, left, alone)
        assert judged.violations == (), f"{instance.name}, after {event.name}"


def check_plan(instance: Instance, problem: CapacityProblem, plan: CapacityPlan | None) -> None:
    """The evaluator accepts a plan, whole and after every failure, at the best values."""
    best = drawn(int(instance.name.rpartition("-")[2]))[2]
    assert plan is not None, instance.name
    assert best is not None, instance.name
    judged = evaluate_capacity(instance, problem, plan)
    assert judged.violations == (), instance.name
    assert tuple(judged.values[goal] for goal in problem.goals) == best.values, instance.name
    check_failures(instance, problem, plan)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_backends_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        instance, problem, best = drawn(seed)
        if best is not None:
            check_plan(instance, problem, best.plan)
        # CBC starts a process for every question, so it takes every third problem
        for backend in BACKENDS if seed % 3 == 0 else BACKENDS[:2]:
            found = solve_capacity(problem, backend, deadline=time.monotonic() + 60)
            where = f"{instance.name}, {backend}"
            if best is None:
                assert found.termination is Termination.INFEASIBLE, where
                assert found.plan is None, where
                continue
            assert found.termination is Termination.OPTIMAL, where
            assert found.value == best.values, where
            assert found.bound == best.values, where
            check_plan(instance, problem, found.plan)


def test_a_best_plan_can_spare_no_server() -> None:
    """Where servers decide the first goal, a best plan with one less breaks a rule."""
    num_checked = 0
    for seed in range(0, NUM_SEEDS, 2):
        instance, problem, best = drawn(seed)
        is_least = problem.goals[0] in ("price_per_hour", "servers", "power", "energy")
        if best is None or not is_least or problem.sites:
            continue
        for fill in best.plan.servers:
            if problem.classes[fill.server_class].is_occupied:
                continue
            others = [f for f in best.plan.servers if f is not fill]
            others += [replace(fill, count=fill.count - 1)] if fill.count > 1 else []
            judged = evaluate_capacity(instance, problem, replace(best.plan, servers=tuple(others)))
            assert judged.violations, f"{instance.name}: server class {fill.server_class}"
            num_checked += 1
    assert num_checked >= 10
