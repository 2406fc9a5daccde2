"""What the planner may use: pools of identical servers, and the faults to assume."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from instances.catalog_store import reference
from instances.formats import Frozen
from instances.hardware import Fabric, Name, ServerSpec
from instances.quantity import PositiveSeconds, Seconds

Server = Annotated[ServerSpec, reference("servers", ServerSpec)]


class Pool(Frozen):
    """`num_servers` identical servers, joined by `fabric_between` if they can cooperate at all."""

    name: Name
    server: Server
    num_servers: int = Field(ge=1, le=100_000)
    fabric_between: Fabric | None = None

    @property
    def num_cards(self) -> int:
        """Cards in the pool."""
        return self.num_servers * self.server.num_cards


class Fleet(Frozen):
    """All the pools; a serving instance never crosses from one pool to another."""

    pools: tuple[Pool, ...] = Field(min_length=1, max_length=64, strict=False)

    @model_validator(mode="after")
    def _unique(self) -> Fleet:
        names = [pool.name for pool in self.pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pool name {name!r} appears {names.count(name)} times")
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
