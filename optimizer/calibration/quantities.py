"""Numbers of a fit as exact text with a unit: "822ns", "450GB/s"."""

from __future__ import annotations

from fractions import Fraction

from instances.quantity import terminating_decimal

#: Digits of a fitted number: more would be noise.
DIGITS = 4
_TIMES = ((Fraction(1), "s"), (Fraction(1, 10**3), "ms"), (Fraction(1, 10**6), "us"))
_LEAST_TIME = (Fraction(1, 10**9), "ns")
_RATES = tuple(
    (Fraction(10**tens), f"{prefix}B/s") for tens, prefix in ((12, "T"), (9, "G"), (6, "M"))
)
_LEAST_RATE = (Fraction(1), "B/s")


def rounded(value: Fraction, digits: int = DIGITS) -> Fraction:
    """Return a value of 0 or more to so many significant digits, halves rounded up."""
    if value == 0:
        return value
    unit = Fraction(1)
    while value >= unit * 10**digits:
        unit *= 10
    while value < unit * 10 ** (digits - 1):
        unit /= 10
    return Fraction(int(value / unit + Fraction(1, 2))) * unit


def time_text(value_s: Fraction) -> str:
    """Return a time with its unit, exactly: "32.74us"."""
    return _text(value_s, _TIMES, _LEAST_TIME, "s")


def rate_text(value_bytes_per_s: Fraction) -> str:
    """Return a bandwidth with its unit, exactly: "450GB/s"."""
    return _text(value_bytes_per_s, _RATES, _LEAST_RATE, "B/s")


def _text(
    value: Fraction,
    units: tuple[tuple[Fraction, str], ...],
    least: tuple[Fraction, str],
    base: str,
) -> str:
    """Write a value in the largest unit of which it has at least one, else as a fraction."""
    scale, unit = next((pair for pair in units if value >= pair[0]), least)
    text = terminating_decimal(value / scale)
    return f"{value}{base}" if text is None else f"{text}{unit}"
