"""What every built fabric has in common: checked messages, and chips that take part themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from optimizer.fabrics.fabric import Fabric, Ints, Leg, LinkClass, Links, NodeKind

_CARD: NodeKind = "card"


def make_links(
    blocks: Sequence[tuple[Ints, Ints, Ints | int, Ints | int]], classes: tuple[LinkClass, ...]
) -> Links:
    """Return the links of blocks (tails, heads, class, wires) in order, in read-only arrays."""
    alike = [np.broadcast_arrays(*block) for block in blocks]
    tails, heads, kinds, wires = (
        np.concatenate([block[column] for block in alike]).astype(np.int64) for column in range(4)
    )
    for array in (tails, heads, kinds, wires):
        array.setflags(write=False)
    return Links(tails, heads, kinds, wires, classes)


def whole(share: int, count: int) -> Ints:
    """Return one share for `count` messages [K], without copies."""
    return np.broadcast_to(np.int64(share), (count,))


class RoutedFabric(Fabric):
    """A fabric with one routing rule between cards, and direct links between chips and others."""

    def __init__(
        self,
        name: str,
        num_cards: int,
        chips: Sequence[tuple[str, NodeKind]],
        links: Links,
        split: int = 1,
        adders: tuple[int, ...] = (),
        card_names: Sequence[str] = (),
    ) -> None:
        """Take the nodes beyond the cards as (name, kind)."""
        cards = card_names or [f"card {card}" for card in range(num_cards)]
        self.name = name
        self.num_cards = num_cards
        self.node_names = (*cards, *(chip for chip, _ in chips))
        self.node_kinds = (_CARD,) * num_cards + tuple(kind for _, kind in chips)
        self.links = links
        self.split = split
        self.adders = adders
        self._by_ends: tuple[Ints, Ints] | None = None

    def legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K], step by step.

        Raises ValueError for a node that does not exist, a message to its own sender, and a message
        of a chip that no path is known for.
        """
        senders, receivers = np.asarray(senders), np.asarray(receivers)
        self._check(senders, receivers)
        with_chip = np.maximum(senders, receivers) >= self.num_cards
        if not with_chip.any():
            yield from self._card_legs(senders, receivers)
            return
        rows = np.flatnonzero(with_chip)
        yield from self._of_rows(self._chip_legs(senders[rows], receivers[rows]), rows, senders)
        rows = np.flatnonzero(~with_chip)
        yield from self._of_rows(self._card_legs(senders[rows], receivers[rows]), rows, senders)

    @abstractmethod
    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K] between different cards."""

    def _via(self, senders: Ints, receivers: Ints) -> Ints:
        """Return the chip that relays messages [K] of or to chips, -1 for a direct link."""
        return np.full(len(senders), -1)

    def _chip_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        via = self._via(senders, receivers)
        relayed = via >= 0
        yield Leg(
            self._direct(senders, np.where(relayed, via, receivers)),
            whole(self.split, len(senders)),
        )
        if relayed.any():
            second = np.full(len(senders), -1)
            second[relayed] = self._direct(via[relayed], receivers[relayed])
            yield Leg(second, whole(self.split, len(senders)))

    def _direct(self, tails: Ints, heads: Ints) -> Ints:
        """Return the link between each two nodes [K]; raises ValueError where there is none."""
        num_nodes = len(self.node_names)
        if self._by_ends is None:
            ends = self.links.tails * num_nodes + self.links.heads
            order = np.argsort(ends, kind="stable")
            self._by_ends = ends[order], order
        ends, order = self._by_ends
        wanted = tails * num_nodes + heads
        found = np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)
        missing = np.flatnonzero(ends[found] != wanted)
        if len(missing):
            a, b = (self.node_names[nodes[missing[0]]] for nodes in (tails, heads))
            raise ValueError(f"{self.name}: no link leads from {a} to {b}")
        return order[found]

    def _check(self, senders: Ints, receivers: Ints) -> None:
        if not len(senders):
            return
        ends = (int(senders.min()), int(receivers.min()), int(senders.max()), int(receivers.max()))
        if min(ends) < 0 or max(ends) >= len(self.node_names):
            raise ValueError(f"{self.name} has nodes 0 to {len(self.node_names) - 1} only")
        if (senders == receivers).any():
            raise ValueError("a message needs two different nodes")

    @staticmethod
    def _of_rows(legs: Iterator[Leg], rows: Ints, senders: Ints) -> Iterator[Leg]:
        """Yield legs of some messages, `rows`, as legs of all; the others take no link."""
        for leg in legs:
            links, shares = np.full(len(senders), -1), np.zeros(len(senders), dtype=np.int64)
            links[rows], shares[rows] = leg.links, leg.shares
            yield Leg(links, shares)
