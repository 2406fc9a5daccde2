"""Which tier of memory holds which data: the section of decision "tiers" (6.6.3, 6.7.4)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from instances.access import Access
from instances.catalog_store import reference
from instances.formats import Frozen
from instances.names import check_once
from instances.quantity import (
    Bytes,
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveFlopsPerSecond,
    PositiveRequestsPerSecond,
    PositiveSeconds,
    PricePerHour,
    RequestsPerSecond,
    Seconds,
    Share,
)

Name = Annotated[str, Field(min_length=1, max_length=120)]
Operations = Annotated[int, Field(ge=0, le=10**21)]
Times = Annotated[int, Field(ge=0, le=10**9)]
Area = Annotated[int, Field(ge=1, le=10**9)]

TierKindName = Literal["hbm", "host", "neighbour_hbm", "neighbour_host", "sram", "rom"]
ClassKindName = Literal[
    "replicated_weights",
    "routed_experts",
    "lookup_table",
    "active_kv",
    "idle_kv",
    "recurrent_state",
    "workspace",
    "snapshot",
]
TierGoal = Literal["sessions", "user_rate", "throughput_per_card", "throughput_per_price"]

#: Kinds of data that a step, or a session, writes.
WRITTEN_KINDS = frozenset({"active_kv", "idle_kv", "recurrent_state", "workspace"})

#: Fields that belong to one kind of data alone.
_OWN_FIELDS = {
    "lookup_table": ("lookups", "lookups_per_session", "lookup_bytes", "is_prefetched"),
    "snapshot": ("reads", "may_copy"),
    "idle_kv": ("idle_sessions", "bytes_per_idle_session", "resumes_per_s", "max_resume_s"),
}


class TierMachine(Frozen):
    """What computes, and what a step costs besides reading (6-15).

    A step makes `tokens_per_step` tokens of every session: `fixed_flops` and `flops_per_session` at
    `peak_flops_per_s` (null: computing takes no time). Reading and computing overlap; the longest
    is divided by `balance`, below 1 where layers cannot be dealt out evenly. Then come
    `communication_s`, `communication_s_per_session` for each session, and `fixed_s`.
    `first_block_share` of all this passes before the block that needs a prefetched lookup: one
    layer of n is 1/n. `num_cards` divides "throughput_per_card".
    """

    name: Name
    num_cards: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    tokens_per_step: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    peak_flops_per_s: PositiveFlopsPerSecond | None = None
    flops_per_session: Operations = 0
    fixed_flops: Operations = 0
    communication_s: Seconds = Fraction(0)
    communication_s_per_session: Seconds = Fraction(0)
    fixed_s: Seconds = Fraction(0)
    balance: Share = Fraction(1)
    first_block_share: Share | None = None
    price_per_hour: PricePerHour = Fraction(0)

    @model_validator(mode="after")
    def _shares_and_speed_fit(self) -> TierMachine:
        for field in ("balance", "first_block_share"):
            share = getattr(self, field)
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{field} is {share}; it must be more than 0 and at most 1")
        if self.peak_flops_per_s is None and (self.flops_per_session or self.fixed_flops):
            raise ValueError("flops_per_session and fixed_flops need peak_flops_per_s")
        return self


class MemoryTier(Frozen):
    """Memory of one kind: what it holds, and how it is reached.

    Mask ROM gives `area_mm2` and `bytes_per_mm2` in place of `capacity_bytes`, and is never
    written. `access` is for reads; writes go at `write_bytes_per_s`, null: as fast as reads.
    Tiers that name the same `path` share it, so their reads add up; separate paths are read at the
    same time (6-15). At most `max_reads_per_s` random reads start in a second. `price_per_hour` is
    paid if any data lie there.
    """

    name: Name
    kind: TierKindName
    capacity_bytes: Bytes | None = None
    area_mm2: Area | None = None
    bytes_per_mm2: PositiveBytes | None = None
    access: Access
    write_bytes_per_s: PositiveBytesPerSecond | None = None
    path: Name | None = None
    max_reads_per_s: PositiveRequestsPerSecond | None = None
    price_per_hour: PricePerHour = Fraction(0)
    is_writable: bool | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _size_fits_the_kind(self) -> MemoryTier:
        by_area = self.area_mm2 is not None and self.bytes_per_mm2 is not None
        if self.kind == "rom":
            if not by_area or self.capacity_bytes is not None:
                raise ValueError("ROM is measured by area_mm2 and bytes_per_mm2")
            if self.is_writable or self.write_bytes_per_s is not None:
                raise ValueError("ROM cannot be written: is_writable must be false")
        elif self.capacity_bytes is None or (self.area_mm2, self.bytes_per_mm2) != (None, None):
            raise ValueError(f"memory of kind {self.kind!r} is measured by capacity_bytes")
        return self

    @property
    def can_be_written(self) -> bool:
        """Whether data that change may lie here."""
        return self.kind != "rom" if self.is_writable is None else self.is_writable

    @property
    def size_bytes(self) -> int:
        """Bytes that it holds."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        assert self.area_mm2 is not None
        assert self.bytes_per_mm2 is not None
        return self.area_mm2 * self.bytes_per_mm2


