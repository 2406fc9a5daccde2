"""The smaller decisions behind one interface: data, judgement, first answer, proof, documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any, Protocol

from instances.instance import Instance
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.result import SidePlanDocument

#: Solvers that state every smaller decision, in the order in which they are asked.
SOLVERS = ("highs", "cp-sat", "cbc")

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


class PlainKind:
    """What most decisions have in common: one goal, and formulations that need no hint."""

    goals: tuple[Goal, ...]
    solvers = SOLVERS
    nothing_fits = "no plan keeps every card within memory"

    def is_better(self, value: Any, best: Any) -> bool:
        """Whether one value is strictly better than another; None is worse than any."""
        if value is None or best is None:
            return value is not None
        return bool(value > best if self.goals[0].is_maximised else value < best)

    def bound(self) -> Value | None:
        """Nothing is known without solving."""
        return None

    def hint(self, answer: Any) -> dict[str, Any]:
        """Nothing: the statement is small enough."""
        return {}


def parts(value: Value | None, count: int) -> tuple[Fraction | None, ...]:
    """Return a value goal by goal, None for what is missing."""
    found = value if isinstance(value, tuple) else (value,)
    return (*found, *(None,) * (count - len(found)))


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
}


def side_kind(instance: Instance) -> SideKind:
    """Return the decision that an instance asks for; raises InputError where data do not fit."""
    module, _, name = KINDS[instance.decision].partition(":")
    found: SideKind = getattr(import_module(module), name)(instance)
    return found
