"""Capacity plans as documents: everything by name, read back, and what is unknown refused."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

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
from instances.errors import InputError
from instances.io import parse_instance, validate
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.side.capacity_kind import CapacityKind
from optimizer.side.capacity_placing import placement
from optimizer.side.capacity_words import held_text
from optimizer.side.document import verify_side
from optimizer.side.result import SidePlanDocument

F = Fraction


def read_again(kind: CapacityKind, document: SidePlanDocument) -> CapacityPlan | None:
    """A plan from its document as JSON."""
    text = json.dumps(document.model_dump(mode="json"))
    return kind.read_plan(validate(SidePlanDocument, json.loads(text), "plan"))


def test_a_purchase_is_written_by_name_and_read_back() -> None:
    kind = kind_of(PURCHASE)
    plan = purchase_plan(kind.problem)
    assert list(kind.broken(plan)) == []
    document = kind.plan(plan)
    # 13 · 98.32 + 3 of the leaf switch
    assert document.sentence == (
        "13 servers of hgx in 5 racks = 40 instances of qwen3-32b TP2 (ring) + 20 instances of "
        "llama-3.1-8b TP1 + 1 instance of llama-3.1-8b TP4 (tree): 1,281.16 an hour"
    )
    assert kind.value(plan) == (F("1281.16"),)
    assert read_again(kind, document) == plan
    written = document.model_dump(mode="json")["capacity"]
    assert [(i["name"], i["number"]) for i in written["instances"]] == [
        ("qwen3-32b TP2 (ring)", 40),
        ("llama-3.1-8b TP1", 20),
        ("llama-3.1-8b TP4 (tree)", 1),
    ]
    first = written["instances"][0]
    assert (first["model"], first["pool"], first["collective"]) == ("qwen3-32b", "hgx", "ring")
    assert (first["parallel"]["tp"], first["num_servers"]) == (2, 1)
    assert written["racks"][1] == {
        "rack": "air",
        "count": 1,
        "servers": [{"pool": "hgx", "server": None, "count": 1}],
    }
    assert written["servers"][2] == {
        "pool": "hgx",
        "rack": "air",
        "server": None,
        "free_cards": 8,
        "count": 1,
        "instances": [
            {"instance": "llama-3.1-8b TP1", "number": 4},
            {"instance": "llama-3.1-8b TP4 (tree)", "number": 1},
        ],
        "spanned_by": None,
    }
    assert written["loads"][2] == {
        "instance": "llama-3.1-8b TP1",
        "groups": 1,
        "lanes": [{"count": 1, "sessions": [{"cohort": "chat", "number": 2}]}],
    }


def test_an_existing_fleet_is_written_with_its_failures() -> None:
    kind = kind_of(existing())
    plan = existing_plan(kind.problem)
    assert list(kind.broken(plan)) == []
    document = kind.plan(plan)
    assert document.capacity is not None
    assert document.sentence.startswith("6 servers of hgx in 4 racks = 9 instances of qwen3-32b")
    # 6 servers in use and server 5, which is occupied: 7 · 10.2 kW
    assert document.sentence.endswith(": 16 sessions on time, 71.4 kW")
    assert kind.value(plan) == (16, 71400)
    assert read_again(kind, document) == plan
    same, other = document.capacity.loads_after[1], document.capacity.loads_after[0]
    assert (same.events, same.loads) == (["rack low/1"], None)
    assert (len(other.events), other.loads is None) == (7, False)
    spanning = document.capacity.servers[2]
    assert (spanning.rack, spanning.count) == ("air/1", 2)
    assert spanning.spanned_by == "qwen3-32b TP16 over 2 servers (measured)"
    taken = document.capacity.servers[0]
    assert (taken.rack, taken.free_cards, taken.server) == ("air/0", 6, None)


def test_servers_that_fail_one_by_one_are_told_apart() -> None:
    document = existing()
    document["capacity"]["failures"] = [{"kind": "server", "min_on_time_fraction": 0}]
    kind = kind_of(document)
    problem = kind.problem
    q = option(problem, "TP2", "qwen3-32b")
    numbers = [c.servers[0] for c in problem.classes]
    place = numbers.index(3)
    plan = CapacityPlan((), (ServerFill(place, 1, ((q, 1),)),), (), ((),) * 10)
    written = kind.plan(plan)
    assert written.capacity is not None
    assert written.capacity.servers[0].server == 3
    assert read_again(kind, written) == plan
    (rack,) = [r for r in placement(kind.names, plan) if "air/1" in str(r.rack)]
    assert [(s.numbers, held_text(s)) for s in rack.servers] == [
        ("3", "1 x qwen3-32b TP2 (ring)"),
        ("2", "idle"),
    ]


def test_servers_to_be_bought_one_by_one_are_numbered_in_their_pool() -> None:
    document = purchase(failures=[{"kind": "server", "min_on_time_fraction": 0}])
    document["fleet"]["pools"][0]["num_servers"] = 3
    kind = kind_of(document)
    q = option(kind.problem, "TP2", "qwen3-32b")
    fills = tuple(ServerFill(c, 1, ((q, 4),)) for c in (0, 2))
    loads = (one_each(q, 8, 0),)
    plan = CapacityPlan((RackFill(0, 1, ((0, 1), (2, 1))),), fills, loads, (loads,) * 3)
    written = kind.plan(plan)
    assert written.capacity is not None
    assert [s.server for s in written.capacity.servers] == [0, 2]
    assert [s.server for s in written.capacity.racks[0].servers] == [0, 2]
    assert written.capacity.loads_after[0].events == [f"server hgx/{n}" for n in range(3)]
    assert read_again(kind, written) == plan


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("instances", 0, "model"), "gpt-2", "no such serving instance is among the candidates"),
        (("instances", 0, "parallel", "tp"), 3, "no such serving instance"),
        (("instances", 0, "batch"), 2, "no such serving instance"),
        (("instances", 0, "collective"), "tree", "no such serving instance"),
        (("instances", 0, "number"), 39, r"number = 39: servers hold 40 of qwen3-32b TP2"),
        (("instances", 1, "name"), "qwen3-32b TP2 (ring)", "is listed twice"),
        (("servers", 0, "pool"), "dgx", "no pool is named so; known: hgx"),
        (("servers", 0, "rack"), "low", "no rack is named so; known: air"),
        (("servers", 0, "rack"), None, "no such servers: hgx with 8 free cards; known: hgx in air"),
        (("servers", 0, "free_cards"), 7, "no such servers: hgx in air with 7 free cards"),
        (("servers", 0, "server"), 1, "no such servers: hgx/1 in air"),
        (("servers", 0, "instances", 0, "instance"), "TP2", "no entry of capacity.instances"),
        (("servers", 0, "spanned_by"), "TP2", "no entry of capacity.instances"),
        (("racks", 0, "rack"), "low", "no rack is named so"),
        (("racks", 0, "servers", 0, "pool"), "dgx", "no pool is named so"),
        (("loads", 0, "instance"), "TP9", "no entry of capacity.instances"),
        (("loads", 0, "lanes", 0, "sessions", 0, "cohort"), "x", "no cohort is named so"),
        (("loads_after",), [{"events": ["rack 7"], "loads": None}], "no failure is named so"),
        (("servers", 0, "count"), -1, "servers.0..count"),
        (("servers", 0, "count"), "10", "servers.0..count"),
        (("servers", 0, "price"), 1, "no such field"),
    ],
)
def test_what_an_instance_does_not_know_is_refused(path: Any, value: Any, words: str) -> None:
    kind = kind_of(PURCHASE)
    document = kind.plan(purchase_plan(kind.problem)).model_dump(mode="json")
    at = document["capacity"]
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(InputError, match=words) as error:
        verify_side(parse_instance(PURCHASE), document, "mine.json")
    assert str(error.value).startswith("mine.json: capacity.")


def test_an_option_is_known_by_what_it_is_and_not_by_its_name() -> None:
    kind = kind_of(PURCHASE)
    plan = purchase_plan(kind.problem)
    document = json.loads(kind.plan(plan).model_dump_json().replace("qwen3-32b TP2 (ring)", "q"))
    for item in document["capacity"]["instances"]:
        del item["number"]
    assert kind.read_plan(validate(SidePlanDocument, document, "plan")) == plan
    twice = document["capacity"]["instances"][0] | {"name": "again"}
    document["capacity"]["instances"].append(twice)
    with pytest.raises(InputError, match=r"instances\[3\] = 'again': is the same serving instance"):
        kind.read_plan(validate(SidePlanDocument, document, "plan"))


def test_loads_are_wanted_after_every_failure_once() -> None:
    kind = kind_of(existing())
    document = kind.plan(existing_plan(kind.problem)).model_dump(mode="json")
    after = document["capacity"]["loads_after"]
    after[0]["events"].remove("rack air/1")
    for events, words in (
        (["rack low/1"], r"says nothing of 'rack air/1'; give the loads after every failure"),
        (["rack low/1", "rack low/0", "rack air/1"], r"'rack low/0': has loads already"),
    ):
        after[1]["events"] = events
        with pytest.raises(InputError, match=words):
            verify_side(parse_instance(existing()), document)
