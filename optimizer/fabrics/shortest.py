"""Tables of shortest paths between nodes that are joined directly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimizer.fabrics.fabric import Ints


def distances(num_nodes: int, tails: Ints, heads: Ints) -> Ints:
    """Return the links [N, N] that a path from a row's node to a column's needs, -1 for no path."""
    near = [0] * num_nodes  # neighbours as bits of one number: a search takes one "or" per node
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        near[tail] |= 1 << head
    found = np.full((num_nodes, num_nodes), -1, dtype=np.int64)
    for node in range(num_nodes):
        reached, seen, length = [node], 1 << node, 0
        while reached:
            found[node, reached] = length
            ahead = 0
            for at in reached:
                ahead |= near[at]
            ahead &= ~seen
            seen |= ahead
            length += 1
            reached = _bits(ahead, num_nodes)
    return found


def _bits(number: int, num_bits: int) -> list[int]:
    packed = np.frombuffer(number.to_bytes(-(-num_bits // 8), "little"), dtype=np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
    return found


def next_links(num_nodes: int, tails: Ints, heads: Ints, wires: Ints) -> Ints:
    """Return the link [N, N] by which a row's node sends to a column's, -1 on the diagonal.

    Of the neighbours nearer to the receiver it is the one joined by most wires, of equal ones that
    of lowest number.
    """
    apart = distances(num_nodes, tails, heads)
    order = np.lexsort((heads, -wires, tails))
    starts = np.searchsorted(tails[order], np.arange(num_nodes + 1))
    table = np.full((num_nodes, num_nodes), -1, dtype=np.int64)
    for node in range(num_nodes):
        links = order[starts[node] : starts[node + 1]]
        if not len(links):
            continue
        is_nearer = apart[heads[links]] == apart[node] - 1
        table[node] = np.where(is_nearer.any(axis=0), links[is_nearer.argmax(axis=0)], -1)
    return table


def walk(table: Ints, heads: Ints, start: Ints, goal: Ints) -> Iterator[Ints]:
    """Yield the links that messages [K] take from `start` to `goal` one by one, -1 on arrival."""
    here = start
    while True:
        links = table[here, goal]
        if (links < 0).all():
            return
        yield links
        here = np.where(links >= 0, heads[links], here)
