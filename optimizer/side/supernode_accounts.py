"""Parts of the documents of decision "supernode": the plan, its account, and why others lose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from optimizer.result import Document

#: Whole numbers of a plan; what they mean together is the evaluator's to judge.
Count = Annotated[int, Field(ge=-(10**12), le=10**12)]
TablePlaceText = Literal["none", "hbm", "host"]


class SupernodePlanDocument(Document):
    """Cards of a supernode, where tables are, how many cards share attention, and sessions.

    `sessions` counts those of a group of `attention_tp` cards: of a card where that is 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: Count
    tables: TablePlaceText
    attention_tp: Count = 1
    sessions: Count


class SupernodeStepDocument(Document):
    """What a step's time is made of.

    It is the longer of reading and computing, then exchanges, then what of the lookup of rows is
    longer than the layers before the first with a table (`hidden`). Seconds; `…_exact` as written.
    """

    read_bytes: float
    read_s: float
    read_exact: str
    compute_s: float
    compute_exact: str
    exchange_s: float
    exchange_exact: str
    lookup_s: float
    lookup_exact: str
    hidden_s: float
    excess_s: float
    step_s: float
    step_exact: str


class SupernodeOptionDocument(Document):
    """One option at its best: memory of a card, the step, and why it is not the plan.

    `max_sessions` fit in memory, `sessions` are served at its best. `value` is in the unit of the
    objective; `behind` says by how much it is worse than the plan, `times` how many times.
    `same_sessions_value` is its value with the plan's sessions a card, were memory large enough.
    `decided_by` is null for the plan; "capacity", "speed", "target", "none", or a broken rule.
    """

    size: int
    num_instances: int
    tables: TablePlaceText
    attention_tp: int
    is_asked: bool
    is_chosen: bool
    weight_bytes: int
    replicated_bytes: int
    expert_bytes: int
    table_bytes: int
    host_bytes: int
    max_sessions: int
    sessions: int
    sessions_per_card: float
    step: SupernodeStepDocument
    tokens_per_s_per_card: float
    tokens_per_s_per_card_exact: str
    is_legal: bool
    value: float | None
    value_exact: str | None
    behind: float | None
    times: float | None
    same_sessions_value: float | None
    decided_by: str | None
    why: str


class SupernodeAccountDocument(Document):
    """The evaluator's account of a plan.

    `reads_per_step` rows of tables are looked up by a card in a step. `on_time` sessions are taken
    of those asked for, `end_s` is when the last ends; null where sessions are not followed.
    `options` is empty where there are too many plans to compare.
    """

    num_cards: int
    num_instances: int
    capacity_bytes: int
    workspace_bytes: int
    session_bytes: int
    used_bytes: int
    weight_bytes: int
    host_bytes: int
    sessions_per_card: float
    tokens_per_s_per_card: float
    user_tokens_per_s: float
    reads_per_step: int
    step: SupernodeStepDocument
    on_time: int | None = None
    end_s: float | None = None
    end_exact: str | None = None
    options: list[SupernodeOptionDocument]
    notes: list[str]
