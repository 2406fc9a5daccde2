"""Prices of All-to-Alls whose pairs of ranks have bytes of their own."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from instances.topology import SwitchedTopology, TorusTopology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import Price, price, round_loads
from optimizer.schedules.schedule import Schedule


def switch(cards: int, alpha_s: int, bandwidth: int) -> Fabric:
    """Return cards with one port each on one ideal switch."""
    return build_fabric(
        SwitchedTopology(
            name="switch",
            num_cards=cards,
            ports_per_card=1,
            port_bandwidth_bytes_per_s=bandwidth,
            num_switches=1,
            ports_per_switch=cards,
            start_s=Fraction(alpha_s),
        )
    )


def ring(*extents: int) -> Fabric:
    topology = TorusTopology(name="ring", extents=extents, link_bandwidth_bytes_per_s="1GB/s")
    return build_fabric(topology)


def on_switch(schedule: Schedule, alpha_s: int, bandwidth: int) -> Price:
    ranks = schedule.num_ranks
    return price(schedule, switch(ranks, alpha_s, bandwidth), [range(ranks)])


COUNTS = [[9, 100, 0], [50, 0, 70], [0, 30, 2]]


def test_an_uneven_exchange_is_priced_by_its_matrix() -> None:
    alpha_s, bandwidth = 1, 10
    direct = on_switch(build_schedule("all_to_all", "direct", 3, counts=COUNTS), alpha_s, bandwidth)
    # Rank 1 takes in 100 + 30 at once; it sends 50 + 70.
    assert (direct.total_s, direct.sent_per_byte, direct.link_load_per_byte) == (1 + 13, 120, 130)
    pairwise = build_schedule("all_to_all", "pairwise", 3, counts=COUNTS)
    # To the next rank 100, 70 and 0; to the one before 50, 0 and 30.
    assert on_switch(pairwise, alpha_s, bandwidth).total_s == (1 + 10) + (1 + 5)
    across = build_schedule("all_to_all", "two_level", 3, extents=(1, 3), counts=COUNTS)
    assert on_switch(across, alpha_s, bandwidth).total_s == 14
    with pytest.raises(ValueError, match="use total_s"):
        direct.seconds(1)


def test_two_levels_of_an_uneven_exchange_by_hand() -> None:
    # Servers (0, 1) and (2, 3). Across: 0 sends 1 + 2 to 2, 3 sends 4 to 1 (for 0). Inside: 2
    # passes 2 on to 3, 1 passes 4 on to 0, and 0 sends 8 to 1.
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[0, 2], counts[0, 3], counts[3, 0], counts[0, 1] = 1, 2, 4, 8
    schedule = build_schedule("all_to_all", "two_level", 4, extents=(2, 2), counts=counts)
    loads = list(round_loads(schedule, switch(4, 1, 1), [range(4)]))
    assert [(item.num_messages, item.busiest_bytes) for item in loads] == [(2, 4), (3, 8)]
    assert [item.transfer_s for item in loads] == [4, 8]


@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "two_level"])
def test_equal_counts_cost_what_equal_chunks_do(algorithm: str) -> None:
    options = {"extents": (3, 2)} if algorithm == "two_level" else {}
    groups = [range(6), range(6, 12)]
    counts = np.full((6, 6), 1000)
    equal = price(build_schedule("all_to_all", algorithm, 6, **options), ring(3, 4), groups)
    given = build_schedule("all_to_all", algorithm, 6, counts=counts, **options)
    assert price(given, ring(3, 4), groups).total_s == equal.seconds(6000)
    with pytest.raises(ValueError, match=r"use seconds\(message_bytes\)"):
        assert equal.total_s


def test_sums_too_large_to_be_exact_are_refused() -> None:
    # One message of 2^52 bytes; on a ring of 4 it may split in two, so in units of half a byte
    # sums reach 2^53.
    for size, is_fine in ((2**52 - 1, True), (2**52, False)):
        counts = [[0, size], [0, 0]]
        schedule = build_schedule("all_to_all", "direct", 2, counts=counts)
        if is_fine:
            assert price(schedule, ring(4), [[0, 2]]).link_load_per_byte == Fraction(size, 2)
        else:
            with pytest.raises(ValueError, match="too large for exact sums"):
                price(schedule, ring(4), [[0, 2]])


def test_round_loads_need_a_message_unless_chunks_have_sizes() -> None:
    equal = build_schedule("all_to_all", "direct", 3)
    given = build_schedule("all_to_all", "direct", 3, counts=COUNTS)
    for schedule, message in ((equal, None), (given, 10)):
        with pytest.raises(ValueError, match="where chunks are equal, and only there"):
            list(round_loads(schedule, ring(3), [range(3)], message))
