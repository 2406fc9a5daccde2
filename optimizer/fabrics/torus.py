"""Rings and tori: cards joined to their neighbours in up to three closed dimensions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instances.topology import TorusTopology
from optimizer.fabrics.fabric import Ints, Leg, LinkClass
from optimizer.fabrics.routed import RoutedFabric, make_links

#: Beyond so many pairs of a card and a place in its row, messages are followed one by one.
MAX_TABLE = 2**21


class TorusFabric(RoutedFabric):
    """Dimension-order routing, x first, the shorter way round; a tie splits half and half.

    With D dimensions longer than 1, link (c·D + d)·2 leads from card c onwards in the d-th of them,
    the next number back. The halves of a message meet again at the end of their dimension, so
    `split` is 2.
    """

    def __init__(self, topology: TorusTopology) -> None:
        self.extents = topology.extents
        cards = topology.num_cards
        card = np.arange(cards)
        strides = np.cumprod((1, *self.extents[:-1]))
        self._dimensions = [
            (int(stride), extent)
            for stride, extent in zip(strides, self.extents, strict=True)
            if extent > 1
        ]
        ports = 2 * len(self._dimensions)
        heads = np.zeros((cards, ports), dtype=np.int64)
        for d, (stride, extent) in enumerate(self._dimensions):
            place = card // stride % extent
            for way, step in enumerate((1, -1)):
                heads[:, 2 * d + way] = card + ((place + step) % extent - place) * stride
        link = LinkClass(
            "link", topology.link_bandwidth_bytes_per_s, topology.start_s, topology.hop_latency_s
        )
        tails = np.repeat(card, ports)
        super().__init__(
            topology.name, cards, [], make_links([(tails, heads.ravel(), 0, 1)], (link,)), 2
        )

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        here = senders
        for d, (stride, extent) in enumerate(self._dimensions):
            end = receivers // stride % extent
            yield from self._legs_along(d, here, end)
            here = here + (end - here // stride % extent) * stride

    def _legs_along(self, d: int, here: Ints, end: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K] from cards `here` to places `end` in one dimension."""
        stride, extent = self._dimensions[d]
        ports = 2 * len(self._dimensions)
        start = here // stride % extent
        base, onwards = here - start * stride, (end - start) % extent
        for step in range(extent // 2):
            for way, distance in enumerate((onwards, -onwards % extent)):
                is_taken = (step < distance) & (2 * distance <= extent)
                if not is_taken.any():
                    continue
                place = (start + (step, -step)[way]) % extent
                links = (base + place * stride) * ports + 2 * d + way
                shares = np.where(2 * distance == extent, 1, 2)
                yield Leg(np.where(is_taken, links, -1), np.where(is_taken, shares, 0))

    def loads(self, senders: Ints, receivers: Ints, units: Ints) -> Ints:
        """Return what every link [L] carries, as `Fabric.loads`.

        Messages that go from one card to one place in a dimension are counted as one.
        """
        if max(self.extents) * self.num_cards > MAX_TABLE:
            return super().loads(senders, receivers, units)
        self._check(senders, receivers)
        self._check_exact(units)
        total, here = np.zeros(len(self.links)), senders
        for d, (stride, extent) in enumerate(self._dimensions):
            end = receivers // stride % extent
            sums = np.bincount(here * extent + end, units, self.num_cards * extent)
            used = np.flatnonzero(sums)
            for leg in self._legs_along(d, used // extent, used % extent):
                taken = leg.links >= 0
                weights = (leg.shares * sums[used])[taken]
                total += np.bincount(leg.links[taken], weights, len(total))
            here = here + (end - here // stride % extent) * stride
        return total.astype(np.int64)

    def card_order(self) -> Ints:
        """Return the cards along the longest even extent, else along the longest.

        Halves of an even extent are joined by 2·cards/extent cables: no balanced halves by fewer.
        """
        card = np.arange(self.num_cards)
        if not self._dimensions:
            return card
        stride, extent = max(self._dimensions, key=lambda d: (d[1] % 2 == 0, d[1]))
        return np.argsort(card // stride % extent, kind="stable")
