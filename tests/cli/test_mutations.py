"""1,000 broken instance files: each is refused with exit 2 and one line that says where."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from instances.decisions import SELF_CONTAINED
from instances.io import example_names, example_text, field_path, load_instance

NUM_MUTATIONS, CHUNK, SEED = 1000, 100, 20240607

#: A line of an error is for reading, whatever the input was.
MAX_LINE_CHARS = 1000

Path_ = tuple[str | int, ...]

RAW = "@raw:{}@"
PLACE = r"line \d+ column \d+"

#: Whole numbers that may not be 0; of all others it is not asked here.
COUNTS = {
    *("num_servers", "num_cards", "num_sessions", "new_tokens", "hidden_size", "vocab_size"),
    *("num_heads", "num_kv_heads", "head_dim", "ranks", "servers", "num_experts", "expert_size"),
    *("size", "num_stages", "ep", "tp", "pp", "cp", "dp", "batch", "micro_batches", "max_copies"),
    *("pieces_per_bucket", "count", "units", "rack_units", "servers_per_group"),
}
ZERO_OK_QUANTITIES = {
    *("release_s", "at_s", "alpha_s", "workspace_bytes", "power_w", "migration_bytes"),
    *("collective_buffer_bytes", "replica_budget_bytes"),
    *("price_per_hour", "share", "max_requests_per_s"),
    *("budget_w", "fixed_w", "cooling_w", "probability"),
    *("min_on_time_fraction", "usable_memory_fraction"),  # 0 is judged with the other fields
}
QUANTITIES = ZERO_OK_QUANTITIES | {
    *("deadline_s", "stall_s", "memory_bytes", "memory_bandwidth_bytes_per_s"),
    *("bandwidth_bytes_per_s", "message_bytes", "time_s", "ring_bytes"),
    *("requests_per_s", "period_s", "exit_bandwidth_bytes_per_s"),
}
NULL_OK = {
    *("deadline_s", "power_w", "fabric_between", "pool", "maximise", "layer_group", "compute"),
    *("scale", "format", "router_bias", "indexer", "compressor", "window", "top_k"),
    *("vocabulary_multiple", "expert_counts", "q_lora_rank", "ring_bytes"),
    *("max_requests_per_s", "power", "cooling_w", "probability", "period_s"),
    "exit_bandwidth_bytes_per_s",
    *("topology", "extents"),  # null takes what the first pool has, and that is judged later
}
NON_EMPTY_LISTS = {
    *("pools", "cohorts", "collectives", "rows", "groups", "layers", "expert_counts", "tensors"),
    *("accelerators", "buckets", "max_requests_per_s", "goals", "cards"),
    *("tp", "pp", "ep", "cp", "dp", "dcp", "attention_copies", "batch", "micro_batches"),
}
CHOICES = {
    *("minimise", "maximise", "collectives", "deployment", "dispatch", "billing", "operation"),
    *("decision", "goal", "kv_sharing", "stage_cut", "roofline", "routing", "role", "split"),
    *("kind", "policy", "keys_from", "number", "kv", "state", "activations"),
    *("mode", "cooling", "goals"),
}
REQUIRED = {
    *("name", "model", "fleet", "workload", "objective", "pools", "server", "num_servers"),
    *("cohorts", "num_sessions", "context_tokens", "new_tokens", "at_s", "stall_s", "num_stages"),
    *("hidden_size", "vocab_size", "groups", "layers", "attention", "ffn", "size", "num_experts"),
    *("experts_per_token", "expert_size", "num_heads", "head_dim", "component", "tensors"),
    *("accelerators", "price_per_hour", "max_requests_per_s", "buckets", "share"),
    *("requests_per_s", "budget_w", "goals", "cards"),
}
#: Fields by section that may be left out or null there, though not elsewhere.
OPTIONAL_THERE = {
    *(("workload", "model"), ("workload", "pools"), ("workload", "min_on_time_fraction")),
    ("fleet", "price_per_hour"),  # goals on prices need it, and that is judged later
}
#: Sections whose fields may depend on each other, so that the message may name their object.
#: Whether they may be 0 or null is not asked; quantities are known by how their names end.
MEMORY = {"pool", "tiers", "supernode"}
ENDINGS = ("_s", "_bytes", "bytes", "_mm2", "_hour", "_share", "balance", "_step")
#: Objects whose keys are data, so that no field of theirs is unknown or required.
FREE_OBJECTS = {"sources", "peak_flops_per_s", "components"}

NOT_A_NUMBER = ["NaN", "Infinity", "-Infinity"]
HUGE = ["1e300", "1e999999999", "-1e999999999", "9" * 50, "9" * 5000, "0." + "3" * 200]


@dataclass(frozen=True)
class Mutation:
    """One broken file: its bytes, and a pattern that the message must hold."""

    kind: str
    data: bytes
    place: str


@cache
def _documents() -> tuple[dict[str, Any], ...]:
    """Every bundled example, as it is written and with its catalog entries written out."""
    raw = [json.loads(example_text(name)) for name in example_names()]
    full = [load_instance(name).model_dump(mode="json") for name in example_names()]
    return (*raw, *full)


def _walk(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value of a document below its root, with its path."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(node, dict):
        items = list(node.items())
    elif isinstance(node, list):
        items = list(enumerate(node))
    for key, value in items:
        yield (*path, key), value
        yield from _walk(value, (*path, key))


def _at(document: Any, path: Path_) -> Any:
    for part in path:
        document = document[part]
    return document


def _name(path: Path_) -> str:
    """The field a value belongs to; items of a list belong to the list."""
    return next(str(part) for part in reversed(path) if isinstance(part, str))


def _encode(document: Any) -> bytes:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return re.sub(r'"@raw:(.*?)@"', r"\1", text).encode()


def _named(path: Path_) -> str:
    """The field of a path; what is wrong with a kind or base is said of its object."""
    path = path[:-1] if path[-1] in ("kind", "base") else path
    place = "".join(_part(part) for part in path).removeprefix(r"\.")
    if path[:2] == ("models", 0):  # the first of models stands for model, too
        place = place.replace(r"models\[0\]", r"(?:models\[0\]|model)", 1)
    return place + r"(?!\w)"


def _part(part: str | int) -> str:
    """One step of a path; below attention and ffn the kind may be named as well."""
    if isinstance(part, int):
        return rf"\[{part}\]"
    kind = r"(?:\.(?:gqa|mla|linear|kda|compressed|dense|moe))?"
    return r"\." + re.escape(part) + (kind if part in ("attention", "ffn") else "")


def _bad_values(path: Path_, value: Any, rng: random.Random) -> list[Any]:
    """Values that no field of this kind may have."""
    name = "text" if path[-2:-1] == ("sources",) else _name(path)
    raw = [RAW.format(text) for text in NOT_A_NUMBER + HUGE]
    is_memory = path[0] in MEMORY
    is_written = name != "name" and isinstance(value, str) and value[:1].isdigit()
    is_quantity = name in QUANTITIES or (is_memory and (is_written or name.endswith(ENDINGS)))
    may_be_null = is_memory or name in NULL_OK or (path[0], name) in OPTIONAL_THERE
    nothing = [] if may_be_null else [None]
    if name == "peak_flops_per_s" or (len(path) > 1 and path[-2] == "peak_flops_per_s"):
        name, nothing = "deadline_s", []
    if isinstance(value, dict):
        return [5, True, [], [value], "", "no-such-entry", RAW.format("NaN"), *nothing]
    if isinstance(value, list):
        return [5, True, {}, "no-such-entry", {"0": value}, *([[]] * (name in NON_EMPTY_LISTS))]
    if isinstance(value, bool):
        return [0, 1, "true", "", [], {}, RAW.format("NaN"), *nothing]
    if isinstance(value, int) and not is_quantity and name != "schema_version":
        zero = [0] if name in COUNTS else []
        return [-1, 1.5, True, False, "3", "80GB", "", [], {}, *raw, *nothing, *zero]
    if is_quantity:
        zero = [] if is_memory or name in ZERO_OK_QUANTITIES else [0, "0", 0.0]
        units = ["80XB", "130 parsecs", "5 MeV", "1/0", "one", "", "1e99 s", "--5", "5,5"]
        return [-1, "-5", True, False, [], {}, "9" * 5000, *units, *raw, *nothing, *zero]
    if name == "schema_version":
        return [0, 2, "1", True, [], {}, 1.5, None, *raw]
    wrong = [5, 2.5, True, [], {}, *raw, *nothing]
    if name in ("name", "pool"):
        wrong += ["", "\ud800", "x" * rng.randrange(121, 5000)]
    if name in CHOICES:
        wrong += ["", "no-such-choice", "RING ", "x" * 5000]
    return wrong


def wrong_value(rng: random.Random) -> Mutation:
    """A value of the wrong type, sign, size or unit in one field."""
    document = deepcopy(rng.choice(_documents()))
    fields: dict[str, list[tuple[Path_, Any]]] = {}
    for place, value in _walk(document):
        if value is not None:  # the items of a list are one field, however many there are
            fields.setdefault(re.sub(r"\d+", "", field_path(place)), []).append((place, value))
    path, old = rng.choice(fields[rng.choice(list(fields))])
    bad = rng.choice(_bad_values(path, old, rng))
    _at(document, path[:-1])[path[-1]] = bad
    place = _named(path)
    if path[0] in MEMORY and len(path) > 1:
        place += "|" + _named(path[:-1])
    if isinstance(bad, str) and bad.startswith("@raw"):
        place = f"{place}|{PLACE}"
    text = _encode(document) if bad != "\ud800" else json.dumps(document).encode()
    return Mutation(f"wrong_value {field_path(path)} = {str(bad)[:40]}", text, place)


def missing_field(rng: random.Random) -> Mutation:
    """A required field is left out."""
    document = deepcopy(rng.choice(_documents()))
    paths = [p for p, _ in _walk(document) if p[-1] in REQUIRED and p[0] != "faults"]
    paths = [p for p in paths if not FREE_OBJECTS & set(p) and "base" not in _at(document, p[:-1])]
    paths = [p for p in paths if (p[0], p[-1]) not in OPTIONAL_THERE and p[0] not in MEMORY]
    is_side = document.get("decision", "deployment") != "deployment"
    known = {("objective",)} if is_side else set()
    known |= {("model",)} if document.get("models") else set()
    if document.get("decision") in SELF_CONTAINED:
        known |= {("model",), ("fleet",), ("workload",)}
    path = rng.choice([p for p in paths if p not in known])
    del _at(document, path[:-1])[path[-1]]
    return Mutation(f"missing_field {field_path(path)}", _encode(document), _named(path))


def unknown_field(rng: random.Random) -> Mutation:
    """An object has a field that does not exist."""
    document = deepcopy(rng.choice(_documents()))
    objects = [p for p, v in _walk(document) if isinstance(v, dict) and p[-1] not in FREE_OBJECTS]
    path = rng.choice([(), *objects])
    key = rng.choice(["deadline", "num_server", "Name", "x", "名前", "comment"])
    _at(document, path)[key] = rng.choice([1, "a", None, [], {}])
    return Mutation(f"unknown_field {key}", _encode(document), _named((*path, key)))


def odd_field_name(rng: random.Random) -> Mutation:
    """An unknown field with a name that would spoil a terminal or fill it."""
    document = deepcopy(rng.choice(_documents()))
    document[rng.choice(["\x1b[31mred", "two\nlines", "a\r\vb", "k" * 100_000, "[red]", ""])] = 1
    return Mutation("odd_field_name", _encode(document), "no such field")


def duplicate_key(rng: random.Random) -> Mutation:
    """A field appears twice in one object."""
    document = deepcopy(rng.choice(_documents()))
    path = rng.choice([p for p, _ in _walk(document) if isinstance(p[-1], str)])
    _at(document, path[:-1])["@twice@"] = rng.choice([1, "a", None])
    data = _encode(document).replace(b"@twice@", str(path[-1]).encode())
    return Mutation(f"duplicate_key {path[-1]}", data, f"'{re.escape(str(path[-1]))}'.*twice")


def broken_text(rng: random.Random) -> Mutation:
    """Something that is not JSON."""
    good = _encode(rng.choice(_documents()))
    cut = rng.randrange(1, len(good) - 1)
    half = good[:cut].decode(errors="ignore").encode()
    broken = {
        "empty": b"",
        "blank": b" \n\t\n",
        "truncated": half,
        "null byte": half + b"\0" + good[len(half) :],
        "two byte order marks": b"\xef\xbb\xbf" * 2 + good,
        "two documents": good + good,
        "comment": b"// an instance\n" + good,
        "single quotes": good.replace(b'"', b"'"),
        "trailing comma": good.rstrip()[:-1].rstrip() + b",}",
        "brackets in a field": good.rstrip()[:-1] + b',"x":' + b"[" * 100,
    }
    kind = rng.choice(list(broken))
    return Mutation(f"broken_text {kind}", broken[kind], PLACE)


def not_an_instance(rng: random.Random) -> Mutation:
    """JSON that is no object, nested without end, or not UTF-8."""
    document = rng.choice(_documents())
    good = _encode(document)
    cut = rng.randrange(len(good))
    broken = {
        "array": (_encode([document]), "JSON object"),
        "number": (b"5", "JSON object"),
        "text": (b'"four-sessions-32k"', "JSON object"),
        "null": (b"null", "JSON object"),
        "true": (b"true", "JSON object"),
        "100,000 arrays": (b"[" * 100_000, "nested too deeply"),
        "100,000 objects": (b'{"a":' * 100_000, "nested too deeply"),
        "100,000 in a field": (good.rstrip()[:-1] + b',"x":' + b"[" * 100_000, "nested too deeply"),
        "100,000 closed": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        "invalid UTF-8": (good[:cut] + b"\xff" + good[cut:], "UTF-8"),
        "UTF-16": (good.decode().encode("utf-16"), "UTF-8"),
    }
    kind = rng.choice(list(broken))
    return Mutation(f"not_an_instance {kind}", *broken[kind])


MUTATORS: list[Callable[[random.Random], Mutation]] = [
    *[wrong_value] * 8,
    *[missing_field, unknown_field, duplicate_key, broken_text, not_an_instance, odd_field_name],
]


def mutation(number: int) -> Mutation:
    """The mutation of this number; the first ones go through every mutator once."""
    rng = random.Random(f"{SEED}/{number}")
    return MUTATORS[number % len(MUTATORS)](rng)


def complaints(mutant: Mutation, path: Path, code: int, out: str, err: str) -> list[str]:
    """What is wrong with how a mutant was refused."""
    wrong = []
    if code != 2:
        wrong.append(f"exit {code}")
    if out:
        wrong.append(f"on standard output: {out[:80]!r}")
    if not err.startswith("error: ") or not err.endswith("\n") or len(err.splitlines()) != 1:
        wrong.append("not one line that starts with 'error: '")
    if any(ord(char) < 32 for char in err[:-1]):
        wrong.append("control characters")
    if "Traceback" in err:
        wrong.append("a traceback")
    if len(err) > MAX_LINE_CHARS + len(str(path)):
        wrong.append(f"{len(err)} characters")
    if path.name not in err:
        wrong.append("the file is not named")
    elif not re.search(mutant.place, err.split(path.name, 1)[1]):
        wrong.append(f"no {mutant.place!r}")
    return [f"{mutant.kind}: {', '.join(wrong)}: {err[:300]!r}"] if wrong else []


@pytest.mark.parametrize("first", range(0, NUM_MUTATIONS, CHUNK))
def test_every_broken_instance_is_refused_in_one_line_that_says_where(
    first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for number in range(first, first + CHUNK):
        mutant, path = mutation(number), tmp_path / f"mutant-{number}.json"
        path.write_bytes(mutant.data)
        code = run(["solve", str(path), "--time-limit", "0"])
        wrong += complaints(mutant, path, code, *capsys.readouterr())
    assert not wrong, f"{len(wrong)} of {CHUNK}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("number", range(0, 100, 10))
def test_a_whole_process_refuses_a_broken_instance_too(number: int, tmp_path: Path) -> None:
    mutant, path = mutation(number), tmp_path / "mutant.json"
    path.write_bytes(mutant.data)
    done = subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", "solve", str(path)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert not complaints(mutant, path, done.returncode, done.stdout, done.stderr)


def test_the_files_that_mutations_start_from_are_valid(tmp_path: Path) -> None:
    """A mutation shows something only if the file was good before it."""
    for i, document in enumerate(_documents()):
        path = tmp_path / f"good-{i}.json"
        path.write_bytes(b"\xef\xbb\xbf" * (i % 2) + _encode(document))  # one BOM is allowed
        assert load_instance(path).sha256() == load_instance(str(document["name"])).sha256()


def test_mutations_are_many_and_differ() -> None:
    mutants = [mutation(number) for number in range(NUM_MUTATIONS)]
    assert len({mutant.data for mutant in mutants}) > NUM_MUTATIONS * 0.7
    assert {mutation(n).data for n in range(20)} == {mutants[n].data for n in range(20)}
