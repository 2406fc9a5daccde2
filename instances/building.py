"""What servers stand in and hang on: racks, power, switch tiers, failure domains (6.5.2, 6.7.2)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from instances.formats import Frozen
from instances.names import check_once
from instances.quantity import PricePerHour, Watts

Name = Annotated[str, Field(min_length=1, max_length=120)]
Number = Annotated[int, Field(ge=0, le=1_000_000)]
Cooling = Literal["air", "liquid"]

#: What may fail at once: each card, server and rack is a domain of its own, others are declared.
DomainKind = Literal["card", "server", "rack", "power_supply", "switch"]


class OccupiedCards(Frozen):
    """Cards of one server, by number, that something else uses."""

    server: Number
    cards: tuple[Number, ...] = Field(min_length=1, strict=False)


class RackServers(Frozen):
    """Servers of one pool that stand in every rack of a kind."""

    pool: Name
    num_servers: int = Field(ge=1, le=1000)


class RackSpec(Frozen):
    """`count` equal racks: those that are there, or the most that may be bought.

    A rack has room for `units` rack units of servers with its own kind of cooling. Its servers draw
    at most `power_w` together, and `cooling_w` is the heat, equal to what they draw, that can be
    carried away; null means no limit. `servers` says what stands in each rack of an existing fleet;
    the numbers of a pool's servers run through its racks in the order listed.
    """

    name: Name
    count: int = Field(default=1, ge=1, le=1_000_000)
    units: int = Field(ge=1, le=1000)
    power_w: Watts | None = None
    cooling_w: Watts | None = None
    cooling: Cooling = "air"
    price_per_hour: PricePerHour = Fraction(0)
    servers: tuple[RackServers, ...] = Field(default=(), max_length=64, strict=False)

    @model_validator(mode="after")
    def _pools_once(self) -> RackSpec:
        check_once((held.pool for held in self.servers), "servers: pool")
        return self

    @property
    def limit_w(self) -> int | None:
        """Most watts that the servers of a rack may draw: the tighter of power and cooling."""
        limits = [limit for limit in (self.power_w, self.cooling_w) if limit is not None]
        return min(limits, default=None)


class PowerBudget(Frozen):
    """Watts for everything, P_b, and what is drawn whatever the servers, P_0 (6-11)."""

    budget_w: Watts
    fixed_w: Watts = 0


class SwitchTier(Frozen):
    """Switches that are needed once more cards than `above_endpoints` hang on the network.

    Every card of a server in use is an endpoint. The tier draws `power_w` and costs
    `price_per_hour` as a whole.
    """

    name: Name
    above_endpoints: int = Field(ge=0, le=100_000_000)
    power_w: Watts = 0
    price_per_hour: PricePerHour = Fraction(0)


class FailureDomain(Frozen):
    """Racks and pools that one power supply or switch takes with it when it fails.

    A rack kind or a pool belongs to it with all its racks or servers.
    """

    name: Name
    kind: Literal["power_supply", "switch"]
    racks: tuple[Name, ...] = Field(default=(), max_length=1000, strict=False)
    pools: tuple[Name, ...] = Field(default=(), max_length=64, strict=False)

    @model_validator(mode="after")
    def _something_fails(self) -> FailureDomain:
        if not self.racks and not self.pools:
            raise ValueError("a failure domain needs a rack or a pool in racks or pools")
        return self
