"""Exact physical quantities: text or number in, SI integers and fractions out.

A plan is checked by exact arithmetic, so a quantity must never pass through a rounded binary
float: ``0.1`` means one tenth, and ``"80GB"`` means 80,000,000,000 bytes (``"80GiB"`` is binary).
Everything read here can be written back by `format_exact` and read again without change.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

# Limits on what is built at all: a literal such as "1e999999999" is a dozen characters of text
# but gigabytes of integer, so the text is judged first and the number is built afterwards.
MAX_LITERAL_CHARS: Final = 60
MAX_EXPONENT: Final = 40
MAX_VALUE: Final = 10**30
# Numerator and denominator of an accepted value each fit one literal, so that the canonical
# text of every accepted value is itself accepted.
_MAX_TERM: Final = 10**MAX_LITERAL_CHARS
# Two literals, the slash of a rational, and ample room for spaces and a unit.
_MAX_TEXT_CHARS: Final = 2 * MAX_LITERAL_CHARS + 30

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?)"
    r"(?:/(?P<denominator>[0-9]+))?\s*(?P<unit>\D*)"
)


class QuantityError(ValueError):
    """A quantity that cannot be read; the message is one line: what, the rule, a fix."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    """How one kind of quantity is written."""

    noun: str
    canonical_unit: str
    example: str
    units: dict[str, Fraction]
    listed: tuple[str, ...]
    whole: bool = False


_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_FLOP_PREFIXES: Final = {**_DECIMAL, "P": 10**15, "E": 10**18}


def _scaled(prefixes: dict[str, int], unit: str, per: int = 1) -> dict[str, Fraction]:
    """Spell ``unit`` with every prefix; each is worth its prefix divided by ``per``."""
    return {prefix + unit: Fraction(factor, per) for prefix, factor in prefixes.items()}


def _dimension(
    noun: str, canonical: str, example: str, units: dict[str, Fraction], *, whole: bool = False
) -> _Dimension:
    # The alternative spellings stay readable but out of messages: one name per unit is enough.
    listed = tuple(u for u in units if not u.endswith("FLOPS") and "µ" not in u and "μ" not in u)
    return _Dimension(noun, canonical, example, units, listed, whole)


_BYTE_UNITS: Final = _scaled(_DECIMAL, "B") | _scaled(_BINARY, "B")
_TIME_UNITS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),  # micro sign
    "\u03bcs": Fraction(1, 10**6),  # Greek small letter mu, what many keyboards give
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_DIMENSIONS: Final[dict[str, _Dimension]] = {
    "bytes": _dimension("bytes", "B", "80GB", _BYTE_UNITS, whole=True),
    "seconds": _dimension("seconds", "s", "822ns", _TIME_UNITS),
    "bytes_per_s": _dimension(
        "bytes per second",
        "B/s",
        "450GB/s",
        {f"{unit}/s": factor for unit, factor in _BYTE_UNITS.items()}
        | _scaled(_DECIMAL, "bit/s", per=8),
    ),
    "flops_per_s": _dimension(
        "operations per second",
        "FLOP/s",
        "989.4TFLOP/s",
        _scaled(_FLOP_PREFIXES, "FLOP/s") | _scaled(_FLOP_PREFIXES, "FLOPS"),
    ),
    "watts": _dimension(
        "watts",
        "W",
        "10.2kW",
        {"W": Fraction(1), "kW": Fraction(10**3), "MW": Fraction(10**6)},
        whole=True,
    ),
    "joules": _dimension(
        "joules",
        "J",
        "1.2kJ",
        {**_scaled(_DECIMAL, "J"), "Wh": Fraction(3600), "kWh": Fraction(3600_000)},
    ),
    "card_seconds": _dimension("card-seconds", "card*s", "0.24card*s", {"card*s": Fraction(1)}),
    "requests_per_s": _dimension(
        "requests per second",
        "requests/s",
        "30requests/s",
        {"requests/s": Fraction(1), "requests/min": Fraction(1, 60)},
    ),
    "price_per_hour": _dimension("a price an hour", "/h", "1.01/h", {"/h": Fraction(1)}),
    "share": _dimension("a share", "", "75%", {"%": Fraction(1, 100)}),
}


def _lookup(dimension: str) -> _Dimension:
    try:
        return _DIMENSIONS[dimension]
    except KeyError:
        known = ", ".join(_DIMENSIONS)
        raise QuantityError(f"unknown dimension {dimension!r}; use one of {known}") from None


def _listing(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _show(value: object) -> str:
    """Name a bad value in one short line, without ever spelling out a huge number."""
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_LITERAL_CHARS else repr(value[:40] + "...")
    if isinstance(value, int | Fraction):
        is_huge = max(value.numerator.bit_length(), value.denominator.bit_length()) > 200
        return "the number given" if is_huge else str(value)
    if isinstance(value, float | Decimal):
        text = str(value)
        return text if len(text) <= MAX_LITERAL_CHARS else text[:40] + "..."
    return f"a value of type {type(value).__name__}"


def _refusal(value: object, what: str, rule: str, dim: _Dimension) -> QuantityError:
    return QuantityError(f'{_show(value)} {what}; {rule}, such as "{dim.example}"')


def _read_text(text: str, original: object, dim: _Dimension) -> Fraction:
    """Read ``"<number>[/<denominator>] [<unit>]"`` in SI; a missing unit means SI already."""
    stripped = text.strip()
    if len(stripped) > _MAX_TEXT_CHARS:
        raise _refusal(original, "is too long", f"use at most {MAX_LITERAL_CHARS} characters", dim)
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        rule = f"write {dim.noun} as a number and a unit"
        raise _refusal(original, "is not a quantity", rule, dim)
    number, denominator = match["number"], match["denominator"]
    if max(len(number), len(denominator or "")) > MAX_LITERAL_CHARS:
        rule = f"use at most {MAX_LITERAL_CHARS} characters for a number"
        raise _refusal(original, "is too long", rule, dim)
    if abs(int(match["exponent"] or 0)) > MAX_EXPONENT:
        rule = f"use an exponent between -{MAX_EXPONENT} and {MAX_EXPONENT}"
        raise _refusal(original, "has an exponent out of range", rule, dim)
    factor = Fraction(1)
    if match["unit"]:
        if match["unit"] not in dim.units:
            what = f"has unknown unit {match['unit']!r} for {dim.noun}"
            raise _refusal(original, what, f"use {_listing(dim.listed)}", dim)
        factor = dim.units[match["unit"]]
    if denominator is None:
        return Fraction(number) * factor
    if not number.lstrip("+-").isdigit() or int(denominator) == 0:
        rule = "a fraction is a whole number over a whole number above 0"
        raise _refusal(original, "is not a fraction", rule, dim)
    return Fraction(int(number), int(denominator)) * factor


def _read(value: object, dim: _Dimension) -> Fraction:
    """Turn any accepted Python value into a fraction in SI, before range checks."""
    if isinstance(value, bool):
        raise _refusal(value, "is a truth value", f"write {dim.noun} as a number and a unit", dim)
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, str):
        return _read_text(value, value, dim)
    if isinstance(value, float | Decimal):
        # Not math.isfinite for a Decimal: it would turn 1e999999 into an infinite float.
        if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
            raise _refusal(value, "is not finite", f"write {dim.noun} as a finite number", dim)
        # The shortest decimal that names a float is what its author wrote; its binary value
        # is not. Decimals go by their text too, so that the exponent guard covers them.
        text = float.__repr__(value) if isinstance(value, float) else str(value)
        return _read_text(text, value, dim)
    raise _refusal(value, "is not a quantity", f"write {dim.noun} as a number or as text", dim)


def parse_quantity(value: object, dimension: str) -> Fraction:
    """Read a quantity exactly.

    Parameters
    ----------
    value
        An ``int``, ``Fraction``, ``Decimal`` or ``float`` in SI units (a float means the decimal
        it prints as), or text: a number or ``p/q`` fraction, then an optional unit.
    dimension
        ``bytes``, ``seconds``, ``bytes_per_s``, ``flops_per_s``, ``watts``, ``joules``,
        ``card_seconds``, ``requests_per_s``, ``price_per_hour`` or ``share``.

    Returns
    -------
    Fraction
        The value in bytes, seconds, bytes/s, FLOP/s, watts, or as a plain share (1 is 100 %);
        whole for bytes and watts, and never negative.

    Raises
    ------
    QuantityError
        When the value cannot be read, is negative, is beyond 10**30, or is written with more
        digits or a larger exponent than any physical quantity needs.
    """
    dim = _lookup(dimension)
    exact = _read(value, dim)
    if exact < 0:
        raise _refusal(value, "is negative", f"{dim.noun} must be 0 or more", dim)
    if exact > MAX_VALUE:
        raise _refusal(value, "is too large", f"{dim.noun} must be at most 10**30", dim)
    if max(exact.numerator, exact.denominator) >= _MAX_TERM:
        rule = f"numerator and denominator may have {MAX_LITERAL_CHARS} digits"
        raise _refusal(value, f"is too fine to keep exactly as {dim.noun}", rule, dim)
    if dim.whole and exact.denominator != 1:
        rule = f"{dim.noun} must come out as a whole number"
        raise _refusal(value, f"is not a whole number of {dim.noun}", rule, dim)
    return exact


def terminating_decimal(value: Fraction) -> str | None:
    """Return the plain decimal text of a value of 0 or more, or None when it has no short one."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places >= MAX_LITERAL_CHARS:
        return None
    text = _fixed(value, places)
    return text if len(text) <= MAX_LITERAL_CHARS else None


