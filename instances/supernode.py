"""How many cards work together: the section of decision "supernode" (6.7.4)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from instances.access import Access
from instances.formats import Frozen
from instances.quantity import (
    Bytes,
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveRequestsPerSecond,
    PositiveSeconds,
    PricePerHour,
    Seconds,
)

Cards = Annotated[int, Field(ge=1, le=100_000)]
TablePlaceName = Literal["hbm", "host"]
SupernodeGoal = Literal[
    "tokens_per_s_per_card", "sessions_per_card", "user_rate", "cost_per_on_time_session"
]

#: More sizes, or splits of attention, than this are refused.
MAX_CHOICES = 64


class HostTables(Frozen):
    """Memory of the host that may hold lookup tables, as much as there is for each card.

    A card reads it over `access`, at most `max_reads_per_s` rows a second; null is no limit.
    """

    capacity_bytes: Bytes
    access: Access
    max_reads_per_s: PositiveRequestsPerSecond | None = None


class DomainLink(Frozen):
    """What joins domains: the start of a round, and one way's bandwidth of each card."""

    bandwidth_bytes_per_s: PositiveBytesPerSecond
    alpha_s: Seconds


class SupernodeDecision(Frozen):
    """Choose how many cards serve one copy of the model together, and what each of them holds.

    All `num_cards` (null: those of the first pool) form equal supernodes of one of `sizes` cards
    (null: every divisor), each a serving instance of its own. Routed experts and lookup tables are
    dealt to its cards; the rest is on every card, or cut over groups of `attention_tp` cards, which
    share their sessions. Tables are in HBM or on the `host`, one of `tables` (null: HBM).
    Components named in `tables_with` count as part of the tables: dealt out as they are, in HBM
    wherever the tables are, and not read whole in a step.

    Cards of one domain (`domain_cards`; null: any size is one) are joined by the server's fabric;
    bytes for other domains pass `between` (null: the pool's fabric_between). Of both fabrics the
    start of a round and the bandwidth count. Dispatch and combine of a layer with experts are a
    round each, of `bytes_per_number` for each number sent.

    `flops_per_token` and `kv_read_bytes_per_token` are of one token of one session without a split;
    null stands for what the planner counts. `compute_format` names the peak that bounds a step,
    null for that of the model's weights. A step may take `step_target_s`, null for any time, and
    with `lookups_must_hide` rows must arrive before the first layer with a table begins.
    """

    goal: SupernodeGoal = "tokens_per_s_per_card"
    num_cards: Cards | None = None
    sizes: tuple[Cards, ...] | None = Field(
        default=None, min_length=1, max_length=MAX_CHOICES, strict=False
    )
    attention_tp: tuple[Cards, ...] = Field(
        default=(1,), min_length=1, max_length=MAX_CHOICES, strict=False
    )
    tables: tuple[TablePlaceName, ...] | None = Field(
        default=None, min_length=1, max_length=2, strict=False
    )
    tables_with: tuple[Annotated[str, Field(min_length=1, max_length=60)], ...] = Field(
        default=(), max_length=64, strict=False
    )
    host: HostTables | None = None
    domain_cards: Cards | None = None
    between: DomainLink | None = None
    bytes_per_number: Annotated[int, Field(ge=1, le=8)] = 2
    compute_format: str | None = Field(default=None, min_length=1, max_length=20)
    flops_per_token: Annotated[int, Field(ge=1, le=10**18)] | None = None
    kv_read_bytes_per_token: PositiveBytes | None = None
    step_target_s: PositiveSeconds | None = None
    lookups_must_hide: bool = False
    price_per_card_hour: PricePerHour | None = None

    @field_validator("sizes", "attention_tp", "tables", "tables_with")
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("each value may appear once")
        return value

    @model_validator(mode="after")
    def _sizes_divide(self) -> SupernodeDecision:
        for size in self.sizes or ():
            if self.num_cards is not None and self.num_cards % size:
                raise ValueError(
                    f"sizes: supernodes of {size} cards do not divide num_cards {self.num_cards} "
                    f"({self.num_cards % size} left over)"
                )
        return self

    @model_validator(mode="after")
    def _places_exist(self) -> SupernodeDecision:
        if "host" in (self.tables or ()) and self.host is None:
            raise ValueError("tables on the 'host' need supernode.host, which says what it holds")
        if self.between is not None and self.domain_cards is None:
            raise ValueError("between goes with domain_cards: without it every size is one domain")
        if self.price_per_card_hour is not None and self.goal != "cost_per_on_time_session":
            raise ValueError("price_per_card_hour goes with goal 'cost_per_on_time_session'")
        return self
