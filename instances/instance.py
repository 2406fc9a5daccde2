"""The problem instance: one frozen, versioned document that holds everything a solve depends on."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from instances.catalog_store import reference
from instances.fleet import Fault, Fleet
from instances.model import Frozen, ModelSpec
from instances.quantity import Bytes, Share
from instances.workload import Workload

#: More faults than this on distinct cards would double the kinds of serving instance each time.
MAX_FAULTED_CARDS = 8

CollectiveName = Literal["ring", "tree", "measured"]
ObjectiveName = Literal[
    "makespan",
    "max_latency",
    "mean_completion",
    "cost_per_on_time_session",
    "occupied_card_seconds",
    "energy",
    "cards",
]


class Runtime(Frozen):
    """What the serving engine takes of every card besides weights and KV."""

    workspace_bytes: Bytes = 2 * 2**30
    usable_memory_fraction: Share = Fraction(1)

    @model_validator(mode="after")
    def _at_most_all(self) -> Runtime:
        if not 0 < self.usable_memory_fraction <= 1:
            raise ValueError("usable_memory_fraction must be above 0 and at most 1 (100%)")
        return self


class Search(Frozen):
    """Which plans may be considered.

    `deployment` "uniform" means equal serving instances that fill all cards, laid out one after
    another; "mixed" means any serving instances anywhere. `dispatch` "round_robin" gives session j
    (by release, then cohort) to serving instance j mod n; "optimised" leaves that to the solver.
    `tp` null allows every degree that the model and the fleet allow.
    """

    tp: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] | None = Field(
        default=None, strict=False
    )
    collectives: tuple[CollectiveName, ...] = Field(
        default=("ring", "tree", "measured"), strict=False
    )
    deployment: Literal["uniform", "mixed"] = "mixed"
    dispatch: Literal["round_robin", "optimised"] = "optimised"

    @field_validator("tp", "collectives")
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError("must list at least one value, each once")
        return value


class Objective(Frozen):
    """What to minimise, most important first, and who pays for idle cards.

    `billing` "fleet" bills every card of the fleet from time 0 until the last session ends;
    "instance" bills each serving instance's cards until its own last session ends.
    """

    minimise: tuple[ObjectiveName, ...] = Field(min_length=1, strict=False)
    billing: Literal["fleet", "instance"] = "fleet"

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


Model = Annotated[ModelSpec, reference("models", ModelSpec)]


class Instance(Frozen):
    """One placement problem: model, fleet, workload, limits of the search, objective, faults."""

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=120)
    description: str = ""
    model: Model
    fleet: Fleet
    workload: Workload
    runtime: Runtime = Runtime()
    search: Search = Search()
    objective: Objective
    faults: tuple[Fault, ...] = Field(default=(), max_length=64, strict=False)

    @field_validator("schema_version", mode="before")
    @classmethod
    def _version_is_a_number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("must be the number 1")
        return value

    @model_validator(mode="after")
    def _faults_exist(self) -> Instance:
        pools = {pool.name: pool for pool in self.fleet.pools}
        for i, fault in enumerate(self.faults):
            pool = pools.get(fault.pool or self.fleet.pools[0].name)
            if pool is None:
                raise ValueError(f"faults[{i}].pool: no pool is named {fault.pool!r}")
            if fault.server >= pool.num_servers or fault.card >= pool.server.num_cards:
                raise ValueError(
                    f"faults[{i}]: pool {pool.name!r} has servers 0..{pool.num_servers - 1} with "
                    f"cards 0..{pool.server.num_cards - 1}, not server {fault.server} "
                    f"card {fault.card}"
                )
        first = self.fleet.pools[0].name
        cards = {(fault.pool or first, fault.server, fault.card) for fault in self.faults}
        if len(cards) > MAX_FAULTED_CARDS:
            raise ValueError(
                f"faults name {len(cards)} cards; at most {MAX_FAULTED_CARDS} may fail"
            )
        return self

    @model_validator(mode="after")
    def _peaks_are_known(self) -> Instance:
        number_format = self.model.formats.weights
        for i, pool in enumerate(self.fleet.pools):
            accelerator = pool.server.accelerator
            if accelerator.peak(number_format) is None:
                raise ValueError(
                    f"fleet.pools[{i}].server.accelerator.peak_flops_per_s has no "
                    f"{number_format!r} peak for {accelerator.name!r}, which the model's weights "
                    f"need; add it inline"
                )
        return self

    @model_validator(mode="after")
    def _energy_needs_power(self) -> Instance:
        if "energy" in self.objective.minimise:
            for i, pool in enumerate(self.fleet.pools):
                if pool.server.power_w is None:
                    raise ValueError(
                        f"objective 'energy' needs fleet.pools[{i}].server.power_w, which is null"
                    )
        return self

    @property
    def min_on_time_sessions(self) -> int:
        """Fewest sessions that must end on time; a cost per on-time session needs at least one."""
        wanted = self.workload.min_on_time_sessions
        return max(1, wanted) if "cost_per_on_time_session" in self.objective.minimise else wanted

    def canonical_json(self) -> str:
        """Return the document as JSON with sorted keys and exact values: equal iff equal."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def sha256(self) -> str:
        """Return the hexadecimal SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
