"""A legal capacity plan without a solver, where it is easily found."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem


def first_capacity(problem: CapacityProblem, is_over: Callable[[], bool]) -> CapacityPlan | None:
    """Return the plan without servers where nothing must be served; else None."""
    needs = [cohort.min_sessions for cohort in problem.cohorts]
    needs += [number for event in problem.events for number in event.min_sessions]
    if any(needs) or is_over():
        return None
    return CapacityPlan((), (), (), ((),) * len(problem.events))
