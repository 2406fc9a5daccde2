"""Multipliers: valid where no instance is worth more than its cards, and what they prove."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from capacity_bounds import (
    cohort,
    hall,
    instance_value,
    option,
    pool,
    random_prices,
    random_units,
    row_value,
    servers,
    supported,
    units_value,
)
from optimizer.capacity.exhaustive import capacity_optimum
from optimizer.capacity.multipliers import (
    CountRow,
    Multipliers,
    ServerCounts,
    UnitPricer,
    capacity_bound,
    check,
    cut_row,
    valid_multipliers,
)
from optimizer.capacity.problem import CapacityProblem
from optimizer.errors import TooLargeError
from optimizer.tables import MemoryRow

F = Fraction

#: A lane serves two sessions of 3 s in time; an instance has three lanes, or one on a single card.
ROOMY = (MemoryRow((1,), 1000),)
SIX = option(0, 3, num_lanes=3, cards_per_server=2, memory=ROOMY)
TWO = option(1, 3, memory=ROOMY)
#: Each of two pools has one of them.
TWO_POOLS = hall(
    cohorts=(cohort(num_sessions=20, min_sessions=13),),
    options=(SIX, replace(TWO, pool=1)),
    pools=(pool(), pool(name="q", price_per_hour=F(1))),
    classes=(servers(0), servers(1, pool=1)),
)


def needed(
    problem: CapacityProblem, pricer: UnitPricer, sessions: Sequence[int]
) -> tuple[int, ...]:
    """Return the least whole prices of cards that are valid.

    Instances are worth what their units are, or what a row of their groups alone allows.
    """
    cards = [0] * len(problem.pools)
    for o, able, rows in zip(problem.options, pricer.able, pricer.rows, strict=True):
        worths = [o.num_groups * row_value(able, row, sessions) for row in rows]
        worth = min([units_value(problem, o.index, sessions), *worths])
        assert worth >= instance_value(problem, o.index, sessions)
        cards[o.pool] = max(cards[o.pool], math.ceil(worth / o.num_cards))
    return tuple(cards)


# Validity -----------------------------------------------------------------------------------------


def test_multipliers_are_valid_up_to_what_instances_are_worth() -> None:
    # an instance of SIX has 6 sessions on 2 cards, one of TWO has 2 sessions on one card
    assert check(TWO_POOLS, Multipliers((1,), (3, 2)))
    assert not check(TWO_POOLS, Multipliers((1,), (2, 2)))
    assert not check(TWO_POOLS, Multipliers((1,), (3, 1)))
    assert check(TWO_POOLS, Multipliers((7,), (21, 14)))
    assert not check(TWO_POOLS, Multipliers((8,), (21, 16)))
    assert check(TWO_POOLS, Multipliers((0,), (0, 0)))
    assert check(TWO_POOLS, Multipliers((7,), (9999, 14)))


@pytest.mark.parametrize(
    ("sessions", "cards"),
    [
        ((), (3, 2)),
        ((1, 0), (3, 2)),
        ((1,), (3,)),
        ((1,), (3, 2, 0)),
        ((-1,), (3, 2)),
        ((0,), (3, -1)),
        ((), ()),
    ],
)
def test_multipliers_of_a_wrong_length_or_below_zero_are_not_valid(
    sessions: tuple[int, ...], cards: tuple[int, ...]
) -> None:
    assert not check(TWO_POOLS, Multipliers(sessions, cards))
    with pytest.raises(ValueError, match="multipliers 1 are not valid"):
        capacity_bound(TWO_POOLS, [Multipliers((1,), (3, 2)), Multipliers(sessions, cards)])


def test_exactly_those_are_valid_whose_cards_are_worth_all_instances() -> None:
    num_refused = 0
    for seed in range(200):
        rng, problem = Random(seed), random_units(seed)
        pricer = UnitPricer(problem)
        sessions = tuple(random_prices(rng, len(problem.cohorts)))
        cards = needed(problem, pricer, sessions)
        assert check(problem, Multipliers(sessions, cards), pricer)
        for p, price in enumerate(cards):
            more = (*cards[:p], price + rng.randint(1, 9), *cards[p + 1 :])
            assert check(problem, Multipliers(sessions, more), pricer)
            if price:
                less = (*cards[:p], price - 1, *cards[p + 1 :])
                assert not check(problem, Multipliers(sessions, less), pricer)
        for c, price in enumerate(sessions):
            raised = (*sessions[:c], price + rng.choice((1, 10**6)), *sessions[c + 1 :])
            is_valid = all(
                a <= b for a, b in zip(needed(problem, pricer, raised), cards, strict=True)
            )
            assert check(problem, Multipliers(raised, cards), pricer) == is_valid
            num_refused += not is_valid
    assert num_refused >= 200


def test_large_units_are_searched_to_the_end() -> None:
    """Too many loads to list: the best is within a share only, unless its bound decides."""
    num_above = 0
    for seed in range(40):
        rng = Random(seed)
        demands = tuple(cohort(num_sessions=rng.randint(18, 24), deadline_s=None) for _ in "abc")
        sizes, room = tuple(rng.randint(5, 60) for _ in demands), rng.randint(200, 900)
        memory = (MemoryRow(sizes, room),)
        problem = hall(cohorts=demands, options=(option(0, 1, 1, 1, memory=memory),))
        # worth about as much as they need
        prices = tuple(int(size * 2**36 * (1 + rng.uniform(0, 1e-3))) for size in sizes)
        counts = np.indices([d.num_sessions + 1 for d in demands]).reshape(3, -1)
        fits = np.array(sizes) @ counts <= room
        best = int((np.array(prices) @ counts)[fits].max())
        assert check(problem, Multipliers(prices, (best,)))
        assert not check(problem, Multipliers(prices, (best - 1,)))
        floats = [float(price) for price in prices]
        found = valid_multipliers(problem, UnitPricer(problem), floats, [0.0])
        assert check(problem, found)
        scale = F(found.sessions[0], prices[0])
        assert best <= found.cards[0] / scale + 1 <= best * (1 + F(1, 10**5)) + 2
        num_above += found.cards[0] > best * scale
    assert num_above >= 1


def test_found_multipliers_are_valid_and_hardly_larger_than_they_must_be() -> None:
    num_raised = 0
    for seed in range(200):
        rng, problem = Random(seed), random_units(seed)
        pricer = UnitPricer(problem)
        prices = [rng.choice((0.0, -1.0, rng.random(), 1e-9, 37.5)) for _ in problem.cohorts]
        given = [rng.choice((0.0, 0.0, -2.0, rng.random(), 10.0)) for _ in problem.pools]
        found = valid_multipliers(problem, pricer, prices, given, max_nodes=rng.choice((1, 20_000)))
        assert check(problem, found, pricer)
        assert check(problem, found)
        top = max(prices)
        if top <= 0:
            assert found.sessions == (0,) * len(prices)
            continue
        scale = F(max(found.sessions)) / F(top)
        assert 2**43 - 1 <= max(found.sessions) <= 2**44
        for whole, price in zip(found.sessions, prices, strict=True):
            assert whole == pytest.approx(max(price, 0.0) * float(scale), abs=1)
        for p, (price, wanted) in enumerate(zip(found.cards, given, strict=True)):
            start = F(max(wanted, 0.0)) * scale
            assert price >= start - 1
            # what all units of an instance are worth, for each card
            mine = [problem.options[o] for o in problem.options_of_pool[p]]
            worths = [units_value(problem, o.index, found.sessions) / o.num_cards for o in mine]
            assert price <= max([start, *worths]) * (1 + F(1, 10**5)) + 2
            num_raised += max(worths, default=0) > start
    assert num_raised >= 50


def test_no_instance_is_worth_more_than_its_cards() -> None:
    for seed in range(100):
        rng, problem = Random(seed), random_units(seed)
        prices = [rng.random() for _ in problem.cohorts]
        found = valid_multipliers(problem, UnitPricer(problem), prices, [0.0] * len(problem.pools))
        for o in problem.options:
            worth = instance_value(problem, o.index, found.sessions)
            assert worth <= found.cards[o.pool] * o.num_cards


# Bounds -------------------------------------------------------------------------------------------


def test_what_multipliers_say_of_servers() -> None:
    # 13 sessions must be served; servers of four cards are worth 4 · 3 and 4 · 2
    counts = ServerCounts(TWO_POOLS)
    assert cut_row(counts, Multipliers((1,), (3, 2))) == CountRow({0: 12, 1: 8}, 13)
    assert cut_row(counts, Multipliers((2,), (0, 5))) == CountRow({1: 20}, 26)
    # servers of q cost 1 each, and two of them are worth 16
    assert capacity_bound(TWO_POOLS, [Multipliers((1,), (3, 2))]) == (2,)
    by_servers = replace(TWO_POOLS, goals=("servers", "price_per_hour"))
    assert capacity_bound(by_servers, [Multipliers((1,), (3, 2))]) == (2, 2)
    assert capacity_bound(by_servers, [Multipliers((1,), (4, 2))]) == (1, 2)  # 16 for one of p
    # all of several rows count: the second says nothing, the third asks for three of q
    looser, none = Multipliers((1,), (99, 99)), Multipliers((0,), (0, 0))
    assert capacity_bound(TWO_POOLS, [looser, none, Multipliers((1,), (3, 2))]) == (2,)
    assert capacity_bound(TWO_POOLS, []) == (0,)


def test_no_servers_are_enough_for_more_than_all_of_them_serve() -> None:
    def of(sessions: int) -> CapacityProblem:
        demand = cohort(num_sessions=999, min_sessions=sessions)
        return replace(TWO_POOLS, cohorts=(demand,))

    # six servers of p and of q: 6 · 12 + 6 · 8 = 120 sessions, for 6 · 2 + 6 · 1
    proof = [Multipliers((1,), (3, 2))]
    assert capacity_bound(of(120), proof) == (18,)
    assert capacity_bound(of(121), proof) is None
    # without any option cards are worth nothing
    nobody = replace(of(1), options=())
    assert check(nobody, Multipliers((1,), (0, 0)))
    assert capacity_bound(nobody, [Multipliers((1,), (0, 0))]) is None


def test_bounds_are_declined_where_servers_alone_decide_nothing() -> None:
    with pytest.raises(TooLargeError, match="goal 'sessions'"):
        capacity_bound(replace(TWO_POOLS, goals=("sessions",)), [])


def proofs(rng: Random, problem: CapacityProblem, pricer: UnitPricer) -> Iterator[Multipliers]:
    """Yield multipliers of random prices, and those of each cohort alone."""
    size, none = len(problem.cohorts), [0.0] * len(problem.pools)
    for c in range(size):
        yield valid_multipliers(problem, pricer, [float(k == c) for k in range(size)], none)
    for _ in range(3):
        prices = [rng.choice((0.0, 1.0, rng.random())) for _ in range(size)]
        cards = [rng.choice((0.0, rng.random())) for _ in problem.pools]
        yield valid_multipliers(problem, pricer, prices, cards)


def test_no_plan_beats_the_bound() -> None:
    num_plans = num_tight = num_above_nothing = num_without = 0
    for seed, problem in supported(range(300)):
        rng, pricer = Random(seed), UnitPricer(problem)
        best = capacity_optimum(problem)
        every = list(proofs(rng, problem, pricer))
        for proof in (every, every[:1], rng.sample(every, 2)):
            bound = capacity_bound(problem, proof)
            short = capacity_bound(problem, proof, max_nodes=1)
            over = capacity_bound(problem, proof, is_over=lambda: True)
            if best is None:
                continue
            assert bound is not None
            assert short is not None
            assert over is not None
            assert over <= short <= bound <= best.values  # goals are made small, in their order
        full = capacity_bound(problem, every)
        if best is None:
            num_without += full is None
            continue
        num_plans += 1
        num_tight += full == best.values
        nothing = capacity_bound(problem, [])
        num_above_nothing += nothing is not None and full is not None and full > nothing
    assert num_plans >= 90
    assert num_tight >= 40
    assert num_above_nothing >= 40
    assert num_without >= 20


def test_bounds_from_invalid_multipliers_are_refused() -> None:
    num_refused = 0
    for _, problem in supported(range(120)):
        pricer = UnitPricer(problem)
        ones = [1.0] * len(problem.cohorts)
        found = valid_multipliers(problem, pricer, ones, [0.0] * len(problem.pools))
        for c in range(len(ones)):
            # at least one session is served by some instance, and it has ten cards at most
            one = [int(k == c) for k in range(len(ones))]
            if not any(instance_value(problem, o.index, one) for o in problem.options):
                continue
            larger = 10 * max(found.cards) + 1
            raised = (*found.sessions[:c], larger, *found.sessions[c + 1 :])
            num_refused += 1
            with pytest.raises(ValueError, match="multipliers 1 are not valid"):
                capacity_bound(problem, [found, replace(found, sessions=raised)])
    assert num_refused >= 60


def test_options_without_rows_and_huge_prices_are_judged_without_an_error() -> None:
    """Nothing limits an instance of four cards but the six sessions there are: 6/4 a card."""
    free = hall(cohorts=(cohort(deadline_s=None),), options=(option(0, 3, cards_per_server=4),))
    assert check(free, Multipliers((1,), (2,)))
    assert not check(free, Multipliers((1,), (1,)))
    assert not check(free, Multipliers((10**400,), (10**401,)))
