"""A small integer program, stated once and solved by CP-SAT, HiGHS or CBC.

Rows and the objective stay below 2^31 (`MAX_SIZE`), so that no solver meets numbers it is known to
get wrong. Whatever a solver returns is rounded and checked against every row in whole numbers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from formulations.status import cpsat_termination
from optimizer.errors import BackendUnavailable, MismatchError, TooLargeError
from optimizer.protocols import Termination

#: Solvers that take an integer program.
BACKENDS = ("cp-sat", "highs", "cbc")

#: No row, and no objective, may reach this sum of |coefficient| · largest |value|.
MAX_SIZE = 2**31

#: MILP rows up to this size keep their whole limits. Larger ones get half a unit more, which no
#: whole number uses, so that rounding inside the solver cannot make them infeasible.
EXACT_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Variable:
    """A whole number between two bounds."""

    name: str
    lower: int
    upper: int

    @property
    def max_size(self) -> int:
        """Largest absolute value."""
        return max(abs(self.lower), abs(self.upper))


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """lower <= sum of coefficient · variable <= upper; a side may be open. No coefficient is 0."""

    name: str
    terms: tuple[tuple[int, int], ...]  # variable's index, coefficient
    lower: int | None
    upper: int | None


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How a solve ended: values by variable index, their objective, and a proven lower bound."""

    termination: Termination
    values: tuple[int, ...] | None = None
    objective: int | None = None
    bound: int | None = None


class IntegerProgram:
    """Variables, rows and a sum to minimise (nothing: any solution will do)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variables: list[Variable] = []
        self.rows: list[ProgramRow] = []
        self.objective: tuple[tuple[int, int], ...] = ()

    def add_variable(self, name: str, lower: int, upper: int) -> int:
        """Add a variable and return its index; raises ValueError if no value is left."""
        if lower > upper:
            raise ValueError(f"{name}: {lower} exceeds {upper}")
        self.variables.append(Variable(name, lower, upper))
        return len(self.variables) - 1

    def add_row(
        self, name: str, terms: Mapping[int, int], lower: int | None, upper: int | None
    ) -> None:
        """Require lower <= sum of coefficient · variable <= upper."""
        self.rows.append(ProgramRow(name, self._checked(name, terms), lower, upper))

    def minimise(self, terms: Mapping[int, int]) -> None:
        """Minimise the sum of coefficient · variable."""
        self.objective = self._checked("objective", terms)

    def size(self, terms: tuple[tuple[int, int], ...]) -> int:
        """Return the sum of |coefficient| · largest |value|."""
        return sum(abs(c) * self.variables[v].max_size for v, c in terms)

    def total(self, terms: tuple[tuple[int, int], ...], values: tuple[int, ...]) -> int:
        """Return a sum under given values."""
        return sum(c * values[v] for v, c in terms)

    def check(self, values: tuple[int, ...]) -> None:
        """Raise MismatchError if values break a bound or a row."""
        for variable, value in zip(self.variables, values, strict=True):
            if not variable.lower <= value <= variable.upper:
                raise MismatchError(f"{self.name}: {variable.name} = {value} is out of bounds")
        for row in self.rows:
            total = self.total(row.terms, values)
            if _is_outside(row, total, total):
                raise MismatchError(f"{self.name}: row {row.name} is broken, its sum is {total}")

    def _checked(self, name: str, terms: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        unknown = [v for v in terms if not 0 <= v < len(self.variables)]
        if unknown:
            raise ValueError(f"{name}: no variable has the index {unknown[0]}")
        return tuple((v, c) for v, c in terms.items() if c)


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a run may use; `deadline` is a `time.monotonic()` value."""

    deadline: float
    threads: int
    seed: int
    stop: threading.Event
    presolve: str = "choose"

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline

    @property
    def seconds(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)  # HiGHS ignores negative limits


def solve_program(
    program: IntegerProgram,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    presolve: str = "choose",
) -> ProgramOutcome:
    """Minimise; every value returned keeps all rows, and a bound never exceeds the optimum.

    `presolve` is that of HiGHS: "choose" or "off".
    Raises TooLargeError for numbers beyond `MAX_SIZE`, BackendUnavailable, and MismatchError when a
    solver's values break a row.
    """
    if backend not in BACKENDS:
        raise ValueError(f"no solver is named {backend!r}")
    for row in program.rows:
        _check_size(program, f"row {row.name}", row.terms)
    _check_size(program, "objective", program.objective)
    if any(_is_hopeless(program, row) for row in program.rows):
        return ProgramOutcome(Termination.INFEASIBLE)
    effort = _Effort(deadline, threads, seed, stop or threading.Event(), presolve)
    if effort.is_over:
        return ProgramOutcome(Termination.NO_SOLUTION_FOUND)
    try:
        run = _solve_cp_sat if backend == "cp-sat" else _milp_run(backend)
        return run(program, effort)
    except ImportError as error:
        raise BackendUnavailable(f"{backend} is not installed: {error}") from error


def _check_size(program: IntegerProgram, name: str, terms: tuple[tuple[int, int], ...]) -> None:
    size = program.size(terms)
    if size >= MAX_SIZE:
        raise TooLargeError(f"{program.name}: {name} can reach {size}, beyond 2^31")


def _is_outside(row: ProgramRow, least: int, most: int) -> bool:
    """Whether no sum between `least` and `most` keeps the row."""
    return (row.upper is not None and least > row.upper) or (
        row.lower is not None and most < row.lower
    )


