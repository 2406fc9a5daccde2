"""The load of an attention group that is worth most: lanes on time, and memory that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from optimizer.capacity.lane_orders import CountRow, Counts
from optimizer.capacity.lane_split import LaneSplitter
from optimizer.capacity.lane_sums import best_sum
from optimizer.capacity.load_search import BestCounts, best_counts, linear_optimum, worth
from optimizer.errors import TooLargeError

#: Rows of lanes that are added at most before a group is priced, and how many are kept.
MAX_CUT_ROUNDS, MAX_CUTS = 12, 24

#: Loads of one lane that are listed at most, to be added up lane by lane.
MAX_LANE_LOADS = 2000

#: Whole numbers of numpy stay below this.
MAX_WHOLE = 2**62


class GroupPricer:
    """Prices loads of a group: lanes of `splitter`, rows of `memory`, counts up to `limits`.

    Cohorts with a deadline come first; those without need memory only.
    """

    def __init__(
        self, splitter: LaneSplitter, memory: Sequence[CountRow], limits: Sequence[int]
    ) -> None:
        self.splitter, self.memory, self.limits = splitter, tuple(memory), tuple(limits)
        self.num_timed, self.size = splitter.times.size, len(limits)
        self.windows = tuple(
            row.for_lanes(splitter.lanes, self.size) for row in splitter.times.windows
        )
        self._cuts = deque[CountRow](maxlen=MAX_CUTS)

    def best(self, values: Sequence[int], tolerance: Fraction, max_nodes: int | None) -> BestCounts:
        """Return the counts worth most; see `best_counts`."""
        if not any(values):
            return BestCounts(0, (0,) * self.size, 0)
        self._cut_rows(values)
        start = self._rounded(values)
        summed = self._summed(values, start)
        if summed is not None:
            is_close = summed.bound <= summed.value + int(summed.value * tolerance)
            if is_close or max_nodes is not None:
                return summed
            start = summed.counts
        found = best_counts(
            values,
            self.limits,
            self._rows,
            self._fits if max_nodes is None else self._fits_soon,
            tolerance=tolerance,
            max_nodes=max_nodes,
            start=start,
        )
        bound = found.bound if summed is None else min(found.bound, summed.bound)
        return BestCounts(found.value, found.counts, bound)

    @property
    def _rows(self) -> tuple[CountRow, ...]:
        return (*self.memory, *self.windows, *self._cuts)

    def _fits(self, counts: Counts) -> bool:
        return self.splitter.fits(counts[: self.num_timed])

    def _fits_soon(self, counts: Counts) -> bool | None:
        return self.splitter.fits_soon(counts[: self.num_timed])

    def _cut_rows(self, values: Sequence[int]) -> None:
        """Add rows of lanes that the best fractional counts break, for as long as there are.

        A row weighs sessions by what they are worth beyond the memory that they take.
        """
        for _ in range(MAX_CUT_ROUNDS):
            counts, prices = linear_optimum(values, self.limits, self._rows)
            weights = np.array([value / max(values) for value in values])
            for price, memory in zip(prices, self.memory, strict=False):
                weights -= price * np.array([size / max(memory.most, 1) for size in memory.sizes])
            cut = self.splitter.add_cut(weights[: self.num_timed].tolist())
            if cut is None:
                return
            row = cut.for_lanes(self.splitter.lanes, self.size)
            used = float(np.dot(counts, np.array(row.sizes, dtype=np.float64)))
            if used <= row.most * (1 + 1e-6) or row in self._cuts:
                return
            self._cuts.append(row)

    def _rounded(self, values: Sequence[int]) -> Counts:
        """Return a load: the best fractional mix of known lanes, rounded down, and filled up."""
        size, timed = self.size, self.num_timed
        lanes = [
            tuple(int(o == c) * (self.splitter.limits[c] if c < timed else 1) for o in range(size))
            for c in range(size)
        ]
        lanes += [(*lane, *[0] * (size - timed)) for lane in self.splitter.heavy_lanes]
        lanes = [lane for lane in dict.fromkeys(lanes) if worth(values, lane)]
        rows = [CountRow(tuple(int(any(lane[:timed])) for lane in lanes), self.splitter.lanes)]
        rows += [
            CountRow(tuple(worth(row.sizes, lane) for lane in lanes), row.most)
            for row in self.memory
        ]
        rows += [
            CountRow(tuple(lane[c] for lane in lanes), limit)
            for c, limit in enumerate(self.limits)
            if c >= timed or limit < self.splitter.lanes * self.splitter.limits[c]
        ]
        most = [
            min(limit // n for limit, n in zip(self.limits, lane, strict=True) if n)
            for lane in lanes
        ]
        shares, _ = linear_optimum([worth(values, lane) for lane in lanes], most, rows)
        started = _Filling(self, values)
        for share, lane in sorted(zip(shares, lanes, strict=True), reverse=True):
            started.add(lane, int(share + 1e-9))
        fresh = _Filling(self, values)
        return max(
            (one.filled() for one in (started, fresh)), key=lambda counts: worth(values, counts)
        )

    @cached_property
    def _lane_loads(self) -> NDArray[np.int64] | None:
        """All loads of one lane, shape (loads, timed cohorts); None where they are too many."""
        found, counts = list[Counts](), [0] * self.num_timed

        def visit(c: int) -> None:
            if c == self.num_timed:
                found.append(tuple(counts))
                if len(found) > MAX_LANE_LOADS:
                    raise TooLargeError("loads of a lane")
                return
            for number in range(self.splitter.limits[c] + 1):
                counts[c] = number
                if number and not self.splitter.times.fits(counts):
                    break
                visit(c + 1)
            counts[c] = 0

        try:
            visit(0)
        except TooLargeError:
            return None
        return np.array(found, dtype=np.int64)

    def _summed(self, values: Sequence[int], start: Counts) -> BestCounts | None:
        """Add up loads of lanes exactly; None where that does not apply, or takes too long.

        Values beyond 2^62 are rounded up, so that the bound holds.
        """
        timed, lanes = self.num_timed, self.splitter.lanes
        is_clipped = any(
            limit < lanes * most
            for limit, most in zip(self.limits, self.splitter.limits, strict=False)
        )
        if len(self.memory) != 1 or any(values[timed:]) or is_clipped or self._lane_loads is None:
            return None
        memory = self.memory[0]
        if lanes * max(memory.sizes) * max(self.splitter.limits) * timed >= MAX_WHOLE:
            return None
        unit = worth(values, self.limits) // MAX_WHOLE + 1
        whole = np.array([-(-value // unit) for value in values[:timed]], dtype=np.int64)
        sizes = np.array(memory.sizes[:timed], dtype=np.int64)
        loads, floor = self._lane_loads, worth(values, start)
        try:
            found = best_sum(loads @ sizes, loads @ whole, lanes, memory.most, floor // unit)
        except TooLargeError:
            return None
        if found is None:
            return BestCounts(floor, start, floor if unit == 1 else (floor // unit + 1) * unit)
        total = loads[list(found[1])].sum(axis=0)
        counts = (*(int(n) for n in total), *[0] * (self.size - timed))
        value = worth(values, counts)
        if value < floor:
            counts, value = start, floor
        return BestCounts(value, counts, max(found[0] * unit, value))


class _Filling:
    """A group that is being filled lane by lane."""

    def __init__(self, group: GroupPricer, values: Sequence[int]) -> None:
        self.group, self.values = group, values
        self.counts = [0] * group.size
        self.lanes = group.splitter.lanes

    def add(self, lane: Counts, at_most: int) -> int:
        """Add equal lanes, as many as fit; returns how many."""
        group, number = self.group, at_most
        if any(lane[: group.num_timed]):
            number = min(number, self.lanes)
        for row in group.memory:
            used = worth(row.sizes, lane)
            if used:
                number = min(number, (row.most - worth(row.sizes, self.counts)) // used)
        for c, n in enumerate(lane):
            if n:
                number = min(number, (group.limits[c] - self.counts[c]) // n)
        self.counts = [all_ + number * n for all_, n in zip(self.counts, lane, strict=True)]
        if any(lane[: group.num_timed]):
            self.lanes -= number
        return number

    def filled(self) -> Counts:
        """Give every lane left what is worth most, then the memory left to other sessions."""
        group, timed = self.group, self.group.num_timed
        splitter, untimed = group.splitter, group.size - group.num_timed
        is_exact = splitter.times.is_released_together
        while self.lanes:
            limits = [
                min(most, group.limits[c] - self.counts[c])
                for c, most in enumerate(splitter.limits)
            ]
            room = self._room(slice(0, timed))
            best = best_counts(
                self.values[:timed],
                limits,
                (*splitter.times.windows, *room),
                None if is_exact else splitter.times.fits,
                tolerance=Fraction(1, 1000),
                max_nodes=300,
            )
            lane = (*best.counts, *[0] * untimed)
            if not any(lane) or not self.add(lane, self.lanes):
                break
        if untimed:
            limits = [limit - n for limit, n in zip(group.limits, self.counts, strict=True)]
            room = self._room(slice(timed, None))
            best = best_counts(
                self.values[timed:],
                limits[timed:],
                room,
                tolerance=Fraction(1, 1000),
                max_nodes=300,
            )
            self.add((*[0] * timed, *best.counts), 1)
        return tuple(self.counts)

    def _room(self, part: slice) -> list[CountRow]:
        """Return the rows of the memory that is left."""
        return [
            CountRow(row.sizes[part], row.most - worth(row.sizes, self.counts))
            for row in self.group.memory
        ]
