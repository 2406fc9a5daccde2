"""Times as small whole numbers that decide as the exact times do.

CP-SAT 9.15 gives wrong answers once times pass about 2^35, so its times stay below `MAX_TICKS`.
Where a tick that divides every time is that coarse, it is used and nothing is rounded. Elsewhere
services, releases and stalls are rounded to the nearest tick, and every end that any queue can
reach is computed both ways. Mostly the order of the ends is the order of their ticks: then each
deadline, and each limit on a largest measure, has a tick that separates the same ends, and the
least tick is the least end. Sums, and the rare ends that share a tick, keep an error, which is
returned for the solver's bound to give way by.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product

from optimizer.errors import TooLargeError
from optimizer.protocols import Measure
from optimizer.tables import Kind, ProblemTables

#: Latest tick that a model may name.
MAX_TICKS = 2**30

#: More (queue, end) pairs than this and the formulation declines.
MAX_ENDS = 200_000


@dataclass(frozen=True, slots=True)
class TickScale:
    """Ticks per second, and how ticks compare.

    `ends` and `latencies` list (exact value in s, tick), both ascending; they are empty when
    nothing is rounded. `begins` gives the first tick of each (kind, stall). `error` bounds, in
    ticks, how far a tick is from its exact value; `keeps_order` says that ticks order ends and
    latencies as their exact values do.
    """

    per_s: int
    ends: tuple[tuple[Fraction, int], ...] = ()
    latencies: tuple[tuple[Fraction, int], ...] = ()
    begins: Mapping[tuple[int, int], int] = field(default_factory=dict)
    error: Fraction = Fraction(0)
    keeps_order: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether every time of the problem is a whole number of ticks."""
        return not self.ends

    def at(self, seconds: Fraction) -> int:
        """Return the nearest tick of a service, release or stall."""
        return round(seconds * self.per_s)

    def stall_begin(self, kind: Kind, number: int) -> int:
        """Return the first tick of a kind's stall: ends up to then are before it."""
        return self.begins.get((kind.index, number), self.at(kind.stalls[number][0]))

    def last_within(self, limit_s: Fraction, measure: Measure = Measure.END) -> int:
        """Return the last tick of any exact end (or latency) within a limit; -1 if none is."""
        if self.is_exact:
            return math.floor(limit_s * self.per_s)
        values = self.latencies if measure is Measure.LATENCY else self.ends
        place = bisect_right(values, limit_s, key=lambda pair: pair[0])
        return values[place - 1][1] if place else -1


def horizon_s(tables: ProblemTables) -> Fraction:
    """Return a time by which any queue of all sessions ends on any kind."""
    latest = [cohort.release_s for cohort in tables.cohorts]
    latest += [until_s for kind in tables.kinds for _, until_s in kind.stalls]
    slowest = [max(c.service_s[i] for c in tables.candidates) for i in range(len(tables.cohorts))]
    work = sum((slowest[i] for i in tables.dispatch_order), Fraction(0))
    return max(latest) + work  # after the last release and stall nothing waits or starts over


def tick_scale(tables: ProblemTables) -> TickScale:
    """Return the scale of a problem.

    Raises TooLargeError when there are too many ends, or a stall begins so close to one that no
    tick lies between them.
    """
    exact = math.lcm(*(time.denominator for time in _times(tables)))
    horizon = horizon_s(tables)
    if horizon * exact <= MAX_TICKS:
        return TickScale(exact)
    per_s = math.floor(MAX_TICKS / horizon)
    queues = math.prod(cohort.num_sessions + 1 for cohort in tables.cohorts) * len(tables.kinds)
    if not per_s or queues > MAX_ENDS:
        raise TooLargeError(f"{queues} mixtures of sessions over {float(horizon):.3g} s; use highs")
    ends: set[tuple[int, int]] = set()
    latencies: set[tuple[int, int]] = set()
    begins: dict[tuple[int, int], int] = {}
    for kind in tables.kinds:
        reach = _Reach(tables, kind, exact, per_s)
        reach.visit(ends, latencies)
        begins |= {(kind.index, n): tick for n, tick in enumerate(reach.stall_begins())}
    error = max(abs(Fraction(tick) - Fraction(x * per_s, exact)) for x, tick in ends | latencies)
    keeps_order = _keeps_order(ends) and _keeps_order(latencies)
    return TickScale(
        per_s, _ascending(ends, exact), _ascending(latencies, exact), begins, error, keeps_order
    )


