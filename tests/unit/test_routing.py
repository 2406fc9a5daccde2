"""Expert routing as published: distinct experts, the busiest group, copies sent to cards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest

from optimizer.routing import (
    ROUTING_POLICIES,
    RoutingLoad,
    counted_load,
    dispatch_bytes,
    dispatch_copies,
    dispatch_copies_of,
    expected_distinct_experts,
    routing_load,
)

F = Fraction
KIB, MIB, GIB = 2**10, 2**20, 2**30
# Qwen3-235B-A22B: 128 experts, 8 per token, each 3 · 4096 · 1536 numbers in BF16; one H100 SXM.
EXPERT_NUMBERS = 18_874_368
EXPERT_BYTES = 2 * EXPERT_NUMBERS
READ_MS, COMPUTE_MS = F(1000, 3350 * 10**9), F(1000, 9894 * 10**11)


def qwen(num_tokens: int, policy: Any) -> RoutingLoad:
    return routing_load(num_tokens, 128, 8, 4, policy)


@pytest.mark.parametrize(
    ("name", "value", "expected", "tolerance"),
    [
        ("disp_expert", F(dispatch_bytes(1, 8, 4096, 2), KIB), "64", "0"),
        ("disp_card", F(dispatch_bytes(1, dispatch_copies(8, 4), 4096, 2), KIB), "32", "0"),
        ("moe_bal", F(qwen(64, "balanced").distinct_experts * EXPERT_BYTES, GIB), "4.5", "0.05"),
        ("moe_conc", F(qwen(64, "concentrated").distinct_experts * EXPERT_BYTES, MIB), "288", "0"),
        ("moe_group_bal", qwen(64, "balanced").busiest_assignments, "128", "0"),
        ("moe_group_conc", qwen(64, "concentrated").busiest_assignments, "512", "0"),
        ("moe_group_spread", qwen(64, "spread").busiest_assignments, "128", "0"),
        ("eactive", qwen(8, "expected").distinct_experts, "52", "0.5"),
        (
            "eactive_read",
            qwen(8, "expected").distinct_experts * EXPERT_BYTES / GIB,
            "1.8",
            "0.05",
        ),
        (
            "pre_read",
            qwen(8192, "balanced").distinct_experts * EXPERT_BYTES * READ_MS,
            "1.44",
            "0.005",
        ),
        (
            "pre_comp",
            qwen(8192, "balanced").num_assignments * 2 * EXPERT_NUMBERS * COMPUTE_MS,
            "2.5",
            "0.05",
        ),
        ("exp_mib", F(qwen(1, "balanced").distinct_experts * EXPERT_BYTES, MIB), "288", "0"),
    ],
)
def test_figures_of_sections_6_1_and_6_2_and_6_3(
    name: str, value: Fraction | int, expected: str, tolerance: str
) -> None:
    assert abs(value - F(expected)) <= F(tolerance), f"{name}: {float(value)} is not {expected}"


@pytest.mark.parametrize(
    ("tokens", "distinct", "busiest", "busiest_distinct", "average"),
    [
        (1, 2, 1, 1, F(2, 3)),  # 2 assignments over 3 groups: 1, 1, 0
        (2, 4, 2, 2, F(4, 3)),  # 4 over 3: 2, 1, 1, each to its own expert
        (3, 6, 2, 2, F(2)),  # 6 over 3, and every expert has one
        (5, 6, 4, 2, F(10, 3)),  # 10 over 3: 4, 3, 3; a group has only 2 experts
    ],
)
def test_balanced_routing_is_as_even_as_whole_assignments_allow(
    tokens: int, distinct: int, busiest: int, busiest_distinct: int, average: Fraction
) -> None:
    expected = RoutingLoad(
        num_assignments=2 * tokens,
        distinct_experts=distinct,
        busiest_assignments=busiest,
        busiest_distinct=busiest_distinct,
        most_distinct=busiest_distinct,
        average_assignments=average,
    )
    assert routing_load(tokens, 6, 2, 3, "balanced") == expected


def test_expected_distinct_experts_follow_6_8() -> None:
    # 4 · (1 - (1/2)^2) = 3
    assert expected_distinct_experts(2, 4, 2) == 3
    # 3 · (1 - (2/3)^3) = 3 · 19/27
    assert expected_distinct_experts(3, 3, 1) == F(19, 9)
    # Whoever chooses all experts misses none.
    assert expected_distinct_experts(5, 4, 4) == 4


@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(2, 4, 2), (3, 3, 1), (2, 5, 3)])
def test_expected_distinct_experts_are_the_mean_over_all_choices(
    tokens: int, experts: int, chosen: int
) -> None:
    choices = list(product(combinations(range(experts), chosen), repeat=tokens))
    total = sum(len(set().union(*choice)) for choice in choices)
    assert expected_distinct_experts(tokens, experts, chosen) == F(total, len(choices))


def test_expected_routing_gives_every_group_the_average() -> None:
    # 2 tokens · 2 experts over 2 groups; 3 distinct experts over 2 groups.
    load = routing_load(2, 4, 2, 2, "expected")
    assert load == RoutingLoad(4, F(3), F(2), F(3, 2), F(3, 2), F(2))


def test_expected_distinct_experts_are_rounded_up_to_a_thousandth() -> None:
    # 3 tokens with 1 of 3 experts: 19/9 = 2.111… in one group, 19/27 = 0.7037 in each of three.
    assert routing_load(3, 3, 1, 1, "expected").distinct_experts == F(2112, 1000)
    load = routing_load(3, 3, 1, 3, "expected")
    assert load == RoutingLoad(3, F("2.112"), F(1), F("0.704"), F("0.704"), F(1))
    # Never more than there are: 4 · (1 - (1/4)^20) is 4 but for less than a thousandth.
    assert routing_load(20, 4, 3, 2, "expected").distinct_experts == 4
    assert expected_distinct_experts(20, 4, 3) < 4


def test_concentrated_routing_fills_groups_one_after_another() -> None:
    # 3 hot experts, groups of 2: the first has 2 of them, 2 · 5 assignments.
    assert routing_load(5, 8, 3, 4, "concentrated") == RoutingLoad(15, 3, 10, 2, 2, F(15, 4))
    # Groups of 4 hold all 3.
    assert routing_load(5, 8, 3, 2, "concentrated") == RoutingLoad(15, 3, 15, 3, 3, F(15, 2))


def test_spread_routing_deals_the_hot_experts_over_the_groups() -> None:
    # 3 hot experts over 4 groups: one each; over 2 groups: 2 and 1.
    assert routing_load(5, 8, 3, 4, "spread") == RoutingLoad(15, 3, 5, 1, 1, F(15, 4))
    assert routing_load(5, 8, 3, 2, "spread") == RoutingLoad(15, 3, 10, 2, 2, F(15, 2))


def test_counts_are_summed_over_contiguous_groups() -> None:
    # Groups (3, 0), (1, 1), (0, 0): 3 assignments on 1 expert; the second has 2 distinct experts.
    load = counted_load((3, 0, 1, 1, 0, 0), 3)
    assert load == RoutingLoad(5, 3, 3, 1, 2, F(5, 3))


def test_of_equally_busy_groups_the_one_with_more_distinct_experts_counts() -> None:
    # Groups (2, 0) and (1, 1) both have 2 assignments.
    assert counted_load((2, 0, 1, 1), 2).busiest_distinct == 2
    assert counted_load((1, 1, 2, 0), 2).busiest_distinct == 2


def test_a_placement_of_experts_moves_the_load() -> None:
    # Apart the two hot experts make 5 + 1 and 4 + 0, together 9 and 1.
    assert counted_load((5, 4, 1, 0), 2, (0, 1, 0, 1)) == RoutingLoad(10, 3, 6, 2, 2, F(5))
    assert counted_load((5, 4, 1, 0), 2, (0, 0, 1, 1)) == RoutingLoad(10, 3, 9, 2, 2, F(5))
    # Groups of a placement need not be equal: 10 assignments in the first of three.
    assert counted_load((5, 4, 1, 0), 3, (0, 0, 0, 2)) == RoutingLoad(10, 3, 10, 3, 3, F(10, 3))


def test_experts_nobody_chose_are_no_load() -> None:
    assert counted_load((0, 0), 2) == RoutingLoad(0, 0, 0, 0, 0, F(0))


def test_one_copy_goes_to_each_destination_card() -> None:
    assert dispatch_copies(8, 4) == 4
    assert dispatch_copies(2, 4) == 2
    # Experts 0, 1 and 4 lie on cards 0, 0 and 2.
    assert dispatch_copies_of((0, 1, 4), (0, 0, 1, 1, 2, 2)) == 2
    assert dispatch_copies_of((), (0, 1)) == 0


def test_a_latent_is_sent_in_place_of_the_hidden_vector() -> None:
    # Kimi K3: 3584 · 2 B = 7 KiB in place of 7168 · 2 B = 14 KiB, to each of 16 cards.
    assert dispatch_bytes(1, 1, 3584, 2) == 7 * KIB
    assert dispatch_bytes(1, 1, 7168, 2) == 14 * KIB
    assert dispatch_bytes(3, 16, 3584, 2) == 3 * 16 * 7 * KIB


def test_a_vector_that_ends_within_a_byte_is_rounded_up() -> None:
    # 5 · 1/2 = 2.5 B: 3 B for each of 2 · 2 copies, not 10 B in all.
    assert dispatch_bytes(2, 2, 5, F(1, 2)) == 12
    assert dispatch_bytes(2, 2, 4, F(1, 2)) == 8
    assert dispatch_bytes(0, 2, 4, 2) == 0


def test_the_smallest_sizes_are_sizes() -> None:
    assert routing_load(1, 1, 1, 1, "balanced") == RoutingLoad(1, 1, 1, 1, 1, F(1))
    assert counted_load((1,), 1, (0,)) == RoutingLoad(1, 1, 1, 1, 1, F(1))
    assert counted_load((), 1, ()) == RoutingLoad(0, 0, 0, 0, 0, F(0))
    assert dispatch_copies(1, 4) == dispatch_copies(8, 1) == 1
    assert dispatch_bytes(1, 1, 1, 1) == 1
    assert dispatch_bytes(1, 0, 1, 1) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: routing_load(0, 8, 2, 2, "balanced"), "at least 1 token must be routed, not 0"),
        (lambda: routing_load(1, 8, 0, 2, "balanced"), "cannot choose 0 of 8 experts"),
        (lambda: routing_load(1, 8, 9, 2, "balanced"), "cannot choose 9 of 8 experts"),
        (lambda: routing_load(1, 8, 2, 3, "balanced"), "8 experts do not form 3 equal groups"),
        (lambda: routing_load(1, 8, 2, 0, "balanced"), "8 experts do not form 0 equal groups"),
        (lambda: qwen(1, "even"), "'even'; use one of balanced, expected, concentrated, spread"),
        (lambda: expected_distinct_experts(0, 8, 2), "at least 1 token must be routed, not 0"),
        (lambda: expected_distinct_experts(1, 2, 3), "cannot choose 3 of 2 experts"),
        (lambda: counted_load((1, -1), 2), "cannot have fewer than 0 assignments"),
        (lambda: counted_load((), 1), "0 experts do not form 1 equal groups"),
        (lambda: counted_load((1, 1, 1), 2), "3 experts do not form 2 equal groups"),
        (lambda: counted_load((1, 1), 0, (0, 0)), "at least 1 group, not 0"),
        (lambda: counted_load((1, 1), 2, (0,)), "1 experts are placed, but 2 have counts"),
        (lambda: counted_load((1, 1), 2, (0, 2)), "group 2 is not one of the 2 groups"),
        (lambda: counted_load((1, 1), 2, (-1, 0)), "group -1 is not one of the 2 groups"),
        (lambda: dispatch_copies(0, 4), "at least 1 expert in at least 1 group, not 0 in 4"),
        (lambda: dispatch_copies(8, 0), "at least 1 expert in at least 1 group, not 8 in 0"),
        (lambda: dispatch_copies_of((2,), (0, 1)), "expert 2 is not one of the 2 experts"),
        (lambda: dispatch_copies_of((-1,), (0, 1)), "expert -1 is not one of the 2 experts"),
        (lambda: dispatch_bytes(-1, 1, 8, 2), "not -1 tokens"),
        (lambda: dispatch_bytes(1, -1, 8, 2), "-1 copies"),
        (lambda: dispatch_bytes(1, 1, 0, 2), "0 numbers of 2 B"),
        (lambda: dispatch_bytes(1, 1, 8, 0), "8 numbers of 0 B"),
    ],
)
def test_what_cannot_be_is_refused_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_every_policy_has_the_same_assignments_and_average() -> None:
    for policy in ROUTING_POLICIES:
        load = routing_load(3, 8, 2, 4, policy)
        assert (load.num_assignments, load.average_assignments) == (6, F(3, 2))
