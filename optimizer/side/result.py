"""The result document of a smaller decision."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import ConfigDict, Field

from instances.decisions import SideName
from optimizer.result import CertificateDocument, Document, ObjectiveDocument, ViolationDocument
from optimizer.side.accounts import (
    CardPair,
    ExpertGroupDocument,
    LinkLoadDocument,
    MixAcceleratorDocument,
    MixBucketDocument,
    MixDocument,
    PhaseDocument,
    RingDocument,
    SliceDocument,
    SlicePlaceDocument,
    StageDocument,
)
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    CapacityDocument,
    NotUsedDocument,
)
from optimizer.side.pool_accounts import PoolAccountDocument, PoolPlanDocument
from optimizer.side.supernode_accounts import SupernodeAccountDocument, SupernodePlanDocument
from optimizer.side.tier_accounts import TierAccountDocument, TierPlanDocument

__all__ = [
    "ExpertGroupDocument",
    "SideEvaluationDocument",
    "SidePlanDocument",
    "SideResultDocument",
    "StageDocument",
]


class SidePlanDocument(Document):
    """The decision itself, in the field of its name.

    Layers of each stage; the groups that hold each expert; server and card of each rank, with the
    algorithm of each phase (none: the fastest); the place of each slice, null for none; a ring;
    accelerators of each kind and what they serve; servers, racks and serving instances.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sentence: str = ""
    stages: list[int] | None = None
    experts: list[list[int]] | None = None
    placement: list[CardPair] | None = None
    algorithms: list[str] | None = None
    slices: list[SlicePlaceDocument | None] | None = None
    ring_order: RingDocument | None = None
    mix: MixDocument | None = None
    capacity: CapacityDocument | None = None
    pool: PoolPlanDocument | None = None
    tiers: TierPlanDocument | None = None
    supernode: SupernodePlanDocument | None = None


class SideEvaluationDocument(Document):
    """The exact evaluator's account.

    `balance` is busiest over average load of expert groups. What ends in `_before` is of the plain
    answer: experts in index order, ranks on free cards in order, slices where they fit first, the
    ring in card order, one kind of accelerator alone.
    """

    stages: list[StageDocument] = Field(default_factory=list)
    groups: list[ExpertGroupDocument] = Field(default_factory=list)
    phases: list[PhaseDocument] = Field(default_factory=list)
    phases_before: list[PhaseDocument] = Field(default_factory=list)
    slices: list[SliceDocument] = Field(default_factory=list)
    free_chips: int | None = None
    links: list[LinkLoadDocument] = Field(default_factory=list)
    links_before: list[LinkLoadDocument] = Field(default_factory=list)
    accelerators: list[MixAcceleratorDocument] = Field(default_factory=list)
    buckets: list[MixBucketDocument] = Field(default_factory=list)
    capacity: CapacityAccountDocument | None = None
    pool: PoolAccountDocument | None = None
    tiers: TierAccountDocument | None = None
    supernode: SupernodeAccountDocument | None = None
    balance: float | None = None
    balance_before: float | None = None
    value_before: float | None = None
    saved: float | None = None
    violations: list[ViolationDocument]


class SideResultDocument(Document):
    """Everything a solve of a smaller decision found out; `then` are further objectives.

    `not_used` says of capacity why other candidates are not in the plan.
    """

    schema_version: Literal[1] = 1
    instance: str
    decision: SideName
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    limit: Literal["time", "interrupted", "size", "second_opinion"] | None
    reason: str
    objective: ObjectiveDocument
    then: list[ObjectiveDocument] = Field(default_factory=list)
    plan: SidePlanDocument | None
    evaluation: SideEvaluationDocument | None
    not_used: NotUsedDocument | None = None
    certificate: CertificateDocument
    seconds: float

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
