"""Rows of seconds in whole numbers: exact where they fit, rounded down else (pooling.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import MAX_SIZE

#: Numbers of units that are tried for a finer row.
MAX_UNITS_TRIED = 3000

#: Terms of a row: a positive weight for each variable.
Terms = Mapping[int, Fraction]


@dataclass(frozen=True, slots=True)
class Limit:
    """Sum of weight · variable <= most, or less than that if it is strict."""

    name: str
    terms: Terms
    most: Fraction
    is_strict: bool = False

    def is_kept(self, values: Sequence[int]) -> bool:
        """Whether values keep it, exactly."""
        total = sum((weight * values[v] for v, weight in self.terms.items()), Fraction(0))
        return total < self.most if self.is_strict else total <= self.most

    def upper(self, v: int) -> int:
        """Return the most that one variable may be, all others being 0."""
        whole = self.most / self.terms[v]
        return math.ceil(whole) - 1 if self.is_strict else math.floor(whole)


@dataclass(frozen=True, slots=True)
class WholeRow:
    """Sum of units · variable <= most, in whole numbers."""

    name: str
    units: dict[int, int]
    most: int


@dataclass(frozen=True, slots=True)
class Cover:
    """Counts that are too many together: not every variable is as large as its count."""

    name: str
    counts: dict[int, int]


def common_part(weights: Sequence[Fraction]) -> Fraction:
    """Return the largest number of which all weights are whole multiples."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    return Fraction(math.gcd(*(int(weight * scale) for weight in weights)), scale)


def fits(terms: Terms, per: Fraction, uppers: Sequence[int], most_weight: int) -> bool:
    """Whether a row in units of which `per` make 1 has few enough of them."""
    weight = sum(terms.values(), Fraction(0)) * per
    size = sum((w * uppers[v] for v, w in terms.items()), Fraction(0)) * per
    return weight <= most_weight and size < MAX_SIZE


def largest_per(terms: Terms, uppers: Sequence[int], most_weight: int) -> Fraction:
    """Return the most units that may make 1 in a row that is rounded down."""
    weight = sum(terms.values(), Fraction(0))
    size = sum((w * uppers[v] for v, w in terms.items()), Fraction(0))
    return min(most_weight / weight, (MAX_SIZE - 1) / size if size else most_weight / weight)


def whole_row(limit: Limit, uppers: Sequence[int], most_weight: int) -> tuple[WholeRow, bool]:
    """Return a row that all that keep a limit keep, and whether it says the same as the limit."""
    terms = {v: weight for v, weight in limit.terms.items() if uppers[v]}
    if not terms:
        return WholeRow(limit.name, {}, 0), True
    part = common_part(list(terms.values()))
    if fits(terms, 1 / part, uppers, most_weight):
        units = {v: int(weight / part) for v, weight in terms.items()}
        whole = limit.most / part
        most = math.ceil(whole) - 1 if limit.is_strict else math.floor(whole)
        return WholeRow(limit.name, units, most), True
    return rounded_row(limit, terms, largest_per(terms, uppers, most_weight)), False


def rounded_row(limit: Limit, terms: Terms, per: Fraction) -> WholeRow:
    """Return a row whose weights are rounded down to units of which `per` make 1.

    What keeps the limit keeps it: floors add up to no more than the weights, and to a whole number.
    """
    units = {v: math.floor(weight * per) for v, weight in terms.items()}
    whole = limit.most * per
    most = math.ceil(whole) - 1 if limit.is_strict else math.floor(whole)
    return WholeRow(limit.name, {v: n for v, n in units.items() if n}, most)


def cover(limit: Limit, values: Sequence[int]) -> Cover:
    """Return counts, none above the values, that break a limit; one less of any keeps it."""
    counts = {v: values[v] for v in limit.terms if values[v]}
    total = sum((limit.terms[v] * n for v, n in counts.items()), Fraction(0))
    for v in sorted(counts, key=lambda v: limit.terms[v]):
        spare = (total - limit.most) / limit.terms[v]  # so many less would just keep or meet it
        most = math.floor(spare) if limit.is_strict else math.ceil(spare) - 1
        less = min(counts[v], max(most, 0))
        counts[v] -= less
        total -= less * limit.terms[v]
    return Cover(limit.name, {v: n for v, n in counts.items() if n})


def telling_row(
    limit: Limit, values: Sequence[int], uppers: Sequence[int], most_weight: int
) -> WholeRow | None:
    """Return a rounded row that values break which break the limit; None where none is found."""
    terms = {v: weight for v, weight in limit.terms.items() if values[v]}
    largest = largest_per(terms, uppers, most_weight)
    if limit.most <= 0:
        return None
    units = math.floor(largest * limit.most)  # so many make the limit
    for number in range(units, max(units - MAX_UNITS_TRIED, 0), -1):
        row = rounded_row(limit, terms, number / limit.most)
        if sum(n * values[v] for v, n in row.units.items()) > row.most:
            return row
    return None
