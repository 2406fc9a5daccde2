"""Brute force, CP-SAT, HiGHS and CBC agree on random small decisions of tiers, exactly."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from fine_tiers import with_fine_numbers
from formulations import tier_rows
from formulations.tiers import solve_tiers
from optimizer.errors import TooLargeError
from optimizer.protocols import Termination
from optimizer.tiers.evaluation import evaluate_tiers
from optimizer.tiers.generate import GOALS, small_tiers
from optimizer.tiers.problem import Data, Machine, Tier, TierPlan, TierProblem
from optimizer.tiers.search import (
    best_tiers_exhaustively,
    first_tiers,
    improved_tiers,
    num_placements,
    with_places,
)

F = Fraction
NUM_SEEDS = 280
BLOCK = 28


def problem_of(seed: int) -> TierProblem:
    return small_tiers(seed, GOALS[seed % len(GOALS)])


@cache
def best_of(seed: int) -> TierPlan | None:
    """The oracle's plan."""
    return best_tiers_exhaustively(problem_of(seed))


def coarse(seed: int) -> TierProblem:
    """A problem with bytes and speeds of nine digits, which programs must round."""
    problem, rng = problem_of(seed), random.Random(seed)
    fine = with_fine_numbers(problem, rng, lambda: rng.choice((1, 1, 20)))
    most = problem.min_sessions + rng.choice((0, 5, 100, 5000))
    return replace(fine, max_sessions=most)


def value_of(problem: TierProblem, plan: TierPlan | None) -> Fraction | None:
    """The value of a legal plan."""
    if plan is None:
        return None
    judged = evaluate_tiers(problem, plan)
    assert judged.violations == ()
    return judged.value(problem.goal)


def check_agreement(problem: TierProblem, backends: tuple[str, ...], where: str) -> Fraction | None:
    """All methods find the same value, or that nothing is legal; return it."""
    value = value_of(problem, best_tiers_exhaustively(problem))
    for backend in backends:
        found = solve_tiers(problem, backend, deadline=time.monotonic() + 60)
        if value is None:
            assert (found.termination, found.plan) == (Termination.INFEASIBLE, None), where
            continue
        assert found.termination is Termination.OPTIMAL, f"{where}, {backend}"
        assert (found.value, found.bound) == (value, value), f"{where}, {backend}"
        assert value_of(problem, found.plan) == value, f"{where}, {backend}"
    return value


def backends_for(seed: int) -> tuple[str, ...]:
    return ("cp-sat", "highs", "cbc") if seed % 3 == 0 else ("cp-sat", "highs")


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check_agreement(problem_of(seed), backends_for(seed), f"seed {seed}")


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_all_methods_agree_where_numbers_are_rounded(first: int) -> None:
    for seed in range(first, first + 30):
        check_agreement(coarse(seed), backends_for(seed), f"seed {seed}")


