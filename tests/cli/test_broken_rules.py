"""Fields that are well formed one by one but break a rule together, and names of nothing.

Every rule is broken in every bundled example: exit 2 and one line that names the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from instances.io import example_names, example_text

Path_ = tuple[str | int, ...]


def _duplicate_pool(document: dict[str, Any]) -> str:
    document["fleet"]["pools"] *= 2
    return r"fleet\b.*appears 2 times"


def _duplicate_cohort(document: dict[str, Any]) -> str:
    document["workload"]["cohorts"] += document["workload"]["cohorts"][:1]
    return r"workload\b.*appears 2 times"


def _late_release(document: dict[str, Any]) -> str:
    document["workload"]["cohorts"][0] |= {"release_s": "2h", "deadline_s": "1h"}
    return r"workload\.cohorts\[0\].*release_s"


def _set(path: Path_, value: Any, place: str) -> Callable[[dict[str, Any]], str]:
    def change(document: dict[str, Any]) -> str:
        node: Any = document
        for part in path[:-1]:
            node = node.setdefault(part, {}) if isinstance(part, str) else node[part]
        node[path[-1]] = value
        return place

    return change


def _other_decision(document: dict[str, Any]) -> str:
    document["decision"] = "stages" if document.get("decision") == "experts" else "experts"
    return r"section '(stages|experts)' goes with decision"


def _both_sections(document: dict[str, Any]) -> str:
    document |= {"stages": {"num_stages": 2}, "experts": {"ep": 2}}
    return r"section '(stages|experts)' goes with decision"


def _model(**changes: Any) -> dict[str, Any]:
    """A grouped model of one make of layers, with the group's fields changed."""
    attention = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2}
    group = {"name": "a", "layers": "0-1", "attention": attention, **changes}
    group.setdefault("ffn", {"kind": "dense", "size": 16})
    return {"name": "grouped", "hidden_size": 8, "vocab_size": 32, "groups": [group]}


def _fault(**changes: Any) -> list[dict[str, Any]]:
    return [{"card": 0, "at_s": "1ms", "stall_s": "1ms", **changes}]


POOL: Path_ = ("fleet", "pools", 0)
NO_POWER = {"base": "hgx-h100", "power_w": None}
FP8_ONLY = {"base": "hgx-h100", "accelerator": {"base": "h100-sxm", "peak_flops_per_s": {}}}
ENERGY = {"minimise": ["energy"]}


def _energy_without_power(document: dict[str, Any]) -> str:
    document["fleet"]["pools"][0]["server"] = NO_POWER
    document["objective"] = ENERGY
    return r"fleet\.pools\[0\]\.server\.power_w"


#: Capacity decisions leave out a pool that cannot compute a model, and refuse all expert counts.
NOT_OF_CAPACITY = (
    _set((*POOL, "server"), FP8_ONLY, r"fleet\.pools\[0\]\.server\.accelerator\.peak"),
    _set(("workload", "expert_counts"), [5] * 7, r"workload\.expert_counts has 7 counts"),
)

