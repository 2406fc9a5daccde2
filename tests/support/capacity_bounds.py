"""Problems by hand and at random for bounds on fleets, and what brute force says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import numpy as np

from optimizer.capacity.building import build_capacity
from optimizer.capacity.exhaustive_sessions import SessionSets, Steps
from optimizer.capacity.generate import tiny_capacity
from optimizer.capacity.loads import option_unit
from optimizer.capacity.problem import (
    CapacityProblem,
    CohortDemand,
    Option,
    RackSite,
    ServerClass,
    ServerPool,
    Tier,
)
from optimizer.capacity.server_counts import COUNTED_GOALS, check_supported
from optimizer.capacity.unit_pricing import GroupRow
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.tables import MemoryRow

F = Fraction


def cohort(**changes: Any) -> CohortDemand:
    """Six sessions that must end within 6 s, all of which must be served."""
    return replace(CohortDemand("a", 0, 6, 6, 5, F(0), F(6)), **changes)


def option(index: int = 0, *services: int | None, **changes: Any) -> Option:
    """Return an option with one card, group and lane; a session takes 3 s unless told."""
    served = tuple(None if s is None else F(s) for s in services or (3,))
    footprint = Footprint("p", ParallelConfig(), 1, "none")
    return replace(Option(index, 0, 0, footprint, 1, 1, 1, 1, (), served), **changes)


def pool(**changes: Any) -> ServerPool:
    """Return a pool of six servers of 4 cards, 800 W and price 2, each of one rack unit."""
    return replace(ServerPool("p", 4, 800, F(2), 1, 1, 6), **changes)


def servers(index: int, count: int = 6, **changes: Any) -> ServerClass:
    """Return a class of free servers of 4 cards without racks."""
    return replace(ServerClass(index, 0, None, 4, count, False, (), 0), **changes)


def rack(count: int, units: int, **changes: Any) -> RackSite:
    """Return racks that are free of charge and feed all that fits into their units."""
    return replace(RackSite("r", 0, None, count, units, None, F(0)), **changes)


def tier(above_endpoints: int, **changes: Any) -> Tier:
    """Return switches of 500 W and price 7."""
    return replace(Tier("leaf", above_endpoints, 500, F(7)), **changes)


def hall(*goals: str, **changes: Any) -> CapacityProblem:
    """Return servers to be bought from one pool; nobody need be served."""
    found = CapacityProblem(
        models=("m",),
        cohorts=(),
        options=(),
        pools=(pool(),),
        sites=(),
        classes=(servers(0),),
        tiers=(),
        events=(),
        goals=goals or ("price_per_hour",),
        is_purchase=True,
        fixed_w=0,
        budget_w=None,
        period_s=None,
    )
    return replace(found, **changes)


def _option(rng: Random, index: int, num_pools: int, demands: Sequence[CohortDemand]) -> Option:
    """Return an option whose times are 1 to 4 s, with rows of memory that bind or do not."""
    services = [rng.choice((None, 1, 2, 3, 4)) for _ in demands]
    if not any(services):
        services[rng.randrange(len(services))] = 2
    memory = tuple(
        MemoryRow(tuple(rng.choice((0, 1, 2, 3, 5)) for _ in demands), rng.randint(0, 12))
        for _ in range(rng.choice((1, 1, 2)))
    )
    return option(
        index,
        *services,
        pool=rng.randrange(num_pools),
        cards_per_server=rng.choice((1, 2, 4)),
        num_servers=rng.choice((1, 1, 2)),
        num_groups=rng.choice((1, 1, 2)),
        num_lanes=rng.choice((1, 2, 3)),
        memory=memory,
    )


@cache
def random_units(seed: int) -> CapacityProblem:
    """Return one to three cohorts and one to four options of one or two pools, at random."""
    rng = Random(seed)
    demands = []
    for c in range(rng.randint(1, 3)):
        number, release = rng.randint(1, 4), rng.choice((0, 0, 0, 1, 2))
        deadline = rng.choice((None, *[F(release + rng.randint(2, 8))] * 4))
        demands.append(
            cohort(
                name=f"c{c}",
                num_sessions=number,
                min_sessions=number,
                release_s=F(release),
                deadline_s=deadline,
            )
        )
    num_pools = rng.choice((1, 2))
    options = tuple(_option(rng, k, num_pools, demands) for k in range(rng.randint(1, 4)))
    pools = tuple(pool(name=f"p{p}") for p in range(num_pools))
    classes = tuple(servers(p, pool=p) for p in range(num_pools))
    return hall(cohorts=tuple(demands), options=options, pools=pools, classes=classes)


def random_prices(rng: Random, number: int, tops: Sequence[int] = (5, 1000, 2**44)) -> list[int]:
    """Return prices up to one of some numbers, some of them 0."""
    most = rng.choice(tops)
    return [rng.choice((0, *[rng.randint(1, most)] * 3)) for _ in range(number)]


#: Brute force by the identity of a problem, which is kept so that it stays alone.
_KEPT: dict[int, tuple[CapacityProblem, SessionSets]] = {}


def instance_value(problem: CapacityProblem, k: int, prices: Sequence[int]) -> int:
    """Return what the best sessions of one instance are worth, by brute force.

    No group has more sessions of a cohort than there are; all of its groups together may.
    """
    if id(problem) not in _KEPT:
        _KEPT[id(problem)] = problem, SessionSets(problem, Steps(10**6))
    group = np.argwhere(_KEPT[id(problem)][1].groups[k][-1]).tolist()
    best = max(sum(p * n for p, n in zip(prices, counts, strict=True)) for counts in group)
    return problem.options[k].num_groups * best


def units_value(problem: CapacityProblem, k: int, prices: Sequence[int]) -> Fraction:
    """Return what the best loads of all units of an instance are worth, exactly.

    Where a group would have room for the sessions there are, its lanes are units of their own, and
    may all have them at once: together they can be worth more than the instance.
    """
    unit = option_unit(problem, k)
    priced = unit.priced(prices)
    assert priced.value == priced.bound
    value, own = unit.num_units * priced.value, instance_value(problem, k, prices)
    assert value == own if unit.num_units == unit.option.num_groups else value >= own
    return value


def row_value(able: Sequence[int], row: GroupRow, prices: Sequence[int]) -> Fraction | float:
    """Return what a row alone lets fractional sessions of a group be worth; inf without a limit."""
    worths: list[Fraction | float] = [
        F(prices[c] * row.room, size) if size else math.inf
        for c, size in zip(able, row.sizes, strict=True)
        if prices[c]
    ]
    return max(worths, default=F(0))


def supported(seeds: range) -> Iterator[tuple[int, CapacityProblem]]:
    """Yield those tiny problems that counts of servers can decide, without their failures.

    Goals that they cannot decide are left out; without any other, price and servers are asked for.
    """
    for seed in seeds:
        problem = build_capacity(tiny_capacity(seed)).problem
        known = COUNTED_GOALS - (set() if problem.is_purchase else {"racks"})
        goals = tuple(goal for goal in problem.goals if goal in known)
        problem = replace(problem, events=(), goals=goals or ("price_per_hour", "servers"))
        try:
            check_supported(problem)
        except TooLargeError:
            continue
        yield seed, problem
