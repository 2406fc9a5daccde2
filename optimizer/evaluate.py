"""The exact evaluator: card by card, step by step. Knows no table and no solver.

All bytes are ints and all times Fractions; nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Instance
from instances.workload import Cohort
from optimizer.checks import check_structure, find_pool, sessions_in_order
from optimizer.collectives import CollectiveUnavailable, all_reduce_s
from optimizer.evaluation import CardUse, Evaluation, SessionOutcome, Violation
from optimizer.operators import (
    LinearWork,
    card_flops,
    card_read_bytes,
    kv_bytes_per_token_per_card,
    message_bytes,
    reductions_per_step,
)
from optimizer.ownership import card_weight_bytes
from optimizer.parallel import check_heads
from optimizer.plan import Plan, ServingInstance, SessionId
from optimizer.timeline import SessionRun, Stall, merge_stalls, run_queue


def step_time_s(
    instance: Instance, pool: Pool, tp: int, num_servers: int, collective: str, context: int
) -> tuple[Fraction, Fraction]:
    """Return (local, reductions) seconds of one decode step at `context` tokens (6-2, 6-5).

    Local is the longer of compute and HBM reads; the reductions come after it.
    Raises CollectiveUnavailable, or ValueError where the model's heads refuse `tp`.
    """
    model, accelerator = instance.model, pool.server.accelerator
    peak = accelerator.peak(model.formats.weights)
    if peak is None:
        raise ValueError(f"{accelerator.name} has no known {model.formats.weights} peak")
    read_s = card_read_bytes(model, tp).at(context) / accelerator.memory_bandwidth_bytes_per_s
    compute_s = card_flops(model, tp).at(context) / peak
    return max(read_s, compute_s), _reductions_s(instance, pool, tp, num_servers, collective)


def _reductions_s(
    instance: Instance, pool: Pool, tp: int, num_servers: int, collective: str
) -> Fraction:
    fabric = pool.server.fabric if num_servers == 1 else pool.fabric_between
    if fabric is None:
        raise CollectiveUnavailable("span", f"pool {pool.name!r} has no fabric_between")
    one = all_reduce_s(collective, fabric, tp, num_servers, message_bytes(instance.model))
    return reductions_per_step(instance.model) * one


def _sum_of_longest(first: LinearWork, second: LinearWork, tokens: range) -> Fraction:
    """Sum max(first, second) step by step, in integers of one common denominator."""
    parts = (first.base, first.per_token, second.base, second.per_token)
    unit = math.lcm(*(part.denominator for part in parts))
    a, b, c, d = (int(part * unit) for part in parts)
    return Fraction(sum(max(a + b * s, c + d * s) for s in tokens), unit)


def service_time_s(
    instance: Instance, pool: Pool, tp: int, num_servers: int, collective: str, cohort: Cohort
) -> Fraction:
    """Return the seconds one session of `cohort` takes: its steps, the context growing by one.

    Raises as `step_time_s` does.
    """
    model, accelerator = instance.model, pool.server.accelerator
    _, reductions_s = step_time_s(instance, pool, tp, num_servers, collective, 0)
    peak, bandwidth = (
        accelerator.peak(model.formats.weights),
        (accelerator.memory_bandwidth_bytes_per_s),
    )
    assert peak is not None  # step_time_s refused otherwise
    flops, reads = card_flops(model, tp), card_read_bytes(model, tp)
    tokens = range(cohort.context_tokens, cohort.context_tokens + cohort.new_tokens)
    local_s = _sum_of_longest(
        LinearWork(flops.base / peak, flops.per_token / peak),
        LinearWork(reads.base / bandwidth, reads.per_token / bandwidth),
        tokens,
    )
    return local_s + cohort.new_tokens * reductions_s


def instance_stalls(instance: Instance, serving: ServingInstance) -> tuple[Stall, ...]:
    """Return when faults of its own cards stop a serving instance, merged and ascending."""
    default = instance.fleet.pools[0].name
    owned = {(card.server, card.card) for card in serving.cards}
    return merge_stalls(
        Stall(fault.at_s, fault.at_s + fault.stall_s)
        for fault in instance.faults
        if (fault.pool or default) == serving.pool and (fault.server, fault.card) in owned
    )


#: Service times already summed, by (pool, tp, servers, collective, cohort).
ServiceTimes = dict[tuple[str, int, int, str, str], Fraction]


def session_runs(
    instance: Instance,
    serving: ServingInstance,
    cohorts: Sequence[Cohort],
    known: ServiceTimes | None = None,
) -> list[SessionRun] | None:
    """Run sessions of the given cohorts on a serving instance, in order; None if it has no price.

    `known` remembers service times from call to call on the same problem instance.
    """
    known = {} if known is None else known
    pool = find_pool(instance.fleet, serving.pool)
    tp, servers = serving.parallel.tp, len(serving.servers)
    if pool is None or tp < 1 or servers < 1 or check_heads(instance.model, tp) is not None:
        return None
    queue: list[tuple[Fraction, Fraction]] = []
    for cohort in cohorts:
        key = (pool.name, tp, servers, serving.collective, cohort.name)
        try:
            if key not in known:
                known[key] = service_time_s(instance, pool, tp, servers, serving.collective, cohort)
        except ValueError:
            return None
        queue.append((cohort.release_s, known[key]))
    return run_queue(queue, instance_stalls(instance, serving))


def usable_bytes(instance: Instance, pool: Pool) -> int:
    """Bytes of a card that may be used: capacity times the usable fraction, rounded down."""
    return int(pool.server.accelerator.memory_bytes * instance.runtime.usable_memory_fraction)


def card_kv_bytes(instance: Instance, tp: int, cohorts: Sequence[Cohort]) -> int:
    """KV bytes on each card of an instance that holds one session of each cohort listed."""
    tokens = sum(cohort.held_tokens for cohort in cohorts)
    return tokens * kv_bytes_per_token_per_card(instance.model, tp)


def _card_uses(instance: Instance, plan: Plan, cohort_of: dict[str, Cohort]) -> Iterator[CardUse]:
    for i, serving in enumerate(plan):
        pool, tp = find_pool(instance.fleet, serving.pool), serving.parallel.tp
        if pool is None or tp < 1 or check_heads(instance.model, tp) is not None:
            continue
        held = [cohort_of[s.cohort] for s in serving.sessions if s.cohort in cohort_of]
        weights, kv = card_weight_bytes(instance.model, tp), card_kv_bytes(instance, tp, held)
        for card in serving.cards:
            yield CardUse(
                serving.pool,
                card,
                i,
                weights,
                kv,
                instance.runtime.workspace_bytes,
                usable_bytes(instance, pool),
            )


def check_memory(cards: Sequence[CardUse]) -> Iterator[Violation]:
    """No card may hold more than its usable bytes (6-1)."""
    for use in cards:
        short = use.total_bytes - use.capacity_bytes
        if short > 0:
            yield Violation(
                "memory",
                f"{use.pool}/{use.card.server}/{use.card.card}",
                short,
                "B",
                f"needs {use.total_bytes} B of {use.capacity_bytes} B: {short} B short",
            )


def check_on_time(instance: Instance, outcomes: Sequence[SessionOutcome]) -> Iterator[Violation]:
    """Enough sessions must end by their deadline."""
    need = instance.min_on_time_sessions
    have = sum(outcome.on_time for outcome in outcomes)
    if have < need:
        yield Violation(
            "on_time",
            "workload",
            need - have,
            "sessions",
            f"{have} of {len(outcomes)} sessions end on time; at least {need} must",
        )


def _outcomes(
    instance: Instance, plan: Plan, cohort_of: dict[str, Cohort]
) -> tuple[SessionOutcome, ...]:
    ran: dict[SessionId, tuple[int | None, SessionRun | None]] = {}
    known: ServiceTimes = {}
    for i, serving in enumerate(plan):
        sessions = [s for s in serving.sessions if s.cohort in cohort_of]
        runs = session_runs(instance, serving, [cohort_of[s.cohort] for s in sessions], known)
        for session, run in zip(sessions, runs or (), strict=False):
            ran.setdefault(session, (i, run))
    outcomes = []
    for session in sessions_in_order(instance):
        cohort = cohort_of[session.cohort]
        where, ran_as = ran.get(session, (None, None))
        outcomes.append(
            SessionOutcome(
                session,
                where,
                ran_as.start_s if ran_as else None,
                ran_as.finish_s if ran_as else None,
                cohort.release_s,
                cohort.deadline_s,
                ran_as.num_restarts if ran_as else 0,
            )
        )
    return tuple(outcomes)


def _occupied(
    instance: Instance, plan: Plan, outcomes: Sequence[SessionOutcome], makespan: Fraction
) -> tuple[Fraction, Fraction | None]:
    """Return (card-seconds, joules) under the instance's billing; joules None without power."""
    pools = instance.fleet.pools
    powers = {p.name: p.server.power_w for p in pools}
    per_card = {p.name: Fraction(p.server.power_w or 0, p.server.num_cards) for p in pools}
    if instance.objective.billing == "fleet":
        card_s = instance.fleet.num_cards * makespan
        joules = sum((per_card[p.name] * p.num_cards for p in pools), Fraction(0)) * makespan
        return card_s, None if None in powers.values() else joules
    last: dict[int, Fraction] = {}
    for outcome in outcomes:
        if outcome.instance is not None and outcome.finish_s is not None:
            last[outcome.instance] = max(last.get(outcome.instance, Fraction(0)), outcome.finish_s)
    card_s, joules, known = Fraction(0), Fraction(0), True
    for i, end in last.items():
        serving = plan.instances[i]
        card_s += len(serving.cards) * end
        joules += len(serving.cards) * end * per_card.get(serving.pool, Fraction(0))
        known = known and powers.get(serving.pool) is not None
    return card_s, joules if known else None


