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


@dataclass(frozen=True, slots=True, order=True)
class Footprint:
    """How a serving instance is built, apart from which cards it takes.

    `stages` counts the layers of each pipeline stage, in order; () for one stage. `batch` sessions
    share a step in each attention group, and `micro_batches` such batches are in flight at once, so
    a group has batch · micro_batches lanes, each of which serves one session after another.
    """

    pool: str
    parallel: ParallelConfig
    num_servers: int
    collective: str
    stages: tuple[int, ...] = ()
    batch: int = 1
    micro_batches: int = 1

    @property
    def lanes_per_group(self) -> int:
        """Sessions that one attention group serves at a time."""
        return self.batch * self.micro_batches

    def label(self) -> str:
        """Return a name, such as "TP16 over 2 servers (measured)" or "PP2·TP8, batch 4 (ring)"."""
        text = self.parallel.label()
        if self.batch > 1:
            text += f", batch {self.batch}"
        if self.micro_batches > 1:
            text += f", {self.micro_batches} micro-batches"
        if self.num_servers > 1:
            text += f" over {self.num_servers} servers"
        return text if self.collective in ("", "none") else f"{text} ({self.collective})"


@dataclass(frozen=True, slots=True)
class ServingInstance:
    """Cards that hold one copy of the model together, and the sessions they serve, in order.

    Cards are listed along the degrees, TP's next to each other, then CP's, copies', DP's and the
    stages'. `lanes` gives the lane of each session; () deals them to the lanes in turn.
    """

    pool: str
    parallel: ParallelConfig
    collective: str
    cards: tuple[CardId, ...]
    sessions: tuple[SessionId, ...] = ()
    stages: tuple[int, ...] = ()
    batch: int = 1
    micro_batches: int = 1
    lanes: tuple[int, ...] = ()

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers the instance has cards on, ascending."""
        return tuple(sorted({card.server for card in self.cards}))

    @property
    def footprint(self) -> Footprint:
        """How the instance is built."""
        return Footprint(
            self.pool,
            self.parallel,
            len(self.servers),
            self.collective,
            self.stages,
            self.batch,
            self.micro_batches,
        )

    @property
    def num_lanes(self) -> int:
        """Lanes of all attention groups."""
        return self.parallel.dp * self.footprint.lanes_per_group

    def lane_of(self, position: int) -> int:
        """Return the lane of the session at a position of `sessions`."""
        if position < len(self.lanes):
            return self.lanes[position]
        return position % max(self.num_lanes, 1)

    def kind(self) -> tuple[Footprint, int]:
        """Return what makes two serving instances equal in a report."""
        return self.footprint, len(self.cards)


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
        tidy.sort(key=lambda i: (pool_order.index(i.pool), i.kind(), i.cards))
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
            label = instance.footprint.label()
            if several_pools:
                label += f" in {instance.pool}"
            counts[label] = counts.get(label, 0) + 1
        parts = [
            f"{count} instance{'s' if count > 1 else ''} × {label}"
            for label, count in counts.items()
        ]
        return f"{cards} = {' + '.join(parts)}"
