"""The least change of each input alone that lets something fit, solved again at that value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from instances.budget import LIMITED
from instances.errors import InputError
from instances.instance import Instance
from optimizer.conflicts.axes import Axis, deadline_axes, on_time_axis
from optimizer.conflicts.changes import minimising, with_limit
from optimizer.conflicts.document import RelaxationDocument
from optimizer.conflicts.probing import Answer, Prober
from optimizer.conflicts.quantities import quantity_axes
from optimizer.conflicts.words import amount
from optimizer.errors import TooLargeError
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.frontiers.deadline import time_step_s, with_deadline
from optimizer.plan import Plan
from optimizer.plan_document import as_float
from optimizer.variants.solver import Solved

UNKNOWN = "not known: there was no time to tell"


@dataclass(frozen=True, slots=True)
class Least:
    """The fewest steps found to do, with a plan, and up to how many are proven not to."""

    steps: int
    plan: Plan
    too_few: int


@dataclass
class Relaxations:
    """What helps alone, what does not, and why."""

    found: list[RelaxationDocument]
    without_help: list[str]


def find_relaxations(prober: Prober, instance: Instance) -> Relaxations:
    """Look at every input of an infeasible instance, those that keep candidate prices first."""
    found = Relaxations([], [])
    axes, limits = list(_axes(prober, instance, found)), list(_limit_fields(instance))
    tasks = [partial(_relax_limit, prober, instance, field, name) for field, name in limits]
    tasks += [partial(_relax, prober, axis) for axis in axes]
    labels = [f"limit on {name}" for _, name in limits] + [axis.label for axis in axes]
    for number, (label, task) in enumerate(zip(labels, tasks, strict=True)):
        prober.step(f"looking for the least change: {label}")
        with prober.within(1 / (len(tasks) - number)):
            try:
                task(found)
            except TooLargeError:
                found.without_help.append(f"{label}: {UNKNOWN}")
    found.found.sort(key=_relative_change)
    return found


def _axes(prober: Prober, instance: Instance, found: Relaxations) -> Iterator[Axis]:
    cohorts = instance.workload.cohorts
    free = with_deadline(instance, range(len(cohorts)), None)
    tables = prober.tables(minimising(free, ("makespan",)))
    if tables.is_complete:
        yield from deadline_axes(instance, time_step_s(tables))
    else:
        found.without_help.append(f"deadlines: {UNKNOWN}")
    yield from on_time_axis(instance)
    yield from quantity_axes(instance)


def _relative_change(item: RelaxationDocument) -> float:
    old = item.value - item.change
    return abs(item.change / old) if old else float("inf")


def _relax(prober: Prober, axis: Axis, found: Relaxations) -> None:
    least = least_steps(prober, axis)
    if isinstance(least, str):
        if axis.not_even:
            found.without_help.append(f"{axis.label}: {least}")
        return
    value = axis.value(least.steps)
    proven = axis.value(least.too_few + 1)
    solved = prober.solve(axis.at(least.steps), [least.plan])
    found.found.append(
        _document(axis.path, axis.label, axis.unit, axis.old, value, proven, axis.words, solved)
    )


def least_steps(prober: Prober, axis: Axis) -> Least | str:
    """Return the fewest steps that do, or why none is known."""
    too_few = 0
    for steps in range(1, 1 + (0 if axis.is_monotone else min(axis.scanned, axis.most or 0))):
        answer = prober.ask(axis.at(steps))
        if answer.plan is not None:
            return Least(steps, answer.plan, too_few)
        if answer.is_feasible is None:
            break
        too_few = steps
    best = _any_steps(prober, axis, too_few)
    return best if isinstance(best, str) else _between(prober, axis, best)


def _any_steps(prober: Prober, axis: Axis, too_few: int) -> Least | str:
    """Return some steps that do: as far as makes sense, else, where that is too large, doubled."""
    furthest = axis.most or 0
    key: Callable[[Answer], int] | None = None
    if axis.is_ranked:
        key = lambda answer: axis.needed(answer, furthest)  # noqa: E731
    answer = prober.ask(axis.furthest(), key)
    if answer.plan is not None:
        return Least(axis.needed(answer, furthest), answer.plan, too_few)
    if answer.is_feasible is False:
        is_whole = axis.is_monotone or too_few >= furthest - 1
        return axis.not_even + ("" if is_whole else "; not every value between was looked at")
    steps = max(1, 2 * too_few)
    while axis.scanned and steps < furthest and not prober.is_over:
        answer = prober.ask(axis.at(steps))
        if answer.plan is not None:
            return Least(axis.needed(answer, steps), answer.plan, too_few)
        steps *= 2
    return UNKNOWN


def _between(prober: Prober, axis: Axis, best: Least) -> Least:
    """Close in on the fewest steps between those that do not do and those that do.

    Every other time a bet: of countable things the fewest mostly do, elsewhere one step less than
    the best plan needs mostly does not, and either ends the search. Else the middle is looked at.
    What is not known is taken for too few, and proves nothing.
    """
    low = proven = best.too_few
    is_betting = True
    while best.steps - low > 1 and not prober.is_over:
        bet = min(2 * low + 1, best.steps - 1) if axis.scanned else best.steps - 1
        steps = bet if is_betting else (low + best.steps) // 2
        answer = prober.ask(axis.at(steps))
        if answer.plan is not None:
            best = Least(min(steps, axis.needed(answer, steps)), answer.plan, proven)
        elif answer.is_feasible is False:
            low = steps
            proven = steps if axis.is_monotone and proven < steps else proven
        elif not is_betting:
            low = steps
        is_betting = not is_betting and answer.is_feasible is not None
    return Least(best.steps, best.plan, proven)


def _limit_fields(instance: Instance) -> Iterator[tuple[str, str]]:
    limited = dict(instance.objective.at_most.limits())
    return ((field, name) for field, name in LIMITED.items() if name in limited)


def _relax_limit(
    prober: Prober, instance: Instance, field: str, name: str, found: Relaxations
) -> None:
    """Raise a limit to the least value of its objective that the rest of the instance allows."""
    label, unit = f"limit on {name}", OBJECTIVE_UNITS[name]
    if prober.is_over:
        found.without_help.append(f"{label}: {UNKNOWN}")
        return
    without = prober.solve(minimising(with_limit(instance, field, None), (name,)))
    if without.plan is None or without.values is None:
        why = "not even without" if without.is_infeasible else UNKNOWN
        found.without_help.append(f"{label}: {why}")
        return
    old = Fraction(getattr(instance.objective.at_most, field))
    value, bound = without.values[0], without.bounds[0]
    proven = value if without.is_proven else max(old, bound or old)
    try:
        raised = with_limit(instance, field, int(value) if field == "num_cards" else value)
    except InputError:  # finer than a file may say
        found.without_help.append(f"{label}: the least value, {value} {unit}, cannot be written")
        return

    def words(change: Fraction, value: Fraction) -> str:
        return f"{amount(change, unit)} more as the {label}, {amount(value, unit)}"

    solved = prober.solve(raised, [without.plan])
    path = f"objective.at_most.{field}"
    found.found.append(_document(path, label, unit, old, value, proven, words, solved))


def _document(
    path: str,
    label: str,
    unit: str,
    old: Fraction,
    value: Fraction,
    proven: Fraction,
    words: Callable[[Fraction, Fraction], str],
    solved: Solved,
) -> RelaxationDocument:
    """Return what was found; between `proven` and `value` it is not known what would do."""
    instance = solved.instance
    assert solved.plan is not None
    assert solved.evaluation is not None
    return RelaxationDocument(
        path=path,
        label=label,
        unit=unit,
        change=float(value - old),
        value=float(value),
        value_exact=str(value),
        exact=proven == value,
        width=float(abs(value - proven)),
        message=words(value - old, value),
        plan=solved.plan.sentence(instance.fleet.num_cards),
        objective_value=as_float(solved.evaluation.shown_objective(instance.objective.names[0])),
        proof=solved.proof,
    )
