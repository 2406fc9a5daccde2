"""Inputs about time that a relaxation may change: deadlines, and how many must keep theirs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from instances.instance import Instance
from instances.quantity import human_seconds
from optimizer.conflicts.changes import with_workload
from optimizer.conflicts.probing import Answer
from optimizer.frontiers.deadline import with_deadline
from optimizer.words import plural


@dataclass(frozen=True, slots=True)
class Axis:
    """An input of an infeasible instance, moved by 1, 2, … `most` steps (None: without end).

    `at` is the instance after so many steps, `value` the input's value then, and `furthest` the
    instance with the input moved as far as makes sense; `not_even` says how far that is. `needed`
    returns how many steps the plan of an answer needs, which was found after so many. `is_ranked`:
    that is quick, so the best of several plans is worth looking for. Unless it `is_monotone`, more
    steps may also forbid plans. What can be counted is `scanned` then: so many steps are tried one
    by one.
    """

    path: str
    label: str
    unit: str
    old: Fraction
    most: int | None
    at: Callable[[int], Instance]
    value: Callable[[int], Fraction]
    furthest: Callable[[], Instance]
    not_even: str
    words: Callable[[Fraction, Fraction], str]
    needed: Callable[[Answer, int], int] = lambda answer, steps: steps
    is_ranked: bool = False
    is_monotone: bool = True
    scanned: int = 0


def deadline_axes(instance: Instance, step_s: Fraction) -> Iterator[Axis]:
    """Yield each deadline alone, then all of them together, moved by the same time.

    All ends of plans are multiples of `step_s`, and so is, of a finer step, how late they are. So
    nothing changes between two steps.
    """
    cohorts = instance.workload.cohorts
    having = [i for i, cohort in enumerate(cohorts) if cohort.deadline_s is not None]
    if not instance.min_on_time_sessions:
        return
    for i in having:
        label = f"deadline of cohort {cohorts[i].name!r}"
        yield _deadline(instance, (i,), f"workload.cohorts[{i}].deadline_s", label, step_s)
    if len(having) > 1:
        path = "workload.cohorts[*].deadline_s"
        yield _deadline(instance, having, path, "every deadline", step_s)


def _deadline(
    instance: Instance, moved: Sequence[int], path: str, label: str, step_s: Fraction
) -> Axis:
    cohorts = instance.workload.cohorts
    deadlines = {i: cohorts[i].deadline_s or Fraction(0) for i in moved}
    fine = Fraction(1, math.lcm(step_s.denominator, *(d.denominator for d in deadlines.values())))
    latest = max(deadlines.values())

    def at(steps: int) -> Instance:
        found = instance
        for i, deadline_s in deadlines.items():
            found = with_deadline(found, (i,), deadline_s + steps * fine)
        return found

    def needed(answer: Answer, steps: int) -> int:
        names = {cohorts[i].name: deadline_s for i, deadline_s in deadlines.items()}
        return max(1, math.ceil(late_by_s(answer, names) / fine))

    return Axis(
        path=path,
        label=label,
        unit="s",
        old=latest,
        most=None,
        at=at,
        value=lambda steps: latest + steps * fine,
        furthest=lambda: with_deadline(instance, moved, None),
        not_even="not even without" if len(moved) == 1 else "not even without any",
        words=lambda change, value: (
            f"{label} {human_seconds(change)} later, {human_seconds(value)}"
            if len(moved) == 1
            else f"{label} {human_seconds(change)} later"
        ),
        needed=needed,
        is_ranked=True,
    )


def late_by_s(answer: Answer, deadlines: dict[str, Fraction]) -> Fraction:
    """Return by how much these cohorts' deadlines must move for the plan of an answer.

    Enough sessions must be on time, and as many as keep a limit on the cost of each.
    """
    judged, instance = answer.evaluation, answer.instance
    assert judged is not None
    need = instance.min_on_time_sessions
    cost = instance.objective.at_most.cost_per_on_time_session
    if cost and judged.occupied_card_s is not None:
        need = max(need, math.ceil(judged.occupied_card_s / cost))
    late = sorted(
        max(o.finish_s - deadlines[o.session.cohort], Fraction(0))
        for o in judged.sessions
        if o.session.cohort in deadlines and o.finish_s is not None
    )
    others = sum(o.on_time for o in judged.sessions if o.session.cohort not in deadlines)
    rank = need - others
    return late[rank - 1] if rank > 0 else Fraction(0)


def on_time_axis(instance: Instance) -> Iterator[Axis]:
    """Yield the share of sessions on time; a cost per session on time needs at least one."""
    need, count = instance.min_on_time_sessions, instance.workload.num_sessions
    fewest = with_workload(instance, min_on_time_fraction=Fraction(0)).min_on_time_sessions
    if need == fewest or all(c.deadline_s is None for c in instance.workload.cohorts):
        return

    def needed(answer: Answer, steps: int) -> int:
        assert answer.evaluation is not None
        return max(1, need - answer.evaluation.num_on_time)

    def at(steps: int) -> Instance:
        return with_workload(instance, min_on_time_fraction=Fraction(need - steps, count))

    def words(change: Fraction, value: Fraction) -> str:
        return f"{int(value * count)} of {plural(count, 'session')} on time in place of {need}"

    yield Axis(
        path="workload.min_on_time_fraction",
        label="share of sessions on time",
        unit="",
        old=instance.workload.min_on_time_fraction,
        most=need - fewest,
        at=at,
        value=lambda steps: Fraction(need - steps, count),
        furthest=lambda: at(need - fewest),
        not_even=f"not even {fewest} of {count}",
        words=words,
        needed=needed,
        is_ranked=True,
    )
