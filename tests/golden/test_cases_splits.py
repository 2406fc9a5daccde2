"""Public bug reports about splits, retold: which degrees are legal, and what says no."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from instances.catalog_store import catalog_entry, resolve_reference
from instances.engine import TEXTBOOK, EngineProfile
from instances.model import ModelSpec
from optimizer.legality import check_config, check_ep, check_tp, legal_ep, legal_tp
from optimizer.operators import kv_bytes_per_token
from optimizer.ownership import (
    card_weight_parts,
    duplications,
    session_bytes,
    stage_places,
    stage_weight_bytes,
)
from optimizer.parallel import ParallelConfig
from optimizer.shards import shard_of

BLOCKS_OF_128 = {"number": "fp8", "scale": {"number": "fp32", "block": [128, 128]}}


@cache
def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


def modified(name: str, **changes: Any) -> ModelSpec:
    return ModelSpec.model_validate(resolve_reference("models")({"base": name, **changes}))


@cache
def engine(name: str) -> EngineProfile:
    return EngineProfile.model_validate(catalog_entry("engines", name))


def rules(
    model: ModelSpec, config: ParallelConfig, profile: EngineProfile = TEXTBOOK
) -> list[tuple[str, int]]:
    return [(rule.rule, rule.amount) for rule in check_config(model, config, profile)]


def whole_model_bytes(model: ModelSpec, config: ParallelConfig) -> int:
    return stage_weight_bytes(model, config, stage_places(model, ())[0])


def test_d04_fixing_only_the_vocabulary_of_tp24_is_not_enough() -> None:
    """129280 mod 24 = 16, padded 130,560 = 24 · 5,440; but heads and output groups: gcd 16."""
    model = published("deepseek-v4-pro")
    padded = EngineProfile(name="padded", vocabulary_multiple=64, whole_blocks=False)
    assert shard_of(model.embedding, ParallelConfig(tp=24), padded).outputs == 5440
    assert 24 * 5440 == 130_560
    assert legal_tp(model, 24, padded) == (1, 2, 4, 8, 16)
    refused = check_tp(model, 24, padded)
    assert refused is not None
    assert (refused.rule, refused.amount) == ("heads", 8)
    # Without heads in the way the engine that pads to 64 in all still says no: 16 rows.
    vocabulary = ModelSpec.model_validate(
        {
            "name": "vocabulary",
            "num_layers": 1,
            "hidden_size": 24,
            "num_heads": 24,
            "num_kv_heads": 24,
            "head_dim": 1,
            "ffn_size": 24,
            "vocab_size": 129280,
        }
    )
    rule = check_tp(vocabulary, 24, engine("sglang"))
    assert rule is not None
    assert (rule.rule, rule.amount) == ("vocabulary", 16)
    assert check_tp(vocabulary, 24, padded) is None


def test_d04_24_cards_take_tp8_attention_in_three_groups() -> None:
    model, config = published("deepseek-v4-pro"), ParallelConfig(dp=3, tp=8, ep=24)
    assert config.num_cards == 24
    for name in ("textbook", "sglang", "vllm"):
        assert rules(model, config, engine(name)) == []


@pytest.mark.parametrize("name", ["textbook", "vllm", "sglang", "tensorrt-llm"])
def test_d05_r1_in_blocks_of_128_runs_at_tp16_and_not_at_tp32(name: str) -> None:
    """18432 / 32 = 576 = 4.5 · 128 and 2048 / 32 = 64 = 0.5 · 128."""
    r1, profile = published("deepseek-r1"), engine(name)
    assert check_tp(r1, 8, profile) is None
    assert check_tp(r1, 16, profile) is None
    rule = check_tp(r1, 32, profile)
    assert rule is not None
    assert rule.rule == "quantisation_block"
    assert "18432 over TP32 is 576 a card, 4.5 blocks of 128" in rule.message
    for config in (
        ParallelConfig(tp=8, pp=4),
        ParallelConfig(tp=16, pp=2),
        ParallelConfig(dp=32, ep=32),  # 256 / 32 = 8 whole experts a card
    ):
        assert config.num_cards == 32
        assert rules(r1, config, profile) == []


def test_d05_its_experts_alone_would_be_cut_into_half_blocks() -> None:
    entry = catalog_entry("models", "deepseek-r1")
    moe = modified("deepseek-r1", groups=[{**entry["groups"][1], "layers": "0-57"}])
    rule = check_tp(moe, 32)
    assert rule is not None
    assert "experts: 2048 over TP32 is 64 a card, 0.5 blocks of 128" in rule.message


def test_d05_bf16_has_no_blocks_to_cut() -> None:
    r1, bf16 = published("deepseek-r1"), modified("deepseek-r1", formats={})
    assert check_tp(bf16, 32) is None
    config = ParallelConfig(tp=16)
    assert whole_model_bytes(bf16, config) > 1.9 * whole_model_bytes(r1, config)


def test_d05_other_degrees_suit_the_dense_blocks_only() -> None:
    """18432 / {24, 36, 48, 72, 144} = {768, 512, 384, 256, 128}, all multiples of 128."""
    dense = ModelSpec.model_validate(
        {
            "name": "dense",
            "num_layers": 1,
            "hidden_size": 7168,
            "num_heads": 144,
            "num_kv_heads": 144,
            "head_dim": 128,
            "ffn_size": 18432,
            "vocab_size": 144,
            "formats": {"weights": BLOCKS_OF_128},
        }
    )
    assert {24, 36, 48, 72, 144} <= set(legal_tp(dense, 144))
    assert all(check_tp(published("deepseek-r1"), tp) is not None for tp in (24, 36, 48, 72))


def qwen2_72b(ffn_size: int, **formats: Any) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": "qwen2-72b",
            "num_layers": 80,
            "hidden_size": 8192,
            "num_heads": 64,
            "num_kv_heads": 8,
            "head_dim": 128,
            "ffn_size": ffn_size,
            "vocab_size": 152064,
            "qkv_bias": True,
            "formats": formats,
        }
    )


GROUPS_OF_128 = {"number": "int8", "scale": {"number": "bf16", "block": [1, 128]}}


@pytest.mark.parametrize(("tp", "blocks"), [(2, "115.5"), (4, "57.75"), (8, "28.875")])
def test_d06_29568_columns_are_231_groups_of_128(tp: int, blocks: str) -> None:
    rule = check_tp(qwen2_72b(29568, weights=GROUPS_OF_128), tp)
    assert rule is not None
    assert rule.rule == "quantisation_block"
    assert f"{29568 // tp} a card, {blocks} blocks of 128" in rule.message
    assert check_tp(qwen2_72b(29696, weights=GROUPS_OF_128), tp) is None
    assert check_tp(qwen2_72b(29568), tp) is None


def test_d06_so_four_cards_of_40_gib_hold_it_in_stages() -> None:
    model = qwen2_72b(29568, weights=GROUPS_OF_128)
    assert legal_tp(model, 8) == (1,)
    assert rules(model, ParallelConfig(pp=4)) == []
    plain = qwen2_72b(29568, weights="int8", embeddings="int8")
    sizes = [
        stage_weight_bytes(plain, ParallelConfig(pp=4), place)
        for place in stage_places(plain, (20, 20, 20, 20))
    ]
    assert round(Fraction(sum(sizes), 10**9), 1) == Fraction("72.7")
    assert round(Fraction(sum(sizes), 4 * 10**9), 1) == Fraction("18.2")
    assert max(sizes) < 40 * 2**30


def test_d06_the_same_family_11008_columns() -> None:
    def with_heads_of(tp: int) -> Any:
        model = qwen2_72b(11008, weights=GROUPS_OF_128)
        return check_tp(model, tp)

    assert with_heads_of(2) is None  # 5504 = 43 · 128
    assert "2752 a card, 21.5 blocks of 128" in with_heads_of(4).message


def test_d07_256_experts_on_three_cards_need_two_more_and_attention_of_their_own() -> None:
    """256 mod 3 = 1, 258 / 3 = 86; 64 heads mod 3 = 1."""
    model = published("deepseek-v4-flash")
    without = EngineProfile(name="without", redundant_experts=False)
    bare = check_ep(model, 3, without)
    assert bare is not None
    assert (bare.rule, bare.amount) == ("experts", 1)
    tp3 = check_tp(model, 3)
    assert tp3 is not None
    assert (tp3.rule, tp3.amount) == ("heads", 1)
    config = ParallelConfig(dp=3, ep=3, redundant=2)
    assert rules(model, config) == []
    experts = next(tensor for tensor in model.layer_tensors[0] if tensor.component == "experts")
    assert shard_of(experts, config, TEXTBOOK).count == 86
    one = sum(
        tensor.total_bytes(model.formats) // 256
        for tensor in model.layer_tensors[0]
        if tensor.component == "experts"
    )
    listed = {(d.component, d.reason): d.num_bytes for d in duplications(model, config)}
    assert listed["experts", "redundant experts"] == 43 * 2 * one


def test_d07_without_spare_experts_a_pipeline_or_two_cards_will_do() -> None:
    model = published("deepseek-v4-flash")
    without = EngineProfile(name="without", redundant_experts=False)
    assert rules(model, ParallelConfig(pp=3), without) == []
    assert rules(model, ParallelConfig(tp=2, ep=2), without) == []
    assert not {6, 14, 22, 30} & set(legal_ep(model, 32, without))


def test_d08_kv_heads_are_replicated_or_tp8_is_refused() -> None:
    """48 layers, 32 heads, 4 KV heads: 98,304 B a token; 24,576 B a card at TP4 and at TP8."""
    model = published("qwen3-30b-a3b")
    assert kv_bytes_per_token(model) == 98_304
    place = stage_places(model, ())[0]
    sizes = [session_bytes(model, ParallelConfig(tp=tp), place, 1) for tp in (1, 2, 4, 8)]
    assert sizes == [98_304, 49_152, 24_576, 24_576]
    assert 8 * sizes[3] == 196_608
    plain = EngineProfile(name="transformers", replicates_kv_heads=False)
    rule = check_tp(model, 8, plain)
    assert rule is not None
    assert (rule.rule, rule.amount) == ("kv_replication", 4)
    for name in ("vllm", "sglang", "tensorrt-llm"):
        assert check_tp(model, 8, engine(name)) is None
    # What TP8 does free is weights: k and v stay as large as at TP4.
    four, eight = (
        {p.component: p.num_bytes for p in card_weight_parts(model, tp)} for tp in (4, 8)
    )
    assert four["attention_k"] == eight["attention_k"]
    assert four["attention_q"] == 2 * eight["attention_q"]


def test_an_expert_of_1536_columns_is_cut_in_four_not_in_eight() -> None:
    """vllm-project/vllm#17569: 192 = 1.5 · 128, 384 = 3 · 128; EP8 keeps 16 whole experts."""
    model = modified("qwen3-235b-a22b", formats={"weights": BLOCKS_OF_128})
    assert check_tp(model, 4) is None
    rule = check_tp(model, 8)
    assert rule is not None
    assert "1536 over TP8 is 192 a card, 1.5 blocks of 128" in rule.message
    assert rules(model, ParallelConfig(tp=8, ep=8)) == []
    experts = next(t for t in model.layer_tensors[0] if t.component == "experts")
    assert shard_of(experts, ParallelConfig(tp=8, ep=8), TEXTBOOK).count == 16


