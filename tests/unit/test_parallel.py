"""Parallel degrees: how many cards they take, and which ones a model's heads allow."""

from __future__ import annotations

import pytest

from instances.catalog_store import catalog_entry
from instances.model import ModelSpec
from optimizer.parallel import HeadRule, ParallelConfig, check_heads, legal_tp


def model(heads: int, kv_heads: int) -> ModelSpec:
    return ModelSpec(
        name=f"{heads}/{kv_heads}",
        num_layers=1,
        hidden_size=heads,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=1,
        ffn_size=1,
        vocab_size=1,
    )


def test_cards_are_the_product_of_all_degrees_that_own_cards() -> None:
    assert ParallelConfig().num_cards == 1
    assert ParallelConfig(dp=2, pp=3, tp=4, cp=5).num_cards == 120
    # Expert and sequence parallelism use cards that are already there.
    assert ParallelConfig(tp=4, ep=8, sp=4).num_cards == 4


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (ParallelConfig(), "TP1"),
        (ParallelConfig(tp=8), "TP8"),
        (ParallelConfig(pp=2, tp=4), "PP2·TP4"),
        (ParallelConfig(dp=2, ep=4), "DP2·EP4"),
    ],
)
def test_a_label_names_the_degrees_above_one(config: ParallelConfig, label: str) -> None:
    assert config.label() == label


def test_d01_52_heads_allow_tp_1_2_4_13_26_52_and_no_other() -> None:
    assert legal_tp(model(52, 52), 52) == (1, 2, 4, 13, 26, 52)
    assert legal_tp(model(52, 52), 1000) == (1, 2, 4, 13, 26, 52)
    assert legal_tp(model(52, 52), 8) == (1, 2, 4)


def test_d01_tp8_is_refused_because_52_mod_8_is_4() -> None:
    broken = check_heads(model(52, 52), 8)
    assert broken == HeadRule("heads", 4, "52 query heads do not divide by TP8 (4 left over)")


def test_d01_tp3_is_refused_because_52_mod_3_is_1() -> None:
    broken = check_heads(model(52, 52), 3)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("heads", 1)


def test_d03_28_heads_with_4_kv_heads_allow_tp_1_2_4_28_and_no_other() -> None:
    assert legal_tp(model(28, 4), 28) == (1, 2, 4, 28)
    assert legal_tp(model(28, 4), 27) == (1, 2, 4)
    assert legal_tp(model(28, 4), 8) == (1, 2, 4)


@pytest.mark.parametrize(
    ("tp", "rule", "amount", "words"),
    [
        (7, "kv_heads", 3, "4 KV heads and TP7: neither divides the other (7 mod 4 = 3)"),
        (8, "heads", 4, "28 query heads do not divide by TP8 (4 left over)"),
        (14, "kv_heads", 2, "4 KV heads and TP14: neither divides the other (14 mod 4 = 2)"),
    ],
)
def test_d03_a_refused_degree_names_the_rule_and_the_numbers(
    tp: int, rule: str, amount: int, words: str
) -> None:
    assert check_heads(model(28, 4), tp) == HeadRule(rule, amount, words)


@pytest.mark.parametrize("tp", [1, 2, 4, 28])
def test_d03_a_legal_degree_breaks_no_rule(tp: int) -> None:
    assert check_heads(model(28, 4), tp) is None


def test_qwen3_32b_allows_more_cards_than_kv_heads_by_copying_them() -> None:
    qwen = ModelSpec.model_validate(catalog_entry("models", "qwen3-32b"))
    assert legal_tp(qwen, 100) == (1, 2, 4, 8, 16, 32, 64)


def test_fewer_kv_heads_than_cards_must_divide_them_and_more_must_be_divided() -> None:
    # 12 heads, 6 KV heads: 4 divides 12, but 6 mod 4 = 2.
    assert legal_tp(model(12, 6), 12) == (1, 2, 3, 6, 12)
    broken = check_heads(model(12, 6), 4)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("kv_heads", 2)


def test_more_cards_than_query_heads_are_never_legal() -> None:
    assert legal_tp(model(4, 4), 100) == (1, 2, 4)
    broken = check_heads(model(4, 4), 8)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("heads", 4)


def test_no_card_allows_no_degree() -> None:
    assert legal_tp(model(4, 4), 0) == ()


@pytest.mark.parametrize("tp", [0, -1, -2])
def test_a_degree_below_one_is_refused_and_does_not_crash(tp: int) -> None:
    broken = check_heads(model(4, 2), tp)
    assert broken is not None
    assert broken.amount > 0
