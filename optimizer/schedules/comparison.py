"""The algorithms of one operation side by side on one fabric: rounds, links, time (6.4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from instances.topology import Topology
from optimizer.collectives import CollectiveUnavailable
from optimizer.fabrics.building import build_fabric
from optimizer.paths import Parties, Span
from optimizer.schedules.building import algorithms


@dataclass(frozen=True, slots=True)
class Compared:
    """One algorithm: how it goes for a message, or the `reason` why it does not exist here.

    `sent_bytes` is what the card that sends most sends; `link_bound_s` is what the busiest link
    needs for all rounds together, however they overlap.
    """

    algorithm: str
    reason: str | None = None
    num_rounds: int = 0
    sent_bytes: Fraction = Fraction(0)
    busiest_link: str | None = None
    busiest_link_bytes: Fraction = Fraction(0)
    link_bound_s: Fraction = Fraction(0)
    time_s: Fraction | None = None


def compare(
    topology: Topology, operation: str, message_bytes: int, num_ranks: int | None = None
) -> tuple[Compared, ...]:
    """Return an operation's algorithms on the first `num_ranks` cards (all of them if None).

    The fastest comes first; those that do not exist there come last, with the reason. Raises
    ValueError for an unknown operation, or more ranks than cards.
    """
    fabric = build_fabric(topology)
    ranks = fabric.num_cards if num_ranks is None else num_ranks
    if not 2 <= ranks <= fabric.num_cards:
        raise ValueError(f"ranks must be between 2 and the {fabric.num_cards} cards, not {ranks}")
    span, found = Span.of_first(topology, ranks), list[Compared]()
    groups = _pairs(ranks) if operation == "send" else [list(range(ranks))]
    parties = Parties(topology, fabric, span, groups)
    for name in algorithms(operation):
        try:
            cost = parties.price(operation, name)
        except CollectiveUnavailable as error:
            found.append(Compared(name, str(error)))
            continue
        found.append(
            Compared(
                name,
                num_rounds=cost.num_rounds,
                sent_bytes=cost.sent_per_byte * message_bytes,
                busiest_link=cost.busiest_link_name,
                busiest_link_bytes=cost.link_load_per_byte * message_bytes,
                link_bound_s=cost.link_bound_s_per_byte * message_bytes,
                time_s=cost.seconds(message_bytes),
            )
        )
    return tuple(sorted(found, key=lambda c: (c.time_s is None, c.time_s or 0)))


def _pairs(ranks: int) -> Sequence[Sequence[int]]:
    """Every rank sends to the next one, all at once."""
    return [[rank, (rank + 1) % ranks] for rank in range(ranks)]
