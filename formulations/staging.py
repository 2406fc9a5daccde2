"""Lexicographic lists and ratios, reduced to minimising one measure at a time.

Both formulations share this file; each brings an engine that minimises one measure under upper
limits on others and a least number of sessions on time.

A ratio cost / on_time is exact by enumeration: for every count k, minimise the cost with at least k
on time. The plan that is best with exactly k* on time is found (or equalled) at k = k*, and no
division is ever handed to a solver. A count k is skipped only when the least cost of any plan shows
that cost / k cannot beat the best ratio known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import (
    Ceiling,
    Measure,
    Outcome,
    Selection,
    SolveRequest,
    StageClaim,
    Term,
    Termination,
)

#: Fewer branches than this are asked about one by one.
FEW_BRANCHES = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine must keep: each measure at most its limit, enough sessions on time."""

    at_most: Mapping[Measure, Fraction] = field(default_factory=dict)
    min_on_time: int = 0

    def capped(self, measure: Measure, limit: Fraction) -> Limits:
        """Return the limits with one more upper limit."""
        old = self.at_most.get(measure)
        return replace(
            self, at_most={**self.at_most, measure: limit if old is None else min(old, limit)}
        )


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One minimisation: exact value and proven lower bound of the measure, None where missing.

    OPTIMAL means that the engine can do no better: value == bound, or, where its arithmetic is
    coarser than the value, bound is as close as that arithmetic can tell. INFEASIBLE means that no
    selection keeps the limits.
    """

    termination: Termination
    value: Fraction | None = None
    bound: Fraction | None = None
    selection: Selection | None = None
    num_on_time: int = 0


class Engine(Protocol):
    """Minimises one measure over all selections within limits."""

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        """Return the best selection found and what is proven."""
        ...


@dataclass
class _Stage:
    """What one term left: claims, the branches in which the optimum lies, the best selection."""

    termination: Termination
    value: Fraction | None
    bound: Fraction | None
    branches: list[Limits]
    selection: Selection | None


def _minimise(engine: Engine, measure: Measure, limits: Limits, branch: Limits) -> EngineResult:
    """Ask an engine; a limit of the branch on the measure itself is judged on the exact value.

    An engine with coarse arithmetic may return a value just above it. Raises TooLargeError where
    that leaves open whether another plan keeps it.
    """
    result, most = engine.minimise(measure, limits), branch.at_most.get(measure)
    if most is None or result.value is None or result.value <= most:
        return result
    if result.bound is not None and result.bound > most:
        return EngineResult(Termination.INFEASIBLE)
    if result.termination is Termination.OPTIMAL:
        raise TooLargeError(f"the least {measure.value} is too close to its limit; use highs")
    return EngineResult(Termination.NO_SOLUTION_FOUND, bound=result.bound)


def _sum_or_largest(engine: Engine, term: Term, branches: Sequence[Limits]) -> _Stage:
    """Minimise a plain term over the union of branches."""
    best: EngineResult | None = None
    bounds: list[Fraction | None] = []
    kept: list[tuple[Limits, Fraction]] = []
    proven = True
    for branch in branches:
        capped = (
            branch
            if best is None or best.value is None
            else branch.capped(term.measure, best.value)
        )
        result = _minimise(engine, term.measure, capped, branch)
        if result.termination is Termination.INFEASIBLE:
            continue
        proven = proven and result.termination is Termination.OPTIMAL
        bounds.append(result.bound)
        if result.value is None:
            continue
        kept.append((branch, result.value))
        if best is None or best.value is None or result.value < best.value:
            best = result
    if best is None or best.value is None:
        ended = Termination.NO_SOLUTION_FOUND if bounds else Termination.INFEASIBLE
        return _Stage(ended, None, _least(bounds), [], None)
    bound = _least([*bounds, best.value])
    within = [b.capped(term.measure, v) for b, v in kept if v == best.value]
    ended = Termination.OPTIMAL if proven else Termination.FEASIBLE
    return _Stage(ended, best.value, bound, within, best.selection)


def _least(bounds: Sequence[Fraction | None]) -> Fraction | None:
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known and len(known) == len(bounds) else None


class _RatioSearch:
    """Minimise measure / on_time in one branch by enumerating the number on time."""

    def __init__(self, engine: Engine, term: Term, branch: Limits, num_sessions: int) -> None:
        self.engine, self.measure, self.branch = engine, term.measure, branch
        self.num_sessions = num_sessions
        self.best: Fraction | None = None
        self.selection: Selection | None = None
        self.cheapest: Fraction | None = None  # proven lower bound of the measure
        self.known: dict[int, Fraction] = {}  # proven least measure with k on time
        self.open_bounds: list[Fraction] = []  # ratio bounds of counts not settled
        self.proven = True

    def _minimise(self, limits: Limits) -> EngineResult:
        return _minimise(self.engine, self.measure, limits, self.branch)

    def _record(self, result: EngineResult) -> None:
        if result.value is not None and result.num_on_time:
            ratio = result.value / result.num_on_time
            if self.best is None or ratio < self.best:
                self.best, self.selection = ratio, result.selection

    def _note_bound(self, result: EngineResult, count: int) -> None:
        """Remember a bound that is below its value: it limits what the ratio's bound can be."""
        if result.bound is not None and result.bound != result.value:
            self.open_bounds.append(result.bound / count)

    def run(self) -> Termination:
        first = max(1, self.branch.min_on_time)
        result = self._minimise(replace(self.branch, min_on_time=first))
        if result.termination is Termination.INFEASIBLE:
            return Termination.INFEASIBLE
        self.cheapest = result.bound
        self._record(result)
        if result.termination is not Termination.OPTIMAL:
            self.proven = False
            if result.bound is not None:
                self.open_bounds.append(result.bound / self.num_sessions)
            return Termination.NO_SOLUTION_FOUND if self.best is None else Termination.FEASIBLE
        assert result.bound is not None
        self.known[first] = result.bound
        self._note_bound(result, result.num_on_time)
        for count in range(self.num_sessions, max(first, result.num_on_time), -1):
            self._settle(count)
        return Termination.OPTIMAL if self.proven else Termination.FEASIBLE

    def _settle(self, count: int) -> None:
        assert self.best is not None
        assert self.cheapest is not None
        if self.cheapest > self.best * count:
            return
        limits = replace(self.branch, min_on_time=count).capped(self.measure, self.best * count)
        result = self._minimise(limits)
        self._record(result)
        if result.termination is Termination.OPTIMAL and result.value is not None:
            self.known[count] = result.value if result.bound is None else result.bound
            self._note_bound(result, count)
        elif result.termination is Termination.INFEASIBLE:
            self.known[count] = self.best * count + 1  # only "above the limit" is known
        else:
            self.proven = False
            bound = self.cheapest if result.bound is None else result.bound
            self.open_bounds.append(bound / count)

    def ties(self) -> list[Limits]:
        """Return limits that together hold exactly the plans of the best ratio."""
        if self.best is None:
            return []
        branches = []
        for count in range(max(1, self.branch.min_on_time), self.num_sessions + 1):
            limit = self.best * count
            least = self.known.get(count, self.cheapest)
            if least is None or least <= limit:
                branches.append(replace(self.branch, min_on_time=count).capped(self.measure, limit))
        return branches


