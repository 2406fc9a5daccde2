"""Models that mix full attention with recurrent layers: Qwen3.5 and 3.6, Kimi K3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from instances.attention import GqaAttention
from instances.ffn import DenseFfn, MoeFfn
from instances.huggingface.layers import Layer, decoder, dense_first, layer_groups, layers_named
from instances.huggingface.quantization import FormatDocument, model_formats, read_quantization
from instances.huggingface.reader import DTYPES, ConfigReader
from instances.tensors import Tensor, vector

FULL, LINEAR = "full_attention", "linear_attention"

_GLU = ("gate_proj", "up_proj", "down_proj")

#: Modules of a Qwen3.5 layer, by component; convolution and router are never quantised.
_QWEN_LINEAR = {
    "linear_q": ("linear_attn.in_proj_qkv",),
    "linear_k": ("linear_attn.in_proj_qkv",),
    "linear_v": ("linear_attn.in_proj_qkv",),
    "linear_gate": ("linear_attn.in_proj_z",),
    "linear_beta": ("linear_attn.in_proj_b",),
    "linear_decay": ("linear_attn.in_proj_a",),
    "linear_o": ("linear_attn.out_proj",),
}
_QWEN_FULL = {f"attention_{name}": (f"self_attn.{name}_proj",) for name in "qkvo"}
_QWEN_MOE = {
    "experts": ("mlp.experts",),
    "shared_experts": tuple(f"mlp.shared_expert.{part}" for part in _GLU),
}
_QWEN_DENSE = {"ffn": tuple(f"mlp.{part}" for part in _GLU)}

#: Matrices of Kimi K3's attention kinds, all inside the module self_attn.
_KIMI_ATTENTION = {
    "kda": tuple(
        f"linear_{part}" for part in ("q", "k", "v", "gate", "beta", "decay_down", "decay", "o")
    ),
    "mla": tuple(f"attention_{part}" for part in ("q_down", "q", "kv_down", "kv_up", "o", "gate")),
}

#: Matrices that Kimi K3's checkpoint leaves plain though no pattern of its configuration says so.
_KIMI_PLAIN = ("router", "latent_projection")

#: Tensors that Kimi K3 stores in FP32 on its recurrent layers (headers of its checkpoint).
_KIMI_FP32 = ("linear_conv", "linear_decay_bias", "linear_decay_rate", "linear_norm")

#: Length of A_log in Kimi K3's checkpoint, though the configuration has 96 heads.
_KIMI_DECAY_RATES = 128

#: The format of a tensor of a side part where it is not what the model's formats say.
Stored = Callable[[Tensor], FormatDocument | None]


def _part(name: str, tensors: Iterable[Tensor], stored: Stored) -> dict[str, Any]:
    """Return a side part with its tensors as documents."""
    found = []
    for tensor in tensors:
        document, given = tensor.model_dump(exclude_defaults=True), stored(tensor)
        found.append(document if given is None else {**document, "format": given})
    return {"name": name, "tensors": found}


def _kept_plain(config: ConfigReader, formats: dict[str, Any]) -> Stored:
    """Keep a part plain where the decoder's matrices, or those of the same name, are quantised."""
    plain = config.dtype()
    is_plain = formats["weights"] == plain
    named = formats.get("components", {})
    return lambda tensor: None if is_plain and tensor.component not in named else plain


def _linear(outputs: int, inputs: int, component: str, count: int = 1) -> list[Tensor]:
    """Return `count` matrices with a bias each."""
    return [
        Tensor(component=component, outputs=outputs, inputs=inputs, count=count),
        vector("biases", outputs, count=count),
    ]


def _table(component: str, rows: int, columns: int) -> Tensor:
    return Tensor(component=component, outputs=rows, inputs=columns, role="table")


