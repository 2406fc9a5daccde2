"""Parts of the documents of smaller decisions: what each decision says, and its account."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from optimizer.result import Document


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


class PhaseDocument(Document):
    """One phase of exchanges: what is sent, how, and its seconds in a step, all `times` together.

    `exit_bytes` is what the busiest server sends out or takes in, once; `num_spanning` groups have
    cards in several servers.
    """

    name: str
    operation: str
    algorithm: str
    times: int
    groups: int
    ranks: int
    message_bytes: float
    num_spanning: int
    exit_bytes: float
    step_s: float
    step_exact: str


class SlicePlaceDocument(Document):
    """Where a slice stands: its chips along each axis, and the chip at which its block begins."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = ""
    shape: list[int]
    origin: list[int]


class SliceDocument(Document):
    """One requested slice and the chips it takes, none where it is not placed."""

    name: str
    num_chips: int
    shape: list[int] | None
    origin: list[int] | None
    chips: list[list[int]]


class RingDocument(Document):
    """Cards in the order of a ring, and the NUMA node of the buffer from each to the next."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    order: list[int]
    buffers: list[int]


class LinkLoadDocument(Document):
    """Bytes of a round on a link between NUMA nodes, that way only, and its time."""

    start: int
    end: int
    load_bytes: int
    time_s: float
    time_exact: str


class MixDocument(Document):
    """Accelerators of every kind, and for every bucket the pieces that each kind serves."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    counts: list[int]
    pieces: list[list[int]]


class MixAcceleratorDocument(Document):
    """One kind of accelerator: how many, the load that they share, and their price together.

    `load` counts accelerators kept busy.
    """

    name: str
    count: int
    max_count: int | None
    load: float
    load_exact: str
    price_per_hour: float
    price_per_hour_exact: str


class MixBucketDocument(Document):
    """One bucket: its requests, and the pieces that each kind of accelerator serves."""

    name: str
    requests_per_s: float
    requests_per_s_exact: str
    pieces: list[int]


#: A server of the pool and a card of it.
CardPair = Annotated[list[int], Field(min_length=2, max_length=2)]
