"""Readers of measurements: what nccl-tests prints, tables as CSV, and every way they are broken."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from instances.errors import InputError
from optimizer.calibration.points import (
    MeasuredPoint,
    Reading,
    ReadOptions,
    operation_named,
    ring_factor,
    ring_rounds,
)
from optimizer.calibration.readers import read_files, read_measurements

US = Fraction(1, 10**6)
#: A folder of published measurements beside the checkout, where there is one.
PUBLISHED = next(iter(Path(__file__).parents[3].glob("*/data/aic_nccl_perf.csv")), Path()).parent
needs_published = pytest.mark.skipif(
    not (PUBLISHED / "aic_nccl_perf.csv").exists(), reason="no published measurements at hand"
)

STEPS = "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: 2(factor) warmup iters: 5 iters: 20 "
HEADER = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 135.46\n#\n"
#: 16 ranks on two servers; the factor of an AllReduce is 2·15/16 = 1.875.
ROWS = """\
        8192          2048     float     sum      -1    32.12    0.26    0.48      0    31.67    0.26    0.48      0
       16384          4096     float     sum      -1    32.74    0.50    0.94      0    32.24    0.51    0.95      0
    67108864      16777216     float     sum      -1    466.1  143.99  269.98      0    466.3  143.92  269.85      0
