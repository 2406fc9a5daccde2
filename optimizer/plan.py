"""A plan: the decision alone, in domain words, without prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from optimizer.parallel import ParallelConfig


@dataclass(frozen=True, slots=True, order=True)
class CardId:
    """One card: the server's place in its pool and the card's place in its server, from 0."""

    server: int
    card: int


@dataclass(frozen=True, slots=True, order=True)
class SessionId:
    """One session of a cohort, numbered from 0; written "cohort/0"."""

    cohort: str
    number: int

    def __str__(self) -> str:
        return f"{self.cohort}/{self.number}"


@dataclass(frozen=True, slots=True)
class ServingInstance:
    """Cards that hold one copy of the model together, and the sessions they serve, in order."""

    pool: str
    parallel: ParallelConfig
    collective: str
    cards: tuple[CardId, ...]
    sessions: tuple[SessionId, ...] = ()

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers the instance has cards on, ascending."""
        return tuple(sorted({card.server for card in self.cards}))

    def kind(self) -> tuple[str, ParallelConfig, str, int, int]:
        """Return what makes two serving instances equal in a report."""
        return self.pool, self.parallel, self.collective, len(self.cards), len(self.servers)


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Consecutive equal serving instances of a plan."""

    instances: tuple[ServingInstance, ...]

    @property
    def first(self) -> ServingInstance:
        """Return the group's first serving instance, which stands for all."""
        return self.instances[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """All serving instances. Their order matters under round-robin dispatch."""

    instances: tuple[ServingInstance, ...]

    def __iter__(self) -> Iterator[ServingInstance]:
        return iter(self.instances)

    @property
    def num_cards(self) -> int:
        """Cards owned by serving instances."""
        return sum(len(instance.cards) for instance in self.instances)

    def groups(self) -> tuple[InstanceGroup, ...]:
        """Return runs of equal serving instances, in plan order."""
        return tuple(
            InstanceGroup(tuple(members))
            for _, members in groupby(self.instances, key=ServingInstance.kind)
        )

    def sorted(self, pool_order: tuple[str, ...]) -> Plan:
        """Return the plan in canonical order: by pool, kind, then cards. Not for round robin."""
        tidy = [replace(item, cards=tuple(sorted(item.cards))) for item in self.instances]
        tidy.sort(key=lambda i: (pool_order.index(i.pool), i.kind()[1:], i.cards))
        return Plan(tuple(tidy))

    def sentence(self, fleet_cards: int) -> str:
        """Return the plan in one line, such as "8 cards = 4 instances × TP2 (ring)"."""
        if not self.instances:
            return f"0 of {fleet_cards} cards: no serving instance"
        used = self.num_cards
        cards = f"{used} cards" if used == fleet_cards else f"{used} of {fleet_cards} cards"
        several_pools = len({instance.pool for instance in self.instances}) > 1
        counts: dict[str, int] = {}
        for instance in self.instances:
            label = instance.parallel.label()
            if len(instance.servers) > 1:
                label += f" over {len(instance.servers)} servers"
            if instance.collective != "none":
                label += f" ({instance.collective})"
            if several_pools:
                label += f" in {instance.pool}"
            counts[label] = counts.get(label, 0) + 1
        parts = [
            f"{count} instance{'s' if count > 1 else ''} × {label}"
            for label, count in counts.items()
        ]
        return f"{cards} = {' + '.join(parts)}"
