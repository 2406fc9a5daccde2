"""Random options, and brute force on what their lanes and groups serve on time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from random import Random
from typing import NamedTuple

from capacity_bounds import cohort, hall, option
from optimizer.capacity.load_units import OptionUnit, UnitLoad
from optimizer.capacity.plan import LaneLoad
from optimizer.capacity.problem import CapacityProblem, Option
from optimizer.tables import MemoryRow

F = Fraction

Counts = tuple[int, ...]


class Times(NamedTuple):
    """Release, time and deadline of a session of each cohort; None: at any time."""

    releases: tuple[Fraction, ...]
    services: tuple[Fraction, ...]
    deadlines: tuple[Fraction | None, ...]


def up_to(most: Sequence[int]) -> Iterator[Counts]:
    """Yield all counts that are nowhere above some."""
    return itertools.product(*(range(n + 1) for n in most))


def value(prices: Sequence[int | Fraction], counts: Sequence[int]) -> int | Fraction:
    return sum(p * n for p, n in zip(prices, counts, strict=True))


def plus_one(counts: Sequence[int], c: int) -> Counts:
    return (*counts[:c], counts[c] + 1, *counts[c + 1 :])


def lane_counts(times: Times, most: Sequence[int]) -> set[Counts]:
    """Return all counts, none above `most`, that one lane serves on time in some order.

    Of two orders of the same sessions the one that ends sooner is as good for all that follow.
    """
    ends: dict[Counts, Fraction] = {(0,) * len(most): F(0)}
    for counts in up_to(most):
        for last, n in enumerate(counts):
            before = ends.get((*counts[:last], n - 1, *counts[last + 1 :])) if n else None
            if before is None:
                continue
            end = max(before, times.releases[last]) + times.services[last]
            due = times.deadlines[last]
            if (due is None or end <= due) and end < ends.get(counts, end + 1):
                ends[counts] = end
    return set(ends)


def lanes_counts(one: set[Counts], lanes: int, most: Sequence[int]) -> set[Counts]:
    """Return all counts, none above `most`, that are sums of one of `one` for each lane."""
    sums = {(0,) * len(most)}
    for _ in range(lanes):
        added = {
            tuple(a + b for a, b in zip(x, y, strict=True)) for x, y in itertools.product(sums, one)
        }
        sums = {s for s in added if all(n <= m for n, m in zip(s, most, strict=True))}
    return sums


def largest(counts: set[Counts]) -> set[Counts]:
    """Return those to which no session can be added; with each, all smaller ones are in."""
    return {n for n in counts if not any(plus_one(n, c) in counts for c in range(len(n)))}


def times_of(problem: CapacityProblem, built: Option, cohorts: Sequence[int]) -> Times:
    """Return the times of some cohorts, which the option serves."""
    demands = [problem.cohorts[c] for c in cohorts]
    services = tuple(built.service_s[c] for c in cohorts)
    assert None not in services
    return Times(
        tuple(d.release_s for d in demands),
        tuple(F(s or 0) for s in services),
        tuple(d.deadline_s for d in demands),
    )


def unit_counts(problem: CapacityProblem, unit: OptionUnit) -> set[Counts]:
    """Return all counts of a unit's cohorts that it can take: lanes in time, memory of the group.

    No lane and no unit has more sessions of a cohort than there are.
    """
    built = unit.option
    most = [problem.cohorts[c].num_sessions for c in unit.cohorts]
    one = lane_counts(times_of(problem, built, unit.cohorts), most)
    counts = lanes_counts(one, unit.lanes, most)
    if unit.is_lane:
        return counts
    rows = [([row.session_bytes[c] for c in unit.cohorts], row.free_bytes) for row in built.memory]
    return {n for n in counts if all(value(sizes, n) <= free for sizes, free in rows)}


def group_sums(problem: CapacityProblem, unit: OptionUnit) -> set[Counts]:
    """Return all counts that the lanes of a group serve in time, whatever memory says."""
    most = [problem.cohorts[c].num_sessions for c in unit.cohorts]
    one = lane_counts(times_of(problem, unit.option, unit.cohorts), most)
    return lanes_counts(one, unit.option.num_lanes, most)


def check_lane(problem: CapacityProblem, built: Option, lane: LaneLoad) -> None:
    """Serve the runs of a lane one session after another: all must end in time."""
    assert lane.count > 0
    assert lane.runs
    now = F(0)
    for c, number in lane.runs:
        assert number > 0
        service, demand = built.service_s[c], problem.cohorts[c]
        assert service is not None
        for _ in range(number):
            now = max(now, demand.release_s) + service
            assert demand.deadline_s is None or now <= demand.deadline_s


def served(lanes: Sequence[LaneLoad], num_cohorts: int) -> Counts:
    """Return the sessions that lanes serve together, by cohort."""
    total = [0] * num_cohorts
    for lane in lanes:
        for c, number in lane.runs:
            total[c] += lane.count * number
    return tuple(total)


def check_load(problem: CapacityProblem, unit: OptionUnit, load: UnitLoad) -> None:
    """A load's lanes are there, serve in time what it says, and the group has the memory."""
    assert served(load.lanes, len(problem.cohorts)) == load.counts
    assert sum(lane.count for lane in load.lanes) <= unit.lanes
    for lane in load.lanes:
        check_lane(problem, unit.option, lane)
    if not unit.is_lane:
        assert all(row.holds(load.counts) for row in unit.option.memory)


def random_times(rng: Random, size: int) -> Times:
    """Return times in halves and thirds of a second, released together or not."""
    units = [rng.choice((1, 1, 2, 3)) for _ in range(size)]
    together = rng.random() < 0.3
    releases = [F(0) if together else F(rng.choice((0, 0, 1, 2, 3)), unit) for unit in units]
    services = [F(rng.choice((0, *(1, 2, 3, 4) * 4, 1)), unit) for unit in units]
    deadlines = [r + s + F(rng.randint(0, 7), 2) for r, s in zip(releases, services, strict=True)]
    return Times(tuple(releases), tuple(services), tuple(deadlines))


@cache
def random_option(seed: int) -> CapacityProblem:
    """Return one to four cohorts and one option, whose memory binds in two of three cases."""
    rng = Random(f"option-{seed}")
    size = rng.choice((1, 2, 2, 3, 3, 4))
    times = random_times(rng, size)
    cohorts = tuple(
        cohort(
            name=f"c{c}",
            num_sessions=rng.randint(1, 3 if size == 4 else 5),
            min_sessions=0,
            release_s=times.releases[c],
            deadline_s=None if rng.random() < 0.2 else times.deadlines[c],
        )
        for c in range(size)
    )
    services = tuple(None if rng.random() < 0.1 else s for s in times.services)
    num_rows, free = rng.choice((0, 1, 1, 2)), rng.choice((0, 3, 6, 9, 12, 15, 99, 99))
    memory = tuple(
        MemoryRow(tuple(rng.choice((0, 1, 2, 3, 5)) for _ in cohorts), free + rng.randint(k, 3))
        for k in range(num_rows)
    )
    lanes, groups = rng.choice((1, 2, 2, 3, 4)), rng.choice((1, 2, 3))
    built = option(num_lanes=lanes, num_groups=groups, memory=memory, service_s=services)
    return hall(cohorts=cohorts, options=(built,))
