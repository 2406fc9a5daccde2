"""The capacity of a fleet as one of the decisions behind the common interface (6.5.2, 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.instance import Instance
from optimizer.capacity.account import CapacityEvaluation
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.exhaustive import best_capacity_exhaustively
from optimizer.capacity.first import first_capacity
from optimizer.capacity.multipliers import Multipliers, capacity_bound
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import GOAL_UNITS, CapacityProblem, Option, is_maximised
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.capacity_accounts import NotUsedDocument
from optimizer.side.capacity_judging import capacity_account, not_used
from optimizer.side.capacity_plans import PlanNames, plan_document, read_capacity_plan
from optimizer.side.kinds import Goal, Kept, PlainKind, opinion_of_all
from optimizer.side.mix_kind import price_text
from optimizer.side.result import SidePlanDocument
from optimizer.words import digits, plural

#: The oracle is asked when it needs no more steps than this.
MAX_ORACLE_STEPS = 20_000

#: A sentence names so many pools, and so many kinds of serving instance.
MAX_NAMED = 4

#: What a goal's value is called in a sentence; prices and counts are written before it.
_PRICES = {
    "price_per_hour": "an hour",
    "price_per_on_time_session": "a session on time",
    "price_per_million_tokens": "a million tokens",
}
_SESSIONS = {
    "sessions": "on time",
    "worst_case_sessions": "on time after any failure",
    "expected_sessions": "on time on average over failures",
}

#: From so many sessions or options on, loads are listed as they are needed.
MANY_SESSIONS, MANY_OPTIONS = 20_000, 200

CapacityValue = tuple[Fraction | None, ...]


class CapacityKind(PlainKind):
    """Choose servers, racks and serving instances for a workload of many models."""

    decision = "capacity"

    def __init__(
        self, instance: Instance, is_over: Callable[[float], bool] = lambda share: False
    ) -> None:
        self.instance, self.source = instance, instance.name
        self.capacity = build_capacity(instance, is_over)
        self.is_complete = self.capacity.is_complete
        self.problem: CapacityProblem = self.capacity.problem
        self.names = PlanNames(self.problem)
        self.goals = tuple(
            Goal(name, GOAL_UNITS[name], is_maximised(name)) for name in self.problem.goals
        )
        self.solvers = ("highs", "cp-sat", "cbc", "columns")
        sessions = sum(cohort.num_sessions for cohort in self.problem.cohorts)
        if sessions > MANY_SESSIONS or len(self.problem.options) > MANY_OPTIONS:
            self.solvers = ("columns", "highs", "cp-sat", "cbc")
        self.nothing_fits = nothing_fits(self.problem)
        self._proof: tuple[Multipliers, ...] = ()
        self._judged = Kept[CapacityPlan, CapacityEvaluation](
            lambda answer: evaluate_capacity(self.instance, self.problem, answer)
        )

    @classmethod
    def within(cls, instance: Instance, is_over: Callable[[float], bool]) -> CapacityKind:
        """Return the decision, with the candidates that are priced in time."""
        return cls(instance, is_over)

    def judged(self, answer: CapacityPlan) -> CapacityEvaluation:
        """Return the evaluation of a plan."""
        return self._judged(answer)

    def broken(self, answer: CapacityPlan) -> Sequence[Violation]:
        """Rules that a plan breaks. A quotient over no session is no value to compare."""
        judged = self.judged(answer)
        return [
            *judged.violations,
            *(
                Violation(
                    "no_value", goal.name, 1, "sessions", f"{goal.name}: no session is on time"
                )
                for goal in self.goals
                if goal.name not in judged.values
            ),
        ]

    def value(self, answer: CapacityPlan) -> CapacityValue:
        """Every goal in order; a quotient over no session has none."""
        values = self.judged(answer).values
        return tuple(values.get(goal.name) for goal in self.goals)

    def first(self) -> CapacityPlan | None:
        """Nothing: a fleet takes a search."""
        return None

    def improved(self, is_over: Callable[[], bool]) -> CapacityPlan | None:
        """A good plan without a solver, where options are few: of many the columns know sooner."""
        if len(self.problem.options) > MANY_OPTIONS:
            return None
        return first_capacity(self.problem, is_over)

    def opinion(self, value: CapacityValue | None) -> SecondOpinion | None:
        """Count the bound again from the proof, if there is one; try all plans where they are few.

        Neither asks a solver.
        """
        if self._proof and value is not None and value == self._proven():
            return SecondOpinion("multipliers", True, "the plan meets the bound they prove")
        best = partial(best_capacity_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all plans tried")

    def _proven(self) -> CapacityValue | None:
        return capacity_bound(self.problem, self._proof)

    def read(self, outcome: Any) -> tuple[CapacityPlan | None, Any, Any]:
        """Return plan, values and bounds of the goals in their order."""
        self._proof = getattr(outcome, "proof", ())
        return outcome.plan, outcome.value, outcome.bound

    def plan(self, answer: CapacityPlan) -> SidePlanDocument:
        """Return servers, serving instances and who serves what, all by name."""
        judged = self.judged(answer)
        return SidePlanDocument(
            sentence=self._sentence(judged),
            capacity=plan_document(self.names, answer, judged.instances),
        )

    def _sentence(self, judged: CapacityEvaluation) -> str:
        """Return "13 servers of hgx in 5 racks = 22 instances of …: 1,278.16 an hour"."""
        problem = self.problem
        pools = [
            (count, pool.name)
            for count, pool in zip(judged.servers, problem.pools, strict=True)
            if count
        ]
        servers = [f"{plural(n, 'server')} of {pool}" for n, pool in pools[:1]]
        servers += [f"{count:,} of {pool}" for count, pool in pools[1:]]
        text = _joined(servers, "pools") or "no server"
        if problem.sites:
            text += f" in {plural(sum(judged.racks), 'rack')}"
        counts = [(n, o) for o, n in enumerate(judged.instances) if n]
        counts.sort(key=lambda item: (-item[0], item[1]))
        kinds = [f"{plural(n, 'instance')} of {self.names.options[o]}" for n, o in counts]
        text += f" = {_joined(kinds, 'kinds') or 'no serving instance'}"
        values = (
            goal_text(goal.name, judged.values[goal.name])
            for goal in self.goals
            if goal.name in judged.values
        )
        return f"{text}: {', '.join(values)}"

    def read_plan(self, plan: SidePlanDocument) -> CapacityPlan | None:
        """Return the plan; raises InputError for what the instance does not know."""
        if plan.capacity is None:
            return None
        return read_capacity_plan(self.names, plan.capacity, self.source)

    def account(self, answer: CapacityPlan) -> Mapping[str, Any]:
        """Return what a plan takes, serves and withstands, and where everything stands."""
        return {"capacity": capacity_account(self.names, answer, self.judged(answer))}

    def not_used(self, answer: CapacityPlan | None) -> NotUsedDocument:
        """Return the candidates that are not in a plan."""
        numbers = () if answer is None else self.judged(answer).instances
        used = [option for option, number in enumerate(numbers) if number]
        return not_used(self.problem, self.capacity.rejections, used)


def _joined(parts: Sequence[str], noun: str) -> str:
    """Return the first parts of a sum, and how many more there are."""
    more = len(parts) - MAX_NAMED
    shown = [*parts[:MAX_NAMED], *([f"{more} more {noun}"] if more > 0 else [])]
    return " + ".join(shown)


def goal_text(name: str, value: Fraction) -> str:
    """Return a goal's value for a sentence: "1,278.16 an hour", "40 sessions on time"."""
    if name in _PRICES:
        return f"{price_text(value)} {_PRICES[name]}"
    if name in _SESSIONS:
        whole = plural(int(value), "session") if value.denominator == 1 else ""
        return f"{whole or f'{digits(float(value))} sessions'} {_SESSIONS[name]}"
    if name in ("servers", "racks", "cards"):
        return plural(int(value), name.removesuffix("s"))
    scale, unit = (1000, "kW") if name == "power" else (10**6, "MJ")
    return f"{digits(float(value / scale))} {unit}"


