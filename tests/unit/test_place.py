"""Exchanges where cards lie: figures of a fabric, its links, and the choice by message."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from instances.fleet import Pool
from optimizer.collectives import (
    CollectiveUnavailable,
    halving_doubling_all_reduce_s,
    hierarchical_all_reduce_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from optimizer.parallel import ParallelConfig
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.work import Exchange, ExchangeKind

US = Fraction(1, 10**6)
NVLINK, NIC = Fraction(450 * 10**9), Fraction(50 * 10**9)
START, NIC_START = Fraction(822, 1000) * US, Fraction(376, 100) * US
HGX = {
    "kind": "switched",
    "name": "hgx",
    "num_cards": 8,
    "ports_per_card": 18,
    "port_bandwidth_bytes_per_s": "25GB/s",
    "num_switches": 4,
    "ports_per_switch": 64,
    "start_s": "822ns",
    "reduces": True,
}
TWO = {
    "kind": "servers",
    "name": "two",
    "num_servers": 2,
    "server": HGX,
    "nics_per_server": 8,
    "nic_bandwidth_bytes_per_s": "50GB/s",
    "nic_start_s": "3.76us",
}
TORUS = {
    "kind": "torus",
    "name": "torus",
    "extents": [4, 4],
    "link_bandwidth_bytes_per_s": "50GB/s",
}


def pool(inside: Any = None, between: Any = None, **server: Any) -> Pool:
    """Two servers of eight H100s, with topologies where given."""
    return Pool.model_validate(
        {
            "name": "pool",
            "server": {
                "base": "hgx-h100",
                "fabric": {"base": "nvlink-4", "topology": inside},
                **server,
            },
            "num_servers": 2,
            "fabric_between": {"base": "infiniband-ndr", "topology": between},
        }
    )


def seconds(
    where: Pool,
    collective: str,
    ranks: int,
    message: int,
    kind: ExchangeKind = "all_reduce",
    block: int | None = None,
) -> Fraction:
    """Time of one exchange of a TP group; it takes a server as far as it can."""
    cards = block or ranks
    servers = -(-cards // where.server.num_cards)
    footprint = Footprint("pool", ParallelConfig(tp=cards), servers, collective)
    exchange = Exchange("x", kind, ranks, cards, Fraction(message), 1)
    return Place(where, footprint).exchange_s(exchange)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("message", [1, 10240, 80 * 2**20])
def test_links_of_a_switched_server_give_the_closed_forms(ranks: int, message: int) -> None:
    """Eighteen ports of 25 GB/s are 450 GB/s, and every card is one switch away."""
    by_links, by_figures = pool(HGX), pool()
    for name, closed in (
        ("ring", ring_all_reduce_s),
        ("tree", tree_all_reduce_s),
        ("halving_doubling", halving_doubling_all_reduce_s),
    ):
        wanted = closed(ranks, message, START, NVLINK)
        assert seconds(by_links, name, ranks, message) == wanted
        assert seconds(by_figures, name, ranks, message) == wanted
    scattered = seconds(by_figures, "ring", ranks, message, "reduce_scatter")
    assert seconds(by_links, "ring", ranks, message, "reduce_scatter") == scattered


@pytest.mark.parametrize("message", [1, 10240, 80 * 2**20])
def test_links_between_servers_give_the_closed_forms(message: int) -> None:
    by_links, by_figures = pool(HGX, TWO), pool()
    for where in (by_links, by_figures):
        # Every round waits for the adapters: 30 · (3.76 us + M/16/50 GB/s).
        flat = ring_all_reduce_s(16, message, NIC_START, NIC)
        assert seconds(where, "ring", 16, message) == flat
        # 14 · (0.822 us + M/8/450 GB/s) inside, 2 · (3.76 us + M/16/50 GB/s) between.
        wanted = 14 * (START + Fraction(message, 8) / NVLINK)
        wanted += 2 * (NIC_START + Fraction(message, 16) / NIC)
        assert seconds(where, "hierarchical", 16, message) == wanted


def test_hierarchical_needs_several_ranks_in_each_of_several_servers() -> None:
    for where in (pool(), pool(HGX, TWO)):
        for ranks in (2, 8):
            with pytest.raises(CollectiveUnavailable, match="needs several ranks") as caught:
                seconds(where, "hierarchical", ranks, 10240)
            assert caught.value.rule == "hierarchical_span"
    inside, between = pool().server.fabric, pool().fabric_between
    assert between is not None
    with pytest.raises(CollectiveUnavailable, match="2 ranks over 2"):
        hierarchical_all_reduce_s(2, 2, 10240, inside, between)


def test_switches_that_add_up_take_two_rounds_of_the_whole_vector() -> None:
    # 2 · (0.822 us + 10240 B / 450 GB/s) = 1.6895 us
    wanted = 2 * (START + 10240 / NVLINK)
    assert seconds(pool(HGX), "in_switch", 8, 10240) == wanted
    plain = {**HGX, "reduces": False}
    with pytest.raises(CollectiveUnavailable, match="no switch of hgx adds up"):
        seconds(pool(plain), "in_switch", 8, 10240)


@pytest.mark.parametrize("name", ["swing", "dimension_wise", "in_switch"])
def test_what_goes_by_links_needs_a_topology(name: str) -> None:
    with pytest.raises(CollectiveUnavailable, match="has no topology") as caught:
        seconds(pool(), name, 8, 10240)
    assert caught.value.rule == "no_topology"


def test_every_message_takes_the_fastest_of_several_collectives() -> None:
    """Ring and tree cross at 680 KiB (section 6.4.2)."""
    for message, winner in ((600 * 1024, "tree"), (760 * 1024, "ring")):
        alone = {name: seconds(pool(), name, 8, message) for name in ("ring", "tree")}
        assert min(alone, key=alone.__getitem__) == winner
        assert seconds(pool(), "ring|tree", 8, message) == alone[winner]
    # The tree does not exist on six ranks, the ring does.
    ring = seconds(pool(), "ring", 6, 10240, block=6)
    assert seconds(pool(), "tree|ring", 6, 10240, block=6) == ring
    with pytest.raises(CollectiveUnavailable, match="power of two"):
        seconds(pool(), "tree|halving_doubling", 6, 10240, block=6)


def test_serving_instances_that_reduce_at_once_share_the_links_of_a_torus() -> None:
    """On a 4x4 torus TP2 pairs are neighbours along x, and none shares a link with another."""
    where = pool(TORUS, num_cards=16)
    # 2 · (M/2 / 50 GB/s): each of two rounds moves half the vector over one link.
    assert seconds(where, "ring", 2, 10240) == 2 * (5120 / NIC)
    # TP4 is a row: its ring closes along x. 6 rounds of a quarter.
    assert seconds(where, "ring", 4, 10240) == 6 * (2560 / NIC)
    # TP16 by numbers: from card 3 (3,0) to card 4 (0,1) is one link in x and one in y, so links
    # 3 -> 0 of every row carry one message, and nothing carries two. 30 rounds of a sixteenth.
    assert seconds(where, "ring", 16, 10240) == 30 * (640 / NIC)


def test_groups_of_several_instances_meet_on_the_links_that_both_need() -> None:
    """Two groups of two ranks, two cards apart in a ring of four, use the same links."""
    ring = {**TORUS, "extents": [4], "name": "ring"}
    where = pool(ring, num_cards=4)
    # Ranks 0 and 2, and 1 and 3: both ways round are equally long, so a message splits, and every
    # link carries halves of messages 0 -> 2 and 3 -> 1 (or 2 -> 0): two halves of M/2.
    footprint = Footprint("pool", ParallelConfig(tp=2, cp=2), 1, "ring")
    merge = Exchange("merge", "all_reduce", 2, 4, Fraction(10240), 1)
    assert Place(where, footprint).exchange_s(merge) == 2 * (5120 / NIC)


def test_messages_between_stages_follow_the_links() -> None:
    config = ParallelConfig(tp=4, pp=2)
    inside = Footprint("pool", config, 1, "ring")
    # Card j hands to card 4 + j through the switches: 0.822 us + 10240 B / 450 GB/s.
    wanted = START + 10240 / NVLINK
    assert Place(pool(HGX), inside).handoff_s(Fraction(10240)) == wanted
    across = Footprint("pool", ParallelConfig(tp=8, pp=2), 2, "ring")
    wanted = NIC_START + 10240 / NIC
    assert Place(pool(HGX, TWO), across).handoff_s(Fraction(10240)) == wanted
    assert Place(pool(HGX, TWO), across).handoff_s(Fraction(10240), 1) == wanted
    # Stages 2 and 3 of four lie in the second server, and hand on inside it.
    deep = Footprint("pool", ParallelConfig(tp=4, pp=4), 2, "ring")
    handed = [Place(pool(HGX, TWO), deep).handoff_s(Fraction(10240), s) for s in range(4)]
    inside_s, across_s = START + 10240 / NVLINK, NIC_START + 10240 / NIC
    assert handed == [inside_s, across_s, inside_s, across_s]
    # On a ring of eight, stages of four: 0 -> 4, 1 -> 5 ... are four links apart both ways, so half
    # of each goes round each way, and every link carries four halves.
    ring = {**TORUS, "extents": [8], "name": "ring"}
    assert Place(pool(ring), inside).handoff_s(Fraction(10240)) == 2 * 10240 / NIC


def test_an_all_to_all_by_links_counts_what_others_get() -> None:
    # 7168 B to seven others at once over eighteen ports: 0.822 us + 7168 B / 450 GB/s.
    assert seconds(pool(HGX), "ring", 8, 7168, "all_to_all") == START + 7168 / NVLINK
