"""Measured tables: lookup by every policy, exactly and over arrays, and those of the catalog."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from instances.catalog_store import catalog_entry, catalog_names
from instances.hardware import FabricSpec, MeasuredCollective
from optimizer.arrays import exchanges
from optimizer.collectives import (
    CollectiveUnavailable,
    log2_up,
    measured_s,
)

US = Fraction(1, 10**6)
UNIT = Fraction(1, 2**40)
POLICIES = ("next_larger_size", "linear", "log_linear")
OPERATIONS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send",
]


def table(policy: str = "next_larger_size", **other: Any) -> MeasuredCollective:
    """Return rows at 8, 16, 64 and 100 B that take 5, 9, 3 and 7 µs."""
    rows = ((8, "5us"), (16, "9us"), (64, "3us"), (100, "7us"))
    fields = {
        "name": "table",
        "ranks": 4,
        "servers": 1,
        "policy": policy,
        "rows": [{"message_bytes": size, "time_s": time} for size, time in rows],
    }
    return MeasuredCollective.model_validate({**fields, **other})


@pytest.mark.parametrize("policy", POLICIES)
def test_measured_sizes_take_their_rows_and_the_smallest_all_below(policy: str) -> None:
    found = [measured_s(table(policy), size) / US for size in (0, 1, 8, 16, 64, 100)]
    assert found == [5, 5, 5, 9, 3, 7]
    with pytest.raises(CollectiveUnavailable, match="table stops at 100 B, below 101 B") as caught:
        measured_s(table(policy), 101)
    assert caught.value.rule == "no_measurement"
    with pytest.raises(CollectiveUnavailable):
        measured_s(table(policy), 100 + Fraction(1, 1000))


@pytest.mark.parametrize(
    ("size", "next_larger", "linear"),
    [
        (9, 9, Fraction(11, 2)),  # 5 + 4 · 1/8
        (12, 9, 7),
        (17, 3, Fraction(71, 8)),  # 9 - 6 · 1/48
        (40, 3, 6),
        (Fraction(129, 2), 7, 3 + Fraction(1, 18)),  # 3 + 4 · 0.5/36
        (99, 7, 7 - Fraction(1, 9)),
    ],
)
def test_between_two_rows_time_is_the_larger_rows_or_on_the_line(
    size: int | Fraction, next_larger: int, linear: Fraction
) -> None:
    assert measured_s(table(), size) == next_larger * US
    assert measured_s(table("linear"), size) == linear * US


def test_log_linear_is_a_line_over_the_logarithm_of_the_size() -> None:
    logs = table("log_linear")
    # 32 B is half way from 16 to 64 B; powers of two are exact
    assert measured_s(logs, 32) == 6 * US
    # 12 B: log2(12/8) = 0.584962500721156..., of one binary digit up to 16 B; rounded up
    share = measured_s(logs, 12) / US / 4 - Fraction(5, 4)
    assert share.denominator <= 2**40
    assert Fraction("0.584962500721156181") < share <= Fraction("0.584962500721156182") + UNIT
    # 80 B of 64 to 100 B: log2(80/64) / log2(100/64) is one half, as 80² = 64 · 100
    share = (measured_s(logs, 80) / US - 3) / 4
    assert abs(share - Fraction(1, 2)) <= 3 * UNIT
    # few digits however the sizes lie: 40 binary ones and those of the rows
    assert (measured_s(logs, 77) / US).denominator <= 2**40


def test_the_old_name_still_looks_up() -> None:
    assert measured_s(table("linear"), 12) == 7 * US


@pytest.mark.parametrize("power", [0, 1, 2, 17, 64])
def test_logarithms_of_powers_of_two_are_exact(power: int) -> None:
    assert log2_up(Fraction(2**power)) == power
    above = log2_up(Fraction(2**power) + Fraction(1, 2**200))
    assert above == power + UNIT  # the least that is not below it


def test_logarithms_are_rounded_up_and_never_fall_with_size() -> None:
    random = Random(0)
    ratios = sorted(
        Fraction(random.randrange(2**20, 2**34), random.randrange(1, 2**20)) for _ in range(200)
    )
    found = [log2_up(ratio) for ratio in ratios]
    for ratio, log in zip(ratios, found, strict=True):
        assert (log * 2**40).denominator == 1
        exact = math.log2(ratio.numerator) - math.log2(ratio.denominator)
        assert -1e-14 * 40 < float(log) - exact < 2**-40 + 1e-14 * 40
    assert all(a <= b for a, b in pairwise(found))
    # 2^(1/2): the first 40 binary digits of 1/2 from above and below
    root = Fraction(math.isqrt(2 * 10**60), 10**30)
    assert log2_up(root) == Fraction(1, 2)
    assert log2_up(root + Fraction(1, 10**11)) > Fraction(1, 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_arrays_look_up_as_exactly_computed(policy: str) -> None:
    random = Random(1)
    for _ in range(20):
        sizes = sorted(random.sample(range(1, 2**30), 6))
        rows = [
            {"message_bytes": size, "time_s": f"{random.randrange(1, 10**6)}ns"} for size in sizes
        ]
        some = table(policy, rows=rows)
        asked = [0, 1, *sizes, *(random.randrange(2**30) for _ in range(50)), sizes[-1] + 1]
        found = exchanges._measured(some, np.array(asked, dtype=np.float64))
        for size, seconds in zip(asked, found.tolist(), strict=True):
            if size > sizes[-1]:
                assert math.isnan(seconds)
            else:
                assert seconds == pytest.approx(float(measured_s(some, size)), rel=1e-9)


def test_a_policy_or_an_operation_of_another_name_is_refused() -> None:
    for operation in OPERATIONS:
        assert table(operation=operation).operation == operation
    with pytest.raises(ValidationError, match="operation"):
        table(operation="allreduce")
    with pytest.raises(ValidationError, match="policy"):
        table("nearest")
    assert table().variant is None
    assert table(variant="vllm custom").variant == "vllm custom"
    with pytest.raises(ValidationError, match="variant"):
        table(variant="")


def test_rows_are_sorted_and_ranks_spread_evenly() -> None:
    row = {"message_bytes": 8, "time_s": "1us"}
    with pytest.raises(ValidationError, match="sorted by message_bytes"):
        table(rows=[row, row])
    with pytest.raises(ValidationError, match="4 ranks do not spread evenly over 3 servers"):
        table(servers=3)


# ------------------------------------------------------------------------------ the catalog


def measured(name: str) -> MeasuredCollective:
    return MeasuredCollective.model_validate(catalog_entry("measurements", name))


def test_every_table_of_the_catalog_is_valid_and_a_fabric_takes_it_by_name() -> None:
    for name in catalog_names("measurements"):
        assert measured(name).variant
    fabric = FabricSpec.model_validate(
        {
            "name": "nvlink",
            "alpha_s": "822ns",
            "bandwidth_bytes_per_s": "450GB/s",
            "measured": list(catalog_names("measurements")),
        }
    )
    assert {t.operation for t in fabric.measured} == {"all_reduce", "all_gather", "all_to_all"}


def test_the_table_of_two_servers_keeps_its_published_figure() -> None:
    # section 6.5.1: 10 KiB on 16 ranks takes the 16 KiB row
    assert measured_s(measured("allreduce-2x-hgx-h100"), 10 * 2**10) == Fraction("32.74") * US


@pytest.mark.parametrize(
    ("name", "microseconds"),
    [
        ("allreduce-8x-h100-nccl", "16.42"),
        ("allreduce-8x-h100-tensorrt-llm", "3.541"),
        ("allreduce-8x-h100-sglang", "3.553"),
        ("allgather-8x-h100-nccl", "12.82"),
        ("alltoall-8x-h100-nccl", "8.19"),
    ],
)
def test_eight_kib_on_eight_h100(name: str, microseconds: str) -> None:
    found = measured(name)
    assert (found.ranks, found.servers) == (8, 1)
    assert measured_s(found, 2**13) == Fraction(microseconds) * US


def test_a_frameworks_own_all_reduce_wins_small_messages_and_ties_from_16_mib_on() -> None:
    library, own = (measured(f"allreduce-8x-h100-{name}") for name in ("nccl", "tensorrt-llm"))
    ratios = {2**p: measured_s(library, 2**p) / measured_s(own, 2**p) for p in range(9, 30)}
    # 16.42 / 3.541 = 4.64 at 8 KiB
    assert Fraction("4.6") < ratios[2**13] < Fraction("4.7")
    assert all(ratio > 4 for size, ratio in ratios.items() if size <= 2**16)
    assert all(abs(ratio - 1) < Fraction(1, 50) for size, ratio in ratios.items() if size >= 2**24)


def test_the_outlier_that_was_dropped_is_named_in_the_source() -> None:
    entry = catalog_entry("measurements", "allreduce-8x-h100-sglang")
    sizes = [row["message_bytes"] for row in entry["rows"]]
    assert sizes == [2**p for p in range(8, 31) if p != 10]
    assert "1024 B (38.078 us" in entry["sources"]["rows"]
    for name in catalog_names("measurements"):
        if name.startswith("all") and "8x" in name and name != "allreduce-8x-h100-sglang":
            rows = catalog_entry("measurements", name)["sources"]["rows"]
            assert rows.endswith("no row was dropped")
