"""Families with grouped-query attention: Llama, Mistral, Mixtral, Qwen, GLM-4.5, gpt-oss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instances.huggingface.layers import (
    Layer,
    decoder,
    dense_and_moe,
    dense_first,
    layer_groups,
    layers_named,
    mtp_parts,
)
from instances.huggingface.quantization import Modules, model_formats
from instances.huggingface.reader import ConfigReader

_ATTENTION = {f"attention_{p}": (f"self_attn.{p}_proj",) for p in "qkvo"}
_FFN = tuple(f"mlp.{part}_proj" for part in ("gate", "up", "down"))
_EXPERTS = tuple(f"mlp.experts.0.{part}_proj" for part in ("gate", "up", "down"))
_SHARED = tuple(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down"))
_MIXTRAL_EXPERTS = tuple(f"block_sparse_moe.experts.0.w{part}" for part in (1, 2, 3))
_GPT_OSS_EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def _attention_modules(num_layers: int) -> dict[str, tuple[Sequence[int], tuple[str, ...]]]:
    """Return the modules that quantisation may cover in every layer, and the head."""
    every = range(num_layers)
    return {
        **{component: (every, names) for component, names in _ATTENTION.items()},
        "lm_head": ((), ("lm_head",)),
    }


def _head_dim(config: ConfigReader) -> int:
    """Return head_dim, by default hidden_size / num_attention_heads as the family's code does."""
    if config.has("head_dim"):
        return config.integer("head_dim")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        rule = f"is missing, and hidden_size {hidden} is no multiple of {heads} heads; add it"
        raise config.error("head_dim", rule)
    return hidden // heads


def _gqa(config: ConfigReader, head_dim: int, **fields: Any) -> dict[str, Any]:
    heads, kv_heads = "num_attention_heads", "num_key_value_heads"
    return {
        "kind": "gqa",
        "num_heads": config.integer(heads),
        "num_kv_heads": config.integer(kv_heads),
        "head_dim": head_dim,
        **fields,
    }


def _biases(config: ConfigReader) -> dict[str, bool]:
    """Return the biases of families whose `attention_bias` covers the output projection too."""
    has_bias = config.flag("attention_bias")
    return {"qkv_bias": has_bias, "output_bias": has_bias}


def _windowed(
    config: ConfigReader, names: Sequence[str], layers: dict[str, Layer]
) -> tuple[list[str], dict[str, Layer]]:
    """Give the layers that `layer_types` or `max_window_layers` names a sliding window."""
    if not config.flag("use_sliding_window") or not config.has("sliding_window"):
        return list(names), layers
    window = config.integer("sliding_window")
    types = config.texts("layer_types")
    if types:
        slides = _slides(config, types, len(names))
    else:
        first = config.integer("max_window_layers", minimum=0)
        slides = [place >= first for place in range(len(names))]
    sliding = {
        f"{name} sliding": ({**attention, "window": window}, ffn)
        for name, (attention, ffn) in layers.items()
    }
    named = [f"{n} sliding" if slide else n for n, slide in zip(names, slides, strict=True)]
    return named, {**layers, **sliding}


def _slides(config: ConfigReader, types: Sequence[str], num_layers: int) -> list[bool]:
    """Return for each layer whether its attention slides."""
    known = ("sliding_attention", "full_attention")
    if len(types) != num_layers or any(kind not in known for kind in types):
        rule = f"must hold {num_layers} entries, one per layer, each {' or '.join(known)}"
        raise config.error("layer_types", rule)
    return [kind == "sliding_attention" for kind in types]


def _dense(config: ConfigReader, attention: dict[str, Any]) -> dict[str, Any]:
    """Return a dense decoder with one kind of layer, some of them windowed."""
    num_layers = config.num_layers()
    layer = (attention, {"kind": "dense", "size": config.integer("intermediate_size")})
    names, layers = _windowed(config, ["layers"] * num_layers, {"layers": layer})
    modules = {**_attention_modules(num_layers), "ffn": (range(num_layers), _FFN)}
    return decoder(config, layer_groups(names, layers), model_formats(config, modules))


def llama(config: ConfigReader) -> dict[str, Any]:
    """Llama 2 and 3; without `num_key_value_heads` every query head has its own keys."""
    config.refuse("mlp_bias", False, "biases of the FFN cannot be imported")
    if config.has("num_key_value_heads"):
        return _dense(config, _gqa(config, _head_dim(config), **_biases(config)))
    heads = config.integer("num_attention_heads")
    fields = {"num_heads": heads, "num_kv_heads": heads, "head_dim": _head_dim(config)}
    return _dense(config, {"kind": "gqa", **fields, **_biases(config)})


def mistral(config: ConfigReader) -> dict[str, Any]:
    """Mistral: Llama's layers, all of them windowed where `sliding_window` is a number."""
    window = config.optional_integer("sliding_window")
    return _dense(config, _gqa(config, _head_dim(config), window=window))


