"""Seconds of exchanges between cards for many footprints at once (section 4).

This is the arithmetic of `collectives` and of `steps.Place` written a second time, over arrays. A
time is NaN where the exchange has no price on the footprint.
"""

from __future__ import annotations

import numpy as np

from instances.fleet import Pool
from instances.hardware import FabricSpec
from optimizer.arrays.memory import COLLECTIVES, Flags, Floats, FootprintArrays, Ints

_NONE, _RING, _TREE, _MEASURED = range(len(COLLECTIVES))


class Network:
    """How the cards of footprints [N] are joined in a pool, and what messages [N, K] take there."""

    def __init__(self, pool: Pool, arrays: FootprintArrays) -> None:
        self.pool, self.arrays = pool, arrays
        self.cards_per_server = arrays.num_cards // arrays.num_servers

    def servers_of(self, block: Ints) -> Ints:
        """Servers [N] that an aligned block of consecutive cards spans; 0 where it straddles."""
        each = self.cards_per_server
        is_inside = (block <= each) & (each % block == 0)
        return np.where(is_inside, 1, np.where(block % each == 0, block // each, 0))

    def link(self, servers: Ints) -> tuple[Floats, Floats]:
        """Return (seconds a round, seconds a byte) [N, 1] of the slowest fabric crossed, or NaN."""
        alpha, per_byte = np.full((2, len(self.arrays), 1), np.nan)
        for rows, fabric in (
            (servers == 1, self.pool.server.fabric),
            (servers > 1, self.pool.fabric_between),
        ):
            if fabric is not None:
                alpha[rows] = float(fabric.alpha_s)
                per_byte[rows] = float(1 / fabric.bandwidth_bytes_per_s)
        return alpha, per_byte

    def send_s(self, block: Ints, message: Floats) -> Floats:
        """One message within a block: a round and its bytes."""
        alpha, per_byte = self.link(self.servers_of(block))
        return alpha + message * per_byte

    def all_to_all_s(self, ranks: Ints, sent: Floats) -> Floats:
        """Pairwise exchange over a block of `ranks` cards: ranks - 1 rounds and what is sent."""
        alpha, per_byte = self.link(self.servers_of(ranks))
        return (ranks - 1)[:, None] * alpha + sent * per_byte

    def reduce_scatter_s(self, ranks: Ints, message: Floats) -> Floats:
        """Half a ring AllReduce over a block of `ranks` cards, or an AllGather (6-9)."""
        alpha, per_byte = self.link(self.servers_of(ranks))
        return (ranks - 1)[:, None] * (alpha + message / ranks[:, None] * per_byte)

    def all_reduce_s(self, ranks: Ints, block: Ints, message: Floats) -> Floats:
        """AllReduce among `ranks` cards of a block, each footprint by its own collective."""
        servers = self.servers_of(block)
        alpha, per_byte = self.link(servers)
        count = ranks[:, None]
        shape = np.broadcast_shapes(message.shape, count.shape)
        found = np.full(shape, np.nan)
        chosen = self.arrays.collective
        ring = 2 * (count - 1) * (alpha + message / count * per_byte)
        rows = chosen == _RING
        found[rows] = ring[rows]
        tree = 2 * np.log2(count) * (alpha + message * per_byte)
        rows = (chosen == _TREE) & (ranks & (ranks - 1) == 0)
        found[rows] = tree[rows]
        self._look_up(found, np.broadcast_to(message, shape), ranks, servers)
        return found

    def _look_up(self, found: Floats, message: Floats, ranks: Ints, servers: Ints) -> None:
        """Fill in measured times: the next larger size, as 6.5.1 does; NaN beyond the last one."""
        chosen = (self.arrays.collective == _MEASURED) & (servers > 0)
        for num_ranks, span in set(zip(ranks[chosen], servers[chosen], strict=True)):
            fabric = self.pool.server.fabric if span == 1 else self.pool.fabric_between
            rows = chosen & (ranks == num_ranks) & (servers == span)
            times = None if fabric is None else _measured(fabric, int(num_ranks), int(span))
            if times is not None:
                sizes, seconds = times
                found[rows] = seconds[np.searchsorted(sizes, message[rows])]

    def handoffs_s(self, sent: Floats, back: float) -> Floats:
        """Every stage's message to the next one, and the last one's of `back` bytes to the first.

        One stays inside a server only if both stages lie in the same one.
        """
        arrays, size, each = self.arrays, self.arrays.stage_cards, self.cards_per_server
        num_inside = np.zeros(len(arrays), dtype=np.int64)
        for stage in range(arrays.max_stages - 1):
            is_inside = stage * size // each == ((stage + 2) * size - 1) // each
            num_inside += is_inside & (stage + 1 < arrays.pp)
        num_between = arrays.pp - 1 - num_inside
        alpha, per_byte = self.link(np.ones_like(size))
        onwards = num_inside[:, None] * (alpha + sent * per_byte)
        back_inside = alpha + back * per_byte
        alpha, per_byte = self.link(arrays.num_servers)
        across = num_between[:, None] * (alpha + sent * per_byte)
        is_inside = (arrays.num_cards <= each)[:, None]
        last = np.where(is_inside, back_inside, alpha + back * per_byte)
        return only_where(arrays.pp > 1, onwards + across + last)


def _measured(fabric: FabricSpec, ranks: int, servers: int) -> tuple[Floats, Floats] | None:
    """Return the sizes of a table and their times, with NaN after the last one."""
    for table in fabric.measured:
        if (table.ranks, table.servers) == (ranks, servers):
            sizes = np.array([float(row.message_bytes) for row in table.rows])
            seconds = np.array([float(row.time_s) for row in table.rows] + [np.nan])
            return sizes, seconds
    return None


def only_where(flags: Flags, seconds: Floats) -> Floats:
    """Return times where there is an exchange at all, else 0."""
    return np.where(flags[:, None], seconds, 0.0)
