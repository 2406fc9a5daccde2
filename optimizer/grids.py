"""Bytes of split matrices: 2-D grids, sequence parallelism, a SwiGLU shard (6.2.2, 6.2.3).

Every size that does not divide by its number of cards is padded up, so bytes are never too few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GridSplit:
    """A grid of cards for one projection and the bytes each card sends along its row and column."""

    rows: int
    cols: int
    row_bytes: int
    column_bytes: int

    def cost_bytes(self, *, is_link_shared: bool) -> int:
        """Bytes that count: their sum on one shared link, else the larger of both axes."""
        if is_link_shared:
            return self.row_bytes + self.column_bytes
        return max(self.row_bytes, self.column_bytes)


def grid_split(m: int, k: int, n: int, rows: int, cols: int, bytes_per_number: int) -> GridSplit:
    """Split [m, k] · [k, n] over a grid; both operands lie in equal blocks, one on each card.

    A ring AllGather over the `cols` cards of a row completes the inputs of that row, one over the
    `rows` cards of a column the weights: a card sends its own number of bytes once for each other
    card (section 6.2.2).
    """
    if min(m, k, n, bytes_per_number) < 1:
        raise ValueError(f"[{m}, {k}] · [{k}, {n}] of {bytes_per_number} B is no projection")
    if min(rows, cols) < 1:
        raise ValueError(f"{rows} x {cols} is no grid of cards")
    input_block = _ceil_div(m, rows) * _ceil_div(k, cols) * bytes_per_number
    weight_block = _ceil_div(k, rows) * _ceil_div(n, cols) * bytes_per_number
    return GridSplit(rows, cols, (cols - 1) * input_block, (rows - 1) * weight_block)


def best_grid(
    m: int, k: int, n: int, num_cards: int, bytes_per_number: int, *, is_link_shared: bool
) -> GridSplit:
    """Return the grid of `num_cards` cards whose counting bytes are fewest.

    Of equals the one with the smaller sum, then the one with fewer rows.
    """
    if num_cards < 1:
        raise ValueError(f"a grid needs at least 1 card, not {num_cards}")
    grids = (
        grid_split(m, k, n, rows, num_cards // rows, bytes_per_number)
        for rows in _divisors(num_cards)
    )
    return min(
        grids,
        key=lambda grid: (
            grid.cost_bytes(is_link_shared=is_link_shared),
            grid.cost_bytes(is_link_shared=True),
            grid.rows,
        ),
    )


def sequence_part_bytes(num_tokens: int, width: int, bytes_per_number: int, sp: int) -> int:
    """Activation bytes a card keeps of [num_tokens, width] split along the sequence (6.2.3)."""
    if min(num_tokens, width, bytes_per_number) < 1:
        raise ValueError(f"[{num_tokens}, {width}] of {bytes_per_number} B is no activation")
    if sp < 1:
        raise ValueError(f"SP{sp} is not a degree; the least is 1")
    return _ceil_div(num_tokens, sp) * width * bytes_per_number


def all_gather_sent_bytes(num_ranks: int, gathered_bytes: int) -> int:
    """Bytes a card sends in a ring AllGather that ends with `gathered_bytes` everywhere."""
    if num_ranks < 1 or gathered_bytes < 0:
        raise ValueError(f"no collective of {num_ranks} ranks moves {gathered_bytes} B")
    return (num_ranks - 1) * _ceil_div(gathered_bytes, num_ranks)


def reduce_scatter_sent_bytes(num_ranks: int, message_bytes: int) -> int:
    """Bytes a card sends in a ring ReduceScatter of `message_bytes` on every card.

    It is the AllGather run backwards: the same parts take the same ways.
    """
    return all_gather_sent_bytes(num_ranks, message_bytes)


def all_reduce_sent_bytes(num_ranks: int, message_bytes: int) -> int:
    """Bytes a card sends in a ring AllReduce: 2(n-1)·M/n (6-9), whole parts.

    Sequence parallelism splits it in its two halves and sends no byte more (section 6.2.3).
    """
    if num_ranks < 1 or message_bytes < 0:
        raise ValueError(f"no collective of {num_ranks} ranks moves {message_bytes} B")
    return 2 * (num_ranks - 1) * _ceil_div(message_bytes, num_ranks)


def swiglu_shard_parameters(hidden_size: int, ffn_size: int, tp: int) -> int:
    """Numbers of the three SwiGLU matrices that one of `tp` cards holds, split along the width."""
    if min(hidden_size, ffn_size) < 1:
        raise ValueError(f"{hidden_size} x {ffn_size} is no feed-forward block")
    if tp < 1:
        raise ValueError(f"TP{tp} is not a degree; the least is 1")
    return 3 * hidden_size * _ceil_div(ffn_size, tp)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _divisors(number: int) -> Iterator[int]:
    return (d for d in range(1, number + 1) if number % d == 0)
