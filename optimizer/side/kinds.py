"""The smaller decisions behind one interface: data, judgement, first answer, proof, documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any, Generic, Protocol, Self, TypeVar

from instances.instance import Instance
from optimizer.errors import TooLargeError
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.capacity_accounts import NotUsedDocument
from optimizer.side.result import SidePlanDocument

#: Solvers that state every smaller decision, in the order in which they are asked.
SOLVERS = ("highs", "cp-sat", "cbc")

AnswerT = TypeVar("AnswerT")
FoundT = TypeVar("FoundT")

#: Value of an answer: a number, or several where there are several goals, most important first.
Value = Fraction | tuple[Fraction | None, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is optimised, in which unit."""

    name: str
    unit: str
    is_maximised: bool = False


class SideKind(Protocol):
    """What the wiring needs to know of a decision."""

    decision: str
    goals: tuple[Goal, ...]
    problem: Any
    #: Solvers in the order in which they are asked.
    solvers: tuple[str, ...]
    #: Why there is no answer, where that is proven.
    nothing_fits: str
    #: Whether all that an answer may consist of is in the problem; else nothing is proven.
    is_complete: bool

    def broken(self, answer: Any) -> Sequence[Violation]:
        """Rules that an answer breaks."""
        ...

    def value(self, answer: Any) -> Value:
        """Exact value of an answer, by the evaluator."""
        ...

    def is_better(self, value: Any, best: Any) -> bool:
        """Whether one value is strictly better than another; None is worse than any."""
        ...

    def first(self) -> Any:
        """An answer that needs no search; it may break rules. None without one."""
        ...

    def improved(self, is_over: Callable[[], bool]) -> Any:
        """A good answer without a solver, the best found until `is_over`; None without one."""
        ...

    def bound(self) -> Value | None:
        """What no answer can beat, proven without a solver; None where nothing is known."""
        ...

    def hint(self, answer: Any) -> dict[str, Any]:
        """Return what a formulation is told of a verified answer."""
        ...

    def opinion(self, value: Any) -> SecondOpinion | None:
        """Judge an optimum (None: infeasibility) without a solver; None where nothing can."""
        ...

    def read(self, outcome: Any) -> tuple[Any, Value | None, Value | None]:
        """Return answer, value and bound of a formulation's outcome."""
        ...

    def plan(self, answer: Any) -> SidePlanDocument:
        """Return an answer that breaks no rule as a document, with its sentence."""
        ...

    def read_plan(self, plan: SidePlanDocument) -> Any:
        """Return the answer in a document; None where it has none of this decision.

        Raises InputError where the document cannot mean an answer.
        """
        ...

    def account(self, answer: Any) -> Mapping[str, Any]:
        """Return the fields of an evaluation document that tell what an answer takes."""
        ...

    def not_used(self, answer: Any) -> NotUsedDocument | None:
        """Return what was considered and is not in an answer (None: there is none), and why."""
        ...


class PlainKind:
    """What most decisions have in common: one goal, and formulations that need no hint."""

    goals: tuple[Goal, ...]
    solvers: tuple[str, ...] = SOLVERS
    nothing_fits = "no plan keeps every card within memory"
    is_complete = True

    def __init__(self, instance: Instance) -> None:
        raise NotImplementedError

    @classmethod
    def within(cls, instance: Instance, is_over: Callable[[float], bool]) -> Self:
        """Return the decision of an instance, whose data take no time worth a limit."""
        return cls(instance)

    def is_better(self, value: Any, best: Any) -> bool:
        """Whether one value is strictly better than another; None is worse than any."""
        return is_better(self.goals, value, best)

    def bound(self) -> Value | None:
        """Nothing is known without solving."""
        return None

    def hint(self, answer: Any) -> dict[str, Any]:
        """Nothing: the statement is small enough."""
        return {}

    def not_used(self, answer: Any) -> NotUsedDocument | None:
        """Nothing to tell."""
        return None


