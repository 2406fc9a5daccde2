"""`supernode solve` and `verify` for pipeline cuts and expert placements, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from commands import Capture, call
from instances.io import example_text

STAGES, EXPERTS = "r1-bf16-64xa800-stages", "qwen3-235b-experts-skewed"
SIDE_EXAMPLES = (STAGES, EXPERTS)

Document = dict[str, Any]


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds the words."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def save(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def example(name: str) -> Document:
    document: Document = json.loads(example_text(name))
    return document


def put(path: str, value: Any) -> Callable[[Document], None]:
    """Set a field of a document; the path is written "plan.stages", list places as numbers."""

    def apply(document: Document) -> None:
        *parents, last = path.split(".")
        node: Any = document
        for part in parents:
            node = node[int(part) if part.isdecimal() else part]
        assert last not in node or node[last] != value
        node[last] = value

    return apply


@pytest.mark.parametrize("name", SIDE_EXAMPLES)
def test_a_decision_is_solved_written_and_verified(
    name: str, capsys: Capture, tmp_path: Path
) -> None:
    schema = json.loads(call(capsys, "schema", "side-result")[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    target = tmp_path / "result.json"
    code, out, err = call(capsys, "solve", name, "--json", "-o", str(target))
    assert (code, err) == (0, "")
    document = json.loads(out)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert target.read_text(encoding="utf-8") == out
    assert document["termination"] == "optimal"
    code, out, err = call(capsys, "solve", name)
    assert (code, err) == (0, "")
    assert f"{name}: optimal, verified in " in out
    assert f"plan       {document['plan']['sentence']}\n" in out
    assert "second opinion: " in out
    titles = {line.strip() for line in out.splitlines()}
    assert ("Stages" in titles, "Expert groups" in titles) == (name == STAGES, name == EXPERTS)
    code, out, err = call(capsys, "verify", name, str(target))
    assert (code, err) == (0, "")
    assert f"{name}: the plan holds" in out
    code, out, err = call(capsys, "verify", name, str(target), "--json")
    assert (code, err) == (0, "")
    judged = json.loads(out)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["evaluation"] == document["evaluation"]
    assert list(judged["objective"].values()) == [document["objective"]["verified_exact"]]


def test_equal_runs_print_equal_bytes(capsys: Capture) -> None:
    for name in SIDE_EXAMPLES:
        arguments = ("solve", name, "--json", "--threads", "1", "--seed", "7")
        first, second = (call(capsys, *arguments)[1] for _ in range(2))
        assert re.sub(r'"seconds": [0-9.]+', "", first) == re.sub(r'"seconds": [0-9.]+', "", second)


def test_verify_accepts_a_hand_written_cut_and_judges_it(capsys: Capture, tmp_path: Path) -> None:
    even = save(tmp_path / "even.json", {"stages": [8, 8, 8, 8, 8, 7, 7, 7]})
    code, out, err = call(capsys, "verify", STAGES, even)
    assert (code, err) == (0, "")
    assert "objective  tokens = 6611210\n" in out
    bad = save(tmp_path / "bad.json", {"stages": [7, 8, 8, 8, 8, 7, 7, 7]})
    code, out, err = call(capsys, "verify", STAGES, bad)
    assert (code, err) == (5, "")
    assert "layer_count at cut: the stages have 60 layers, the model 61" in out
    long = save(tmp_path / "long.json", {"stages": [54, 1, 1, 1, 1, 1, 1, 1]})
    code, out, err = call(capsys, "verify", STAGES, long, "--json")
    assert (code, err) == (5, "")
    (broken,) = json.loads(out)["evaluation"]["violations"]
    assert (broken["rule"], broken["where"], broken["unit"]) == ("memory", "stage 0", "B")
    assert broken["amount"] > 0


def test_verify_measures_what_a_placement_breaks(capsys: Capture, tmp_path: Path) -> None:
    wrong: list[list[int]] = [[e % 8] for e in range(128)]
    wrong[0], wrong[1], wrong[2] = [], [8], [0, 1, 2]
    path = save(tmp_path / "placement.json", {"experts": wrong})
    code, out, err = call(capsys, "verify", EXPERTS, path, "--json")
    assert (code, err) == (5, "")
    found = {
        (v["rule"], v["where"]): v["amount"] for v in json.loads(out)["evaluation"]["violations"]
    }
    assert found[("unplaced", "expert 0")] == 1
    assert found[("group", "expert 1")] == 1
    assert found[("copies", "expert 2")] == 1
    # 288 MiB hold 8 experts of 3 · 4096 · 1536 · 2 B = 36 MiB: ten copies are two too many.
    full = [[e % 8, *([(e + 1) % 8] if e < 10 else [])] for e in range(128)]
    path = save(tmp_path / "full.json", {"experts": full})
    code, out, err = call(capsys, "verify", EXPERTS, path, "--json")
    assert (code, err) == (5, "")
    found = {
        (v["rule"], v["where"]): v["amount"] for v in json.loads(out)["evaluation"]["violations"]
    }
    assert found[("replica_budget", "placement")] == 2 * 36 * 2**20


TAMPERED = [
    (STAGES, "plan.stages", [7, 9, 8, 8, 8, 7, 7, 7], "plan_sha256 differs"),
    (STAGES, "objective.verified_exact", "6611211", "not 6611211"),
    (STAGES, "objective.verified", 1.0, "verified tokens is 1.0"),
    (STAGES, "objective.claimed", 7e6, "claimed tokens is 7000000.0"),
    (STAGES, "objective.bound_exact", "6611211", "does not meet its bound"),
    (STAGES, "certificate.instance_sha256", "0" * 64, "another problem instance"),
    (STAGES, "certificate.plan_sha256", "0" * 64, "plan_sha256 differs"),
    (EXPERTS, "plan.experts", [[e // 16] for e in range(128)], "busiest_group is"),
    (EXPERTS, "objective.verified_exact", "1/3", "not 1/3"),
]


@pytest.mark.parametrize(("name", "path", "value", "said"), TAMPERED)
def test_verify_rejects_a_tampered_result(
    name: str, path: str, value: Any, said: str, capsys: Capture, tmp_path: Path
) -> None:
    result = json.loads(call(capsys, "solve", name, "--json")[1])
    put(path, value)(result)
    target = save(tmp_path / "result.json", result)
    code, out, err = call(capsys, "verify", name, target)
    assert (code, err) == (5, "")
    assert "does not hold" in out
    assert said in " ".join(out.split())
    code, out, err = call(capsys, "verify", name, target, "--json")
    assert (code, err) == (5, "")
    assert any(said in line for line in json.loads(out)["mismatches"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "[]", "{", "{}", '{"plan": 5}', '{"plan": [1]}', '{"plan": null}'),
        *('{"stages": 8}', '{"stages": [1.5]}', '{"stages": [true]}', '{"stages": ["8"]}'),
        *('{"experts": [[0]]}', '{"stages": [8], "x": 1}', '{"stages": [' + "9" * 400 + "]}"),
        '{"plan": {"stages": [8]}, "certificate": 5}',
    ],
)
def test_verify_refuses_what_is_no_cut(text: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    refused(call(capsys, "verify", STAGES, str(path)), "plan.json: ")


def test_a_proof_that_nothing_fits_ends_with_exit_3(capsys: Capture, tmp_path: Path) -> None:
    document = example(STAGES)
    document["workload"]["cohorts"][0]["num_sessions"] = 51  # 51 · 131,072 > 6,611,210 tokens
    target = tmp_path / "result.json"
    path = save(tmp_path / "full.json", document)
    code, out, err = call(capsys, "solve", path, "-o", str(target))
    assert (code, err) == (3, "")
    assert "infeasible, proven" in out
    assert "no plan keeps every card within memory" in out
    refused(call(capsys, "verify", path, str(target)), "holds no plan")
    schema = json.loads(call(capsys, "schema", "side-result")[1])
    jsonschema.Draft202012Validator(schema).validate(json.loads(target.read_text("utf-8")))


BAD_SECTIONS = [
    (EXPERTS, "workload.expert_counts", None, ("workload.expert_counts",)),
    (EXPERTS, "workload.expert_counts", [5, 5], ("workload.expert_counts", "2 counts", "128")),
    (EXPERTS, "stages", {"num_stages": 2}, ("stages", "goes with decision")),
    (EXPERTS, "experts", None, ("experts", "goes with decision")),
    (EXPERTS, "experts.ep", 16, ("experts.ep", "16 cards", "has 8")),
    (EXPERTS, "experts.ep", 0, ("experts.ep",)),
    (EXPERTS, "experts.group_cards", 2, ("experts.ep", "16 cards", "has 8")),
    (EXPERTS, "experts", {"ep": 2, "group_cards": 3}, ("experts.group_cards", "TP3")),
    (EXPERTS, "experts.max_copies", 65, ("experts.max_copies",)),
    (EXPERTS, "experts.replica_budget_bytes", -1, ("experts.replica_budget_bytes",)),
    (EXPERTS, "experts.layer_group", "x", ("experts.layer_group = 'x'", "moe")),
    (EXPERTS, "experts.groups", 8, ("experts.groups", "no such field")),
    (EXPERTS, "model", "qwen3-32b", ("workload.expert_counts", "no experts")),
    (EXPERTS, "decision", "deployment", ("objective", "required")),
    (EXPERTS, "decision", "cuts", ("decision",)),
    (STAGES, "experts", {"ep": 8}, ("experts", "goes with decision")),
    (STAGES, "stages.pools", ["moon"] * 8, ("stages.pools[0]", "'moon'")),
    (STAGES, "stages.pools", ["a800"] * 7, ("stages.pools", "7 pools", "8 stages")),
    (STAGES, "stages", {"num_stages": 62}, ("stages.num_stages = 62", "61")),
    (STAGES, "stages.num_stages", 9, ("stages.num_stages", "72 cards", "has 64")),
    (STAGES, "stages.num_stages", None, ("stages.num_stages",)),
    (STAGES, "stages.goal", "fastest", ("stages.goal",)),
    (STAGES, "stages.tp", 3, ("stages", "TP3")),
    (STAGES, "stages.batch", 0, ("stages.batch",)),
    (STAGES, "search", {"kv_sharing": "lend"}, ("search.kv_sharing",)),
]


@pytest.mark.parametrize(("name", "path", "value", "words"), BAD_SECTIONS)
def test_a_bad_section_is_one_line_that_names_it(
    name: str, path: str, value: Any, words: tuple[str, ...], capsys: Capture, tmp_path: Path
) -> None:
    document = example(name)
    put(path, value)(document)
    target = save(tmp_path / "bad.json", document)
    refused(call(capsys, "solve", target), *words)
    refused(call(capsys, "verify", target, save(tmp_path / "p.json", {"stages": [1]})), *words)


def test_groups_over_servers_need_a_fabric(capsys: Capture, tmp_path: Path) -> None:
    document = example(EXPERTS)
    document["experts"]["ep"] = 16
    document["fleet"]["pools"][0]["num_servers"] = 2
    path = save(tmp_path / "two.json", document)
    refused(call(capsys, "solve", path), "fleet.pools", "fabric_between")
    document["fleet"]["pools"][0]["fabric_between"] = "infiniband-ndr"
    path = save(tmp_path / "two.json", document)
    assert call(capsys, "solve", path, "--time-limit", "0")[0] == 0


def test_solvers_and_options_are_checked(capsys: Capture) -> None:
    refused(call(capsys, "solve", STAGES, "--solver", "abacus"), "'abacus'")
    refused(call(capsys, "solve", STAGES, "--time-limit", "-1"), "--time-limit")
    refused(call(capsys, "solve", STAGES, "-o", "no-such-folder/x.json"), "no-such-folder")


#: Says when the solver of a side decision begins, and keeps it from ending by itself.
INTERRUPTIBLE = """
import signal, sys, time
from cli.main import main
from optimizer.side import decisions
signal.signal(signal.SIGINT, signal.default_int_handler)
def solve(*arguments, stop, **options):
    print("begun", file=sys.stderr, flush=True)
    stop.wait()
    time.sleep(60)
decisions.load_solver = lambda decision: solve
main()
"""


@pytest.mark.parametrize("name", SIDE_EXAMPLES)
def test_an_interrupt_ends_with_the_first_answer(
    name: str, capsys: Capture, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "solve", name, "--json", "--time-limit", "10min"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=dict(os.environ),
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    document = json.loads(out)
    assert (document["termination"], document["limit"]) == ("feasible", "interrupted")
    assert document["objective"]["bound"] is None
    path = save(tmp_path / "result.json", document)
    assert call(capsys, "verify", name, path)[0] == 0
