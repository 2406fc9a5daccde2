"""How long the exchanges of a serving instance take where its cards lie (sections 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from instances.fleet import Pool
from instances.hardware import FabricSpec
from optimizer.collectives import (
    MEASURED,
    NO_COLLECTIVE,
    CollectiveUnavailable,
    all_reduce_s,
    all_to_all_s,
    collective_names,
    hierarchical_all_reduce_s,
    measured_times,
    reduce_scatter_s,
    send_s,
)
from optimizer.plan import Footprint
from optimizer.surroundings.control import started_s
from optimizer.work import Exchange

if TYPE_CHECKING:
    from optimizer.paths import Line, Span


@dataclass(frozen=True, slots=True)
class Place:
    """Where a footprint's groups of cards meet: the pool and the cards it takes in each server.

    Times come from a fabric's figures alone, or, where it has a topology, from the links that the
    messages take there.
    """

    pool: Pool
    footprint: Footprint

    @property
    def cards_per_server(self) -> int:
        """Cards the instance takes in each server it spans; at least one, whatever a plan says."""
        return max(self.footprint.parallel.num_cards // max(self.footprint.num_servers, 1), 1)

    def servers_of(self, block: int) -> int:
        """Servers that an aligned block of consecutive cards spans.

        Raises CollectiveUnavailable where blocks straddle server boundaries unevenly.
        """
        each = self.cards_per_server
        if block <= each and each % block == 0:
            return 1
        if block % each == 0:
            return block // each
        raise CollectiveUnavailable(
            "alignment",
            f"groups of {block} cards do not line up with {each} cards in each server",
        )

    def fabric(self, servers: int) -> FabricSpec:
        """Return the slowest fabric that a group on so many servers crosses."""
        if servers == 1:
            return self.pool.server.fabric
        if self.pool.fabric_between is None:
            raise CollectiveUnavailable("span", f"pool {self.pool.name!r} has no fabric_between")
        return self.pool.fabric_between

    def exchange_s(self, exchange: Exchange) -> Fraction:
        """Seconds of one exchange; raises CollectiveUnavailable."""
        servers = self.servers_of(exchange.block)
        fabric = self.fabric(servers)
        if exchange.kind == "all_reduce":
            return min(seconds for _, seconds in self.all_reduces(exchange))
        if MEASURED in collective_names(self.footprint.collective):
            measured = self.measured_times(exchange)
            if measured:
                return measured[0][1]
        if fabric.topology is not None:
            from optimizer.paths import exchange_line

            line = exchange_line(fabric.topology, exchange.kind, self._span(exchange, servers))
            return _started(fabric, line, exchange.message_bytes)
        size, link = exchange.message_bytes, (fabric.alpha_s, fabric.bandwidth_bytes_per_s)
        if exchange.kind == "send":
            return started_s(fabric.initiator, send_s(size, *link), 1, 1)
        closed = all_to_all_s if exchange.kind == "all_to_all" else reduce_scatter_s
        rounds = exchange.ranks - 1
        return started_s(fabric.initiator, closed(exchange.ranks, size, *link), rounds, rounds)

    def all_reduces(self, exchange: Exchange) -> list[tuple[str, Fraction]]:
        """Return the footprint's collectives that exist for an AllReduce, with their seconds.

        A footprint names one, or several, of which each message takes the fastest for its size;
        where a table covers the message, measured times replace the model. Raises
        CollectiveUnavailable where none exists.
        """
        names, found = collective_names(self.footprint.collective), []
        if names == (NO_COLLECTIVE,):
            raise CollectiveUnavailable("collective", "several cards need a collective")
        reasons: list[CollectiveUnavailable] = []
        for name in names:
            try:
                found.append((name, self._all_reduce_s(name, exchange)))
            except CollectiveUnavailable as error:
                reasons.append(error)
        measured = [pair for pair in found if pair[0] == MEASURED]
        if measured:
            return measured
        if not found:
            raise reasons[0]
        return found

    def measured_times(self, exchange: Exchange) -> list[tuple[str, Fraction]]:
        """Return what was measured of an exchange, by implementation, fastest first; seconds."""
        servers = self.servers_of(exchange.block)
        size = exchange.message_bytes
        return measured_times(self.fabric(servers), exchange.kind, exchange.ranks, servers, size)

    def _all_reduce_s(self, name: str, exchange: Exchange) -> Fraction:
        servers, ranks = self.servers_of(exchange.block), exchange.ranks
        fabric, size = self.fabric(servers), exchange.message_bytes
        if name == MEASURED:
            return all_reduce_s(name, fabric, ranks, servers, size)
        if fabric.topology is not None:
            from optimizer.paths import all_reduce_line

            line = all_reduce_line(fabric.topology, name, self._span(exchange, servers))
            return _started(fabric, line, size)
        if name == "hierarchical" and ranks > 1:
            inside = self.pool.server.fabric
            model_s = hierarchical_all_reduce_s(ranks, servers, size, inside, fabric)
            rounds = 2 * (servers - 1)
        else:
            model_s = all_reduce_s(name, fabric, ranks, servers, size)
            rounds = 2 * (ranks - 1 if name == "ring" else (ranks - 1).bit_length())
        return started_s(fabric.initiator, model_s, rounds, rounds)

    def _span(self, exchange: Exchange, servers: int) -> Span:
        from optimizer.paths import Span

        server = self.pool.server.num_cards
        return Span(exchange.ranks, exchange.block, self.cards_per_server, servers, server)

    def handoff_s(self, sent_bytes: Fraction, stage: int = 0) -> Fraction:
        """Seconds of handing on a stage's result to the next one; the last returns to the first.

        It stays inside a server only if both stages lie in the same one.
        """
        size, pp = self.footprint.parallel.stage_cards, self.footprint.parallel.pp
        ends = [place * size + end for place in (stage, (stage + 1) % pp) for end in (0, size - 1)]
        is_inside = len({card // self.cards_per_server for card in ends}) == 1
        servers = 1 if is_inside else self.footprint.num_servers
        fabric = self.fabric(servers)
        if fabric.topology is not None:
            from optimizer.paths import Span, handoff_line

            span = Span(2, size * pp, self.cards_per_server, servers, self.pool.server.num_cards)
            return _started(fabric, handoff_line(fabric.topology, span, size, stage), sent_bytes)
        model_s = send_s(sent_bytes, fabric.alpha_s, fabric.bandwidth_bytes_per_s)
        return started_s(fabric.initiator, model_s, 1, 1)


def _started(fabric: FabricSpec, line: Line, message_bytes: Fraction) -> Fraction:
    """Return the time of a message by links, with what starting its requests takes."""
    model_s = line.seconds(message_bytes)
    return started_s(fabric.initiator, model_s, line.num_rounds, line.num_requests)
