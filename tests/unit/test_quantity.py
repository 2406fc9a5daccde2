"""Quantities are read and written exactly, or refused in one helpful line."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from instances.quantity import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveFlopsPerSecond,
    PositiveRequestsPerSecond,
    PositiveSeconds,
    PricePerHour,
    QuantityError,
    RequestsPerSecond,
    Seconds,
    Share,
    Watts,
    format_exact,
    human_bytes,
    human_seconds,
    parse_quantity,
)

DIMENSIONS = ("bytes", "seconds", "bytes_per_s", "flops_per_s", "watts", "share")
DIMENSIONS += ("requests_per_s", "price_per_hour")
TYPES = {
    "bytes": Bytes,
    "seconds": Seconds,
    "bytes_per_s": BytesPerSecond,
    "flops_per_s": FlopsPerSecond,
    "watts": Watts,
    "share": Share,
    "requests_per_s": RequestsPerSecond,
    "price_per_hour": PricePerHour,
}
POSITIVE_TYPES = {
    "bytes": PositiveBytes,
    "seconds": PositiveSeconds,
    "bytes_per_s": PositiveBytesPerSecond,
    "flops_per_s": PositiveFlopsPerSecond,
    "requests_per_s": PositiveRequestsPerSecond,
}

wholes = st.integers(min_value=0, max_value=10**30)
ratios = st.builds(Fraction, st.integers(0, 10**30), st.integers(1, 10**59))
decimals = st.builds(lambda n, p: Fraction(n, 10**p), st.integers(0, 10**30), st.integers(0, 58))


def values_of(dimension: str) -> st.SearchStrategy[Fraction]:
    if dimension in ("bytes", "watts"):
        return wholes.map(Fraction)
    return st.one_of(wholes.map(Fraction), ratios, decimals)


any_quantity = st.sampled_from(DIMENSIONS).flatmap(lambda d: st.tuples(st.just(d), values_of(d)))


# Tables of cases, several to a line.
# fmt: off
READINGS: list[tuple[Any, ...]] = [
    ("80GB", "bytes", 80 * 10**9), ("80 GB", "bytes", 80 * 10**9),
    ("  80GB ", "bytes", 80 * 10**9), ("2GiB", "bytes", 2**31), ("1.5KiB", "bytes", 1536),
    ("3kB", "bytes", 3000), ("7MB", "bytes", 7 * 10**6), ("7MiB", "bytes", 7 * 2**20),
    ("2TB", "bytes", 2 * 10**12), ("2TiB", "bytes", 2**41), ("17B", "bytes", 17),
    ("5", "bytes", 5), ("1/2kB", "bytes", 500), ("822ns", "seconds", Fraction(822, 10**9)),
    ("0.822 us", "seconds", Fraction(822, 10**9)),
    ("0.822\u00b5s", "seconds", Fraction(822, 10**9)),
    ("0.822\u03bcs", "seconds", Fraction(822, 10**9)), ("130ms", "seconds", Fraction(13, 100)),
    ("1e-3 s", "seconds", Fraction(1, 1000)), ("1E+2s", "seconds", 100),
    (".5s", "seconds", Fraction(1, 2)), ("5.s", "seconds", 5), ("+5s", "seconds", 5),
    ("1/3s", "seconds", Fraction(1, 3)), ("1/3", "seconds", Fraction(1, 3)),
    ("2min", "seconds", 120), ("1.5h", "seconds", 5400),
    ("450GB/s", "bytes_per_s", 450 * 10**9), ("1GiB/s", "bytes_per_s", 2**30),
    ("400Gbit/s", "bytes_per_s", 50 * 10**9), ("1bit/s", "bytes_per_s", Fraction(1, 8)),
    ("2/3GB/s", "bytes_per_s", Fraction(2 * 10**9, 3)),
    ("989.4TFLOP/s", "flops_per_s", 9894 * 10**11),
    ("989.4TFLOPS", "flops_per_s", 9894 * 10**11), ("3GFLOP/s", "flops_per_s", 3 * 10**9),
    ("4PFLOP/s", "flops_per_s", 4 * 10**15), ("4PFLOPS", "flops_per_s", 4 * 10**15),
    ("10.2kW", "watts", 10_200), ("700W", "watts", 700), ("1MW", "watts", 10**6),
    ("75%", "share", Fraction(3, 4)), ("0.75", "share", Fraction(3, 4)), ("2", "share", 2),
    ("-0", "share", 0),
]

REFUSALS: list[tuple[Any, ...]] = [
    (True, "bytes", "is a truth value"),
    (None, "bytes", "value of type NoneType is not a quantity"),
    ([5], "bytes", "value of type list is not a quantity"),
    (b"5", "bytes", "value of type bytes is not a quantity"),
    (1 + 0j, "seconds", "value of type complex is not a quantity"),
    ("", "bytes", "is not a quantity"), ("GB", "bytes", "is not a quantity"),
    ("1,000GB", "bytes", "is not a quantity"), ("1_000", "bytes", "is not a quantity"),
    ("5 5GB", "bytes", "is not a quantity"), ("\u0665GB", "bytes", "is not a quantity"),
    ("0x10", "bytes", "is not a quantity"), ("nan", "seconds", "is not a quantity"),
    ("inf", "seconds", "is not a quantity"), ("80gb", "bytes", "unknown unit 'gb'"),
    ("5s", "bytes", "unknown unit 's' for bytes"),
    ("5GB", "bytes_per_s", "unknown unit 'GB' for bytes per second"),
    ("5%", "seconds", "unknown unit '%'"), ("5x", "share", "unknown unit 'x' for a share"),
    ("1/0s", "seconds", "is not a fraction"), ("1.5/3s", "seconds", "is not a fraction"),
    ("1e3/3s", "seconds", "is not a fraction"), ("1/3/3s", "seconds", "is not a quantity"),
    (float("nan"), "seconds", "is not finite"), (float("inf"), "seconds", "is not finite"),
    (Decimal("NaN"), "seconds", "is not finite"),
    (Decimal("-Infinity"), "seconds", "is not finite"),
    (Decimal("sNaN"), "seconds", "is not finite"), (-1, "bytes", "is negative"),
    (-0.5, "seconds", "is negative"), ("-5GB", "bytes", "is negative"),
    ("-1/3s", "seconds", "is negative"), (Fraction(-1, 3), "seconds", "is negative"),
    ("0.3B", "bytes", "must come out as a whole number"),
    (0.5, "watts", "must come out as a whole number"),
    ("1.5W", "watts", "must come out as a whole number"),
    ("1/3KiB", "bytes", "must come out as a whole number"),
    (10**30 + 1, "bytes", "is too large"), (1e31, "seconds", "is too large"),
    ("1e30kB", "bytes", "is too large"), (Fraction(1, 10**60), "seconds", "is too fine"),
    ("1e-40", "bytes", "must come out as a whole number"),
]

HUGE: list[tuple[Any, ...]] = [
    ("1e999999999", "exponent out of range"), ("1e-999999999s", "exponent out of range"),
    ("1e41", "exponent out of range"), ("1e-41", "exponent out of range"),
    ("1e" + "9" * 59, "too long"), ("1" * 61, "too long"), ("0." + "0" * 58 + "1", "too long"),
    ("1/" + "3" * 61, "too long"), ("1" * 10**6, "too long"),
    (Decimal("1e999999"), "exponent out of range"),
    (Decimal("1e-999999"), "exponent out of range"), (Decimal("1" * 1000), "too long"),
    (10**100_000, "too large"), (-(10**100_000), "is negative"),
    (Fraction(1, 10**5_000), "too fine"), (1e300, "exponent out of range"),
    (5e-324, "exponent out of range"),
]

CANONICAL: list[tuple[Any, ...]] = [
    (Fraction(80 * 10**9), "bytes", 80 * 10**9), (Fraction(5), "seconds", 5),
    (Fraction(13, 100), "seconds", "0.13s"), (Fraction(822, 10**9), "seconds", "0.000000822s"),
    (Fraction(1, 3), "seconds", "1/3s"), (Fraction(7, 2), "bytes_per_s", "3.5B/s"),
    (Fraction(1, 8), "flops_per_s", "0.125FLOP/s"), (Fraction(3, 4), "share", "0.75"),
    (Fraction(2, 3), "share", "2/3"), (Fraction(1, 2**60), "seconds", "1/1152921504606846976s"),
    (Fraction(-1, 2), "seconds", "-0.5s"), (Fraction(-1, 3), "seconds", "-1/3s"),
]

BYTES_FOR_PEOPLE: list[tuple[Any, ...]] = [
    (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (102_030_000_000, "102.03 GB"),
    (999_994, "999.99 kB"), (999_995, "1.00 MB"), (65_524_246_528, "65.52 GB"),
    (1_500_000_000_000, "1.50 TB"), (5 * 10**18, "5000.00 PB"), (-1500, "-1.50 kB"),
]

SECONDS_FOR_PEOPLE: list[tuple[Any, ...]] = [
    (Fraction(0), "0 s"), (Fraction(1191, 10**4), "119.1 ms"),
    (Fraction(1155, 10**8), "11.55 \u00b5s"), (Fraction(822, 10**9), "822.0 ns"),
    (Fraction(1, 3), "333.3 ms"), (Fraction(1), "1.000 s"),
    (Fraction(99_994, 10**5), "999.9 ms"), (Fraction(99_995, 10**5), "1.000 s"),
    (Fraction(99_996, 10**11), "1.000 \u00b5s"), (Fraction(12_345), "12345 s"),
    (Fraction(5, 10**13), "0.0005000 ns"), (Fraction(99_996, 10**14), "1.000 ns"),
    (Fraction(-13, 100), "-130.0 ms"),
]
# fmt: on


@pytest.mark.parametrize(("text", "dimension", "expected"), READINGS)
def test_text_means_exactly_what_it_says(text: str, dimension: str, expected: Fraction) -> None:
    assert parse_quantity(text, dimension) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, Fraction(1, 10)),
        (1e-9, Fraction(1, 10**9)),
        (-0.0, 0),
        (Decimal("0.1"), Fraction(1, 10)),
        (Decimal("1e-7"), Fraction(1, 10**7)),
        (Fraction(1, 3), Fraction(1, 3)),
        (3, 3),
        (10**30, 10**30),
    ],
)
def test_python_numbers_are_si_and_floats_mean_their_shortest_decimal(
    value: object, expected: Fraction
) -> None:
    assert parse_quantity(value, "seconds") == expected


def test_a_float_subclass_with_its_own_repr_is_read_as_a_float() -> None:
    class Loud(float):
        def __repr__(self) -> str:
            return f"Loud({float(self)})"

    assert parse_quantity(Loud(0.1), "seconds") == Fraction(1, 10)


def test_the_message_says_what_is_wrong_the_rule_and_a_fix() -> None:
    with pytest.raises(QuantityError) as error:
        parse_quantity("80XB", "bytes")
    assert str(error.value) == (
        "'80XB' has unknown unit 'XB' for bytes; "
        'use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as "80GB"'
    )


@pytest.mark.parametrize(("value", "dimension", "reason"), REFUSALS)
def test_bad_values_are_refused_in_one_line_with_an_example(
    value: object, dimension: str, reason: str
) -> None:
    with pytest.raises(QuantityError) as error:
        parse_quantity(value, dimension)
    message = str(error.value)
    assert reason in message
    assert message.count('such as "') == 1
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("value", "reason"), HUGE, ids=range(len(HUGE)))
def test_huge_literals_are_refused_before_a_number_is_built(value: object, reason: str) -> None:
    """None of these may build a big number, nor spell one out in the message."""
    with pytest.raises(QuantityError, match=reason) as error:
        parse_quantity(value, "seconds")
    assert len(str(error.value)) < 250


def test_the_limits_themselves_are_accepted() -> None:
    assert parse_quantity("1e-40s", "seconds") == Fraction(1, 10**40)
    assert parse_quantity("0." + "0" * 57 + "1", "seconds") == Fraction(1, 10**58)
    assert parse_quantity("1" + "0" * 30, "seconds") == 10**30
    assert parse_quantity(f"1/{10**59 + 1}", "seconds") == Fraction(1, 10**59 + 1)


def test_line_breaks_in_the_input_do_not_break_the_message() -> None:
    with pytest.raises(QuantityError) as error:
        parse_quantity("5\nGB\r\nx", "bytes")
    assert len(str(error.value).splitlines()) == 1


@given(st.one_of(st.text(), st.floats(), st.integers(), st.decimals(), st.fractions()))
def test_any_value_is_read_or_refused_but_never_crashes(value: object) -> None:
    for dimension in DIMENSIONS:
        try:
            exact = parse_quantity(value, dimension)
        except QuantityError:
            continue
        assert exact >= 0
        assert parse_quantity(format_exact(exact, dimension), dimension) == exact


def test_an_unknown_dimension_is_named_with_the_known_ones() -> None:
    with pytest.raises(QuantityError, match="unknown dimension 'metres'; use one of bytes, sec"):
        parse_quantity(1, "metres")
    with pytest.raises(QuantityError, match="unknown dimension"):
        format_exact(Fraction(1), "metres")


@pytest.mark.parametrize(("value", "dimension", "expected"), CANONICAL)
def test_the_canonical_form_is_an_int_a_decimal_or_a_fraction(
    value: Fraction, dimension: str, expected: int | str
) -> None:
    assert format_exact(value, dimension) == expected


def test_the_same_value_has_one_canonical_text_however_it_was_written() -> None:
    spellings = ["130ms", "0.13s", "13/100", "130000us", 0.13, Decimal("0.130"), Fraction(13, 100)]
    texts = {format_exact(parse_quantity(s, "seconds"), "seconds") for s in spellings}
    assert texts == {"0.13s"}


@given(any_quantity)
def test_reading_what_was_written_gives_the_same_value_in_every_dimension(
    pair: tuple[str, Fraction],
) -> None:
    dimension, value = pair
    written = format_exact(value, dimension)
    assert parse_quantity(written, dimension) == value
    assert parse_quantity(json.loads(json.dumps(written)), dimension) == value


@given(any_quantity)
def test_the_pydantic_types_round_trip_through_python_and_json(
    pair: tuple[str, Fraction],
) -> None:
    dimension, value = pair
    adapter: TypeAdapter[object] = TypeAdapter(TYPES[dimension])
    read = adapter.validate_python(value)
    assert read == value
    assert adapter.validate_python(adapter.dump_python(read)) == value
    assert adapter.validate_json(adapter.dump_json(read)) == value


class Everything(BaseModel):
    """A frozen strict model with one field of each type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    memory_bytes: Bytes
    delay_s: Seconds
    bandwidth_bytes_per_s: BytesPerSecond
    peak_flops_per_s: FlopsPerSecond
    power_w: Watts | None = None
    efficiency: Share = Fraction(1)
    at_least_one_byte: PositiveBytes = 1
    period_s: PositiveSeconds = Fraction(1)
    rate_bytes_per_s: PositiveBytesPerSecond = Fraction(1)
    rate_flops_per_s: PositiveFlopsPerSecond = Fraction(1)


