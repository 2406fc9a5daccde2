"""The problem instance: one frozen, versioned document that holds everything a solve depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from instances.capacity import CapacityDecision
from instances.capacity_rules import check_capacity, check_without_capacity
from instances.catalog_store import reference
from instances.collectives import COLLECTIVE_SEPARATOR, CollectiveName
from instances.decisions import (
    SECTIONS,
    SELF_CONTAINED,
    DecisionName,
    ExpertDecision,
    MixDecision,
    PlacementDecision,
    RingOrderDecision,
    SliceDecision,
    StageDecision,
)
from instances.engine import TEXTBOOK, Engine
from instances.fleet import Fault, Fleet
from instances.formats import Frozen
from instances.measurements import MeasuredSession
from instances.model import DENSE_FIELDS, ModelSpec
from instances.objective import Objective
from instances.pooling import PoolDecision
from instances.quantity import Bytes, Share
from instances.supernode import SupernodeDecision
from instances.tiers import TierDecision
from instances.topology import is_uniform
from instances.workload import Workload

#: More faults than this on distinct cards would double the kinds of serving instance each time.
MAX_FAULTED_CARDS = 8

Degrees = tuple[Annotated[int, Field(ge=1, le=100_000)], ...]


class Runtime(Frozen):
    """What the serving engine takes of every card besides weights and caches, and how it is timed.

    `workspace_bytes` covers what is not declared apart: buffers of collectives, room to migrate a
    replica, and activations, which count by the step's tokens and the micro-batches in flight once
    `count_activations` is set, twice with `double_buffers`. `loaded_parts` names side parts of the
    model (MTP, vision) that are kept on the cards. `roofline` "step" compares all computing of a
    step with all its reading (6-5); "operator" does so operator by operator (6-2).
    """

    workspace_bytes: Bytes = 2 * 2**30
    collective_buffer_bytes: Bytes = 0
    migration_bytes: Bytes = 0
    count_activations: bool = False
    double_buffers: bool = False
    usable_memory_fraction: Share = Fraction(1)
    loaded_parts: tuple[str, ...] = Field(default=(), strict=False)
    roofline: Literal["step", "operator"] = "step"

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
    Each parallel degree has a list of values, null for every one that model, engine and fleet
    allow. `batch` sessions share a step in each attention group; `micro_batches` such batches are
    in flight in a pipeline. `stage_cut` "best" cuts the layers so that most tokens fit, "even"
    gives stages equally many layers. `kv_sharing` says what a stage does whose layers read the
    cache of an earlier stage's: hold a "copy", or read it there ("remote"); "same_stage" forbids
    the cut. A serving instance reduces with one of `collectives`, or, `per_message`, with the
    fastest of them for each message's size.
    """

    tp: Degrees | None = Field(default=None, strict=False)
    pp: Degrees | None = Field(default=(1,), strict=False)
    ep: Degrees | None = Field(default=(1,), strict=False)
    cp: Degrees | None = Field(default=(1,), strict=False)
    dp: Degrees | None = Field(default=(1,), strict=False)
    dcp: Degrees | None = Field(default=(1,), strict=False)
    attention_copies: Degrees | None = Field(default=(1,), strict=False)
    sequence_parallel: bool = False
    batch: Degrees = Field(default=(1,), strict=False)
    micro_batches: Degrees = Field(default=(1,), strict=False)
    stage_cut: Literal["best", "even"] = "best"
    kv_sharing: Literal["copy", "remote", "same_stage"] = "copy"
    redundant_experts: bool = False
    collectives: tuple[CollectiveName, ...] = Field(
        default=("ring", "tree", "measured", "hierarchical"), strict=False
    )
    collective_choice: Literal["per_plan", "per_message"] = "per_plan"
    deployment: Literal["uniform", "mixed"] = "mixed"
    dispatch: Literal["round_robin", "optimised"] = "optimised"

    @field_validator(
        "tp",
        "pp",
        "ep",
        "cp",
        "dp",
        "dcp",
        "attention_copies",
        "batch",
        "micro_batches",
        "collectives",
    )
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError("must list at least one value, each once")
        return value

    @property
    def collective_options(self) -> tuple[str, ...]:
        """What a serving instance may reduce with: one collective, or all of them by message."""
        if self.collective_choice == "per_plan":
            return self.collectives
        return (COLLECTIVE_SEPARATOR.join(self.collectives),)


