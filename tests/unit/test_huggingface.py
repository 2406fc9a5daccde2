"""Imported configurations weigh what the published checkpoints weigh, tensor family by family.

The expected bytes are those of the tensor headers or of index metadata.total_size of each
checkpoint; Kimi-K2's and GLM-4.5's are a count by an independent program (GLM-4.5's parameters are
published, 358,337,791,296).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from instances.huggingface import import_model, load_model
from instances.model import ModelSpec
from optimizer.inventory import bytes_by_group, parameters, weight_bytes
from optimizer.model_report import exactness_of, report_model

Config = dict[str, Any]

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def config(
    kind: str, hidden: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> Config:
    """Return the fields of a configuration that say something about sizes."""
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        **more,
    }


def deepseek(kind: str, hidden: int, layers: int, heads: int, vocab: int, **more: Any) -> Config:
    sizes = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    head = {"qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc"}
    experts = {"moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_shared_experts": 1}
    return config(kind, hidden, layers, heads, heads, vocab, **{**sizes, **head, **experts, **more})


CONFIGS: dict[str, Config] = {
    "qwen3-8b": config(
        "qwen3", 4096, 36, 32, 8, 151936, head_dim=128, intermediate_size=12288
    ),
    "qwen3-32b": config(
        "qwen3", 5120, 64, 64, 8, 151936, head_dim=128, intermediate_size=25600
    ),
    "llama-3.1-70b": config("llama", 8192, 80, 64, 8, 128256, intermediate_size=28672),
    "llama-3.1-405b": config("llama", 16384, 126, 128, 8, 128256, intermediate_size=53248),
    "qwen3-30b-a3b": config(
        "qwen3_moe", 2048, 48, 32, 4, 151936, head_dim=128, intermediate_size=6144,
        moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, mlp_only_layers=[],
    ),
    "qwen3-235b-a22b": config(
        "qwen3_moe", 4096, 94, 64, 4, 151936, head_dim=128, intermediate_size=12288,
        moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
    ),
    "mixtral-8x7b": config(
        "mixtral", 4096, 32, 32, 8, 32000, intermediate_size=14336, sliding_window=None,
        num_local_experts=8, num_experts_per_tok=2,
    ),
    "mixtral-8x22b": config(
        "mixtral", 6144, 56, 48, 8, 32000, intermediate_size=16384, sliding_window=None,
        num_local_experts=8, num_experts_per_tok=2,
    ),
    "gpt-oss-120b": config(
        "gpt_oss", 2880, 36, 64, 8, 201088, head_dim=64, intermediate_size=2880,
        attention_bias=True, sliding_window=128, num_local_experts=128, num_experts_per_tok=4,
        quantization_config=MXFP4, torch_dtype=None,
    ),
    "gpt-oss-20b": config(
        "gpt_oss", 2880, 24, 64, 8, 201088, head_dim=64, intermediate_size=2880,
        attention_bias=True, sliding_window=128, num_local_experts=32, num_experts_per_tok=4,
        quantization_config=MXFP4, torch_dtype=None,
    ),
    "glm-4.5": config(
        "glm4_moe", 5120, 92, 96, 8, 151552, head_dim=128, intermediate_size=12288,
        attention_bias=True, use_qk_norm=True, moe_intermediate_size=1536, n_routed_experts=160,
        n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3,
        num_nextn_predict_layers=1,
    ),
    "deepseek-v3": deepseek(
        "deepseek_v3", 7168, 61, 128, 129280, intermediate_size=18432, n_routed_experts=256,
        first_k_dense_replace=3, num_nextn_predict_layers=1, quantization_config=FP8,
    ),
    "kimi-k2-instruct": deepseek(
        "kimi_k2", 7168, 61, 64, 163840, intermediate_size=18432, n_routed_experts=384,
        first_k_dense_replace=1, num_nextn_predict_layers=0, quantization_config=FP8,
    ),
    "glm-5": deepseek(
        "glm_moe_dsa", 6144, 78, 64, 154880, intermediate_size=12288, n_routed_experts=256,
        first_k_dense_replace=3, num_nextn_predict_layers=1, q_lora_rank=2048,
        qk_nope_head_dim=192, v_head_dim=256, index_n_heads=32, index_head_dim=128,
        index_topk=2048,
    ),
}  # fmt: skip
CONFIGS["deepseek-r1"] = CONFIGS["deepseek-v3"]

#: embed (and lm_head), attn_q, attn_k (and attn_v), attn_o, norm, mlp, router, expert.
GROUPED_QUERY = {
    "qwen3-8b": (
        1244659712, 1207959552, 301989888, 1207959552, 616448, 10871635968, 0, 0
    ),
    "qwen3-32b": (
        1555824640, 5368709120, 671088640, 5368709120, 1353728, 50331648000, 0, 0
    ),
    "llama-3.1-70b": (
        2101346304, 10737418240, 1342177280, 10737418240, 2637824, 112742891520, 0, 0
    ),
    "llama-3.1-405b": (
        4202692608, 67645734912, 4227858432, 67645734912, 8290304, 659545915392, 0, 0
    ),
    "qwen3-30b-a3b": (
        622329856, 805306368, 100663296, 805306368, 421888, 0, 25165824, 57982058496
    ),
    "qwen3-235b-a22b": (
        1244659712, 6308233216, 394264576, 6308233216, 1596416, 0, 98566144, 454192791552
    ),
    "mixtral-8x7b": (
        262144000, 1073741824, 268435456, 1073741824, 532480, 0, 2097152, 90194313216
    ),
    "mixtral-8x22b": (
        393216000, 4227858432, 704643072, 4227858432, 1388544, 0, 5505024, 270582939648
    ),
}  # fmt: skip

DEEPSEEK_V3 = {
    "embed": 1853358080, "lm_head": 1853358080, "norm": 2013184, "attn": 11413422080,
    "attn_scale": 2793312, "dense": 1189085184, "dense_scale": 290304, "router": 212860928,
    "router_bias": 59392, "expert": 653908770816, "expert_scale": 159645696,
    "shared": 2554331136, "shared_scale": 623616, "mtp_attn": 187105280, "mtp_attn_scale": 45792,
    "mtp_norm": 75776, "mtp_router": 3670016, "mtp_router_bias": 1024,
    "mtp_expert": 11274289152, "mtp_expert_scale": 2752512, "mtp_shared": 44040192,
    "mtp_shared_scale": 10752, "mtp_eh_proj": 205520896, "mtp_embed": 1853358080,
    "mtp_lm_head": 1853358080,
}  # fmt: skip
OTHERS: dict[str, dict[str, int]] = {
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-r1": DEEPSEEK_V3,
    "kimi-k2-instruct": {
        "embed": 2348810240, "lm_head": 2348810240, "norm": 2013184, "attn": 6168444928,
        "attn_scale": 1512800, "dense": 396361728, "dense_scale": 96768, "router": 330301440,
        "router_bias": 92160, "expert": 1014686023680, "expert_scale": 247726080,
        "shared": 2642411520, "shared_scale": 645120,
    },
    "gpt-oss-120b": {
        "embed": 1158266880, "lm_head": 1158266880, "norm": 420480, "attn": 1911610368,
        "router": 26551296 - 9216, "router_bias": 9216,  # 36 layers × 128 experts × 2 B
        "expert": 57330892800, "expert_scale": 3583180800, "expert_bias": 79626240,
    },
    "glm-4.5": {
        "embed": 1551892480, "lm_head": 1551892480, "norm": 1941504, "attn": 25084575744,
        "dense": 1132462080, "router": 145817600, "router_bias": 56960, "expert": 671927500800,
        "shared": 4199546880, "mtp_attn": 272658432, "mtp_norm": 51712, "mtp_router": 1638400,
        "mtp_router_bias": 640, "mtp_expert": 7549747200, "mtp_shared": 47185920,
        "mtp_eh_proj": 104857600, "mtp_embed": 1551892480, "mtp_lm_head": 1551892480,
    },
}  # fmt: skip

#: Bytes of whole checkpoints.
TOTALS = {
    "qwen3-8b": 16_381_470_720,
    "qwen3-32b": 65_524_246_528,
    "llama-3.1-70b": 141_107_412_992,
    "llama-3.1-405b": 811_706_777_600,
    "qwen3-30b-a3b": 61_064_245_248,
    "qwen3-235b-a22b": 470_187_269_120,
    "mixtral-8x7b": 93_405_585_408,
    "mixtral-8x22b": 281_241_268_224,
    "gpt-oss-120b": 65_248_815_744,
    "gpt-oss-20b": 13_761_264_768,
    "deepseek-v3": 688_574_839_360,
    "deepseek-r1": 688_574_839_360,
    "kimi-k2-instruct": 1_029_173_249_888,
    "glm-4.5": 716_675_611_392,
}
UNCONFIRMED = ("kimi-k2-instruct", "glm-4.5")
FAMILIES = {"embedding": "embed", "norms": "norm", "experts": "expert", "shared_experts": "shared"}
ATTENTION = ("attention_", "qkv_bias", "output_bias", "sinks")


def model(name: str) -> ModelSpec:
    return import_model(CONFIGS[name], f"{name}.json")


def family_of(component: str) -> str:
    """Return the tensor family that the expected bytes are listed by, attention as one."""
    where, _, own = component.rpartition("/")
    base, scale = own.removesuffix("_scale"), "_scale" if own.endswith("_scale") else ""
    if base == "experts_bias":
        found = "expert_bias"
    elif base.startswith(ATTENTION):
        found = "attn"
    else:
        found = FAMILIES.get(base, "dense" if base == "ffn" else base)
    return f"{where}_{found}{scale}" if where else f"{found}{scale}"


@pytest.mark.parametrize("name", GROUPED_QUERY)
def test_every_tensor_family_of_grouped_query_models_weighs_its_published_bytes(name: str) -> None:
    embed, q, k, o, norms, mlp, router, experts = GROUPED_QUERY[name]
    expected = {
        "embedding": embed,
        "lm_head": embed,
        "attention_q": q,
        "attention_k": k,
        "attention_v": k,
        "attention_o": o,
        "norms": norms,
        "ffn": mlp,
        "router": router,
        "experts": experts,
    }
    found = bytes_by_group(model(name))
    assert found == {component: size for component, size in expected.items() if size}


@pytest.mark.parametrize("name", OTHERS)
def test_every_tensor_family_of_other_models_weighs_its_published_bytes(name: str) -> None:
    found: Counter[str] = Counter()
    for component, size in bytes_by_group(model(name)).items():
        found[family_of(component)] += size
    assert dict(found) == OTHERS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_those_of_the_checkpoints_and_say_whether_they_are_confirmed(name: str) -> None:
    spec = model(name)
    assert weight_bytes(spec) == TOTALS[name]
    assert spec.name == name
    assert exactness_of(spec)[0] == ("dimensions" if name in UNCONFIRMED else "byte-exact")


@pytest.mark.parametrize("name", sorted(set(TOTALS) - {"gpt-oss-20b"}))
def test_the_catalog_entry_is_what_the_import_gives(name: str) -> None:
    entry, imported = load_model(name).model_dump(), model(name).model_dump()
    assert entry.pop("sources")
    assert imported.pop("sources")
    assert entry == imported


def test_parameters_are_counted_with_and_without_the_mtp_layer() -> None:
    """Published: 671,026,419,200 in DeepSeek-V3's main model, 358,337,791,296 in all GLM-4.5."""
    assert parameters(model("deepseek-v3"), with_parts=False) == 671_026_419_200
    assert parameters(model("glm-4.5")) == 358_337_791_296


