"""The published figures of sections 6.4 and 6.5, from explicit rounds, paths and parts.

Every figure carries the id and the section under which the source chapter prints it. Published
values and tolerances are literals.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from figures import assert_figure
from instances.catalog_store import catalog_entry
from instances.io import load_instance
from instances.topology import Topology, TopologyFile
from optimizer import solve
from optimizer.calibration.readers_overlap import read_overlaps
from optimizer.collectives import measured_times
from optimizer.communication import exchange_times
from optimizer.fabrics.bounds import bisection, cut, parts
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.paths import farthest
from optimizer.parallel import ParallelConfig
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.schedules.building import build_schedule
from optimizer.schedules.comparison import compare
from optimizer.schedules.prices import RoundLoad, price, round_loads
from optimizer.steps import decode_step, decode_works
from optimizer.surroundings.connections import direct_links
from optimizer.surroundings.power import max_servers

US, MS, KW = Fraction(1, 10**6), Fraction(1, 10**3), 1000
KIB, MIB, GB = 2**10, 2**20, 10**9


def topology(entry: Any) -> Topology:
    """A topology of the catalog, or one described here."""
    return TopologyFile.model_validate(entry).root


def torus(*extents: int) -> Topology:
    """A torus of 50 GB/s links, as those of TPU v4."""
    rest = {"name": "torus", "link_bandwidth_bytes_per_s": "50GB/s"}
    return topology({"kind": "torus", "extents": extents, **rest})


def times_of(where: Topology, operation: str, message: int) -> dict[str, Fraction]:
    """Time of every algorithm of an operation on all cards."""
    rows = compare(where, operation, message)
    return {row.algorithm: row.time_s for row in rows if row.time_s is not None}


def test_ring_and_tree_of_eight_by_their_rounds() -> None:
    """ring8, tree8, ring8big, tree8big (6.4.2) on the links of an HGX H100."""
    small = times_of(topology("hgx-h100"), "all_reduce", 10 * KIB)
    large = times_of(topology("hgx-h100"), "all_reduce", 80 * MIB)
    assert_figure("ring8", small["ring"] / US, "11.55", "0.005")
    assert_figure("tree8", small["tree"] / US, "5.07", "0.005")
    assert_figure("ring8big", large["ring"] / MS, "0.34", "0.005")
    assert_figure("tree8big", large["tree"] / MS, "1.12", "0.005")


def test_ring_and_tree_tie_where_their_rounds_say() -> None:
    """ "cross" (6.4.2): lines over the message meet where fixed times differ by what bytes cost."""
    fabric, cards = build_fabric(topology("hgx-h100")), [list(range(8))]
    ring, tree = (
        price(build_schedule("all_reduce", name, 8), fabric, cards) for name in ("ring", "tree")
    )
    at = (ring.fixed_s - tree.fixed_s) / (tree.s_per_byte - ring.s_per_byte)
    assert_figure("cross", at / KIB, "680", "5")


def test_bandwidths_of_a_measured_all_reduce() -> None:
    """ "busbw" (6.4.3): 64 MiB on 16 ranks in 466.1 us; busbw is 2 · 15/16 of algbw."""
    fabric = load_instance("two-servers-one-session").fleet.pools[0].fabric_between
    assert fabric is not None
    ((_, seconds),) = measured_times(fabric, "all_reduce", 16, 2, 64 * MIB)
    # What a ring of 16 sends per byte of the message is what turns algbw into busbw.
    schedule = build_schedule("all_reduce", "ring", 16)
    sent = price(schedule, build_fabric(topology("two-hgx-h100")), [list(range(16))]).sent_per_byte
    assert sent == Fraction(30, 16)
    # nccl-tests divides before it rounds the time to 0.1 us: 143.9795 and 269.9616 from the rounded
    # time, and what is printed lies within what the half of a last digit allows.
    least, most = (64 * MIB / (seconds + half * US / 20) / GB for half in (1, -1))
    assert least <= Fraction("143.99") <= most
    assert sent * least <= Fraction("269.98") <= sent * most


def test_what_running_at_once_saves() -> None:
    """ "overlap64" (6.4.3): 36.92 + 11.03 - 45.24 = 2.71 ms, a quarter of the shorter one."""
    table = (
        "message_bytes,communication_alone_ms,compute_alone_ms,together_ms\n"
        f"{64 * MIB},36.92,11.03,45.24\n{4 * MIB},2.67,11.53,11.58\n"
    )
    large, small = read_overlaps(table, "overlap.csv").overlaps
    assert_figure("overlap64", large.saved_s / MS, "2.7", "0.05")
    assert large.hidden_share == Fraction(271, 1103)  # 2.71 of the matmul's 11.03 ms
    assert small.hidden_share == Fraction(262, 267)  # all but 0.05 of 2.67 ms are hidden


def step_of(name: str, servers: int, collective: str) -> tuple[Fraction, list[Fraction]]:
    """Return (whole step, each reduction) of TP16's first step in an example; s."""
    instance = load_instance(name)
    pool = instance.fleet.pools[0]
    footprint = Footprint(pool.name, ParallelConfig(tp=16), servers, collective)
    place, works = Place(pool, footprint), decode_works(instance, footprint)
    exchanges = [e for work in works for e in work.exchanges]
    each = [place.exchange_s(e) for e in exchanges for _ in range(e.times)]
    return decode_step(instance, pool, footprint).at(131_065), each


