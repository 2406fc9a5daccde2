"""Brute force on servers: the fewest racks, and classes that may change places."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from optimizer.capacity.exhaustive_servers import ServerSets
from optimizer.capacity.exhaustive_sessions import Steps
from optimizer.capacity.problem import (
    CapacityProblem,
    FailureEvent,
    RackSite,
    ServerClass,
    ServerPool,
)

F = Fraction


def pool(rack_units: int = 1, power_w: int = 700) -> ServerPool:
    return ServerPool("p", 4, power_w, F(2), rack_units, 1, 3)


def servers(index: int, count: int, **changes: Any) -> ServerClass:
    return replace(ServerClass(index, 0, None, 4, count, False, (), 0), **changes)


def fleet(**changes: Any) -> CapacityProblem:
    """Servers that may be bought; what they serve does not matter here."""
    found = CapacityProblem(
        models=("m",),
        cohorts=(),
        options=(),
        pools=(pool(),),
        sites=(),
        classes=(),
        tiers=(),
        events=(),
        goals=("servers",),
        is_purchase=True,
        fixed_w=0,
        budget_w=None,
        period_s=None,
    )
    return replace(found, **changes)


@pytest.mark.parametrize("seed", range(30))
def test_fewest_racks_are_those_of_all_ways_to_deal_servers(seed: int) -> None:
    rng = random.Random(seed)
    pools = tuple(pool(rack_units=rng.randint(1, 4), power_w=rng.randint(1, 9)) for _ in range(2))
    numbers = (rng.randint(0, 3), rng.randint(0, 2))
    rack = RackSite("r", 0, None, 3, rng.randint(3, 8), rng.choice((None, 8, 12, 18)), F(0))
    classes = tuple(servers(j, 3, pool=j, site=0) for j in range(2))
    problem = fleet(pools=pools, classes=classes, sites=(rack,))
    queue = [pools[0]] * numbers[0] + [pools[1]] * numbers[1]
    expected = None
    for dealt in itertools.product(range(3), repeat=len(queue)):
        held = [[p for p, r in zip(queue, dealt, strict=True) if r == k] for k in range(3)]
        if all(
            sum(p.rack_units for p in one) <= rack.units
            and (rack.limit_w is None or sum(p.power_w for p in one) <= rack.limit_w)
            for one in held
        ):
            used = len(set(dealt))
            expected = used if expected is None else min(expected, used)
    found = ServerSets(problem, Steps(10**6)).packed(0, tuple(enumerate(numbers)))
    assert (None if found is None else len(found)) == expected
    if found is not None:
        assert tuple(sum(r.get(j, 0) for r in found) for j in range(2)) == numbers


def test_classes_that_may_change_places_are_tried_once() -> None:
    classes = tuple(servers(j, 1) for j in range(3))
    alike = ServerSets(fleet(classes=classes), Steps(1000))
    assert alike.is_like_last == [False, True, True]
    assert [s.numbers for s in alike.every()] == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]
    losses = tuple(FailureEvent("server", "e", (j,), None, (), F(j // 2, 9)) for j in range(3))
    unlike = ServerSets(fleet(classes=classes, events=losses), Steps(1000))
    assert unlike.is_like_last == [False, True, False]
