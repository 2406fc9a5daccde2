"""Placements without a solver: brute force, a first one by hand, and single moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.tiers.evaluation import TierEvaluation, evaluate_tiers
from optimizer.tiers.problem import Place, TierPlan, TierProblem


def with_places(places: Sequence[Place], num_sessions: int) -> TierPlan:
    """Return a plan of the place of every class."""
    homes, copies = zip(*places, strict=True)
    return TierPlan(homes, copies, num_sessions)


def best_sessions(problem: TierProblem, plan: TierPlan) -> TierPlan:
    """Return the plan with the best number of sessions for its places.

    A step's time grows with sessions, but never faster than in proportion to them: more sessions
    never break fewer rules, lower each user's rate and never lower the throughput. So the user's
    rate wants the fewest, and everything else the most that break no rule, which bisection finds.
    The fewest that are wanted are returned where no number is legal.
    """
    least, most = problem.min_sessions, problem.max_sessions
    found = replace(plan, num_sessions=least)
    if problem.goal == "user_rate" or not evaluate_tiers(problem, found).is_feasible:
        return found
    while least < most:
        middle = (least + most + 1) // 2
        if evaluate_tiers(problem, replace(plan, num_sessions=middle)).is_feasible:
            least = middle
        else:
            most = middle - 1
    return replace(plan, num_sessions=least)


def num_placements(problem: TierProblem) -> int:
    """Return how many placements there are, illegal ones as well."""
    return math.prod(len(problem.places(c)) for c in range(len(problem.classes)))


def best_tiers_exhaustively(problem: TierProblem, max_steps: int = 100_000) -> TierPlan | None:
    """Return a best plan by trying every placement; None where none is legal.

    Raises TooLargeError when there are more than `max_steps` placements.
    """
    count = num_placements(problem)
    if count > max_steps:
        raise TooLargeError(f"{count} placements to try, more than {max_steps}")
    best: tuple[Fraction, TierPlan] | None = None
    for places in itertools.product(*map(problem.places, range(len(problem.classes)))):
        plan = best_sessions(problem, with_places(places, problem.min_sessions))
        value = _legal_value(problem, plan)
        if value is not None and (best is None or value > best[0]):
            best = value, plan
    return None if best is None else best[1]


def _legal_value(problem: TierProblem, plan: TierPlan) -> Fraction | None:
    judged = evaluate_tiers(problem, plan)
    return judged.value(problem.goal) if judged.is_feasible else None


def first_tiers(problem: TierProblem) -> TierPlan | None:
    """Return a plan of the most read data for each byte in the fastest tiers with room for them.

    It may break rules. None where a class may lie nowhere.
    """
    classes, n = problem.classes, problem.min_sessions
    free = [tier.capacity_bytes for tier in problem.tiers]

    def heat(c: int) -> Fraction:
        data = classes[c]
        read = data.read_bytes + n * (data.read_bytes_per_session + data.write_bytes_per_session)
        return read / max(data.bytes + n * data.bytes_per_session, 1)

    places: list[Place] = [(0, None)] * len(classes)
    for c in sorted(range(len(classes)), key=heat, reverse=True):
        size = classes[c].bytes + n * classes[c].bytes_per_session
        homes = [home for home, copy in problem.places(c) if copy is None]
        if not homes:
            return None
        fastest = sorted(homes, key=lambda t: problem.tiers[t].bytes_per_s, reverse=True)
        home = next((t for t in fastest if free[t] >= size), max(homes, key=lambda t: free[t]))
        free[home] -= size
        places[c] = home, None
    return best_sessions(problem, with_places(places, n))


def moves(problem: TierProblem, plan: TierPlan) -> Iterator[tuple[int, TierPlan]]:
    """Yield every plan that differs in the place of one class, with that class."""
    for c in range(len(problem.classes)):
        for home, copy in problem.places(c):
            if (home, copy) != (plan.homes[c], plan.copies[c]):
                homes, copies = list(plan.homes), list(plan.copies)
                homes[c], copies[c] = home, copy
                yield c, replace(plan, homes=tuple(homes), copies=tuple(copies))


def improved_tiers(problem: TierProblem, is_over: Callable[[], bool]) -> TierPlan | None:
    """Move one class at a time while that helps, from the first plan."""
    best = first_tiers(problem)
    if best is None:
        return None
    rank, is_better = _rank(problem, best), True
    while is_better:
        is_better = False
        for _, plan in moves(problem, best):
            if is_over():
                return best
            plan = best_sessions(problem, plan)
            found = _rank(problem, plan)
            if found > rank:
                best, rank, is_better = plan, found, True
                break
    return best


def _rank(problem: TierProblem, plan: TierPlan) -> tuple[int, Fraction]:
    """Return a plan's broken rules, negated, and its value."""
    judged: TierEvaluation = evaluate_tiers(problem, plan)
    return -len(judged.violations), judged.value(problem.goal) or Fraction(0)
