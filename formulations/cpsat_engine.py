"""Runs the CP-SAT statement of the deployment decision and reads its answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from ortools.sat.python import cp_model

from formulations.cpsat_measures import (
    build_model,
    define_measure,
    define_objective,
    sum_error,
)
from formulations.deployment_cpsat import DeploymentModel, extract
from formulations.scoring import QueueScore, score_selection
from formulations.staging import EngineResult, Limits, solve_request
from formulations.status import cpsat_termination
from formulations.ticks import tick_scale
from optimizer.errors import MismatchError, TooLargeError
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
def stopped_by(solver: cp_model.CpSolver, stop: threading.Event) -> Iterator[None]:
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
        self.scale = tick_scale(request.tables)

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        """Return the least value of a measure within limits."""
        if time.monotonic() >= self.request.deadline or self.request.stop.is_set():
            return EngineResult(Termination.NO_SOLUTION_FOUND)
        asked = self.request
        m = build_model(asked.tables, self.scale, limits, asked.excluded, asked.required)
        unit = define_objective(m, measure)
        solver = cp_model.CpSolver()
        configure(solver, self.request, self.request.deadline - time.monotonic())
        with stopped_by(solver, self.request.stop):
            status = solver.solve(m.model, _SelectionCallback(m, self.request))
        return self.read(m, solver, cpsat_termination(status.name), measure, limits, unit)

    def read(
        self,
        m: DeploymentModel,
        solver: cp_model.CpSolver,
        ended: Termination,
        measure: Measure,
        limits: Limits,
        unit: Fraction,
    ) -> EngineResult:
        """Turn the solver's answer into exact numbers."""
        if ended is Termination.INFEASIBLE:
            return EngineResult(ended)
        said = solver.best_objective_bound  # a double: give way by more than it can be off
        bound = unit * math.ceil(said - 1e-6 - abs(said) * 2**-50)
        if ended is Termination.NO_SOLUTION_FOUND:
            least = bound - self._error(m, measure)
            if measure is not Measure.HELD:
                least = max(least, Fraction(0))
            return EngineResult(ended, bound=least)
        selection = extract(m, solver.value)
        score = score_selection(self.request.tables, selection)
        value = score.measures[measure]
        self._check_limits(score, limits, measure)
        error = self._error(m, measure)
        if ended is Termination.OPTIMAL:
            claimed = unit * solver.value(define_measure(m, measure)[0])
            if abs(claimed - value) > error:
                raise MismatchError(f"CP-SAT claims {measure.value} {claimed}, tables say {value}")
            bound = claimed
        if ended is Termination.OPTIMAL and measure.is_largest and self.scale.keeps_order:
            bound = value  # the least tick is the least value
        else:
            bound -= error
        return EngineResult(ended, value, min(bound, value), selection, score.num_on_time)

    def _check_limits(self, score: QueueScore, limits: Limits, own: Measure) -> None:
        """Decline where ticks are too coarse to tell a broken limit from a kept one.

        A limit on the measure that is minimised is judged by the caller, on the exact value.
        """
        broken = [m for m, v in limits.at_most.items() if m is not own and score.measures[m] > v]
        if broken or score.num_on_time < limits.min_on_time:
            raise TooLargeError("limits lie closer together than CP-SAT's ticks; use highs")

    def _error(self, m: DeploymentModel, measure: Measure) -> Fraction:
        """Bound how far a measure in ticks is from the exact one."""
        if measure.is_largest:
            return m.scale.error / m.scale.per_s
        return sum_error(m, measure)


def configure(solver: cp_model.CpSolver, request: SolveRequest, seconds: float) -> None:
    """Set the limits of a request, and what `set_parameters` sets."""
    set_parameters(solver, seconds, threads=request.threads, seed=request.seed)


def set_parameters(solver: cp_model.CpSolver, seconds: float, *, threads: int, seed: int) -> None:
    """Set limits, and the parameter that keeps wrong optima of CP-SAT 9.15 away.

    Its inclusion presolve proves wrong optima (or-tools#5293). Probing stays on: without it CP-SAT
    calls feasible models infeasible, and where probing itself errs (times beyond 2^35) our ticks do
    not reach (tests/unit/test_cpsat_regressions.py).
    """
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(seconds, 0.0)
    parameters.num_workers = threads
    parameters.catch_sigint_signal = False  # the caller handles Ctrl-C; CP-SAT's handler aborts
    parameters.random_seed = seed
    parameters.presolve_inclusion_work_limit = 0


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
        return solve_request(self.name, request, CpSatEngine)
