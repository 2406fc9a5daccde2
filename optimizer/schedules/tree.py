"""Trees and chains: AllReduce by a binomial tree, Broadcast, Reduce, and one message (6.4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import (
    Round,
    Schedule,
    Sends,
    need_power_of_two,
    read_only,
    whole_vector,
)


def tree(operation: str, num_ranks: int) -> Schedule:
    """Unsegmented binomial tree: reduce to rank 0, then broadcast (6-10).

    Raises CollectiveUnavailable unless `num_ranks` is a power of two.
    """
    need_power_of_two("tree", "the binomial tree", num_ranks)
    return Schedule(operation, "tree", num_ranks, 1, 1, partial(_tree_rounds, num_ranks))


def _tree_rounds(num_ranks: int) -> Iterator[Round]:
    pairs = _binomial_pairs(num_ranks, 0)
    for children, parents in pairs:
        yield (Sends(children, parents, 1, True, whole_vector(len(children))),)
    for children, parents in reversed(pairs):
        yield (Sends(parents, children, 1, False, whole_vector(len(children))),)


def binomial(operation: str, num_ranks: int, root: int = 0) -> Schedule:
    """Binomial Broadcast or Reduce: ceil(log2 n) rounds of the whole vector, any n and root."""
    _check_root(num_ranks, root)
    rounds = partial(_binomial_rounds, operation, num_ranks, root)
    return Schedule(operation, "binomial", num_ranks, 1, 1, rounds, root=root)


def _binomial_rounds(operation: str, num_ranks: int, root: int) -> Iterator[Round]:
    pairs = _binomial_pairs(num_ranks, root)
    if operation == "reduce":
        for children, parents in pairs:
            yield (Sends(children, parents, 1, True, whole_vector(len(children))),)
    else:
        for children, parents in reversed(pairs):
            yield (Sends(parents, children, 1, False, whole_vector(len(children))),)


def _binomial_pairs(num_ranks: int, root: int) -> list[tuple[Ints, Ints]]:
    """Return children and parents of every level, leaves first: they are 1, 2, 4... ranks apart."""
    distances = [1 << level for level in range((num_ranks - 1).bit_length())]
    places = [np.arange(distance, num_ranks, 2 * distance) for distance in distances]
    return [
        (
            read_only((children + root) % num_ranks),
            read_only((children - distance + root) % num_ranks),
        )
        for distance, children in zip(distances, places, strict=True)
    ]


def chain(operation: str, num_ranks: int, root: int = 0, num_segments: int = 1) -> Schedule:
    """Broadcast from rank to next rank, or Reduce the other way, in a pipeline of segments.

    n - 2 + num_segments rounds, in each of which every link along the chain takes one segment.
    """
    _check_root(num_ranks, root)
    if num_segments < 1:
        raise ValueError(f"a chain needs one segment or more, not {num_segments}")
    rounds = partial(_chain_rounds, operation, num_ranks, root, num_segments)
    return Schedule(operation, "chain", num_ranks, num_segments, num_segments, rounds, root=root)


def _chain_rounds(operation: str, num_ranks: int, root: int, num_segments: int) -> Iterator[Round]:
    places = np.arange(num_ranks)
    # The chain by place: a Broadcast starts at the root, a Reduce at the far end.
    ranks = (root - 1 - places if operation == "reduce" else root + places) % num_ranks
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for number in range(num_ranks - 2 + num_segments if num_ranks > 1 else 0):
        first = max(0, number - num_segments + 1)
        last = min(number, num_ranks - 2)
        if (first, last) not in known:
            senders, receivers = ranks[first : last + 1], ranks[first + 1 : last + 2]
            known[first, last] = read_only(senders), read_only(receivers)
        segments = partial(_segments, number, first, last)
        yield (Sends(*known[first, last], 1, operation == "reduce", segments),)


def _segments(number: int, first: int, last: int) -> Ints:
    """Segments [K, 1] that places first..last of a chain send in a round."""
    return number - np.arange(first, last + 1)[:, np.newaxis]


def send(operation: str, num_ranks: int) -> Schedule:
    """One message from rank 0 to rank 1."""
    if num_ranks != 2:
        raise ValueError(f"a Send has two ranks, not {num_ranks}")
    ends = read_only(np.arange(2))
    sends = Sends(ends[:1], ends[1:], 1, False, whole_vector(1))
    return Schedule(operation, "direct", 2, 1, 1, lambda: iter([(sends,)]))


def _check_root(num_ranks: int, root: int) -> None:
    if not 0 <= root < num_ranks:
        raise ValueError(f"root {root} is none of the ranks 0 to {num_ranks - 1}")
