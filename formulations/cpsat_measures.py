"""Measures of the CP-SAT statement: what can be limited and minimised, in whole ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from formulations.deployment_cpsat import (
    MAX_COEFFICIENT_SUM,
    DeploymentModel,
    define_deployment_constraints,
    define_deployment_variables,
)
from formulations.lanes import used_lanes
from formulations.staging import Limits
from formulations.ticks import TickScale
from optimizer.errors import TooLargeError
from optimizer.protocols import DeploymentCounts, Measure
from optimizer.tables import ProblemTables

#: No measure is larger: ticks stay near 2^30, coefficients of a row add up to less than 2^31.
#: Limits may be, and CP-SAT takes numbers of 64 bits only.
MAX_SUM = 2**62


def define_measure(m: DeploymentModel, measure: Measure) -> tuple[Any, Fraction]:
    """Return (integer expression, its unit): the measure is expression · unit."""
    if measure not in m.measures:
        m.measures[measure] = _measure(m, measure)
    return m.measures[measure]


def _measure(m: DeploymentModel, measure: Measure) -> tuple[Any, Fraction]:
    tables, model, tick = m.tables, m.model, Fraction(1, m.scale.per_s)
    if measure is Measure.CARDS:
        cards = sum(tables.kinds[k].candidate.num_cards * x for (_, k), x in m.is_kind.items())
        return cards, Fraction(1)
    if measure is Measure.HELD:
        return _held(m)
    if measure is Measure.COMPLETION:
        return sum(m.end), tick
    if measure.is_largest:
        latest = model.new_int_var(0, m.horizon, measure.value)
        for j in m.sessions:
            cohort = tables.cohorts[tables.dispatch_order[j]]
            since = m.at(cohort.release_s) if measure is Measure.LATENCY else 0
            model.add(latest >= m.end[j] - since)
        return latest, tick
    weights = {
        k: Fraction(kind.candidate.num_cards)
        if measure is Measure.CARD_SECONDS
        else kind.candidate.power_w
        for k, kind in enumerate(tables.kinds)
    }
    unit = Fraction(
        math.gcd(*(w.numerator for w in weights.values())) or 1,
        math.lcm(*(w.denominator for w in weights.values())),
    )
    if sum(int(weights[k] / unit) for _, k in m.is_kind) > MAX_COEFFICIENT_SUM:
        raise TooLargeError(f"{measure.value} in exact units exceeds CP-SAT's integers; use highs")
    total: Any = 0
    for i, k in m.is_kind:
        total += int(weights[k] / unit) * _last_end(m, i, k)
    return total, unit * tick


def _held(m: DeploymentModel) -> tuple[Any, Fraction]:
    held = [m.tables.kinds[k].candidate.held_sessions for _, k in m.is_kind]
    unit = math.gcd(*held) or 1
    if sum(held) // unit > MAX_COEFFICIENT_SUM:
        raise TooLargeError("sessions held exceed CP-SAT's integers; use highs")
    total = sum(n // unit * x for n, x in zip(held, m.is_kind.values(), strict=True))
    return -total, Fraction(unit)


def _last_end(m: DeploymentModel, i: int, k: int) -> Any:
    """Return a variable that is at least the last end on slot i when it is of kind k."""
    last = m.model.new_int_var(0, m.horizon, f"last[{i},{k}]")
    candidate, queues = m.tables.kinds[k].candidate, m.queues_of(i, k)
    for j in m.sessions:
        for q in queues:
            m.model.add(last >= m.end[j]).only_enforce_if(m.runs[j, q, k])
    # implied, and it tightens the relaxation: its lanes work at least the sessions' service times
    unit = m.coarse_unit(len(m.sessions) * len(queues))
    services = [m.at(candidate.service_s[c]) // unit for c in m.tables.dispatch_order]
    work = m.model.new_int_var(0, sum(services), f"work[{i},{k}]")
    m.model.add(work == sum(services[j] * m.runs[j, q, k] for j in m.sessions for q in queues))
    m.model.add(used_lanes(candidate, len(m.sessions)) * last >= unit * work)
    return last


def define_limits(m: DeploymentModel, limits: Limits) -> None:
    """Keep measures at most their limits and enough sessions on time."""
    for measure, limit in limits.at_most.items():
        expression, unit = define_measure(m, measure)
        if measure.is_largest:
            most = m.scale.last_within(limit, measure)
        else:
            most = math.floor((limit + sum_error(m, measure)) / unit)
        if most < MAX_SUM:
            m.model.add(expression <= most)
    if not limits.min_on_time:
        return
    on_time: list[Any] = []
    always = 0
    for j in m.sessions:
        deadline = m.tables.cohorts[m.tables.dispatch_order[j]].deadline_s
        if deadline is None:
            always += 1
            continue
        literal = m.model.new_bool_var(f"on_time[{j}]")
        last = min(m.scale.last_within(deadline), m.horizon)
        m.model.add(m.end[j] <= last).only_enforce_if(literal)
        on_time.append(literal)
    m.model.add(sum(on_time) >= limits.min_on_time - always).with_name("on_time")


def sum_error(m: DeploymentModel, measure: Measure) -> Fraction:
    """Bound how far a sum of ticks is from the exact sum; 0 where ticks are exact."""
    seconds = m.scale.error / m.scale.per_s
    pools = m.tables.pools
    weights = {
        Measure.COMPLETION: m.tables.num_sessions,
        Measure.CARD_SECONDS: m.tables.instance.fleet.num_cards,
        Measure.ENERGY: sum((p.server.power_w or 0) * p.num_servers for p in pools),
        Measure.CARDS: 0,
        Measure.HELD: 0,
    }
    return weights[measure] * seconds


def define_objective(m: DeploymentModel, measure: Measure) -> Fraction:
    """Minimise a measure; returns its unit."""
    expression, unit = define_measure(m, measure)
    m.model.minimize(expression)
    return unit


def _instances_of(m: DeploymentModel, counts: Mapping[int, int]) -> dict[int, Any]:
    """Return the number of serving instances of some candidates, and at -1 of all the others."""
    literals: dict[int, list[Any]] = {c: [] for c in (-1, *counts)}
    for (_, k), literal in m.is_kind.items():
        c = m.tables.kinds[k].candidate.index
        literals[c if c in counts else -1].append(literal)
    return {c: sum(mine) for c, mine in literals.items()}


def define_deployments(
    m: DeploymentModel, excluded: Sequence[DeploymentCounts], required: DeploymentCounts | None
) -> None:
    """Have the deployment that is required, and none that is excluded (no-good cuts)."""
    if required is not None:
        wanted = dict(required.counts)
        for c, count in _instances_of(m, wanted).items():
            m.model.add(count == wanted.get(c, 0)).with_name(f"required[{c}]")
    for e, other in enumerate(excluded):
        wanted, differs = dict(other.counts), []
        for c, count in _instances_of(m, wanted).items():
            number = wanted.get(c, 0)
            more = m.model.new_bool_var(f"more[{e},{c}]")
            m.model.add(count >= number + 1).only_enforce_if(more)
            differs.append(more)
            if number:
                fewer = m.model.new_bool_var(f"fewer[{e},{c}]")
                m.model.add(count <= number - 1).only_enforce_if(fewer)
                differs.append(fewer)
        m.model.add_bool_or(differs).with_name(f"excluded[{e}]")


def build_model(
    tables: ProblemTables,
    scale: TickScale,
    limits: Limits,
    excluded: Sequence[DeploymentCounts] = (),
    required: DeploymentCounts | None = None,
) -> DeploymentModel:
    """Build variables, constraints and limits; the objective comes after."""
    m = DeploymentModel(tables, scale)
    define_deployment_variables(m)
    define_deployment_constraints(m)
    define_deployments(m, excluded, required)
    define_limits(m, limits)
    return m
