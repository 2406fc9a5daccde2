"""Queues of lanes and what stands side by side, by their exact times; only the unbeaten are kept.

A lane's queue is a chain of cohorts. Lanes side by side make an attention group, groups side by
side a serving instance; both take the largest end and latency and add up the rest. Times are whole
numbers of a unit that divides all times of a kind: there are many, and fractions are slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Generic, Protocol, TypeVar

from formulations.lanes import Queues, trimmed
from formulations.scoring import QueueScore, queue_score
from optimizer.errors import TooLargeError
from optimizer.tables import Kind, ProblemTables

#: More pairs than this put side by side and the formulation declines.
MAX_PAIRS = 1_000_000

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """What the sessions of a lane, a group or an instance contribute to measures."""

    end: int = 0
    latency: int = 0
    completion: int = 0
    on_time: int = 0

    def beats(self, other: Times) -> bool:
        """Whether no measure is worse than the other's."""
        return (
            self.end <= other.end
            and self.on_time >= other.on_time
            and self.latency <= other.latency
            and self.completion <= other.completion
        )

    def beside(self, other: Times) -> Times:
        """Return the times of both side by side."""
        return Times(
            max(self.end, other.end),
            max(self.latency, other.latency),
            self.completion + other.completion,
            self.on_time + other.on_time,
        )


@dataclass(frozen=True, slots=True)
class Clock:
    """Runs sessions of one kind in whole numbers, `per_s` to a second."""

    tables: ProblemTables
    kind: Kind
    per_s: int

    def finish(self, ready: int, index: int) -> int:
        """Return when a session of a cohort ends that may start at `ready`."""
        ready_s = Fraction(ready, self.per_s)
        return int(self.per_s * self.tables.finish_s(self.kind, ready_s, index))

    def after(self, times: Times, end: int, index: int) -> Times:
        """Return the times with one more session of a cohort, which ends last, at `end`."""
        cohort = self.tables.cohorts[index]
        return Times(
            end,
            max(times.latency, end - int(self.per_s * cohort.release_s)),
            times.completion + end,
            times.on_time
            + (cohort.deadline_s is None or end <= math.floor(self.per_s * cohort.deadline_s)),
        )

    def score(self, times: Times) -> QueueScore:
        """Return every measure of an instance with such times."""
        end, latency, completion = (
            Fraction(time, self.per_s) for time in (times.end, times.latency, times.completion)
        )
        return queue_score(self.kind, end, latency, completion, times.on_time)


def clock_of(tables: ProblemTables, kind: Kind) -> Clock:
    """Return a clock that knows every time of a kind exactly."""
    times = [cohort.release_s for cohort in tables.cohorts]
    times += [*kind.candidate.service_s, *(until_s for _, until_s in kind.stalls)]
    return Clock(tables, kind, math.lcm(*(time.denominator for time in times)))


class Timed(Protocol):
    """Anything with times."""

    @property
    def times(self) -> Times:
        """What its sessions contribute."""
        ...


