"""What must be served: cohorts of identical decode sessions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from instances.formats import Frozen
from instances.hardware import Name
from instances.names import check_once
from instances.quantity import PositiveSeconds, Seconds, Share

#: Sessions are placed one by one, except where capacity is decided: a workload of more than this
#: is refused elsewhere.
MAX_SESSIONS = 100_000


class Cohort(Frozen):
    """`num_sessions` identical sessions.

    Each holds the KV of `context_tokens`, reads a prompt of `prompt_tokens` more and generates
    `new_tokens`. `release_s` and `deadline_s` are measured from the start of the plan (time 0), not
    from each other.

    Where capacity is decided, a cohort may name its `model` (null: the instance's first), the
    `pools` that may serve it (null: all), and a `min_on_time_fraction` of its own (null: that of
    the workload, which each cohort must reach there).
    """

    name: Name
    num_sessions: int = Field(ge=1, le=1_000_000_000)
    context_tokens: int = Field(ge=0, le=1_000_000_000)
    prompt_tokens: int = Field(default=0, ge=0, le=1_000_000_000)
    new_tokens: int = Field(ge=1, le=1_000_000)
    release_s: Seconds = Fraction(0)
    deadline_s: PositiveSeconds | None = None
    model: Name | None = None
    pools: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=64, strict=False)
    min_on_time_fraction: Share | None = None

    @model_validator(mode="after")
    def _deadline_after_release(self) -> Cohort:
        if self.deadline_s is not None and self.deadline_s <= self.release_s:
            raise ValueError("deadline_s must be later than release_s (both count from time 0)")
        return self

    @property
    def held_tokens(self) -> int:
        """Tokens whose KV a session holds when it ends."""
        return self.context_tokens + self.prompt_tokens + self.new_tokens


class Workload(Frozen):
    """All cohorts and the share of their sessions that must end by their deadline.

    `routing` says how a step's tokens choose experts: "balanced" evenly, "expected" independently
    (6-8), "concentrated" all the same ones in one group, "spread" the same ones over all groups;
    measured `expert_counts` of every expert take its place.
    """

    cohorts: tuple[Cohort, ...] = Field(min_length=1, max_length=256, strict=False)
    min_on_time_fraction: Share = Fraction(1)
    routing: Literal["balanced", "expected", "concentrated", "spread"] = "balanced"
    expert_counts: (
        Annotated[
            tuple[Annotated[int, Field(ge=0, le=10**12)], ...],
            Field(strict=False, min_length=1, max_length=100_000),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _valid(self) -> Workload:
        check_once((cohort.name for cohort in self.cohorts), "cohort name")
        if self.expert_counts is not None and not any(self.expert_counts):
            raise ValueError("expert_counts are all 0; leave them out or give what was measured")
        if self.min_on_time_fraction > 1:
            raise ValueError("min_on_time_fraction cannot exceed 1 (100%)")
        return self

    @property
    def num_sessions(self) -> int:
        """Sessions of all cohorts."""
        return sum(cohort.num_sessions for cohort in self.cohorts)

    @property
    def min_on_time_sessions(self) -> int:
        """Fewest sessions that may end on time, the fraction rounded up to whole sessions."""
        return math.ceil(self.min_on_time_fraction * self.num_sessions)