def _fixed(value: Fraction, places: int) -> str:
    """Write a non-negative value with ``places`` decimals, halves rounded up."""
    digits = str(int(value * 10**places + Fraction(1, 2))).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def format_exact(value: Fraction, dimension: str) -> int | str:
    """Write a value so that `parse_quantity` reads back exactly the same one.

    Parameters
    ----------
    value
        A value in the SI unit of ``dimension``.
    dimension
        As in `parse_quantity`.

    Returns
    -------
    int or str
        An ``int`` (SI unit) when whole; else the exact decimal with its SI unit (``"0.13s"``)
        when it ends within 60 characters; else a fraction (``"1/3s"``). Equal values give equal
        text. A value that `parse_quantity` would refuse is still written, as it stands.
    """
    unit = _lookup(dimension).canonical_unit
    if value.denominator == 1:
        return value.numerator
    sign = "-" if value < 0 else ""
    text = terminating_decimal(abs(value))
    return f"{value}{unit}" if text is None else f"{sign}{text}{unit}"


def human_bytes(n: int) -> str:
    """Write a number of bytes for people, such as ``"102.03 GB"`` (decimal units)."""
    sign, size = ("-" if n < 0 else ""), abs(n)
    if size < 1000:
        return f"{sign}{size} B"
    spelled = [
        (Fraction(size, 1000**power), unit)
        for power, unit in enumerate(("kB", "MB", "GB", "TB", "PB"), start=1)
    ]
    # 999.995 would print as "1000.00", which belongs to the next unit.
    fitting = (pair for pair in spelled if pair[0] < Fraction(999_995, 1000))
    scaled, unit = next(fitting, spelled[-1])
    return f"{sign}{_fixed(scaled, 2)} {unit}"


