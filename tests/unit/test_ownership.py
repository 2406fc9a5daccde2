"""Which bytes every card of a serving instance holds, why, and what is held more than once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from instances.catalog_store import catalog_entry, catalog_names
from instances.engine import TEXTBOOK, EngineProfile
from instances.model import ModelSpec
from optimizer.inventory import counted_tensors, weight_bytes
from optimizer.legality import check_config
from optimizer.ownership import (
    card_weight_bytes,
    card_weight_parts,
    duplications,
    session_bytes,
    stage_places,
    stage_weight_bytes,
    stage_weight_parts,
    state_parts,
)
from optimizer.parallel import ParallelConfig
from optimizer.shards import state_units

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


@cache
def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


@cache
def engine(name: str) -> EngineProfile:
    return EngineProfile.model_validate(catalog_entry("engines", name))


def changed(**fields: object) -> ModelSpec:
    return ModelSpec.model_validate({**FIELDS, **fields})


TINY = changed()


def parts(model: ModelSpec, tp: int, profile: EngineProfile = TEXTBOOK) -> dict[str, int]:
    found = card_weight_parts(model, tp, profile)
    assert len({part.component for part in found}) == len(found)
    return {part.component: part.num_bytes for part in found}


def of_config(model: ModelSpec, config: ParallelConfig) -> dict[str, tuple[int, str]]:
    found = stage_weight_parts(model, config, stage_places(model, ())[0])
    return {part.component: (part.num_bytes, part.reason) for part in found}


def test_qwen3_32b_has_the_published_bytes_in_every_group_of_tensors() -> None:
    model = published("qwen3-32b")
    assert parts(model, 1) == {
        "embedding": 1_555_824_640,
        "lm_head": 1_555_824_640,
        "attention_q": 5_368_709_120,
        "attention_k": 671_088_640,
        "attention_v": 671_088_640,
        "attention_o": 5_368_709_120,
        "ffn": 50_331_648_000,
        "norms": 1_353_728,
    }
    assert weight_bytes(model) == card_weight_bytes(model, 1) == 65_524_246_528


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_up_to_the_kv_heads_everything_but_the_norms_is_split_evenly(tp: int) -> None:
    whole, card = parts(published("qwen3-32b"), 1), parts(published("qwen3-32b"), tp)
    assert card.pop("norms") == whole.pop("norms") == 1_353_728
    assert card == {component: size // tp for component, size in whole.items()}


def test_sixteen_cards_store_the_projections_of_eight_kv_heads_twice() -> None:
    card = parts(published("qwen3-32b"), 16)
    # One KV head per card: 671,088,640 / 8 = 83,886,080 B, on 16 cards twice 671,088,640 B.
    assert card["attention_k"] == card["attention_v"] == 83_886_080
    assert 16 * card["attention_k"] == 2 * 671_088_640
    # Query heads are not copied: 5,368,709,120 / 16.
    assert card["attention_q"] == card["attention_o"] == 335_544_320
    reasons = of_config(published("qwen3-32b"), ParallelConfig(tp=16))
    assert reasons["attention_k"][1] == "each KV head on 2 cards"
    assert reasons["attention_q"][1] == "split over 16 cards"
    assert reasons["norms"][1].startswith("copied")


def test_tiny_model_parts_follow_the_hand_arithmetic() -> None:
    assert parts(TINY, 1) == {
        "embedding": 512,  # 32 · 8 · 2 B
        "lm_head": 512,
        "attention_q": 256,  # 2 layers · 4 heads · 2 · 8 · 2 B
        "attention_k": 128,  # 2 layers · 2 heads · 2 · 8 · 2 B
        "attention_v": 128,
        "attention_o": 256,
        "ffn": 1536,  # 2 layers · 3 · 8 · 16 · 2 B
        "norms": 80,  # (2 · 2 + 1) · 8 · 2 B
    }
    assert card_weight_bytes(TINY, 1) == 3408
    assert card_weight_bytes(TINY, 2) == 1744  # (3408 - 80) / 2 + 80
    # Four cards: a quarter of all but K, V (half each, 64 + 64) and norms: 3072 / 4 + 128 + 80.
    assert card_weight_bytes(TINY, 4) == 976


def test_a_vocabulary_and_a_width_that_do_not_divide_are_padded_up() -> None:
    card = parts(changed(vocab_size=33, ffn_size=17), 2)
    assert card["embedding"] == card["lm_head"] == 272  # 17 rows (34 / 2) · 8 · 2 B
    assert card["ffn"] == 864  # 2 layers · 3 · 8 · 9 columns (18 / 2) · 2 B
    assert card == parts(changed(vocab_size=34, ffn_size=18), 2)


def test_one_card_pads_nothing() -> None:
    model = changed(vocab_size=33, ffn_size=17)
    assert parts(model, 1)["embedding"] == 528  # 33 · 8 · 2 B
    assert parts(model, 1)["ffn"] == 1632  # 2 · 3 · 8 · 17 · 2 B


def test_engines_pad_the_vocabulary_in_all_or_on_each_card() -> None:
    model = changed(vocab_size=100)
    in_all, each = engine("vllm"), EngineProfile(name="each", vocabulary_multiple=64)
    # In all: 128 rows · 16 B, also on one card; on each: 64 rows of 16 B where 50 are needed.
    assert [parts(model, tp, in_all)["embedding"] for tp in (1, 2, 4)] == [2048, 1024, 512]
    assert [parts(model, tp, each)["embedding"] for tp in (1, 2, 4)] == [2048, 1024, 1024]
    assert [parts(model, tp)["embedding"] for tp in (1, 2, 4)] == [1600, 800, 400]


def test_tied_embeddings_are_stored_once() -> None:
    assert "lm_head" not in parts(changed(tied_embeddings=True), 1)
    assert card_weight_bytes(changed(tied_embeddings=True), 1) == 3408 - 512


def test_the_last_stage_of_a_pipeline_holds_a_tied_embedding_again() -> None:
    model, config = changed(tied_embeddings=True), ParallelConfig(pp=2)
    first, last = stage_places(model, (1, 1))
    # A layer is (256 + 128 + 128 + 256 + 1536) / 2 + 2 norms of 16 B = 1184 B.
    assert stage_weight_bytes(model, config, first) == 512 + 1184
    assert stage_weight_bytes(model, config, last) == 1184 + 16 + 512
    (twice,) = duplications(model, config, (1, 1))
    assert (twice.component, twice.num_bytes) == ("lm_head", 512)
    assert twice.reason == "the last stage holds the tied embedding again"
    assert duplications(model, ParallelConfig()) == ()


def test_query_and_key_norms_are_copied_whole_to_every_card() -> None:
    # One query and one key norm of head_dim 2 in each of 2 layers: 8 numbers · 2 B more.
    for tp in (1, 2, 4):
        assert parts(changed(qk_norm=True), tp)["norms"] == 96


def test_biases_follow_their_projections() -> None:
    # 2 layers · (4 + 2 + 2 heads) · 2 · 2 B; on 4 cards (1 + 1 + 1 heads): K and V are copied.
    for tp, size in ((1, 64), (2, 32), (4, 24)):
        found = card_weight_parts(changed(qkv_bias=True), tp)
        assert sum(part.num_bytes for part in found if part.component == "qkv_bias") == size
        assert "qkv_bias" not in parts(TINY, tp)


def test_formats_of_weights_embeddings_and_vectors_count_separately() -> None:
    card = parts(changed(formats={"weights": "int8", "embeddings": "fp32"}), 1)
    assert (card["ffn"], card["embedding"], card["norms"]) == (768, 1024, 80)


@pytest.mark.parametrize("tp", [3, 5])
def test_cache_heads_that_cannot_be_laid_out_are_refused(tp: int) -> None:
    (part,) = TINY.layer_state[0]
    with pytest.raises(ValueError, match=f"2 kv heads cannot be laid out on {tp} cards"):
        state_units(part, tp)
    assert [state_units(part, legal) for legal in (1, 2, 4, 8)] == [2, 1, 1, 1]


def test_a_group_never_holds_less_than_one_whole_copy() -> None:
    model = published("qwen3-32b")
    for tp in (1, 2, 4, 8, 16, 32, 64):
        assert tp * card_weight_bytes(model, tp) >= weight_bytes(model)


def test_qwen3_235b_tp8_has_the_known_bytes_in_every_group() -> None:
    """k and v have 4 heads: a quarter on each card; without that the sum misses 98,566,144 B."""
    copied = "copied: every card"
    found = of_config(published("qwen3-235b-a22b"), ParallelConfig(tp=8))
    assert found == {
        "embedding": (155_582_464, "split over 8 cards"),  # 1,244,659,712 / 8
        "lm_head": (155_582_464, "split over 8 cards"),
        "attention_q": (788_529_152, "split over 8 cards"),  # 6,308,233,216 / 8
        "attention_o": (788_529_152, "split over 8 cards"),
        "attention_k": (98_566_144, "each KV head on 2 cards"),  # 394,264,576 / 4
        "attention_v": (98_566_144, "each KV head on 2 cards"),
        "experts": (56_774_098_944, "split over 8 cards"),  # 454,192,791,552 / 8
        "norms": (1_596_416, f"{copied} normalises the whole vector"),
        "router": (98_566_144, f"{copied} routes whole tokens"),
    }
    assert sum(size for size, _ in found.values()) == 58_959_617_024
    assert 8 * 58_959_617_024 - weight_bytes(published("qwen3-235b-a22b")) == 1_489_667_072


def test_qwen3_235b_tp8_lists_what_is_held_twice() -> None:
    listed = duplications(published("qwen3-235b-a22b"), ParallelConfig(tp=8))
    assert {(d.component, d.num_bytes, d.reason) for d in listed} == {
        ("attention_k", 394_264_576, "each KV head on 2 cards of a TP group"),
        ("attention_v", 394_264_576, "each KV head on 2 cards of a TP group"),
        ("norms", 7 * 1_596_416, "whole on 8 cards"),
        ("router", 7 * 98_566_144, "whole on 8 cards"),
    }
    assert sum(d.num_bytes for d in listed) == 1_489_667_072


def test_qwen3_235b_tp2_with_attention_on_each_of_four_expert_groups() -> None:
    """Attention, embedding and head halved and held 4 times; 32 experts, each halved."""
    config = ParallelConfig(tp=2, ep=4, copies=4)
    halved = "split over 2 cards, in each of 4 groups"
    found = of_config(published("qwen3-235b-a22b"), config)
    assert found == {
        "embedding": (622_329_856, halved),
        "lm_head": (622_329_856, halved),
        "attention_q": (3_154_116_608, halved),
        "attention_o": (3_154_116_608, halved),
        "attention_k": (197_132_288, halved),
        "attention_v": (197_132_288, halved),
        "experts": (56_774_098_944, "32 of 128 experts, each split over 2 cards"),
        "norms": (1_596_416, "copied: every card normalises the whole vector"),
        "router": (98_566_144, "copied: every card routes whole tokens"),
    }
    assert sum(size for size, _ in found.values()) == 64_821_419_008
    assert 8 * 64_821_419_008 == 518_571_352_064


def test_redundant_experts_fill_the_groups_and_are_listed() -> None:
    """258 experts over 3 groups are 86; one of R1's holds 3 · 2048 · 7168 B and 3 · 896 scales."""
    model, config = published("deepseek-r1"), ParallelConfig(dp=3, ep=3, redundant=2)
    one = 3 * (2048 * 7168 + 16 * 56 * 4)
    size, reason = of_config(model, config)["experts"]
    assert size == 58 * 86 * one
    assert reason == "86 of 256 experts (2 redundant)"
    listed = {(d.component, d.reason): d.num_bytes for d in duplications(model, config)}
    assert listed["experts", "redundant experts"] == 58 * 2 * one


