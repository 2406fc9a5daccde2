"""What the planner may use: pools of identical servers, and the faults to assume."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from instances.building import (
    Cooling,
    FailureDomain,
    OccupiedCards,
    PowerBudget,
    RackSpec,
    SwitchTier,
)
from instances.catalog_store import reference
from instances.formats import Frozen
from instances.hardware import Fabric, Name, ServerSpec
from instances.names import check_once
from instances.quantity import PositiveSeconds, PricePerHour, Seconds
from instances.surroundings import ConnectionSpec
from instances.topology import ServersTopology, Topology

Server = Annotated[ServerSpec, reference("servers", ServerSpec)]


class Pool(Frozen):
    """`num_servers` identical servers, joined by `fabric_between` if they can cooperate at all.

    `connections` says what their NICs keep for a serving instance that spans several servers, and
    limits how many it may span; null means no limit.

    Where capacity is decided, a server costs `price_per_hour` and takes `rack_units` of a rack with
    its `cooling`. Of a fleet to be bought, `num_servers` are the most, and all `servers_per_group`
    of a group come together; of an existing one, `occupied` cards are not to be had.
    """

    name: Name
    server: Server
    num_servers: int = Field(ge=1, le=1_000_000)
    fabric_between: Fabric | None = None
    connections: ConnectionSpec | None = None
    price_per_hour: PricePerHour | None = None
    rack_units: int | None = Field(default=None, ge=1, le=1000)
    cooling: Cooling = "air"
    servers_per_group: int = Field(default=1, ge=1, le=100_000)
    occupied: tuple[OccupiedCards, ...] = Field(default=(), max_length=100_000, strict=False)

    @model_validator(mode="after")
    def _topology_joins_these_servers(self) -> Pool:
        topology = None if self.fabric_between is None else self.fabric_between.topology
        if topology is None:
            return self
        if not isinstance(topology, ServersTopology):
            rule = f"must be of kind 'servers', not {topology.kind!r}"
            raise ValueError(f"fabric_between.topology {rule}")
        has, wanted = topology.server.num_cards, self.server.num_cards
        if has != wanted or topology.num_servers < self.num_servers:
            raise ValueError(
                f"fabric_between.topology {topology.name!r} joins {topology.num_servers} servers "
                f"of {has} cards, the pool has {self.num_servers} of {wanted}"
            )
        return self

    @property
    def num_cards(self) -> int:
        """Cards in the pool."""
        return self.num_servers * self.server.num_cards

    @property
    def topologies(self) -> tuple[Topology, ...]:
        """Topologies of the fabrics that have one: inside servers, and between them."""
        fabrics = (self.server.fabric, self.fabric_between)
        return tuple(f.topology for f in fabrics if f is not None and f.topology is not None)


class Fleet(Frozen):
    """All the pools; a serving instance never crosses from one pool to another.

    `mode` "existing" places serving instances on the servers that are there; "purchase" chooses how
    many servers, racks and switch tiers to have. Racks, power, tiers and failure domains count
    where capacity is decided.
    """

    pools: tuple[Pool, ...] = Field(min_length=1, max_length=64, strict=False)
    mode: Literal["existing", "purchase"] = "existing"
    racks: tuple[RackSpec, ...] = Field(default=(), max_length=1000, strict=False)
    power: PowerBudget | None = None
    switch_tiers: tuple[SwitchTier, ...] = Field(default=(), max_length=64, strict=False)
    failure_domains: tuple[FailureDomain, ...] = Field(default=(), max_length=1000, strict=False)

    @model_validator(mode="after")
    def _unique(self) -> Fleet:
        for what in ("pool", "rack", "switch_tier", "failure_domain"):
            names = (item.name for item in getattr(self, f"{what}s"))
            check_once(names, f"{what.replace('_', ' ')} name")
        return self

    @property
    def num_cards(self) -> int:
        """Cards in the fleet."""
        return sum(pool.num_cards for pool in self.pools)


class Fault(Frozen):
    """A card that fails: its serving instance stalls, then restarts its current session.

    The instance makes no progress in [at_s, at_s + stall_s). The session that was running starts
    again from its first step at the end of the stall (section 6.7.2).
    """

    pool: Name | None = None
    server: int = Field(default=0, ge=0)
    card: int = Field(ge=0)
    at_s: Seconds
    stall_s: PositiveSeconds
