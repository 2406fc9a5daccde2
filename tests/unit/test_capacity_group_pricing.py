"""Loads of groups, sums of lanes, counts under rows and small linear programs: all exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

import highspy
import numpy as np
import pytest

from capacity_lanes import (
    Counts,
    Times,
    lane_counts,
    lanes_counts,
    largest,
    plus_one,
    random_times,
    up_to,
    value,
)
from optimizer.capacity import group_pricing, lane_sums
from optimizer.capacity.group_pricing import GroupPricer
from optimizer.capacity.lane_orders import CountRow, LaneTimes
from optimizer.capacity.lane_split import LaneSplitter
from optimizer.capacity.lane_sums import best_sum
from optimizer.capacity.load_search import best_counts, linear_optimum, maximal_counts, worth
from optimizer.capacity.small_lps import solve_many
from optimizer.errors import TooLargeError

F = Fraction


def random_rows(rng: Random, size: int, number: int) -> list[CountRow]:
    return [
        CountRow(tuple(rng.choice((0, 1, 2, 3, 5)) for _ in range(size)), rng.randint(0, 20))
        for _ in range(number)
    ]


def random_values(rng: Random, size: int) -> list[int]:
    """Return values up to some number or, of a tenth of all, large ones that are about equal."""
    if rng.random() < 0.1:
        return [2**75 + rng.randint(0, 99) for _ in range(size)]
    top = rng.choice((3, 1000, 2**62, 2**80))
    return [rng.choice((0, *[rng.randint(1, top)] * 4)) for _ in range(size)]


# Small linear programs ----------------------------------------------------------------------------


def check_optimum(
    values: np.ndarray, rows: np.ndarray, rooms: np.ndarray, x: np.ndarray, y: np.ndarray
) -> float:
    """Weak duality: x keeps the rows, prices y cover the values, and both are worth the same."""
    near = 1e-9
    assert (x >= -near).all()
    assert (y >= 0).all()
    assert (rows @ x <= rooms + near * (1 + rooms)).all()
    assert (y @ rows >= values - near * (1 + values)).all()
    primal, dual = float(values @ x), float(y @ rooms)
    assert primal == pytest.approx(dual, rel=near, abs=near)
    return primal


def by_highs(values: np.ndarray, rows: np.ndarray, rooms: np.ndarray) -> float:
    """Return the optimum that HiGHS finds."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    for _ in values:
        solver.addVar(0.0, highspy.kHighsInf)
    solver.changeColsCost(len(values), np.arange(len(values), dtype=np.int32), -values)
    for row, room in zip(rows, rooms, strict=True):
        used = np.flatnonzero(row).astype(np.int32)
        solver.addRow(-highspy.kHighsInf, float(room), len(used), used, row[used])
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return -float(solver.getInfo().objective_function_value)


def test_a_small_linear_program_by_hand() -> None:
    # max 3a + 2b: a + b <= 4, a + 3b <= 6, a <= 3. a = 3, b = 1: 11; 2 · 4 + 1 · 3
    values, rooms = np.array([[3.0, 2.0]]), np.array([[4.0, 6.0, 3.0]])
    rows = np.array([[[1.0, 1.0], [1.0, 3.0], [1.0, 0.0]]])
    x, prices = solve_many(values, rows, rooms)
    assert x[0] == pytest.approx([3, 1])
    assert prices[0] == pytest.approx([2, 0, 1])
    # nothing is worth anything: no row has a price
    x, prices = solve_many(np.zeros((1, 2)), rows, rooms)
    assert not x.any()
    assert not prices.any()


def test_many_linear_programs_at_once_are_optimal() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        num, size, num_rows = 10, int(rng.integers(1, 6)), int(rng.integers(1, 6))
        values = rng.integers(0, 10, (num, size)) * rng.choice([1.0, 1e-3, 1e6], (num, 1))
        rows = rng.integers(0, 6, (num, num_rows, size)) / 5
        rooms = rng.integers(0, 9, (num, num_rows)) / 4  # some have no room: degenerate
        # a limit of each, so that there is a best one
        limits = np.broadcast_to(np.eye(size), (num, size, size))
        rows = np.concatenate([rows, limits], axis=1)
        rooms = np.concatenate([rooms, rng.integers(0, 4, (num, size)).astype(float)], axis=1)
        x, prices = solve_many(values, rows, rooms)
        assert x.shape == (num, size)
        assert prices.shape == rooms.shape
        for k in range(num):
            scale = max(values[k].max(), 1e-300)
            found = check_optimum(values[k] / scale, rows[k], rooms[k], x[k], prices[k] / scale)
            if k < 3:
                exact = by_highs(values[k] / scale, rows[k], rooms[k])
                assert found == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_a_linear_program_without_limits_ends() -> None:
    # b needs nothing of the row: there is no best one, and what is returned keeps the row
    x, prices = solve_many(np.array([[1.0, 1.0]]), np.array([[[1.0, 0.0]]]), np.array([[2.0]]))
    assert 0 <= x[0, 0] <= 2
    assert (prices >= 0).all()


