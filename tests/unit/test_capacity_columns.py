"""Capacity by columns, part by part: the linear program, rounding, servers, racks.

Unless a case says otherwise servers have 4 cards, draw 800 W and cost 2; an instance has one card
and one lane, on which a session takes 3 s, so that two of the six sessions end by 6 s.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capacity_bounds import cohort, hall, option, pool, random_units, servers
from formulations.capacity_columns import ColumnsOutcome, solve_by_columns
from formulations.capacity_columns_lp import LinearPoint, LoadProgram
from formulations.capacity_columns_plan import (
    Deal,
    cards_by_pool,
)
from formulations.capacity_columns_rounding import Rounding, round_units
from optimizer.capacity.exhaustive_sessions import SessionSets, Steps
from optimizer.capacity.loads import UnitLoad, option_unit
from optimizer.capacity.multipliers import ServerCounts, UnitPricer
from optimizer.capacity.problem import CapacityProblem


def chats(*goals: str, **changes: Any) -> CapacityProblem:
    """Six sessions, and one option that serves two of them a card."""
    return hall(*goals, **{"cohorts": (cohort(),), "options": (option(),)} | changes)


def load(problem: CapacityProblem, k: int, *counts: int) -> UnitLoad:
    """A load of one unit, by the cohorts that it serves."""
    return option_unit(problem, k).load(counts)


def program(problem: CapacityProblem) -> LoadProgram:
    """The linear program with all largest loads of every option."""
    made = LoadProgram(problem, ServerCounts(problem), UnitPricer(problem))
    for k in range(len(problem.options)):
        for counts in option_unit(problem, k).maximal(10_000):
            made.add(k, load(problem, k, *counts))
    return made


def solved(problem: CapacityProblem, seconds: float = 60) -> ColumnsOutcome:
    return solve_by_columns(problem, deadline=time.monotonic() + seconds)


# The linear program ---------------------------------------------------------------------------


def test_the_cheapest_servers_are_a_fraction_of_one() -> None:
    made = program(chats())
    point = made.cheapest()
    assert point is not None
    # 6 sessions / 2 a card = 3 cards = 3/4 server of price 2; a card is worth 2/4, a session 1.5/6
    assert point.value == pytest.approx(1.5)
    assert point.servers.tolist() == pytest.approx([0.75])
    assert point.units.tolist() == pytest.approx([3.0])
    assert (point.cards.tolist(), point.sessions.tolist()) == (
        pytest.approx([0.5]),
        pytest.approx([0.25]),
    )
    assert point.shortage == pytest.approx(0)
    assert made.cards(point) == pytest.approx([3.0])
    # a whole server is worth 2 of the 1.5 that all sessions are
    assert made.worth([1], point) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("number", "idle", "shortage"),
    [
        (1.0, None, 0.0),
        (0.75, None, 0.0),  # 3 cards
        (0.5, None, 0.5),  # 2 + 2 m = 3
        (0.0, None, 0.75),  # a pool without servers lacks parts of one: 4 m = 3
        (0.75, 0.2, 0.2 / 3),  # 3 + 3 m = 3 + 0.2
        (1.0, 0.9, 0.0),
        (0.75, 9.0, 0.1),  # a tenth of the cards at most is idle: 3 + 3 m = 3 + 0.3
    ],
)
def test_what_is_missing_of_given_servers(
    number: float, idle: float | None, shortage: float
) -> None:
    point = program(chats()).within([number], None if idle is None else [idle])
    assert point is not None
    assert point.shortage == pytest.approx(shortage, abs=1e-7)


def test_idle_cards_are_paid_for() -> None:
    made = program(chats())
    # (3 + 2) cards / 4 · 2; a tenth of all 24 at most: (3 + 2.4) / 4 · 2; then as before
    for idle, value in ((2.0, 2.5), (9.0, 2.7), (0.0, 1.5)):
        point = made.cheapest([idle])
        assert point is not None
        assert point.value == pytest.approx(value)


def test_servers_that_there_are_not_are_missing() -> None:
    # 200 sessions need 100 cards of 24: 24 + 24 m = 100
    many = cohort(num_sessions=200, min_sessions=200)
    point = program(chats(cohorts=(many,))).cheapest()
    assert point is not None
    assert point.shortage == pytest.approx(76 / 24)
    assert point.servers.tolist() == pytest.approx([6.0])


def test_loads_are_added_once_and_only_if_anybody_wants_them() -> None:
    others = cohort(name="b", min_sessions=0)
    problem = chats(cohorts=(cohort(), others), options=(option(0, 3, 3),))
    made = LoadProgram(problem, ServerCounts(problem), UnitPricer(problem))
    assert made.add(0, load(problem, 0, 1, 1))
    assert not made.add(0, load(problem, 0, 1, 1))
    assert not made.add(0, load(problem, 0, 0, 2))
    assert made.add(0, load(problem, 0, 2, 0))
    assert [column.load.counts for column in made.columns] == [(1, 1), (2, 0)]


def test_an_instance_over_groups_has_its_cards_shared() -> None:
    """Of 2 groups · 3 lanes on 4 cards each lane takes 2/3 card: three for six sessions."""
    wide = option(0, cards_per_server=4, num_groups=2, num_lanes=3)
    made = program(chats(options=(wide,)))
    assert made.columns[0].num_units == 6
    point = made.cheapest()
    assert point is not None
    assert point.units.tolist() == pytest.approx([3.0])
    assert made.cards(point) == pytest.approx([2.0])
    assert point.value == pytest.approx(1.0)


# Rounding -------------------------------------------------------------------------------------


def rounded(
    problem: CapacityProblem, made: LoadProgram, free: Sequence[int], point: LinearPoint | None
) -> Deal | None:
    """Round a point by the prices of the cheapest servers."""
    guide = made.cheapest()
    assert guide is not None
    assert point is not None
    how = Rounding(guide.cards.tolist(), free, 5.0, 0.0, time.monotonic() + 60, 0)
    return round_units(problem, made.columns, replace(point, sessions=guide.sessions), how)


def check_deal(problem: CapacityProblem, deal: Deal) -> None:
    """Everybody is served, by units that there are, within loads that a unit can take."""
    units: Counter[int] = Counter()
    served = [0] * len(problem.cohorts)
    for k, one, number in deal.uses:
        assert number > 0
        units[k] += number
        own = option_unit(problem, k)
        assert own.load([one.counts[c] for c in own.cohorts]).counts == one.counts
        served = [a + number * n for a, n in zip(served, one.counts, strict=True)]
    for c, demand in enumerate(problem.cohorts):
        assert served[c] >= demand.min_sessions
    for k, number in units.items():
        assert number <= option_unit(problem, k).num_units * deal.instances[k]


def fewest_cards(problem: CapacityProblem) -> int:
    """The fewest cards with which instances serve all minima, by trying all numbers of them."""
    sets = SessionSets(problem, Steps(10**6))
    least = tuple(demand.min_sessions for demand in problem.cohorts)
    sizes = [o.num_cards for o in problem.options]
    tried = itertools.product(range(sum(least) + 1), repeat=len(sizes))
    every = [(sum(n * s for n, s in zip(one, sizes, strict=True)), one) for one in tried]
    return next(cards for cards, one in sorted(every) if sets.of(one)[least])


def test_rounding_serves_few_with_the_fewest_cards() -> None:
    """Of one option everything is decided anew; of several, loads that lose much are left out."""
    num_exact = num_checked = 0
    for seed in range(260):
        problem = random_units(seed)
        if len(problem.pools) > 1 or len(problem.options) > 2:
            continue
        made = program(problem)
        able = {c for column in made.columns for c, n in enumerate(column.load.counts) if n}
        if len(able) < len(problem.cohorts):
            assert made.cheapest() is None
            continue
        deal = rounded(problem, made, [24], made.cheapest())
        assert deal is not None
        check_deal(problem, deal)
        (taken,), least = cards_by_pool(problem, deal), fewest_cards(problem)
        assert least <= taken <= least + max(o.num_cards for o in problem.options), seed
        assert taken == least or len(problem.options) > 1, seed
        num_exact += taken == least
        num_checked += 1
    assert num_checked >= 40
    assert num_exact >= 0.8 * num_checked


def many(drawn: CapacityProblem, size: int) -> CapacityProblem:
    """The same with many sessions and servers."""
    demands = [
        replace(d, num_sessions=size + c, min_sessions=size + c)
        for c, d in enumerate(drawn.cohorts)
    ]
    pools = tuple(replace(one, num_servers=10**4) for one in drawn.pools)
    classes = tuple(replace(one, count=10**4) for one in drawn.classes)
    return replace(drawn, cohorts=tuple(demands), pools=pools, classes=classes)


def test_rounding_serves_many_for_little_more_than_the_fraction() -> None:
    num_checked = 0
    for seed in range(160):
        problem = many(random_units(seed), 50 + seed)
        made = LoadProgram(problem, ServerCounts(problem), UnitPricer(problem))
        cohorts = range(len(problem.cohorts))
        for k, c in itertools.product(range(len(problem.options)), cohorts):
            made.add(k, option_unit(problem, k).priced([int(o == c) for o in cohorts]).load)
        point = made.cheapest()
        if point is None:
            continue
        deal = rounded(problem, made, [4 * 10**4] * len(problem.pools), point)
        assert deal is not None
        check_deal(problem, deal)
        # by prices of cards: less than one instance more for each load that may be used
        worth = sum(n * w for n, w in zip(cards_by_pool(problem, deal), point.cards, strict=True))
        sizes = [point.cards[o.pool] * o.num_cards for o in problem.options]
        assert worth <= point.value + 2 * sum(sizes) + 1e-6, seed
        assert worth >= point.value - 1e-6, seed
        num_checked += 1
    assert num_checked >= 100


@pytest.mark.parametrize("free", [(3, 0), (2, 2), (1, 4), (0, 6), (9, 9)])
@pytest.mark.parametrize("missing", [(0, 0), (1, 0), (0, 1)])
def test_rounding_takes_more_than_is_free_only_where_it_must(
    free: tuple[int, int], missing: tuple[int, int]
) -> None:
    """Of the first pool three cards serve all six; each that is missing takes two of the second.

    There a session takes 6 s instead of 3 s. One card less than that cannot do.
    """
    problem = chats(
        options=(option(0), option(1, 6, pool=1)),
        pools=(pool(num_cards=1, num_servers=9), pool(num_cards=1, num_servers=9, name="q")),
        classes=(servers(0, 9, free_cards=1), servers(1, 9, pool=1, free_cards=1)),
    )
    made = program(problem)
    left = [max(n - m, 0) for n, m in zip(free, missing, strict=True)]
    deal = rounded(problem, made, left, made.within([float(n) for n in left]))
    assert deal is not None
    check_deal(problem, deal)
    taken = cards_by_pool(problem, deal)
    fits = 2 * left[0] + left[1] >= 6
    assert all(n <= most for n, most in zip(taken, left, strict=True)) == fits


def test_rounding_says_where_nothing_can_be_laid() -> None:
    problem = chats()
    made = program(problem)
    for free in (3, 2):
        deal = rounded(problem, made, [free], made.cheapest())
        assert deal is not None
        assert cards_by_pool(problem, deal) == (3,)
    # without a single card of the only pool there is nothing to lay units on
    assert rounded(problem, made, [0], made.cheapest()) is None
    # nor where no load serves the other cohort, which the linear program cannot, either
    pair = chats(cohorts=(cohort(), cohort(name="b")), options=(option(0, 3, 3),))
    half = LoadProgram(pair, ServerCounts(pair), UnitPricer(pair))
    half.add(0, load(pair, 0, 2, 0))
    assert half.cheapest() is None
    both, prices = program(pair).cheapest(), [0.5]
    assert both is not None
    point = replace(both, units=np.array([3.0]))
    how = Rounding(prices, [24], 5.0, 0.0, time.monotonic() + 60, 0)
    assert round_units(pair, half.columns, point, how) is None
