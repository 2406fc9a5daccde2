"""Lower bounds that need no solver: each session at its cheapest, all cards always busy."""

from __future__ import annotations

from fractions import Fraction

from instances.quantity import human_bytes, human_seconds
from instances.workload import Cohort
from optimizer.operators import step_weight_bytes
from optimizer.protocols import Measure, Term
from optimizer.tables import Candidate, ProblemTables

ZERO = Fraction(0)


def _holders(tables: ProblemTables) -> list[list[Candidate]]:
    """Return, cohort by cohort, the candidates whose cards hold at least one of its sessions."""
    return [
        [c for c in tables.candidates if c.max_tokens >= cohort.held_tokens]
        for cohort in tables.cohorts
    ]


def measure_bound(tables: ProblemTables, measure: Measure) -> Fraction:
    """Return a value that no plan goes below.

    Every session is served whole by some candidate, so it costs at least its least card-seconds
    and ends no earlier than its least service time after its release; and cards · makespan is at
    least the card-seconds of all sessions.
    """
    cohorts, holders = tables.cohorts, _holders(tables)
    if not all(holders):
        return ZERO
    fastest = [min(c.service_s[i] for c in able) for i, able in enumerate(holders)]
    counts = [cohort.num_sessions for cohort in cohorts]
    ends = [cohort.release_s + s for cohort, s in zip(cohorts, fastest, strict=True)]

    def total(per_session: list[Fraction]) -> Fraction:
        return sum((n * x for n, x in zip(counts, per_session, strict=True)), ZERO)

    card_s = total([min(c.tp * c.service_s[i] for c in able) for i, able in enumerate(holders)])
    if measure is Measure.END:
        return max(*ends, card_s / tables.instance.fleet.num_cards)
    if measure is Measure.LATENCY:
        return max(fastest)
    if measure is Measure.COMPLETION:
        return total(ends)
    if measure is Measure.CARD_SECONDS:
        return card_s
    if measure is Measure.ENERGY:
        return total(
            [min(c.power_w * c.service_s[i] for c in able) for i, able in enumerate(holders)]
        )
    return Fraction(max(min(c.tp for c in able) for able in holders))


def term_bound(tables: ProblemTables, term: Term) -> Fraction:
    """Return a value of an objective that no plan goes below."""
    bound = term.scale * measure_bound(tables, term.measure)
    return bound / tables.num_sessions if term.per_on_time else bound


def most_on_time(tables: ProblemTables) -> int:
    """Most sessions that can end on time if each ran at once on its fastest candidate."""
    return sum(
        cohort.num_sessions
        for i, (cohort, able) in enumerate(zip(tables.cohorts, _holders(tables), strict=True))
        if able
        and (
            cohort.deadline_s is None
            or cohort.release_s + min(c.service_s[i] for c in able) <= cohort.deadline_s
        )
    )


def unserved_cohort(tables: ProblemTables) -> str | None:
    """Name a cohort no candidate has memory for: then there is no plan at all; None if none."""
    for cohort, able in zip(tables.cohorts, _holders(tables), strict=True):
        if not able:
            return cohort.name
    return None


def lateness_reason(tables: ProblemTables) -> str | None:
    """Say which cohort no candidate can serve in time, and by what bound; None if all can."""
    for i, (cohort, able) in enumerate(zip(tables.cohorts, _holders(tables), strict=True)):
        if cohort.deadline_s is None or not able:
            continue
        best = min(able, key=lambda c: (c.service_s[i], c.index))
        allowed = cohort.deadline_s - cohort.release_s
        if best.service_s[i] <= allowed:
            continue
        return _too_slow(tables, cohort, best, allowed, best.service_s[i])
    return None


def _too_slow(
    tables: ProblemTables, cohort: Cohort, best: Candidate, allowed: Fraction, needed: Fraction
) -> str:
    """Name the bound: reading the weights where that alone is too slow, else the service time."""
    bandwidth = tables.pools[best.pool_index].server.accelerator.memory_bandwidth_bytes_per_s
    weights = step_weight_bytes(tables.instance.model)
    step_s = weights / (best.tp * bandwidth)
    if step_s * cohort.new_tokens > allowed:
        return (
            f"cohort {cohort.name!r} has {human_seconds(allowed / cohort.new_tokens)} a token, "
            f"but reading the weights alone takes {human_seconds(step_s)} "
            f"({human_bytes(weights)} over TP{best.tp} at {float(bandwidth) / 1e9:.4g} GB/s)"
        )
    return (
        f"cohort {cohort.name!r} has {human_seconds(allowed)} to its deadline; the fastest "
        f"candidate, TP{best.tp} ({best.collective}), needs {human_seconds(needed)}"
    )
