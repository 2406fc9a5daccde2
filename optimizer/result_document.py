"""From what a solve established to its result document."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from instances.instance import Instance
from optimizer.bounds import lateness_reason, relative_gap
from optimizer.evaluation import MAXIMISED, OBJECTIVE_UNITS, Evaluation
from optimizer.explain import is_used, reject_loser, rejections, thresholds
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import (
    as_float,
    as_text,
    evaluation_document,
    footprint_document,
    plan_document,
    plan_sha256,
)
from optimizer.protocols import StageClaim, Term, Termination
from optimizer.record import SolveRecord
from optimizer.result import (
    CandidateDocument,
    CertificateDocument,
    ObjectiveDocument,
    PlanDocument,
    RejectionDocument,
    ResultDocument,
    SecondOpinionDocument,
    ThresholdDocument,
)
from optimizer.second_opinion import SecondOpinion
from optimizer.tables import ProblemTables, Rejection


def result_document(record: SolveRecord, options: SolveOptions, seconds: float) -> ResultDocument:
    """Return the result document of a finished solve."""
    tables, instance = record.tables, record.tables.instance
    plan, evaluation, claims = best_of(record)
    termination = record.termination
    if termination is Termination.NO_SOLUTION_FOUND and plan is not None:
        termination = Termination.FEASIBLE
    objectives = [
        _objective(record, i, term, evaluation, claims) for i, term in enumerate(record.terms)
    ]
    document = None if plan is None else plan_document(plan, instance.fleet.num_cards)
    rejected = rejections(tables, record.reports, plan, evaluation)
    return ResultDocument(
        instance=instance.name,
        termination=termination.value,
        limit=record.limit,
        reason=record.reason or no_plan_reason(record, termination, rejected),
        objective=objectives[0],
        then=objectives[1:],
        plan=document,
        evaluation=None if evaluation is None else evaluation_document(instance, evaluation),
        candidates=_candidates(record, plan, evaluation),
        rejected=[_rejection(r) for r in rejected],
        thresholds=_thresholds(tables, rejected),
        certificate=_certificate(record, options, document),
        seconds=round(seconds, 3),
    )


def best_of(
    record: SolveRecord,
) -> tuple[Plan | None, Evaluation | None, tuple[StageClaim, ...]]:
    """Return the best verified plan; claims only where they are of that plan."""
    mine, best = record.values(), record.incumbent.values
    if record.termination is Termination.INFEASIBLE:
        return None, None, record.claims
    if mine is None or (best is not None and best < mine):
        unclaimed = tuple(StageClaim(c.name, None, c.bound) for c in record.claims)
        return record.incumbent.plan, record.incumbent.evaluation, unclaimed
    return record.plan, record.evaluation, record.claims


def _objective(
    record: SolveRecord,
    i: int,
    term: Term,
    evaluation: Evaluation | None,
    claims: tuple[StageClaim, ...],
) -> ObjectiveDocument:
    claim = claims[i] if i < len(claims) else None
    value = None if evaluation is None else evaluation.objective(term.name)
    bound = None if claim is None else claim.bound
    is_open = record.termination is not Termination.INFEASIBLE
    if i == 0 and is_open:
        bound = record.first_bound(bound)
    gap = relative_gap(value, bound)
    claimed = None if claim is None else claim.value
    is_maximised = term.name in MAXIMISED
    if is_maximised:  # compared negated everywhere, shown as it is
        value, bound, claimed = (None if x is None else -x for x in (value, bound, claimed))
    return ObjectiveDocument(
        name=term.name,
        unit=OBJECTIVE_UNITS[term.name],
        direction="maximise" if is_maximised else "minimise",
        claimed=as_float(claimed),
        verified=as_float(value),
        verified_exact=as_text(value),
        bound=as_float(bound),
        bound_exact=as_text(bound),
        gap=as_float(gap),
    )


def no_plan_reason(
    record: SolveRecord, termination: Termination, rejected: Sequence[Rejection]
) -> str:
    """Say in one line what binds when there is no plan; "" where there is one."""
    if termination is Termination.NO_SOLUTION_FOUND:
        return "no plan was found within the limit; raise the time limit"
    if termination is not Termination.INFEASIBLE:
        return ""
    late = lateness_reason(record.tables)
    if record.tables.candidates and late is not None:
        return late
    nearest: dict[str, Rejection] = {}
    for r in rejected:
        if r.rule not in nearest or r.amount < nearest[r.rule].amount:
            nearest[r.rule] = r
    for rule in ("late", "budget", "memory", "uniform", "span", "num_cards", "heads", "kv_heads"):
        if rule in nearest:
            return (
                f"nothing fits; nearest on {rule!r}: "
                f"{nearest[rule].footprint.parallel.label()}: {nearest[rule].message}"
            )
    if nearest:
        first = next(iter(nearest.values()))
        return f"nothing fits: {first.footprint.parallel.label()}: {first.message}"
    return "nothing fits: no candidate is left"


def _candidates(
    record: SolveRecord, plan: Plan | None, best: Evaluation | None
) -> list[CandidateDocument]:
    """Return every candidate deployed alone, then those that could not be priced."""
    first = record.terms[0].name
    rows = []
    for report in record.reports:
        c, evaluation = report.candidate, report.evaluation
        used = plan is not None and is_used(plan, c)
        feasible = evaluation.is_feasible
        lost = reject_loser(record.tables, report, best)
        rows.append(
            CandidateDocument(
                **footprint_document(c.footprint),
                instances=len(report.plan.instances),
                card_bytes=max((use.total_bytes for use in evaluation.cards), default=None),
                session_s=[float(s) for s in c.service_s],
                makespan_s=as_float(evaluation.makespan_s),
                num_on_time=evaluation.num_on_time,
                value=as_float(evaluation.shown_objective(first)) if feasible else None,
                verdict="chosen" if used else "possible" if feasible else "rejected",
                rule=None if used else lost.rule,
                reason="" if used else lost.message,
            )
        )
    rows += [
        CandidateDocument(
            **footprint_document(r.footprint),
            instances=None,
            card_bytes=None,
            session_s=None,
            makespan_s=None,
            num_on_time=None,
            value=None,
            verdict="rejected",
            rule=r.rule,
            reason=r.message,
        )
        for r in record.tables.rejections
    ]
    return rows


def _rejection(r: Rejection) -> RejectionDocument:
    return RejectionDocument(
        **footprint_document(r.footprint),
        rule=r.rule,
        amount=float(r.amount),
        unit=r.unit,
        message=r.message,
    )


def _thresholds(tables: ProblemTables, rejected: Sequence[Rejection]) -> list[ThresholdDocument]:
    return [
        ThresholdDocument(
            input=t.input,
            **footprint_document(t.rejection.footprint),
            change=float(t.change),
            value=as_float(t.value),
            value_exact=as_text(t.value),
            unit=t.unit,
            message=t.message,
        )
        for t in thresholds(tables, rejected)
    ]


def _certificate(
    record: SolveRecord, options: SolveOptions, plan: PlanDocument | None
) -> CertificateDocument:
    opinion = record.opinion or SecondOpinion("none", None, "there is no proof to check")
    digest = None if plan is None else plan_sha256(plan)
    instance, solver = record.tables.instance, record.solver
    return certificate_document(instance, options, digest, solver, record.solver_version, opinion)


def certificate_document(
    instance: Instance,
    options: SolveOptions,
    plan_digest: str | None,
    solver: str | None,
    solver_version: str | None,
    opinion: SecondOpinion,
) -> CertificateDocument:
    """Return what another program needs to check a result."""
    try:
        own = version("supernode-planner")
    except PackageNotFoundError:
        own = "source"
    return CertificateDocument(
        instance_sha256=instance.sha256(),
        plan_sha256=plan_digest,
        solver=solver,
        solver_version=solver_version,
        second_opinion=SecondOpinionDocument(
            method=opinion.method, agrees=opinion.agrees, detail=opinion.detail
        ),
        seed=options.seed,
        threads=options.num_threads(),
        versions={"python": platform.python_version(), "supernode-planner": own},
    )
