"""The result document: what a solve prints as JSON. Stable; described in the README."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from optimizer.frame import to_dataframe


class Document(BaseModel):
    """Base of the parts of a result document."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ParallelDocument(Document):
    """Parallel degrees of a serving instance."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sp: int = 1
    dcp: int = 1
    attention_copies: int = 1
    redundant_experts: int = 0


class ObjectiveDocument(Document):
    """One objective: what the solver claimed and what the evaluator computed are two fields.

    `gap` is |verified - bound| / |verified|, null when a side is missing; `*_exact` are fractions.
    """

    name: str
    unit: str
    direction: Literal["minimise", "maximise"] = "minimise"
    claimed: float | None
    verified: float | None
    verified_exact: str | None
    bound: float | None
    bound_exact: str | None
    gap: float | None


class PlacementDocument(Document):
    """Cards of one serving instance in one server."""

    server: int
    cards: list[int]


class GroupDocument(Document):
    """`count` consecutive equal serving instances, one `placement` and `sessions` entry each.

    `stages` counts the layers of each pipeline stage, empty for one. `lanes` gives the lane of each
    session; empty deals the sessions of an instance to its lanes in turn.
    """

    count: int = Field(ge=1)
    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    collective: str
    cards_per_instance: int
    placement: list[list[PlacementDocument]]
    sessions: list[list[str]]
    lanes: list[list[int]] = Field(default_factory=list)


class PlanDocument(Document):
    """A plan; `supernode verify` reads it back, alone or inside a result."""

    sentence: str = ""
    num_cards: int | None = None
    groups: list[GroupDocument]


class SessionDocument(Document):
    """One session's outcome; seconds from time 0."""

    session: str
    instance: int | None
    start_s: float | None
    finish_s: float | None
    finish_exact: str | None
    deadline_s: float | None
    on_time: bool
    restarts: int


class CardDocument(Document):
    """Bytes on one card."""

    pool: str
    server: int
    card: int
    instance: int
    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    total_bytes: int
    capacity_bytes: int


class ViolationDocument(Document):
    """One broken rule and by how much."""

    rule: str
    where: str
    amount: float
    unit: str
    message: str


class EvaluationDocument(Document):
    """The exact evaluator's account of the plan."""

    sessions: list[SessionDocument]
    makespan_s: float | None
    max_latency_s: float | None
    mean_completion_s: float | None
    occupied_card_s: float | None
    energy_j: float | None
    cost_per_on_time_session: float | None
    num_on_time: int
    num_cards: int
    held_sessions: int | None = None
    kv_bytes_per_token: int
    cards: list[CardDocument]
    violations: list[ViolationDocument]


class CandidateDocument(Document):
    """One candidate deployed alone: as many equal serving instances as fit.

    `value` is the first objective of that deployment, null where it cannot run.
    """

    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    num_servers: int
    collective: str | None
    instances: int | None
    card_bytes: int | None
    session_s: list[float] | None
    makespan_s: float | None
    num_on_time: int | None
    value: float | None
    verdict: Literal["chosen", "possible", "rejected"]
    rule: str | None
    reason: str


class RejectionDocument(Document):
    """Why a candidate is not the plan: the rule, and by how much."""

    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    num_servers: int
    collective: str | None
    rule: str
    amount: float
    unit: str
    message: str


class ThresholdDocument(Document):
    """How far one input must move before a rejected candidate is admitted."""

    input: Literal["deadline_s", "memory_bytes", "cache_bytes", "max_setup_s"]
    pool: str
    parallel: ParallelDocument
    stages: list[int] = Field(default_factory=list)
    batch: int = 1
    micro_batches: int = 1
    num_servers: int
    collective: str | None
    change: float
    value: float | None
    value_exact: str | None
    unit: str
    message: str


class SecondOpinionDocument(Document):
    """Who checked the optimum besides the solver; `agrees` is null when nobody could."""

    method: str
    agrees: bool | None
    detail: str


class CertificateDocument(Document):
    """What another program needs to check the result."""

    instance_sha256: str
    plan_sha256: str | None
    solver: str | None
    solver_version: str | None
    second_opinion: SecondOpinionDocument
    seed: int
    threads: int
    versions: dict[str, str]


class AlternativeDocument(Document):
    """One deployment and the best it can do.

    `over` is how much worse than the best, as a share of it. `low` and `high` are the value with
    every measured time at the lower and upper end of its spread; `inside_spread` marks a plan that
    the measurements cannot tell from the best one.
    """

    sentence: str
    value: float
    value_exact: str
    over: float
    low: float | None
    high: float | None
    inside_spread: bool
    proof: str
    plan: PlanDocument


class AlternativesDocument(Document):
    """Every deployment within a margin of the optimum, best first.

    Two plans are the same deployment when they have equally many serving instances of each kind;
    each is shown with its best dispatch. `is_complete` says that no other deployment is within the
    margin: with all of these excluded, two methods find nothing.
    """

    kind: Literal["alternatives"] = "alternatives"
    schema_version: Literal[1] = 1
    instance: str
    instance_sha256: str
    objective: str
    unit: str
    within: float
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    is_complete: bool
    reason: str
    alternatives: list[AlternativeDocument]

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def to_dataframe(self) -> Any:
        """Return one row per deployment; raises ImportError where pandas is missing."""
        rows = [item.model_dump(mode="json", exclude={"plan"}) for item in self.alternatives]
        return to_dataframe(rows)


class ResultDocument(Document):
    """Everything a solve found out; `near_optimal` where it was asked for."""

    schema_version: Literal[1] = 1
    instance: str
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    limit: Literal["time", "interrupted", "size", "second_opinion"] | None
    reason: str
    objective: ObjectiveDocument
    then: list[ObjectiveDocument]
    plan: PlanDocument | None
    evaluation: EvaluationDocument | None
    candidates: list[CandidateDocument]
    rejected: list[RejectionDocument]
    thresholds: list[ThresholdDocument]
    certificate: CertificateDocument
    near_optimal: AlternativesDocument | None = None
    seconds: float

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
