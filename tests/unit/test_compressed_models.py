"""DeepSeek V4 and V4.1 from their configurations: every byte, and layers that share entries."""

from __future__ import annotations

from typing import Any

import pytest

from instances.catalog_store import catalog_entry
from instances.huggingface import ModelImportError, import_model
from instances.model import ModelSpec
from optimizer.inventory import bytes_by_group, parameters, weight_bytes

#: Fields that V4 Flash and V4 Pro have in common (config.json of both repositories).
V4 = {
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "hc_mult": 4,
    "num_hash_layers": 3,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}
FLASH = {
    **V4,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}
PRO = {
    **V4,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "index_topk": 1024,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}
V41_TEXT = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 129280,
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "sliding_window": 128,
    "moe_intermediate_size": 2304,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "num_nextn_predict_layers": 3,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "tie_word_embeddings": False,
}
V41 = {
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": V41_TEXT,
    "vision_config": {
        "num_hidden_layers": 32,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "patch_size": 14,
        "downsample_ratio": 3,
    },
}

#: Bytes by tensor family of the published checkpoints: name or names of ours -> bytes.
FLASH_BYTES: dict[str, int] = {
    "embedding": 1_059_061_760,
    "lm_head": 1_059_061_760,
    "norms compressor_norm indexer_keys_norm": 892_160,
    "hyper_connections": 135_537_756,
    "sinks": 11_008,
    "attention_kv": 90_177_536,
    "attention_kv_scale": 5_504,
    "attention_o_down": 1_442_840_576,
    "attention_o_down_scale": 88_064,
    "attention_o": 1_442_840_576,
    "attention_o_scale": 88_064,
    "attention_q_down": 180_355_072,
    "attention_q_down_scale": 11_008,
    "attention_q": 1_442_840_576,
    "attention_q_scale": 88_064,
    "router": 90_177_536,
    "router_bias": 40_960,
    "router_table": 18_616_320,
    "experts": 138_512_695_296,
    "experts_scale": 8_657_043_456,
    "shared_experts": 1_082_130_432,
    "shared_experts_scale": 66_048,
    "compressor compressor_position": 525_680_640,
    "indexer_q indexer_weights indexer_keys indexer_keys_position": 275_337_216,
    "indexer_q_scale": 10_752,
    "mtp/sinks": 256,
    "mtp/norms": 44_032,
    "mtp/attention_kv": 2_097_152,
    "mtp/attention_kv_scale": 128,
    "mtp/attention_o_down": 33_554_432,
    "mtp/attention_o_down_scale": 2_048,
    "mtp/attention_o": 33_554_432,
    "mtp/attention_o_scale": 2_048,
    "mtp/attention_q_down": 4_194_304,
    "mtp/attention_q_down_scale": 256,
    "mtp/attention_q": 33_554_432,
    "mtp/attention_q_scale": 2_048,
    "mtp/router": 2_097_152,
    "mtp/router_bias": 1_024,
    "mtp/experts": 3_221_225_472,
    "mtp/experts_scale": 201_326_592,
    "mtp/shared_experts": 25_165_824,
    "mtp/shared_experts_scale": 1_536,
    "mtp/hyper_connections": 3_408_108,
    "mtp/draft_projection": 2 * 16_777_216,
    "mtp/draft_projection_scale": 2 * 1_024,
}
PRO_BYTES: dict[str, int] = {
    "embedding": 1_853_358_080,
    "lm_head": 1_853_358_080,
    "norms compressor_norm indexer_keys_norm": 2_083_328,
    "hyper_connections": 336_278_412,
    "sinks": 31_232,
    "attention_kv": 223_870_976,
    "attention_kv_scale": 13_664,
    "attention_o_down": 4_093_640_704,
    "attention_o_down_scale": 249_856,
    "attention_o": 7_163_871_232,
    "attention_o_scale": 437_248,
    "attention_q_down": 671_612_928,
    "attention_q_down_scale": 40_992,
    "attention_q": 6_140_461_056,
    "attention_q_scale": 374_784,
    "router": 335_806_464,
    "router_bias": 89_088,
    "router_table": 18_616_320,
    "experts": 773_698_093_056,
    "experts_scale": 48_356_130_816,
    "shared_experts": 4_029_677_568,
    "shared_experts_scale": 245_952,
    "compressor compressor_position": 1_344_503_808,
    "indexer_q indexer_weights indexer_keys indexer_keys_position": 625_336_320,
    "indexer_q_scale": 23_040,
    "mtp/sinks": 512,
    "mtp/norms": 75_776,
    "mtp/attention_kv": 3_670_016,
    "mtp/attention_kv_scale": 224,
    "mtp/attention_o_down": 67_108_864,
    "mtp/attention_o_down_scale": 4_096,
    "mtp/attention_o": 117_440_512,
    "mtp/attention_o_scale": 7_168,
    "mtp/attention_q_down": 11_010_048,
    "mtp/attention_q_down_scale": 672,
    "mtp/attention_q": 100_663_296,
    "mtp/attention_q_scale": 6_144,
    "mtp/router": 5_505_024,
    "mtp/router_bias": 1_536,
    "mtp/experts": 12_683_575_296,
    "mtp/experts_scale": 792_723_456,
    "mtp/shared_experts": 66_060_288,
    "mtp/shared_experts_scale": 4_032,
    "mtp/hyper_connections": 5_964_012,
    "mtp/draft_projection": 2 * 51_380_224,
    "mtp/draft_projection_scale": 2 * 3_136,
}
ATTENTION = "attention_q_down attention_q attention_kv attention_o_down attention_o"
V41_BYTES: dict[str, int] = {
    "embedding": 1_323_827_200,
    "lm_head": 1_323_827_200,
    "norms": 972_800,
    f"{ATTENTION} sinks": 5_064_632_320,
    " ".join(f"{name}_scale" for name in ATTENTION.split()): 4_945_920,
    "router": 157_286_400,
    "router_bias": 122_880,
    "experts": 271_790_899_200,
    "experts_scale": 16_986_931_200,
    "shared_experts": 1_415_577_600,
    "shared_experts_scale": 1_382_400,
    "hyper_connections": 157_295_040,
    "lookup_tables": 196_613_849_600,
    "lookup_tables_scale": 6_144_182_800,
    "engram_gate": 163_840,
    "engram_kv": 314_572_800,
    "engram_kv_scale": 307_200,
    "compressor compressor_norm": 36_704_256,
    "indexer_q indexer_weights indexer_keys indexer_keys_norm": 45_089_792,
    "indexer_q_scale": 40_960,
    " ".join(f"mtp/{name}" for name in [*ATTENTION.split(), "sinks"]): 379_847_424,
    " ".join(f"mtp/{name}_scale" for name in ATTENTION.split()): 370_944,
    "mtp/norms": 92_672,
    "mtp/router": 3_932_160,
    "mtp/router_bias": 3_072,
    "mtp/experts": 6_794_772_480,
    "mtp/experts_scale": 424_673_280,
    "mtp/shared_experts": 106_168_320,
    "mtp/shared_experts_scale": 103_680,
    "mtp/hyper_connections": 11_797_128,
    "mtp/draft_projection": 78_643_200,
    "mtp/draft_projection_scale": 76_800,
    "mtp/markov_head": 132_382_720,
    "mtp/confidence_head": 10_752,
    "vision/vision vision/projector": 970_536_960,
}


