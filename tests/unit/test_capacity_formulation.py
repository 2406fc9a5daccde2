"""The integer program of capacity: what every solver says of problems by hand.

Unless a case says otherwise servers have 4 cards, draw 800 W and cost 2; an instance has one card
and one lane, on which a session takes 3 s, so that two of the six sessions end by 6 s.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from capacity_bounds import F, cohort, hall, option, pool, rack, servers
from capacity_bounds import tier as switches
from formulations.capacity import CapacityOutcome, solve_capacity
from formulations.capacity_columns import ColumnsOutcome
from formulations.integer_program import BACKENDS
from optimizer.capacity.exhaustive_sessions import SessionSets, Steps
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem, FailureEvent
from optimizer.protocols import Termination

solvers = pytest.mark.parametrize("backend", BACKENDS)


def chats(*goals: str, number: int = 6, least: int | None = None, **changes: Any) -> Any:
    """Sessions of 5 tokens, all of which must be served unless told, two of them a card."""
    one = cohort(num_sessions=number, min_sessions=number if least is None else least)
    return hall(*goals, **{"cohorts": (one,), "options": (option(),)} | changes)


def solved(problem: CapacityProblem, backend: str, seconds: float = 60) -> CapacityOutcome:
    found = solve_capacity(problem, backend, deadline=time.monotonic() + seconds)
    assert isinstance(found, CapacityOutcome)
    return found


def instances_of(problem: CapacityProblem, plan: CapacityPlan) -> tuple[int, ...]:
    held = Counter[int]()
    for fill in plan.servers:
        taken = sum(problem.options[k].cards_per_server * n for k, n in fill.blocks)
        assert taken <= problem.classes[fill.server_class].free_cards
        held.update({k: n * fill.count for k, n in fill.blocks})
        if fill.spanned_by is not None:
            held[fill.spanned_by] += fill.count
    return tuple(held[o.index] // o.num_servers for o in problem.options)


def dealt(problem: CapacityProblem, plan: CapacityPlan) -> tuple[int, ...]:
    """Sessions of every cohort in the healthy loads, which the plan's instances can serve."""
    served = Counter[int]()
    for group in plan.loads:
        for lane in group.lanes:
            served.update({c: group.count * lane.count * n for c, n in lane.runs})
    counts = tuple(served[c] for c in range(len(problem.cohorts)))
    assert SessionSets(problem, Steps(10**6)).of(instances_of(problem, plan))[counts]
    return counts


def check_best(problem: CapacityProblem, backend: str, *values: Any) -> CapacityPlan:
    """The values are proven to be the best, and the plan serves what it must."""
    found = solved(problem, backend)
    assert found.termination is Termination.OPTIMAL
    assert found.value == found.bound == values
    assert found.plan is not None
    for n, one in zip(dealt(problem, found.plan), problem.cohorts, strict=True):
        assert one.min_sessions <= n <= one.num_sessions
    return found.plan


# Status ---------------------------------------------------------------------------------------


@solvers
def test_what_just_fits_and_what_just_does_not(backend: str) -> None:
    # 8 sessions a server, 6 servers of price 2
    for number, value in ((8, 2), (9, 4), (48, 12)):
        plan = check_best(chats(number=number), backend, value)
        assert sum(fill.count for fill in plan.servers) == value // 2
    found = solved(chats(number=49), backend)
    assert found == CapacityOutcome(Termination.INFEASIBLE)
    # a session takes 3 s
    check_best(
        chats(cohorts=(cohort(num_sessions=1, min_sessions=1, deadline_s=F(3)),)), backend, 2
    )
    late = cohort(num_sessions=1, min_sessions=1, deadline_s=F(299, 100))
    assert solved(chats(cohorts=(late,)), backend).termination is Termination.INFEASIBLE


@solvers
@pytest.mark.parametrize(
    ("fits", "fails"),
    [
        ({"budget_w": 1600}, {"budget_w": 1599}),
        ({"budget_w": 1601, "fixed_w": 1}, {"budget_w": 1600, "fixed_w": 1}),
        ({"sites": (rack(1, 2),)}, {"sites": (rack(1, 1),)}),
        ({"sites": (rack(2, 1, limit_w=800),)}, {"sites": (rack(2, 1, limit_w=799),)}),
        ({"pools": (pool(num_servers=2),)}, {"pools": (pool(num_servers=1),)}),
        (
            {"pools": (pool(num_servers=2, servers_per_group=2),)},
            {"pools": (pool(num_servers=2, servers_per_group=3),)},
        ),
    ],
)
def test_rules_of_two_servers(backend: str, fits: dict[str, Any], fails: dict[str, Any]) -> None:
    """Sixteen sessions need two servers."""
    for changes, status in ((fits, Termination.OPTIMAL), (fails, Termination.INFEASIBLE)):
        classes = (servers(0, site=0 if "sites" in changes else None),)
        found = solved(chats(number=16, classes=classes, **changes), backend)
        assert found.termination is status
        assert found.value == ((4,) if status is Termination.OPTIMAL else None)


