"""A problem instance along one input: verdicts, evaluations and crossings, each worked out once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.plan import Plan
from optimizer.sensitivities.axis import Axis, Place, between
from optimizer.sensitivities.inputs import instance_at
from optimizer.sensitivities.judging import Judge, Unsettled, Verdict

#: What is compared with 0: (whose plan, what, which).
Margin = tuple[str, str, object]
#: Steps of a search for a root, more than a few pieces need; fewer where one is known.
MAX_STEPS, FEW_STEPS = 16, 6
#: Part of the way to the other end at which a slope is taken.
NEARBY = Fraction(1, 1000)


class Line:
    """The variants of one problem instance along one axis."""

    def __init__(self, judge: Judge, instance: Instance, document: Any, axis: Axis) -> None:
        self.judge, self.axis = judge, axis
        self._base, self._document = instance, document
        self._instances: dict[Place, Instance | None] = {axis.start: instance}
        self._evaluations: dict[tuple[Place, Plan], Evaluation] = {}
        self._verdicts: dict[Place, Verdict] = {}

    def instance(self, place: Place) -> Instance | None:
        """Return the problem instance at a place; None where the input may not be there."""
        if place not in self._instances:
            value = self.axis.value(place)
            self._instances[place] = instance_at(
                self._document, self.axis.field, value, self._base.name
            )
        return self._instances[place]

    def known(self, place: Place) -> Instance:
        """Return the problem instance at a place between others; raises Unsettled for none."""
        found = self.instance(place)
        if found is None:
            raise Unsettled(f"{self.axis.field.name} cannot be {float(place):.6g}")
        return found

    def at(self, place: Place) -> Verdict:
        """Judge a place; raises Unsettled."""
        if place not in self._verdicts:
            self._verdicts[place] = self.judge.judge(self.known(place))
        return self._verdicts[place]

    def settled(self, place: Place) -> Verdict:
        """Judge a place by solvers, not by a bound; raises Unsettled."""
        self._verdicts[place] = self.judge.settled(self.known(place))
        return self._verdicts[place]

    def evaluation(self, place: Place, plan: Plan) -> Evaluation:
        """Return the exact evaluation of a plan at a place."""
        if (place, plan) not in self._evaluations:
            self._evaluations[place, plan] = evaluate(self.known(place), plan)
        return self._evaluations[place, plan]

    def is_same(self, one: Place, other: Place) -> bool:
        """Whether two places are the same problem to the solvers."""
        first = self.judge.signature(self.known(one))
        return first is not None and first == self.judge.signature(self.known(other))


def _plan_margins(line: Line, place: Place, whose: str, plan: Plan) -> Iterator[tuple[Margin, Any]]:
    """Yield by how much a plan misses deadlines, bytes, budgets and starts of faults."""
    instance, evaluation = line.known(place), line.evaluation(place, plan)
    for outcome in evaluation.sessions:
        if outcome.finish_s is None:
            continue
        if outcome.deadline_s is not None:
            yield (whose, "late", outcome.session), outcome.finish_s - outcome.deadline_s
        for i, fault in enumerate(instance.faults):
            yield (whose, f"fault {i}", outcome.session), outcome.finish_s - fault.at_s
    for use in evaluation.cards:
        margin = Fraction(use.total_bytes - use.capacity_bytes)
        yield (whose, "memory", (use.pool, use.card)), margin
    for name, most in instance.objective.at_most.limits():
        value = evaluation.objective(name)
        if value is not None:
            yield (whose, "budget", name), value - most


def margins(line: Line, place: Place, own: Plan, other: Plan | None) -> dict[Margin, Fraction]:
    """Return what decides between two plans at a place, each as a number compared with 0.

    "own" must not rise above 0 and "other" not fall to it, lest the plan change; "both" is how
    much dearer the own plan is, objective by objective.
    """
    found: dict[Margin, Fraction] = dict(_plan_margins(line, place, "own", own))
    if other is None:
        return found
    found |= dict(_plan_margins(line, place, "other", other))
    mine, theirs = line.evaluation(place, own), line.evaluation(place, other)
    for name in line.known(place).objective.names:
        a, b = mine.objective(name), theirs.objective(name)
        if a is not None and b is not None:
            found["both", "objective", name] = a - b
    return found


def crossings(line: Line, kept: Place, changed: Place) -> Iterator[Place]:
    """Yield places between two where something that decides crosses 0, roughly from `kept` on.

    Between whole numbers it is the two on either side. Where a plan becomes late or unaffordable
    on the way its objective may jump, so objectives come last.
    """
    own, other = line.at(kept).own, line.at(changed).best
    if own is None:
        return
    axis, start, end = line.axis, *(margins(line, p, own, other) for p in (kept, changed))
    wanted: dict[tuple[str, Fraction, Fraction], Margin] = {}
    for key in (key for key in start if key in end):
        rises, falls = start[key] <= 0 < end[key], end[key] <= 0 < start[key]
        if (rises and key[0] != "other") or (falls and key[0] == "other"):
            wanted.setdefault((key[1], start[key], end[key]), key)
    guesses = {
        key: abs(_secant(axis, kept, first, changed, second) - kept)
        for (_, first, second), key in wanted.items()
    }
    keys = sorted(guesses, key=lambda key: (key[0] == "both", guesses[key], key[0], key[1]))
    find = _whole_root if axis.is_whole else _roots
    for key in keys:

        def margin(place: Place, key: Margin = key) -> Fraction | None:
            return margins(line, place, own, other).get(key)

        yield from find(axis, margin, kept, changed)


def _secant(axis: Axis, one: Place, first: Fraction, other: Place, second: Fraction) -> Fraction:
    """Return where the line through two points is 0, the values being unlike."""
    start, end = axis.coordinate(one), axis.coordinate(other)
    return axis.place_of(start - first * (end - start) / (second - first))


def _whole_root(
    axis: Axis, margin: Callable[[Place], Fraction | None], kept: Place, changed: Place
) -> list[Place]:
    """Return neighbours between which a margin crosses 0; nothing where it is not defined."""
    low, high, step = int(kept), int(changed), 1 if changed > kept else -1
    first, second = margin(low), margin(high)
    for turn in range(MAX_STEPS):
        if abs(high - low) <= 1:
            return [low, high]
        if first is None or second is None:
            return []
        is_halved = turn % 3 == 2 or first == second
        guess = (low + high) // 2 if is_halved else round(_secant(axis, low, first, high, second))
        for _ in range(2):  # a good guess has the other sign next to it
            guess = max(min(low, high), min(max(low, high), guess))
            value = margin(guess)
            if value is None:
                return []
            if (value > 0) == (first > 0):
                low, first, guess = guess, value, guess + step
            else:
                high, second, guess = guess, value, guess - step
    return []


def _roots(
    axis: Axis, margin: Callable[[Place], Fraction | None], kept: Place, changed: Place
) -> list[Place]:
    """Return places where a margin is exactly 0, between two at which its signs differ.

    The line through both ends hits one if there is one piece between them; else the line through
    two points near either end may; else the ends move closer. Margins that jump may have none. A
    margin that is 0 at `kept` may stay so for a while and leave 0 later.
    """
    low, high = kept, changed
    first, second = margin(low), margin(high)
    found: list[Place] = [kept] if first == 0 else []
    for turn in range(MAX_STEPS if not found else FEW_STEPS):
        if first is None or second is None:
            break
        pairs: list[tuple[Place, Fraction, Place, Fraction]] = [(low, first, high, second)]
        if found or turn:
            for end, value, towards in ((low, first, high), (high, second, low)):
                near = between(end, end + (towards - end) * NEARBY)
                pairs.append((end, value, near, margin(near) or value))
        for one, mine, other, theirs in pairs:
            guess = kept if mine == theirs else _secant(axis, one, mine, other, theirs)
            is_inside = min(low, high) <= guess <= max(low, high) and guess != kept
            if is_inside and margin(guess) == 0:
                return [*found, guess]
        middle = axis.middle(low, high)
        between_them = margin(middle)
        if between_them is not None and (between_them > 0) == (first > 0):
            low, first = middle, between_them
        else:
            high, second = middle, between_them
    return found
