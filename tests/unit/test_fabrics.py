"""Fabrics by hand: which links messages take, what rounds load on them, and published figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from instances.topology import Topology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import MAX_EXACT_UNITS, Fabric
from optimizer.fabrics.paths import Farthest, farthest, link_name, path

READER: TypeAdapter[Any] = TypeAdapter(Topology)
MIB = 2**20
GB = 10**9


def fabric_of(data: Any) -> Fabric:
    return build_fabric(READER.validate_python(data))


def ring_of(cards: int) -> Fabric:
    return fabric_of({"base": "tpu-v4-cube", "extents": [cards]})


def all_pairs(fabric: Fabric) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(a, b) for a in range(fabric.num_cards) for b in range(fabric.num_cards) if a != b]
    senders, receivers = np.array(pairs).T
    return senders, receivers


def all_to_all(fabric: Fabric) -> np.ndarray:
    """Return what links carry, in whole messages times `split`, if every card sends 1 to each."""
    senders, receivers = all_pairs(fabric)
    return fabric.loads(senders, receivers, np.ones_like(senders))


def loaded(fabric: Fabric, messages: list[tuple[int, int, int]]) -> dict[str, Fraction]:
    """Return the load of every link in use by name; parallel links add up."""
    senders, receivers, units = np.array(messages).T
    found: dict[str, Fraction] = {}
    for link, load in enumerate(fabric.loads(senders, receivers, units).tolist()):
        if load:
            name = link_name(fabric, link)
            found[name] = found.get(name, Fraction(0)) + Fraction(load, fabric.split)
    return found


# Figures of section 6.5.1


def recursive(rank: int, step: int) -> int:
    return rank ^ 2**step


def swing(rank: int, step: int) -> int:
    rho = (1 - (-2) ** (step + 1)) // 3  # 1, -1, 3
    return (rank + rho if rank % 2 == 0 else rank - rho) % 16


@pytest.mark.parametrize(
    ("partner", "hops", "busiest", "total"),
    [(recursive, [1, 2, 4], [4, 4, 4], [64, 64, 64]), (swing, [1, 1, 3], [4, 2, 2], [64, 32, 48])],
)
def test_three_rounds_on_a_ring_of_16(
    partner: Any, hops: list[int], busiest: list[int], total: list[int]
) -> None:
    """ReduceScatter of 8 MiB: a card sends 4, 2, 1 MiB; only the partners differ."""
    fabric = ring_of(16)
    ranks = np.arange(16)
    seconds = Fraction(0)
    for step in range(3):
        partners = np.array([partner(rank, step) for rank in range(16)])
        loads = fabric.loads(ranks, partners, np.full(16, 8 * MIB >> step + 1))
        assert fabric.hops(ranks, partners).tolist() == [2 * hops[step]] * 16
        assert int(loads.max()) == 2 * busiest[step] * MIB
        assert int(loads.sum()) == 2 * total[step] * MIB
        seconds += fabric.seconds_per_unit(loads)
    # 12 MiB at 50 GB/s are 251.7 us, 8 MiB 167.8
    assert seconds == Fraction(sum(busiest) * MIB, 50 * GB)


@pytest.mark.parametrize(
    ("buffers", "ring", "mib_each_way"),
    [(0, [0, 1, 2, 3], 24), ("sender", [0, 1, 2, 3], 12), ("sender", [0, 2, 1, 3], 24)],
)
def test_buffers_and_the_order_of_a_ring_decide_what_crosses_sockets(
    buffers: Any, ring: list[int], mib_each_way: int
) -> None:
    """Cards 0, 1 on A and 2, 3 on B send 48 MiB round a ring, 12 each; PCIe carries the same."""
    fabric = fabric_of(
        {"base": "dgx-h100-host", "numa_nodes": [[0, 1], [2, 3]], "buffers": buffers}
    )
    messages = [(a, b, 12 * MIB) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    loads = loaded(fabric, messages)
    assert loads["NUMA node 0 -> NUMA node 1"] == mib_each_way * MIB
    assert loads["NUMA node 1 -> NUMA node 0"] == mib_each_way * MIB
    pcie = {name: load for name, load in loads.items() if "card" in name}
    assert len(pcie) == 8
    assert set(pcie.values()) == {12 * MIB}


def test_buffers_near_the_receiver_cross_sockets_as_often_as_near_the_sender() -> None:
    fabric = fabric_of(
        {"base": "dgx-h100-host", "numa_nodes": [[0, 1], [2, 3]], "buffers": "receiver"}
    )
    assert loaded(fabric, [(0, 2, 5)])["NUMA node 0 -> NUMA node 1"] == 5
    elsewhere = fabric_of({"base": "dgx-h100-host", "buffers": 1})
    # there and back again, though both cards are on node 0
    assert loaded(elsewhere, [(0, 1, 5)]) == {
        "card 0 -> NUMA node 0": 5,
        "NUMA node 0 -> NUMA node 1": 5,
        "NUMA node 1 -> NUMA node 0": 5,
        "NUMA node 0 -> card 1": 5,
    }


def test_the_farthest_cards_of_a_torus_wait_for_more_chips() -> None:
    """2 + 2 + 2 links and 5 chips between, against 1 switch: 4 x 200 ns = 0.8 us more."""
    torus, switched = fabric_of("tpu-v4-cube"), fabric_of("switched-64")
    # card 42 = (2, 2, 2)
    assert farthest(torus) == Farthest(0, 42, 6, 5)
    assert farthest(switched) == Farthest(0, 1, 2, 1)
    ends = np.array([0]), np.array([42])
    assert torus.fixed_s(*ends) == Fraction(1000, 10**9)
    assert torus.fixed_s(*ends) - switched.fixed_s(*ends) == Fraction(800, 10**9)
    assert torus.fixed_s(np.array([0]), np.array([1])) == 0
    assert farthest(fabric_of("tpu-v4-512")).num_links == 12


def test_uniform_all_to_all_of_64_and_512_cards() -> None:
    """Distances of a row of 4 add up to 0+1+2+1 = 4: 64 cards x 3·16·4 over 384 links = 32 each.

    On switches 63 messages leave over 6 ports, so 10.5 each. A row of 8 has 16: 512·3·64·16/3072.
    """
    torus = fabric_of("tpu-v4-cube")
    assert set(all_to_all(torus).tolist()) == {32 * torus.split}
    switched = fabric_of("switched-64")
    assert set(all_to_all(switched).tolist()) == {63}
    assert switched.split == 6
    large = fabric_of("tpu-v4-512")
    assert set(all_to_all(large).tolist()) == {512 * large.split}


# One kind after the other


def test_a_message_takes_all_ports_of_a_card_at_once() -> None:
    """18 ports over four chips: 5, 5, 4, 4. 450 GB/s: 1 byte takes 1/450 ns."""
    fabric = fabric_of("hgx-h100")
    assert len(fabric.links) == 2 * 8 * 4
    assert fabric.split == 18
    assert fabric.node_names[8:] == ("switch 0", "switch 1", "switch 2", "switch 3")
    loads = fabric.loads(np.array([0]), np.array([3]), np.array([9000]))
    by_name = {link_name(fabric, int(link)): int(loads[link]) for link in np.flatnonzero(loads)}
    assert by_name["card 0 -> switch 1"] == 5 * 9000
    assert by_name["switch 3 -> card 3"] == 4 * 9000
    assert len(by_name) == 8
    assert fabric.seconds_per_unit(loads) == Fraction(9000, 450 * GB)
    assert fabric.fixed_s(np.array([0]), np.array([3])) == Fraction(822, 10**9)


def test_chips_that_add_up_talk_to_their_cards() -> None:
    fabric = fabric_of("hgx-h100")
    assert fabric.adders == (8, 9, 10, 11)
    assert fabric.adder_weights(np.arange(8)) == (5, 5, 4, 4)
    up = fabric.loads(np.array([2, 0]), np.array([9, 1]), np.array([7, 18]))
    loads = {link_name(fabric, int(link)): int(up[link]) for link in np.flatnonzero(up)}
    assert loads["card 2 -> switch 1"] == 7 * 18
    assert loads["card 0 -> switch 0"] == 18 * 5
    assert [step.head for step in path(fabric, 8, 5)] == [5]
    with pytest.raises(ValueError, match="no link leads from switch 0 to switch 1"):
        path(fabric, 8, 9)
    plain = fabric_of({"base": "hgx-h100", "reduces": False})
    assert (plain.adders, plain.adder_weights(np.arange(8))) == ((), ())


def test_a_tie_on_a_torus_goes_both_ways_round() -> None:
    ring = ring_of(4)
    # opposite cards: half of 10 each way; neighbours: all of it, one way
    assert loaded(ring, [(0, 2, 10)]) == {
        "card 0 -> card 1": 5,
        "card 1 -> card 2": 5,
        "card 0 -> card 3": 5,
        "card 3 -> card 2": 5,
    }
    assert loaded(ring, [(0, 3, 10)]) == {"card 0 -> card 3": 10}
    pair = ring_of(2)
    assert len(pair.links) == 4
    loads = pair.loads(np.array([0]), np.array([1]), np.array([10]))
    # two parallel cables carry half each: link 0 leads on, link 1 back, and both to card 1
    assert loads.tolist() == [10, 10, 0, 0]
    assert pair.seconds_per_unit(loads) == Fraction(10, 100 * GB)


def test_a_torus_routes_x_first_and_an_extent_of_1_has_no_links() -> None:
    torus = fabric_of({"base": "tpu-v4-cube", "extents": [3, 1, 3]})
    assert len(torus.links) == 9 * 2 * 2
    # card 8 = (2, 0, 2): one step back in x, one back in z
    assert [step.head for step in path(torus, 0, 8)] == [2, 8]
    alone = ring_of(1)
    assert (alone.num_cards, len(alone.links)) == (1, 0)
    with pytest.raises(ValueError, match="one card only"):
        farthest(alone)


def test_a_leaf_keeps_what_stays_below_it_and_spreads_the_rest() -> None:
    """Two planes with 2 and 1 ports; 3 up cables over two spines: 2 and 1."""
    data = {
        "kind": "leaf_spine",
        "name": "small",
        "num_planes": 2,
        "num_leaves": 2,
        "cards_per_leaf": 2,
        "ports_per_card": 3,
        "up_ports": 3,
        "num_spines": 2,
        "ports_per_switch": 8,
        "port_bandwidth_bytes_per_s": "10GB/s",
        "reduces": True,
    }
    fabric = fabric_of(data)
    # 4 cards x 2 planes, 2 leaves x 2 spines x 2 planes, each there and back
    assert len(fabric.links) == 2 * (8 + 8)
    near = loaded(fabric, [(0, 1, 9)])
    assert near == {
        "card 0 -> leaf 0 of plane 0": 6,
        "card 0 -> leaf 0 of plane 1": 3,
        "leaf 0 of plane 0 -> card 1": 6,
        "leaf 0 of plane 1 -> card 1": 3,
    }
    far = loaded(fabric, [(1, 2, 9)])
    assert far["leaf 0 of plane 0 -> spine 0 of plane 0"] == 4
    assert far["leaf 0 of plane 0 -> spine 1 of plane 0"] == 2
    assert far["spine 1 of plane 1 -> leaf 1 of plane 1"] == 1
    static = loaded(fabric_of({**data, "routing": "by_destination"}), [(1, 2, 9), (1, 3, 9)])
    assert static["leaf 0 of plane 0 -> spine 0 of plane 0"] == 6  # all for card 2
    assert static["leaf 0 of plane 0 -> spine 1 of plane 0"] == 6  # all for card 3
    # nodes: 4 cards, then plane 0: leaves 4, 5, spines 6, 7, then plane 1
    assert fabric.adders == tuple(range(4, 12))
    assert fabric.adder_weights(np.array([2, 3])) == (0, 2, 0, 0, 0, 1, 0, 0)
    assert fabric.adder_weights(np.array([0, 3])) == (0, 0, 4, 2, 0, 0, 2, 1)
    assert [step.head for step in path(fabric, 3, 6)] == [5, 6]
    assert [step.head for step in path(fabric, 11, 0)] == [8, 0]
    with pytest.raises(ValueError, match="no link leads from leaf 0 of plane 0 to leaf 1"):
        path(fabric, 0, 5)


def test_boards_of_a_dgx_2_are_joined_plane_by_plane() -> None:
    """16 cards x 6 ports, 6 pairs of chips with 8 cables: 96 + 48 = 144; across, two chips."""
    fabric = fabric_of("dgx-2")
    assert int(fabric.links.wires.sum()) == 2 * (96 + 48)
    assert farthest(fabric) == Farthest(0, 8, 3, 2)
    loads = all_to_all(fabric)
    across = fabric.links.wires == 8
    # 8 x 8 messages one way over 6 planes; split is 6
    assert set(loads[across].tolist()) == {64}
    with_sums = fabric_of({"base": "dgx-2", "reduces": True})
    assert with_sums.adder_weights(np.array([0, 9])) == (1,) * 12
    # card 0, leaf 0 of plane 0 (node 16), leaf 1 of plane 0 (node 17)
    assert [step.head for step in path(with_sums, 0, 17)] == [16, 17]


def test_a_dgx_1_relays_between_cards_that_are_not_joined() -> None:
    """From 0 to 6: of the nearer 2 (one cable) and 4 (two cables), 4. To 5: 1 has one, 4 two."""
    fabric = fabric_of("dgx-1")
    assert int(fabric.links.wires.sum()) == 2 * 24
    assert [step.head for step in path(fabric, 0, 6)] == [4, 6]
    assert [step.head for step in path(fabric, 0, 5)] == [4, 5]
    assert [step.head for step in path(fabric, 3, 4)] == [0, 4]
    square = fabric_of(
        {"base": "dgx-1", "num_cards": 4, "links": [[0, 2, 1], [0, 1, 1], [2, 3, 1], [1, 3, 1]]}
    )
    assert [step.head for step in path(square, 0, 3)] == [1, 3]


def test_servers_share_adapters_and_an_exit() -> None:
    """Two cards per adapter; times: 3.76 us to start, 1 us of network, not NVLink's 822 ns."""
    data = {
        "base": "two-hgx-h100",
        "nics_per_server": 4,
        "network_latency_s": "1us",
        "exit_bandwidth_bytes_per_s": "100GB/s",
    }
    fabric = fabric_of(data)
    # inside 2 x 64; 16 cards and 8 adapters there and back, 2 exits out and in
    assert len(fabric.links) == 128 + 2 * (16 + 8 + 2)
    messages = [(0, 8, 50), (1, 9, 50), (6, 15, 50)]
    loads = loaded(fabric, messages)
    assert loads["server 0 card 1 -> server 0 adapter 0"] == 50
    assert loads["server 0 adapter 0 -> server 0 exit"] == 100
    assert loads["server 0 adapter 3 -> server 0 exit"] == 50
    assert loads["server 0 exit -> network"] == 150
    assert loads["network -> server 1 exit"] == 150
    assert loads["server 1 adapter 3 -> server 1 card 7"] == 50
    senders, receivers, units = np.array(messages).T
    # 100 bytes over 50 GB/s take longer than 150 over 100 GB/s
    total = fabric.loads(senders, receivers, units)
    assert fabric.seconds_per_unit(total) == Fraction(100, 50 * GB)
    assert fabric.fixed_s(senders, receivers) == Fraction(4760, 10**9)
    assert fabric.fixed_s(np.array([0]), np.array([1])) == Fraction(822, 10**9)
    # 6 links; adapter, network, adapter between, an exit is no chip
    assert farthest(fabric) == Farthest(0, 8, 6, 3)