FIELDS = {
    "memory_bytes": "80GB",
    "delay_s": "1/3s",
    "bandwidth_bytes_per_s": "400Gbit/s",
    "peak_flops_per_s": "989.4TFLOP/s",
    "efficiency": "75%",
}


def test_a_frozen_strict_model_reads_python_and_json_alike() -> None:
    from_python = Everything.model_validate(FIELDS)
    from_json = Everything.model_validate_json(json.dumps(FIELDS))
    assert from_python == from_json
    assert hash(from_python) == hash(from_json)
    assert from_python.memory_bytes == 80 * 10**9
    assert type(from_python.memory_bytes) is int
    assert from_python.delay_s == Fraction(1, 3)
    assert type(from_python.delay_s) is Fraction
    assert from_python.power_w is None


def test_a_model_writes_canonical_json_and_reads_it_back() -> None:
    model = Everything.model_validate({**FIELDS, "power_w": "10.2kW"})
    dumped = json.loads(model.model_dump_json())
    assert dumped["memory_bytes"] == 80_000_000_000
    assert dumped["delay_s"] == "1/3s"
    assert dumped["efficiency"] == "0.75"
    assert dumped["power_w"] == 10_200
    assert Everything.model_validate_json(model.model_dump_json()) == model
    assert Everything.model_validate(model.model_dump()) == model


