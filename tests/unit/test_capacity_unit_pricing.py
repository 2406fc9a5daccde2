"""Bounds on what units of options are worth: none is below the best load, found exactly."""

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
    random_prices,
    random_units,
    row_value,
    units_value,
)
from optimizer.capacity.loads import option_unit
from optimizer.capacity.problem import CapacityProblem
from optimizer.capacity.unit_pricing import (
    GroupRow,
    UnitPricer,
    group_rows,
    is_bounded_alone,
    served_cohorts,
    unit_bound,
)
from optimizer.tables import MemoryRow

F = Fraction

#: What a bound in floating point may be too small by, as a share.
ROUNDED = F(1, 10**9)


def cases(
    number: int, salt: int = 0, tops: Sequence[int] = (5, 1000, 2**44)
) -> Iterator[tuple[Random, CapacityProblem, list[int]]]:
    """Yield random problems, each with prices of sessions."""
    for seed in range(number):
        rng = Random(f"{salt}-{seed}")
        problem = random_units(seed)
        yield rng, problem, random_prices(rng, len(problem.cohorts), tops)


def floats(prices: list[int]) -> np.ndarray:
    return np.array(prices, dtype=np.float64)


# By hand ------------------------------------------------------------------------------------------

#: Cohorts a, b and c; the option does not serve b. Two groups of three lanes.
TIMED = (
    cohort(release_s=F(1), deadline_s=F(6)),
    cohort(name="b", deadline_s=F(99)),
    cohort(name="c", release_s=F(2), deadline_s=F(17, 2)),
)
SERVES = option(0, 3, None, 2, num_groups=2, num_lanes=3, memory=(MemoryRow((4, 9, 5), 12),))


def test_rows_of_a_group_are_its_memory_and_the_time_of_its_lanes() -> None:
    problem = hall(cohorts=TIMED, options=(SERVES,))
    assert served_cohorts(SERVES) == (0, 2)
    # from 1 s to 8.5 s are 15 halves of a second on each of three lanes; sessions take 6 and 4
    timed = GroupRow((6, 4), 45)
    assert list(group_rows(problem, SERVES)) == [GroupRow((4, 5), 12), timed]
    # memory that is missing is no room
    short = replace(SERVES, memory=(MemoryRow((4, 9, 5), -1), MemoryRow((1, 1, 1), 7)))
    assert list(group_rows(problem, short)) == [GroupRow((4, 5), 0), GroupRow((1, 1), 7), timed]
    # who may end at any time has no row of time
    late = (TIMED[0], TIMED[1], replace(TIMED[2], deadline_s=None))
    assert list(group_rows(hall(cohorts=late), SERVES)) == [GroupRow((4, 5), 12)]
    # nor does one that serves nobody
    idle = replace(SERVES, service_s=(None, None, None))
    assert list(group_rows(problem, idle)) == [GroupRow((), 12)]


def test_a_row_alone_bounds_what_an_instance_is_worth() -> None:
    # a group takes 10 / 4 sessions of a, worth 3 each: 7.5, and 10 / 5 of c, worth 4 each: 8;
    # two groups are worth 16 at most
    row, able = GroupRow((4, 5), 10), (0, 2)
    two = replace(SERVES, cards_per_server=1)
    assert is_bounded_alone(two, able, row, (3, 999, 4), 16)
    assert not is_bounded_alone(two, able, row, (3, 999, 4), 15)
    # with a worth 4 each: 20
    assert is_bounded_alone(two, able, row, (4, 999, 4), 20)
    assert not is_bounded_alone(two, able, row, (4, 999, 4), 19)
    # eight cards together are worth as much
    wide = replace(SERVES, cards_per_server=4, num_servers=2)
    assert is_bounded_alone(wide, able, row, (4, 0, 4), 3)
    assert not is_bounded_alone(wide, able, row, (4, 0, 4), 2)
    # sessions that need nothing of the row are not bounded by it, unless they are worth nothing
    free = GroupRow((4, 0), 10)
    assert not is_bounded_alone(two, able, free, (3, 0, 1), 10**9)
    assert is_bounded_alone(two, able, free, (3, 0, 0), 15)