def test_switches_of_servers_add_up_for_their_own_cards() -> None:
    fabric = fabric_of("two-hgx-h100")
    assert fabric.adders == tuple(range(16, 24))
    assert fabric.adder_weights(np.array([8, 11])) == (0, 0, 0, 0, 5, 5, 4, 4)
    assert fabric.adder_weights(np.array([7, 8])) == (0,) * 8
    assert [link_name(fabric, step.link) for step in path(fabric, 9, 20)] == [
        "server 1 card 1 -> server 1 switch 0"
    ]
    with pytest.raises(ValueError, match="nodes of its own server"):
        path(fabric, 0, 20)
    with pytest.raises(ValueError, match="send none"):
        path(fabric, 0, 24)


def test_a_card_with_two_adapters_splits_its_messages() -> None:
    fabric = fabric_of({"base": "two-hgx-h100", "nics_per_server": 16})
    assert fabric.split == 18
    loads = loaded(fabric, [(3, 9, 50)])
    assert loads["server 0 adapter 7 -> network"] == 25
    assert loads["network -> server 1 adapter 2"] == 25
    wide = fabric_of({"base": "two-hgx-h100", "nics_per_server": 32})
    assert wide.split == 36  # of 18 ports inside and 4 adapters


# What cannot be sent


@pytest.mark.parametrize("name", ["hgx-h100", "tpu-v4-cube", "dgx-1", "dgx-h100-host", "dgx-2"])
def test_messages_need_two_nodes_that_exist(name: str) -> None:
    fabric = fabric_of(name)
    last = len(fabric.node_names)
    with pytest.raises(ValueError, match="two different nodes"):
        fabric.loads(np.array([0, 1]), np.array([1, 1]), np.array([1, 1]))
    with pytest.raises(ValueError, match=f"nodes 0 to {last - 1} only"):
        fabric.hops(np.array([0]), np.array([last]))
    with pytest.raises(ValueError, match="nodes 0 to"):
        fabric.hops(np.array([-1]), np.array([0]))
    nobody = np.zeros(0, dtype=np.int64)
    assert fabric.loads(nobody, nobody, nobody).sum() == 0
    assert fabric.fixed_s(nobody, nobody) == 0


def test_sums_that_would_not_be_exact_are_refused() -> None:
    ring = ring_of(4)
    most = MAX_EXACT_UNITS // 2 - 1  # split is 2
    assert ring.loads(np.array([0]), np.array([1]), np.array([most])).max() == 2 * most
    with pytest.raises(ValueError, match="too large for exact sums"):
        ring.loads(np.array([0]), np.array([1]), np.array([most + 1]))


def test_a_ring_too_long_for_a_table_follows_its_messages() -> None:
    """2,048 cards x 2,048 places are more than are counted at once; the loads are the same."""
    ring = ring_of(2048)
    loads = loaded(ring, [(0, 2, 5), (1, 3, 7), (2047, 0, 1), (0, 1024, 2)])
    assert loads["card 0 -> card 1"] == 5 + 1  # half of 2 goes this way round
    assert loads["card 1 -> card 2"] == 5 + 7 + 1
    assert loads["card 2 -> card 3"] == 7 + 1
    assert loads["card 2047 -> card 0"] == 1
    assert loads["card 0 -> card 2047"] == 1
