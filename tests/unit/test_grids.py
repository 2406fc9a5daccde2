"""Bytes of split matrices: grids of cards, sequence parallelism, a SwiGLU shard."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from optimizer.grids import (
    GridSplit,
    all_gather_sent_bytes,
    all_reduce_sent_bytes,
    best_grid,
    grid_split,
    reduce_scatter_sent_bytes,
    sequence_part_bytes,
    swiglu_shard_parameters,
)

F = Fraction
KIB, MIB = 2**10, 2**20


def published(rows: int, cols: int) -> GridSplit:
    """Split the projection [8192, 4096] · [4096, 12288] in BF16."""
    return grid_split(8192, 4096, 12_288, rows, cols, 2)


# FP32 sums of a 4096-wide vector: 16 KiB in each of attention TP2, experts TP2 and experts EP4.
SUMS_OF_A_TOKEN = 2 * all_reduce_sent_bytes(2, 16 * KIB) + all_reduce_sent_bytes(4, 16 * KIB)
SUMS_OF_8192 = 2 * all_reduce_sent_bytes(2, 128 * MIB) + all_reduce_sent_bytes(4, 128 * MIB)


@pytest.mark.parametrize(
    ("name", "value", "expected", "tolerance"),
    [
        ("grid_4x4", F(published(4, 4).row_bytes, MIB), "12", "0"),
        ("grid_4x4", F(published(4, 4).column_bytes, MIB), "18", "0"),
        ("grid_2x8", F(published(2, 8).row_bytes, MIB), "28", "0"),
        ("grid_2x8", F(published(2, 8).column_bytes, MIB), "6", "0"),
        ("grid_8x2", F(published(8, 2).row_bytes, MIB), "4", "0"),
        ("grid_8x2", F(published(8, 2).column_bytes, MIB), "42", "0"),
        ("sp_act", F(sequence_part_bytes(8192, 4096, 2, 4), MIB), "16", "0"),
        ("ffn_tp4", F(2 * swiglu_shard_parameters(5120, 25_600, 4), MIB), "187.5", "0.05"),
        ("tp2ep4_send", F(SUMS_OF_A_TOKEN, KIB), "56", "0"),
        ("tp2ep4_prefill", F(SUMS_OF_8192, MIB), "448", "0"),
    ],
)
def test_figures_of_sections_6_2_and_6_3(
    name: str, value: Fraction, expected: str, tolerance: str
) -> None:
    assert abs(value - F(expected)) <= F(tolerance), f"{name}: {float(value)} is not {expected}"


def test_one_row_gathers_inputs_only_and_one_column_weights_only() -> None:
    # [8, 6] · [6, 4], 1 B, 2 cards: half the inputs is 24 B, half the weights 12 B.
    assert grid_split(8, 6, 4, 1, 2, 1) == GridSplit(1, 2, 24, 0)
    assert grid_split(8, 6, 4, 2, 1, 1) == GridSplit(2, 1, 0, 12)
    assert grid_split(8, 6, 4, 1, 1, 1) == GridSplit(1, 1, 0, 0)


def test_blocks_that_do_not_divide_are_padded_up() -> None:
    # 2 x 3 grid: inputs ceil(5/2) · ceil(7/3) = 9 numbers twice, weights ceil(7/2) · ceil(4/3) = 8.
    assert grid_split(5, 7, 4, 2, 3, 2) == GridSplit(2, 3, 2 * 9 * 2, 8 * 2)


def test_the_larger_axis_counts_unless_both_share_a_link() -> None:
    grid = GridSplit(4, 4, 12, 18)
    assert grid.cost_bytes(is_link_shared=False) == 18
    assert grid.cost_bytes(is_link_shared=True) == 30


@pytest.mark.parametrize("is_link_shared", [False, True])
def test_the_published_projection_is_best_on_a_square(is_link_shared: bool) -> None:
    # Larger axis: 60, 28, 18, 42, 90 MiB for 1x16 ... 16x1; sums 60, 34, 30, 46, 90.
    grid = best_grid(8192, 4096, 12_288, 16, 2, is_link_shared=is_link_shared)
    assert grid == GridSplit(4, 4, 12 * MIB, 18 * MIB)


def test_a_shared_link_can_choose_another_grid() -> None:
    # Blocks of 16 B inputs and 144 B weights. Larger axis: 240, 144, 432, ... for 1x16, 2x8, 4x4;
    # sums: 240, 112 + 144 = 256, 480, ...
    assert best_grid(16, 16, 144, 16, 1, is_link_shared=False) == GridSplit(2, 8, 112, 144)
    assert best_grid(16, 16, 144, 16, 1, is_link_shared=True) == GridSplit(1, 16, 240, 0)


def test_of_equal_grids_the_smaller_sum_and_then_fewer_rows_are_taken() -> None:
    # Square operands on 2 cards: 1x2 and 2x1 both send 8 B along one axis.
    assert best_grid(4, 4, 4, 2, 1, is_link_shared=False) == GridSplit(1, 2, 8, 0)
    # [12, 4] · [4, 4], 4 cards: 2x2 sends 12 and 4, 4x1 sends 0 and 12: the larger is 12 in both.
    assert best_grid(12, 4, 4, 4, 1, is_link_shared=False) == GridSplit(4, 1, 0, 12)


def test_a_sequence_that_does_not_divide_gives_some_card_a_token_more() -> None:
    # ceil(10/4) = 3 tokens · 8 numbers · 2 B
    assert sequence_part_bytes(10, 8, 2, 4) == 48
    assert sequence_part_bytes(10, 8, 2, 1) == 160


def test_bytes_sent_in_a_ring() -> None:
    # 80 B over 4 cards: parts of 20 B, 3 rounds, and twice that for both halves.
    assert all_gather_sent_bytes(4, 80) == 60
    assert reduce_scatter_sent_bytes(4, 80) == 60
    assert all_reduce_sent_bytes(4, 80) == 120
    # 10 B over 4 cards: parts of 3 B.
    assert all_gather_sent_bytes(4, 10) == 9
    assert reduce_scatter_sent_bytes(4, 10) == 9
    assert all_reduce_sent_bytes(4, 10) == 18
    assert all_reduce_sent_bytes(1, 80) == 0


def test_a_swiglu_width_that_does_not_divide_is_padded_up() -> None:
    # 3 · 4 · ceil(10/4)
    assert swiglu_shard_parameters(4, 10, 4) == 36
    assert swiglu_shard_parameters(4, 10, 1) == 120


def test_the_smallest_sizes_are_sizes() -> None:
    assert best_grid(1, 1, 1, 1, 1, is_link_shared=True) == GridSplit(1, 1, 0, 0)
    assert sequence_part_bytes(1, 1, 1, 1) == 1
    assert all_gather_sent_bytes(1, 80) == reduce_scatter_sent_bytes(4, 0) == 0
    assert all_reduce_sent_bytes(4, 0) == 0
    assert swiglu_shard_parameters(1, 1, 1) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grid_split(0, 1, 1, 1, 1, 1), r"\[0, 1\] · \[1, 1\] of 1 B is no projection"),
        (lambda: grid_split(1, 0, 1, 1, 1, 1), r"\[1, 0\] · \[0, 1\] of 1 B is no projection"),
        (lambda: grid_split(1, 1, 0, 1, 1, 1), r"\[1, 1\] · \[1, 0\] of 1 B is no projection"),
        (lambda: grid_split(1, 1, 1, 1, 1, 0), "of 0 B is no projection"),
        (lambda: grid_split(1, 1, 1, 0, 1, 1), "0 x 1 is no grid of cards"),
        (lambda: grid_split(1, 1, 1, 1, 0, 1), "1 x 0 is no grid of cards"),
        (lambda: best_grid(1, 1, 1, 0, 1, is_link_shared=True), "at least 1 card, not 0"),
        (lambda: best_grid(0, 1, 1, 1, 1, is_link_shared=True), "is no projection"),
        (lambda: sequence_part_bytes(0, 1, 1, 1), r"\[0, 1\] of 1 B is no activation"),
        (lambda: sequence_part_bytes(1, 0, 1, 1), r"\[1, 0\] of 1 B is no activation"),
        (lambda: sequence_part_bytes(1, 1, 0, 1), r"\[1, 1\] of 0 B is no activation"),
        (lambda: sequence_part_bytes(1, 1, 1, 0), "SP0 is not a degree; the least is 1"),
        (lambda: all_gather_sent_bytes(0, 1), "no collective of 0 ranks moves 1 B"),
        (lambda: reduce_scatter_sent_bytes(2, -1), "no collective of 2 ranks moves -1 B"),
        (lambda: all_reduce_sent_bytes(0, 1), "no collective of 0 ranks moves 1 B"),
        (lambda: all_reduce_sent_bytes(2, -1), "no collective of 2 ranks moves -1 B"),
        (lambda: swiglu_shard_parameters(0, 1, 1), "0 x 1 is no feed-forward block"),
        (lambda: swiglu_shard_parameters(1, 0, 1), "1 x 0 is no feed-forward block"),
        (lambda: swiglu_shard_parameters(1, 1, 0), "TP0 is not a degree; the least is 1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
