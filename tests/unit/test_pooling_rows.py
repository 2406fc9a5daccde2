"""Seconds in whole numbers: exact rows, rounded rows that hold, finer rows and covers that tell."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from formulations.pooling_rows import (
    Limit,
    common_part,
    cover,
    largest_per,
    rounded_row,
    telling_row,
    whole_row,
)

F = Fraction


def test_the_common_part() -> None:
    """1/6 and 1/4 are 2/12 and 3/12; 2/3 and 4/3 are one and two 2/3."""
    assert common_part([F(1, 6), F(1, 4)]) == F(1, 12)
    assert common_part([F(2, 3), F(4, 3)]) == F(2, 3)


def test_an_exact_row_says_the_same() -> None:
    """x/6 + y/4 <= 1 is 2x + 3y <= 12; less than 1 is at most 11, less than 12.5/12 at most 12."""
    terms = {0: F(1, 6), 1: F(1, 4)}
    row, is_exact = whole_row(Limit("r", terms, F(1)), [9, 9], 100)
    assert (row.units, row.most, is_exact) == ({0: 2, 1: 3}, 12, True)
    row, _ = whole_row(Limit("r", terms, F(1), is_strict=True), [9, 9], 100)
    assert row.most == 11
    for is_strict in (False, True):
        row, _ = whole_row(Limit("r", terms, F(25, 24), is_strict), [9, 9], 100)
        assert row.most == 12
    # weights 2 + 3 = 5 are one too many for 4; of a variable that is 0 nothing is said
    assert not whole_row(Limit("r", terms, F(1)), [9, 9], 4)[1]
    row, is_exact = whole_row(Limit("r", terms, F(1)), [9, 0], 4)
    assert (row.units, row.most, is_exact) == ({0: 1}, 6, True)


def test_the_most_of_one_variable() -> None:
    terms = {0: F(1, 3)}
    assert Limit("r", terms, F(1)).upper(0) == 3
    assert Limit("r", terms, F(1), is_strict=True).upper(0) == 2
    assert Limit("r", terms, F(11, 10), is_strict=True).upper(0) == 3


@pytest.mark.parametrize("is_strict", [False, True])
def test_rounded_rows_hold_and_covers_tell(is_strict: bool) -> None:
    """All that keep a limit keep its rounded rows; what breaks it breaks its cover."""
    num_told = num_covered = 0
    for seed in range(150):
        rng = random.Random(seed)
        terms = {v: F(rng.randint(1, 999), rng.randint(1, 999)) for v in range(3)}
        most = sum(terms.values()) * F(rng.randint(1, 9), 4)
        limit, uppers = Limit("r", terms, most, is_strict), [3, 3, 3]
        row, is_exact = whole_row(limit, uppers, 50)
        assert not is_exact
        assert sum(row.units.values()) <= 50
        assert rounded_row(limit, terms, largest_per(terms, uppers, 50)) == row
        points = list(itertools.product(range(4), repeat=3))
        kept = [x for x in points if limit.is_kept(x)]
        for x in kept:
            assert sum(n * x[v] for v, n in row.units.items()) <= row.most
        for x in points:
            if limit.is_kept(x):
                continue
            finer = telling_row(limit, x, uppers, 50)
            if finer is not None:
                num_told += 1
                assert sum(n * x[v] for v, n in finer.units.items()) > finer.most
                for y in kept:
                    assert sum(n * y[v] for v, n in finer.units.items()) <= finer.most
            counts = cover(limit, x).counts
            num_covered += 1
            assert counts
            assert all(0 < n <= x[v] for v, n in counts.items())
            for y in kept:
                assert any(y[v] < n for v, n in counts.items())
            for v in counts:  # a cover is least: one less of any keeps the limit
                less = [counts.get(w, 0) - (w == v) for w in range(3)]
                assert limit.is_kept(less)
    assert num_told > 500
    assert num_covered > num_told


def test_a_limit_that_is_met_exactly_cannot_be_told_by_rounding() -> None:
    """1/3 + 1/7 = 10/21 is not less than 10/21, which only the cover says."""
    limit = Limit("r", {0: F(1, 3), 1: F(1, 7)}, F(10, 21), is_strict=True)
    assert telling_row(limit, [1, 1], [1, 1], 9) is None
    assert cover(limit, [1, 1]).counts == {0: 1, 1: 1}
    exact, is_exact = whole_row(limit, [1, 1], 10)
    assert (exact.units, exact.most, is_exact) == ({0: 7, 1: 3}, 9, True)