Part = TypeVar("Part", bound=Timed)


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue by its last cohort and the queue before it."""

    times: Times
    last: int | None = None
    before: Lane | None = None

    def queue(self) -> tuple[int, ...]:
        """Return the cohort indices of the whole queue, in order."""
        backwards: list[int] = []
        lane: Lane | None = self
        while lane is not None and lane.last is not None:
            backwards.append(lane.last)
            lane = lane.before
        return tuple(reversed(backwards))


@dataclass(frozen=True, slots=True)
class Joint(Generic[Part]):
    """Parts side by side: one of them, and the others."""

    times: Times
    first: Part
    others: Joint[Part] | None = None

    def parts(self) -> list[Part]:
        """Return all parts."""
        found: list[Part] = []
        joint: Joint[Part] | None = self
        while joint is not None:
            found.append(joint.first)
            joint = joint.others
        return found


#: Groups side by side, each with its lanes side by side.
Deal = Joint[Joint[Lane]]


def deal_queues(deal: Deal, num_lanes: int) -> Queues:
    """Return the queues of all lanes, `num_lanes` for each group but the last one used."""
    queues: list[tuple[int, ...]] = []
    for group in deal.parts():
        mine = [queue for lane in group.parts() if (queue := lane.queue())]
        if mine:
            queues += mine + [()] * (num_lanes - len(mine))
    return trimmed(queues)


def unbeaten(items: Iterable[Part]) -> list[Part]:
    """Return the items that no other beats; of equal ones the first."""
    kept: list[Part] = []
    for item in items:
        if not any(other.times.beats(item.times) for other in kept):
            kept = [other for other in kept if not item.times.beats(other.times)]
            kept.append(item)
    return kept


def _is_matched(items: Sequence[Timed], others: Sequence[Timed]) -> bool:
    """Whether each of the items is beaten or equalled by one of the others."""
    return all(any(other.times.beats(item.times) for other in others) for item in items)


class Dealer:
    """Lists unbeaten deals, kind by kind; raises TooLargeError when that is too much work."""

    def __init__(self, tables: ProblemTables, is_over: Callable[[], bool]) -> None:
        self.tables, self.is_over = tables, is_over
        self.pairs_left = MAX_PAIRS

    def deals(self, clock: Clock, budget: int) -> list[tuple[Counts, Deal]]:
        """Return (counts, deal) of every deal worth having, of at least one session.

        More than `budget` of them, or of the lanes or groups they are made of, are too many.
        """
        candidate, sessions = clock.kind.candidate, self.tables.num_sessions
        lanes = self._lanes(clock, budget)
        most = min(candidate.num_lanes, sessions)
        groups = self._side_by_side(lanes, most, candidate.holds, budget)
        most = min(candidate.num_groups, sessions)
        whole = self._side_by_side(groups, most, lambda _: True, budget)
        return [(counts, deal) for counts, deals in whole.items() if any(counts) for deal in deals]

    def _lanes(self, clock: Clock, budget: int) -> dict[Counts, list[Lane]]:
        """Return the queues of one lane that the memory of its group holds, by their counts."""
        fronts: dict[Counts, list[Lane]] = {}
        for counts in self._mixtures(clock.kind.candidate.holds):
            longer = [] if any(counts) else [Lane(Times())]
            for index, number in enumerate(counts):
                if number:
                    before = (*counts[:index], number - 1, *counts[index + 1 :])
                    for lane in fronts.get(before, []):
                        end = clock.finish(lane.times.end, index)
                        longer.append(Lane(clock.after(lane.times, end, index), index, lane))
            fronts[counts] = unbeaten(longer)
            budget = self._charge(budget, fronts[counts] if any(counts) else [])
        return fronts

    def _side_by_side(
        self,
        parts: Mapping[Counts, Sequence[Part]],
        most: int,
        holds: Callable[[Counts], bool],
        budget: int,
    ) -> dict[Counts, list[Joint[Part]]]:
        """Return up to `most` parts side by side, within `holds` together, by their counts."""
        fronts = {
            counts: [Joint(part.times, part) for part in front] for counts, front in parts.items()
        }
        for number in range(2, most + 1):
            wider: dict[Counts, list[Joint[Part]]] = {}
            left = budget
            for counts in self._mixtures(holds):
                wider[counts] = unbeaten(self._pairs(parts, fronts, counts, number))
                left = self._charge(left, wider[counts])
            if all(_is_matched(wider[c], fronts.get(c, ())) for c in wider):
                break  # and so one more part would not help either
            fronts = wider
        return fronts

    def _pairs(
        self,
        parts: Mapping[Counts, Sequence[Part]],
        fronts: Mapping[Counts, Sequence[Joint[Part]]],
        counts: Counts,
        number: int,
    ) -> Iterator[Joint[Part]]:
        """Put a part beside up to `number` - 1 others so that they have `counts` together.

        Parts are interchangeable, so the one with most sessions of the first cohort is taken first:
        it has at least an equal share of them.
        """
        ranges = [range(n + 1) for n in counts]
        lead = next((c for c, n in enumerate(counts) if n), 0)
        ranges[lead] = range(-(-counts[lead] // number), counts[lead] + 1)
        for mine in product(*ranges):
            rest = tuple(n - m for n, m in zip(counts, mine, strict=True))
            firsts, others = parts.get(mine, ()), fronts.get(rest, ())
            self.pairs_left -= max(1, len(firsts) * len(others))
            if self.pairs_left < 0:
                raise TooLargeError(f"more than {MAX_PAIRS} pairs side by side; use cp-sat")
            for a, b in product(firsts, others):
                yield Joint(a.times.beside(b.times), a, b)

    def _mixtures(self, holds: Callable[[Counts], bool]) -> Iterator[Counts]:
        """Yield the counts within the workload that `holds` admits, none at all first."""
        limits = (range(cohort.num_sessions + 1) for cohort in self.tables.cohorts)
        return filter(holds, product(*limits))

    def _charge(self, budget: int, labels: Sequence[Timed]) -> int:
        """Return the budget left after some labels."""
        if self.is_over():
            raise TooLargeError("time ran out while patterns were listed")
        if len(labels) > budget:
            raise TooLargeError("more patterns than the MILP takes; use cp-sat")
        return budget - len(labels)
