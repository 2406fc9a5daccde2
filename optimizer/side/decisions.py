"""Solves the smaller decisions: solver, exact evaluation, second opinion, result."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points, version
from typing import Any

from instances.instance import Instance
from optimizer.errors import BackendUnavailable, MismatchError, TooLargeError
from optimizer.options import SolveOptions
from optimizer.protocols import Termination
from optimizer.second_opinion import SecondOpinion
from optimizer.side.document import side_document
from optimizer.side.kinds import (
    SOLVERS,
    SideKind,
    Value,
    beaten_goal,
    side_kind,
    tighter,
    value_text,
)
from optimizer.side.result import SideResultDocument

#: Entry-point group in which the formulations of smaller decisions are found.
ENTRY_POINT_GROUP = "supernode.side_decisions"

#: The package that brings each solver.
PACKAGES = {"highs": "highspy", "cp-sat": "ortools", "cbc": "pulp", "columns": "highspy"}

#: Share of the time limit after which data are no longer added to.
DATA_SHARE = 0.8

#: Share of the time limit spent on a good answer before a solver is asked.
IMPROVING_SHARE = 0.25

#: After its deadline a solver gets this long to hand over what it has.
GRACE_S = 5.0

#: After an interrupt it gets this long.
STOPPED_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """What a solver claims: an answer, its value and a proven bound, in the decision's unit."""

    solver: str
    termination: Termination
    answer: Any = None
    value: Value | None = None
    bound: Value | None = None

    @property
    def version(self) -> str | None:
        """Name and version of the package that holds the solver."""
        package = PACKAGES.get(self.solver)
        return None if package is None else f"{package} {version(package)}"

    @property
    def is_proof(self) -> bool:
        """Whether an optimum or infeasibility is claimed."""
        return self.termination in (Termination.OPTIMAL, Termination.INFEASIBLE)

    def unproven(self) -> SideOutcome:
        """Return the outcome without what it claims of answers that it does not know."""
        ended = Termination.FEASIBLE if self.answer is not None else Termination.NO_SOLUTION_FOUND
        return replace(self, termination=ended, bound=None)


@dataclass
class SideRecord:
    """What a solve of a smaller decision has established so far."""

    kind: SideKind
    answer: Any = None
    termination: Termination = Termination.NO_SOLUTION_FOUND
    limit: str | None = None
    reason: str = ""
    outcome: SideOutcome | None = None
    opinion: SecondOpinion | None = None

    def value(self) -> Value | None:
        """Exact value of the best verified answer; None without one."""
        return None if self.answer is None else self.kind.value(self.answer)

    def offer(self, answer: Any) -> None:
        """Keep an answer that breaks no rule and is better than the best."""
        if answer is None or self.kind.broken(answer):
            return
        if self.answer is None or self.kind.is_better(self.kind.value(answer), self.value()):
            self.answer = answer


def load_solver(decision: str) -> Callable[..., Any]:
    """Load the formulation of a smaller decision; raises BackendUnavailable."""
    points = [p for p in entry_points(group=ENTRY_POINT_GROUP) if p.name == decision]
    if not points:
        raise BackendUnavailable(f"no formulation of decision {decision!r}; install the package")
    found: Callable[..., Any] = points[0].load()
    return found


def solve_side(
    instance: Instance,
    options: SolveOptions | None = None,
    *,
    stop: threading.Event | None = None,
) -> SideResultDocument:
    """Decide what `instance.decision` asks for, such as "stages", prove it, verify it.

    Raises InputError, MismatchError (a claim and its evaluation differ) and, when no solver can
    take the problem, BackendUnavailable or TooLargeError.
    """
    options = options or SolveOptions()
    options.check()
    started = time.monotonic()
    limit_s = options.time_limit_s * DATA_SHARE
    record = SideRecord(
        side_kind(instance, lambda share: time.monotonic() - started > share * limit_s)
    )
    if options.solver not in ("auto", *SOLVERS, *record.kind.solvers):
        known = ", ".join(dict.fromkeys((*SOLVERS, *record.kind.solvers)))
        raise BackendUnavailable(f"no solver is named {options.solver!r}; known: {known}")
    record.offer(record.kind.first())
    names = record.kind.solvers if options.solver == "auto" else (options.solver,)
    deadline = started + options.time_limit_s
    stopper = stop or threading.Event()
    try:
        enough = started + options.time_limit_s * IMPROVING_SHARE
        record.offer(record.kind.improved(lambda: stopper.is_set() or time.monotonic() > enough))
        record.outcome = _first_answer(record, names, deadline, options, stopper)
        _verify(record, record.outcome)
        record.outcome = _with_free_bound(record, record.outcome)
        if not record.kind.is_complete:  # what is missing might be better
            record.limit, record.reason = "time", "not every candidate was priced in time"
            record.outcome = record.outcome.unproven()
        if record.outcome.is_proof:
            record.opinion = record.kind.opinion(record.outcome.value) or _by_solver(
                record, deadline, options, stopper
            )
        _conclude(record, stopper.is_set(), time.monotonic() < deadline)
    except KeyboardInterrupt:
        stopper.set()
        record.limit = "interrupted"
    return side_document(instance, record, options, time.monotonic() - started)