@dataclass
class Kept(Generic[AnswerT, FoundT]):
    """A function of an answer that keeps its last result: a solve asks several times in a row."""

    work: Callable[[AnswerT], FoundT]
    last: tuple[AnswerT, FoundT] | None = None

    def __call__(self, answer: AnswerT) -> FoundT:
        """Return what comes of an answer; nothing is done where it is the last one again."""
        if self.last is None or self.last[0] is not answer:
            self.last = answer, self.work(answer)
        return self.last[1]


def opinion_of_all(
    value: Any, best: Callable[[], Any], value_of: Callable[[Any], Any], detail: str
) -> SecondOpinion | None:
    """Judge an optimum by the `best` of all answers (None: there is none).

    None where `best` raises TooLargeError: they are too many to try.
    """
    try:
        answer = best()
    except TooLargeError:
        return None
    found = None if answer is None else value_of(answer)
    return SecondOpinion("exhaustive", found == value, detail)


def is_better(goals: Sequence[Goal], value: Value | None, best: Value | None) -> bool:
    """Whether one value is strictly better than another in the first goal in which they differ.

    None is worse than any, be it all of a value or one goal's part.
    """
    left, right = (parts(v, len(goals)) for v in (value, best))
    for goal, one, other in zip(goals, left, right, strict=True):
        if one == other:
            continue
        if one is None or other is None:
            return one is not None
        return bool(one > other) == goal.is_maximised
    return False


def tighter(goals: Sequence[Goal], one: Value | None, other: Value | None) -> Value | None:
    """Return the bound that says more in the first goal in which two differ; None says nothing.

    A bound of a later goal holds for answers that meet those of all earlier goals.
    """
    left, right = (parts(v, len(goals)) for v in (one, other))
    for goal, first, second in zip(goals, left, right, strict=True):
        if first == second:
            continue
        if first is None or second is None:
            return other if first is None else one
        return one if (first < second) == goal.is_maximised else other
    return one


def beaten_goal(goals: Sequence[Goal], value: Value | None, bound: Value | None) -> Goal | None:
    """Return the goal in which a value is better than its bound, which proves that one wrong."""
    left, right = (parts(v, len(goals)) for v in (value, bound))
    for goal, found, least in zip(goals, left, right, strict=True):
        if found is None or least is None:
            return None
        if found != least:
            return goal if (found > least) == goal.is_maximised else None
    return None


def parts(value: Value | None, count: int) -> tuple[Fraction | None, ...]:
    """Return a value goal by goal, None for what is missing."""
    found = value if isinstance(value, tuple) else (value,)
    return (*found, *(None,) * (count - len(found)))


def value_text(value: Value | None) -> str:
    """Return a value for a message: "1/3", or "1/3, 5" of several goals."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_fraction(value: Fraction | int | None) -> Fraction | None:
    """Return a whole number as a fraction."""
    return None if value is None else Fraction(value)


#: Where each decision is brought to this interface.
KINDS = {
    "stages": "optimizer.side.stage_kind:StageKind",
    "experts": "optimizer.side.expert_kind:ExpertKind",
    "placement": "optimizer.side.placement_kind:PlacementKind",
    "slices": "optimizer.side.slice_kind:SliceKind",
    "ring_order": "optimizer.side.ring_order_kind:RingOrderKind",
    "mix": "optimizer.side.mix_kind:MixDecisionKind",
    "capacity": "optimizer.side.capacity_kind:CapacityKind",
    "pool": "optimizer.side.pool_kind:PoolKind",
    "tiers": "optimizer.side.tier_kind:TierKind",
    "supernode": "optimizer.side.supernode_kind:SupernodeKind",
}


def side_kind(
    instance: Instance, is_over: Callable[[float], bool] = lambda share: False
) -> SideKind:
    """Return the decision that an instance asks for; raises InputError where data do not fit.

    `is_over(share)` tells whether that share of the time for data is used up.
    """
    module, _, name = KINDS[instance.decision].partition(":")
    found: SideKind = getattr(import_module(module), name).within(instance, is_over)
    return found