def test_bounds_of_a_unit_by_hand() -> None:
    # ten sessions of a with 5 s each on two lanes of 24 s: 48 s, 9.6 sessions, of which 2 · 4 fit
    one = cohort(num_sessions=10, deadline_s=F(24))
    held = option(0, 5, num_lanes=2, memory=(MemoryRow((7,), 63),))
    problem = hall(cohorts=(one,), options=(held,))
    unit = option_unit(problem, 0)
    # 4 sessions a lane in 7 of 63 bytes each always fit, so that a unit is a lane
    assert (unit.is_lane, unit.num_units, unit.limits) == (True, 2, (4,))
    bounds, prices = UnitPricer(problem).linear_bounds(np.array([0]), floats([3]))
    assert bounds[0] == pytest.approx(12)  # 3 · 4
    assert len(prices[0]) == len(unit.rows)
    # 6 sessions of memory: less than the eight that end in time; the group is a unit
    tight = replace(held, memory=(MemoryRow((7,), 45),))
    problem = hall(cohorts=(one,), options=(tight,))
    unit = option_unit(problem, 0)
    assert (unit.is_lane, unit.num_units, unit.limits) == (False, 1, (8,))
    bounds, _ = UnitPricer(problem).linear_bounds(np.array([0]), floats([3]))
    assert bounds[0] == pytest.approx(3 * 45 / 7)
    memory = unit.rows[0]
    assert (memory.sizes, memory.most) == ((7,), 45)
    others = [0.0] * (len(unit.rows) - 1)
    # memory for 135/7 in all is worth 3 a session; for nothing, all eight are worth 3
    n, bits = unit_bound(unit, [3], [135 / 7, *others])
    assert F(135, 7) <= F(n, 2**bits) <= F(135, 7) + F(1, 10**6)
    assert (
        unit_bound(unit, [3], [0.0, *others])[0] == 24 << unit_bound(unit, [3], [0.0, *others])[1]
    )
    # memory for 60: nothing is left of a session's worth
    n, bits = unit_bound(unit, [3], [60.0, *others])
    assert F(60) - F(1, 10**6) <= F(n, 2**bits) <= 60
    # negative prices count as none
    assert F(*_ratio(unit_bound(unit, [3], [-5.0, *others]))) == 24


def _ratio(bound: tuple[int, int]) -> tuple[int, int]:
    return bound[0], 2 ** bound[1]


def test_promising_options_come_by_what_they_are_worth_for_their_cards() -> None:
    # four sessions end on a lane in time: an instance of 1, 2, 3 lanes is worth 4, 8, 12
    one = cohort(num_sessions=20, deadline_s=F(12))
    roomy = (MemoryRow((1,), 1000),)
    options = tuple(option(k, 3, num_lanes=k + 1, memory=roomy) for k in range(3))
    problem = hall(cohorts=(one,), options=options)
    pricer = UnitPricer(problem)

    def promising(card: float, share: float) -> tuple[list[int], list[float]]:
        found, ratios = pricer.promising(floats([1]), np.array([card]), share)
        return found.tolist(), ratios.tolist()

    assert promising(5.0, 0.0) == ([2, 1], [pytest.approx(12 / 5), pytest.approx(8 / 5)])
    assert promising(5.0, 0.7) == ([2], [pytest.approx(12 / 5)])
    assert promising(13.0, 0.0) == ([], [])
    assert promising(3.9, 0.0)[0] == [2, 1, 0]
    # cards of no price are beyond any share
    assert promising(0.0, 10.0)[0] == [2, 1, 0]
    # sessions that are worth nothing are not worth any cards
    assert pricer.promising(floats([0]), np.array([0.0]), 0.0)[0].size == 0


# At random ----------------------------------------------------------------------------------------


def test_rows_alone_bound_instances() -> None:
    answers = {True: 0, False: 0}
    for rng, problem, prices in cases(150):
        pricer = UnitPricer(problem)
        for k, (one, able, rows) in enumerate(
            zip(problem.options, pricer.able, pricer.rows, strict=True)
        ):
            value = instance_value(problem, k, prices)
            # about what it is worth, or some more
            card = math.ceil(F(value, one.num_cards) * F(rng.choice((8, 9, 10, 12, 20)), 10))
            for row in rows:
                is_bounded = is_bounded_alone(one, able, row, prices, card)
                answers[is_bounded] += 1
                if is_bounded:
                    assert value <= card * one.num_cards
    assert min(answers.values()) >= 100