def imported(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return import_model({**config, **changes}, "config.json")


def imported_v41(**changes: Any) -> ModelSpec:
    return imported(V41, text_config={**V41_TEXT, **changes})


MODELS = {
    "deepseek-v4-flash": imported(FLASH),
    "deepseek-v4-pro": imported(PRO),
    "deepseek-v4.1-flash": imported(V41),
}
FLASH_MODEL, PRO_MODEL = MODELS["deepseek-v4-flash"], MODELS["deepseek-v4-pro"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-v4-flash", FLASH_BYTES),
        ("deepseek-v4-pro", PRO_BYTES),
        ("deepseek-v4.1-flash", V41_BYTES),
    ],
)
def test_every_tensor_family_weighs_what_the_checkpoint_has(
    name: str, expected: dict[str, int]
) -> None:
    found = bytes_by_group(MODELS[name])
    by_family = {names: sum(found.pop(part) for part in names.split()) for names in expected}
    assert by_family == expected
    assert not found


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("deepseek-v4-flash", 159_609_485_896),
        ("deepseek-v4-pro", 864_704_792_696),
        ("deepseek-v4.1-flash", 510_286_023_000),
    ],
)
def test_the_catalog_holds_what_the_configuration_gives_and_weighs_the_same(
    name: str, total: int
) -> None:
    entry = ModelSpec.model_validate(catalog_entry("models", name))
    assert weight_bytes(entry) == weight_bytes(MODELS[name]) == total
    given = {"name", "sources"}
    assert entry.model_dump(exclude=given) == MODELS[name].model_dump(exclude=given)


