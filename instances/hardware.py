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

Name = Annotated[str, Field(min_length=1, max_length=120)]


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
    """A measured latency table of one operation on one arrangement of ranks.

    A size between two rows takes the time of the next larger row, as section 6.5.1 does; a size
    beyond the last row is not covered.
    """

    name: Name
    operation: Literal["all_reduce"] = "all_reduce"
    ranks: int = Field(ge=2, le=1_000_000)
    servers: int = Field(ge=1, le=1_000_000)
    policy: Literal["next_larger_size"] = "next_larger_size"
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
    """A network that joins cards: fixed time per round, one-way bandwidth per card."""

    name: Name
    alpha_s: Seconds
    bandwidth_bytes_per_s: PositiveBytesPerSecond
    measured: tuple[Measured, ...] = Field(default=(), strict=False)
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
