"""Which bytes of the model every card holds under tensor parallelism (section 1)."""

from __future__ import annotations

from dataclasses import dataclass

from instances.model import ModelSpec
from optimizer.operators import kv_heads_per_card


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Bytes of one component on one card, and why they are there."""

    component: str
    num_bytes: int
    reason: str


def card_weight_parts(model: ModelSpec, tp: int) -> tuple[WeightPart, ...]:
    """Return what each card of a TP group holds; all cards of the group hold equally much.

    Query, output and FFN matrices and the vocabulary are split (widths that do not divide are
    padded up), K/V projections follow the KV heads, norms are copied whole.
    Raises ValueError when `tp` does not suit the heads.
    """
    if tp < 1 or model.num_heads % tp:
        raise ValueError(f"{model.num_heads} query heads do not divide by {tp}")
    heads, kv_heads = model.num_heads // tp, kv_heads_per_card(model, tp)
    layers, hidden, width = model.num_layers, model.hidden_size, model.head_dim
    weight, table = model.formats.bytes_of("weights"), model.formats.bytes_of("embeddings")
    norm = model.formats.bytes_of("activations")
    copies = max(1, tp // model.num_kv_heads)
    split = f"split over {tp} cards" if tp > 1 else "whole"
    kv_reason = f"each KV head on {copies} cards" if copies > 1 else split
    rows = -(-model.vocab_size // tp) * hidden * table
    norms = (2 * layers + 1) * hidden + (2 * layers * width if model.qk_norm else 0)
    parts = [
        WeightPart("embedding", rows, split),
        WeightPart("lm_head", 0 if model.tied_embeddings else rows, split),
        WeightPart("attention_q", layers * heads * width * hidden * weight, split),
        WeightPart("attention_k", layers * kv_heads * width * hidden * weight, kv_reason),
        WeightPart("attention_v", layers * kv_heads * width * hidden * weight, kv_reason),
        WeightPart("attention_o", layers * heads * width * hidden * weight, split),
        WeightPart("ffn", layers * 3 * hidden * -(-model.ffn_size // tp) * weight, split),
        WeightPart("norms", norms * norm, "copied: every card normalises the whole vector"),
    ]
    if model.qkv_bias:
        numbers = layers * (heads + 2 * kv_heads) * width
        parts.append(WeightPart("qkv_bias", numbers * norm, "follows its projection"))
    return tuple(part for part in parts if part.num_bytes)


def card_weight_bytes(model: ModelSpec, tp: int) -> int:
    """Weight bytes on each card of a TP group."""
    return sum(part.num_bytes for part in card_weight_parts(model, tp))


def model_weight_bytes(model: ModelSpec) -> int:
    """Weight bytes of one whole copy of the model."""
    return card_weight_bytes(model, 1)