def test_json_numbers_are_read_as_the_decimals_they_print_as() -> None:
    model = Everything.model_validate_json(json.dumps({**FIELDS, "delay_s": 0.1}))
    assert model.delay_s == Fraction(1, 10)


@pytest.mark.parametrize("text", ["1e999", "true", "null", "[1]", '"80XB"', "-1"])
def test_bad_json_becomes_a_validation_error_at_its_field(text: str) -> None:
    with pytest.raises(ValidationError) as error:
        Everything.model_validate_json(
            json.dumps(FIELDS).replace('"80GB"', text, 1),
        )
    assert [e["loc"] for e in error.value.errors()] == [("memory_bytes",)]


@pytest.mark.parametrize("dimension", sorted(POSITIVE_TYPES))
def test_positive_types_refuse_zero_and_plain_ones_accept_it(dimension: str) -> None:
    assert TypeAdapter(TYPES[dimension]).validate_python(0) == 0
    positive: TypeAdapter[object] = TypeAdapter(POSITIVE_TYPES[dimension])
    assert positive.validate_python(1) == 1
    with pytest.raises(ValidationError, match=r"0 is zero; .* must be more than 0, such as"):
        positive.validate_python(0)


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_json_schema_lists_units_and_an_example(mode: str) -> None:
    schema = Everything.model_json_schema(mode=mode)  # type: ignore[arg-type]
    memory = schema["properties"]["memory_bytes"]
    assert memory["anyOf"] == [{"type": "number", "minimum": 0}, {"type": "string"}]
    assert "KiB, MiB, GiB or TiB" in memory["description"]
    assert memory["examples"] == ["80GB"]
    positive = schema["properties"]["at_least_one_byte"]["anyOf"]
    assert positive[0] == {"type": "number", "exclusiveMinimum": 0}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_example_of_every_schema_is_itself_readable(dimension: str) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(TYPES[dimension])
    for example in adapter.json_schema()["examples"]:
        adapter.validate_python(example)


@pytest.mark.parametrize(("n", "expected"), BYTES_FOR_PEOPLE)
def test_human_bytes_has_two_decimals_and_the_largest_fitting_unit(n: int, expected: str) -> None:
    assert human_bytes(n) == expected


@pytest.mark.parametrize(("x", "expected"), SECONDS_FOR_PEOPLE)
def test_human_seconds_has_four_significant_digits(x: Fraction, expected: str) -> None:
    assert human_seconds(x) == expected


@given(st.builds(Fraction, st.integers(1, 10**15), st.integers(1, 10**15)))
def test_human_seconds_is_within_half_a_last_digit_of_the_value(x: Fraction) -> None:
    number, unit = human_seconds(x).split()
    shown = parse_quantity(f"{number}{unit}", "seconds")
    assert abs(shown - x) <= x * Fraction(1, 2000)
