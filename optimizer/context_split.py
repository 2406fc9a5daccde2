"""Context parallelism of causal attention: who has which tokens, pairs and bytes (6.2.4).

A part is the tokens of one card: half-open ranges of positions, ascending, none of them empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

TokenRange: TypeAlias = tuple[int, int]
Part: TypeAlias = tuple[TokenRange, ...]

#: Bytes of one number of a partial softmax, which is merged in FP32.
MERGE_NUMBER_BYTES = 4


def contiguous_parts(num_tokens: int, cp: int) -> tuple[Part, ...]:
    """Split the tokens into `cp` chunks in order; the first ones take the tokens left over.

    That order is the kinder one: the last chunk already has the most query-key pairs.
    """
    _check_split(num_tokens, cp)
    size, left_over = divmod(num_tokens, cp)
    chunks = _chunks([size + (i < left_over) for i in range(cp)])
    return tuple(_without_empty(chunk) for chunk in chunks)


def zigzag_parts(num_tokens: int, cp: int) -> tuple[Part, ...]:
    """Split the tokens into 2·cp chunks; card i has chunks i and 2·cp-1-i.

    Up to `cp` tokens left over go to the first chunks, more go to the last ones: no other
    placement of them that keeps the cards within one token of each other has a less busy card.
    """
    _check_split(num_tokens, cp)
    num_chunks = 2 * cp
    size, left_over = divmod(num_tokens, num_chunks)
    first = 0 if left_over <= cp else num_chunks - left_over
    chunks = _chunks([size + (first <= i < first + left_over) for i in range(num_chunks)])
    return tuple(_without_empty(chunks[i], chunks[num_chunks - 1 - i]) for i in range(cp))


def causal_pairs(parts: Sequence[Part], context_before: int = 0) -> tuple[int, ...]:
    """Query-key pairs of every card, when each query sees itself and all positions before it.

    `context_before` tokens precede position 0 and are seen by every query. Raises ValueError for
    a range that is not one and for a position that two ranges hold.
    """
    if context_before < 0:
        raise ValueError(f"the context before must be 0 tokens or more, not {context_before}")
    end_before = 0
    for start, end in sorted(token_range for part in parts for token_range in part):
        if not 0 <= start < end:
            raise ValueError(f"[{start}, {end}) is no range of token positions")
        if start < end_before:
            raise ValueError(f"position {start} is held twice")
        end_before = end
    return tuple(sum(_range_pairs(r, context_before) for r in part) for part in parts)


def ring_exchange_bytes(max_part_tokens: int, cp: int, kv_bytes_per_token: int) -> int:
    """Bytes of K and V one card sends when every part goes round a ring: cp-1 times a part.

    `max_part_tokens` is the largest part, which at worst is among those a card passes on.
    """
    if max_part_tokens < 0 or cp < 1 or kv_bytes_per_token < 0:
        raise ValueError(
            f"no ring of {cp} cards exchanges {max_part_tokens} tokens of {kv_bytes_per_token} B"
        )
    return (cp - 1) * max_part_tokens * kv_bytes_per_token


def softmax_merge_bytes(num_queries: int, num_heads: int, head_dim: int) -> int:
    """Bytes of one card's partial results: per query and head a maximum, a sum and a vector, FP32.

    It is the message that the cards of a context-parallel group merge instead of moving K and V.
    """
    if num_queries < 0 or num_heads < 1 or head_dim < 1:
        raise ValueError(
            f"no attention has {num_queries} queries of {num_heads} heads with {head_dim} numbers"
        )
    return num_queries * num_heads * (head_dim + 2) * MERGE_NUMBER_BYTES


def _check_split(num_tokens: int, cp: int) -> None:
    if num_tokens < 1:
        raise ValueError(f"at least 1 token must be split, not {num_tokens}")
    if cp < 1:
        raise ValueError(f"CP{cp} is not a degree; the least is 1")


def _chunks(sizes: Sequence[int]) -> list[TokenRange]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append((start, start + size))
        start += size
    return chunks


def _without_empty(*ranges: TokenRange) -> Part:
    return tuple((start, end) for start, end in ranges if start < end)


def _range_pairs(token_range: TokenRange, context_before: int) -> int:
    """Sum of position + 1 + context over the range: an arithmetic series."""
    start, end = token_range
    num_queries = end - start
    return num_queries * (start + end + 1) // 2 + num_queries * context_before
