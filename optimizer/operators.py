"""Closed-form FLOP and byte counts of a step of the whole model (sections 1, 2 and 6.2.2).

Reads follow (6-4): every matrix once, the cache entries the step needs, the output head; norms,
biases and single rows of tables are left out, as the source does. Experts are read once each when
any token of the step chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from instances.ffn import MoeFfn
from instances.model import LayerGroup, ModelSpec
from instances.tensors import StatePart, Tensor
from optimizer.inventory import weight_bytes
from optimizer.routing import RoutingPolicy, routing_load


def _per_group(model: ModelSpec) -> Iterator[tuple[LayerGroup, tuple[Tensor, ...], int]]:
    """Yield (group, tensors of one layer, layers)."""
    for group, tensors in zip(model.groups, model.layer_tensors, strict=True):
        yield group, tensors, len(group.layers)


def matrices(tensors: tuple[Tensor, ...], *, experts: bool) -> Iterator[Tensor]:
    """Yield the matrices among tensors, those of experts or the others."""
    yield from (t for t in tensors if t.role == "matrix" and t.is_expert == experts)


def expert_parameters(tensors: tuple[Tensor, ...]) -> Fraction:
    """Numbers in the matrices of one routed expert of a layer; 0 without experts."""
    return sum((Fraction(t.numbers, t.count) for t in matrices(tensors, experts=True)), Fraction(0))


def expert_bytes(model: ModelSpec, tensors: tuple[Tensor, ...]) -> Fraction:
    """Bytes of the matrices of one routed expert of a layer, scales included."""
    sizes = (
        Fraction(t.total_bytes(model.formats), t.count) for t in matrices(tensors, experts=True)
    )
    return sum(sizes, Fraction(0))


def layer_matrix_bytes(model: ModelSpec, layer: int = 0) -> int:
    """Bytes of one layer's matrices, experts all included (Qwen3-32B: 930 MiB)."""
    tensors = model.layer_tensors[model.group_of_layer[layer]]
    return sum(t.total_bytes(model.formats) for t in tensors if t.role == "matrix")


def head_bytes(model: ModelSpec) -> int:
    """Bytes of the output head, whose weights a tied model shares with the embedding."""
    return model.lm_head.total_bytes(model.formats)


def distinct_experts(ffn: MoeFfn, tokens: int, routing: RoutingPolicy) -> Fraction:
    """Experts of a layer that `tokens` tokens read."""
    load = routing_load(tokens, ffn.num_experts, ffn.experts_per_token, 1, routing)
    return Fraction(load.distinct_experts)


def step_weight_bytes(
    model: ModelSpec, batch: int = 1, routing: RoutingPolicy = "balanced"
) -> Fraction:
    """Weight bytes that a decode step of `batch` sessions reads: first and last term of (6-4)."""
    total = Fraction(head_bytes(model))
    for group, tensors, layers in _per_group(model):
        fixed = sum(t.total_bytes(model.formats) for t in matrices(tensors, experts=False))
        total += layers * fixed
        if isinstance(group.ffn, MoeFfn):
            read = distinct_experts(group.ffn, batch, routing)
            total += layers * read * expert_bytes(model, tensors)
    return total


def _state(model: ModelSpec) -> Iterator[tuple[StatePart, int]]:
    for group, parts in zip(model.groups, model.layer_state, strict=True):
        yield from ((part, len(group.layers)) for part in parts)


def kv_bytes_per_token(model: ModelSpec) -> Fraction:
    """Cache bytes that one more token adds for good, one copy: 2·layers·kv_heads·head_dim·bytes.

    Latents count once; sliding windows and fixed states do not grow with the context.
    """
    growing = (
        Fraction(layers * part.entry_bytes, part.tokens_per_entry)
        for part, layers in _state(model)
        if part.window is None and not part.is_fixed and not part.is_borrowed
    )
    return sum(growing, Fraction(0))


def fixed_state_bytes(model: ModelSpec) -> dict[str, int]:
    """Bytes of a request's recurrent states, which do not depend on its context, by component."""
    found: dict[str, int] = {}
    for part, layers in _state(model):
        if part.is_fixed:
            found[part.component] = found.get(part.component, 0) + layers * part.entry_bytes
    return found


def step_state_bytes(model: ModelSpec, context_tokens: int, batch: int = 1) -> int:
    """Cache bytes that `batch` sessions with `context_tokens` tokens each hold, one copy."""
    return batch * sum(
        layers * part.entries(context_tokens) * part.entry_bytes for part, layers in _state(model)
    )


def spread_sessions(
    model: ModelSpec, context_tokens: int, num_cards: int, card_bytes: int, workspace_bytes: int
) -> int:
    """Sessions that fit if weights and caches spread evenly over the cards (section 6.2.2).

    An upper bound of what any split reaches: nothing is held twice and no card is fuller.
    """
    room = num_cards * (card_bytes - workspace_bytes) - weight_bytes(model, with_parts=False)
    return max(room, 0) // step_state_bytes(model, context_tokens)


def step_state_read_bytes(model: ModelSpec, context_tokens: int, batch: int = 1) -> int:
    """Cache bytes that a decode step of `batch` sessions of `context_tokens` tokens reads."""
    return batch * sum(
        layers * part.read_entries(context_tokens) * part.entry_bytes
        for part, layers in _state(model)
    )


def step_read_bytes(model: ModelSpec, context_tokens: int) -> Fraction:
    """HBM traffic V(s) of one decode step with s tokens of context and one more written (6-4)."""
    return step_weight_bytes(model) + step_state_read_bytes(model, context_tokens + 1)


def active_parameters(model: ModelSpec) -> Fraction:
    """Numbers of the matrices that one token passes through, the output head included."""
    total = Fraction(model.lm_head.numbers)
    for group, tensors, layers in _per_group(model):
        total += layers * sum(t.numbers for t in matrices(tensors, experts=False))
        if isinstance(group.ffn, MoeFfn):
            total += layers * group.ffn.experts_per_token * expert_parameters(tensors)
    return total


def attention_flops(model: ModelSpec, context_tokens: int) -> int:
    """FLOP of one token besides the matrices: cache entries attended, recurrent states updated."""
    total = 0
    for group, parts in zip(model.groups, model.layer_state, strict=True):
        entries = sum(p.read_entries(context_tokens) * p.flops_per_entry for p in parts)
        total += len(group.layers) * (entries + group.attention.token_flops())
    return total


def step_flops(model: ModelSpec, context_tokens: int, batch: int = 1) -> Fraction:
    """FLOP of one decode step: 2 per weight a token passes, and what its attention does."""
    return batch * (2 * active_parameters(model) + attention_flops(model, context_tokens))


def message_bytes(model: ModelSpec, tokens: int = 1) -> int:
    """Bytes of one reduction: a hidden vector for each token of the step (Qwen3-32B: 10 KiB)."""
    return tokens * model.hidden_size * model.formats.bytes_of("activations")


def reductions_per_step(model: ModelSpec) -> int:
    """AllReduces of a tensor-parallel step: after attention and after the FFN of each layer."""
    return 2 * model.num_layers
