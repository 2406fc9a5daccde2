"""Topologies as documents: what is read, what is refused and how, and the catalog's entries."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from instances.cabling import MAX_LINK_PAIRS, even_parts
from instances.catalog_store import catalog_entry, catalog_names
from instances.errors import InputError
from instances.io import validate
from instances.topology import (
    LeafSpineTopology,
    MeshTopology,
    NumaTopology,
    ServersTopology,
    SwitchedTopology,
    Topology,
    TopologyFile,
    TorusTopology,
    is_uniform,
)

READER: TypeAdapter[Any] = TypeAdapter(Topology)
NAMES = catalog_names("topologies")


class Holder(BaseModel):
    """A document with a topology among other fields, which may be left out."""

    topology: Topology | None = None


def read(data: Any, **changes: Any) -> Any:
    return READER.validate_python({**data, **changes} if changes else data)


SWITCHED = {
    "kind": "switched",
    "name": "s",
    "num_cards": 4,
    "ports_per_card": 6,
    "port_bandwidth_bytes_per_s": "50GB/s",
    "num_switches": 4,
    "ports_per_switch": 8,
}
LEAF_SPINE = {
    "kind": "leaf_spine",
    "name": "l",
    "num_leaves": 4,
    "cards_per_leaf": 32,
    "ports_per_card": 1,
    "up_ports": 32,
    "num_spines": 32,
    "ports_per_switch": 64,
    "port_bandwidth_bytes_per_s": "25GB/s",
}
TORUS = {"kind": "torus", "name": "t", "extents": [4, 4], "link_bandwidth_bytes_per_s": "50GB/s"}
MESH = {
    "kind": "mesh",
    "name": "m",
    "num_cards": 3,
    "links": [[0, 1, 2], [2, 1, 1]],
    "link_bandwidth_bytes_per_s": "25GB/s",
}
NUMA = {
    "kind": "numa",
    "name": "n",
    "numa_nodes": [[0, 1], [2, 3], [4]],
    "pcie_bandwidth_bytes_per_s": "64GB/s",
    "socket_bandwidth_bytes_per_s": "128GB/s",
    "buffers": "sender",
}
SERVERS = {
    "kind": "servers",
    "name": "v",
    "num_servers": 2,
    "server": SWITCHED,
    "nics_per_server": 2,
    "nic_bandwidth_bytes_per_s": "50GB/s",
}
ALL = [SWITCHED, LEAF_SPINE, TORUS, MESH, NUMA, SERVERS]


@pytest.mark.parametrize("data", ALL, ids=lambda data: data["kind"])
def test_a_topology_is_read_by_its_kind_and_written_back_the_same(data: Any) -> None:
    topology = read(data)
    assert topology.kind == data["kind"]
    assert READER.validate_json(READER.dump_json(topology)) == topology
    assert topology == read(topology.model_dump(mode="json"))


def test_a_topology_is_a_name_a_change_an_object_or_nothing() -> None:
    by_name = Holder.model_validate({"topology": "tpu-v4-cube"}).topology
    assert isinstance(by_name, TorusTopology)
    assert by_name.extents == (4, 4, 4)
    changed = Holder.model_validate({"topology": {"base": "tpu-v4-cube", "extents": [8]}}).topology
    assert isinstance(changed, TorusTopology)
    assert (changed.extents, changed.name) == ((8,), "tpu-v4-cube (modified)")
    assert "extents" not in changed.sources
    assert isinstance(Holder.model_validate({"topology": MESH}).topology, MeshTopology)
    assert Holder.model_validate({"topology": None}).topology is None
    inside = read(SERVERS, server={"base": "hgx-h100", "num_cards": 4}, nics_per_server=4)
    assert inside.num_cards == 8
    assert TopologyFile.model_validate("hgx-h100").root.num_cards == 8


def test_the_schema_takes_names_changes_and_objects() -> None:
    schema = Holder.model_json_schema()
    options = schema["properties"]["topology"]["anyOf"]
    assert {"type": "string"} in options
    assert any(option.get("required") == ["base"] for option in options)
    assert {"SwitchedTopology", "ServersTopology"} <= set(schema["$defs"])


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ("hgx-h10", "", "nearest: hgx-h100"),
        ({"name": "x"}, "", "needs a field 'kind'"),
        ({"kind": "star", "name": "x"}, "", "no kind is named 'star'"),
        ({**TORUS, "extents": [4, 0]}, "extents[1]", "must be at least 1"),
        ({**TORUS, "extents": []}, "extents", "at least 1 item"),
        ({**TORUS, "extents": [2, 2, 2, 2]}, "extents", "at most 3 items"),
        ({**TORUS, "extents": 4}, "extents", "must be a list"),
        ({**TORUS, "link_bandwidth_bytes_per_s": 0}, "link_bandwidth_bytes_per_s", "is zero"),
        ({**TORUS, "width": 3}, "width", "no such field"),
        ({**SERVERS, "start_s": "1us"}, "start_s", "no such field"),
        ({**SERVERS, "server": SERVERS}, "server", "no kind is named 'servers'"),
        ({**SERVERS, "server": "two-hgx-h100"}, "server", "no kind is named 'servers'"),
        ({**NUMA, "buffers": "host"}, "buffers", "the number of a NUMA node"),
        ({**NUMA, "buffers": True}, "buffers", "the number of a NUMA node"),
        ({**LEAF_SPINE, "up_ports": True}, "up_ports[0]", "must be a whole number"),
        ({**LEAF_SPINE, "routing": "random"}, "routing", "must be one of"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(data: Any, field: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        validate(TopologyFile, data, "file")
    assert words in str(error.value)
    assert error.value.field == (field or "topologyfile")
    assert "\n" not in str(error.value)


def refused(data: Any, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        read(data)
    assert words in error.value.errors()[0]["msg"]


def test_ports_of_cards_are_spread_evenly_over_switches() -> None:
    assert even_parts(18, 4) == (5, 5, 4, 4)
    assert read("hgx-h100").ports_at_switches == (5, 5, 4, 4)
    assert read(SWITCHED).ports_at_switches == (2, 2, 1, 1)


def test_switches_need_a_port_for_every_port_of_a_card() -> None:
    # 4 cards x 6 ports = 24; 4 switches x 6 = 24 as well, but 2 ports of 4 cards meet at one: 8
    read(SWITCHED)
    refused({**SWITCHED, "ports_per_switch": 7}, "takes 2 ports of each card, 8 in all, but has 7")
    refused(
        {**SWITCHED, "ports_per_switch": 5},
        "4 cards x 6 ports need 24 switch ports, but 4 switches x 5 have 20",
    )
    read(SWITCHED, num_switches=6)
    refused({**SWITCHED, "num_switches": 7}, "6 ports cannot reach all 7 switches")


@pytest.mark.parametrize(("down", "up", "gb_per_s", "ratio"), [(32, 32, 800, 1), (48, 16, 400, 3)])
def test_a_64_port_switch_divides_its_bandwidth(
    down: int, up: int, gb_per_s: int, ratio: int
) -> None:
    """Section 6.5.1: 64 ports of 25 GB/s; 32 x 25 = 800 and 16 x 25 = 400 GB/s up."""
    leaf = read(LEAF_SPINE, cards_per_leaf=down, up_ports=up, num_spines=up)
    assert leaf.up_bytes_per_s == gb_per_s * 10**9
    assert leaf.down_bytes_per_s == down * 25 * 10**9
    assert leaf.oversubscription == ratio


def test_leaf_and_spine_chips_need_ports_for_all_cables() -> None:
    refused({**LEAF_SPINE, "cards_per_leaf": 33}, "33 ports down and 32 up, but has 64")
    # 4 leaves x 32 cables on 1 spine = 128 ports; on 2 spines 64 each
    read(LEAF_SPINE, num_spines=2)
    refused({**LEAF_SPINE, "num_spines": 1}, "a spine chip of plane 0 needs 128 ports, but has 64")
    # 32 cables on 3 spines: 11, 11 and 10; 4 leaves x 11 = 44
    read(LEAF_SPINE, num_spines=3, ports_per_switch=64)
    refused({**LEAF_SPINE, "num_spines": 33}, "32 up ports cannot reach all 33 spines")
    refused({**LEAF_SPINE, "num_planes": 2}, "with 1 ports cannot reach all 2 planes")


def test_leaves_without_spines_are_joined_pairwise() -> None:
    read(LEAF_SPINE, num_spines=0, up_ports=30)
    refused({**LEAF_SPINE, "num_spines": 0}, "32 up ports do not spread evenly over 3 other leaves")
    refused({**LEAF_SPINE, "num_spines": 0, "up_ports": 2}, "cannot reach all 3 other leaves")
    alone = read(LEAF_SPINE, num_leaves=1, num_spines=0, up_ports=0)
    assert alone.oversubscription is None


def test_planes_may_differ_in_up_ports_and_spines() -> None:
    """DGX H100: of 18 ports a plane has 5 or 4: 40 down, 20 up or 32 down, 16 up, always 2:1."""
    system = read("nvlink-switch-system")
    assert system.ports_at_planes == (5, 5, 4, 4)
    assert system.oversubscription == 2
    assert system.up_bytes_per_s == 72 * 25 * 10**9
    assert system.down_bytes_per_s == 8 * 450 * 10**9
    assert [system.wires_to_spines(plane)[0] for plane in range(4)] == [2, 2, 2, 2]
    even = read({"base": "nvlink-switch-system", "up_ports": 18, "num_spines": 9})
    # 40 down over 18 up in the planes with five ports of a card
    assert even.oversubscription == Fraction(20, 9)
    mixed = {"base": "nvlink-switch-system", "num_spines": [10, 10, 8, 0]}
    refused(mixed, "either all planes have spines or none")
    refused({"base": "nvlink-switch-system", "up_ports": [20, 20]}, "lists 2 planes, but there are")


def test_a_mesh_joins_different_cards_once_and_all_of_them() -> None:
    refused({**MESH, "links": [[0, 1, 1], [1, 1, 1]]}, "[1, 1] does not join two of cards 0 to 2")
    refused({**MESH, "links": [[0, 3, 1]]}, "[0, 3] does not join two of cards 0 to 2")
    refused({**MESH, "links": [[0, 1, 1], [1, 0, 1]]}, "cards 1 and 0 are listed twice")
    refused({**MESH, "links": [[0, 1, 1]]}, "some cards cannot be reached")
    refused({**MESH, "links": [[0, 1, 0], [1, 2, 1]]}, "greater than or equal to 1")
    assert read(MESH, num_cards=1, links=[]).num_cards == 1


def test_numa_nodes_hold_every_card_once_and_buffers_exist() -> None:
    assert read(NUMA).num_cards == 5
    assert read(NUMA).joined_nodes == ((0, 1), (0, 2), (1, 2))
    refused({**NUMA, "numa_nodes": [[0, 1], [1]]}, "every card from 0 to 1 once")
    refused({**NUMA, "numa_nodes": [[0], [2]]}, "every card from 0 to 2 once")
    refused({**NUMA, "numa_nodes": [[]]}, "every card from 0 to 0 once")
    read(NUMA, buffers=2)
    refused({**NUMA, "buffers": 3}, "buffers are on NUMA node 3, but the last one is 2")
    refused({**NUMA, "buffers": -1}, "NUMA node -1")
    assert read(NUMA, socket_links=[[0, 1], [1, 2]]).joined_nodes == ((0, 1), (1, 2))
    refused({**NUMA, "socket_links": [[0, 1]]}, "some NUMA nodes cannot be reached")


@pytest.mark.parametrize(("nics", "is_even"), [(1, True), (2, True), (3, False), (4, True)])
def test_adapters_are_shared_evenly(nics: int, is_even: bool) -> None:
    if is_even:
        assert read(SERVERS, nics_per_server=nics).num_cards == 8
    else:
        refused({**SERVERS, "nics_per_server": nics}, "3 adapters cannot be dealt evenly to 4")


@pytest.mark.parametrize(("nics", "is_even"), [(6, False), (8, True)])
def test_adapters_of_a_card_are_equally_many(nics: int, is_even: bool) -> None:
    if is_even:
        read(SERVERS, nics_per_server=nics)
    else:
        refused({**SERVERS, "nics_per_server": nics}, "6 adapters cannot be dealt evenly to 4")


def test_what_could_not_be_laid_out_is_refused() -> None:
    # 65,536 cards of a three-dimensional torus have three pairs of links each
    read(TORUS, extents=[64, 64, 16])
    refused({**TORUS, "extents": [64, 64, 17]}, "69632 cards are more than the 65536")
    wide = {**SWITCHED, "num_cards": 65_536, "ports_per_card": 16, "num_switches": 16}
    refused({**wide, "ports_per_switch": 65_536}, f"more than the {MAX_LINK_PAIRS}")
    refused({**SERVERS, "num_servers": 60_000}, "240000 cards are more")
    # a server has 4 x 4 pairs inside and 4 + 2 of adapters: 16,000 x 22; or 4 x 256 + 6 = 1,030
    read(SERVERS, num_servers=16_000)
    inner = {**SWITCHED, "ports_per_card": 256, "num_switches": 256, "ports_per_switch": 4}
    refused({**SERVERS, "num_servers": 16_000, "server": inner}, "16480000 pairs of links")


def test_only_switches_make_all_places_alike() -> None:
    assert is_uniform(read(SWITCHED))
    assert not is_uniform(read(LEAF_SPINE))
    assert not is_uniform(read(TORUS))
    assert is_uniform(read(SERVERS, nics_per_server=4))
    assert not is_uniform(read(SERVERS))  # two cards share an adapter
    assert not is_uniform(read(SERVERS, nics_per_server=4, exit_bandwidth_bytes_per_s="50GB/s"))
    assert not is_uniform(read(SERVERS, server=TORUS, nics_per_server=16))


def test_the_catalog_has_the_published_fabrics() -> None:
    names = """
        cloudmatrix384 dgx-1 dgx-2 dgx-a100 dgx-h100-host eight-hgx-h100 gb200-nvl72 hgx-h100
        nvlink-switch-system switched-64 tpu-v4-512 tpu-v4-cube two-hgx-h100
    """
    assert tuple(names.split()) == NAMES
    cards = [read(name).num_cards for name in NAMES]
    assert cards == [384, 8, 16, 8, 8, 64, 72, 8, 256, 64, 512, 64, 16]
    kinds = {type(read(name)) for name in NAMES}
    assert kinds == {
        SwitchedTopology,
        LeafSpineTopology,
        TorusTopology,
        MeshTopology,
        NumaTopology,
        ServersTopology,
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_unpublished_time_is_zero_and_says_so(name: str) -> None:
    entry = catalog_entry("topologies", name)
    for field, source in entry["sources"].items():
        if source.startswith("not published"):
            assert "0 means paths and loads only" in source
            assert read(name).model_dump()[field] == 0


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("dgx-1", 150),
        ("dgx-2", 150),
        ("dgx-a100", 300),
        ("hgx-h100", 450),
        ("nvlink-switch-system", 450),
        ("gb200-nvl72", 900),
        ("cloudmatrix384", 392),
        ("tpu-v4-cube", 300),
        ("switched-64", 300),
    ],
)
def test_ports_of_a_card_add_up_to_its_published_bandwidth(name: str, gb_per_s: int) -> None:
    topology = read(name)
    if isinstance(topology, MeshTopology):
        for card in range(8):
            cables = sum(count for a, b, count in topology.links if card in (a, b))
            assert cables * topology.link_bandwidth_bytes_per_s == gb_per_s * 10**9
    elif isinstance(topology, TorusTopology):
        ports = 2 * len(topology.extents)
        assert ports * topology.link_bandwidth_bytes_per_s == gb_per_s * 10**9
    else:
        speed = topology.ports_per_card * topology.port_bandwidth_bytes_per_s
        assert speed == gb_per_s * 10**9
