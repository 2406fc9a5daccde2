"""The exact evaluator: card by card, step by step. Knows no table and no solver.

All bytes are ints and all times Fractions; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from instances.instance import Instance
from instances.workload import Cohort
from optimizer.checks import check_structure, sessions_in_order
from optimizer.evaluation import (
    OBJECTIVE_UNITS,
    CardUse,
    Evaluation,
    SessionOutcome,
    Violation,
)
from optimizer.footprint_prices import FootprintPrices
from optimizer.parallel import coordinates
from optimizer.plan import Plan, ServingInstance, SessionId
from optimizer.timeline import SessionRun, Stall, merge_stalls, run_queue


def instance_stalls(instance: Instance, serving: ServingInstance) -> tuple[Stall, ...]:
    """Return when faults of its own cards stop a serving instance, merged and ascending."""
    default = instance.fleet.pools[0].name
    owned = {(card.server, card.card) for card in serving.cards}
    return merge_stalls(
        Stall(fault.at_s, fault.at_s + fault.stall_s)
        for fault in instance.faults
        if (fault.pool or default) == serving.pool and (fault.server, fault.card) in owned
    )


def is_priced(prices: FootprintPrices, serving: ServingInstance) -> bool:
    """Whether bytes and times of a serving instance are defined at all."""
    return (
        bool(serving.cards)
        and prices.is_meaningful(serving.footprint)
        and all(0 <= lane < serving.num_lanes for lane in serving.lanes)
    )


def session_runs(
    instance: Instance,
    serving: ServingInstance,
    cohorts: Sequence[Cohort],
    prices: FootprintPrices | None = None,
) -> list[SessionRun] | None:
    """Run sessions of the given cohorts on a serving instance, lane by lane, in their order.

    Returns None if the instance has no price. `prices` may be shared by calls on the same problem
    instance.
    """
    prices = prices or FootprintPrices(instance)
    if not is_priced(prices, serving):
        return None
    lanes: dict[int, list[int]] = {}
    for position in range(len(cohorts)):
        lanes.setdefault(serving.lane_of(position), []).append(position)
    stalls = instance_stalls(instance, serving)
    runs: dict[int, SessionRun] = {}
    for positions in lanes.values():
        jobs = []
        for position in positions:
            service = prices.service_s(serving.footprint, cohorts[position])
            if service is None:
                return None
            jobs.append((cohorts[position].release_s, service))
        runs.update(zip(positions, run_queue(jobs, stalls), strict=True))
    return [runs[position] for position in range(len(cohorts))]


def _card_uses(
    prices: FootprintPrices, plan: Plan, cohort_of: dict[str, Cohort]
) -> Iterator[CardUse]:
    """Yield the bytes of every card: its stage's weights and its attention group's sessions."""
    for i, serving in enumerate(plan):
        if not is_priced(prices, serving):
            continue
        config, footprint = serving.parallel, serving.footprint
        weights = prices.stage_weights(footprint)
        held = [[0] * config.dp for _ in weights]
        for position, session in enumerate(serving.sessions):
            if session.cohort in cohort_of:
                group = serving.lane_of(position) // footprint.lanes_per_group
                sizes = prices.session_bytes(footprint, cohort_of[session.cohort])
                for stage, size in enumerate(sizes):
                    held[stage][group] += size
        buffers, usable = prices.buffer_bytes(footprint), prices.usable_bytes(footprint)
        for number, card in enumerate(serving.cards[: config.num_cards]):
            at = coordinates(config, number)
            yield CardUse(
                serving.pool,
                card,
                i,
                weights[at.stage],
                held[at.stage][at.dp],
                buffers,
                usable,
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


def check_budget(instance: Instance, judged: Evaluation) -> Iterator[Violation]:
    """No objective may exceed its limit in `objective.at_most`."""
    for name, most in instance.objective.at_most.limits():
        value, unit = judged.objective(name), OBJECTIVE_UNITS[name]
        if value is not None and value > most:
            text = f"{name} is {float(value):.6g} {unit}; at most {float(most):.6g} {unit} may be"
            yield Violation("budget", name, value - most, unit, text)


def _without_strangers(serving: ServingInstance, cohort_of: dict[str, Cohort]) -> ServingInstance:
    """Return the serving instance without sessions of cohorts that do not exist."""
    kept = [i for i, session in enumerate(serving.sessions) if session.cohort in cohort_of]
    return replace(
        serving,
        sessions=tuple(serving.sessions[i] for i in kept),
        lanes=tuple(serving.lane_of(i) for i in kept),
    )


def _outcomes(
    instance: Instance, plan: Plan, cohort_of: dict[str, Cohort], prices: FootprintPrices
) -> tuple[SessionOutcome, ...]:
    ran: dict[SessionId, tuple[int | None, SessionRun | None]] = {}
    for i, serving in enumerate(plan):
        sessions = [s for s in serving.sessions if s.cohort in cohort_of]
        if len(sessions) < len(serving.sessions):
            serving = _without_strangers(serving, cohort_of)
        runs = session_runs(instance, serving, [cohort_of[s.cohort] for s in sessions], prices)
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


def _held_sessions(prices: FootprintPrices, plan: Plan) -> int | None:
    """Sessions of the only cohort whose caches fit at once; None for several."""
    cohorts = prices.instance.workload.cohorts
    if len(cohorts) > 1:
        return None
    return sum(
        prices.held_sessions(serving.footprint, cohorts[0])
        for serving in plan
        if is_priced(prices, serving)
    )


def evaluate(instance: Instance, plan: Plan) -> Evaluation:
    """Judge a plan exactly: every byte on every card, every session's time, every rule broken.

    Never raises for a bad plan: what is wrong with it is in `violations`.
    """
    cohort_of = {cohort.name: cohort for cohort in instance.workload.cohorts}
    prices = FootprintPrices(instance)
    outcomes = _outcomes(instance, plan, cohort_of, prices)
    cards = tuple(_card_uses(prices, plan, cohort_of))
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
    judged = Evaluation(
        sessions=outcomes,
        cards=cards,
        violations=tuple(violations),
        num_cards=plan.num_cards,
        held_sessions=_held_sessions(prices, plan),
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
    over = tuple(check_budget(instance, judged))
    return replace(judged, violations=judged.violations + over) if over else judged