def test_bounds_of_units_hold_whatever_the_prices_of_rows() -> None:
    num_tight = 0
    for rng, problem, prices in cases(150, 1):
        pricer = UnitPricer(problem)
        every = np.arange(len(problem.options))
        about, row_prices = pricer.linear_bounds(every, floats(prices))
        for k in every.tolist():
            unit, rows = pricer.unit(k), row_prices[k].tolist()
            value = units_value(problem, k, prices) / unit.num_units
            assert F(about[k]) >= value * (1 - ROUNDED)
            exact = F(*_ratio(unit_bound(unit, prices, rows)))
            assert exact >= value
            # the exact bound with the same prices is as good as the one in floating point; rows
            # without any room have no price
            if all(row.most for row in unit.rows):
                assert exact == pytest.approx(about[k], rel=1e-6, abs=1e-6)
            num_tight += exact < value * F(1001, 1000)
            for _ in range(5):
                scale = rng.choice((0.0, 0.5, 1.0, 1.0001, 3.0))
                moved = [max(y * scale + rng.uniform(-1, 1) * max(prices), -1.0) for y in rows]
                assert F(*_ratio(unit_bound(unit, prices, moved))) >= value
    assert num_tight >= 50


def test_bounds_of_many_units_are_those_of_each_alone() -> None:
    for _, problem, prices in cases(100, 2):
        pricer = UnitPricer(problem)
        every = np.arange(len(problem.options))
        together, _ = pricer.linear_bounds(every[::-1], floats(prices))
        alone = [pricer.linear_bounds(every[k : k + 1], floats(prices))[0][0] for k in every]
        assert together[::-1].tolist() == pytest.approx(alone)


def test_the_tightest_row_bounds_no_worse_than_any_other() -> None:
    for _, problem, prices in cases(100, 3):
        pricer = UnitPricer(problem)
        tightest = pricer.tightest_rows(floats(prices)).tolist()
        for able, rows, r in zip(pricer.able, pricer.rows, tightest, strict=True):
            worths = [float(row_value(able, row, prices)) for row in rows]
            assert worths[r] == pytest.approx(min(worths))


@pytest.mark.parametrize("share", [0.0, 1e-7, 0.02, 0.5])
def test_no_option_that_is_worth_more_than_its_cards_is_left_out(share: float) -> None:
    num_left_out = num_found = 0
    for rng, problem, prices in cases(150, 4, (5, 1000)):
        values = [instance_value(problem, o.index, prices) for o in problem.options]
        cards = [float(rng.choice((0, 1, 2, 5))) * max(prices) / 2 for _ in problem.pools]
        if rng.random() < 0.5:  # one of them is worth just as much as its cards, or a bit more
            one = rng.choice(problem.options)
            factor = rng.choice((1.0, 1 - 1e-6, 1 / (1 + share) - 1e-6))
            cards[one.pool] = values[one.index] / one.num_cards * factor
        found, ratios = UnitPricer(problem).promising(floats(prices), np.array(cards), share)
        for o, value in zip(problem.options, values, strict=True):
            own = F(cards[o.pool]) * o.num_cards
            if value > own * (1 + F(share)) * (1 + ROUNDED):
                assert o.index in found
            num_left_out += o.index not in found
        for k, ratio in zip(found.tolist(), ratios.tolist(), strict=True):
            o = problem.options[k]
            own = F(cards[o.pool]) * o.num_cards
            assert F(ratio) * own >= values[k] * (1 - ROUNDED) or not own
            num_found += 1
        assert ratios.tolist() == sorted(ratios.tolist(), reverse=True)
        assert all(ratio > 1 + share for ratio in ratios.tolist())
    assert min(num_left_out, num_found) >= 50


def test_priced_loads_are_near_the_best() -> None:
    for _, problem, prices in cases(100, 5):
        pricer = UnitPricer(problem)
        for k in range(len(problem.options)):
            num = pricer.unit(k).num_units
            value = units_value(problem, k, prices)
            for max_nodes in (None, 1, 50):
                priced = pricer.priced(k, prices, max_nodes)
                worth = sum(p * n for p, n in zip(prices, priced.load.counts, strict=True))
                assert worth == priced.value
                assert priced.value * num <= value <= priced.bound * num
            near = pricer.priced(k, prices, None)
            assert near.value * num * (1 + F(1, 10**6)) >= value