def _ratio(engine: Engine, term: Term, branches: Sequence[Limits], num_sessions: int) -> _Stage:
    """Minimise a per-on-time term over the union of branches."""
    best: Fraction | None = None
    selection: Selection | None = None
    bounds: list[Fraction | None] = []
    searches: list[_RatioSearch] = []
    proven = True
    for branch in branches:
        search = _RatioSearch(engine, term, branch, num_sessions)
        ended = search.run()
        if ended is Termination.INFEASIBLE:
            continue
        proven = proven and search.proven
        bounds.extend(search.open_bounds if search.open_bounds or search.proven else [None])
        searches.append(search)
        if search.best is not None and (best is None or search.best < best):
            best, selection = search.best, search.selection
    if best is None:
        ended = Termination.NO_SOLUTION_FOUND if searches else Termination.INFEASIBLE
        return _Stage(ended, None, _least(bounds), [], None)
    bound = _least([*bounds, best])
    tied = [limits for s in searches if s.best == best for limits in s.ties()]
    ended = Termination.OPTIMAL if proven else Termination.FEASIBLE
    return _Stage(ended, best, bound, tied, selection)


def first_branches(
    ceilings: Sequence[Ceiling], min_on_time: int, num_sessions: int
) -> list[Limits]:
    """Return limits that together hold exactly the plans that keep all ceilings.

    A ceiling r on cost / on_time is kept by a plan with exactly k on time iff its cost is at most
    r · k; such a plan lies in the branch "at least k on time, cost at most r · k", and every plan
    of that branch keeps the ceiling.
    """
    branches = [Limits(min_on_time=min_on_time)]
    for ceiling in ceilings:
        if not ceiling.term.scale:
            continue  # the value is 0, whatever the plan
        measure, most = ceiling.term.measure, ceiling.most / ceiling.term.scale
        if not ceiling.term.per_on_time:
            branches = [branch.capped(measure, most) for branch in branches]
            continue
        branches = [
            replace(branch, min_on_time=count).capped(measure, most * count)
            for branch in branches
            for count in range(max(1, branch.min_on_time), num_sessions + 1)
        ]
    return branches


