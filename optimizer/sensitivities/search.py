"""Where, in one direction, the optimal plan changes: probing outward, then closing in.

The last place at which the base deployment is optimal and the first at which it is not bracket a
threshold. Between them everything that can decide is piecewise linear: how late a session is, how
many bytes are missing, which of two plans costs more. Each crossing is found exactly and judged by
solving there and just beyond. Where the new optimum is a third plan, its crossings come next: every
turn leaves a plan behind, as in Newton's method for ratios. What has no crossing is bisected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from optimizer.sensitivities.axis import Direction, Place, distance
from optimizer.sensitivities.judging import Unsettled
from optimizer.sensitivities.line import Line, crossings
from optimizer.sensitivities.proofs import first_change, is_proven_kept

#: A threshold that is not found exactly is known to this part of its value.
WIDTH = Fraction(1, 10**6)
#: Turns after which only halving is tried.
MAX_TURNS = 12


@dataclass(frozen=True, slots=True)
class Bracket:
    """The base deployment is optimal at `kept` and not at `changed`, None if it is all the way.

    `is_exact`: nothing lies between them but what is nearer than any place; then the threshold is
    `edge`, which still belongs to the base plan if it `is_attained`.
    """

    kept: Place
    changed: Place | None
    edge: Fraction
    is_exact: bool = True
    is_attained: bool = True
    is_first: bool = False
    reason: str = ""


def find_change(line: Line, direction: Direction, places: list[Place]) -> Bracket | None:
    """Return where the plan changes in one direction, or how far it does not; None: no way to go.

    The furthest of `places` comes first: with a proof that nothing changes on the way to what is
    found, those between need no look. Else they are judged from near to far.
    """
    allowed: list[Place] = []
    for place in places:
        if line.instance(place) is None:
            break
        allowed.append(place)
    if not allowed:
        return None
    found = None if line.axis.is_count else _at_once(line, direction, allowed[-1])
    if found is None or not found.is_first:
        found = _step_by_step(line, direction, allowed, found)
    return found


def _at_once(line: Line, direction: Direction, furthest: Place) -> Bracket | None:
    """Look at the furthest place alone; None where it is of no use."""
    start = line.axis.start
    try:
        if line.axis.sense and line.is_same(start, furthest):
            return _unchanged(line, furthest, is_first=True)
        if line.at(furthest).is_kept:
            return _unchanged(line, furthest, is_proven_kept(line, start, furthest))
    except Unsettled:
        return None
    found = close_in(line, direction, start, furthest)
    return replace(found, is_first=is_proven_kept(line, start, found.kept))


def _step_by_step(
    line: Line, direction: Direction, places: list[Place], far: Bracket | None
) -> Bracket:
    """Judge places from near to far until one does not keep the plan, or a change found is met."""
    start = line.axis.start
    kept, changed, reason = start, None, ""
    for place in places:
        if far is not None and (far.kept - place) * direction <= 0:
            return _checked(line, direction, far)
        try:
            is_kept = line.at(place).is_kept
        except Unsettled as error:
            reason = f"beyond, {error}"
            break
        if not is_kept:
            changed = place
            break
        kept = place
    if changed is None:
        return _checked(line, direction, _unchanged(line, kept, False, reason))
    return _checked(line, direction, close_in(line, direction, kept, changed))


def _checked(line: Line, direction: Direction, found: Bracket) -> Bracket:
    """Prove that a change is the first one, or find a nearer one."""
    start = line.axis.start
    while not found.is_first:
        if is_proven_kept(line, start, found.kept):
            return replace(found, is_first=True)
        nearer, is_complete = first_change(line, start, found.kept)
        if nearer is None:
            return replace(found, is_first=is_complete)
        found = close_in(line, direction, start, nearer)
    return found


def _unchanged(line: Line, kept: Place, is_first: bool, reason: str = "") -> Bracket:
    return Bracket(kept, None, Fraction(line.axis.value(kept)), is_first=is_first, reason=reason)


def close_in(line: Line, direction: Direction, kept: Place, changed: Place) -> Bracket:
    """Return the threshold between a place that keeps the plan and one that does not."""
    axis, turn, reason = line.axis, 0, ""
    try:
        while not axis.is_adjacent(kept, changed):
            near = WIDTH * max(Fraction(kept), Fraction(changed))  # no input is negative
            if not axis.is_whole and distance(kept, changed) <= near:
                break
            before = kept, changed
            if turn < MAX_TURNS:
                kept, changed, is_found, is_attained = _cross(line, kept, changed)
                if is_found:
                    edge = Fraction(kept if is_attained else changed)
                    return Bracket(kept, changed, edge, is_attained=is_attained)
            turn += 1
            if (kept, changed) == before:
                middle = axis.middle(kept, changed)
                kept, changed = (middle, changed) if line.at(middle).is_kept else (kept, middle)
    except Unsettled as error:
        reason = str(error)
    is_exact = axis.is_adjacent(kept, changed)
    edge, is_attained = axis.edge(kept, direction)
    return Bracket(kept, changed, edge, is_exact, is_attained, reason=reason)


def _cross(line: Line, kept: Place, changed: Place) -> tuple[Place, Place, bool, bool]:
    """Judge the crossings between two places, and just beyond each.

    Returns the places closer together, whether they enclose nothing but a crossing, and whether
    the plan is still optimal there. Whole numbers end with neighbours instead.
    """
    axis = line.axis
    for place in crossings(line, kept, changed):
        if not min(kept, changed) <= place <= max(kept, changed):
            continue
        if line.at(place).is_kept:
            beyond, is_new = axis.beyond(place, changed), place != kept
            if not line.at(beyond).is_kept:
                return place, beyond, not axis.is_whole, True
            kept = beyond if is_new else kept
        else:
            changed = place
            before = axis.beyond(place, kept)
            if line.at(before).is_kept:
                return before, changed, not axis.is_whole, False
            changed = before
            break
        if axis.is_adjacent(kept, changed):
            break
    return kept, changed, False, True
