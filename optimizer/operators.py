"""Closed-form FLOP and byte counts of a decode step (sections 1 and 2).

Reads follow (6-4): every matrix once, the KV of all tokens, the output head; norms and the single
embedding row are left out, as the source does. One tensor-parallel group reads each weight matrix
once in total (6-5), also where `tp` exceeds the KV heads and K/V projections are stored twice;
KV is read by every card that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from instances.model import ModelSpec


def attention_parameters(model: ModelSpec) -> int:
    """Numbers in the q, k, v and o projections of one layer."""
    width = 2 * model.num_heads + 2 * model.num_kv_heads
    return width * model.head_dim * model.hidden_size


def ffn_parameters(model: ModelSpec) -> int:
    """Numbers in the three SwiGLU matrices of one layer."""
    return 3 * model.hidden_size * model.ffn_size


def layer_matrix_bytes(model: ModelSpec) -> int:
    """Bytes of one layer's matrices (Qwen3-32B: 930 MiB)."""
    numbers = attention_parameters(model) + ffn_parameters(model)
    return numbers * model.formats.bytes_of("weights")


def head_bytes(model: ModelSpec) -> int:
    """Bytes of the output head, whose weights a tied model shares with the embedding."""
    return model.vocab_size * model.hidden_size * model.formats.bytes_of("embeddings")


def step_weight_bytes(model: ModelSpec) -> int:
    """Weight bytes one decode step reads, whatever the batch: first and last term of (6-4)."""
    return model.num_layers * layer_matrix_bytes(model) + head_bytes(model)


def kv_bytes_per_token(model: ModelSpec) -> int:
    """KV bytes of one token, one copy: 2 · layers · kv_heads · head_dim · bytes (section 1)."""
    numbers = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    return numbers * model.formats.bytes_of("kv")


def kv_heads_per_card(model: ModelSpec, tp: int) -> int:
    """KV heads on each card: kv_heads / tp, and one whole head where tp exceeds them.

    Raises ValueError when neither of the two divides the other.
    """
    larger, smaller = max(tp, model.num_kv_heads), min(tp, model.num_kv_heads)
    if tp < 1 or larger % smaller:
        raise ValueError(f"{model.num_kv_heads} KV heads cannot be laid out on {tp} cards")
    return max(1, model.num_kv_heads // tp)


def kv_bytes_per_token_per_card(model: ModelSpec, tp: int) -> int:
    """KV bytes of one token on one card: the whole divided by min(tp, kv_heads)."""
    return kv_bytes_per_token(model) // model.num_kv_heads * kv_heads_per_card(model, tp)


def step_state_bytes(model: ModelSpec, context_tokens: int, batch: int = 1) -> int:
    """KV bytes that `batch` sessions with `context_tokens` each hold and read in a step."""
    return batch * context_tokens * kv_bytes_per_token(model)


def step_read_bytes(model: ModelSpec, context_tokens: int) -> int:
    """HBM traffic V(s) of one decode step with s tokens of context and one more written (6-4)."""
    return step_weight_bytes(model) + step_state_bytes(model, context_tokens + 1)


def step_flops(model: ModelSpec, context_tokens: int, batch: int = 1) -> int:
    """FLOP of one decode step: 2 per weight and 4 per query-head dimension and token attended."""
    numbers = model.num_layers * (attention_parameters(model) + ffn_parameters(model))
    matrices = 2 * (numbers + model.vocab_size * model.hidden_size)
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * context_tokens
    return batch * (matrices + attention)


def message_bytes(model: ModelSpec, batch: int = 1) -> int:
    """Bytes of one reduction: a hidden vector for each session in the step (Qwen3-32B: 10 KiB)."""
    return batch * model.hidden_size * model.formats.bytes_of("activations")


def reductions_per_step(model: ModelSpec) -> int:
    """AllReduces of a tensor-parallel step: after attention and after the FFN of each layer."""
    return 2 * model.num_layers


@dataclass(frozen=True, slots=True)
class LinearWork:
    """Work that grows linearly with the context: base + per_token · tokens."""

    base: Fraction
    per_token: Fraction

    def at(self, tokens: int) -> Fraction:
        """Return the work at `tokens`."""
        return self.base + self.per_token * tokens


def card_read_bytes(model: ModelSpec, tp: int) -> LinearWork:
    """Bytes one of `tp` cards reads per decode step, as a function of the context s (6-4, 6-5)."""
    per_token = Fraction(kv_bytes_per_token_per_card(model, tp))
    return LinearWork(Fraction(step_weight_bytes(model), tp) + per_token, per_token)


def card_flops(model: ModelSpec, tp: int) -> LinearWork:
    """FLOP one of `tp` cards does per decode step; attends to the new token too."""
    base, next_one = step_flops(model, 1), step_flops(model, 2)
    return LinearWork(Fraction(base, tp), Fraction(next_one - base, tp))
