"""Data of one decision: the ring of cards over NUMA nodes, and where its buffers are (6.5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

#: Where a message may wait in host memory: near its sender, near its receiver, or on one node.
BufferPolicy = Literal["sender", "receiver"] | int


@dataclass(frozen=True, slots=True)
class SocketLink:
    """A link from one NUMA node to another, that way only; bytes per second."""

    start: int
    end: int
    bytes_per_s: Fraction


@dataclass(frozen=True, slots=True)
class RingOrder:
    """A decision: the cards in the order of the ring, and the node of each message's buffer.

    Message i goes from the i-th card of the order to the next one, the last to the first. A ring of
    one card has no message.
    """

    order: tuple[int, ...]
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RingProblem:
    """Order cards in a ring whose messages pass through host memory (6.5.1).

    Every card writes `ring_bytes` over its PCIe link into a buffer on some NUMA node, and reads as
    many from the buffer of the card before it. What a card writes or reads on another node goes
    over the socket links of a way with the fewest of them; of several such ways it goes over the
    one that comes first in the order of its nodes. All messages are sent at once, so a round ends
    with the link that takes longest. That time is to be least, and then the bytes on all socket
    links together.

    Raises ValueError when there is no card, a node is none of the nodes, a link starts where it
    ends or comes twice, a rate or size is not positive, no buffer is allowed, or a node is out of
    reach of another.
    """

    #: NUMA node of each card.
    card_nodes: tuple[int, ...]
    num_nodes: int
    #: Rate of a card's PCIe link, each way.
    pcie_bytes_per_s: Fraction
    links: tuple[SocketLink, ...]
    #: What each card sends in a round.
    ring_bytes: int
    #: What is allowed; each message may choose.
    buffers: tuple[BufferPolicy, ...] = ("sender", "receiver")

    def __post_init__(self) -> None:
        if not self.card_nodes:
            raise ValueError("a ring needs cards")
        if not self.buffers:
            raise ValueError("messages need a buffer: sender, receiver or a node")
        self._check_nodes()
        pairs = [(link.start, link.end) for link in self.links]
        if any(start == end for start, end in pairs):
            raise ValueError("a socket link joins two nodes")
        if len(set(pairs)) != len(pairs):
            raise ValueError("two socket links go the same way; give one with both rates together")
        rates = [self.pcie_bytes_per_s, *(link.bytes_per_s for link in self.links)]
        if min(rates) <= 0 or self.ring_bytes < 1:
            raise ValueError("rates and ring_bytes must be positive")
        for start in range(self.num_nodes):
            for end in sorted(set(range(self.num_nodes)) - self._reached(start)):
                raise ValueError(f"no socket links lead from node {start} to node {end}")

    def _check_nodes(self) -> None:
        fixed = [policy for policy in self.buffers if isinstance(policy, int)]
        ends = [node for link in self.links for node in (link.start, link.end)]
        for what, nodes in (("card", self.card_nodes), ("buffer", fixed), ("socket link", ends)):
            for node in nodes:
                if not 0 <= node < self.num_nodes:
                    raise ValueError(
                        f"a {what} is on node {node}, nodes are below {self.num_nodes}"
                    )

    def _reached(self, start: int) -> set[int]:
        reached, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            new = {link.end for link in self.links if link.start == node} - reached
            reached |= new
            waiting += new
        return reached

    @property
    def num_messages(self) -> int:
        """Messages of a round."""
        return len(self.card_nodes) if len(self.card_nodes) > 1 else 0
