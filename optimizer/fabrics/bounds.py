"""What no schedule can beat on a fabric: busiest link, cut, bisection; and what it is made of."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from instances.topology import Topology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric, Ints
from optimizer.fabrics.flow import least_cut


@dataclass(frozen=True, slots=True)
class BusiestLink:
    """A link that takes longest over its load, and how long."""

    link: int
    load_bytes: Fraction
    time_s: Fraction


def busiest_link(fabric: Fabric, senders: Ints, receivers: Ints, num_bytes: Ints) -> BusiestLink:
    """Return the busiest link of messages [K] of `num_bytes` that are sent at once.

    No order of sending is faster on the paths of the fabric. Of equal links it is the first.
    """
    loads = fabric.loads(senders, receivers, num_bytes)
    link = slowest_link(fabric, loads)
    if link is None:
        return BusiestLink(0, Fraction(0), Fraction(0))
    load = Fraction(int(loads[link]), fabric.split)
    return BusiestLink(link, load, load / _speed(fabric, link))


def slowest_link(fabric: Fabric, loads: Ints) -> int | None:
    """Return the first link that takes longest under `loads` [L], None where all are zero."""
    links, best = fabric.links, list[tuple[Fraction, int]]()
    for number in range(len(links.classes)):
        for wires in np.unique(links.wires[links.class_of == number]).tolist():
            rows = np.flatnonzero((links.class_of == number) & (links.wires == wires))
            link = int(rows[loads[rows].argmax()])
            best.append((int(loads[link]) / _speed(fabric, link), -link))
    longest, link = max(best, default=(Fraction(0), 0))
    return -link if longest else None


def _speed(fabric: Fabric, link: int) -> Fraction:
    """One-way bandwidth of all wires of a link, bytes/s."""
    links = fabric.links
    return links.classes[int(links.class_of[link])].bytes_per_s * int(links.wires[link])


@dataclass(frozen=True, slots=True)
class Cut:
    """The narrowest divide between some cards and the others, in the direction away from them.

    `links` lead across it and bundle `num_links` cables. Chips stand on whichever side makes their
    bandwidth least.
    """

    side: tuple[int, ...]
    links: tuple[int, ...]
    num_links: int
    bytes_per_s: Fraction


def cut(fabric: Fabric, side: Collection[int]) -> Cut:
    """Return the narrowest divide between the cards in `side` and all others.

    Raises ValueError unless there are cards on both sides.
    """
    cards = tuple(sorted(set(side)))
    if not cards or len(cards) == fabric.num_cards:
        raise ValueError("a cut needs cards on both sides")
    if cards[0] < 0 or cards[-1] >= fabric.num_cards:
        raise ValueError(f"{fabric.name} has cards 0 to {fabric.num_cards - 1} only")
    links = fabric.links
    place = np.maximum(np.arange(len(fabric.node_names)) - fabric.num_cards + 2, 1)
    place[list(cards)] = 0  # all cards of a side are one node, as none may change sides
    tails, heads = place[links.tails], place[links.heads]
    scale = math.lcm(*(c.bytes_per_s.denominator for c in links.classes))
    capacities: dict[tuple[int, int], int] = defaultdict(int)
    rows = np.stack((tails, heads, links.class_of, links.wires), axis=1)[tails != heads]
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    for (tail, head, kind, wires), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        speed = links.classes[kind].bytes_per_s * scale
        capacities[tail, head] += int(speed) * wires * count
    size, near = least_cut(int(place.max()) + 1, capacities, 0, 1)
    is_near = np.isin(np.arange(int(place.max()) + 1), sorted(near))
    across = np.flatnonzero(is_near[tails] & ~is_near[heads])
    num_links = int(links.wires[across].sum())
    return Cut(cards, tuple(across.tolist()), num_links, Fraction(size, scale))


@dataclass(frozen=True, slots=True)
class CutBound:
    """Bytes that must cross a cut each way, its bandwidth, and the time that takes at least."""

    out_bytes: int
    in_bytes: int
    out: Cut
    back: Cut
    time_s: Fraction


def cut_set_bound(
    fabric: Fabric, side: Collection[int], senders: Ints, receivers: Ints, num_bytes: Ints
) -> CutBound:
    """Return the cut-set bound of messages [K] between cards: bytes / bandwidth, the worse way.

    It holds whatever paths messages take. Raises ValueError for messages of chips and unless there
    are cards on both sides.
    """
    if len(senders) and max(int(senders.max()), int(receivers.max())) >= fabric.num_cards:
        raise ValueError("a cut-set bound is about messages between cards")
    out = cut(fabric, side)
    back = cut(fabric, set(range(fabric.num_cards)) - set(side))
    starts, ends = (np.isin(nodes, out.side) for nodes in (senders, receivers))
    sizes = np.asarray(num_bytes)
    out_bytes = sum(sizes[starts & ~ends].tolist())
    in_bytes = sum(sizes[~starts & ends].tolist())
    time_s = max(out_bytes / out.bytes_per_s, in_bytes / back.bytes_per_s)
    return CutBound(out_bytes, in_bytes, out, back, time_s)


def bisection(fabric: Fabric) -> Cut:
    """Return the cut between the first and the second half of `fabric.card_order`.

    On a torus that is across its longest even extent, and no balanced cut has fewer links. With odd
    extents only, or on a mesh, it is one balanced cut, and others may be narrower. With switches it
    is between halves by number, leaf by leaf and server by server. Of an odd number of cards the
    first half is smaller.
    """
    return cut(fabric, fabric.card_order()[: fabric.num_cards // 2].tolist())


@dataclass(frozen=True, slots=True)
class Parts:
    """What a fabric is made of.

    `num_links` are cables, a bundle as its wires and both directions as one; `links_by_class` says
    of what class each is.
    """

    num_cards: int
    num_switches: int
    num_nics: int
    num_links: int
    links_by_class: tuple[tuple[str, int], ...]


def parts(fabric: Fabric | Topology) -> Parts:
    """Count cables, switch chips and network adapters of a fabric, built first if need be.

    Limits that are no cables are left out; an adapter's link to its card counts as one cable, the
    link to the network as another.
    """
    built = fabric if isinstance(fabric, Fabric) else build_fabric(fabric)
    links = built.links
    kinds = Counter(built.node_kinds or ("switch",) * (len(built.node_names) - built.num_cards))
    wires = np.bincount(links.class_of, weights=links.wires, minlength=len(links.classes))
    by_class: dict[str, int] = defaultdict(int)
    for link_class, count in zip(links.classes, wires.tolist(), strict=True):
        if link_class.is_cable:
            by_class[link_class.name] += int(count)
    return Parts(
        num_cards=built.num_cards,
        num_switches=kinds["switch"],
        num_nics=kinds["nic"],
        num_links=sum(by_class.values()) // 2,
        links_by_class=tuple((name, count // 2) for name, count in by_class.items()),
    )
