"""Published figures by rounds and paths (sections 6.4.2, 6.5.1, 6.5.4 and 6.7.4)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances.topology import MeshTopology, ServersTopology, SwitchedTopology, TorusTopology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import price, round_loads

KIB, MIB, GB = 2**10, 2**20, 10**9
US, MS = Fraction(1, 10**6), Fraction(1, 10**3)
ICI = "50GB/s"  # one link of a TPU v4, one way


def hgx(cards: int = 8) -> SwitchedTopology:
    """Return H100s with all their NVLink on one switch: 0.822 µs a round, 450 GB/s one way."""
    return SwitchedTopology(
        name="hgx",
        num_cards=cards,
        ports_per_card=1,
        port_bandwidth_bytes_per_s="450GB/s",
        num_switches=1,
        ports_per_switch=cards,
        start_s="822ns",
    )


def torus(*extents: int) -> Fabric:
    topology = TorusTopology(name="torus", extents=extents, link_bandwidth_bytes_per_s=ICI)
    return build_fabric(topology)


def switched(cards: int) -> Fabric:
    """Return cards with six ports each, on six switches that block nobody."""
    topology = SwitchedTopology(
        name="switched",
        num_cards=cards,
        ports_per_card=6,
        port_bandwidth_bytes_per_s=ICI,
        num_switches=6,
        ports_per_switch=cards,
    )
    return build_fabric(topology)


def test_ring_and_tree_of_eight() -> None:
    fabric, groups = build_fabric(hgx()), [range(8)]
    ring = price(build_schedule("all_reduce", "ring", 8), fabric, groups)
    tree = price(build_schedule("all_reduce", "tree", 8), fabric, groups)
    assert float(ring.seconds(10 * KIB) / US) == pytest.approx(11.55, abs=0.005)
    assert float(tree.seconds(10 * KIB) / US) == pytest.approx(5.07, abs=0.005)
    assert float(ring.seconds(80 * MIB) / MS) == pytest.approx(0.34, abs=0.005)
    assert float(tree.seconds(80 * MIB) / MS) == pytest.approx(1.12, abs=0.005)
    crossing = (ring.fixed_s - tree.fixed_s) / (tree.s_per_byte - ring.s_per_byte)
    assert float(crossing / KIB) == pytest.approx(680, abs=5)
    assert ring.sent_per_byte * 10 == Fraction(35, 2)  # 17.5 of 10 KiB


@pytest.mark.parametrize(
    ("algorithm", "hops", "busiest_mib", "total_mib", "microseconds"),
    [
        ("halving_doubling", [1, 2, 4], [4, 4, 4], [64, 64, 64], 252),
        ("swing", [1, 1, 3], [4, 2, 2], [64, 32, 48], 168),
    ],
)
def test_first_three_rounds_of_8_mib_on_a_ring_of_sixteen(
    algorithm: str,
    hops: list[int],
    busiest_mib: list[int],
    total_mib: list[int],
    microseconds: int,
) -> None:
    schedule = build_schedule("reduce_scatter", algorithm, 16)
    rounds = list(round_loads(schedule, torus(16), [range(16)], 8 * MIB))
    assert len(rounds) == 4
    assert [part.hops for part in rounds[:3]] == hops
    assert [part.busiest_bytes / MIB for part in rounds[:3]] == busiest_mib
    assert [part.total_bytes / MIB for part in rounds[:3]] == total_mib
    time_s = sum(part.transfer_s for part in rounds[:3])
    assert float(time_s / US) == pytest.approx(microseconds, abs=0.6)


def test_dimension_wise_reduction_uses_a_torus_as_fully_as_a_switch() -> None:
    schedule = build_schedule("all_reduce", "dimension_wise", 64, extents=(4, 4, 4), rotations=True)
    along = price(schedule, torus(4, 4, 4), [range(64)])
    ring = price(build_schedule("all_reduce", "ring", 64), switched(64), [range(64)])
    # 2 · 63/64 of the message over six ports of 50 GB/s.
    assert along.s_per_byte == ring.s_per_byte == Fraction(2 * 63, 64) / (300 * GB)
    assert (along.num_rounds, ring.num_rounds) == (18, 126)
    # In one part, only one of a card's six links works at a time.
    plain = build_schedule("all_reduce", "dimension_wise", 64, extents=(4, 4, 4))
    assert price(plain, torus(4, 4, 4), [range(64)]).s_per_byte == 6 * along.s_per_byte


@pytest.mark.parametrize(("cables", "microseconds"), [(1, 293.6), (3, 97.9)])
def test_a_ring_of_eight_on_one_and_on_three_links(cables: int, microseconds: float) -> None:
    links = [(card, (card + 1) % 8, cables) for card in range(8)]
    slice_ = MeshTopology(name="slice", num_cards=8, links=links, link_bandwidth_bytes_per_s=ICI)
    found = price(build_schedule("all_reduce", "ring", 8), build_fabric(slice_), [range(8)])
    assert found.sent_per_byte * 8 == 14  # MiB
    assert float(found.seconds(8 * MIB) / US) == pytest.approx(microseconds, abs=0.05)


def test_uniform_all_to_all_of_32_mib_on_64_cards() -> None:
    exchange = build_schedule("all_to_all", "direct", 64)
    direct = price(exchange, torus(4, 4, 4), [range(64)])
    assert direct.link_load_per_byte == Fraction(1, 2)
    assert float(direct.seconds(32 * MIB) / US) == pytest.approx(335.5, abs=0.06)  # 336 rounded
    # On the torus the source counts M/64 for each of 64 destinations, the card itself among them:
    # three hops on average. On the switch it lets all M through the ports, although M/64 stays.
    through = price(exchange, switched(64), [range(64)])
    assert through.link_load_per_byte == Fraction(63, 64) / 6
    assert float(through.seconds(32 * MIB) * 64 / 63 / US) == pytest.approx(112, abs=0.6)
    assert through.sent_per_byte == direct.sent_per_byte == Fraction(63, 64)


def test_uniform_all_to_all_on_512_cards_takes_six_times_as_long_on_a_torus() -> None:
    exchange, groups = build_schedule("all_to_all", "direct", 512), [range(512)]
    along, through = price(exchange, torus(8, 8, 8), groups), price(exchange, switched(512), groups)
    assert along.link_load_per_byte == 1  # six hops on average, six links for each card
    assert along.s_per_byte / (through.s_per_byte * 512 / 511) == 6


#: DeepSeek V4.1 Flash, 335 sessions a card: six experts for each token, 5120 numbers of 2 bytes.
DISPATCH_BYTES = 335 * 6 * 5120 * 2
EXCHANGES = 80  # dispatch and combine of 40 layers


def test_dispatch_and_combine_of_64_cards_in_one_nvlink_domain() -> None:
    exchange = build_schedule("all_to_all", "direct", 64)
    inside = price(exchange, build_fabric(hgx(64)), [range(64)])
    assert float(EXCHANGES * inside.seconds(DISPATCH_BYTES) / MS) == pytest.approx(3.7, abs=0.05)


def test_dispatch_and_combine_of_64_cards_on_eight_servers() -> None:
    topology = ServersTopology(
        name="servers",
        num_servers=8,
        server=hgx(),
        nics_per_server=8,
        nic_bandwidth_bytes_per_s="50GB/s",
        nic_start_s="3.76us",
    )
    fabric, groups = build_fabric(topology), [range(64)]
    direct = price(build_schedule("all_to_all", "direct", 64), fabric, groups)
    assert direct.link_load_per_byte == Fraction(7, 8)  # 56 of 64 destinations are elsewhere
    milliseconds = float(EXCHANGES * direct.seconds(DISPATCH_BYTES) / MS)
    assert milliseconds == pytest.approx(29.15, abs=0.06)  # 29.2 published
    # First across and then inside, NVLink carries 7/8 of the buffer as well: 0.822 µs and 40.0 µs.
    two_level = build_schedule("all_to_all", "two_level", 64, extents=(8, 8))
    extra_s = price(two_level, fabric, groups).seconds(DISPATCH_BYTES) - direct.seconds(
        DISPATCH_BYTES
    )
    assert extra_s == Fraction(822, 10**9) + Fraction(7, 8) * DISPATCH_BYTES / (450 * GB)
