"""Which counts of sessions are worth most, or cannot be exceeded, under rows and a check.

Counts that are possible stay possible with fewer sessions. Rows are necessary; the check, where
there is one, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from optimizer.capacity.lane_orders import CountRow, Counts
from optimizer.capacity.small_lps import solve_many
from optimizer.errors import TooLargeError

#: Whether counts are possible; None where that took too long to tell.
Check = Callable[[Counts], bool | None]

#: Steps that a check counts for.
CHECK_STEPS = 20


@dataclass(frozen=True, slots=True)
class BestCounts:
    """Counts of the largest value found, and a bound on the value of all: value <= bound."""

    value: int
    counts: Counts
    bound: int


def linear_optimum(
    values: Sequence[int], limits: Sequence[int], rows: Sequence[CountRow]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return about the best fractional counts, and the price of each row, by the simplex method.

    Neither is exact. Values are counted in parts of the largest, rows in parts of their room.
    """
    if not limits:
        return np.zeros(0), np.zeros(len(rows))
    top = max(values) or 1
    # counts are measured in parts of their limits, so that all columns are of a size
    scale = np.array([float(limit) for limit in limits])
    worth_each = np.array([value / top for value in values]) * scale
    sizes = np.array([[size / max(row.most, 1) for size in row.sizes] for row in rows])
    sizes = sizes.reshape(len(rows), len(limits)) * scale
    rooms = np.array([1.0 if row.most else 0.0 for row in rows] + [1.0] * len(limits))
    lines = np.vstack([sizes, np.eye(len(limits))])
    parts, prices = solve_many(worth_each[None], lines[None], rooms[None])
    return np.maximum(parts[0], 0.0) * scale, prices[0, : len(rows)]


def worth(values: Sequence[int], counts: Sequence[int]) -> int:
    """Return sum of values[c] · counts[c]."""
    return sum(v * n for v, n in zip(values, counts, strict=True) if n)


def best_counts(
    values: Sequence[int],
    limits: Sequence[int],
    rows: Sequence[CountRow],
    check: Check | None = None,
    *,
    tolerance: Fraction = Fraction(0),
    max_nodes: int | None = None,
    start: Counts | None = None,
) -> BestCounts:
    """Maximise sum of values[c] · counts[c], counts[c] <= limits[c]; values are not negative.

    `start` is possible, and the answer is no worse. It is within the share `tolerance` of the best,
    unless more than `max_nodes` steps would be needed; the bound holds in any case.
    """
    search = _Search(values, limits, rows, check, tolerance, max_nodes)
    if start is not None:
        search.value, search.found = worth(values, start), start
    search.visit(0, 0, [row.most for row in rows])
    return search.best()


