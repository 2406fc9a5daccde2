"""A sensitivity study: every input on its own, how far it may move and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from instances.errors import InputError
from instances.instance import Instance
from optimizer.errors import PlannerError, TooLargeError
from optimizer.evaluation import OBJECTIVE_UNITS, Evaluation
from optimizer.options import SolveOptions
from optimizer.peak import usable_bytes
from optimizer.plan_document import as_float
from optimizer.sensitivities.axis import Direction, axis_of, probes
from optimizer.sensitivities.document import (
    InputSensitivity,
    InputThreshold,
    SensitivityDocument,
)
from optimizer.sensitivities.effects import Effects
from optimizer.sensitivities.inputs import chosen_fields
from optimizer.sensitivities.judging import MEASURED_RULES, Judge, Unsettled
from optimizer.sensitivities.line import Line
from optimizer.sensitivities.search import Bracket, find_change
from optimizer.variants.fields import NumericField
from optimizer.variants.solver import Solved, VariantSolver

#: Units of the inputs among which the most influential one is sought: times, rates, bytes.
PHYSICAL = frozenset({"s", "B", "B/s", "FLOP/s"})

#: Hears the path of an input, its number from 0, and how many there are.
InputListener = Callable[[str, int, int], None]


class InfeasibleInstance(PlannerError):  # noqa: N818 - it is an answer, not a fault
    """There is proven to be no plan, so none that could stop being optimal."""


def sensitivity(
    instance: Instance,
    inputs: Iterable[str] | None = None,
    options: SolveOptions | None = None,
    on_input: InputListener | None = None,
) -> SensitivityDocument:
    """Tell how far each input may move before the optimal plan changes, and what it does.

    Parameters
    ----------
    instance : the problem instance.
    inputs : paths of numeric fields, such as `fleet.pools[0].server.fabric.alpha_s`; `[*]` stands
        for every element of a list. None: every number that describes the situation.
    options : solver, limits (of each solve), seed; one thread unless told otherwise.
    on_input : called before each input is looked at.

    Returns
    -------
    SensitivityDocument : the same for the same arguments, unless a time limit strikes.

    Raises
    ------
    InputError : a path names no number, or the instance asks for one of the smaller decisions.
    InfeasibleInstance : there is no plan.
    TooLargeError : the optimum was not proven within the limits.
    """
    if instance.decision != "deployment":
        rule = "sensitivity is studied of deployments, not of the smaller decisions"
        raise InputError(instance.name, "decision", rule, instance.decision)
    document = instance.model_dump(mode="json")
    fields = chosen_fields(instance, document, inputs, instance.name)
    solver = VariantSolver(options)
    base = solver.solve(instance)
    if base.is_infeasible:
        raise InfeasibleInstance(f"{instance.name} is infeasible: {base.reason}")
    if not base.is_proven or base.plan is None or base.evaluation is None:
        raise TooLargeError(f"{instance.name}: no plan was proven optimal within the limits")
    judge = Judge(solver, base)
    study = _Study(judge, instance, document, base.evaluation)
    found = []
    for i, field in enumerate(fields):
        if on_input is not None:
            on_input(field.name, i, len(fields))
        found.append(study.of(field))
    return _document(instance, base, base.evaluation, found, solver.num_solves)


def _document(
    instance: Instance,
    base: Solved,
    evaluation: Evaluation,
    found: list[InputSensitivity],
    num_solves: int,
) -> SensitivityDocument:
    name = instance.objective.names[0]
    value = evaluation.shown_objective(name) or Fraction(0)
    assert base.plan is not None
    return SensitivityDocument(
        instance=instance.name,
        instance_sha256=instance.sha256(),
        plan=base.plan.sentence(instance.fleet.num_cards),
        objective=name,
        unit=OBJECTIVE_UNITS[name],
        value=float(value),
        value_exact=str(value),
        inputs=found,
        most_influential=most_influential(found),
        num_solves=num_solves,
    )


def most_influential(inputs: Iterable[InputSensitivity]) -> str | None:
    """Return the time, rate or size that moves the objective most when halved or doubled.

    Of equals the first; None where none moves it.
    """
    moving = [item for item in inputs if item.unit in PHYSICAL and item.influence]
    return max(moving, key=lambda item: item.influence).path if moving else None


class _Study:
    """What all inputs of a study share."""

    def __init__(
        self, judge: Judge, instance: Instance, document: Any, evaluation: Evaluation
    ) -> None:
        self.judge, self.instance, self.document = judge, instance, document
        self.effects = Effects(judge, instance, document)
        self.span_s = evaluation.makespan_s or Fraction(1)
        self.capacity = max(usable_bytes(instance, pool) for pool in instance.fleet.pools)

    def of(self, field: NumericField) -> InputSensitivity:
        """Study one input."""
        halved, doubled = self.effects.halved(field), self.effects.doubled(field)
        value = Fraction(field.value or 0)
        return InputSensitivity(
            path=field.name,
            unit=field.unit,
            value=float(value),
            value_exact=str(value),
            halved=as_float(halved.objective),
            doubled=as_float(doubled.objective),
            step_halved_s=as_float(halved.step_s),
            step_doubled_s=as_float(doubled.step_s),
            down=self.threshold(field, -1),
            up=self.threshold(field, 1),
        )

    def threshold(self, field: NumericField, direction: Direction) -> InputThreshold | None:
        """Return how far an input may move one way; None where it cannot move that way."""
        axis = axis_of(self.instance, field)
        line = Line(self.judge, self.instance, self.document, axis)
        places = probes(axis, direction, self.span_s, self.capacity)
        found = find_change(line, direction, places)
        return None if found is None else self._described(line, found)

    def _described(self, line: Line, found: Bracket) -> InputThreshold:
        value, base = found.edge, line.axis.base
        is_verified, plan, reason = _is_verified(line, found), None, found.reason
        if found.changed is not None:
            best = line.at(found.changed).best
            cards = line.known(found.changed).fleet.num_cards
            plan = None if best is None else best.sentence(cards)
            reason = reason or ("" if best is not None else _why_nothing(line, found))
        width = Fraction(0)
        if not found.is_exact and found.changed is not None:
            width = abs(Fraction(found.changed) - Fraction(found.kept))
        return InputThreshold(
            status="unchanged" if found.changed is None else "changes",
            value=float(value),
            value_exact=str(value),
            change=float(value - base),
            exact=found.is_exact,
            width=float(width),
            is_first=found.is_first,
            is_attained=found.is_attained,
            verified=is_verified,
            plan=plan,
            reason=reason,
        )


def _why_nothing(line: Line, found: Bracket) -> str:
    """Say why the plan is not allowed just beyond a threshold where nothing is."""
    assert found.changed is not None
    own, reason = line.at(found.kept).own, line.at(found.changed).reason
    if own is None:
        return reason
    broken = line.evaluation(found.changed, own).violations
    if not broken or broken[0].rule not in MEASURED_RULES:
        return reason
    return f"nothing fits; {broken[0].message}"


def _is_verified(line: Line, found: Bracket) -> bool:
    """Whether solvers confirm both sides of a threshold."""
    try:
        if not line.settled(found.kept).is_kept:
            return False
        return found.changed is None or not line.settled(found.changed).is_kept
    except Unsettled:
        return False
