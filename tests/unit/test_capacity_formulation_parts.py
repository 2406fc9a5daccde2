"""The integer program of capacity by parts: cards of servers, racks, goals, plans in counts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from capacity_bounds import F, cohort, hall, option, pool, rack, servers
from formulations import capacity_rows
from formulations.capacity import CapacityOutcome, solve_capacity
from formulations.capacity_extract import class_fills, site_fills
from formulations.capacity_goals import LinearGoal, quotient
from formulations.capacity_rows import _largest, build_model
from formulations.integer_program import BACKENDS
from optimizer.capacity.plan import RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem
from optimizer.errors import TooLargeError
from optimizer.protocols import Termination

solvers = pytest.mark.parametrize("backend", BACKENDS)

#: Instances of one, two and four cards, and of two whole servers.
SIZES = (
    option(0),
    option(1, cards_per_server=2),
    option(2, cards_per_server=4),
    option(3, cards_per_server=4, num_servers=2),
)


def sized(*cards: int, free: int, sessions: Sequence[int], **changes: Any) -> CapacityProblem:
    """Instances of so many cards, each for one session of a cohort of its own."""
    demands = [cohort(name=f"c{k}", num_sessions=n, min_sessions=n) for k, n in enumerate(sessions)]
    every = range(len(cards))
    options = tuple(
        option(k, *[6 if c == k else None for c in every], cards_per_server=size)
        for k, size in enumerate(cards)
    )
    return hall(
        "servers",
        **{
            "cohorts": tuple(demands),
            "options": options,
            "pools": (pool(num_cards=free),),
            "classes": (servers(0, free_cards=free),),
        }
        | changes,
    )


def solved(problem: CapacityProblem, backend: str) -> CapacityOutcome:
    found = solve_capacity(problem, backend, deadline=time.monotonic() + 60)
    assert isinstance(found, CapacityOutcome)
    return found


# Cards of servers -----------------------------------------------------------------------------


@solvers
@pytest.mark.parametrize(
    ("cards", "free", "sessions", "value"),
    [
        ((2, 3), 5, (2, 2), 2),  # 2 + 3 twice
        ((2, 3), 5, (3, 2), 3),  # 12 cards do not fit on 10
        ((2,), 5, (4,), 2),
        ((2,), 5, (5,), 3),  # 10 cards, of which each server wastes one
        ((2, 3), 6, (3, 2), 2),  # 2 + 2 + 2 and 3 + 3
        ((2, 3), 6, (2, 3), 3),  # 13 cards
        ((2, 3), 7, (5, 1), 2),  # 2 + 2 + 3 and 2 + 2 + 2
        ((2, 3), 7, (4, 2), 2),  # 2 + 2 + 3 twice
        ((2, 3), 7, (1, 4), 3),  # 14 cards, but two of three leave no room for one of two
        ((1, 2, 4), 4, (2, 1, 1), 2),
        ((1, 2, 4), 4, (3, 1, 1), 3),
        ((1, 2, 4), 6, (2, 1, 2), 2),  # 4 + 2 and 4 + 1 + 1
        ((1, 2, 4), 6, (1, 2, 2), 3),  # 4 + 2 twice, and one more
    ],
)
def test_instances_are_cut_from_whole_servers(
    backend: str, cards: tuple[int, ...], free: int, sessions: tuple[int, ...], value: int
) -> None:
    found = solved(sized(*cards, free=free, sessions=sessions), backend)
    assert found.termination is Termination.OPTIMAL
    assert found.value == (value,)
    assert found.plan is not None
    held = Counter[int]()
    for fill in found.plan.servers:
        assert sum(cards[k] * n for k, n in fill.blocks) <= free
        held.update({k: n * fill.count for k, n in fill.blocks})
    assert all(held[k] >= n for k, n in enumerate(sessions))


@solvers
def test_instances_over_servers_of_one_cell(backend: str) -> None:
    """Two servers in one cell hold one; those of two cells none, nor do occupied ones."""
    wide = (option(0, cards_per_server=4, num_servers=2),)
    one = (cohort(num_sessions=2, min_sessions=2),)
    pair = (servers(0, 1), servers(1, 1))
    apart = (pair[0], replace(pair[1], cell=1))
    taken = (pair[0], replace(pair[1], is_occupied=True, free_cards=2))
    for classes, status in (
        (pair, Termination.OPTIMAL),
        (apart, Termination.INFEASIBLE),
        (taken, Termination.INFEASIBLE),
    ):
        fields = {"classes": classes, "is_purchase": False}
        found = solved(hall("servers", cohorts=one, options=wide, **fields), backend)
        assert found.termination is status
        if found.plan is not None:
            assert found.value == (2,)
            assert [fill.spanned_by for fill in found.plan.servers] == [0, 0]


def test_largest_layouts_by_hand_and_by_brute_force() -> None:
    # (3, 0) and (0, 2) leave one card, (2, 1) none; (1, 1) has room for another of two
    assert _largest([2, 3], 7, 3) == [(3, 0), (2, 1), (0, 2)]
    with pytest.raises(TooLargeError, match="more than 2 layouts"):
        _largest([2, 3], 7, 2)
    rng = Random(3)
    for _ in range(100):
        sizes, room = sorted(rng.sample(range(1, 7), rng.randint(1, 3))), rng.randint(0, 14)
        every = itertools.product(*(range(room // size + 1) for size in sizes))
        used = {one: sum(n * s for n, s in zip(one, sizes, strict=True)) for one in every}
        wanted = {one for one, cards in used.items() if room - min(sizes) < cards <= room}
        found = _largest(sizes, room, 10_000)
        assert len(found) == len(wanted)
        assert set(found) == wanted


def test_programs_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unlike = sized(2, 3, free=7, sessions=(1, 1))
    # racks of 5 units: two of p (2 units) and one of q, one and three, or five of q
    racked = hall(
        pools=(pool(rack_units=2), pool(name="q")),
        sites=(rack(2, 5),),
        classes=(servers(0, site=0), servers(1, pool=1, site=0)),
    )
    # two of a, two of b, or one of each
    mixed = hall(
        cohorts=(cohort(), cohort(name="b")),
        options=(option(0, 3, 3),),
    )
    for problem, name in ((unlike, "MAX_LAYOUTS"), (racked, "MAX_FILLS"), (mixed, "MAX_LOADS")):
        build_model(problem)
        with monkeypatch.context() as patch:
            patch.setattr(capacity_rows, name, 2)
            with pytest.raises(TooLargeError, match="more than 2"):
                build_model(problem)
    assert len(build_model(mixed).loads[0].loads) == 3
    assert [one for one, _ in build_model(racked).fills[0]] == [
        {0: 2, 1: 1},
        {0: 1, 1: 3},
        {0: 0, 1: 5},
    ]
    assert [one for one, _ in build_model(unlike).layouts[0]] == [(3, 0), (2, 1), (0, 2)]


@solvers
def test_racks_of_unlike_servers(backend: str) -> None:
    """Four of p (2 units) and two of q (1 unit) fill two racks of 5 units, a third of q does not.

    A watt less than two of p and one of q draw, and each rack holds fewer.
    """
    for servers_of_q, limit, racks in ((2, None, 2), (3, None, 3), (2, 2400, 2), (2, 2399, 3)):
        problem = hall(
            "racks",
            cohorts=(
                cohort(num_sessions=16, min_sessions=16),
                cohort(name="b", num_sessions=4 * servers_of_q, min_sessions=4 * servers_of_q),
            ),
            options=(option(0, 6, None), option(1, None, 6, pool=1)),
            pools=(pool(rack_units=2), pool(name="q")),
            sites=(rack(4, 5, limit_w=limit),),
            classes=(servers(0, site=0), servers(1, pool=1, site=0)),
        )
        found = solved(problem, backend)
        assert found.value == (racks,)
        assert found.plan is not None
        assert sum(one.count for one in found.plan.racks) == racks
        for one in found.plan.racks:
            held = dict(one.servers)
            assert 2 * held.get(0, 0) + held.get(1, 0) <= 5
            assert limit is None or 800 * sum(held.values()) <= limit


# Plans in counts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "fits", "fails"),
    [
        (2, {0: 8}, {0: 9}),
        (2, {2: 1, 1: 1, 0: 2}, {2: 1, 1: 1, 0: 3}),
        (1, {1: 2}, {1: 2, 0: 1}),
        (0, {}, {0: 1}),
    ],
)
def test_instances_are_packed_on_servers(
    used: int, fits: Mapping[int, int], fails: Mapping[int, int]
) -> None:
    problem = hall(options=SIZES)
    fills = class_fills(problem, 0, used, list(fits.items()), [])
    assert sum(fill.count for fill in fills) == used
    with pytest.raises(ValueError, match="do not fit"):
        class_fills(problem, 0, used, list(fails.items()), [])


def test_packing_wastes_nothing_and_lists_idle_servers_of_a_purchase() -> None:
    rng = Random(5)
    for _ in range(200):
        problem = hall(options=SIZES, is_purchase=rng.random() < 0.5)
        blocks = {k: rng.randint(0, most) for k, most in enumerate((9, 5, 3))}
        cards = sum(SIZES[k].num_cards * n for k, n in blocks.items())
        spanned, idle = 2 * rng.randint(0, 1), rng.randint(0, 2)
        busy = spanned - (-cards // 4)
        fills = class_fills(problem, 0, busy + idle, list(blocks.items()), [(3, spanned)])
        held, used = Counter[int](), 0
        for fill in fills:
            used += fill.count
            assert sum(SIZES[k].num_cards * n for k, n in fill.blocks) <= 4
            held.update({k: n * fill.count for k, n in fill.blocks})
        assert all(held[k] == n for k, n in blocks.items())
        assert sum(fill.count for fill in fills if fill.spanned_by == 3) == spanned
        assert used == (busy + idle if problem.is_purchase else busy)


def test_instances_go_into_the_slots_of_layouts() -> None:
    problem = sized(2, 3, free=7, sessions=(1, 1))
    layouts = [(1, {2: 2, 3: 1}), (1, {2: 0, 3: 2})]
    fills = class_fills(problem, 0, 3, [(0, 2), (1, 3)], [], layouts)
    assert sorted((fill.blocks, fill.count) for fill in fills) == [
        ((), 1),  # a third server is bought and idle
        (((1, 1), (0, 2)), 1),
        (((1, 2),), 1),
    ]
    with pytest.raises(ValueError, match="1 instances of option 0 do not fit"):
        class_fills(problem, 0, 3, [(0, 3), (1, 3)], [], layouts)


def test_servers_of_a_site_are_put_into_racks() -> None:
    classes = (servers(0, 9, site=0), servers(1, 9, pool=1, site=0))
    alike = hall(sites=(rack(3, 3),), classes=classes[:1])
    assert site_fills(alike, 0, [ServerFill(0, 5), ServerFill(0, 2)], None) == [
        RackFill(0, 2, ((0, 3),)),
        RackFill(0, 1, ((0, 1),)),
    ]
    assert site_fills(alike, 0, [], None) == []
    single = replace(alike, sites=(rack(1, 3),))
    assert site_fills(single, 0, [ServerFill(0, 2)], None) == [RackFill(0, 1, ((0, 2),))]
    pools = (pool(rack_units=2), pool(name="q"))
    unlike = hall(sites=(rack(3, 5),), classes=classes, pools=pools)
    fills = [({0: 2, 1: 1}, 2), ({0: 0, 1: 5}, 1)]
    assert site_fills(unlike, 0, [ServerFill(0, 3), ServerFill(1, 5)], fills) == [
        RackFill(0, 1, ((0, 2), (1, 1))),
        RackFill(0, 1, ((0, 1), (1, 1))),
        RackFill(0, 1, ((1, 3),)),
    ]


# Goals ----------------------------------------------------------------------------------------


def test_sums_are_scaled_to_whole_coefficients() -> None:
    half = LinearGoal({0: F(1, 2), 1: F(3, 4), 2: F(0)}, F(5), 1)
    assert half.scaled() == ({0: 2, 1: 3}, F(1, 4))
    assert half.value(F(2)) == 7
    assert LinearGoal({0: F(4), 1: F(-6)}, F(0), -1).scaled() == ({0: 2, 1: -3}, F(2))
    assert LinearGoal({0: F(4)}, F(1), -1).value(F(2)) == -3
    assert LinearGoal({}, F(0), 1).scaled() == ({}, 1)
    rng = Random(9)
    for _ in range(200):
        terms = {v: F(rng.randint(-9, 9), rng.randint(1, 9)) for v in range(rng.randint(0, 4))}
        whole, unit = LinearGoal(terms, F(0), 1).scaled()
        assert {v: n * unit for v, n in whole.items()} == {v: x for v, x in terms.items() if x}


def test_quotients_are_prices_of_the_period_over_sessions_or_tokens() -> None:
    demands = (cohort(), cohort(name="b", new_tokens=30))
    problem = hall(cohorts=demands, options=(option(0, 3, 3),), period_s=F(1800))
    m = build_model(problem)
    found = quotient(m, "price_per_on_time_session")
    assert found.above == {m.used[0]: 1}  # price 2 for half an hour
    assert list(found.below.values()) == [1, 1]
    tokens = quotient(m, "price_per_million_tokens")
    assert tokens.above == found.above
    assert list(tokens.below.values()) == [F(5, 10**6), F(30, 10**6)]
