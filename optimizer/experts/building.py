"""From a model, cards and routing counts to the data of the expert-placement decision (6.3.2)."""

from __future__ import annotations

from fractions import Fraction

from instances.errors import InputError
from instances.ffn import MoeFfn
from instances.instance import Instance
from instances.model import LayerGroup
from optimizer.experts.problem import ExpertProblem
from optimizer.legality import check_config
from optimizer.operators import matrices
from optimizer.ownership import session_bytes, stage_places, stage_tensors
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes, usable_bytes
from optimizer.plan import Footprint
from optimizer.shards import shard_of
from optimizer.steps import peak_flops_per_s


def expert_layers(instance: Instance) -> LayerGroup:
    """Return the layer group whose experts are to be placed; raises InputError."""
    assert instance.experts is not None
    groups = [group for group in instance.model.groups if isinstance(group.ffn, MoeFfn)]
    wanted = instance.experts.layer_group
    if wanted is not None:
        groups = [group for group in groups if group.name == wanted]
    if len(groups) == 1:
        return groups[0]
    names = ", ".join(group.name for group in instance.model.groups)
    found = f"{len(groups)} layer groups" if wanted is None else f"no group {wanted!r}"
    rule = f"{found} with experts; name one of {names}"
    raise InputError(instance.name, "experts.layer_group", rule, wanted)


def check_expert_decision(instance: Instance) -> None:
    """Raise InputError for groups of illegal degree, without cards or without a fabric."""
    decision, pool = instance.experts, instance.fleet.pools[0]
    assert decision is not None
    config = ParallelConfig(tp=decision.group_cards)
    for broken in check_config(instance.model, config, instance.engine):
        raise InputError(instance.name, "experts.group_cards", f"{broken.message} [{broken.rule}]")
    needed = decision.ep * decision.group_cards
    if needed > pool.num_cards:
        rule = f"the groups need {needed} cards of pool {pool.name!r}, which has {pool.num_cards}"
        raise InputError(instance.name, "experts.ep", f"{rule}; use fewer groups or smaller ones")
    if needed > pool.server.num_cards and pool.fabric_between is None:
        rule = f"the groups span servers, but pool {pool.name!r} has no fabric_between"
        raise InputError(instance.name, "fleet.pools", rule)


def expert_problem(instance: Instance) -> ExpertProblem:
    """Return the placement problem of one layer; every layer gets the same room.

    A card has for experts what its weights, the workload's sessions and its buffers leave, shared
    by the layers that have experts. Attention is data-parallel over the groups, tensor-parallel
    within one.
    """
    check_expert_decision(instance)
    decision, model = instance.experts, instance.model
    counts = instance.workload.expert_counts
    assert decision is not None
    assert counts is not None
    group, pool = expert_layers(instance), instance.fleet.pools[0]
    assert isinstance(group.ffn, MoeFfn)
    config = ParallelConfig(dp=decision.ep, tp=decision.group_cards, ep=decision.ep)
    tensors = model.layer_tensors[model.groups.index(group)]
    sizes, numbers = 0, 0
    for tensor in tensors:
        if tensor.is_expert:
            shard = shard_of(tensor, config, instance.engine)
            sizes += shard.num_bytes(tensor, model.formats) // shard.count
    for tensor in matrices(tensors, experts=True):
        shard = shard_of(tensor, config, instance.engine)
        numbers += shard.outputs * shard.inputs
    room = _room_bytes(instance, config)
    layers = sum(len(g.layers) for g in model.groups if isinstance(g.ffn, MoeFfn))
    accelerator, fabric = pool.server.accelerator, pool.server.fabric
    if decision.ep * decision.group_cards > pool.server.num_cards and pool.fabric_between:
        fabric = pool.fabric_between
    width = group.ffn.message_size(model.hidden_size) * model.formats.bytes_of("activations")
    return ExpertProblem(
        counts=counts,
        expert_bytes=sizes,
        num_groups=decision.ep,
        capacity_bytes=(max(room, 0) // layers,) * decision.ep,
        max_copies=decision.max_copies,
        replica_budget_bytes=decision.replica_budget_bytes,
        read_s=sizes / accelerator.memory_bandwidth_bytes_per_s,
        compute_s=2 * numbers / peak_flops_per_s(instance, pool),
        transfer_s=Fraction(2 * width) / fabric.bandwidth_bytes_per_s,
        uneven=decision.uneven,
    )


def _room_bytes(instance: Instance, config: ParallelConfig) -> int:
    """Bytes of a card for routed experts: what everything else on it leaves."""
    model, pool = instance.model, instance.fleet.pools[0]
    place = stage_places(model, ())[0]
    others = sum(
        times * shard_of(tensor, config, instance.engine).num_bytes(tensor, model.formats)
        for tensor, times, _ in stage_tensors(model, place, instance.runtime.loaded_parts)
        if not tensor.is_expert
    )
    sessions = sum(
        -(-cohort.num_sessions // config.dp)
        * session_bytes(model, config, place, cohort.held_tokens)
        for cohort in instance.workload.cohorts
    )
    footprint = Footprint(pool.name, config, 1, "")
    return usable_bytes(instance, pool) - others - sessions - buffer_bytes(instance, footprint)
