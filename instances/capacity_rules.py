"""What must fit together where capacity is decided, and what says nothing elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from instances.capacity import RATIO_GOALS
from instances.fleet import Pool
from instances.names import check_once
from instances.topology import is_uniform
from instances.workload import MAX_SESSIONS

if TYPE_CHECKING:
    from instances.instance import Instance

#: Goals that need the price of every server.
_PRICE_GOALS = RATIO_GOALS | {"price_per_hour"}


def check_without_capacity(instance: Instance) -> None:
    """Refuse what other decisions would silently ignore; raises ValueError."""
    fleet, workload = instance.fleet, instance.workload
    if workload.num_sessions > MAX_SESSIONS:
        raise ValueError(
            f"workload has {workload.num_sessions} sessions in all; the planner takes at most "
            f"{MAX_SESSIONS}, except where capacity is decided"
        )
    given: list[tuple[str, bool]] = [
        ("models", bool(instance.models)),
        ("fleet.mode 'purchase'", fleet.mode == "purchase"),
        ("fleet.racks", bool(fleet.racks)),
        ("fleet.power", fleet.power is not None),
        ("fleet.switch_tiers", bool(fleet.switch_tiers)),
        ("fleet.failure_domains", bool(fleet.failure_domains)),
    ]
    for i, pool in enumerate(fleet.pools):
        given.append((f"fleet.pools[{i}].occupied", bool(pool.occupied)))
        given.append((f"fleet.pools[{i}].servers_per_group", pool.servers_per_group > 1))
    for i, cohort in enumerate(workload.cohorts):
        for field in ("model", "pools", "min_on_time_fraction"):
            is_given = getattr(cohort, field) is not None
            given.append((f"workload.cohorts[{i}].{field}", is_given))
    for name, is_given in given:
        if is_given:
            raise ValueError(
                f"{name} counts only where capacity is decided; add decision 'capacity' and a "
                f"section 'capacity', or leave it out"
            )


def check_capacity(instance: Instance) -> None:
    """Check what several sections say together; raises ValueError with the field and the rule."""
    _check_models(instance)
    _check_cohorts(instance)
    _check_what_is_not_priced(instance)
    for i, pool in enumerate(instance.fleet.pools):
        _check_pool(instance, f"fleet.pools[{i}]", pool)
    _check_names(instance)
    _check_racks(instance)


def _check_models(instance: Instance) -> None:
    if not instance.models:
        return
    check_once((model.name for model in instance.models), "models:")
    if instance.model != instance.models[0]:
        raise ValueError("model must be the first of models, or be left out")


def _check_cohorts(instance: Instance) -> None:
    known = {model.name for model in (instance.models or (instance.model,))}
    pools = {pool.name for pool in instance.fleet.pools}
    for i, cohort in enumerate(instance.workload.cohorts):
        where = f"workload.cohorts[{i}]"
        if cohort.model is not None and cohort.model not in known:
            raise ValueError(f"{where}.model: no model is named {cohort.model!r}; see models")
        for name in cohort.pools or ():
            if name not in pools:
                raise ValueError(f"{where}.pools: no pool is named {name!r}")
        if cohort.min_on_time_fraction is not None and cohort.min_on_time_fraction > 1:
            raise ValueError(f"{where}.min_on_time_fraction cannot exceed 1 (100%)")


def _check_what_is_not_priced(instance: Instance) -> None:
    """Faults at given times, measured sessions and uniform layouts belong to deployments."""
    if instance.faults:
        raise ValueError("faults at given times are not for capacity; use capacity.failures")
    if instance.measurements:
        raise ValueError("measurements of sessions are not for capacity; leave them out")
    if instance.workload.expert_counts is not None:
        raise ValueError("workload.expert_counts are not for capacity; use workload.routing")
    if instance.search.deployment != "mixed" or instance.search.dispatch != "optimised":
        raise ValueError("capacity needs search.deployment 'mixed' and dispatch 'optimised'")
    if dict(instance.objective.at_most.limits()) or instance.objective.maximise:
        raise ValueError("objective is not for capacity; use capacity.goals and fleet.power")


def _check_pool(instance: Instance, where: str, pool: Pool) -> None:
    fleet, capacity = instance.fleet, instance.capacity
    assert capacity is not None
    if pool.price_per_hour is None and set(capacity.goals) & _PRICE_GOALS:
        raise ValueError(f"{where}.price_per_hour is null; goals on prices need it")
    wants_power = fleet.power is not None or any(rack.limit_w is not None for rack in fleet.racks)
    for topology in pool.topologies:
        if not is_uniform(topology):
            raise ValueError(
                f"{where} has the topology {topology.name!r}, where it matters which cards a "
                f"serving instance has; capacity counts cards that are alike"
            )
    if pool.server.power_w is None and (wants_power or {"power", "energy"} & set(capacity.goals)):
        raise ValueError(f"{where}.server.power_w is null; power limits and goals need it")
    if pool.rack_units is None and fleet.racks:
        raise ValueError(f"{where}.rack_units is null; fleet.racks need it")
    if pool.num_servers % pool.servers_per_group:
        raise ValueError(
            f"{where}.num_servers {pool.num_servers} is no whole number of groups of "
            f"{pool.servers_per_group}"
        )
    if fleet.mode == "purchase" and pool.occupied:
        raise ValueError(f"{where}.occupied: servers yet to be bought have no occupied cards")
    if fleet.mode == "existing" and pool.servers_per_group > 1:
        raise ValueError(f"{where}.servers_per_group is for fleet.mode 'purchase'")
    taken: set[tuple[int, int]] = set()
    for i, occupied in enumerate(pool.occupied):
        for card in occupied.cards:
            if occupied.server >= pool.num_servers or card >= pool.server.num_cards:
                raise ValueError(
                    f"{where}.occupied[{i}]: the pool has servers 0..{pool.num_servers - 1} with "
                    f"cards 0..{pool.server.num_cards - 1}, not server {occupied.server} "
                    f"card {card}"
                )
            if (occupied.server, card) in taken:
                raise ValueError(
                    f"{where}.occupied[{i}]: server {occupied.server} card {card} is listed twice"
                )
            taken.add((occupied.server, card))


def _check_names(instance: Instance) -> None:
    """Failure domains and racks name pools and racks that exist; a kind of failure has domains."""
    fleet, capacity = instance.fleet, instance.capacity
    assert capacity is not None
    pools, racks = {p.name for p in fleet.pools}, {r.name for r in fleet.racks}
    named: list[tuple[str, Sequence[str], set[str], str]] = []
    for i, domain in enumerate(fleet.failure_domains):
        named.append((f"fleet.failure_domains[{i}].pools", domain.pools, pools, "pool"))
        named.append((f"fleet.failure_domains[{i}].racks", domain.racks, racks, "rack"))
    for i, rack in enumerate(fleet.racks):
        held = [item.pool for item in rack.servers]
        named.append((f"fleet.racks[{i}].servers", held, pools, "pool"))
    for where, names, known, what in named:
        for name in names:
            if name not in known:
                raise ValueError(f"{where}: no {what} is named {name!r}")
    declared = {"card", "server", *(d.kind for d in fleet.failure_domains)}
    declared |= {"rack"} if fleet.racks else set()
    for i, case in enumerate(capacity.failures):
        if case.kind not in declared:
            missing = "fleet.racks" if case.kind == "rack" else "fleet.failure_domains"
            raise ValueError(
                f"capacity.failures[{i}]: {missing} has no domain of kind {case.kind!r}"
            )


def _check_racks(instance: Instance) -> None:
    """Racks of an existing fleet hold all servers; those to be bought hold none yet."""
    fleet = instance.fleet
    held = {pool.name: 0 for pool in fleet.pools}
    for i, rack in enumerate(fleet.racks):
        where = f"fleet.racks[{i}]"
        if fleet.mode == "purchase":
            if rack.servers:
                raise ValueError(f"{where}.servers is for fleet.mode 'existing'")
            continue
        units = 0
        for item in rack.servers:
            pool = next(pool for pool in fleet.pools if pool.name == item.pool)
            held[item.pool] += rack.count * item.num_servers
            units += item.num_servers * (pool.rack_units or 0)
            if pool.cooling != rack.cooling:
                raise ValueError(
                    f"{where} is cooled by {rack.cooling}, servers of {pool.name!r} by "
                    f"{pool.cooling}"
                )
        if units > rack.units:
            raise ValueError(f"{where}.servers take {units} rack units of {rack.units}")
    if fleet.mode == "existing" and fleet.racks:
        for i, pool in enumerate(fleet.pools):
            if held[pool.name] != pool.num_servers:
                raise ValueError(
                    f"fleet.pools[{i}] has {pool.num_servers} servers, fleet.racks hold "
                    f"{held[pool.name]} of them"
                )