#: A dense decoder without groups, and a Hugging Face configuration, as a JSON Schema knows them.
DenseForm = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 1} for name in DENSE_FIELDS},
            "required": ["name", "hidden_size", "vocab_size", *DENSE_FIELDS],
        }
    ),
]
HuggingFaceForm = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"huggingface": {"type": "string"}},
            "required": ["huggingface"],
        }
    ),
]
Model = Annotated[ModelSpec, reference("models", ModelSpec, DenseForm, HuggingFaceForm)]


def _only_deployments_need_objectives(schema: dict[str, Any]) -> None:
    """Say so in the JSON Schema: the smaller decisions have goals of their own."""
    for field in ("objective", "model", "fleet", "workload"):
        schema["required"].remove(field)

    def decides(names: Iterable[str]) -> dict[str, Any]:
        return {"properties": {"decision": {"enum": list(names)}}, "required": ["decision"]}

    either = [{"required": ["model"]}, {"required": ["models"]}]  # the first of which it is
    served = {"required": ["fleet", "workload"], "anyOf": either}
    schema["allOf"] = [
        {"if": decides(SECTIONS), "else": {"required": ["objective"]}},
        {"if": decides(SELF_CONTAINED), "else": served},
    ]


class Instance(Frozen):
    """One placement problem: model, fleet, workload, limits of the search, objective, faults.

    `decision` "deployment" asks for serving instances; every other one asks for a smaller decision,
    which the section of that name describes.
    """

    model_config = ConfigDict(json_schema_extra=_only_deployments_need_objectives)

    schema_version: Literal[1] = 1
    decision: DecisionName = "deployment"
    name: str = Field(min_length=1, max_length=120)
    description: str = ""
    model: Model
    models: tuple[Model, ...] = Field(default=(), max_length=64, strict=False)
    fleet: Fleet
    workload: Workload
    runtime: Runtime = Runtime()
    engine: Engine = TEXTBOOK
    search: Search = Search()
    objective: Objective
    faults: tuple[Fault, ...] = Field(default=(), max_length=64, strict=False)
    measurements: tuple[MeasuredSession, ...] = Field(default=(), max_length=4096, strict=False)
    stages: StageDecision | None = None
    experts: ExpertDecision | None = None
    placement: PlacementDecision | None = None
    slices: SliceDecision | None = None
    ring_order: RingOrderDecision | None = None
    mix: MixDecision | None = None
    capacity: CapacityDecision | None = None
    pool: PoolDecision | None = None
    tiers: TierDecision | None = None
    supernode: SupernodeDecision | None = None

    @model_validator(mode="before")
    @classmethod
    def _side_decisions_have_their_own_goal(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("decision") in tuple(SECTIONS):
            listed = data.get("models")
            first = {"model": listed[0]} if isinstance(listed, list | tuple) and listed else {}
            return {"objective": {"minimise": ["makespan"]}, **first, **data}
        return data

    @model_validator(mode="after")
    def _decision_is_described(self) -> Instance:
        for section in SECTIONS:
            is_given = getattr(self, section) is not None
            if is_given != (self.decision == section):
                rule = f"goes with decision {section!r}, and only with it"
                raise ValueError(f"section {section!r} {rule}")
        if self.decision == "experts" and self.workload.expert_counts is None:
            raise ValueError("decision 'experts' needs workload.expert_counts")
        if self.stages is not None and self.stages.pools is not None:
            known = {pool.name for pool in self.fleet.pools}
            for i, name in enumerate(self.stages.pools):
                if name not in known:
                    raise ValueError(f"stages.pools[{i}]: no pool is named {name!r}")
            if len(self.stages.pools) != self.stages.num_stages:
                raise ValueError(
                    f"stages.pools names {len(self.stages.pools)} pools for "
                    f"{self.stages.num_stages} stages"
                )
        return self

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
    def _capacity_fits(self) -> Instance:
        (check_without_capacity if self.capacity is None else check_capacity)(self)
        return self

    @model_validator(mode="after")
    def _measurements_name_what_exists(self) -> Instance:
        known = {
            "pool": {pool.name for pool in self.fleet.pools},
            "cohort": {cohort.name for cohort in self.workload.cohorts},
        }
        for i, measured in enumerate(self.measurements):
            for kind, names in known.items():
                name = getattr(measured, kind)
                if name is not None and name not in names:
                    raise ValueError(f"measurements[{i}].{kind}: no {kind} is named {name!r}")
        return self

    @model_validator(mode="after")
    def _peaks_are_known(self) -> Instance:
        if self.decision == "capacity":  # pools that cannot compute a model are left out there
            return self
        number_format = self.model.formats.compute_format
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
    def _capacity_has_one_measure(self) -> Instance:
        if self.objective.maximise is None:
            return self
        if len(self.workload.cohorts) > 1:
            raise ValueError("objective.maximise counts sessions of one cohort; give only one")
        if self.search.deployment != "uniform":
            raise ValueError("objective.maximise needs search.deployment 'uniform'")
        return self

    @model_validator(mode="after")
    def _cards_are_alike_or_named(self) -> Instance:
        if self.decision != "deployment" or self.search.deployment == "uniform":
            return self
        for i, pool in enumerate(self.fleet.pools):
            for topology in pool.topologies:
                if not is_uniform(topology):
                    raise ValueError(
                        f"fleet.pools[{i}] has the topology {topology.name!r}, where it matters "
                        f"which cards a serving instance has; use search.deployment 'uniform'"
                    )
        return self

    @model_validator(mode="after")
    def _parts_and_counts_exist(self) -> Instance:
        models = self.models or (self.model,)
        parts = [part.name for model in models for part in model.parts]
        for name in self.runtime.loaded_parts:
            if name not in parts:
                known = ", ".join(parts) or "no side part"
                raise ValueError(f"runtime.loaded_parts names {name!r}; the model has {known}")
        counts = self.workload.expert_counts
        sizes = {group.ffn.num_experts for group in self.model.groups if group.ffn.kind == "moe"}
        if counts is not None and {len(counts)} != sizes:
            raise ValueError(
                f"workload.expert_counts has {len(counts)} counts; the model's layers have "
                f"{', '.join(map(str, sorted(sizes))) or 'no'} experts"
            )
        return self

    @model_validator(mode="after")
    def _energy_needs_power(self) -> Instance:
        limited = dict(self.objective.at_most.limits())
        if "energy" in (*self.objective.minimise, *limited):
            for i, pool in enumerate(self.fleet.pools):
                if pool.server.power_w is None:
                    raise ValueError(
                        f"energy as an objective or a limit needs fleet.pools[{i}].server.power_w, "
                        f"which is null"
                    )
        return self

    @cached_property
    def known_cuts(self) -> dict[tuple[Any, ...], tuple[int, ...] | None]:
        """Pipeline cuts already worked out for this problem, by what they depend on."""
        return {}

    @property
    def min_on_time_sessions(self) -> int:
        """Fewest sessions that must end on time; a cost per on-time session needs at least one."""
        wanted = self.workload.min_on_time_sessions
        named = (*self.objective.minimise, *dict(self.objective.at_most.limits()))
        return max(1, wanted) if "cost_per_on_time_session" in named else wanted

    def canonical_json(self) -> str:
        """Return the document as JSON with sorted keys and exact values: equal iff equal.

        Sections of other decisions are left out, so that more may come without a change of hashes.
        """
        others = {name for name in map(str, SECTIONS) if name != self.decision}
        data = self.model_dump(mode="json", exclude=others)
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    def sha256(self) -> str:
        """Return the hexadecimal SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