def test_the_best_fractional_counts() -> None:
    for seed in range(150):
        rng = Random(seed)
        size = rng.randint(1, 4)
        rows, limits = random_rows(rng, size, rng.randint(0, 3)), [rng.randint(0, 9)] * size
        values = [rng.randint(0, 50) for _ in range(size)]
        counts, prices = linear_optimum(values, limits, rows)
        assert len(prices) == len(rows)
        lines = np.array([row.sizes for row in rows], dtype=float).reshape(len(rows), size)
        rooms = np.array([float(row.most) for row in rows])
        assert (counts <= np.array(limits) + 1e-9).all()
        assert (lines @ counts <= rooms + 1e-9 * (1 + rooms)).all()
        # prices are counted in parts of the largest value, rows in parts of their room
        top, room = max(values) or 1, np.maximum(rooms, 1.0)
        left = np.array(values) - (prices * top / room) @ lines if rows else np.array(values)
        bound = float((prices * top * (rooms > 0)).sum() + (np.maximum(left, 0) * limits).sum())
        assert float(np.dot(values, counts)) == pytest.approx(bound, rel=1e-9, abs=1e-7)
    assert linear_optimum([], [], [CountRow((), 3)])[1].tolist() == [0.0]


# Counts under rows --------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A random question about counts, and all counts that are possible."""

    rng: Random
    limits: list[int]
    rows: list[CountRow]
    check: Callable[[Counts], bool] | None
    possible: set[Counts]


def asked(number: int) -> Iterator[Asked]:
    """Yield limits, rows and, half of the time, a check that refuses more than rows do."""
    for seed in range(number):
        rng = Random(f"counts-{seed}")
        size = rng.randint(1, 4)
        limits = [rng.randint(0, 5) for _ in range(size)]
        rows = random_rows(rng, size, rng.randint(0, 3))
        weights, most = [rng.randint(0, 3) for _ in range(size)], rng.randint(0, 12)

        def check(counts: Counts, weights: list[int] = weights, most: int = most) -> bool:
            # the square makes it no row
            return sum(w * n * n for w, n in zip(weights, counts, strict=True)) <= most

        used = check if rng.random() < 0.5 else None
        possible = {
            n
            for n in up_to(limits)
            if all(row.keeps(n) for row in rows) and (used is None or used(n))
        }
        yield Asked(rng, limits, rows, used, possible)


def test_the_best_counts_are_exact() -> None:
    for rng, limits, rows, check, possible in asked(400):
        values = random_values(rng, len(limits))
        best = max(value(values, n) for n in possible)
        found = best_counts(values, limits, rows, check)
        assert found.value == found.bound == best == worth(values, found.counts)
        assert found.counts in possible


def test_bounds_hold_when_the_search_stops_early() -> None:
    open_ = 0
    for rng, limits, rows, check, possible in asked(400):
        values = random_values(rng, len(limits))
        best = max(value(values, n) for n in possible)
        start = rng.choice(sorted(possible))
        for tolerance, max_nodes in ((F(1, 5), None), (F(0), 0), (F(0), 2), (F(1, 50), 25)):
            found = best_counts(
                values, limits, rows, check, tolerance=tolerance, max_nodes=max_nodes, start=start
            )
            assert worth(values, start) <= found.value <= best <= found.bound
            assert found.value == worth(values, found.counts)
            assert found.counts in possible
            if max_nodes is None:
                assert found.bound <= found.value * (1 + tolerance)
            open_ += found.value < found.bound
    assert open_ > 100


def test_a_check_that_cannot_tell_leaves_the_bound_open() -> None:
    # up to 4 of 5 keep the row; nobody knows whether more than 2 are possible
    def check(counts: Counts) -> bool | None:
        return True if counts[0] <= 2 else None

    found = best_counts([7], [5], [CountRow((1,), 4)], check)
    assert (found.value, found.counts, found.bound) == (14, (2,), 28)
    # where it says no, the bound is closed
    found = best_counts([7], [5], [CountRow((1,), 4)], lambda counts: counts[0] <= 2)
    assert (found.value, found.counts, found.bound) == (14, (2,), 14)


