"""Pools, racks and failure domains of capacity decisions: each rule from both sides."""

from __future__ import annotations

import pytest

from capacity_schemas import Json, Start, bought, put, refusal
from instances import Instance, parse_instance


def existing() -> Json:
    """Return a valid document of racks and servers that are there: four of p and of q."""
    document = bought()
    held = [{"pool": "p", "num_servers": 2}, {"pool": "q", "num_servers": 2}]
    document["fleet"] |= {"mode": "existing"}
    document["fleet"]["racks"] = [{"name": "r", "count": 2, "units": 8, "servers": held}]
    return document


def test_the_documents_that_these_tests_change_are_valid() -> None:
    for start in (bought, existing):
        assert isinstance(parse_instance(start()), Instance)


#: (document, path, value that passes, value that does not, what is said)
RULES: dict[str, tuple[Start, str, object, object, str]] = {
    "price": (
        bought,
        "fleet.pools.1.price_per_hour",
        0,
        None,
        "fleet.pools[1].price_per_hour is null; goals on prices need it",
    ),
    "rack units": (
        bought,
        "fleet.pools.1.rack_units",
        1,
        None,
        "fleet.pools[1].rack_units is null; fleet.racks need it",
    ),
    "whole groups": (
        bought,
        "fleet.pools.0.servers_per_group",
        2,
        3,
        "fleet.pools[0].num_servers 4 is no whole number of groups of 3",
    ),
    "groups are bought": (
        existing,
        "fleet.pools.0.servers_per_group",
        1,
        2,
        "fleet.pools[0].servers_per_group is for fleet.mode 'purchase'",
    ),
    "occupied servers are there": (
        bought,
        "fleet.pools.0.occupied",
        [],
        [{"server": 0, "cards": [0]}],
        "fleet.pools[0].occupied: servers yet to be bought have no occupied cards",
    ),
    "occupied server": (
        existing,
        "fleet.pools.0.occupied",
        [{"server": 3, "cards": [0]}],
        [{"server": 4, "cards": [0]}],
        "fleet.pools[0].occupied[0]: the pool has servers 0..3 with cards 0..3, not server 4 card",
    ),
    "occupied card": (
        existing,
        "fleet.pools.0.occupied",
        [{"server": 0, "cards": [3]}],
        [{"server": 0, "cards": [0, 4]}],
        "fleet.pools[0].occupied[0]: the pool has servers 0..3 with cards 0..3, not server 0 card",
    ),
    "occupied twice": (
        existing,
        "fleet.pools.0.occupied",
        [{"server": 0, "cards": [3]}, {"server": 1, "cards": [3]}],
        [{"server": 0, "cards": [3]}, {"server": 0, "cards": [3]}],
        "fleet.pools[0].occupied[1]: server 0 card 3 is listed twice",
    ),
    "something is occupied": (
        existing,
        "fleet.pools.0.occupied",
        [{"server": 0, "cards": [3]}],
        [{"server": 0, "cards": []}],
        "fleet.pools[0].occupied[0].cards",
    ),
    "racks of domains": (
        bought,
        "fleet.failure_domains.0.racks",
        ["r"],
        ["r", "t"],
        "fleet.failure_domains[0].racks: no rack is named 't'",
    ),
    "pools of domains": (
        bought,
        "fleet.failure_domains.0.pools",
        ["p"],
        ["t"],
        "fleet.failure_domains[0].pools: no pool is named 't'",
    ),
    "domains hold something": (
        bought,
        "fleet.failure_domains.0",
        {"name": "A", "kind": "power_supply", "pools": ["p"]},
        {"name": "A", "kind": "power_supply"},
        "a failure domain needs a rack or a pool in racks or pools",
    ),
    "racks to be bought are empty": (
        bought,
        "fleet.racks.0.servers",
        [],
        [{"pool": "p", "num_servers": 1}],
        "fleet.racks[0].servers is for fleet.mode 'existing'",
    ),
    "pools of racks": (
        existing,
        "fleet.racks.0.servers.1.pool",
        "q",
        "z",
        "fleet.racks[0].servers: no pool is named 'z'",
    ),
    "pools once in a rack": (
        existing,
        "fleet.racks.0.servers.1.pool",
        "q",
        "p",
        "servers: pool 'p' appears 2 times",
    ),
    "existing racks hold every server": (
        existing,
        "fleet.racks.0.servers.1.num_servers",
        2,
        1,
        "fleet.pools[1] has 4 servers, fleet.racks hold 2 of them",
    ),
    "existing racks have room": (  # (2 + 2) · 2 = 8 units
        existing,
        "fleet.racks.0.units",
        8,
        7,
        "fleet.racks[0].servers take 8 rack units of 7",
    ),
    "existing racks cool": (
        existing,
        "fleet.pools.1.cooling",
        "air",
        "liquid",
        "fleet.racks[0] is cooled by air, servers of 'q' by liquid",
    ),
    "names of racks": (
        bought,
        "fleet.racks",
        [{"name": "r", "units": 8}, {"name": "t", "units": 8}],
        [{"name": "r", "units": 8}, {"name": "r", "units": 8}],
        "rack name 'r' appears 2 times",
    ),
    "names of tiers": (
        bought,
        "fleet.switch_tiers",
        [{"name": "a", "above_endpoints": 8}, {"name": "b", "above_endpoints": 8}],
        [{"name": "a", "above_endpoints": 8}, {"name": "a", "above_endpoints": 9}],
        "switch tier name 'a' appears 2 times",
    ),
    "names of domains": (
        bought,
        "fleet.failure_domains",
        [{"name": n, "kind": "switch", "pools": ["p"]} for n in ("A", "B")],
        [{"name": n, "kind": "switch", "pools": ["p"]} for n in ("A", "A")],
        "failure domain name 'A' appears 2 times",
    ),
}


@pytest.mark.parametrize("name", list(RULES))
def test_a_rule_lets_one_value_pass_and_refuses_the_other(name: str) -> None:
    start, path, good, bad, rule = RULES[name]
    parse_instance(put(start(), path, good))
    assert rule in refusal(put(start(), path, bad))
