"""When sessions run on one serving instance, one at a time, with faults (section 6.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Stall:
    """A half-open interval [from_s, until_s) in which a serving instance makes no progress."""

    from_s: Fraction
    until_s: Fraction


@dataclass(frozen=True, slots=True)
class SessionRun:
    """First start, end, and how often a fault threw the session back to its first step."""

    start_s: Fraction
    finish_s: Fraction
    num_restarts: int


def merge_stalls(stalls: Iterable[Stall]) -> tuple[Stall, ...]:
    """Join stalls that overlap or touch: repairs of several cards run side by side."""
    merged: list[Stall] = []
    for stall in sorted(stalls, key=lambda s: (s.from_s, s.until_s)):
        if merged and stall.from_s <= merged[-1].until_s:
            merged[-1] = Stall(merged[-1].from_s, max(merged[-1].until_s, stall.until_s))
        else:
            merged.append(stall)
    return tuple(merged)


def run_session(ready_s: Fraction, service_s: Fraction, stalls: Sequence[Stall]) -> SessionRun:
    """Serve one session of `service_s` from `ready_s` on; `stalls` merged and ascending.

    A session that is running when a stall begins starts over when it ends; one that ends exactly
    then is done.
    """
    first_start: Fraction | None = None
    start, restarts = ready_s, 0
    for stall in stalls:
        if stall.until_s <= start:
            continue
        if stall.from_s <= start:
            start = stall.until_s
        elif stall.from_s < start + service_s:
            first_start = start if first_start is None else first_start
            restarts += 1
            start = stall.until_s
        else:
            break
    return SessionRun(start if first_start is None else first_start, start + service_s, restarts)


def run_queue(
    sessions: Iterable[tuple[Fraction, Fraction]], stalls: Sequence[Stall]
) -> list[SessionRun]:
    """Serve (release_s, service_s) pairs in the given order, each as early as it can start."""
    free = ZERO
    runs: list[SessionRun] = []
    for release_s, service_s in sessions:
        run = run_session(max(free, release_s), service_s, stalls)
        free = run.finish_s
        runs.append(run)
    return runs