def test_more_redundant_experts_than_needed_are_held_too() -> None:
    # (128 + 4) / 4 = 33 experts of 3 · 2048 · 768 · 2 B in 48 layers.
    config = ParallelConfig(dp=4, ep=4, redundant=4)
    size, reason = of_config(published("qwen3-30b-a3b"), config)["experts"]
    assert (size, reason) == (48 * 33 * 9_437_184, "33 of 128 experts (4 redundant)")


def test_lookup_tables_are_cut_over_all_cards_of_a_stage_not_over_tp() -> None:
    model = published("deepseek-v4.1-flash")
    whole = of_config(model, ParallelConfig())["lookup_tables"][0]
    for config in (ParallelConfig(tp=8), ParallelConfig(dp=8, ep=8), ParallelConfig(tp=4, dp=2)):
        assert abs(8 * of_config(model, config)["lookup_tables"][0] - whole) < whole // 10**6


Split = tuple[str, ParallelConfig, tuple[int, ...], str, tuple[str, ...]]
SPLITS: list[Split] = [
    ("qwen3-32b", ParallelConfig(tp=16), (), "textbook", ()),
    ("qwen3-32b", ParallelConfig(tp=16, sp=16, dcp=2), (), "vllm", ()),
    ("llama-3.1-70b", ParallelConfig(pp=3, tp=4), (30, 26, 24), "vllm", ()),
    ("llama-3.1-405b", ParallelConfig(tp=8, cp=2), (), "textbook", ()),
    ("qwen3-235b-a22b", ParallelConfig(tp=8), (), "sglang", ()),
    ("qwen3-235b-a22b", ParallelConfig(tp=2, ep=4, copies=4), (), "textbook", ()),
    ("qwen3-235b-a22b", ParallelConfig(dp=3, pp=2, tp=8, ep=4), (48, 46), "textbook", ()),
    ("qwen3-30b-a3b", ParallelConfig(dp=5, tp=2, ep=10, redundant=2), (), "vllm", ()),
    ("mixtral-8x7b", ParallelConfig(tp=4, cp=2, ep=8), (), "textbook", ()),
    ("deepseek-r1", ParallelConfig(tp=8, ep=8, dcp=8), (), "vllm", ("mtp",)),
    ("deepseek-r1", ParallelConfig(dp=8, ep=8), (), "tensorrt-llm", ()),
    ("deepseek-r1", ParallelConfig(dp=3, ep=3, redundant=2), (), "textbook", ("mtp",)),
    ("deepseek-r1", ParallelConfig(pp=8, tp=8), (6, 8, 8, 8, 8, 8, 8, 7), "sglang", ()),
    ("deepseek-v4-flash", ParallelConfig(tp=8, ep=8), (), "textbook", ("mtp",)),
    ("deepseek-v4-pro", ParallelConfig(dp=3, tp=8, ep=24), (), "textbook", ()),
    ("deepseek-v4.1-flash", ParallelConfig(pp=2, tp=4, ep=4), (14, 26), "textbook", ("vision",)),
    ("deepseek-v4.1-flash", ParallelConfig(dp=7, ep=7, redundant=1), (), "textbook", ()),
    ("gpt-oss-120b", ParallelConfig(dp=2, tp=2, ep=4), (), "textbook", ()),
    ("kimi-k2-instruct", ParallelConfig(tp=16, pp=2, ep=16), (31, 30), "textbook", ()),
    ("kimi-k3", ParallelConfig(tp=8, ep=8), (), "textbook", ("vision", "projector")),
    ("qwen3.6-35b-a3b", ParallelConfig(tp=4, pp=2, ep=2), (20, 20), "textbook", ("mtp",)),
]
every_split = pytest.mark.parametrize(
    "split", SPLITS, ids=[f"{name} {config.label()}" for name, config, *_ in SPLITS]
)