def human_seconds(x: Fraction) -> str:
    """Write a time in seconds for people, such as ``"11.55 µs"`` (4 significant digits)."""
    if x == 0:
        return "0 s"
    sign, size = ("-" if x < 0 else ""), abs(x)
    spelled = [(size * 10**9, "ns"), (size * 10**6, "\u00b5s"), (size * 1000, "ms")]
    # 999.95 rounds to four digits as 1000, which belongs to the next unit.
    fitting = (pair for pair in spelled if pair[0] < Fraction(99_995, 100))
    scaled, unit = next(fitting, (size, "s"))
    places = 3
    while places > 0 and scaled >= Fraction(99_995, 10 ** (places + 1)):
        places -= 1
    while scaled * 10**places < Fraction(99_995, 100):
        places += 1
    return f"{sign}{_fixed(scaled, places)} {unit}"


def _reader(dimension: str, *, positive: bool = False) -> BeforeValidator:
    dim = _lookup(dimension)

    def read(value: object) -> int | Fraction:
        exact = parse_quantity(value, dimension)
        if positive and exact == 0:
            raise _refusal(value, "is zero", f"{dim.noun} must be more than 0", dim)
        return exact.numerator if dim.whole else exact

    return BeforeValidator(read)


def _writer(dimension: str) -> PlainSerializer:
    def write(value: int | Fraction) -> int | str:
        return format_exact(Fraction(value), dimension)

    return PlainSerializer(write)