def _times(tables: ProblemTables) -> Iterator[Fraction]:
    for cohort in tables.cohorts:
        yield cohort.release_s
        if cohort.deadline_s is not None:
            yield cohort.deadline_s
    for kind in tables.kinds:
        yield from kind.candidate.service_s
        for stall in kind.stalls:
            yield from stall


class _Reach:
    """All ends that the queue of a lane reaches on one kind, as (exact whole number, tick) pairs.

    Lanes of a kind are alike and no lane is given more than its group's memory holds.
    Ticks follow the exact times past or into a stall; `passed` and `hit` note, stall by stall, the
    latest tick that ends before it and the earliest that would not, had there been no stall.
    """

    def __init__(self, tables: ProblemTables, kind: Kind, exact: int, per_s: int) -> None:
        self.cohorts, self.candidate = tables.cohorts, kind.candidate

        def both(seconds: Fraction) -> tuple[int, int]:
            return round(seconds * exact), round(seconds * per_s)

        self.service = [both(s) for s in kind.candidate.service_s]
        self.release = [both(c.release_s) for c in tables.cohorts]
        self.stalls = [(both(begin), both(until)) for begin, until in kind.stalls]
        self.passed = [-1] * len(self.stalls)
        self.hit = [2 * MAX_TICKS] * len(self.stalls)

    def finish(self, ready: tuple[int, int], index: int) -> tuple[int, int]:
        """Return the end of a session of a cohort that may start at `ready`."""
        release, service = self.release[index], self.service[index]
        start, tick = max(ready[0], release[0]), max(ready[1], release[1])
        for n, (begin, until) in enumerate(self.stalls):
            if start >= until[0]:
                tick = max(tick, until[1])
            elif start + service[0] > begin[0]:
                self.hit[n] = min(self.hit[n], tick + service[1])
                start, tick = until
            else:
                self.passed[n] = max(self.passed[n], tick + service[1])
        return start + service[0], tick + service[1]

    def visit(self, ends: set[tuple[int, int]], latencies: set[tuple[int, int]]) -> None:
        """Add the pairs of every queue that the memory of one group holds."""
        fronts: dict[tuple[int, ...], set[tuple[int, int]]] = {}
        for counts in product(*(range(cohort.num_sessions + 1) for cohort in self.cohorts)):
            if not self.candidate.holds(counts):
                continue
            front: set[tuple[int, int]] = set() if any(counts) else {(0, 0)}
            for index, number in enumerate(counts):
                before = (*counts[:index], number - 1, *counts[index + 1 :])
                for ready in fronts.get(before, ()):
                    end = self.finish(ready, index)
                    front.add(end)
                    since = self.release[index]
                    latencies.add((end[0] - since[0], end[1] - since[1]))
            fronts[counts] = front
            ends |= front
            if len(ends) + len(latencies) > MAX_ENDS:
                raise TooLargeError(f"more than {MAX_ENDS} ends to tell apart; use highs")

    def stall_begins(self) -> list[int]:
        """Return a first tick for every stall that separates the ends as its exact begin does."""
        begins = []
        for (begin, until), passed, hit in zip(self.stalls, self.passed, self.hit, strict=True):
            tick = max(passed, min(begin[1], hit - 1))
            if not passed <= tick < min(hit, until[1]):
                raise TooLargeError("a stall begins within a tick of a session's end; use highs")
            begins.append(tick)
        return begins


def _keeps_order(pairs: set[tuple[int, int]]) -> bool:
    return all(a == b or x < y for (a, x), (b, y) in pairwise(sorted(pairs)))


def _ascending(pairs: set[tuple[int, int]], exact: int) -> tuple[tuple[Fraction, int], ...]:
    """Return exact values with the latest tick at or below each, both ascending."""
    latest = -1
    values: dict[int, int] = {}
    for end, tick in sorted(pairs):
        latest = max(latest, tick)
        values[end] = latest
    return tuple((Fraction(end, exact), tick) for end, tick in values.items())