def test_coarse_rows_prove_nothing_that_is_not_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may weigh so little that rounding hides what decides; plans found are ruled out."""
    for backend in tier_rows.MAX_WEIGHT:
        monkeypatch.setitem(tier_rows.MAX_WEIGHT, backend, 5200)
    for seed in range(1000, 1040):
        check_agreement(coarse(seed), ("cp-sat", "highs", "cbc")[seed % 3 :][:1], f"seed {seed}")


def test_brute_force_agrees_with_the_evaluator_on_every_plan_there_is() -> None:
    """Every home and copy, illegal ones as well, with every number of sessions is evaluated."""
    num_checked = 0
    for seed in range(NUM_SEEDS):
        problem = problem_of(seed)
        tiers = range(len(problem.tiers))
        copies = (None, *tiers)
        places = [
            list(itertools.product(tiers, copies if data.may_copy else (None,)))
            for data in problem.classes
        ]
        count = 1
        for options in places:
            count *= len(options)
        numbers = range(problem.min_sessions - 1, problem.max_sessions + 2)
        if count * len(numbers) > 400:
            continue
        values = []
        for chosen in itertools.product(*places):
            for num in numbers:
                judged = evaluate_tiers(problem, with_places(chosen, num))
                if judged.is_feasible:
                    values.append(judged.value(problem.goal))
        found = value_of(problem, best_of(seed))
        assert found == max((v for v in values if v is not None), default=None), seed
        num_checked += 1
    assert num_checked >= 30


@pytest.mark.parametrize("backend", ["cp-sat", "highs", "cbc"])
def test_a_known_plan_changes_nothing_but_where_the_search_begins(backend: str) -> None:
    for seed in range(30):
        problem = problem_of(seed)
        value = value_of(problem, best_of(seed))
        known = first_tiers(problem)
        found = solve_tiers(problem, backend, deadline=time.monotonic() + 60, known=known)
        assert found.value == value, seed


def test_plans_without_a_solver_are_never_better() -> None:
    for seed in range(100):
        problem = problem_of(seed)
        value = value_of(problem, best_of(seed))
        for plan in (first_tiers(problem), improved_tiers(problem, lambda: False)):
            judged = None if plan is None else evaluate_tiers(problem, plan)
            if judged is not None and judged.is_feasible:
                own = judged.value(problem.goal)
                assert value is not None, seed
                assert own is not None, seed
                assert own <= value, seed


def test_no_time_is_left_to_prove_anything() -> None:
    seed = next(seed for seed in range(NUM_SEEDS) if best_of(seed) is not None)
    found = solve_tiers(problem_of(seed), "highs", deadline=time.monotonic() - 1)
    assert found.termination is Termination.NO_SOLUTION_FOUND
    assert (found.plan, found.value) == (None, None)


def test_more_sessions_than_rows_can_state_are_declined_or_solved() -> None:
    """A byte for each of a million sessions: MILP rows decline, CP-SAT states them."""
    tier = Tier("t", 600_001, F(10), 0, F(10))
    data = Data("kv", (0,), 1, 1, is_written=True)
    problem = TierProblem(Machine(), ("p",), (tier,), (data,), "sessions")
    found = solve_tiers(problem, "cp-sat", deadline=time.monotonic() + 60)
    assert (found.termination, found.value) == (Termination.OPTIMAL, 600_000)
    for backend in ("highs", "cbc"):
        with pytest.raises(TooLargeError, match="600000 sessions are too many to state"):
            solve_tiers(problem, backend, deadline=time.monotonic() + 60)


def test_nothing_is_legal_when_the_machine_alone_is_too_slow() -> None:
    """Two seconds of communication before a target of one, whatever lies where."""
    tiers = tuple(Tier(f"t{t}", 9, F(1), 0, F(1)) for t in range(3))
    problem = TierProblem(
        Machine(communication_s=F(2)),
        ("p",),
        tiers,
        (Data("w", (0, 1, 2), 1), Data("v", (0, 1, 2), 1)),
        "user_rate",
        step_target_s=F(1),
    )
    assert check_agreement(problem, ("cp-sat", "highs", "cbc"), "slow") is None
    allowed = replace(problem, step_target_s=F(2))
    assert check_agreement(allowed, ("cp-sat", "highs", "cbc"), "just") == F(1, 2)


def test_the_problems_cover_what_they_should() -> None:
    """Copies, several tiers, lookups in sight and hidden, resumes, targets and prices decide."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = problem_of(seed)
        best = best_of(seed)
        seen["more than 50 placements"] += num_placements(problem) > 50
        if best is None:
            seen["infeasible"] += 1
            continue
        judged = evaluate_tiers(problem, best)
        step = judged.step
        seen[problem.goal] += 1
        seen["copies"] += any(copy is not None for copy in best.copies)
        seen["several tiers"] += len(set(best.homes)) > 1
        seen["lookups are hidden"] += step.excess_s == 0 and any(step.prefetches_s)
        seen["lookups are seen"] += step.excess_s > 0
        seen["lookups are not prefetched"] += step.lookups_s > 0
        seen["resumes share a path"] += any(
            share and load for share, load in zip(judged.resume_shares, step.loads_s, strict=True)
        )
        seen["computing is longest"] += step.compute_s > max(step.loads_s)
        more = replace(best, num_sessions=best.num_sessions + 1)
        broken = {v.rule for v in evaluate_tiers(problem, more).violations}
        for rule in ("capacity", "step_target", "max_sessions"):
            seen[f"{rule} limits sessions"] += rule in broken
    least = {"infeasible": 50, "several tiers": 100, "copies": 12, "more than 50 placements": 30}
    least |= dict.fromkeys(GOALS, 30)
    least |= {"lookups are hidden": 15, "lookups are seen": 10, "lookups are not prefetched": 10}
    least |= {"resumes share a path": 15, "computing is longest": 15}
    least |= {f"{rule} limits sessions": 20 for rule in ("capacity", "step_target", "max_sessions")}
    for what, num in least.items():
        assert seen[what] >= num, (what, seen)
