"""What a collective sends, round by round (sections 6.4.1 and 6.4.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.collectives import CollectiveUnavailable
from optimizer.fabrics.fabric import Ints

#: Operations, and what the bytes of their message are, counted as nccl-tests does.
OPERATIONS = {
    "all_reduce": "the vector of every rank",
    "reduce_scatter": "the full input of every rank",
    "all_gather": "the full output",
    "all_to_all": "the send buffer of every rank, of which 1/n stays",
    "broadcast": "the vector",
    "reduce": "the vector of every rank",
    "send": "the message",
}
#: Operations that add up what the ranks bring.
SUMS = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Messages [K] sent at once, each of `chunks_each` chunks.

    `senders` and `receivers` [K] are ranks, or adders after the ranks. The receiver adds to what it
    has if `is_sum`, else it takes a copy. Which chunks go is made when it is asked for: prices of
    equal chunks need only their number.
    """

    senders: Ints
    receivers: Ints
    chunks_each: int
    is_sum: bool
    make_chunks: Callable[[], Ints]

    @property
    def chunks(self) -> Ints:
        """Numbers of the chunks [K, chunks_each] that each message moves."""
        return self.make_chunks()


#: Messages that are all sent at once and read what was there before; several `Sends` where the
#: messages have unlike numbers of chunks, or some are added and others copied.
Round = tuple[Sends, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The rounds of one operation over `num_ranks` ranks.

    Nodes num_ranks..num_ranks+num_adders-1 are switches that add up. All chunks are equal, the
    message divided by `num_parts`, unless `sizes` [num_chunks] gives the bytes of each. `root` is
    where a Broadcast starts and a Reduce ends. Rounds that send between the same ranks share their
    arrays, so that they are priced once.
    """

    operation: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    num_parts: int
    make_rounds: Callable[[], Iterator[Round]]
    num_adders: int = 0
    sizes: Ints | None = None
    root: int = 0

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds in order."""
        return self.make_rounds()

    @property
    def num_nodes(self) -> int:
        """Ranks and adders."""
        return self.num_ranks + self.num_adders

    @property
    def owners(self) -> Ints:
        """Rank [num_chunks] that ends with each chunk of a ReduceScatter, or starts with it."""
        return read_only(np.arange(self.num_chunks) * self.num_ranks // self.num_chunks)


def read_only(array: Ints) -> Ints:
    """Return the array, which from now on cannot be changed."""
    array.setflags(write=False)
    return array


def whole_vector(num_messages: int) -> Callable[[], Ints]:
    """Return what makes the chunks of messages that each move the only chunk there is."""
    return lambda: np.zeros((num_messages, 1), dtype=np.int64)


def need_power_of_two(algorithm: str, words: str, num_ranks: int) -> None:
    """Raise CollectiveUnavailable unless `num_ranks` is a power of two."""
    if num_ranks & (num_ranks - 1):
        raise CollectiveUnavailable(
            f"{algorithm}_power_of_two", f"{words} needs a power of two, not {num_ranks} ranks"
        )


def need_grid(extents: Sequence[int], num_ranks: int) -> None:
    """Raise CollectiveUnavailable unless a grid of these extents holds so many ranks."""
    if not extents or min(extents) < 1 or math.prod(extents) != num_ranks:
        shape = " x ".join(map(str, extents)) or "nothing"
        raise CollectiveUnavailable("extents", f"a grid of {shape} does not hold {num_ranks} ranks")


def need_servers(extents: Sequence[int], num_ranks: int) -> tuple[int, int]:
    """Return ranks per server and servers; raises CollectiveUnavailable where they do not fit."""
    if len(extents) != 2:
        raise ValueError(f"extents must be ranks per server and servers, not {tuple(extents)}")
    need_grid(extents, num_ranks)
    return extents[0], extents[1]
