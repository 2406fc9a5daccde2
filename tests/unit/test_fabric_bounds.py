"""Busiest links, cuts, bisections and parts: by hand, by trying all cuts, and as published."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from instances.topology import Topology
from optimizer.fabrics.bounds import (
    Parts,
    bisection,
    busiest_link,
    cut,
    cut_set_bound,
    parts,
)
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.fabrics.flow import least_cut
from optimizer.fabrics.paths import link_name

READER: TypeAdapter[Any] = TypeAdapter(Topology)
GB = 10**9
MIB = 2**20


def fabric_of(data: Any) -> Fabric:
    return build_fabric(READER.validate_python(data))


def counted(data: Any) -> Parts:
    return parts(READER.validate_python(data))


# Parts


def test_the_design_example_needs_twice_the_links_and_six_switches() -> None:
    """64 cards x 6 ports / 2 = 192 cables between cards, or 64 x 6 = 384 to six switches."""
    torus, switched = counted("tpu-v4-cube"), counted("switched-64")
    assert (torus.num_links, torus.num_switches) == (192, 0)
    assert (switched.num_links, switched.num_switches) == (384, 6)
    assert parts(fabric_of("switched-64")) == switched


def test_cloudmatrix384_has_448_switch_chips() -> None:
    """48 nodes x 7 + 7 planes x 16; cables 384 x 14 down and 336 x 16 up."""
    found = counted("cloudmatrix384")
    assert found.num_switches == 48 * 7 + 7 * 16 == 448
    assert found.num_links == 384 * 14 + 336 * 16


def test_384_cards_joined_pairwise_need_73536_links() -> None:
    links = [[a, b, 1] for a, b in combinations(range(384), 2)]
    found = counted({"base": "dgx-1", "num_cards": 384, "links": links})
    assert (found.num_links, found.num_switches) == (73_536, 0)


def test_published_systems_have_their_published_parts() -> None:
    system = counted("nvlink-switch-system")
    # 32 x 4 chips in servers and 36 beyond; 256 x 18 cables down and 32 x 72 up
    assert system.num_switches == 128 + 36
    assert system.num_links == 4608 + 2304
    assert (counted("dgx-1").num_links, counted("dgx-2").num_switches) == (24, 12)
    assert counted("gb200-nvl72").num_links == 72 * 18


def test_an_exit_is_no_cable_and_an_adapter_has_two() -> None:
    """Two servers: 288 NVLinks, 16 cables of cards to 8 adapters, 8 to the network."""
    data = {"base": "two-hgx-h100", "nics_per_server": 4}
    found = counted({**data, "exit_bandwidth_bytes_per_s": "100GB/s"})
    assert found == counted(data)
    assert found.links_by_class == (("port", 288), ("card to adapter", 16), ("adapter", 8))
    assert (found.num_links, found.num_switches, found.num_nics) == (312, 8, 8)
    assert found.num_cards == 16


# Bisections


@pytest.mark.parametrize(
    ("extents", "num_links"),
    [
        ([4, 4, 4], 32),  # 2 x 4 x 4
        ([8, 8, 8], 128),  # 2 x 8 x 8
        ([16], 2),
        ([2], 2),  # two parallel cables
        ([4, 8, 2], 16),  # across the 8: 2 x 4 x 2
        ([3, 4], 6),  # across the 4, the longest even extent: 2 x 3
        ([5, 2], 10),  # across the 2: 5 pairs with two cables each
        ([3], 2),  # one card against two
    ],
)
def test_a_torus_is_halved_across_its_longest_even_extent(
    extents: list[int], num_links: int
) -> None:
    fabric = fabric_of({"base": "tpu-v4-cube", "extents": extents})
    found = bisection(fabric)
    assert found.num_links == num_links == len(found.links)
    assert found.bytes_per_s == num_links * 50 * GB
    assert len(found.side) == fabric.num_cards // 2


@pytest.mark.parametrize("extents", [[4, 2], [6], [2, 2, 2], [4, 3]])
def test_no_balanced_cut_of_a_small_torus_has_fewer_links(extents: list[int]) -> None:
    fabric = fabric_of({"base": "tpu-v4-cube", "extents": extents})
    cards = range(fabric.num_cards)
    fewest = min(cut(fabric, side).num_links for side in combinations(cards, len(cards) // 2))
    assert bisection(fabric).num_links == fewest


@pytest.mark.parametrize(
    ("name", "num_links", "gb_per_s"),
    [
        ("hgx-h100", 72, 1800),  # 4 cards x 18 ports
        ("switched-64", 192, 9600),  # 32 cards x 6 ports
        ("dgx-1", 6, 150),  # 2 + 2 + 1 + 1 cables between the two squares
        ("dgx-2", 48, 1200),  # 6 pairs of chips x 8 cables
        ("nvlink-switch-system", 1152, 28_800),  # 16 servers x 72 cables up; 57.6 TB/s both ways
        ("cloudmatrix384", 2688, 75_264),  # 24 nodes x 7 x 16, or 192 cards x 14
        ("two-hgx-h100", 8, 400),  # 8 adapters
        ("dgx-h100-host", 1, 128),
    ],
)
def test_bisections_of_published_fabrics(name: str, num_links: int, gb_per_s: int) -> None:
    found = bisection(fabric_of(name))
    assert (found.num_links, found.bytes_per_s) == (num_links, gb_per_s * GB)


def test_numa_nodes_and_servers_are_not_cut_in_two() -> None:
    numa = {"base": "dgx-h100-host", "numa_nodes": [[0, 2, 4, 6], [1, 3, 5, 7]]}
    assert bisection(fabric_of(numa)).side == (0, 2, 4, 6)
    servers = {"base": "two-hgx-h100", "server": numa, "num_servers": 3}
    # server 0, and the even cards of server 1
    assert bisection(fabric_of(servers)).side == (*range(8), 8, 10, 12, 14)


# Cuts


def test_chips_stand_where_the_cut_is_narrowest() -> None:
    """One card out of eight: its own 18 ports. Seven: still those 18, into the last card."""
    fabric = fabric_of("hgx-h100")
    assert (cut(fabric, [3]).num_links, cut(fabric, [3]).bytes_per_s) == (18, 450 * GB)
    most = cut(fabric, range(7))
    assert (most.num_links, most.bytes_per_s) == (18, 450 * GB)
    assert {int(fabric.links.heads[link]) for link in most.links} == {7}


def test_a_cut_of_a_tapered_leaf_is_its_uplinks() -> None:
    """48 cards x 25 GB/s down, 16 up: 400 GB/s, a third (section 6.5.1)."""
    data = {
        "base": "dgx-2",
        "num_planes": 1,
        "num_leaves": 4,
        "cards_per_leaf": 48,
        "ports_per_card": 1,
        "up_ports": 16,
        "num_spines": 16,
        "ports_per_switch": 64,
    }
    fabric = fabric_of(data)
    assert cut(fabric, range(48)).bytes_per_s == 400 * GB
    assert cut(fabric, range(10)).bytes_per_s == 250 * GB  # ten cards' own ports are narrower
    even = fabric_of({**data, "cards_per_leaf": 32, "up_ports": 32, "num_spines": 32})
    assert cut(even, range(32)).bytes_per_s == 800 * GB


def test_an_exit_can_be_the_cut() -> None:
    fabric = fabric_of({"base": "two-hgx-h100", "exit_bandwidth_bytes_per_s": "100GB/s"})
    found = cut(fabric, range(8))
    assert found.bytes_per_s == 100 * GB
    assert [link_name(fabric, link) for link in found.links] == ["server 0 exit -> network"]


def test_a_cut_set_bound_takes_the_worse_way() -> None:
    """Two servers: 8 adapters carry 400 GB/s each way; 4000 bytes there, 800 back, 99 inside."""
    fabric = fabric_of("two-hgx-h100")
    senders, receivers = np.array([0, 1, 8, 2]), np.array([8, 9, 1, 3])
    sizes = np.array([3000, 1000, 800, 99])
    bound = cut_set_bound(fabric, range(8), senders, receivers, sizes)
    assert (bound.out_bytes, bound.in_bytes) == (4000, 800)
    assert bound.time_s == Fraction(4000, 400 * GB)
    back = cut_set_bound(fabric, range(8, 16), senders, receivers, sizes)
    assert (back.out_bytes, back.in_bytes, back.time_s) == (800, 4000, bound.time_s)


def test_speeds_that_are_no_whole_numbers_are_cut_exactly() -> None:
    numa = {
        "base": "dgx-h100-host",
        "pcie_bandwidth_bytes_per_s": "1/3B/s",
        "socket_bandwidth_bytes_per_s": "5/7B/s",
    }
    # two cards out: 2/3 are less than 5/7; three: 5/7 are less than 1
    assert cut(fabric_of(numa), [0, 1]).bytes_per_s == Fraction(2, 3)
    assert cut(fabric_of(numa), [0, 1, 2]).bytes_per_s == Fraction(1)
    assert cut(fabric_of(numa), [0, 1, 2, 3]).bytes_per_s == Fraction(5, 7)


@pytest.mark.parametrize(("side", "words"), [([], "both sides"), (range(8), "both sides")])
def test_a_cut_has_cards_on_both_sides(side: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cut(fabric_of("hgx-h100"), side)


def test_cuts_are_about_cards() -> None:
    fabric = fabric_of("hgx-h100")
    with pytest.raises(ValueError, match="has cards 0 to 7 only"):
        cut(fabric, [0, 8])
    with pytest.raises(ValueError, match="messages between cards"):
        cut_set_bound(fabric, [0], np.array([0]), np.array([8]), np.array([1]))


def brute_force(num_nodes: int, capacities: dict[tuple[int, int], int]) -> int:
    """Try every set of nodes that has node 0 and not node 1."""
    others = range(2, num_nodes)
    sides = [{0, *some} for size in range(num_nodes - 1) for some in combinations(others, size)]
    return min(
        sum(c for (a, b), c in capacities.items() if a in side and b not in side) for side in sides
    )


def test_a_least_cut_equals_the_best_of_all_sides() -> None:
    rng = random.Random(7)
    for _ in range(200):
        nodes = rng.randint(2, 7)
        pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
        chosen = rng.sample(pairs, rng.randint(0, len(pairs)))
        capacities = {pair: rng.choice([0, 1, 2, 3, 10**20]) for pair in chosen}
        size, near = least_cut(nodes, capacities, 0, 1)
        assert size == brute_force(nodes, capacities)
        assert 0 in near
        assert 1 not in near
        across = [c for (a, b), c in capacities.items() if a in near and b not in near]
        assert sum(across) == size


def test_a_cut_of_a_fabric_equals_the_best_places_of_its_chips() -> None:
    """Every way to give the chips of small fabrics a side."""
    small = {"base": "dgx-2", "num_planes": 1, "cards_per_leaf": 2, "ports_per_card": 1}
    spined = {**small, "num_leaves": 3, "up_ports": 3, "num_spines": 2}
    fabrics = [spined, {**small, "up_ports": 1}, {"base": "hgx-h100", "num_cards": 4}]
    for fabric in map(fabric_of, fabrics):
        links, cards = fabric.links, fabric.num_cards
        speed = [links.classes[k].bytes_per_s for k in links.class_of.tolist()]
        wide = [s * w for s, w in zip(speed, links.wires.tolist(), strict=True)]
        ends = list(zip(links.tails.tolist(), links.heads.tolist(), wide, strict=True))
        chips = range(cards, len(fabric.node_names))
        for side in [(0,), (0, 1), (1, 3), (0, 2, 3)]:
            least = min(
                sum(w for a, b, w in ends if a in near and b not in near)
                for size in range(len(chips) + 1)
                for near in ({*side, *some} for some in combinations(chips, size))
            )
            assert cut(fabric, side).bytes_per_s == least


# Busiest links


def test_the_busiest_link_is_the_slowest_to_carry_its_load() -> None:
    """PCIe of 64 GB/s takes 130 bytes as long as the link of sockets, 128 GB/s, takes 260."""
    fabric = fabric_of("dgx-h100-host")
    senders, receivers = np.array([0, 1, 2]), np.array([4, 5, 6])
    found = busiest_link(fabric, senders, receivers, np.array([130, 120, 9]))
    assert link_name(fabric, found.link) == "card 0 -> NUMA node 0"
    assert (found.load_bytes, found.time_s) == (130, Fraction(130, 64 * GB))
    equal = busiest_link(fabric, senders, receivers, np.array([130, 120, 10]))
    assert equal.link == found.link
    more = busiest_link(fabric, senders, receivers, np.array([130, 120, 11]))
    assert link_name(fabric, more.link) == "NUMA node 0 -> NUMA node 1"
    assert (more.load_bytes, more.time_s) == (261, Fraction(261, 128 * GB))


def test_nobody_sends_nothing_in_no_time() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    assert busiest_link(fabric_of("dgx-1"), nobody, nobody, nobody).time_s == 0
    alone = fabric_of({"base": "tpu-v4-cube", "extents": [1]})
    assert busiest_link(alone, nobody, nobody, nobody).load_bytes == 0


@pytest.mark.parametrize("kind", ["hgx-h100", "dgx-1", "dgx-2", "two-hgx-h100", "dgx-h100-host"])
def test_no_cut_asks_for_more_time_than_the_busiest_link(kind: str) -> None:
    """Both are lower bounds, but only the busiest link knows the paths."""
    rng, fabric = random.Random(kind), fabric_of(kind)
    cards = list(range(fabric.num_cards))
    for _ in range(30):
        messages = [rng.sample(cards, 2) for _ in range(20)]
        sizes = np.array([rng.randint(0, MIB) for _ in messages])
        senders, receivers = np.array(messages).T
        side = rng.sample(cards, rng.randint(1, len(cards) - 1))
        bound = cut_set_bound(fabric, side, senders, receivers, sizes)
        busiest = busiest_link(fabric, senders, receivers, sizes)
        assert bound.time_s <= busiest.time_s
        loads = fabric.loads(senders, receivers, sizes)
        assert busiest.time_s == fabric.seconds_per_unit(loads)
