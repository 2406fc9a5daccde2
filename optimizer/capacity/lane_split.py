"""Sessions for several equal lanes: whether they can be dealt so that all end on time, and how."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from optimizer.capacity.lane_orders import CountRow, Counts, LaneTimes
from optimizer.capacity.load_search import BestCounts, best_counts, linear_optimum
from optimizer.errors import TooLargeError

#: (number of lanes, sessions of each).
Split = tuple[tuple[int, Counts], ...]

#: How often weights for a cut are improved at most, and the largest weight.
MAX_ROUNDS, MAX_WEIGHT = 40, 10**6

#: Ways to fill a lane that a quick answer may try.
MAX_STEPS = 50

#: Rows that are kept.
MAX_CUTS = 64


class LaneSplitter:
    """Deals sessions to `lanes` lanes.

    `cuts` are rows of one lane found so far, `heavy_lanes` lanes that reach about what they allow.
    """

    def __init__(self, times: LaneTimes, lanes: int, at_most: Sequence[int]) -> None:
        self.times, self.lanes = times, lanes
        self.limits = tuple(times.most(c, most) for c, most in enumerate(at_most))
        self.cuts = deque[CountRow](maxlen=MAX_CUTS)
        self.heavy_lanes = deque[Counts](maxlen=MAX_CUTS)
        self._known: dict[Counts, Split | None] = {}

    def best_lane(
        self,
        values: Sequence[int],
        *,
        tolerance: Fraction = Fraction(0),
        max_nodes: int | None = None,
    ) -> BestCounts:
        """Return the sessions of one lane that are worth most."""
        check = None if self.times.is_released_together else self.times.fits
        return best_counts(
            values,
            self.limits,
            self.times.windows,
            check,
            tolerance=tolerance,
            max_nodes=max_nodes,
        )

    def add_cut(self, weights: Sequence[float]) -> CountRow | None:
        """Return, and keep, a row of one lane with about these weights; None if all are 0."""
        top = max(weights, default=0.0)
        if top <= 0:
            return None
        sizes = tuple(round(max(weight, 0.0) / top * MAX_WEIGHT) for weight in weights)
        best = self.best_lane(sizes, tolerance=Fraction(1, MAX_WEIGHT), max_nodes=20_000)
        cut = CountRow(sizes, best.bound)
        if cut not in self.cuts:
            self.cuts.append(cut)
        if best.counts not in self.heavy_lanes:
            self.heavy_lanes.append(best.counts)
        return cut

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether the lanes can serve all sessions on time."""
        return self.split(counts) is not None

    def fits_soon(self, counts: Sequence[int]) -> bool | None:
        """As `fits`, but None where it would take more than `MAX_STEPS` steps to tell."""
        try:
            return self.split(counts, MAX_STEPS) is not None
        except TooLargeError:
            return None

    def split(self, counts: Sequence[int], max_steps: int | None = None) -> Split | None:
        """Return sessions of the lanes, busy ones only; None where they cannot serve all.

        Raises TooLargeError where more than `max_steps` ways to fill a lane would be tried.
        """
        key = tuple(counts)
        if not any(key):
            return ()
        if self.lanes == 1:
            return ((1, key),) if self.times.fits(key) else None
        if not self._keeps_rows(key):
            return None
        if key not in self._known:
            self._known[key] = self._split(key, max_steps)
        return self._known[key]

    def _keeps_rows(self, counts: Counts) -> bool:
        within = all(n <= self.lanes * most for n, most in zip(counts, self.limits, strict=True))
        return within and self._is_hopeful(counts, self.lanes)

    def _split(self, counts: Counts, max_steps: int | None) -> Split | None:
        services, deadlines = self.times.services, self.times.deadlines
        size = range(len(counts))
        found = self._evenly(counts)
        for order in (
            sorted(size, key=lambda c: -services[c]),
            sorted(size, key=lambda c: (deadlines[c] - self.times.releases[c], -services[c])),
        ):
            found = found or self._greedily(counts, order, self.lanes)
        if found is None:
            is_possible, found = self._by_columns(counts)
            if is_possible and found is None:
                found = self._searched(counts, max_steps)
        return found

    def _evenly(self, counts: Counts) -> Split | None:
        """Give every lane as many of each cohort as any other, up to one."""
        if not self.times.fits([-(-n // self.lanes) for n in counts]):
            return None
        extras = [n % self.lanes for n in counts]
        marks = sorted({0, self.lanes, *extras})
        split = []
        for first, last in itertools.pairwise(marks):
            lane = tuple(
                n // self.lanes + (first < extra) for n, extra in zip(counts, extras, strict=True)
            )
            if any(lane):
                split.append((last - first, lane))
        return tuple(split)

    def _greedily(self, counts: Counts, order: Sequence[int], lanes: int) -> Split | None:
        """Fill one lane after another with what comes first in the order."""
        left, split = list(counts), list[tuple[int, Counts]]()
        while any(left):
            lane = self._filled((0,) * len(left), left, order)
            number = min([lanes, *(left[c] // n for c, n in enumerate(lane) if n)])
            if not any(lane) or not number:
                return None
            split.append((number, lane))
            lanes -= number
            left = [all_ - number * n for all_, n in zip(left, lane, strict=True)]
        return tuple(split)

    def _filled(self, lane: Counts, left: Sequence[int], order: Sequence[int]) -> Counts:
        """Add to a lane as many sessions as fit, cohort by cohort."""
        counts = list(lane)
        for c in order:
            least, most = counts[c], min(left[c], self.limits[c]) + 1
            while most - least > 1:
                counts[c] = (least + most) // 2
                least, most = (counts[c], most) if self.times.fits(counts) else (least, counts[c])
            counts[c] = least
        return tuple(counts)

    def _by_columns(self, counts: Counts) -> tuple[bool, Split | None]:
        """Prove by a cut that lanes do not suffice, or round a fractional split.

        The weights of the cut are those under which the sessions weigh most while no known lane
        weighs more than 1; the heaviest lane joins those known until none is too heavy.
        """
        used = [c for c, n in enumerate(counts) if n]
        lanes = [tuple(int(o == c) * self.limits[c] for o in range(len(counts))) for c in used]
        rounded: Split | None = None
        for _ in range(MAX_ROUNDS):
            rows = [CountRow(tuple(lane[c] for c in used), 1) for lane in lanes]
            most = [2] * len(used)
            weights, shares = linear_optimum([counts[c] for c in used], most, rows)
            spread = np.zeros(len(counts))
            spread[used] = weights
            cut = self.add_cut(spread.tolist())
            if cut is not None and not cut.keeps(counts, self.lanes):
                return False, None
            rounded = self._rounded(counts, lanes, (shares * max(counts)).tolist())
            heaviest = () if cut is None else self.best_lane(cut.sizes, max_nodes=20_000).counts
            if rounded is not None or heaviest in lanes or not heaviest:
                break
            lanes.append(tuple(min(n, m) for n, m in zip(heaviest, counts, strict=True)))
            if lanes[-1] in lanes[:-1]:
                break
        return True, rounded

    def _rounded(
        self, counts: Counts, lanes: Sequence[Counts], shares: Sequence[float]
    ) -> Split | None:
        """Take known lanes as often as the whole parts of their shares, the rest greedily."""
        left, room, split = list(counts), self.lanes, list[tuple[int, Counts]]()
        for share, lane in sorted(zip(shares, lanes, strict=True), reverse=True):
            number = min(int(share + 1e-6), room, *(left[c] // n for c, n in enumerate(lane) if n))
            if number > 0:
                split.append((number, lane))
                room -= number
                left = [all_ - number * n for all_, n in zip(left, lane, strict=True)]
        order = sorted(range(len(counts)), key=lambda c: -self.times.services[c])
        rest = self._greedily(tuple(left), order, room)
        return None if rest is None else (*split, *rest)

    def _searched(self, counts: Counts, max_steps: int | None) -> Split | None:
        """Try every way to fill one lane after another, never twice what is left with as many."""
        failed: set[tuple[int, Counts]] = set()
        path: list[Counts] = []
        stack = [self._full_lanes(counts)]
        rests, steps = [counts], 0
        while stack:
            steps += 1
            if max_steps is not None and steps > max_steps:
                raise TooLargeError(f"more than {max_steps} ways to fill a lane")
            lane = next(stack[-1], None)
            if lane is None:
                stack.pop()
                failed.add((self.lanes - len(stack), rests.pop()))
                if path:
                    path.pop()
                continue
            rest = tuple(n - m for n, m in zip(rests[-1], lane, strict=True))
            if not any(rest):
                return tuple((1, one) for one in (*path, lane))
            room = self.lanes - len(path) - 1
            if not room or (room, rest) in failed or not self._is_hopeful(rest, room):
                continue
            path.append(lane)
            rests.append(rest)
            stack.append(self._full_lanes(rest))
        return None

    def _is_hopeful(self, counts: Counts, lanes: int) -> bool:
        """Whether rows of one lane leave so many lanes a chance."""
        rows = (*self.times.windows, *self.cuts)
        return all(row.keeps(counts, lanes) for row in rows)

    def _full_lanes(self, left: Counts) -> Iterator[Counts]:
        """Yield lanes with the first cohort that is left, to which nothing left can be added."""
        pivot = next(c for c, n in enumerate(left) if n)
        order = [pivot, *(c for c in range(len(left)) if c != pivot and left[c])]
        counts = [0] * len(left)

        def visit(k: int) -> Iterator[Counts]:
            if k == len(order):
                if not any(self._can_grow(counts, c, left) for c in order):
                    yield tuple(counts)
                return
            c = order[k]
            for number in range(min(left[c], self.limits[c]), -1 if k else 0, -1):
                counts[c] = number
                if self.times.fits(counts):
                    yield from visit(k + 1)
            counts[c] = 0

        return visit(0)

    def _can_grow(self, counts: list[int], cohort: int, left: Counts) -> bool:
        counts[cohort] += 1
        can = counts[cohort] <= left[cohort] and self.times.fits(counts)
        counts[cohort] -= 1
        return can
