"""The placement of slices on a torus as one of the smaller decisions (section 6.5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.errors import InputError
from instances.instance import Instance
from instances.topology import TorusTopology
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import SliceDocument, SlicePlaceDocument
from optimizer.side.kinds import Goal, PlainKind, as_fraction, opinion_of_all
from optimizer.side.result import SidePlanDocument
from optimizer.slices.evaluation import (
    best_slices_exhaustively,
    evaluate_slices,
    first_slices,
    improved_slices,
    slice_bound,
)
from optimizer.slices.problem import Place, SlicePlacement, SliceProblem, SliceRequest

#: Largest torus: that of the largest TPU pods, and half as much again.
MAX_CHIPS = 16_384

#: The oracle is asked when it needs to try no more places than this.
MAX_ORACLE_STEPS = 200_000


def slice_problem(instance: Instance) -> SliceProblem:
    """Return the data of the instance's slice decision; raises InputError."""
    decision = instance.slices
    assert decision is not None
    extents = decision.extents
    if extents is None:
        topology = instance.fleet.pools[0].server.fabric.topology
        if not isinstance(topology, TorusTopology):
            rule = "give the chips along each axis: no torus joins the cards of the first pool"
            raise InputError(instance.name, "slices.extents", rule)
        extents = topology.extents
    requests = [
        SliceRequest(f"{request.name}/{i}" if request.count > 1 else request.name, request.shapes)
        for request in decision.requests
        for i in range(request.count)
    ]
    if len(set(decision.occupied)) != len(decision.occupied):
        raise InputError(instance.name, "slices.occupied", "a chip is listed twice")
    if math.prod(extents) > MAX_CHIPS:
        rule = f"{math.prod(extents)} chips are more than the {MAX_CHIPS} that can be searched"
        raise InputError(instance.name, "slices.extents", rule)
    try:
        return SliceProblem(extents, frozenset(decision.occupied), tuple(requests))
    except ValueError as error:
        raise InputError(instance.name, "slices", str(error)) from error


class SliceKind(PlainKind):
    """Place slices so that they take as many chips as possible."""

    decision = "slices"
    goals = (Goal("chips", "chips", is_maximised=True),)

    def __init__(self, instance: Instance) -> None:
        self.source = instance.name
        self.problem = slice_problem(instance)

    def broken(self, answer: SlicePlacement) -> Sequence[Violation]:
        """Rules that a placement breaks."""
        return evaluate_slices(self.problem, answer).violations

    def value(self, answer: SlicePlacement) -> Fraction:
        """Chips of the slices that are placed."""
        return Fraction(evaluate_slices(self.problem, answer).value)

    def first(self) -> SlicePlacement:
        """Slices as they are requested, each where it fits first."""
        return first_slices(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> SlicePlacement:
        """Large slices first, each where most chips around it are taken."""
        return improved_slices(self.problem, is_over)

    def bound(self) -> Fraction:
        """Chips that no placement can exceed."""
        return Fraction(slice_bound(self.problem))

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with a bound, or try all placements where they are few."""
        if value is not None and value == self.bound():
            return SecondOpinion("bound", True, "the slices meet the solver-free bound")
        best = partial(best_slices_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all placements tried")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return placement, value and bound."""
        return outcome.placement, as_fraction(outcome.value), as_fraction(outcome.bound)

    def plan(self, answer: SlicePlacement) -> SidePlanDocument:
        """Return shape and first chip of every slice."""
        judged, before = evaluate_slices(self.problem, answer), int(self.value(self.first()))
        sentence = f"{judged.num_placed} of {len(answer)} slices on {judged.value} of "
        sentence += f"{self.problem.num_free_chips} free chips (first fit {before})"
        places = [
            None if place is None else self._place(request, place)
            for request, place in zip(self.problem.requests, answer, strict=True)
        ]
        return SidePlanDocument(sentence=sentence, slices=places)

    def _place(self, request: SliceRequest, place: Place) -> SlicePlaceDocument:
        index, origin = place
        shape = list(request.shapes[index])
        return SlicePlaceDocument(name=request.name, shape=shape, origin=list(origin))

    def read_plan(self, plan: SidePlanDocument) -> SlicePlacement | None:
        """Return the places in the order of requests; a shape that is not allowed has no index."""
        if plan.slices is None:
            return None
        places: list[Place | None] = []
        for number, document in enumerate(plan.slices):
            if document is None or number >= len(self.problem.requests):
                places.append(None)
                continue
            request = self.problem.requests[number]
            if document.name not in ("", request.name):
                rule = f"slice {number} is {request.name!r}; list the slices in their order"
                raise InputError(self.source, f"slices[{number}].name", rule, document.name)
            shape = tuple(document.shape)
            known = shape in request.shapes
            index = request.shapes.index(shape) if known else len(request.shapes)
            places.append((index, tuple(document.origin)))
        return tuple(places)

    def account(self, answer: SlicePlacement) -> Mapping[str, Any]:
        """Return the chips of every slice, beside those of slices where they fit first."""
        judged = evaluate_slices(self.problem, answer)
        slices = []
        for request, place, chips in zip(self.problem.requests, answer, judged.chips, strict=False):
            shown = None if place is None or not chips else self._place(request, place)
            slices.append(
                SliceDocument(
                    name=request.name,
                    num_chips=request.num_chips,
                    shape=None if shown is None else shown.shape,
                    origin=None if shown is None else shown.origin,
                    chips=[list(chip) for chip in chips],
                )
            )
        found: dict[str, Any] = {"slices": slices, "free_chips": self.problem.num_free_chips}
        if judged.is_feasible:
            before = evaluate_slices(self.problem, self.first()).value
            found |= {"value_before": float(before), "saved": float(judged.value - before)}
        return found