@pytest.mark.parametrize(
    ("name", "growing", "windows"),
    [
        ("qwen3-8b", 147_456, 0),
        ("qwen3-32b", 262_144, 0),
        ("llama-3.1-70b", 327_680, 0),
        ("llama-3.1-405b", 516_096, 0),
        ("qwen3-30b-a3b", 98_304, 0),
        ("qwen3-235b-a22b", 192_512, 0),
        ("mixtral-8x7b", 131_072, 0),
        ("mixtral-8x22b", 229_376, 0),
        ("deepseek-r1", 70_272, 0),  # 61 layers × (512 + 64) × 2 B
        ("kimi-k2-instruct", 70_272, 0),
        ("glm-4.5", 376_832, 0),
        # 18 full layers × 2 × 8 heads × 64 × 2 B; 18 sliding ones keep 128 tokens of the same
        ("gpt-oss-120b", 36_864, 128 * 36_864),
        # 78 layers × (512 + 64 latent numbers + 128 of the index key) × 2 B
        ("glm-5", 109_824, 0),
    ],
)
def test_cache_bytes_per_token_and_of_windows(name: str, growing: int, windows: int) -> None:
    report = report_model(model(name))
    assert report.kv_bytes_per_token == growing
    assert report.window_bytes_per_request == windows
    assert report.state_bytes_per_request == 0
