"""What the import refuses, with the field and the fix, and what it must not stumble over."""

from __future__ import annotations

import copy
import json
import re
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances.errors import InputError
from instances.huggingface import (
    ModelImportError,
    import_model,
    load_model,
    resolve_model_reference,
    supported_model_types,
)
from instances.model import LayerGroup, ModelSpec
from optimizer.inventory import bytes_by_group, weight_bytes

Config = dict[str, Any]

LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
DEEPSEEK: Config = {
    **{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
    "model_type": "deepseek_v3",
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


def imported(config: Config, **changes: Any) -> ModelSpec:
    return import_model({**config, **changes}, "tiny.json")


def refused(config: Config, **changes: Any) -> str:
    with pytest.raises(ModelImportError) as error:
        imported(config, **changes)
    message = str(error.value)
    assert message.startswith("tiny.json: ")
    assert len(message.splitlines()) == 1
    return message


def without(config: Config, field: str) -> Config:
    return {key: value for key, value in config.items() if key != field}


def groups(spec: ModelSpec) -> dict[str, LayerGroup]:
    return {group.name: group for group in spec.groups}


def compressed(**weights: Any) -> Config:
    group = {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["re:.*lm_head", "re:.*mlp.gate$"],
    }


def test_an_unknown_architecture_is_named_with_the_known_ones_and_the_way_by_hand() -> None:
    message = refused(LLAMA, model_type="mamba2")
    assert "model_type = 'mamba2'" in message
    assert "groups of layers, attention and ffn" in message
    for known in supported_model_types():
        assert known in message
    for field in ("hidden_size", "vocab_size", "num_kv_heads", "head_dim", "ffn_size"):
        assert field in message


@pytest.mark.parametrize("config", [LLAMA, QWEN3, QWEN3_MOE, DEEPSEEK])
def test_a_missing_size_is_named_and_never_guessed(config: Config) -> None:
    imported(config)
    may_be_left_out = {
        "llama": {"num_key_value_heads"},  # then every query head has its own
        "qwen3_moe": {"intermediate_size"},  # there is no dense layer
        "deepseek_v3": {"q_lora_rank", "n_shared_experts", "num_nextn_predict_layers"},
    }
    optional = may_be_left_out.get(config["model_type"], set())
    for field in config:
        if field in optional:
            imported(without(config, field))
        else:
            assert f"{field}: is missing" in refused(without(config, field))


def test_head_dim_is_derived_where_the_published_code_does_it_and_only_there() -> None:
    assert imported(LLAMA).groups[0].attention.head_dim == 64  # 256 / 4
    assert imported(LLAMA, head_dim=32).groups[0].attention.head_dim == 32
    assert "hidden_size 250 is no multiple of 4 heads" in refused(LLAMA, hidden_size=250)
    assert "head_dim: is missing" in refused(without(QWEN3, "head_dim"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", "256"),
        ("hidden_size", True),
        ("hidden_size", Decimal("256.5")),
        ("num_hidden_layers", 10**9),
        ("torch_dtype", "float8"),
        ("tie_word_embeddings", 1),
        ("attention_bias", "yes"),
        ("num_key_value_heads", 3),
        ("mlp_bias", True),
        ("model_type", 7),
        ("quantization_config", "fp8"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("quantization_config", {"quant_method": "fp8"}),
        ("quantization_config", {**MODELOPT, "quant_algo": "W4A8_AWQ"}),
        ("quantization_config", {**MODELOPT, "ignore": ["re:("]}),
        ("quantization_config", compressed(strategy="tensor", symmetric=False)),
        ("quantization_config", compressed(strategy="channel", num_bits=6)),
        ("quantization_config", compressed(strategy="spiral")),
    ],
)
def test_an_odd_value_is_refused_with_its_field(field: str, value: object) -> None:
    message = refused(LLAMA, **{field: value})
    shown = "num_kv_heads" if field == "num_key_value_heads" else field
    assert shown in message


def test_unknown_quantisation_is_not_taken_for_bf16_and_the_fix_is_said() -> None:
    message = refused(LLAMA, quantization_config={"quant_method": "awq"})
    assert "quantization_config.quant_method = 'awq'" in message
    assert "fp8, mxfp4, modelopt, compressed-tensors" in message
    assert "model.formats" in message


def test_other_fields_and_heads_for_other_senses_do_not_matter() -> None:
    plain = imported(QWEN3)
    nested = {
        "_provenance": "listed in public repositories",
        "model_type": "some_vision_model",
        "text_config": without(QWEN3, "torch_dtype"),
        "vision_config": {"model_type": "unheard_of", "depth": None},
        "torch_dtype": "bfloat16",
        "rope_theta": Decimal("1000000.0"),
    }
    assert weight_bytes(import_model(nested, "tiny.json")) == weight_bytes(plain)
    tied = import_model({**nested, "tie_word_embeddings": True}, "tiny.json")
    assert weight_bytes(plain) - weight_bytes(tied) == 1000 * 256 * 2


def test_the_name_is_given_or_that_of_the_file_or_of_its_folder() -> None:
    assert import_model(LLAMA, "a/tiny-1.5.json").name == "tiny-1.5"
    assert import_model(LLAMA, "models/tiny-1.5/config.json").name == "tiny-1.5"
    assert import_model(LLAMA, "config.json").name == "model"
    assert import_model(LLAMA, "config.json", "mine").name == "mine"


def test_layers_are_dense_or_routed_as_step_and_list_say() -> None:
    found = groups(imported(QWEN3_MOE, decoder_sparse_step=2, mlp_only_layers=[1]))
    assert found["dense"].layers == (0, 1, 2)
    assert found["moe"].layers == (3,)
    found = groups(imported(DEEPSEEK, num_hidden_layers=5, moe_layer_freq=2))
    assert found["dense"].layers == (0, 1, 3)
    assert found["moe"].layers == (2, 4)


def test_sliding_windows_are_used_where_the_configuration_switches_them_on() -> None:
    sliding = {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}
    found = groups(imported(QWEN3, **sliding))
    assert found["layers"].layers == (0, 1, 2)
    assert found["layers sliding"].layers == (3,)
    assert found["layers sliding"].attention.window == 64
    assert list(groups(imported(QWEN3, **{**sliding, "use_sliding_window": False}))) == ["layers"]
    types = ["sliding_attention", "full_attention"] * 2
    found = groups(imported(QWEN3, **sliding, layer_types=types))
    assert found["layers sliding"].layers == (0, 2)
    assert "layer_types: must hold 4 entries" in refused(QWEN3, **sliding, layer_types=types[:3])
    mistral = imported(LLAMA, model_type="mistral", sliding_window=64)
    assert mistral.layer_state[0][0].window == 64


def test_biases_follow_each_family() -> None:
    """One layer has 4 + 2 + 2 heads of 64 (Qwen2) numbers, and 256 more at Llama's output."""
    qwen2 = bytes_by_group(imported(LLAMA, model_type="qwen2"))
    assert qwen2["qkv_bias"] == 4 * 8 * 64 * 2
    assert "output_bias" not in qwen2
    llama = bytes_by_group(imported(LLAMA, attention_bias=True))
    assert llama["qkv_bias"] == 4 * 8 * 64 * 2
    assert llama["output_bias"] == 4 * 256 * 2


def test_fp8_has_a_scale_per_block_rounded_up_and_spares_what_the_list_names() -> None:
    """K is 64 × 256: 1 × 2 blocks of 128 × 128; 4 layers have K and V of 2 scales each, 4 B."""
    found = bytes_by_group(imported(QWEN3, quantization_config=FP8))
    assert found["attention_k"] == 4 * 64 * 256
    assert found["attention_k_scale"] == 4 * 2 * 4
    assert found["lm_head"] == found["embedding"] == 1000 * 256 * 2
    listed = [f"model.layers.{layer}.self_attn.k_proj" for layer in range(4)]
    for kept in (listed, ["model.layers.*.self_attn.k_proj"], ["re:.*k_proj"]):
        spared = imported(QWEN3, quantization_config={**FP8, "modules_to_not_convert": kept})
        assert bytes_by_group(spared)["attention_k"] == 4 * 64 * 256 * 2
        assert bytes_by_group(spared)["attention_v"] == 4 * 64 * 256
    some = {**FP8, "modules_to_not_convert": listed[:3]}
    assert "attention_k in several formats" in refused(QWEN3, quantization_config=some)


def test_four_bit_schemes_keep_their_scales_and_the_kv_format() -> None:
    """An expert matrix is 128 × 256; a layer has 8 × 3 of them: 393,216 bytes in 4 bit."""
    quantised = {**MODELOPT, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    spec = imported(QWEN3_MOE, quantization_config=quantised)
    found = bytes_by_group(spec)
    assert spec.formats.kv == "fp8"
    assert found["experts"] == 4 * 393_216
    assert found["experts_scale"] == 4 * 393_216 * 2 // 16
    assert found["router"] == 4 * 8 * 256 * 2
    mixed = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            **{f"model.layers.{n}.mlp.experts": {"quant_algo": "NVFP4"} for n in range(4)},
            "lm_head": {"quant_algo": "FP8"},
        },
    }
    found = bytes_by_group(imported(QWEN3_MOE, quantization_config=mixed))
    assert found["experts"] == 4 * 393_216
    assert found["lm_head"] == 1000 * 256
    assert found["attention_q"] == 4 * 128 * 256 * 2


@pytest.mark.parametrize(
    ("weights", "packing", "number_bytes", "scale_bytes"),
    [
        # attention_v is 64 × 256 in each of 4 layers
        ({"strategy": "channel"}, None, 4 * 64 * 256, 4 * 64 * 2),
        ({"strategy": "tensor"}, None, 4 * 64 * 256, 4 * 2),
        (
            {"strategy": "block", "block_structure": [128, 128]},
            None,
            4 * 64 * 256,
            4 * 2 * 2,
        ),
        (
            {"strategy": "group", "group_size": 32, "type": "int", "num_bits": 4},
            "pack-quantized",
            4 * 64 * 256 // 2,
            4 * 64 * 8 * 2,
        ),
        (
            {"strategy": "group", "group_size": 32, "num_bits": 4},
            "mxfp4-pack-quantized",
            4 * 64 * 256 // 2,
            4 * 64 * 8,
        ),
    ],
)
def test_compressed_tensors_by_strategy(
    weights: Config, packing: str | None, number_bytes: int, scale_bytes: int
) -> None:
    quantised = {**compressed(**weights), "format": packing}
    found = bytes_by_group(imported(QWEN3, quantization_config=quantised))
    assert found["attention_v"] == number_bytes
    assert found["attention_v_scale"] == scale_bytes
    assert found["lm_head"] == 1000 * 256 * 2


def test_an_indexer_limits_what_a_step_reads_of_the_latent_but_not_of_its_keys() -> None:
    sparse = {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 100}
    latent, keys = imported(DEEPSEEK, model_type="glm_moe_dsa", **sparse).layer_state[0]
    assert (latent.entry_bytes, latent.read_entries(5000)) == ((64 + 16) * 2, 100)
    assert (keys.entry_bytes, keys.read_entries(5000)) == (32 * 2, 5000)
    assert "index_topk: is missing" in refused(
        DEEPSEEK, model_type="glm_moe_dsa", **without(sparse, "index_topk")
    )


def test_a_reference_is_read_beside_the_instance_and_else_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    value = {"huggingface": "tiny.json", "name": "mine", "formats": {"kv": "fp8"}}
    spec = ModelSpec.model_validate(resolve_model_reference(value, tmp_path, "instance.json"))
    assert (spec.name, spec.formats.kv, spec.formats.weights.number) == ("mine", "fp8", "bf16")
    assert weight_bytes(spec) == weight_bytes(imported(LLAMA))
    monkeypatch.chdir(tmp_path)
    assert resolve_model_reference(value, None, "<stdin>")["name"] == "mine"
    assert resolve_model_reference(value, tmp_path / "elsewhere", "i.json")["name"] == "mine"
    for other in ("qwen3-8b", {"base": "qwen3-8b"}, 3, None):
        assert resolve_model_reference(other, tmp_path, "i.json") is other


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"huggingface": "none.json"}, ("model.huggingface = 'none.json'", "no such file")),
        ({"huggingface": 5}, ("model.huggingface = 5", "path of a config.json")),
        ({"huggingface": "bad.json"}, ("model.huggingface = 'bad.json'", "not JSON at line 1")),
        ({"huggingface": "odd.json"}, ("model.huggingface", "odd.json: vocab_size: is missing")),
        ({"huggingface": "tiny.json", "nme": "x"}, ("model.nme", "only name and formats")),
        ({"huggingface": "tiny.json", "name": 5}, ("model.name = 5", "must be a text")),
        ({"huggingface": "tiny.json", "formats": 5}, ("model.formats = 5", "must be an object")),
    ],
)
def test_a_bad_reference_is_one_line_about_the_instance_file(
    tmp_path: Path, value: Config, words: tuple[str, ...]
) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "odd.json").write_text(json.dumps(without(LLAMA, "vocab_size")), encoding="utf-8")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError) as error:
        resolve_model_reference(value, tmp_path, "instance.json")
    message = str(error.value)
    assert message.startswith("instance.json: model.")
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


