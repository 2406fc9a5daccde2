"""Brute force on sessions: which numbers of them tiny sets of serving instances can serve.

All sets here are arrays of truths with one axis for each cohort: entry (2, 0, 1) says whether two
sessions of the first cohort and one of the third can be served together.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import groupby

import numpy as np
import numpy.typing as npt

from optimizer.capacity.plan import GroupLoad, LaneLoad
from optimizer.capacity.problem import CapacityProblem, Option
from optimizer.errors import TooLargeError

Reachable = npt.NDArray[np.bool_]
Counts = tuple[int, ...]


class Steps:
    """Counts what is tried, and refuses to go on beyond a number."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def take(self, number: int = 1) -> None:
        """Count some steps; raises TooLargeError once there are too many."""
        self.taken += number
        if self.taken > self.most:
            raise TooLargeError(f"brute force on capacity would take more than {self.most} steps")


class SessionSets:
    """Exact sets of session counts for lanes, groups, serving instances and fleets of them.

    No set goes beyond the sessions that there are.
    """

    def __init__(self, problem: CapacityProblem, steps: Steps) -> None:
        self.problem, self.steps = problem, steps
        self.shape = tuple(cohort.num_sessions + 1 for cohort in problem.cohorts)
        size = 1
        for length in self.shape:
            size *= length
        steps.take(size * max(len(problem.options), 1))
        self.orders = [self._orders(option) for option in problem.options]
        self.groups = [self._groups(option) for option in problem.options]
        self.instances = [
            self._repeated(groups[-1], option.num_groups)
            for option, groups in zip(problem.options, self.groups, strict=True)
        ]
        self.known: dict[Counts, Reachable] = {}

    def of(self, instances: Counts) -> Reachable:
        """Return what so many serving instances of every option can serve together."""
        if instances not in self.known:
            used = [o for o, number in enumerate(instances) if number]
            if not used:
                self.known[instances] = self._nothing()
            else:
                fewer = _one_less(instances, used[-1])
                one = self.instances[used[-1]][-1]
                self.known[instances] = self._sum(self.of(fewer), one)
        return self.known[instances]

    def loads(self, instances: Counts, served: Counts) -> tuple[GroupLoad, ...]:
        """Deal sessions to so many serving instances, which can serve them."""
        dealt = Counter[tuple[int, tuple[LaneLoad, ...]]]()
        while any(instances):
            option = max(o for o, number in enumerate(instances) if number)
            instances = _one_less(instances, option)
            steps = self.instances[option]
            served, share = _split(served, self.of(instances), steps[-1])
            for group in _parts(share, steps, self.groups[option][-1]):
                if any(group):
                    dealt[option, self._lanes(option, group)] += 1
        assert not any(served), "all sessions are dealt"
        return tuple(GroupLoad(o, count, lanes) for (o, lanes), count in dealt.items())

    def _lanes(self, option: int, group: Counts) -> tuple[LaneLoad, ...]:
        """Deal the sessions of one group to its lanes, and put those of each in order."""
        lanes = Counter[tuple[tuple[int, int], ...]]()
        steps = self.groups[option]
        for lane in _parts(group, steps, self._lane(option)):
            order, left = list[int](), lane
            while any(left):
                last = self.orders[option][left][1]
                order.append(last)
                left = _one_less(left, last)
            if order:
                runs = [(c, len(list(run))) for c, run in groupby(reversed(order))]
                lanes[tuple(runs)] += 1
        return tuple(LaneLoad(count, runs) for runs, count in sorted(lanes.items()))

    def _orders(self, option: Option) -> dict[Counts, tuple[Fraction, int]]:
        """Return what one lane can serve: the earliest end over all orders, and who comes last.

        Of two orders of the same sessions the one that ends earlier is as good for all that follow.
        """
        found = {(0,) * len(self.shape): (Fraction(0), -1)}
        for counts in np.ndindex(self.shape):
            for last, cohort in enumerate(self.problem.cohorts):
                service_s = option.service_s[last]
                if not counts[last] or service_s is None:
                    continue
                before = found.get(_one_less(counts, last))
                if before is None:
                    continue
                end_s = max(before[0], cohort.release_s) + service_s
                if cohort.deadline_s is not None and end_s > cohort.deadline_s:
                    continue
                if counts not in found or end_s < found[counts][0]:
                    found[counts] = end_s, last
        return found

    def _lane(self, option: int) -> Reachable:
        lane = np.zeros(self.shape, dtype=np.bool_)
        for counts in self.orders[option]:
            lane[counts] = True
        return lane

    def _groups(self, option: Option) -> list[Reachable]:
        """Return what the first 0, 1, ... lanes of a group can serve within its memory."""
        fits = np.ones(self.shape, dtype=np.bool_)
        for counts in np.ndindex(self.shape):
            for row in option.memory:
                taken = sum(n * b for n, b in zip(counts, row.session_bytes, strict=True))
                fits[counts] = fits[counts] and taken <= row.free_bytes
        lane = self._lane(option.index)
        found = [self._nothing()]
        for _ in range(option.num_lanes):
            found.append(self._sum(found[-1], lane) & fits)
            if np.array_equal(found[-1], found[-2]):
                break  # further lanes add nothing
        return found

    def _repeated(self, one: Reachable, times: int) -> list[Reachable]:
        found = [self._nothing()]
        for _ in range(times):
            found.append(self._sum(found[-1], one))
            if np.array_equal(found[-1], found[-2]):
                break
        return found

    def _nothing(self) -> Reachable:
        nothing = np.zeros(self.shape, dtype=np.bool_)
        nothing[(0,) * len(self.shape)] = True
        return nothing

    def _sum(self, first: Reachable, second: Reachable) -> Reachable:
        """Return all sums of an element of each, as far as there are sessions."""
        total = np.zeros(self.shape, dtype=np.bool_)
        shifts = np.argwhere(second)
        self.steps.take(len(shifts))
        for shift in shifts.tolist():
            moved = tuple(slice(n, None) for n in shift)
            kept = tuple(slice(0, size - n) for n, size in zip(shift, self.shape, strict=True))
            total[moved] |= first[kept]
        return total


def _one_less(counts: Counts, which: int) -> Counts:
    return (*counts[:which], counts[which] - 1, *counts[which + 1 :])


def _split(total: Counts, first: Reachable, second: Reachable) -> tuple[Counts, Counts]:
    """Write a sum as an element of the first set and one of the second."""
    for part in np.argwhere(second).tolist():
        rest = tuple(a - b for a, b in zip(total, part, strict=True))
        if min(rest, default=0) >= 0 and first[rest]:
            return rest, tuple(part)
    raise AssertionError("the sum has no such parts")


def _parts(total: Counts, steps: list[Reachable], one: Reachable) -> list[Counts]:
    """Write an element of the last of several sets, each one step further, as those steps."""
    parts = []
    for before in reversed(steps[:-1]):
        total, part = _split(total, before, one)
        parts.append(part)
    return parts
