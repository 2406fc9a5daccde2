"""Judges a plan from anywhere against a problem instance, and a result's claims with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from instances.io import validate
from optimizer.evaluate import evaluate
from optimizer.evaluation import OBJECTIVE_UNITS, Evaluation
from optimizer.plan import Plan
from optimizer.plan_document import plan_document, plan_sha256, read_plan
from optimizer.result import ObjectiveDocument, ResultDocument


@dataclass(frozen=True, slots=True)
class Verification:
    """A plan, its exact evaluation, and every claim of its result that does not hold."""

    plan: Plan
    evaluation: Evaluation
    values: dict[str, Fraction | None]
    mismatches: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the plan breaks no rule and every claim holds."""
        return self.evaluation.is_feasible and not self.mismatches


def verify(instance: Instance, document: Any, source: str = "plan") -> Verification:
    """Evaluate a plan or result document (or a `Plan`) from scratch.

    Raises InputError when the document is not a plan or result.
    """
    plan = document if isinstance(document, Plan) else read_plan(document, source)
    evaluation = evaluate(instance, plan)
    values: dict[str, Fraction | None] = {
        name: evaluation.shown_objective(name) for name in instance.objective.names
    }
    mismatches: tuple[str, ...] = ()
    if isinstance(document, Mapping) and "certificate" in document:
        result = validate(ResultDocument, dict(document), source)
        mismatches = tuple(_mismatches(instance, plan, evaluation, result))
    return Verification(plan, evaluation, values, mismatches)


def _mismatches(
    instance: Instance, plan: Plan, evaluation: Evaluation, result: ResultDocument
) -> list[str]:
    """Compare a result's claims with what was just computed."""
    wrong: list[str] = []
    if result.certificate.instance_sha256 != instance.sha256():
        wrong.append("the result is of another problem instance: instance_sha256 differs")
    digest = plan_sha256(plan_document(plan, instance.fleet.num_cards))
    if result.certificate.plan_sha256 != digest:
        wrong.append("the plan was changed after it was certified: plan_sha256 differs")
    for objective in (result.objective, *result.then):
        wrong += _wrong_objective(evaluation, objective)
    if result.termination == "optimal":
        for objective in (result.objective, *result.then):
            if objective.bound_exact != objective.verified_exact:
                wrong.append(f"optimal is claimed, but {objective.name} does not meet its bound")
    return wrong


def _wrong_objective(evaluation: Evaluation, objective: ObjectiveDocument) -> list[str]:
    if objective.name not in OBJECTIVE_UNITS:
        return [f"no objective is named {objective.name!r}"]
    value = evaluation.shown_objective(objective.name)
    wrong = []
    if objective.verified_exact != (None if value is None else str(value)):
        wrong.append(
            f"{objective.name} is {value} {objective.unit}, not {objective.verified_exact}"
        )
    for field, said in (("verified", objective.verified), ("claimed", objective.claimed)):
        if said is not None and (value is None or said != float(value)):
            wrong.append(f"{field} {objective.name} is {said}, computed {value}")
    return wrong
