"""Loads of units of options, and sessions dealt to them, against brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from capacity_bounds import cohort, hall, option, random_prices
from capacity_lanes import (
    check_lane,
    check_load,
    group_sums,
    largest,
    plus_one,
    random_option,
    served,
    unit_counts,
    up_to,
    value,
)
from optimizer.capacity import load_units
from optimizer.capacity.load_units import OptionUnit, UnitLoad
from optimizer.capacity.loads import best_unit_load, dealt_loads, option_unit, unit_loads
from optimizer.capacity.plan import GroupLoad, LaneLoad
from optimizer.capacity.problem import CapacityProblem
from optimizer.errors import TooLargeError
from optimizer.tables import MemoryRow

F = Fraction

SEEDS = range(250)


def cases() -> Iterator[tuple[CapacityProblem, OptionUnit]]:
    for seed in SEEDS:
        problem = random_option(seed)
        yield problem, OptionUnit(problem, problem.options[0])


# By hand ------------------------------------------------------------------------------------------

#: a: 3 s each, due at 6 s. b: not served. c: 2 s each, any time. d: released at 4 s, 1 s, due at 6.
HAND = (
    cohort(name="a", num_sessions=5, deadline_s=F(6)),
    cohort(name="b", num_sessions=9),
    cohort(name="c", num_sessions=7, deadline_s=None),
    cohort(name="d", num_sessions=9, release_s=F(4), deadline_s=F(6)),
)


def hand(free_bytes: int, lanes: int = 2, groups: int = 3) -> tuple[CapacityProblem, OptionUnit]:
    """Sessions of a, c and d take 2, 1 and 4 bytes of a group."""
    memory = (MemoryRow((2, 9, 1, 4), free_bytes),)
    built = option(0, 3, None, 2, 1, num_lanes=lanes, num_groups=groups, memory=memory)
    problem = hall(cohorts=HAND, options=(built,))
    return problem, OptionUnit(problem, built)


def test_a_unit_is_a_lane_only_where_memory_never_binds() -> None:
    # a lane serves two of a (6 s), or one of a (until 3 s) and two of d (4 to 6 s): at most
    # 1 · 2 + 2 · 4 = 10 bytes, two lanes 20; with the 7 sessions of c, 27
    _, unit = hand(27)
    assert unit.cohorts == (0, 3, 2)  # those with a deadline come first
    assert (unit.num_timed, unit.num_cohorts) == (2, 4)
    assert (unit.is_lane, unit.lanes, unit.num_units, unit.memory) == (True, 1, 6, ())
    assert unit.limits == (2, 2, 7)
    _, unit = hand(26)
    assert (unit.is_lane, unit.lanes, unit.num_units) == (False, 2, 3)
    assert [(row.sizes, row.most) for row in unit.memory] == [((2, 4, 1), 26)]
    # two lanes: 4 of the 5 sessions of a, 4 of d
    assert unit.limits == (4, 4, 7)


def test_rows_that_another_one_implies_are_left_out() -> None:
    problem, unit = hand(10)
    one = unit.option.memory[0]
    easier = (MemoryRow((2, 0, 1, 4), 11), MemoryRow((1, 9, 1, 3), 10), MemoryRow((4, 0, 2, 8), 20))
    more = OptionUnit(problem, replace(unit.option, memory=(*easier, one, one)))
    # of rows that say the same, one is kept
    assert len(more.memory) == 1
    assert set(more.maximal(999)) == set(unit.maximal(999))
    # neither implies the other: d takes more than 4/10 of the room
    other = OptionUnit(problem, replace(unit.option, memory=(one, MemoryRow((0, 0, 0, 1), 2))))
    assert len(other.memory) == 2


def test_a_row_without_room_says_nothing_of_cohorts_that_need_none_of_it() -> None:
    # a needs 1 byte of the first row, of which there are 3; b needs 1 of the second, with no room
    memory = (MemoryRow((1, 0), 3), MemoryRow((0, 1), 0))
    demands = (cohort(num_sessions=6, deadline_s=None), cohort(num_sessions=6, deadline_s=None))
    problem = hall(cohorts=demands, options=(option(0, 1, 1, memory=memory),))
    unit = option_unit(problem, 0)
    assert unit.maximal(9) == ((3, 0),)
    assert unit.priced((1, 1)).value == 3
    with pytest.raises(ValueError, match="cannot take"):
        unit.load((4, 0))
    # without any room in the first row, neither is served
    none = replace(problem.options[0], memory=(MemoryRow((1, 0), 0), MemoryRow((0, 1), 0)))
    assert OptionUnit(problem, none).maximal(9) == ((0, 0),)


def test_loads_of_a_lane_by_hand() -> None:
    problem, unit = hand(27)
    # aa, or a and two of d; always all of c, after them
    assert set(unit.maximal(2)) == {(2, 0, 7), (1, 2, 7)}
    with pytest.raises(TooLargeError, match="more than 1 loads"):
        unit.maximal(1)
    load = unit.load((1, 2, 7))
    assert load == UnitLoad((1, 0, 7, 2), (LaneLoad(1, ((0, 1), (3, 2), (2, 7))),))
    listed = unit_loads(problem, 0, 2)
    assert (listed.option, listed.num_units) == (0, 6)
    assert {one.counts for one in listed.loads} == {(2, 0, 7, 0), (1, 0, 7, 2)}
    with pytest.raises(TooLargeError):
        unit_loads(problem, 0, 1)
    # b is worth nothing here: 2 · 5 + 7 · 1 = 17 or 5 + 7 + 2 · 3 = 18
    assert best_unit_load(problem, 0, (5, 99, 1, 3)) == (18, load)
    assert best_unit_load(problem, 0, (F(7), 99, F(1, 3), F(3)))[0] == F(49, 3)  # 14 + 7/3
    assert option_unit(problem, 0) is option_unit(problem, 0)


def test_a_group_gives_odd_sessions_to_lanes_without_others() -> None:
    problem, unit = hand(26)
    # one lane has two of a, the other none; three sessions of c: two and one
    load = unit.load((2, 0, 3))
    check_load(problem, unit, load)
    assert load.counts == (2, 0, 3, 0)
    assert unit.load((0, 0, 0)) == UnitLoad((0, 0, 0, 0), ())


def test_an_option_that_serves_nobody_has_an_empty_load() -> None:
    built = option(service_s=(None,))
    problem = hall(cohorts=(cohort(),), options=(built,))
    unit = option_unit(problem, 0)
    assert unit.maximal(1) == ((),)
    assert unit_loads(problem, 0, 1).loads == (UnitLoad((0,), ()),)
    assert best_unit_load(problem, 0, (5,)) == (0, UnitLoad((0,), ()))
    # as has one whose sessions all end late: 3 s of 2
    late = hall(cohorts=(cohort(deadline_s=F(2)),), options=(option(),))
    assert option_unit(late, 0).limits == (0,)
    assert unit_loads(late, 0, 1).loads == (UnitLoad((0,), ()),)


# At random ----------------------------------------------------------------------------------------


def test_limits_are_the_most_of_each_cohort_alone() -> None:
    shared = 0
    for problem, unit in cases():
        most = [problem.cohorts[c].num_sessions for c in unit.cohorts]
        one = unit_counts(problem, unit) if unit.is_lane else group_sums(problem, unit)
        assert unit.limits == tuple(max(n[c] for n in one) for c in range(len(most)))
        assert unit.num_units * unit.lanes == unit.option.num_groups * unit.option.num_lanes
        served_ = {c for c, time in enumerate(unit.option.service_s) if time is not None}
        assert set(unit.cohorts) == served_
        shared += not unit.is_lane
        if unit.is_lane:  # nothing that a whole group may serve at once exceeds a row
            for row in unit.option.memory:
                sizes = [row.session_bytes[c] for c in unit.cohorts]
                assert max(value(sizes, n) for n in group_sums(problem, unit)) <= row.free_bytes
    assert 50 < shared < len(SEEDS) - 50


def test_loads_serve_all_in_time_and_nothing_fits_that_brute_force_does_not_find() -> None:
    refused = 0
    for problem, unit in cases():
        possible = unit_counts(problem, unit)
        in_time = possible if unit.is_lane else group_sums(problem, unit)
        most = [problem.cohorts[c].num_sessions for c in unit.cohorts]
        for counts in up_to(most):
            assert unit.fits(counts) == (counts in in_time)
            if counts in possible:
                load = unit.load(counts)
                check_load(problem, unit, load)
                expected = dict(zip(unit.cohorts, counts, strict=True))
                assert load.counts == tuple(expected.get(c, 0) for c in range(unit.num_cohorts))
            else:
                refused += 1
                with pytest.raises(ValueError, match="cannot take"):
                    unit.load(counts)
    assert refused > 1000


def test_the_largest_loads_are_all_listed_and_one_more_session_is_too_many() -> None:
    for problem, unit in cases():
        expected = largest(unit_counts(problem, unit))
        found = unit.maximal(len(expected))
        assert len(found) == len(set(found))
        assert set(found) == expected
        assert list(found) == sorted(found, reverse=True)
        if len(expected) > 1:
            with pytest.raises(TooLargeError):
                unit.maximal(len(expected) - 1)
        most = [problem.cohorts[c].num_sessions for c in unit.cohorts]
        for counts in found:
            for c in range(len(counts)):
                if counts[c] < most[c]:
                    with pytest.raises(ValueError, match="cannot take"):
                        unit.load(plus_one(counts, c))


@pytest.mark.parametrize("most_listed", [load_units.MAX_LISTED, 0])
def test_prices_are_exact(most_listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_units, "MAX_LISTED", most_listed)
    for k, (problem, unit) in enumerate(cases()):
        rng = Random(k)
        possible = unit_counts(problem, unit)
        for tops in ((3,), (1000,), (2**70,)):
            prices = random_prices(rng, unit.num_cohorts, tops)
            exact = [F(price, rng.choice((1, 1, 7))) for price in prices]
            mine = [exact[c] for c in unit.cohorts]
            best = max(value(mine, n) for n in possible)
            priced = unit.priced(exact)
            assert (priced.value, priced.bound) == (best, best)
            assert value(exact, priced.load.counts) == best
            check_load(problem, unit, priced.load)


def test_rough_prices_keep_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_units, "MAX_LISTED", 0)
    open_ = 0
    for k, (problem, unit) in enumerate(cases()):
        rng = Random(k)
        prices = random_prices(rng, unit.num_cohorts, (20, 2**44))
        best = max(value([prices[c] for c in unit.cohorts], n) for n in unit_counts(problem, unit))
        for tolerance, max_nodes in ((F(1, 4), None), (F(0), 0), (F(0), 1), (F(1, 10), 5)):
            priced = unit.priced(prices, tolerance=tolerance, max_nodes=max_nodes)
            assert priced.value <= best <= priced.bound
            assert value(prices, priced.load.counts) == priced.value
            check_load(problem, unit, priced.load)
            if max_nodes is None:
                assert priced.bound <= priced.value * (1 + tolerance)
            open_ += priced.value < priced.bound
    assert open_ > 20


def test_long_lanes_are_priced_exactly() -> None:
    # too many counts to be listed: the best number of one cohort for each of the other
    for seed in range(100):
        rng = Random(seed)
        services = [F(rng.randint(50, 400), 100) for _ in range(2)]
        ends = [F(rng.randint(300, 900)) for _ in range(2)]
        demands = tuple(
            cohort(name=f"c{c}", num_sessions=900, min_sessions=0, deadline_s=end)
            for c, end in enumerate(ends)
        )
        problem = hall(cohorts=demands, options=(option(service_s=tuple(services)),))
        unit = option_unit(problem, 0)
        prices = [rng.randint(1, 2 ** rng.choice((3, 20, 50))) for _ in range(2)]
        soon, late = sorted((0, 1), key=lambda c: ends[c])
        best = 0
        for n in range(min(900, ends[soon] // services[soon]) + 1):
            rest = min(900, (ends[late] - n * services[soon]) // services[late])
            best = max(best, n * prices[soon] + rest * prices[late])
        assert unit._listed is None
        priced = unit.priced(prices)
        assert priced.value == priced.bound == best
        check_load(problem, unit, priced.load)


# Dealing ------------------------------------------------------------------------------------------


def check_deal(
    problem: CapacityProblem, loads: Sequence[GroupLoad], wanted: Sequence[int]
) -> dict[int, int]:
    """Check dealt groups by rules; return the groups of each option."""
    groups: dict[int, int] = {}
    total = [0] * len(problem.cohorts)
    for load in loads:
        built = problem.options[load.option]
        counts = served(load.lanes, len(problem.cohorts))
        assert load.count > 0
        assert any(counts)
        assert sum(lane.count for lane in load.lanes) <= built.num_lanes
        assert all(row.holds(counts) for row in built.memory)
        for lane in load.lanes:
            check_lane(problem, built, lane)
        total = [n + load.count * m for n, m in zip(total, counts, strict=True)]
        groups[load.option] = groups.get(load.option, 0) + load.count
    assert tuple(total) == tuple(wanted)
    assert len({(load.option, load.lanes) for load in loads}) == len(loads)
    return groups


def test_sessions_dealt_by_hand() -> None:
    problem, unit = hand(27)
    both, two = unit.load((1, 2, 0)), unit.load((2, 0, 0))
    # three lanes with a and dd, two with aa: 7 of a, 6 of d. Without two of a, the last lane is
    # empty; the other four make two groups of two lanes
    loads = dealt_loads(problem, [(0, both, 3), (0, two, 2)], (5, 0, 0, 6))
    mixed = ((0, 1), (3, 2))
    assert {(load.option, load.count, frozenset(load.lanes)) for load in loads} == {
        (0, 1, frozenset({LaneLoad(2, mixed)})),
        (0, 1, frozenset({LaneLoad(1, mixed), LaneLoad(1, ((0, 2),))})),
    }
    # nothing is left of sessions that nobody asks for
    assert dealt_loads(problem, [(0, both, 3)], (0, 0, 0, 0)) == ()
    assert dealt_loads(problem, [(0, both, 0)], (0, 0, 0, 0)) == ()
    # three lanes have 3 of a and 6 of d, and no more
    check_deal(problem, dealt_loads(problem, [(0, both, 3)], (3, 0, 0, 6)), (3, 0, 0, 6))
    with pytest.raises(ValueError, match="1 sessions of cohort 0 have no unit"):
        dealt_loads(problem, [(0, both, 3)], (4, 0, 0, 6))
    with pytest.raises(ValueError, match="2 sessions of cohort 3 have no unit"):
        dealt_loads(problem, [(0, both, 3)], (3, 0, 0, 8))


def test_random_deals_keep_all_rules() -> None:
    short = 0
    for seed in range(300):
        rng = Random(seed)
        tiny = random_option(seed)
        first = tiny.options[0]
        # a second option, whose units are lanes, and up to ten times as many sessions
        other = replace(first, index=1, num_lanes=rng.choice((1, 3, 5)), memory=())
        times = rng.choice((1, 3, 10))
        demands = tuple(replace(d, num_sessions=times * d.num_sessions) for d in tiny.cohorts)
        problem = replace(tiny, cohorts=demands, options=(first, other))
        chosen, room = list[tuple[int, UnitLoad, int]](), {0: 0, 1: 0}
        for k in (0, 1, 0):
            unit = option_unit(problem, k)
            load = unit.load(rng.choice(unit.maximal(9999)))
            number = rng.choice((0, 1, 2, 7))
            chosen.append((k, load, number))
            room[k] += number * unit.lanes
        have = [sum(n * load.counts[c] for _, load, n in chosen) for c in range(len(demands))]
        # no more than there are: memory of units that are lanes never binds only up to that
        most = [min(n, d.num_sessions) for n, d in zip(have, demands, strict=True)]
        wanted = [rng.choice((n, n, rng.randint(0, n))) for n in most]
        groups = check_deal(problem, dealt_loads(problem, chosen, wanted), wanted)
        short += wanted != have
        for k, number in groups.items():
            # single lanes are put together into no more groups than they fill
            assert number <= -(-room[k] // problem.options[k].num_lanes)
        c = rng.randrange(len(have))
        with pytest.raises(ValueError, match=f"1 sessions of cohort {c} have no unit"):
            dealt_loads(problem, chosen, plus_one(have, c))
    assert 50 < short < 290


def test_what_is_left_out_comes_from_the_last_unit_whatever_the_cohort() -> None:
    problem, unit = hand(27)
    first = problem.options[0]
    twice = replace(problem, options=(first, replace(first, index=1)))
    both = unit.load((1, 2, 0))
    loads = dealt_loads(twice, [(0, both, 1), (1, both, 1)], (1, 0, 0, 2))
    assert [(load.option, load.count) for load in loads] == [(0, 1)]
