"""Which bytes every card holds under any split, why, and what is held more than once (section 1).

All cards of a pipeline stage hold equally much: what does not divide is padded up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from instances.engine import TEXTBOOK, EngineProfile
from instances.model import ModelSpec
from instances.tensors import StatePart, Tensor
from optimizer.parallel import ParallelConfig
from optimizer.shards import Shard, card_state_bytes, shard_of


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Bytes of one component on one card, and why they are there."""

    component: str
    num_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Duplication:
    """Bytes that the cards of a serving instance hold beyond one copy of a component."""

    component: str
    num_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A pipeline stage: its number, the layers it holds, and whether it is the first or last."""

    index: int
    layers: range
    is_first: bool
    is_last: bool


def stage_places(model: ModelSpec, stages: Sequence[int]) -> tuple[StagePlace, ...]:
    """Return the stages of a cut; `stages` counts their layers and may be () for a single stage.

    Raises ValueError unless the counts are positive and add up to the model's layers.
    """
    counts = tuple(stages) or (model.num_layers,)
    if min(counts) < 1 or sum(counts) != model.num_layers:
        listed = ", ".join(map(str, counts))
        raise ValueError(f"stages of {listed} layers do not cut {model.num_layers} layers")
    places, first = [], 0
    for i, count in enumerate(counts):
        layers = range(first, first + count)
        places.append(StagePlace(i, layers, i == 0, i == len(counts) - 1))
        first += count
    return tuple(places)


def stage_tensors(
    model: ModelSpec, place: StagePlace, loaded: Sequence[str] = ()
) -> Iterator[tuple[Tensor, int, str]]:
    """Yield (tensor, times, side part) of everything a stage keeps; `loaded` names side parts.

    The embedding is on the first stage, what follows the last layer on the last one, which holds a
    tied embedding again where the first stage is another. Side parts go with the last stage.
    """
    if place.is_first:
        yield model.embedding, 1, ""
    groups = Counter(model.group_of_layer[layer] for layer in place.layers)
    for group, times in sorted(groups.items()):
        for tensor in model.layer_tensors[group]:
            yield tensor, times, ""
    for table in model.tables:
        if table.layer in place.layers:
            yield table.tensor(), 1, ""
    if not place.is_last:
        return
    for tensor in model.final_tensors:
        yield tensor, 1, ""
    if not model.tied_embeddings or not place.is_first:
        yield model.lm_head, 1, ""
    for part in model.parts:
        if part.name in loaded:
            for tensor in part.tensors:
                yield tensor, 1, part.name


_COPIED = {
    "norms": "copied: every card normalises the whole vector",
    "router": "copied: every card routes whole tokens",
    "router_bias": "copied: every card routes whole tokens",
    "router_table": "copied: every card routes whole tokens",
}


def _reason(tensor: Tensor, shard: Shard, config: ParallelConfig) -> str:
    """Say in one phrase why a card holds its part of a tensor."""
    if tensor.split == "copy" and not tensor.is_expert:
        if config.num_cards == 1:
            return "whole"
        return _COPIED.get(tensor.component, "copied: every card of the stage needs it whole")
    if tensor.is_expert:
        spare = f" ({config.redundant} redundant)" if config.redundant else ""
        text = f"{shard.count} of {tensor.count} experts{spare}" if config.ep > 1 else ""
        if shard.degree > 1 and tensor.split != "copy":
            cut = f"each split over {shard.degree} cards"
            text = f"{text}, {cut}" if text else cut.replace("each ", "")
        return text or "whole"
    if shard.holders > 1:
        each = tensor.unit.removesuffix("s")
        text = f"each {each} on {shard.holders} cards"
    else:
        text = f"split over {shard.degree} cards" if shard.degree > 1 else "whole"
    return f"{text}, in each of {shard.repeats} groups" if shard.repeats > 1 else text


def stage_weight_parts(
    model: ModelSpec,
    config: ParallelConfig,
    place: StagePlace,
    engine: EngineProfile = TEXTBOOK,
    loaded: Sequence[str] = (),
) -> tuple[WeightPart, ...]:
    """Return what each card of a stage holds, by component; the split must be legal."""
    found: dict[tuple[str, str], int] = {}
    for tensor, times, part in stage_tensors(model, place, loaded):
        shard = shard_of(tensor, config, engine)
        name = f"{part}/{tensor.component}" if part else tensor.component
        key = (name, _reason(tensor, shard, config))
        found[key] = found.get(key, 0) + times * shard.num_bytes(tensor, model.formats)
    return tuple(WeightPart(name, size, reason) for (name, reason), size in found.items() if size)


def stage_weight_bytes(
    model: ModelSpec,
    config: ParallelConfig,
    place: StagePlace,
    engine: EngineProfile = TEXTBOOK,
    loaded: Sequence[str] = (),
) -> int:
    """Weight bytes on each card of a stage."""
    return sum(
        times * shard_of(tensor, config, engine).num_bytes(tensor, model.formats)
        for tensor, times, _ in stage_tensors(model, place, loaded)
    )


def duplications(
    model: ModelSpec,
    config: ParallelConfig,
    stages: Sequence[int] = (),
    engine: EngineProfile = TEXTBOOK,
    loaded: Sequence[str] = (),
) -> tuple[Duplication, ...]:
    """Return what all cards together hold beyond one copy, each with its reason.

    One copy and these add up to what the cards hold: nothing else is kept twice.
    """
    found: Counter[tuple[str, str]] = Counter()
    for place in stage_places(model, stages):
        for tensor, times, part in stage_tensors(model, place, loaded):
            name = f"{part}/{tensor.component}" if part else tensor.component
            for reason, size in _excess(model, tensor, config, engine):
                found[name, reason] += times * size
        if place.is_last and not place.is_first and model.tied_embeddings:
            size = model.embedding.total_bytes(model.formats)
            found["lm_head", "the last stage holds the tied embedding again"] += size
    return tuple(Duplication(name, size, why) for (name, why), size in found.items() if size)


def _excess(
    model: ModelSpec, tensor: Tensor, config: ParallelConfig, engine: EngineProfile
) -> Iterator[tuple[str, int]]:
    """Yield (reason, bytes) beyond one copy of a tensor in a stage."""
    shard = shard_of(tensor, config, engine)
    each = shard.num_bytes(tensor, model.formats)
    groups = config.ep if tensor.is_expert else 1
    one_padded = each * (shard.degree // shard.holders) * groups
    wanted = tensor.total_bytes(model.formats)
    if tensor.is_expert:
        spare = shard.count * config.ep - tensor.count
        one_expert = one_padded // (shard.count * config.ep)
        yield "redundant experts", spare * one_expert
        yield "padding of what does not divide", tensor.count * one_expert - wanted
    else:
        yield "padding of what does not divide", one_padded - wanted
    if shard.holders > 1:
        within = f"each {tensor.unit.removesuffix('s')} on {shard.holders} cards of a TP group"
        if tensor.split == "copy":
            within = f"whole on {shard.holders} cards"
        yield within, (shard.holders - 1) * one_padded * shard.repeats
    if shard.repeats > 1:
        yield f"held by {shard.repeats} groups of cards", (shard.repeats - 1) * one_padded


def stage_state(
    model: ModelSpec, place: StagePlace, sharing: str = "copy"
) -> Iterator[tuple[StatePart, int, str]]:
    """Yield (cache part, layers, why) of what a session keeps on a stage.

    Under `sharing` "copy" a stage also keeps the entries that its layers read but an earlier stage
    owns, each source once; under "remote" it reads them there in every step.
    """
    groups = Counter(model.group_of_layer[layer] for layer in place.layers)
    for group, layers in sorted(groups.items()):
        for part in model.layer_state[group]:
            if not part.is_borrowed:
                yield part, layers, "own"
    for source in foreign_sources(model, place):
        if sharing == "copy":
            for part in model.layer_state[model.group_of_layer[source]]:
                if part.window is None and not part.is_fixed:
                    yield part, 1, f"copy of layer {source}'s entries"


def foreign_sources(model: ModelSpec, place: StagePlace) -> tuple[int, ...]:
    """Return the layers of earlier stages whose cache entries this stage's layers read."""
    sources = {model.kv_source_of(layer) for layer in place.layers}
    return tuple(sorted(s for s in sources if s is not None and s not in place.layers))


