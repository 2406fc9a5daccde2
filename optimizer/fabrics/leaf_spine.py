"""Two tiers of switch chips: leaves with cards, and spines or direct links that join leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from instances.topology import LeafSpineTopology
from optimizer.fabrics.fabric import Ints, Leg, LinkClass, NodeKind
from optimizer.fabrics.routed import RoutedFabric, make_links, whole


@dataclass(frozen=True, slots=True)
class _Plane:
    """One copy of both tiers: its chips begin at node `first_leaf` and node `first_spine`.

    Link `first_up` + leaf·others + i leads from a leaf to spine i, or to the i-th other leaf;
    `first_down` counts the ways back likewise.
    """

    ports: int
    wires: tuple[int, ...]
    first_leaf: int
    first_spine: int
    num_spines: int
    first_up: int
    first_down: int


class LeafSpineFabric(RoutedFabric):
    """A message splits over planes by ports; to another leaf, over spines by cables or on to one.

    Links p·C + c lead from card c to its leaf chip of plane p, links C·P + p·C + c back, and then
    come the links of every plane.
    """

    def __init__(self, topology: LeafSpineTopology) -> None:
        self._num_leaves, self._cards_per_leaf = topology.num_leaves, topology.cards_per_leaf
        self._is_spread = topology.routing == "spread"
        cards, leaves = topology.num_cards, topology.num_leaves
        self._planes: list[_Plane] = []
        card, leaf = np.arange(cards), np.arange(leaves)
        ups, downs, trunks = [], [], []
        nodes: list[tuple[str, NodeKind]] = []
        count = 2 * cards * topology.num_planes
        for number in range(topology.num_planes):
            plane = _plane(topology, number, cards + len(nodes), count)
            self._planes.append(plane)
            nodes += [(f"leaf {at} of plane {number}", "switch") for at in range(leaves)]
            nodes += [(f"spine {at} of plane {number}", "switch") for at in range(plane.num_spines)]
            chip = plane.first_leaf + card // self._cards_per_leaf
            ups.append((card, chip, 0, plane.ports))
            downs.append((chip, card, 0, plane.ports))
            tails = plane.first_leaf + np.repeat(leaf, len(plane.wires))
            heads = _far_ends(plane, leaves)
            wires = np.tile(np.array(plane.wires, dtype=np.int64), leaves)
            trunks.append((tails, heads, 0, wires))
            if plane.num_spines:
                trunks.append((heads, tails, 0, wires))
            count = plane.first_down + len(tails)
        port = LinkClass(
            "port", topology.port_bandwidth_bytes_per_s, topology.start_s, topology.hop_latency_s
        )
        super().__init__(
            topology.name,
            cards,
            nodes,
            make_links([*ups, *downs, *trunks], (port,)),
            self._split(topology),
            tuple(range(cards, cards + len(nodes))) if topology.reduces else (),
        )

    def _split(self, topology: LeafSpineTopology) -> int:
        """Return the smallest whole parts of which every path takes some."""
        shares = [Fraction(p.ports, topology.ports_per_card) for p in self._planes]
        parts = [s.denominator for s in shares]
        if self._is_spread:
            for plane, share in zip(self._planes, shares, strict=True):
                up = sum(plane.wires)
                parts += [(share * w / up).denominator for w in plane.wires if plane.num_spines]
        self._ports_per_card = topology.ports_per_card
        return math.lcm(*parts)

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        cards, count = self.num_cards, len(senders)
        start, end = senders // self._cards_per_leaf, receivers // self._cards_per_leaf
        shares = [self.split * plane.ports // self._ports_per_card for plane in self._planes]
        for number, share in enumerate(shares):
            yield Leg(number * cards + senders, whole(share, count))
        is_far = start != end
        if is_far.any():
            for leaf, other, is_up in ((start, end, True), (end, start, False)):
                for plane, share in zip(self._planes, shares, strict=True):
                    for links, part in self._trunk(plane, share, leaf, other, is_up, receivers):
                        yield Leg(np.where(is_far, links, -1), whole(part, count))
        for number, share in enumerate(shares):
            first = (len(shares) + number) * cards
            yield Leg(first + receivers, whole(share, count))

    def loads(self, senders: Ints, receivers: Ints, units: Ints) -> Ints:
        """Return what every link [L] carries, as `Fabric.loads`, but leaf by leaf.

        Evenly spread messages load all spines by their cables, so sums over leaves say it all.
        """
        if not self._is_spread or not self._among_cards(senders, receivers):
            return super().loads(senders, receivers, units)
        self._check(senders, receivers)
        self._check_exact(units)
        cards, leaves = self.num_cards, self._num_leaves
        start, end = senders // self._cards_per_leaf, receivers // self._cards_per_leaf
        sent, got = (_sums(nodes, units, cards) for nodes in (senders, receivers))
        is_far = start != end
        out, into = (_sums(at[is_far], units[is_far], leaves) for at in (start, end))
        total = np.zeros(len(self.links), dtype=np.int64)
        for number, plane in enumerate(self._planes):
            share = self.split * plane.ports // self._ports_per_card
            for first, of_cards in ((number, sent), (len(self._planes) + number, got)):
                total[first * cards : (first + 1) * cards] = share * of_cards
            size = leaves * len(plane.wires)
            if not plane.num_spines:
                pair = (start * len(plane.wires) + end - (end > start))[is_far]
                total[plane.first_up :][:size] = share * _sums(pair, units[is_far], size)
                continue
            parts = share * np.array(plane.wires) // sum(plane.wires)
            for first, of_leaves in ((plane.first_up, out), (plane.first_down, into)):
                total[first : first + size] = np.outer(of_leaves, parts).ravel()
        return total

    def hops(self, senders: Ints, receivers: Ints) -> Ints:
        """Return the links that each message [K] passes, in 1/`split`."""
        if not self._among_cards(senders, receivers):
            return super().hops(senders, receivers)
        self._check(senders, receivers)
        is_far = senders // self._cards_per_leaf != receivers // self._cards_per_leaf
        more = 2 if self._planes[0].num_spines else 1
        return np.where(is_far, 2 + more, 2) * self.split

    def _among_cards(self, senders: Ints, receivers: Ints) -> bool:
        return bool((np.maximum(senders, receivers) < self.num_cards).all())

    def _trunk(
        self, plane: _Plane, share: int, leaf: Ints, other: Ints, is_up: bool, receivers: Ints
    ) -> Iterator[tuple[Ints, int]]:
        """Yield links and parts of messages [K] up from their leaf, or down to it, in one plane.

        Direct links to `other` leaves count as up.
        """
        others = len(plane.wires)
        first = (plane.first_up if is_up else plane.first_down) + leaf * others
        if not plane.num_spines:
            if is_up:
                yield first + other - (other > leaf), share
        elif not self._is_spread:
            yield first + receivers % others, share
        else:
            for spine, wires in enumerate(plane.wires):
                yield first + spine, share * wires // sum(plane.wires)

    def _via(self, senders: Ints, receivers: Ints) -> Ints:
        """Return a card's own leaf chip where it exchanges with a chip beyond it."""
        card, chip = np.minimum(senders, receivers), np.maximum(senders, receivers)
        starts = np.array([plane.first_leaf for plane in self._planes])
        plane = np.searchsorted(starts, chip, side="right") - 1
        own = starts[plane] + card // self._cards_per_leaf
        return np.where((card < self.num_cards) & (own != chip), own, -1)

    def adder_weights(self, cards: Ints) -> tuple[int, ...]:
        """Return ports at the leaf chips that the cards share, else cables to the spine chips.

        Leaves joined directly take equal parts for each other.
        """
        if not self.adders:
            return ()
        weights = np.zeros(len(self.adders), dtype=np.int64)
        leaves = np.unique(np.asarray(cards) // self._cards_per_leaf)
        for plane in self._planes:
            leaf, spine = plane.first_leaf - self.num_cards, plane.first_spine - self.num_cards
            up = sum(plane.wires)
            scale = math.lcm(self._num_leaves, *(sum(p.wires) or 1 for p in self._planes))
            if len(leaves) == 1:
                weights[leaf + leaves[0]] = plane.ports
            elif plane.num_spines:
                weights[spine : spine + plane.num_spines] = [
                    plane.ports * w * scale // up for w in plane.wires
                ]
            else:
                weights[leaf : leaf + self._num_leaves] = plane.ports * scale // self._num_leaves
        unit = int(np.gcd.reduce(weights))
        return tuple((weights // unit).tolist())


def _sums(places: Ints, units: Ints, num_places: int) -> Ints:
    """Return the exact sum of `units` [K] at each place."""
    return np.bincount(places, weights=units, minlength=num_places).astype(np.int64)


def _plane(topology: LeafSpineTopology, number: int, first_leaf: int, first_link: int) -> _Plane:
    leaves, spines = topology.num_leaves, topology.spines_of(number)
    if spines:
        wires = topology.wires_to_spines(number)
    else:
        wires = (topology.up_ports_of(number) // max(leaves - 1, 1),) * (leaves - 1)
    return _Plane(
        ports=topology.ports_at_planes[number],
        wires=wires,
        first_leaf=first_leaf,
        first_spine=first_leaf + leaves,
        num_spines=spines,
        first_up=first_link,
        first_down=first_link + leaves * len(wires) * (spines > 0),
    )


def _far_ends(plane: _Plane, num_leaves: int) -> Ints:
    """Return where the up links of every leaf lead, leaf by leaf."""
    if plane.num_spines:
        return np.tile(plane.first_spine + np.arange(plane.num_spines), num_leaves)
    pairs = [other for leaf in range(num_leaves) for other in range(num_leaves) if other != leaf]
    return plane.first_leaf + np.array(pairs, dtype=np.int64)