def test_sixteen_cards_on_two_servers_and_in_one_domain() -> None:
    """ "tp16local", "tp16" (6.5.1), "tp16nv" (6.5.3): 128 reductions a step."""
    step, each = step_of("two-servers-one-session", 2, "measured")
    assert len(each) == 128
    assert_figure("tp16local", (step - sum(each)) / MS, "2.48", "0.005")
    assert_figure("measured", each[0] / US, "32.74", "0")
    assert_figure("tp16", step / MS, "6.67", "0.005")
    step, each = step_of("sixteen-in-one-domain", 1, "ring")
    assert_figure("tp16local", (step - sum(each)) / MS, "2.48", "0.005")
    assert_figure("tp16nv", step / MS, "5.64", "0.005")


def test_sixteen_cards_are_refused_by_time_and_what_models_would_say() -> None:
    """TP16 fits (10.6 GB a card); it ends after 53.33 ms where 50 are allowed, 3.33 ms late."""
    result = solve(load_instance("two-servers-one-session"))
    assert result.plan is not None
    assert result.plan.sentence == "8 of 16 cards = 1 instance × TP8 (ring)"
    (late,) = (c for c in result.candidates if c.parallel.tp == 16 and c.rule != "measured")
    assert (late.collective, late.rule) == ("measured", "late")
    assert late.session_s is not None
    assert_figure("late by", Fraction(late.session_s[0]) / MS - 50, "3.329", "0.001")
    said = {r.collective: r.message for r in result.rejected if r.rule == "measured"}
    # 8 steps of 128 reductions: 1024 · (113.184 - 32.74) us and 1024 · (32.74 - 19.0934) us.
    assert said["ring"].endswith("by which ring takes 82.37 ms a session more")
    assert said["hierarchical"].endswith("by which hierarchical takes 13.97 ms a session less")


def test_a_flat_ring_over_two_servers_and_the_hierarchy_that_beats_it() -> None:
    """ "tp16ring" (6.5.1): 30 rounds of 3.76 us and 640 B each; hierarchical 5.93 times as fast."""
    times = times_of(topology("two-hgx-h100"), "all_reduce", 10 * KIB)
    assert_figure("tp16ring", times["ring"] / US, "113", "0.6")
    # 14 · (0.822 us + 1280 B / 450 GB/s) + 2 · (3.76 us + 640 B / 50 GB/s) = 19.0934 us
    assert_figure("hierarchical", times["hierarchical"] / US, "19.0934", "0.0001")
    assert_figure("gain", times["ring"] / times["hierarchical"], "5.928", "0.001")


