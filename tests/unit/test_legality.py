"""Every rule about splits from both sides, with its numbers, and where engines disagree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from instances.catalog_store import catalog_entry, catalog_names
from instances.engine import TEXTBOOK, EngineProfile
from instances.formats import WHOLE_AXIS
from instances.model import ModelSpec
from optimizer.legality import (
    Rule,
    check_config,
    check_ep,
    check_tp,
    legal_ep,
    legal_tp,
    redundant_needed,
)
from optimizer.parallel import ParallelConfig


@cache
def engine(name: str) -> EngineProfile:
    return EngineProfile.model_validate(catalog_entry("engines", name))


@cache
def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


def like(**fields: Any) -> EngineProfile:
    """Return an engine that is the textbook but for some fields."""
    return EngineProfile(name="engine", **fields)


def dense(**fields: Any) -> ModelSpec:
    """Return a dense model whose sizes divide by every power of two up to 8."""
    return ModelSpec.model_validate(
        {
            "name": "dense",
            "num_layers": 4,
            "hidden_size": 8,
            "num_heads": 8,
            "num_kv_heads": 8,
            "head_dim": 16,
            "ffn_size": 64,
            "vocab_size": 128,
            **fields,
        }
    )


def moe(num_experts: int = 8, expert_size: int = 64) -> ModelSpec:
    attention = {"kind": "gqa", "num_heads": 8, "num_kv_heads": 8, "head_dim": 16}
    ffn = {"kind": "moe", "num_experts": num_experts, "experts_per_token": 1}
    ffn["expert_size"] = expert_size
    group = {"name": "layers", "layers": "0-3", "attention": attention, "ffn": ffn}
    fields = {"name": "moe", "hidden_size": 8, "vocab_size": 128, "groups": [group]}
    return ModelSpec.model_validate(fields)


def scaled(block: Sequence[int]) -> dict[str, Any]:
    return {"weights": {"number": "fp8", "scale": {"number": "fp32", "block": block}}}


def rules(
    model: ModelSpec, config: ParallelConfig, profile: EngineProfile = TEXTBOOK
) -> list[tuple[str, int]]:
    return [(rule.rule, rule.amount) for rule in check_config(model, config, profile)]


def messages(model: ModelSpec, config: ParallelConfig, profile: EngineProfile = TEXTBOOK) -> str:
    return "; ".join(rule.message for rule in check_config(model, config, profile))


def test_query_heads_divide_or_are_refused() -> None:
    assert check_tp(dense(num_heads=12, num_kv_heads=12), 4) is None
    message = "12 query heads do not divide by TP8 (4 left over)"
    wanted = Rule("heads", 4, "query heads", message)
    assert check_tp(dense(num_heads=12, num_kv_heads=12), 8) == wanted


def test_kv_heads_divide_the_degree_or_are_divided_by_it() -> None:
    model = dense(num_heads=24, num_kv_heads=6)
    assert check_tp(model, 3) is None
    assert check_tp(model, 12) is None
    message = "6 KV heads and TP4: neither divides the other (6 mod 4 = 2)"
    assert check_tp(model, 4) == Rule("kv_heads", 2, "KV heads", message)
    message = "6 KV heads and TP8: neither divides the other (8 mod 6 = 2)"
    assert check_tp(model, 8) == Rule("kv_heads", 2, "KV heads", message)


def test_more_cards_than_kv_heads_need_an_engine_that_replicates_them() -> None:
    model, plain = dense(num_kv_heads=4), like(replicates_kv_heads=False)
    assert check_tp(model, 8) is None
    assert check_tp(model, 4, plain) is None
    message = "TP8 exceeds 4 KV heads and engine does not replicate them"
    assert check_tp(model, 8, plain) == Rule("kv_replication", 4, "KV heads", message)


def test_output_groups_are_atoms_like_heads() -> None:
    # V4-Flash: 64 heads, but 8 output groups; 16 divides only the heads.
    model = published("deepseek-v4-flash")
    assert check_tp(model, 8) is None
    message = "8 output groups do not divide by TP16 (8 left over)"
    assert check_tp(model, 16) == Rule("output_groups", 8, "output groups", message)


def test_key_and_value_heads_of_linear_attention_are_atoms() -> None:
    # Qwen3.6: 16 query and key heads, 32 value heads.
    model = published("qwen3.6-35b-a3b")
    assert check_tp(model, 16) is None
    broken = check_tp(model, 32)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("key_heads", 16)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_ffn_columns_are_padded_by_the_textbook_and_by_no_engine(name: str) -> None:
    assert check_tp(dense(ffn_size=62), 2, engine(name)) is None
    assert check_tp(dense(ffn_size=62), 4) is None
    message = "62 FFN columns do not divide by TP4 (2 left over)"
    wanted = Rule("ffn", 2, "FFN columns", message)
    assert check_tp(dense(ffn_size=62), 4, engine(name)) == wanted


def test_an_experts_columns_are_cut_by_moe_tp_not_by_tp() -> None:
    model, profile = moe(expert_size=6), engine("vllm")
    # TP4 with EP4 leaves every expert whole; without EP its 6 columns would be cut by 4.
    assert rules(model, ParallelConfig(tp=4, ep=4), profile) == []
    assert rules(model, ParallelConfig(tp=4), profile) == [("ffn", 2)]
    text = messages(model, ParallelConfig(tp=4), profile)
    assert text == "6 FFN columns do not divide by MoE TP4 (2 left over)"


def test_a_vocabulary_is_padded_on_each_card_in_all_or_not() -> None:
    model = dense(vocab_size=120, num_heads=24, num_kv_heads=24, ffn_size=48)
    assert check_tp(model, 24, like(vocabulary_multiple=64)) is None
    assert check_tp(model, 24, engine("tensorrt-llm")) is None
    # Padded to 128 rows in all: 128 mod 24 = 8, though 120 rows themselves would divide.
    in_all = like(vocabulary_multiple=64, pads_vocabulary_per_card=False)
    message = "128 vocabulary rows do not divide by TP24 (8 left over)"
    assert check_tp(model, 24, in_all) == Rule("vocabulary", 8, "vocabulary rows", message)
    assert check_tp(model, 8, in_all) is None
    # Never padded: 120 rows divide by 24 but not by 16.
    never = like(vocabulary_multiple=None)
    assert check_tp(model, 24, never) is None
    odd = dense(vocab_size=120, num_heads=16, num_kv_heads=16)
    message = "120 vocabulary rows do not divide by TP16 (8 left over)"
    assert check_tp(odd, 16, never) == Rule("vocabulary", 8, "vocabulary rows", message)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_engines_that_pad_to_64_rows_in_all_refuse_what_then_does_not_divide(name: str) -> None:
    model = dense(vocab_size=100, num_heads=24, num_kv_heads=24, ffn_size=48)
    assert check_tp(model, 8, engine(name)) is None
    broken = check_tp(model, 24, engine(name))
    assert broken is not None
    assert (broken.rule, broken.amount) == ("vocabulary", 8)


def test_a_cards_part_of_a_quantised_matrix_is_whole_blocks_along_the_cut() -> None:
    model = dense(ffn_size=64, head_dim=64, formats=scaled([32, 32]))
    assert check_tp(model, 2) is None
    message = "ffn: 64 over TP4 is 16 a card, 0.5 blocks of 32; blocks must be whole"
    assert check_tp(model, 4) == Rule("quantisation_block", 64, "numbers", message)
    assert check_tp(model, 4, like(whole_blocks=False)) is None
    assert check_tp(dense(ffn_size=64, head_dim=64), 4) is None


def test_blocks_matter_only_along_the_axis_that_is_cut() -> None:
    # Gate and up are cut by outputs, q, k and v too; down and o by inputs.
    only_outputs = dense(ffn_size=64, head_dim=64, formats=scaled([32, 1]))
    only_inputs = dense(ffn_size=64, head_dim=64, formats=scaled([1, 32]))
    neither = dense(ffn_size=64, formats=scaled([1, 1]))
    assert [check_tp(model, 8) is None for model in (only_outputs, only_inputs, neither)] == [
        False,
        False,
        True,
    ]


def test_one_card_needs_no_whole_blocks_because_it_cuts_nothing() -> None:
    assert check_tp(dense(ffn_size=60, formats=scaled([32, 32])), 1) is None
    assert check_tp(dense(ffn_size=60, head_dim=32, formats=scaled([32, 32])), 2) is not None


def test_a_scale_for_the_whole_axis_is_shared_by_its_parts() -> None:
    # One scale for all inputs of a row, however many: they may be cut. A block of 128 may not be.
    assert check_tp(dense(formats=scaled([1, WHOLE_AXIS])), 8) is None
    assert check_tp(dense(formats=scaled([1, 128])), 8) is not None


def test_atoms_are_named_before_kv_heads_and_widths_come_last() -> None:
    model = dense(num_heads=12, num_kv_heads=6, ffn_size=62)
    order = [check_tp(model, tp, engine("vllm")) for tp in (8, 4, 12)]
    assert [rule.rule for rule in order if rule is not None] == ["heads", "kv_heads", "ffn"]


def test_replicated_kv_heads_are_whole_blocks_where_one_head_is() -> None:
    # 2 KV heads of 32 on 8 cards: a head is one block of 32 on each, never a quarter.
    model = dense(num_kv_heads=2, head_dim=32, ffn_size=256, formats=scaled([32, 32]))
    assert check_tp(model, 8) is None
    # A head of 16 is half a block.
    assert check_tp(dense(num_kv_heads=2, formats=scaled([32, 32])), 8) is not None


@pytest.mark.parametrize("degree", [0, -3])
def test_no_degree_is_below_one(degree: int) -> None:
    broken = check_ep(moe(), degree)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("experts", 1 - degree)
    assert rules(moe(), ParallelConfig(tp=degree)) == [("parallel", 1)]
    assert rules(moe(), ParallelConfig(tp=degree, copies=degree, redundant=-1)) == [("parallel", 3)]


def test_experts_divide_by_the_groups_or_are_filled_up() -> None:
    plain = like(redundant_experts=False)
    assert check_ep(moe(8), 4, plain) is None
    message = "8 experts do not divide by EP3 (2 left over)"
    assert check_ep(moe(8), 3, plain) == Rule("experts", 2, "experts", message)
    # 8 + 1 redundant = 3 groups of 3.
    assert check_ep(moe(8), 3) is None
    assert redundant_needed(moe(8), 3) == 1
    assert check_ep(moe(8), 3, redundant=1) is None
    message = "8 + 2 redundant experts do not divide by EP3 (1 left over)"
    assert check_ep(moe(8), 3, redundant=2) == Rule("experts", 1, "experts", message)


def test_redundant_experts_need_an_engine_that_holds_them() -> None:
    plain = like(redundant_experts=False)
    assert check_ep(moe(8), 4, plain, redundant=0) is None
    message = "engine holds no redundant experts, 1 asked for"
    assert check_ep(moe(8), 3, plain, redundant=1) == Rule(
        "redundant_experts", 1, "experts", message
    )
    assert check_ep(moe(8), 3, like(), redundant=1) is None
    alone = check_ep(moe(8), 1, plain, redundant=1)
    assert alone is not None
    assert alone.rule == "redundant_experts"


def test_a_group_holds_at_least_one_expert() -> None:
    assert check_ep(moe(8), 8, redundant=0) is None
    broken = check_ep(moe(8), 16, redundant=0)
    assert broken is not None
    assert broken.message == "8 experts do not divide by EP16 (8 left over)"
    # 16 slots would divide, but eight groups would have spare experts only.
    spare = check_ep(moe(8), 16, redundant=8)
    assert spare is not None
    assert (spare.rule, spare.amount) == ("experts", 8)


def test_a_model_without_experts_has_no_groups() -> None:
    assert check_ep(dense(), 1) is None
    message = "EP2: the model has no experts to deal out"
    assert check_ep(dense(), 2) == Rule("experts", 1, "groups", message)
    assert legal_ep(dense(), 8) == (1,)
    spare = check_ep(dense(), 1, redundant=2)
    assert spare is not None
    assert (spare.rule, spare.amount) == ("experts", 2)


def test_legal_ep_lists_divisors_unless_groups_may_be_filled_up() -> None:
    assert legal_ep(moe(8), 100, like(redundant_experts=False)) == (1, 2, 4, 8)
    assert legal_ep(moe(8), 100) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert legal_ep(moe(8), 3, like(redundant_experts=False)) == (1, 2)


def test_expert_groups_are_equal_shares_of_a_stages_cards() -> None:
    assert rules(moe(), ParallelConfig(tp=4, ep=2)) == []
    assert rules(moe(), ParallelConfig(tp=2, ep=4)) == [("moe_width", 2)]
    text = messages(moe(), ParallelConfig(tp=2, ep=4))
    assert text == "TP2·EP4: 2 cards of a stage do not form 4 equal expert groups"


def test_vllm_deals_experts_to_all_cards_or_to_none() -> None:
    vllm = engine("vllm")
    for ep in (1, 8):
        assert rules(moe(), ParallelConfig(dp=2, tp=4, ep=ep), vllm) == []
    for ep in (2, 4):
        found = rules(moe(), ParallelConfig(dp=2, tp=4, ep=ep), vllm)
        assert found == [("moe_width", 8 - ep)]
        for name in ("sglang", "textbook"):
            assert rules(moe(), ParallelConfig(dp=2, tp=4, ep=ep), engine(name)) == []
        assert rules(moe(), ParallelConfig(dp=8, ep=ep), engine("tensorrt-llm")) == []
    text = messages(moe(), ParallelConfig(dp=2, tp=4, ep=2), vllm)
    assert text == "DP2·TP4·EP2: vllm deals experts to all 8 cards of a stage or to none"


def test_sequence_parallelism_takes_all_cards_of_tp_or_none() -> None:
    assert rules(dense(), ParallelConfig(tp=4, sp=4)) == []
    assert rules(dense(), ParallelConfig(tp=4, sp=2)) == [("sp", 2)]
    assert messages(dense(), ParallelConfig(tp=4, sp=2)).endswith("so it is 1 or 4")


def test_attention_groups_share_experts_or_are_instances_of_their_own() -> None:
    assert rules(moe(), ParallelConfig(dp=2)) == []
    assert rules(dense(), ParallelConfig(dp=2)) == [("attention_dp", 1)]
    assert "serving instances of their own" in messages(dense(), ParallelConfig(dp=2))
    found = rules(moe(), ParallelConfig(dp=4), like(attention_data_parallel=False))
    assert found == [("attention_dp", 3)]


@pytest.mark.parametrize(
    ("field", "config", "rule"),
    [
        ("attention_copies", ParallelConfig(copies=4, ep=4), "attention_copies"),
        ("context_parallel", ParallelConfig(cp=4), "cp"),
        ("decode_context_parallel", ParallelConfig(tp=8, dcp=4), "dcp"),
    ],
)
def test_a_degree_that_the_engine_does_not_run_is_refused(
    field: str, config: ParallelConfig, rule: str
) -> None:
    model = published("deepseek-r1")
    assert rules(model, config) == []
    assert rules(model, config, like(**{field: False})) == [(rule, 3)]
    text = messages(model, config, like(**{field: False}))
    assert text == f"{config.label()}: engine does not run {rule}"


def test_which_engine_runs_which_degree() -> None:
    r1 = published("deepseek-r1")
    wanted = {
        "textbook": {"dp", "copies", "cp", "dcp"},
        "vllm": {"dp", "dcp"},
        "sglang": {"dp", "dcp"},
        "tensorrt-llm": {"dp"},
    }
    configs = {
        "dp": ParallelConfig(dp=8, ep=8),
        "copies": ParallelConfig(tp=2, copies=4, ep=8),
        "cp": ParallelConfig(tp=4, cp=2, ep=8),
        "dcp": ParallelConfig(tp=8, dcp=8, ep=8),
    }
    for name, degrees in wanted.items():
        legal = {degree for degree, c in configs.items() if not rules(r1, c, engine(name))}
        assert legal == degrees, name


def test_attention_is_data_or_tensor_parallel_on_tensorrt_llm() -> None:
    trt = engine("tensorrt-llm")
    assert rules(moe(), ParallelConfig(dp=4, ep=4), trt) == []
    assert rules(moe(), ParallelConfig(dp=2, tp=2, ep=4), trt) == [("attention_dp", 1)]
    text = messages(moe(), ParallelConfig(dp=2, tp=2, ep=4), trt)
    assert text.endswith("runs attention data-parallel or tensor-parallel, not both")


def test_sglang_deals_out_latent_caches_only() -> None:
    assert rules(published("deepseek-r1"), ParallelConfig(tp=8, dcp=4), engine("sglang")) == []
    model = dense(num_kv_heads=2)
    assert rules(model, ParallelConfig(tp=8, dcp=4), engine("textbook")) == []
    found = check_config(model, ParallelConfig(tp=8, dcp=4), engine("sglang"))
    assert ("dcp", 1) in [(rule.rule, rule.amount) for rule in found]


def test_dcp_shares_out_what_cards_of_a_tp_group_would_hold_twice() -> None:
    # 8 KV heads on 8 cards: no two cards hold the same one; 2 KV heads: 4 cards hold each.
    assert rules(dense(num_kv_heads=2), ParallelConfig(tp=8, dcp=4)) == []
    assert rules(dense(num_kv_heads=2), ParallelConfig(tp=8, dcp=2)) == []
    assert rules(dense(num_kv_heads=2), ParallelConfig(tp=8, dcp=8)) == [("dcp", 4)]
    assert rules(dense(), ParallelConfig(tp=8, dcp=2)) == [("dcp", 1)]
    text = messages(dense(), ParallelConfig(tp=8, dcp=2))
    assert text == "TP8·DCP2: 1 cards hold the same kv; DCP2 does not divide that"
    # A recurrent state is not dealt out: Qwen3.6 has 2 KV heads and 32 value heads.
    assert rules(published("qwen3.6-35b-a3b"), ParallelConfig(tp=8, dcp=4)) == []
    # One latent is on every card of the group.
    assert rules(published("deepseek-r1"), ParallelConfig(tp=8, dcp=8)) == []


def test_a_pipeline_has_at_most_a_layer_for_each_stage() -> None:
    assert rules(dense(), ParallelConfig(pp=4)) == []
    assert rules(dense(), ParallelConfig(pp=5)) == [("stages", 1)]
    assert messages(dense(), ParallelConfig(pp=5)) == "PP5 cannot cut 4 layers"


def test_every_broken_rule_is_listed() -> None:
    found = rules(dense(num_heads=12, num_kv_heads=12), ParallelConfig(dp=2, pp=6, tp=8, sp=2))
    assert found == [("sp", 6), ("attention_dp", 1), ("stages", 2), ("heads", 4)]


def test_the_catalogs_textbook_is_the_default_engine() -> None:
    assert engine("textbook").model_copy(update={"sources": {}}) == TEXTBOOK


@pytest.mark.parametrize("name", catalog_names("models"))
def test_no_engine_allows_a_degree_that_the_textbook_refuses(name: str) -> None:
    model = published(name)
    textbook = set(legal_tp(model, 32))
    for other in catalog_names("engines"):
        assert set(legal_tp(model, 32, engine(other))) <= textbook
    assert 1 in textbook
