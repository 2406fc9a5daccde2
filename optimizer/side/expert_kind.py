"""The placement of experts on groups of cards as one of the smaller decisions (section 6.3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Any

from instances.instance import Instance
from instances.quantity import human_seconds
from optimizer.evaluation import Violation
from optimizer.experts.building import expert_problem
from optimizer.experts.evaluation import (
    Placement,
    best_experts_exhaustively,
    contiguous_placement,
    evaluate_experts,
    expert_bound,
)
from optimizer.experts.greedy import greedy_placement
from optimizer.plan_document import as_float
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import ExpertGroupDocument
from optimizer.side.kinds import Goal, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument

#: The oracle is asked when it needs to look at no more placements than this.
MAX_ORACLE_PLACEMENTS = 20_000


class ExpertKind(PlainKind):
    """Place experts on groups so that the busiest takes least."""

    decision = "experts"
    goals = (Goal("busiest_group", "s"),)

    def __init__(self, instance: Instance) -> None:
        self.problem = expert_problem(instance)

    def broken(self, answer: Placement) -> Sequence[Violation]:
        """Rules that a placement breaks."""
        return evaluate_experts(self.problem, answer).violations

    def value(self, answer: Placement) -> Fraction:
        """Seconds of the busiest group."""
        return evaluate_experts(self.problem, answer).value_s

    def first(self) -> Placement:
        """Experts in index order, one copy each."""
        return contiguous_placement(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> Placement | None:
        """A placement by longest work first, improved by exchanges."""
        return greedy_placement(self.problem, is_over)

    def hint(self, answer: Placement | None) -> dict[str, Any]:
        """The placement to beat."""
        return {} if answer is None else {"incumbent": answer}

    def bound(self) -> Fraction:
        """Least time of the busiest group, by loads and reads alone."""
        return expert_bound(self.problem)

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with a bound, or enumerate all placements where they are few."""
        if value is not None and value == self.bound():
            return SecondOpinion("bound", True, "the busiest group meets the solver-free bound")
        best = partial(best_experts_exhaustively, self.problem, MAX_ORACLE_PLACEMENTS)
        return opinion_of_all(value, best, itemgetter(0), "all placements enumerated")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return placement, value and bound."""
        return outcome.placement, outcome.value, outcome.bound

    def plan(self, answer: Placement) -> SidePlanDocument:
        """Return the groups that hold each expert."""
        extra = sum(len(groups) - 1 for groups in answer)
        text = f"{len(answer)} experts on {self.problem.num_groups} groups"
        text += f", {extra} more {'copy' if extra == 1 else 'copies'}" if extra else ""
        return SidePlanDocument(
            sentence=f"{text}: busiest group {human_seconds(self.value(answer))}",
            experts=[list(groups) for groups in answer],
        )

    def read_plan(self, plan: SidePlanDocument) -> Placement | None:
        """Return the groups that hold each expert."""
        return None if plan.experts is None else tuple(tuple(groups) for groups in plan.experts)

    def account(self, answer: Placement) -> Mapping[str, Any]:
        """Return the load of every group, beside that of experts in index order."""
        before = evaluate_experts(self.problem, contiguous_placement(self.problem))
        after = evaluate_experts(self.problem, answer)
        groups = [
            ExpertGroupDocument(
                experts=[e for e, groups in enumerate(answer) if g in groups],
                load=float(after.loads[g]),
                load_exact=str(after.loads[g]),
                active_experts=after.active_experts[g],
                resident_bytes=after.resident_bytes[g],
                capacity_bytes=self.problem.capacity_bytes[g],
                time_s=float(after.times_s[g]),
            )
            for g in range(self.problem.num_groups)
        ]
        return {
            "groups": groups,
            "balance": as_float(after.balance),
            "balance_before": as_float(before.balance),
            "value_before": as_float(before.value_s),
        }