def _reachable(engine: Engine, ceilings: Sequence[Ceiling], branches: list[Limits]) -> list[Limits]:
    """Leave out branches whose limit on a cost is below the least cost of any plan.

    The least cost within the widest of the limits, with the fewest on time, is one question for all
    of them.
    """
    for measure in {c.term.measure for c in ceilings if c.term.per_on_time and c.term.scale}:
        if len(branches) < FEW_BRANCHES:
            break
        widest = max(branch.at_most[measure] for branch in branches)
        fewest = min(branch.min_on_time for branch in branches)
        result = engine.minimise(measure, Limits({measure: widest}, fewest))
        if result.termination is Termination.INFEASIBLE:
            return []
        if result.bound is not None:
            branches = [branch for branch in branches if branch.at_most[measure] >= result.bound]
    return branches


def solve_terms(
    engine: Engine,
    solver: str,
    terms: Sequence[Term],
    min_on_time: int,
    num_sessions: int,
    ceilings: Sequence[Ceiling] = (),
) -> Outcome:
    """Minimise the terms one after another, each within the optimum of those before it."""
    branches = first_branches(ceilings, min_on_time, num_sessions)
    branches = _reachable(engine, ceilings, branches)
    claims: list[StageClaim] = []
    selection: Selection | None = None
    ended = Termination.OPTIMAL
    for i, term in enumerate(terms):
        stage = (
            _ratio(engine, term, branches, num_sessions)
            if term.per_on_time
            else _sum_or_largest(engine, term, branches)
        )
        if stage.termination is Termination.INFEASIBLE and i > 0:
            raise MismatchError(
                f"{solver} finds no plan as good as its own optimum of {terms[i - 1].name}"
            )
        if stage.value is None and i > 0:
            # the optimum of the terms before is held by `selection`; only this term is open
            ended = Termination.FEASIBLE
            bound = None if stage.bound is None else term.scale * stage.bound
            claims.append(StageClaim(term.name, None, bound))
            break
        claims.append(
            StageClaim(
                term.name,
                None if stage.value is None else term.scale * stage.value,
                None if stage.bound is None else term.scale * stage.bound,
            )
        )
        if stage.selection is not None:
            selection = stage.selection
        ended, branches = stage.termination, stage.branches
        if ended is not Termination.OPTIMAL:
            break
    return Outcome(solver, ended, selection, tuple(claims))


def solve_request(
    solver: str, request: SolveRequest, make_engine: Callable[[SolveRequest], Engine]
) -> Outcome:
    """Solve a request with an engine; tables without a usable kind or layout need none."""
    tables = request.tables
    if not tables.kinds or tables.layouts == ():
        claims = (StageClaim(request.terms[0].name, None, None),)
        return Outcome(solver, Termination.INFEASIBLE, None, claims)
    return solve_terms(
        make_engine(request),
        solver,
        request.terms,
        tables.instance.min_on_time_sessions,
        tables.num_sessions,
        request.ceilings,
    )
