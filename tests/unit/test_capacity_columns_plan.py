"""Capacity by columns: from instances to servers and racks, and what a solve says by hand.

Unless a case says otherwise servers have 4 cards, draw 800 W and cost 2; an instance has one card
and one lane, on which a session takes 3 s, so that two of the six sessions end by 6 s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from capacity_bounds import F, cohort, hall, option, pool, rack, random_units, servers, supported
from capacity_bounds import tier as switches
from formulations.capacity_columns import ColumnsOutcome, _Best, solve_by_columns
from formulations.capacity_columns_plan import (
    Deal,
    _filled,
    _racks,
    build_plan,
    cards_by_pool,
    plan_values,
)
from optimizer.capacity.exhaustive import capacity_optimum
from optimizer.capacity.exhaustive_sessions import SessionSets, Steps
from optimizer.capacity.loads import option_unit
from optimizer.capacity.multipliers import ServerCounts, capacity_bound
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem, FailureEvent
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination

#: Instances of one, two and four cards, and of two whole servers.
SIZES = (
    option(0),
    option(1, cards_per_server=2),
    option(2, cards_per_server=4),
    option(3, cards_per_server=4, num_servers=2),
)


def chats(*goals: str, **changes: Any) -> CapacityProblem:
    """Six sessions, and one option that serves two of them a card."""
    return hall(*goals, **{"cohorts": (cohort(),), "options": (option(),)} | changes)


def solved(problem: CapacityProblem) -> ColumnsOutcome:
    return solve_by_columns(problem, deadline=time.monotonic() + 60)


# Instances on servers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "fits", "fails"),
    [
        (2, {0: 8}, {0: 9}),
        (2, {2: 1, 1: 1, 0: 2}, {2: 1, 1: 1, 0: 3}),  # 4 + 2 + 2 cards
        (2, {1: 4}, {1: 4, 0: 1}),
        (2, {3: 1}, {3: 1, 0: 1}),
        (3, {3: 1, 0: 4}, {3: 1, 2: 1, 0: 1}),
        (2, {2: 2}, {2: 3}),
        (0, {}, {0: 1}),
        (1, {0: 4}, {3: 1}),
    ],
)
def test_what_just_fits_on_servers(
    number: int, fits: Mapping[int, int], fails: Mapping[int, int]
) -> None:
    problem = chats(options=SIZES)
    assert _filled(problem, [number], fits) is not None
    assert _filled(problem, [number], fails) is None


def test_servers_that_are_bought_are_all_listed_and_others_only_in_use() -> None:
    problem = chats(options=SIZES)
    # five cards: a full server, one with the rest, one that is idle
    bought = _filled(problem, [3], {0: 5})
    assert bought == [
        ServerFill(0, 1, ((0, 4),)),
        ServerFill(0, 1, ((0, 1),)),
        ServerFill(0, 1),
    ]
    there = _filled(replace(problem, is_purchase=False), [3], {0: 5})
    assert there == bought[:2]
    spanned = _filled(problem, [3], {3: 1, 1: 1, 0: 1})
    assert spanned == [ServerFill(0, 2, (), 3), ServerFill(0, 1, ((1, 1), (0, 1)))]


def test_occupied_servers_take_parts_first_and_whole_servers_never() -> None:
    classes = (servers(0, 1), servers(1, 1, free_cards=2, is_occupied=True))
    problem = chats(options=SIZES, classes=classes, is_purchase=False)
    assert _filled(problem, [1, 1], {0: 2}) == [ServerFill(1, 1, ((0, 2),))]
    assert _filled(problem, [1, 1], {2: 1, 1: 1}) is not None
    assert _filled(problem, [1, 1], {2: 1, 1: 1, 0: 1}) is None
    # a server with all cards free is whole, though someone else pays for it
    full = replace(classes[1], free_cards=4)
    whole = replace(problem, classes=(classes[0], full))
    assert _filled(whole, [1, 1], {2: 1}) == [ServerFill(0, 1, ((2, 1),))]
    assert _filled(whole, [1, 1], {2: 2}) is None
    assert _filled(whole, [1, 1], {3: 1}) is None


def test_instances_fit_just_where_there_are_cards_for_them() -> None:
    """Sizes divide each other: whole servers go on free ones, all else on whatever is left."""
    rng, outcomes = Random(7), Counter[bool]()
    for _ in range(400):
        classes = (
            servers(0, 9),
            servers(1, 9, free_cards=2, is_occupied=True),
            servers(2, 9),
        )
        problem = chats(options=SIZES, classes=classes, is_purchase=rng.random() < 0.5)
        have = [rng.randint(0, 3) for _ in classes]
        instances = {k: rng.randint(0, most) for k, most in enumerate((6, 3, 2, 1))}
        whole = instances[2] + 2 * instances[3]
        free = have[0] + have[2]
        parts = instances[0] + 2 * instances[1]
        fits = whole <= free and parts <= 4 * (free - whole) + 2 * have[1]
        found = _filled(problem, have, instances)
        assert (found is not None) == fits
        outcomes[fits] += 1
        if found is None:
            continue
        held, used = Counter[int](), Counter[int]()
        for fill in found:
            used[fill.server_class] += fill.count
            room = classes[fill.server_class].free_cards
            assert sum(SIZES[k].cards_per_server * n for k, n in fill.blocks) <= room
            for k, n in fill.blocks:
                held[k] += n * fill.count
            if fill.spanned_by is not None:
                assert room == 4
                assert not fill.blocks
                held[fill.spanned_by] += fill.count
        held[3] //= 2
        assert held == Counter(instances)
        if problem.is_purchase:
            assert [used[c] for c in range(3)] == have
        else:
            assert all(used[c] <= n for c, n in enumerate(have))
            assert all(fill.blocks or fill.spanned_by is not None for fill in found)
    assert min(outcomes[True], outcomes[False]) >= 100


# Servers in racks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "most"),
    [
        (rack(2, 3), 6),
        (rack(3, 1), 3),
        (rack(2, 3, limit_w=1600), 4),  # 800 W each
        (rack(2, 3, limit_w=1599), 2),
        (rack(2, 3, limit_w=799), 0),
    ],
)
def test_servers_just_fit_into_racks(site: Any, most: int) -> None:
    problem = chats(sites=(site,), classes=(servers(0, 99, site=0),))
    found = _racks(problem, [most])
    assert found is not None
    assert sum(one.count * n for one in found for _, n in one.servers) == most
    assert _racks(problem, [most + 1]) is None
    assert _racks(replace(problem, is_purchase=False), [most + 1]) == []


def test_the_last_servers_of_two_pools_share_a_rack() -> None:
    """Racks of 5 units: two of 2 units, or five of 1; what is left of each goes together."""
    problem = chats(
        pools=(pool(rack_units=2), pool(name="q")),
        sites=(rack(2, 5),),
        classes=(servers(0, 99, site=0), servers(1, 99, pool=1, site=0)),
    )
    # 1 · 2 + 3 · 1 = 5 units in one rack, a fourth of q needs another
    assert _racks(problem, [1, 3]) == [RackFill(0, 1, ((0, 1), (1, 3)))]
    assert _racks(problem, [1, 4]) == [
        RackFill(0, 1, ((0, 1), (1, 3))),
        RackFill(0, 1, ((1, 1),)),
    ]
    assert _racks(problem, [3, 3]) == [RackFill(0, 1, ((0, 2),)), RackFill(0, 1, ((0, 1), (1, 3)))]
    assert _racks(problem, [3, 4]) is None


def test_racks_never_hold_more_than_they_can() -> None:
    rng, num_found = Random(11), 0
    for _ in range(300):
        pools = tuple(
            pool(name=f"p{p}", rack_units=rng.randint(1, 3), power_w=rng.choice((300, 700, 1000)))
            for p in range(2)
        )
        site = rack(rng.randint(1, 4), rng.randint(3, 8), limit_w=rng.choice((None, 1000, 2400)))
        classes = tuple(servers(c, 9, pool=c % 2, site=0) for c in range(3))
        problem = chats(pools=pools, sites=(site,), classes=classes)
        have = [rng.randint(0, 4) for _ in classes]
        found = _racks(problem, have)
        if found is None:
            # one rack for each server, or as many as are free of others, would have done
            assert sum(have) > site.count
            continue
        num_found += 1
        placed = Counter[int]()
        for one in found:
            held = [(pools[c % 2], n) for c, n in one.servers]
            assert sum(p.rack_units * n for p, n in held) <= site.units
            if site.limit_w is not None:
                assert sum(p.power_w * n for p, n in held) <= site.limit_w
            for c, n in one.servers:
                placed[c] += one.count * n
        assert [placed[c] for c in range(3)] == have
        assert sum(one.count for one in found) <= site.count
    assert num_found >= 100


# Plans ----------------------------------------------------------------------------------------


def deal(problem: CapacityProblem, number: int) -> Deal:
    """So many instances of one card, each with two sessions."""
    return Deal({0: number}, ((0, option_unit(problem, 0).load((2,)), number),))


@pytest.mark.parametrize(
    ("changes", "fits", "value", "beyond"),
    [
        ({}, 4, 2, 4),  # one server of price 2, a second for the fifth instance
        ({}, 24, 12, None),  # six servers are all that there are
        ({"budget_w": 4000}, 20, 10, None),  # five servers draw 4000 W
        ({"budget_w": 4001, "fixed_w": 1}, 20, 10, None),
        ({"budget_w": 4000, "fixed_w": 1}, 16, 8, None),
        ({"tiers": (switches(4),)}, 4, 2, 2 * 2 + 7),  # eight endpoints need the tier
        ({"pools": (pool(servers_per_group=2),)}, 8, 4, 8),
        ({"pools": (pool(servers_per_group=4),)}, 16, 8, None),  # no second group of six servers
        # racks of two servers cost 1: the third server needs a second rack
        (
            {"sites": (rack(2, 2, price_per_hour=F(1)),), "classes": (servers(0, site=0),)},
            *(8, 2 * 2 + 1, 3 * 2 + 2),
        ),
        ({"sites": (rack(1, 2),), "classes": (servers(0, site=0),)}, 8, 4, None),
    ],
)
def test_plans_take_the_cheapest_servers_that_suffice(
    changes: dict[str, Any], fits: int, value: int, beyond: int | None
) -> None:
    problem = chats(**changes)
    counts = ServerCounts(problem)
    for number, wanted in ((fits, value), (fits + 1, beyond)):
        built = build_plan(problem, counts, deal(problem, number))
        assert (None if built is None else built[1]) == (None if wanted is None else (wanted,))
        if built is None:
            continue
        plan = built[0]
        held = sum(fill.count * n for fill in plan.servers for _, n in fill.blocks)
        assert held == number
        bought = sum(fill.count for fill in plan.servers)
        assert bought % problem.pools[0].servers_per_group == 0
        # of what units could take no more is dealt than there is
        dealt = sum(g.count * lane.count * n for g in plan.loads for lane in g.lanes
                    for _, n in lane.runs)  # fmt: skip
        assert dealt == min(2 * number, 6)


def test_cards_of_a_deal_are_counted_by_pool() -> None:
    problem = chats(options=(*SIZES, option(4, pool=1)), pools=(pool(), pool(name="q")))
    # 5 · 1 + 1 · 2 + 1 · 4 + 2 · (2 · 4) = 27
    assert cards_by_pool(problem, Deal({0: 5, 1: 1, 2: 1, 3: 2, 4: 7}, ())) == (27, 7)


def test_goals_of_a_plan_by_hand() -> None:
    """3 servers of 800 W and price 2, one occupied, 2 racks of price 5, a tier after 15 cards."""
    classes = (servers(0), servers(1, 1, is_occupied=True, free_cards=2))
    every = ("price_per_hour", "servers", "racks", "power", "energy")
    problem = chats(
        *every,
        classes=classes,
        tiers=(switches(15), switches(16)),
        sites=(rack(9, 2, price_per_hour=F(5)),),
        fixed_w=100,
        period_s=F(10),
    )
    plan = CapacityPlan(
        (RackFill(0, 2, ((0, 2),)),), (ServerFill(0, 3), ServerFill(1, 1, ((0, 2),))), ()
    )
    # 12 + 4 cards: the first tier, not the second. 3 · 2 + 2 · 5 + 7; 100 + 4 · 800 + 500
    assert plan_values(problem, plan) == (23, 3, 2, 3800, 38000)


def test_goals_of_plans_are_those_of_brute_force() -> None:
    num_checked = 0
    for seed, problem in supported(range(120)):
        best = capacity_optimum(problem)
        if best is not None:
            assert plan_values(problem, best.plan) == best.values, seed
            num_checked += 1
    assert num_checked >= 30


# Whole solves ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "deadline", "value"),
    [
        (8, 6, 2),  # four cards of one server, two sessions each
        (9, 6, 4),
        (48, 6, 12),  # 24 cards
        (49, 6, None),
        (4, 5, 2),  # one session a card
        (5, 5, 4),
        (1, 3, 2),
        (1, 2, None),  # a session takes 3 s
    ],
)
def test_solves_by_hand(number: int, deadline: int, value: int | None) -> None:
    asked = cohort(num_sessions=number, min_sessions=number, deadline_s=F(deadline))
    problem = chats(cohorts=(asked,))
    found = solved(problem)
    if value is None:
        assert (found.termination, found.plan) == (Termination.INFEASIBLE, None)
        return
    assert found.termination is Termination.OPTIMAL
    assert found.value == found.bound == (value,)
    assert capacity_bound(problem, found.proof) == (value,)


def on_two_servers(seed: int) -> CapacityProblem:
    """Random options on two servers of every pool; over several servers they have all cards."""
    problem = random_units(seed)
    wide = tuple(
        replace(o, cards_per_server=4 if o.num_servers > 1 else o.cards_per_server)
        for o in problem.options
    )
    few = tuple(replace(c, count=2) for c in problem.classes)
    return replace(problem, options=wide, classes=few)


def serves_all(problem: CapacityProblem, plan: CapacityPlan) -> bool:
    """Whether the instances of a plan can serve all minima, by brute force."""
    held = Counter[int]()
    for fill in plan.servers:
        held.update({k: n * fill.count for k, n in fill.blocks})
        if fill.spanned_by is not None:
            held[fill.spanned_by] += fill.count
    instances = tuple(held[o.index] // o.num_servers for o in problem.options)
    least = tuple(one.min_sessions for one in problem.cohorts)
    return bool(SessionSets(problem, Steps(10**6)).of(instances)[least])


def test_random_units_are_solved_as_by_brute_force() -> None:
    ended: Counter[Termination] = Counter()
    for seed in range(150):
        problem = on_two_servers(seed)
        found, best = solved(problem), capacity_optimum(problem)
        ended[found.termination] += 1
        if best is None:
            assert found.plan is None, seed
            assert found.termination is not Termination.OPTIMAL, seed
            continue
        assert found.termination is not Termination.INFEASIBLE, seed
        assert found.value is None or found.value >= best.values, seed
        assert found.bound is None or found.bound <= best.values, seed
        if found.plan is not None:
            assert plan_values(problem, found.plan) == found.value, seed
            assert serves_all(problem, found.plan), seed
        if found.termination is Termination.OPTIMAL:
            assert found.value == best.values, seed
    assert ended[Termination.OPTIMAL] >= 60
    assert ended[Termination.INFEASIBLE] >= 40


def test_what_columns_decline() -> None:
    event = FailureEvent("server", "one", (0,), None, (0,), None)
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"events": (event,)}, "failures"),
        ({"goals": ("sessions",)}, "'sessions'"),
        ({"goals": ("servers", "cards")}, "'cards'"),
        ({"options": (option(cards_per_server=3),)}, "do not fill servers of p"),
        ({"options": ()}, "no option"),
    )
    for changes, text in cases:
        with pytest.raises(TooLargeError, match=text):
            solved(chats(**changes))


def test_an_outcome_that_contradicts_itself_is_refused() -> None:
    plan = CapacityPlan((), (), ())
    two, three = (F(2),), (F(3),)
    assert _Best(plan, two, two).outcome().termination is Termination.OPTIMAL
    assert _Best(plan, three, two).outcome().termination is Termination.FEASIBLE
    assert _Best(plan, three).outcome().termination is Termination.FEASIBLE
    assert _Best(bound=two).outcome() == ColumnsOutcome(Termination.NO_SOLUTION_FOUND, bound=two)
    with pytest.raises(MismatchError, match="below the bound"):
        _Best(plan, two, three).outcome()
    with pytest.raises(MismatchError, match="there is none"):
        _Best(plan, two, two, is_infeasible=True).outcome()
