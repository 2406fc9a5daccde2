"""Limits on what a plan may take: objectives as constraints."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from pydantic import Field

from instances.formats import Frozen
from instances.quantity import CardSeconds, Joules, Seconds

#: Objective that each limit is on.
LIMITED = {
    "makespan_s": "makespan",
    "max_latency_s": "max_latency",
    "mean_completion_s": "mean_completion",
    "cost_per_on_time_session": "cost_per_on_time_session",
    "occupied_card_s": "occupied_card_seconds",
    "energy_j": "energy",
    "num_cards": "cards",
}


class Budget(Frozen):
    """Upper limits that every plan must keep, each in the unit of its objective; null: no limit.

    A limit on `cost_per_on_time_session` asks for at least one session on time.
    """

    makespan_s: Seconds | None = None
    max_latency_s: Seconds | None = None
    mean_completion_s: Seconds | None = None
    cost_per_on_time_session: CardSeconds | None = None
    occupied_card_s: CardSeconds | None = None
    energy_j: Joules | None = None
    num_cards: int | None = Field(default=None, ge=0)

    def limits(self) -> Iterator[tuple[str, Fraction]]:
        """Yield (objective, most) for each limit there is."""
        for field, objective in LIMITED.items():
            most = getattr(self, field)
            if most is not None:
                yield objective, Fraction(most)
