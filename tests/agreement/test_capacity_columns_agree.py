"""Capacity by columns is never wrong: against brute force, the evaluator and its own proof."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from formulations.capacity_columns import ColumnsOutcome, solve_by_columns
from instances.instance import Instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.exhaustive import capacity_optimum
from optimizer.capacity.generate import tiny_capacity
from optimizer.capacity.generate_large import large_capacity
from optimizer.capacity.multipliers import Multipliers, capacity_bound, check_supported
from optimizer.capacity.problem import CapacityProblem
from optimizer.capacity.server_counts import COUNTED_GOALS
from optimizer.errors import TooLargeError
from optimizer.protocols import Termination

NUM_SEEDS, BLOCK = 240, 40
PROVEN = (Termination.OPTIMAL, Termination.INFEASIBLE)


def without_failures(problem: CapacityProblem) -> CapacityProblem:
    """The same question where nothing fails, with goals that counts of servers decide."""
    known = COUNTED_GOALS if problem.is_purchase else COUNTED_GOALS - {"racks"}
    goals = tuple(goal for goal in problem.goals if goal in known)
    return replace(problem, events=(), goals=goals or ("price_per_hour",))


@cache
def asked(seed: int) -> tuple[Instance, CapacityProblem] | None:
    """The instance of a seed, and its problem without failures; None if columns decline it."""
    instance = tiny_capacity(seed)
    problem = without_failures(build_capacity(instance).problem)
    try:
        check_supported(problem)
    except TooLargeError:
        with pytest.raises(TooLargeError, match="capacity by columns"):
            solve_by_columns(problem, deadline=time.monotonic() + 60)
        return None
    return (instance, problem) if problem.options else None


def check_outcome(
    instance: Instance, problem: CapacityProblem, found: ColumnsOutcome, *, is_short: bool = False
) -> None:
    """What an outcome says of itself holds: plan, values, bound, proof.

    Where time was short, more may follow from the proof than was counted.
    """
    where = instance.name
    assert (found.plan is None) == (found.value is None), where
    if found.plan is not None:
        judged = evaluate_capacity(instance, problem, found.plan)
        assert judged.violations == (), where
        assert found.value == tuple(judged.values[goal] for goal in problem.goals), where
        assert found.termination is not Termination.INFEASIBLE, where
    if found.bound is not None:
        counted = capacity_bound(problem, found.proof)
        if is_short:
            assert counted is None or counted >= found.bound, where
        else:
            assert counted == found.bound, where
        assert found.value is None or found.bound <= found.value, where
    if found.termination is Termination.OPTIMAL:
        assert found.bound == found.value is not None, where
    if found.termination is Termination.INFEASIBLE and found.proof:
        assert capacity_bound(problem, found.proof) is None, where


def check_against_all_plans(
    instance: Instance, problem: CapacityProblem, found: ColumnsOutcome
) -> None:
    """The best of all plans lies between bound and value; there is none where that is claimed."""
    best = capacity_optimum(problem)
    where = instance.name
    if best is None:
        assert found.plan is None, where
        assert found.termination is not Termination.OPTIMAL, where
        return
    assert found.termination is not Termination.INFEASIBLE, where
    assert found.value is None or found.value >= best.values, where
    assert found.bound is None or found.bound <= best.values, where
    if found.termination is Termination.OPTIMAL:
        assert found.value == best.values, where


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_columns_are_never_wrong(first: int) -> None:
    ended: Counter[Termination] = Counter()
    for seed in range(first, first + BLOCK):
        drawn = asked(seed)
        if drawn is None:
            continue
        found = solve_by_columns(drawn[1], deadline=time.monotonic() + 60)
        check_outcome(*drawn, found)
        check_against_all_plans(*drawn, found)
        ended[found.termination] += 1
    # a solver that never claims anything is never wrong either
    assert sum(ended.values()) >= 12
    assert ended[Termination.OPTIMAL] >= 4
    assert ended[Termination.INFEASIBLE] >= 1
    assert sum(ended[one] for one in PROVEN) >= 0.6 * sum(ended.values())


def test_enough_problems_of_every_sort_remain() -> None:
    kept = [drawn[1] for seed in range(NUM_SEEDS) if (drawn := asked(seed)) is not None]
    assert len(kept) >= 100
    sorts = {
        "bought": [p.is_purchase for p in kept],
        "existing": [not p.is_purchase for p in kept],
        "in racks": [bool(p.sites) for p in kept],
        "with tiers": [bool(p.tiers) for p in kept],
        "with a budget": [p.budget_w is not None for p in kept],
        "over several servers": [any(o.num_servers > 1 for o in p.options) for p in kept],
        "with occupied cards": [any(c.is_occupied for c in p.classes) for p in kept],
        "of several goals": [len(p.goals) > 1 for p in kept],
        "in groups": [any(pool.servers_per_group > 1 for pool in p.pools) for p in kept],
    }
    few = {name: sum(found) for name, found in sorts.items() if sum(found) < 3}
    assert few == {}


def test_columns_stay_right_with_no_time_left() -> None:
    """A deadline that is past or at hand may cost the plan or the bound, never their truth."""
    cut_short = 0
    for seed in range(0, NUM_SEEDS, 4):
        drawn = asked(seed)
        if drawn is None:
            continue
        for seconds in (-1.0, 0.0, 0.002, 0.01):
            found = solve_by_columns(drawn[1], deadline=time.monotonic() + seconds)
            check_outcome(*drawn, found, is_short=True)
            check_against_all_plans(*drawn, found)
            cut_short += found.termination not in PROVEN
    assert cut_short >= 20


def test_multipliers_of_another_problem_are_not_taken_on_trust() -> None:
    """Cards at half their price let some instance be worth more than they are."""
    num_refused = 0
    for seed in range(NUM_SEEDS):
        drawn = asked(seed)
        if drawn is None or num_refused >= 20:
            continue
        found = solve_by_columns(drawn[1], deadline=time.monotonic() + 60)
        for one in found.proof:
            if not any(one.sessions) or not any(one.cards):
                continue
            halved = Multipliers(one.sessions, tuple(price // 2 for price in one.cards))
            with pytest.raises(ValueError, match="not valid"):
                capacity_bound(drawn[1], (halved,))
            num_refused += 1
    assert num_refused >= 20


MEDIUM = {"num_cards": 2000, "num_cohorts": 6, "num_models": 2, "num_pools": 2}
OTHER = {"num_cards": 600, "num_cohorts": 4, "num_models": 2, "num_pools": 2}


@cache
def medium(seed: int, size: int) -> tuple[Instance, CapacityProblem]:
    """A fleet of hundreds of servers, and its problem."""
    instance = large_capacity(seed, **(MEDIUM, OTHER)[size])
    return instance, build_capacity(instance).problem


@pytest.mark.parametrize(("seed", "size"), [(1, 0), (2, 1)])
def test_a_middle_sized_fleet_has_a_legal_plan_and_a_small_gap(seed: int, size: int) -> None:
    instance, problem = medium(seed, size)
    found = solve_by_columns(problem, deadline=time.monotonic() + 60)
    check_outcome(instance, problem, found)
    assert found.value is not None
    assert found.bound is not None
    assert 0 < found.bound[0] <= found.value[0] <= Fraction(11, 10) * found.bound[0]
    # every cohort must be served whole
    assert found.plan is not None
    sessions = evaluate_capacity(instance, problem, found.plan).sessions
    assert sessions == tuple(cohort.num_sessions for cohort in problem.cohorts)


@pytest.mark.parametrize("seconds", [-10.0, 0.0, 0.01, 0.05])
def test_a_middle_sized_fleet_with_no_time(seconds: float) -> None:
    instance, problem = medium(1, 0)
    found = solve_by_columns(problem, deadline=time.monotonic() + seconds)
    check_outcome(instance, problem, found, is_short=True)
    assert found.termination is not Termination.INFEASIBLE
    if seconds <= 0:
        assert found == ColumnsOutcome(Termination.NO_SOLUTION_FOUND)


def test_the_stop_event_stops() -> None:
    instance, problem = medium(1, 1)
    stop = threading.Event()
    stop.set()
    found = solve_by_columns(problem, deadline=time.monotonic() + 300, stop=stop)
    assert found == ColumnsOutcome(Termination.NO_SOLUTION_FOUND)
    # with all the time in the world this fleet is searched for minutes, unless it is told to stop
    stop.clear()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    started = time.monotonic()
    found = solve_by_columns(problem, deadline=time.monotonic() + 300, stop=stop)
    timer.cancel()
    assert time.monotonic() - started < 60
    check_outcome(instance, problem, found, is_short=True)


def test_an_impossible_middle_sized_fleet_is_proven_so() -> None:
    """200 kW run no fleet that serves everybody; multipliers say so."""
    instance, problem = medium(1, 0)
    bound = capacity_bound(problem, ())
    assert bound == (0,)
    starved = replace(problem, budget_w=problem.fixed_w + 200_000)
    found = solve_by_columns(starved, deadline=time.monotonic() + 60)
    assert found.termination is Termination.INFEASIBLE
    assert found.plan is found.bound is None
    assert found.proof
    assert capacity_bound(starved, found.proof) is None
    # the same multipliers forbid nothing where there is power
    check_outcome(instance, problem, solve_by_columns(problem, deadline=time.monotonic() + 60))
    assert capacity_bound(problem, found.proof) is not None
