"""A second opinion on an optimum or on infeasibility: no solver, or another one (law 4).

A wrong optimum is a feasible plan, so evaluating the plan cannot reveal it. The cheapest method
that can speak is used: a solver-free bound, the brute-force oracle on small problems, or another
backend's own proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.backends import Finished, Runner
from optimizer.bounds import lateness_reason, most_on_time, term_bound, unserved_cohort
from optimizer.errors import BackendUnavailable, TooLargeError
from optimizer.exhaustive import solve_exhaustively
from optimizer.protocols import Term, Termination
from optimizer.tables import ProblemTables

#: The oracle is asked when it needs to look at no more plans than this.
MAX_ORACLE_PLANS = 20_000


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """Who was asked and what came of it; `agrees` None when nobody could tell."""

    method: str
    agrees: bool | None
    detail: str


def by_bound(
    tables: ProblemTables, terms: Sequence[Term], values: Sequence[Fraction] | None
) -> SecondOpinion | None:
    """Settle the question without any search, or return None."""
    if values is None:
        need, most = tables.instance.min_on_time_sessions, most_on_time(tables)
        if not tables.kinds or tables.layouts == ():
            return SecondOpinion("rules", True, "every candidate breaks a rule")
        unserved = unserved_cohort(tables)
        if unserved is not None:
            detail = f"no candidate has memory for a session of cohort {unserved!r}"
            return SecondOpinion("rules", True, detail)
        if most < need:
            detail = lateness_reason(tables) or f"at most {most} sessions can be on time"
            return SecondOpinion("bound", True, detail)
        return None
    bounds = [term_bound(tables, term) for term in terms]
    if list(values) == bounds:
        return SecondOpinion("bound", True, "every objective meets its solver-free bound")
    return None


def by_oracle(tables: ProblemTables, values: Sequence[Fraction] | None) -> SecondOpinion | None:
    """Enumerate all plans if they are few; None if they are many."""
    try:
        found = solve_exhaustively(tables.instance, max_plans=MAX_ORACLE_PLANS)
    except TooLargeError:
        return None
    agrees = found.values == (None if values is None else tuple(values))
    detail = f"all {found.num_plans} plans enumerated and evaluated"
    return SecondOpinion("exhaustive", agrees, detail)


def by_backend(
    runner: Runner, names: Sequence[str], threads: int, values: Sequence[Fraction] | None
) -> SecondOpinion:
    """Ask other backends, those already running first, until one has a proof of its own."""
    waiting = [name for name in names if name not in runner.running]
    declined: list[str] = []
    while runner.running or waiting:
        if not runner.running:
            runner.start(waiting.pop(0), threads)
        finished = runner.next()
        if finished is None:
            break
        if finished.error is not None and not isinstance(
            finished.error, BackendUnavailable | TooLargeError
        ):
            raise finished.error
        if not finished.is_proof:
            declined.append(f"{finished.name}: {finished.error or 'no proof in time'}")
            continue
        return SecondOpinion(
            finished.name, _same(finished, values), f"own proof, {finished.version}"
        )
    return SecondOpinion("none", None, "; ".join(declined) or "no other method had time")


def _same(finished: Finished, values: Sequence[Fraction] | None) -> bool:
    assert finished.outcome is not None
    if finished.outcome.termination is Termination.INFEASIBLE:
        return values is None
    if values is None:
        return False
    for claim, value in zip(finished.outcome.claims, values, strict=True):
        if claim.value != value:  # a tie for arithmetic as coarse as this backend's is agreement
            return claim.bound is not None and claim.bound <= value <= (claim.value or value)
    return True