def test_counts_that_cannot_be_exceeded_are_all_listed() -> None:
    for _, limits, rows, check, possible in asked(400):
        expected = sorted(largest(possible), reverse=True)
        if expected == [(0,) * len(limits)]:
            # without any session, there may be nothing to list
            found = maximal_counts(limits, rows, check, max_found=1, max_nodes=999)
            assert found in ((), tuple(expected))
            continue
        number = len(expected)
        found = maximal_counts(limits, rows, check, max_found=number, max_nodes=10**5)
        assert list(found) == expected
        with pytest.raises(TooLargeError, match=f"more than {number - 1} loads"):
            maximal_counts(limits, rows, check, max_found=number - 1, max_nodes=10**5)


def test_listing_counts_is_given_up_after_so_many_steps() -> None:
    # 0 to 2 of the first, each with all of the second: one step, and one for each number
    rows = [CountRow((1, 1), 4)]
    assert maximal_counts([2, 4], rows, None, max_found=3, max_nodes=4) == ((2, 2), (1, 3), (0, 4))
    with pytest.raises(TooLargeError, match="more than 3 steps"):
        maximal_counts([2, 4], rows, None, max_found=3, max_nodes=3)


# Sums of lanes ------------------------------------------------------------------------------------


def random_loads(rng: Random) -> tuple[list[int], list[int]]:
    """Return sizes and values of the empty load and up to six others."""
    number = rng.randint(0, 6)
    return (
        [0, *(rng.randint(0, 9) for _ in range(number))],
        [0, *(rng.randint(0, rng.choice((5, 10**6))) for _ in range(number))],
    )


def test_sums_of_lanes_are_the_best_there_are() -> None:
    for seed in range(200):
        rng = Random(seed)
        (sizes, values), lanes, room = random_loads(rng), rng.randint(1, 4), rng.randint(0, 25)
        choices = itertools.combinations_with_replacement(range(len(sizes)), lanes)
        best = max(
            sum(values[i] for i in chosen)
            for chosen in choices
            if sum(sizes[i] for i in chosen) <= room
        )
        given = np.array(sizes), np.array(values), lanes, room
        for floor in (-1, best - 1, rng.randint(0, best)):
            found = best_sum(*given, floor)
            if floor >= best:
                assert found is None
                continue
            assert found is not None
            assert found[0] == best == sum(values[i] for i in found[1])
            assert len(found[1]) == lanes
            assert sum(sizes[i] for i in found[1]) <= room
        assert best_sum(*given, best) is None
        assert best_sum(*given, best + 1) is None


def test_too_many_sums_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # no load is dominated: 1 sum and 3 loads, then the sums 0, 1, 2, 3, 4 and 3 loads
    loads = np.array([0, 1, 2]), np.array([0, 3, 5])
    monkeypatch.setattr(lane_sums, "MAX_SUMS", 9)
    assert best_sum(*loads, 2, 99, 0) == (10, (2, 2))
    monkeypatch.setattr(lane_sums, "MAX_SUMS", 2)
    with pytest.raises(TooLargeError, match="more than 2 sums"):
        best_sum(*loads, 2, 99, 0)


# Groups -------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """A random group, what prices it, and all counts that it can take."""

    rng: Random
    pricer: GroupPricer
    possible: set[Counts]


