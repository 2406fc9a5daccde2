"""`supernode model`: sizes and legal degrees of a model by name, configuration or specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.main import run
from instances.catalog_store import catalog_entry, catalog_names
from instances.engine import EngineProfile
from instances.huggingface import load_model
from instances.io import example_text, parse_instance
from instances.model import ModelSpec
from optimizer.model_report import report_model

Capture = pytest.CaptureFixture[str]
Document = dict[str, Any]

#: Qwen3.6-35B-A3B: 30 recurrent layers and 10 of full attention (its config.json, sizes only).
QWEN3_6: Document = {
    "model_type": "qwen3_5_moe",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "mtp_num_hidden_layers": 1,
        "vocab_size": 248320,
    },
}


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(["model", *arguments])
    return code, *capsys.readouterr()


def report(capsys: Capture, *arguments: str) -> Document:
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    document: Document = json.loads(out)
    return document


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds the words."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def save(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_a_catalog_model_is_reported_in_full(capsys: Capture) -> None:
    """DeepSeek-R1: 91,991 tensors, an MTP layer of 15,628,583,424 B counted apart.

    That is 187105280 + 45792 + 75776 + 3670016 + 1024 + 11274289152 + 2752512 + 44040192 + 10752
    + 205520896 + 2 × 1853358080 (its attention, norms, router, experts, joining matrix, tables).
    """
    mtp = 11_717_511_392 + 2 * 1_853_358_080
    found = report(capsys, "deepseek-r1")
    assert found["weight_bytes"] == 688_574_839_360
    assert found["weight_bytes_main"] == 688_574_839_360 - mtp
    assert found["parameters_main"] == 671_026_419_200
    assert found["parameters"] > found["parameters_main"]
    assert sum(found["bytes_by_group"].values()) == found["weight_bytes"]
    assert found["bytes_by_group"]["mtp/eh_proj"] == 205_520_896
    assert found["kv_bytes_per_token"] == 70_272
    assert found["window_bytes_per_request"] == 0
    assert found["state_bytes_per_request"] == 0
    assert (found["engine"], found["exactness"]) == ("textbook", "byte-exact")
    assert "DeepSeek-V3" in found["exactness_reason"]


def test_legal_degrees_and_the_reasons_against_the_others(capsys: Capture) -> None:
    """Qwen3-8B: 32 query heads, 8 KV heads that divide 16 and 32; 12,288 columns."""
    found = report(capsys, "qwen3-8b")
    assert found["legal_tp"] == [1, 2, 4, 8, 16, 32]
    assert found["legal_ep"] == [1]
    degrees = {str(degree) for degree in (*range(1, 65), 128, 256, 512, 1024)}
    assert set(found["illegal"]["tp"]) == degrees - {"1", "2", "4", "8", "16", "32"}
    assert set(found["illegal"]["ep"]) == degrees - {"1"}
    assert "32 query heads" in found["illegal"]["tp"]["3"]
    assert "no experts" in found["illegal"]["ep"]["2"]


@pytest.mark.parametrize("engine", catalog_names("engines"))
def test_an_engine_of_the_catalog_is_asked(capsys: Capture, engine: str) -> None:
    found = report(capsys, "qwen3-30b-a3b", "--engine", engine)
    assert found["engine"] == engine
    assert 1 in found["legal_tp"]
    assert 1 in found["legal_ep"]


def test_an_engine_that_does_not_replicate_kv_heads_allows_less(capsys: Capture) -> None:
    strict = EngineProfile(name="strict", replicates_kv_heads=False)
    found = report_model(load_model("qwen3-8b"), strict)
    assert found.legal_tp == (1, 2, 4, 8)
    assert found.illegal_tp[16].rule == "kv_replication"
    refused(call(capsys, "qwen3-8b", "--engine", "textbok"), "--engine", "textbook")


def test_recurrent_states_and_caches_are_told_apart(capsys: Capture, tmp_path: Path) -> None:
    """Ten full layers × 2 × 2 heads × 256 × 2 B a token; states as the README of the model says."""
    found = report(capsys, save(tmp_path / "qwen3.6.json", QWEN3_6))
    assert found["name"] == "qwen3.6"
    assert found["kv_bytes_per_token"] == 20_480
    assert found["state_bytes_by_component"] == {
        "recurrent_state": 62_914_560,
        "conv_state": 1_966_080,
    }
    assert found["state_bytes_per_request"] == 62_914_560 + 1_966_080


def test_windows_are_counted_apart_from_what_grows(capsys: Capture) -> None:
    found = report(capsys, "gpt-oss-120b")
    assert found["kv_bytes_per_token"] == 18 * 2048
    assert found["window_bytes_per_request"] == 18 * 2048 * 128


def test_the_specification_that_is_printed_can_be_given_back(
    capsys: Capture, tmp_path: Path
) -> None:
    first = report(capsys, "glm-4.5")
    again = report(capsys, save(tmp_path / "again.json", first["spec"]))
    assert again == first
    assert ModelSpec.model_validate(first["spec"]) == load_model("glm-4.5")


@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v3", "gpt-oss-120b"])
def test_the_report_for_people_holds_the_numbers(capsys: Capture, name: str) -> None:
    found = report(capsys, name)
    code, out, err = call(capsys, name)
    assert (code, err) == (0, "")
    for field in ("parameters", "weight_bytes", "weight_bytes_main", "kv_bytes_per_token"):
        assert f"{found[field]:,}" in out
    for component, size in found["bytes_by_group"].items():
        row = next(line for line in out.splitlines() if line.split()[:1] == [component])
        assert f"{size:,}" in row
    assert "not TP3: " in out
    assert ("window" in out) == (name == "gpt-oss-120b")
    assert ("no experts" in out) == (name == "qwen3-8b")


def test_bad_input_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    refused(call(capsys, "qwen3-8bb"), "no such file", "nearest: qwen3-8b")
    refused(call(capsys, str(tmp_path)), str(tmp_path))
    refused(call(capsys, save(tmp_path / "a.json", {"model_type": "mamba"})), "model_type")
    refused(call(capsys, save(tmp_path / "b.json", [1])), "b.json")
    refused(call(capsys, save(tmp_path / "c.json", {"fleet": {}})), "neither a Hugging Face")
    (tmp_path / "d.json").write_text("{", encoding="utf-8")
    refused(call(capsys, str(tmp_path / "d.json")), "not JSON")
    broken = {**QWEN3_6, "text_config": {**QWEN3_6["text_config"], "num_experts": None}}
    refused(call(capsys, save(tmp_path / "e.json", broken)), "text_config.num_experts: is missing")
    refused(call(capsys), "CONFIG_OR_NAME")


def test_the_schema_of_an_instance_knows_every_form_of_a_model(capsys: Capture) -> None:
    """By name, changed, flat, in groups, or as a Hugging Face configuration; nothing else."""
    assert run(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    document = json.loads(example_text("four-sessions-128k"))
    check = jsonschema.Draft202012Validator(schema)
    flat = {"name": "mine", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2}
    flat |= {"head_dim": 16, "ffn_size": 100, "vocab_size": 256}
    grouped = catalog_entry("models", "deepseek-v4-flash")
    forms: list[Any] = ["qwen3-8b", {"base": "qwen3-8b", "num_layers": 3}, flat, grouped]
    for form in [*forms, {"huggingface": "config.json"}]:
        assert check.is_valid(document | {"model": form}), form
    for form in (3, [], {"huggingface": 3}, {"name": "mine", "num_layers": 2}):
        assert not check.is_valid(document | {"model": form}), form
    for form in forms:
        parse_instance(document | {"model": form})
