"""What half and twice of an input do to the objective and to a decode step, the plan being kept."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from optimizer.evaluate import evaluate
from optimizer.measured import measured_session_s
from optimizer.plan import Footprint, Plan
from optimizer.sensitivities.inputs import instance_at
from optimizer.sensitivities.judging import MEASURED_RULES, Judge, Unsettled
from optimizer.steps import decode_step
from optimizer.variants.fields import Number, NumericField


@dataclass(frozen=True, slots=True)
class Effect:
    """Changes of the first objective and, in s, of a step; None where there is no such value."""

    objective: Fraction | None = None
    step_s: Fraction | None = None


class Effects:
    """The base plan's objective and slowest step on variants of its instance."""

    def __init__(self, judge: Judge, instance: Instance, document: Any) -> None:
        self.judge, self.instance, self.document = judge, instance, document
        self.slowest = slowest_step(instance, judge.plan)
        value = evaluate(instance, judge.plan).shown_objective(instance.objective.names[0])
        assert value is not None
        self.value: Fraction = value

    def halved(self, field: NumericField) -> Effect:
        """Return what half of an input does; whole numbers are rounded down."""
        value = field.value or 0
        return self._at(field, value // 2 if field.is_whole else Fraction(value) / 2)

    def doubled(self, field: NumericField) -> Effect:
        """Return what twice an input does."""
        return self._at(field, 2 * (field.value or 0))

    def _at(self, field: NumericField, value: Number) -> Effect:
        if not field.value:
            return Effect()
        variant = instance_at(self.document, field, value, self.instance.name)
        if variant is None:
            return Effect()
        objective, step = self._objective(variant), None
        if self.slowest is not None:
            footprint, cohort, now_s = self.slowest
            later_s = step_s(variant, footprint, cohort)
            step = None if later_s is None else later_s - now_s
        return Effect(None if objective is None else objective - self.value, step)

    def _objective(self, variant: Instance) -> Fraction | None:
        """Return the first objective of the base plan; of its deployment where sessions differ."""
        evaluation = evaluate(variant, self.judge.plan)
        if not {violation.rule for violation in evaluation.violations} <= MEASURED_RULES:
            try:
                best = self.judge.best_own(variant)
            except Unsettled:
                return None
            if best is None or best.evaluation is None:
                return None
            evaluation = best.evaluation
        if not evaluation.is_feasible:
            return None
        return evaluation.shown_objective(variant.objective.names[0])


def slowest_step(instance: Instance, plan: Plan) -> tuple[Footprint, str, Fraction] | None:
    """Return the footprint and cohort of the plan's longest first step, and its time in s."""
    found: list[tuple[Fraction, Footprint, str]] = []
    for serving in plan:
        for cohort in dict.fromkeys(session.cohort for session in serving.sessions):
            seconds = step_s(instance, serving.footprint, cohort)
            if seconds is not None:
                found.append((seconds, serving.footprint, cohort))
    if not found:
        return None
    seconds, footprint, cohort = max(found, key=lambda item: item[0])
    return footprint, cohort, seconds


def step_s(instance: Instance, footprint: Footprint, cohort: str) -> Fraction | None:
    """Return the seconds of a session's first step; None where it has no price or was measured."""
    pool = next(pool for pool in instance.fleet.pools if pool.name == footprint.pool)
    mine = next(c for c in instance.workload.cohorts if c.name == cohort)
    if measured_session_s(instance, footprint, mine) is not None:
        return None
    try:
        step = decode_step(instance, pool, footprint)
    except ValueError:
        return None
    return step.at(mine.context_tokens + mine.prompt_tokens + 1)
