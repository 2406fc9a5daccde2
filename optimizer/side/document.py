"""From what a solve of a smaller decision established to its result document, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from instances.decisions import SideName
from instances.instance import Instance
from instances.io import validate
from optimizer.errors import InputError
from optimizer.options import SolveOptions
from optimizer.plan_document import as_float, as_text
from optimizer.protocols import Termination
from optimizer.result import CertificateDocument, ObjectiveDocument, ViolationDocument
from optimizer.result_document import certificate_document
from optimizer.second_opinion import SecondOpinion
from optimizer.side.kinds import SideKind, Value, parts, side_kind
from optimizer.side.result import SideEvaluationDocument, SidePlanDocument, SideResultDocument

if TYPE_CHECKING:
    from optimizer.side.decisions import SideRecord

#: Fields of a plan that count for its hash even where they hold nothing.
_ALWAYS_HASHED = ("stages", "experts")


def side_document(
    instance: Instance, record: SideRecord, options: SolveOptions, seconds: float
) -> SideResultDocument:
    """Return the result document of a finished solve."""
    is_infeasible, kind = record.termination is Termination.INFEASIBLE, record.kind
    answer = None if is_infeasible else record.answer
    plan = None if answer is None else kind.plan(answer)
    termination = record.termination
    if termination is Termination.NO_SOLUTION_FOUND and answer is not None:
        termination = Termination.FEASIBLE
    objective, *then = _objectives(record, answer)
    return SideResultDocument(
        instance=instance.name,
        decision=cast(SideName, instance.decision),
        termination=termination.value,
        limit=cast(Any, record.limit),
        reason=record.reason or (kind.nothing_fits if is_infeasible else ""),
        objective=objective,
        then=then,
        plan=plan,
        evaluation=None if answer is None else side_evaluation(kind, answer),
        not_used=kind.not_used(answer),
        certificate=_certificate(instance, record, options, plan),
        seconds=round(seconds, 3),
    )


def _objectives(record: SideRecord, answer: Any) -> list[ObjectiveDocument]:
    """Return every goal with what was claimed, verified and proven."""
    kind, outcome = record.kind, record.outcome
    value = None if answer is None else kind.value(answer)
    is_mine = outcome is not None and outcome.answer is not None and outcome.value == value
    claimed = outcome.value if outcome is not None and is_mine else None
    bound = None if outcome is None else outcome.bound
    columns = [parts(v, len(kind.goals)) for v in (value, claimed, bound)]
    found = []
    for goal, verified, said, proven in zip(kind.goals, *columns, strict=True):
        gap: Fraction | None = None
        if verified is not None and proven is not None:
            off = abs(verified - proven)
            gap = Fraction(0) if not off else off / verified if verified else None
        found.append(
            ObjectiveDocument(
                name=goal.name,
                unit=goal.unit,
                direction="maximise" if goal.is_maximised else "minimise",
                claimed=as_float(said),
                verified=as_float(verified),
                verified_exact=as_text(verified),
                bound=as_float(proven),
                bound_exact=as_text(proven),
                gap=as_float(gap),
            )
        )
    return found


def side_evaluation(kind: SideKind, answer: Any) -> SideEvaluationDocument:
    """Return the exact account of an answer."""
    violations = [
        ViolationDocument(
            rule=v.rule, where=v.where, amount=float(v.amount), unit=v.unit, message=v.message
        )
        for v in kind.broken(answer)
    ]
    return SideEvaluationDocument(violations=violations, **kind.account(answer))


def side_plan_sha256(plan: SidePlanDocument) -> str:
    """Return the hexadecimal SHA-256 of a decision as canonical JSON."""
    given = plan.model_dump(mode="json", exclude={"sentence"})
    data = {k: v for k, v in given.items() if v is not None or k in _ALWAYS_HASHED}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _certificate(
    instance: Instance, record: SideRecord, options: SolveOptions, plan: SidePlanDocument | None
) -> CertificateDocument:
    solver = record.outcome.solver if record.outcome is not None else None
    solver_version = record.outcome.version if record.outcome is not None else None
    opinion = record.opinion or SecondOpinion("none", None, "there is no proof to check")
    digest = None if plan is None else side_plan_sha256(plan)
    return certificate_document(instance, options, digest, solver, solver_version, opinion)


def verify_side(instance: Instance, document: Any, source: str = "plan") -> dict[str, Any]:
    """Judge a decision, or a result's claims with it, from scratch.

    Returns {"holds", "objective", "mismatches", "evaluation"}; raises InputError when the document
    holds no decision of the instance's kind.
    """
    rule = f"a decision is a JSON object with {instance.decision}"
    if not isinstance(document, Mapping):
        raise InputError(source, "", rule)
    plan_data = document.get("plan", document) if "plan" in document else document
    if plan_data is None:
        raise InputError(source, "plan", "this result holds no plan; nothing to verify")
    if not isinstance(plan_data, Mapping):
        raise InputError(source, "plan", rule)
    plan = validate(SidePlanDocument, dict(plan_data), source)
    kind = side_kind(instance)
    try:
        answer = kind.read_plan(plan)
    except InputError as error:  # a decision does not know what its document is called
        raise InputError(source, error.field, error.rule, error.value) from None
    if answer is None:
        rule = f"the instance decides {instance.decision}; give a field of that name"
        raise InputError(source, instance.decision, rule)
    evaluation = side_evaluation(kind, answer)
    value = None if evaluation.violations else kind.value(answer)
    values = parts(value, len(kind.goals))
    mismatches = []
    if "certificate" in document:
        result = validate(SideResultDocument, dict(document), source)
        mismatches = _mismatches(instance, kind, plan, value, result)
    return {
        "holds": not evaluation.violations and not mismatches,
        "objective": {g.name: as_text(v) for g, v in zip(kind.goals, values, strict=True)},
        "mismatches": mismatches,
        "evaluation": evaluation.model_dump(mode="json"),
    }


def _mismatches(
    instance: Instance,
    kind: SideKind,
    plan: SidePlanDocument,
    value: Value | None,
    result: SideResultDocument,
) -> list[str]:
    wrong = []
    if result.certificate.instance_sha256 != instance.sha256():
        wrong.append("the result is of another problem instance: instance_sha256 differs")
    if result.certificate.plan_sha256 != side_plan_sha256(plan):
        wrong.append("the plan was changed after it was certified: plan_sha256 differs")
    objectives = [result.objective, *result.then]
    if [o.name for o in objectives] != [goal.name for goal in kind.goals]:
        wrong.append(f"the objectives are {', '.join(goal.name for goal in kind.goals)}")
        return wrong
    for objective, found in zip(objectives, parts(value, len(objectives)), strict=True):
        wrong += _wrong_claims(objective, found, result.termination == "optimal")
    return wrong


def _wrong_claims(
    objective: ObjectiveDocument, value: Fraction | None, is_optimal: bool
) -> Sequence[str]:
    wrong = []
    if objective.verified_exact != as_text(value):
        wrong.append(f"{objective.name} is {value}, not {objective.verified_exact}")
    for field, said in (("verified", objective.verified), ("claimed", objective.claimed)):
        if said is not None and (value is None or said != float(value)):
            wrong.append(f"{field} {objective.name} is {said}, computed {value}")
    if is_optimal and objective.bound_exact != objective.verified_exact:
        wrong.append(f"optimal is claimed, but {objective.name} does not meet its bound")
    return wrong
