"""The exact Pareto set of two objectives, by limits on the second (epsilon constraints).

With no limit, minimise the first objective, then the second: the first point (a, b). Then ask the
same with the second limited to strictly less than b. Every plan that is not dominated has values of
some point found: between two points, a plan with a second value below b has a first value of at
least the next point's a. The end is the proof that nothing has a second value below the last one.
"Strictly less" is less by one step, of which all values of the second objective are multiples.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace as replaced
from fractions import Fraction
from typing import Any, Literal

from instances.budget import LIMITED
from instances.errors import InputError
from instances.instance import Instance
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.frame import to_dataframe
from optimizer.frontiers.deadline import time_step_s
from optimizer.objectives import all_terms
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import plan_document
from optimizer.protocols import Measure, Term, Termination
from optimizer.result import Document, PlanDocument
from optimizer.sweeps.rows import SweepPoint
from optimizer.tables import ProblemTables
from optimizer.variants.fields import changed_instance
from optimizer.variants.solver import Solved, VariantSolver


class ParetoPoint(Document):
    """One plan of which no other is better in one objective and no worse in the other."""

    first: float
    second: float
    first_exact: str
    second_exact: str
    plan: str
    on_time: int
    makespan_s: float | None
    cost: float | None
    energy_j: float | None
    proof: str


class ParetoDocument(Document):
    """The Pareto set, the first objective ascending; `is_complete` when nothing can be missing."""

    kind: Literal["pareto"] = "pareto"
    schema_version: Literal[1] = 1
    instance: str
    instance_sha256: str
    objectives: tuple[str, str]
    units: tuple[str, str]
    is_complete: bool
    proof: str
    points: list[ParetoPoint]
    plans: list[PlanDocument]

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def rows(self) -> list[SweepPoint]:
        """Return the points as rows of a sweep: the second objective against the first."""
        first, second = self.objectives
        return [
            SweepPoint(
                instance=self.instance,
                swept={first: point.first},
                termination="optimal" if self.is_complete else "feasible",
                plan=point.plan,
                objective=second,
                unit=self.units[1],
                value=point.second,
                value_exact=point.second_exact,
                on_time=point.on_time,
                cost=point.cost,
                energy_j=point.energy_j,
                makespan_s=point.makespan_s,
                proof=point.proof,
                sweep=self.instance_sha256[:16],
            )
            for point in self.points
        ]

    def to_dataframe(self) -> Any:
        """Return one row per point; raises ImportError where pandas is missing."""
        return to_dataframe([point.model_dump(mode="json") for point in self.points])


def value_step(tables: ProblemTables, term: Term) -> Fraction:
    """Return a number of which every value of an objective is a whole multiple."""
    step = term.scale
    if term.measure is Measure.HELD or term.measure is Measure.CARDS:
        return step or Fraction(1)
    if term.measure is Measure.ENERGY:
        step /= math.lcm(*(c.power_w.denominator for c in tables.candidates))
    if term.per_on_time:
        step /= math.lcm(*range(1, tables.num_sessions + 1))
    return step * time_step_s(tables) or Fraction(1)


def pareto(
    instance: Instance, first: str, second: str, options: SolveOptions | None = None
) -> ParetoDocument:
    """Return the exact Pareto set of two objectives; the instance's own objectives do not count.

    Parameters
    ----------
    first, second : names of two objectives to minimise, such as "makespan" and
        "occupied_card_seconds"; deadlines, shares and budgets of the instance stay constraints.

    Raises
    ------
    InputError : a name is no objective that can be limited, or both are the same.
    """
    known = {objective: field for field, objective in LIMITED.items()}
    for name in (first, second):
        if name not in known:
            raise InputError("pareto", name, f"is no objective; use two of {', '.join(known)}")
    if first == second:
        raise InputError("pareto", second, "is named twice; give two different objectives")
    document = instance.model_dump(mode="json")
    document["objective"] |= {"maximise": None, "minimise": [first, second]}
    start = changed_instance(document, {}, instance.name)
    limit, budget = known[second], start.objective.at_most
    solver = VariantSolver(options)
    points, plans, found = list[ParetoPoint](), list[PlanDocument](), list[Plan]()
    asked = start
    while True:
        solved = solver.solve(asked, found)
        if not (solved.termination is Termination.OPTIMAL and solved.plan and solved.values):
            return _document(instance, (first, second), solved, points, plans)
        points.append(_point(solved))
        plans.append(plan_document(solved.plan, instance.fleet.num_cards))
        found = [solved.plan]
        step = value_step(solver.tables(asked), all_terms(asked)[second])
        below: Fraction | int = solved.values[1] - step
        if below < 0:
            ended = replaced(solved, termination=Termination.INFEASIBLE, proof="nothing is below 0")
            return _document(instance, (first, second), ended, points, plans)
        below = int(below) if limit == "num_cards" else below
        # copied without validation: a strict limit may be finer than a file may say
        objective = asked.objective.model_copy(
            update={"at_most": budget.model_copy(update={limit: below})}
        )
        asked = start.model_copy(update={"objective": objective})


def _point(solved: Solved) -> ParetoPoint:
    assert solved.plan is not None
    assert solved.values is not None
    assert solved.evaluation is not None
    judged, (a, b) = solved.evaluation, solved.values
    fleet = solved.instance.fleet.num_cards
    cost = judged.cost_per_on_time_session
    return ParetoPoint(
        first=float(a),
        second=float(b),
        first_exact=str(a),
        second_exact=str(b),
        plan=solved.plan.sentence(fleet),
        on_time=judged.num_on_time,
        makespan_s=None if judged.makespan_s is None else float(judged.makespan_s),
        cost=None if cost is None else float(cost),
        energy_j=None if judged.energy_j is None else float(judged.energy_j),
        proof=solved.proof,
    )


def _document(
    instance: Instance,
    names: tuple[str, str],
    last: Solved,
    points: list[ParetoPoint],
    plans: list[PlanDocument],
) -> ParetoDocument:
    is_complete = last.is_infeasible
    if not points:
        proof = f"no plan at all: {last.reason}"
    elif is_complete:
        proof = f"no plan has less {names[1]} than the last point ({last.proof})"
    else:
        proof = f"the search ended early ({last.limit or last.termination.value})"
    return ParetoDocument(
        instance=instance.name,
        instance_sha256=instance.sha256(),
        objectives=names,
        units=(OBJECTIVE_UNITS[names[0]], OBJECTIVE_UNITS[names[1]]),
        is_complete=is_complete,
        proof=proof,
        points=points,
        plans=plans,
    )
