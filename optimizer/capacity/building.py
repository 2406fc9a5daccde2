"""From a problem instance to the data of its capacity decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.fleet import Fleet, Pool
from instances.instance import Instance, Runtime
from instances.model import ModelSpec
from instances.workload import Cohort, Workload
from optimizer.capacity.places import build_places, failure_events
from optimizer.capacity.problem import (
    CapacityProblem,
    CohortDemand,
    Option,
    ServerPool,
    Tier,
)
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.pricing import price_candidates
from optimizer.tables import Candidate, MemoryRow, Rejection


@dataclass(frozen=True, slots=True)
class ModelRejection:
    """A candidate of a model that cannot be used: the rule, and by how much."""

    model: str
    rejection: Rejection


@dataclass(frozen=True)
class Capacity:
    """The data, and the candidates that are not in it, each with its reason.

    Unless it `is_complete`, time ran out before every candidate was priced.
    """

    problem: CapacityProblem
    rejections: tuple[ModelRejection, ...]
    is_complete: bool


def model_instances(instance: Instance) -> tuple[Instance | None, ...]:
    """Return the instance of every model alone: its cohorts, and the pools that can compute it.

    Pools are as in the instance but for what only capacity knows. None for a model without cohorts
    or pools.
    """
    found: list[Instance | None] = []
    models = instance.models or (instance.model,)
    for m, model in enumerate(models):
        cohorts = [
            c for c in instance.workload.cohorts if c.model == model.name or (not m and not c.model)
        ]
        number_format = model.formats.compute_format
        pools = [
            pool
            for pool in instance.fleet.pools
            if pool.server.accelerator.peak(number_format) is not None
        ]
        if not cohorts or not pools:
            found.append(None)
            continue
        plain = [pool.model_copy(update={"occupied": (), "servers_per_group": 1}) for pool in pools]
        workload = Workload(
            cohorts=tuple(_plain_cohort(c, len(cohorts)) for c in cohorts),
            routing=instance.workload.routing,
        )
        found.append(
            Instance(
                name=instance.name,
                model=model,
                fleet=Fleet(pools=tuple(plain)),
                workload=workload,
                runtime=_runtime(instance, m),
                engine=instance.engine,
                search=instance.search,
                objective=instance.objective,
            )
        )
    return tuple(found)


def _plain_cohort(cohort: Cohort, num_cohorts: int) -> Cohort:
    """Return a cohort as a deployment knows it; more sessions than lanes make no difference."""
    few = min(cohort.num_sessions, 100_000 // num_cohorts)
    changes = {"model": None, "pools": None, "min_on_time_fraction": None, "num_sessions": few}
    return cohort.model_copy(update=changes)


def _runtime(instance: Instance, model: int) -> Runtime:
    """Return the runtime with the side parts that a model has."""
    models = instance.models or (instance.model,)
    known = {part.name for part in models[model].parts}
    loaded = tuple(name for name in instance.runtime.loaded_parts if name in known)
    return instance.runtime.model_copy(update={"loaded_parts": loaded})


def cohort_demands(instance: Instance) -> tuple[CohortDemand, ...]:
    """Return what is asked for every cohort; what must end ends within the period, too."""
    assert instance.capacity is not None
    names = [model.name for model in (instance.models or (instance.model,))]
    period_s = instance.capacity.period_s
    demands = []
    for cohort in instance.workload.cohorts:
        share = cohort.min_on_time_fraction
        share = instance.workload.min_on_time_fraction if share is None else share
        limits = [limit for limit in (cohort.deadline_s, period_s) if limit is not None]
        demands.append(
            CohortDemand(
                cohort.name,
                0 if cohort.model is None else names.index(cohort.model),
                cohort.num_sessions,
                math.ceil(share * cohort.num_sessions),
                cohort.new_tokens,
                cohort.release_s,
                min(limits, default=None),
            )
        )
    return tuple(demands)


class _Options:
    """Turns priced candidates into options, or into rejections."""

    def __init__(self, instance: Instance, cohorts: Sequence[CohortDemand]) -> None:
        self.instance, self.cohorts = instance, cohorts
        self.pool_index = {pool.name: p for p, pool in enumerate(instance.fleet.pools)}
        self.options: list[Option] = []
        self.rejections: list[ModelRejection] = []

    def reject_late(self, model: str, footprint: Footprint, by_s: Fraction) -> None:
        """Note that the best of the sessions that a candidate may serve is late by so much."""
        label = f"{footprint.label()} on {footprint.pool}"
        text = f"{label}: no session that it may serve ends on time"
        self.rejections.append(ModelRejection(model, Rejection(footprint, "late", by_s, "s", text)))

    def reject_pools(self, model: ModelSpec) -> None:
        """Note the pools that cannot compute a model: one line for all candidates of a pool."""
        number_format = model.formats.compute_format
        for pool in self.instance.fleet.pools:
            accelerator = pool.server.accelerator
            if accelerator.peak(number_format) is None:
                text = f"{accelerator.name} has no peak rate in {number_format}"
                footprint = Footprint(pool.name, ParallelConfig(), 1, "")
                lost = Rejection(footprint, "number_format", 1, "pool", text)
                self.rejections.append(ModelRejection(model.name, lost))

    def add(self, m: int, name: str, candidates: Sequence[Candidate]) -> None:
        """Add the candidates of model m that can serve something."""
        mine = [c for c, cohort in enumerate(self.cohorts) if cohort.model == m]
        for candidate in candidates:
            late_by = self._late_by(candidate, mine)
            if late_by is None:
                self.options.append(self._option(m, mine, candidate))
            else:
                self.reject_late(name, candidate.footprint, late_by)

    def _option(self, m: int, mine: Sequence[int], candidate: Candidate) -> Option:
        services: list[Fraction | None] = [None] * len(self.cohorts)
        for c, service_s in zip(mine, candidate.service_s, strict=True):
            if self._may_serve(candidate, c):
                services[c] = service_s
        rows = []
        for row in candidate.memory:
            sizes = [0] * len(self.cohorts)
            for c, size in zip(mine, row.session_bytes, strict=True):
                sizes[c] = size
            rows.append(MemoryRow(tuple(sizes), row.free_bytes))
        return Option(
            len(self.options),
            m,
            self.pool_index[candidate.pool],
            candidate.footprint,
            candidate.cards_per_server,
            candidate.num_servers,
            candidate.num_groups,
            candidate.num_lanes,
            tuple(rows),
            tuple(services),
        )

    def _may_serve(self, candidate: Candidate, c: int) -> bool:
        pools = self.instance.workload.cohorts[c].pools
        return pools is None or candidate.pool in pools

    def _late_by(self, candidate: Candidate, mine: Sequence[int]) -> Fraction | None:
        """Seconds by which the best session misses its deadline; None where one is on time."""
        least: Fraction | None = None
        for c, service_s in zip(mine, candidate.service_s, strict=True):
            if not self._may_serve(candidate, c):
                continue
            cohort = self.cohorts[c]
            late = Fraction(0)
            if cohort.deadline_s is not None:
                late = max(late, cohort.release_s + service_s - cohort.deadline_s)
            if not late:
                return None
            least = late if least is None else min(least, late)
        return Fraction(0) if least is None else least


def build_capacity(
    instance: Instance, is_over: Callable[[float], bool] = lambda share: False
) -> Capacity:
    """Price all candidates of all models and lay out the fleet by kinds.

    `is_over(share)` tells whether that share of the time is used up; every model has an equal part
    of it, and what earlier ones leave. Raises InputError where the
    data do not fit together, TooLargeError where single servers or racks are too many to tell
    apart.
    """
    decision = instance.capacity
    assert decision is not None
    cohorts = cohort_demands(instance)
    found, is_complete = _Options(instance, cohorts), True
    models = instance.models or (instance.model,)
    for m, alone in enumerate(model_instances(instance)):
        if any(cohort.model == m for cohort in cohorts):
            found.reject_pools(models[m])
        if alone is None:
            continue
        longest_s = [
            None if cohort.deadline_s is None else cohort.deadline_s - cohort.release_s
            for cohort in cohorts
            if cohort.model == m
        ]
        priced = price_candidates(alone, _part(is_over, m, len(models)), longest_s)
        is_complete = is_complete and priced.is_complete
        found.rejections += [ModelRejection(models[m].name, r) for r in priced.rejections]
        found.add(m, models[m].name, priced.candidates)
    places, fleet = build_places(instance), instance.fleet
    problem = CapacityProblem(
        models=tuple(model.name for model in models),
        cohorts=cohorts,
        options=tuple(found.options),
        pools=tuple(_server_pool(pool) for pool in fleet.pools),
        sites=places.sites,
        classes=places.classes,
        tiers=tuple(
            Tier(tier.name, tier.above_endpoints, tier.power_w, tier.price_per_hour)
            for tier in fleet.switch_tiers
        ),
        events=(),
        goals=decision.goals,
        is_purchase=fleet.mode == "purchase",
        fixed_w=fleet.power.fixed_w if fleet.power is not None else 0,
        budget_w=fleet.power.budget_w if fleet.power is not None else None,
        period_s=decision.period_s,
    )
    events = failure_events(instance, problem)
    return Capacity(replace(problem, events=events), tuple(found.rejections), is_complete)


def _part(is_over: Callable[[float], bool], m: int, count: int) -> Callable[[float], bool]:
    """Return how model m of several is told about its part of the time."""
    return lambda share: is_over((m + share) / count)


def _server_pool(pool: Pool) -> ServerPool:
    return ServerPool(
        pool.name,
        pool.server.num_cards,
        pool.server.power_w or 0,
        pool.price_per_hour or Fraction(0),
        pool.rack_units or 0,
        pool.servers_per_group,
        pool.num_servers,
    )