def _qwen_vision(config: ConfigReader, formats: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the vision part: patch and position embedding, blocks with biases, patch merger."""
    vision = config.outer.optional_section("vision_config")
    if vision is None:
        return []
    vision.refuse("deepstack_visual_indexes", [], "mergers of inner layers cannot be imported")
    size, depth = vision.integer("hidden_size"), vision.integer("depth")
    inner, merged = vision.integer("intermediate_size"), vision.integer("spatial_merge_size") ** 2
    patch = vision.integer("patch_size") ** 2 * vision.integer("temporal_patch_size")
    tensors = [
        *_linear(size, vision.integer("in_channels") * patch, "patch_embedding"),
        _table("position_embedding", vision.integer("num_position_embeddings"), size),
        *_linear(3 * size, size, "qkv", depth),
        *_linear(size, size, "o", depth),
        *_linear(inner, size, "ffn", depth),
        *_linear(size, inner, "ffn", depth),
        # weight and bias of two norms a block, and of the merger's
        vector("norms", size, count=4 * depth + 2),
        *_linear(merged * size, merged * size, "merger"),
        *_linear(vision.integer("out_hidden_size"), merged * size, "merger"),
    ]
    return [_part("vision", tensors, _kept_plain(config, formats))]


def _qwen_mtp(
    config: ConfigReader, attention: dict[str, Any], ffn: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the MTP part: layers of full attention behind a projection of two hidden vectors."""
    num_layers, hidden = config.count("mtp_num_hidden_layers"), config.integer("hidden_size")
    if not num_layers:
        return []
    config.refuse("mtp_use_dedicated_embeddings", False, "MTP embeddings cannot be imported")
    block = MoeFfn.model_validate(ffn) if ffn["kind"] == "moe" else DenseFfn.model_validate(ffn)
    of_layer = (
        *GqaAttention.model_validate(attention).tensors(hidden),
        *block.tensors(hidden),
        vector("norms", hidden, count=2),
    )
    tensors = [
        *(t.model_copy(update={"count": num_layers * t.count}) for t in of_layer),
        # the norms of both inputs and the last one
        vector("norms", hidden, count=3),
        Tensor(component="projection", outputs=hidden, inputs=2 * hidden),
    ]
    plain = config.dtype()
    quantization = read_quantization(config, plain)
    modules = {**_QWEN_FULL, **_QWEN_MOE, **_QWEN_DENSE}

    def stored(tensor: Tensor) -> FormatDocument | None:
        if quantization is None:
            return None
        if tensor.component not in modules:
            return plain
        name = modules[tensor.component][0]
        return quantization.format_of(f"mtp.layers.0.{name}") or plain

    return [_part("mtp", tensors, stored)]


def _qwen_layers(config: ConfigReader) -> tuple[str, ...]:
    """Return the kind of attention of every layer."""
    num_layers, names = config.num_layers(), config.texts("layer_types")
    if not names:
        every = config.integer("full_attention_interval")
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(num_layers))
    odd = next((name for name in names if name not in (FULL, LINEAR)), None)
    if odd is not None or len(names) != num_layers:
        rule = f"must name {LINEAR} or {FULL} for each of the {num_layers} layers"
        raise config.error("layer_types", rule, odd or len(names))
    return names


def _state_format(config: ConfigReader) -> str:
    """Return the format of recurrent states, which the reference code keeps in FP32."""
    dtype = config.optional_text("mamba_ssm_dtype") or "float32"
    if dtype not in DTYPES:
        raise config.error("mamba_ssm_dtype", f"must be one of {', '.join(DTYPES)}", dtype)
    return DTYPES[dtype]


def _qwen(config: ConfigReader, ffn: dict[str, Any], modules: dict[str, Any]) -> dict[str, Any]:
    """Return a Qwen3.5 model whose layers all have the feed-forward block `ffn`."""
    bias = config.flag("attention_bias")
    full_attention = {
        "kind": "gqa",
        "num_heads": config.integer("num_attention_heads"),
        "num_kv_heads": config.integer("num_key_value_heads"),
        "head_dim": config.integer("head_dim"),
        "qk_norm": True,
        "qkv_bias": bias,
        "output_bias": bias,
        "output_gate": config.flag("attn_output_gate", default=True),
    }
    linear_attention = {
        "kind": "linear",
        "num_key_heads": config.integer("linear_num_key_heads"),
        "num_value_heads": config.integer("linear_num_value_heads"),
        "key_head_dim": config.integer("linear_key_head_dim"),
        "value_head_dim": config.integer("linear_value_head_dim"),
        "conv_kernel": config.integer("linear_conv_kernel_dim"),
    }
    names = _qwen_layers(config)
    layers: dict[str, Layer] = {LINEAR: (linear_attention, ffn), FULL: (full_attention, ffn)}
    linear, full = layers_named(names, LINEAR), layers_named(names, FULL)
    covered: dict[str, Any] = {
        **{name: (linear, inside) for name, inside in _QWEN_LINEAR.items() if linear},
        **{name: (full, inside) for name, inside in _QWEN_FULL.items() if full},
        **{name: (range(len(names)), inside) for name, inside in modules.items()},
    }
    if not config.tied_embeddings():
        covered["lm_head"] = ((), ("lm_head",))
    plain = (("linear_conv",) if linear else ()) + (
        ("router", "shared_gate") if ffn["kind"] == "moe" else ()
    )
    formats = {**model_formats(config, covered, plain), "state": _state_format(config)}
    parts = [*_qwen_mtp(config, full_attention, ffn), *_qwen_vision(config, formats)]
    return {**decoder(config, layer_groups(names, layers), formats), "parts": parts}


