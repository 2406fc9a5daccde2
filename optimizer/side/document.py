"""From what a solve of a smaller decision established to its result document, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, cast

from instances.instance import Instance
from instances.io import validate
from instances.quantity import human_seconds
from optimizer.errors import InputError
from optimizer.experts.evaluation import contiguous_placement, evaluate_experts
from optimizer.options import SolveOptions
from optimizer.plan_document import as_float, as_text
from optimizer.protocols import Termination
from optimizer.result import CertificateDocument, ObjectiveDocument, ViolationDocument
from optimizer.result_document import certificate_document
from optimizer.second_opinion import SecondOpinion
from optimizer.side.kinds import SideKind, side_kind
from optimizer.side.result import (
    ExpertGroupDocument,
    SideEvaluationDocument,
    SidePlanDocument,
    SideResultDocument,
    StageDocument,
)
from optimizer.stages.decision import stage_footprints
from optimizer.stages.evaluation import evaluate_stages

if TYPE_CHECKING:
    from optimizer.side.decisions import SideRecord


def side_document(
    instance: Instance, record: SideRecord, options: SolveOptions, seconds: float
) -> SideResultDocument:
    """Return the result document of a finished solve."""
    is_infeasible = record.termination is Termination.INFEASIBLE
    answer = None if is_infeasible else record.answer
    plan = None if answer is None else side_plan(record.kind, answer)
    termination = record.termination
    if termination is Termination.NO_SOLUTION_FOUND and answer is not None:
        termination = Termination.FEASIBLE
    return SideResultDocument(
        instance=instance.name,
        decision=cast(Literal["stages", "experts"], instance.decision),
        termination=termination.value,
        limit=cast(Any, record.limit),
        reason=record.reason or ("no plan keeps every card within memory" if is_infeasible else ""),
        objective=_objective(record, answer),
        plan=plan,
        evaluation=None if answer is None else side_evaluation(instance, record.kind, answer),
        certificate=_certificate(instance, record, options, plan),
        seconds=round(seconds, 3),
    )


def _objective(record: SideRecord, answer: Any) -> ObjectiveDocument:
    value = None if answer is None else record.kind.value(answer)
    outcome = record.outcome
    is_mine = outcome is not None and outcome.answer is not None and outcome.value == value
    claimed = outcome.value if outcome is not None and is_mine else None
    bound = None if outcome is None else outcome.bound
    gap: Fraction | None = None
    if value is not None and bound is not None:
        gap = Fraction(0) if value == bound else abs(value - bound) / value if value else None
    return ObjectiveDocument(
        name=record.kind.goal,
        unit=record.kind.unit,
        direction="maximise" if record.kind.is_maximised else "minimise",
        claimed=as_float(claimed),
        verified=as_float(value),
        verified_exact=as_text(value),
        bound=as_float(bound),
        bound_exact=as_text(bound),
        gap=as_float(gap),
    )


def side_plan(kind: SideKind, answer: Any) -> SidePlanDocument:
    """Return an answer as a document with its sentence."""
    value = kind.value(answer)
    if kind.decision == "stages":
        counts = ", ".join(map(str, answer))
        goal = f"{int(value):,} tokens fit" if kind.is_maximised else human_seconds(value)
        return SidePlanDocument(
            sentence=f"{len(answer)} stages of {counts} layers: {goal}", stages=list(answer)
        )
    extra = sum(len(groups) - 1 for groups in answer)
    text = f"{len(answer)} experts on {kind.problem.num_groups} groups"
    text += f", {extra} more {'copy' if extra == 1 else 'copies'}" if extra else ""
    return SidePlanDocument(
        sentence=f"{text}: busiest group {human_seconds(value)}",
        experts=[list(groups) for groups in answer],
    )


def side_evaluation(instance: Instance, kind: SideKind, answer: Any) -> SideEvaluationDocument:
    """Return the exact account of an answer."""
    violations = [
        ViolationDocument(
            rule=v.rule, where=v.where, amount=float(v.amount), unit=v.unit, message=v.message
        )
        for v in kind.broken(answer)
    ]
    if kind.decision == "stages":
        stages = _stages(instance, kind, answer)
        return SideEvaluationDocument(stages=stages, violations=violations)
    before = evaluate_experts(kind.problem, contiguous_placement(kind.problem))
    after = evaluate_experts(kind.problem, answer)
    return SideEvaluationDocument(
        groups=_groups(kind, answer),
        balance=as_float(after.balance),
        balance_before=as_float(before.balance),
        value_before=as_float(before.value_s),
        violations=violations,
    )


def _stages(instance: Instance, kind: SideKind, answer: Any) -> list[StageDocument]:
    uses = evaluate_stages(kind.problem, answer).stages
    return [
        StageDocument(
            pool=footprint.pool,
            first_layer=use.first_layer,
            num_layers=use.num_layers,
            weights_bytes=use.weight_bytes,
            other_bytes=use.extra_bytes,
            kv_bytes=use.kv_bytes + use.copied_kv_bytes,
            state_bytes=use.fixed_state_bytes,
            total_bytes=use.total_bytes,
            capacity_bytes=use.capacity_bytes,
            max_tokens=use.max_tokens,
            time_s=float(use.time_s),
            time_exact=str(use.time_s),
            reads_layers=list(use.outside_sources),
        )
        for footprint, use in zip(stage_footprints(instance), uses, strict=False)
    ]


def _groups(kind: SideKind, answer: Any) -> list[ExpertGroupDocument]:
    judged = evaluate_experts(kind.problem, answer)
    return [
        ExpertGroupDocument(
            experts=[e for e, groups in enumerate(answer) if g in groups],
            load=float(judged.loads[g]),
            load_exact=str(judged.loads[g]),
            active_experts=judged.active_experts[g],
            resident_bytes=judged.resident_bytes[g],
            capacity_bytes=kind.problem.capacity_bytes[g],
            time_s=float(judged.times_s[g]),
        )
        for g in range(kind.problem.num_groups)
    ]


def side_plan_sha256(plan: SidePlanDocument) -> str:
    """Return the hexadecimal SHA-256 of a decision as canonical JSON."""
    data = {"stages": plan.stages, "experts": plan.experts}
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
    if not isinstance(document, Mapping):
        raise InputError(source, "", "a decision is a JSON object with stages or experts")
    plan_data = document.get("plan", document) if "plan" in document else document
    if plan_data is None:
        raise InputError(source, "plan", "this result holds no plan; nothing to verify")
    if not isinstance(plan_data, Mapping):
        raise InputError(source, "plan", "a decision is a JSON object with stages or experts")
    plan = validate(SidePlanDocument, dict(plan_data), source)
    kind = side_kind(instance)
    if instance.decision == "stages":
        answer: Any = None if plan.stages is None else tuple(plan.stages)
    else:
        answer = None if plan.experts is None else tuple(tuple(g) for g in plan.experts)
    if answer is None:
        rule = f"the instance decides {instance.decision}; give a list of that name"
        raise InputError(source, instance.decision, rule)
    evaluation = side_evaluation(instance, kind, answer)
    value = None if evaluation.violations else kind.value(answer)
    mismatches = []
    if "certificate" in document:
        result = validate(SideResultDocument, dict(document), source)
        mismatches = _mismatches(instance, plan, value, result)
    return {
        "holds": not evaluation.violations and not mismatches,
        "objective": {kind.goal: as_text(value)},
        "mismatches": mismatches,
        "evaluation": evaluation.model_dump(mode="json"),
    }


def _mismatches(
    instance: Instance, plan: SidePlanDocument, value: Fraction | None, result: SideResultDocument
) -> list[str]:
    wrong = []
    if result.certificate.instance_sha256 != instance.sha256():
        wrong.append("the result is of another problem instance: instance_sha256 differs")
    if result.certificate.plan_sha256 != side_plan_sha256(plan):
        wrong.append("the plan was changed after it was certified: plan_sha256 differs")
    objective = result.objective
    if objective.verified_exact != as_text(value):
        wrong.append(f"{objective.name} is {value}, not {objective.verified_exact}")
    for field, said in (("verified", objective.verified), ("claimed", objective.claimed)):
        if said is not None and (value is None or said != float(value)):
            wrong.append(f"{field} {objective.name} is {said}, computed {value}")
    if result.termination == "optimal" and objective.bound_exact != objective.verified_exact:
        wrong.append(f"optimal is claimed, but {objective.name} does not meet its bound")
    return wrong
