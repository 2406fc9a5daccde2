"""A hall of DGX H100 to be bought, one that is there, and a plan by hand for each."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from instances.io import parse_instance
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem
from optimizer.side.capacity_kind import CapacityKind

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