def test_draft_layers_are_counted_apart() -> None:
    assert weight_bytes(PRO_MODEL, with_parts=False) == 850_748_205_004
    assert weight_bytes(PRO_MODEL) - 850_748_205_004 == 13_956_587_692


def test_parameters_are_those_of_the_model_cards() -> None:
    # 284 billion and 1.6 trillion, without the draft layer.
    assert round(parameters(FLASH_MODEL, with_parts=False) / 10**9) == 284
    assert round(parameters(PRO_MODEL, with_parts=False) / 10**11) == 16


@pytest.mark.parametrize(
    ("config", "rank", "targets", "total"),
    [
        (FLASH, 256, [40, 41, 42], 166_878_536_440),  # DeepSeek-V4-Flash-0731
        (PRO, 512, [58, 59, 60], 892_727_580_904),  # DeepSeek-V4-Pro-0813
    ],
)
def test_later_v4_releases_with_dspark_stages_weigh_what_they_publish(
    config: dict[str, Any], rank: int, targets: list[int], total: int
) -> None:
    model = imported(
        config,
        compress_ratios=[*config["compress_ratios"], 0, 0],
        num_nextn_predict_layers=3,
        dspark_markov_rank=rank,
        dspark_target_layer_ids=targets,
    )
    assert weight_bytes(model) == total


def test_without_quantization_every_number_takes_the_plain_format() -> None:
    config = {
        key: FLASH[key] for key in FLASH if key not in ("quantization_config", "expert_dtype")
    }
    found = bytes_by_group(imported(config))
    assert not [name for name in found if name.endswith("_scale")]
    # 43 layers × 256 experts × 3 matrices of 2048 × 4096 numbers, two bytes each
    assert found["experts"] == 43 * 256 * 3 * 2048 * 4096 * 2
    assert found["sinks"] == 11_008


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compress_ratios": [0] * 42}, "compress_ratios"),
        ({"compress_ratios": [0] * 43 + [4]}, "compress_ratios"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"expert_dtype": "fp2"}, "expert_dtype"),
        ({"hc_mult": None}, "hc_mult"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            "quantization_config.weight_block_size",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method"),
    ],
)
def test_an_odd_configuration_is_refused_with_the_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelImportError) as error:
        imported(FLASH, **changes)
    assert error.value.field == field


def test_every_engram_layer_needs_its_number_of_rows() -> None:
    with pytest.raises(ModelImportError, match="each of the 2 tables"):
        imported_v41(engram_num_embeddings=[384006168])


def test_a_layer_cannot_read_compressed_entries_that_no_layer_made() -> None:
    with pytest.raises(ModelImportError, match="layer 2 owns no compressed entries"):
        imported_v41(kv_source_layer_ids=[8, 14, 20])


def test_a_layer_reads_entries_of_its_own_ratio() -> None:
    with pytest.raises(ModelImportError, match=r"layer 20 reads .* of layer 14.*same compressor"):
        imported_v41(kv_source_layer_ids=[2, 8, 14])


def test_an_indexer_needs_the_keys_of_its_source() -> None:
    with pytest.raises(ModelImportError, match=r"indexer of layer 24 reads the keys of layer 20"):
        imported_v41(index_source_layer_ids=[2, 8, 14, 24, 28, 32, 36])
