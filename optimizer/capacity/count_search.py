"""A tiny integer program, solved exactly by branching: the least sum of counts under rows.

Linear programs in floating point propose prices of rows; every bound is counted in whole numbers.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.capacity.small_lps import Floats, solve_many

#: Prices of rows are whole numbers of about so many bits.
PRICE_BITS = 60

#: In parts of what everything costs: the most that one row in units of its size may be worth.
MOST_WORTH = 1e6

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountRow:
    """sum of terms[v] · count[v] >= least."""

    terms: Mapping[int, int]
    least: int

    def keeps(self, point: Sequence[int]) -> bool:
        """Whether counts keep the row."""
        return sum(size * point[v] for v, size in self.terms.items()) >= self.least


@dataclass(frozen=True, slots=True)
class Fewest:
    """The best point found, its sum, and a bound on all sums; without a bound nothing is allowed.

    bound <= total, and equal where the search was finished.
    """

    bound: int | None
    total: int | None = None
    point: Point | None = None


@dataclass(frozen=True)
class CountProgram:
    """Minimise sum of costs[v] · count[v], none negative, for counts in a box that keep rows."""

    lower: Point
    upper: Point
    costs: Point
    rows: tuple[CountRow, ...]

    def fewest(
        self, max_nodes: int, is_over: Callable[[], bool], excluded: Collection[Point] = ()
    ) -> Fewest:
        """Search for the least sum; with `max_nodes` steps, or until `is_over`, for a bound.

        Points in `excluded` do not count.
        """
        return _Search(self, excluded).run(max_nodes, is_over)

    def total(self, point: Sequence[int]) -> int:
        """Return the sum at a point."""
        return sum(cost * n for cost, n in zip(self.costs, point, strict=True))

    def allows(self, point: Sequence[int]) -> bool:
        """Whether a point of the box keeps all rows."""
        return all(row.keeps(point) for row in self.rows)


class _Search:
    """Best first over boxes of counts; of equal bounds the deepest box comes first."""

    def __init__(self, program: CountProgram, excluded: Collection[Point]) -> None:
        self.program, self.excluded = program, excluded
        upper = [max(abs(n), 1) for n in program.upper]
        #: counts are measured in parts of their upper limits, costs in parts of their sum
        self.scale = np.array([float(n) for n in upper])
        self.all_costs = float(program.total(program.upper)) or 1.0
        self.costs: Floats = np.array([float(c) for c in program.costs]) * self.scale
        self.costs /= self.all_costs
        self.sizes = [
            max([abs(s) * upper[v] for v, s in row.terms.items()] + [abs(row.least), 1])
            for row in program.rows
        ]
        self.terms: Floats = np.zeros((len(program.rows), len(upper)))
        self.least: Floats = np.zeros(len(program.rows))
        for r, (row, size) in enumerate(zip(program.rows, self.sizes, strict=True)):
            self.least[r] = row.least / size
            for v, term in row.terms.items():
                self.terms[r, v] = term * upper[v] / size
        self.best: tuple[int, Point] | None = None

    def run(self, max_nodes: int, is_over: Callable[[], bool]) -> Fewest:
        program = self.program
        ticket = itertools.count()
        heap: list[tuple[int, int, int, Point, Point]] = []

        def push(lower: Point, upper: Point, depth: int) -> None:
            looked = self._look(lower, upper)
            if looked is not None and (self.best is None or looked < self.best[0]):
                heapq.heappush(heap, (looked, -depth, next(ticket), lower, upper))

        if any(a > b for a, b in zip(program.lower, program.upper, strict=True)):
            return Fewest(None)
        push(program.lower, program.upper, 0)
        for _ in range(max_nodes):
            if not heap or (self.best is not None and heap[0][0] >= self.best[0]):
                break
            if is_over():
                break
            _, depth, _, lower, upper = heapq.heappop(heap)
            for child in self._children(lower, upper):
                push(*child, 1 - depth)
        bound = min([heap[0][0]] if heap else [], default=None)
        if self.best is None:
            return Fewest(bound)
        total, point = self.best
        return Fewest(total if bound is None else min(bound, total), total, point)

    def _linear(self, lower: Point, upper: Point) -> tuple[Floats, Floats]:
        """Return about the best fractional counts of a box, and the prices of rows, per unit."""
        low = np.array([float(n) for n in lower]) / self.scale
        room = np.array([float(n) for n in upper]) / self.scale - low
        rows, size = self.terms.shape
        # the dual program: prices of rows and of upper limits, a row for each count
        values = np.concatenate([self.least - self.terms @ low, -room])
        lines = np.zeros((size + 1, rows + size))
        lines[:size, :rows] = self.terms.T
        lines[:size, rows:] = -np.eye(size)
        lines[size, :rows] = 1.0
        rooms = np.append(self.costs, MOST_WORTH)
        prices, counts = solve_many(values[None], lines[None], rooms[None])
        found = (low + np.minimum(counts[0, :size], room)) * self.scale
        return found, prices[0, :rows] * self.all_costs / np.array(self.sizes, dtype=np.float64)

    def _bound(self, lower: Point, upper: Point, prices: Sequence[float]) -> int:
        """Return an exact bound on the sum in a box, whatever the prices of rows.

        With prices y: sum >= y · least + sum over counts of (cost - y · terms) at its least.
        """
        top = max(prices, default=0.0)
        shift = PRICE_BITS - math.frexp(top)[1] if top > 0 else 0
        shift = max(shift, 0)
        whole = [int(math.ldexp(price, shift)) for price in prices]
        reduced = [cost << shift for cost in self.program.costs]
        bound = 0
        for price, row in zip(whole, self.program.rows, strict=True):
            if price:
                bound += price * row.least
                for v, term in row.terms.items():
                    reduced[v] -= price * term
        for cost, least, most in zip(reduced, lower, upper, strict=True):
            bound += cost * (least if cost >= 0 else most)
        return -(-bound >> shift)

    def _look(self, lower: Point, upper: Point) -> int | None:
        """Return the bound of a box, and take the points that it suggests; None: it is empty."""
        program = self.program
        if lower == upper:
            self._take(lower)
            return None
        counts, prices = self._linear(lower, upper)
        bound = max(self._bound(lower, upper, prices.tolist()), program.total(lower))
        if bound > program.total(upper):
            return None
        for rounded in (np.ceil(counts - 1e-7), np.round(counts)):
            point = tuple(
                min(max(int(n), a), b) for n, a, b in zip(rounded, lower, upper, strict=True)
            )
            self._take(point)
        return bound

    def _take(self, point: Point) -> None:
        total = self.program.total(point)
        if self.best is not None and total >= self.best[0]:
            return
        if point not in self.excluded and self.program.allows(point):
            self.best = total, point

    def _children(self, lower: Point, upper: Point) -> Iterator[tuple[Point, Point]]:
        """Yield the parts of a box, cut at the count that is furthest from a whole number.

        Where all are whole, one value of the widest count is taken out.
        """
        counts, _ = self._linear(lower, upper)
        off = np.abs(counts - np.round(counts))
        off[[a == b for a, b in zip(lower, upper, strict=True)]] = -1.0
        v = int(off.argmax())
        if off[v] > 1e-6:
            at = min(max(math.floor(counts[v]), lower[v]), upper[v] - 1)
            yield lower, _with(upper, v, at)
            yield _with(lower, v, at + 1), upper
            return
        v = max(range(len(lower)), key=lambda u: upper[u] - lower[u])
        at = min(max(round(counts[v]), lower[v]), upper[v])
        if at > lower[v]:
            yield lower, _with(upper, v, at - 1)
        yield _with(lower, v, at), _with(upper, v, at)
        if at < upper[v]:
            yield _with(lower, v, at + 1), upper


def _with(point: Point, v: int, number: int) -> Point:
    return (*point[:v], number, *point[v + 1 :])