RULES: list[Callable[[dict[str, Any]], str]] = [
    _energy_without_power,
    _duplicate_pool,
    _duplicate_cohort,
    _late_release,
    _set(("model",), "qwen-no-such", r"\bmodel = 'qwen-no-such'"),
    _set(("model",), {"base": "qwen3-32b", "num_kv_heads": 7}, r"\bmodel\b.*num_heads"),
    _set(("model",), {"base": "qwen3-32b", "formats": {"kv": "int3"}}, r"model\.formats\b.*int3"),
    _set((*POOL, "server"), "hgx-h1000", r"fleet\.pools\[0\]\.server\b"),
    _set((*POOL, "fabric_between"), "carrier-pigeon", r"fleet\.pools\[0\]\.fabric_between\b"),
    _set(("fleet", "pools"), [{"name": "a"}] * 65, r"fleet\.pools\b"),
    _set(("workload", "min_on_time_fraction"), "150%", r"workload\b.*min_on_time_fraction"),
    _set(("runtime",), {"usable_memory_fraction": 0}, r"runtime\b.*usable_memory_fraction"),
    _set(("runtime",), {"usable_memory_fraction": "101%"}, r"runtime\b.*usable_memory_fraction"),
    _set(("search", "collectives"), ["butterfly"], r"search\.collectives\[0\]"),
    _set(("search", "collectives"), ["ring", "ring"], r"search\.collectives\b.*once"),
    _set(("search", "tp"), [0], r"search\.tp\[0\]"),
    _set(("search", "tp"), [2, 2], r"search\.tp\b.*once"),
    _set(("search", "tp"), [], r"search\.tp\b"),
    *(_set(("search", d), [0], rf"search\.{d}\[0\]") for d in ("pp", "ep", "cp", "dcp", "batch")),
    _set(("search", "attention_copies"), [4, 4], r"search\.attention_copies\b.*once"),
    _set(("objective",), {"minimise": "happiness"}, r"objective\.minimise\b"),
    _set(("objective",), {"minimise": ["cards", "cards"]}, r"objective\.minimise\b.*once"),
    _set(("objective",), {"minimise": []}, r"objective\b.*minimise"),
    _set(("model",), _model(layers="0-1,1"), r"\bmodel\b.*groups.*layer 1 twice"),
    _set(("model",), _model(layers="1-2"), r"\bmodel\b.*groups.*layer 0 is in no group"),
    _set(("model",), _model(layers="3-1"), r"model\.groups\[0\]\.layers\b.*3-1"),
    _set(("model",), _model(ffn={"kind": "sparse"}), r"model\.groups\[0\]\.ffn\b.*sparse"),
    _set(
        ("model",), _model(ffn={"kind": "moe"}), r"model\.groups\[0\]\.ffn\.(?:moe\.)?num_experts"
    ),
    _set(("model",), {"huggingface": "no-such.json"}, r"model\.huggingface = 'no-such.json'"),
    _set(("model",), {"huggingface": 5}, r"model\.huggingface = 5"),
    _set(("model",), {"huggingface": "x.json", "size": 1}, r"model\.size\b"),
    _set(("model",), {"huggingface": "x.json", "formats": 1}, r"model\.formats = 1"),
    _set(("engine",), "no-such-engine", r"\bengine = 'no-such-engine'"),
    _set(("engine",), {"base": "vllm", "vocabulary_multiple": 0}, r"engine\.vocabulary_multiple"),
    _set(("engine",), {"base": "vllm", "free_ep": "yes"}, r"engine\.free_ep"),
    _set(("runtime",), {"loaded_parts": ["wings"]}, r"runtime\.loaded_parts\b.*'wings'"),
    _set(("workload", "expert_counts"), [0, 0], r"workload\b.*expert_counts"),
    _set(("decision",), "guess", r"\bdecision\b"),
    *(_other_decision, _both_sections),
    _set(("faults",), _fault(pool="moon"), r"faults\[0\]\.pool\b.*'moon'"),
    _set(("faults",), _fault(card=88), r"faults\[0\].*card 88"),
    _set(("faults",), _fault(server=99_999), r"faults\[0\].*server 9"),
    _set(("faults",), _fault(stall_s=0), r"faults\[0\]\.stall_s"),
    _set(("faults",), _fault() * 65, r"\bfaults\b"),
]


#: Decisions on data of their own leave out what most of the rules are about.
WITH_FLEET = [name for name in example_names() if "fleet" in json.loads(example_text(name))]


@pytest.mark.parametrize("name", WITH_FLEET)
def test_every_broken_rule_is_one_line_that_names_its_field(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, path = [], tmp_path / "broken.json"
    is_capacity = json.loads(example_text(name)).get("decision") == "capacity"
    for rule in (*RULES, *(() if is_capacity else NOT_OF_CAPACITY)):
        document = json.loads(example_text(name))
        place = rule(document)
        path.write_text(json.dumps(document), encoding="utf-8")
        code = run(["solve", str(path), "--time-limit", "0"])
        out, err = capsys.readouterr()
        is_one_line = err.startswith("error: ") and len(err.splitlines()) == 1
        if (code, out) != (2, "") or not is_one_line or not re.search(place, err):
            wrong.append(f"{place}: exit {code}: {out[:80]!r} {err[:300]!r}")
    assert not wrong, "\n".join(wrong)