def session_bytes(
    model: ModelSpec,
    config: ParallelConfig,
    place: StagePlace,
    tokens: int,
    sharing: str = "copy",
) -> int:
    """Bytes that one session with `tokens` tokens holds on each card of a stage."""
    return sum(
        layers * card_state_bytes(part, config, tokens)
        for part, layers, _ in stage_state(model, place, sharing)
    )


def state_parts(
    model: ModelSpec,
    config: ParallelConfig,
    place: StagePlace,
    tokens: int,
    sharing: str = "copy",
) -> tuple[WeightPart, ...]:
    """Return what one session with `tokens` tokens holds on each card of a stage, and why."""
    found: dict[tuple[str, str], int] = {}
    for part, layers, why in stage_state(model, place, sharing):
        text = _state_reason(part, config) if why == "own" else why
        key = (part.component, text)
        found[key] = found.get(key, 0) + layers * card_state_bytes(part, config, tokens)
    return tuple(WeightPart(name, size, reason) for (name, reason), size in found.items() if size)


def _state_reason(part: StatePart, config: ParallelConfig) -> str:
    holders = config.tp // min(config.tp, part.units)
    if part.units == 1:
        text = f"one latent, whole on {holders} cards" if holders > 1 else "whole"
    elif holders > 1:
        text = f"each head on {holders} cards"
    else:
        text = f"heads split over {config.tp} cards" if config.tp > 1 else "whole"
    dealt = config.cp * config.dcp
    return f"{text}, tokens dealt to {dealt}" if dealt > 1 and not part.is_fixed else text


def card_weight_parts(
    model: ModelSpec, tp: int, engine: EngineProfile = TEXTBOOK
) -> tuple[WeightPart, ...]:
    """Return what each card of a plain TP group holds; all cards hold equally much."""
    config = ParallelConfig(tp=tp)
    return stage_weight_parts(model, config, stage_places(model, ())[0], engine)


def card_weight_bytes(model: ModelSpec, tp: int, engine: EngineProfile = TEXTBOOK) -> int:
    """Weight bytes on each card of a plain TP group."""
    config = ParallelConfig(tp=tp)
    return stage_weight_bytes(model, config, stage_places(model, ())[0], engine)
