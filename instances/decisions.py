"""Smaller decisions an instance may ask for in place of a deployment (sections 6.2 to 6.7)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from instances.building import OccupiedCards
from instances.capacity import CapacityDecision
from instances.formats import Frozen
from instances.names import check_once
from instances.pooling import PoolDecision
from instances.quantity import (
    Bytes,
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveRequestsPerSecond,
    PricePerHour,
    RequestsPerSecond,
    Share,
)
from instances.supernode import SupernodeDecision
from instances.tiers import TierDecision
from instances.topology import NumaTopology, Topology

#: The smaller decisions, and with them the main one: what an instance may ask for.
SideName = Literal[
    "stages",
    "experts",
    "placement",
    "slices",
    "ring_order",
    "mix",
    "capacity",
    "pool",
    "tiers",
    "supernode",
]
DecisionName = Literal["deployment", SideName]

Degree = Annotated[int, Field(ge=1, le=100_000)]
Number = Annotated[int, Field(ge=0, le=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
#: Chips along each axis, or the coordinates of one chip.
Axes = Annotated[tuple[Number, ...], Field(min_length=1, max_length=3, strict=False)]

#: More slices than this, one by one, are refused.
MAX_SLICES = 1000


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


class PlacementDecision(Frozen):
    """Choose the cards of one serving instance on the servers of the first pool.

    The exchanges of a full decode step are to take least time together; `batch` sessions share it
    in each attention group. `occupied` cards are not to be had. All cards of a server together send
    at most `exit_bandwidth_bytes_per_s` to others, and take in as much; null stands for the limit
    of fabric_between.topology, if it has one, else for none.
    """

    tp: Degree = 1
    pp: Degree = 1
    cp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    batch: Degree = 1
    occupied: tuple[OccupiedCards, ...] = Field(default=(), max_length=100_000, strict=False)
    exit_bandwidth_bytes_per_s: PositiveBytesPerSecond | None = None


class RequestedSlices(Frozen):
    """`count` equal slices of a torus; each takes one of `shapes`, chips along every axis.

    [2, 4] is not [4, 2]: a shape that may be turned is listed turned as well.
    """

    name: Name
    count: Annotated[int, Field(ge=1, le=MAX_SLICES)] = 1
    shapes: tuple[Axes, ...] = Field(min_length=1, max_length=64, strict=False)


class SliceDecision(Frozen):
    """Place requested slices on the free chips of a torus so that they take as many as possible.

    `extents` are the chips along each axis; null takes those of the torus that joins the cards of
    the first pool's servers. `occupied` lists the coordinates of chips that are not free.
    """

    extents: Axes | None = None
    occupied: tuple[Axes, ...] = Field(default=(), max_length=100_000, strict=False)
    requests: tuple[RequestedSlices, ...] = Field(min_length=1, max_length=MAX_SLICES, strict=False)

    @model_validator(mode="after")
    def _few_slices_of_their_own_names(self) -> SliceDecision:
        check_once((request.name for request in self.requests), "requests: the name")
        count = sum(request.count for request in self.requests)
        if count > MAX_SLICES:
            raise ValueError(f"requests ask for {count} slices; at most {MAX_SLICES} can be placed")
        return self


def _buffer(value: object) -> object:
    is_node = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_node or value in ("sender", "receiver"):
        return value
    raise ValueError('must be "sender", "receiver" or the number of a NUMA node')


Buffer = Annotated[Literal["sender", "receiver"] | int, BeforeValidator(_buffer)]


class RingOrderDecision(Frozen):
    """Order cards in a ring whose messages wait in host memory, and choose where each waits.

    `topology` is a NUMA topology, or the name of one in the catalog; null takes that of the first
    pool's servers. Every card sends `ring_bytes` in a round; null stands for its share of a hidden
    vector of the model, one token's. `buffers` lists the places that a message may choose from.
    """

    topology: Topology | None = None
    ring_bytes: PositiveBytes | None = None
    buffers: tuple[Buffer, ...] = Field(default=("sender", "receiver"), min_length=1, strict=False)

    @field_validator("topology")
    @classmethod
    def _is_of_kind_numa(cls, value: Topology | None) -> Topology | None:
        if value is not None and not isinstance(value, NumaTopology):
            raise ValueError(f"must be of kind 'numa', not {value.kind!r}")
        return value


class MixAccelerator(Frozen):
    """A kind of accelerator that may be rented.

    `max_requests_per_s` holds for each bucket, in their order, the requests a second that one
    accelerator sustains within the latency wanted when it gets that bucket alone; 0 or null says
    that it cannot serve it. `max_count` limits how many may be had; null means no limit.
    """

    name: Name
    price_per_hour: PricePerHour
    max_count: Number | None = None
    max_requests_per_s: tuple[RequestsPerSecond | None, ...] = Field(
        min_length=1, max_length=1000, strict=False
    )


class MixBucket(Frozen):
    """Requests of like sizes; `share` of all requests, of which all shares need not make 1."""

    name: Name
    share: Share


class MixDecision(Frozen):
    """Choose the mix of unlike accelerators that serves a workload at the least price an hour.

    `requests_per_s` times its share come in each bucket. A bucket is split into `pieces_per_bucket`
    equal pieces, each of which goes wholly to one kind of accelerator. A kind needs as many as its
    load, rounded up: the sum over its pieces of what comes in over what one sustains.
    """

    accelerators: tuple[MixAccelerator, ...] = Field(min_length=1, max_length=64, strict=False)
    buckets: tuple[MixBucket, ...] = Field(min_length=1, max_length=1000, strict=False)
    requests_per_s: PositiveRequestsPerSecond
    pieces_per_bucket: Annotated[int, Field(ge=1, le=1000)] = 1

    @model_validator(mode="after")
    def _names_and_rates_fit(self) -> MixDecision:
        for field in ("accelerators", "buckets"):
            check_once((item.name for item in getattr(self, field)), f"{field}: the name")
        for i, kind in enumerate(self.accelerators):
            if len(kind.max_requests_per_s) != len(self.buckets):
                raise ValueError(
                    f"accelerators[{i}].max_requests_per_s has {len(kind.max_requests_per_s)} "
                    f"rates for {len(self.buckets)} buckets"
                )
        return self


#: The section of every smaller decision; the instance's field of that name holds it.
SECTIONS: dict[SideName, type[BaseModel]] = {
    "stages": StageDecision,
    "experts": ExpertDecision,
    "placement": PlacementDecision,
    "slices": SliceDecision,
    "ring_order": RingOrderDecision,
    "mix": MixDecision,
    "capacity": CapacityDecision,
    "pool": PoolDecision,
    "tiers": TierDecision,
    "supernode": SupernodeDecision,
}

#: Decisions that read neither model nor fleet nor workload.
SELF_CONTAINED: tuple[SideName, ...] = ("mix", "pool", "tiers")