class DataClass(Frozen):
    """Data that lie together: `bytes`, and `bytes_per_session` for each session.

    Every step reads `read_bytes`, and `read_bytes_per_session` for each session, and writes
    `write_bytes_per_session`. `tiers` lists where they may lie; null: anywhere.

    A "lookup_table" is read at random: `lookups` and `lookups_per_session` reads of `lookup_bytes`
    a step. Prefetched ones have their address before the step begins. A "snapshot" is read as a
    whole, `reads` times a step; with `may_copy` it may be fetched once a step into another tier and
    be read there. "idle_kv" belongs to `idle_sessions` of `bytes_per_idle_session` each; of these
    `resumes_per_s` are fetched, each within `max_resume_s` (null: any time). KV, recurrent state
    and workspace are always written; other data only if `is_written`.
    """

    name: Name
    kind: ClassKindName
    bytes: Bytes = 0
    bytes_per_session: Bytes = 0
    read_bytes: Bytes = 0
    read_bytes_per_session: Bytes = 0
    write_bytes_per_session: Bytes = 0
    lookups: Times = 0
    lookups_per_session: Times = 0
    lookup_bytes: PositiveBytes | None = None
    is_prefetched: bool = False
    reads: Times = 1
    may_copy: bool = False
    idle_sessions: Times = 0
    bytes_per_idle_session: Bytes = 0
    resumes_per_s: RequestsPerSecond = Fraction(0)
    max_resume_s: PositiveSeconds | None = None
    is_written: bool | None = None
    tiers: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=64, strict=False)

    @property
    def changes(self) -> bool:
        """Whether these data are written."""
        return self.kind in WRITTEN_KINDS or bool(self.is_written)

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> DataClass:
        for kind, fields in _OWN_FIELDS.items():
            for field in fields:
                default = type(self).model_fields[field].default
                if kind != self.kind and getattr(self, field) != default:
                    raise ValueError(f"{field} is of data of kind {kind!r}, not {self.kind!r}")
        if self.kind in WRITTEN_KINDS and self.is_written is False:
            raise ValueError(f"data of kind {self.kind!r} are always written")
        if self.write_bytes_per_session and not self.changes:
            raise ValueError("write_bytes_per_session needs is_written")
        self._check_kind()
        check_once(self.tiers or (), "tiers: the name")
        return self

    def _check_kind(self) -> None:
        """Raise ValueError where what a kind needs is missing, or what it derives is given."""
        has_lookups = bool(self.lookups or self.lookups_per_session)
        if has_lookups != (self.lookup_bytes is not None):
            raise ValueError("lookups and lookup_bytes are given together")
        if self.kind == "snapshot" and (self.read_bytes or self.read_bytes_per_session):
            raise ValueError("a snapshot is read as a whole: give reads, not read_bytes")
        if self.may_copy and self.changes:
            raise ValueError("what is written cannot be read from a copy: may_copy must be false")
        if self.kind == "idle_kv":
            if not self.idle_sessions or not self.bytes_per_idle_session:
                raise ValueError("idle_kv needs idle_sessions and bytes_per_idle_session")
            if self.bytes or self.read_bytes or self.read_bytes_per_session:
                raise ValueError("idle_kv is idle_sessions of bytes_per_idle_session, not bytes")


class SessionRange(Frozen):
    """Sessions that are wanted at least, and at most."""

    min: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    max: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000

    @model_validator(mode="after")
    def _is_no_empty_range(self) -> SessionRange:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, more than max, {self.max}")
        return self


#: A tier in a document: an object, a name of the catalog, or a change of one.
Memory = Annotated[MemoryTier, reference("memory", MemoryTier)]


class TierDecision(Frozen):
    """Choose the tier of every class of data, and the number of sessions.

    `goal` "sessions" has most sessions; "user_rate" has most tokens a second for each session;
    "throughput_per_card" and "throughput_per_price" have most tokens a second of all sessions over
    the cards, or over the price an hour of machine and tiers used. A step may take `step_target_s`
    at most; null: any time.
    """

    machine: TierMachine
    tiers: tuple[Memory, ...] = Field(min_length=1, max_length=64, strict=False)
    classes: tuple[DataClass, ...] = Field(min_length=1, max_length=200, strict=False)
    sessions: SessionRange = SessionRange()
    step_target_s: PositiveSeconds | None = None
    goal: TierGoal = "sessions"

    @model_validator(mode="after")
    def _names_fit(self) -> TierDecision:
        for field in ("tiers", "classes"):
            check_once((item.name for item in getattr(self, field)), f"{field}: the name")
        known = {tier.name: tier for tier in self.tiers}
        for i, data in enumerate(self.classes):
            for name in data.tiers or ():
                if name not in known:
                    raise ValueError(f"classes[{i}].tiers: no tier is named {name!r}")
            names = data.tiers or tuple(known)
            if data.changes and not any(known[name].can_be_written for name in names):
                raise ValueError(
                    f"classes[{i}]: {data.name!r} is written, but it may lie only in "
                    f"{', '.join(map(repr, names))}, which cannot be written"
                )
        return self

    @model_validator(mode="after")
    def _times_and_prices_fit(self) -> TierDecision:
        for i, data in enumerate(self.classes):
            if data.is_prefetched and self.machine.first_block_share is None:
                raise ValueError(
                    f"classes[{i}] is prefetched, which needs machine.first_block_share"
                )
        if self.goal == "throughput_per_price" and not self.machine.price_per_hour:
            raise ValueError('goal "throughput_per_price" needs machine.price_per_hour')
        has_time = self.machine.communication_s or self.machine.fixed_s
        reads = any(
            data.read_bytes
            or data.read_bytes_per_session
            or data.write_bytes_per_session
            or data.lookup_bytes
            or (data.kind == "snapshot" and data.reads and (data.bytes or data.bytes_per_session))
            for data in self.classes
        )
        has_time = has_time or self.machine.communication_s_per_session
        computes = self.machine.flops_per_session or self.machine.fixed_flops
        if self.goal != "sessions" and not (has_time or reads or computes):
            raise ValueError(f"goal {self.goal!r} needs something that takes time")
        return self