class _Search:
    """Depth first over the counts of one cohort after the other, cut off by bounds.

    With prices y of rows, value <= sum y·room + sum of limits·max(0, value - y·sizes). The prices
    come from a linear program in floating point; the bound holds for any, and is counted in whole
    numbers, in parts of a unit of value.
    """

    def __init__(
        self,
        values: Sequence[int],
        limits: Sequence[int],
        rows: Sequence[CountRow],
        check: Check | None,
        tolerance: Fraction,
        max_nodes: int | None,
    ) -> None:
        self.check, self.tolerance, self.max_nodes = check, tolerance, max_nodes
        self.size, self.nodes, self.open_bound = len(values), 0, 0
        self.value, self.found = 0, (0,) * len(values)
        able = [c for c in range(self.size) if values[c] > 0]
        most = {c: _room(limits[c], rows, c) for c in able}
        able = [c for c in able if most[c]]
        _, prices = linear_optimum(
            [values[c] for c in able],
            [most[c] for c in able],
            [CountRow(tuple(row.sizes[c] for c in able), row.most) for row in rows],
        )
        top = max(values, default=0)
        exact = [
            Fraction(float(price)) * top / max(row.most, 1) if price > 1e-9 else Fraction(0)
            for price, row in zip(prices, rows, strict=True)
        ]
        # 40 bits of each price are enough
        bits = (2**40 // price + 1 for price in exact if price)
        self.parts = 1 << max((bit.bit_length() for bit in bits), default=0)
        self.prices = [int(price * self.parts) for price in exact]
        reduced = {
            c: self.parts * values[c]
            - sum(y * row.sizes[c] for y, row in zip(self.prices, rows, strict=True))
            for c in able
        }
        self.order = sorted(able, key=lambda c: -abs(reduced[c]) * most[c])
        self.values = [values[c] for c in self.order]
        self.limits = [most[c] for c in self.order]
        self.reduced = [reduced[c] for c in self.order]
        self.sizes = [[row.sizes[c] for row in rows] for c in self.order]
        self.tails = [0] * (len(self.order) + 1)
        for k in range(len(self.order) - 1, -1, -1):
            self.tails[k] = self.tails[k + 1] + self.limits[k] * max(self.reduced[k], 0)
        self.densest = self._densest(len(rows))
        self.counts = [0] * self.size

    def _densest(self, num_rows: int) -> list[list[tuple[int, int, int]]]:
        """Return by depth the rows that hold all cohorts to come: (row, value, size) at best."""
        found = []
        for k in range(len(self.order)):
            rest = range(k, len(self.order))
            rows = []
            for r in range(num_rows):
                if all(self.sizes[i][r] for i in rest):
                    at = max(rest, key=lambda i: Fraction(self.values[i], self.sizes[i][r]))
                    rows.append((r, self.values[at], self.sizes[at][r]))
            found.append(rows)
        return found

    def best(self) -> BestCounts:
        return BestCounts(self.value, self.found, max(self.value, self.open_bound))

    def bound(self, k: int, value: int, room: list[int]) -> int:
        """Bound on the value of all that starts like this."""
        bound = self._priced(k, value, room)
        for r, most, size in self.densest[k] if k < len(self.order) else ():
            bound = min(bound, value + room[r] * most // size)
        return bound

    def visit(self, k: int, value: int, room: list[int]) -> bool:
        """Search on from depth k; False where its bound left nothing to find."""
        if k == len(self.order):
            self._take(k, value)
            return True
        bound = self.bound(k, value, room)
        if bound <= self.value + int(self.value * self.tolerance):
            if bound > self.value:
                self.open_bound = max(self.open_bound, bound)
            return False
        self.nodes += 1
        if self.max_nodes is not None and self.nodes > self.max_nodes:
            self.open_bound = max(self.open_bound, bound)
            return True
        sizes, c = self.sizes[k], self.order[k]
        most = self.limits[k]
        for free, size in zip(room, sizes, strict=True):
            if size:
                most = min(most, free // size)
        if k == len(self.order) - 1:
            self._take_last(k, value, most)
            return True
        is_cheap = self.reduced[k] < 0
        for number in range(most + 1) if is_cheap else range(most, -1, -1):
            self.counts[c] = number
            left = [r - number * s for r, s in zip(room, sizes, strict=True)]
            now = value + number * self.values[k]
            # with every step further the priced bound falls as well
            if not self.visit(k + 1, now, left) and self._priced(k + 1, now, left) <= self.value:
                break
        self.counts[c] = 0
        return True

    def _priced(self, k: int, value: int, room: list[int]) -> int:
        priced = sum(y * left for y, left in zip(self.prices, room, strict=True))
        return value + (priced + self.tails[k]) // self.parts

    def _take(self, k: int, value: int) -> None:
        counts = tuple(self.counts)
        if value > self.value and self._is_possible(value, counts):
            self.value, self.found = value, counts

    def _is_possible(self, value: int, counts: Counts) -> bool:
        if self.check is None:
            return True
        self.nodes += CHECK_STEPS
        answer = self.check(counts)
        if answer is None:
            self.open_bound = max(self.open_bound, value)
        return bool(answer)

    def _take_last(self, k: int, value: int, most: int) -> None:
        """Give the last cohort as many as are possible, if that is worth more than the best."""
        c, each = self.order[k], self.values[k]
        least = max(-((value - self.value - 1) // each), 0) if value <= self.value else 0
        if least > most:
            return

        def holds(number: int) -> bool:
            self.counts[c] = number
            return self._is_possible(value + number * each, tuple(self.counts))

        if holds(most):
            least = most
        elif least == most or not holds(least):
            self.counts[c] = 0
            return
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if holds(middle) else (least, middle)
        self.counts[c] = least
        self.value, self.found = value + least * each, tuple(self.counts)
        self.counts[c] = 0


def _room(limit: int, rows: Sequence[CountRow], cohort: int) -> int:
    """Return how many sessions of one cohort alone the rows allow, of `limit`."""
    for row in rows:
        if row.sizes[cohort]:
            limit = min(limit, row.most // row.sizes[cohort])
    return limit


def maximal_counts(
    limits: Sequence[int],
    rows: Sequence[CountRow],
    check: Check | None,
    *,
    max_found: int,
    max_nodes: int,
) -> tuple[Counts, ...]:
    """Return all counts to which no session can be added, largest first.

    Raises TooLargeError for more than `max_found`, or `max_nodes` steps.
    """
    most = [_room(limit, rows, c) for c, limit in enumerate(limits)]
    order = sorted((c for c in range(len(limits)) if most[c]), key=lambda c: most[c])
    counts, found = [0] * len(limits), list[Counts]()
    nodes = 0

    def is_possible(tried: Counts) -> bool:
        return all(row.keeps(tried) for row in rows) and (check is None or bool(check(tried)))

    def can_grow(c: int) -> bool:
        counts[c] += 1
        grown = counts[c] <= most[c] and is_possible(tuple(counts))
        counts[c] -= 1
        return grown

    def visit(k: int, room: list[int]) -> None:
        nonlocal nodes
        nodes += 1
        if nodes > max_nodes:
            raise TooLargeError(f"more than {max_nodes} steps to list the loads of an option")
        c = order[k]
        top = most[c]
        for left, row in zip(room, rows, strict=True):
            if row.sizes[c]:
                top = min(top, left // row.sizes[c])
        if k == len(order) - 1:
            counts[c] = _most_possible(top, lambda n: _with(counts, c, n), check)
            if not any(can_grow(o) for o in order[:-1]):
                found.append(tuple(counts))
                if len(found) > max_found:
                    raise TooLargeError(f"an option has more than {max_found} loads")
            counts[c] = 0
            return
        for number in range(_most_possible(top, lambda n: _with(counts, c, n), check), -1, -1):
            counts[c] = number
            visit(
                k + 1,
                [left - number * row.sizes[c] for left, row in zip(room, rows, strict=True)],
            )
        counts[c] = 0

    if order:
        visit(0, [row.most for row in rows])
    return tuple(sorted(found, reverse=True))


def _with(counts: Sequence[int], cohort: int, number: int) -> Counts:
    return (*counts[:cohort], number, *counts[cohort + 1 :])


def _most_possible(top: int, counts: Callable[[int], Counts], check: Check | None) -> int:
    """Return the most sessions up to `top` that the check allows; it allows none of them."""
    if check is None or check(counts(top)):
        return top
    least, most = 0, top
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if check(counts(middle)) else (least, middle)
    return least
