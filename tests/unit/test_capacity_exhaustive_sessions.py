"""Brute force on sessions: what lanes, groups and instances can serve, played through by hand.

Unless a test says otherwise an option has one lane and room for everything, and serves a session of
cohort "a" in 3 s, of which there are 6 that must end by 6 s.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from optimizer.capacity.exhaustive_sessions import SessionSets, Steps
from optimizer.capacity.problem import CapacityProblem, CohortDemand, Option
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.tables import MemoryRow

F = Fraction


def cohort(name: str = "a", **changes: Any) -> CohortDemand:
    return replace(CohortDemand(name, 0, 6, 0, 5, F(0), F(6)), **changes)


def option(index: int, *services: int | None, **changes: Any) -> Option:
    served = tuple(None if s is None else F(s) for s in services or (3,))
    footprint = Footprint("p", ParallelConfig(), 1, "none")
    return replace(Option(index, 0, 0, footprint, 1, 1, 1, 1, (), served), **changes)


def given(*cohorts: CohortDemand, options: tuple[Option, ...] = (option(0),)) -> CapacityProblem:
    """The sessions and options of a problem; the rest does not matter here."""
    return CapacityProblem(
        models=("m",),
        cohorts=cohorts or (cohort(),),
        options=options,
        pools=(),
        sites=(),
        classes=(),
        tiers=(),
        events=(),
        goals=("sessions",),
        is_purchase=True,
        fixed_w=0,
        budget_w=None,
        period_s=None,
    )


def reached(problem: CapacityProblem, *instances: int) -> set[tuple[int, ...]]:
    sets = SessionSets(problem, Steps(10**6)).of(instances)
    return {tuple(counts) for counts in zip(*map(list, sets.nonzero()), strict=True)}


def test_a_deadline_that_is_just_met_and_one_that_is_not() -> None:
    assert max(reached(given(), 1)) == (2,)
    assert max(reached(given(cohort(deadline_s=F(599, 100))), 1)) == (1,)
    assert max(reached(given(cohort(release_s=F(1, 100))), 1)) == (1,)
    assert max(reached(given(cohort(deadline_s=None)), 1)) == (6,)


def test_a_release_may_be_waited_for_in_either_order() -> None:
    # "b" comes at 2 s and must end at 5 s: after one "a" (0 to 3 s) it would be late, so it is
    # served from 2 to 5 s, and "a" after it ends at 8 s
    late = cohort("b", release_s=F(2), deadline_s=F(5))
    both = (option(0, 3, 3),)
    assert (1, 1) in reached(given(cohort(deadline_s=F(8)), late, options=both), 1)
    assert (1, 1) not in reached(given(cohort(deadline_s=F(799, 100)), late, options=both), 1)


def test_a_group_holds_all_sessions_of_its_lanes_at_once() -> None:
    # two lanes for 2 sessions each, but memory for 3 only; two groups have memory of their own
    row = MemoryRow((100,), 300)
    full = option(0, num_lanes=2, memory=(row,))
    assert max(reached(given(options=(full,)), 1)) == (3,)
    assert max(reached(given(options=(replace(full, num_groups=2),)), 1)) == (6,)
    less = replace(full, memory=(replace(row, free_bytes=299),))
    assert max(reached(given(options=(less,)), 1)) == (2,)
    assert max(reached(given(options=(replace(full, memory=()),)), 1)) == (4,)


def test_the_fullest_of_several_cards_counts() -> None:
    rows = (MemoryRow((100, 1), 200), MemoryRow((1, 100), 100))
    both = (cohort(num_sessions=3), cohort("b", num_sessions=3))
    one = replace(option(0, 1, 1), memory=rows)
    assert reached(given(*both, options=(one,)), 1) == {(0, 0), (1, 0), (2, 0), (0, 1)}


@pytest.mark.parametrize("seed", range(40))
def test_lanes_serve_what_some_order_of_sessions_allows(seed: int) -> None:
    """Every order of every set of sessions is played through, session by session."""
    rng = random.Random(seed)
    cohorts = tuple(
        cohort(
            f"c{i}",
            num_sessions=rng.randint(1, 2),
            release_s=F(rng.randint(0, 4)),
            deadline_s=rng.choice((None, F(rng.randint(5, 14), rng.choice((1, 2))))),
        )
        for i in range(3)
    )
    one = option(0, *(rng.choice((None, 1, 2, 3)) for _ in cohorts))

    def is_on_time(order: tuple[int, ...]) -> bool:
        end_s = F(0)
        for c in order:
            service_s, deadline_s = one.service_s[c], cohorts[c].deadline_s
            if service_s is None:
                return False
            end_s = max(end_s, cohorts[c].release_s) + service_s
            if deadline_s is not None and end_s > deadline_s:
                return False
        return True

    expected = {
        counts
        for counts in itertools.product(*(range(c.num_sessions + 1) for c in cohorts))
        if any(
            map(
                is_on_time,
                itertools.permutations(c for c, n in enumerate(counts) for _ in range(n)),
            )
        )
    }
    assert reached(given(*cohorts, options=(one,)), 1) == expected


@pytest.mark.parametrize("seed", range(20))
def test_loads_are_what_was_asked_for_and_within_every_lane(seed: int) -> None:
    rng = random.Random(seed)
    cohorts = tuple(
        cohort(f"c{i}", num_sessions=3, release_s=F(i), deadline_s=F(rng.randint(5, 9)))
        for i in range(2)
    )
    rows = (MemoryRow((rng.randint(1, 3), rng.randint(1, 3)), 5),)
    shapes = [(rng.randint(1, 2), rng.randint(1, 2)) for _ in range(2)]
    options = tuple(
        option(o, rng.randint(1, 3), rng.randint(1, 3), num_groups=g, num_lanes=k, memory=rows)
        for o, (g, k) in enumerate(shapes)
    )
    sets = SessionSets(given(*cohorts, options=options), Steps(10**6))
    instances = (1, rng.randint(0, 2))
    for wanted in zip(*map(list, sets.of(instances).nonzero()), strict=True):
        served, groups = [0, 0], [0, 0]
        for load in sets.loads(instances, tuple(map(int, wanted))):
            groups[load.option] += load.count
            held, lanes = [0, 0], 0
            for lane in load.lanes:
                lanes += lane.count
                end_s = F(0)
                for c, number in lane.runs:
                    held[c] += number * lane.count
                    for _ in range(number):
                        service_s = options[load.option].service_s[c]
                        assert service_s is not None
                        end_s = max(end_s, cohorts[c].release_s) + service_s
                        deadline_s = cohorts[c].deadline_s
                        assert deadline_s is not None
                        assert end_s <= deadline_s
            assert lanes <= options[load.option].num_lanes
            assert rows[0].holds(held)
            served = [n + load.count * m for n, m in zip(served, held, strict=True)]
        assert tuple(served) == tuple(wanted)
        most = [n * o.num_groups for n, o in zip(instances, options, strict=True)]
        assert all(g <= m for g, m in zip(groups, most, strict=True))
