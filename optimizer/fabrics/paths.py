"""The way of one message, for people to read, and the pair of cards that is farthest apart."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optimizer.fabrics.fabric import Fabric

#: Messages whose hops are counted at once.
_CHUNK = 2**18


@dataclass(frozen=True, slots=True)
class PathStep:
    """A link that carries `share` of a message, as the `stage`-th link (from 0) of its part.

    The shares of every stage add up to 1.
    """

    stage: int
    link: int
    tail: int
    head: int
    share: Fraction


def path(fabric: Fabric, sender: int, receiver: int) -> tuple[PathStep, ...]:
    """Return the links that a message takes, in order.

    Raises ValueError where the fabric knows no such message.
    """
    steps: list[PathStep] = []
    taken, links = 0, fabric.links
    for leg in fabric.legs(np.array([sender]), np.array([receiver])):
        link, share = int(leg.links[0]), int(leg.shares[0])
        if link >= 0:
            ends = int(links.tails[link]), int(links.heads[link])
            steps.append(
                PathStep(taken // fabric.split, link, *ends, Fraction(share, fabric.split))
            )
            taken += share
    return tuple(steps)


def link_name(fabric: Fabric, link: int) -> str:
    """Return a link by the names of its ends, such as "card 3 -> switch 0"."""
    tail, head = int(fabric.links.tails[link]), int(fabric.links.heads[link])
    return f"{fabric.node_names[tail]} -> {fabric.node_names[head]}"


@dataclass(frozen=True, slots=True)
class Farthest:
    """Two cards, the links between them, and the chips on the way that forward a message."""

    sender: int
    receiver: int
    num_links: int
    num_chips: int


def farthest(fabric: Fabric) -> Farthest:
    """Return the pair of cards with most links between them; of equal ones the lowest numbers.

    An exit of a server is a limit and no chip; a network counts as one. Raises ValueError for a
    single card.
    """
    cards = fabric.num_cards
    if cards < 2:
        raise ValueError(f"{fabric.name} has one card only")
    best = (0, 0, 0)
    for first in range(0, cards, rows := max(1, _CHUNK // cards)):
        senders = np.repeat(np.arange(first, min(first + rows, cards)), cards)
        receivers = np.tile(np.arange(cards), len(senders) // cards)
        differ = senders != receivers
        senders, receivers = senders[differ], receivers[differ]
        hops = fabric.hops(senders, receivers)
        at = int(hops.argmax())
        if hops[at] > best[0]:
            best = (int(hops[at]), int(senders[at]), int(receivers[at]))
    num_hops, sender, receiver = best
    kinds = fabric.node_kinds
    inner = [
        step.share
        for step in path(fabric, sender, receiver)
        if step.stage and not (kinds and kinds[step.tail] == "exit")
    ]
    return Farthest(sender, receiver, num_hops // fabric.split, int(sum(inner)))