@solvers
def test_without_time_nothing_is_claimed(backend: str) -> None:
    problem = chats("price_per_hour", "servers")
    nothing = CapacityOutcome(Termination.NO_SOLUTION_FOUND, bound=(None, None))
    assert solved(problem, backend, -1) == nothing
    stop = threading.Event()
    stop.set()
    assert solve_capacity(problem, backend, deadline=time.monotonic() + 60, stop=stop) == nothing


@solvers
def test_a_hundredth_of_a_second_is_no_reason_to_be_wrong(backend: str) -> None:
    """Two pools of unlike servers, and three cohorts that share them."""
    demands = tuple(cohort(name=name, num_sessions=3, min_sessions=3) for name in "abc")
    sizes = ((1, 2, 3, 3), (2, 3, 2, None), (4, 1, 1, 1))
    options = tuple(
        option(k, *times, cards_per_server=cards, pool=k % 2)
        for k, (cards, *times) in enumerate(sizes)
    )
    problem = hall(
        "price_per_hour",
        "servers",
        cohorts=demands,
        options=options,
        pools=(pool(), pool(name="q", price_per_hour=F(3))),
        classes=(servers(0), servers(1, pool=1)),
    )
    best = solved(problem, backend)
    assert best.termination is Termination.OPTIMAL
    assert best.value is not None
    for seconds in (0.001, 0.01, 0.05):
        found = solved(problem, backend, seconds)
        assert found.termination is not Termination.INFEASIBLE
        assert (found.plan is None) == (found.termination is Termination.NO_SOLUTION_FOUND)
        if found.termination is Termination.OPTIMAL:
            assert found.value == best.value
        else:
            assert found.value is None
        if found.plan is not None:
            assert dealt(problem, found.plan) == (3, 3, 3)
        assert found.bound is not None
        if found.bound[0] is not None:
            assert found.bound[0] <= best.value[0]


def test_solvers_by_name() -> None:
    with pytest.raises(ValueError, match="no solver is named 'other'"):
        solved(chats(), "other")
    found = solve_capacity(chats(), "columns", deadline=time.monotonic() + 60)
    assert isinstance(found, ColumnsOutcome)
    assert found.value == (2,)


# Goals ----------------------------------------------------------------------------------------


def two_pools(*goals: str, price: int = 5, **changes: Any) -> CapacityProblem:
    """32 sessions, 16 cards: four servers of p (4 cards, price 2) or two of q (8 cards)."""
    fields = {
        "options": (option(0), option(1, pool=1)),
        "pools": (pool(), pool(name="q", num_cards=8, power_w=1500, price_per_hour=F(price))),
        "classes": (servers(0), servers(1, pool=1, free_cards=8)),
    }
    return chats(*goals, number=32, **fields | changes)


@solvers
@pytest.mark.parametrize(
    ("goals", "price", "values"),
    [
        (("price_per_hour", "servers"), 5, (8, 4)),
        (("servers", "price_per_hour"), 5, (2, 10)),
        # as dear as four of p: fewer servers decide
        (("price_per_hour", "servers"), 4, (8, 2)),
        (("price_per_hour", "power"), 4, (8, 3000)),
        # one of q and two of p are three servers; four of p draw 3200 W, two of q 3000 W
        (("power", "servers"), 5, (3000, 2)),
        (("cards", "servers", "price_per_hour"), 5, (16, 2, 10)),
        (("cards", "price_per_hour", "servers"), 5, (16, 8, 4)),
    ],
)
def test_goals_come_in_their_order(
    backend: str, goals: tuple[str, ...], price: int, values: tuple[int, ...]
) -> None:
    check_best(two_pools(*goals, price=price), backend, *values)


@solvers
def test_goals_of_tiers_racks_power_and_energy(backend: str) -> None:
    """16 sessions: two servers, 8 endpoints."""
    goals = ("price_per_hour", "racks", "power", "energy")
    problem = chats(
        *goals,
        number=16,
        tiers=(switches(7), switches(8)),
        sites=(rack(3, 1, price_per_hour=F(1, 3)),),
        classes=(servers(0, site=0),),
        fixed_w=100,
        period_s=F(10),
    )
    # 2 · 2 + 2 · 1/3 + 7; 100 + 2 · 800 + 500; for 10 s
    check_best(problem, backend, F(35, 3), 2, 2200, 22_000)


