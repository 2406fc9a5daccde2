"""The optimum as a function of one deadline, exactly.

When a session ends does not depend on deadlines. So a plan that is allowed at a deadline is allowed
at every longer one and no dearer there: the optimum V(d) never rises, and it only falls where some
session of an optimal plan comes on time. Walking down from the longest deadline, each solve gives a
plan and the shortest deadline down to which that plan keeps its value; V is constant in between,
because V(d) is at least the optimum of the longer deadline and the plan attains it. The next solve
asks for strictly less. Nothing lies between: all ends are whole multiples of a step that divides
every service, release and stall, and "strictly less" is less by one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.errors import InputError
from instances.instance import Instance
from optimizer.evaluation import Evaluation
from optimizer.plan import Plan
from optimizer.tables import ProblemTables
from optimizer.variants.solver import Solved, VariantSolver


def deadline_cohorts(instance: Instance) -> tuple[int, ...]:
    """Return the cohorts whose deadline moves: those that have one; where none has, all."""
    cohorts = instance.workload.cohorts
    having = tuple(i for i, cohort in enumerate(cohorts) if cohort.deadline_s is not None)
    return having or tuple(range(len(cohorts)))


def with_deadline(
    instance: Instance, cohorts: Sequence[int], deadline_s: Fraction | None
) -> Instance:
    """Return the instance with one deadline for some cohorts; None: no deadline.

    Copies without validation, because a strict bound may be finer than a file may say. Raises
    InputError unless the deadline is after the release of these cohorts, the one rule it can break.
    """
    changed = list(instance.workload.cohorts)
    for i in cohorts:
        cohort = changed[i]
        if deadline_s is not None and deadline_s <= cohort.release_s:
            place = f"workload.cohorts[{i}].deadline_s"
            rule = f"must be later than release_s ({float(cohort.release_s):g} s)"
            raise InputError(instance.name, place, rule, float(deadline_s))
        changed[i] = cohort.model_copy(update={"deadline_s": deadline_s})
    workload = instance.workload.model_copy(update={"cohorts": tuple(changed)})
    return instance.model_copy(update={"workload": workload})


def time_step_s(tables: ProblemTables) -> Fraction:
    """Return a time in s of which every end of every plan is a whole multiple."""
    times = [cohort.release_s for cohort in tables.cohorts]
    times += [second for c in tables.candidates for second in c.service_s]
    times += [second for card in tables.faulted_cards for stall in card.stalls for second in stall]
    return Fraction(1, math.lcm(*(time.denominator for time in times)))


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of the walk: `solved` holds for deadlines from `from_s` up to the piece before.

    `from_s` None: as short as deadlines may be.
    """

    solved: Solved
    from_s: Fraction | None


class DeadlineLine:
    """A problem instance with one deadline that varies, and the solver that follows it."""

    def __init__(
        self, solver: VariantSolver, instance: Instance, cohorts: Sequence[int] | None = None
    ) -> None:
        self.solver, self.instance = solver, instance
        self.cohorts = deadline_cohorts(instance) if cohorts is None else tuple(cohorts)
        self.names = {instance.workload.cohorts[i].name for i in self.cohorts}
        #: Deadlines must be longer than this, s.
        self.above_s = max(instance.workload.cohorts[i].release_s for i in self.cohorts)

    def at(self, deadline_s: Fraction | None) -> Instance:
        """Return the problem instance at one deadline; None: without."""
        return with_deadline(self.instance, self.cohorts, deadline_s)

    def judged_at(self, evaluation: Evaluation, deadline_s: Fraction | None) -> Evaluation:
        """Return the evaluation of a plan at another deadline: only who is on time differs."""
        sessions = tuple(
            replace(o, deadline_s=deadline_s) if o.session.cohort in self.names else o
            for o in evaluation.sessions
        )
        return replace(evaluation, sessions=sessions)

    def shortest_s(self, solved: Solved) -> Fraction | None:
        """Return the shortest deadline at which a plan is allowed and no dearer; None: any.

        Where an objective is per session on time, as many must stay on time; else enough must.
        """
        assert solved.evaluation is not None
        instance, sessions = solved.instance, solved.evaluation.sessions
        names = {*instance.objective.minimise, *dict(instance.objective.at_most.limits())}
        need = instance.min_on_time_sessions
        if "cost_per_on_time_session" in names:
            need = max(need, solved.evaluation.num_on_time)
        others = sum(o.on_time for o in sessions if o.session.cohort not in self.names)
        ends = sorted(o.finish_s for o in sessions if o.session.cohort in self.names and o.finish_s)
        rank = need - others
        if rank <= 0:
            return None
        return ends[rank - 1]

    def walk(
        self, highest_s: Fraction | None, below: Callable[[Fraction], Fraction | None]
    ) -> Iterator[Step]:
        """Yield the pieces from the longest deadline down.

        `below` gives the next deadline to look at, less than its argument; None ends the walk. The
        last piece may be one without a plan, which then holds for all shorter deadlines.
        """
        plans: list[Plan] = []
        next_s = highest_s
        while True:
            solved = self.solver.solve(self.at(next_s), plans)
            if solved.plan is None:
                yield Step(solved, None)
                return
            plans = [solved.plan]
            from_s = self.shortest_s(solved)
            yield Step(solved, from_s)
            following = None if from_s is None else below(from_s)
            if following is None or following <= self.above_s:
                return
            next_s = following

    def next_shorter_s(self) -> Callable[[Fraction], Fraction]:
        """Return the function that gives a deadline that asks for strictly less, by no whole step.

        One step less is such a deadline; where that is too short to be one, half way to there.
        """
        step = time_step_s(self.solver.tables(self.at(None)))

        def shorter(deadline_s: Fraction) -> Fraction:
            if deadline_s - step <= self.above_s < deadline_s:
                return (deadline_s + self.above_s) / 2
            return deadline_s - step

        return shorter


def exact_steps(
    line: DeadlineLine, from_s: Fraction | None = None, to_s: Fraction | None = None
) -> list[Step]:
    """Return every piece of the optimum between two deadlines, from the shortest to the longest.

    Neighbours with equal values are joined: the plan of the shorter deadline serves both. None
    stands for "as short as may be" and "no deadline".
    """
    shorter = line.next_shorter_s()

    def below(at: Fraction) -> Fraction | None:
        if from_s is None:
            return shorter(at)
        return None if at <= from_s else max(shorter(at), from_s)

    steps: list[Step] = []
    for step in line.walk(to_s, below):
        is_same = (
            steps
            and step.solved.plan is not None
            and steps[-1].solved.values == step.solved.values
            and steps[-1].solved.termination is step.solved.termination
        )
        if is_same:
            steps[-1] = step
        else:
            steps.append(step)
    return steps[::-1]
