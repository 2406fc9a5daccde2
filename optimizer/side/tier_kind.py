"""Which tier of memory holds which data, as one of the smaller decisions (6.6.3, 6.7.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.instance import Instance
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.kinds import Goal, Kept, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument
from optimizer.side.tier_accounts import TierPlaceDocument, TierPlanDocument
from optimizer.side.tier_plans import TierPlanReader, TierWords, tier_account
from optimizer.tiers.building import tier_problem
from optimizer.tiers.evaluation import evaluate_tiers
from optimizer.tiers.problem import GOAL_UNITS, TierPlan
from optimizer.tiers.search import best_tiers_exhaustively, first_tiers, improved_tiers

#: The oracle is asked when it needs to try no more placements than this.
MAX_ORACLE_STEPS = 5_000


class TierKind(PlainKind):
    """Place every class of data so that sessions, user rate or throughput are best."""

    decision = "tiers"
    nothing_fits = (
        "no placement keeps within every tier's memory, what may be written, resumes and the "
        "step's target with as many sessions as are wanted"
    )

    def __init__(self, instance: Instance) -> None:
        assert instance.tiers is not None
        self.section, self.source = instance.tiers, instance.name
        self.problem = tier_problem(instance)
        goal = self.problem.goal
        # what is paid while tiers are in use is harder for CP-SAT
        is_priced = goal == "throughput_per_price"
        self.solvers = ("highs", "cbc", "cp-sat") if is_priced else ("cp-sat", "highs", "cbc")
        self.goals = (Goal(goal, GOAL_UNITS[goal], is_maximised=True),)
        #: What is said of a plan.
        self.words = Kept[TierPlan, TierWords](partial(TierWords, self.section, self.problem))

    def broken(self, answer: TierPlan) -> Sequence[Violation]:
        """Rules that a placement breaks."""
        return evaluate_tiers(self.problem, answer).violations

    def value(self, answer: TierPlan) -> Fraction:
        """What the goal comes to; 0 where it has no value."""
        return evaluate_tiers(self.problem, answer).value(self.problem.goal) or Fraction(0)

    def first(self) -> TierPlan | None:
        """What is read most for each byte in the fastest tiers with room."""
        return first_tiers(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> TierPlan | None:
        """One class moved at a time while that helps."""
        return improved_tiers(self.problem, is_over)

    def hint(self, answer: TierPlan | None) -> dict[str, Any]:
        """Where the search for something better begins."""
        return {"known": answer}

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Try all placements where they are few."""
        best = partial(best_tiers_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all placements tried")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return plan, value and bound."""
        return outcome.plan, outcome.value, outcome.bound

    def plan(self, answer: TierPlan) -> SidePlanDocument:
        """Return the tier of every class."""
        names = [tier.name for tier in self.problem.tiers]
        places = []
        for data, home, copy in zip(self.problem.classes, answer.homes, answer.copies, strict=True):
            assert home is not None
            copy_tier = None if copy is None else names[copy]
            places.append(TierPlaceDocument(name=data.name, tier=names[home], copy_tier=copy_tier))
        return SidePlanDocument(
            sentence=self.words(answer).sentence(),
            tiers=TierPlanDocument(classes=places, num_sessions=answer.num_sessions),
        )

    def read_plan(self, plan: SidePlanDocument) -> TierPlan | None:
        """Return the placement; raises InputError for what the instance does not know."""
        if plan.tiers is None:
            return None
        return TierPlanReader(self.problem, self.source).plan(plan.tiers)

    def account(self, answer: TierPlan) -> Mapping[str, Any]:
        """Return tiers, classes, the step, thresholds, and what other places come to."""
        return {"tiers": tier_account(self.words(answer))}