@every_split
def test_all_cards_together_hold_one_copy_and_what_is_listed(split: Split) -> None:
    model, config, stages, profile, loaded = published(split[0]), *split[1:]
    assert check_config(model, config, engine(profile)) == []
    held = sum(
        config.stage_cards * stage_weight_bytes(model, config, place, engine(profile), loaded)
        for place in stage_places(model, stages)
    )
    copy = sum(
        times * tensor.total_bytes(model.formats)
        for where, tensor, times in counted_tensors(model)
        if not where or where in loaded
    )
    listed = duplications(model, config, stages, engine(profile), loaded)
    assert all(d.num_bytes > 0 and d.reason for d in listed)
    assert held == copy + sum(d.num_bytes for d in listed)


@every_split
def test_every_byte_has_a_component_and_a_reason(split: Split) -> None:
    model, config, stages, profile, loaded = published(split[0]), *split[1:]
    known = {
        f"{where}/{tensor.component}" if where else tensor.component
        for where, tensor, _ in counted_tensors(model)
    }
    for place in stage_places(model, stages):
        found = stage_weight_parts(model, config, place, engine(profile), loaded)
        total = stage_weight_bytes(model, config, place, engine(profile), loaded)
        assert sum(part.num_bytes for part in found) == total
        assert {part.component for part in found} <= known
        assert all(part.reason and part.num_bytes > 0 for part in found)


