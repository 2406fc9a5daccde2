"""Times of exchanges by the links they take: rounds of a schedule on a fabric (sections 4 and 5).

Of a fixed schedule on fixed cards every round takes a fixed time and a time for each byte, so that
an exchange is a line over the size of its message. Lines are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from pydantic import TypeAdapter

from instances.topology import ServersTopology, Topology, TorusTopology, is_uniform
from optimizer.collectives import CollectiveUnavailable
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import Price, price, serving_adders
from optimizer.schedules.schedule import Schedule

_TOPOLOGY: TypeAdapter[Topology] = TypeAdapter(Topology)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of an exchange: fixed ones, and for every byte of its message.

    `num_rounds` are those in which a message leaves a server, all of them where there is one server
    only; `num_requests` are the messages that the busiest card starts in them.
    """

    fixed_s: Fraction
    s_per_byte: Fraction
    num_rounds: int = 0
    num_requests: int = 0

    def seconds(self, message_bytes: int | Fraction) -> Fraction:
        """Return the time of a message."""
        return self.fixed_s + message_bytes * self.s_per_byte


@dataclass(frozen=True, slots=True)
class Span:
    """Which cards exchange: `ranks` in every aligned block of `block` cards of a serving instance.

    A block spans `servers` servers, in each of which the instance takes `each` of `server_cards`
    cards. The ranks of a group are block / ranks cards apart.
    """

    ranks: int
    block: int
    each: int
    servers: int
    server_cards: int

    def groups(self, num_cards: int, is_everywhere: bool) -> list[list[int]]:
        """Return the cards of every group, at the first place of an instance or at all at once."""
        stride = self.block // self.ranks
        return [
            [place + self.card(first + offset + i * stride) for i in range(self.ranks)]
            for place in self._places(num_cards, is_everywhere)
            for first in range(0, max(self.each, self.block), self.block)
            for offset in range(stride)
        ]

    def pairs(self, num_cards: int, is_everywhere: bool, size: int, stage: int) -> list[list[int]]:
        """Return (sender, receiver) of what every card of a pipeline stage hands to the next."""
        after = (stage + 1) % (self.block // size) * size
        return [
            [place + self.card(stage * size + j), place + self.card(after + j)]
            for place in self._places(num_cards, is_everywhere)
            for j in range(size)
        ]

    @classmethod
    def of_first(cls, topology: Topology, ranks: int) -> Span:
        """Return the span of one group on the first cards of a topology.

        Raises CollectiveUnavailable where the last server would be used in part.
        """
        server = topology.server.num_cards if isinstance(topology, ServersTopology) else ranks
        each = min(ranks, server)
        if ranks % each:
            text = f"{ranks} ranks take servers of {server} cards in part"
            raise CollectiveUnavailable("uneven_span", text)
        return cls(ranks, ranks, each, ranks // each, server)

    def card(self, rank: int) -> int:
        """Return the card of a rank of a block that begins at card 0.

        Where all happens inside one server, it is the card in whichever server that is.
        """
        server = rank // self.each if self.servers > 1 else 0
        return server * self.server_cards + rank % self.each

    def _places(self, num_cards: int, is_everywhere: bool) -> Iterator[int]:
        """Yield the first card of every place that an instance can have beside the others."""
        if not is_everywhere:
            yield 0
            return
        step = self.servers * self.server_cards
        for server in range(0, num_cards - step + 1, step):
            for part in range(0, self.server_cards - self.each + 1, self.each):
                yield server + part


def all_reduce_line(topology: Topology, algorithm: str, span: Span) -> Line:
    """Return the time of an AllReduce; raises CollectiveUnavailable.

    Where it matters which cards a serving instance has, all places are taken to reduce at once:
    no plan of equal instances is slower than that.
    """
    return _line(_TOPOLOGY.dump_json(topology), "all_reduce", algorithm, span)


def exchange_line(topology: Topology, kind: str, span: Span) -> Line:
    """Return the time of an exchange that has no choice of algorithm, by what a card sends.

    A ReduceScatter goes round a ring, an All-to-All sends everything at once, and a "send" is from
    every rank to the next one.
    """
    algorithm = "ring" if kind == "reduce_scatter" else "direct"
    line = _line(_TOPOLOGY.dump_json(topology), kind, algorithm, span)
    if kind == "all_to_all":  # a schedule counts the share that stays, an exchange does not
        return replace(line, s_per_byte=line.s_per_byte * span.ranks / (span.ranks - 1))
    return line


def handoff_line(topology: Topology, span: Span, size: int, stage: int) -> Line:
    """Return the time of every card of a pipeline stage sending to its partner in the next."""
    return _handoff(_TOPOLOGY.dump_json(topology), span, size, stage)


@lru_cache(maxsize=64)
def _fabric(text: bytes) -> tuple[Topology, Fabric]:
    topology = _TOPOLOGY.validate_json(text)
    return topology, build_fabric(topology)


@lru_cache(maxsize=4096)
def _line(text: bytes, operation: str, algorithm: str, span: Span) -> Line:
    topology, fabric = _fabric(text)
    groups = span.groups(fabric.num_cards, not is_uniform(topology))
    if operation == "send":
        groups = [[a, b] for g in groups for a, b in zip(g, g[1:] + g[:1], strict=True)]
    return Parties(topology, fabric, span, groups).line(operation, algorithm)


@lru_cache(maxsize=4096)
def _handoff(text: bytes, span: Span, size: int, stage: int) -> Line:
    topology, fabric = _fabric(text)
    pairs = span.pairs(fabric.num_cards, not is_uniform(topology), size, stage)
    return Parties(topology, fabric, span, pairs).line("send", "direct")


@dataclass(frozen=True, slots=True)
class Parties:
    """Cards of a fabric that exchange side by side: groups of a span's shape."""

    topology: Topology
    fabric: Fabric
    span: Span
    groups: Sequence[Sequence[int]]

    def line(self, operation: str, algorithm: str) -> Line:
        """Return the time of an exchange; raises CollectiveUnavailable."""
        schedule = self.schedule(operation, algorithm)
        found = self._priced(schedule)
        return Line(found.fixed_s, found.s_per_byte, *self._requests(schedule))

    def price(self, operation: str, algorithm: str) -> Price:
        """Price the rounds of an algorithm; raises CollectiveUnavailable."""
        return self._priced(self.schedule(operation, algorithm))

    def _priced(self, schedule: Schedule) -> Price:
        adders = serving_adders(self.fabric, self.groups)[1] if schedule.num_adders else None
        return price(schedule, self.fabric, self.groups, adders)

    def schedule(self, operation: str, algorithm: str) -> Schedule:
        """Return an algorithm's rounds; raises CollectiveUnavailable where it does not exist."""
        span = self.span
        if operation == "send":
            return build_schedule(operation, algorithm, 2)
        if algorithm in ("hierarchical", "two_level"):
            each = span.ranks // span.servers
            is_even = each > 1 and span.ranks % span.servers == 0
            if span.servers == 1 or not is_even or not isinstance(self.topology, ServersTopology):
                raise CollectiveUnavailable(
                    "hierarchical_span",
                    f"{algorithm} needs several ranks in each of several servers, not "
                    f"{span.ranks} ranks over {span.servers} server(s)",
                )
            return build_schedule(operation, algorithm, span.ranks, extents=(each, span.servers))
        if algorithm == "dimension_wise":
            box = _box(self.topology, span)
            return build_schedule(operation, algorithm, span.ranks, extents=box, rotations=True)
        if algorithm == "in_switch":
            weights, _ = serving_adders(self.fabric, self.groups)
            return build_schedule(operation, algorithm, span.ranks, weights=weights)
        return build_schedule(operation, algorithm, span.ranks)

    def _requests(self, schedule: Schedule) -> tuple[int, int]:
        """Return rounds with messages that leave a server (any, if there is one), and their most.

        The most is what one card starts in all rounds.
        """
        nodes = np.full((len(self.groups), schedule.num_nodes), -1, dtype=np.int64)
        nodes[:, : schedule.num_ranks] = self.groups
        started = np.zeros(int(nodes.max()) + 1, dtype=np.int64)
        num_rounds = 0
        for sends in schedule.rounds():
            is_counted = False
            for part in sends:
                tails, heads = nodes[:, part.senders].ravel(), nodes[:, part.receivers].ravel()
                leaves = tails >= 0  # an adder starts nothing
                if self.span.servers > 1:
                    leaves &= tails // self.span.server_cards != heads // self.span.server_cards
                started += np.bincount(tails[leaves], minlength=len(started))
                is_counted = is_counted or bool(leaves.any())
            num_rounds += is_counted
        return num_rounds, int(started.max(initial=0))


def _box(topology: Topology, span: Span) -> tuple[int, ...]:
    """Return the extents of a group's cards in a torus; raises CollectiveUnavailable for no box."""
    if isinstance(topology, TorusTopology) and span.ranks == span.block and span.servers == 1:
        extents, left = list[int](), span.ranks
        for extent in topology.extents:
            size = extent if left % extent == 0 else left if extent % left == 0 else 0
            if not size:
                break
            extents.append(size)
            left //= size
        if left == 1:
            return tuple(extents)
    raise CollectiveUnavailable(
        "dimension_wise", f"groups of {span.ranks} cards are no blocks of a torus here"
    )
