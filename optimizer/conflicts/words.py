"""Amounts in words."""

from __future__ import annotations

from fractions import Fraction

from optimizer.words import number, percent, plural


def amount(value: Fraction | int | float, unit: str) -> str:
    """Return an amount for people; no unit is a share."""
    exact = Fraction(value)
    if unit == "":
        return percent(float(exact))
    if unit in ("cards", "servers", "sessions", "tokens") and exact.denominator == 1:
        return plural(int(exact), unit[:-1])
    return number(float(exact), unit)