def test_a_model_file_a_configuration_and_a_catalog_name_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    spec = load_model("deepseek-v3")
    path.write_text(spec.model_dump_json(), encoding="utf-8")
    assert load_model(str(path)) == spec
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match=r"spec\.json"):
        load_model(str(path))
    path.write_text('{"layers": 3}', encoding="utf-8")
    with pytest.raises(InputError, match=re.escape("neither a Hugging Face config.json")):
        load_model(str(path))
    with pytest.raises(InputError, match="nearest: deepseek-v3"):
        load_model("deepseek-v33")


scalars = st.none() | st.booleans() | st.integers(-3, 10**12) | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars)


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_any_damage_to_a_configuration_ends_in_a_model_or_an_import_error(
    data: st.DataObject,
) -> None:
    config = copy.deepcopy(data.draw(st.sampled_from([LLAMA, QWEN3, QWEN3_MOE, DEEPSEEK])))
    config["quantization_config"] = copy.deepcopy(
        data.draw(st.sampled_from([None, FP8, MODELOPT, compressed(strategy="channel")]))
    )
    place = config
    if config["quantization_config"] is not None and data.draw(st.booleans()):
        place = config["quantization_config"]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
    with suppress(ModelImportError):
        assert weight_bytes(import_model(config, "tiny.json")) > 0
