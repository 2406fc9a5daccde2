"""FLOP and byte counts of a step, against hand arithmetic and published models."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from instances.catalog_store import catalog_entry
from instances.formats import ModelFormats
from instances.model import ModelSpec
from optimizer.operators import (
    active_parameters,
    attention_flops,
    expert_bytes,
    expert_parameters,
    fixed_state_bytes,
    head_bytes,
    kv_bytes_per_token,
    layer_matrix_bytes,
    matrices,
    message_bytes,
    reductions_per_step,
    step_flops,
    step_read_bytes,
    step_state_bytes,
    step_state_read_bytes,
    step_weight_bytes,
)
from optimizer.ownership import stage_places
from optimizer.parallel import ParallelConfig
from optimizer.shards import card_entry_bytes, state_units
from optimizer.work import StepLoad, stage_work

#: Numbers small enough to add by hand.
FIELDS: dict[str, Any] = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 2,
    "ffn_size": 16,
    "vocab_size": 32,
}


def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


def changed(**fields: object) -> ModelSpec:
    return ModelSpec.model_validate({**FIELDS, **fields})


TINY = changed()
QWEN3_32B = published("qwen3-32b")

#: The attention of TINY in two layers; the second has 4 experts of 4 columns, 2 for each token,
#: and a shared one of as many.
TINY_MOE = ModelSpec.model_validate(
    {
        "name": "tiny-moe",
        "hidden_size": 8,
        "vocab_size": 32,
        "groups": [
            {
                "name": name,
                "layers": [layer],
                "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2},
                "ffn": ffn,
            }
            for layer, (name, ffn) in enumerate(
                {
                    "dense": {"kind": "dense", "size": 16},
                    "moe": {
                        "kind": "moe",
                        "num_experts": 4,
                        "experts_per_token": 2,
                        "expert_size": 4,
                        "num_shared_experts": 1,
                    },
                }.items()
            )
        ],
    }
)


def numbers(model: ModelSpec, component: str) -> int:
    """Numbers of the matrices of one component in the first layer."""
    found = matrices(model.layer_tensors[0], experts=False)
    return sum(tensor.numbers for tensor in found if tensor.component.startswith(component))


def card_work(model: ModelSpec, tp: int, tokens: int) -> tuple[Fraction, Fraction]:
    """Return (FLOP, bytes read) of a card in a step with `tokens` cached, as (6-5) counts them."""
    config, place = ParallelConfig(tp=tp), stage_places(model, ())[0]
    work = stage_work(model, config, place, StepLoad(roofline="step"))
    done = [operator.at(tokens) for operator in work.operators]
    return sum((f for f, _ in done), Fraction(0)), sum((r for _, r in done), Fraction(0))


def test_tiny_model_counts_follow_the_hand_arithmetic() -> None:
    # q and o: 4 heads · 2 · 8 = 64 each; k and v: 2 heads · 2 · 8 = 32 each; together 192.
    assert numbers(TINY, "attention") == 192
    # Three matrices of 8 · 16 = 128.
    assert numbers(TINY, "ffn") == 384
    # (192 + 384) numbers · 2 B.
    assert layer_matrix_bytes(TINY) == 1152
    # 32 rows · 8 numbers · 2 B.
    assert head_bytes(TINY) == 512
    # 2 layers · 1152 + 512.
    assert step_weight_bytes(TINY) == 2816
    # K and V · 2 layers · 2 heads · 2 numbers · 2 B.
    assert kv_bytes_per_token(TINY) == 32
    assert message_bytes(TINY) == 16
    assert message_bytes(TINY, tokens=3) == 48
    assert reductions_per_step(TINY) == 4
    assert fixed_state_bytes(TINY) == {}


def test_a_mixture_of_experts_reads_the_experts_that_its_tokens_choose() -> None:
    # One expert: 3 · 8 · 4 = 96 numbers, 192 B.
    assert expert_parameters(TINY_MOE.layer_tensors[1]) == 96
    assert expert_bytes(TINY_MOE, TINY_MOE.layer_tensors[1]) == 192
    assert expert_parameters(TINY_MOE.layer_tensors[0]) == 0
    assert layer_matrix_bytes(TINY_MOE, 0) == 1152
    # Attention 192, router 4 · 8 = 32, shared 96, four experts of 96: 704 numbers · 2 B.
    assert layer_matrix_bytes(TINY_MOE, 1) == 1408
    # 1152 + (192 + 32 + 96) · 2 + 512 = 2304 and two experts of 192 B; 2 tokens may need all four.
    assert step_weight_bytes(TINY_MOE) == 2304 + 2 * 192
    assert step_weight_bytes(TINY_MOE, batch=2) == 2304 + 4 * 192
    assert step_weight_bytes(TINY_MOE, batch=100) == 2304 + 4 * 192
    # 192 + 384, 192 + 32 + 96 + 2 · 96, head 256.
    assert active_parameters(TINY_MOE) == 576 + 512 + 256
    assert step_flops(TINY_MOE, 0) == 2 * 1344


def test_expected_experts_are_an_exact_fraction() -> None:
    # Two tokens with 2 of 4 experts each at random: 4 · (1 - (1/2)^2) = 3 different ones.
    assert step_weight_bytes(TINY_MOE, 2, "expected") == 2304 + 3 * 192
    # Three: 4 · (1 - 1/8) = 7/2.
    assert step_weight_bytes(TINY_MOE, 3, "expected") == 2304 + Fraction(7, 2) * 192


def test_a_step_reads_the_kv_of_the_context_and_of_the_new_token() -> None:
    # 2816 + 32 · (10 + 1)
    assert step_read_bytes(TINY, 10) == 3168
    assert step_read_bytes(TINY, 0) == 2848
    assert step_state_bytes(TINY, 10, batch=3) == 960
    assert step_state_bytes(TINY, 0) == 0


def test_flops_are_two_per_weight_and_four_per_head_dimension_and_token() -> None:
    # Matrices: 2 · (2 · (192 + 384) + 32 · 8) = 2816.
    # Attention: 4 · 2 layers · 4 heads · 2 = 64 per token.
    assert active_parameters(TINY) == 1408
    assert attention_flops(TINY, 10) == 640
    assert step_flops(TINY, 0) == 2816
    assert step_flops(TINY, 10) == 2816 + 640
    assert step_flops(TINY, 10, batch=5) == 5 * 3456


def test_a_tied_model_still_reads_its_head() -> None:
    assert step_weight_bytes(changed(tied_embeddings=True)) == step_weight_bytes(TINY)


def test_formats_of_weights_embeddings_kv_and_activations_count_separately() -> None:
    given = {"weights": "int8", "embeddings": "fp32", "kv": "fp8", "activations": "fp32"}
    model = changed(formats=ModelFormats.model_validate(given).model_dump())
    assert layer_matrix_bytes(model) == 576  # (192 + 384) · 1 B
    assert head_bytes(model) == 1024  # 256 numbers · 4 B
    assert kv_bytes_per_token(model) == 16  # 16 numbers · 1 B
    assert message_bytes(model) == 32  # 8 numbers · 4 B


def test_d11_qwen25_7b_keeps_57344_bytes_per_token_not_1605632() -> None:
    # 2 · 28 layers · 4 KV heads · 128 · 2 B; the hidden size (3584) and 8 B have no place in it.
    model = changed(
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
    ("name", "per_token"),
    [
        ("deepseek-r1", 70_272),  # 61 layers · 576 numbers · 2 B, once for all heads
        ("qwen3-235b-a22b", 192_512),  # 2 · 94 · 4 · 128 · 2 B
        ("qwen3.6-35b-a3b", 20_480),  # 10 of 40 layers: 2 · 2 · 256 · 2 B
        ("kimi-k3", 27_648),  # 24 latent layers of 576 · 2 B
        # 4 layers own entries of 288 B and index keys of 68 B: 3 for every 2 tokens, 1 for each.
        ("deepseek-v4.1-flash", 890),
        ("gpt-oss-120b", 36_864),  # 18 layers without a window: 2 · 8 · 64 · 2 B
    ],
)
def test_only_caches_that_grow_without_end_count_per_token(name: str, per_token: int) -> None:
    assert kv_bytes_per_token(published(name)) == per_token


def test_windows_and_limits_bound_what_a_step_reads() -> None:
    gpt = published("gpt-oss-120b")
    # 36 layers of 2,048 B a token; 18 of them stop at 128 tokens.
    assert step_state_bytes(gpt, 128) == 36 * 2048 * 128
    assert step_state_bytes(gpt, 1000) == 18 * 2048 * (128 + 1000)
    assert step_state_read_bytes(gpt, 1000, batch=2) == 2 * step_state_bytes(gpt, 1000)


def test_recurrent_states_are_held_and_read_whatever_the_context() -> None:
    model = published("qwen3.6-35b-a3b")
    assert fixed_state_bytes(model) == {"recurrent_state": 62_914_560, "conv_state": 1_966_080}
    assert step_state_bytes(model, 0) == 64_880_640
    assert step_state_bytes(model, 5) == 64_880_640 + 5 * 20_480


@pytest.mark.parametrize(
    ("tp", "heads", "kv_per_token"),
    [(1, 8, 262_144), (2, 4, 131_072), (4, 2, 65_536), (8, 1, 32_768), (16, 1, 32_768)],
)
def test_a_card_never_keeps_less_than_one_whole_kv_head(
    tp: int, heads: int, kv_per_token: int
) -> None:
    # 262,144 B / 8 heads = 32,768 B per head, in 64 layers.
    (part,) = QWEN3_32B.layer_state[0]
    assert state_units(part, tp) == heads
    assert 64 * card_entry_bytes(part, tp) == kv_per_token


@pytest.mark.parametrize("tp", [3, 5, 6, 7, 12])
def test_kv_heads_that_cannot_be_laid_out_are_refused(tp: int) -> None:
    (part,) = QWEN3_32B.layer_state[0]
    with pytest.raises(ValueError, match=f"8 kv heads cannot be laid out on {tp} cards"):
        card_entry_bytes(part, tp)


@pytest.mark.parametrize("tokens", [0, 1, 10, 1000])
def test_one_card_reads_and_computes_the_whole_step(tokens: int) -> None:
    assert card_work(TINY, 1, tokens) == (2816 + 64 * tokens, 2816 + 32 * tokens)


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
    # 11 tokens with the new one: 2816 weights; 2816 + 64 · 11 = 3520 FLOP in all.
    assert card_work(TINY, tp, 11) == (flops, reads)


def test_the_closed_form_and_the_operators_of_one_card_agree() -> None:
    for name in ("qwen3-32b", "qwen3-235b-a22b", "deepseek-r1", "qwen3.6-35b-a3b"):
        model = published(name)
        flops, read = card_work(model, 1, 101)
        assert read == step_read_bytes(model, 100), name
        assert flops == step_flops(model, 101), name
