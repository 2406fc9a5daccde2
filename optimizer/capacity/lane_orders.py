"""One lane: which sessions can all end on time, and in which order.

A lane serves one session after another. Each starts at its release or later, and must end by its
deadline. What can be served together stays possible with fewer sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

#: Numbers of sessions, one for each cohort of a lane.
Counts = tuple[int, ...]

#: (cohort of the lane, number of sessions) in the order served.
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CountRow:
    """sum of sizes[c] · counts[c] <= most; no size is negative."""

    sizes: tuple[int, ...]
    most: int

    def keeps(self, counts: Sequence[int], times: int = 1) -> bool:
        """Whether counts keep the row, with `times` the room."""
        used = sum(s * n for s, n in zip(self.sizes, counts, strict=True) if n)
        return used <= times * self.most

    def for_lanes(self, lanes: int, num_cohorts: int) -> CountRow:
        """Return the row of several lanes together; cohorts without a deadline come after."""
        sizes = (*self.sizes, *[0] * (num_cohorts - len(self.sizes)))
        return CountRow(sizes, lanes * self.most)


class LaneTimes:
    """Times of cohorts on one lane, in whole numbers of a unit that divides all of them.

    `windows` are rows that any counts keep which end on time: sessions that are released no earlier
    than one time and are due by another fit in between. Where all are released together the rows
    suffice, and sessions are served by deadline.
    """

    def __init__(
        self,
        releases_s: Sequence[Fraction],
        services_s: Sequence[Fraction],
        deadlines_s: Sequence[Fraction],
    ) -> None:
        times = [*releases_s, *services_s, *deadlines_s]
        units = math.lcm(*(time.denominator for time in times))
        self.releases = tuple(int(time * units) for time in releases_s)
        self.services = tuple(int(time * units) for time in services_s)
        self.deadlines = tuple(int(time * units) for time in deadlines_s)
        self.size = len(self.services)
        self.is_released_together = len(set(self.releases)) <= 1
        self.windows = tuple(self._windows())
        self._searched: dict[Counts, Runs | None] = {}

    def most(self, cohort: int, at_most: int) -> int:
        """Return how many sessions of one cohort alone a lane can serve, of `at_most`."""
        room = self.deadlines[cohort] - self.releases[cohort]
        if room < self.services[cohort]:
            return 0
        if self.services[cohort] == 0:
            return at_most
        return min(at_most, room // self.services[cohort])

    def order(self, counts: Sequence[int]) -> Runs | None:
        """Return an order in which all end on time; None where there is none."""
        if not all(row.keeps(counts) for row in self.windows):
            return None
        if self.is_released_together:
            return self._by_deadline(counts)
        found = self._earliest_first(counts)
        if found is not None:
            return found
        key = tuple(counts)
        if key not in self._searched:
            self._searched[key] = self._search(key)
        return self._searched[key]

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether all sessions can end on time."""
        return self.order(counts) is not None

    def _windows(self) -> Iterator[CountRow]:
        rooms: dict[tuple[int, ...], int] = {}
        for start in set(self.releases):
            for end in set(self.deadlines):
                sizes = tuple(
                    service if release >= start and deadline <= end else 0
                    for release, service, deadline in zip(
                        self.releases, self.services, self.deadlines, strict=True
                    )
                )
                room = max(end - start, 0)
                if any(sizes):
                    rooms[sizes] = min(rooms.get(sizes, room), room)
        yield from (CountRow(sizes, room) for sizes, room in sorted(rooms.items()))

    def _by_deadline(self, counts: Sequence[int]) -> Runs:
        order = sorted(range(self.size), key=lambda c: self.deadlines[c])
        return tuple((c, counts[c]) for c in order if counts[c])

    def _earliest_first(self, counts: Sequence[int]) -> Runs | None:
        """Serve what is released and due first, never idle; None where one ends late."""
        left = {c: n for c, n in enumerate(counts) if n}
        now, runs = 0, list[tuple[int, int]]()
        while left:
            now = max(now, min(self.releases[c] for c in left))
            ready = [c for c in left if self.releases[c] <= now]
            c = min(ready, key=lambda c: (self.deadlines[c], c))
            sooner = [
                self.releases[o]
                for o in left
                if self.releases[o] > now and self.deadlines[o] < self.deadlines[c]
            ]
            number = left[c]
            if sooner and self.services[c]:
                number = min(number, -(-(min(sooner) - now) // self.services[c]))
            now += number * self.services[c]
            if now > self.deadlines[c]:
                return None
            runs.append((c, number))
            left[c] -= number
            if not left[c]:
                del left[c]
        return _merged(runs)

    def _search(self, counts: Counts) -> Runs | None:
        """Try orders depth first; what is left was tried already from an earlier time is not."""
        earliest: dict[Counts, int] = {counts: 0}
        path = list[int]()
        stack = [self._choices(counts, 0)]
        while stack:
            choice = next(stack[-1], None)
            if choice is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            c, end, left = choice
            if not any(left):
                return _merged([(one, 1) for one in (*path, c)])
            if left in earliest and earliest[left] <= end:
                continue
            earliest[left] = end
            path.append(c)
            stack.append(self._choices(left, end))
        return None

    def _choices(self, left: Counts, now: int) -> Iterator[tuple[int, int, Counts]]:
        """Yield (cohort, end of its session, sessions left) that may come next, due first."""
        starts = {c: max(now, self.releases[c]) for c, n in enumerate(left) if n}
        # whoever starts after another could have ended lets that one go first
        first_end = min(start + self.services[c] for c, start in starts.items())
        for c in sorted(starts, key=lambda c: (self.deadlines[c], c)):
            end = starts[c] + self.services[c]
            if (starts[c] >= first_end and end > first_end) or end > self.deadlines[c]:
                continue
            rest = (*left[:c], left[c] - 1, *left[c + 1 :])
            if self._is_hopeful(rest, end):
                yield c, end, rest

    def _is_hopeful(self, left: Counts, now: int) -> bool:
        """Whether sessions due by any deadline fit between now and then."""
        for end in set(self.deadlines):
            due = sum(
                n * s
                for n, s, d in zip(left, self.services, self.deadlines, strict=True)
                if n and d <= end
            )
            if due and now + due > end:
                return False
        return True


def _merged(runs: Sequence[tuple[int, int]]) -> Runs:
    """Join neighbours of one cohort."""
    merged: list[tuple[int, int]] = []
    for c, number in runs:
        if merged and merged[-1][0] == c:
            merged[-1] = c, merged[-1][1] + number
        else:
            merged.append((c, number))
    return tuple(merged)