@every_split
def test_every_byte_of_a_sessions_cache_has_a_component_and_a_reason(split: Split) -> None:
    model, config, stages = published(split[0]), split[1], split[2]
    for tokens in (0, 1, 127, 5000):
        for place in stage_places(model, stages):
            found = state_parts(model, config, place, tokens)
            assert sum(p.num_bytes for p in found) == session_bytes(model, config, place, tokens)
            assert all(p.reason for p in found)


def test_one_card_holds_exactly_one_copy_of_every_published_model() -> None:
    for name in catalog_names("models"):
        model = published(name)
        assert card_weight_bytes(model, 1) == weight_bytes(model, with_parts=False), name
        assert duplications(model, ParallelConfig()) == (), name


def cached(name: str, tokens: int, **degrees: int) -> int:
    config, (place,) = ParallelConfig(**degrees), stage_places(published(name), ())
    return session_bytes(published(name), config, place, tokens)


@pytest.mark.parametrize(
    ("degrees", "size"),
    [
        # 61 layers · 576 numbers · 2 B = 70,272 B a token, which TP does not divide.
        ({}, 70_272 * 1001),
        ({"tp": 8}, 70_272 * 1001),
        ({"dp": 8, "ep": 8}, 70_272 * 1001),
        # ceil(1001 / 8) = 126 tokens on the fullest card; ceil(1001 / 4) = 251.
        ({"tp": 8, "dcp": 8}, 70_272 * 126),
        ({"tp": 2, "cp": 4}, 70_272 * 251),
        ({"tp": 2, "cp": 4, "dcp": 2}, 70_272 * 126),
    ],
)
def test_a_latent_is_on_every_card_unless_tokens_are_dealt_out(
    degrees: dict[str, int], size: int
) -> None:
    assert cached("deepseek-r1", 1001, **degrees) == size