"""  # noqa: E501


def rank_lines(hosts: dict[str, int], group: int = 0, first: int = 0) -> str:
    """Return "# Rank" lines: so many cards of every host."""
    places = [(host, card) for host, cards in hosts.items() for card in range(cards)]
    return "".join(
        f"#  Rank {rank:2} Group {group:2} Pid {28281 + rank} on {host:>10} device {card:2} "
        f"[0000:{card:02x}:00] NVIDIA H100 80GB HBM3\n"
        for rank, (host, card) in enumerate(places, first)
    )


TWO_HOSTS = rank_lines({"node-a": 8, "node-b": 8})


def output(rows: str = ROWS, ranks: str = TWO_HOSTS, program: str = "all_reduce_perf") -> str:
    """Return what nccl-tests prints."""
    lines = rows.splitlines()
    start = f"# Collective test starting: {program}\n" if program else ""
    sizes = STEPS.format(lines[0].split()[0], lines[-1].split()[0]) if lines else ""
    library = "# nccl-tests version 2.18.3 nccl-headers=22703 nccl-library=22703\n"
    return f"{library}{start}{sizes}\n#\n# Using devices\n{ranks}{HEADER}{rows}{FOOTER}"


def read(text: str, **told: object) -> Reading:
    return read_measurements(text, "run.txt", ReadOptions(**told))  # type: ignore[arg-type]


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_row_becomes_a_point_with_all_that_the_text_says() -> None:
    text = output()
    found = read(text)
    assert [(p.message_bytes, p.time_s / US) for p in found.points] == [
        (8192, Fraction("32.12")),
        (16384, Fraction("32.74")),
        (67108864, Fraction("466.1")),
    ]
    assert found.points[1] == MeasuredPoint(
        "all_reduce",
        16,
        2,
        "NVIDIA H100 80GB HBM3",
        "NCCL 2.27.3",
        "float",
        "out-of-place",
        16384,
        Fraction("32.74") * US,
        f"run.txt:{line_of(text, ' 16384 ')}",
    )
    assert (found.dropped, found.notes) == ((), ())


def test_the_in_place_columns_are_read_where_they_are_asked_for() -> None:
    found = read(output(), is_in_place=True)
    assert [p.time_s / US for p in found.points] == [
        Fraction("31.67"),
        Fraction("32.24"),
        Fraction("466.3"),
    ]
    assert {p.mode for p in found.points} == {"in-place"}
    row = "1048576 262144 float sum -1 20.00 52.43 91.75 0\n"
    text = output(row, rank_lines({"a": 8}))
    one_group = text.replace("     time   algbw   busbw #wrong\n", "\n")
    assert len(read(one_group).points) == 1
    with pytest.raises(InputError, match="no in-place columns"):
        read(one_group, is_in_place=True)


def test_older_output_and_what_a_log_mixes_in() -> None:
    # no "Collective test starting", no Group, the root column only; lines of NCCL in between
    text = output(program="").replace(" Group  0", "")
    text = text.replace(
        "#\n# Using", "mpirun: warning\n$ ./build/all_reduce_perf -b 8 -f 2\n# Using"
    )
    noise = "node-a:28281:28300 [0] NCCL INFO Channel 00\nNCCL version 2.30.3+cuda13.0\n"
    text = text.replace(ROWS, ROWS.replace("\n", "\n" + noise, 1))
    found = read(text)
    assert [p.operation for p in found.points] == ["all_reduce"] * 3
    assert [p.library for p in found.points] == ["NCCL 2.30.3"] * 3
    assert found.points[0].servers == 2
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in output().splitlines())
    assert len(read(tagged).points) == 3
    indented = "".join(f"    {line}\n" for line in output().splitlines())
    assert len(read(indented).points) == 3


def test_several_tests_in_one_text_are_told_apart() -> None:
    row = "1048576 65536 float none -1 20.00 52.43 45.88 0 21.00 49.93 43.69 0\n"
    gathered = output(row.replace("65536", "32768"), rank_lines({"a": 8}), "all_gather_perf")
    found = read(output() + "$ next\n" + gathered)
    assert Counter((p.operation, p.ranks, p.servers) for p in found.points) == {
        ("all_reduce", 16, 2): 3,
        ("all_gather", 8, 1): 1,
    }


@pytest.mark.parametrize(
    ("columns", "operation"),
    [
        # 1 MiB on 8 ranks in 20 µs is 52.43 GB/s; factors are 1.75, 0.875 and 1
        ("1048576 262144 float sum -1 20.00 52.43 91.75 0", "all_reduce"),
        ("1048576 32768 float sum -1 20.00 52.43 45.88 0", "reduce_scatter"),
        ("1048576 262144 float sum 0 20.00 52.43 52.43 0", "reduce"),
        ("1048576 262144 float none 0 20.00 52.43 52.43 0", "broadcast"),
        ("1048576 262144 float none -1 20.00 52.43 52.43 0", "send"),
        ("1048576 262144 float -1 20.00 52.43 52.43 0", "send"),  # redop left blank
    ],
)
def test_an_operation_without_a_name_is_told_by_its_columns(columns: str, operation: str) -> None:
    one_group = HEADER.replace("     time   algbw   busbw #wrong\n", "\n")
    text = output("", rank_lines({"a": 8}), "").replace(HEADER, f"{one_group}{columns}\n")
    assert [p.operation for p in read(text).points] == [operation]


def test_an_all_gather_looks_like_an_all_to_all_so_somebody_must_say() -> None:
    row = "1048576 32768 float none -1 20.00 52.43 45.88 0 21.00 49.93 43.69 0\n"
    text = output(row, rank_lines({"a": 8}), "")
    with pytest.raises(InputError, match="all_gather or all_to_all; say --operation"):
        read(text)
    assert [p.operation for p in read(text, operation="all_to_all").points] == ["all_to_all"]
    with pytest.raises(InputError, match="all_gather or all_to_all"):
        read(text, operation="all_reduce")
    # the size is that of all parts: 32768 floats of each of 8 ranks
    assert read(text, operation="all_gather").points[0].message_bytes == 8 * 32768 * 4


def test_wrong_results_are_left_out_and_counted() -> None:
    wrong = ROWS.replace("0.94      0", "0.94      7").replace("269.85      0", "269.85    N/A")
    found = read(output(wrong).replace("values : 0 OK", "values : 7 FAILED"))
    assert [p.message_bytes for p in found.points] == [8192, 67108864]
    assert found.dropped == (("wrong results (#wrong above 0)", 1),)
    in_place = read(output(wrong), is_in_place=True)
    assert len(in_place.points) == 3
    assert in_place.notes == ("results were not checked (#wrong is N/A)",)
    assert len(read(output(ROWS.replace(" 0\n", " 0e+00\n"))).points) == 3


def test_a_failed_test_that_does_not_say_which_size_is_refused() -> None:
    text = output().replace("values : 0 OK", "values : 7 FAILED")
    with pytest.raises(InputError, match="no row says of which size") as caught:
        read(text)
    assert caught.value.source == f"run.txt:{line_of(text, 'FAILED')}"


def test_sizes_that_were_rounded_down_to_nothing_are_left_out() -> None:
    rows = (
        "0 0 float none -1 0.12 0.00 0.00 0 0.11 0.00 0.00 0\n"
        "1048576 32768 float none -1 20.00 52.43 45.88 0 21.00 49.93 43.69 0\n"
    )
    text = output(rows, rank_lines({"a": 8}), "all_gather_perf")
    found = read(text)
    assert len(found.points) == 1
    assert found.dropped == (("size rounded down to nothing (0 B)", 1),)
    with pytest.raises(InputError, match="size = '0': must be at least 1"):
        read(text.replace("0 0 float", "0 1 float"))


def bad(part: str, instead: str, rows: str = ROWS) -> str:
    assert part in rows
    return output(rows.replace(part, instead, 1))


@pytest.mark.parametrize(
    ("text", "part", "rule"),
    [
        (bad("32.74    0.50", "3x.74    0.50"), " 16384 ", "time = '3x.74': must be a number"),
        (bad("32.74    0.50", "-32.74   0.50"), " 16384 ", "a time must be more than 0"),
        (bad("32.74    0.50", "0.00    0.50"), " 16384 ", "a time must be more than 0"),
        (bad("       16384 ", "      -16384 "), " -16384 ", "size = '-16384': must be at least 1"),
        (bad("       16384 ", "     1.6e4 "), "1.6e4", "must be a whole number"),
        (bad("0.95      0\n", "0.95\n"), " 16384 ", "a row of 12 columns under a header of 13"),
        (bad("0.50    0.94", "0.94    0.50"), " 16384 ", "algbw and busbw are swapped"),
        (bad("0.50    0.94", "0.50    0.50"), " 16384 ", "busbw = '0.50': this is the algbw"),
        (bad("0.50    0.94", "0.94    0.94"), " 16384 ", "holds the bus bandwidth"),
        (bad("0.50    0.94", "0.50    0.97"), " 16384 ", "another operation, or other ranks"),
        (bad("0.50    0.94", "0.70    0.94"), " 16384 ", "is not size/time"),
        (bad("0.50    0.94", "abc    0.94"), " 16384 ", "algbw = 'abc': must be a number"),
        (output().replace(FOOTER, ""), "#       size", "ends early: no line"),
        (output() + output().replace(FOOTER, ""), "#       size", "ends early: no line"),
        (output("").replace("#\n# Using", "# Using"), "# Avg", "it has no rows"),
        (output(program="hypercube_perf"), "#       size", "no operation has this name"),
        (output(ranks=TWO_HOSTS + TWO_HOSTS), "", "this rank appears twice"),
        (output(ranks=""), "#       size", "say it with --ranks"),
        (output(ranks=rank_lines({"a": 1})), "#       size", "communicates with nobody"),
        (output(ranks="#  Rank  0 Group  0 somewhere\n"), "#  Rank", "must name its process"),
        (output().replace("  time ", "  cputime "), "#       size", "measure without -C"),
        (output().replace("busbw ", "bus "), "#       size", "needs its algbw and busbw"),
        (
            output(ranks=TWO_HOSTS + rank_lines({"c": 4}, group=1, first=16)),
            "#       size",
            "2 groups of ranks are not alike",
        ),
    ],
)
def test_a_line_that_cannot_be_meant_is_named_with_its_rule(
    text: str, part: str, rule: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert rule in str(caught.value)
    if part and text.count(part) == 1:
        assert str(caught.value).startswith(f"run.txt:{line_of(text, part)}: ")
    assert str(caught.value).startswith("run.txt:")


def test_a_table_that_stops_before_the_last_size_asked_for_ends_early() -> None:
    text = output()
    asked = "maxBytes 67108864 "
    assert asked in text
    # the next size would have been 128 MiB: one byte less is the least that was not asked for
    assert len(read(text.replace(asked, "maxBytes 134217727 ")).points) == 3
    with pytest.raises(InputError, match="at 67108864 B, though 134217728 B were asked for"):
        read(text.replace(asked, "maxBytes 134217728 "))
    reduced = "# Reducing maxBytes to 67108864 due to memory limitation\n#\n# Using"
    assert read(text.replace(asked, "maxBytes 134217728 ").replace("#\n# Using", reduced)).points
    # in steps of 1 MiB; up to 16 B a rank may have been rounded away
    steps = text.replace("step: 2(factor)", "step: 1048576(bytes)")
    near = 67108864 + 2**20 + 16 * 16
    assert read(steps.replace(asked, f"maxBytes {near - 1} ")).points
    with pytest.raises(InputError, match="ends early"):
        read(steps.replace(asked, f"maxBytes {near} "))


def test_printed_bandwidths_may_be_off_by_their_rounding_and_no_more() -> None:
    # 67108864 B in 466.05 to 466.15 µs: 143.964 to 143.9950 GB/s, so 143.96 to 144.00 is printed;
    # times 1.875 it is 269.933 to 269.9906, so 269.93 to 269.99
    for algbw, busbw in (("143.96", "269.93"), ("144.00", "269.99")):
        assert read(bad("143.99  269.98", f"{algbw}  {busbw}")).points
    for algbw, busbw in (("143.95", "269.98"), ("144.01", "269.98")):
        with pytest.raises(InputError, match="algbw"):
            read(bad("143.99  269.98", f"{algbw}  {busbw}"))
    for busbw in ("269.92", "270.00"):
        with pytest.raises(InputError, match="busbw"):
            read(bad("143.99  269.98", f"143.99  {busbw}"))


def test_an_all_gather_of_before_2020_prints_its_bus_bandwidth_twice() -> None:
    row = "1048576 32768 float none -1 20.00 45.88 45.88 0 21.00 43.69 43.69 0\n"
    found = read(output(row, rank_lines({"a": 8}), "all_gather_perf"))
    assert [p.time_s for p in found.points] == [20 * US]
    assert "algbw holds the bus bandwidth" in found.notes[0]


def test_groups_of_ranks_that_run_at_once_count_once() -> None:
    ranks = rank_lines({"a": 4, "b": 4}) + rank_lines({"a": 4, "b": 4}, group=1)
    row = "1048576 262144 float sum -1 20.00 52.43 91.75 0 21.00 49.93 87.38 0\n"
    assert [(p.ranks, p.servers) for p in read(output(row, ranks)).points] == [(8, 2)]


def test_ranks_are_taken_as_told_where_the_lines_are_cut_off() -> None:
    found = read(output(ranks=""), ranks=16, servers=2)
    assert [(p.ranks, p.servers, p.system) for p in found.points] == [(16, 2, "unstated")] * 3
    with pytest.raises(InputError, match="another operation, or other ranks"):
        read(output(ranks=""), ranks=4)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AllReduce", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("alltoall", "all_to_all"),
        ("all-to-all", "all_to_all"),
        ("sendrecv_perf", "send"),
        ("Reduce", "reduce"),
        ("reduce_scatter", "reduce_scatter"),
    ],
)
def test_operations_go_by_many_names(text: str, name: str) -> None:
    assert operation_named(text, "here") == name


def test_rounds_and_factors_of_a_ring() -> None:
    found = {name: (ring_rounds(name, 8), ring_factor(name, 8)) for name in ("all_reduce", "send")}
    assert found == {"all_reduce": (14, Fraction(7, 4)), "send": (1, 1)}
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        assert (ring_rounds(name, 8), ring_factor(name, 8)) == (7, Fraction(7, 8))
    for name in ("broadcast", "reduce"):
        assert (ring_rounds(name, 8), ring_factor(name, 8)) == (7, 1)


@needs_published
def test_the_published_nccl_tests_rows_are_read_and_corrupt_runs_left_out() -> None:
    found = read_files([str(PUBLISHED / "nccl_rows.csv")], ReadOptions(servers=2))
    assert len(found.points) == 80  # 176 rows: half is in-place, and 8 of each half are corrupt
    assert dict(found.dropped)["a run named corrupt_*"] == 16
    hgx = {p.message_bytes: p.time_s for p in found.points if p.system == "hgx2"}
    assert (len(hgx), hgx[16384]) == (32, Fraction("32.74") * US)


@needs_published
def test_all_published_collectives_are_read() -> None:
    files = [str(PUBLISHED / name) for name in ("aic_nccl_perf.csv", "custom_allreduce.csv")]
    found = read_files(files)
    assert (len(found.points), found.dropped) == (3696 + 1886, ())
    deepep = read_files([str(PUBLISHED / "aic_deepep_ll.csv")], ReadOptions(cards_per_server=8))
    assert (len(deepep.points), deepep.dropped) == (2 * 1056, ())
