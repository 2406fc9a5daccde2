"""Every deployment within a margin of the optimum, found by excluding those already found.

Two plans are the same deployment when they have equally many serving instances of each candidate.
The best plan is asked for, its deployment excluded, and so on, until two methods find that nothing
within the margin is left. Candidates that another one equals or beats take part here: they cannot
be better, but they can be within the margin.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.errors import InputError
from instances.instance import Instance
from instances.quantity import QuantityError, parse_quantity
from optimizer.evaluate import evaluate
from optimizer.evaluation import MAXIMISED, OBJECTIVE_UNITS
from optimizer.objectives import objective_terms
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import plan_document
from optimizer.pricing import build_tables
from optimizer.protocols import Ceiling, DeploymentCounts, Termination
from optimizer.result import AlternativeDocument, AlternativesDocument
from optimizer.tables import ProblemTables
from optimizer.variants.solver import Solved, VariantSolver
from optimizer.variants.spread import at_ends_of_spread

#: More deployments than this are not listed.
MAX_PLANS = 200


def deployment_of(tables: ProblemTables, plan: Plan) -> DeploymentCounts:
    """Return how many serving instances of each candidate a plan has."""
    index = {candidate.footprint: candidate.index for candidate in tables.candidates}
    counts = Counter(index[serving.footprint] for serving in plan)
    return DeploymentCounts(tuple(sorted(counts.items())))


def _layout_deployment(
    tables: ProblemTables, instances: Sequence[tuple[int, object]]
) -> DeploymentCounts:
    counts = Counter(tables.kinds[k].candidate.index for k, _ in instances)
    return DeploymentCounts(tuple(sorted(counts.items())))


@dataclass(frozen=True, slots=True)
class _Found:
    """One deployment with its best plan."""

    deployment: DeploymentCounts
    solved: Solved


class _Search:
    """Asks for one deployment after another of one priced problem."""

    def __init__(self, solver: VariantSolver, instance: Instance, until: float) -> None:
        self.solver, self.instance, self.until = solver, instance, until
        self.tables = build_tables(instance, lambda share: time.monotonic() > until, keep_all=True)
        self.term = objective_terms(instance)[0]

    def ask(
        self,
        most: Fraction | None,
        excluded: Sequence[DeploymentCounts] = (),
        required: DeploymentCounts | None = None,
    ) -> Solved:
        """Return the best plan with a value of at most `most` among the deployments left."""
        ceilings = () if most is None else (Ceiling(self.term, most),)
        if self.tables.layouts is None:
            return self.solver.solve(
                self.instance,
                tables=self.tables,
                ceilings=ceilings,
                excluded=tuple(excluded),
                required=required,
            )
        left = []
        for layout in self.tables.layouts:
            deployment = _layout_deployment(self.tables, layout.instances)
            if deployment not in excluded and required in (None, deployment):
                left.append(layout)
        tables = replace(self.tables, layouts=tuple(left))
        return self.solver.solve(self.instance, tables=tables, ceilings=ceilings)

    def every(
        self,
        most: Fraction | None,
        excluded: Sequence[DeploymentCounts],
        listen: Callable[[int], None],
    ) -> tuple[list[_Found], str]:
        """Return all deployments within `most`, best first, and why the list may not be whole."""
        found: list[_Found] = []
        if not self.tables.is_complete:
            return found, "not every candidate was priced in time"
        while True:
            known = (*excluded, *(f.deployment for f in found))
            solved = self.ask(most, known)
            if solved.is_infeasible:
                return found, ""
            if solved.termination is not Termination.OPTIMAL or solved.plan is None:
                return found, f"the search ended early ({solved.limit or 'no proof'})"
            found.append(_Found(deployment_of(self.tables, solved.plan), solved))
            listen(len(found))
            if len(found) + len(excluded) >= MAX_PLANS:
                return found, f"there are more than {MAX_PLANS} deployments within the margin"
            if time.monotonic() > self.until:
                return found, "the time limit struck"


def read_margin(within: str | float | Fraction) -> Fraction:
    """Return a margin as a share of the optimum; raises InputError."""
    try:
        return parse_quantity(within, "share")
    except QuantityError as error:
        raise InputError("options", "within", str(error)) from None


def alternatives(
    instance: Instance,
    within: str | float | Fraction = Fraction(1, 20),
    options: SolveOptions | None = None,
    on_plan: Callable[[int], None] | None = None,
) -> AlternativesDocument:
    """Return every deployment whose first objective is within a margin of the optimum.

    Parameters
    ----------
    within : the margin as a share of the optimum, such as "5%" or 0.05.
    options : how each question is asked; its time limit is that of the whole search.
    on_plan : called with the number of deployments found so far.

    Returns
    -------
    AlternativesDocument : best first. Where measurements have a spread, deployments that it cannot
        tell from the best one are there too, whatever the margin, and marked.

    Raises
    ------
    InputError : the margin is no share.
    """
    margin = read_margin(within)
    solver = VariantSolver(options)
    until = time.monotonic() + solver.options.time_limit_s
    listen = on_plan or (lambda count: None)
    search = _Search(solver, instance, until)
    best = solver.solve(instance)
    if best.plan is None or best.values is None:
        return _document(instance, margin, best, [], "", None)
    top = best.values[0]
    found, reason = search.every(top + abs(top) * margin, (), listen)
    ends = at_ends_of_spread(instance)
    if ends is not None and not reason and found:
        more, reason = _inside_spread(solver, ends, found, search, until)
        found += more
    return _document(instance, margin, best, found, reason, ends)


def _inside_spread(
    solver: VariantSolver,
    ends: tuple[Instance, Instance],
    found: list[_Found],
    search: _Search,
    until: float,
) -> tuple[list[_Found], str]:
    """Return deployments beyond the margin that may still beat the best one within the spread.

    Their value with all measured times at the least is at most the best one's with all at the most.
    """
    low, high = ends
    best = found[0].solved
    assert best.plan is not None
    worst = evaluate(high, best.plan)
    most = worst.objective(search.term.name) if worst.is_feasible else None
    optimistic = _Search(solver, low, until)
    if _footprints(optimistic.tables) != _footprints(search.tables):
        return [], "the spread changes which candidates there are"
    known = [f.deployment for f in found]
    extra, reason = optimistic.every(most, known, lambda count: None)
    settled = []
    for one in extra:
        solved = search.ask(None, (), one.deployment)
        if solved.termination is Termination.OPTIMAL:
            settled.append(_Found(one.deployment, solved))
        elif not solved.is_infeasible:
            reason = reason or "a deployment inside the spread was not settled in time"
    settled.sort(key=lambda f: f.solved.values or ())
    return settled, reason


def _footprints(tables: ProblemTables) -> list[object]:
    return [candidate.footprint for candidate in tables.candidates]


def _document(
    instance: Instance,
    margin: Fraction,
    best: Solved,
    found: Sequence[_Found],
    reason: str,
    ends: tuple[Instance, Instance] | None,
) -> AlternativesDocument:
    name = instance.objective.names[0]
    top = None if not found else _span(found[0], ends, name)
    return AlternativesDocument(
        instance=instance.name,
        instance_sha256=instance.sha256(),
        objective=name,
        unit=OBJECTIVE_UNITS[name],
        within=float(margin),
        termination=best.termination.value,
        is_complete=bool(found) and not reason,
        reason=reason or best.reason,
        alternatives=[_alternative(instance, one, found[0], top, ends, name) for one in found],
    )


def _span(
    one: _Found, ends: tuple[Instance, Instance] | None, name: str
) -> tuple[Fraction | None, Fraction | None]:
    """Return the value of a plan with measured times at the least and at the most."""
    if ends is None or one.solved.plan is None:
        return None, None
    judged = [evaluate(end, one.solved.plan) for end in ends]
    low, high = (e.objective(name) if e.is_feasible else None for e in judged)
    return low, high


def _alternative(
    instance: Instance,
    one: _Found,
    first: _Found,
    top: tuple[Fraction | None, Fraction | None] | None,
    ends: tuple[Instance, Instance] | None,
    name: str,
) -> AlternativeDocument:
    plan, values = one.solved.plan, one.solved.values
    assert plan is not None
    assert values is not None
    assert first.solved.values is not None
    best, value = first.solved.values[0], values[0]
    low, high = _span(one, ends, name)
    is_inside = False
    if ends is not None and one is not first and top is not None and low is not None:
        is_inside = top[1] is None or low <= top[1]
    sign = -1 if name in MAXIMISED else 1
    return AlternativeDocument(
        sentence=plan.sentence(instance.fleet.num_cards),
        value=float(sign * value),
        value_exact=str(sign * value),
        over=float((value - best) / abs(best)) if best else 0.0,
        low=None if low is None else float(sign * low),
        high=None if high is None else float(sign * high),
        inside_spread=is_inside,
        proof=one.solved.proof,
        plan=plan_document(plan, instance.fleet.num_cards),
    )
