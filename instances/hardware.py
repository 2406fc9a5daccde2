"""What accelerators, fabrics and servers are."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from instances.catalog_store import reference
from instances.formats import FORMAT_BITS, Frozen
from instances.quantity import (
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveFlopsPerSecond,
    PositiveSeconds,
    Seconds,
    Watts,
)
from instances.surroundings import InitiatorSpec
from instances.topology import Topology

Name = Annotated[str, Field(min_length=1, max_length=120)]

MeasuredOperation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send"
]
#: What a message takes whose size lies between two measured ones.
LookupPolicy = Literal["next_larger_size", "linear", "log_linear"]


class AcceleratorSpec(Frozen):
    """One accelerator ("card")."""

    name: Name
    memory_bytes: PositiveBytes
    memory_bandwidth_bytes_per_s: PositiveBytesPerSecond
    peak_flops_per_s: dict[str, PositiveFlopsPerSecond | None]
    power_w: Watts | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @field_validator("peak_flops_per_s")
    @classmethod
    def _known_formats(cls, value: dict[str, object]) -> dict[str, object]:
        known = {name for name in FORMAT_BITS if name not in ("e8m0", "int64")}
        for name in value:
            if name not in known:
                raise ValueError(f"{name!r} is not a number format; use {', '.join(sorted(known))}")
        return value

    def peak(self, number_format: str) -> Fraction | None:
        """Return the dense peak in FLOP/s for a number format; None when it is unknown."""
        return self.peak_flops_per_s.get(number_format)


class MeasuredRow(Frozen):
    """One measured message size, its time, and how far that may be off either way."""

    message_bytes: PositiveBytes
    time_s: PositiveSeconds
    spread_s: Seconds = Fraction(0)

    @model_validator(mode="after")
    def _spread_is_smaller(self) -> MeasuredRow:
        if self.spread_s >= self.time_s:
            raise ValueError("spread_s must be less than time_s")
        return self


class MeasuredCollective(Frozen):
    """Measured times of one operation on one arrangement of ranks, by one implementation.

    `message_bytes` counts as nccl-tests' column "size" does: of an AllReduce, a broadcast, a reduce
    or a send the vector; of an AllGather what a rank holds in the end (all ranks' parts), of a
    ReduceScatter what it starts with; of an All-to-All a rank's whole buffer, the part it keeps
    included.

    `policy` says what a size takes that lies between two rows. "next_larger_size": the time of the
    next larger row, as section 6.5.1 does. "linear": on the straight line between the two rows over
    bytes. "log_linear": on the straight line over log2(bytes), where logarithms are rounded up to a
    multiple of 2^-40, so that times stay exact fractions. Up to the first row a size takes the
    first row's time; beyond the last row nothing is covered. `variant` names the implementation.
    """

    name: Name
    operation: MeasuredOperation = "all_reduce"
    ranks: int = Field(ge=2, le=1_000_000)
    servers: int = Field(ge=1, le=1_000_000)
    variant: Name | None = None
    policy: LookupPolicy = "next_larger_size"
    rows: tuple[MeasuredRow, ...] = Field(min_length=1, strict=False)
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ordered(self) -> MeasuredCollective:
        sizes = [row.message_bytes for row in self.rows]
        if any(a >= b for a, b in pairwise(sizes)):
            raise ValueError("rows must be sorted by message_bytes, each size once")
        if self.ranks % self.servers:
            raise ValueError(f"{self.ranks} ranks do not spread evenly over {self.servers} servers")
        return self


Measured = Annotated[MeasuredCollective, reference("measurements", MeasuredCollective)]


class FabricSpec(Frozen):
    """A network that joins cards: fixed time per round, one-way bandwidth per card.

    With a `topology` exchanges between named cards take the time of the links that they pass. An
    `initiator` adds what starting their requests takes to modelled times, not to measured ones.
    """

    name: Name
    alpha_s: Seconds
    bandwidth_bytes_per_s: PositiveBytesPerSecond
    measured: tuple[Measured, ...] = Field(default=(), strict=False)
    topology: Topology | None = None
    initiator: InitiatorSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)


Accelerator = Annotated[AcceleratorSpec, reference("accelerators", AcceleratorSpec)]
Fabric = Annotated[FabricSpec, reference("fabrics", FabricSpec)]


class ServerSpec(Frozen):
    """A server: identical cards on one internal fabric."""

    name: Name
    accelerator: Accelerator
    num_cards: int = Field(ge=1, le=4096)
    fabric: Fabric
    power_w: Watts | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _topology_has_its_cards(self) -> ServerSpec:
        topology = self.fabric.topology
        if topology is not None and topology.num_cards != self.num_cards:
            raise ValueError(
                f"fabric.topology {topology.name!r} joins {topology.num_cards} cards, "
                f"the server has {self.num_cards}"
            )
        return self
