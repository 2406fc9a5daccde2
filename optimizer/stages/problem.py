"""Data of one decision: cut the layers of a model into pipeline stages, in order.

Stages may be unlike: every cost of a layer has one entry per stage, on a card of that stage. A cut
is `counts`, the number of layers of every stage; each stage holds at least one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

#: "slowest": least time of the slowest stage. "tokens": most tokens that every stage can hold.
StageGoal = Literal["slowest", "tokens"]

#: What a stage does whose layer reads the KV of a layer on another stage: that is not allowed, it
#: holds the KV again, or it reads it from there in every step.
KvSharing = Literal["same_stage", "copy", "remote"]


@dataclass(frozen=True, slots=True)
class StageLayer:
    """One layer's costs on a card of each stage: bytes, bytes per token, bytes per session, s."""

    weight_bytes: tuple[int, ...]
    kv_bytes_per_token: tuple[int, ...]
    fixed_state_bytes: tuple[int, ...]
    time_s: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A group of equal cards: usable bytes of one, and what it holds and does whatever the cut.

    `extra_bytes` and `extra_time_s` are workspace, embedding, head and hand-off.
    """

    capacity_bytes: int
    extra_bytes: int = 0
    extra_time_s: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class StageProblem:
    """Layers to cut, stages in order, and what must fit: tokens and sessions.

    `kv_sources[l]` is the earlier layer whose KV layer l reads, or None; no entries at all mean
    None throughout. Under "copy" a stage holds, once for each source outside it, the source's KV
    on its own cards; under "remote" it spends `remote_read_s` on each. Raises ValueError when the
    numbers of layers and stages do not match, for a negative number, and for a source that does
    not come before its reader or itself reads another.
    """

    layers: tuple[StageLayer, ...]
    stages: tuple[Stage, ...]
    goal: StageGoal
    held_tokens: int = 0
    num_sessions: int = 0
    kv_sources: tuple[int | None, ...] = ()
    sharing: KvSharing = "same_stage"
    remote_read_s: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if not self.layers or not self.stages:
            raise ValueError("a cut needs layers and stages")
        for number, layer in enumerate(self.layers):
            for costs in _costs(layer):
                if len(costs) != len(self.stages):
                    raise ValueError(f"layer {number} needs one cost for every stage")
        if self.kv_sources and len(self.kv_sources) != len(self.layers):
            raise ValueError("kv_sources needs one entry for every layer")
        numbers: list[int | Fraction] = [self.held_tokens, self.num_sessions, self.remote_read_s]
        numbers += [n for s in self.stages for n in (s.capacity_bytes, s.extra_bytes)]
        numbers += [s.extra_time_s for s in self.stages]
        numbers += [n for layer in self.layers for costs in _costs(layer) for n in costs]
        if any(n < 0 for n in numbers):
            raise ValueError("costs of layers and stages are not negative")
        for reader, source in enumerate(self.kv_sources):
            if source is not None and not 0 <= source < reader:
                raise ValueError(f"layer {reader} reads layer {source}, which is not before it")
            if source is not None and self.kv_sources[source] is not None:
                raise ValueError(f"layer {reader} reads layer {source}, which itself reads another")

    def source_of(self, layer: int) -> int | None:
        """Return the layer whose KV a layer reads besides its own."""
        return self.kv_sources[layer] if self.kv_sources else None


def _costs(layer: StageLayer) -> tuple[tuple[int | Fraction, ...], ...]:
    return (layer.weight_bytes, layer.kv_bytes_per_token, layer.fixed_state_bytes, layer.time_s)


def even_cut(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return equally many layers on every stage, one more on the first ones where they must."""
    each, more = divmod(num_layers, num_stages)
    return tuple(each + (stage < more) for stage in range(num_stages))
