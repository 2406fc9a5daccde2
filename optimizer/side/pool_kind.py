"""Memory that nodes lend each other as one of the smaller decisions (6.6.1 to 6.6.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.evaluation import Violation
from optimizer.pooling.bounds import pool_bound, why_nothing_fits
from optimizer.pooling.building import pool_problem
from optimizer.pooling.evaluation import PoolEvaluation, evaluate_pool
from optimizer.pooling.problem import GOAL_UNITS, PoolPlan
from optimizer.pooling.search import best_pool_exhaustively, first_pool
from optimizer.second_opinion import SecondOpinion
from optimizer.side.kinds import Goal, PlainKind, opinion_of_all
from optimizer.side.pool_plans import PlanReader, lending_text, plan_document, pool_account
from optimizer.side.result import SidePlanDocument

#: The oracle is asked when it needs to try no more ways to deal chunks than this.
MAX_ORACLE_STEPS = 100_000

#: A sentence names so many leases.
MAX_NAMED = 3

PoolValue = tuple[Fraction | None, ...]


class PoolKind(PlainKind):
    """Place every task's bytes so that the slowest read is shortest, or fewest are far."""

    decision = "pool"
    solvers = ("cp-sat", "highs", "cbc")  # CP-SAT states finer seconds exactly

    def __init__(self, instance: Instance) -> None:
        assert instance.pool is not None
        self.section, self.source = instance.pool, instance.name
        self.problem = pool_problem(instance)
        self.goals = tuple(Goal(name, GOAL_UNITS[name]) for name in self.problem.goals)
        self.reason = why_nothing_fits(self.problem)
        self.nothing_fits = self.reason or (
            "no placement keeps within every node's memory, what may be lent, paths and queues"
        )

    def judged(self, answer: PoolPlan) -> PoolEvaluation:
        """Return the evaluation of a plan."""
        return evaluate_pool(self.problem, answer)

    def broken(self, answer: PoolPlan) -> Sequence[Violation]:
        """Rules that a plan breaks."""
        return self.judged(answer).violations

    def value(self, answer: PoolPlan) -> PoolValue:
        """Goals in their order."""
        return self.judged(answer).value(self.problem.goals)

    def first(self) -> PoolPlan | None:
        """Homes filled first, then what is left borrowed over the fastest paths."""
        return first_pool(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> PoolPlan | None:
        """Nothing: solvers are fast."""
        return None

    def bound(self) -> PoolValue | None:
        """What every node's tasks must read from elsewhere, over all its links at once."""
        return pool_bound(self.problem)

    def opinion(self, value: PoolValue | None) -> SecondOpinion | None:
        """Compare with a bound, or try all plans where they are few."""
        if value is None and self.reason is not None:
            return SecondOpinion("bound", True, self.reason)
        if value is not None and value == self.bound():
            return SecondOpinion("bound", True, "the plan meets the solver-free bound")
        best = partial(best_pool_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all plans tried")

    def read(self, outcome: Any) -> tuple[Any, PoolValue | None, PoolValue | None]:
        """Return plan, values and bounds of the goals in their order."""
        return outcome.plan, outcome.value, outcome.bound

    def plan(self, answer: PoolPlan) -> SidePlanDocument:
        """Return what every node holds and lends."""
        judged = self.judged(answer)
        text = lending_text(self.problem, answer, MAX_NAMED)
        if judged.remote_bytes:
            text += (
                f": slowest read {human_seconds(judged.slowest_read_s)}, "
                f"{human_bytes(judged.remote_bytes)} far from their readers"
            )
        return SidePlanDocument(sentence=text, pool=plan_document(self.problem, answer))

    def read_plan(self, plan: SidePlanDocument) -> PoolPlan | None:
        """Return the plan; raises InputError for what the instance does not know."""
        if plan.pool is None:
            return None
        return PlanReader(self.problem, self.source).plan(plan.pool)

    def account(self, answer: PoolPlan) -> Mapping[str, Any]:
        """Return nodes, links and paths, and how slow each path in use may get."""
        judged = self.judged(answer)
        return {"pool": pool_account(self.section, self.problem, answer, judged)}
