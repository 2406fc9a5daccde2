"""Data of one decision: which cards take the ranks of a serving instance (sections 6.5.1, 6.5.5).

Ranks exchange in phases, one phase after another; all groups of a phase act side by side, in the
same rounds. A round takes the fixed time of its slowest hop and the time of its busiest link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

#: "all_reduce" and "reduce_scatter" take `message_bytes` on every rank; "all_to_all" too, an equal
#: share for each rank of the group, its own included; "send" goes from the first rank of every pair
#: to the second.
Operation = Literal["all_reduce", "reduce_scatter", "all_to_all", "send"]

#: "ring": once round all ranks, those of a domain next to each other. "hierarchical": inside
#: domains, then between equal places of them, then inside again. "direct": all messages at once.
Algorithm = Literal["ring", "hierarchical", "direct"]

#: What can carry out an operation, plainest first.
ALGORITHMS: dict[Operation, tuple[Algorithm, ...]] = {
    "all_reduce": ("ring", "hierarchical"),
    "reduce_scatter": ("ring",),
    "all_to_all": ("direct",),
    "send": ("direct",),
}

#: Ranks of a group; in a "send" the sender and the receiver.
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wire:
    """A card's link to others, one way: fixed time of a round and bandwidth."""

    alpha_s: Fraction
    bytes_per_s: Fraction


@dataclass(frozen=True, slots=True)
class Phase:
    """`times` exchanges of a step in groups of equally many ranks, all groups at the same time.

    `algorithms` are those that may carry it out; one is chosen for the whole phase.
    """

    name: str
    operation: Operation
    times: int
    message_bytes: Fraction
    groups: tuple[Group, ...]
    algorithms: tuple[Algorithm, ...]

    @property
    def group_ranks(self) -> int:
        """Ranks of one group."""
        return len(self.groups[0])


@dataclass(frozen=True, slots=True)
class PlacementAnswer:
    """The domain of every rank, and the algorithm of every phase.

    `cards` are the ranks' cards in their domains; () stands for the lowest free ones, in the order
    of ranks: the cards of a domain are alike.
    """

    domains: tuple[int, ...]
    algorithms: tuple[str, ...]
    cards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Give every rank a free card so that the exchanges of a step take least time together.

    `free_cards` lists the free cards of every domain. Inside a domain a switch that never blocks
    joins the cards over links `inside`. Every card has an adapter of its own to the network between
    domains, `between`; None means that no group may span domains. All cards of a domain together
    send at most `exit_bytes_per_s` to other domains, and take in as much; None means no limit.

    Raises ValueError for no ranks, a card or rank that comes twice, groups of unequal size or of
    one rank, ranks that do not exist, and numbers or algorithms that mean nothing.
    """

    num_ranks: int
    free_cards: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]
    inside: Wire
    between: Wire | None
    exit_bytes_per_s: Fraction | None = None
    #: Free cards of every domain.
    room: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "room", tuple(len(cards) for cards in self.free_cards))
        if self.num_ranks < 1 or not self.free_cards:
            raise ValueError("a placement needs ranks and domains")
        for cards in self.free_cards:
            if len(set(cards)) != len(cards) or min(cards, default=0) < 0:
                raise ValueError(f"a domain's cards have numbers of their own, not {cards}")
        wires = [self.inside] if self.between is None else [self.inside, self.between]
        if any(wire.alpha_s < 0 or wire.bytes_per_s <= 0 for wire in wires):
            raise ValueError("a link takes no negative time and has a bandwidth above 0")
        if self.exit_bytes_per_s is not None and self.exit_bytes_per_s <= 0:
            raise ValueError("an exit has a bandwidth above 0")
        for phase in self.phases:
            _check_phase(phase, self.num_ranks)

    @property
    def num_free_cards(self) -> int:
        """Free cards of all domains."""
        return sum(self.room)


def _check_phase(phase: Phase, num_ranks: int) -> None:
    where = f"phase {phase.name!r}"
    if phase.times < 1 or phase.message_bytes <= 0 or not phase.groups:
        raise ValueError(f"{where} needs groups, and something to exchange at least once")
    known = ALGORITHMS[phase.operation]
    if not phase.algorithms or not set(phase.algorithms) <= set(known):
        raise ValueError(f"{where}: {phase.operation} may use {', '.join(known)}")
    if phase.group_ranks < 2 or any(len(g) != phase.group_ranks for g in phase.groups):
        raise ValueError(f"{where} needs groups of equally many ranks, two or more")
    if any(not 0 <= rank < num_ranks for group in phase.groups for rank in group):
        raise ValueError(f"{where}: ranks are 0 to {num_ranks - 1}")
    if phase.operation == "send":
        if phase.group_ranks != 2 or any(a == b for a, b in phase.groups):
            raise ValueError(f"{where}: a message goes from one rank to another one")
        sides = [[pair[0] for pair in phase.groups], [pair[1] for pair in phase.groups]]
    else:
        sides = [[rank for group in phase.groups for rank in group]]
    if any(len(set(side)) != len(side) for side in sides):
        raise ValueError(
            f"{where}: a rank belongs to one group, and sends and receives one message"
        )
