"""Orders of a lane's sessions, and sessions split between lanes, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random

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
from optimizer.capacity.lane_orders import CountRow, LaneTimes
from optimizer.capacity.lane_split import LaneSplitter, Split
from optimizer.errors import TooLargeError

F = Fraction


def lane_times(times: Times) -> LaneTimes:
    assert None not in times.deadlines
    return LaneTimes(times.releases, times.services, [d or F(0) for d in times.deadlines])


def together(deadline: int, *services: int) -> LaneTimes:
    """Return times of cohorts that are all released at 0 and due at the same time."""
    return lane_times(
        Times(
            (F(0),) * len(services),
            tuple(F(s) for s in services),
            (F(deadline),) * len(services),
        )
    )


def cases(number: int, sizes: Sequence[int] = (1, 2, 2, 3, 3, 4)) -> Iterator[tuple[Times, Random]]:
    for seed in range(number):
        rng = Random(f"lanes-{seed}")
        yield random_times(rng, rng.choice(sizes)), rng


def most_of(rng: Random, times: Times) -> list[int]:
    return [rng.randint(1, 4 if len(times.services) < 4 else 3) for _ in times.services]


def check_runs(times: Times, runs: Sequence[tuple[int, int]], counts: Counts) -> None:
    """Serve runs one session after another; all end in time, and they are the ones told."""
    now, total = F(0), [0] * len(counts)
    for c, number in runs:
        assert number > 0
        for _ in range(number):
            now = max(now, times.releases[c]) + times.services[c]
            due = times.deadlines[c]
            assert due is None or now <= due
        total[c] += number
    assert tuple(total) == counts
    assert all(a[0] != b[0] for a, b in itertools.pairwise(runs))


def check_split(split: Split, one: set[Counts], lanes: int, counts: Counts) -> None:
    """The lanes are there, each can serve its sessions in time, together they have all."""
    assert sum(number for number, _ in split) <= lanes
    assert all(number > 0 and any(lane) and lane in one for number, lane in split)
    total = tuple(sum(n * lane[c] for n, lane in split) for c in range(len(counts)))
    assert total == counts


# One lane -----------------------------------------------------------------------------------------


def test_a_lane_waits_for_a_session_that_is_due_first() -> None:
    # a: 3 s, at any time up to 6 s. b: released at 1 s, 1 s, due at 2 s. Serving a at once is late
    times = Times((F(0), F(1)), (F(3), F(1)), (F(6), F(2)))
    lane = lane_times(times)
    assert lane.order((1, 1)) == ((1, 1), (0, 1))  # b from 1 to 2 s, a from 2 to 5 s
    assert lane.order((2, 1)) is None  # a until 8 s
    assert lane.order((2, 0)) == ((0, 2),)
    assert lane.order((0, 2)) is None
    assert (lane.most(0, 9), lane.most(0, 1), lane.most(1, 9)) == (2, 1, 1)


def test_times_are_whole_numbers_of_a_common_unit() -> None:
    lane = lane_times(Times((F(1, 2), F(0)), (F(1, 3), F(2)), (F(3, 2), F(5, 4))))
    # twelfths of a second
    assert (lane.releases, lane.services, lane.deadlines) == ((6, 0), (4, 24), (18, 15))
    assert (lane.most(0, 9), lane.most(1, 9)) == (3, 0)  # 2 s until 1.25 s
    assert not lane.is_released_together
    # from 0 to 15: b; from 0 to 18: both; from 6 to 18: a
    assert set(lane.windows) == {
        CountRow((0, 24), 15),
        CountRow((4, 24), 18),
        CountRow((4, 0), 12),
    }
    free = lane_times(Times((F(3),), (F(0),), (F(3),)))
    assert free.most(0, 7) == 7
    assert free.order((7,)) == ((0, 7),)


def test_orders_end_in_time_and_are_found_where_there_are_any() -> None:
    waited = 0
    for times, rng in cases(300):
        most, lane = most_of(rng, times), lane_times(times)
        possible = lane_counts(times, most)
        limits = tuple(max(n[c] for n in possible) for c in range(len(most)))
        assert tuple(lane.most(c, n) for c, n in enumerate(most)) == limits
        for counts in up_to(most):
            runs = lane.order(counts)
            assert (runs is not None) == (counts in possible) == lane.fits(counts)
            keeps = all(row.keeps(counts) for row in lane.windows)
            if runs is not None:
                check_runs(times, runs, counts)
                assert keeps
            elif keeps:
                assert not lane.is_released_together  # rows suffice where it is
                waited += 1
    assert waited > 20


def test_orders_of_many_single_sessions_are_found() -> None:
    # some have a second or two to spare, the others much
    found, searched = 0, 0
    for seed in range(400):
        rng = Random(seed)
        size = rng.choice((5, 6, 7))
        releases = [F(rng.randint(0, 12)) for _ in range(size)]
        services = [F(rng.randint(1, 5)) for _ in range(size)]
        spare = [rng.choice((1, 2, 9, 12)) for _ in range(size)]
        deadlines = [r + s + n for r, s, n in zip(releases, services, spare, strict=True)]
        times = Times(tuple(releases), tuple(services), tuple(deadlines))
        lane, most = lane_times(times), [1] * size
        possible = lane_counts(times, most)
        for counts in up_to(most):
            runs = lane.order(counts)
            assert (runs is not None) == (counts in possible)
            if runs is not None:
                check_runs(times, runs, counts)
                found += 1
        searched += len(lane._searched)
    assert found > 1000
    assert searched > 1000


def test_sessions_left_are_tried_again_from_an_earlier_time() -> None:
    # a search that remembered sessions left, but not from when on, finds no order of these
    releases, services = (10, 10, 0, 2, 9, 7, 2), (6, 6, 3, 3, 4, 5, 3)
    deadlines = (30, 16, 17, 25, 22, 32, 6)
    times = Times(*(tuple(F(t) for t in all_) for all_ in (releases, services, deadlines)))
    runs = lane_times(times).order((1,) * 7)
    assert runs is not None
    check_runs(times, runs, (1,) * 7)


# Several lanes ------------------------------------------------------------------------------------


def test_splits_by_hand() -> None:
    # sessions of 3, 4 and 5 s on lanes of 12 s
    splitter = LaneSplitter(together(12, 3, 4, 5), 2, (9, 9, 9))
    assert splitter.limits == (4, 3, 2)
    # 3 + 4 + 5 each
    assert splitter.split((2, 2, 2)) == ((2, (1, 1, 1)),)
    assert splitter.split((0, 0, 0)) == ()
    # 4 · 3 and 3 · 4
    split = splitter.split((4, 3, 0))
    assert split is not None
    assert set(split) == {(1, (4, 0, 0)), (1, (0, 3, 0))}
    # 8 · 3 s are all there is
    assert splitter.split((8, 0, 0)) == ((2, (4, 0, 0)),)
    assert splitter.split((9, 0, 0)) is None
    # 3 + 3 + 3 + 4 is 13 s, but 3 + 4 + 5 and 3 + 3 + 5 are 12 and 11 s
    assert splitter.fits((3, 1, 2))
    # 23 of 24 s, but 5 + 5 leaves 2 s in each lane
    assert not splitter.fits((1, 0, 4))
    assert splitter.fits_soon((1, 0, 4)) is False
    assert splitter.fits_soon((2, 2, 2)) is True


def test_more_than_lanes_can_serve_is_refused_whatever_rows_say() -> None:
    # sessions take 2 or 4 of 7 s: a lane is busy for 6 s at most, 50 lanes for 300 of 350 s
    splitter = LaneSplitter(together(7, 2, 4), 50, (999, 999))
    assert splitter.split((50, 50)) is not None  # 100 + 200 s
    assert splitter.split((51, 50)) is None
    assert splitter.split((150, 0)) is not None
    assert (
        splitter.split((148, 1)) is not None
    )  # 296 + 4 s: one lane has 2 + 4, the others 2 + 2 + 2
    assert splitter.split((149, 1)) is None
    assert splitter.split((0, 51)) is None


def test_splits_agree_with_brute_force() -> None:
    refused = 0
    for times, rng in cases(300):
        lanes, most, lane = rng.randint(1, 4), most_of(rng, times), lane_times(times)
        one = lane_counts(times, most)
        every = lanes_counts(one, lanes, most)
        splitter = LaneSplitter(lane, lanes, most)
        assert splitter.limits == tuple(max(n[c] for n in one) for c in range(len(most)))
        tried = list(up_to(most))
        rng.shuffle(tried)
        for counts in tried:
            split, soon = splitter.split(counts), splitter.fits_soon(counts)
            assert (split is not None) == (counts in every) == splitter.fits(counts)
            assert soon in (None, counts in every)
            if split is not None:
                check_split(split, one, lanes, counts)
            else:
                refused += 1
        # rows that were found on the way hold of every lane
        assert all(cut.keeps(n) for cut in splitter.cuts for n in one)
        assert all(n in one for n in splitter.heavy_lanes)
    assert refused > 2000


def packed(rng: Random) -> tuple[LaneTimes, list[Counts]]:
    """Return three to seven lanes that are filled to the last second, if there are."""
    seconds = rng.randint(20, 40)
    services = rng.sample(range(3, seconds // 2), rng.randint(3, 5))
    exact = [
        n for n in up_to([min(seconds // s, 4) for s in services]) if value(services, n) == seconds
    ]
    lanes = [rng.choice(exact) for _ in range(rng.randint(3, 7))] if exact else []
    return together(seconds, *services), lanes


def test_lanes_without_a_gap_are_found_again() -> None:
    found = 0
    for seed in range(150):
        times, lanes = packed(Random(seed))
        if not lanes:
            continue
        size = times.size
        counts = tuple(sum(lane[c] for lane in lanes) for c in range(size))
        splitter = LaneSplitter(times, len(lanes), [99] * size)
        split = splitter.split(counts)
        assert split is not None
        one = {lane for _, lane in split if times.fits(lane)}
        check_split(split, one, len(lanes), counts)
        found += 1
        for c in range(size):
            assert splitter.split(plus_one(counts, c)) is None
    assert found >= 100


def test_every_way_is_tried_where_nothing_else_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    # without cuts and quick ways, only the search is left to find splits
    monkeypatch.setattr(LaneSplitter, "_evenly", lambda *_: None)
    monkeypatch.setattr(LaneSplitter, "_greedily", lambda *_: None)
    monkeypatch.setattr(LaneSplitter, "_by_columns", lambda *_: (True, None))
    for times, rng in cases(150):
        lanes, most = rng.randint(2, 4), most_of(rng, times)
        one = lane_counts(times, most)
        every = lanes_counts(one, lanes, most)
        splitter = LaneSplitter(lane_times(times), lanes, most)
        for counts in up_to(most):
            split = splitter.split(counts)
            assert (split is not None) == (counts in every)
            if split is not None:
                check_split(split, one, lanes, counts)


def test_what_failed_on_few_lanes_may_do_on_more(monkeypatch: pytest.MonkeyPatch) -> None:
    # sessions of 3, 12 and 17 s on five lanes of 27 s: 3 + 3 + 3 + 17, 12 + 12 and thrice 17. A
    # search that mistook on how few lanes the rest has failed would find nothing
    for name in ("_evenly", "_greedily"):
        monkeypatch.setattr(LaneSplitter, name, lambda *_: None)
    monkeypatch.setattr(LaneSplitter, "_by_columns", lambda *_: (True, None))
    times, counts = together(27, 2, 3, 12, 17), (0, 3, 2, 4)
    split = LaneSplitter(times, 5, (9,) * 4).split(counts)
    assert split is not None
    check_split(split, {lane for _, lane in split if times.fits(lane)}, 5, counts)
    # 17 + 12 is too long: four lanes for 17, and one for 12 + 12
    assert LaneSplitter(times, 4, (9,) * 4).split(counts) is None
    # 12 + 12 + 3 and four times 17 + 3 + 3 + 3 s: 13 of 3 s; with 14, it would be 134 of 135 s
    assert LaneSplitter(times, 5, (9,) * 4).split((0, 13, 2, 4)) is not None
    assert LaneSplitter(times, 5, (9,) * 4).split((0, 14, 2, 4)) is None


def test_a_quick_answer_may_be_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_evenly", "_greedily"):
        monkeypatch.setattr(LaneSplitter, name, lambda *_: None)
    monkeypatch.setattr(LaneSplitter, "_by_columns", lambda *_: (True, None))
    # the first way to fill a lane is 3 + 3 + 3 + 3, the second 5 + 5: two steps
    splitter = LaneSplitter(together(12, 3, 5), 2, (9, 9))
    with pytest.raises(TooLargeError, match="more than 1 ways to fill a lane"):
        splitter.split((4, 2), 1)
    assert splitter.split((4, 2), 2) == ((1, (4, 0)), (1, (0, 2)))
    # what is known needs no steps
    assert splitter.split((4, 2), 0) == ((1, (4, 0)), (1, (0, 2)))
    monkeypatch.setattr("optimizer.capacity.lane_split.MAX_STEPS", 1)
    assert LaneSplitter(together(12, 3, 5), 2, (9, 9)).fits_soon((4, 2)) is None


def test_lanes_worth_most_and_cuts_hold() -> None:
    for times, rng in cases(200):
        most = most_of(rng, times)
        one = lane_counts(times, most)
        splitter = LaneSplitter(lane_times(times), 2, most)
        prices = [rng.randint(0, 9) for _ in most]
        best = splitter.best_lane(prices)
        assert best.value == best.bound == max(value(prices, n) for n in one)
        assert best.counts in one
        assert value(prices, best.counts) == best.value
        rough = splitter.best_lane(prices, max_nodes=1)
        assert rough.value <= best.value <= rough.bound
        weights = [rng.choice((0.0, -1.0, rng.random(), 5 * rng.random())) for _ in most]
        cut = splitter.add_cut(weights)
        if max(weights) <= 0:
            assert cut is None
            assert not splitter.cuts
            continue
        assert cut is not None
        assert list(splitter.cuts) == [cut]
        assert all(cut.keeps(n) for n in one)
        # no room is given away but for rounding: the heaviest lane is within a millionth
        heaviest = max(value(cut.sizes, n) for n in largest(one))
        assert cut.most * (1 - F(2, 10**6)) <= heaviest <= cut.most
        top = max(weights)
        assert cut.sizes == tuple(round(max(w, 0.0) / top * 10**6) for w in weights)


def test_rows_of_several_lanes() -> None:
    row = CountRow((2, 0, 3), 7)
    assert row.keeps((2, 99, 1))  # 4 + 3
    assert not row.keeps((1, 0, 2))  # 2 + 6
    assert row.keeps((1, 0, 4), 2)  # 2 + 12 of 14
    assert not row.keeps((3, 0, 3), 2)  # 6 + 9
    assert row.for_lanes(4, 5) == CountRow((2, 0, 3, 0, 0), 28)
