"""Documents of the capacity decision: the plan, and what the exact evaluator says of it.

Serving instances, servers and racks are named by what they are. `instances` of a plan describes
every option once; elsewhere its `name` stands for it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from optimizer.result import Document, ParallelDocument

#: How many there are of something.
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]


class _PlanPart(Document):
    """Base of what a reader may write by hand: numbers are numbers, not text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OptionDocument(_PlanPart):
    """One way to build a serving instance that a plan uses, and how many there are.

    `name` is what other parts of the plan call it. The other fields say what it is, as for a
    serving instance of a deployment; `number` may be left out.
    """

    name: str
    number: Count | None = None
    model: str
    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    num_servers: int = 1
    collective: str | None = None


class RackServersDocument(_PlanPart):
    """Servers of one pool in a rack; `server` is the number of one that is told apart."""

    pool: str
    server: int | None = None
    count: Count


class RackFillDocument(_PlanPart):
    """`count` racks that are bought and hold the same servers."""

    rack: str
    count: Count
    servers: list[RackServersDocument]


class BlockDocument(_PlanPart):
    """Serving instances of an option, by its name, in one server."""

    instance: str
    number: Count


class ServerFillDocument(_PlanPart):
    """`count` servers of a pool that hold the same serving instances.

    They stand in `rack`, null where none is described, and have `free_cards`, null for all. Where
    servers are told apart, `server` is the number of one. `spanned_by` names the option over
    several servers that has the whole server.
    """

    pool: str
    rack: str | None = None
    server: int | None = None
    free_cards: int | None = None
    count: Count
    instances: list[BlockDocument] = Field(default_factory=list)
    spanned_by: str | None = None


class RunDocument(_PlanPart):
    """So many sessions of a cohort, one after another."""

    cohort: str
    number: Count


class LaneLoadDocument(_PlanPart):
    """`count` lanes that serve the same sessions, in the order listed."""

    count: Count
    sessions: list[RunDocument]


class GroupLoadDocument(_PlanPart):
    """`groups` attention groups of serving instances of an option, by its name, loaded alike."""

    instance: str
    groups: Count
    lanes: list[LaneLoadDocument]


class EventLoadsDocument(_PlanPart):
    """Who serves what after any one of `events`; null loads are those where nothing fails."""

    events: list[str]
    loads: list[GroupLoadDocument] | None = None


class CapacityDocument(_PlanPart):
    """Racks that are bought, what every server holds, and who serves which sessions."""

    instances: list[OptionDocument]
    racks: list[RackFillDocument] = Field(default_factory=list)
    servers: list[ServerFillDocument]
    loads: list[GroupLoadDocument]
    loads_after: list[EventLoadsDocument] = Field(default_factory=list)


class CohortUseDocument(Document):
    """Sessions of a cohort that are on time: `taken` of `num_sessions`, at least `min_sessions`."""

    name: str
    model: str
    taken: int
    num_sessions: int
    min_sessions: int
    deadline_s: float | None
    deadline_exact: str | None


class OptionUseDocument(Document):
    """Serving instances of one option: how many, cards of each, sessions they serve together."""

    name: str
    model: str
    label: str
    pool: str
    number: int
    num_cards: int
    sessions: int


class PoolUseDocument(Document):
    """Servers of a pool that are bought or in use, `idle` ones among them, of at most `most`."""

    pool: str
    servers: int
    idle: int
    most: int
    servers_per_group: int
    price_per_hour: float
    price_per_hour_exact: str


class SiteUseDocument(Document):
    """Racks that are bought or in use, of at most `most`."""

    rack: str
    used: int
    most: int
    price_per_hour: float
    price_per_hour_exact: str


class TierUseDocument(Document):
    """A switch tier, needed once the endpoints are more than `above_endpoints`."""

    name: str
    above_endpoints: int
    is_needed: bool
    power_w: int
    price_per_hour: float
    price_per_hour_exact: str


class PowerPartDocument(Document):
    """`count` times `each_w` watts."""

    name: str
    count: int
    each_w: int
    watts: int


class ServersByPowerDocument(Document):
    """How many servers of a pool the budget feeds.

    `alone` is how many it feeds beside what is fixed and the tiers of the plan, were there no
    others (6-11); `more` is how many it feeds beside the plan, further tiers included. Null where a
    server draws nothing.
    """

    pool: str
    server_w: int
    alone: int | None
    more: int | None


class PowerDocument(Document):
    """What draws power, part by part, against the budget; null budgets limit nothing.

    `fixed_w` is P_0 of (6-11), `tiers_w` the switch tiers that the plan needs.
    """

    parts: list[PowerPartDocument]
    fixed_w: int
    tiers_w: int
    total_w: int
    budget_w: int | None
    left_w: int | None
    servers: list[ServersByPowerDocument] = Field(default_factory=list)


class ResourceDocument(Document):
    """Something that may run out. It is binding where less is left than the least server takes."""

    name: str
    used: int
    most: int | None
    left: int | None
    unit: str
    is_binding: bool


class OutcomeDocument(Document):
    """Sessions of every cohort that are on time after any one of `events`, all of one kind."""

    kind: str
    events: list[str]
    sessions: list[int]
    min_sessions: list[int]


class PlacedServerDocument(Document):
    """`count` servers that hold the same, `numbers` of the pool's where servers have any.

    Of `num_cards` all but `free_cards` are occupied by something else; those without an instance
    are idle. `rack_units` is null where there are no racks.
    """

    pool: str
    count: int
    numbers: str
    num_cards: int
    free_cards: int
    rack_units: int | None
    instances: list[BlockDocument]
    spanned_by: str | None


class PlacedRackDocument(Document):
    """`count` racks that hold the same; `rack` is null for servers that stand in none.

    `power_w` is what the servers that are on draw in each of them.
    """

    rack: str | None
    count: int
    units: int | None
    used_units: int | None
    limit_w: int | None
    power_w: int
    servers: list[PlacedServerDocument]


class CapacityAccountDocument(Document):
    """Everything that a capacity plan takes, serves and withstands; `placement` if it is legal."""

    cohorts: list[CohortUseDocument]
    instances: list[OptionUseDocument]
    servers: list[PoolUseDocument]
    racks: list[SiteUseDocument]
    endpoints: int
    tiers: list[TierUseDocument]
    power: PowerDocument
    resources: list[ResourceDocument]
    after: list[OutcomeDocument] = Field(default_factory=list)
    placement: list[PlacedRackDocument] = Field(default_factory=list)


class RuleCountDocument(Document):
    """How many candidates lost by a rule."""

    rule: str
    number: int


class LostCandidateDocument(Document):
    """A candidate that cannot be used: the rule, and by how much. `label` is short for degrees."""

    model: str
    label: str
    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    num_servers: int
    collective: str | None
    rule: str
    amount: float
    unit: str
    message: str


class NotUsedDocument(Document):
    """Candidates that are not in the plan.

    `possible` could have been used; the others cannot, `rules` counts why, and `examples` are those
    that lost by least, some of each rule.
    """

    possible: int
    rules: list[RuleCountDocument]
    examples: list[LostCandidateDocument]
