"""What capacity plans take and leave, and where everything stands, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity_halls import (
    PURCHASE,
    existing,
    existing_plan,
    kind_of,
    one_each,
    option,
    purchase,
    purchase_plan,
)
from optimizer.capacity.plan import CapacityPlan, ServerFill
from optimizer.side.capacity_accounts import CapacityAccountDocument, PlacedServerDocument
from optimizer.side.capacity_judging import servers_that_fit
from optimizer.side.capacity_kind import CapacityKind
from optimizer.side.capacity_placing import number_ranges
from optimizer.side.capacity_plans import told_apart
from optimizer.side.capacity_words import held_text, short
from optimizer.side.document import side_evaluation


def account(kind: CapacityKind, plan: CapacityPlan) -> CapacityAccountDocument:
    found = side_evaluation(kind, plan).capacity
    assert found is not None
    return found


def test_a_purchase_is_accounted_by_hand() -> None:
    kind = kind_of(PURCHASE)
    found = account(kind, purchase_plan(kind.problem))
    assert [(c.name, c.taken, c.num_sessions, c.min_sessions) for c in found.cohorts] == [
        *(("long", 40, 40, 40), ("chat", 64, 64, 64)),
    ]
    assert found.cohorts[0].deadline_exact == "13/100"
    assert [(i.label, i.number, i.num_cards, i.sessions) for i in found.instances] == [
        ("TP2 (ring)", 40, 2, 40),
        ("TP1", 20, 1, 59),
        ("TP4 (tree)", 1, 4, 5),
    ]
    (pool,) = found.servers
    assert (pool.servers, pool.idle, pool.most, pool.price_per_hour_exact) == (13, 0, 20, "2458/25")
    assert [(r.rack, r.used, r.most) for r in found.racks] == [("air", 5, 6)]
    assert found.endpoints == 104
    assert [(t.name, t.is_needed) for t in found.tiers] == [("leaf", True), ("spine", False)]
    power = found.power
    assert [(p.count, p.each_w, p.watts) for p in power.parts] == [
        *((1, 5000, 5000), (13, 10200, 132600), (1, 2000, 2000), (0, 10200, 0)),
    ]
    # 5 + 13 · 10.2 + 2 = 139.6 kW; floor((150 - 5 - 2) / 10.2) = 14, and 10.4 kW are left for one:
    # the 105th to 112th card need no spine
    assert (power.fixed_w, power.tiers_w, power.total_w) == (5000, 2000, 139600)
    assert (power.budget_w, power.left_w) == (150000, 10400)
    assert [(s.alone, s.more) for s in power.servers] == [(14, 1)]
    resources = {r.name: r for r in found.resources}
    assert (resources["power"].left, resources["power"].is_binding) == (10400, False)
    fullest = resources["power of the fullest rack air"]  # three servers: 9.4 kW hold no fourth
    assert (fullest.used, fullest.left, fullest.is_binding) == (30600, 9400, True)
    assert found.resources[0] == fullest
    assert not resources["cards of hgx"].is_binding  # all are taken, but more can be bought
    assert not resources["sessions of long"].is_binding  # nobody asks for more
    shares = [r.used / r.most for r in found.resources[1:] if r.most]
    assert shares == sorted(shares, reverse=True)


def test_a_watt_too_few_for_another_server_is_binding() -> None:
    for budget, more, is_binding in ((149_800, 1, False), (149_799, 0, True)):
        document = purchase()
        document["fleet"]["power"]["budget_w"] = budget
        kind = kind_of(document)
        found = account(kind, purchase_plan(kind.problem))
        assert found.power.servers[0].more == more
        assert {r.name: r for r in found.resources}["power"].is_binding is is_binding


@pytest.mark.parametrize(
    ("left_w", "endpoints", "servers"),
    [
        (10_199, 104, 0),
        (10_200, 104, 1),
        (20_400, 104, 2),  # 120 cards: no spine yet
        (30_600, 104, 2),  # a third one needs the spine's 10.2 kW as well
        (40_799, 104, 2),
        (40_800, 104, 3),
        (10_200, 120, 0),
        (20_399, 120, 0),
        (20_400, 120, 1),
        (10_200, 121, 1),  # the spine is there already
        (-1, 104, 0),
    ],
)
def test_further_servers_bring_the_tiers_they_need(
    left_w: int, endpoints: int, servers: int
) -> None:
    problem = kind_of(PURCHASE).problem
    assert servers_that_fit(problem, 0, left_w, endpoints) == servers
    free = replace(problem, pools=(replace(problem.pools[0], power_w=0),))
    assert servers_that_fit(free, 0, left_w, endpoints) is None


def test_servers_are_dealt_to_equal_racks_in_order() -> None:
    """Four racks of three take ten servers of TP2 and two of TP1: 9, then 1 + 2; one is left."""
    kind = kind_of(PURCHASE)
    plan = purchase_plan(kind.problem)
    racks = account(kind, plan).placement
    assert [(r.rack, r.count, r.units, r.used_units, r.limit_w, r.power_w) for r in racks] == [
        ("air", 3, 42, 24, 40000, 30600),
        ("air", 1, 42, 24, 40000, 30600),
        ("air", 1, 42, 8, 40000, 10200),
    ]
    assert [[(s.count, held_text(s)) for s in r.servers] for r in racks] == [
        [(3, "4 x qwen3-32b TP2 (ring)")],
        [(2, "8 x llama-3.1-8b TP1"), (1, "4 x qwen3-32b TP2 (ring)")],
        [(1, "4 x llama-3.1-8b TP1, 1 x llama-3.1-8b TP4 (tree)")],
    ]
    assert racks[0].servers[0].numbers == ""
    assert kind.plan(plan).capacity is not None


def test_an_existing_fleet_shows_every_server_by_number() -> None:
    kind = kind_of(existing())
    racks = account(kind, existing_plan(kind.problem)).placement
    assert [(r.rack, r.power_w) for r in racks] == [
        # server 5 is full of what others do, and on
        *(("air/0", 20400), ("air/1", 20400), ("air/2", 20400), ("air/3", 0)),
        *(("low/0", 10200), ("low/1", 0)),
    ]
    assert [(s.numbers, s.count, held_text(s)) for r in racks[:4] for s in r.servers] == [
        ("1", 1, "4 x qwen3-32b TP2 (ring)"),
        ("0", 1, "3 x qwen3-32b TP2 (ring), 2 cards occupied"),
        ("2-3", 2, "part of qwen3-32b TP16 over 2 servers (measured)"),
        ("4", 1, "1 x llama-3.1-8b TP1, 7 cards occupied"),
        ("5", 1, "nothing of the plan, 8 cards occupied"),
        ("6-7", 2, "idle"),
    ]


def test_equal_racks_of_an_existing_fleet_stand_together() -> None:
    """Ten servers in racks of two and one: 0-7 and 8-9. Nothing is in use but servers 2 and 4."""
    document = existing()
    for pool in document["fleet"]["pools"]:
        del pool["occupied"]
    document["capacity"] = {"goals": ["price_per_hour", "racks"]}
    document["workload"]["cohorts"] = document["workload"]["cohorts"][:1]
    document["workload"]["cohorts"][0]["num_sessions"] = 2
    kind = kind_of(document)
    q = option(kind.problem, "TP2", "qwen3-32b")
    place = {kind.problem.sites[c.site or 0].name: c.index for c in kind.problem.classes}
    fills = tuple(ServerFill(place[name], 1, ((q, 1),)) for name in ("air/1", "air/2"))
    found = account(kind, CapacityPlan((), fills, (one_each(q, 2, 0),)))
    assert [(r.rack, r.count) for r in found.placement] == [
        *(("air/0, 3", 2), ("air/1-2", 2), ("low/0-1", 2)),
    ]
    assert [(s.numbers, s.count) for s in found.placement[1].servers] == [("2, 4", 1), ("3, 5", 1)]
    assert [(s.numbers, s.count) for s in found.placement[0].servers] == [("0-1, 6-7", 2)]


def test_a_fleet_without_racks_stands_together() -> None:
    document = purchase()
    del document["fleet"]["racks"]
    kind = kind_of(document)
    plan = replace(purchase_plan(kind.problem), racks=())
    assert list(kind.broken(plan)) == []
    assert kind.plan(plan).sentence.startswith("13 servers of hgx = 40 instances of")
    (place,) = account(kind, plan).placement
    assert (place.rack, place.count, place.units, place.power_w) == (None, 1, None, 132600)
    assert [s.count for s in place.servers] == [2, 10, 1]  # eight, then four and four or less
    assert place.servers[0].rack_units is None
    assert kind.read_plan(kind.plan(plan)) == plan


def test_failures_with_equal_outcomes_stand_together() -> None:
    kind = kind_of(existing())
    found = account(kind, existing_plan(kind.problem)).after
    assert [(o.kind, o.events, o.sessions, o.min_sessions) for o in found] == [
        # 10 % of 8 is one, 25 % two; few serve 2 + 2
        ("power_supply", ["power supply A", "power supply B"], [2, 2], [1, 1]),
        ("rack", [*(f"rack air/{n}" for n in range(4)), "rack low/0"], [2, 2], [2, 2]),
        ("rack", ["rack low/1"], [8, 8], [2, 2]),
    ]


def test_names_and_numbers_in_words() -> None:
    assert told_apart(["a", "b", "a", "a #2", "a"]) == ["a", "b", "a #2", "a #2 #2", "a #3"]
    assert number_ranges([7, 0, 1, 2, 9, 8]) == "0-2, 7-9"
    assert number_ranges([]) == ""
    assert (short("0, 2, 4", 7), short("0, 2, 4", 6)) == ("0, 2, 4", "0, 2…")
    server = PlacedServerDocument(
        pool="p",
        count=1,
        numbers="",
        num_cards=8,
        free_cards=7,
        rack_units=None,
        instances=[],
        spanned_by=None,
    )
    assert held_text(server) == "nothing of the plan, 1 card occupied"
