"""Readers of CSV files: collectives under many headers, DeepEP, and concurrent times."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from instances.errors import InputError
from optimizer.calibration.points import MeasuredPoint, Overlap, Reading, ReadOptions
from optimizer.calibration.readers import read_files, read_measurements

US, MS = Fraction(1, 10**6), Fraction(1, 10**3)

NCCL = """\
system,nccl_version,op,dtype,num_gpus,size_bytes,latency_us_median,repeats
h100_sxm,2.27.3,all_gather,half,8,512,10.39,2
h100_sxm,2.27.3,alltoall,half,4,8192,8.19,2
"""
RUNS = """\
run,collective,nranks,mode,size_bytes,time_us,algbw_GB_s_recomputed,busbw_GB_s_recomputed,row_correct
hgx2,all_reduce,16,out_of_place,16384,32.74,0.5004,0.9383,True
hgx2,all_reduce,16,in_place,16384,32.24,0.5082,0.9529,True
hgx2,all_reduce,16,out_of_place,32768,34.1,0.9609,1.8018,False
corrupt_0,all_reduce,16,out_of_place,16384,32.74,0.5004,0.9383,True
"""
FRAMEWORK = """\
system,framework,version,mode,dtype,num_gpus,message_elems,message_bytes,latency_us
h100_sxm,vllm,0.24.0,vllm_graph,bfloat16,8,4096,8192,5.108
"""
DEEPEP = """\
system,node_num,hidden,num_token,topk,num_experts,dispatch_avg_us,dispatch_gbps,combine_avg_us,combine_gbps,version
h100_sxm,1,2048,8,8,128,10.405,13.089091782796734,11.906,22.01780814816059,0.5.12
"""
TOGETHER = """\
message_bytes,communication_alone_ms,compute_alone_ms,communication_together_ms,compute_together_ms,together_ms
4MiB,2.67,11.53,6.14,11.52,11.58
64MiB,36.92,11.03,45.21,12.89,45.24
"""


def read(text: str, **told: object) -> Reading:
    return read_measurements(text, "t.csv", ReadOptions(**told))  # type: ignore[arg-type]


def test_a_table_of_nccl_latencies() -> None:
    found = read(NCCL)
    assert found.points == (
        MeasuredPoint(
            "all_gather", 8, None, "h100_sxm", "NCCL 2.27.3", "half", "unstated", 512,
            Fraction("10.39") * US, "t.csv:2",
        ),
        MeasuredPoint(
            "all_to_all", 4, None, "h100_sxm", "NCCL 2.27.3", "half", "unstated", 8192,
            Fraction("8.19") * US, "t.csv:3",
        ),
    )  # fmt: skip
    assert {p.servers for p in read(NCCL, servers=1).points} == {1}


def test_a_table_of_runs_leaves_out_what_is_wrong_or_not_asked_for() -> None:
    found = read(RUNS)
    assert [(p.system, p.mode, p.time_s) for p in found.points] == [
        ("hgx2", "out-of-place", Fraction("32.74") * US)
    ]
    assert dict(found.dropped) == {
        "the other of in-place and out-of-place": 1,
        "wrong results (row_correct is False)": 1,
        "a run named corrupt_*": 1,
    }
    in_place = read(RUNS, is_in_place=True)
    assert [p.time_s for p in in_place.points] == [Fraction("32.24") * US]


def test_a_table_of_a_framework_is_one_of_all_reduces() -> None:
    (point,) = read(FRAMEWORK).points
    assert (point.operation, point.library, point.mode) == (
        "all_reduce",
        "vllm 0.24.0",
        "vllm_graph",
    )
    (told,) = read(FRAMEWORK, operation="all_gather").points
    assert told.operation == "all_gather"


def test_columns_may_have_other_names_units_and_quotes() -> None:
    text = (
        '\ufeff"Operation", Ranks,servers,message_bytes,time_ms\n\nreduce-scatter,8,2,64KiB,0.5\n'
    )
    assert read(text).points == (
        MeasuredPoint(
            "reduce_scatter", 8, 2, "unstated", "unstated", "unstated", "unstated", 65536,
            Fraction(1, 2000), "t.csv:3",
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told", "rule"),
    [
        (NCCL.replace("10.39", "-10.39"), {}, "t.csv:2: latency_us_median = '-10.39': a time must"),
        (NCCL.replace("10.39", "0"), {}, "t.csv:2: latency_us_median = '0': a time must"),
        (NCCL.replace("10.39", "nan"), {}, "t.csv:2: latency_us_median = 'nan': must be a number"),
        (NCCL.replace("10.39", "1e99"), {}, "t.csv:2: latency_us_median = '1e99': must be"),
        (NCCL.replace(",512,", ",0,"), {}, "t.csv:2: size_bytes = '0': a message must have at"),
        (NCCL.replace(",512,", ",-512,"), {}, "t.csv:2: size_bytes: '-512' is negative"),
        (NCCL.replace(",512,", ",51x,"), {}, "t.csv:2: size_bytes: '51x' has unknown unit"),
        (NCCL.replace("half,8", "half,1"), {}, "t.csv:2: num_gpus = '1': must be at least 2"),
        (NCCL.replace("half,8", "half,8.0"), {}, "t.csv:2: num_gpus = '8.0': must be a whole"),
        (NCCL.replace("all_gather", "gather"), {}, "t.csv:2: operation = 'gather': no operation"),
        (NCCL.replace(",2\n", "\n"), {}, "t.csv:2: row: 7 columns under a header of 8: the table"),
        (NCCL.splitlines()[0], {}, "t.csv: the table ends early: it has no rows"),
        (NCCL.replace("repeats", "op"), {}, "t.csv:1: op: two columns have this name"),
        (NCCL.replace("repeats", "operation"), {}, "both operation and op say this"),
        (NCCL.replace("repeats", "time_us"), {}, "exactly one column must hold times"),
        (NCCL.replace("latency_us_median", "latency"), {}, "exactly one column must hold times"),
        (NCCL.replace("size_bytes", "size"), {}, "t.csv:1: size: a column must hold sizes"),
        (NCCL.replace(",op,", ",o,"), {}, "say it with --operation"),
        (NCCL.replace("num_gpus", "n"), {}, "t.csv:2: ranks: no column says how many ranks"),
        (NCCL.replace("h100_sxm,2.27.3,all_g", '"h"x,2.27.3,all_g'), {}, "t.csv:2: not CSV"),
        (RUNS.replace(",True\n", ",yes\n"), {}, "t.csv:2: row_correct = 'yes': must be True or"),
        (RUNS.replace("0.5004,0.9383", "0.9383,0.5004"), {}, "algbw and busbw are swapped"),
        (RUNS.replace("0.5004,0.9383", "0.5004,0.5004"), {}, "this is the algbw"),
        (RUNS.replace("nranks", "n"), {"ranks": 8}, "another operation, or other ranks?"),
        ("a text without any table", {}, "t.csv: not a file of measurements"),
        ("", {}, "t.csv: not a file of measurements"),
    ],
)
def test_a_broken_table_is_named_with_line_and_rule(
    text: str, told: dict[str, object], rule: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(text, **told)
    assert rule in str(caught.value)
    assert str(caught.value).startswith("t.csv")


def test_a_row_of_deepep_is_a_dispatch_and_a_combine() -> None:
    # 8 tokens × top-8 × 2048 numbers: 131,072 B in FP8 and twice that in BF16
    found = read(DEEPEP, cards_per_server=8)
    library, mode = "DeepEP, measured with 0.5.12", "hidden 2048, top-8 of 128 experts"
    assert found.points == (
        MeasuredPoint(
            "all_to_all", 8, 1, "h100_sxm", library, "fp8", f"dispatch, {mode}", 131_072,
            Fraction("10.405") * US, "t.csv:2",
        ),
        MeasuredPoint(
            "all_to_all", 8, 1, "h100_sxm", library, "bfloat16", f"combine, {mode}", 262_144,
            Fraction("11.906") * US, "t.csv:2",
        ),
    )  # fmt: skip
    assert "tokens × top-k × hidden" in found.notes[0]
    two_servers = read(DEEPEP.replace("h100_sxm,1,", "h100_sxm,2,"), cards_per_server=4)
    assert {(p.ranks, p.servers) for p in two_servers.points} == {(8, 2)}


@pytest.mark.parametrize(
    ("text", "cards", "rule"),
    [
        (DEEPEP, None, "t.csv:2: node_num = 1: the table counts servers; say how many ranks"),
        (DEEPEP, 1, "one rank alone"),
        (DEEPEP.replace(",8,8,128", ",0,8,128"), 8, "t.csv:2: num_token = '0': must be at least 1"),
        (DEEPEP.replace("10.405", "-1"), 8, "t.csv:2: dispatch_avg_us = '-1': a time must be"),
        # combine moved 22.0178 GB/s · 11.906 µs = 262,144 B; 7 tokens would be 229,376 B
        (DEEPEP.replace(",8,8,128", ",7,8,128"), 8, "combine_gbps = '22.01780814816059': means"),
        # dispatch moved 136,192 B; scales cannot be half of it
        (DEEPEP.replace(",13.08", ",26.08"), 8, "dispatch_gbps"),
    ],
)
def test_a_broken_table_of_deepep(text: str, cards: int | None, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, cards_per_server=cards)
    assert rule in str(caught.value)


def test_overlap_is_what_running_at_once_saves_of_the_shorter_one() -> None:
    small, large = read(TOGETHER).overlaps
    assert small == Overlap(
        2**22, *(Fraction(t) * MS for t in ("2.67", "11.53", "6.14", "11.52", "11.58")), "t.csv:2"
    )
    # 2.67 + 11.53 - 11.58 = 2.62 of 2.67 ms: the communication is hidden
    assert (small.saved_s, small.hidden_share) == (Fraction("2.62") * MS, Fraction(262, 267))
    # 36.92 + 11.03 - 45.24 = 2.71 of 11.03 ms, section 6.4.3 says about 2.7
    assert (large.saved_s, large.hidden_share) == (Fraction("2.71") * MS, Fraction(271, 1103))


@pytest.mark.parametrize(
    ("together", "saved", "share"),
    [
        ("14.20", "0", 0),
        ("14.21", "-0.01", 0),  # slower than one after the other
        ("11.53", "2.67", 1),
        ("11.52", "2.68", 1),  # noise: not even the longer one alone takes so little
    ],
)
def test_the_share_stays_between_nothing_and_all(together: str, saved: str, share: int) -> None:
    lines = "communication_alone_ms,message_bytes,compute_alone_ms,together_ms,note\n"
    (found,) = read(f"{lines}2.67,4MiB,11.53,{together},x\n").overlaps
    assert (found.saved_s, found.hidden_share) == (Fraction(saved) * MS, share)
    assert (found.communication_together_s, found.compute_together_s) == (None, None)


def test_every_time_has_a_unit_of_its_own() -> None:
    text = "message_bytes,communication_alone_us,compute_alone_s,together_ms,compute_together_ns\n"
    (found,) = read(f"{text}8,500,0.001,1.25,\n").overlaps
    assert found.saved_s == Fraction(1, 4000)
    assert found.compute_together_s is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            TOGETHER.replace(",together_ms", ",both_ms"),
            "t.csv:2: together: this column is required",
        ),
        (TOGETHER.replace("communication_alone_ms", "communication_alone"), "its unit at the end"),
        (TOGETHER.replace("compute_alone_ms", "communication_alone_s"), "two columns hold this"),
        (TOGETHER.replace("message_bytes", "size"), "message_bytes: this column is required"),
        (TOGETHER.replace("45.24", "45.20"), "t.csv:3: communication_together = '45.21': both"),
        (TOGETHER.replace("36.92", "-36.92"), "t.csv:3: communication_alone_ms = '-36.92': a time"),
        (TOGETHER.replace("64MiB", "0"), "t.csv:3: message_bytes = '0': a message must have"),
        (TOGETHER.replace(",45.24\n", "\n"), "t.csv:3: row: 5 columns under a header of 6"),
    ],
)
def test_a_broken_table_of_concurrent_times(text: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert rule in str(caught.value)


def test_files_are_read_together_and_nothing_left_is_an_error(tmp_path: Path) -> None:
    for name, text in (("a", NCCL), ("b", RUNS), ("c", RUNS), ("d", TOGETHER)):
        (tmp_path / name).write_text(text)
    found = read_files([str(tmp_path / name) for name in "abcd"])
    assert (len(found.points), len(found.overlaps)) == (4, 2)
    assert dict(found.dropped)["a run named corrupt_*"] == 2
    (tmp_path / "e").write_text("\n".join(RUNS.splitlines()[i] for i in (0, 4)) + "\n")
    with pytest.raises(InputError, match="no measurement is left: 1 × a run named"):
        read_files([str(tmp_path / "e")])
