"""Least exact sums from solvers that only see small whole numbers.

A weight w, of either sign, is split as w = scale · high + low with 0 <= low < scale. First the sum
of the highs is minimised; say it is H. A better total than the best one known, T, has a sum v of
highs with H <= v and scale · v < T. For each such v (there are few, because lows add up to less
than one scale per pattern used) the sum of the lows is minimised, the same way, among selections
whose highs sum to at most v: if even scale · v plus that is not below T, no selection with sum v is
better.
No row is ever an equation between large numbers, so tolerances cannot make one unsatisfiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimizer.errors import MismatchError
from optimizer.protocols import Termination

#: Solvers see sums up to this.
COARSE_TOTAL = 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """An upper limit: the sum of weights[p] · times_used[p] is at most `most`."""

    weights: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Used:
    """How one solver run ended: uses of each pattern, and a proven bound of what it minimised."""

    termination: Termination
    uses: tuple[int, ...] | None = None
    bound: int | None = None

    def total(self, weights: Sequence[int]) -> int:
        """Return the sum of weights over the patterns used."""
        assert self.uses is not None
        return sum(w * n for w, n in zip(weights, self.uses, strict=True) if n)


@dataclass(frozen=True, slots=True)
class Least:
    """The least total found, what proves it (bound == total at an optimum), and who reaches it."""

    termination: Termination
    total: int | None = None
    bound: int | None = None
    used: Used | None = None


def scale_for(weights: Sequence[int], max_uses: int) -> int:
    """Return the least divisor that keeps every possible sum within `COARSE_TOTAL` of 0.

    Quotients are rounded down, so that those of negative weights must fit rounded away from 0.
    """
    above = -(-max(weights, default=0) * max_uses // COARSE_TOTAL)
    most_high = max(COARSE_TOTAL // max(max_uses, 1), 1)
    below = -(min(weights, default=0) // most_high)
    return max(above, below, 1)


def least_sum(
    run: Callable[[tuple[int, ...], tuple[Row, ...]], Used],
    weights: tuple[int, ...],
    max_uses: int,
    rows: tuple[Row, ...] = (),
) -> Least:
    """Return the least sum of weights over selections within rows.

    `run` minimises a sum of small whole weights; `max_uses` bounds the patterns used in all.
    Raises MismatchError when its answers contradict each other.
    """
    scale = scale_for(weights, max_uses)
    highs = tuple(w // scale for w in weights)
    first = run(highs, rows)
    if first.uses is None:
        return Least(first.termination, bound=None if first.bound is None else scale * first.bound)
    best, used = first.total(weights), first
    if first.termination is not Termination.OPTIMAL or first.bound is None:
        bound = None if first.bound is None else min(scale * first.bound, best)
        return Least(Termination.FEASIBLE, best, bound, used)
    if scale == 1:
        return Least(Termination.OPTIMAL, best, best, used)
    lows = tuple(w % scale for w in weights)
    known = first.total(highs)
    v = min(first.bound, known)
    while scale * v < best:
        finer = least_sum(run, lows, max_uses, (*rows, Row(highs, v)))
        if finer.termination is Termination.INFEASIBLE and v >= known:
            raise MismatchError("a solver finds its own answer infeasible")
        if finer.used is not None and finer.used.total(weights) < best:
            best, used = finer.used.total(weights), finer.used
        if finer.termination not in (Termination.OPTIMAL, Termination.INFEASIBLE):
            return Least(Termination.FEASIBLE, best, min(best, scale * v), used)
        v += 1
    return Least(Termination.OPTIMAL, best, best, used)
