"""Which bytes every card of a tensor-parallel group holds, component by component."""

from __future__ import annotations

import pytest

from instances.catalog_store import catalog_entry
from instances.model import ModelSpec
from optimizer.ownership import card_weight_bytes, card_weight_parts, model_weight_bytes

QWEN3_32B = ModelSpec.model_validate(catalog_entry("models", "qwen3-32b"))
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


def changed(**fields: object) -> ModelSpec:
    return ModelSpec.model_validate({**TINY.model_dump(), **fields})


def parts(model: ModelSpec, tp: int) -> dict[str, int]:
    return {part.component: part.num_bytes for part in card_weight_parts(model, tp)}


def test_qwen3_32b_has_the_published_bytes_in_every_group_of_tensors() -> None:
    assert parts(QWEN3_32B, 1) == {
        "embedding": 1_555_824_640,
        "lm_head": 1_555_824_640,
        "attention_q": 5_368_709_120,
        "attention_k": 671_088_640,
        "attention_v": 671_088_640,
        "attention_o": 5_368_709_120,
        "ffn": 50_331_648_000,
        "norms": 1_353_728,
    }
    assert model_weight_bytes(QWEN3_32B) == 65_524_246_528
    assert card_weight_bytes(QWEN3_32B, 1) == 65_524_246_528


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_up_to_the_kv_heads_everything_but_the_norms_is_split_evenly(tp: int) -> None:
    whole, card = parts(QWEN3_32B, 1), parts(QWEN3_32B, tp)
    assert card.pop("norms") == whole.pop("norms") == 1_353_728
    assert card == {component: size // tp for component, size in whole.items()}


def test_sixteen_cards_store_the_projections_of_eight_kv_heads_twice() -> None:
    card = parts(QWEN3_32B, 16)
    # One KV head per card: 671,088,640 / 8 = 83,886,080 B, on 16 cards twice 671,088,640 B.
    assert card["attention_k"] == card["attention_v"] == 83_886_080
    assert 16 * card["attention_k"] == 2 * 671_088_640
    # Query heads are not copied: 5,368,709,120 / 16.
    assert card["attention_q"] == card["attention_o"] == 335_544_320
    reasons = {part.component: part.reason for part in card_weight_parts(QWEN3_32B, 16)}
    assert reasons["attention_k"] == "each KV head on 2 cards"
    assert reasons["attention_q"] == "split over 16 cards"
    assert reasons["norms"].startswith("copied")


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
    model = changed(vocab_size=33, ffn_size=17)
    card = parts(model, 2)
    assert card["embedding"] == card["lm_head"] == 272  # 17 rows (34 / 2) · 8 · 2 B
    assert card["ffn"] == 864  # 2 layers · 3 · 8 · 9 columns (18 / 2) · 2 B
    exact = parts(changed(vocab_size=34, ffn_size=18), 2)
    assert card == exact


def test_one_card_pads_nothing() -> None:
    model = changed(vocab_size=33, ffn_size=17)
    assert parts(model, 1)["embedding"] == 528  # 33 · 8 · 2 B
    assert parts(model, 1)["ffn"] == 1632  # 2 · 3 · 8 · 17 · 2 B


def test_tied_embeddings_are_stored_once() -> None:
    assert "lm_head" not in parts(changed(tied_embeddings=True), 1)
    assert card_weight_bytes(changed(tied_embeddings=True), 1) == 3408 - 512


def test_query_and_key_norms_are_copied_whole_to_every_card() -> None:
    # One query and one key norm of head_dim 2 in each of 2 layers: 8 numbers · 2 B more.
    for tp in (1, 2, 4):
        assert parts(changed(qk_norm=True), tp)["norms"] == 96


@pytest.mark.parametrize(
    ("tp", "size"),
    [
        (1, 64),  # 2 layers · (4 + 2 + 2 heads) · 2 · 2 B
        (2, 32),
        (4, 24),  # 2 layers · (1 + 1 + 1 heads) · 2 · 2 B: K and V are copied
    ],
)
def test_biases_follow_their_projections(tp: int, size: int) -> None:
    assert parts(changed(qkv_bias=True), tp)["qkv_bias"] == size
    assert "qkv_bias" not in parts(TINY, tp)


def test_formats_of_weights_embeddings_and_activations_count_separately() -> None:
    card = parts(changed(formats={"weights": "int8", "embeddings": "fp32"}), 1)
    assert (card["ffn"], card["embedding"], card["norms"]) == (768, 1024, 80)


@pytest.mark.parametrize("tp", [3, 5, 8])
def test_query_heads_that_do_not_divide_are_refused(tp: int) -> None:
    with pytest.raises(ValueError, match=f"4 query heads do not divide by {tp}"):
        card_weight_parts(TINY, tp)


def test_kv_heads_that_cannot_be_laid_out_are_refused() -> None:
    with pytest.raises(ValueError, match="2 KV heads cannot be laid out on 3 cards"):
        card_weight_parts(changed(num_heads=6), 3)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32, 64])
def test_a_group_never_holds_less_than_one_whole_copy(tp: int) -> None:
    assert tp * card_weight_bytes(QWEN3_32B, tp) >= model_weight_bytes(QWEN3_32B)
