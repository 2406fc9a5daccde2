"""Ranges of values as text: "50ms:200ms:1ms", "1:64:x2", "2,4,8"."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from instances.errors import InputError
from optimizer.variants.fields import Number, parse_number

#: A sweep of more points than this is a mistake.
MAX_POINTS = 1_000_000


def read_range(text: object, dimension: str, source: str, where: str) -> tuple[Number, ...]:
    """Return the values of a range, in the order in which they are written.

    `FIRST:LAST:STEP` counts up or down by a step and includes LAST where a step meets it;
    `FIRST:LAST:xFACTOR` multiplies; a comma separates single values and ranges; a list is a list of
    values. Raises InputError.
    """
    if isinstance(text, list | tuple):
        if not text:
            raise InputError(source, where, "is empty; give at least one value")
        return tuple(parse_number(item, dimension, source, where) for item in text)
    if not isinstance(text, str):
        return (parse_number(text, dimension, source, where),)
    values: list[Number] = []
    for part in text.split(","):
        pieces = [piece.strip() for piece in part.split(":")]
        if len(pieces) == 1:
            values.append(parse_number(pieces[0], dimension, source, where))
        elif len(pieces) == 3:
            values += _counted(pieces, dimension, source, where)
        else:
            rule = (
                "is no range; write FIRST:LAST:STEP, such as 50ms:200ms:1ms, or values with commas"
            )
            raise InputError(source, where, rule, part)
        if len(values) > MAX_POINTS:
            raise InputError(source, where, f"has more than {MAX_POINTS} values", text)
    return tuple(values)


def _counted(pieces: Sequence[str], dimension: str, source: str, where: str) -> list[Number]:
    first, last = (Fraction(parse_number(p, dimension, source, where)) for p in pieces[:2])
    step = pieces[2]
    shown = ":".join(pieces)
    is_factor = step[:1] in ("x", "×")
    if is_factor:
        by = Fraction(parse_number(step[1:], "number", source, where))
        if by <= 1 or first <= 0:
            rule = "needs a factor above 1 and a first value above 0, such as 1GB:64GB:x2"
            raise InputError(source, where, rule, shown)
    else:
        by = Fraction(parse_number(step, dimension, source, where))
        if by <= 0:
            raise InputError(source, where, "needs a step above 0", shown)
        if (abs(last - first) / by) >= MAX_POINTS:
            raise InputError(source, where, f"has more than {MAX_POINTS} values", shown)
    is_whole = dimension in ("whole", "bytes", "watts")
    values: list[Number] = []
    at, sign = first, 1 if last >= first else -1
    while (last - at) * sign >= 0:
        if is_whole and at.denominator != 1:
            raise InputError(source, where, f"meets {float(at):g}, which is no whole number", shown)
        values.append(int(at) if is_whole else at)
        if is_factor:
            at = at * by if sign > 0 else at / by
        else:
            at += sign * by
    return values


def read_interval(text: str, dimension: str, source: str, where: str) -> tuple[Fraction, Fraction]:
    """Return (first, last) of `FIRST:LAST`, a step being allowed and ignored; raises InputError."""
    pieces = [piece.strip() for piece in text.split(":")]
    if len(pieces) not in (2, 3):
        raise InputError(source, where, "needs FIRST:LAST, such as 50ms:200ms", text)
    first, last = (Fraction(parse_number(p, dimension, source, where)) for p in pieces[:2])
    if not first < last:
        raise InputError(source, where, "must end after it begins", text)
    return first, last