def test_heads_are_split_up_to_one_on_each_card() -> None:
    # 2 · 64 layers · 8 heads · 128 · 2 B = 262,144 B a token; a head of 32,768 B is the least.
    sizes = [cached("qwen3-32b", 10, tp=tp) for tp in (1, 2, 8, 16, 64)]
    assert sizes == [2_621_440, 1_310_720, 327_680, 327_680, 327_680]


def test_windows_stop_growing_and_recurrent_states_never_grow() -> None:
    # gpt-oss: 18 layers with a window of 128 and 18 without, 2 · 8 · 64 · 2 = 2,048 B each.
    assert cached("gpt-oss-120b", 1000) == 18 * 2048 * 128 + 18 * 2048 * 1000
    assert cached("gpt-oss-120b", 100) == 36 * 2048 * 100
    # Qwen3.6: 10 layers of 2 · 2 · 256 · 2 = 2,048 B a token, states of 62,914,560 + 1,966,080 B.
    for tokens in (0, 1000):
        assert cached("qwen3.6-35b-a3b", tokens) == 64_880_640 + 20_480 * tokens
        # CP deals out entries, not the state.
        shared = cached("qwen3.6-35b-a3b", tokens, cp=2)
        assert shared == 64_880_640 + 20_480 * tokens // 2


def test_a_stage_copies_the_entries_that_its_layers_read_from_an_earlier_one() -> None:
    """V4.1-Flash cut after layer 9: layers 10-13 read layer 8, 288 B an entry of 2 tokens."""
    model, config = published("deepseek-v4.1-flash"), ParallelConfig(pp=2)
    first, last = stage_places(model, (10, 30))
    own = session_bytes(model, config, last, 4000, sharing="remote")
    again = [p for p in state_parts(model, config, last, 4000) if p.reason.startswith("copy of")]
    assert {p.reason for p in again} == {"copy of layer 8's entries"}
    # 2,000 compressed entries of 288 B and as many index keys of 68 B.
    assert sum(p.num_bytes for p in again) == 2000 * (288 + 68)
    assert session_bytes(model, config, last, 4000) == own + 712_000
    reads_own = [session_bytes(model, config, first, 4000, how) for how in ("copy", "remote")]
    assert reads_own[0] == reads_own[1]
