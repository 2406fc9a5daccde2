"""Qwen3.5, Qwen3.6 and Kimi K3 from their Hugging Face configurations."""

from __future__ import annotations

from typing import Any

import pytest

from instances.catalog_store import catalog_entry
from instances.huggingface import ModelImportError, import_model
from instances.model import ModelSpec
from optimizer.inventory import bytes_by_group


def qwen_config() -> dict[str, Any]:
    """Return the fields of Qwen3.6-35B-A3B's configuration that fix sizes."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
        "hidden_size": 2048,
        "vocab_size": 248_320,
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attn_output_gate": True,
        "attention_bias": False,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
    }
    vision = {
        "deepstack_visual_indexes": [],
        "depth": 27,
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": vision}


def kimi_quantization() -> dict[str, Any]:
    """Return the scheme of Kimi K3: routed experts in 4 bits, what its patterns name plain."""
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
    }
    kept = (
        "self_attn.*",
        "shared_experts.*",
        r"mlp\.(gate|up|gate_up|down)_proj.*",
        "lm_head.*",
        "vision_tower.*",
        "mm_projector.*",
    )
    return {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": [f"re:.*{name}" for name in kept],
    }


def kimi_text() -> dict[str, Any]:
    """Return the fields of Kimi K3's language model that fix sizes."""
    full = [*range(4, 93, 4), 93]
    return {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": 7168,
        "vocab_size": 163_840,
        "num_hidden_layers": 93,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": 33_792,
        "moe_intermediate_size": 3072,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
        "num_attention_heads": 96,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_output_gate": True,
        "attn_res_block_size": 12,
        "linear_attn_config": {
            "full_attn_layers": full,
            "kda_layers": [layer for layer in range(1, 94) if layer not in full],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "quantization_config": kimi_quantization(),
    }


def kimi_config() -> dict[str, Any]:
    """Return the fields of Kimi K3's configuration that fix sizes."""
    vision = {
        "attn_bias": False,
        "linear_bias": False,
        "patch_embed_proj_bias": False,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "merge_kernel_size": [2, 2],
        "mlp_type": "mlp2",
        "mm_hidden_size": 1024,
        "mm_projector_type": "patchmergerv2",
        "norm_type": "rmsnorm",
        "patch_size": 14,
        "qkv_hidden_size": 1536,
        "text_hidden_size": 7168,
        "vt_hidden_size": 1024,
        "vt_intermediate_size": 4096,
        "vt_num_hidden_layers": 27,
    }
    return {"model_type": "kimi_k3", "text_config": kimi_text(), "vision_config": vision}


@pytest.mark.parametrize(
    ("name", "config"), [("qwen3.6-35b-a3b", qwen_config()), ("kimi-k3", kimi_config())]
)
def test_an_import_gives_the_catalog_entry(name: str, config: dict[str, Any]) -> None:
    imported, known = (
        import_model(config, f"{name}.json"),
        ModelSpec.model_validate(catalog_entry("models", name)),
    )
    assert imported.model_copy(update={"sources": known.sources}) == known


def test_a_configuration_without_vision_or_mtp_gives_the_language_model_alone() -> None:
    config = qwen_config()
    del config["vision_config"], config["text_config"]["mtp_num_hidden_layers"]
    assert import_model(config, "x.json").parts == ()
    assert import_model(kimi_config()["text_config"], "x.json").parts == ()


def test_layer_types_decide_where_they_are_given() -> None:
    config = qwen_config()
    config["text_config"]["layer_types"] = ["full_attention", *["linear_attention"] * 39]
    linear, full = import_model(config, "x.json").groups
    assert (linear.layers, full.layers) == (tuple(range(1, 40)), (0,))


def test_a_dense_member_of_the_family() -> None:
    config = qwen_config()
    config["model_type"] = "qwen3_5"
    config["text_config"].update(model_type="qwen3_5_text", intermediate_size=17_408)
    groups = bytes_by_group(import_model(config, "x.json"))
    assert groups["ffn"] == 40 * groups["mtp/ffn"] == 40 * 3 * 2048 * 17_408 * 2
    assert "experts" not in groups


def test_quantised_layers_leave_convolution_router_mtp_and_vision_plain() -> None:
    config = qwen_config()
    named = {
        f"model.language_model.layers.{layer}.{module}": {"quant_algo": algorithm}
        for layer in range(40)
        for module, algorithm in (
            ("mlp.experts", "W4A16_NVFP4"),
            *((f"linear_attn.{part}", "FP8") for part in ("in_proj_qkv", "in_proj_z", "out_proj")),
        )
        if layer % 4 != 3 or module == "mlp.experts"
    }
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": named,
        "ignore": ["mtp*"],
    }
    plain, groups = (
        bytes_by_group(import_model(given, "x.json")) for given in (qwen_config(), config)
    )
    # Half a byte for each number instead of two, and one scale byte for 16 of them.
    numbers = plain["experts"] // 2
    assert (groups["experts"], groups["experts_scale"]) == (numbers // 2, numbers // 16)
    halved = {f"linear_{part}" for part in ("q", "k", "v", "gate", "o")}
    for name in set(plain) - {"experts"}:
        assert groups[name] == (plain[name] // 2 if name in halved else plain[name]), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layer_types", ["full_attention"] * 39, "must name linear_attention or full_attention"),
        ("layer_types", ["sliding_attention"] * 40, "must name linear_attention"),
        ("mlp_only_layers", [3], "layers without experts cannot be imported"),
        ("mtp_use_dedicated_embeddings", True, "MTP embeddings cannot be imported"),
        ("mamba_ssm_dtype", "float8", "must be one of bfloat16, float16, float32"),
        ("linear_num_key_heads", None, "is missing"),
    ],
)
def test_an_odd_field_of_qwen_is_named(field: str, value: Any, message: str) -> None:
    config = qwen_config()
    config["text_config"][field] = value
    with pytest.raises(ModelImportError, match=message) as error:
        import_model(config, "x.json")
    assert error.value.field == f"text_config.{field}"


@pytest.mark.parametrize(
    ("place", "field", "value", "message"),
    [
        (("text_config",), "num_nextn_predict_layers", 1, "MTP layers of this family"),
        (("text_config",), "topk_method", "greedy", "only noaux_tc"),
        (("text_config",), "mla_use_output_gate", False, "must be true"),
        (("text_config", "linear_attn_config"), "use_full_rank_gate", None, "must be true"),
        (("text_config", "linear_attn_config"), "full_attn_layers", [4, 8], "layers 1 to 93 once"),
        (("vision_config",), "linear_bias", True, "biases of the vision tower"),
        (("vision_config",), "norm_type", "layernorm", "only rmsnorm"),
    ],
)
def test_an_odd_field_of_kimi_is_named(
    place: tuple[str, ...], field: str, value: Any, message: str
) -> None:
    config = inner = kimi_config()
    for name in place:
        inner = inner[name]
    inner[field] = value
    with pytest.raises(ModelImportError, match=message) as error:
        import_model(config, "x.json")
    assert error.value.field == ".".join((*place, field))