def test_what_switch_ports_leave_for_the_way_up() -> None:
    """ "radix" (6.5.1): 64 ports of 25 GB/s: 32 up are 800 GB/s, 16 up are 400, by the cut."""
    for down, up, spines, published in ((32, 32, 32, "800"), (48, 16, 16, "400")):
        leaves = topology(
            {
                "kind": "leaf_spine",
                "name": "leaves",
                "num_leaves": 4,
                "cards_per_leaf": down,
                "ports_per_card": 1,
                "up_ports": up,
                "num_spines": spines,
                "ports_per_switch": 64,
                "port_bandwidth_bytes_per_s": "25GB/s",
            }
        )
        away = cut(build_fabric(leaves), range(down)).bytes_per_s
        assert_figure("radix", away / GB, published, "0")


def first_rounds(algorithm: str) -> list[RoundLoad]:
    """First three rounds of an 8 MiB ReduceScatter on a ring of 16 cards."""
    schedule = build_schedule("reduce_scatter", algorithm, 16)
    rounds = round_loads(schedule, build_fabric(torus(16)), [list(range(16))], 8 * MIB)
    return [load for _, load in zip(range(3), rounds, strict=False)]


@pytest.mark.parametrize(
    ("algorithm", "figures", "hops", "busiest", "totals", "microseconds"),
    [
        ("halving_doubling", "rec", "1 2 4", "4 4 4", "64 64 64", "252"),
        ("swing", "sw", "1 1 3", "4 2 2", "64 32 48", "168"),
    ],
)
def test_recursive_and_swing_on_a_ring_of_sixteen(
    algorithm: str, figures: str, hops: str, busiest: str, totals: str, microseconds: str
) -> None:
    """ "rec_hops", "rec_max", "rec_tot", "sw_hops", "sw_max", "sw_tot", "rec_t" (6.5.1)."""
    loads = first_rounds(algorithm)
    for load, far, most, total in zip(
        loads, hops.split(), busiest.split(), totals.split(), strict=True
    ):
        assert_figure(f"{figures}_hops", load.hops, far, "0")
        assert_figure(f"{figures}_max", load.busiest_bytes / MIB, most, "0")
        assert_figure(f"{figures}_tot", load.total_bytes / MIB, total, "0")
    assert_figure("rec_t", sum(load.transfer_s for load in loads) / US, microseconds, "0.6")


@pytest.mark.parametrize(
    ("buffers", "order", "mebibytes"),
    [(0, (0, 1, 2, 3), "24"), ("sender", (0, 1, 2, 3), "12"), ("sender", (0, 2, 1, 3), "24")],
)
def test_bytes_between_the_sockets_of_a_host(
    buffers: int | str, order: tuple[int, ...], mebibytes: str
) -> None:
    """ "numa" (6.5.1): a ring of four cards that sends 48 MiB in all, 6 rounds of 2 MiB a card."""
    host = topology(
        {
            "kind": "numa",
            "name": "host",
            "numa_nodes": [[0, 1], [2, 3]],
            "pcie_bandwidth_bytes_per_s": "64GB/s",
            "socket_bandwidth_bytes_per_s": "64GB/s",
            "buffers": buffers,
        }
    )
    fabric = build_fabric(host)
    schedule = build_schedule("all_reduce", "ring", 4)  # 12 MiB sent a card: M = 8 MiB
    total = np.zeros(len(fabric.links), dtype=np.int64)
    for load in round_loads(schedule, fabric, [list(order)], 8 * MIB):
        total += load.loads * int(load.unit_bytes)
    kinds = np.array(fabric.node_kinds)
    is_socket = (kinds[fabric.links.tails] == "socket") & (kinds[fabric.links.heads] == "socket")
    assert is_socket.sum() == 2
    for each_way in total[is_socket]:
        assert_figure("numa", int(each_way) / Fraction(MIB), mebibytes, "0")


