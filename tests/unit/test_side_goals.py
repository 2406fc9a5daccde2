"""Values of several goals: which is better, which bound says more, which bound is wrong."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from optimizer.side.kinds import Goal, beaten_goal, is_better, tighter

F = Fraction
TWO = (Goal("sessions", "sessions", is_maximised=True), Goal("power", "W"))


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        ((F(5), F(9)), (F(4), F(1)), True),
        ((F(5), F(9)), (F(5), F(9)), False),
        ((F(5), F(8)), (F(5), F(9)), True),
        ((F(5), F(9)), (F(5), F(8)), False),
        ((F(5), None), (F(5), F(8)), False),
        ((F(5), F(8)), (F(5), None), True),
        ((F(0), F(0)), None, True),
        (None, (F(0), F(0)), False),
        (None, None, False),
    ],
)
def test_goals_are_compared_in_their_order(one: Any, other: Any, better: bool) -> None:
    assert is_better(TWO, one, other) is better


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (None, (F(9), None), (F(9), None)),
        ((None, None), (F(9), None), (F(9), None)),
        ((F(9), None), None, (F(9), None)),
        ((F(9), None), (F(8), None), (F(8), None)),  # at most 8 says more
        ((F(8), F(3)), (F(9), F(5)), (F(8), F(3))),
        ((F(8), F(3)), (F(8), F(5)), (F(8), F(5))),  # at least 5 says more
        ((F(8), None), (F(8), F(0)), (F(8), F(0))),
    ],
)
def test_of_two_bounds_the_one_that_says_more_counts(one: Any, other: Any, found: Any) -> None:
    assert tighter(TWO, one, other) == found
    assert tighter(TWO, other, one) == found


@pytest.mark.parametrize(
    ("value", "bound", "beaten"),
    [
        ((F(5), F(9)), (F(5), F(9)), None),
        ((F(5), F(9)), (F(4), F(9)), "sessions"),
        ((F(5), F(9)), (F(6), F(99)), None),  # the bound of power holds for six sessions only
        ((F(5), F(9)), (F(5), F(10)), "power"),
        ((F(5), F(9)), (F(5), None), None),
        ((F(5), F(9)), (None, F(10)), None),
        (None, (F(5), F(9)), None),
        ((F(5), F(9)), None, None),
    ],
)
def test_a_bound_that_a_plan_beats_is_found(value: Any, bound: Any, beaten: str | None) -> None:
    found = beaten_goal(TWO, value, bound)
    assert (None if found is None else found.name) == beaten