def _first_answer(
    record: SideRecord,
    names: Sequence[str],
    deadline: float,
    options: SolveOptions,
    stop: threading.Event,
) -> SideOutcome:
    """Ask solvers in turn until one can take the problem."""
    failures: list[Exception] = []
    for name in names:
        try:
            return _ask(record, name, deadline, options, stop)
        except (BackendUnavailable, TooLargeError) as error:
            failures.append(error)
    if record.answer is not None and any(isinstance(f, TooLargeError) for f in failures):
        record.limit, record.reason = "size", str(failures[0])
        return SideOutcome("none", Termination.NO_SOLUTION_FOUND)
    raise failures[0]


def _ask(
    record: SideRecord, name: str, deadline: float, options: SolveOptions, stop: threading.Event
) -> SideOutcome:
    """Run one solver in a thread of its own, so that the caller stays free to be interrupted."""
    solve, results = load_solver(record.kind.decision), queue.Queue[Any]()
    known = record.kind.hint(record.answer)

    def run() -> None:
        try:
            results.put(
                solve(
                    record.kind.problem,
                    name,
                    deadline=deadline,
                    threads=options.num_threads(),
                    seed=options.seed,
                    stop=stop,
                    **known,
                )
            )
        except Exception as error:  # carried to the caller's thread, which decides
            results.put(error)

    threading.Thread(target=run, name=f"supernode-{name}", daemon=True).start()
    try:
        found = _handed_over(results, deadline + GRACE_S)
    except KeyboardInterrupt:
        stop.set()
        with suppress(Exception):  # of what was interrupted, only a plan counts
            found = _handed_over(results, time.monotonic() + STOPPED_GRACE_S)
            record.offer(None if found is None else record.kind.read(found)[0])
        raise
    if found is None:
        return SideOutcome(name, Termination.NO_SOLUTION_FOUND)
    answer, value, bound = record.kind.read(found)
    if found.termination is Termination.OPTIMAL:
        bound = tighter(record.kind.goals, bound, value)  # what is optimal is its own bound
    return SideOutcome(name, found.termination, answer, value, bound)


def _handed_over(results: queue.Queue[Any], until: float) -> Any:
    """Return what a solver's thread hands over; None if it does not by then. Raises its error."""
    while True:
        try:
            found = results.get(timeout=0.1)
        except queue.Empty:
            if time.monotonic() > until:
                return None
            continue
        if isinstance(found, Exception):
            raise found
        return found


def _verify(record: SideRecord, outcome: SideOutcome) -> None:
    """Check a solver's answer and value exactly; raises MismatchError."""
    if outcome.answer is None:
        return
    broken = record.kind.broken(outcome.answer)
    if broken:
        raise MismatchError(f"{outcome.solver} returned a plan that breaks {broken[0].rule}")
    value = record.kind.value(outcome.answer)
    if outcome.value is not None and outcome.value != value:
        claimed, verified = value_text(outcome.value), value_text(value)
        raise MismatchError(f"{outcome.solver} claims {claimed}, verified {verified}")
    record.offer(outcome.answer)


def _with_free_bound(record: SideRecord, outcome: SideOutcome) -> SideOutcome:
    """Let a bound that needs no solver stand where a solver has proven nothing.

    An answer that meets it is optimal, however the solver ended.
    """
    bound = None if outcome.is_proof else record.kind.bound()
    if bound is None:
        return outcome
    if record.value() == bound:
        record.limit, record.reason = None, ""
        return SideOutcome("none", Termination.OPTIMAL, record.answer, bound, bound)
    return replace(outcome, bound=tighter(record.kind.goals, outcome.bound, bound))


def _by_solver(
    record: SideRecord, deadline: float, options: SolveOptions, stop: threading.Event
) -> SecondOpinion:
    """Ask the other solvers for a proof of their own."""
    assert record.outcome is not None
    declined = []
    for name in record.kind.solvers:
        if name == record.outcome.solver:
            continue
        try:
            other = _ask(record, name, deadline, options, stop)
        except (BackendUnavailable, TooLargeError) as error:
            declined.append(f"{name}: {error}")
            continue
        if not other.is_proof:
            declined.append(f"{name}: no proof in time")
            continue
        _verify(record, other)
        agrees = (other.termination, other.value) == (
            record.outcome.termination,
            record.outcome.value,
        )
        return SecondOpinion(name, agrees, "own proof")
    return SecondOpinion("none", None, "; ".join(declined) or "no other method had time")


def _conclude(record: SideRecord, is_stopped: bool, is_early: bool) -> None:
    outcome, opinion = record.outcome, record.opinion
    assert outcome is not None
    beaten = beaten_goal(record.kind.goals, record.value(), outcome.bound)
    if beaten is not None:
        raise MismatchError(
            f"{outcome.solver} claims a bound of {value_text(outcome.bound)}, but a plan with "
            f"{value_text(record.value())} is better in {beaten.name}"
        )
    if outcome.is_proof and opinion is not None and opinion.agrees is False:
        raise MismatchError(
            f"{outcome.solver} claims {outcome.termination.value} {value_text(outcome.value)}, "
            f"{opinion.method} disagrees: {opinion.detail}"
        )
    if outcome.is_proof and opinion is not None and opinion.agrees:
        best = record.value()
        if best is not None and best != outcome.value:
            raise MismatchError(f"{outcome.solver} claims an optimum, but a plan is better")
        record.termination = outcome.termination
        return
    if record.answer is not None:
        record.termination = Termination.FEASIBLE
    if record.limit is None and is_early and not is_stopped and not outcome.is_proof:
        record.limit = "size"
        record.reason = "the numbers are too large to tell the plans left apart"
    if record.limit is None:
        record.limit = (
            "interrupted" if is_stopped else "second_opinion" if outcome.is_proof else "time"
        )
