"""Finds the fewest constraints that conflict.

First every constraint is left out in turn: if the rest still conflicts it stays out. What remains
conflicts, and none of it can be spared. A smaller set may conflict as well: every conflict must
share a constraint with all sets whose absence lets something fit. The fewest constraints that do
are tried next; if they conflict nothing smaller does, else another such set is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from instances.instance import Instance
from optimizer.conflicts.constraints import Constraint, variants
from optimizer.conflicts.probing import Answer, Prober
from optimizer.evaluate import evaluate
from optimizer.plan import Plan

#: More questions than this and the search for a smaller set ends.
MAX_PROBES = 400

Kept = frozenset[int]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Constraints that conflict, by index; `is_smallest` where no smaller set is proven not to."""

    members: tuple[int, ...]
    is_smallest: bool


class ConflictSearch:
    """Knows which sets of kept constraints of an infeasible instance allow a plan.

    Keeping fewer allows every plan that keeping more does, so each answer settles many sets.
    """

    def __init__(
        self, prober: Prober, instance: Instance, constraints: Sequence[Constraint]
    ) -> None:
        self.prober, self.instance, self.constraints = prober, instance, constraints
        self.everything: Kept = frozenset(range(len(constraints)))
        self.feasible: list[Kept] = []
        self.infeasible: list[Kept] = [self.everything]
        self.unknown: set[Kept] = set()

    def variants(self, kept: Kept) -> Iterator[Instance]:
        """Yield the instances that tell whether the kept constraints conflict."""
        return variants(self.instance, self.constraints, kept)

    def allows(self, kept: Kept) -> bool | None:
        """Whether a plan keeps these constraints; None where that is not known."""
        for more in self._cheaper_first(kept):
            if any(more <= known for known in self.feasible):
                return True
            if any(known <= more for known in self.infeasible):
                continue
            if more not in self.unknown and self._ask(more):
                return True
        return False if any(known <= kept for known in self.infeasible) else None

    def _cheaper_first(self, kept: Kept) -> Iterator[Kept]:
        """Yield larger sets that are quicker to ask about, and may do, then the set itself."""
        heavy = [i for i in range(len(self.constraints)) if self.constraints[i].is_heavy]
        cards = [i for i in heavy if not self.constraints[i].is_choice]
        yield from dict.fromkeys((kept | {*heavy}, kept | {*cards}, kept))

    def _ask(self, kept: Kept) -> bool | None:
        self.prober.step(f"looking for what conflicts: {len(kept)} constraints at a time")
        is_known = True
        for instance in self.variants(kept):
            answer = self.prober.ask(instance)
            if answer.is_feasible:
                self.feasible.append(self._grown(kept, answer))
                return True
            is_known = is_known and answer.is_feasible is False
        if not is_known:
            self.unknown.add(kept)
            return None
        self.infeasible.append(kept)
        return False

    def _grown(self, kept: Kept, answer: Answer) -> Kept:
        """Return as many constraints as the plan that was found happens to keep."""
        assert answer.plan is not None
        for i in range(len(self.constraints)):
            if i not in kept and self._keeps(answer.plan, kept | {i}):
                kept |= {i}
        return kept

    def _keeps(self, plan: Plan, kept: Kept) -> bool:
        return any(evaluate(instance, plan).is_feasible for instance in self.variants(kept))

    def find(self) -> Conflict:
        """Return a smallest conflict, or, where time is short, one that is small."""
        kept = self.everything
        for i in range(len(self.constraints)):
            if self.allows(kept - {i}) is False:
                kept -= {i}
        return self._smaller_than(kept)

    def _smaller_than(self, best: Kept) -> Conflict:
        open_sets: list[Kept] = []
        while True:
            must_share = [self.everything - known for known in (*self.feasible, *open_sets)]
            fewest = fewest_sharing(must_share, len(best) - 1)
            if fewest is None:
                break
            is_allowed = self.allows(fewest)
            if is_allowed is False:
                best = fewest
                break
            if is_allowed is None:
                open_sets.append(fewest)
            if self.prober.is_over or self.prober.num_probes > MAX_PROBES:
                open_sets.append(fewest)
                break
        return Conflict(tuple(sorted(best)), not open_sets)


def fewest_sharing(sets: Sequence[Kept], most: int) -> Kept | None:
    """Return the fewest elements, at most so many, that share one with every set; None if none.

    Of equally few the first in order.
    """
    for size in range(most + 1):
        found = _sharing(sets, frozenset(), size)
        if found is not None:
            return found
    return None


def _sharing(sets: Sequence[Kept], chosen: Kept, more: int) -> Kept | None:
    missed = next((s for s in sets if not s & chosen), None)
    if missed is None:
        return chosen
    if not more:
        return None
    tried = (_sharing(sets, chosen | {i}, more - 1) for i in sorted(missed))
    return next((found for found in tried if found is not None), None)
