"""Runs the CP-SAT statement of the deployment decision and reads its answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from ortools.sat.python import cp_model

from formulations.deployment_cpsat import (
    DeploymentModel,
    build_model,
    define_measure,
    define_objective,
    extract,
)
from formulations.scoring import score_selection
from formulations.staging import EngineResult, Limits, nothing_to_choose, solve_terms
from formulations.status import cpsat_termination
from formulations.ticks import ticks_per_second
from optimizer.errors import MismatchError
from optimizer.protocols import Measure, Outcome, SolveRequest, Termination


class _SelectionCallback(cp_model.CpSolverSolutionCallback):
    """Hands every improving selection to the request's listener."""

    def __init__(self, m: DeploymentModel, request: SolveRequest) -> None:
        super().__init__()
        self.m, self.request = m, request

    def on_solution_callback(self) -> None:
        if self.request.on_selection is not None:
            self.request.on_selection(extract(self.m, self.value))


@contextmanager
def _stopped_by(solver: cp_model.CpSolver, stop: threading.Event) -> Iterator[None]:
    """Stop the solver when `stop` is set while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            if stop.is_set():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class CpSatEngine:
    """Minimises one measure with a fresh model each time."""

    def __init__(self, request: SolveRequest) -> None:
        self.request = request
        self.ticks = ticks_per_second(request.tables)

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        """Return the least value of a measure within limits."""
        left = self.request.deadline - time.monotonic()
        if left <= 0 or self.request.stop.is_set():
            return EngineResult(Termination.NO_SOLUTION_FOUND)
        m = build_model(self.request.tables, self.ticks, limits)
        unit = define_objective(m, measure)
        solver = cp_model.CpSolver()
        configure(solver, self.request, self.request.deadline - time.monotonic())
        with _stopped_by(solver, self.request.stop):
            status = solver.solve(m.model, _SelectionCallback(m, self.request))
        return self.read(m, solver, cpsat_termination(status.name), measure, unit)

    def read(
        self,
        m: DeploymentModel,
        solver: cp_model.CpSolver,
        ended: Termination,
        measure: Measure,
        unit: Fraction,
    ) -> EngineResult:
        """Turn the solver's answer into exact numbers."""
        if ended is Termination.INFEASIBLE:
            return EngineResult(ended)
        # a double: exact only up to 2^53, so give way by more than it can be off
        said = solver.best_objective_bound
        bound = unit * math.ceil(said - 1e-6 - abs(said) * 2**-50)
        if ended is Termination.NO_SOLUTION_FOUND:
            return EngineResult(ended, bound=bound if bound > 0 else None)
        selection = extract(m, solver.value)
        score = score_selection(self.request.tables, selection)
        value = score.measures[measure]
        if ended is Termination.OPTIMAL:
            claimed = unit * solver.value(define_measure(m, measure)[0])
            if claimed != value:
                raise MismatchError(f"CP-SAT claims {measure.value} {claimed}, tables say {value}")
            bound = value
        return EngineResult(ended, value, min(bound, value), selection, score.num_on_time)


def configure(solver: cp_model.CpSolver, request: SolveRequest, seconds: float) -> None:
    """Set limits, and two parameters that keep wrong answers of CP-SAT 9.15 away.

    Its inclusion presolve proves wrong optima (or-tools#5293), and its probing proved models with
    times beyond 2^35 ticks infeasible that are not (tests/unit/test_cpsat_regressions.py).
    """
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(seconds, 0.0)
    parameters.num_workers = request.threads
    parameters.random_seed = request.seed
    parameters.presolve_inclusion_work_limit = 0
    parameters.cp_model_probing_level = 0


class CpSatDeployment:
    """The deployment decision on CP-SAT."""

    name = "cp-sat"

    def unavailable(self) -> str | None:
        """Return None: this module imports only with CP-SAT present."""
        return None

    def version(self) -> str:
        """Return the backend's name and version."""
        from importlib.metadata import version

        return f"ortools {version('ortools')}"

    def solve(self, request: SolveRequest) -> Outcome:
        """Solve all terms in order; raises TooLargeError."""
        tables = request.tables
        settled = nothing_to_choose(self.name, tables, request.terms)
        if settled is not None:
            return settled
        engine = CpSatEngine(request)
        return solve_terms(
            engine,
            self.name,
            request.terms,
            tables.instance.min_on_time_sessions,
            tables.num_sessions,
        )
