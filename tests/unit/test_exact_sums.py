"""Least exact sums equal brute force; interrupted runs never claim more than they know."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.exact_sums import COARSE_TOTAL, Least, Row, Used, least_sum, scale_for
from optimizer.protocols import Termination

Weights = tuple[int, ...]
Run = Callable[[Weights, tuple[Row, ...]], Used]
MAX_USES = 3
quick = settings(max_examples=200, deadline=None, database=None, derandomize=True)


def dot(weights: Weights, uses: Weights) -> int:
    return sum(w * n for w, n in zip(weights, uses, strict=True))


class Enumeration:
    """A solver that lists all allowed uses; it proves its first `proofs` answers only.

    After those it gives any allowed use that `picks` names, with a bound `slack` below the least
    sum, or neither, as a solver does that ran out of time.
    """

    def __init__(
        self, allowed: list[Weights], proofs: int = 10**9, picks: list[int] | None = None
    ) -> None:
        self.allowed, self.proofs, self.picks = allowed, proofs, picks or []
        self.was_limited = False

    def __call__(self, weights: Weights, rows: tuple[Row, ...]) -> Used:
        kept = [u for u in self.allowed if all(dot(r.weights, u) <= r.most for r in rows)]
        assert all(abs(dot(weights, u)) <= COARSE_TOTAL for u in self.allowed)
        assert all(abs(dot(r.weights, u)) <= COARSE_TOTAL for r in rows for u in self.allowed)
        self.proofs -= 1
        if self.proofs >= 0:
            if not kept:
                return Used(Termination.INFEASIBLE)
            best = min(kept, key=lambda u: dot(weights, u))
            return Used(Termination.OPTIMAL, best, dot(weights, best))
        self.was_limited = True
        pick = self.picks.pop() if self.picks else 0
        least = min((dot(weights, u) for u in kept), default=10**6)
        bound = (None, least, least - pick, -COARSE_TOTAL)[pick % 4]
        if not kept or pick % 5 == 0:
            return Used(Termination.NO_SOLUTION_FOUND, None, bound)
        return Used(Termination.FEASIBLE, kept[pick % len(kept)], bound)


sizes = st.one_of(st.integers(0, 20), st.integers(0, 10**12), st.integers(10**12 - 9, 10**12))
numbers = st.builds(lambda size, sign: sign * size, sizes, st.sampled_from([1, 1, -1]))


@st.composite
def selections(draw: st.DrawFn) -> tuple[Weights, list[Weights]]:
    """Draw weights and the uses allowed: up to `MAX_USES` patterns that serve given sessions."""
    size = draw(st.integers(1, 5))
    weights = tuple(draw(numbers) for _ in range(size))
    serves = [draw(st.integers(0, 2)) for _ in range(size)]
    sessions = draw(st.integers(0, 4))
    everything = product(range(MAX_USES + 1), repeat=size)
    allowed = [u for u in everything if sum(u) <= MAX_USES and dot(tuple(serves), u) == sessions]
    return weights, allowed


def check_proof(found: Least, weights: Weights, allowed: list[Weights]) -> None:
    """Check a finished search: the least sum, its bound and who reaches it."""
    if not allowed:
        assert found == Least(Termination.INFEASIBLE)
        return
    least = min(dot(weights, u) for u in allowed)
    assert (found.termination, found.total, found.bound) == (Termination.OPTIMAL, least, least)
    assert found.used is not None
    assert found.used.uses in allowed
    assert found.used.total(weights) == least


@quick
@given(selections())
def test_the_least_sum_is_that_of_brute_force(drawn: tuple[Weights, list[Weights]]) -> None:
    """Weights up to 10^12 of either sign, of which the solver sees sums within 2^20 of 0 only."""
    weights, allowed = drawn
    check_proof(least_sum(Enumeration(allowed), weights, MAX_USES), weights, allowed)


@quick
@given(selections(), st.integers(0, 3), numbers)
def test_rows_are_kept(drawn: tuple[Weights, list[Weights]], row: int, most: int) -> None:
    """A limit given from outside stays in force at every level."""
    weights, allowed = drawn
    limit = Row(tuple((i + row) % 3 for i in range(len(weights))), most % 7)
    within = [u for u in allowed if dot(limit.weights, u) <= limit.most]
    found = least_sum(Enumeration(allowed), weights, MAX_USES, (limit,))
    check_proof(found, weights, within)


@quick
@given(selections(), st.integers(0, 6), st.lists(st.integers(0, 2**21), max_size=8))
def test_an_interrupted_search_claims_no_optimum_and_no_bound_above_it(
    drawn: tuple[Weights, list[Weights]], proofs: int, picks: list[int]
) -> None:
    """Whatever runs return after time is up, the bound stays at or below the optimum."""
    weights, allowed = drawn
    run = Enumeration(allowed, proofs, picks)
    found = least_sum(run, weights, MAX_USES)
    if not run.was_limited:
        check_proof(found, weights, allowed)
        return
    assert found.termination in (Termination.FEASIBLE, Termination.NO_SOLUTION_FOUND)
    least = min((dot(weights, u) for u in allowed), default=None)
    if least is not None and found.bound is not None:
        assert found.bound <= least
    if found.used is None:
        assert found.total is None
        return
    assert found.used.uses in allowed
    assert found.total == found.used.total(weights)
    assert least is not None
    assert found.total >= least


def test_low_digits_decide_where_high_digits_tie() -> None:
    """10^12 + 5 and 10^12 + 4 have equal high digits; the second is less by one."""
    weights, allowed = (10**12 + 5, 10**12 + 4), [(1, 0), (0, 1)]
    scale = scale_for(weights, 1)
    assert weights[0] // scale == weights[1] // scale
    found = least_sum(Enumeration(allowed), weights, 1)
    assert found.used is not None
    assert (found.used.uses, found.total) == ((0, 1), 10**12 + 4)


def test_a_larger_high_digit_can_be_the_lesser_sum() -> None:
    """With scale 10: 19 + 19 has highs 1 + 1 and 30 + 0 has 3 + 0, yet 30 < 38."""
    # 2^20 · 10 / 3 keeps the scale at 10 for three uses
    filler = 10 * COARSE_TOTAL // MAX_USES
    weights = (19, 30, 0, filler)
    assert scale_for(weights, MAX_USES) == 10
    allowed = [(2, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 3)]
    found = least_sum(Enumeration(allowed), weights, MAX_USES)
    assert found.used is not None
    assert (found.used.uses, found.total) == ((0, 1, 1, 0), 30)


@pytest.mark.parametrize(("largest", "scale"), [(2**20, 1), (2**20 + 1, 2), (2**21, 2), (0, 1)])
def test_the_scale_is_the_least_that_keeps_sums_small(largest: int, scale: int) -> None:
    """ceil(largest · uses / 2^20), and at least 1."""
    assert scale_for((3, largest) if largest else (), 1) == scale


@pytest.mark.parametrize(
    ("least", "uses", "scale"),
    [
        (2**20, 1, 1),
        (2**20 + 1, 1, 2),
        (2**21, 1, 2),
        (2**20, 3, 4),
        (349525, 3, 1),
        (349526, 3, 2),
    ],
)
def test_the_scale_of_negative_weights_leaves_room_to_round_them_down(
    least: int, uses: int, scale: int
) -> None:
    """A high is the weight divided and rounded away from 0: uses times that may reach 2^20.

    2^20 = 3 · 349525 + 1. Three uses of -2^20 at scale 3 would be highs of -349526: one too many.
    """
    weights = (3, -least)
    assert scale_for(weights, uses) == scale
    assert uses * -(-least // scale) <= COARSE_TOTAL
    assert scale == 1 or uses * -(-least // (scale - 1)) > COARSE_TOTAL


def test_more_of_a_good_thing_is_less_of_a_sum() -> None:
    """Two uses of -10^12 - 1 beat -2 · 10^12; the first alone leaves 9 to pay."""
    weights = (-(10**12) - 1, -2 * 10**12, 9)
    allowed: list[Weights] = [(2, 0, 0), (0, 1, 0), (1, 0, 1)]
    found = least_sum(Enumeration(allowed), weights, 2)
    assert found.used is not None
    assert (found.used.uses, found.total) == ((2, 0, 0), -2 * 10**12 - 2)


def test_without_a_first_answer_the_bound_is_that_of_the_highs() -> None:
    """A bound of 7 on the highs is 7 scales on the sum; none stays none."""

    def run(_weights: Weights, _rows: tuple[Row, ...]) -> Used:
        return Used(Termination.NO_SOLUTION_FOUND, None, 7)

    weights = (2**25,)
    assert scale_for(weights, 1) == 32
    assert least_sum(run, weights, 1) == Least(Termination.NO_SOLUTION_FOUND, bound=7 * 32)

    def silent(_weights: Weights, _rows: tuple[Row, ...]) -> Used:
        return Used(Termination.NO_SOLUTION_FOUND)

    assert least_sum(silent, weights, 1) == Least(Termination.NO_SOLUTION_FOUND)
