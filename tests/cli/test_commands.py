"""Every command of `supernode`: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from commands import Capture, call
from instances.catalog_store import catalog_kinds, catalog_names
from instances.io import example_names, example_text

#: Sentence of the best plan of each bundled deployment; None where there is none. Where plans are
#: equally good (expert or sequence parallelism make no difference), "…" stands for the rest.
SENTENCES: dict[str, str | None] = {
    "deepseek-r1-32xh100": "32 cards = 1 instance × DP8·PP4…",
    "deepseek-v4-pro-3xh200": "24 cards = 3 instances × TP8, batch 2 (ring)",
    **{f"four-sessions-{n}": "8 cards = 4 instances × TP2…" for n in ("128k", "32k", "fault")},
    "framework-allreduce": "8 cards = 1 instance × TP8 (measured)",
    "infeasible-deadline": None,
    "long-context-cp": "16 cards = 1 instance × TP8·CP2…",
    "mixed-wins": "8 cards = 2 instances × TP2 (ring) + 1 instance × TP4 (ring)",
    "one-session-50ms": "8 cards = 1 instance × TP8 (ring)",
    "qwen3-235b-8xh100": "8 cards = 1 instance × DP2·TP4…",
    "sixteen-in-one-domain": "8 of 16 cards = 1 instance × TP8 (ring)",
    "two-servers-one-session": "8 of 16 cards = 1 instance × TP8 (ring)",
}
SIDE_EXAMPLES = [n for n in example_names() if "decision" in json.loads(example_text(n))]
COMMANDS = ("solve", "verify", "explain", "model", "schema", "catalog", "examples")

Document = dict[str, Any]


def process(
    *arguments: str, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", *arguments],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=60,
    )


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds the words."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert [word for word in words if word not in err] == []


def save(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def example(name: str) -> Any:
    return json.loads(example_text(name))


def schema_of(capsys: Capture, kind: str) -> Any:
    code, out, err = call(capsys, "schema", kind)
    assert (code, err) == (0, "")
    return json.loads(out)


def group(tp: int, *served: tuple[list[int], list[str]], pool: str = "hgx") -> Document:
    """Serving instances of one kind in server 0: the cards and the sessions of each."""
    return {
        "count": len(served),
        "pool": pool,
        "parallel": {"tp": tp},
        "collective": "ring" if tp > 1 else "none",
        "cards_per_instance": tp,
        "placement": [[{"server": 0, "cards": cards}] for cards, _ in served],
        "sessions": [sessions for _, sessions in served],
    }


BATCH = (([4, 5], ["batch/0"]), ([6, 7], ["batch/1"]))
GOOD_PLAN = {"groups": [group(4, ([0, 1, 2, 3], ["urgent/0"])), group(2, *BATCH)]}


@pytest.mark.parametrize("name", SENTENCES)
def test_solve_prints_the_plan_and_its_proof(name: str, capsys: Capture) -> None:
    code, out, err = call(capsys, "solve", name)
    assert err == ""
    if SENTENCES[name] is None:
        assert code == 3
        assert "infeasible, proven" in out
        assert "needs 41.18 ms" in out
    else:
        assert code == 0
        assert "optimal, verified" in out
        assert f"plan       {SENTENCES[name]}\n".replace("…\n", "") in out
        assert "second opinion: " in out


@pytest.mark.parametrize("name", SENTENCES)
def test_json_fits_its_schema_and_the_output_file_says_the_same(
    name: str, capsys: Capture, tmp_path: Path
) -> None:
    target, again = tmp_path / "result.json", tmp_path / "again.json"
    once = ("solve", name, "--threads", "1")  # a race may end with either plan of a tie
    code, out, err = call(capsys, *once, "--json", "-o", str(target))
    assert (code, err) == (3 if SENTENCES[name] is None else 0, "")
    document = json.loads(out)
    jsonschema.Draft202012Validator(schema_of(capsys, "result")).validate(document)
    assert target.read_text(encoding="utf-8") == out
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert call(capsys, *once, "-o", str(again))[0] == code
    written = json.loads(again.read_text(encoding="utf-8"))
    assert written | {"seconds": 0} == document | {"seconds": 0}
    if document["plan"] is None:
        refused(call(capsys, "verify", name, str(target)), "holds no plan")
    else:
        assert call(capsys, "verify", name, str(target))[0] == 0


def test_instance_is_a_path_or_standard_input_or_an_example(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, sentence = example_text("mixed-wins"), SENTENCES["mixed-wins"]
    assert sentence is not None
    path = Path(save(tmp_path / "mine.json", json.loads(text)))
    assert sentence in call(capsys, "solve", str(path))[1]
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert sentence in call(capsys, "solve", "-")[1]
    monkeypatch.chdir(tmp_path)
    refused(call(capsys, "solve", "no-such-file.json"), "no-such-file.json", "no such file")
    refused(call(capsys, "solve", str(tmp_path)), str(tmp_path))
    Path("mixed-wins").write_text("{}", encoding="utf-8")
    refused(call(capsys, "solve", "mixed-wins"), "mixed-wins: ")  # a file wins over the example


def test_a_whole_process_solves_and_verifies_with_nothing_on_standard_error(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    solved = process("solve", "-", "-o", str(target), text=example_text("mixed-wins"))
    assert (solved.returncode, solved.stderr) == (0, "")
    assert f"plan       {SENTENCES['mixed-wins']}\n" in solved.stdout
    assert "\x1b" not in solved.stdout
    verified = process("verify", "mixed-wins", "-", text=target.read_text(encoding="utf-8"))
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "mixed-wins: the plan holds" in verified.stdout
    assert process("solve", "infeasible-deadline").returncode == 3


def test_verify_accepts_a_hand_written_plan(capsys: Capture, tmp_path: Path) -> None:
    jsonschema.Draft202012Validator(schema_of(capsys, "plan")).validate(GOOD_PLAN)
    path = save(tmp_path / "plan.json", GOOD_PLAN)
    code, out, err = call(capsys, "verify", "mixed-wins", path)
    assert (code, err) == (0, "")
    assert "the plan holds" in out
    assert "3 of 3 on time" in out
    code, out, err = call(capsys, "verify", "mixed-wins", path, "--json")
    assert (code, err) == (0, "")
    judged = json.loads(out)
    assert (judged["holds"], judged["evaluation"]["violations"]) == (True, [])


# One card holds 32.77 GB of weights, 3 × 17.18 GB of KV and 2.15 GB of workspace.
OVERFULL = [group(2, ([0, 1], ["urgent/0", "batch/0", "batch/1"]))]
LATE = [group(2, ([0, 1], ["urgent/0"]), *BATCH)]
OVERLAP = [group(4, ([0, 1, 2, 4], ["urgent/0"])), group(2, *BATCH)]
UNSERVED = [group(4, ([0, 1, 2, 3], ["urgent/0"])), group(2, BATCH[0])]
NOWHERE = [group(4, ([0, 1, 2, 8], ["urgent/0"])), group(2, *BATCH)]
BROKEN_PLANS = {
    "memory": (OVERFULL, 6_460_000_000, "B short"),
    "on_time": (LATE, 1, "2 of 3 sessions end on time; at least 3 must"),
    "card_overlap": (OVERLAP, 1, "card 4 of server 0 in 'hgx' is owned 2 times"),
    "session_missing": (UNSERVED, 1, "1 session(s) are served by no instance"),
    "unknown_card": (NOWHERE, 1, "has no card 8 in a server 0"),
}


@pytest.mark.parametrize("rule", BROKEN_PLANS)
def test_verify_measures_what_a_plan_breaks(rule: str, capsys: Capture, tmp_path: Path) -> None:
    groups, amount, message = BROKEN_PLANS[rule]
    path = save(tmp_path / "plan.json", {"groups": groups})
    code, out, err = call(capsys, "verify", "mixed-wins", path, "--json")
    assert (code, err) == (5, "")
    found = [v for v in json.loads(out)["evaluation"]["violations"] if v["rule"] == rule]
    assert found
    assert found[0]["amount"] == pytest.approx(amount, rel=0.01)
    assert message in found[0]["message"]
    code, out, err = call(capsys, "verify", "mixed-wins", path)
    assert (code, err) == (5, "")
    assert "does not hold" in out
    assert message in " ".join(out.split())
    if rule == "memory":
        assert f"{int(found[0]['amount'])} B short" in " ".join(out.split())


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("objective", "verified_exact", "1/3", "not 1/3"),
        ("objective", "claimed", 0.25, "claimed cost_per_on_time_session is 0.25, computed"),
        ("objective", "bound_exact", "1/1000", "does not meet its bound"),
        ("certificate", "plan_sha256", "0" * 64, "plan_sha256 differs"),
        ("certificate", "instance_sha256", "0" * 64, "instance_sha256 differs"),
        ("plan", "groups", GOOD_PLAN["groups"], "plan_sha256 differs"),
    ],
)
def test_verify_reports_every_false_claim_of_a_result(
    part: str, field: str, value: object, said: str, capsys: Capture, tmp_path: Path
) -> None:
    result = json.loads(call(capsys, "solve", "mixed-wins", "--json")[1])
    assert result[part][field] != value
    result[part][field] = value
    path = save(tmp_path / "result.json", result)
    code, out, err = call(capsys, "verify", "mixed-wins", path)
    assert (code, err) == (5, "")
    assert said in " ".join(out.split())
    code, out, err = call(capsys, "verify", "mixed-wins", path, "--json")
    assert (code, err) == (5, "")
    assert any(said in line for line in json.loads(out)["mismatches"])


@pytest.mark.parametrize("text", ["", "[]", "5", '{"groups": 1}', '{"group": []}', "{"])
def test_verify_refuses_what_is_not_a_plan(text: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    refused(call(capsys, "verify", "mixed-wins", str(tmp_path / "plan.json")), "plan.json: ")


def test_verify_prints_the_kv_bytes_of_a_published_configuration(
    capsys: Capture, tmp_path: Path
) -> None:
    """Qwen2.5-7B keeps 28 layers × 2 × 4 heads × 128 × 2 B = 57,344 B per token."""
    document = example("one-session-50ms")
    sizes = {"num_layers": 28, "hidden_size": 3584, "num_heads": 28, "num_kv_heads": 4}
    more = {"head_dim": 128, "ffn_size": 18944, "vocab_size": 152064, "qkv_bias": True}
    document["model"] = {"name": "Qwen2.5-7B", **sizes, **more}
    card = {"name": "one card", "accelerator": "h100-sxm", "num_cards": 1, "fabric": "nvlink-4"}
    document["fleet"] = {"pools": [{"name": "one", "server": card, "num_servers": 1}]}
    problem = save(tmp_path / "qwen.json", document)
    plan = save(tmp_path / "plan.json", {"groups": [group(1, ([0], ["chat/0"]), pool="one")]})
    code, out, err = call(capsys, "verify", problem, plan)
    assert code in (0, 5), err  # whether 50 ms suffice is not the question here
    assert "KV per token 57,344 B" in out
    judged = json.loads(call(capsys, "verify", problem, plan, "--json")[1])
    assert judged["evaluation"]["kv_bytes_per_token"] == 57_344


def test_schemas_are_valid_and_every_example_fits(capsys: Capture) -> None:
    for kind in ("instance", "result", "plan", "side-result"):
        jsonschema.Draft202012Validator.check_schema(schema_of(capsys, kind))
    assert call(capsys, "schema")[1] == call(capsys, "schema", "instance")[1]
    validator = jsonschema.Draft202012Validator(schema_of(capsys, "instance"))
    for name in example_names():
        errors = [f"{e.json_path}: {e.message[:80]}" for e in validator.iter_errors(example(name))]
        assert not errors, name
    (aimless := example("mixed-wins")).pop("objective")
    assert not validator.is_valid(aimless)
    refused(call(capsys, "schema", "nothing"), "nothing")


def test_catalog_lists_kinds_then_names_then_one_entry_with_sources(capsys: Capture) -> None:
    code, out, err = call(capsys, "catalog")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == list(catalog_kinds())
    for kind in catalog_kinds():
        code, out, err = call(capsys, "catalog", kind)
        assert (code, err, out.split()) == (0, "", list(catalog_names(kind)))
        for name in catalog_names(kind):
            code, out, err = call(capsys, "catalog", kind, name)
            assert (code, err) == (0, "")
            assert json.loads(out)["name"] == name
            assert json.loads(out)["sources"]
    refused(call(capsys, "catalog", "planets"), "'planets'", "accelerators")
    refused(call(capsys, "catalog", "models", "qwen3-33b"), "'qwen3-33b'", "qwen3-32b")


def test_examples_are_listed_and_printed(capsys: Capture) -> None:
    code, out, err = call(capsys, "examples")
    assert (code, err) == (0, "")
    listed = dict(line.split(": ", 1) for line in out.splitlines())
    assert sorted(listed) == sorted((*SENTENCES, *SIDE_EXAMPLES))
    assert all(listed.values())
    for name in example_names():
        assert call(capsys, "examples", name) == (0, example_text(name), "")
    refused(call(capsys, "examples", "no-such"), "no-such", "mixed-wins")


@pytest.mark.parametrize("name", example_names())
def test_the_best_known_plan_of_an_example_verifies(
    name: str, capsys: Capture, tmp_path: Path
) -> None:
    code, out, err = call(capsys, "examples", name, "--best")
    assert (code, err) == (0, "")
    path = save(tmp_path / "best.json", json.loads(out))
    if SENTENCES.get(name, "") is None:
        assert json.loads(out)["plan"] is None
    else:
        assert call(capsys, "verify", name, path)[0] == 0


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_of_every_command(command: tuple[str, ...], capsys: Capture) -> None:
    code, out, err = call(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('supernode', *command))} ")
    assert call(capsys, *command, "-h") == (0, out, "")
    if command and command[0] in ("solve", "verify"):
        assert "3 proven infeasible" in out


def test_help_does_not_load_solvers() -> None:
    """The heavy packages wait until a command needs them."""
    code = "import sys; from cli.main import run; run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = done.stdout.splitlines()[-1]
    assert "'cli.main'" in loaded
    heavy = ("ortools", "pulp", "highspy", "pydantic", "numpy")
    assert not [name for name in heavy if f"'{name}'" in loaded]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("solve",), "INSTANCE"),
        (("verify", "mixed-wins"), "PLAN"),
        (("solve", "mixed-wins", "--no-such-option"), "--no-such-option"),
        (("solve", "mixed-wins", "--threads", "-1"), "--threads"),
        (("solve", "mixed-wins", "--threads", "two"), "--threads"),
        (("solve", "mixed-wins", "--seed", "2147483648"), "--seed"),
        (("solve", "mixed-wins", "--time-limit", "-1"), "--time-limit"),
        (("solve", "mixed-wins", "--time-limit", "nan"), "--time-limit"),
        (("solve", "mixed-wins", "--time-limit", "1e999999999"), "--time-limit"),
        (("solve", "mixed-wins", "--time-limit", "5 parsecs"), "--time-limit"),
        (("solve", "mixed-wins", "--solver", "abacus"), "'abacus'"),
        (("solve", "mixed-wins", "--solver", ""), "''"),
        (("catalog", "models", "qwen3-32b", "more"), "more"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_bad_arguments_are_one_line(arguments: tuple[str, ...], word: str, capsys: Capture) -> None:
    refused(call(capsys, *arguments), word)


def test_an_output_that_cannot_be_written_leaves_nothing(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    for target in (tmp_path / "missing" / "out.json", file / "out.json", tmp_path):
        refused(call(capsys, "solve", "mixed-wins", "-o", str(target)), str(target))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert file.read_text(encoding="utf-8") == "kept"


def test_an_output_is_written_whole_or_not_at_all(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.json"
    target.write_text("before", encoding="utf-8")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    refused(call(capsys, "solve", "mixed-wins", "-o", str(target)), str(target), "no space")
    assert target.read_text(encoding="utf-8") == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    "name", ["[red]", "[/]", "[bold]x[/bold]", "名前 é ✓", "tail\\", "{name}%s"]
)
def test_names_are_printed_as_they_are_written(name: str, capsys: Capture, tmp_path: Path) -> None:
    document = example("mixed-wins")
    document["name"] = document["fleet"]["pools"][0]["name"] = name
    document["workload"]["cohorts"][0]["name"] = name
    path, result = save(tmp_path / "named.json", document), tmp_path / "result.json"
    code, out, err = call(capsys, "solve", path, "-o", str(result))
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: optimal, verified in ")
    assert f"  {name}/0: instance " in out
    code, out, err = call(capsys, "verify", path, str(result))
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: the plan holds\n")
    assert f"  {name}/0/0-3" in out


def test_a_terminal_without_unicode_gets_replacements(tmp_path: Path) -> None:
    done = process("solve", "mixed-wins", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 instances ? TP2 (ring)" in done.stdout
