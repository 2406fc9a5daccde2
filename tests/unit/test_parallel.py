"""Parallel degrees: how many cards they take, where a card stands, which ones heads allow."""

from __future__ import annotations

from collections import Counter

import pytest

from instances.catalog_store import catalog_entry
from instances.model import ModelSpec
from optimizer.legality import Rule, check_tp, legal_tp
from optimizer.parallel import Coordinates, ParallelConfig, coordinates


def model(heads: int, kv_heads: int) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": f"{heads}/{kv_heads}",
            "num_layers": 1,
            "hidden_size": heads,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": 1,
            "ffn_size": 1,
            "vocab_size": 1,
        }
    )


def test_cards_are_the_product_of_all_degrees_that_own_cards() -> None:
    assert ParallelConfig().num_cards == 1
    assert ParallelConfig(dp=2, pp=3, tp=4, cp=5).num_cards == 120
    assert ParallelConfig(dp=2, pp=3, tp=4, cp=5, copies=7).num_cards == 840
    # Expert, sequence and decode-context parallelism use cards that are already there.
    assert ParallelConfig(tp=4, ep=8, sp=4, dcp=4, redundant=3).num_cards == 4


def test_a_stage_has_the_cards_of_all_degrees_but_the_pipelines() -> None:
    config = ParallelConfig(dp=2, pp=3, tp=4, cp=5, copies=7)
    assert config.stage_cards == 280
    # 280 cards in 56 expert groups of 5 cards, which cut each expert.
    assert ParallelConfig(dp=2, pp=3, tp=4, cp=5, copies=7, ep=56).moe_tp == 5


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (ParallelConfig(), "TP1"),
        (ParallelConfig(tp=8), "TP8"),
        (ParallelConfig(pp=2, tp=4), "PP2·TP4"),
        (ParallelConfig(dp=2, ep=4), "DP2·EP4"),
        (ParallelConfig(tp=2, ep=4, copies=4), "TP2·EP4·attention x4"),
        (ParallelConfig(tp=8, dcp=8, sp=8), "TP8·SP8·DCP8"),
        (ParallelConfig(dp=3, ep=3, redundant=2), "DP3·EP3·2 redundant"),
    ],
)
def test_a_label_names_the_degrees_above_one(config: ParallelConfig, label: str) -> None:
    assert config.label() == label


def test_consecutive_cards_share_tp_then_cp_then_copies_then_dp_then_stages() -> None:
    # 2 stages of 2·2·2·2 = 16 cards; 4 expert groups of 4 consecutive cards each.
    config = ParallelConfig(dp=2, pp=2, tp=2, cp=2, ep=4, copies=2)
    assert coordinates(config, 0) == Coordinates(0, 0, 0, 0, 0, 0, 0)
    assert coordinates(config, 1) == Coordinates(0, 0, 0, 0, 1, 0, 1)
    assert coordinates(config, 2) == Coordinates(0, 0, 0, 1, 0, 0, 2)
    assert coordinates(config, 4) == Coordinates(0, 0, 1, 0, 0, 1, 0)
    assert coordinates(config, 8) == Coordinates(0, 1, 0, 0, 0, 2, 0)
    # 16 + 8 + 4 + 2 + 1.
    assert coordinates(config, 31) == Coordinates(1, 1, 1, 1, 1, 3, 3)


@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(dp=3, pp=2, tp=4, cp=2, ep=6),
        ParallelConfig(tp=2, ep=4, copies=4),
        ParallelConfig(dp=8, ep=8, pp=3),
    ],
)
def test_every_place_of_the_grid_has_one_card(config: ParallelConfig) -> None:
    places = [coordinates(config, card) for card in range(config.num_cards)]
    attention = Counter((p.stage, p.dp, p.copy, p.cp, p.tp) for p in places)
    experts = Counter((p.stage, p.expert_group, p.expert_part) for p in places)
    assert set(attention.values()) == set(experts.values()) == {1}
    assert {p.expert_group for p in places} == set(range(config.ep))
    assert {p.expert_part for p in places} == set(range(config.moe_tp))


@pytest.mark.parametrize("card", [-1, 4, 100])
def test_a_card_that_an_instance_does_not_have_is_refused(card: int) -> None:
    with pytest.raises(IndexError, match=rf"TP4 has cards 0\.\.3, not {card}"):
        coordinates(ParallelConfig(tp=4), card)


def test_d01_52_heads_allow_tp_1_2_4_13_26_52_and_no_other() -> None:
    assert legal_tp(model(52, 52), 52) == (1, 2, 4, 13, 26, 52)
    assert legal_tp(model(52, 52), 1000) == (1, 2, 4, 13, 26, 52)
    assert legal_tp(model(52, 52), 8) == (1, 2, 4)


def test_d01_tp8_is_refused_because_52_mod_8_is_4() -> None:
    broken = check_tp(model(52, 52), 8)
    message = "52 query heads do not divide by TP8 (4 left over)"
    assert broken == Rule("heads", 4, "query heads", message)


def test_d01_tp3_is_refused_because_52_mod_3_is_1() -> None:
    broken = check_tp(model(52, 52), 3)
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
    unit = "KV heads" if rule == "kv_heads" else "query heads"
    assert check_tp(model(28, 4), tp) == Rule(rule, amount, unit, words)


@pytest.mark.parametrize("tp", [1, 2, 4, 28])
def test_d03_a_legal_degree_breaks_no_rule(tp: int) -> None:
    assert check_tp(model(28, 4), tp) is None


def test_qwen3_32b_allows_more_cards_than_kv_heads_by_copying_them() -> None:
    qwen = ModelSpec.model_validate(catalog_entry("models", "qwen3-32b"))
    assert legal_tp(qwen, 100) == (1, 2, 4, 8, 16, 32, 64)


def test_fewer_kv_heads_than_cards_must_divide_them_and_more_must_be_divided() -> None:
    # 12 heads, 6 KV heads: 4 divides 12, but 6 mod 4 = 2.
    assert legal_tp(model(12, 6), 12) == (1, 2, 3, 6, 12)
    broken = check_tp(model(12, 6), 4)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("kv_heads", 2)


def test_more_cards_than_query_heads_are_never_legal() -> None:
    assert legal_tp(model(4, 4), 100) == (1, 2, 4)
    broken = check_tp(model(4, 4), 8)
    assert broken is not None
    assert (broken.rule, broken.amount) == ("heads", 4)


def test_no_card_allows_no_degree() -> None:
    assert legal_tp(model(4, 4), 0) == ()


@pytest.mark.parametrize("tp", [0, -1, -2])
def test_a_degree_below_one_is_refused_and_does_not_crash(tp: int) -> None:
    broken = check_tp(model(4, 2), tp)
    assert broken is not None
    assert broken.amount > 0
