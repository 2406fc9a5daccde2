"""Prices of rounds: closed formulas on one ideal switch, shared links, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from instances.topology import (
    LeafSpineTopology,
    MeshTopology,
    ServersTopology,
    SwitchedTopology,
    TorusTopology,
)
from optimizer.collectives import (
    CollectiveUnavailable,
    all_to_all_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    send_s,
    tree_all_reduce_s,
)
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import Price, price, round_loads, serving_adders
from optimizer.schedules.schedule import Schedule

NS, US = Fraction(1, 10**9), Fraction(1, 10**6)
GB = 10**9
#: Fixed time and one-way bandwidth: of NVLink, of InfiniBand, and two that divide badly.
LINKS = [
    (Fraction(822) * NS, Fraction(450 * GB)),
    (Fraction(376, 100) * US, Fraction(50 * GB)),
    (Fraction(0), Fraction(7)),
    (Fraction(1, 3), Fraction(11, 13)),
]
MESSAGES = (1, 10_240, 80 * 2**20, Fraction(5, 7))


def switch(cards: int, alpha_s: Fraction, bandwidth: Fraction, reduces: bool = False) -> Fabric:
    """Return cards with one port each on one ideal switch."""
    return build_fabric(
        SwitchedTopology(
            name="switch",
            num_cards=cards,
            ports_per_card=1,
            port_bandwidth_bytes_per_s=bandwidth,
            num_switches=1,
            ports_per_switch=cards,
            start_s=alpha_s,
            reduces=reduces,
        )
    )


def ring(*extents: int, bandwidth: str = "1GB/s") -> Fabric:
    topology = TorusTopology(name="ring", extents=extents, link_bandwidth_bytes_per_s=bandwidth)
    return build_fabric(topology)


def on_switch(
    schedule: Schedule, alpha_s: Fraction, bandwidth: Fraction, reduces: bool = False
) -> Price:
    ranks = schedule.num_ranks
    return price(schedule, switch(ranks, alpha_s, bandwidth, reduces), [range(ranks)])


@pytest.mark.parametrize(("alpha_s", "bandwidth"), LINKS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16, 33])
def test_rings_take_6_9_exactly(ranks: int, alpha_s: Fraction, bandwidth: Fraction) -> None:
    whole = on_switch(build_schedule("all_reduce", "ring", ranks), alpha_s, bandwidth)
    assert whole.num_rounds == 2 * (ranks - 1)
    assert whole.sent_per_byte == whole.link_load_per_byte == Fraction(2 * (ranks - 1), ranks)
    halves = [
        on_switch(build_schedule(operation, "ring", ranks), alpha_s, bandwidth)
        for operation in ("reduce_scatter", "all_gather")
    ]
    for message in MESSAGES:
        formula = ring_all_reduce_s(ranks, message, alpha_s, bandwidth)
        assert whole.seconds(message) == formula
        half = reduce_scatter_s(ranks, message, alpha_s, bandwidth)
        assert [found.seconds(message) for found in halves] == [half, half]


@pytest.mark.parametrize(("alpha_s", "bandwidth"), LINKS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64])
def test_powers_of_two(ranks: int, alpha_s: Fraction, bandwidth: Fraction) -> None:
    levels = int(math.log2(ranks))
    tree = on_switch(build_schedule("all_reduce", "tree", ranks), alpha_s, bandwidth)
    assert (tree.num_rounds, tree.sent_per_byte) == (2 * levels, levels)
    for message in MESSAGES:
        assert tree.seconds(message) == tree_all_reduce_s(ranks, message, alpha_s, bandwidth)
    sent = Fraction(2 * (ranks - 1), ranks)
    for algorithm in ("halving_doubling", "swing"):
        found = on_switch(build_schedule("all_reduce", algorithm, ranks), alpha_s, bandwidth)
        assert (found.num_rounds, found.sent_per_byte) == (2 * levels, sent)
        assert found.seconds(1000) == 2 * levels * alpha_s + 1000 * sent / bandwidth


@pytest.mark.parametrize(("alpha_s", "bandwidth"), LINKS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 40])
def test_exchanges(ranks: int, alpha_s: Fraction, bandwidth: Fraction) -> None:
    message, link = 840_000, (alpha_s, bandwidth)
    sent = Fraction((ranks - 1) * message, ranks)  # 1/n stays
    pairwise = on_switch(build_schedule("all_to_all", "pairwise", ranks), *link)
    assert pairwise.seconds(message) == all_to_all_s(ranks, sent, alpha_s, bandwidth)
    direct = on_switch(build_schedule("all_to_all", "direct", ranks), *link)
    assert direct.seconds(message) == alpha_s + sent / bandwidth
    assert direct.sent_per_byte == pairwise.sent_per_byte == Fraction(ranks - 1, ranks)
    # On servers of two a rank sends (S-1)/S of the buffer across, then half of it inside.
    if ranks % 2 == 0:
        servers = ranks // 2
        schedule = build_schedule("all_to_all", "two_level", ranks, extents=(2, servers))
        parts = Fraction(servers - 1, servers) + Fraction(1, 2)
        rounds = 1 + (servers > 1)
        found = on_switch(schedule, *link)
        assert found.seconds(message) == rounds * alpha_s + message * parts / bandwidth


@pytest.mark.parametrize(("alpha_s", "bandwidth"), LINKS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_broadcast_reduce_send_and_in_switch(
    ranks: int, alpha_s: Fraction, bandwidth: Fraction
) -> None:
    link, message = (alpha_s, bandwidth), 7 * 5 * 1000
    for operation in ("broadcast", "reduce"):
        levels = math.ceil(math.log2(ranks))
        tree = on_switch(build_schedule(operation, "binomial", ranks, root=1), *link)
        assert tree.seconds(message) == levels * send_s(message, *link)
        chain = on_switch(build_schedule(operation, "chain", ranks, num_segments=7), *link)
        assert chain.seconds(message) == (ranks - 2 + 7) * send_s(message // 7, *link)
    sent = on_switch(build_schedule("send", "direct", 2), *link)
    assert sent.seconds(message) == send_s(message, *link)
    schedule = build_schedule("all_reduce", "in_switch", ranks)
    switched = on_switch(schedule, *link, reduces=True)
    assert (switched.num_rounds, switched.sent_per_byte) == (2, 1)
    assert switched.seconds(message) == 2 * send_s(message, *link)


def servers(each: int, count: int, inside: Any, between: Any, nics: int = 0) -> Fabric:
    """Return servers of cards on an ideal switch, each card with an adapter of its own."""
    return build_fabric(
        ServersTopology(
            name="servers",
            num_servers=count,
            server=SwitchedTopology(
                name="server",
                num_cards=each,
                ports_per_card=1,
                port_bandwidth_bytes_per_s=inside[1],
                num_switches=1,
                ports_per_switch=each,
                start_s=inside[0],
            ),
            nics_per_server=nics or each,
            nic_bandwidth_bytes_per_s=between[1],
            nic_start_s=between[0],
        )
    )


@pytest.mark.parametrize(("each", "count"), [(1, 4), (2, 2), (3, 5), (8, 4), (8, 1)])
def test_hierarchical_adds_a_ring_inside_and_a_ring_across(each: int, count: int) -> None:
    inside, between = LINKS[0], LINKS[1]
    ranks, message = each * count, 80 * 2**20
    fabric = servers(each, count, inside, between)
    schedule = build_schedule("all_reduce", "hierarchical", ranks, extents=(each, count))
    found = price(schedule, fabric, [range(ranks)])
    (a_i, b_i), (a_o, b_o) = inside, between
    inner = 2 * (each - 1) * (a_i + Fraction(message, each) / b_i)
    outer = 2 * (count - 1) * (a_o + Fraction(message, ranks) / b_o)
    assert found.seconds(message) == inner + outer


def test_groups_side_by_side_share_links() -> None:
    # A ring of 8: 0 -> 2 and 1 -> 3 both pass link 1 -> 2, 4 -> 6 passes neither.
    send = build_schedule("send", "direct", 2)
    alone = price(send, ring(8), [[0, 2]])
    assert (alone.s_per_byte, alone.link_load_per_byte) == (NS, 1)
    shared = price(send, ring(8), [[0, 2], [1, 3], [4, 6]])
    assert (shared.s_per_byte, shared.link_load_per_byte) == (2 * NS, 2)
    assert shared.busiest_link_name == "card 1 -> card 2"
    assert shared.sent_per_byte == 1
    assert price(send, ring(8), [[0, 2], [0, 6]]).sent_per_byte == 2


def test_a_message_half_way_round_splits_over_both_ways() -> None:
    found = price(build_schedule("send", "direct", 2), ring(4), [[0, 2]])
    assert (found.s_per_byte, found.link_load_per_byte) == (NS / 2, Fraction(1, 2))


def test_the_busiest_link_is_the_one_that_takes_longest() -> None:
    # Two servers of 2, NVLink 9 times as fast. Inside, a card sends half of its 1-byte buffer to
    # its neighbour's place, plus nothing more in `direct`: 1/4 inside, 2/4 through its adapter.
    fabric = servers(2, 2, (0, Fraction(90)), (0, Fraction(10)))
    found = price(build_schedule("all_to_all", "direct", 4), fabric, [range(4)])
    assert found.link_load_per_byte == Fraction(2, 4)
    assert found.s_per_byte == found.link_bound_s_per_byte == Fraction(2, 4) / 10
    # Tree over two servers of 8: a card's port carries three vectors, an adapter one, but longer.
    fabric = servers(8, 2, (0, Fraction(90)), (0, Fraction(10)))
    tree = price(build_schedule("all_reduce", "tree", 16), fabric, [range(16)])
    assert (tree.link_load_per_byte, tree.link_bound_s_per_byte) == (1, Fraction(1, 10))
    assert tree.s_per_byte == Fraction(6, 90) + Fraction(2, 10)
    assert tree.busiest_link_name is not None
    assert "adapter" in tree.busiest_link_name


def test_cables_side_by_side_share_a_load() -> None:
    links = [(0, 1, 3), (1, 2, 1)]
    mesh = MeshTopology(name="m", num_cards=3, links=links, link_bandwidth_bytes_per_s="1GB/s")
    schedule, fabric = build_schedule("broadcast", "chain", 3), build_fabric(mesh)
    found = price(schedule, fabric, [range(3)])
    assert found.s_per_byte == NS / 3 + NS
    assert (found.link_bound_s_per_byte, found.busiest_link_name) == (NS, "card 1 -> card 2")


def test_rounds_that_use_unlike_links_could_overlap() -> None:
    # Pairwise on a ring of 4: distances 1, 2 (half each way) and 3. One after another: 1/4 + 1/4 +
    # 1/4 of the buffer on the busiest link. Each link carries 1/4 of round 1 or 3, and in round 2
    # two halves of 1/4: together 1/2.
    found = price(build_schedule("all_to_all", "pairwise", 4), ring(4), [range(4)])
    assert found.s_per_byte == Fraction(3, 4) * NS
    assert found.link_bound_s_per_byte == Fraction(1, 2) * NS
    assert found.link_load_per_byte == Fraction(1, 2)


def test_one_rank_costs_nothing() -> None:
    found = on_switch(build_schedule("all_reduce", "ring", 1), Fraction(1), Fraction(1))
    assert (found.num_rounds, found.seconds(10**9), found.busiest_link) == (0, 0, None)
    assert found.busiest_link_name is None


def test_forwarding_counts_once_a_round_for_the_farthest_message() -> None:
    topology = TorusTopology(
        name="t",
        extents=(8,),
        link_bandwidth_bytes_per_s="1GB/s",
        start_s="1us",
        hop_latency_s="200ns",
    )
    found = price(build_schedule("all_reduce", "swing", 8), build_fabric(topology), [range(8)])
    # Hops 1, 1, 3, 3, 1, 1: two chips forward in the third and fourth round.
    assert found.fixed_s == 6 * US + 4 * 200 * NS


def naive(schedule: Schedule, fabric: Fabric, groups: Sequence[Sequence[int]]) -> Any:
    """Price message by message: (rounds, fixed, per byte, sent, busiest of the whole)."""
    total, sent = [Fraction(0)] * len(fabric.links), [Fraction(0)] * len(fabric.node_names)
    rounds, fixed_s, longest = 0, Fraction(0), Fraction(0)
    for part in schedule.rounds():
        loads, slowest = [Fraction(0)] * len(fabric.links), Fraction(0)
        for group in groups:
            nodes = [*group, *fabric.adders]
            for sends in part:
                for tail, head in zip(sends.senders, sends.receivers, strict=True):
                    ends = np.array([nodes[tail]]), np.array([nodes[head]])
                    size = Fraction(sends.chunks_each, schedule.num_parts)
                    sent[nodes[tail]] += size
                    slowest = max(slowest, fabric.fixed_s(*ends))
                    for leg in fabric.legs(*ends):
                        if leg.links[0] >= 0:
                            loads[leg.links[0]] += size * int(leg.shares[0]) / fabric.split
        speeds = [
            fabric.links.classes[kind].bytes_per_s * int(wires)
            for kind, wires in zip(fabric.links.class_of, fabric.links.wires, strict=True)
        ]
        rounds, fixed_s = rounds + 1, fixed_s + slowest
        longest += max(load / speed for load, speed in zip(loads, speeds, strict=True))
        total = [a + b for a, b in zip(total, loads, strict=True)]
    bound = max(load / speed for load, speed in zip(total, speeds, strict=True))
    return rounds, fixed_s, longest, max(sent[: fabric.num_cards]), bound


GROUPS_OF_12 = [[0, 5, 1, 9], [2, 3, 4, 11], [10, 8, 7, 6]]


@pytest.mark.parametrize(
    ("operation", "algorithm", "options"),
    [
        ("all_reduce", "ring", {}),
        ("all_reduce", "swing", {}),
        ("all_reduce", "dimension_wise", {"extents": (2, 2), "rotations": True}),
        ("all_gather", "hierarchical", {"extents": (2, 2)}),
        ("all_to_all", "two_level", {"extents": (2, 2)}),
        ("broadcast", "chain", {"num_segments": 3}),
    ],
)
def test_prices_equal_a_sum_message_by_message(
    operation: str, algorithm: str, options: dict[str, object]
) -> None:
    topology = TorusTopology(
        name="t",
        extents=(3, 4),
        link_bandwidth_bytes_per_s="3GB/s",
        start_s="1us",
        hop_latency_s="70ns",
    )
    schedule, fabric = build_schedule(operation, algorithm, 4, **options), build_fabric(topology)
    found = price(schedule, fabric, GROUPS_OF_12)
    figures = (found.num_rounds, found.fixed_s, found.s_per_byte, found.sent_per_byte)
    assert (*figures, found.link_bound_s_per_byte) == naive(schedule, fabric, GROUPS_OF_12)
    loads = list(round_loads(schedule, fabric, GROUPS_OF_12, 12_000))
    assert sum(item.fixed_s + item.transfer_s for item in loads) == found.seconds(12_000)
    assert sum(item.busiest_bytes for item in loads) / (3 * GB) == 12_000 * found.s_per_byte


def leaves(reduces: bool = True) -> Fabric:
    return build_fabric(
        LeafSpineTopology(
            name="leaves",
            num_leaves=2,
            cards_per_leaf=4,
            ports_per_card=1,
            up_ports=4,
            num_spines=2,
            ports_per_switch=8,
            port_bandwidth_bytes_per_s="1GB/s",
            reduces=reduces,
        )
    )


def test_each_group_adds_up_in_its_own_leaf_or_in_the_spines_together() -> None:
    fabric, groups = leaves(), [[0, 1, 2, 3], [4, 5, 6, 7]]
    weights, adders = serving_adders(fabric, groups)
    assert (weights, adders) == ((1,), [[8], [9]])
    schedule = build_schedule("all_reduce", "in_switch", 4, weights=weights)
    assert price(schedule, fabric, groups, adders).s_per_byte == 2 * NS
    weights, adders = serving_adders(fabric, [range(8)])
    assert (weights, adders) == ((1, 1), [[10, 11]])
    schedule = build_schedule("all_reduce", "in_switch", 8, weights=weights)
    # Four cards send halves over two cables to each spine: as long as over their own ports.
    assert price(schedule, fabric, [range(8)], adders).s_per_byte == 2 * NS
    with pytest.raises(CollectiveUnavailable, match="unlike switches"):
        serving_adders(fabric, [[0, 1], [2, 4]])
    with pytest.raises(CollectiveUnavailable, match="no switch of leaves adds up"):
        serving_adders(leaves(reduces=False), [[0, 1]])


def test_a_fabric_must_have_the_adders() -> None:
    schedule = build_schedule("all_reduce", "in_switch", 4, num_adders=5)
    with pytest.raises(
        CollectiveUnavailable, match="5 switches that add up, leaves has 4"
    ) as error:
        price(schedule, leaves(), [range(4)])
    assert error.value.rule == "adders"
    with pytest.raises(CollectiveUnavailable, match="leaves has 1"):
        price(schedule, leaves(), [range(4)], [[8]])
    with pytest.raises(ValueError, match="1 groups need a row of adders each, not 2 rows"):
        price(schedule, leaves(), [range(4)], [[8], [9]])


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "one group or more"),
        ([[0, 1]], "a group needs 3 different cards"),
        ([[0, 1, 1]], "a group needs 3 different cards"),
        ([[0, 1, 2], [0, 1, 4]], "ring has cards 0 to 3 only"),
        ([[-1, 0, 1]], "ring has cards 0 to 3 only"),
    ],
)
def test_groups_must_fit(groups: list[list[int]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        price(build_schedule("all_reduce", "ring", 3), ring(4), groups)
