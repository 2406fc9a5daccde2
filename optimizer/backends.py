"""Finds formulations by entry point and runs them in threads: alone, or as a race."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import entry_points

from optimizer.errors import BackendUnavailable, PlannerError, TooLargeError
from optimizer.protocols import (
    ENTRY_POINT_GROUP,
    Formulation,
    Outcome,
    SolveRequest,
    Termination,
)

#: After its deadline a backend gets this long to hand over what it has.
GRACE_S = 5.0


def formulation_names() -> tuple[str, ...]:
    """Return the names of all formulations installed, sorted; loads none."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def load_formulation(name: str) -> Formulation:
    """Load one formulation; raises BackendUnavailable when it is missing or cannot run."""
    points = [p for p in entry_points(group=ENTRY_POINT_GROUP) if p.name == name]
    if not points:
        known = ", ".join(formulation_names()) or "none; install the package"
        raise BackendUnavailable(f"no solver is named {name!r}; installed: {known}")
    try:
        formulation: Formulation = points[0].load()()
    except ImportError as error:
        raise BackendUnavailable(f"{name} cannot be loaded: {error}") from error
    reason = formulation.unavailable()
    if reason is not None:
        raise BackendUnavailable(reason)
    return formulation


@dataclass(frozen=True, slots=True)
class Finished:
    """What one backend handed over: an outcome, or why there is none."""

    name: str
    outcome: Outcome | None
    version: str = ""
    error: BaseException | None = None

    @property
    def is_proof(self) -> bool:
        """Whether the outcome claims an optimum or infeasibility."""
        return self.outcome is not None and self.outcome.termination in (
            Termination.OPTIMAL,
            Termination.INFEASIBLE,
        )


def _run_one(name: str, request: SolveRequest) -> Finished:
    try:
        formulation = load_formulation(name)
        return Finished(name, formulation.solve(request), formulation.version())
    except Exception as error:  # carried to the caller's thread, which decides
        return Finished(name, None, error=error)


class Runner:
    """Runs backends in threads of their own, so that the caller stays free to be interrupted."""

    def __init__(self, request: SolveRequest, outer_stop: threading.Event | None = None) -> None:
        self.request, self.outer_stop = request, outer_stop
        self._results: queue.Queue[Finished] = queue.Queue()
        self._running: set[str] = set()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, threads: int, share_of_time: float = 1.0) -> None:
        """Start one backend with its threads and its share of the time left."""
        left = self.request.deadline - time.monotonic()
        deadline = time.monotonic() + share_of_time * left
        request = replace(self.request, threads=threads, deadline=deadline)
        self._running.add(name)
        thread = threading.Thread(
            target=lambda: self._results.put(_run_one(name, request)),
            name=f"supernode-{name}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()

    @property
    def running(self) -> frozenset[str]:
        """Names of backends that have not handed over yet."""
        return frozenset(self._running)

    @property
    def is_stopped(self) -> bool:
        """Whether the caller asked to end early."""
        return self.outer_stop is not None and self.outer_stop.is_set()

    def next(self) -> Finished | None:
        """Wait for the next backend to end; None when none is left or all overran their time."""
        if not self._running:
            return None
        while True:
            left = self.request.deadline + GRACE_S - time.monotonic()
            if self.is_stopped:
                self.request.stop.set()
            try:
                finished = self._results.get(timeout=min(max(left, 0.05), 0.1))
            except queue.Empty:
                if left <= 0:
                    return None
                continue
            self._running.discard(finished.name)
            return finished

    def stop(self) -> None:
        """Ask all backends to end, and wait a little: one alive at exit aborts the process.

        The caller's own event is left as it is.
        """
        self.request.stop.set()
        until = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def run_until_proof(
    runner: Runner, names: Sequence[str], threads: int, failed: Callable[[Finished], None]
) -> Finished | None:
    """Return the first proof, else the best that came; None when no backend handed anything over.

    With one thread the backends run one after another, so that the answer does not depend on the
    machine's load; else all at once.
    """
    waiting = list(names)
    best: Finished | None = None
    if threads > 1:
        share = max(1, threads // len(waiting))
        for name in waiting:
            runner.start(name, share)
        waiting = []
    while waiting or runner.running:
        if not runner.running:
            name = waiting.pop(0)
            runner.start(name, threads, 0.5 if waiting else 1.0)
        finished = runner.next()
        if finished is None:
            return best
        if finished.error is not None:
            failed(finished)
            if not isinstance(finished.error, BackendUnavailable | TooLargeError):
                raise finished.error
            continue
        if finished.is_proof:
            return finished
        if best is None or _is_better(finished, best):
            best = finished
        if time.monotonic() > runner.request.deadline:
            waiting = []
    return best


def _is_better(new: Finished, old: Finished) -> bool:
    assert new.outcome is not None
    assert old.outcome is not None
    if old.outcome.selection is None or new.outcome.selection is None:
        return old.outcome.selection is None
    return _claimed_values(new.outcome) < _claimed_values(old.outcome)


def _claimed_values(outcome: Outcome) -> tuple[Fraction, ...]:
    return tuple(claim.value for claim in outcome.claims if claim.value is not None)


def no_backend(errors: Sequence[Finished]) -> PlannerError:
    """Return the error to raise when every backend declined."""
    reasons = "; ".join(f"{f.name}: {f.error}" for f in errors) or "no formulation is installed"
    too_large = any(isinstance(f.error, TooLargeError) for f in errors)
    return TooLargeError(reasons) if too_large else BackendUnavailable(reasons)
