"""The capacity decision: which servers, racks and serving instances carry a workload (5, 7)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instances.building import DomainKind
from instances.formats import Frozen
from instances.names import check_once
from instances.quantity import PositiveSeconds, Share

#: What a capacity decision may make small, or, those of `MAXIMISED_GOALS`, large.
CapacityGoal = Literal[
    "price_per_hour",
    "price_per_on_time_session",
    "price_per_million_tokens",
    "servers",
    "racks",
    "cards",
    "power",
    "energy",
    "sessions",
    "worst_case_sessions",
    "expected_sessions",
]
MAXIMISED_GOALS = frozenset({"sessions", "worst_case_sessions", "expected_sessions"})

#: Quotients: they may stand last only, since what comes after would have to keep them exactly.
RATIO_GOALS = frozenset({"price_per_on_time_session", "price_per_million_tokens"})

#: Goals for which `period_s` must be known.
PERIOD_GOALS = RATIO_GOALS | {"energy"}

#: Goals that look at failures.
FAILURE_GOALS = frozenset({"worst_case_sessions", "expected_sessions"})


class FailureCase(Frozen):
    """Any one domain of a kind is lost before the start, and sessions are dealt anew.

    What is left must serve at least `min_on_time_fraction` of every cohort on time; null asks for
    as much as without a failure, 0 for nothing. `probability` is that of losing one given domain.
    """

    kind: DomainKind
    min_on_time_fraction: Share | None = None
    probability: Share | None = None

    @model_validator(mode="after")
    def _are_shares(self) -> FailureCase:
        for field in ("min_on_time_fraction", "probability"):
            value = getattr(self, field)
            if value is not None and value > 1:
                raise ValueError(f"{field} cannot exceed 1 (100%)")
        return self


class CapacityDecision(Frozen):
    """Choose servers, racks and serving instances for all cohorts of all models.

    `goals` come most important first. Sessions that a plan takes end on time, by their deadline and
    within `period_s`, for which prices and energy are counted; the others are turned away, as far
    as minimum fractions allow. A plan must withstand every one of `failures`, one at a time.
    """

    goals: tuple[CapacityGoal, ...] = Field(min_length=1, max_length=8, strict=False)
    period_s: PositiveSeconds | None = None
    failures: tuple[FailureCase, ...] = Field(default=(), max_length=5, strict=False)

    @model_validator(mode="after")
    def _goals_can_be_measured(self) -> CapacityDecision:
        if len(set(self.goals)) != len(self.goals):
            raise ValueError("goals: each goal may appear once")
        for goal in self.goals:
            if goal in RATIO_GOALS and goal != self.goals[-1]:
                raise ValueError(f"goals: {goal!r} is a quotient and may stand last only")
            if goal in PERIOD_GOALS and self.period_s is None:
                raise ValueError(f"goals: {goal!r} is counted over period_s, which is null")
            if goal in FAILURE_GOALS and not self.failures:
                raise ValueError(f"goals: {goal!r} needs at least one kind in failures")
        check_once((case.kind for case in self.failures), "failures: kind")
        if "expected_sessions" in self.goals:
            for i, case in enumerate(self.failures):
                if case.kind == "card":
                    raise ValueError(
                        f"failures[{i}]: goal 'expected_sessions' is not for single cards; "
                        f"give servers, racks, power supplies or switches"
                    )
                if case.probability is None:
                    raise ValueError(
                        f"failures[{i}].probability is null; goal 'expected_sessions' needs it"
                    )
        return self
