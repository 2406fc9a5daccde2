"""Instances that decide capacity: rules that need more than one changed value, and defaults."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from instances import parse_instance
from instances.errors import InputError
from tiny_parts import CARD, FABRIC, MODEL, Json

SERVER = {"name": "s", "accelerator": CARD, "num_cards": 4, "power_w": None, "fabric": FABRIC}
POOL = {"name": "p", "server": SERVER, "num_servers": 4}
COHORT = {"name": "chat", "num_sessions": 10, "context_tokens": 10, "new_tokens": 2}


def document(decision: str = "capacity", **fields: Any) -> Json:
    """Return a document of one pool whose servers have neither price nor power."""
    section = {"capacity": {"goals": ["servers"]}} if decision == "capacity" else {}
    return deepcopy(
        {
            "name": "unit",
            "decision": decision,
            "model": MODEL,
            "fleet": {"pools": [POOL]},
            "workload": {"cohorts": [COHORT]},
            "objective": {"minimise": "makespan"},
            **section,
            **fields,
        }
    )


def refusal(wrong: Json) -> str:
    """Return the one line that says what is wrong."""
    with pytest.raises(InputError) as caught:
        parse_instance(wrong)
    text = str(caught.value)
    assert "\n" not in text
    return text


def with_power(wrong: Json) -> Json:
    """Return a document whose servers draw 800 W."""
    wrong["fleet"]["pools"][0]["server"]["power_w"] = 800
    return wrong


@pytest.mark.parametrize(
    "fleet",
    [
        {"power": {"budget_w": "1kW"}},
        {"racks": [{"name": "r", "units": 8, "power_w": "1kW"}], "mode": "purchase"},
        {"racks": [{"name": "r", "units": 8, "cooling_w": "1kW"}], "mode": "purchase"},
    ],
    ids=["budget", "rack power", "rack cooling"],
)
def test_limits_on_power_need_the_power_of_every_server(fleet: Json) -> None:
    pools = [{**POOL, "rack_units": 1}]
    wrong = document(fleet={"pools": pools, **fleet})
    assert "fleet.pools[0].server.power_w is null; power limits and goals need it" in refusal(wrong)
    parse_instance(with_power(wrong))


@pytest.mark.parametrize("goal", ["power", "energy"])
def test_goals_on_power_need_the_power_of_every_server(goal: str) -> None:
    wrong = document(capacity={"goals": [goal], "period_s": 1})
    assert "fleet.pools[0].server.power_w is null; power limits and goals need it" in refusal(wrong)
    parse_instance(with_power(wrong))


@pytest.mark.parametrize(
    "goal", ["price_per_hour", "price_per_on_time_session", "price_per_million_tokens"]
)
def test_goals_on_prices_need_the_price_of_every_server(goal: str) -> None:
    wrong = document(capacity={"goals": [goal], "period_s": 1})
    assert "fleet.pools[0].price_per_hour is null; goals on prices need it" in refusal(wrong)
    wrong["fleet"]["pools"][0]["price_per_hour"] = "0.5/h"
    parse_instance(wrong)


def test_failures_of_racks_need_racks() -> None:
    wrong = document(capacity={"goals": ["servers"], "failures": [{"kind": "rack"}]})
    rule = "capacity.failures[0]: fleet.racks has no domain of kind 'rack'"
    assert rule in refusal(wrong)
    held = {"name": "r", "units": 4, "servers": [{"pool": "p", "num_servers": 4}]}
    wrong["fleet"] = {"pools": [{**POOL, "rack_units": 1}], "racks": [held]}
    parse_instance(wrong)


def test_capacity_counts_cards_that_are_alike() -> None:
    torus = {"kind": "torus", "name": "t", "extents": [2, 2], "link_bandwidth_bytes_per_s": "1GB/s"}
    fabric = {**FABRIC, "topology": torus}
    wrong = document(fleet={"pools": [{**POOL, "server": {**SERVER, "fabric": fabric}}]})
    rule = "fleet.pools[0] has the topology 't', where it matters which cards a serving instance"
    assert rule in refusal(wrong)
    wrong["fleet"]["pools"][0]["server"]["fabric"] = FABRIC
    parse_instance(wrong)


def test_measurements_are_not_for_capacity() -> None:
    measured = {"cohort": "chat", "pool": "p", "tp": 1, "session_s": "1ms"}
    wrong = document(measurements=[measured])
    assert "measurements of sessions are not for capacity; leave them out" in refusal(wrong)


def test_the_section_goes_with_the_decision_and_only_with_it() -> None:
    missing = document()
    del missing["capacity"]
    rule = "section 'capacity' goes with decision 'capacity', and only with it"
    assert rule in refusal(missing)
    assert rule in refusal(document("deployment", capacity={"goals": ["servers"]}))
    parse_instance(document("deployment"))


#: What counts only where capacity is decided: what the message names, and where it stands.
ELSEWHERE: dict[str, tuple[str, object]] = {
    "models": ("models", [MODEL]),
    "fleet.mode 'purchase'": ("fleet.mode", "purchase"),
    "fleet.racks": ("fleet.racks", [{"name": "r", "units": 8}]),
    "fleet.power": ("fleet.power", {"budget_w": 1}),
    "fleet.switch_tiers": ("fleet.switch_tiers", [{"name": "a", "above_endpoints": 8}]),
    "fleet.failure_domains": (
        "fleet.failure_domains",
        [{"name": "A", "kind": "switch", "pools": ["p"]}],
    ),
    "fleet.pools[0].occupied": ("pool.occupied", [{"server": 0, "cards": [0]}]),
    "fleet.pools[0].servers_per_group": ("pool.servers_per_group", 2),
    "workload.cohorts[0].model": ("cohort.model", "tiny"),
    "workload.cohorts[0].pools": ("cohort.pools", ["p"]),
    "workload.cohorts[0].min_on_time_fraction": ("cohort.min_on_time_fraction", 1),
}


@pytest.mark.parametrize("name", list(ELSEWHERE))
def test_what_other_decisions_would_ignore_is_refused_there(name: str) -> None:
    path, value = ELSEWHERE[name]
    wrong = document("deployment")
    where, _, field = path.rpartition(".")
    places = {
        "": wrong,
        "fleet": wrong["fleet"],
        "pool": wrong["fleet"]["pools"][0],
        "cohort": wrong["workload"]["cohorts"][0],
    }
    parse_instance(wrong)
    places[where][field] = value
    rule = f"{name} counts only where capacity is decided; add decision 'capacity' and a section"
    assert rule in refusal(wrong)


def test_fields_that_say_nothing_to_other_decisions_are_left_alone() -> None:
    pool = {**POOL, "price_per_hour": 1, "rack_units": 2, "cooling": "liquid"}
    found = parse_instance(document("deployment", fleet={"pools": [pool]}))
    assert found.fleet.pools[0].cooling == "liquid"


def test_defaults_are_an_existing_fleet_without_racks_limits_or_failures() -> None:
    found = parse_instance(document())
    assert (found.fleet.mode, found.fleet.racks, found.fleet.power) == ("existing", (), None)
    assert (found.fleet.switch_tiers, found.fleet.failure_domains) == ((), ())
    assert found.capacity is not None
    assert (found.capacity.period_s, found.capacity.failures) == (None, ())
    pool = found.fleet.pools[0]
    assert (pool.occupied, pool.servers_per_group, pool.cooling) == ((), 1, "air")


def test_models_may_take_the_place_of_the_model_and_the_objective_be_left_out() -> None:
    several = document(models=[MODEL, {**MODEL, "name": "other"}])
    del several["model"], several["objective"]
    found = parse_instance(several)
    assert [model.name for model in found.models] == ["tiny", "other"]
    assert found.model == found.models[0]


def test_more_sessions_than_can_be_placed_one_by_one_are_for_capacity() -> None:
    many = document(workload={"cohorts": [{**COHORT, "num_sessions": 10**9}]})
    assert parse_instance(many).workload.num_sessions == 10**9
    many["workload"]["cohorts"][0]["num_sessions"] = 10**9 + 1
    assert "workload.cohorts[0].num_sessions = 1000000001" in refusal(many)


def test_the_tighter_of_power_and_cooling_limits_a_rack() -> None:
    for power_w, cooling_w, limit_w in (
        (5, 7, 5),
        (7, 5, 5),
        (None, 5, 5),
        (5, None, 5),
        (None, None, None),
    ):
        limits = {"power_w": power_w, "cooling_w": cooling_w}
        rack = {"name": "r", "units": 8, **limits}
        pools = [{**POOL, "rack_units": 1}]
        whole = document(fleet={"mode": "purchase", "racks": [rack], "pools": pools})
        assert parse_instance(with_power(whole)).fleet.racks[0].limit_w == limit_w


def test_an_instance_is_the_same_after_it_is_written_and_read_again() -> None:
    rack = {"name": "r", "count": 3, "units": 8, "power_w": "40kW", "price_per_hour": "1/3"}
    case = {"kind": "rack", "min_on_time_fraction": "50%", "probability": "0.1%"}
    fleet = {
        "mode": "purchase",
        "pools": [{**POOL, "rack_units": 2, "servers_per_group": 2, "price_per_hour": "98.32"}],
        "racks": [rack],
        "power": {"budget_w": "120kW", "fixed_w": "7kW"},
        "switch_tiers": [{"name": "a", "above_endpoints": 8, "power_w": "10.2kW"}],
        "failure_domains": [{"name": "A", "kind": "switch", "racks": ["r"]}],
    }
    goals = {"goals": ["price_per_hour", "sessions"], "period_s": "1h", "failures": [case]}
    found = parse_instance(with_power(document(fleet=fleet, capacity=goals)))
    again = parse_instance(found.model_dump(mode="json"))
    assert again == found
    assert again.sha256() == found.sha256()