def qwen2(config: ConfigReader) -> dict[str, Any]:
    """Qwen2 and Qwen2.5: biases on queries, keys and values, whatever the configuration says."""
    return _dense(config, _gqa(config, _head_dim(config), qkv_bias=True))


def qwen3(config: ConfigReader) -> dict[str, Any]:
    """Qwen3: normalised heads; `head_dim` is independent of the hidden size."""
    head_dim = config.integer("head_dim")
    return _dense(config, _gqa(config, head_dim, qk_norm=True, **_biases(config)))


def mixtral(config: ConfigReader) -> dict[str, Any]:
    """Mixtral: every layer routes to experts of `intermediate_size` columns."""
    num_layers = config.num_layers()
    window = config.optional_integer("sliding_window")
    ffn = {
        "kind": "moe",
        "num_experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("intermediate_size"),
    }
    layers = {"layers": (_gqa(config, _head_dim(config), window=window), ffn)}
    modules: Modules = {
        **_attention_modules(num_layers),
        "experts": (range(num_layers), _MIXTRAL_EXPERTS),
    }
    formats = model_formats(config, modules, ("router",))
    return decoder(config, layer_groups(["layers"] * num_layers, layers), formats)


def qwen3_moe(config: ConfigReader) -> dict[str, Any]:
    """Qwen3 MoE: every `decoder_sparse_step`-th layer has experts, but for `mlp_only_layers`."""
    num_layers = config.num_layers()
    every = config.integer("decoder_sparse_step") if config.has("decoder_sparse_step") else 1
    dense_only = config.integers("mlp_only_layers")
    names = [
        "dense" if layer in dense_only or (layer + 1) % every else "moe"
        for layer in range(num_layers)
    ]
    window = config.integer("sliding_window") if config.flag("use_sliding_window") else None
    head_dim = config.integer("head_dim")
    attention = _gqa(config, head_dim, qk_norm=True, window=window, **_biases(config))
    moe = {
        "kind": "moe",
        "num_experts": config.integer("num_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("moe_intermediate_size"),
    }
    layers, modules = {"moe": (attention, moe)}, _attention_modules(num_layers)
    modules["experts"] = (layers_named(names, "moe"), _EXPERTS)
    if "dense" in names:
        dense = {"kind": "dense", "size": config.integer("intermediate_size")}
        layers["dense"] = (attention, dense)
        modules["ffn"] = (layers_named(names, "dense"), _FFN)
    formats = model_formats(config, modules, ("router",))
    return decoder(config, layer_groups(names, layers), formats)


def glm4_moe(config: ConfigReader) -> dict[str, Any]:
    """GLM-4.5 to 4.7: dense layers first, biases on queries, keys and values, an MTP layer."""
    names = dense_first(config)
    attention = _gqa(
        config,
        config.integer("head_dim"),
        qkv_bias=config.flag("attention_bias"),
        qk_norm=config.flag("use_qk_norm"),
    )
    layers = dense_and_moe(config, attention)
    modules = _attention_modules(len(names))
    if "dense" in names:
        modules["ffn"] = (layers_named(names, "dense"), _FFN)
    modules["experts"] = (layers_named(names, "moe"), _EXPERTS)
    if config.count("n_shared_experts"):
        modules["shared_experts"] = (layers_named(names, "moe"), _SHARED)
    parts = mtp_parts(config, layers["moe"])
    plain = ("router", "eh_proj") if parts else ("router",)
    formats = model_formats(config, modules, plain)
    return {**decoder(config, layer_groups(names, layers), formats), "parts": parts}


def gpt_oss(config: ConfigReader) -> dict[str, Any]:
    """gpt-oss: sliding and full layers by turns, sinks, biases everywhere, 4-bit experts."""
    num_layers = config.num_layers()
    types = config.texts("layer_types")
    if types:
        slides = _slides(config, types, num_layers)
    else:  # the published default: the first layer slides, then every second one
        slides = [layer % 2 == 0 for layer in range(num_layers)]
    dtype = config.dtype("bf16")  # the published checkpoints are BF16 and do not say so
    attention = _gqa(config, config.integer("head_dim"), sinks=True, **_biases(config))
    ffn = {
        "kind": "moe",
        "num_experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("intermediate_size"),
        "router_bias": dtype,
        "expert_bias": True,
    }
    sliding = {**attention, "window": config.integer("sliding_window")}
    layers: dict[str, Layer] = {"sliding": (sliding, ffn), "full": (attention, ffn)}
    names = ["sliding" if slide else "full" for slide in slides]
    modules = _attention_modules(num_layers)
    modules["experts"] = (range(num_layers), _GPT_OSS_EXPERTS)
    formats = model_formats(config, modules, ("router",), dtype)
    return decoder(config, layer_groups(names, layers), formats)
