"""Rules about how a serving instance is built: model, engine and search must allow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instances.instance import Instance
from optimizer.legality import LENIENT, Rule, check_config, redundant_needed
from optimizer.ownership import foreign_sources, stage_places
from optimizer.plan import Footprint
from optimizer.stages.building import pipeline_cut


def check_footprint(instance: Instance, footprint: Footprint) -> list[Rule]:
    """Return every rule that a footprint breaks, whatever cards it gets."""
    broken = check_degrees(instance, footprint)
    if any(rule.rule in ("parallel", "stages") for rule in broken):
        return broken
    return [*broken, *check_stages(instance, footprint), *check_lanes(instance, footprint)]


def check_degrees(instance: Instance, footprint: Footprint) -> list[Rule]:
    """Return every rule that the parallel degrees break, whatever the cut and the batch."""
    broken = check_config(instance.model, footprint.parallel, instance.engine)
    broken.extend(_check_search(instance, footprint))
    return broken


def _check_search(instance: Instance, footprint: Footprint) -> Iterator[Rule]:
    """Every degree is among those that the search lists."""
    search, config = instance.search, footprint.parallel
    listed = (
        ("tp", config.tp, search.tp),
        ("pp", config.pp, search.pp),
        ("ep", config.ep, search.ep),
        ("cp", config.cp, search.cp),
        ("dp", config.dp, search.dp),
        ("dcp", config.dcp, search.dcp),
        ("attention_copies", config.copies, search.attention_copies),
    )
    for name, value, allowed in listed:
        if allowed is not None and value not in allowed:
            yield _not_listed(name, value, allowed)
    if config.sp > 1 and not search.sequence_parallel:
        yield Rule("sp", 1, "degrees", f"{config.label()}: search.sequence_parallel is off")
    needed = 0
    if search.redundant_experts and config.ep >= 1:
        needed = redundant_needed(instance.model, config.ep)
    if config.redundant != needed and config.redundant:
        text = f"{config.redundant} redundant experts where {needed} are wanted"
        yield Rule("redundant_experts", abs(config.redundant - needed), "experts", text)


def _not_listed(name: str, value: int, allowed: Sequence[int]) -> Rule:
    shown = f"{name} {value}" if "_" in name or name == "batch" else f"{name.upper()}{value}"
    text = f"{shown} is not among search.{name}: {', '.join(map(str, allowed))}"
    return Rule(name, 1, "degrees", text)


def check_stages(instance: Instance, footprint: Footprint) -> Iterator[Rule]:
    """The pipeline cut has a stage for each degree and covers all layers."""
    model, pp, counts = instance.model, footprint.parallel.pp, footprint.stages
    if not counts and pp == 1:
        return
    if len(counts) != pp or min(counts, default=0) < 1 or sum(counts) != model.num_layers:
        off = abs(sum(counts) - model.num_layers) or abs(len(counts) - pp) or 1
        listed = ", ".join(map(str, counts)) or "none"
        text = f"PP{pp} cuts {model.num_layers} layers into {pp} stages, not into {listed}"
        yield Rule("stages", off, "layers", text)
        return
    spread = max(counts) - min(counts)
    if spread > 1 and not instance.engine.uneven_stages:
        text = f"{instance.engine.name} gives stages equally many layers, not {spread} more"
        yield Rule("uneven_stages", spread, "layers", text)
    elif spread > 1 and instance.search.stage_cut == "even":
        text = f"search.stage_cut is even, but stages differ by {spread} layers"
        yield Rule("uneven_stages", spread, "layers", text)
    elif pp > 1 and not check_config(instance.model, footprint.parallel, LENIENT):
        wanted = pipeline_cut(instance, footprint)
        if wanted is not None and wanted != counts:
            off = sum(abs(a - b) for a, b in zip(wanted, counts, strict=True)) // 2 or 1
            name = instance.search.stage_cut
            text = f"the {name} cut has {', '.join(map(str, wanted))} layers, not "
            text += ", ".join(map(str, counts))
            yield Rule("stage_cut", off, "layers", text)
    if instance.search.kv_sharing == "same_stage":
        for place in stage_places(model, counts):
            missing = foreign_sources(model, place)
            if missing:
                text = (
                    f"stage {place.index} reads the cache of layer {missing[0]}, which an earlier "
                    f"stage holds"
                )
                yield Rule("kv_source", len(missing), "layers", text)


def check_lanes(instance: Instance, footprint: Footprint) -> Iterator[Rule]:
    """Batches are listed, micro-batches need a pipeline, a prompt needs its group to itself."""
    search = instance.search
    if footprint.batch not in search.batch:
        yield _not_listed("batch", footprint.batch, search.batch)
    if footprint.micro_batches not in search.micro_batches:
        yield _not_listed("micro_batches", footprint.micro_batches, search.micro_batches)
    if footprint.batch < 1 or footprint.micro_batches < 1:
        text = f"batch {footprint.batch} and micro-batches {footprint.micro_batches} are at least 1"
        yield Rule("batch", 1, "degrees", text)
        return
    if footprint.micro_batches > 1 and footprint.parallel.pp == 1:
        extra = footprint.micro_batches - 1
        text = f"{footprint.micro_batches} micro-batches need a pipeline (PP above 1)"
        yield Rule("micro_batches", extra, "batches", text)
    prompts = any(cohort.prompt_tokens for cohort in instance.workload.cohorts)
    if prompts and footprint.lanes_per_group > 1:
        text = "sessions with prompt_tokens are served one at a time: batch and micro-batches 1"
        yield Rule("prompt_batch", footprint.lanes_per_group - 1, "sessions", text)
    config = footprint.parallel
    if prompts and config.dp > 1:
        text = f"{config.label()}: groups that share experts would wait for each other's prompts"
        yield Rule("prompt_dp", config.dp - 1, "groups", text)
    if prompts and config.cp > 1 and config.copies > 1:
        text = f"{config.label()}: a prompt is dealt out by CP or its attention copied, not both"
        yield Rule("prompt_copies", config.copies - 1, "groups", text)