def nothing_fits(problem: CapacityProblem) -> str:
    """Return why no plan is legal, as far as that is plain to see."""
    drawn = problem.fixed_w + problem.occupied_w
    if problem.budget_w is not None and drawn > problem.budget_w:
        return (
            f"{drawn:,} W are drawn whatever the servers, {drawn - problem.budget_w:,} W more than "
            f"the budget of {problem.budget_w:,} W"
        )
    if not problem.classes and problem.sites:
        return "no server fits into a rack: its units, watts or cooling are too much for each"
    for c, cohort in enumerate(problem.cohorts):
        if cohort.min_sessions and not any(_may_end(problem, o, c) for o in problem.options):
            return f"no candidate serves a session of {cohort.name!r} on time"
    least = sum(cohort.min_sessions for cohort in problem.cohorts)
    fleet = "that may be bought" if problem.is_purchase else "that are there"
    after = " after every single failure" if problem.events else ""
    return f"no servers {fleet} serve the {least:,} sessions that must be on time{after}"


def _may_end(problem: CapacityProblem, option: Option, c: int) -> bool:
    service_s, cohort = option.service_s[c], problem.cohorts[c]
    if service_s is None:
        return False
    return cohort.deadline_s is None or cohort.release_s + service_s <= cohort.deadline_s