def _schema(dimension: str, *, positive: bool = False) -> WithJsonSchema:
    dim = _lookup(dimension)
    units = _listing(dim.listed)
    si = f"in {dim.canonical_unit}" if dim.canonical_unit else "where 1 is 100%"
    number = {"type": "number", "exclusiveMinimum" if positive else "minimum": 0}
    return WithJsonSchema(
        {
            "anyOf": [number, {"type": "string"}],
            "description": (
                f'{dim.noun}: a number {si}, or text with a unit ({units}), such as "{dim.example}"'
            ),
            "examples": [dim.example],
        }
    )


Bytes = Annotated[int, _reader("bytes"), _writer("bytes"), _schema("bytes")]
Seconds = Annotated[Fraction, _reader("seconds"), _writer("seconds"), _schema("seconds")]
BytesPerSecond = Annotated[
    Fraction, _reader("bytes_per_s"), _writer("bytes_per_s"), _schema("bytes_per_s")
]
FlopsPerSecond = Annotated[
    Fraction, _reader("flops_per_s"), _writer("flops_per_s"), _schema("flops_per_s")
]
Joules = Annotated[Fraction, _reader("joules"), _writer("joules"), _schema("joules")]
CardSeconds = Annotated[
    Fraction, _reader("card_seconds"), _writer("card_seconds"), _schema("card_seconds")
]
Watts = Annotated[int, _reader("watts"), _writer("watts"), _schema("watts")]
RequestsPerSecond = Annotated[
    Fraction, _reader("requests_per_s"), _writer("requests_per_s"), _schema("requests_per_s")
]
PricePerHour = Annotated[
    Fraction, _reader("price_per_hour"), _writer("price_per_hour"), _schema("price_per_hour")
]
Share = Annotated[Fraction, _reader("share"), _writer("share"), _schema("share")]
PositiveBytes = Annotated[
    int, _reader("bytes", positive=True), _writer("bytes"), _schema("bytes", positive=True)
]
PositiveSeconds = Annotated[
    Fraction,
    _reader("seconds", positive=True),
    _writer("seconds"),
    _schema("seconds", positive=True),
]
PositiveBytesPerSecond = Annotated[
    Fraction,
    _reader("bytes_per_s", positive=True),
    _writer("bytes_per_s"),
    _schema("bytes_per_s", positive=True),
]
PositiveFlopsPerSecond = Annotated[
    Fraction,
    _reader("flops_per_s", positive=True),
    _writer("flops_per_s"),
    _schema("flops_per_s", positive=True),
]
PositiveRequestsPerSecond = Annotated[
    Fraction,
    _reader("requests_per_s", positive=True),
    _writer("requests_per_s"),
    _schema("requests_per_s", positive=True),
]
