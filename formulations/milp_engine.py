"""Runs the MILP statement of the deployment decision on HiGHS or CBC, through PuLP."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import pulp

from formulations.deployment_milp import DeploymentModel, extract, max_uses, num_variables
from formulations.exact_sums import Row, Used, least_sum
from formulations.milp_measures import build_model, measure_unit, whole_weights
from formulations.patterns import Pattern, build_patterns
from formulations.scoring import QueueScore, score_selection
from formulations.staging import EngineResult, Limits, solve_request
from formulations.status import SolverFailed, highs_termination, pulp_termination
from optimizer.errors import BackendUnavailable, MismatchError, TooLargeError
from optimizer.protocols import Measure, Outcome, Selection, SolveRequest, Termination

#: More variables than this and the formulation declines: building rows would outlast most limits.
MAX_VARIABLES = 30_000

#: Loose enough for exact limits (at 1e-9, and at its own 1e-7, CBC calls some infeasible that are
#: not), tight enough for whole numbers below 2^20; what comes back is checked exactly.
TOLERANCE = 1e-6
#: With which CBC is asked again what it calls infeasible.
CBC_SECOND_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class _Run:
    """One solver run: how it ended, its selection, and a proven bound on what it minimised."""

    termination: Termination
    selection: Selection | None = None
    score: QueueScore | None = None
    uses: tuple[int, ...] | None = None
    bound: int | None = None


def run_highs(
    problem: pulp.LpProblem,
    seconds: float,
    *,
    threads: int,
    seed: int,
    stop: threading.Event,
    presolve: str = "choose",
) -> tuple[Termination, int | None]:
    """Run HiGHS; gap 0, because only a proof counts. Returns the status and a proven bound.

    The bound is rounded up: objectives are whole numbers. HiGHS 1.14 presolves some infeasible
    models to optimal ones with a broken row, says so, and answers without presolve.
    """
    until = time.monotonic() + seconds
    try:
        return _call_highs(
            problem, seconds, threads=threads, seed=seed, stop=stop, presolve=presolve
        )
    except SolverFailed:
        left = max(until - time.monotonic(), 0.0)
        return _call_highs(problem, left, threads=threads, seed=seed, stop=stop, presolve="off")


def _call_highs(
    problem: pulp.LpProblem,
    seconds: float,
    *,
    threads: int,
    seed: int,
    stop: threading.Event,
    presolve: str = "choose",
) -> tuple[Termination, int | None]:
    import highspy

    def interrupt(kind: Any, _message: str, _out: Any, into: Any, _user: Any) -> None:
        if stop.is_set():
            into.user_interrupt = True

    solver = pulp.HiGHS(
        msg=False,
        gapRel=0.0,
        threads=threads,
        timeLimit=seconds,
        presolve=presolve,
        random_seed=seed,
        mip_feasibility_tolerance=TOLERANCE,
        primal_feasibility_tolerance=TOLERANCE,
        callbackTuple=(interrupt, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
    )
    # the scheduler remembers the number of threads of the run before
    highspy.Highs.resetGlobalScheduler(True)
    problem.solve(solver)
    ended = highs_termination(problem)
    bound = problem.solverModel.getInfo().mip_dual_bound
    known = ended is not Termination.INFEASIBLE and math.isfinite(bound)
    return ended, math.ceil(bound - 1e-6) if known else None


def cbc_path() -> str | None:
    """Return the CBC program that PuLP brings, else one on the PATH, else None."""
    from pulp.apis.coin_api import pulp_cbc_path

    return shutil.which(pulp_cbc_path) or shutil.which("cbc")


def run_cbc(
    problem: pulp.LpProblem, seconds: float, *, threads: int, seed: int
) -> tuple[Termination, int | None]:
    """Run CBC 2.10.3 around three of its faults; a bound is known only at an optimum.

    Its preprocessing cuts optima off now and then (tests/unit/test_integer_program.py). Without it,
    it crashes on some problems, all of them infeasible; preprocessing then says so, and anything
    else it says is no proof. It also calls some feasible problems infeasible, but not with another
    tolerance, so that it is asked twice.
    """
    call = partial(_call_cbc, problem, seconds, threads=threads, seed=seed)
    try:
        ended = call(preprocess=False)
        if ended[0] is Termination.INFEASIBLE:
            ended = call(preprocess=False, tolerance=CBC_SECOND_TOLERANCE)
    except BackendUnavailable:
        termination, _ = call(preprocess=True)
        return (Termination.FEASIBLE if termination is Termination.OPTIMAL else termination), None
    return ended


def _call_cbc(
    problem: pulp.LpProblem,
    seconds: float,
    *,
    threads: int,
    seed: int,
    preprocess: bool,
    tolerance: float = TOLERANCE,
) -> tuple[Termination, int | None]:
    """Run CBC, a program, on files in the temporary folder."""
    options = [
        f"randomSeed {seed + 1}",
        f"primalTolerance {tolerance}",
        f"integerTolerance {TOLERANCE}",
        *([] if preprocess else ["preprocess off"]),
    ]
    solver = pulp.COIN_CMD(
        path=cbc_path(),
        msg=False,
        gapRel=0.0,
        threads=threads if threads > 1 else None,
        timeLimit=max(seconds, 0.01),
        options=options,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="supernode-") as folder:
            solver.tmpDir = folder
            problem.solve(solver)
    except (pulp.PulpSolverError, OSError) as error:
        raise BackendUnavailable(f"CBC did not run: {error}") from error
    ended = pulp_termination(problem)
    if ended is not Termination.OPTIMAL:
        return ended, None
    return ended, round(pulp.value(problem.objective) or 0)


class _Highs:
    """HiGHS through PuLP."""

    def __init__(self, request: SolveRequest) -> None:
        self.request = request

    def run(self, m: DeploymentModel, seconds: float) -> tuple[Termination, int | None]:
        """Solve; returns the status and a proven bound of the objective."""
        asked = self.request
        return run_highs(
            m.problem, seconds, threads=asked.threads, seed=asked.seed, stop=asked.stop
        )


class _Cbc:
    """CBC through PuLP; gives no bound before it ends."""

    def __init__(self, request: SolveRequest) -> None:
        self.request = request

    def run(self, m: DeploymentModel, seconds: float) -> tuple[Termination, int | None]:
        """Solve; a bound is known only at an optimum."""
        return run_cbc(m.problem, seconds, threads=self.request.threads, seed=self.request.seed)


class MilpEngine:
    """Minimises one measure: largest ones by bisection, sums high digits first."""

    def __init__(self, request: SolveRequest, backend: _Highs | _Cbc) -> None:
        self.request, self.backend = request, backend
        self.tables = request.tables
        self.patterns = build_patterns(request.tables, self._is_over)
        size = num_variables(request.tables, self.patterns)
        if size > MAX_VARIABLES:
            raise TooLargeError(f"{size} variables; the MILP takes {MAX_VARIABLES}")

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        """Return the least value of a measure within limits."""
        if not self.patterns:
            return EngineResult(Termination.INFEASIBLE)
        if measure.is_largest:
            return self._minimise_largest(measure, limits)
        return self._minimise_sum(measure, limits)

    def _is_over(self) -> bool:
        return self.request.stop.is_set() or time.monotonic() >= self.request.deadline

    def _run(
        self,
        limits: Limits,
        weights: tuple[int, ...] | None = None,
        rows: tuple[Row, ...] = (),
        own: Measure | None = None,
    ) -> _Run:
        """Minimise whole weights within limits; a limit on `own` may be kept in coarse units."""
        exact: frozenset[Measure] = frozenset()
        while True:
            run = self._run_once(limits, exact, weights, rows)
            if run.score is None:
                return run
            broken = _broken(run.score, limits) - {own}
            if not broken:
                return run
            if broken <= exact or any(m.is_largest for m in broken):
                raise MismatchError(f"the MILP broke a limit on {sorted(broken)}")
            exact |= broken

    def _run_once(
        self,
        limits: Limits,
        exact: frozenset[Measure],
        weights: tuple[int, ...] | None,
        rows: tuple[Row, ...],
    ) -> _Run:
        if self._is_over():
            return _Run(Termination.NO_SOLUTION_FOUND)
        asked = self.request
        m = build_model(
            self.tables,
            self.patterns,
            limits,
            exact,
            weights,
            rows,
            asked.excluded,
            asked.required,
        )
        if not m.patterns:
            return _Run(Termination.INFEASIBLE)
        left = max(self.request.deadline - time.monotonic(), 0.0)  # HiGHS ignores negative limits
        ended, bound = self.backend.run(m, left)
        if ended not in (Termination.OPTIMAL, Termination.FEASIBLE):
            return _Run(ended, bound=bound)
        selection = extract(m)
        score = score_selection(self.tables, selection)
        if score.num_on_time < limits.min_on_time:
            raise MismatchError("the MILP broke its limit on sessions on time")
        if self.request.on_selection is not None:
            self.request.on_selection(selection)
        uses = [0] * len(self.patterns)
        for i, times in zip(m.kept, m.times_used, strict=True):
            uses[i] = round(times.value() or 0)
        return _Run(ended, selection, score, tuple(uses), bound)

    def _minimise_largest(self, measure: Measure, limits: Limits) -> EngineResult:
        """Bisect the values that patterns can take; each question is a plain feasibility one."""
        run = self._run(limits)
        if run.selection is None or run.score is None:
            return EngineResult(run.termination)
        values = _levels(self.patterns, measure)
        excluded, best = -1, run  # no plan stays at or below values[excluded]
        reached = values.index(run.score.measures[measure])
        while reached - excluded > 1:
            middle = (excluded + reached) // 2
            tried = self._run(limits.capped(measure, values[middle]))
            if tried.score is not None:
                best, reached = tried, values.index(tried.score.measures[measure])
            elif tried.termination is Termination.INFEASIBLE:
                excluded = middle
            else:
                break
        assert best.score is not None
        proven = reached - excluded == 1
        return EngineResult(
            Termination.OPTIMAL if proven else Termination.FEASIBLE,
            values[reached],
            values[excluded + 1],
            best.selection,
            best.score.num_on_time,
        )

    def _minimise_sum(self, measure: Measure, limits: Limits) -> EngineResult:
        """Minimise a sum exactly; its own limit is judged on the exact answer."""
        unit = measure_unit(self.patterns, measure)
        found: dict[tuple[int, ...], _Run] = {}

        def run(weights: tuple[int, ...], rows: tuple[Row, ...]) -> Used:
            done = self._run(limits, weights, rows, own=measure)
            if done.uses is not None:
                found[done.uses] = done
            return Used(done.termination, done.uses, done.bound)

        weights = whole_weights(self.patterns, measure, unit)
        least = least_sum(run, weights, max_uses(self.tables))
        bound = None if least.bound is None else unit * least.bound
        if least.used is None or least.used.uses is None or least.total is None:
            return EngineResult(least.termination, bound=bound)
        value, limit = unit * least.total, limits.at_most.get(measure)
        if limit is not None and value > limit:
            is_proof = least.termination is Termination.OPTIMAL
            ended = Termination.INFEASIBLE if is_proof else Termination.NO_SOLUTION_FOUND
            return EngineResult(ended, bound=bound)
        best = found[least.used.uses]
        assert best.score is not None
        return EngineResult(least.termination, value, bound, best.selection, best.score.num_on_time)


def _levels(patterns: Sequence[Pattern], measure: Measure) -> list[Fraction]:
    return sorted({Fraction(0), *(p.score.measures[measure] for p in patterns)})


def _broken(score: QueueScore, limits: Limits) -> frozenset[Measure]:
    """Return the measures that exceed their limits."""
    return frozenset(m for m, most in limits.at_most.items() if score.measures[m] > most)


class _MilpDeployment:
    """The deployment decision as a MILP; subclasses name the backend."""

    name = ""
    backend: type[_Highs] | type[_Cbc] = _Highs

    def solve(self, request: SolveRequest) -> Outcome:
        """Solve all terms in order; raises TooLargeError and BackendUnavailable."""
        reason = self.unavailable()
        if reason is not None:
            raise BackendUnavailable(reason)
        return solve_request(self.name, request, lambda r: MilpEngine(r, self.backend(r)))

    def unavailable(self) -> str | None:
        """Return why the backend cannot run on this machine, or None."""
        raise NotImplementedError


class HighsDeployment(_MilpDeployment):
    """The deployment decision on HiGHS."""

    name = "highs"
    backend = _Highs

    def unavailable(self) -> str | None:
        """Return why HiGHS cannot run here, or None."""
        if pulp.HiGHS(msg=False).available():
            return None
        return "HiGHS is not installed; install highspy"

    def version(self) -> str:
        """Return the backend's name and version."""
        from importlib.metadata import version

        return f"highspy {version('highspy')}"


class CbcDeployment(_MilpDeployment):
    """The deployment decision on CBC, the program PuLP brings along."""

    name = "cbc"
    backend = _Cbc

    def unavailable(self) -> str | None:
        """Return why CBC cannot run here, or None."""
        if cbc_path() is None:
            return "PuLP's CBC program is missing or not for this machine; use highs or cp-sat"
        return None

    def version(self) -> str:
        """Return the backend's name and version."""
        from importlib.metadata import version

        return f"cbc of pulp {version('pulp')}"
