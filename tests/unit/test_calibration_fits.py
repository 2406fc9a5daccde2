"""Fits of measured times, their errors by size, outliers, and what is written from them."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from instances.errors import InputError
from instances.hardware import FabricSpec, MeasuredCollective
from instances.io import example_text, parse_instance
from optimizer.calibration.document import calibration_document
from optimizer.calibration.fabrics import Wording, choose, fabric_entry, table_entry
from optimizer.calibration.fits import Decade, NotFitted, SizeRange, fit
from optimizer.calibration.groups import (
    Group,
    Wanted,
    grouped,
    outliers,
    without_outliers,
)
from optimizer.calibration.points import MeasuredPoint, Reading, ReadOptions
from optimizer.calibration.quantities import rate_text, rounded, time_text
from optimizer.calibration.readers import read_files
from optimizer.options import SolveOptions
from optimizer.solve import solve

US = Fraction(1, 10**6)
FIFTH = Fraction(1, 5)
POINT = MeasuredPoint("send", 2, 1, "lab", "lib 1", "half", "eager", 1, Fraction(1), "f.csv:2")
#: A folder of published measurements beside the checkout, where there is one.
PUBLISHED = next(iter(Path(__file__).parents[3].glob("*/data/aic_nccl_perf.csv")), Path()).parent
needs_published = pytest.mark.skipif(
    not (PUBLISHED / "aic_nccl_perf.csv").exists(), reason="no published measurements at hand"
)


def group_of(*times: tuple[int, int | Fraction], **other: object) -> Group:
    """Return one group of (bytes, seconds)."""
    (group,) = grouped(points_of(*times, **other))
    return group


def points_of(*times: tuple[int, int | Fraction], **other: object) -> list[MeasuredPoint]:
    return [
        replace(POINT, message_bytes=size, time_s=Fraction(time_s), **other)  # type: ignore[arg-type]
        for size, time_s in times
    ]


@pytest.mark.parametrize(
    ("operation", "rounds", "factor"),
    [
        ("all_reduce", 14, Fraction(7, 4)),
        ("all_gather", 7, Fraction(7, 8)),
        ("reduce_scatter", 7, Fraction(7, 8)),
        ("all_to_all", 7, Fraction(7, 8)),
        ("broadcast", 7, Fraction(1)),
        ("reduce", 7, Fraction(1)),
        ("send", 1, Fraction(1)),
    ],
)
def test_times_of_a_ring_give_back_its_alpha_and_bandwidth(
    operation: str, rounds: int, factor: Fraction
) -> None:
    alpha, per_byte = Fraction(822, 10**9), Fraction(1, 450 * 10**9)
    sizes = [2**power for power in range(3, 31, 3)]
    times = [(size, rounds * alpha + factor * size * per_byte) for size in sizes]
    found = fit(group_of(*times, operation=operation, ranks=8), FIFTH)
    assert (found.rounds, found.factor) == (rounds, factor)
    assert (time_text(found.alpha_s), rate_text(found.bandwidth_bytes_per_s)) == (
        "822ns",
        "450GB/s",
    )
    assert (found.intercept_s, found.slope_s_per_byte) == (rounds * alpha, factor * per_byte)
    assert {decade.largest_error for decade in found.decades} == {0}
    assert found.holds == SizeRange(8, 2**30, 10)


def test_three_points_by_hand() -> None:
    # (M, T) = (1, 1), (2, 2), (4, 2): u = 1, 1/2, 1/2 and v = 1, 1, 2. Sums: uu = 3/2, uv = 5/2,
    # vv = 6, u = 2, v = 4; determinant 9 - 25/4 = 11/4; a = (12 - 10) / (11/4) = 8/11 and
    # b = (6 - 5) / (11/4) = 4/11. Rounded: 0.7273 s and 2.75 B/s.
    found = fit(group_of((1, 1), (2, 2), (4, 2)), FIFTH)
    assert (found.alpha_s, found.bandwidth_bytes_per_s) == (Fraction("0.7273"), Fraction("2.75"))
    assert not found.starts_at_zero
    # 0.7273 + M/2.75 is 1.0909, 1.4546 and 2.1818: errors of 9 %, 27 % and 9 %
    errors = [
        Fraction("0.7273") + Fraction(4, 11) - 1,
        1 - (Fraction("0.7273") + Fraction(8, 11)) / 2,
    ]
    last = (Fraction("0.7273") + Fraction(16, 11)) / 2 - 1
    assert found.decades == (Decade(1, 3, sorted([*errors, last])[1], errors[1]),)
    assert found.holds == SizeRange(4, 4, 1)  # of two single sizes the larger
    assert fit(group_of((1, 1), (2, 2), (4, 2)), errors[1]).holds == SizeRange(1, 4, 3)


def test_a_line_that_would_start_below_zero_starts_at_zero() -> None:
    # (10, 1), (20, 4), (40, 16): v = 10, 5, 2.5; b = 17.5 / (100 + 25 + 6.25) = 2/15
    found = fit(group_of((10, 1), (20, 4), (40, 16)), FIFTH)
    assert (found.starts_at_zero, found.alpha_s) == (True, 0)
    assert found.bandwidth_bytes_per_s == Fraction("7.5")


def test_what_cannot_be_fitted_says_why() -> None:
    with pytest.raises(NotFitted, match="2 sizes are fewer than the 3"):
        fit(group_of((1, 1), (2, 2), (2, 3), (1, 2)), FIFTH)
    with pytest.raises(NotFitted, match="does not grow"):
        fit(group_of((1, 3), (2, 2), (3, 1)), FIFTH)
    with pytest.raises(NotFitted, match="does not grow"):
        fit(group_of((1, 1), (2, 1), (3, 1)), FIFTH)
    assert fit(group_of((1, 1), (2, 1), (3, Fraction(10**9 + 1, 10**9))), FIFTH)


def test_one_disturbed_run_hardly_moves_the_line() -> None:
    times = [(2**power, US * (10 + Fraction(2**power, 10**5))) for power in range(4, 30)]
    calm = fit(group_of(*times), FIFTH)
    for at in (3, 12, 25):
        noisy = list(times)
        noisy[at] = (times[at][0], 50 * times[at][1])
        found = fit(group_of(*noisy), FIFTH)
        assert abs(found.alpha_s / calm.alpha_s - 1) < Fraction(1, 20)
        assert abs(found.bandwidth_bytes_per_s / calm.bandwidth_bytes_per_s - 1) < FIFTH


def test_decades_are_powers_of_ten_and_a_range_ends_at_the_first_miss() -> None:
    sizes = (9, 10, 50, 99, 100, 1000, 9999)
    times = {size: Fraction(size) for size in sizes}
    times[50] = Fraction(51)
    group = group_of(*times.items())
    found = fit(group, Fraction(1, 100))
    assert [(d.from_bytes, d.num_points) for d in found.decades] == [
        (1, 1),
        (10, 3),
        (100, 1),
        (1000, 2),
    ]
    # all lie on T = M but 50, which is missed by about 2 %: two sizes before it, four after
    assert found.holds == SizeRange(99, 9999, 4)
    assert fit(group, Fraction(1, 10)).holds == SizeRange(9, 9999, 7)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.0000008224999", "822.5ns"),
        ("0.00000082235", "822.4ns"),  # halves up
        ("0.000032744", "32.74us"),
        ("0.99995", "1s"),
        ("0.99994", "999.9ms"),
        ("12.3456", "12.35s"),
        ("0.00000000001", "0.01ns"),
        ("0", "0ns"),
    ],
)
def test_fitted_times_have_four_digits_and_a_unit(value: str, text: str) -> None:
    assert time_text(rounded(Fraction(value))) == text


def test_fitted_bandwidths_have_four_digits_and_a_unit() -> None:
    texts = [rate_text(rounded(Fraction(v))) for v in (450 * 10**9, 373_149 * 10**6, 5, "1e12")]
    assert texts == ["450GB/s", "373.1GB/s", "5B/s", "1TB/s"]
    assert time_text(Fraction(1, 3)) == "1/3s"
    assert rate_text(Fraction(10**10, 3)) == "10000000000/3B/s"


def test_points_are_grouped_by_all_they_have_in_common() -> None:
    points = points_of((8, 1), (4, 1), (8, 3))
    others = {"dtype": "int8", "system": "hall", "library": "lib 2", "mode": "graph", "servers": 2}
    for name, value in others.items():
        points += points_of((8, 1), **{name: value})
    groups = grouped(points)
    assert len(groups) == 6
    assert groups[0].by_size == {4: (1,), 8: (1, 3)}
    assert [p.dtype for p in Wanted(dtype="int8").chosen(points)] == ["int8"]
    assert len(Wanted(operation="send", ranks=2, servers=1).chosen(points)) == 7
    with pytest.raises(InputError, match=r"--system = 'room'.*there are: hall, lab"):
        Wanted(system="room").chosen(points)
    with pytest.raises(InputError, match=r"--mode = 'graph'.*there are: eager"):
        Wanted(dtype="int8", mode="graph").chosen(points)


def test_an_outlier_is_slower_than_twice_both_its_neighbours() -> None:
    times = [(1, 9), (2, 2), (4, 6), (8, 3), (16, 2), (32, 9)]
    assert outliers(group_of(*times), Fraction(2)) == ()  # 6 is just twice 3; ends do not count
    times[2] = (4, 6 + Fraction(1, 1000))
    assert outliers(group_of(*times), Fraction(2)) == (4,)
    kept, gone = without_outliers(group_of(*times), Fraction(2))
    assert list(kept.by_size) == [1, 2, 8, 16, 32]
    assert [point.message_bytes for point in gone] == [4]
    # repeats count by the middle of the fastest and the slowest: (1 + 11) / 2 is 6, too
    repeated = [(1, 9), (2, 2), (4, 1), (4, 11), (8, 3), (16, 2)]
    assert outliers(group_of(*repeated), Fraction(2)) == ()
    assert outliers(group_of(*repeated), Fraction(19, 10)) == (4,)


def test_a_table_keeps_times_exactly_and_repeats_as_a_spread() -> None:
    group = group_of((8, 10 * US), (16, 12 * US), (16, 15 * US), (16, 13 * US), (32, 16 * US))
    entry = table_entry(group, Wording(policy="linear"))
    assert entry["rows"] == [
        {"message_bytes": 8, "time_s": "10us"},
        {"message_bytes": 16, "time_s": "13.5us", "spread_s": "1.5us"},
        {"message_bytes": 32, "time_s": "16us"},
    ]
    table = MeasuredCollective.model_validate(entry)
    assert (table.operation, table.ranks, table.servers) == ("send", 2, 1)
    assert (table.policy, table.variant) == ("linear", "lib 1, eager")
    assert "file f.csv" in table.sources["rows"]
    with pytest.raises(InputError, match="--servers"):
        table_entry(group_of((8, US), servers=None))
    with pytest.raises(InputError, match="3 ranks do not spread evenly over 2 servers"):
        table_entry(group_of((8, US), ranks=3, servers=2))


def reduce_points(ranks: int = 8, **other: object) -> list[MeasuredPoint]:
    """Return AllReduces of 1 µs a round and 175 GB/s."""
    line = [
        (size, 2 * (ranks - 1) * (US + Fraction(size, ranks * 175 * 10**9)))
        for size in (2**10, 2**14, 2**20, 2**30)
    ]
    return points_of(*line, operation="all_reduce", ranks=ranks, **other)


def test_a_fabric_is_what_an_instance_takes() -> None:
    gathers = points_of((8, US), operation="all_gather", ranks=8)
    other = points_of((8, US), operation="all_gather", ranks=8, dtype="int8")
    wording = Wording(name="mine", citation="Example et al. 2025, Table 1")
    entry = fabric_entry(grouped([*reduce_points(), *gathers, *other]), FIFTH, wording)
    fabric = FabricSpec.model_validate(json.loads(json.dumps(entry)))
    assert (fabric.name, entry["alpha_s"], entry["bandwidth_bytes_per_s"]) == (
        "mine",
        "1us",
        "175GB/s",
    )
    # tables of the same system, library, type and mode only
    assert [table.operation for table in fabric.measured] == ["all_reduce", "all_gather"]
    assert "Example et al. 2025, Table 1, file f.csv" in fabric.sources["alpha_s"]
    assert "errors are at most 0.2 from 1024 B to 1073741824 B" in fabric.sources["alpha_s"]


def test_a_fabric_needs_one_group_and_a_line() -> None:
    both = grouped([*reduce_points(4), *reduce_points(8)])
    with pytest.raises(
        InputError, match=r"there are 2: all_reduce on 4 ranks.*on 8 ranks.*--ranks"
    ):
        choose(both)
    assert choose(both[1:]) is both[1]
    send = grouped(points_of((8, 1), (16, 2), (32, 3)))
    assert choose(send) is send[0]
    with pytest.raises(InputError, match="no collective was read"):
        choose([])
    many = grouped([p for n in range(2, 20) for p in reduce_points(n)])
    with pytest.raises(InputError, match=r"there are 18.*; 6 more"):
        choose(many)
    with pytest.raises(InputError, match="not fitted: 2 sizes are fewer"):
        fabric_entry(grouped(reduce_points()[:2]), FIFTH)


def test_an_example_is_solved_with_a_written_fabric() -> None:
    document = json.loads(example_text("one-session-50ms"))
    document["objective"] = {"minimise": ["makespan"]}
    document["search"] |= {"collectives": ["measured"], "tp": [8]}
    seconds = []
    for factor in (Fraction(1, 2), 1):
        points = [replace(p, time_s=factor * p.time_s) for p in reduce_points()]
        entry = fabric_entry(grouped(points), FIFTH)
        document["fleet"]["pools"][0]["server"] = {"base": "hgx-h100", "fabric": entry}
        result = solve(parse_instance(document), SolveOptions("auto", 20.0, 1, 0))
        assert result.termination == "optimal"
        assert result.plan is not None
        assert "measured" in result.plan.sentence
        assert result.objective is not None
        seconds.append(Fraction(result.objective.verified_exact))
    # 8 steps of 128 AllReduces of 10 KiB, which takes the row of 16 KiB
    assert seconds[1] - seconds[0] == 8 * 128 * reduce_points()[1].time_s / 2


def test_the_document_has_errors_for_every_group_and_reasons_where_there_is_no_fit() -> None:
    points = [*reduce_points(), *points_of((8, 1), (16, 2))]
    reading = Reading(tuple(points), dropped=(("noise", 3),), notes=("a note",))
    found = calibration_document(["f.csv"], reading, grouped(points), FIFTH)
    reduce, send = found.groups
    assert reduce.fit is not None
    assert (reduce.fit.alpha, reduce.fit.bandwidth, reduce.fit.factor) == ("1us", "175GB/s", "7/4")
    assert sum(d.num_points for d in reduce.fit.residuals) == reduce.num_points == 4
    assert (send.fit, send.not_fitted) == (None, "2 sizes are fewer than the 3 a line needs")
    assert (found.num_points, found.dropped[0].count, found.notes) == (6, 3, ["a note"])
    assert json.loads(found.to_json())["kind"] == "calibration"


@needs_published
def test_published_latencies_of_eight_h100_are_fitted_within_a_third() -> None:
    files = [str(PUBLISHED / "aic_nccl_perf.csv")]
    points = read_files(files, ReadOptions(servers=1)).points
    wanted = Wanted(ranks=8, system="h100_sxm", dtype="half")
    for group in grouped(wanted.chosen(points)):
        found = fit(group, FIFTH)
        assert max(decade.largest_error for decade in found.decades) < Fraction(1, 3)
        assert US < found.alpha_s < 2 * US
        assert 250 * 10**9 < found.bandwidth_bytes_per_s < 400 * 10**9
