"""Cards that exchange through host memory, on the NUMA nodes of their server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instances.topology import NumaTopology
from optimizer.fabrics.fabric import Ints, Leg, LinkClass
from optimizer.fabrics.routed import RoutedFabric, make_links, whole
from optimizer.fabrics.shortest import next_links, walk


class NumaFabric(RoutedFabric):
    """A message goes from its card to the buffer's NUMA node and from there to its receiver.

    Link c leads from card c to its host, link C + c back; links between NUMA nodes follow. That a
    buffer must be full before it is read is left out: both halves of the way are used at once.
    """

    def __init__(self, topology: NumaTopology) -> None:
        cards, num_nodes = topology.num_cards, len(topology.numa_nodes)
        self._buffers = topology.buffers
        self._home = np.zeros(cards, dtype=np.int64)
        for number, members in enumerate(topology.numa_nodes):
            self._home[list(members)] = number
        card, host = np.arange(cards), cards + self._home
        a, b = np.array(topology.joined_nodes, dtype=np.int64).reshape(-1, 2).T
        both = np.concatenate((a, b)), np.concatenate((b, a))
        fixed = topology.start_s, topology.hop_latency_s
        classes = (
            LinkClass("PCIe", topology.pcie_bandwidth_bytes_per_s, *fixed),
            LinkClass("socket", topology.socket_bandwidth_bytes_per_s, *fixed),
        )
        blocks = [(card, host, 0, 1), (host, card, 0, 1), (cards + both[0], cards + both[1], 1, 1)]
        super().__init__(
            topology.name,
            cards,
            [(f"NUMA node {number}", "socket") for number in range(num_nodes)],
            make_links(blocks, classes),
        )
        self._socket_heads = both[1]
        self._next = next_links(num_nodes, *both, np.ones_like(both[0]))

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        one = whole(1, len(senders))
        source, goal = self._home[senders], self._home[receivers]
        if isinstance(self._buffers, int):
            buffer = np.full_like(source, self._buffers)
        else:
            buffer = source if self._buffers == "sender" else goal
        yield Leg(senders, one)
        for start, end in ((source, buffer), (buffer, goal)):
            for links in walk(self._next, self._socket_heads, start, end):
                yield Leg(np.where(links >= 0, 2 * self.num_cards + links, -1), one)
        yield Leg(self.num_cards + receivers, one)

    def card_order(self) -> Ints:
        """Return the cards NUMA node by NUMA node."""
        return np.argsort(self._home, kind="stable")