@solvers
def test_more_sessions_are_better(backend: str) -> None:
    """With 9 of 50 that must be served, 48 can be, on all six servers; or 9 on two."""
    check_best(chats("sessions", "servers", number=50, least=9), backend, 48, 6)
    check_best(chats("servers", "sessions", number=50, least=9), backend, 2, 16)
    check_best(chats("sessions", "servers", number=41, least=9), backend, 41, 6)
    check_best(chats("sessions", "servers", number=40, least=9), backend, 40, 5)
    check_best(chats("price_per_hour", "sessions", number=40, least=0), backend, 0, 0)


@solvers
@pytest.mark.parametrize(
    ("number", "value"),
    [
        (30, F(15, 30)),  # 4 servers and the tier: 4 · 2 + 7; 3 servers: 13/24
        (26, F(13, 24)),  # 15/26 is more than 13/24
        (28, F(15, 28)),  # 15/28 = 0.5357 is less than 13/24 = 0.5417
        (8, F(9, 8)),
    ],
)
def test_the_least_price_for_a_session(backend: str, number: int, value: F) -> None:
    fields = {"number": number, "least": 0, "tiers": (switches(0),), "period_s": F(3600)}
    by_session = chats("price_per_on_time_session", **fields)
    plan = check_best(by_session, backend, value)
    assert dealt(by_session, plan) == (
        min(number, 8 * (number // 8) if value == F(13, 24) else 99),
    )
    # half an hour costs half; a session has 5 tokens
    half = replace(by_session, period_s=F(1800))
    check_best(half, backend, value / 2)
    by_token = replace(by_session, goals=("price_per_million_tokens",))
    check_best(by_token, backend, value * 10**6 / 5)
    # all sessions first: 15/26 it is
    every = replace(by_session, goals=("sessions", "price_per_on_time_session"))
    check_best(every, backend, number, F(7 + 2 * math.ceil(number / 8), number))


@solvers
def test_tokens_and_sessions_are_not_the_same(backend: str) -> None:
    """One server: four of b (30 tokens, 6 s), eight of a (5 tokens, 3 s), one b for two a."""
    demands = (
        cohort(num_sessions=20, min_sessions=0),
        cohort(name="b", num_sessions=4, min_sessions=0, new_tokens=30),
    )
    fields = {"options": (option(0, 3, 6),), "pools": (pool(num_servers=1),), "period_s": F(3600)}
    problem = hall("price_per_on_time_session", cohorts=demands, **fields)
    assert dealt(problem, check_best(problem, backend, F(2, 8))) == (8, 0)
    by_token = replace(problem, goals=("price_per_million_tokens",))
    assert dealt(by_token, check_best(by_token, backend, F(2 * 10**6, 4 * 30))) == (0, 4)


@solvers
def test_a_quotient_over_nobody_has_no_value(backend: str) -> None:
    goal = "price_per_on_time_session"
    for number, status in ((1, Termination.OPTIMAL), (0, Termination.INFEASIBLE)):
        found = solved(chats(goal, number=number, least=0, period_s=F(3600)), backend)
        assert found.termination is status
        assert found.value == ((2,) if number else None)


def failing(*goals: str, least: int = 0) -> CapacityProblem:
    """Two servers that fail alone, by 1/10 and 1/5; twelve sessions, eight of which one serves."""
    events = tuple(
        FailureEvent("server", f"s{e}", (e,), None, (least,), share)
        for e, share in enumerate((F(1, 10), F(1, 5)))
    )
    classes = tuple(servers(c, 1, servers=(c,)) for c in range(2))
    fields = {"classes": classes, "events": events, "is_purchase": False}
    return chats(*goals, number=12, least=0, **fields)


@solvers
def test_sessions_after_failures(backend: str) -> None:
    check_best(failing("worst_case_sessions", "servers"), backend, 8, 2)
    # 7/10 · 12 + 3/10 · 8
    check_best(failing("expected_sessions", "servers"), backend, F(54, 5), 2)
    check_best(failing("servers", "expected_sessions"), backend, 0, 0)
    check_best(failing("servers", "worst_case_sessions", least=1), backend, 2, 8)
    # three cards on each server: either way three are left
    check_best(failing("sessions", "cards", "worst_case_sessions"), backend, 12, 6, 6)
    assert solved(failing("servers", least=9), backend).termination is Termination.INFEASIBLE
    check_best(failing("servers", least=8), backend, 2)
