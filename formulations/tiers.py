"""Tiers of memory as integer programs that are asked for something better (tiers.md)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import ProgramOutcome, solve_program
from formulations.tier_forms import TierForms
from formulations.tier_rows import build_model
from optimizer.errors import MismatchError
from optimizer.protocols import Termination
from optimizer.tiers.problem import Place, TierPlan, TierProblem

#: How often a program is solved at most.
MAX_ROUNDS = 3000


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """How a solve ended: a plan, its value, and a bound that no plan's value exceeds."""

    termination: Termination
    plan: TierPlan | None = None
    value: Fraction | None = None
    bound: Fraction | None = None


def solve_tiers(
    problem: TierProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    known: TierPlan | None = None,
) -> TierOutcome:
    """Choose places; `deadline` is a `time.monotonic()` value. Raises as `solve_program` does.

    A `known` plan that is legal is where the search for something better begins.

    The program is asked for places that are better than the best known. Its numbers are rounded so
    that it finds all there are, and may find some that are not. What it finds is counted exactly
    and ruled out; once it finds nothing, the best known is proven.
    """
    forms = TierForms(problem)
    best = _start(forms, known)
    bound: Fraction | None = None
    cuts: list[dict[int, Place]] = []
    for _ in range(MAX_ROUNDS):
        model = build_model(forms, backend, None if best is None else best[0], cuts)
        if model is None:
            found = ProgramOutcome(Termination.INFEASIBLE)
        else:
            found = solve_program(
                model.program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
            )
        if found.termination is Termination.INFEASIBLE:
            return _proven(best)
        assert model is not None
        bound = _tighter(bound, model.bound(found.bound))
        if found.values is None:
            break
        chosen = model.chosen(found.values)
        exact = forms.best(chosen)
        if exact is not None:
            num, value = exact
            if value is None:
                raise MismatchError("tiers: a plan takes no time at all")
            if best is None or value > best[0]:
                best = value, _plan(problem, chosen, num)
        cuts.append(_core(forms, chosen, None if best is None else best[0]))
    if best is None:
        return TierOutcome(Termination.NO_SOLUTION_FOUND, bound=bound)
    bound = None if bound is None else max(bound, best[0])
    return TierOutcome(Termination.FEASIBLE, best[1], best[0], bound)


def _start(forms: TierForms, known: TierPlan | None) -> tuple[Fraction, TierPlan] | None:
    """Return value and plan of known places with their best sessions; None if not legal."""
    if known is None:
        return None
    chosen: dict[int, Place] = {}
    for c, (home, copy) in enumerate(zip(known.homes, known.copies, strict=True)):
        if home is None or (c, (home, copy)) not in forms.takes:
            return None
        chosen[c] = home, copy
    exact = forms.best(chosen)
    if exact is None or exact[1] is None:
        return None
    return exact[1], _plan(forms.problem, chosen, exact[0])


def _proven(best: tuple[Fraction, TierPlan] | None) -> TierOutcome:
    """Return the end of a search in which nothing better is left."""
    if best is None:
        return TierOutcome(Termination.INFEASIBLE)
    return TierOutcome(Termination.OPTIMAL, best[1], best[0], best[0])


def _tighter(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    known = [bound for bound in (one, other) if bound is not None]
    return min(known, default=None)


def _plan(problem: TierProblem, chosen: dict[int, Place], num_sessions: int) -> TierPlan:
    places: Sequence[Place] = [chosen[c] for c in range(len(problem.classes))]
    homes, copies = zip(*places, strict=True)
    return TierPlan(homes, copies, num_sessions)


def _core(forms: TierForms, chosen: dict[int, Place], best: Fraction | None) -> dict[int, Place]:
    """Return places of as few classes as show that all plans with them are no better than the best.

    Classes are left out one after another while what is left, with nothing else, is no better.
    """
    core = dict(chosen)
    for c in chosen:
        less = {other: place for other, place in core.items() if other != c}
        found = forms.best(less)
        if found is None or _is_at_most(found[1], best):
            core = less
    return core


def _is_at_most(value: Fraction | None, best: Fraction | None) -> bool:
    """Whether a value is no better than the best; None has no limit, or no best is known."""
    return value is not None and best is not None and value <= best