def test_the_farthest_cards_of_a_torus_and_of_a_switched_network() -> None:
    """ "torus_far" (6.5.1): five chips between against one, 200 ns each."""
    cube, switched = (build_fabric(topology(n)) for n in ("tpu-v4-cube", "switched-64"))
    far, near = farthest(cube), farthest(switched)
    assert (far.num_links, far.num_chips, near.num_chips) == (6, 5, 1)
    message = (np.array([far.sender]), np.array([far.receiver]))
    more = cube.fixed_s(*message) - switched.fixed_s(*message)
    assert_figure("torus_far", more / US, "0.8", "0.05")
    assert_figure("128 reductions", 128 * more / MS, "0.10", "0.005")


def test_all_to_all_on_a_torus_and_on_a_switched_network() -> None:
    """ "a2a" (6.5.1): M/2 on every link against M/6 on every port; 512 cards: six times.

    The source lets every card send M/64 to each of 64 cards on the torus, of which one is itself,
    and all of M through its ports on the switched network, so there it sends M/63 to 63 others.
    """
    message = 32 * MIB
    schedule = build_schedule("all_to_all", "direct", 64)
    cube = price(schedule, build_fabric(torus(4, 4, 4)), [list(range(64))])
    assert cube.link_load_per_byte == Fraction(1, 2)
    assert_figure("a2a torus", cube.s_per_byte * message / US, "336", "0.6")
    switched = price(schedule, build_fabric(topology("switched-64")), [list(range(64))])
    assert switched.link_load_per_byte * Fraction(64, 63) == Fraction(1, 6)
    sent = message * Fraction(64, 63)
    assert_figure("a2a switched", switched.s_per_byte * sent / US, "112", "0.6")
    large = build_schedule("all_to_all", "direct", 512)
    cube = price(large, build_fabric(torus(8, 8, 8)), [list(range(512))])
    assert cube.link_load_per_byte == 1  # six times a port's M/6


def test_a_reduction_along_the_dimensions_ties_with_the_switched_network() -> None:
    """Section 6.5.1: all six links work at once, so a torus takes as long as six ports do."""
    along = build_schedule("all_reduce", "dimension_wise", 64, extents=(4, 4, 4), rotations=True)
    cube = price(along, build_fabric(torus(4, 4, 4)), [list(range(64))])
    ring = build_schedule("all_reduce", "ring", 64)
    switched = price(ring, build_fabric(topology("switched-64")), [list(range(64))])
    assert cube.s_per_byte == switched.s_per_byte


def test_links_and_chips_that_a_fabric_needs() -> None:
    """ "links64", "cm384" (6.5.1), "bisect" (6.5.4), "cm_pairs" (6.5.5)."""
    cube, switched = parts(topology("tpu-v4-cube")), parts(topology("switched-64"))
    assert [cube.num_links, cube.num_switches] == [192, 0]  # "links64"
    assert [switched.num_links, switched.num_switches] == [384, 6]
    assert parts(topology("cloudmatrix384")).num_switches == 448  # "cm384": 48 · 7 + 7 · 16
    halves = [bisection(build_fabric(torus(k, k, k))).num_links for k in (4, 8)]
    assert halves == [32, 128]  # "bisect": 2 · k²
    assert direct_links(384) == 73_536  # "cm_pairs": 384 · 383 / 2


def test_one_link_and_three_between_neighbours() -> None:
    """ "ocs" (6.5.4): 14 MiB over one 50 GB/s link of a ring, or over three."""
    for cables, published in ((1, "293.6"), (3, "97.9")):
        links = [[card, (card + 1) % 8, cables] for card in range(8)]
        ring = topology(
            {
                "kind": "mesh",
                "name": "ring",
                "num_cards": 8,
                "links": links,
                "link_bandwidth_bytes_per_s": "50GB/s",
            }
        )
        assert_figure("ocs", times_of(ring, "all_reduce", 8 * MIB)["ring"] / US, published, "0.05")


