"""Smaller decisions an instance may ask for in place of a deployment (sections 6.2.5, 6.3.2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from instances.formats import Frozen
from instances.quantity import Bytes

Degree = Annotated[int, Field(ge=1, le=100_000)]


class StageDecision(Frozen):
    """Cut the model's layers into `num_stages` pipeline stages of tp · cp · dp cards each.

    `goal` "tokens" lets most tokens of context fit on every stage; "slowest" makes the slowest
    stage of a full decode step fastest. `pools` names the pool of each stage in order; null puts
    all on the first. Every stage must hold the workload's sessions with their tokens.
    """

    num_stages: Degree
    goal: Literal["tokens", "slowest"] = "tokens"
    tp: Degree = 1
    cp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    batch: Degree = 1
    pools: tuple[str, ...] | None = Field(default=None, strict=False)


class ExpertDecision(Frozen):
    """Place the experts of one layer on `ep` groups of `group_cards` cards each.

    `workload.expert_counts` says how often each was chosen. An expert may stand on up to
    `max_copies` groups; all copies of the layer beyond the first of each expert may take
    `replica_budget_bytes` together, counted on one card of their group. `uneven`
    groups may hold different numbers of experts. `layer_group` names the layers meant,
    null those of the only mixture of experts.
    """

    ep: Degree
    group_cards: Degree = 1
    max_copies: Annotated[int, Field(ge=1, le=64)] = 1
    replica_budget_bytes: Bytes = 0
    uneven: bool = True
    layer_group: str | None = None
