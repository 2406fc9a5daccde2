"""AllReduce times: ring, tree and measured tables, with every edge of their ranges."""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances.catalog_store import catalog_entry
from instances.hardware import FabricSpec, MeasuredCollective, MeasuredRow
from optimizer.collectives import (
    CollectiveUnavailable,
    all_reduce_s,
    measured_s,
    ring_all_reduce_s,
    ring_tree_crossover_bytes,
    tree_all_reduce_s,
)

NS = Fraction(1, 10**9)
ALPHA, BANDWIDTH = 100 * NS, Fraction(10**9)  # 1 B per ns
TABLE = MeasuredCollective(
    name="table",
    ranks=4,
    servers=2,
    rows=(
        MeasuredRow(message_bytes=8, time_s="500ns"),
        MeasuredRow(message_bytes=64, time_s="300ns"),
        MeasuredRow(message_bytes=100, time_s="700ns"),
    ),
)
FABRIC = FabricSpec(
    name="fabric", alpha_s="100ns", bandwidth_bytes_per_s="1GB/s", measured=(TABLE,)
)


@pytest.mark.parametrize(
    ("ranks", "message", "nanoseconds"),
    [
        (1, 48, 0),
        (2, 48, 248),  # 2 · (100 + 24)
        (3, 48, 464),  # 4 · (100 + 16)
        (4, 48, 672),  # 6 · (100 + 12)
        (6, 48, 1080),  # 10 · (100 + 8)
        (7, 0, 1200),  # 12 · 100, nothing to send
    ],
)
def test_ring_takes_two_times_n_minus_one_rounds_of_an_nth_of_the_message(
    ranks: int, message: int, nanoseconds: int
) -> None:
    assert ring_all_reduce_s(ranks, message, ALPHA, BANDWIDTH) == nanoseconds * NS


def test_ring_keeps_the_fraction_of_a_message_that_does_not_divide() -> None:
    # 4 · (100 + 10/3) = 400 + 40/3 ns
    assert ring_all_reduce_s(3, 10, ALPHA, BANDWIDTH) == (400 + Fraction(40, 3)) * NS


@pytest.mark.parametrize(
    ("ranks", "nanoseconds"),
    [(1, 0), (2, 296), (4, 592), (8, 888), (1024, 2960)],  # 2 · log2(n) · (100 + 48)
)
def test_tree_takes_two_rounds_of_the_whole_message_per_level(ranks: int, nanoseconds: int) -> None:
    assert tree_all_reduce_s(ranks, 48, ALPHA, BANDWIDTH) == nanoseconds * NS


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12, 13, 26, 52])
def test_tree_refuses_ranks_that_are_no_power_of_two_while_ring_serves_them(ranks: int) -> None:
    with pytest.raises(CollectiveUnavailable, match=f"not {ranks} ranks") as caught:
        tree_all_reduce_s(ranks, 48, ALPHA, BANDWIDTH)
    assert caught.value.rule == "tree_power_of_two"
    assert ring_all_reduce_s(ranks, 48, ALPHA, BANDWIDTH) > 0


@pytest.mark.parametrize(
    ("message", "nanoseconds"),
    [(1, 500), (7, 500), (8, 500), (9, 300), (63, 300), (64, 300), (65, 700), (100, 700)],
)
def test_a_measured_size_takes_its_row_and_any_other_the_next_larger_one(
    message: int, nanoseconds: int
) -> None:
    assert measured_s(TABLE, message) == nanoseconds * NS


def test_a_message_one_byte_beyond_the_last_row_was_never_measured() -> None:
    with pytest.raises(CollectiveUnavailable, match="stops at 100 B, below 101 B") as caught:
        measured_s(TABLE, 101)
    assert caught.value.rule == "no_measurement"


def test_the_published_table_gives_10_kib_the_time_of_its_16_kib_row() -> None:
    table = MeasuredCollective.model_validate(
        catalog_entry("measurements", "allreduce-2x-hgx-h100")
    )
    # Rows around it: 8 KiB 32.12 µs, 16 KiB 32.74 µs, 32 KiB 34.1 µs; section 6.5.1 uses 32.74.
    assert measured_s(table, 10 * 2**10) == Fraction(3274, 10**8)
    assert measured_s(table, 8192) == Fraction(3212, 10**8)
    assert measured_s(table, 8193) == Fraction(3274, 10**8)
    assert measured_s(table, 16384) == Fraction(3274, 10**8)
    assert measured_s(table, 16385) == Fraction(3410, 10**8)
    assert measured_s(table, 2**34) == Fraction(68652, 10**6)
    with pytest.raises(CollectiveUnavailable):
        measured_s(table, 2**34 + 1)


@pytest.mark.parametrize(("collective", "nanoseconds"), [("ring", 672), ("tree", 592)])
def test_formulas_take_alpha_and_bandwidth_of_the_fabric(collective: str, nanoseconds: int) -> None:
    assert all_reduce_s(collective, FABRIC, 4, 1, 48) == nanoseconds * NS


def test_a_measured_table_serves_only_its_own_ranks_and_servers() -> None:
    assert all_reduce_s("measured", FABRIC, 4, 2, 8) == 500 * NS
    for ranks, servers in ((4, 1), (4, 4), (2, 2), (8, 2)):
        with pytest.raises(CollectiveUnavailable, match=f"{ranks} ranks") as caught:
            all_reduce_s("measured", FABRIC, ranks, servers, 8)
        assert caught.value.rule == "no_measurement"


@pytest.mark.parametrize("collective", ["ring", "tree", "measured", "none"])
def test_one_rank_needs_no_reduction(collective: str) -> None:
    assert all_reduce_s(collective, FABRIC, 1, 1, 48) == 0


@pytest.mark.parametrize("collective", ["none", "Ring", "butterfly", ""])
def test_a_collective_of_another_name_is_refused(collective: str) -> None:
    with pytest.raises(ValueError, match="no collective is named"):
        all_reduce_s(collective, FABRIC, 4, 1, 48)


@pytest.mark.parametrize(
    ("ranks", "size"),
    [
        (4, 80),  # ring 600 + 1.5 M = tree 400 + 4 M  ->  M = 200 / 2.5
        (8, Fraction(3200, 17)),  # ring 1400 + 1.75 M = tree 600 + 6 M  ->  M = 800 / 4.25
    ],
)
def test_ring_and_tree_tie_at_the_crossover_and_the_larger_message_favours_the_ring(
    ranks: int, size: Fraction
) -> None:
    assert ring_tree_crossover_bytes(ranks, ALPHA, BANDWIDTH) == size
    below, above = int(size) - 1, int(size) + 1
    for message, ring_wins in ((below, False), (above, True)):
        ring = ring_all_reduce_s(ranks, message, ALPHA, BANDWIDTH)
        tree = tree_all_reduce_s(ranks, message, ALPHA, BANDWIDTH)
        assert (ring < tree) is ring_wins


def test_two_ranks_have_no_crossover_because_the_ring_is_never_slower() -> None:
    with pytest.raises(ValueError, match="four ranks"):
        ring_tree_crossover_bytes(2, ALPHA, BANDWIDTH)


def test_no_crossover_where_there_is_no_tree() -> None:
    with pytest.raises(CollectiveUnavailable):
        ring_tree_crossover_bytes(6, ALPHA, BANDWIDTH)
