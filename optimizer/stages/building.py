"""From a model and cards to the data of the pipeline-cut decision (section 6.2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from instances.instance import Instance
from instances.tensors import StatePart
from optimizer.ownership import StagePlace, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes, usable_bytes
from optimizer.plan import Footprint
from optimizer.shards import card_entry_bytes
from optimizer.stages.evaluation import best_cut
from optimizer.stages.problem import Stage, StageGoal, StageLayer, StageProblem, even_cut


def _entry_bytes_per_token(part: StatePart, config: ParallelConfig) -> int:
    """Bytes that a token adds on one card, rounded up; 0 where the cache stops growing."""
    if part.is_fixed or part.window is not None or part.is_borrowed:
        return 0
    per = part.tokens_per_entry * config.cp * config.dcp
    return -(-card_entry_bytes(part, config.tp) // per)


def layer_weight_bytes(instance: Instance, config: ParallelConfig) -> tuple[int, ...]:
    """Weight bytes on a card, layer by layer, tables beside the layers included."""
    model, loaded = instance.model, instance.runtime.loaded_parts
    special = {table.layer for table in model.tables}
    known: dict[tuple[int, int], int] = {}
    found = []
    for layer, group in enumerate(model.group_of_layer):
        key = (group, layer if layer in special else -1)
        if key not in known:
            place = StagePlace(1, range(layer, layer + 1), False, False)
            known[key] = stage_weight_bytes(model, config, place, instance.engine, loaded)
        found.append(known[key])
    return tuple(found)


def capacity_problem(
    instance: Instance,
    stages: Sequence[Footprint],
    goal: StageGoal = "tokens",
    times_s: Sequence[tuple[Fraction, ...]] | None = None,
    extra_times_s: Sequence[Fraction] | None = None,
    remote_read_s: Fraction = Fraction(0),
    held_tokens: int = 0,
    num_sessions: int = 1,
) -> StageProblem:
    """Return the problem of cutting the model's layers over stages; one footprint for each.

    Only pool, degrees and batch of a footprint count. `times_s` gives each layer's time on every
    stage, none means 0. Windows and recurrent states count for `num_sessions` sessions.
    """
    model, count = instance.model, len(stages)
    configs = [stage.parallel for stage in stages]
    by_config = {config: layer_weight_bytes(instance, config) for config in set(configs)}
    weights = [by_config[config] for config in configs]
    layers = []
    for layer in range(model.num_layers):
        parts = model.layer_state[model.group_of_layer[layer]]
        layers.append(
            StageLayer(
                weight_bytes=tuple(weights[s][layer] for s in range(count)),
                kv_bytes_per_token=tuple(
                    sum(_entry_bytes_per_token(part, config) for part in parts)
                    for config in configs
                ),
                fixed_state_bytes=tuple(
                    sum(_bounded_bytes(part, config, held_tokens) for part in parts)
                    for config in configs
                ),
                time_s=(Fraction(0),) * count if times_s is None else times_s[layer],
            )
        )
    pools = {pool.name: pool for pool in instance.fleet.pools}
    return StageProblem(
        layers=tuple(layers),
        stages=tuple(
            Stage(
                capacity_bytes=usable_bytes(instance, pools[stage.pool]),
                extra_bytes=_ends_bytes(instance, stage.parallel, s, count)
                + buffer_bytes(instance, stage),
                extra_time_s=Fraction(0) if extra_times_s is None else extra_times_s[s],
            )
            for s, stage in enumerate(stages)
        ),
        goal=goal,
        held_tokens=held_tokens,
        num_sessions=num_sessions,
        kv_sources=tuple(model.kv_source_of(layer) for layer in range(model.num_layers)),
        sharing=instance.search.kv_sharing,
        remote_read_s=remote_read_s,
    )


def pipeline_cut(instance: Instance, footprint: Footprint) -> tuple[int, ...] | None:
    """Return the layers of each stage of a serving instance, or None where no cut fits.

    "best" lets most tokens fit beside the windows and states of the longest session, else of the
    shortest, else beside the weights; "even", and engines without uneven stages, give stages
    equally many layers, the first ones one more where that leaves some over. The cut is worked out
    once for each problem instance.
    """
    key = (footprint.pool, footprint.parallel)
    if key not in instance.known_cuts:
        plain = Footprint(footprint.pool, footprint.parallel, 1, "")
        instance.known_cuts[key] = _pipeline_cut(instance, plain)
    return instance.known_cuts[key]


def _pipeline_cut(instance: Instance, footprint: Footprint) -> tuple[int, ...] | None:
    pp, num_layers = footprint.parallel.pp, instance.model.num_layers
    if instance.search.stage_cut == "even" or not instance.engine.uneven_stages:
        return even_cut(num_layers, pp)
    lengths = [cohort.held_tokens for cohort in instance.workload.cohorts]
    for tokens, sessions in ((max(lengths), 1), (min(lengths), 1), (0, 0)):
        problem = capacity_problem(
            instance, (footprint,) * pp, held_tokens=tokens, num_sessions=sessions
        )
        cut = best_cut(replace(problem, held_tokens=0))
        if cut is not None:
            return cut
    return None


def _bounded_bytes(part: StatePart, config: ParallelConfig, tokens: int) -> int:
    """Bytes of a window or a recurrent state, which tokens do not add to without end."""
    if part.is_borrowed or not (part.is_fixed or part.window is not None):
        return 0
    entries = part.entries(tokens or part.window or 0)
    if not part.is_fixed:
        entries = -(-entries // (config.cp * config.dcp))
    return entries * card_entry_bytes(part, config.tp)


def _ends_bytes(instance: Instance, config: ParallelConfig, stage: int, count: int) -> int:
    """Bytes of the embedding on the first stage and of what follows the layers on the last."""
    place = StagePlace(stage, range(0), stage == 0, stage == count - 1)
    return stage_weight_bytes(
        instance.model, config, place, instance.engine, instance.runtime.loaded_parts
    )
