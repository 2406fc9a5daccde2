"""Times as integers that lose nothing: the tick divides every time of the problem."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.tables import ProblemTables

#: Sums of times in ticks must stay well inside CP-SAT's domain of ±2^62.
MAX_TICKS = 2**58


def _times(tables: ProblemTables) -> Iterator[Fraction]:
    for cohort in tables.cohorts:
        yield cohort.release_s
        if cohort.deadline_s is not None:
            yield cohort.deadline_s
    for kind in tables.kinds:
        yield from kind.candidate.service_s
        for from_s, until_s in kind.stalls:
            yield from_s
            yield until_s


def horizon_s(tables: ProblemTables) -> Fraction:
    """Return a time by which any queue of all sessions ends on any kind."""
    latest = [cohort.release_s for cohort in tables.cohorts]
    latest += [until_s for kind in tables.kinds for _, until_s in kind.stalls]
    slowest = [max(c.service_s[i] for c in tables.candidates) for i in range(len(tables.cohorts))]
    work = sum((slowest[i] for i in tables.dispatch_order), Fraction(0))
    # each stall can throw one running session back, at most by its own service time
    redone = sum(len(kind.stalls) for kind in tables.kinds if kind.stalls) * max(slowest)
    return max(latest) + work + redone


def ticks_per_second(tables: ProblemTables) -> int:
    """Return the least number of ticks per second that makes every time a whole number.

    Raises TooLargeError when sums of times could leave the solver's domain.
    """
    per_s = math.lcm(*(time.denominator for time in _times(tables)))
    weight = max(tables.num_sessions, tables.instance.fleet.num_cards)
    if horizon_s(tables) * per_s * weight > MAX_TICKS:
        raise TooLargeError(
            f"exact times need {per_s} ticks a second, beyond CP-SAT's integers; use highs"
        )
    return per_s
