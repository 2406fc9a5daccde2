"""Measured times that take the place of modelled ones, and how far they spread."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, get_args

from pydantic import Field, field_validator, model_validator

from instances.collectives import COLLECTIVE_SEPARATOR, CollectiveName
from instances.formats import Frozen
from instances.hardware import Name
from instances.quantity import PositiveSeconds, Seconds

Degree = Annotated[int, Field(ge=1, le=100_000)]


class MeasuredSession(Frozen):
    """What one session of a cohort took on a serving instance of a kind, all lanes being busy.

    It is the whole time on a lane: prompt, pipeline fill and all new tokens. Degrees that are left
    out are 1; what is null (`pool`, `num_servers`, `collective`, `cohort`) matches everything. Of
    several matches the first counts. `spread_s` is how far the time may be off either way.
    """

    pool: Name | None = None
    cohort: Name | None = None
    num_servers: int | None = Field(default=None, ge=1)
    collective: str | None = None
    tp: Degree = 1
    pp: Degree = 1
    cp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    sp: Degree = 1
    dcp: Degree = 1
    attention_copies: Degree = 1
    batch: Degree = 1
    micro_batches: Degree = 1
    session_s: PositiveSeconds
    spread_s: Seconds = Fraction(0)

    source: str = ""

    @field_validator("collective")
    @classmethod
    def _exists(cls, value: str | None) -> str | None:
        """One collective, several joined as in a plan's, or "none" on a single card."""
        names = get_args(CollectiveName)
        if value not in (None, "none") and set(value.split(COLLECTIVE_SEPARATOR)) - set(names):
            raise ValueError(
                f'must be "none", one of {", ".join(names)}, or several joined by '
                f'"{COLLECTIVE_SEPARATOR}"'
            )
        return value

    @model_validator(mode="after")
    def _spread_is_smaller(self) -> MeasuredSession:
        if self.spread_s >= self.session_s:
            raise ValueError("spread_s must be less than session_s")
        return self
