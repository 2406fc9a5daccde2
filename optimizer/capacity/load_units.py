"""One unit of an option: the sessions that it can take on time.

A unit is one lane where memory can never bind, else an attention group with all of its lanes.
Sessions are counted exactly; nothing here is rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from optimizer.capacity.group_pricing import GroupPricer
from optimizer.capacity.lane_orders import CountRow, Counts, LaneTimes
from optimizer.capacity.lane_split import LaneSplitter
from optimizer.capacity.load_search import BestCounts, best_counts, maximal_counts
from optimizer.capacity.plan import LaneLoad
from optimizer.capacity.problem import CapacityProblem, Option
from optimizer.errors import TooLargeError

#: Units with no more possible counts than this have their largest loads listed to be priced.
MAX_LISTED = 4096

#: Steps to list loads, for each that may be found.
STEPS_PER_LOAD = 40


@dataclass(frozen=True, slots=True)
class UnitLoad:
    """Sessions of one unit by cohort of the problem, and how its lanes serve them."""

    counts: Counts
    lanes: tuple[LaneLoad, ...]


@dataclass(frozen=True, slots=True)
class PricedLoad:
    """A load, its value, and a bound on the value of all loads: value <= bound."""

    value: Fraction
    bound: Fraction
    load: UnitLoad


class OptionUnit:
    """One unit of an option: `num_units` of them make an instance.

    `cohorts` lists those it may serve, first those with a deadline (`num_timed`); counts are in
    this order. `limits` holds the most of each cohort alone, up to the sessions there are.
    """

    def __init__(self, problem: CapacityProblem, option: Option) -> None:
        self.option = option
        demands = problem.cohorts
        able = [c for c, time in enumerate(option.service_s) if time is not None]
        timed = [c for c in able if demands[c].deadline_s is not None]
        self.cohorts = (*timed, *(c for c in able if demands[c].deadline_s is None))
        self.num_timed, self.num_cohorts = len(timed), len(demands)
        times = LaneTimes(
            [demands[c].release_s for c in timed],
            [option.service_s[c] or Fraction(0) for c in timed],
            [demands[c].deadline_s or Fraction(0) for c in timed],
        )
        at_most = [demands[c].num_sessions for c in self.cohorts]
        group = LaneSplitter(times, option.num_lanes, at_most[: len(timed)])
        self.memory = self._memory(group, at_most)
        self.is_lane = not self.memory
        self.lanes = 1 if self.is_lane else option.num_lanes
        self.num_units = option.num_groups * (option.num_lanes // self.lanes)
        self.splitter = LaneSplitter(times, 1, at_most[: len(timed)]) if self.is_lane else group
        self.limits = self._limits(self.splitter, at_most)
        windows = (row.for_lanes(self.lanes, len(self.cohorts)) for row in times.windows)
        self.rows = (*self.memory, *windows)

    def maximal(self, max_loads: int) -> tuple[Counts, ...]:
        """Return the counts to which no session can be added; raises TooLargeError beyond that."""
        steps = STEPS_PER_LOAD * (max_loads + 25)
        check = None if self._are_rows_exact else self.fits
        return maximal_counts(
            self.limits, self.rows, check, max_found=max_loads, max_nodes=steps
        ) or ((0,) * len(self.cohorts),)

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether the lanes can serve all sessions on time; memory is not looked at."""
        return self.splitter.fits(counts[: self.num_timed])

    def load(self, counts: Sequence[int]) -> UnitLoad:
        """Return the load with given counts of `cohorts`; raises ValueError if it is too large."""
        split = self.splitter.split(counts[: self.num_timed])
        if split is None or not all(row.keeps(counts) for row in self.rows):
            raise ValueError(f"a unit of option {self.option.index} cannot take {tuple(counts)}")
        total = [0] * self.num_cohorts
        for c, number in zip(self.cohorts, counts, strict=True):
            total[c] += number
        # lanes without timed sessions come first, so that they get the odd sessions of the others
        idle = self.lanes - sum(number for number, _ in split)
        parts = [(idle, (0,) * self.num_timed), *split] if idle else list(split)
        return UnitLoad(tuple(total), tuple(self._lane_loads(parts, counts[self.num_timed :])))

    def priced(
        self,
        prices: Sequence[int | Fraction],
        *,
        tolerance: Fraction = Fraction(0),
        max_nodes: int | None = None,
    ) -> PricedLoad:
        """Return the load with the largest sum of prices[c] · counts[c]; no price is negative.

        Its value is within the share `tolerance` of the best, unless more than `max_nodes` steps
        would be needed; the bound holds in any case.
        """
        exact = [Fraction(prices[c]) for c in self.cohorts]
        unit = math.lcm(*(price.denominator for price in exact))
        values = [int(price * unit) for price in exact]
        divisor = math.gcd(*values) or 1
        values, worth = [value // divisor for value in values], Fraction(divisor, unit)
        if self._listed is not None:
            value, counts = self._best_listed(values)
            return PricedLoad(value * worth, value * worth, self.load(counts))
        best = self._best(values, tolerance, max_nodes)
        return PricedLoad(best.value * worth, best.bound * worth, self.load(best.counts))

    def _best(
        self, values: Sequence[int], tolerance: Fraction, max_nodes: int | None
    ) -> BestCounts:
        if self._group is not None:
            return self._group.best(values, tolerance, max_nodes)
        check = None if self._are_rows_exact else self.fits
        return best_counts(
            values, self.limits, self.rows, check, tolerance=tolerance, max_nodes=max_nodes
        )

    @cached_property
    def _group(self) -> GroupPricer | None:
        """What prices a group whose lanes have deadlines; others need no dealing."""
        if self.lanes == 1 or not self.num_timed:
            return None
        return GroupPricer(self.splitter, self.memory, self.limits)

    @property
    def _are_rows_exact(self) -> bool:
        """Whether counts that keep all rows can be served."""
        lone = self.lanes == 1 and self.splitter.times.is_released_together
        return lone or not self.num_timed

    @cached_property
    def _listed(self) -> tuple[Counts, ...] | None:
        """The largest counts, where there are few."""
        if math.prod(limit + 1 for limit in self.limits) > MAX_LISTED:
            return None
        try:
            return self.maximal(MAX_LISTED)
        except TooLargeError:
            return None

    @cached_property
    def _listed_array(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """`_listed`, shape (loads, cohorts)."""
        assert self._listed is not None
        return np.array(self._listed, dtype=np.float64).reshape(len(self._listed), -1)

    def _best_listed(self, values: Sequence[int]) -> tuple[int, Counts]:
        """Price listed counts: in floating point, then exactly those that may be best."""
        assert self._listed is not None
        top = max(values, default=0) or 1
        worth = self._listed_array @ np.array([value / top for value in values])
        near = np.flatnonzero(worth >= worth.max() * (1 - 1e-12))
        return max(
            (sum(v * n for v, n in zip(values, self._listed[i], strict=True)), self._listed[i])
            for i in near
        )

    def _limits(self, splitter: LaneSplitter, at_most: Sequence[int]) -> tuple[int, ...]:
        limits = [splitter.lanes * most for most in splitter.limits]
        limits += at_most[len(limits) :]
        return tuple(min(pair) for pair in zip(limits, at_most, strict=True))

    def _memory(self, group: LaneSplitter, at_most: Sequence[int]) -> tuple[CountRow, ...]:
        """Return the rows of a group's memory that can bind, without those that others imply."""
        limits, rows = self._limits(group, at_most), list[CountRow]()
        for row in self.option.memory:
            sizes = tuple(row.session_bytes[c] for c in self.cohorts)
            if sum(s * n for s, n in zip(sizes, limits, strict=True)) <= row.free_bytes:
                continue
            timed, rest = sizes[: self.num_timed], sizes[self.num_timed :]
            most = group.lanes * group.best_lane(timed).bound
            most += sum(s * n for s, n in zip(rest, limits[self.num_timed :], strict=True))
            if most > row.free_bytes:
                rows.append(CountRow(sizes, row.free_bytes))
        kept: list[CountRow] = []
        for new in sorted(set(rows), key=lambda row: (row.sizes, row.most), reverse=True):
            if not any(_implies(other, new) for other in kept):
                kept = [other for other in kept if not _implies(new, other)] + [new]
        return tuple(kept)

    def _lane_loads(
        self, parts: Sequence[tuple[int, Counts]], untimed: Sequence[int]
    ) -> Iterator[LaneLoad]:
        """Yield loads of lanes: timed sessions in an order that ends on time, then the others."""
        ends = list(itertools.accumulate(number for number, _ in parts))
        ordered = sorted({0, *ends, *(number % self.lanes for number in untimed)})
        for start, end in itertools.pairwise(ordered):
            timed = next(lane for (_, lane), last in zip(parts, ends, strict=True) if start < last)
            runs = self.splitter.times.order(timed)
            assert runs is not None
            own = [(self.cohorts[c], number) for c, number in runs]
            for c, number in zip(self.cohorts[self.num_timed :], untimed, strict=True):
                mine = number // self.lanes + (start < number % self.lanes)
                own += [(c, mine)] if mine else []
            if own:
                yield LaneLoad(end - start, tuple(own))


def _implies(row: CountRow, other: CountRow) -> bool:
    """Whether counts that keep a row keep the other one.

    A row without room leaves out only cohorts that need some of it.
    """
    return all(
        b * row.most <= a * other.most and (a > 0 or not b)
        for a, b in zip(row.sizes, other.sizes, strict=True)
    )