def test_3072_columns_over_16_and_640_over_8_cut_blocks_too() -> None:
    """vllm-project/vllm#40955 and #54178: 192 and 80 are no multiples of 128."""
    rule = check_tp(published("deepseek-v4-pro"), 16, engine("vllm"))
    assert rule is not None
    assert "3072 over TP16 is 192 a card, 1.5 blocks" in rule.message
    small = modified(
        "qwen3-30b-a3b",
        formats={"weights": BLOCKS_OF_128},
        groups=[
            {
                **catalog_entry("models", "qwen3-30b-a3b")["groups"][0],
                "ffn": {
                    "kind": "moe",
                    "num_experts": 128,
                    "experts_per_token": 8,
                    "expert_size": 640,
                },
            }
        ],
    )
    rule = check_tp(small, 8)
    assert rule is not None
    assert "640 over TP8 is 80 a card, 0.625 blocks" in rule.message
    assert check_tp(small, 1) is None


def test_a_vision_tower_of_25_heads_is_copied_and_vetoes_nothing() -> None:
    """gpustack#2642 and vllm-project/vllm#8097: only the decoder's heads decide about TP."""
    tower = {"component": "vision", "outputs": 25 * 128, "inputs": 3200, "units": 25}
    model = modified("qwen3-8b", parts=[{"name": "vision", "tensors": [tower]}])
    assert check_tp(model, 4) is None
    assert legal_tp(model, 8) == legal_tp(published("qwen3-8b"), 8) == (1, 2, 4, 8)
    place, config = stage_places(model, ())[0], ParallelConfig(tp=4)
    more = stage_weight_bytes(model, config, place, loaded=("vision",))
    assert more - stage_weight_bytes(model, config, place) == 25 * 128 * 3200 * 2
