"""Rings along the dimensions of a grid of ranks, and inside and across servers (section 6.5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import Round, Schedule, Sends, need_grid, need_servers, read_only


def dimension_wise(
    operation: str, num_ranks: int, extents: Sequence[int], rotations: bool = False
) -> Schedule:
    """ReduceScatter along each dimension in turn, AllGather along them in reverse.

    Ranks are numbered with the first dimension fastest. With `rotations` the message has two parts
    for each dimension: they start at different dimensions and run both ways round, so that all
    links of a torus work at once. Raises CollectiveUnavailable unless the extents multiply to
    `num_ranks`.
    """
    need_grid(extents, num_ranks)
    return _grid_schedule(operation, "dimension_wise", tuple(extents), rotations)


def hierarchical(operation: str, num_ranks: int, extents: Sequence[int]) -> Schedule:
    """ReduceScatter inside servers, then across them, and AllGather the other way.

    `extents` are ranks per server and servers; rank = server · ranks per server + local number.
    Raises CollectiveUnavailable unless they multiply to `num_ranks`.
    """
    return _grid_schedule(operation, "hierarchical", need_servers(extents, num_ranks), False)


def _grid_schedule(
    operation: str, algorithm: str, extents: tuple[int, ...], rotations: bool
) -> Schedule:
    num_dims = len(extents)
    parts = [
        tuple((first + i) % num_dims for i in range(num_dims))
        for first in (range(num_dims) if rotations else range(1))
    ]
    ways = (1, -1) if rotations else (1,)
    num_parts = len(parts) * len(ways)
    orders = [(order, way) for order in parts for way in ways]
    rounds = partial(_rounds, operation, _Grid(extents, num_parts), orders)
    num_ranks = math.prod(extents)
    num_chunks = num_ranks * num_parts
    return Schedule(operation, algorithm, num_ranks, num_chunks, num_chunks, rounds)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Ranks by coordinates; chunk = owner · parts + part."""

    extents: tuple[int, ...]
    num_parts: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in rank numbers between neighbours along each dimension."""
        return tuple(math.prod(self.extents[:d]) for d in range(len(self.extents)))

    def ranks(self) -> Ints:
        """All ranks [n]."""
        return np.arange(math.prod(self.extents))

    def coordinates(self, dim: int) -> Ints:
        """Coordinate [n] of every rank along a dimension."""
        return self.ranks() // self.strides[dim] % self.extents[dim]

    def neighbours(self, dim: int, way: int) -> Ints:
        """Next rank [n] along a dimension."""
        here, extent = self.coordinates(dim), self.extents[dim]
        return self.ranks() + ((here + way) % extent - here) * self.strides[dim]

    def chunks(self, part: int, order: tuple[int, ...], stage: int, back: int) -> Ints:
        """Chunks [n, C] of one part that lie `back` behind every rank along order[stage].

        Earlier dimensions of the order are the rank's own, later ones run over all coordinates.
        """
        dim = order[stage]
        owners = (self.coordinates(dim) - back) % self.extents[dim] * self.strides[dim]
        for own in order[:stage]:
            owners = owners + self.coordinates(own) * self.strides[own]
        spread = [np.arange(self.extents[d]) * self.strides[d] for d in order[stage + 1 :]]
        free = reduce(lambda a, b: np.add.outer(a, b).ravel(), spread, np.zeros(1, dtype=np.int64))
        return (owners[:, np.newaxis] + free) * self.num_parts + part


def _rounds(
    operation: str, grid: _Grid, orders: Sequence[tuple[tuple[int, ...], int]]
) -> Iterator[Round]:
    senders = read_only(grid.ranks())
    receivers = {
        (dim, way): read_only(grid.neighbours(dim, way))
        for dim in range(len(grid.extents))
        for way in {way for _, way in orders}
    }

    def part_sends(part: int) -> Iterator[Sends]:
        order, way = orders[part]
        for is_sum, stage, back in _steps(operation, [grid.extents[d] for d in order]):
            each = math.prod(grid.extents[d] for d in order[stage + 1 :])
            chunks = partial(grid.chunks, part, order, stage, way * back)
            yield Sends(senders, receivers[order[stage], way], each, is_sum, chunks)

    # All parts have as many rounds: the extents less one, added up, for each half.
    return zip(*map(part_sends, range(len(orders))), strict=True)


def _steps(operation: str, extents: Sequence[int]) -> Iterator[tuple[bool, int, int]]:
    """Yield of every round whether it adds, its place in the order, how far back chunks lie."""
    if operation != "all_gather":
        for stage, extent in enumerate(extents):
            yield from ((True, stage, back) for back in range(1, extent))
    if operation != "reduce_scatter":
        for stage, extent in reversed(list(enumerate(extents))):
            yield from ((False, stage, back) for back in range(extent - 1))