def groups(number: int) -> Iterator[Group]:
    """Yield groups of two to four lanes; some have cohorts without a deadline."""
    for seed in range(number):
        rng = Random(f"group-{seed}")
        timed, untimed = rng.randint(1, 3), rng.choice((0, 0, 1, 2))
        times = random_times(rng, timed)
        lanes, size = rng.randint(2, 4), timed + untimed
        at_most = [rng.choice((2, 4, 12 // timed)) for _ in range(timed)]
        if rng.random() < 0.5:  # as many as all lanes could have, so that no limit is felt
            all_ = [lanes * lane_times(times).most(c, 99) for c in range(timed)]
            at_most = [n if n <= 12 else most for n, most in zip(all_, at_most, strict=True)]
        rest = [rng.randint(1, 3) for _ in range(untimed)]
        memory = [CountRow(row.sizes, row.most + 1) for row in random_rows(rng, size, 2)]
        memory = memory[: rng.choice((1, 1, 2))]
        one = lane_counts(times, at_most)
        in_time = lanes_counts(one, lanes, at_most)
        splitter = LaneSplitter(lane_times(times), lanes, at_most)
        limits = [min(lanes * n, m) for n, m in zip(splitter.limits, at_most, strict=True)] + rest
        possible = {
            (*n, *m)
            for n, m in itertools.product(in_time, up_to(rest))
            if all(row.keeps((*n, *m)) for row in memory)
        }
        yield Group(rng, GroupPricer(splitter, memory, limits), possible)


def lane_times(times: Times) -> LaneTimes:
    return LaneTimes(times.releases, times.services, [d or F(0) for d in times.deadlines])


def check_best(group: Group, values: Sequence[int], tolerance: Fraction, nodes: int | None) -> bool:
    """Check what a group is said to be worth; return whether the best load is proven."""
    best = max(value(values, n) for n in group.possible)
    found = group.pricer.best(values, tolerance, nodes)
    assert found.counts in group.possible
    assert found.value == value(values, found.counts) <= best <= found.bound
    if nodes is None:
        assert found.bound <= found.value * (1 + tolerance)
    return found.value == found.bound


def test_groups_are_priced_exactly() -> None:
    for group in groups(250):
        for _ in range(3):
            assert check_best(group, random_values(group.rng, group.pricer.size), F(0), None)


def test_rough_prices_of_groups_keep_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    proven = {True: 0, False: 0}
    for most_loads in (group_pricing.MAX_LANE_LOADS, 1):  # lanes are added up, or are not
        monkeypatch.setattr(group_pricing, "MAX_LANE_LOADS", most_loads)
        for group in groups(120):
            values = random_values(group.rng, group.pricer.size)
            for tolerance, nodes in ((F(1, 5), None), (F(0), 0), (F(0), 3), (F(1, 10), 60)):
                proven[check_best(group, values, tolerance, nodes)] += 1
    assert min(proven.values()) > 50


def test_sums_of_values_that_are_too_large_are_bounded_from_above() -> None:
    # values are counted in units of more than 2^12, in which they are all equal
    rounded = 0
    for group in groups(250):
        values = [2**75 + group.rng.randint(0, 4000) for _ in range(group.pricer.num_timed)]
        values += [0] * (group.pricer.size - len(values))
        found = group.pricer._summed(values, (0,) * len(values))
        if found is None:
            continue
        best = max(value(values, n) for n in group.possible)
        assert found.counts in group.possible
        assert found.value == value(values, found.counts) <= best <= found.bound
        # rounded up by a unit for each session, and one more, at most
        unit = worth(values, group.pricer.limits) // 2**62 + 1
        assert found.bound - best <= unit * (sum(group.pricer.limits) + 1)
        rounded += found.value < best
    assert rounded > 5


def test_a_group_by_hand() -> None:
    # lanes of 12 s, sessions of 3 and 5 s in 2 and 5 bytes; c needs 1 byte and no lane
    times = LaneTimes([F(0)] * 2, [F(3), F(5)], [F(12)] * 2)
    splitter = LaneSplitter(times, 2, (9, 9))
    pricer = GroupPricer(splitter, [CountRow((2, 5, 1), 19)], (8, 4, 9))
    # a byte is worth 5 / 2 for a, 10 / 5 for b, 1 for c: lanes hold eight of a, then three of c
    found = pricer.best((5, 10, 1), F(0), None)
    assert (found.value, found.counts, found.bound) == (43, (8, 0, 3), 43)
    # with b worth 14, three of b on lanes bb and aab take 15 + 4 bytes: 42 + 10; two of b on lanes
    # aab and aab 10 + 8 bytes: 28 + 20, and one of c
    found = pricer.best((5, 14, 1), F(0), None)
    assert (found.value, found.counts, found.bound) == (52, (2, 3, 0), 52)
    # three of a and three of b would take all of 21 bytes and of 24 s: 15 + 39; but bb leaves 2 s
    # of a lane. Four of b and one of c: 52 + 1; three of b, two of a, two of c: 51
    pricer = GroupPricer(splitter, [CountRow((2, 5, 1), 21)], (8, 4, 9))
    found = pricer.best((5, 13, 1), F(0), None)
    assert (found.value, found.counts, found.bound) == (53, (0, 4, 1), 53)
    # nothing is worth anything, then one cohort alone
    assert pricer.best((0, 0, 0), F(0), None).counts == (0, 0, 0)
    for c in range(3):
        assert pricer.best(plus_one((0, 0, 0), c), F(0), None).value == (8, 4, 9)[c]
