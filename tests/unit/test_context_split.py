"""Context parallelism: the tokens, query-key pairs and exchanged bytes of every card."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from optimizer.context_split import (
    Part,
    causal_pairs,
    contiguous_parts,
    ring_exchange_bytes,
    softmax_merge_bytes,
    zigzag_parts,
)


@pytest.mark.parametrize(
    ("name", "value", "expected", "tolerance"),
    [
        ("cp_naive", causal_pairs(contiguous_parts(8, 2)), (10, 26), 0),
        ("cp_zigzag", causal_pairs(zigzag_parts(8, 2)), (18, 18), 0),
    ],
)
def test_figures_of_section_6_2_4(
    name: str, value: tuple[int, ...], expected: tuple[int, ...], tolerance: int
) -> None:
    for pairs, printed in zip(value, expected, strict=True):
        assert abs(pairs - printed) <= tolerance, f"{name}: {value} is not {expected}"


def positions(parts: tuple[Part, ...]) -> list[list[int]]:
    """Spell out the positions of every card, counted from 1 as the source does."""
    return [[p + 1 for start, end in part for p in range(start, end)] for part in parts]


def test_the_published_positions_of_two_cards() -> None:
    assert positions(contiguous_parts(8, 2)) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert positions(zigzag_parts(8, 2)) == [[1, 2, 7, 8], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("tokens", "cp", "parts", "pairs"),
    [
        (7, 1, (((0, 7),),), (28,)),
        (7, 3, (((0, 3),), ((3, 5),), ((5, 7),)), (6, 9, 13)),  # 1+2+3, 4+5, 6+7
        (2, 3, (((0, 1),), ((1, 2),), ()), (1, 2, 0)),
    ],
)
def test_contiguous_chunks_differ_by_at_most_one_token(
    tokens: int, cp: int, parts: tuple[Part, ...], pairs: tuple[int, ...]
) -> None:
    assert contiguous_parts(tokens, cp) == parts
    assert causal_pairs(parts) == pairs


@pytest.mark.parametrize(
    ("tokens", "cp", "parts", "pairs"),
    [
        (7, 1, (((0, 4), (4, 7)),), (28,)),
        (5, 2, (((0, 2), (4, 5)), ((2, 3), (3, 4))), (8, 7)),  # 1+2+5, 3+4
        (6, 2, (((0, 2), (5, 6)), ((2, 4), (4, 5))), (9, 12)),  # 1+2+6, 3+4+5
        (7, 2, (((0, 1), (5, 7)), ((1, 3), (3, 5))), (14, 14)),  # 1+6+7, 2+3+4+5
        (3, 2, (((2, 3),), ((0, 1), (1, 2))), (3, 3)),  # 3, 1+2
        (1, 2, (((0, 1),), ()), (1, 0)),
    ],
)
def test_zigzag_chunks_differ_by_at_most_one_token(
    tokens: int, cp: int, parts: tuple[Part, ...], pairs: tuple[int, ...]
) -> None:
    assert zigzag_parts(tokens, cp) == parts
    assert causal_pairs(parts) == pairs


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_no_other_placement_of_left_over_tokens_has_a_less_busy_card(cp: int) -> None:
    for tokens in range(1, 6 * cp + 1):
        size, left_over = divmod(tokens, 2 * cp)
        fewest = min(
            busiest
            for larger in combinations(range(2 * cp), left_over)
            if (busiest := busiest_with(size, set(larger), cp, tokens)) is not None
        )
        assert max(causal_pairs(zigzag_parts(tokens, cp))) == fewest, tokens


def busiest_with(size: int, larger: set[int], cp: int, tokens: int) -> int | None:
    """Busiest card when the chunks in `larger` have one token more; None if cards are uneven."""
    chunks, position = [], 0
    for i in range(2 * cp):
        count = size + (i in larger)
        chunks.append(list(range(position + 1, position + count + 1)))
        position += count
    cards = [chunks[i] + chunks[2 * cp - 1 - i] for i in range(cp)]
    if max(len(card) for card in cards) > -(-tokens // cp):
        return None
    return max(sum(card) for card in cards)


def test_context_before_adds_its_tokens_to_every_query() -> None:
    # 10 tokens before: four queries each, 18 + 4 · 10.
    assert causal_pairs(zigzag_parts(8, 2), context_before=10) == (58, 58)
    # Contiguous: 10 + 40 and 26 + 40.
    assert causal_pairs(contiguous_parts(8, 2), context_before=10) == (50, 66)


def test_a_long_context_can_favour_contiguous_when_the_cards_have_unequal_tokens() -> None:
    # One card has three of five queries either way: 1+2+3 pairs among them, or 1+2+5.
    assert causal_pairs(contiguous_parts(5, 2), context_before=50) == (156, 109)
    assert causal_pairs(zigzag_parts(5, 2), context_before=50) == (158, 107)


def test_pairs_of_some_cards_only_and_in_any_order_of_ranges() -> None:
    # Positions 7, 8 and 1 counted from 1.
    assert causal_pairs([((6, 8), (0, 1))]) == (16,)
    assert causal_pairs([]) == ()


def test_a_ring_moves_every_part_to_all_other_cards() -> None:
    # 3 · 2048 tokens · 4 KiB = 24 MiB; one card alone sends nothing.
    assert ring_exchange_bytes(2048, 4, 4096) == 24 * 2**20
    assert ring_exchange_bytes(2048, 1, 4096) == 0


def test_a_partial_softmax_is_a_vector_and_two_numbers_per_head() -> None:
    # 64 heads · (128 + 2) numbers · 4 B
    assert softmax_merge_bytes(1, 64, 128) == 33_280
    # 3 queries · 2 heads · (8 + 2) · 4 B
    assert softmax_merge_bytes(3, 2, 8) == 240


def test_the_smallest_sizes_are_sizes() -> None:
    assert causal_pairs(zigzag_parts(1, 1)) == causal_pairs(contiguous_parts(1, 1)) == (1,)
    assert ring_exchange_bytes(0, 2, 4096) == ring_exchange_bytes(2048, 2, 0) == 0
    # 1 head · (1 + 2) numbers · 4 B
    assert softmax_merge_bytes(1, 1, 1) == 12
    assert softmax_merge_bytes(0, 1, 1) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contiguous_parts(0, 2), "at least 1 token must be split, not 0"),
        (lambda: contiguous_parts(8, 0), "CP0 is not a degree; the least is 1"),
        (lambda: zigzag_parts(0, 2), "at least 1 token must be split, not 0"),
        (lambda: zigzag_parts(8, 0), "CP0 is not a degree; the least is 1"),
        (lambda: causal_pairs([((0, 1),)], -1), "0 tokens or more, not -1"),
        (lambda: causal_pairs([((2, 2),)]), r"\[2, 2\) is no range of token positions"),
        (lambda: causal_pairs([((-1, 2),)]), r"\[-1, 2\) is no range of token positions"),
        (lambda: causal_pairs([((0, 3),), ((2, 4),)]), "position 2 is held twice"),
        (lambda: ring_exchange_bytes(-1, 4, 2), "4 cards exchanges -1 tokens of 2 B"),
        (lambda: ring_exchange_bytes(1, 0, 2), "0 cards exchanges 1 tokens of 2 B"),
        (lambda: ring_exchange_bytes(1, 4, -2), "4 cards exchanges 1 tokens of -2 B"),
        (lambda: softmax_merge_bytes(-1, 2, 8), "-1 queries of 2 heads with 8 numbers"),
        (lambda: softmax_merge_bytes(1, 0, 8), "1 queries of 0 heads with 8 numbers"),
        (lambda: softmax_merge_bytes(1, 2, 0), "1 queries of 2 heads with 0 numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
