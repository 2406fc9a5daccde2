"""A second opinion on an optimum or on infeasibility: no solver, or another one (law 3).

A wrong optimum is a feasible plan, so evaluating the plan cannot reveal it. The cheapest method
that can speak is used: a solver-free bound, the brute-force oracle on small problems, or another
backend's own proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.backends import Finished, Runner
from optimizer.bounds import lateness_reason, most_on_time, term_bound, unserved_cohort
from optimizer.decode import plan_of
from optimizer.errors import BackendUnavailable, TooLargeError
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.exhaustive import solve_exhaustively
from optimizer.objectives import budget_ceilings
from optimizer.plan import Plan
from optimizer.protocols import Outcome, StageClaim, Term, Termination
from optimizer.tables import ProblemTables

#: The oracle is asked when it needs to look at no more plans than this.
MAX_ORACLE_PLANS = 20_000


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """Who was asked and what came of it; `agrees` None when nobody could tell.

    `plan` is a plan that is better by less than the first solver could tell.
    """

    method: str
    agrees: bool | None
    detail: str
    plan: Plan | None = None


def by_bound(
    tables: ProblemTables, terms: Sequence[Term], claims: Sequence[StageClaim] | None
) -> SecondOpinion | None:
    """Settle the question without any search, or return None; `claims` None means infeasible."""
    if claims is None:
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
        for ceiling in budget_ceilings(tables.instance):
            least, unit = term_bound(tables, ceiling.term), OBJECTIVE_UNITS[ceiling.term.name]
            if least > ceiling.most:
                detail = f"{ceiling.term.name} is at least {float(least):.6g} {unit}"
                return SecondOpinion("bound", True, detail)
        return None
    bounds = [term_bound(tables, term) for term in terms]
    if [claim.value for claim in claims] == bounds:
        return SecondOpinion("bound", True, "every objective meets its solver-free bound")
    return None


def by_oracle(tables: ProblemTables, claims: Sequence[StageClaim] | None) -> SecondOpinion | None:
    """Enumerate all plans if they are few; None if they are many."""
    try:
        found = solve_exhaustively(tables.instance, max_plans=MAX_ORACLE_PLANS)
    except TooLargeError:
        return None
    detail = f"all {found.num_plans} plans enumerated and evaluated"
    if found.values is None:
        return SecondOpinion("exhaustive", claims is None, detail)
    exact = [StageClaim("", value, value) for value in found.values]
    agrees, is_finer = compare(claims, exact)
    return SecondOpinion("exhaustive", agrees, detail, found.plan if is_finer else None)


def by_backend(
    runner: Runner, names: Sequence[str], threads: int, claims: Sequence[StageClaim] | None
) -> SecondOpinion:
    """Ask other backends, those already running first, until one has a proof of its own."""
    waiting = [name for name in names if name not in runner.running]
    declined: list[str] = []
    while runner.running or waiting:
        while waiting and len(runner.running) < threads:
            name = waiting.pop(0)
            runner.start(name, 1, 0.5 if waiting and threads == 1 else 1.0)
        finished = runner.next()
        if finished is None:
            break
        if finished.error is not None and not isinstance(
            finished.error, BackendUnavailable | TooLargeError
        ):
            raise finished.error
        if finished.outcome is None or not finished.is_proof:
            declined.append(f"{finished.name}: {finished.error or 'no proof in time'}")
            continue
        return _from_outcome(runner.request.tables, finished, finished.outcome, claims)
    return SecondOpinion("none", None, "; ".join(declined) or "no other method had time")


def _from_outcome(
    tables: ProblemTables,
    finished: Finished,
    outcome: Outcome,
    claims: Sequence[StageClaim] | None,
) -> SecondOpinion:
    detail = f"own proof, {finished.version}"
    if outcome.termination is Termination.INFEASIBLE or outcome.selection is None:
        return SecondOpinion(finished.name, claims is None, detail)
    agrees, is_finer = compare(claims, outcome.claims)
    plan = plan_of(tables, outcome.selection) if is_finer else None
    return SecondOpinion(finished.name, agrees, detail, plan)


def compare(claims: Sequence[StageClaim] | None, others: Sequence[StageClaim]) -> tuple[bool, bool]:
    """Return whether two proofs agree, and whether the other one found a finer optimum.

    A proof whose bound is below its value cannot tell values in between apart; another value there
    is no contradiction, and a lower one is the better plan.
    """
    if claims is None:
        return False, False
    for mine, other in zip(claims, others, strict=True):
        if mine.value == other.value:
            continue
        if mine.value is None or other.value is None:
            return False, False
        if other.value < mine.value:
            return mine.bound is not None and mine.bound <= other.value, True
        return other.bound is not None and other.bound <= mine.value, False
    return True, False
