"""Families with latent attention and routed experts: DeepSeek-V3, Kimi-K2, GLM-5."""

from __future__ import annotations

from typing import Any

from instances.huggingface.layers import (
    decoder,
    dense_and_moe,
    dense_first,
    layer_groups,
    layers_named,
    mtp_parts,
)
from instances.huggingface.quantization import model_formats
from instances.huggingface.reader import ConfigReader

_PARTS = ("gate_proj", "up_proj", "down_proj")

#: Matrices that the published checkpoints store plain.
_PLAIN = ("router", "eh_proj")


def _mla(config: ConfigReader) -> dict[str, Any]:
    config.refuse("attention_bias", False, "biases of latent attention cannot be imported")
    return {
        "kind": "mla",
        "num_heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.optional_integer("q_lora_rank"),
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
        "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
    }


def _model(config: ConfigReader, attention: dict[str, Any], plain: tuple[str, ...]) -> Any:
    """Return a decoder whose layers have this attention, dense FFNs first and then experts."""
    names = dense_first(config)
    config.refuse("topk_method", "noaux_tc", "only noaux_tc, with its router bias, can be imported")
    layers = dense_and_moe(config, attention)
    parts = mtp_parts(config, layers["moe"])
    every, sparse = range(len(names)), layers_named(names, "moe")
    modules: dict[str, Any] = {
        "attention_kv_down": (every, ("self_attn.kv_a_proj_with_mqa",)),
        "attention_kv_up": (every, ("self_attn.kv_b_proj",)),
        "attention_o": (every, ("self_attn.o_proj",)),
        "experts": (sparse, tuple(f"mlp.experts.0.{part}" for part in _PARTS)),
        "lm_head": ((), ("lm_head",)),
    }
    if attention["q_lora_rank"] is None:
        modules["attention_q"] = (every, ("self_attn.q_proj",))
    else:
        modules["attention_q_down"] = (every, ("self_attn.q_a_proj",))
        modules["attention_q"] = (every, ("self_attn.q_b_proj",))
    if "num_index_heads" in attention:
        modules["index_q"] = (every, ("self_attn.indexer.wq_b",))
        modules["index_k"] = (every, ("self_attn.indexer.wk",))
    if "dense" in names:
        modules["ffn"] = (layers_named(names, "dense"), tuple(f"mlp.{part}" for part in _PARTS))
    if config.count("n_shared_experts"):
        modules["shared_experts"] = (sparse, tuple(f"mlp.shared_experts.{p}" for p in _PARTS))
    kept = [component for component in plain if component != "eh_proj" or parts]
    formats = model_formats(config, modules, kept)
    return {**decoder(config, layer_groups(names, layers), formats), "parts": parts}


def deepseek_v3(config: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3, R1 and Kimi-K2, which has the same layers."""
    model: dict[str, Any] = _model(config, _mla(config), _PLAIN)
    return model


def glm_moe_dsa(config: ConfigReader) -> dict[str, Any]:
    """GLM-5: the same layers with an indexer that picks the cached tokens a token attends to."""
    indexer = {
        "num_index_heads": config.integer("index_n_heads"),
        "index_head_dim": config.integer("index_head_dim"),
        "index_topk": config.integer("index_topk"),
    }
    model: dict[str, Any] = _model(config, {**_mla(config), **indexer}, (*_PLAIN, "index_weights"))
    return model
