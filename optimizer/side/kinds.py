"""The two smaller decisions behind one interface: data, judgement, first answer, second opinion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Protocol

from instances.instance import Instance
from optimizer.errors import TooLargeError
from optimizer.evaluation import Violation
from optimizer.experts.building import expert_problem
from optimizer.experts.evaluation import (
    best_experts_exhaustively,
    contiguous_placement,
    evaluate_experts,
    expert_bound,
)
from optimizer.experts.greedy import greedy_placement
from optimizer.second_opinion import SecondOpinion
from optimizer.stages.decision import stage_problem
from optimizer.stages.evaluation import best_cut, evaluate_stages
from optimizer.stages.problem import even_cut

#: The oracle of expert placements is asked when it needs to look at no more than this.
MAX_ORACLE_PLACEMENTS = 20_000


class SideKind(Protocol):
    """What the wiring needs to know of a decision."""

    decision: str
    goal: str
    unit: str
    is_maximised: bool
    problem: Any

    def broken(self, answer: Any) -> Sequence[Violation]:
        """Rules that an answer breaks."""
        ...

    def value(self, answer: Any) -> Fraction:
        """Exact value of an answer, by the evaluator."""
        ...

    def is_better(self, value: Fraction | None, best: Fraction | None) -> bool:
        """Whether one value is strictly better than another."""
        ...

    def first(self) -> Any:
        """An answer that needs no search; it may break rules."""
        ...

    def improved(self, is_over: Callable[[], bool]) -> Any:
        """A good answer without a solver, the best found until `is_over`; None without one."""
        ...

    def hint(self, answer: Any) -> dict[str, Any]:
        """Return what a formulation is told of a verified answer."""
        ...

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Judge an optimum (None: infeasibility) without a solver; None where nothing can."""
        ...

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return answer, value and bound of a formulation's outcome."""
        ...


def _fraction(value: Fraction | int | None) -> Fraction | None:
    return None if value is None else Fraction(value)


class StageKind:
    """Cut layers into stages. A cut whose tokens take no memory has a value of 0 tokens."""

    decision = "stages"

    def __init__(self, instance: Instance) -> None:
        self.problem = stage_problem(instance)
        self.is_maximised = self.problem.goal == "tokens"
        self.goal = "tokens" if self.is_maximised else "slowest_stage"
        self.unit = "tokens" if self.is_maximised else "s"

    def broken(self, answer: tuple[int, ...]) -> Sequence[Violation]:
        """Rules that a cut breaks."""
        return evaluate_stages(self.problem, answer).violations

    def value(self, answer: tuple[int, ...]) -> Fraction:
        """Tokens that fit, or seconds of the slowest stage."""
        return Fraction(evaluate_stages(self.problem, answer).value or 0)

    def is_better(self, value: Fraction | None, best: Fraction | None) -> bool:
        """Whether one value is strictly better than another."""
        if value is None or best is None:
            return value is not None
        return value > best if self.is_maximised else value < best

    def first(self) -> tuple[int, ...] | None:
        """The cut with equally many layers on every stage."""
        return even_cut(len(self.problem.layers), len(self.problem.stages))

    def improved(self, is_over: Callable[[], bool]) -> tuple[int, ...] | None:
        """The best cut, by dynamic programming: a solver has yet to prove it."""
        return best_cut(self.problem)

    def hint(self, answer: Any) -> dict[str, Any]:
        """Nothing: the statement is small enough."""
        return {}

    def opinion(self, value: Fraction | None) -> SecondOpinion:
        """Solve by dynamic programming, which no formulation shares code with."""
        cut = best_cut(self.problem)
        found = None if cut is None else self.value(cut)
        detail = "the best cut of every run of layers, stage by stage"
        return SecondOpinion("dynamic programming", found == value, detail)

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return counts, value and bound."""
        value = outcome.value
        if outcome.counts is not None and value is None:
            value = 0
        return outcome.counts, _fraction(value), _fraction(outcome.bound)


class ExpertKind:
    """Place experts on groups so that the busiest takes least."""

    decision, goal, unit, is_maximised = "experts", "busiest_group", "s", False

    def __init__(self, instance: Instance) -> None:
        self.problem = expert_problem(instance)

    def broken(self, answer: tuple[tuple[int, ...], ...]) -> Sequence[Violation]:
        """Rules that a placement breaks."""
        return evaluate_experts(self.problem, answer).violations

    def value(self, answer: tuple[tuple[int, ...], ...]) -> Fraction:
        """Seconds of the busiest group."""
        return evaluate_experts(self.problem, answer).value_s

    def is_better(self, value: Fraction | None, best: Fraction | None) -> bool:
        """Whether one value is strictly less than another."""
        return value is not None and (best is None or value < best)

    def first(self) -> tuple[tuple[int, ...], ...]:
        """Experts in index order, one copy each."""
        return contiguous_placement(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> tuple[tuple[int, ...], ...] | None:
        """A placement by longest work first, improved by exchanges."""
        return greedy_placement(self.problem, is_over)

    def hint(self, answer: Any) -> dict[str, Any]:
        """The placement to beat."""
        return {} if answer is None else {"incumbent": answer}

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with a bound, or enumerate all placements where they are few."""
        if value is not None and value == expert_bound(self.problem):
            return SecondOpinion("bound", True, "the busiest group meets the solver-free bound")
        try:
            best = best_experts_exhaustively(self.problem, MAX_ORACLE_PLACEMENTS)
        except TooLargeError:
            return None
        found = None if best is None else best[0]
        return SecondOpinion("exhaustive", found == value, "all placements enumerated")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return placement, value and bound."""
        return outcome.placement, outcome.value, outcome.bound


def side_kind(instance: Instance) -> SideKind:
    """Return the decision that an instance asks for; raises InputError where data do not fit."""
    return StageKind(instance) if instance.decision == "stages" else ExpertKind(instance)