def evaluate(instance: Instance, plan: Plan) -> Evaluation:
    """Judge a plan exactly: every byte on every card, every session's time, every rule broken.

    Never raises for a bad plan: what is wrong with it is in `violations`.
    """
    cohort_of = {cohort.name: cohort for cohort in instance.workload.cohorts}
    outcomes = _outcomes(instance, plan, cohort_of)
    cards = tuple(_card_uses(instance, plan, cohort_of))
    violations = [
        *check_structure(instance, plan),
        *check_memory(cards),
        *check_on_time(instance, outcomes),
    ]
    finished = [(o, o.finish_s) for o in outcomes if o.finish_s is not None]
    makespan = max((finish for _, finish in finished), default=None)
    occupied, energy = (
        _occupied(instance, plan, outcomes, makespan) if makespan is not None else (None, None)
    )
    return Evaluation(
        sessions=outcomes,
        cards=cards,
        violations=tuple(violations),
        num_cards=plan.num_cards,
        makespan_s=makespan,
        max_latency_s=max((finish - o.release_s for o, finish in finished), default=None),
        mean_completion_s=(
            sum((finish for _, finish in finished), Fraction(0)) / len(finished)
            if finished
            else None
        ),
        occupied_card_s=occupied,
        energy_j=energy,
    )
