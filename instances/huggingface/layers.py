"""What several families have in common: equal layers as groups, and the MTP layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from instances.huggingface.reader import ConfigReader
from instances.model import Attention, Ffn
from instances.tensors import Tensor, vector

#: Attention and FFN of one layer as documents.
Layer = tuple[dict[str, Any], dict[str, Any]]

_ATTENTION: TypeAdapter[Attention] = TypeAdapter(Attention)
_FFN: TypeAdapter[Ffn] = TypeAdapter(Ffn)


def layer_groups(names: Sequence[str], layers: dict[str, Layer]) -> list[dict[str, Any]]:
    """Return the groups of a model whose layer i is `layers[names[i]]`."""
    return [
        {
            "name": name,
            "layers": tuple(place for place, used in enumerate(names) if used == name),
            "attention": attention,
            "ffn": ffn,
        }
        for name, (attention, ffn) in layers.items()
        if name in names
    ]


def decoder(
    config: ConfigReader, groups: list[dict[str, Any]], formats: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a decoder."""
    return {
        "hidden_size": config.integer("hidden_size"),
        "vocab_size": config.integer("vocab_size"),
        "tied_embeddings": config.tied_embeddings(),
        "groups": groups,
        "formats": formats,
    }


def dense_first(config: ConfigReader) -> list[str]:
    """Name every layer "dense" or "moe": the first ones are dense, then every `moe_layer_freq`."""
    first, every = config.integer("first_k_dense_replace", minimum=0), 1
    if config.has("moe_layer_freq"):
        every = config.integer("moe_layer_freq")
    return [
        "moe" if layer >= first and layer % every == 0 else "dense"
        for layer in range(config.num_layers())
    ]


def dense_and_moe(config: ConfigReader, attention: dict[str, Any]) -> dict[str, Layer]:
    """Return the "dense" and the "moe" layer: routed and shared experts, an FP32 router bias."""
    shared = config.count("n_shared_experts")
    moe = {
        "kind": "moe",
        "num_experts": config.integer("n_routed_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_size": config.integer("moe_intermediate_size"),
        "num_shared_experts": shared,
        "router_bias": "fp32",
    }
    dense = {"kind": "dense", "size": config.integer("intermediate_size")}
    return {"dense": (attention, dense), "moe": (attention, moe)}


def layers_named(names: Sequence[str], *wanted: str) -> tuple[int, ...]:
    """Return the places of the layers with one of these names."""
    return tuple(place for place, name in enumerate(names) if name in wanted)


def mtp_parts(config: ConfigReader, layer: Layer) -> list[dict[str, Any]]:
    """Return the MTP layers as a side part: a layer, its joining matrix, own embedding and head.

    Its norms are two of the layer, one each of the embedding and the hidden vector that it joins,
    and one before its head.
    """
    count = config.count("num_nextn_predict_layers")
    if not count:
        return []
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    attention, ffn = _ATTENTION.validate_python(layer[0]), _FFN.validate_python(layer[1])
    table: dict[str, Any] = {"outputs": vocabulary, "inputs": hidden, "role": "vocabulary"}
    tensors = (
        *attention.tensors(hidden),
        *ffn.tensors(hidden),
        vector("norms", hidden, count=5),
        Tensor(component="eh_proj", outputs=hidden, inputs=2 * hidden),
        Tensor(component="embedding", **table),
        Tensor(component="lm_head", **table),
    )
    each = [tensor.model_copy(update={"count": tensor.count * count}) for tensor in tensors]
    return [{"name": "mtp", "tensors": each}]
