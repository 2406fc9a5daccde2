"""A time that no placement of experts beats, from numbers of experts and loads alone.

Which experts stand where is left open. What remains is how many experts with work each group
has, and one group that holds a copy of the hottest expert. See experts.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import partial
from itertools import accumulate

from formulations.expert_data import ExpertData

#: More work than this for one time, and only averages are looked at.
MAX_WORK = 150_000


def first_bound_s(data: ExpertData) -> Fraction:
    """Return the least time at which numbers of experts and loads can fit together; seconds."""
    low_s = average_bound_s(data)
    most = max(map(data.max_active, range(data.problem.num_groups)))
    work = data.problem.num_groups * (data.num_active + data.max_extra) * (most + 1)
    if data.unit > 1 or work > MAX_WORK or not data.total:
        return low_s
    counting = _Counting(data)
    if counting.fits(low_s):
        return low_s
    best_s: Fraction | None = None
    for a in range(most, -1, -1):
        # the least time that a group with a experts can take and at which the rest fits
        times_s = partial(data.step_time_s, a)
        reach = data.total
        if best_s is not None:
            reach = bisect_left(range(reach + 1), best_s, key=times_s) - 1
        if reach < 0 or not counting.fits(times_s(reach)):
            continue
        load = bisect_left(range(reach), True, key=lambda x: counting.fits(times_s(x)))
        best_s = times_s(load)
    return low_s if best_s is None else max(low_s, best_s)


def average_bound_s(data: ExpertData) -> Fraction:
    """Return the larger of the average load, the hottest share and the average reading, as time."""
    p = data.problem
    least = max(
        Fraction(-(-data.total // p.num_groups), data.steps),
        Fraction(max(p.counts, default=0), data.max_copies),
    )
    averages_s = p.read_s * data.num_active + p.transfer_s * sum(p.counts)
    return max(
        (p.compute_s + p.transfer_s) * least,
        p.read_s * -(-data.num_active // p.num_groups),
        averages_s / p.num_groups,
    )


class _Counting:
    """Asks whether a time leaves room for all load, whoever carries it."""

    def __init__(self, data: ExpertData) -> None:
        self.data = data
        groups = range(data.problem.num_groups)
        ordered = sorted((data.max_active(g) for g in groups), reverse=True)
        self.widest, self.hot_slots, self.slots = ordered, ordered[0], ordered[:-1]
        #: Whether all groups have equally many experts, all with work.
        self.is_full = not data.problem.uneven and data.num_active == len(data.problem.counts)
        positive = sorted(count for count in data.problem.counts if count)
        #: Load of the n coldest experts with work, in steps.
        self.coldest = [data.steps * load for load in accumulate(positive, initial=0)]
        self.stages = [
            _Stage(data, copies)
            for copies in range(1, data.max_copies + 1)
            if copies == 1 or data.max_extra >= copies - 1
        ]

    def fits(self, time_s: Fraction) -> bool:
        """Whether groups can carry all load within a time."""
        data, compute = self.data, self.data.compute_limit(time_s)
        for stage in self.stages:
            limits: list[int | None] = []
            for a in range(self.hot_slots + 1):
                most = data.read_limit(time_s, a)
                most = most if compute is None else min(most, compute)
                most -= most % stage.step
                limits.append(most if most >= stage.least[a] else None)
            extras = [
                extra
                for extra in stage.extras
                if self._full_groups_fit(extra, limits) and self._hot_groups_fit(extra, limits)
            ]
            fits = self._fits_evenly if self.is_full else self._fits_unevenly
            if fits(stage, extras, limits):
                return True
        return False

    def _full_groups_fit(self, extra: int, limits: list[int | None]) -> bool:
        """Whether the groups with the most experts that a time allows can carry their load.

        There are several when the others cannot seat the rest, and then all experts on them, but
        for the extra copies, are different ones.
        """
        top = max((a for a, limit in enumerate(limits) if limit is not None), default=0)
        limit, num_groups = limits[top], self.data.problem.num_groups
        if not top or limit is None:
            return False
        full = self.data.num_active + extra - num_groups * (top - 1)
        if full <= 0:
            return True
        num_different = full * top - extra
        return full <= num_groups and self.coldest[max(num_different, 0)] <= full * limit

    def _hot_groups_fit(self, extra: int, limits: list[int | None]) -> bool:
        """Whether the groups with the hottest expert can carry it and those seated beside it.

        Those beside it are different ones but for the extra copies that it leaves.
        """
        data = self.data
        num_active, num_groups = data.num_active + extra, data.problem.num_groups
        top = max((a for a, limit in enumerate(limits) if limit is not None), default=0)
        limit = max((limit for limit in limits if limit is not None), default=0)
        hottest = self.coldest[-1] - self.coldest[-2]
        for copies in range(1, min(data.max_copies, extra + 1) + 1):
            elsewhere = sum(min(slots, top) for slots in self.widest[: num_groups - copies])
            if self.is_full:
                elsewhere = num_active - copies * (num_active // num_groups)
            beside = num_active - elsewhere - copies - (extra - copies + 1)
            if hottest + self.coldest[max(beside, 0)] <= copies * limit:
                return True
        return False

    def _fits_evenly(self, stage: _Stage, extras: list[int], limits: list[int | None]) -> bool:
        """All groups have the same number of experts, all with work."""
        num_groups = self.data.problem.num_groups
        for extra in extras:
            a, rest = divmod(self.data.num_active + extra, num_groups)
            limit = limits[a] if a < len(limits) and not rest else None
            if limit is None or num_groups * limit < self.data.total:
                continue
            if stage.carries_hottest(limit, a, extra):
                return True
        return False

    def _fits_unevenly(self, stage: _Stage, extras: list[int], limits: list[int | None]) -> bool:
        """Some numbers of experts carry everything; one group has the hottest among them."""
        most = self.data.num_active + self.data.max_extra
        loads: list[int] = [0] + [-1] * most  # largest load of the groups so far, by experts
        for slots in self.slots:
            grown = [-1] * (most + 1)
            for a, limit in enumerate(limits[: slots + 1]):
                if limit is None:
                    continue
                for n, load in enumerate(loads[: most + 1 - a]):
                    if load >= 0 and load + limit > grown[n + a]:
                        grown[n + a] = load + limit
            loads = grown
        for extra in extras:
            for a, limit in enumerate(limits):
                n = self.data.num_active + extra - a
                if limit is None or n < 0 or loads[n] < 0 or limit + loads[n] < self.data.total:
                    continue
                if stage.carries_hottest(limit, a, extra):
                    return True
        return False


class _Stage:
    """Numbers of extra copies that let loads come in the same steps.

    With no extra copy loads are whole, with one they come in halves, and so on.
    """

    def __init__(self, data: ExpertData, copies: int) -> None:
        last = data.max_extra if copies == data.max_copies else copies - 1
        self.extras = range(copies - 1, last + 1)
        self.step = data.steps // math.lcm(*range(1, copies + 1))
        positive = sorted(count for count in data.problem.counts if count)
        #: Least load of a group with n experts with work, in steps: the coldest, copied.
        self.least = [0]
        gains: list[int] = []
        for n, count in enumerate(positive, start=1):
            gains += [data.steps * count // (r * (r + 1)) for r in range(1, copies)]
            gains = sorted(gains, reverse=True)[:last]
            self.least.append(data.steps * sum(positive[:n]) - sum(gains))
        self.hottest = _hottest_shares(data, last)

    def carries_hottest(self, limit: int, num_active: int, extra: int) -> bool:
        """Whether a group with so many experts has room for a copy of the hottest."""
        if not num_active:
            return False
        share = self.hottest[min(extra, len(self.hottest) - 1)]
        return limit >= share + self.least[num_active - 1]


def _hottest_shares(data: ExpertData, max_extra: int) -> list[int]:
    """Least possible largest share, in steps, for each number of extra copies."""
    counts, copies = data.problem.counts, [1] * len(data.problem.counts)
    shares: list[int] = []
    for _ in range(max_extra + 1):
        e = max(range(len(counts)), key=lambda e: Fraction(counts[e], copies[e]))
        shares.append(data.steps * counts[e] // copies[e])
        if copies[e] == data.max_copies:
            break
        copies[e] += 1
    return shares
