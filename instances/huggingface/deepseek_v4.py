"""DeepSeek V4 and V4.1: compressed attention, hyper-connections, drafts and Engram tables.

Tensor shapes and formats are those of the published checkpoints (tensor index and shard headers).
Cache entries are those of the DeepSeek-V4 report, section 2.3.4 (rotary numbers in BF16, the others
in FP8, index keys in FP4), laid out as FlashMLA does, and of DeepSeek's V4.1 inference code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from instances.compressed import CompressedAttention
from instances.ffn import MoeFfn
from instances.formats import TensorFormat
from instances.huggingface.quantization import scaled
from instances.huggingface.reader import ConfigReader
from instances.tensors import Tensor, vector

#: The only compression ratio at which V4 overlaps blocks and picks entries by an indexer.
_INDEXED_RATIO = 4

#: Index keys: four-bit numbers, a power-of-two scale per 32 (V4 report, sections 2.3.4, 5.2.1).
_FP4_KEYS = scaled("fp4", "e8m0", 1, 32)

#: Compressed entries of V4.1: four-bit numbers, an FP8 scale per 16.
_FP4_LATENT = scaled("fp4", "fp8", 1, 16)

#: Window entries of V4.1: FP8 numbers, a power-of-two scale per 32.
_FP8_WINDOW = scaled("fp8", "e8m0", 1, 32)


def deepseek_v4(config: ConfigReader) -> dict[str, Any]:
    """Return the fields of a DeepSeek V4 model; every layer compresses its own entries."""
    ratios, num_layers = _ratios(config), config.num_layers()
    num_hashed = config.count("num_hash_layers")
    extra = _hyper_connections(config)
    layers = []
    for layer in range(num_layers):
        is_hashed = layer < num_hashed
        name = f"ratio {ratios[layer]}" if ratios[layer] else "window"
        name = f"{name}, hashed" if is_hashed else name
        attention, ffn = _v4_attention(config, ratios[layer]), _moe(config, is_hashed=is_hashed)
        layers.append({"name": name, "attention": attention, "ffn": ffn, "extra": extra})
    groups = _grouped(layers)
    return {
        **_sizes(config),
        "groups": groups,
        "extra": _hyper_head(config),
        "parts": _drafts(config, _v4_attention(config, 0), has_hyper_head=True),
        "formats": _formats(config, groups),
    }


def deepseek_v41(config: ConfigReader) -> dict[str, Any]:
    """Return the fields of a DeepSeek V4.1 model; a few layers compress for all."""
    ratios, num_layers = _ratios(config), config.num_layers()
    vision = config.outer.optional_section("vision_config")
    has_vision = vision is not None
    engram = config.integers("engram_layer_ids")
    layers = []
    for layer in range(num_layers):
        attention, extra = _v41_attention(config, layer, ratios[layer]), _hyper_connections(config)
        name = _v41_name(attention)
        if has_vision:
            extra += _vision_bias(config.integer("n_routed_experts"))
        if layer in engram:
            name, extra = f"{name}, Engram", extra + _engram(config)
        layers.append({"name": name, "attention": attention, "ffn": _moe(config), "extra": extra})
    groups = _grouped(layers)
    drafts = _drafts(config, _v41_base(config), has_hyper_head=False, has_vision=has_vision)
    return {
        **_sizes(config),
        "groups": groups,
        "tables": _engram_tables(config, engram),
        "parts": [*drafts, *(_vision(config, vision) if vision else ())],
        "formats": _formats(config, groups, has_vision=has_vision),
    }


def _sizes(config: ConfigReader) -> dict[str, Any]:
    return {
        "hidden_size": config.integer("hidden_size"),
        "vocab_size": config.integer("vocab_size"),
        "tied_embeddings": config.tied_embeddings(),
        "residual_streams": config.integer("hc_mult"),
    }


def _ratios(config: ConfigReader) -> tuple[int, ...]:
    """Return the compression ratio of every layer; what follows belongs to the draft layers."""
    config.refuse("num_key_value_heads", 1, "must be 1: compressed attention shares one latent")
    ratios, num_layers = config.integers("compress_ratios"), config.num_layers()
    if len(ratios) < num_layers:
        rule = f"must name a ratio for each of the {num_layers} layers"
        raise config.error("compress_ratios", rule, len(ratios))
    if any(ratios[num_layers:]):
        rule = "names a ratio for a draft layer, which can only have a window; write 0 there"
        raise config.error("compress_ratios", rule, ratios[num_layers:])
    return ratios[:num_layers]


def _base(config: ConfigReader, window_entry_bytes: int) -> dict[str, Any]:
    """Return the fields of attention over the window alone."""
    return {
        "kind": "compressed",
        "num_heads": config.integer("num_attention_heads"),
        "head_dim": config.integer("head_dim"),
        "q_lora_rank": config.integer("q_lora_rank"),
        "output_groups": config.integer("o_groups"),
        "output_lora_rank": config.integer("o_lora_rank"),
        "window": config.integer("sliding_window"),
        "window_entry_bytes": window_entry_bytes,
    }


def _entry_bytes(stored: Mapping[str, Any], size: int) -> int:
    """Bytes of one cache entry of `size` numbers."""
    return TensorFormat.model_validate(stored).tensor_bytes(1, size)


def _v4_attention(config: ConfigReader, ratio: int) -> dict[str, Any]:
    """Return a V4 layer's attention: window alone, compressed and indexed, or compressed much."""
    head_dim, rotary = config.integer("head_dim"), config.count("qk_rope_head_dim")
    # FlashMLA: FP8 numbers with a scale byte per 64, padded to 8 bytes, and BF16 rotary numbers.
    num_scales = -(-(head_dim - rotary) // 64)
    entry_bytes = head_dim - rotary + 2 * rotary + -(-num_scales // 8) * 8
    base = _base(config, entry_bytes)
    if not ratio:
        return base
    compressor = {
        "ratio": ratio,
        "overlap": ratio == _INDEXED_RATIO,
        "position_bias": True,
        "keeps_tail": True,
        "entry_bytes": entry_bytes,
    }
    if ratio != _INDEXED_RATIO:
        return {**base, "compressor": compressor}
    top_k = config.integer("index_topk")
    return {**base, "compressor": compressor, "indexer": _indexer(config), "top_k": top_k}


def _indexer(config: ConfigReader) -> dict[str, Any]:
    size = config.integer("index_head_dim")
    return {
        "num_heads": config.integer("index_n_heads"),
        "head_dim": size,
        "entry_bytes": _entry_bytes(_FP4_KEYS, size),
    }


def _v41_base(config: ConfigReader) -> dict[str, Any]:
    return _base(config, _entry_bytes(_FP8_WINDOW, config.integer("head_dim")))


def _v41_attention(config: ConfigReader, layer: int, ratio: int) -> dict[str, Any]:
    """Return a V4.1 layer's attention; the ratio names the entries it reads, its own or not."""
    base = _v41_base(config)
    if not ratio:
        return base
    entry_bytes = _entry_bytes(_FP4_LATENT, config.integer("head_dim"))
    found = {
        **base,
        "compressor": {"ratio": ratio, "entry_bytes": entry_bytes},
        "top_k": config.integer("index_topk"),
        "owns_kv": layer in config.integers("kv_source_layer_ids"),
    }
    if layer not in config.integers("index_source_layer_ids"):
        return found
    indexer = {**_indexer(config), "keys_from": "latent"}
    if config.has("candidate_source_layer_id"):
        num_blocks = config.integer("candidate_topk_blocks")
        if layer > config.integer("candidate_source_layer_id", minimum=0):
            indexer["max_scored_entries"] = num_blocks * config.integer("candidate_block_size")
    return {**found, "indexer": indexer}


def _v41_name(attention: Mapping[str, Any]) -> str:
    if "compressor" not in attention:
        return "window"
    ratio = attention["compressor"]["ratio"]
    role = " source" if attention["owns_kv"] else " index" if "indexer" in attention else ""
    return f"ratio {ratio}{role}"


def _moe(
    config: ConfigReader, is_hashed: bool = False, num_experts: int | None = None
) -> dict[str, Any]:
    """Return the experts of a layer; a hashed one routes by token id and has no bias."""
    routing = {"hash_rows": config.integer("vocab_size")} if is_hashed else {"router_bias": "fp32"}
    return {
        "kind": "moe",
        "num_experts": num_experts or config.integer("n_routed_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("moe_intermediate_size"),
        "num_shared_experts": config.count("n_shared_experts"),
        **routing,
    }


def _documents(*tensors: Tensor) -> list[dict[str, Any]]:
    """Return tensors as they stand in a document."""
    return [tensor.model_dump(exclude_defaults=True) for tensor in tensors]


def _times(tensors: Iterable[dict[str, Any]], times: int) -> list[dict[str, Any]]:
    """Return tensors of a document, `times` of each."""
    return [{**tensor, "count": tensor.get("count", 1) * times} for tensor in tensors]


def _hyper(config: ConfigReader, mixes: int, scales: int, count: int) -> list[dict[str, Any]]:
    """Return the mixing of the residual streams into `mixes` weights."""
    name, inputs = "hyper_connections", config.integer("hc_mult") * config.integer("hidden_size")
    return _documents(
        Tensor(component=name, outputs=mixes, inputs=inputs, count=count),
        vector(name, mixes + scales, count=count),
    )


def _hyper_connections(config: ConfigReader) -> list[dict[str, Any]]:
    """Return the mixing before attention and before the experts of a layer."""
    streams = config.integer("hc_mult")
    return _hyper(config, (2 + streams) * streams, scales=3, count=2)


def _hyper_head(config: ConfigReader) -> list[dict[str, Any]]:
    """Return the mixing that leaves one stream before the output head."""
    return _hyper(config, config.integer("hc_mult"), scales=1, count=1)


def _vision_bias(num_experts: int) -> list[dict[str, Any]]:
    """Return the router bias that image tokens take instead of that of text."""
    return _documents(vector("router_bias", num_experts, format={"number": "fp32"}))


def _engram(config: ConfigReader) -> list[dict[str, Any]]:
    """Return what a layer does with the rows that it looked up."""
    streams, hidden_size = config.integer("hc_mult"), config.integer("hidden_size")
    inputs = _engram_rows(config) * config.integer("engram_head_dim")
    return _documents(
        Tensor(component="engram_kv", outputs=(streams + 1) * hidden_size, inputs=inputs),
        vector("engram_gate", streams * hidden_size, count=2),
    )


def _engram_rows(config: ConfigReader) -> int:
    """Rows per token: every head looks up the n-grams of 2 tokens and more."""
    return (config.integer("engram_max_ngram_size", 2) - 1) * config.integer("engram_n_heads")


def _engram_tables(config: ConfigReader, layers: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = config.integers("engram_num_embeddings", minimum=1)
    if len(rows) != len(layers):
        rule = f"must name the rows of each of the {len(layers)} tables of engram_layer_ids"
        raise config.error("engram_num_embeddings", rule, len(rows))
    return [
        {
            "name": f"Engram {layer}",
            "layer": layer,
            "num_rows": num_rows,
            "row_size": config.integer("engram_head_dim"),
            "rows_per_token": _engram_rows(config),
            "format": scaled("fp8", "e8m0", 1, 32),
        }
        for layer, num_rows in zip(layers, rows, strict=True)
    ]


def _drafts(
    config: ConfigReader,
    attention: Mapping[str, Any],
    has_hyper_head: bool,
    has_vision: bool = False,
) -> list[dict[str, Any]]:
    """Return the part of draft layers: multi-token prediction, or the stages of DSpark."""
    stages, hidden_size = config.count("num_nextn_predict_layers"), config.integer("hidden_size")
    if not stages:
        return []
    num_experts = config.optional_integer("dspark_n_routed_experts")
    ffn = MoeFfn.model_validate(_moe(config, num_experts=num_experts))
    layer = [
        *_documents(*CompressedAttention.model_validate(attention).tensors(hidden_size)),
        *_documents(*ffn.tensors(hidden_size), vector("norms", hidden_size, count=2)),
        *_hyper_connections(config),
        *(_vision_bias(ffn.num_experts) if has_vision else ()),
    ]
    head = _hyper_head(config) if has_hyper_head else []
    if config.has("dspark_markov_rank"):
        ends = [*head, *_dspark(config, hidden_size)]
        return [{"name": "mtp", "tensors": [*_times(layer, stages), *ends]}]
    ends = _documents(
        Tensor(component="draft_projection", outputs=hidden_size, inputs=hidden_size, count=2),
        vector("norms", hidden_size, count=3),
    )
    return [{"name": "mtp", "tensors": _times([*layer, *head, *ends], stages)}]


def _dspark(config: ConfigReader, hidden_size: int) -> list[dict[str, Any]]:
    """Return what only the first and the last DSpark stage have."""
    rank, vocab_size = config.integer("dspark_markov_rank"), config.integer("vocab_size")
    targets = len(config.integers("dspark_target_layer_ids")) or 1
    return _documents(
        Tensor(component="draft_projection", outputs=hidden_size, inputs=targets * hidden_size),
        vector("norms", hidden_size, count=2),
        Tensor(component="markov_head", outputs=vocab_size, inputs=rank, count=2),
        Tensor(component="confidence_head", outputs=1, inputs=hidden_size + rank),
    )


def _vision(config: ConfigReader, vision: ConfigReader) -> list[dict[str, Any]]:
    """Return the vision tower and the projector to the language model's width."""
    size, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    blocks, side = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    width, folded = config.integer("hidden_size"), size * vision.integer("downsample_ratio") ** 2
    block = ((3 * size, size), (size, size), (2 * inner, size), (size, inner))
    tensors = _documents(
        Tensor(component="vision", outputs=size, inputs=3 * side**2),
        *(Tensor(component="vision", outputs=o, inputs=i, count=blocks) for o, i in block),
        # A block has a bias of three and one of one vector, and two norms.
        vector("vision", size, count=6 * blocks + 2),
        Tensor(component="projector", outputs=width, inputs=folded),
        Tensor(component="projector", outputs=width, inputs=width),
        # Two biases, and the marks of an image's start, end and line breaks.
        vector("projector", width, count=5),
    )
    return [{"name": "vision", "tensors": tensors}]


def _grouped(layers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put equal layers into one group each, in the order in which they first appear."""
    places: dict[str, list[int]] = {}
    fields: dict[str, dict[str, Any]] = {}
    for place, layer in enumerate(layers):
        key = json.dumps(layer, sort_keys=True)
        places.setdefault(key, []).append(place)
        fields.setdefault(key, layer)
    return [{**fields[key], "layers": tuple(found)} for key, found in places.items()]


def _formats(
    config: ConfigReader, groups: Iterable[Mapping[str, Any]], has_vision: bool = False
) -> dict[str, Any]:
    """Return the storage formats: what is small or sensitive stays in BF16 or FP32."""
    base = config.dtype()
    attentions = [group["attention"] for group in groups]
    compressors = [found["compressor"] for found in attentions if "compressor" in found]
    has_indexer = any("indexer" in found for found in attentions)
    has_position = any(found.get("position_bias") for found in compressors)
    has_dspark = config.has("dspark_markov_rank") and config.count("num_nextn_predict_layers")
    plain = (
        "router",
        *(("compressor",) if compressors else ()),
        *(("indexer_weights", "indexer_keys") if has_indexer else ()),
        *(("markov_head", "confidence_head") if has_dspark else ()),
        *(("vision", "projector") if has_vision else ()),
    )
    exact = (
        *("hyper_connections", "sinks"),
        *(("compressor_position",) if has_position else ()),
        *(("indexer_keys_position",) if has_position and has_indexer else ()),
    )
    weights, experts = _quantized(config)
    return {
        "weights": weights or base,
        "embeddings": base,
        "vectors": base,
        "components": {
            **dict.fromkeys(plain, base),
            **dict.fromkeys(exact, "fp32"),
            **({"experts": experts} if experts else {}),
        },
    }


def _quantized(config: ConfigReader) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the formats of weights and, where they differ, of routed experts."""
    held = config.holder("quantization_config")
    if held is None:
        return None, None
    section = held[0].section(held[1])
    section.refuse("quant_method", "fp8", "only the published FP8 format can be imported")
    block = section.integers("weight_block_size", minimum=1)
    if len(block) != 2:
        raise section.error("weight_block_size", "must be two block sides", list(block))
    scale = "e8m0" if section.optional_text("scale_fmt") == "ue8m0" else "fp32"
    holder = section if section.has("expert_dtype") else config
    experts = holder.optional_text("expert_dtype") or "fp8"
    if experts not in ("fp8", "fp4"):
        raise holder.error("expert_dtype", "must be fp8 or fp4", experts)
    is_fp4 = experts == "fp4"
    weights = scaled("fp8", scale, block[0], block[1])
    return weights, scaled("fp4", "e8m0", 1, 32) if is_fp4 else None
