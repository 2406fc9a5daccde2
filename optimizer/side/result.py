"""The result document of a smaller decision: a pipeline cut or an expert placement."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import ConfigDict, Field

from optimizer.result import CertificateDocument, Document, ObjectiveDocument, ViolationDocument


class StageDocument(Document):
    """One pipeline stage: its layers, the bytes on each of its cards, its tokens and time.

    `max_tokens` is null where tokens take no memory; `reads_layers` are layers of other stages
    whose cache it reads.
    """

    pool: str
    first_layer: int
    num_layers: int
    weights_bytes: int
    other_bytes: int
    kv_bytes: int
    state_bytes: int
    total_bytes: int
    capacity_bytes: int
    max_tokens: int | None
    time_s: float
    time_exact: str
    reads_layers: list[int]


class ExpertGroupDocument(Document):
    """One expert group: its experts, their bytes on a card, its assignments and time."""

    experts: list[int]
    load: float
    load_exact: str
    active_experts: int
    resident_bytes: int
    capacity_bytes: int
    time_s: float


class SidePlanDocument(Document):
    """The decision itself: layers of each stage, or the groups that hold each expert."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sentence: str = ""
    stages: list[int] | None = None
    experts: list[list[int]] | None = None


class SideEvaluationDocument(Document):
    """The exact evaluator's account; `balance` is busiest over average load of expert groups."""

    stages: list[StageDocument] = Field(default_factory=list)
    groups: list[ExpertGroupDocument] = Field(default_factory=list)
    balance: float | None = None
    balance_before: float | None = None
    value_before: float | None = None
    violations: list[ViolationDocument]


class SideResultDocument(Document):
    """Everything a solve of a smaller decision found out."""

    schema_version: Literal[1] = 1
    instance: str
    decision: Literal["stages", "experts"]
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    limit: Literal["time", "interrupted", "size", "second_opinion"] | None
    reason: str
    objective: ObjectiveDocument
    plan: SidePlanDocument | None
    evaluation: SideEvaluationDocument | None
    certificate: CertificateDocument
    seconds: float

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
