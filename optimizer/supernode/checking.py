"""What an instance must not ask of a supernode decision; one line each."""

from __future__ import annotations

from collections.abc import Iterator

from instances.instance import Instance
from instances.supernode import SupernodeDecision
from optimizer.errors import InputError
from optimizer.legality import check_tp
from optimizer.supernode.weights import components

Refusal = tuple[str, str, object]


def check_supernode(instance: Instance, section: SupernodeDecision) -> None:
    """Raise InputError for the first thing that does not fit model, pool or workload."""
    for checks in (_pool, _tables, _workload, _runtime):
        for field, rule, value in checks(instance, section):
            raise InputError(instance.name, field, rule, value)


def _pool(instance: Instance, section: SupernodeDecision) -> Iterator[Refusal]:
    pool = instance.fleet.pools[0]
    num = section.num_cards or pool.num_cards
    if num > pool.num_cards:
        yield "supernode.num_cards", f"pool {pool.name!r} has {pool.num_cards} cards", num
    for size in section.sizes or ():
        if num % size:
            rule = f"must divide the {num} cards ({num % size} left over)"
            yield "supernode.sizes", rule, size
    sizes = section.sizes or (num,)
    for degree in section.attention_tp:
        broken = check_tp(instance.model, degree, instance.engine, with_experts=False)
        if broken is not None:
            yield "supernode.attention_tp", broken.message, degree
    if all(size % degree for size in sizes for degree in section.attention_tp):
        yield "supernode.attention_tp", "divides none of the sizes", list(section.attention_tp)
    domain = section.domain_cards
    has_link = section.between is not None or pool.fabric_between is not None
    if domain is not None and not has_link and any(size > domain for size in sizes):
        rule = f"supernodes beyond {domain} cards need between or the pool's fabric_between"
        yield "supernode.domain_cards", rule, domain


def _tables(instance: Instance, section: SupernodeDecision) -> Iterator[Refusal]:
    if instance.model.tables:
        known = components(instance)
        for name in section.tables_with:
            if name not in known:
                yield "supernode.tables_with", "the model has no such component", name
        return
    for field in ("tables", "tables_with", "host"):
        value = getattr(section, field)
        if value:
            rule = f"{instance.model.name} has no lookup tables; leave it out"
            shown = None if field == "host" else list(value)
            yield f"supernode.{field}", rule, shown


def _workload(instance: Instance, section: SupernodeDecision) -> Iterator[Refusal]:
    workload = instance.workload
    if workload.expert_counts is not None:
        yield "workload.expert_counts", "supernodes take 'expected' or 'balanced' routing", None
    if workload.routing not in ("expected", "balanced"):
        yield "workload.routing", "supernodes take 'expected' or 'balanced'", workload.routing
    for i, cohort in enumerate(workload.cohorts):
        name = f"workload.cohorts[{i}]"
        if not cohort.context_tokens:
            rule = "sessions of a supernode need a context, of which KV is held"
            yield f"{name}.context_tokens", rule, cohort.context_tokens
        for field in ("prompt_tokens", "release_s"):
            value = getattr(cohort, field)
            if value:
                rule = "a supernode decodes sessions that are there from the start; leave it out"
                yield f"{name}.{field}", rule, str(value)
        if cohort.deadline_s is not None and section.goal == "user_rate":
            rule = "goal 'user_rate' is of a single session; leave deadlines out"
            yield f"{name}.deadline_s", rule, None


def _runtime(instance: Instance, section: SupernodeDecision) -> Iterator[Refusal]:
    if instance.runtime.count_activations:
        rule = "supernodes count activations in workspace_bytes only"
        yield "runtime.count_activations", rule, None
    if len(instance.fleet.pools) > 1:
        rule = "a supernode decision is about one pool; leave the others out"
        yield "fleet.pools", rule, len(instance.fleet.pools)
