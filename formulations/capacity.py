"""The capacity decision as an integer program (capacity.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.capacity_columns import ColumnsOutcome, solve_by_columns
from formulations.capacity_extract import extract
from formulations.capacity_goals import LinearGoal, Quotient, linear_goal, quotient
from formulations.capacity_rows import CapacityModel, build_model
from formulations.integer_program import ProgramOutcome, solve_program
from instances.capacity import RATIO_GOALS
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem
from optimizer.protocols import Termination

Run = Callable[[CapacityModel], ProgramOutcome]

#: Times that a better quotient is looked for; each is the optimum of a sum.
MAX_QUOTIENTS = 100

#: Programs of no more variables are solved by HiGHS without its presolve.
FEW_VARIABLES = 300


@dataclass(frozen=True, slots=True)
class CapacityOutcome:
    """How a solve ended: a plan, and, goal by goal, its value and a bound on all plans' value.

    Values are given where all goals are proven; bounds where the goals before are.
    """

    termination: Termination
    plan: CapacityPlan | None = None
    value: tuple[Fraction | None, ...] | None = None
    bound: tuple[Fraction | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Stage:
    """What the solve of one goal found."""

    termination: Termination
    values: Sequence[int] | None
    value: Fraction | None
    bound: Fraction | None


def solve_capacity(
    problem: CapacityProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> CapacityOutcome | ColumnsOutcome:
    """Decide goal by goal; `deadline` is a `time.monotonic()` value. Raises as `solve_program`.

    A plan found for a later goal keeps what is proven of those before. Backend "columns" is that
    of `capacity_columns.md`.
    """

    if backend == "columns":
        return solve_by_columns(problem, deadline=deadline, threads=threads, seed=seed, stop=stop)

    def run(m: CapacityModel) -> ProgramOutcome:
        # HiGHS 1.14's presolve calls dearer plans of some small programs optimal
        presolve = "off" if len(m.program.variables) <= FEW_VARIABLES else "choose"
        return solve_program(
            m.program,
            backend,
            deadline=deadline,
            threads=threads,
            seed=seed,
            stop=stop,
            presolve=presolve,
        )

    m = build_model(problem)
    if set(problem.goals) & RATIO_GOALS:  # without a session they have no value
        m.program.add_row("some_session", dict.fromkeys(m.served[0], 1), 1, None)
    values: list[Fraction | None] = []
    bounds: list[Fraction | None] = []
    best: Sequence[int] | None = None
    ended = Termination.OPTIMAL
    for goal in problem.goals:
        found = _by_quotient(m, goal, run) if goal in RATIO_GOALS else _by_sum(m, goal, run)
        if found.values is not None:
            best = found.values
        if found.termination is Termination.INFEASIBLE and best is None:
            return CapacityOutcome(Termination.INFEASIBLE)
        values.append(found.value)
        bounds.append(found.bound)
        if found.termination is not Termination.OPTIMAL:
            ended = Termination.NO_SOLUTION_FOUND if best is None else Termination.FEASIBLE
            break
    missing = (None,) * (len(problem.goals) - len(values))
    plan = None if best is None else extract(m, best)
    is_proven = ended is Termination.OPTIMAL
    return CapacityOutcome(ended, plan, tuple(values) if is_proven else None, (*bounds, *missing))


def define_objective(m: CapacityModel, goal: LinearGoal) -> tuple[dict[int, int], Fraction]:
    """Minimise a goal's sum; return its whole coefficients and the worth of a unit."""
    terms, unit = goal.scaled()
    m.program.minimise(terms)
    return terms, unit


def _by_sum(m: CapacityModel, name: str, run: Run) -> _Stage:
    """Decide a goal that is a sum, and keep it from then on."""
    goal = linear_goal(m, name)
    terms, unit = define_objective(m, goal)
    found = run(m)
    bound = None if found.bound is None else goal.value(found.bound * unit)
    if found.values is None:
        return _Stage(found.termination, None, None, bound)
    total = m.program.total(m.program.objective, found.values)
    if found.termination is Termination.OPTIMAL and terms:
        m.program.add_row(f"keep[{name}]", terms, None, total)
    return _Stage(found.termination, found.values, goal.value(total * unit), bound)


def _by_quotient(m: CapacityModel, name: str, run: Run) -> _Stage:
    """Find the least quotient: for the best known q no plan has above - q · below < 0 (Dinkelbach).

    That difference is a sum, so each step is proven; the quotient falls with every step.
    """
    goal = quotient(m, name)
    m.program.add_row("some_session", dict.fromkeys(goal.below, 1), 1, None)
    m.program.minimise({})
    found = run(m)
    best, value = found.values, None
    if best is None:
        return _Stage(found.termination, None, None, None)
    for _ in range(MAX_QUOTIENTS):
        value = _quotient(goal, best)
        difference = LinearGoal(
            {
                v: goal.above.get(v, Fraction(0)) - value * goal.below.get(v, Fraction(0))
                for v in {**goal.above, **goal.below}
            },
            goal.above_constant,
            1,
        )
        _, unit = define_objective(m, difference)
        found = run(m)
        if found.values is None:
            break
        total = difference.value(m.program.total(m.program.objective, found.values) * unit)
        if found.termination is Termination.OPTIMAL and total >= 0:
            return _Stage(Termination.OPTIMAL, best, value, value)
        if total < 0:
            best = found.values
        if found.termination is not Termination.OPTIMAL:
            value = _quotient(goal, best)
            break
    return _Stage(Termination.FEASIBLE, best, value, None)


def _quotient(goal: Quotient, values: Sequence[int]) -> Fraction:
    above = goal.above_constant + sum(
        (value * values[v] for v, value in goal.above.items()), Fraction(0)
    )
    return above / sum((value * values[v] for v, value in goal.below.items()), Fraction(0))
