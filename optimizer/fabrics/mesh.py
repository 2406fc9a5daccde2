"""Cards joined directly in any pattern."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instances.topology import MeshTopology
from optimizer.fabrics.fabric import Ints, Leg, LinkClass
from optimizer.fabrics.routed import RoutedFabric, make_links, whole
from optimizer.fabrics.shortest import next_links, walk


class MeshFabric(RoutedFabric):
    """Shortest paths: at every card on to the neighbour with most cables, else the lowest number.

    Row i of the topology's links is link i from its first card to its second, and L + i back.
    """

    def __init__(self, topology: MeshTopology) -> None:
        rows = np.array(topology.links, dtype=np.int64).reshape(-1, 3)
        a, b, wires = rows.T
        link = LinkClass(
            "link", topology.link_bandwidth_bytes_per_s, topology.start_s, topology.hop_latency_s
        )
        links = make_links([(a, b, 0, wires), (b, a, 0, wires)], (link,))
        super().__init__(topology.name, topology.num_cards, [], links)
        self._next = next_links(topology.num_cards, links.tails, links.heads, links.wires)

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        for links in walk(self._next, self.links.heads, senders, receivers):
            yield Leg(links, whole(1, len(senders)))
