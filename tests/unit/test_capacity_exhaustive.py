"""The brute-force oracle of the capacity decision, against answers worked out by hand.

Unless a test says otherwise: one model on servers of 4 cards, 700 W and 2 an hour; an instance has
2 cards, one lane, room for everything, and serves a session of cohort "a" in 3 s; at most 3 servers
may be bought, for at least 2 and at most 6 sessions that end within 6 s.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from optimizer.capacity.exhaustive import best_capacity_exhaustively, capacity_optimum
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import (
    CapacityProblem,
    CohortDemand,
    FailureEvent,
    Option,
    RackSite,
    ServerClass,
    ServerPool,
    Tier,
)
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint

F = Fraction


def cohort(name: str = "a", **changes: Any) -> CohortDemand:
    return replace(CohortDemand(name, 0, 6, 2, 5, F(0), F(6)), **changes)


def option(index: int = 0, cards: int = 2, *services: int | None, **changes: Any) -> Option:
    footprint = Footprint("p", ParallelConfig(tp=cards), changes.get("num_servers", 1), "none")
    served = tuple(None if s is None else F(s) for s in services or (3,))
    found = Option(index, 0, 0, footprint, cards, 1, 1, 1, (), served)
    return replace(found, **changes)


def pool(**changes: Any) -> ServerPool:
    return replace(ServerPool("p", 4, 700, F(2), 1, 1, 3), **changes)


def servers(index: int = 0, count: int = 3, **changes: Any) -> ServerClass:
    return replace(ServerClass(index, 0, None, 4, count, False, (), 0), **changes)


def site(**changes: Any) -> RackSite:
    return replace(RackSite("r", 0, None, 3, 10, None, F(0)), **changes)


def event(**changes: Any) -> FailureEvent:
    return replace(FailureEvent("server", "e", (), None, (0,), None), **changes)


def fleet(*goals: str, **changes: Any) -> CapacityProblem:
    found = CapacityProblem(
        models=("m",),
        cohorts=(cohort(),),
        options=(option(),),
        pools=(pool(),),
        sites=(),
        classes=(servers(),),
        tiers=(),
        events=(),
        goals=goals or ("servers",),
        is_purchase=True,
        fixed_w=0,
        budget_w=None,
        period_s=None,
    )
    return replace(found, **changes)


def best(problem: CapacityProblem) -> tuple[Fraction | int, ...] | None:
    found = capacity_optimum(problem)
    plan = best_capacity_exhaustively(problem)
    assert (found is None) == (plan is None)
    return None if found is None else found.values


# Goals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "value"),
    [
        # a lane serves 2 sessions in 6 s: one instance on one server is enough for the least of 2
        ("price_per_hour", 2),
        ("servers", 1),
        ("racks", 0),
        ("cards", 2),
        ("power", 700),
        ("energy", 7000),
        # 2 instances on a server serve 4 sessions, a second server serves the other 2
        ("sessions", 6),
        # 1 server, 2 * 10 / 3600 for 4 sessions; 2 servers, twice that for 6
        ("price_per_on_time_session", F(2 * 10, 3600 * 4)),
        ("price_per_million_tokens", F(2 * 10 * 10**6, 3600 * 4 * 5)),
    ],
)
def test_every_goal_alone(goal: str, value: Fraction | int) -> None:
    assert best(fleet(goal, period_s=F(10))) == (value,)


def test_goals_come_in_order() -> None:
    assert best(fleet("sessions", "cards", "servers")) == (6, 6, 2)
    assert best(fleet("servers", "sessions", "cards")) == (1, 4, 4)
    assert best(fleet("cards", "sessions")) == (2, 2)


def test_a_quotient_comes_after_what_is_more_important() -> None:
    # 6 sessions on 2 servers, though 4 on one are cheaper each
    values = best(fleet("sessions", "price_per_on_time_session", period_s=F(10)))
    assert values == (6, F(4 * 10, 3600 * 6))


def test_tokens_decide_which_sessions_are_taken() -> None:
    # one server, 4 sessions: those of "b" have 7 tokens each, of "a" 5; one of "a" is a must
    cohorts = (cohort(min_sessions=1), cohort("b", min_sessions=0, new_tokens=7))
    problem = fleet(
        "servers",
        "price_per_million_tokens",
        cohorts=cohorts,
        options=(option(0, 2, 3, 3),),
        period_s=F(36),
    )
    assert best(problem) == (1, F(2 * 36 * 10**6, 3600 * (5 + 3 * 7)))


def test_a_quotient_over_no_session_is_no_answer() -> None:
    nobody = replace(fleet(period_s=F(10)), cohorts=(cohort(min_sessions=0, deadline_s=F(2)),))
    assert best(nobody) == (0,)
    assert best(replace(nobody, goals=("price_per_on_time_session",))) is None
    assert best(replace(nobody, goals=("price_per_million_tokens",))) is None


def test_the_plan_says_who_serves_what() -> None:
    problem = fleet("servers", "sessions", cohorts=(cohort(num_sessions=3),))
    lane = LaneLoad(1, ((0, 2),)), LaneLoad(1, ((0, 1),))
    plan = best_capacity_exhaustively(problem)
    assert plan is not None
    assert (plan.racks, plan.loads_after) == ((), ())
    assert plan.servers == (ServerFill(0, 1, ((0, 2),)),)
    assert set(plan.loads) == {GroupLoad(0, 1, (one,)) for one in lane}


# Servers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cards", "least"), [(4, 1), (5, None), (3, 1), (1, 1)])
def test_an_instance_needs_its_cards_on_one_server(cards: int, least: int | None) -> None:
    values = best(fleet(options=(option(0, cards),)))
    assert values == (None if least is None else (least,))


def test_sizes_that_do_not_divide_each_other_share_a_server() -> None:
    # 5 cards: 2 + 3 serve "a" and "b"; of 4 cards two servers are needed
    cohorts = (cohort(min_sessions=1), cohort("b", min_sessions=1))
    options = (option(0, 2, 3, None), option(1, 3, None, 3))
    five = fleet(cohorts=cohorts, options=options, pools=(pool(num_cards=5),))
    assert best(replace(five, classes=(servers(free_cards=5),))) == (1,)
    assert best(fleet(cohorts=cohorts, options=options)) == (2,)


def test_servers_of_a_group_come_together() -> None:
    assert best(fleet(pools=(pool(servers_per_group=2),))) == (2,)
    assert best(fleet(pools=(pool(servers_per_group=3),))) == (3,)
    four = pool(servers_per_group=4)
    assert best(fleet(pools=(four,))) is None
    assert best(fleet(pools=(replace(four, num_servers=4),), classes=(servers(count=4),))) == (4,)


def test_a_pool_gives_no_more_servers_than_it_has() -> None:
    # three classes of one server each, all three servers are needed for 12 sessions
    demand = (cohort(num_sessions=12, min_sessions=12),)
    classes = tuple(servers(j, 1) for j in range(3))
    assert best(fleet(cohorts=demand, classes=classes)) == (3,)
    assert best(fleet(cohorts=demand, classes=classes, pools=(pool(num_servers=2),))) is None


def test_power_and_tiers_take_of_the_budget() -> None:
    demand = (cohort(min_sessions=6),)  # two servers, 8 endpoints
    tiers = (Tier("t", 7, 100, F(9)), Tier("u", 8, 5000, F(1)))
    problem = fleet("price_per_hour", cohorts=demand, tiers=tiers, fixed_w=50)
    assert best(replace(problem, budget_w=50 + 2 * 700 + 100)) == (2 * 2 + 9,)
    assert best(replace(problem, budget_w=50 + 2 * 700 + 99)) is None


def test_existing_servers_that_are_occupied_are_on_and_cost_nothing() -> None:
    # one server has 2 free cards and serves 2 sessions; the third and fourth need another server
    classes = (servers(0, 1), servers(1, 1, free_cards=2, is_occupied=True))
    goals = ("price_per_hour", "servers", "power", "cards")
    problem = fleet(*goals, classes=classes, is_purchase=False)
    assert best(problem) == (0, 0, 700, 2)
    demand = (cohort(min_sessions=3),)
    assert best(replace(problem, cohorts=demand)) == (2, 1, 1400, 4)
    assert best(replace(problem, cohorts=demand, budget_w=1400)) == (2, 1, 1400, 4)
    assert best(replace(problem, cohorts=demand, budget_w=1399)) is None
    # its four cards hang on the network anyway: 4 endpoints, then 8
    tier = (Tier("t", 3, 0, F(5)), Tier("u", 7, 0, F(11)))
    assert best(replace(problem, tiers=tier)) == (5, 0, 700, 2)
    assert best(replace(problem, cohorts=demand, tiers=tier)) == (18, 1, 1400, 4)


def test_existing_servers_without_instances_are_off() -> None:
    assert best(fleet("power", is_purchase=False)) == (700,)
    nothing = (cohort(min_sessions=0),)
    assert best(fleet("power", "servers", is_purchase=False, cohorts=nothing)) == (0, 0)


# Several servers --------------------------------------------------------------------------------


def test_an_instance_over_several_servers_has_them_whole_and_in_one_cell() -> None:
    wide = option(0, 4, 3, num_servers=2)
    together = tuple(servers(j, 1) for j in range(2))
    apart = (servers(0, 1), servers(1, 1, cell=1))
    busy = (servers(0, 1), servers(1, 1, free_cards=3, is_occupied=True))
    for classes, expected in ((together, (2,)), (apart, None)):
        assert best(fleet(options=(wide,), classes=classes)) == expected
    assert best(fleet(options=(wide,), classes=busy, is_purchase=False)) is None
    assert best(fleet("cards", options=(wide,), is_purchase=False)) == (8,)


def test_three_servers_hold_one_instance_over_two() -> None:
    wide = (option(0, 4, 3, num_servers=2),)
    assert best(fleet("sessions", "servers", options=wide)) == (2, 2)
    four = {"classes": (servers(count=4),), "pools": (pool(num_servers=4),)}
    assert best(fleet("sessions", "servers", options=wide, **four)) == (4, 4)


# Racks ------------------------------------------------------------------------------------------


def racked(*goals: str, units: int = 10, **changes: Any) -> CapacityProblem:
    """Three servers of 3 units must be bought, in racks of one site."""
    problem = fleet(*goals, cohorts=(cohort(num_sessions=12, min_sessions=12),))
    return replace(
        problem,
        pools=(pool(rack_units=3),),
        classes=(servers(site=0),),
        sites=(site(units=units, **changes),),
    )


@pytest.mark.parametrize(
    ("limits", "racks"),
    [
        ({"units": 9}, 1),
        ({"units": 8}, 2),
        ({"units": 5}, 3),
        ({"units": 5, "count": 2}, None),
        ({"units": 2}, None),
        ({"limit_w": 2100}, 1),
        ({"limit_w": 2099}, 2),
        ({"limit_w": 1399}, 3),
        ({"limit_w": 699}, None),
    ],
)
def test_racks_hold_units_and_watts(limits: dict[str, Any], racks: int | None) -> None:
    values = best(racked("racks", "price_per_hour", price_per_hour=F(7), **limits))
    assert values == (None if racks is None else (racks, 3 * 2 + 7 * racks))


def test_the_plan_fills_racks() -> None:
    plan = best_capacity_exhaustively(racked("racks", units=6))
    assert isinstance(plan, CapacityPlan)
    assert set(plan.racks) == {RackFill(0, 1, ((0, 2),)), RackFill(0, 1, ((0, 1),))}
    assert plan.servers == (ServerFill(0, 3, ((0, 2),)),)


def test_unlike_servers_fill_racks_that_neither_fills_alone() -> None:
    # 2 servers of 3 units and 2 of 2 units: racks of 5 hold one of each
    pools = (pool(rack_units=3), pool(name="q", rack_units=2))
    classes = (servers(0, 2, site=0), servers(1, 2, pool=1, site=0, cell=1))
    options = (option(0), option(1, pool=1))
    demand = (cohort(num_sessions=16, min_sessions=16),)
    problem = fleet("racks", pools=pools, classes=classes, options=options, cohorts=demand)
    assert best(replace(problem, sites=(site(units=5, count=9),))) == (2,)
    assert best(replace(problem, sites=(site(units=4, count=9),))) == (3,)
    assert best(replace(problem, sites=(site(units=3, count=9),))) == (4,)


def test_an_existing_rack_feeds_servers_in_use_and_occupied_ones() -> None:
    sites = (site(number=0, count=1, limit_w=1400, price_per_hour=F(3)),)
    classes = (servers(0, 2, site=0), servers(1, 1, site=0, free_cards=1, is_occupied=True))
    problem = fleet("racks", "price_per_hour", sites=sites, classes=classes, is_purchase=False)
    assert best(problem) == (1, 3 + 2)  # one server beside the occupied one
    six = replace(problem, cohorts=(cohort(min_sessions=6),))
    assert best(six) is None
    assert best(replace(six, sites=(replace(sites[0], limit_w=2100),))) == (1, 3 + 2 * 2)
    assert best(replace(six, sites=(replace(sites[0], limit_w=2099),))) is None


# Failures ---------------------------------------------------------------------------------------


def test_a_server_is_lost_and_the_others_serve() -> None:
    classes = tuple(servers(j, 1) for j in range(3))
    losses = tuple(event(classes=(j,), min_sessions=(2,)) for j in range(3))
    problem = fleet("servers", "sessions", classes=classes, events=losses)
    assert best(problem) == (2, 6)  # 4 sessions on what is left
    more = tuple(replace(e, min_sessions=(5,)) for e in losses)
    assert best(replace(problem, events=more)) == (3, 6)
    every = (cohort(num_sessions=12, min_sessions=2),)
    assert best(replace(problem, cohorts=every, goals=("worst_case_sessions",))) == (8,)
    nine = tuple(replace(e, min_sessions=(9,)) for e in losses)
    assert best(replace(problem, cohorts=every, events=nine)) is None


def test_expected_sessions_weigh_every_failure() -> None:
    # all 6 sessions on 2 servers; without either of them 4; 2/10 of 4 and 8/10 of 6
    classes = tuple(servers(j, 1) for j in range(2))
    losses = tuple(event(classes=(j,), probability=F(1, 10)) for j in range(2))
    problem = fleet("expected_sessions", classes=classes, events=losses)
    assert best(problem) == (F(4 * 2 + 6 * 8, 10),)
    # with 3 servers every loss leaves 8 of 6
    three = tuple(servers(j, 1) for j in range(3))
    assert best(replace(problem, classes=three, goals=("expected_sessions", "servers"))) == (6, 3)


def test_a_card_takes_one_instance_of_its_option() -> None:
    losses = (event(kind="card", option=0, min_sessions=(2,)),)
    assert best(fleet("cards", events=losses)) == (4,)
    assert best(fleet("cards", events=(replace(losses[0], min_sessions=(0,)),))) == (2,)
    # nothing happens where the option is not in use: the other one serves all
    options = (option(), option(1, 4))
    two = (*losses, event(kind="card", option=1, min_sessions=(2,)))
    assert best(fleet("cards", options=options, events=two)) == (4,)
    assert best(fleet("cards", events=losses, classes=(servers(free_cards=3, count=1),))) is None


def test_a_lost_server_takes_an_instance_over_several_with_it() -> None:
    wide = (option(0, 4, 3, num_servers=2),)
    classes = tuple(servers(j, 1) for j in range(4))
    losses = tuple(event(classes=(j,), min_sessions=(2,)) for j in range(4))
    problem = fleet(options=wide, classes=classes, events=losses, pools=(pool(num_servers=4),))
    assert best(problem) == (4,)
    none = tuple(replace(e, min_sessions=(0,)) for e in losses)
    assert best(replace(problem, events=none)) == (2,)
    assert best(replace(problem, events=none, goals=("worst_case_sessions", "sessions"))) == (2, 4)


def test_a_cell_is_lost_with_all_its_instances() -> None:
    wide = (option(0, 4, 3, num_servers=2),)
    classes = (servers(0, 4), servers(1, 2, cell=1))
    losses = (event(kind="rack", classes=(0,)), event(kind="rack", classes=(1,)))
    six = {"pools": (pool(num_servers=6),), "options": wide, "classes": classes}
    demand = (cohort(num_sessions=9, min_sessions=0),)
    problem = fleet("worst_case_sessions", "sessions", events=losses, cohorts=demand, **six)
    assert best(problem) == (2, 6)
    assert best(replace(problem, events=losses[1:])) == (4, 6)


def test_an_event_that_takes_nothing_still_has_sessions() -> None:
    problem = fleet("worst_case_sessions", events=(event(min_sessions=(3,)),))
    found = capacity_optimum(problem)
    assert found is not None
    assert found.values == (6,)
    assert len(found.plan.loads_after) == 1


def test_without_anything_to_lose_the_worst_case_is_none() -> None:
    assert best(fleet("worst_case_sessions")) == (6,)
    assert best(fleet("expected_sessions", "servers")) == (6, 2)


# Size -------------------------------------------------------------------------------------------


def test_what_takes_too_many_steps_is_refused() -> None:
    assert best_capacity_exhaustively(fleet(), max_steps=1000) is not None
    with pytest.raises(TooLargeError, match="more than 10 steps"):
        best_capacity_exhaustively(fleet(), max_steps=10)


def test_nothing_to_buy_and_nothing_to_run() -> None:
    nobody = (cohort(min_sessions=0),)
    assert best(fleet(classes=(), cohorts=nobody)) == (0,)
    assert best(fleet(classes=())) is None
    assert best(fleet(options=(), cohorts=nobody)) == (0,)
    assert best(fleet(options=())) is None
