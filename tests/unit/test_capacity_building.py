"""From an instance to classes, sites, cells and events of a capacity decision."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from capacity_sources import CHAT, Json, built, pool, source
from instances.errors import InputError
from optimizer.capacity.building import build_capacity
from optimizer.capacity.places import MAX_TOLD_APART
from optimizer.capacity.problem import CapacityProblem, ServerPool, Tier
from optimizer.errors import TooLargeError


def rack(name: str = "r", count: int = 2, units: int = 8, **more: Any) -> Json:
    """Return a kind of racks."""
    return {"name": name, "count": count, "units": units, **more}


def held(num: int, name: str = "p") -> list[Json]:
    """Return what stands in each rack."""
    return [{"pool": name, "num_servers": num}]


def classes(problem: CapacityProblem) -> list[tuple[int, int | None, int, int, tuple[int, ...]]]:
    """Return (pool, site, free cards, count, servers) of every class."""
    return [(c.pool, c.site, c.free_cards, c.count, c.servers) for c in problem.classes]


def test_servers_to_be_bought_without_racks_are_one_class_of_each_pool() -> None:
    problem = built(pool(servers=6), pool("q", 3, 2))
    assert classes(problem) == [(0, None, 4, 6, ()), (1, None, 2, 3, ())]
    assert (problem.sites, problem.events, problem.is_purchase) == ((), (), True)
    assert (problem.fixed_w, problem.budget_w) == (0, None)
    assert [c.is_occupied for c in problem.classes] == [False, False]


def test_existing_servers_part_by_free_cards() -> None:
    occupied = [
        {"server": 1, "cards": [0, 3]},
        {"server": 4, "cards": [2]},
        {"server": 4, "cards": [1]},
        {"server": 5, "cards": [0, 1, 2, 3]},
    ]
    problem = built(pool(servers=6, occupied=occupied), mode="existing")
    assert classes(problem) == [
        (0, None, 4, 3, (0, 2, 3)),
        (0, None, 2, 2, (1, 4)),
        (0, None, 0, 1, (5,)),
    ]
    assert [c.is_occupied for c in problem.classes] == [False, True, True]
    # three servers of 800 W and four cards are on whatever the plan
    assert (problem.occupied_w, problem.occupied_endpoints) == (2400, 12)
    assert {c.cell for c in problem.classes} == {0}
    assert problem.classes_of_pool == ((0, 1, 2),)


def test_numbers_of_existing_servers_run_through_the_racks_in_order() -> None:
    two = [{"pool": "p", "num_servers": 1}, {"pool": "q", "num_servers": 2}]
    racks = [rack("a", 2, servers=two), rack("b", 1, servers=held(3))]
    pools = (pool("p", 5, rack_units=1), pool("q", 4, rack_units=1))
    problem = built(*pools, racks=racks, mode="existing")
    # a: servers 0 and 1 of p, 0 to 3 of q; b: 2 to 4 of p
    assert classes(problem) == [
        (0, 0, 4, 2, (0, 1)),
        (1, 0, 4, 4, (0, 1, 2, 3)),
        (0, 1, 4, 3, (2, 3, 4)),
    ]
    assert [(s.name, s.number, s.count) for s in problem.sites] == [("a", None, 2), ("b", None, 1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"failures": ["rack"]},
        {"capacity": {"goals": ["racks"]}},
        {"price": 1},
        {"limit": 1599},
    ],
    ids=["fail", "counted", "priced", "limited"],
)
def test_existing_racks_are_told_apart_where_it_matters(fields: Json) -> None:
    more: Json = {"price_per_hour": fields.pop("price", 0), "power_w": fields.pop("limit", 1600)}
    # two servers of 800 W: 1600 W is no limit, 1599 W is one
    racks = [rack(count=2, servers=held(2), **more)]
    spare = pool(servers=4, rack_units=1, price_per_hour=1)
    problem = built(spare, racks=racks, mode="existing", **fields)
    assert [(s.name, s.kind, s.number, s.count) for s in problem.sites] == [
        ("r/0", 0, 0, 1),
        ("r/1", 0, 1, 1),
    ]
    assert classes(problem) == [(0, 0, 4, 2, (0, 1)), (0, 1, 4, 2, (2, 3))]
    together = built(spare, racks=[rack(count=2, power_w=1600, servers=held(2))], mode="existing")
    assert classes(together) == [(0, 0, 4, 4, (0, 1, 2, 3))]


def test_racks_to_be_bought_are_told_apart_only_where_they_fail() -> None:
    racks = [rack(count=3, power_w=1, price_per_hour=2)]
    spare = pool(rack_units=1, price_per_hour=1, servers=40)
    goals = {"goals": ["racks", "price_per_hour"]}
    problem = built(spare, racks=[rack(count=3)], capacity=goals)
    assert [(s.name, s.count) for s in problem.sites] == [("r", 3)]
    apart = built(spare, racks=[rack(count=3)], failures=["rack"])
    assert [(s.name, s.count) for s in apart.sites] == [("r/0", 1), ("r/1", 1), ("r/2", 1)]
    # a rack that feeds no server holds none
    assert built(spare, racks=racks).classes == ()


@pytest.mark.parametrize(
    ("units", "limits", "each"),
    [(8, {}, 4), (9, {}, 4), (7, {}, 3), (8, {"power_w": 2400}, 3), (8, {"power_w": 2399}, 2)],
)
def test_a_rack_holds_servers_by_units_and_watts(units: int, limits: Json, each: int) -> None:
    # a server takes 2 units and draws 800 W
    instance = source(pool(servers=100, rack_units=2), racks=[rack(count=5, units=units, **limits)])
    problem = build_capacity(instance).problem
    assert problem.rack_holds(0, 0) == each
    assert classes(problem) == [(0, 0, 4, 5 * each, ())]
    # cooling limits as power does, and a pool has no more than it has
    cooled = built(pool(servers=7, rack_units=2), racks=[rack(units=units, cooling_w=800)])
    assert classes(cooled) == [(0, 0, 4, 2, ())]
    few = built(pool(servers=7, rack_units=2), racks=[rack(count=50, units=units, **limits)])
    assert classes(few) == [(0, 0, 4, 7, ())]


def test_servers_stand_in_racks_with_their_own_cooling_only() -> None:
    racks = [rack("air", 1), rack("wet", 1, cooling="liquid")]
    pools = (pool("p", rack_units=1), pool("q", rack_units=1, cooling="liquid"))
    problem = built(*pools, racks=racks)
    assert [(c.pool, c.site) for c in problem.classes] == [(0, 0), (1, 1)]
    assert built(pools[1], racks=racks[:1]).classes == ()


def test_groups_tiers_and_budget_are_carried_over() -> None:
    tier = {"name": "spine", "above_endpoints": 64, "power_w": "10.2kW", "price_per_hour": "1.5"}
    fours = pool(servers=8, servers_per_group=4, rack_units=3, price_per_hour=2)
    power = {"budget_w": "120kW", "fixed_w": "1kW"}
    problem = built(fours, racks=[rack()], switch_tiers=[tier], power=power)
    assert problem.pools == (ServerPool("p", 4, 800, Fraction(2), 3, 4, 8),)
    assert problem.tiers == (Tier("spine", 64, 10_200, Fraction(3, 2)),)
    assert (problem.fixed_w, problem.budget_w) == (1000, 120_000)


def test_servers_that_fail_one_by_one_are_classes_of_their_own_but_share_a_cell() -> None:
    occupied = [{"server": 1, "cards": [0]}]
    existing = built(pool(servers=3, occupied=occupied), mode="existing", failures=["server"])
    assert classes(existing) == [
        (0, None, 4, 1, (0,)),
        (0, None, 4, 1, (2,)),
        (0, None, 3, 1, (1,)),
    ]
    assert [c.cell for c in existing.classes] == [0, 0, 0]
    assert [(e.name, e.classes) for e in existing.events] == [
        ("server p/0", (0,)),
        ("server p/2", (1,)),
        ("server p/1", (2,)),
    ]
    bought = built(pool(servers=3), pool("q", 1), failures=["server"])
    assert classes(bought) == [(0, None, 4, 1, ())] * 3 + [(1, None, 4, 1, ())]
    assert [c.cell for c in bought.classes] == [0, 0, 0, 1]
    names = ["server p/0", "server p/1", "server p/2", "server q/0"]
    assert [e.name for e in bought.events] == names


def test_racks_that_fail_are_cells_of_their_own() -> None:
    racks = [rack(count=2, servers=held(2))]
    spare = pool(servers=4, rack_units=1, occupied=[{"server": 3, "cards": [0]}])
    problem = built(spare, racks=racks, mode="existing", failures=["rack"])
    assert [(c.servers, c.cell) for c in problem.classes] == [((0, 1), 0), ((2,), 1), ((3,), 1)]
    assert [(e.kind, e.name, e.classes) for e in problem.events] == [
        ("rack", "rack r/0", (0,)),
        ("rack", "rack r/1", (1, 2)),
    ]


def test_domains_take_pools_and_racks_with_them() -> None:
    racks = [rack("a", 1), rack("b", 1)]
    domains = [
        {"name": "A", "kind": "power_supply", "racks": ["a"]},
        {"name": "B", "kind": "power_supply", "racks": ["b"], "pools": ["q"]},
        {"name": "S", "kind": "switch", "pools": ["p"]},
    ]
    pools = (pool("p", rack_units=1), pool("q", rack_units=1))
    fields: Json = {"racks": racks, "failure_domains": domains}
    problem = built(*pools, **fields, failures=["power_supply"])
    # p in a, p in b, q in a, q in b
    assert [(c.pool, c.site) for c in problem.classes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(e.kind, e.name, e.classes) for e in problem.events] == [
        ("power_supply", "power supply A", (0, 2)),
        ("power_supply", "power supply B", (1, 2, 3)),
    ]
    # q in a hangs on both supplies, q in b on one
    assert [c.cell for c in problem.classes] == [0, 1, 2, 3]
    switch = built(*pools, **fields, failures=["switch"])
    assert [(e.name, e.classes) for e in switch.events] == [("switch S", (0, 1))]
    # what does not fail parts nothing
    assert [c.cell for c in switch.classes] == [0, 0, 1, 1]
    assert [c.cell for c in built(*pools, **fields).classes] == [0, 0, 1, 1]


def test_a_card_that_fails_takes_an_instance_of_each_option_in_turn() -> None:
    problem = built(search={"batch": [1, 2]}, failures=["card"])
    names = [(e.name, e.classes, e.option) for e in problem.events]
    assert names == [
        ("a card of tiny, TP1 on p", (), 0),
        ("a card of tiny, TP1, batch 2 on p", (), 1),
    ]


def test_events_ask_for_the_healthy_minimum_or_for_their_own() -> None:
    cohorts = [{**CHAT, "min_on_time_fraction": "75%"}, {**CHAT, "name": "b"}]
    # 75% of 10 is 7.5: 8 sessions; 25% of 10 is 2.5: 3 of each
    problem = built(pool(servers=1), cohorts=cohorts, failures=["server"])
    assert [e.min_sessions for e in problem.events] == [(8, 10)]
    own = {"kind": "server", "min_on_time_fraction": "25%", "probability": "1%"}
    problem = built(pool(servers=1), cohorts=cohorts, failures=[own])
    assert [e.min_sessions for e in problem.events] == [(3, 3)]
    assert [e.probability for e in problem.events] == [Fraction(1, 100)]
    none = {"kind": "server", "min_on_time_fraction": 0}
    assert [e.min_sessions for e in built(pool(servers=1), failures=[none]).events] == [(0,)]


def test_probabilities_of_all_failures_add_up_to_at_most_one() -> None:
    goals = {"goals": ["expected_sessions"]}
    for share, fits in (("25%", True), ("25.1%", False)):
        case = {"kind": "server", "probability": share}
        instance = source(pool(servers=4), failures=[case], capacity=goals)
        if fits:
            assert len(build_capacity(instance).problem.events) == 4
        else:
            rule = r"capacity\.failures: .* 4 failures add up to 1\.004; at most 1"
            with pytest.raises(InputError, match=rule):
                build_capacity(instance)


def test_only_so_many_servers_and_racks_can_be_told_apart() -> None:
    most = MAX_TOLD_APART
    assert len(built(pool(servers=most), failures=["server"]).events) == most
    with pytest.raises(TooLargeError, match=f"{most + 1} servers .* at most {most}"):
        built(pool(servers=most + 1), failures=["server"])
    with pytest.raises(TooLargeError, match=f"{most + 1} servers .* at most {most}"):
        built(pool(servers=most), pool("q", 1), failures=["server"])
    spare = pool(servers=1000, rack_units=1)
    half = most // 2
    assert len(built(spare, racks=[rack(count=most)], failures=["rack"]).events) == most
    with pytest.raises(TooLargeError, match=f"{most + 1} racks 'r' .* at most {most}"):
        built(spare, racks=[rack(count=most + 1)], failures=["rack"])
    with pytest.raises(TooLargeError, match=f"{most + 1} racks that may fail"):
        built(spare, racks=[rack(count=half), rack("s", most - half + 1)], failures=["rack"])
