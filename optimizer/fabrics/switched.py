"""One tier of switch chips: every card has ports at every chip."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instances.topology import SwitchedTopology
from optimizer.fabrics.fabric import Ints, Leg, LinkClass
from optimizer.fabrics.routed import RoutedFabric, make_links, whole


class SwitchedFabric(RoutedFabric):
    """A message goes through all chips at once, in proportion to the ports at each.

    Link c·S + i leads from card c up to chip i, link C·S + c·S + i down again, each bundling the
    ports that a card has there; `split` is the number of ports of a card.
    """

    def __init__(self, topology: SwitchedTopology) -> None:
        self._ports = topology.ports_at_switches
        cards, chips = topology.num_cards, len(self._ports)
        card = np.repeat(np.arange(cards), chips)
        chip = cards + np.tile(np.arange(chips), cards)
        wires = np.tile(np.array(self._ports), cards)
        port = LinkClass(
            "port", topology.port_bandwidth_bytes_per_s, topology.start_s, topology.hop_latency_s
        )
        super().__init__(
            topology.name,
            cards,
            [(f"switch {number}", "switch") for number in range(chips)],
            make_links([(card, chip, 0, wires), (chip, card, 0, wires)], (port,)),
            topology.ports_per_card,
            tuple(range(cards, cards + chips)) if topology.reduces else (),
        )

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        chips = len(self._ports)
        for ends, first in ((senders, 0), (receivers, self.num_cards * chips)):
            for chip, ports in enumerate(self._ports):
                yield Leg(first + ends * chips + chip, whole(ports, len(senders)))

    def adder_weights(self, cards: Ints) -> tuple[int, ...]:
        """Return the ports of a card at each chip: all chips serve all cards."""
        return self._ports if self.adders else ()
