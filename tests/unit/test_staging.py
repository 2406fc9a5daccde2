"""Lists and ratios of objectives, reduced to single minimisations, equal brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.staging import EngineResult, Limits, solve_terms
from optimizer.errors import MismatchError
from optimizer.protocols import Measure, Outcome, SelectedInstance, Selection, Term, Termination

MEASURES = (Measure.END, Measure.COMPLETION, Measure.CARDS, Measure.HELD)
MAX_SESSIONS = 4
quick = settings(max_examples=300, deadline=None, database=None, derandomize=True)


def looser(bound: Fraction) -> Fraction:
    """Return a lower bound below one of either sign."""
    return bound - abs(bound) / 2


@dataclass(frozen=True)
class Item:
    """A selection by its measures and its sessions on time."""

    values: tuple[Fraction, ...]
    on_time: int

    def measure(self, measure: Measure) -> Fraction:
        return self.values[MEASURES.index(measure)]


@dataclass
class ListEngine:
    """Minimises over an explicit list; proves its first `proofs` answers only.

    After those it returns any item within the limits that `picks` names, with some valid bound or
    none, or nothing at all.
    """

    items: Sequence[Item]
    proofs: int = 10**9
    picks: list[int] = field(default_factory=list)
    was_limited: bool = False
    asked: list[tuple[Measure, Limits]] = field(default_factory=list)

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        self.asked.append((measure, limits))
        kept = [
            i
            for i, item in enumerate(self.items)
            if item.on_time >= limits.min_on_time
            and all(item.measure(m) <= most for m, most in limits.at_most.items())
        ]
        self.proofs -= 1
        if self.proofs >= 0:
            if not kept:
                return EngineResult(Termination.INFEASIBLE)
            best = min(kept, key=lambda i: self.items[i].measure(measure))
            return self.result(Termination.OPTIMAL, best, measure, exact=True)
        self.was_limited = True
        pick = self.picks.pop() if self.picks else 0
        if not kept or pick % 5 == 0:
            least = min((self.items[i].measure(measure) for i in kept), default=Fraction(99))
            bound = (None, least, looser(least))[pick % 3]
            return EngineResult(Termination.NO_SOLUTION_FOUND, bound=bound)
        found = self.result(Termination.FEASIBLE, kept[pick % len(kept)], measure, exact=False)
        least = min(self.items[i].measure(measure) for i in kept)
        bound = (None, least, looser(least))[pick % 3]
        return EngineResult(
            found.termination, found.value, bound, found.selection, found.num_on_time
        )

    def result(self, ended: Termination, i: int, measure: Measure, *, exact: bool) -> EngineResult:
        value = self.items[i].measure(measure)
        selection = Selection((SelectedInstance(i, None, ()),))
        return EngineResult(
            ended, value, value if exact else None, selection, self.items[i].on_time
        )


class LooseEngine(ListEngine):
    """Finds the least but proves only half of it, as one with coarse arithmetic may."""

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        found = super().minimise(measure, limits)
        if found.bound is None:
            return found
        return EngineResult(
            found.termination, found.value, looser(found.bound), found.selection, found.num_on_time
        )


def value_of(term: Term, item: Item) -> Fraction:
    cost = term.scale * item.measure(term.measure)
    return cost / item.on_time if term.per_on_time else cost


def brute_force(
    items: Sequence[Item], terms: Sequence[Term], min_on_time: int
) -> tuple[Fraction, ...] | None:
    """Return the lexicographic optimum over the list, or None."""
    kept = [item for item in items if item.on_time >= min_on_time]
    return min((tuple(value_of(t, item) for t in terms) for item in kept), default=None)


def check_optimum(
    outcome: Outcome, items: Sequence[Item], terms: Sequence[Term], min_on_time: int
) -> None:
    best = brute_force(items, terms, min_on_time)
    if best is None:
        assert outcome.termination is Termination.INFEASIBLE
        assert outcome.selection is None
        return
    assert outcome.termination is Termination.OPTIMAL
    assert tuple(claim.value for claim in outcome.claims) == best
    assert outcome.selection is not None
    chosen = items[outcome.selection.instances[0].kind]
    assert tuple(value_of(t, chosen) for t in terms) == best
    assert chosen.on_time >= min_on_time


# few values, so that ties are common
values = st.builds(Fraction, st.integers(1, 6), st.sampled_from([1, 2, 3]))
item = st.builds(
    Item,
    st.tuples(values, values, values, values.map(lambda held: -held)),
    st.integers(0, MAX_SESSIONS),
)
scales = st.sampled_from([Fraction(1), Fraction(8), Fraction(1, 3)])
# sessions held are counted by no one per session on time
term = st.one_of(
    st.builds(Term, st.just("term"), st.sampled_from(MEASURES[:-1]), scales, st.booleans()),
    st.builds(Term, st.just("term"), st.just(Measure.HELD), scales),
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Item], list[Term], int]:
    """Draw items, one to three terms and a least number on time; a ratio needs at least one."""
    items, terms = draw(st.lists(item, max_size=9)), draw(st.lists(term, min_size=1, max_size=3))
    least = draw(st.integers(0, MAX_SESSIONS))
    return items, terms, max(1, least) if any(t.per_on_time for t in terms) else least


Drawn = tuple[list[Item], list[Term], int]


@quick
@given(problems())
def test_lists_and_ratios_equal_brute_force(drawn: Drawn) -> None:
    """Value, bound and selection are those of the lexicographic optimum over the list."""
    items, terms, least = drawn
    outcome = solve_terms(ListEngine(items), "list", terms, least, MAX_SESSIONS)
    check_optimum(outcome, items, terms, least)
    if outcome.termination is Termination.OPTIMAL:
        assert all(claim.bound == claim.value for claim in outcome.claims)


@quick
@given(problems())
def test_loose_bounds_never_change_the_optimum_nor_exceed_it(drawn: Drawn) -> None:
    """An engine that proves half of each optimum leads to the same plan and a lower bound."""
    items, terms, least = drawn
    outcome = solve_terms(LooseEngine(items), "loose", terms, least, MAX_SESSIONS)
    check_optimum(outcome, items, terms, least)
    for claim, best in zip(outcome.claims, brute_force(items, terms, least) or (), strict=False):
        assert claim.bound is not None
        assert claim.bound <= best


@quick
@given(problems(), st.integers(0, 6), st.lists(st.integers(0, 60), max_size=12))
def test_an_interrupted_engine_yields_no_optimum_and_no_bound_above_it(
    drawn: Drawn, proofs: int, picks: list[int]
) -> None:
    """Answers without proof never become one; a later term is open only under proven ones."""
    items, terms, least = drawn
    engine = ListEngine(items, proofs, picks)
    outcome = solve_terms(engine, "limited", terms, least, MAX_SESSIONS)
    best = brute_force(items, terms, least)
    if not engine.was_limited:
        check_optimum(outcome, items, terms, least)
        return
    assert outcome.termination in (Termination.FEASIBLE, Termination.NO_SOLUTION_FOUND)
    assert (outcome.termination is Termination.FEASIBLE) == (outcome.selection is not None)
    if best is None:
        assert outcome.selection is None
        return
    for claim, optimum in zip(outcome.claims, best, strict=False):
        if claim.bound is not None:
            assert claim.bound <= optimum
        if claim.value is not None:
            assert claim.value >= optimum
    for claim, optimum in zip(outcome.claims[:-1], best, strict=False):
        assert claim.value == optimum
    if outcome.selection is not None:
        chosen = items[outcome.selection.instances[0].kind]
        assert chosen.on_time >= least
        for claim, t in zip(outcome.claims, terms, strict=False):
            assert claim.value in (None, value_of(t, chosen))


def one(*numbers: int, on_time: int) -> Item:
    return Item((*map(Fraction, numbers), Fraction(0)), on_time)


PER_SESSION = Term("cost", Measure.COMPLETION, Fraction(1), per_on_time=True)
END = Term("end", Measure.END, Fraction(1))


def test_a_dearer_plan_with_more_on_time_can_have_the_lesser_ratio() -> None:
    """10 / 2 = 5 and 12 / 3 = 4: the least cost is not the least ratio."""
    items = [one(1, 10, 1, on_time=2), one(1, 12, 1, on_time=3)]
    outcome = solve_terms(ListEngine(items), "list", [PER_SESSION], 1, 4)
    assert (outcome.claims[0].value, outcome.claims[0].bound) == (4, 4)
    assert outcome.selection is not None
    assert outcome.selection.instances[0].kind == 1


def test_ties_of_a_ratio_at_different_counts_are_all_kept_for_the_next_term() -> None:
    """8 / 2 = 12 / 3 = 16 / 4 = 4; the second of them ends first, at 5."""
    items = [one(9, 8, 1, on_time=2), one(5, 12, 1, on_time=3), one(7, 16, 1, on_time=4)]
    outcome = solve_terms(ListEngine(items), "list", [PER_SESSION, END], 1, 4)
    assert [claim.value for claim in outcome.claims] == [4, 5]


def test_counts_whose_least_cost_cannot_win_are_not_asked_for() -> None:
    """The least cost 10 has 4 of 4 on time: no other count can be better, so one question does."""
    engine = ListEngine([one(1, 10, 1, on_time=4), one(1, 11, 1, on_time=4)])
    assert solve_terms(engine, "list", [PER_SESSION], 1, 4).claims[0].value == Fraction(5, 2)
    assert len(engine.asked) == 1


@pytest.mark.parametrize("first", [END, PER_SESSION])
def test_an_engine_that_contradicts_itself_is_a_mismatch(first: Term) -> None:
    """It reaches an optimum and then finds no plan as good."""

    class Forgetful(ListEngine):
        def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
            if measure is Measure.CARDS:
                return EngineResult(Termination.INFEASIBLE)
            return super().minimise(measure, limits)

    cards = Term("cards", Measure.CARDS, Fraction(1))
    with pytest.raises(MismatchError, match="own optimum"):
        solve_terms(Forgetful([one(1, 2, 3, on_time=2)]), "forgetful", [first, cards], 1, 4)


def test_an_unproven_first_term_ends_the_list() -> None:
    """Later terms would be minimised within the wrong set, so they are not claimed."""
    engine = ListEngine([one(3, 4, 5, on_time=2)], proofs=0, picks=[1])
    outcome = solve_terms(engine, "list", [END, PER_SESSION], 1, 4)
    assert outcome.termination is Termination.FEASIBLE
    assert [claim.name for claim in outcome.claims] == ["end"]
    assert len(engine.asked) == 1