def qwen3_5(config: ConfigReader) -> dict[str, Any]:
    """Return a Qwen3.5 or 3.6 model with dense feed-forward blocks."""
    return _qwen(
        config, {"kind": "dense", "size": config.integer("intermediate_size")}, _QWEN_DENSE
    )


def qwen3_5_moe(config: ConfigReader) -> dict[str, Any]:
    """Return a Qwen3.5 or 3.6 mixture of experts."""
    config.refuse("mlp_only_layers", [], "layers without experts cannot be imported")
    ffn = {
        "kind": "moe",
        "num_experts": config.integer("num_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("moe_intermediate_size"),
        "num_shared_experts": 1,
        "shared_expert_size": config.integer("shared_expert_intermediate_size"),
        "shared_gate": True,
    }
    return _qwen(config, ffn, _QWEN_MOE)


def _kimi_vision(config: ConfigReader, formats: dict[str, Any]) -> list[dict[str, Any]]:
    """Return tower and projector: no biases, RMS norms, and one norm after the projector."""
    vision = config.outer.optional_section("vision_config")
    if vision is None:
        return []
    for field in ("attn_bias", "linear_bias", "patch_embed_proj_bias"):
        vision.refuse(field, False, "biases of the vision tower cannot be imported")
    for field, known in (("mlp_type", "mlp2"), ("norm_type", "rmsnorm")):
        vision.refuse(field, known, f"only {known} can be imported")
    vision.refuse("mm_projector_type", "patchmergerv2", "only patchmergerv2 can be imported")
    size, depth = vision.integer("vt_hidden_size"), vision.integer("vt_num_hidden_layers")
    width, inner = vision.integer("qkv_hidden_size"), vision.integer("vt_intermediate_size")
    text, kernel = vision.integer("text_hidden_size"), vision.integers("merge_kernel_size", 1)
    grid = vision.integer("init_pos_emb_height") * vision.integer("init_pos_emb_width")
    merged = prod(kernel) * vision.integer("mm_hidden_size")
    pixels = vision.integer("patch_size") ** 2
    tower = [
        # three colours a pixel
        Tensor(component="patch_embedding", outputs=size, inputs=3 * pixels),
        _table("position_embedding", grid, size),
        Tensor(component="qkv", outputs=3 * width, inputs=size, count=depth),
        Tensor(component="o", outputs=size, inputs=width, count=depth),
        Tensor(component="ffn", outputs=inner, inputs=size, count=depth),
        Tensor(component="ffn", outputs=size, inputs=inner, count=depth),
        vector("norms", size, count=2 * depth + 1),
    ]
    projector = [
        Tensor(component="projection", outputs=merged, inputs=merged),
        Tensor(component="projection", outputs=text, inputs=merged),
        vector("norms", text),
    ]
    stored = _kept_plain(config, formats)
    return [_part("vision", tower, stored), _part("projector", projector, stored)]


def _kimi_layers(config: ConfigReader, linear: ConfigReader) -> list[str]:
    """Name every layer by attention and FFN: "kda dense", "kda moe", "mla moe"."""
    full, kda = linear.integers("full_attn_layers", 1), linear.integers("kda_layers", 1)
    num_layers = config.num_layers()
    if not kda or sorted((*full, *kda)) != list(range(1, num_layers + 1)):
        rule = f"and kda_layers must hold each of the layers 1 to {num_layers} once"
        raise linear.error("full_attn_layers", rule)
    attention = ["mla" if layer in set(full) else "kda" for layer in range(1, num_layers + 1)]
    return [f"{kind} {ffn}" for kind, ffn in zip(attention, dense_first(config), strict=True)]


def _kimi_modules(names: list[str], moe: dict[str, Any]) -> dict[str, Any]:
    """Return the modules that quantisation may cover; attention is covered whole or not at all."""
    sparse = [layer for layer, name in enumerate(names) if name.endswith("moe")]
    dense = [layer for layer, name in enumerate(names) if name.endswith("dense")]
    experts = tuple(f"block_sparse_moe.experts.0.{part}" for part in ("w1", "w2", "w3"))
    found: dict[str, Any] = {"lm_head": ((), ("lm_head",))}
    if sparse:
        found["experts"] = (sparse, experts)
        if moe["num_shared_experts"]:
            parts = tuple(f"block_sparse_moe.shared_experts.{part}" for part in _GLU)
            found["shared_experts"] = (sparse, parts)
    if dense:
        found["ffn"] = (dense, tuple(f"mlp.{part}" for part in _GLU))
    for kind, components in _KIMI_ATTENTION.items():
        layers = [layer for layer, name in enumerate(names) if name.startswith(kind)]
        found.update({name: (layers, ("self_attn",)) for name in components if layers})
    return found


def _kimi_attention(config: ConfigReader, linear: ConfigReader) -> dict[str, dict[str, Any]]:
    """Return latent attention (without rotation, the rotary width is an ordinary one) and KDA."""
    for reader, field in ((linear, "use_full_rank_gate"), (config, "mla_use_output_gate")):
        if not reader.flag(field):
            rule = "must be true: how other checkpoints of this family are stored is not known"
            raise reader.error(field, rule, reader.fields.get(field))
    num_heads, head_dim = linear.integer("num_heads"), linear.integer("head_dim")
    kda = {
        "kind": "kda",
        "num_heads": num_heads,
        "head_dim": head_dim,
        "conv_kernel": linear.integer("short_conv_kernel_size"),
        "decay_rank": head_dim,
        "num_decay_rates": max(num_heads, _KIMI_DECAY_RATES),
    }
    mla = {
        "kind": "mla",
        "num_heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.integer("q_lora_rank"),
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
        "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
        "output_gate": True,
    }
    return {"kda": kda, "mla": mla}


def kimi_linear(config: ConfigReader) -> dict[str, Any]:
    """Return the language model of Kimi K3, with the vision tower where there is one.

    Block attention residuals weigh the outputs of earlier blocks with a norm and a one-row
    projection, before attention and FFN of every layer and once behind the last.
    """
    hidden, linear = config.integer("hidden_size"), config.section("linear_attn_config")
    config.refuse("num_nextn_predict_layers", 0, "MTP layers of this family cannot be imported")
    config.refuse("topk_method", "noaux_tc", "only noaux_tc, with its router bias, can be imported")
    names, attention = _kimi_layers(config, linear), _kimi_attention(config, linear)
    ffn = {
        "dense": {"kind": "dense", "size": config.integer("intermediate_size")},
        "moe": {
            "kind": "moe",
            "num_experts": config.integer("num_experts"),
            "experts_per_token": config.integer("num_experts_per_token"),
            "expert_size": config.integer("moe_intermediate_size"),
            "num_shared_experts": config.count("num_shared_experts"),
            "router_bias": "fp32",
            "latent_size": config.integer("routed_expert_hidden_size"),
            "latent_norm": config.flag("latent_moe_use_norm"),
        },
    }
    kinds = [f"{kind} {block}" for kind in attention for block in ffn]
    groups = layer_groups(names, {name: (attention[name[:3]], ffn[name[4:]]) for name in kinds})
    extra: dict[str, Any] = {}
    if config.has("attn_res_block_size"):
        groups = [
            {**group, "extra": (vector("attention_residual", hidden, count=4),)} for group in groups
        ]
        extra = {"extra": (vector("attention_residual", hidden, count=2),)}
    formats = model_formats(config, _kimi_modules(names, ffn["moe"]), _KIMI_PLAIN)
    components = {**formats.get("components", {}), **dict.fromkeys(_KIMI_FP32, "fp32")}
    formats = {**formats, "state": "fp32", "components": components}
    return {**decoder(config, groups, formats), **extra, "parts": _kimi_vision(config, formats)}


#: The same language model inside an object that holds its vision tower too.
kimi_k3 = kimi_linear
