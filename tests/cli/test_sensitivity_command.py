"""`supernode sensitivity`: what it prints, its document, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from cli.main import run
from cli.sensitivity import short_names
from instances.io import example_text
from optimizer.sensitivities.document import SensitivityDocument

Capture = pytest.CaptureFixture[str]
ALPHA = "fleet.pools[0].server.fabric.alpha_s"
WIRE = "fleet.pools[0].server.fabric.bandwidth_bytes_per_s"
POWER = "fleet.pools[0].server.power_w"


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(["sensitivity", *arguments])
    return code, *capsys.readouterr()


def row_of(out: str, name: str) -> str:
    return next(line for line in out.splitlines() if line.strip().startswith(name))


def test_it_prints_thresholds_by_influence_and_what_matters_most(capsys: Capture) -> None:
    wanted = ("--input", ALPHA, "--input", WIRE, "--input", POWER)
    code, out, err = call(capsys, "one-session-50ms", *wanted)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "one-session-50ms: 8 cards = 1 instance × TP8 (ring)"
    assert lines[1] == "objective  cost_per_on_time_session = 0.3294 card·s"
    # 41.18 ms + 14336 (alpha - 0.822 us) = 50 ms at 1.438 us; no change down to alpha = 0
    assert row_of(out, "fabric.alpha_s").split() == [
        *("fabric.alpha_s", "822.0", "ns", "−0.04714", "—", "1.438", "µs", "nothing", "fits"),
    ]
    wire = row_of(out, "fabric.bandwidth_bytes_per_s")
    assert lines.index(row_of(out, "fabric.alpha_s")) < lines.index(wire)
    assert "no effect within reach: server.power_w" in lines
    assert (
        "fabric.alpha_s moves the objective most of all times, rates and bytes: "
        "halving it saves 0.04714 card·s (736.5 µs a step)"
    ) in lines
    assert (
        "fabric.bandwidth_bytes_per_s: doubling it saves 0.0001631 card·s (2.549 µs a step)"
    ) in lines


def test_signs_tell_what_is_proven_and_where_the_other_plan_starts(
    capsys: Capture, tmp_path: Path
) -> None:
    # the deadline at which TP8 has both sessions on time: up to it, but not at it, TP4 is best
    document = json.loads(example_text("one-session-50ms"))
    document["workload"]["cohorts"][0] |= {"num_sessions": 2, "deadline_s": "70ms"}
    document["objective"] = {"minimise": ["mean_completion"]}
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document), "utf-8")
    code, out, _ = call(capsys, str(path), "--input", "workload.cohorts[*].deadline_s")
    assert code == 0
    assert "< 82.35 ms" in row_of(out, "cohorts[0].deadline_s")
    assert "1 × TP8 (ring)" in out
    peak = "fleet.pools[0].server.accelerator.peak_flops_per_s.bf16"
    code, out, _ = call(capsys, "one-session-50ms", "--input", peak)
    assert "GFLOP/s*" in row_of(out, "peak_flops_per_s.bf16")
    assert "* nearest found; a nearer change is not ruled out" in out.splitlines()


def test_the_document_goes_to_a_file_and_to_the_reader(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "alpha.json"
    arguments = ("one-session-50ms", "--input", ALPHA, "--json", "-o", str(path))
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "")
    assert path.read_text("utf-8") == out
    found = SensitivityDocument.model_validate_json(out)
    assert found.to_json() == out
    jsonschema.validate(json.loads(out), SensitivityDocument.model_json_schema())
    assert [item.path for item in found.inputs] == [ALPHA]
    assert found.inputs[0].up is not None
    assert found.inputs[0].up.plan is None
    assert call(capsys, *arguments)[1] == out  # the same bytes again


def test_bad_paths_and_outputs_are_one_line(capsys: Capture, tmp_path: Path) -> None:
    for wrong, word in (
        ("fleet.pools[0].server.fabric.beta_s", "no such field"),
        ("fleet.pools[9].num_servers", "numbered from 0"),
        ("fleet.pools[0].name", "not a numeric field"),
        (".fleet", "is not a path"),
    ):
        code, out, err = call(capsys, "four-sessions-128k", "--input", wrong)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert word in err
    missing = str(tmp_path / "no" / "such.json")
    code, _, err = call(capsys, "four-sessions-128k", "-o", missing)
    assert code == 2
    assert "cannot be written" in err


def test_an_infeasible_instance_points_to_explain(capsys: Capture) -> None:
    code, out, err = call(capsys, "infeasible-deadline")
    assert (code, out) == (3, "")
    assert err.startswith("infeasible-deadline is infeasible: cohort 'chat'")
    assert err.endswith("`supernode explain infeasible-deadline` says what would help\n")
    assert err.count("\n") == 1


def test_a_limit_without_proof_has_its_own_code(capsys: Capture) -> None:
    code, out, err = call(capsys, "mixed-wins", "--time-limit", "0", "--input", ALPHA)
    assert (code, out) == (4, "")
    assert "no plan was proven optimal" in err


def test_help_loads_no_solver() -> None:
    script = (
        "import sys\nfrom cli.main import run\nrun(['sensitivity', '--help'])\n"
        "print([name for name in ('ortools', 'highspy', 'pulp', 'rich') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8")
    assert ran.returncode == 0
    assert "--input PATH" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_names_are_as_short_as_they_tell_inputs_apart() -> None:
    paths = ["a[0].server.fabric.alpha_s", "a[0].fabric.alpha_s", "a[1].fabric.alpha_s", "top"]
    assert list(short_names(paths).values()) == [
        "server.fabric.alpha_s",
        "a[0].fabric.alpha_s",
        "a[1].fabric.alpha_s",
        "top",
    ]


def test_links_of_a_topology_are_inputs_and_some_cannot_be_doubled(
    capsys: Capture, tmp_path: Path
) -> None:
    """Twice 18 ports of eight cards are more than four switches of 64 have."""
    document = json.loads(example_text("one-session-50ms"))
    document["fleet"]["pools"][0]["server"] = {"base": "hgx-h100", "fabric": "nvlink-4-nvswitch"}
    path = tmp_path / "links.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    topology = "fleet.pools[0].server.fabric.topology"
    names = ("start_s", "ports_per_card", "port_bandwidth_bytes_per_s")
    wanted = [word for name in names for word in ("--input", f"{topology}.{name}")]
    code, out, err = call(capsys, str(path), *wanted)
    assert (code, err) == (0, "")
    assert "start_s moves the objective most" in out
    assert "ports_per_card: " not in out
    # 128 · 14 · 1280 B / 450 GB/s = 5.097 us a step, of which doubling a port saves half
    assert "port_bandwidth_bytes_per_s: doubling it saves" in out
    assert "(2.549 µs a step)" in out
