"""What capacity plans take and leave, and where everything stands, by hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from instances.io import parse_instance
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem
from optimizer.side.capacity_accounts import CapacityAccountDocument, PlacedServerDocument
from optimizer.side.capacity_judging import servers_that_fit
from optimizer.side.capacity_kind import CapacityKind
from optimizer.side.capacity_placing import number_ranges
from optimizer.side.capacity_plans import told_apart
from optimizer.side.capacity_words import held_text, short
from optimizer.side.document import side_evaluation

F = Fraction
Document = dict[str, Any]


#: A DGX H100 draws 10.2 kW; racks of 40 kW hold three. A leaf switch is always needed, spines from
#: the 121st card on.
PURCHASE: Document = {
    "name": "hall",
    "decision": "capacity",
    "models": ["qwen3-32b", "llama-3.1-8b"],
    "fleet": {
        "mode": "purchase",
        "pools": [
            {
                "name": "hgx",
                "server": "hgx-h100",
                "num_servers": 20,
                "price_per_hour": "98.32",
                "rack_units": 8,
            }
        ],
        "racks": [{"name": "air", "count": 6, "units": 42, "power_w": "40kW"}],
        "power": {"budget_w": "150kW", "fixed_w": "5kW"},
        "switch_tiers": [
            {"name": "leaf", "above_endpoints": 0, "power_w": "2kW", "price_per_hour": 3},
            {"name": "spine", "above_endpoints": 120, "power_w": "10.2kW", "price_per_hour": 7},
        ],
    },
    "workload": {
        "cohorts": [
            {
                "name": "long",
                "model": "qwen3-32b",
                "num_sessions": 40,
                "context_tokens": 131064,
                "new_tokens": 8,
                "deadline_s": "130ms",
            },
            {
                "name": "chat",
                "model": "llama-3.1-8b",
                "num_sessions": 64,
                "context_tokens": 8192,
                "new_tokens": 128,
                "deadline_s": "2s",
            },
        ]
    },
    "search": {"tp": [1, 2, 4, 8]},
    "capacity": {"goals": ["price_per_hour"]},
}


def purchase(**changes: Any) -> Document:
    document = deepcopy(PURCHASE)
    document["capacity"] |= changes
    return document


def existing() -> Document:
    """Two kinds of rack on two power supplies, cards taken in servers 0, 4 and 5."""
    document = deepcopy(PURCHASE)
    hgx = document["fleet"]["pools"][0] | {
        "num_servers": 10,
        "occupied": [
            {"server": 0, "cards": [0, 1]},
            {"server": 4, "cards": [0, 1, 2, 3, 4, 5, 6]},
            {"server": 5, "cards": list(range(8))},
        ],
        "fabric_between": "infiniband-ndr",
    }
    high = {"name": "air", "count": 4, "units": 42, "power_w": "40kW"}
    document["fleet"] = {
        "mode": "existing",
        "pools": [hgx],
        "racks": [
            high | {"servers": [{"pool": "hgx", "num_servers": 2}]},
            {
                "name": "low",
                "count": 2,
                "units": 16,
                "servers": [{"pool": "hgx", "num_servers": 1}],
            },
        ],
        "failure_domains": [
            {"name": "A", "kind": "power_supply", "racks": ["air"]},
            {"name": "B", "kind": "power_supply", "racks": ["low"]},
        ],
    }
    document["search"] = {"tp": [1, 2, 4, 8, 16]}
    for cohort in document["workload"]["cohorts"]:
        cohort["num_sessions"] = 8
    document["capacity"] = {
        "goals": ["sessions", "power"],
        "failures": [
            {"kind": "power_supply", "min_on_time_fraction": "10%"},
            {"kind": "rack", "min_on_time_fraction": "25%"},
        ],
    }
    return document


def kind_of(document: Document) -> CapacityKind:
    return CapacityKind(parse_instance(document))


def option(problem: CapacityProblem, label: str, model: str) -> int:
    """The number of an option by its label, the first that begins so, and model."""
    return next(
        o.index
        for o in problem.options
        if o.footprint.label().startswith(label) and problem.models[o.model] == model
    )


def one_each(of: int, count: int, cohort: int, number: int = 1) -> GroupLoad:
    return GroupLoad(of, count, (LaneLoad(1, ((cohort, number),)),))


def purchase_plan(problem: CapacityProblem) -> CapacityPlan:
    """40 TP2 of the long ones on 10 servers; 16 + 4 TP1 with three chats each, a TP4 with five.

    A chat takes 0.6148 s on TP1, so that three end within 2 s: 19 · 3 + 2 + 5 = 64.
    """
    q, t = option(problem, "TP2", "qwen3-32b"), option(problem, "TP1", "llama-3.1-8b")
    f = option(problem, "TP4", "llama-3.1-8b")
    return CapacityPlan(
        racks=(RackFill(0, 4, ((0, 3),)), RackFill(0, 1, ((0, 1),))),
        servers=(
            ServerFill(0, 10, ((q, 4),)),
            ServerFill(0, 2, ((t, 8),)),
            ServerFill(0, 1, ((t, 4), (f, 1))),
        ),
        loads=(
            one_each(q, 40, 0),
            one_each(t, 19, 1, 3),
            one_each(t, 1, 1, 2),
            one_each(f, 1, 1, 5),
        ),
    )


def existing_plan(problem: CapacityProblem) -> CapacityPlan:
    """Rack air/0 holds seven TP2, air/1 a TP16, air/2 one TP1, low/0 two TP2 and four TP1."""
    assert [event.name for event in problem.events][:3] == [
        *("power supply A", "power supply B", "rack air/0"),
    ]
    q, t = option(problem, "TP2", "qwen3-32b"), option(problem, "TP1", "llama-3.1-8b")
    wide = option(problem, "TP16", "qwen3-32b")
    place = {(problem.sites[c.site or 0].name, c.free_cards): c.index for c in problem.classes}
    few = (one_each(q, 2, 0), one_each(t, 1, 1, 2))
    loads = (one_each(wide, 1, 0), one_each(q, 7, 0), one_each(t, 2, 1, 3), one_each(t, 1, 1, 2))
    return CapacityPlan(
        racks=(),
        servers=(
            ServerFill(place["air/0", 6], 1, ((q, 3),)),
            ServerFill(place["air/0", 8], 1, ((q, 4),)),
            ServerFill(place["air/1", 8], 2, (), wide),
            ServerFill(place["air/2", 1], 1, ((t, 1),)),
            ServerFill(place["low/0", 8], 1, ((t, 4), (q, 2))),
        ),
        loads=loads,
        # rack low/1 is not in use: what nothing takes from serves as before
        loads_after=(*[few] * 7, loads),
    )


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
