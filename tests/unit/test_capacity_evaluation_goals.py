"""What capacity plans come to, by hand: prices, power, energy, sessions, and what may run out.

A DGX H100 has eight cards and draws up to 10.2 kW (section 6.5.2). With TP1 a session of two tokens
after 10 takes 6368 ns (see `tests/unit/test_evaluate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

from instances import Instance, parse_instance
from optimizer.capacity.account import CapacityEvaluation, PowerPart, Resource
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import GOAL_UNITS, CapacityProblem
from tiny_parts import CARD, FABRIC, MODEL, Json

SERVER = {"name": "s", "accelerator": CARD, "num_cards": 8, "power_w": "10.2kW", "fabric": FABRIC}
STEPS = {"context_tokens": 10, "new_tokens": 2}


class Case(NamedTuple):
    """A problem instance and the data of its decision."""

    source: Instance
    problem: CapacityProblem


def pool(servers: int = 20, name: str = "hgx", power_w: str | None = "10.2kW", **more: Any) -> Json:
    """Return a pool of servers of eight cards."""
    return {"name": name, "server": {**SERVER, "power_w": power_w}, "num_servers": servers, **more}


def case(
    *pools: Json,
    mode: str = "purchase",
    goals: Sequence[str] = ("servers",),
    period: str | None = None,
    failures: Sequence[Json] = (),
    sessions: Sequence[int] = (1000,),
    **fleet: Any,
) -> Case:
    """Return the problem of a fleet that serves as many of each cohort as it likes, with TP1."""
    cohorts = [
        {"name": f"c{i}", "num_sessions": number, **STEPS, "new_tokens": 2 * i + 2}
        for i, number in enumerate(sessions)
    ]
    instance = parse_instance(
        {
            "name": "unit",
            "decision": "capacity",
            "model": MODEL,
            "fleet": {"mode": mode, "pools": list(pools) or [pool()], **fleet},
            "workload": {"cohorts": cohorts, "min_on_time_fraction": "0%"},
            "runtime": {"workspace_bytes": 100},
            "search": {"tp": [1]},
            "capacity": {"goals": list(goals), "period_s": period, "failures": list(failures)},
        }
    )
    return Case(instance, build_capacity(instance).problem)


def judge(
    case: Case,
    *servers: ServerFill,
    racks: Sequence[RackFill] = (),
    loads: Sequence[GroupLoad] = (),
    after: Sequence[Sequence[GroupLoad]] = (),
) -> CapacityEvaluation:
    """Return the account of a plan."""
    deals = tuple(tuple(deal) for deal in after)
    plan = CapacityPlan(tuple(racks), servers, tuple(loads), deals)
    return evaluate_capacity(case.source, case.problem, plan)


def full(count: int, server_class: int = 0, option: int = 0, number: int = 8) -> ServerFill:
    """Return servers with so many instances of an option each."""
    return ServerFill(server_class, count, ((option, number),))


def over(judged: CapacityEvaluation) -> list[tuple[str, Fraction | int]]:
    """Return the rules that a plan breaks, and by how much."""
    return [(v.rule, v.amount) for v in judged.violations]


def resource(judged: CapacityEvaluation, name: str) -> tuple[int, int | None, str]:
    """Return what is used of a resource, the most of it, and its unit."""
    found = [r for r in judged.resources if r.name == name]
    assert len(found) == 1, [r.name for r in judged.resources]
    return found[0].used, found[0].most, found[0].unit


@pytest.mark.parametrize(("budget", "most"), [("120kW", 11), ("150kW", 14)])
def test_so_many_servers_of_10_2_kw_fit_into_a_budget_and_not_one_more(
    budget: str, most: int
) -> None:
    # (6-11): 120 / 10.2 = 11.8, 88 cards of 112.2 kW; 150 / 10.2 = 14.7, 112 cards of 142.8 kW.
    building = case(power={"budget_w": budget})
    judged = judge(building, full(most))
    assert judged.is_feasible
    assert (judged.values["cards"], judged.power_w) == (8 * most, 10_200 * most)
    watts = int(budget.removesuffix("kW")) * 1000
    assert resource(judged, "power") == (10_200 * most, watts, "W")
    # 12 draw 122.4 kW, 15 draw 153 kW
    assert over(judge(building, full(most + 1))) == [("power", 10_200 * (most + 1) - watts)]


def test_fixed_power_leaves_fewer_servers() -> None:
    # (120 - 7.8) / 10.2 = 11 exactly; with 7.801 kW eleven draw a watt too much
    building = case(power={"budget_w": "120kW", "fixed_w": "7.8kW"})
    assert judge(building, full(11)).is_feasible
    tighter = case(power={"budget_w": "120kW", "fixed_w": "7801W"})
    assert over(judge(tighter, full(11))) == [("power", 1)]


def test_a_second_switch_tier_of_10_2_kw_comes_after_64_cards() -> None:
    tier = {"name": "spine", "above_endpoints": 64, "power_w": "10.2kW", "price_per_hour": 7}
    building = case(pool(price_per_hour=2), power={"budget_w": "120kW"}, switch_tiers=[tier])
    eight = judge(building, full(8))
    # 8 servers: 64 cards, 81.6 kW, 16 an hour
    assert (eight.tiers, eight.power_w, eight.values["price_per_hour"]) == ((), 81_600, 16)
    assert resource(eight, "endpoints before tier spine") == (64, 64, "cards")
    nine = judge(building, full(9))
    # 9 servers: 72 cards, 91.8 + 10.2 = 102 kW, 18 + 7 an hour
    assert (nine.tiers, nine.power_w) == (("spine",), 102_000)
    assert nine.values["price_per_hour"] == 25
    assert resource(nine, "endpoints") == (72, None, "cards")
    # 10 servers, 80 cards, draw 112.2 kW; 11 draw 122.4 kW, 2.4 too many
    assert judge(building, full(10)).is_feasible
    assert over(judge(building, full(11))) == [("power", 2_400)]
    # an idle server's cards hang on the network as well
    assert judge(building, full(8), ServerFill(0, 1)).tiers == ("spine",)


def test_of_several_tiers_those_below_the_endpoints_are_needed() -> None:
    tiers = [
        {"name": "core", "above_endpoints": 64, "power_w": 300, "price_per_hour": 5},
        {"name": "leaf", "above_endpoints": 0, "power_w": 100, "price_per_hour": 1},
        {"name": "spine", "above_endpoints": 16, "power_w": 200, "price_per_hour": 3},
    ]
    building = case(pool(price_per_hour=0), switch_tiers=tiers)
    for servers, names, watts, price, following in (
        (0, (), 0, 0, (0, 0)),
        (2, ("leaf",), 100, 1, (16, 16)),
        (3, ("leaf", "spine"), 300, 4, (24, 64)),
        (9, ("core", "leaf", "spine"), 600, 9, (72, None)),
    ):
        judged = judge(building, full(servers))
        assert judged.tiers == names
        assert judged.power_w == watts + 10_200 * servers
        assert judged.values["price_per_hour"] == price
        ends = [r for r in judged.resources if r.name.startswith("endpoints")]
        assert [(r.used, r.most) for r in ends] == [following]


def test_servers_only_in_fours() -> None:
    fours = case(pool(servers_per_group=4), power={"budget_w": "120kW"})
    assert judge(fours, full(8)).is_feasible
    assert judge(fours, full(6), ServerFill(0, 2)).is_feasible
    # of the eleven that the power would feed, three are no group
    assert over(judge(fours, full(11))) == [("group", 3)]
    assert over(judge(fours, full(12))) == [("power", 2_400)]


def test_an_air_cooled_rack_of_40_kw_holds_three_servers() -> None:
    rack = {"name": "air", "count": 6, "units": 42, "power_w": "40kW", "price_per_hour": 9}
    racks = case(pool(rack_units=8, price_per_hour=2), racks=[rack])
    judged = judge(racks, full(7), racks=[RackFill(0, 2, ((0, 3),)), RackFill(0, 1, ((0, 1),))])
    # 3 · 10.2 = 30.6 kW in the fullest, 3 · 8 = 24 units; three racks of 9 and seven servers of 2
    assert judged.is_feasible
    assert (judged.racks, judged.servers) == ((3,), (7,))
    assert judged.values["racks"] == 3
    assert judged.values["price_per_hour"] == 3 * 9 + 7 * 2
    assert resource(judged, "racks air") == (3, 6, "racks")
    assert resource(judged, "units of the fullest rack air") == (24, 42, "units")
    assert resource(judged, "power of the fullest rack air") == (30_600, 40_000, "W")
    # four draw 40.8 kW
    four = judge(racks, full(4), racks=[RackFill(0, 1, ((0, 4),))])
    assert over(four) == [("rack_power", 800)]


def test_power_is_listed_by_its_parts() -> None:
    tiers = [
        {"name": "leaf", "above_endpoints": 8, "power_w": 50},
        {"name": "spine", "above_endpoints": 99, "power_w": 70},
    ]
    two = case(
        pool(),
        pool(5, "small", "3kW"),
        power={"budget_w": "1MW", "fixed_w": 120},
        switch_tiers=tiers,
    )
    judged = judge(two, full(1), full(2, 1, 1), ServerFill(1, 1))
    assert judged.power == (
        PowerPart("fixed", 1, 120),
        PowerPart("servers of hgx", 1, 10_200),
        PowerPart("servers of small", 3, 3_000),
        PowerPart("tier leaf", 1, 50),
        PowerPart("tier spine", 0, 70),
    )
    # 120 + 10200 + 9000 + 50
    assert judged.power_w == judged.values["power"] == 19_370


def test_all_pools_and_all_fills_of_a_class_are_counted() -> None:
    two = case(pool(price_per_hour=2), pool(5, "small", "3kW", price_per_hour="0.5"))
    judged = judge(two, full(1), full(2, number=3), full(2, 1, 1), full(1, 1, 1, 5))
    # 3 · 2 + 3 · 0.5; 1 · 8 + 2 · 3 instances on one pool, 2 · 8 + 1 · 5 on the other
    assert judged.values["price_per_hour"] == Fraction(15, 2)
    assert (judged.servers, judged.instances) == ((3, 3), (14, 21))
    assert judged.values["cards"] == 35
    there = case(mode="existing")
    judged = judge(there, full(1), full(2, number=3))
    assert (judged.servers, judged.instances, judged.power_w) == ((3,), (14,), 30_600)


def test_an_existing_fleet_pays_servers_in_use_but_not_those_that_others_have_on() -> None:
    racks = [
        {
            "name": "r",
            "count": 3,
            "units": 16,
            "price_per_hour": 5,
            "servers": [{"pool": "hgx", "num_servers": 2}],
        }
    ]
    occupied = [{"server": 1, "cards": [0, 1, 2]}, {"server": 5, "cards": [7]}]
    hgx = pool(6, price_per_hour=2, rack_units=8, occupied=occupied)
    there = case(hgx, mode="existing", racks=racks)
    # racks r/0: server 0, and 1 with 5 free cards; r/1: 2 and 3; r/2: 4, and 5 with 7 free cards
    shown = [(c.site, c.free_cards, c.servers) for c in there.problem.classes]
    assert shown == [(0, 8, (0,)), (0, 5, (1,)), (1, 8, (2, 3)), (2, 8, (4,)), (2, 7, (5,))]
    nothing = judge(there)
    assert nothing.is_feasible
    # two servers are on for others: they draw power and nobody here pays
    assert (nothing.power_w, nothing.values["price_per_hour"]) == (20_400, 0)
    assert (nothing.racks, nothing.values["servers"]) == ((0, 0, 0), 0)
    judged = judge(there, full(1), full(1, 1, number=5), full(1, 2), full(1, 4, number=2))
    # in use: 0, 1, 2 and 5, of which 1 and 5 are on anyway. 4 · 10.2 kW; 2 servers of 2; 3 racks
    assert judged.is_feasible
    assert judged.power_w == 40_800
    assert (judged.servers, judged.values["servers"]) == ((4,), 2)
    assert (judged.racks, judged.values["racks"]) == ((1, 1, 1), 3)
    assert judged.values["price_per_hour"] == 2 * 2 + 3 * 5
    assert judged.values["cards"] == 8 + 5 + 8 + 2
    assert judged.instances == (23,)
    assert resource(judged, "servers of hgx") == (4, 6, "servers")
    assert resource(judged, "cards of hgx") == (23, 8 + 5 + 8 + 7, "cards")
    assert resource(judged, "racks r") == (3, 3, "racks")


def test_an_existing_fleet_has_the_endpoints_of_servers_that_are_on() -> None:
    # the occupied server is on: 8 cards; each in use adds 8
    tier = {"name": "spine", "above_endpoints": 16, "power_w": 5}
    occupied = [{"server": 0, "cards": [0]}]
    there = case(pool(4, occupied=occupied), mode="existing", switch_tiers=[tier])
    assert judge(there, full(1), full(1, 1, number=7)).tiers == ()
    assert judge(there, full(1), ServerFill(0, 2)).tiers == ()
    assert judge(there, full(2)).tiers == ("spine",)


def test_racks_in_use_have_no_value_where_they_are_not_told_apart() -> None:
    racks = [{"name": "r", "count": 3, "units": 16, "servers": [{"pool": "hgx", "num_servers": 2}]}]
    there = case(pool(6, rack_units=8), mode="existing", racks=racks)
    judged = judge(there, full(3))
    # three servers need two racks at least; which they stand in is open
    assert judged.racks == (2,)
    assert "racks" not in judged.values
    assert not [r for r in judged.resources if "rack" in r.name]
    apart = case(pool(6, rack_units=8), mode="existing", racks=racks, goals=["racks"])
    assert judge(apart, full(2), full(1, 2)).values["racks"] == 2
    assert judge(apart, full(1), full(1, 1), full(1, 2)).values["racks"] == 3


def lane(*runs: tuple[int, int], groups: int = 1) -> GroupLoad:
    """Return groups of option 0 with one lane each."""
    return GroupLoad(0, groups, (LaneLoad(1, runs),))


def test_prices_per_session_and_token_are_those_of_the_period() -> None:
    half = case(pool(price_per_hour="1.50"), period="30min", sessions=(10, 10))
    judged = judge(half, full(2), loads=[lane((0, 2), (1, 1), groups=3)])
    # 2 · 1.50 for half an hour are 1.50. 6 sessions of 2 tokens and 3 of 4: 9, with 24 tokens.
    assert judged.is_feasible
    assert judged.sessions == (6, 3)
    assert judged.values["price_per_hour"] == 3
    assert judged.values["price_per_on_time_session"] == Fraction(3, 2) / 9
    assert judged.values["price_per_million_tokens"] == Fraction(3, 2) / 24 * 10**6
    assert judged.values["energy"] == 20_400 * 1800
    assert judged.values["sessions"] == 9
    assert judged.values.keys() <= GOAL_UNITS.keys()
    idle = judge(half, full(2))
    assert "price_per_on_time_session" not in idle.values  # nobody to pay for
    assert "price_per_million_tokens" not in idle.values


def test_late_sessions_are_not_paid_for() -> None:
    # Within 12 735 ns one of two sessions ends.
    short = case(pool(price_per_hour=2), period="12735ns")
    judged = judge(short, full(1), loads=[lane((0, 2))])
    assert judged.sessions == (1,)
    paid = 2 * Fraction(12_735, 10**9) / 3600
    assert judged.values["price_per_on_time_session"] == paid
    assert resource(judged, "sessions of c0") == (2, 1000, "sessions")


def test_without_prices_power_or_a_period_goals_have_no_value() -> None:
    bare = judge(case(pool(power_w=None)), full(1), loads=[lane((0, 1))])
    assert bare.values == {"servers": 1, "racks": 0, "cards": 8, "sessions": 1}
    assert not [r for r in bare.resources if r.name == "power"]
    priced = judge(case(pool(price_per_hour=1)), full(1), loads=[lane((0, 1))])
    assert priced.values["price_per_hour"] == 1
    assert "price_per_on_time_session" not in priced.values
    assert (priced.values["power"], "energy" in priced.values) == (10_200, False)


def test_worst_and_expected_sessions_are_those_after_failures() -> None:
    lost = [{"kind": "server", "probability": "10%", "min_on_time_fraction": 0}]
    goals = ["worst_case_sessions", "expected_sessions"]
    two = case(pool(2), failures=lost, goals=goals)
    fills = (full(1), full(1, 1, number=2))
    after = [[lane((0, 3))], [lane((0, 4), groups=2)]]
    judged = judge(two, *fills, loads=[lane((0, 1), groups=10)], after=after)
    # 10 healthy, 3 without server 0, 8 without server 1: 0.8 · 10 + 0.1 · 3 + 0.1 · 8
    assert judged.is_feasible
    assert [(e.kind, e.name, e.sessions) for e in judged.after] == [
        ("server", "server hgx/0", (3,)),
        ("server", "server hgx/1", (8,)),
    ]
    assert judged.values["worst_case_sessions"] == 3
    assert judged.values["expected_sessions"] == Fraction(91, 10)
    assert judged.values["sessions"] == 10
    sure = [{"kind": "server", "probability": "50%", "min_on_time_fraction": 0}]
    sure_case = case(pool(2), failures=sure)
    judged = judge(sure_case, *fills, loads=[lane((0, 1), groups=10)], after=after)
    assert judged.values["expected_sessions"] == Fraction(11, 2)  # one of both: (3 + 8) / 2
    unknown = [{"kind": "server", "min_on_time_fraction": 0}]
    judged = judge(case(pool(2), failures=unknown), *fills, loads=[], after=[[], []])
    assert (judged.values["worst_case_sessions"], "expected_sessions" in judged.values) == (
        0,
        False,
    )
    often = [{"kind": "server", "probability": "60%", "min_on_time_fraction": 0}]
    judged = judge(case(pool(2), failures=often), *fills, loads=[], after=[[], []])
    assert "expected_sessions" not in judged.values  # 120% in all


def test_what_may_run_out_is_named_for_planners() -> None:
    rack = {"name": "air", "count": 6, "units": 42}
    building = case(
        pool(rack_units=8),
        power={"budget_w": "120kW"},
        racks=[rack],
        switch_tiers=[{"name": "spine", "above_endpoints": 64}],
        sessions=(10, 20),
    )
    fills = (full(2, number=3), ServerFill(0, 1))
    racks = [RackFill(0, 1, ((0, 3),))]
    judged = judge(building, *fills, racks=racks, loads=[lane((0, 2)), lane((1, 3))])
    assert judged.is_feasible
    # three sessions of 14 tokens, 32 B each, beside 3408 + 100 B; two of 12 tokens are less
    assert judged.resources == (
        Resource("power", 30_600, 120_000, "W"),
        Resource("servers of hgx", 3, 20, "servers"),
        Resource("cards of hgx", 6, 24, "cards"),
        Resource("racks air", 1, 6, "racks"),
        Resource("units of the fullest rack air", 24, 42, "units"),
        Resource("endpoints before tier spine", 24, 64, "cards"),
        Resource("sessions of c0", 2, 10, "sessions"),
        Resource("sessions of c1", 3, 20, "sessions"),
        Resource("memory of tiny, TP1 on hgx", 3508 + 3 * 14 * 32, 10**6, "B"),
    )
    assert judged.resources[2].left == 18
