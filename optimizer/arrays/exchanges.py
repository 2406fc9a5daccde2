"""Seconds of exchanges between cards for many footprints at once (section 4).

This is the arithmetic of `collectives` and of `steps.Place` written a second time, over arrays. A
time is NaN where the exchange has no price on the footprint.
"""

from __future__ import annotations

import numpy as np

from instances.fleet import Pool
from instances.hardware import MeasuredCollective
from optimizer.arrays.memory import COLLECTIVES, Flags, Floats, FootprintArrays, Ints
from optimizer.collectives import MEASURED


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
        """AllReduce among `ranks` cards of a block, each footprint by the fastest it may use."""
        servers, count = self.servers_of(block), ranks[:, None]
        shape = np.broadcast_shapes(message.shape, count.shape)
        sent, found = np.broadcast_to(message, shape), np.full(shape, np.nan)
        for bit, name in enumerate(COLLECTIVES):
            rows = (self.arrays.collective >> bit & 1).astype(bool)
            if rows.any():
                seconds = np.broadcast_to(self._named_s(name, ranks, servers, sent), shape)
                found[rows] = np.fmin(found, seconds)[rows]
                if name == MEASURED:  # which replaces the model where it has a time
                    measured = seconds[rows]
                    found[rows] = np.where(np.isnan(measured), found[rows], measured)
        return found

    def _named_s(self, name: str, ranks: Ints, servers: Ints, message: Floats) -> Floats:
        """AllReduce by one collective; NaN where it does not exist."""
        count, (alpha, per_byte) = ranks[:, None], self.link(servers)
        ring = 2 * (count - 1) * (alpha + message / count * per_byte)
        if name == "ring":
            return ring
        if name == MEASURED:
            return self._measured_s(message, ranks, servers)
        is_double = (ranks & (ranks - 1) == 0)[:, None]
        rounds = 2 * np.log2(count)
        if name == "tree":
            return np.where(is_double, rounds * (alpha + message * per_byte), np.nan)
        if name == "halving_doubling":
            sent = 2 * (count - 1) / count * message * per_byte
            return np.where(is_double, rounds * alpha + sent, np.nan)
        if name != "hierarchical":
            return np.full(message.shape, np.nan)  # goes by links, which arrays do not know
        span = np.maximum(servers, 1)[:, None]
        each, (alpha_in, per_byte_in) = count / span, self.link(np.ones_like(servers))
        inside = 2 * (each - 1) * (alpha_in + message / each * per_byte_in)
        across = 2 * (span - 1) * (alpha + message / count * per_byte)
        is_spread = (servers > 1)[:, None] & (each > 1) & (count % span == 0)
        return np.where(is_spread | (count == 1), np.where(count > 1, inside + across, 0), np.nan)

    def _measured_s(self, message: Floats, ranks: Ints, servers: Ints) -> Floats:
        """Look measured times up: the fastest table of the size; NaN where none covers it."""
        found = np.full(message.shape, np.nan)
        for num_ranks, span in set(zip(ranks.tolist(), servers.tolist(), strict=True)):
            fabric = self.pool.server.fabric if span == 1 else self.pool.fabric_between
            rows = (ranks == num_ranks) & (servers == span)
            for table in () if fabric is None else fabric.measured:
                if (table.operation, table.ranks, table.servers) == ("all_reduce", num_ranks, span):
                    found[rows] = np.fmin(found[rows], _measured(table, message[rows]))
        return found

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


def _measured(table: MeasuredCollective, message: Floats) -> Floats:
    """Return the times of one table by its policy, with NaN after its last size."""
    sizes = np.array([float(row.message_bytes) for row in table.rows])
    seconds = np.array([float(row.time_s) for row in table.rows] + [np.nan])
    if table.policy == "next_larger_size":
        return seconds[np.searchsorted(sizes, message)]
    at, rows = np.maximum(message, sizes[0]), sizes
    if table.policy == "log_linear":
        at, rows = np.log2(at), np.log2(sizes)
    between = np.interp(at, rows, seconds[:-1])
    return np.where(message > sizes[-1], np.nan, between)


def only_where(flags: Flags, seconds: Floats) -> Floats:
    """Return times where there is an exchange at all, else 0."""
    return np.where(flags[:, None], seconds, 0.0)
