"""Compressed attention: what a session keeps, what a step reads, and how cards share the layer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from instances.catalog_store import catalog_entry
from instances.compressed import CompressedAttention
from instances.formats import ModelFormats
from instances.model import ModelSpec
from instances.tensors import StatePart, Tensor
from optimizer.inventory import counted_tensors

FLASH, PRO, V41 = (
    ModelSpec.model_validate(catalog_entry("models", name))
    for name in ("deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash")
)
SMALL: dict[str, Any] = {
    "num_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 3,
    "output_groups": 2,
    "output_lora_rank": 5,
    "window": 16,
}
COMPRESSOR = {"ratio": 4}
INDEXER = {"num_heads": 2, "head_dim": 6}


def parts_of(model: ModelSpec, layer: int) -> dict[str, StatePart]:
    return {part.component: part for part in model.layer_state[model.group_of_layer[layer]]}


def parts(model: ModelSpec) -> list[StatePart]:
    """Every part of every layer."""
    return [part for layer in range(model.num_layers) for part in parts_of(model, layer).values()]


def held_bytes(model: ModelSpec, tokens: int) -> int:
    """Bytes that one session keeps in all layers."""
    return sum(part.entry_bytes * part.entries(tokens) for part in parts(model))


def read_bytes(model: ModelSpec, tokens: int) -> int:
    """Bytes of one session that one step reads in all layers."""
    return sum(part.entry_bytes * part.read_entries(tokens) for part in parts(model))


@pytest.mark.parametrize("tokens", [128, 129, 8192, 200_000, 200_001, 1_048_576])
def test_a_v41_session_keeps_four_layers_of_entries_and_forty_windows(tokens: int) -> None:
    # Three sources at ratio 2 and one at ratio 1 keep 288 + 68 B per entry: 512 four-bit numbers
    # and 32 scales, 128 four-bit numbers and 4 scales; a window entry is 512 + 16 scales.
    expected = 356 * (3 * (tokens // 2) + tokens) + 528 * 128 * 40
    assert held_bytes(V41, tokens) == expected


def test_a_v41_session_of_200000_tokens_takes_180_7_mb() -> None:
    # Section 6.7.4: K = 180.7 MB. 356 · 500,000 + 528 · 128 · 40
    assert held_bytes(V41, 200_000) == 180_703_360


def test_a_v41_window_is_short_before_it_is_full() -> None:
    assert held_bytes(V41, 3) == 356 * (3 * 1 + 3) + 528 * 3 * 40


def test_a_v41_step_reads_chosen_entries_and_all_keys_where_they_are_made() -> None:
    # At 200,000 tokens: 40 windows; 38 layers read 512 entries of 288 B; keys of 68 B: three
    # sources 100,000, layer 20 200,000, and four layers only its 2048 · 8 candidates.
    windows, entries = 40 * 128 * 528, 38 * 512 * 288
    keys = 68 * (3 * 100_000 + 200_000 + 4 * 2048 * 8)
    assert read_bytes(V41, 200_000) == windows + entries + keys


def test_a_layer_without_entries_reads_those_of_its_source_and_keeps_none() -> None:
    reader = parts_of(V41, 3)["compressed_kv"]
    assert (reader.entries(1000), reader.read_entries(1000)) == (0, 500)
    assert reader.read_entries(10_000) == 512
    assert "index_keys" not in parts_of(V41, 3)
    keys = parts_of(V41, 24)["index_keys"]
    assert (keys.entries(1000), keys.read_entries(1000)) == (0, 1000)


def test_every_v41_layer_knows_the_layer_whose_entries_it_reads() -> None:
    found = [V41.kv_source_of(layer) for layer in range(40)]
    after = {2: 5, 8: 5, 14: 5, 20: 19}  # layers that read each source
    expected = [None, None]
    for source, count in after.items():
        expected += [None, *[source] * count]
    assert found == expected


def test_every_v4_layer_reads_its_own_entries() -> None:
    assert {FLASH.kv_source_of(layer) for layer in range(43)} == {None}


def test_a_v4_layer_at_ratio_4_keeps_entries_keys_window_and_unpooled_tokens() -> None:
    # 584 B: 448 FP8 and 64 BF16 numbers, 8 scale bytes. Unpooled: eight tokens of value and score,
    # 2 × 1024 FP32 numbers for entries and 2 × 256 for keys.
    found = {name: (p.entry_bytes, p.entries(8192)) for name, p in parts_of(FLASH, 4).items()}
    assert found == {
        "window_kv": (584, 128),
        "compressed_kv": (584, 2048),
        "index_keys": (68, 2048),
        "compressor_tail": (8192, 8),
        "indexer_tail": (2048, 8),
    }


def test_a_v4_layer_at_ratio_128_has_no_indexer_and_reads_all_entries() -> None:
    found = parts_of(FLASH, 5)
    assert {name: (p.entry_bytes, p.entries(8192)) for name, p in found.items()} == {
        "window_kv": (584, 128),
        "compressed_kv": (584, 64),
        "compressor_tail": (4096, 128),
    }
    assert found["compressed_kv"].read_entries(1_048_576) == 8192


def test_a_v4_step_reads_512_entries_and_every_index_key() -> None:
    # At 8192 tokens: 43 windows; 21 layers read 512 of 2048 entries and 2048 keys, 20 layers 64
    # entries. Unpooled tokens are read once per block: 8 rows per 4 tokens, 128 per 128.
    windows, light, heavy = 43 * 128 * 584, 21 * (512 * 584 + 2048 * 68), 20 * 64 * 584
    tails = 21 * 2 * (8192 + 2048) + 20 * 4096
    assert read_bytes(FLASH, 8192) == windows + light + heavy + tails


def test_v4_pro_keeps_a_tenth_of_what_v3_2_keeps_at_a_million_tokens() -> None:
    # V3.2 keeps 61 · (656 + 132) B per token; the V4 report says 10 % for Pro and 7 % for Flash.
    v32 = 61 * (656 + 132) * 1_048_576
    assert round(100 * Fraction(held_bytes(PRO, 1_048_576), v32)) in (10, 11)
    assert round(100 * Fraction(held_bytes(FLASH, 1_048_576), v32)) == 7


def card_bytes(model: ModelSpec, attention_cards: int, cards: int) -> Fraction:
    """Bytes of weights of a card: experts over all cards, the rest over `attention_cards`."""

    def share(tensor: Tensor) -> int:
        if tensor.is_expert:
            return cards
        return attention_cards if tensor.split != "copy" else 1

    return sum(
        (
            Fraction(times * tensor.total_bytes(model.formats), share(tensor))
            for where, tensor, times in counted_tensors(model)
            if not where
        ),
        Fraction(0),
    )


def test_eight_copies_of_attention_hold_almost_eight_times_the_sessions_of_tp8() -> None:
    # Measured on 8 B200: 156.9 against 20.43 requests of 1M tokens, 7.68 times. A latent is whole
    # on every card, so TP8 keeps each session eight times and DP8 only has less room for them.
    assert {part.units for part in parts(FLASH)} == {1}
    budget = Fraction(95, 100) * 180 * 10**9
    session = held_bytes(FLASH, 1_048_576)
    tp8 = (budget - card_bytes(FLASH, 8, 8)) // session
    dp8 = 8 * ((budget - card_bytes(FLASH, 1, 8)) // session)
    assert Fraction(15, 2) <= Fraction(dp8, tp8) < 8


@pytest.mark.parametrize(("model", "heads", "groups"), [(FLASH, 64, 8), (PRO, 128, 16)])
def test_heads_and_output_groups_are_atoms_and_the_latent_is_copied(
    model: ModelSpec, heads: int, groups: int
) -> None:
    tensors = {tensor.component: tensor for tensor in model.layer_tensors[-1]}
    atoms = {
        name: (tensors[name].split, tensors[name].unit, tensors[name].units)
        for name in ("attention_q", "sinks", "attention_o_down", "attention_o")
    }
    assert atoms == {
        "attention_q": ("outputs", "query heads", heads),
        "sinks": ("outputs", "query heads", heads),
        "attention_o_down": ("outputs", "output groups", groups),
        "attention_o": ("inputs", "output groups", groups),
    }
    copied = ("attention_q_down", "attention_kv", "compressor", "indexer_q", "indexer_keys")
    assert {tensors[name].split for name in copied} == {"copy"}
    assert not any(tensors[name].is_replicable for name in atoms)


def test_shapes_of_a_small_layer() -> None:
    attention = CompressedAttention.model_validate(
        {
            **SMALL,
            "compressor": {"ratio": 4, "overlap": True, "position_bias": True},
            "indexer": INDEXER,
            "top_k": 7,
        }
    )
    found = [
        (t.component, t.count, t.outputs, t.inputs)
        for t in attention.tensors(10)
        if t.component != "norms"
    ]
    assert found == [
        ("attention_q_down", 1, 3, 10),
        ("attention_q", 1, 32, 3),
        ("attention_kv", 1, 8, 10),
        ("attention_o_down", 1, 10, 16),
        ("attention_o", 1, 10, 10),
        ("sinks", 1, 4, 1),
        ("compressor", 2, 16, 10),
        ("compressor_position", 1, 64, 1),
        ("compressor_norm", 1, 8, 1),
        ("indexer_q", 1, 12, 3),
        ("indexer_weights", 1, 2, 10),
        ("indexer_keys", 2, 12, 10),
        ("indexer_keys_position", 1, 48, 1),
        ("indexer_keys_norm", 1, 6, 1),
    ]


def test_a_reader_has_no_compressor_and_no_keys_of_its_own() -> None:
    attention = CompressedAttention.model_validate(
        {**SMALL, "compressor": COMPRESSOR, "indexer": INDEXER, "top_k": 7, "owns_kv": False}
    )
    names = {tensor.component for tensor in attention.tensors(10)}
    assert {"indexer_q", "indexer_weights"} <= names
    assert not {"compressor", "indexer_keys"} & names


def test_work_on_an_entry_counts_all_heads_and_an_index_key_its_own() -> None:
    attention = CompressedAttention.model_validate(
        {**SMALL, "compressor": COMPRESSOR, "indexer": INDEXER, "top_k": 7}
    )
    found = {p.component: p.flops_per_entry for p in attention.state(ModelFormats())}
    # Scores and sums of 4 heads × 8 numbers; 2 index heads × (6 products + 1 weight).
    assert found == {"window_kv": 128, "compressed_kv": 128, "index_keys": 28}
    assert attention.merge_numbers() == (4, 10)


@pytest.mark.parametrize(("kv", "sizes"), [("bf16", (16, 16, 12)), ("fp8", (8, 8, 6))])
def test_entries_without_a_stated_size_take_the_kv_format(
    kv: str, sizes: tuple[int, int, int]
) -> None:
    attention = CompressedAttention.model_validate(
        {**SMALL, "compressor": COMPRESSOR, "indexer": INDEXER, "top_k": 7}
    )
    assert tuple(p.entry_bytes for p in attention.state(ModelFormats(kv=kv))) == sizes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_groups": 3}, "num_heads 4 must be a multiple of output_groups 3"),
        ({"indexer": INDEXER}, "indexer needs a compressor"),
        ({"top_k": 7}, "top_k needs a compressor"),
        ({"owns_kv": False}, "owns_kv false needs a compressor"),
        ({"compressor": COMPRESSOR, "indexer": INDEXER}, "an indexer needs top_k"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CompressedAttention.model_validate({**SMALL, **changes})
