"""FLOP and byte counts of a decode step, against hand arithmetic and published models."""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances.catalog_store import catalog_entry
from instances.model import ModelFormats, ModelSpec
from optimizer.operators import (
    LinearWork,
    attention_parameters,
    card_flops,
    card_read_bytes,
    ffn_parameters,
    head_bytes,
    kv_bytes_per_token,
    kv_bytes_per_token_per_card,
    kv_heads_per_card,
    layer_matrix_bytes,
    message_bytes,
    reductions_per_step,
    step_flops,
    step_read_bytes,
    step_state_bytes,
    step_weight_bytes,
)

#: Numbers small enough to add by hand.
TINY = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    ffn_size=16,
    vocab_size=32,
)
QWEN3_32B = ModelSpec.model_validate(catalog_entry("models", "qwen3-32b"))


def changed(**fields: object) -> ModelSpec:
    return ModelSpec.model_validate({**TINY.model_dump(), **fields})


def test_tiny_model_counts_follow_the_hand_arithmetic() -> None:
    # q and o: 4 heads · 2 · 8 = 64 each; k and v: 2 heads · 2 · 8 = 32 each; together 192.
    assert attention_parameters(TINY) == 192
    # Three matrices of 8 · 16 = 128.
    assert ffn_parameters(TINY) == 384
    # (192 + 384) numbers · 2 B.
    assert layer_matrix_bytes(TINY) == 1152
    # 32 rows · 8 numbers · 2 B.
    assert head_bytes(TINY) == 512
    # 2 layers · 1152 + 512.
    assert step_weight_bytes(TINY) == 2816
    # K and V · 2 layers · 2 heads · 2 numbers · 2 B.
    assert kv_bytes_per_token(TINY) == 32
    assert message_bytes(TINY) == 16
    assert message_bytes(TINY, batch=3) == 48
    assert reductions_per_step(TINY) == 4


def test_a_step_reads_the_kv_of_the_context_and_of_the_new_token() -> None:
    # 2816 + 32 · (10 + 1)
    assert step_read_bytes(TINY, 10) == 3168
    assert step_read_bytes(TINY, 0) == 2848
    assert step_state_bytes(TINY, 10, batch=3) == 960
    assert step_state_bytes(TINY, 0) == 0


def test_flops_are_two_per_weight_and_four_per_head_dimension_and_token() -> None:
    # Matrices: 2 · (2 · (192 + 384) + 32 · 8) = 2816.
    # Attention: 4 · 2 layers · 4 heads · 2 = 64 per token.
    assert step_flops(TINY, 0) == 2816
    assert step_flops(TINY, 10) == 2816 + 640
    assert step_flops(TINY, 10, batch=5) == 5 * 3456


def test_a_tied_model_still_reads_its_head() -> None:
    assert step_weight_bytes(changed(tied_embeddings=True)) == step_weight_bytes(TINY)


def test_formats_of_weights_embeddings_kv_and_activations_count_separately() -> None:
    formats = ModelFormats(weights="int8", embeddings="fp32", kv="fp8", activations="fp32")
    model = changed(formats=formats.model_dump())
    assert layer_matrix_bytes(model) == 576  # (192 + 384) · 1 B
    assert head_bytes(model) == 1024  # 256 numbers · 4 B
    assert kv_bytes_per_token(model) == 16  # 16 numbers · 1 B
    assert message_bytes(model) == 32  # 8 numbers · 4 B


def test_d11_qwen25_7b_keeps_57344_bytes_per_token_not_1605632() -> None:
    # 2 · 28 layers · 4 KV heads · 128 · 2 B; the hidden size (3584) and 8 B have no place in it.
    model = ModelSpec(
        name="Qwen2.5-7B",
        num_layers=28,
        hidden_size=3584,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        ffn_size=18944,
        vocab_size=152064,
        qkv_bias=True,
    )
    assert kv_bytes_per_token(model) == 57_344
    # The reporter's 3,072 tokens: 168 MiB.
    assert step_state_bytes(model, 3072) == 168 * 2**20


def test_qwen3_32b_reads_930_mib_per_layer_and_the_head_as_published() -> None:
    assert layer_matrix_bytes(QWEN3_32B) == 930 * 2**20
    assert head_bytes(QWEN3_32B) == 1_555_824_640  # 151936 · 5120 · 2 B
    assert kv_bytes_per_token(QWEN3_32B) == 256 * 2**10
    assert message_bytes(QWEN3_32B) == 10 * 2**10
    assert reductions_per_step(QWEN3_32B) == 128


@pytest.mark.parametrize(
    ("tp", "heads", "kv_per_token"),
    [(1, 8, 262_144), (2, 4, 131_072), (4, 2, 65_536), (8, 1, 32_768), (16, 1, 32_768)],
)
def test_a_card_never_keeps_less_than_one_whole_kv_head(
    tp: int, heads: int, kv_per_token: int
) -> None:
    # 262,144 B / 8 heads = 32,768 B per head.
    assert kv_heads_per_card(QWEN3_32B, tp) == heads
    assert kv_bytes_per_token_per_card(QWEN3_32B, tp) == kv_per_token


@pytest.mark.parametrize("tp", [3, 5, 6, 7, 12])
def test_kv_heads_that_cannot_be_laid_out_are_refused(tp: int) -> None:
    with pytest.raises(ValueError, match=f"8 KV heads cannot be laid out on {tp} cards"):
        kv_heads_per_card(QWEN3_32B, tp)


def test_linear_work_is_its_base_plus_a_rate_per_token() -> None:
    work = LinearWork(Fraction(5), Fraction(1, 3))
    assert work.at(0) == 5
    assert work.at(6) == 7


@pytest.mark.parametrize("tokens", [0, 1, 10, 1000])
def test_one_card_reads_and_computes_the_whole_step(tokens: int) -> None:
    assert card_read_bytes(TINY, 1).at(tokens) == 2816 + 32 * (tokens + 1)
    # A card attends to the new token too, hence tokens + 1.
    assert card_flops(TINY, 1).at(tokens) == 2816 + 64 * (tokens + 1)


@pytest.mark.parametrize(
    ("tp", "reads", "flops"),
    [
        (2, 1408 + 16 * 11, Fraction(3520, 2)),
        # Four cards, two KV heads: KV per card stays at 16 B per token, weights go on shrinking.
        (4, 704 + 16 * 11, Fraction(3520, 4)),
    ],
)
def test_a_split_card_reads_its_share_of_weights_and_its_own_kv_heads(
    tp: int, reads: int, flops: Fraction
) -> None:
    # Context 10: 2816 weights; 2816 + 64 · 11 = 3520 FLOP in all.
    assert card_read_bytes(TINY, tp).at(10) == reads
    assert card_flops(TINY, tp).at(10) == flops
