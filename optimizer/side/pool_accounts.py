"""Parts of the documents of decision "pool": who lends what to whom, and its account (6.6)."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from optimizer.result import Document


class _Plan(Document):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PoolLocalDocument(_Plan):
    """Bytes of an item, in whole chunks, on a node that alone reads them."""

    item: str
    node: str
    bytes: int = Field(ge=0)


class PoolReaderDocument(_Plan):
    """A node that may read leased bytes, and the path it takes."""

    node: str
    path: str


class PoolLeaseDocument(_Plan):
    """Bytes of an item on a lender, in whole chunks: who may read them, from when until when.

    An "exclusive" lease has one reader; a "shared" one has those it lists. Times are exact seconds;
    `until_exact` null never ends. After that the lender has its memory back.
    """

    item: str
    lender: str
    bytes: int = Field(ge=0)
    mode: Literal["exclusive", "shared"]
    readers: list[PoolReaderDocument]
    from_exact: str = "0"
    until_exact: str | None = None


class PoolPlanDocument(_Plan):
    """Where all bytes are: those that only their own node reads, and those that are leased."""

    local: list[PoolLocalDocument]
    leases: list[PoolLeaseDocument]


class PoolNodeDocument(Document):
    """One node, at its fullest: what its tasks need, what it holds, lends and borrows.

    `demand_bytes` are of items at home there. `free_before_bytes` is what these leave free,
    `free_bytes` what is free with everything placed.
    """

    name: str
    capacity_bytes: int
    demand_bytes: int
    used_bytes: int
    lent_bytes: int
    borrowed_bytes: int
    free_before_bytes: int
    free_bytes: int


class PoolLinkDocument(Document):
    """One link that is read: all its far reads once, and the share of time it reads."""

    name: str
    read_s: float
    read_exact: str
    load: float
    load_exact: str


class PoolThresholdDocument(Document):
    """How slow a path may get until the best plans do without it, all else unchanged.

    Every best plan needs it down to a bandwidth of `keeps_bytes_per_s`; at `loses_bytes_per_s`, the
    next lower whole number, a plan without it is as good or better, in which `lenders_then` lend to
    the reader. `limit_bytes_per_s_exact` is the usable speed between, at which a round trip is
    `max_round_trip_exact`. All are null where the path is needed at any speed, or is not needed.
    """

    is_needed: bool
    keeps_bytes_per_s: int | None
    loses_bytes_per_s: int | None
    limit_bytes_per_s: float | None
    limit_bytes_per_s_exact: str | None
    max_round_trip_s: float | None
    max_round_trip_exact: str | None
    lenders_then: list[str]
    is_legal_then: bool
    message: str


class PoolPathDocument(Document):
    """One path in use: its speed (6-12), what it reads at its busiest, and what changes the lender.

    `fewest_in_flight` reads under way fill its bandwidth. `threshold` is null where plans are too
    many to try all, or the plan is not one of the best.
    """

    name: str
    reader: str
    lender: str
    link: str
    bytes: int
    bandwidth_bytes_per_s: float
    usable_bytes_per_s: float
    usable_bytes_per_s_exact: str
    fewest_in_flight: int | None
    read_s: float
    read_exact: str
    threshold: PoolThresholdDocument | None


class PoolAccountDocument(Document):
    """The evaluator's account of a pool.

    `free_before_bytes` is what is free on all nodes before anything is borrowed, `free_bytes`
    after; `remote_bytes` counts what is not on its reader's node, for each reader.
    """

    chunk_bytes: int
    nodes: list[PoolNodeDocument]
    links: list[PoolLinkDocument]
    paths: list[PoolPathDocument]
    leases: list[PoolLeaseDocument]
    free_before_bytes: int
    free_bytes: int
    slowest_read_s: float
    slowest_read_exact: str
    remote_bytes: int