def _is_hopeless(program: IntegerProgram, row: ProgramRow) -> bool:
    """Whether a row cannot be kept whatever the values; solvers get no such row."""
    size = program.size(row.terms)
    is_empty = row.lower is not None and row.upper is not None and row.lower > row.upper
    return is_empty or _is_outside(row, -size, size)


def _limits(program: IntegerProgram, row: ProgramRow) -> tuple[int | None, int | None]:
    """Return a row's limits, open where they say nothing: limits may be larger than any sum."""
    size = program.size(row.terms)
    lower = None if row.lower is None or row.lower <= -size else row.lower
    upper = None if row.upper is None or row.upper >= size else row.upper
    return lower, upper


def _solve_cp_sat(program: IntegerProgram, effort: _Effort) -> ProgramOutcome:
    from ortools.sat.python import cp_model

    from formulations.cpsat_engine import set_parameters, stopped_by

    model = cp_model.CpModel()
    x = [model.new_int_var(v.lower, v.upper, f"x{i}") for i, v in enumerate(program.variables)]

    def weighted(terms: tuple[tuple[int, int], ...]) -> Any:
        return cp_model.LinearExpr.weighted_sum([x[v] for v, _ in terms], [c for _, c in terms])

    for row in program.rows:
        lower, upper = _limits(program, row)
        if lower is None and upper is None:
            continue
        size = program.size(row.terms)
        least, most = -size if lower is None else lower, size if upper is None else upper
        model.add_linear_constraint(weighted(row.terms), least, most)
    if program.objective:
        model.minimize(weighted(program.objective))
    solver = cp_model.CpSolver()
    set_parameters(solver, effort.seconds, threads=effort.threads, seed=effort.seed)
    with stopped_by(solver, effort.stop):
        status = solver.solve(model)
    ended = cpsat_termination(status.name)
    if ended not in (Termination.OPTIMAL, Termination.FEASIBLE):
        return ProgramOutcome(ended)  # without a solution its bound may be a mere default
    bound = math.ceil(solver.best_objective_bound - 1e-6) if program.objective else 0
    return _outcome(program, ended, tuple(solver.value(v) for v in x), bound)


def _milp_run(backend: str) -> Callable[[IntegerProgram, _Effort], ProgramOutcome]:
    """Return a run of HiGHS or CBC; raises BackendUnavailable."""
    from formulations import milp_engine

    deployment = milp_engine.HighsDeployment if backend == "highs" else milp_engine.CbcDeployment
    reason = deployment().unavailable()
    if reason is not None:
        raise BackendUnavailable(reason)

    def run(program: IntegerProgram, effort: _Effort) -> ProgramOutcome:
        problem, x = _milp_problem(program)
        ended, bound = (_run_highs if backend == "highs" else _run_cbc)(problem, effort)
        if ended not in (Termination.OPTIMAL, Termination.FEASIBLE):
            return ProgramOutcome(ended, bound=bound)
        pairs = zip(program.variables, x, strict=True)
        values = tuple(v.lower if y.value() is None else round(y.value()) for v, y in pairs)
        return _outcome(program, ended, values, bound)

    return run


def _run_highs(problem: Any, effort: _Effort) -> tuple[Termination, int | None]:
    from formulations.milp_engine import run_highs

    return run_highs(
        problem,
        effort.seconds,
        threads=effort.threads,
        seed=effort.seed,
        stop=effort.stop,
        presolve=effort.presolve,
    )


def _run_cbc(problem: Any, effort: _Effort) -> tuple[Termination, int | None]:
    from formulations.milp_engine import run_cbc

    return run_cbc(problem, effort.seconds, threads=effort.threads, seed=effort.seed)


def _milp_problem(program: IntegerProgram) -> tuple[Any, list[Any]]:
    """Return the PuLP problem and its variables."""
    import pulp

    problem = pulp.LpProblem("program", pulp.LpMinimize)
    x = [
        problem.add_variable(f"x{i}", v.lower, v.upper, pulp.LpInteger)
        for i, v in enumerate(program.variables)
    ]
    weights = dict(program.objective)
    problem.setObjective(pulp.lpSum(weights.get(i, 0) * y for i, y in enumerate(x)))
    for r, row in enumerate(program.rows):
        lower, upper = _limits(program, row)
        total = pulp.lpSum(c * x[v] for v, c in row.terms)
        slack = 0.0 if program.size(row.terms) <= EXACT_SIZE else 0.5
        if lower is not None and lower == upper and not slack:
            problem += (total == lower, f"r{r}")
            continue
        if lower is not None:
            problem += (total >= lower - slack, f"r{r}_least")
        if upper is not None:
            problem += (total <= upper + slack, f"r{r}_most")
    return problem, x


def _outcome(
    program: IntegerProgram, ended: Termination, values: tuple[int, ...], bound: int | None
) -> ProgramOutcome:
    """Return checked values; an optimum whose exact objective misses its bound is not proven."""
    program.check(values)
    objective = program.total(program.objective, values)
    if bound is not None:
        bound = min(bound, objective)
    if ended is Termination.OPTIMAL and bound != objective:
        ended = Termination.FEASIBLE  # tolerances of a MILP solver times a large coefficient
    return ProgramOutcome(ended, values, objective, bound)
