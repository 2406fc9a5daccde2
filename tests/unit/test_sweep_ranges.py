"""Ranges as text: what they hold, and what is refused in one line."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from instances.errors import InputError
from optimizer.sweeps.ranges import read_interval, read_range


def read(text: object, dimension: str = "seconds") -> tuple[int | Fraction, ...]:
    return read_range(text, dimension, "sweep", "field")


def test_a_step_counts_exactly_and_includes_the_end() -> None:
    found = read("50ms:200ms:1ms")
    assert len(found) == 151
    assert found[0] == Fraction(50, 1000)
    assert found[-1] == Fraction(200, 1000)
    assert found[1] - found[0] == Fraction(1, 1000)


def test_an_end_between_two_steps_is_left_out() -> None:
    assert read("1s:2s:300ms") == (1, Fraction(13, 10), Fraction(16, 10), Fraction(19, 10))


def test_a_range_may_count_down() -> None:
    assert read("3s:1s:1s") == (3, 2, 1)


def test_one_value_is_a_range() -> None:
    assert read("130ms") == (Fraction(13, 100),)
    assert read("2s:2s:1s") == (2,)


def test_a_factor_multiplies_and_divides() -> None:
    assert read("1GB:8GB:x2", "bytes") == (10**9, 2 * 10**9, 4 * 10**9, 8 * 10**9)
    assert read("8:1:x2", "whole") == (8, 4, 2, 1)


def test_commas_join_values_and_ranges() -> None:
    assert read("1,2,4:6:1", "whole") == (1, 2, 4, 5, 6)


def test_lists_and_numbers_are_read_exactly() -> None:
    assert read([2, "4"], "whole") == (2, 4)
    assert read(Decimal("0.13")) == (Fraction(13, 100),)
    assert all(isinstance(value, int) for value in read("1:3:1", "whole"))


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("1s:2s", "seconds", "is no range"),
        ("1s:2s:3s:4s", "seconds", "is no range"),
        ("1s:2s:0s", "seconds", "needs a step above 0"),
        ("1s:2s:-1s", "seconds", "is negative"),
        ("1:2:x1", "whole", "needs a factor above 1"),
        ("0:2:x2", "whole", "needs a factor above 1 and a first value above 0"),
        ("1:2:0.5", "whole", "must be a plain whole number"),
        ("[2]", "whole", "must be a plain whole number, such as 8"),
        ("8:1:x3", "whole", "meets 2.66667, which is no whole number"),
        ("1s:1000000s:1us", "seconds", "more than 1000000 values"),
        ("fast", "seconds", "is not a quantity"),
        ("", "seconds", "is not a quantity"),
        ("5GB", "seconds", "unknown unit 'GB'"),
        ("50%", "whole", "must be a plain whole number"),
        ([], "seconds", "is empty"),
        ([True], "whole", "must be a plain whole number"),
    ],
)
def test_what_is_no_range_is_refused(text: object, dimension: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(text, dimension)
    assert str(caught.value).startswith("sweep: field")
    assert "\n" not in str(caught.value)


def test_an_interval_has_two_ends() -> None:
    assert read_interval("50ms:200ms", "seconds", "s", "f") == (Fraction(1, 20), Fraction(1, 5))
    assert read_interval("50ms:200ms:1ms", "seconds", "s", "f")[1] == Fraction(1, 5)
    for bad in ("50ms", "2s:1s", "1s:1s"):
        with pytest.raises(InputError):
            read_interval(bad, "seconds", "s", "f")
