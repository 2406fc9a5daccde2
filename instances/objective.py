"""What a deployment is optimised for, and what it may take at most."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from instances.budget import Budget
from instances.formats import Frozen

ObjectiveName = Literal[
    "makespan",
    "max_latency",
    "mean_completion",
    "cost_per_on_time_session",
    "occupied_card_seconds",
    "energy",
    "cards",
]


class Objective(Frozen):
    """What to optimise, most important first, and who pays for idle cards.

    `maximise` "held_sessions" comes before all else: the sessions of the only cohort whose caches
    fit on the fleet at once. `billing` "fleet" bills every card of the fleet from time 0 until the
    last session ends; "instance" bills each serving instance's cards until its own last session
    ends. `at_most` limits what any plan may take, whatever is optimised.
    """

    maximise: Literal["held_sessions"] | None = None
    minimise: tuple[ObjectiveName, ...] = Field(default=(), strict=False)
    billing: Literal["fleet", "instance"] = "fleet"
    at_most: Budget = Budget()

    @field_validator(
        "minimise", mode="before", json_schema_input_type=ObjectiveName | list[ObjectiveName]
    )
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("minimise")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("each objective may appear once")
        return value

    @model_validator(mode="after")
    def _something(self) -> Objective:
        if not self.names:
            raise ValueError("minimise must list at least one objective, unless maximise has one")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All objectives, most important first."""
        return (*((self.maximise,) if self.maximise else ()), *self.minimise)
