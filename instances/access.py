"""How memory is reached: a path's bandwidth, and the reads that may be under way on it (6-12)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import Field, model_validator

from instances.formats import Frozen
from instances.quantity import PositiveBytes, PositiveBytesPerSecond, Seconds

InFlight = Annotated[int, Field(ge=1, le=10**9)]


class Access(Frozen):
    """A way to memory: `bandwidth_bytes_per_s`, and what each read waits for.

    At most `in_flight` reads of `transaction_bytes` are under way at once, each for `round_trip_s`;
    null stands for as many as the bandwidth needs.
    """

    bandwidth_bytes_per_s: PositiveBytesPerSecond
    round_trip_s: Seconds = Fraction(0)
    in_flight: InFlight | None = None
    transaction_bytes: PositiveBytes | None = None

    @model_validator(mode="after")
    def _window_is_whole(self) -> Access:
        if self.in_flight is not None and (self.transaction_bytes is None or not self.round_trip_s):
            raise ValueError("in_flight needs transaction_bytes and a round_trip_s above 0")
        return self
