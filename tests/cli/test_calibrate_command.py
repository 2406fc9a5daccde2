"""`supernode calibrate`: what it prints, its document, the fabric it writes, and its errors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from instances.hardware import FabricSpec
from instances.io import example_text
from optimizer.calibration.document import CalibrationDocument

Capture = pytest.CaptureFixture[str]

#: On 8 ranks 14 rounds of 1 µs, and 1.75 B for every byte at 175 GB/s: 14 µs and 10 ns for every
#: 1000 B; an AllGather takes half of that. On 2 ranks there are two sizes only.
TIMES = """\
system,nccl_version,op,dtype,num_gpus,size_bytes,latency_us_median
lab,2.27.3,all_reduce,half,8,1000,14.01
lab,2.27.3,all_reduce,half,8,10000,14.1
lab,2.27.3,all_reduce,half,8,100000,15
lab,2.27.3,all_reduce,half,8,1000000,24
lab,2.27.3,all_gather,half,8,1000,7.005
lab,2.27.3,all_gather,half,8,10000,7.05
lab,2.27.3,all_gather,half,8,100000,7.5
lab,2.27.3,all_reduce,half,2,1000,3
lab,2.27.3,all_reduce,half,2,10000,4
"""
TOGETHER = """\
message_bytes,communication_alone_ms,compute_alone_ms,together_ms
64MiB,36.92,11.03,45.24
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "times.csv"
    path.write_text(TIMES)
    return str(path)


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(["calibrate", *arguments])
    return code, *capsys.readouterr()


def rows_of(out: str, start: str) -> list[list[str]]:
    """Return the words of the lines below the one that starts so, up to an empty line."""
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    rows = []
    for line in lines[first + 1 :]:
        if not line.strip():
            break
        rows.append(line.split())
    return rows


def test_it_prints_fits_and_their_errors_by_size(capsys: Capture, file: str) -> None:
    code, out, err = call(capsys, file, "--servers", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"{file}: 9 measured times of collectives"
    fits = rows_of(out, "T = rounds")
    assert fits[1] == [
        *("1", "all_reduce", "lab", "NCCL", "2.27.3", "half", "unstated", "8/1", "4"),
        *("1us", "175GB/s", "1.00", "kB", "1.00", "MB"),
    ]
    assert fits[2][1:2] + fits[2][8:] == [
        *("all_gather", "3", "1us", "175GB/s", "1.00", "kB", "100.00", "kB"),
    ]
    assert fits[3][-2:] == ["not", "fitted"]
    assert "3 is not fitted: 2 sizes are fewer than the 3 a line needs" in out
    errors = rows_of(out, "Relative error of the fit")
    assert errors[0] == ["1", "kB", "10", "kB", "100", "kB", "1", "MB"]
    assert errors[1] == ["1", *["0.0/0.0%"] * 4]


def test_filters_choose_and_outliers_are_named(capsys: Capture, file: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.csv"
    slow.write_text(TIMES.replace(",14.1\n", ",30.01\n"))
    wanted = (str(slow), "--operation", "AllReduce", "--ranks", "8", "--json")
    code, out, _ = call(capsys, *wanted)
    assert code == 0
    found = CalibrationDocument.model_validate_json(out)
    assert [(g.operation, g.ranks, g.num_points) for g in found.groups] == [("all_reduce", 8, 4)]
    # 30.01 is more than twice 14.01 and 15, but not 2.1 times 15
    for factor, left in (("2", 3), ("2.1", 4)):
        document = json.loads(call(capsys, *wanted, "--drop-outliers", factor)[1])
        assert document["groups"][0]["num_points"] == left
        assert [d["count"] for d in document["dropped"]] == [1] * (4 - left)
    dropped = json.loads(call(capsys, *wanted, "--drop-outliers", "200%")[1])["dropped"]
    assert dropped[0]["reason"].endswith(f"slower than 2 times both neighbours: {slow}:3")


def test_the_document_is_all_that_json_prints(capsys: Capture, file: str) -> None:
    code, out, err = call(capsys, file, "--json", "--within", "5%")
    assert (code, err) == (0, "")
    found = CalibrationDocument.model_validate_json(out)
    assert found.files == [file]
    fit = found.groups[0].fit
    assert fit is not None
    assert (fit.rounds, fit.factor, fit.alpha, fit.bandwidth) == (14, "7/4", "1us", "175GB/s")
    assert (fit.tolerance, fit.holds and fit.holds.num_sizes) == (0.05, 4)
    assert found.groups[0].servers is None


def test_overlaps_are_shown_and_read_from_standard_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TOGETHER))
    code, out, _ = call(capsys, "-")
    assert code == 0
    assert "1 sizes of communication and computation at once" in out.splitlines()[0]
    assert rows_of(out, "Communication and computation")[1] == [
        *("64", "MiB", "36.92", "ms", "11.03", "ms", "—", "—", "45.24", "ms", "2.710", "ms"),
        "24.6%",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(TOGETHER))
    (overlap,) = json.loads(call(capsys, "-", "--json")[1])["overlaps"]
    assert overlap["hidden_share_exact"] == "271/1103"


