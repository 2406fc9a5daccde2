"""What the formulations see of a problem instance: exact prices of every candidate.

A candidate is one way to build a serving instance (pool, parallel degrees, pipeline cut, batch,
servers spanned, collective); a kind is a candidate together with the failing cards it owns.
`optimizer.pricing` fills the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from instances.fleet import Pool
from instances.instance import Instance
from instances.workload import Cohort
from optimizer.plan import CardId, Footprint


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that cannot be used or lost: the rule, and by how much in `unit`."""

    footprint: Footprint
    rule: str
    amount: Fraction | int
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes that one session of each cohort takes on a card, and the bytes there are for them."""

    session_bytes: tuple[int, ...]
    free_bytes: int

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether so many sessions of each cohort fit."""
        taken = sum(n * b for n, b in zip(counts, self.session_bytes, strict=True))
        return taken <= self.free_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """One priced way to build a serving instance.

    An instance has `num_groups` attention groups with memory of their own, each with `num_lanes`
    lanes; a lane serves one session after another. `service_s[c]` is the time of one session of
    cohort c on a lane while all lanes are busy; `memory` bounds the sessions that one group is
    given, one row per card that could be the fullest; `power_w` is its cards' share of their
    servers' power; `held_sessions` is how many sessions' caches fit at once (0 where the workload
    has several cohorts).
    """

    index: int
    pool_index: int
    footprint: Footprint
    memory: tuple[MemoryRow, ...]
    service_s: tuple[Fraction, ...]
    power_w: Fraction
    held_sessions: int = 0

    @property
    def pool(self) -> str:
        """Name of the pool."""
        return self.footprint.pool

    @property
    def num_servers(self) -> int:
        """Servers an instance spans, with equally many cards in each."""
        return self.footprint.num_servers

    @property
    def num_cards(self) -> int:
        """Cards of an instance."""
        return self.footprint.parallel.num_cards

    @property
    def cards_per_server(self) -> int:
        """Cards the instance takes in each server it spans."""
        return self.num_cards // self.num_servers

    @property
    def num_groups(self) -> int:
        """Attention groups that serve sessions of their own."""
        return self.footprint.parallel.dp

    @property
    def num_lanes(self) -> int:
        """Sessions that one attention group serves at a time."""
        return self.footprint.lanes_per_group

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether one attention group holds so many sessions of each cohort."""
        return all(row.holds(counts) for row in self.memory)


@dataclass(frozen=True, slots=True)
class PricedCandidates:
    """Candidates of a problem instance that can be used, and the reasons of the others.

    Unless they are complete, time ran out before every candidate was priced.
    """

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class FaultedCard:
    """A card that fails, and the half-open intervals in which that stops its instance."""

    pool_index: int
    server: int
    card: int
    stalls: tuple[tuple[Fraction, Fraction], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A candidate that owns exactly the failing cards listed (indices of `faulted_cards`)."""

    index: int
    candidate: Candidate
    faulted: tuple[int, ...]
    stalls: tuple[tuple[Fraction, Fraction], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A uniform deployment: (kind, its cards) for every serving instance, in order."""

    instances: tuple[tuple[int, tuple[CardId, ...]], ...]


@dataclass(frozen=True)
class ProblemTables:
    """What the formulations see of a problem instance. Read-only.

    `layouts` is None in a mixed search. `dispatch_order` lists cohort indices session by session.
    Unless it `is_complete`, time ran out before every candidate was priced, and nothing can be
    proven.
    """

    instance: Instance
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    faulted_cards: tuple[FaultedCard, ...]
    kinds: tuple[Kind, ...]
    layouts: tuple[Layout, ...] | None
    dispatch_order: tuple[int, ...]
    is_complete: bool = True

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Cohorts as the workload lists them."""
        return self.instance.workload.cohorts

    @property
    def num_sessions(self) -> int:
        """Sessions of all cohorts."""
        return len(self.dispatch_order)

    @property
    def is_round_robin(self) -> bool:
        """Whether sessions are dealt out rather than assigned by the solver."""
        return self.instance.search.dispatch == "round_robin"

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Pools of the fleet."""
        return self.instance.fleet.pools

    @cached_property
    def max_instances(self) -> int:
        """Most serving instances that sessions and cards allow in a mixed search."""
        smallest = min((c.num_cards for c in self.candidates), default=1)
        return min(self.num_sessions, self.instance.fleet.num_cards // smallest)

    def max_count(self, kind: Kind) -> int:
        """Most serving instances of a kind that a mixed search may use."""
        if kind.faulted:
            return 1
        candidate = kind.candidate
        pool = self.pools[candidate.pool_index]
        if candidate.num_servers == 1:
            fit = pool.num_servers * (pool.server.num_cards // candidate.num_cards)
        else:
            fit = pool.num_cards // candidate.num_cards
        return min(self.num_sessions, fit)

    def faults_on(self, kind: Kind, server: int) -> int:
        """Failing cards that a kind owns on one server of its pool."""
        return sum(self.faulted_cards[f].server == server for f in kind.faulted)

    def faulted_in(self, pool_index: int, server: int) -> int:
        """Failing cards of one server, whoever owns them."""
        return sum((f.pool_index, f.server) == (pool_index, server) for f in self.faulted_cards)

    def finish_s(self, kind: Kind, ready_s: Fraction, cohort_index: int) -> Fraction:
        """Return when a session ends that its instance may start at `ready_s`.

        It takes the first stretch of its service time, free of stalls, from then on.
        """
        start = max(ready_s, self.cohorts[cohort_index].release_s)
        service = kind.candidate.service_s[cohort_index]
        for from_s, until_s in kind.stalls:
            if start < until_s and start + service > from_s:
                start = until_s
        return start + service
