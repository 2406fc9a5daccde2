"""Numbers of servers, racks and tiers: the integer program behind them, and every rule of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from capacity_bounds import hall, option, pool, rack, servers, tier
from optimizer.capacity.count_search import CountProgram, CountRow, Fewest
from optimizer.capacity.exhaustive_servers import ServerSets
from optimizer.capacity.exhaustive_sessions import Steps
from optimizer.capacity.problem import CapacityProblem, FailureEvent
from optimizer.capacity.server_counts import COUNTED_GOALS, ServerCounts, check_supported
from optimizer.errors import TooLargeError

F = Fraction
MANY = 20_000


def never() -> bool:
    return False


# The integer program ------------------------------------------------------------------------------


def random_program(rng: Random) -> CountProgram:
    """Return a box of at most 3 125 points and up to four rows; every third has huge sizes."""
    size = rng.randint(1, 5)
    lower = tuple(rng.choice((0, 0, 0, 1, 2)) for _ in range(size))
    upper = tuple(n + rng.randint(0, 4) for n in lower)
    unit, noise = rng.choice(((1, 0), (1, 0), (10**17, 1)))
    rows = []
    for _ in range(rng.randint(0, 4)):
        terms = {v: unit * rng.randint(-4, 9) for v in range(size) if rng.random() < 0.8}
        terms = {v: term + rng.randint(-noise, noise) for v, term in terms.items()}
        point = [rng.randint(a, b) for a, b in zip(lower, upper, strict=True)]
        # what some point of the box reaches exactly, or misses by one
        reached = sum(term * point[v] for v, term in terms.items())
        rows.append(CountRow(terms, reached + rng.choice((-1, 0, 0, 1))))
    costs = tuple(rng.choice((0, 1, 2, 3, 7, unit)) for _ in range(size))
    return CountProgram(lower, upper, costs, tuple(rows))


def by_brute_force(
    program: CountProgram, excluded: Sequence[tuple[int, ...]] = ()
) -> dict[tuple[int, ...], int]:
    """Return the sums at all points of the box that keep all rows."""
    box = itertools.product(
        *(range(a, b + 1) for a, b in zip(program.lower, program.upper, strict=True))
    )
    return {
        point: sum(cost * n for cost, n in zip(program.costs, point, strict=True))
        for point in box
        if point not in excluded
        and all(sum(t * point[v] for v, t in r.terms.items()) >= r.least for r in program.rows)
    }


def test_the_fewest_are_those_of_all_points_of_the_box() -> None:
    rng, outcomes = Random(1), {True: 0, False: 0}
    for _ in range(300):
        program = random_program(rng)
        sums = by_brute_force(program)
        found = program.fewest(MANY, never)
        outcomes[bool(sums)] += 1
        if not sums:
            assert found == Fewest(None)
            continue
        assert found.bound == found.total == min(sums.values())
        assert found.point is not None
        assert sums[found.point] == found.total
    assert min(outcomes.values()) >= 30


def test_points_that_are_excluded_do_not_count() -> None:
    rng, num_emptied = Random(2), 0
    for _ in range(200):
        program = random_program(rng)
        sums = by_brute_force(program)
        # the best ones, so that it matters
        best = sorted(sums, key=lambda point: sums[point])
        excluded = best[: rng.choice((1, 2, 5, 20))]
        left = by_brute_force(program, excluded)
        found = program.fewest(MANY, never, excluded)
        num_emptied += bool(sums) and not left
        assert found.bound == found.total == min(left.values(), default=None)
        assert (found.point in left) == bool(left)
    assert num_emptied >= 5


@pytest.mark.parametrize("max_nodes", [0, 1, 2, 5])
def test_a_search_cut_short_still_has_a_bound(max_nodes: int) -> None:
    rng, num_open = Random(3), 0
    for _ in range(200):
        program = random_program(rng)
        sums = by_brute_force(program)
        found = program.fewest(max_nodes, never)
        if not sums:
            assert found.total is None
            continue
        assert found.bound is not None
        assert found.bound <= min(sums.values())
        num_open += found.bound != found.total
        if found.point is not None:
            assert sums[found.point] == found.total
    assert num_open >= (5 if max_nodes < 2 else 0)


def test_a_search_stops_once_it_is_over() -> None:
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    # an even number is never 13: without an end all pairs would be looked at
    rows = (CountRow({0: 2, 1: 4}, 13), CountRow({0: -2, 1: -4}, -13))
    program = CountProgram((0, 0), (6, 6), (1, 1), rows)
    assert program.fewest(MANY, never) == Fewest(None)
    found = program.fewest(MANY, is_over)
    assert (asked, found.total, found.bound) == (3, None, 4)  # 13 / 4, rounded up


def test_a_box_without_points_and_one_of_a_single_point() -> None:
    assert CountProgram((1, 2), (1, 1), (1, 1), ()).fewest(MANY, never) == Fewest(None)
    single = CountProgram((1, 2), (1, 2), (3, 1), ())
    assert single.fewest(MANY, never) == Fewest(5, 5, (1, 2))
    assert single.fewest(MANY, never, {(1, 2)}) == Fewest(None)


# Counts of servers --------------------------------------------------------------------------------


def fewest(
    problem: CapacityProblem, cards: int
) -> tuple[tuple[Fraction, ...], tuple[int, ...]] | None:
    """Return the goals, and the servers by class, with so many free cards at least."""
    counts = ServerCounts(problem)
    row = CountRow({v: free for v, (_, free) in counts.free_cards.items()}, cards)
    found = counts.fewest([row], MANY, never)
    if found.bound is None or found.total is None or found.point is None:
        assert found == Fewest(None)
        return None
    assert found.bound == found.total
    values = counts.goal_values(found.total)
    assert values == counts.point_values(found.point)
    return values, counts.servers(found.point)


def values(problem: CapacityProblem, cards: int) -> list[int | Fraction] | None:
    found = fewest(problem, cards)
    return None if found is None else list(found[0])


def test_servers_are_bought_in_whole_groups() -> None:
    assert fewest(hall(), 8) == ((4,), (2,))
    assert fewest(hall(), 9) == ((6,), (3,))
    twos = hall(pools=(pool(servers_per_group=2, num_servers=5),))
    assert fewest(twos, 8) == ((4,), (2,))
    assert fewest(twos, 9) == ((8,), (4,))
    # a third group would be of six servers, and there are five
    assert fewest(twos, 16) == ((8,), (4,))
    assert fewest(twos, 17) is None
    assert ServerCounts(twos).most_servers() == (4,)


def test_a_group_may_stand_on_several_sites() -> None:
    sites = (rack(1, 1, price_per_hour=F(1)), rack(2, 1, price_per_hour=F(3)))
    classes = (servers(0, 1, site=0), servers(1, 2, site=1))
    twos = hall(pools=(pool(servers_per_group=2),), sites=sites, classes=classes)
    assert fewest(twos, 4) == ((2 * 2 + 1 + 3,), (1, 1))
    assert fewest(twos, 9) is None  # three servers fit, which is no whole number of groups
    ones = replace(twos, pools=(pool(),))
    assert fewest(ones, 9) == ((3 * 2 + 1 + 2 * 3,), (1, 2))
    assert ServerCounts(ones).server_values() == (3, 5)  # servers of price 2, one in a rack


@pytest.mark.parametrize(
    ("units", "limit_w", "each"),
    # servers have two units and 800 W
    [(4, None, 2), (5, None, 2), (6, None, 3), (9, 1600, 2), (9, 1599, 1), (2, 9999, 1)],
)
def test_racks_hold_whole_servers(units: int, limit_w: int | None, each: int) -> None:
    priced = rack(2, units, limit_w=limit_w, price_per_hour=F(5))
    problem = hall("racks", "price_per_hour", pools=(pool(rack_units=2),))
    problem = replace(problem, sites=(priced,), classes=(servers(0, site=0),))
    assert values(problem, 4 * each) == [1, 2 * each + 5]
    assert values(problem, 4 * each + 1) == [2, 2 * (each + 1) + 10]
    assert values(problem, 8 * each) == [2, 4 * each + 10]
    assert fewest(problem, 8 * each + 1) is None
    assert ServerCounts(problem).server_values() == (F(1, each),)


def test_pools_share_the_units_and_watts_of_racks() -> None:
    # a rack of 5 units holds two servers of p, or one of q and then one of p
    pools = (pool(rack_units=2, num_servers=1), pool(name="q", rack_units=3, num_servers=1))
    classes = (servers(0, 1, site=0), servers(1, 1, site=0, pool=1))
    goals = {"goals": ("racks",), "pools": pools, "classes": classes}
    assert values(hall(sites=(rack(2, 5),), **goals), 8) == [1]
    assert values(hall(sites=(rack(2, 4),), **goals), 8) == [2]
    assert values(hall(sites=(rack(2, 5, limit_w=1600),), **goals), 8) == [1]
    assert values(hall(sites=(rack(2, 5, limit_w=1599),), **goals), 8) == [2]
    assert values(hall(sites=(rack(1, 5, limit_w=1599),), **goals), 8) is None


def test_a_tier_is_needed_above_its_threshold() -> None:
    problem = hall("price_per_hour", "power", tiers=(tier(8),))
    assert values(problem, 8) == [4, 1600]  # 8 cards hang on the network, which is not above 8
    assert values(problem, 9) == [6 + 7, 2400 + 500]
    below = hall("price_per_hour", "power", tiers=(tier(7), tier(8, name="spine", power_w=60)))
    assert values(below, 8) == [4 + 7, 1600 + 500]
    assert values(below, 9) == [6 + 7 + 7, 2400 + 560]
    # it would never be needed: all six servers have 24 cards
    assert values(hall(tiers=(tier(24),)), 24) == [12]
    assert values(hall(tiers=(tier(23),)), 24) == [19]


@pytest.mark.parametrize(("above", "watts"), [(12, 3 * 800 + 100), (11, 3 * 800 + 500 + 100)])
def test_the_power_budget_is_met_exactly_or_missed_by_a_watt(above: int, watts: int) -> None:
    problem = hall("power", fixed_w=100, tiers=(tier(above),), budget_w=watts)
    assert values(problem, 12) == [watts]
    assert values(replace(problem, budget_w=watts - 1), 12) is None
    # two servers need neither
    assert values(replace(problem, budget_w=watts - 1), 8) == [1700]


def test_goals_count_in_their_order() -> None:
    # 8 cards: two of p for 10, or one of q for 11; a server of p draws 800 W, one of q 1601 W
    pools = (
        pool(price_per_hour=F(5)),
        pool(name="q", num_cards=8, price_per_hour=F(11), power_w=1601),
    )
    classes = (servers(0), servers(1, pool=1, free_cards=8))
    both = hall(pools=pools, classes=classes, fixed_w=9, period_s=F(7, 2))
    assert fewest(replace(both, goals=("price_per_hour", "servers")), 8) == ((10, 2), (2, 0))
    assert fewest(replace(both, goals=("servers", "price_per_hour")), 8) == ((1, 11), (0, 1))
    assert fewest(replace(both, goals=("power", "servers")), 8) == ((1609, 2), (2, 0))
    energy = F(7, 2) * (1601 + 9)
    assert fewest(replace(both, goals=("servers", "energy")), 8) == ((1, energy), (0, 1))
    # at equal prices the next goal decides
    equal = replace(both, pools=(pool(price_per_hour=F(11, 2)), pools[1]))
    assert fewest(replace(equal, goals=("price_per_hour", "power")), 8) == ((11, 1609), (2, 0))
    assert fewest(replace(equal, goals=("price_per_hour", "servers")), 8) == ((11, 1), (0, 1))


def test_existing_servers_that_are_occupied_are_on_anyway() -> None:
    # two servers with 2 free cards, one full; three that are empty
    classes = (
        servers(0, 2, free_cards=2, is_occupied=True),
        servers(1, 1, free_cards=0, is_occupied=True),
        servers(2, 3),
    )
    goals = ("price_per_hour", "servers", "power")
    problem = hall(*goals, classes=classes, is_purchase=False, fixed_w=50)
    assert (problem.occupied_w, problem.occupied_endpoints) == (2400, 12)
    assert values(problem, 0) == [0, 0, 2450]
    assert values(problem, 4) == [0, 0, 2450]
    assert fewest(problem, 7) == ((2, 1, 3250), (2, 0, 1))
    assert fewest(problem, 16) == ((6, 3, 4850), (2, 0, 3))
    assert fewest(problem, 17) is None
    assert ServerCounts(problem).server_values() == (0, 0, 2)
    # their 12 cards hang on the network whatever is used
    assert values(replace(problem, tiers=(tier(12),)), 4) == [0, 0, 2450]
    assert values(replace(problem, tiers=(tier(12),)), 5) == [2 + 7, 1, 3750]
    assert values(replace(problem, tiers=(tier(11),)), 0) == [7, 0, 2950]
    assert values(replace(problem, tiers=(tier(11),), budget_w=3750), 5) == [9, 1, 3750]
    assert values(replace(problem, tiers=(tier(11),), budget_w=3749), 5) is None
    assert values(replace(problem, budget_w=2449), 0) is None


def test_points_that_were_tried_are_left_out() -> None:
    counts = ServerCounts(hall("servers"))
    first = counts.fewest([], MANY, never)
    assert (first.total, first.point) == (0, (0,))
    second = counts.fewest([], MANY, never, [(0,), (1,)])
    assert (second.total, second.point) == (2, (2,))
    # racks that cost nothing are all there: fewer of them make no further points
    problem = hall("servers", sites=(rack(2, 3),), classes=(servers(0, site=0),))
    for excluded, total in (([], 0), ([(0, 2)], 1), ([(0, 2), (1, 2)], 2)):
        found = ServerCounts(problem).fewest([], MANY, never, excluded)
        assert (found.total, found.point) == (total, (total, 2))


def random_hall(rng: Random) -> CapacityProblem:
    """Return two pools without racks, to be bought or partly occupied."""
    is_purchase = rng.random() < 0.5
    pools, classes = [], list[Any]()
    for p in range(2):
        cards, number = rng.choice((1, 2, 4)), rng.randint(1, 4)
        price = rng.choice((F(2), F(1, 3), F("98.32"), F(0)))
        size = rng.choice((1, 2)) if is_purchase else 1
        pools.append(pool(name=f"p{p}", num_cards=cards, price_per_hour=price))
        watts = rng.choice((0, 300, 1001))
        pools[p] = replace(pools[p], num_servers=number, servers_per_group=size, power_w=watts)
        taken = 0 if is_purchase else rng.randint(0, number)
        for count, free in ((number - taken, cards), (taken, rng.randint(0, cards - 1))):
            if count:
                kinds = {"pool": p, "free_cards": free, "is_occupied": free < cards}
                classes.append(servers(len(classes), count, **kinds))
    tiers = tuple(
        tier(rng.randint(0, 20), power_w=rng.choice((0, 500)), price_per_hour=F(rng.randint(0, 3)))
        for _ in range(rng.choice((0, 1, 2)))
    )
    goals = sorted(COUNTED_GOALS - {"racks"})
    return hall(
        *rng.sample(goals, rng.randint(1, 4)),
        pools=tuple(pools),
        classes=tuple(classes),
        tiers=tiers,
        is_purchase=is_purchase,
        fixed_w=rng.choice((0, 250)),
        budget_w=rng.choice((None, rng.randint(250, 6000))),
        period_s=F(7, 2),
    )


def test_counts_are_those_of_all_numbers_of_servers() -> None:
    rng, outcomes = Random(4), {True: 0, False: 0}
    for _ in range(150):
        problem = random_hall(rng)
        every = {
            s.numbers: tuple(s.values[goal] for goal in problem.goals)
            for s in ServerSets(problem, Steps(10**5)).every()
        }
        cards = rng.randint(0, 16)
        enough = {
            numbers: found
            for numbers, found in every.items()
            if sum(c.free_cards * n for c, n in zip(problem.classes, numbers, strict=True)) >= cards
        }
        found = fewest(problem, cards)
        outcomes[bool(enough)] += 1
        assert (None if found is None else found[0]) == min(enough.values(), default=None)
        if found is not None:
            assert enough[found[1]] == found[0]
    assert min(outcomes.values()) >= 30


# What is not supported ----------------------------------------------------------------------------

EVENT = FailureEvent("server", "e", (0,), None, (), None)
NUMBERED = rack(1, 9, number=0)


def parts(*sizes: int) -> dict[str, Any]:
    """Return options of so many cards of one server."""
    return {"options": tuple(option(k, cards_per_server=n) for k, n in enumerate(sizes))}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"events": (EVENT,)}, "must survive failures"),
        ({"goals": ("servers", "cards")}, "goal 'cards'"),
        ({"goals": ("price_per_hour", "sessions")}, "goal 'sessions'"),
        ({"goals": ("racks",), "is_purchase": False}, "goal 'racks'"),
        ({"sites": (NUMBERED,), "is_purchase": False}, "racks that are told apart"),
        (parts(3), r"instances of \[3\] cards do not fill servers of p"),
        (parts(4, 3, 1), r"instances of \[1, 3\] cards"),
        ({"pools": (pool(num_cards=12),), "classes": (servers(0, free_cards=12),)} | parts(2, 3),
         r"\[2, 3\] cards"),
        ({"classes": (servers(0, 1), servers(1, 1, free_cards=3))} | parts(2), r"\[2\] cards"),
        ({"classes": (servers(0, 1), servers(1, 1, cell=1))}, "servers of p fail apart"),
    ],
)  # fmt: skip
def test_what_counts_cannot_decide_is_declined(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TooLargeError, match=words):
        check_supported(hall(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"goals": tuple(sorted(COUNTED_GOALS))},
        {"goals": ("servers",), "sites": (rack(1, 9),), "is_purchase": False},
        {"sites": (NUMBERED,)},
        parts(1, 2, 4),
        {"classes": (servers(0, 1), servers(1, 1, free_cards=2))} | parts(4, 2),
        # a server with three free cards only holds nothing of four
        {"classes": (servers(0, 1), servers(1, 1, free_cards=3))} | parts(4, 1),
        {"pools": (pool(), pool()), "classes": (servers(0), servers(1, pool=1, cell=1))},
    ],
)
def test_what_counts_can_decide_is_not_declined(changes: dict[str, Any]) -> None:
    check_supported(hall(**changes))
