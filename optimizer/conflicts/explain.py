"""Why an instance has no plan: what conflicts, and the least change of each input that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from instances.errors import InputError
from instances.instance import Instance
from optimizer.conflicts.constraints import constraints_of
from optimizer.conflicts.document import ChoiceDocument, ConflictDocument, ConstraintDocument
from optimizer.conflicts.probing import Prober
from optimizer.conflicts.relaxations import find_relaxations
from optimizer.conflicts.smallest import Conflict, ConflictSearch
from optimizer.errors import TooLargeError
from optimizer.options import SolveOptions
from optimizer.plan_document import as_float

#: Share of the time for the conflict; what it leaves is for the relaxations.
CONFLICT_SHARE = 0.5


def explain_infeasible(
    instance: Instance,
    options: SolveOptions | None = None,
    on_step: Callable[[str], None] | None = None,
) -> ConflictDocument:
    """Say which constraints of an instance conflict, and what change of one input would do.

    Parameters
    ----------
    instance : the problem instance, a deployment.
    options : solver, seed, threads (one by default), and the limit of time for all of it.
    on_step : called with a line of text before each step.

    Returns
    -------
    ConflictDocument : without constraints where there is a plan, or where no proof was found.

    Raises
    ------
    InputError : an option is out of range, or the instance is no deployment.
    MismatchError, BackendUnavailable : as `optimizer.solve` does; KeyboardInterrupt, too.
    """
    if instance.decision != "deployment":
        raise InputError(instance.name, "decision", f"decides {instance.decision}, no deployment")
    prober = Prober(options or SolveOptions(threads=1), on_step)
    prober.step(f"solving {instance.name}")
    solved = prober.solve(instance, share=1.0)
    reason = "the instance has a plan" if solved.plan is not None else solved.reason
    document = ConflictDocument(
        instance=instance.name,
        instance_sha256=instance.sha256(),
        termination=solved.termination.value,
        reason=reason,
        constraints=[],
        is_smallest=False,
        relaxations=[],
        without_help=[],
    )
    return _explained(prober, instance, document) if solved.is_infeasible else document


def _explained(prober: Prober, instance: Instance, document: ConflictDocument) -> ConflictDocument:
    """Add the conflict and the ways out of it."""
    constraints = constraints_of(instance)
    search = ConflictSearch(prober, instance, constraints)
    with prober.within(CONFLICT_SHARE):
        conflict = search.find()
        choices = list(_choices(search)) if conflict.members else []
    relaxed = find_relaxations(prober, instance)
    return document.model_copy(
        update={
            "reason": _reason(search, conflict, document.reason),
            "constraints": [
                ConstraintDocument(name=c.name, description=c.description)
                for c in (constraints[i] for i in conflict.members)
            ],
            "is_smallest": conflict.is_smallest,
            "relaxations": relaxed.found,
            "without_help": relaxed.without_help,
            "choices": choices,
        }
    )


def _choices(search: ConflictSearch) -> Iterator[ChoiceDocument]:
    """Yield each choice that something fits without, solved again."""
    for i, constraint in enumerate(search.constraints):
        if not constraint.is_choice or not search.allows(search.everything - {i}):
            continue
        try:
            solved = search.prober.solve(constraint.drop(search.instance))
        except TooLargeError:
            continue
        if solved.plan is None or solved.evaluation is None:
            continue
        objective = solved.instance.objective.names[0]
        yield ChoiceDocument(
            name=constraint.name,
            message=f"{constraint.name} dropped ({constraint.description})",
            plan=solved.plan.sentence(solved.instance.fleet.num_cards),
            objective_value=as_float(solved.evaluation.shown_objective(objective)),
            proof=solved.proof,
        )


def _reason(search: ConflictSearch, conflict: Conflict, given: str) -> str:
    """Add to the reason of the instance as given what still binds with all else dropped.

    That is worth a line where no or one constraint is left: then the facts alone refuse it.
    """
    if len(conflict.members) > 1 or search.allows(frozenset(conflict.members)) is not False:
        return given
    first = next(search.variants(frozenset(conflict.members)))
    if not conflict.members:
        return f"nothing fits even with every constraint dropped: {_facts(search.prober, first)}"
    alone = search.prober.solve(first)
    if not alone.is_infeasible or alone.reason == given:
        return given
    return f"{given}; with all other constraints dropped: {alone.reason}"


def _facts(prober: Prober, instance: Instance) -> str:
    """Name the rule that refuses the smallest candidate, or why no candidate will do."""
    tables = prober.tables(instance)
    if tables.candidates or not tables.rejections:
        return prober.solve(instance).reason
    least = min(tables.rejections, key=lambda rejection: rejection.footprint.parallel.num_cards)
    return f"{least.footprint.label()}: {least.message}"