def test_power_of_servers() -> None:
    """ "pw", "pw120", "air" (6.5.2): servers of eight cards and 10.2 kW, whole ones only."""
    server = load_instance("four-sessions-128k").fleet.pools[0].server
    assert server.power_w is not None
    each, cards = server.power_w, server.num_cards
    for wanted, published in ((64, "81.6"), (72, "91.8"), (96, "122.4")):
        assert_figure("pw", Fraction(wanted // cards * each, KW), published, "0")
    fed = max_servers(120 * KW, each)
    assert [fed, fed * cards] == [11, 88]  # "pw120": floor(120 / 10.2)
    cooled = max_servers(40 * KW, each)
    assert [cooled, cooled * cards, cooled * each] == [3, 24, 30_600]  # "air"
    assert max_servers(120 * KW, each, fixed_w=120 * KW - each + 1) == 0
    assert max_servers(120 * KW, each, fixed_w=120 * KW - each) == 1
    with pytest.raises(ValueError, match="more than 0 W"):
        max_servers(120 * KW, 0)


def test_expert_parallelism_of_deepseek_v41_inside_and_over_servers() -> None:
    """ "v41_remote" (6.7.4): 80 All-to-All of 335 tokens x 6 experts x 5120 numbers of 2 B a step.

    Inside a supernode 63/64 of the bytes leave a card over 450 GB/s; over eight servers 7/8 of them
    over an adapter of 50 GB/s.
    """
    message = 335 * 6 * 5120 * 2
    inside = topology({**catalog_entry("topologies", "hgx-h100"), "num_cards": 64} | SUPERNODE)
    for where, published in ((inside, "3.7"), (topology("eight-hgx-h100"), "29.2")):
        each = times_of(where, "all_to_all", message)["direct"]
        assert_figure("v41_remote", 80 * each / MS, published, "0.1")


#: 64 cards of 18 NVLink 4 ports on switches that suffice for all of them.
SUPERNODE = {"num_switches": 18, "ports_per_switch": 64, "reduces": False, "sources": {}}


def test_the_choice_of_an_implementation_by_message() -> None:
    """An in-framework AllReduce on 8 H100s is worth 4.6 times at decode sizes, nothing from 16 MiB.

    TensorRT-LLM's equals NCCL from there on; SGLang's has an eleventh left at 16 MiB, 1 % beyond.
    """
    instance = load_instance("framework-allreduce")
    fabric = instance.fleet.pools[0].server.fabric
    gains = {}
    for message in (8 * KIB, 10 * KIB, 16 * MIB, 32 * MIB, 64 * MIB, 256 * MIB):
        times = dict(measured_times(fabric, "all_reduce", 8, 1, message))
        gains[message] = times["NCCL 2.27.3"] / times["TensorRT-LLM 1.3.0rc20"]
    assert_figure("8 KiB", gains.pop(8 * KIB), "4.64", "0.01")  # 16.42 / 3.541 us
    assert_figure("10 KiB", gains.pop(10 * KIB), "4.69", "0.01")  # the row of 16 KiB
    assert max(gains.values()) < Fraction(1014, 1000)
    # The planner takes it: by message, in a decode step and for the prompt.
    footprint = Footprint("hgx", ParallelConfig(tp=8), 1, "measured")
    rows = list(exchange_times(instance, footprint))
    assert {row.algorithm for row in rows} == {"measured TensorRT-LLM 1.3.0rc20"}
    assert {row.message_bytes for row in rows} == {10 * KIB, 80 * MIB}
    for row in rows:
        gain = dict(row.others)["measured NCCL 2.27.3"] / row.seconds
        if row.message_bytes == 10 * KIB:
            assert_figure("decode", gain, "4.69", "0.01")
        else:
            assert_figure("prompt", gain, "1.01", "0.005")


def test_the_fastest_implementation_changes_with_the_size() -> None:
    """At 1 MiB SGLang's takes 13.47 us, TensorRT-LLM's 25.96; at 8 KiB they take 3.55 and 3.54."""
    fabric = load_instance("framework-allreduce").fleet.pools[0].server.fabric
    fastest = [measured_times(fabric, "all_reduce", 8, 1, m)[0][0] for m in (8 * KIB, MIB)]
    assert fastest == ["TensorRT-LLM 1.3.0rc20", "SGLang 0.5.14 in a CUDA graph"]