def test_a_fabric_is_written_that_an_instance_takes_inline(
    capsys: Capture, file: str, tmp_path: Path
) -> None:
    output = tmp_path / "fabric.json"
    wanted = ("--ranks", "8", "--servers", "1", "--policy", "log_linear", "--name", "lab fabric")
    code, _, err = call(capsys, file, *wanted, "--source", "Lab note 7", "-o", str(output))
    assert (code, err) == (0, "")
    entry = json.loads(output.read_text())
    assert set(entry) == {"name", "alpha_s", "bandwidth_bytes_per_s", "measured", "sources"}
    fabric = FabricSpec.model_validate(entry)
    assert (fabric.name, entry["alpha_s"]) == ("lab fabric", "1us")
    assert [(t.operation, t.policy) for t in fabric.measured] == [
        ("all_reduce", "log_linear"),
        ("all_gather", "log_linear"),
    ]
    assert entry["sources"]["alpha_s"].startswith("Lab note 7, file times.csv")
    instance: dict[str, Any] = json.loads(example_text("one-session-50ms"))
    instance["fleet"]["pools"][0] |= {"fabric_between": entry}
    instance["fleet"]["pools"][0]["server"] = {"base": "hgx-h100", "fabric": entry}
    problem = tmp_path / "instance.json"
    problem.write_text(json.dumps(instance))
    assert run(["solve", str(problem), "--time-limit", "20", "--threads", "1"]) == 0
    # a ring of 14 rounds of 1 µs and 1.75 · 10 KiB at 175 GB/s: 41.18 ms for rounds of 0.822 µs
    assert "TP8 (ring)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["-o", "{tmp}/f.json"],
            "there are 2: all_reduce on 8 ranks (lab, NCCL 2.27.3, half); all",
        ),
        (["-o", "{tmp}/f.json", "--ranks", "2"], "not fitted: 2 sizes are fewer"),
        (["-o", "{tmp}/f.json", "--ranks", "8"], "--servers: say on how many servers the 8 ranks"),
        (["-o", "{tmp}/none/f.json", "--ranks", "8"], "does not exist"),
        (["--system", "hall"], "--system = 'hall': no measurement is left with it; there are: lab"),
        (["--ranks", "4"], "--ranks = 4: no measurement is left with it; there are: 2, 8"),
        (["--operation", "scatter"], "--operation: operation = 'scatter': no operation has this"),
        (["--within", "0"], "must be more than 0"),
        (["--within", "much"], "is not a quantity"),
        (["--policy", "nearest"], "'nearest' is not one of"),
        (["{tmp}/absent.csv"], "absent.csv: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    capsys: Capture, file: str, tmp_path: Path, arguments: list[str], rule: str
) -> None:
    told = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    code, out, err = call(capsys, file, *told)
    assert (code, out) == (2, "")
    assert rule in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "f.json").exists()


def test_a_bad_line_is_named(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(TIMES.replace(",14.1\n", ",-14.1\n"))
    code, out, err = call(capsys, str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}:3: latency_us_median = '-14.1': a time must be more")


def test_many_groups_are_counted_where_they_are_not_shown(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    lines = [f"all_reduce,{n},{size},1{n}" for n in range(2, 28) for size in (8, 16, 32)]
    path.write_text("op,ranks,message_bytes,time_us\n" + "\n".join(lines) + "\n")
    code, out, _ = call(capsys, str(path))
    assert code == 0
    assert "and 2 more groups (--json has all" in out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from cli.main import run; run(['--help']); run(['calibrate', '--help']); "
        "print([m for m in ('numpy', 'rich', 'pydantic', 'optimizer') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert "calibrate" in ran.stdout
