"""Data of the capacity decision, by kinds: what stands where, what may run on it, what is asked.

Servers that are alike and stand alike make a class, and are counted. A serving instance of an
option has cards of one server, or whole servers of its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from instances.building import DomainKind
from instances.capacity import MAXIMISED_GOALS
from optimizer.plan import Footprint
from optimizer.tables import MemoryRow

#: Unit of every goal. Prices have the currency of the instance's prices.
GOAL_UNITS = {
    "price_per_hour": "an hour",
    "price_per_on_time_session": "a session",
    "price_per_million_tokens": "a million tokens",
    "servers": "servers",
    "racks": "racks",
    "cards": "cards",
    "power": "W",
    "energy": "J",
    "sessions": "sessions",
    "worst_case_sessions": "sessions",
    "expected_sessions": "sessions",
}


@dataclass(frozen=True, slots=True)
class CohortDemand:
    """Identical sessions of one model, all of which that a plan takes must end by `deadline_s`.

    A plan takes between `min_sessions` and `num_sessions` of them. `deadline_s`, from time 0, is
    None where nothing limits it.
    """

    name: str
    model: int
    num_sessions: int
    min_sessions: int
    new_tokens: int
    release_s: Fraction
    deadline_s: Fraction | None


@dataclass(frozen=True, slots=True)
class Option:
    """One priced way to build a serving instance of a model on a pool.

    It takes `cards_per_server` cards of one server or, over `num_servers` > 1, all cards of each.
    Each of its `num_groups` attention groups has memory of its own (`memory`, one row per card that
    could be the fullest, bytes of a session by cohort of the problem) and `num_lanes` lanes; a lane
    serves one session after another. `service_s[c]` is the time of one session of cohort c on a
    lane; None: it does not serve that cohort.
    """

    index: int
    model: int
    pool: int
    footprint: Footprint
    cards_per_server: int
    num_servers: int
    num_groups: int
    num_lanes: int
    memory: tuple[MemoryRow, ...]
    service_s: tuple[Fraction | None, ...]

    @property
    def num_cards(self) -> int:
        """Cards of one serving instance."""
        return self.cards_per_server * self.num_servers


@dataclass(frozen=True, slots=True)
class ServerPool:
    """A kind of server: cards, power and price of one; groups are bought whole."""

    name: str
    num_cards: int
    power_w: int
    price_per_hour: Fraction
    rack_units: int
    servers_per_group: int
    #: Servers that there are, or may be bought.
    num_servers: int


@dataclass(frozen=True, slots=True)
class RackSite:
    """Equal racks: `count` that there are or, of those to be bought, at most.

    `limit_w` is what the servers of one rack may draw, None without a limit. Where single racks are
    told apart, each is a site with a `number` of its own, from 0, and a count of 1.
    """

    name: str
    kind: int
    number: int | None
    count: int
    units: int
    limit_w: int | None
    price_per_hour: Fraction

    def holds(self, rack_units: int, power_w: int) -> int:
        """Return how many servers of so many units (1 or more) and watts fit into one rack."""
        most = self.units // rack_units
        if self.limit_w is not None and power_w:
            most = min(most, self.limit_w // power_w)
        return most


@dataclass(frozen=True, slots=True)
class ServerClass:
    """Up to `count` servers of a pool that are alike: on one site, with as many free cards.

    `site` is None where there are no racks. Servers with occupied cards are on anyway
    (`is_occupied`): they draw power, but someone else pays for them. `servers` lists the numbers of
    an existing pool's servers; () where they are yet to be bought. Only classes of the same `cell`
    may share a serving instance: those of one pool that fail together.
    """

    index: int
    pool: int
    site: int | None
    free_cards: int
    count: int
    is_occupied: bool
    servers: tuple[int, ...]
    cell: int


@dataclass(frozen=True, slots=True)
class Tier:
    """Switches needed once more than `above_endpoints` cards hang on the network."""

    name: str
    above_endpoints: int
    power_w: int
    price_per_hour: Fraction


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """What is lost at once before the start, and what must be served on time without it.

    Lost are all servers of `classes`, or one serving instance of `option` where that is not None (a
    card fails; nothing happens where no instance of the option is in use). `min_sessions` holds for
    each cohort.
    """

    kind: DomainKind
    name: str
    classes: tuple[int, ...]
    option: int | None
    min_sessions: tuple[int, ...]
    probability: Fraction | None


@dataclass(frozen=True)
class CapacityProblem:
    """Everything that a capacity decision depends on. Read-only.

    A plan is legal when

    * each server holds serving instances of no more cards than it has free, and instances over
      several servers have whole servers without occupied cards in one cell;
    * no class gives more servers than its count, no pool more than `num_servers`, and where servers
      are bought, a pool's come in whole groups;
    * servers to be bought fit into racks of their site: units and watts of each;
    * fixed power, servers that are on, and tiers needed draw no more than `budget_w`;
    * sessions that are taken end on time, every group holds those of its lanes, and every cohort
      has at least its minimum, healthy and in every event (sessions are dealt anew).

    A tier is needed when the cards of all servers that are bought (of an existing fleet: in use or
    occupied) exceed its threshold.
    """

    models: tuple[str, ...]
    cohorts: tuple[CohortDemand, ...]
    options: tuple[Option, ...]
    pools: tuple[ServerPool, ...]
    sites: tuple[RackSite, ...]
    classes: tuple[ServerClass, ...]
    tiers: tuple[Tier, ...]
    events: tuple[FailureEvent, ...]
    goals: tuple[str, ...]
    is_purchase: bool
    fixed_w: int
    #: Watts for everything; None without a limit.
    budget_w: int | None
    period_s: Fraction | None

    @cached_property
    def classes_of_pool(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the classes of every pool."""
        return tuple(
            tuple(c.index for c in self.classes if c.pool == p) for p in range(len(self.pools))
        )

    @cached_property
    def options_of_pool(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the options of every pool."""
        return tuple(
            tuple(o.index for o in self.options if o.pool == p) for p in range(len(self.pools))
        )

    def free_cards(self, servers: Sequence[int]) -> list[int]:
        """Return the free cards of every pool on so many servers of every class."""
        free = [0] * len(self.pools)
        for one, number in zip(self.classes, servers, strict=True):
            free[one.pool] += number * one.free_cards
        return free

    @property
    def cells(self) -> tuple[int, ...]:
        """All cells, ascending."""
        return tuple(sorted({c.cell for c in self.classes}))

    def rack_holds(self, site: int, pool: int) -> int:
        """Return how many servers of a pool alone fit into one rack of a site."""
        return self.sites[site].holds(self.pools[pool].rack_units, self.pools[pool].power_w)

    @property
    def occupied_w(self) -> int:
        """Watts of servers with occupied cards, which are on whatever the plan."""
        return sum(self.pools[c.pool].power_w * c.count for c in self.classes if c.is_occupied)

    @property
    def occupied_endpoints(self) -> int:
        """Cards of servers with occupied cards, which hang on the network anyway."""
        return sum(self.pools[c.pool].num_cards * c.count for c in self.classes if c.is_occupied)


def is_maximised(goal: str) -> bool:
    """Whether more of a goal is better."""
    return goal in MAXIMISED_GOALS
