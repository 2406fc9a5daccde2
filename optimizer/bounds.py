"""Lower bounds that need no solver: each session at its cheapest, all lanes always busy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from instances.quantity import human_bytes, human_seconds
from instances.workload import Cohort
from optimizer.operators import step_weight_bytes
from optimizer.protocols import Measure, Term
from optimizer.tables import Candidate, ProblemTables

ZERO = Fraction(0)


def _holders(tables: ProblemTables) -> list[list[Candidate]]:
    """Return, cohort by cohort, the candidates whose groups hold at least one of its sessions."""
    cohorts = range(len(tables.cohorts))
    return [
        [c for c in tables.candidates if c.holds([int(i == mine) for i in cohorts])]
        for mine in cohorts
    ]


def _busy_lanes(tables: ProblemTables, candidate: Candidate) -> int:
    """Most lanes of an instance that can have a session."""
    return min(candidate.num_groups * candidate.num_lanes, tables.num_sessions)


def _least_shares(
    tables: ProblemTables, holders: list[list[Candidate]], weight: Callable[[Candidate], Fraction]
) -> Fraction:
    """Add up the least part of weight · seconds that each session has, all lanes being busy."""
    total = ZERO
    for i, (cohort, able) in enumerate(zip(tables.cohorts, holders, strict=True)):
        shares = (weight(c) * c.service_s[i] / _busy_lanes(tables, c) for c in able)
        total += cohort.num_sessions * min(shares)
    return total


def _dearest(holders: list[list[Candidate]], weight: Callable[[Candidate], Fraction]) -> Fraction:
    """Return the most weight · seconds that any session takes where it takes least."""
    return max(min(weight(c) * c.service_s[i] for c in able) for i, able in enumerate(holders))


def _num_cards(candidate: Candidate) -> Fraction:
    return Fraction(candidate.num_cards)


def _power_w(candidate: Candidate) -> Fraction:
    return candidate.power_w


def measure_bound(tables: ProblemTables, measure: Measure) -> Fraction:
    """Return a value that no plan goes below.

    Every session is served whole by some candidate, so it ends no earlier than its least service
    time after its release. An instance is on at least until its last session ends, and until then
    no lane serves longer: it costs at least its cards (or power) times the mean service time of
    its lanes, and times that of any of its sessions. Cards · makespan is at least the card-seconds
    of all instances. HELD depends on the layout alone, so its least value is known.
    """
    if measure is Measure.HELD:
        return _least_held(tables)
    cohorts, holders = tables.cohorts, _holders(tables)
    if not all(holders):
        return ZERO
    fastest = [min(c.service_s[i] for c in able) for i, able in enumerate(holders)]
    ends = [cohort.release_s + s for cohort, s in zip(cohorts, fastest, strict=True)]
    if measure is Measure.END:
        shares = _least_shares(tables, holders, _num_cards)
        return max(*ends, shares / tables.instance.fleet.num_cards)
    if measure is Measure.LATENCY:
        return max(fastest)
    if measure is Measure.COMPLETION:
        return sum((c.num_sessions * end for c, end in zip(cohorts, ends, strict=True)), ZERO)
    if measure is Measure.CARDS:
        return Fraction(max(min(c.num_cards for c in able) for able in holders))
    weight = _num_cards if measure is Measure.CARD_SECONDS else _power_w
    return max(_least_shares(tables, holders, weight), _dearest(holders, weight))


def _least_held(tables: ProblemTables) -> Fraction:
    """Return minus the sessions that the roomiest layout holds."""
    held = (
        sum(tables.kinds[k].candidate.held_sessions for k, _ in layout.instances)
        for layout in tables.layouts or ()
    )
    return -Fraction(max(held, default=0))


def term_bound(tables: ProblemTables, term: Term) -> Fraction:
    """Return a value of an objective that no plan goes below."""
    bound = term.scale * measure_bound(tables, term.measure)
    return bound / tables.num_sessions if term.per_on_time else bound


def relative_gap(value: Fraction | None, bound: Fraction | None) -> Fraction | None:
    """Return |value - bound| / |value|; None where a side is missing, or the value is 0."""
    if value is None or bound is None:
        return None
    if value == bound:
        return ZERO
    return abs((value - bound) / value) if value else None


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
    # every stage reads its own weights in turn, with its own cards
    step_s = weights / (best.footprint.parallel.stage_cards * bandwidth)
    if step_s * cohort.new_tokens > allowed:
        return (
            f"cohort {cohort.name!r} has {human_seconds(allowed / cohort.new_tokens)} a token, "
            f"but reading the weights alone takes {human_seconds(step_s)} "
            f"({human_bytes(round(weights))} over {best.footprint.parallel.label()} "
            f"at {float(bandwidth) / 1e9:.4g} GB/s)"
        )
    return (
        f"cohort {cohort.name!r} has {human_seconds(allowed)} to its deadline; the fastest "
        f"candidate, {best.footprint.label()}, needs {human_seconds(needed)}"
    )
