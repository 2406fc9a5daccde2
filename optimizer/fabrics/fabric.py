"""A fabric as directed links and paths, and what messages load on them (section 6.5.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: Link loads are sums of whole units in float64 until they are cast back: exact below this.
MAX_EXACT_UNITS = 2**53

#: What a node is. "network" is an ideal network that blocks nobody, "exit" the limit of a server.
NodeKind = Literal["card", "switch", "nic", "socket", "network", "exit"]


@dataclass(frozen=True, slots=True)
class LinkClass:
    """What equal directed links have in common.

    `bytes_per_s` is one way. `start_s` is paid once by a message that takes such a link anywhere on
    its path (the largest on the path counts), `latency_s` by a message that is forwarded onto it,
    so not on the first link of its path.
    """

    name: str
    bytes_per_s: Fraction
    start_s: Fraction = Fraction(0)
    latency_s: Fraction = Fraction(0)
    is_cable: bool = True


@dataclass(frozen=True, slots=True)
class Links:
    """Directed links [L]: from node `tails` to node `heads`, each of one of `classes`.

    `wires` says how many equal cables or ports a link bundles. Cards are nodes 0..num_cards-1.
    """

    tails: Ints
    heads: Ints
    class_of: Ints
    wires: Ints
    classes: tuple[LinkClass, ...]

    def __len__(self) -> int:
        return len(self.tails)


@dataclass(frozen=True, slots=True)
class Leg:
    """One step of many paths at once: the link [K] that each message takes, -1 where none.

    `shares` [K] is the part of the message on it, in 1/`Fabric.split`.
    """

    links: Ints
    shares: Ints


class Fabric(ABC):
    """Cards, directed links, and a fixed way from every card to every other one.

    A message may split over equal paths; each part is a whole multiple of 1/`split` of it. Nodes
    beyond the cards are switches or other chips; those that can add up messages are `adders`, and
    schedules may name them as senders and receivers. `node_kinds` may be empty: then all nodes
    beyond the cards are switches. No path takes a link twice.
    """

    name: str
    num_cards: int
    node_names: tuple[str, ...]
    links: Links
    split: int = 1
    adders: tuple[int, ...] = ()
    node_kinds: tuple[NodeKind, ...] = ()

    @abstractmethod
    def legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K] between different nodes, step by step, in path order."""

    def loads(self, senders: Ints, receivers: Ints, units: Ints) -> Ints:
        """Return what every link [L] carries, in 1/`split` units, if messages [K] are sent at once.

        `units` [K] are the sizes of the messages, in any whole unit. Raises ValueError where sums
        cannot be exact.
        """
        self._check_exact(units)
        total = np.zeros(len(self.links))
        for leg in self.legs(senders, receivers):
            links, weights = leg.links, leg.shares * units
            taken = links >= 0
            if not taken.all():
                links, weights = links[taken], weights[taken]
            total += np.bincount(links, weights=weights, minlength=len(total))
        return total.astype(np.int64)

    def _check_exact(self, units: Ints) -> None:
        """Raise ValueError where link loads could be beyond what float64 holds exactly."""
        if float(np.sum(units, dtype=np.float64)) * self.split >= MAX_EXACT_UNITS:
            raise ValueError("messages are too large for exact sums; use a larger unit")

    def adder_weights(self, cards: Ints) -> tuple[int, ...]:
        """Return how many equal parts of a message each of `adders` is to add up for `cards`.

        Shares are as the links to the adders are wide. 0 for an adder that some card cannot send
        to, so all 0 where none of them can serve all cards.
        """
        return (0,) * len(self.adders)

    def card_order(self) -> Ints:
        """Return all cards so that a cut in the middle of the list severs as little as is known."""
        return np.arange(self.num_cards, dtype=np.int64)

    def hops(self, senders: Ints, receivers: Ints) -> Ints:
        """Return the links that each message [K] passes, in 1/`split`; its paths are alike."""
        count = np.zeros(len(senders), dtype=np.int64)
        for leg in self.legs(senders, receivers):
            count += np.where(leg.links >= 0, leg.shares, 0)
        return count

    def fixed_s(self, senders: Ints, receivers: Ints) -> Fraction:
        """Return the longest time that a message takes whatever its size: start and forwarding."""
        classes = self.links.classes
        times = [t for c in classes for t in (c.start_s, c.latency_s)]
        unit = math.lcm(*(t.denominator for t in times))
        if not len(senders) or not any(times):
            return Fraction(0)
        if len(classes) == 1:
            forwarded = int(self.hops(senders, receivers).max()) - self.split
            return classes[0].start_s + classes[0].latency_s * forwarded / self.split
        ticks = [int(t * unit) for t in times]
        is_small = max(ticks) * self.split * len(self.node_names) < MAX_EXACT_UNITS
        whole = np.array(ticks, dtype=np.int64 if is_small else object)
        start, latency = whole.reshape(-1, 2)[self.links.class_of].T
        longest, total = np.zeros((2, len(senders)), dtype=whole.dtype)
        first_left = np.full(len(senders), self.split, dtype=np.int64)
        for leg in self.legs(senders, receivers):
            taken, links = leg.links >= 0, np.maximum(leg.links, 0)
            shares = np.where(taken, leg.shares, 0)
            is_first = np.minimum(shares, first_left)
            first_left -= is_first
            total += (shares - is_first) * latency[links]
            np.maximum(longest, np.where(taken, start[links], 0), out=longest)
        return Fraction(int((longest * self.split + total).max(initial=0)), unit * self.split)

    def seconds_per_unit(self, loads: Ints) -> Fraction:
        """Return the time of the busiest link under `loads` [L], for units of one byte."""
        longest = Fraction(0)
        for number, link_class in enumerate(self.links.classes):
            for wires in np.unique(self.links.wires):
                rows = (self.links.class_of == number) & (self.links.wires == wires)
                busiest = int(loads[rows].max(initial=0))
                longest = max(longest, busiest / (link_class.bytes_per_s * int(wires) * self.split))
        return longest
