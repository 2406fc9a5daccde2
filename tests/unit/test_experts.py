"""Experts on groups of cards: loads, times and rules by hand, and how a solve ends (6.3.2)."""

from __future__ import annotations

import dataclasses
import time
from fractions import Fraction
from typing import Any

import pytest

from formulations.experts import solve_experts
from optimizer.errors import MismatchError, TooLargeError
from optimizer.experts.evaluation import (
    Placement,
    best_experts_exhaustively,
    contiguous_placement,
    evaluate_experts,
    expert_bound,
)
from optimizer.experts.greedy import greedy_placement
from optimizer.experts.problem import ExpertProblem
from optimizer.protocols import Termination

F = Fraction
BACKENDS = ("cp-sat", "highs", "cbc")
MIB = 2**20
#: One expert of one layer of Qwen3-235B-A22B: 3 matrices of 4096 · 1536 in BF16.
EXPERT_BYTES = 3 * 4096 * 1536 * 2


def problem(counts: tuple[int, ...], num_groups: int = 2, /, **changes: Any) -> ExpertProblem:
    """One byte per expert, one second per assignment, and room for everything but copies."""
    base = ExpertProblem(
        counts=counts,
        expert_bytes=1,
        num_groups=num_groups,
        capacity_bytes=(len(counts),) * num_groups,
        max_copies=1,
        replica_budget_bytes=0,
        read_s=F(0),
        compute_s=F(1),
        transfer_s=F(0),
        uneven=True,
    )
    return dataclasses.replace(base, **changes)


def rules(p: ExpertProblem, placement: Placement) -> list[tuple[str, str, int | Fraction]]:
    """Return (rule, where, amount) of every violation."""
    return [(v.rule, v.where, v.amount) for v in evaluate_experts(p, placement).violations]


def solve(p: ExpertProblem, backend: str, seconds: float = 30, **options: Any) -> Any:
    return solve_experts(p, backend, deadline=time.monotonic() + seconds, **options)


def best_value(p: ExpertProblem) -> Fraction | None:
    """Return what all solvers and the oracle agree on."""
    found = best_experts_exhaustively(p)
    value = None if found is None else found[0]
    for backend in BACKENDS:
        assert solve(p, backend).value == value, backend
    return value


# 64 tokens choose 8 of 128 experts: 64 · 8 = 512 assignments.
BALANCED = (4,) * 128  # 512 / 128 = 4 each
CONCENTRATED = (64,) * 8 + (0,) * 120  # 512 / 8 = 64 each, on experts 0 to 7
#: The hot experts 0 to 7 in pairs on the groups, the others behind them.
SPREAD: Placement = tuple((e // 2,) if e < 8 else ((e - 8) // 30,) for e in range(128))


@pytest.mark.parametrize(
    ("figure", "counts", "placement", "busiest", "balance"),
    [
        ("moe_group_bal", BALANCED, None, 128, 1),  # 32 experts · 4
        ("moe_group_conc", CONCENTRATED, None, 512, 4),  # 8 · 64 on group 0; average 128
        ("moe_group_spread", CONCENTRATED, SPREAD, 128, 1),  # 2 · 64 on each group
    ],
)
def test_the_busiest_of_four_groups_as_published(
    figure: str, counts: tuple[int, ...], placement: Placement | None, busiest: int, balance: int
) -> None:
    p = problem(counts, 4, capacity_bytes=(32,) * 4, uneven=False)
    evaluation = evaluate_experts(p, placement or contiguous_placement(p))
    assert evaluation.violations == (), figure
    assert max(evaluation.loads) == evaluation.value_s == busiest, figure
    assert evaluation.balance == balance, figure


@pytest.mark.parametrize(
    ("figure", "counts", "read_bytes"),
    [
        ("moe_bal", BALANCED, 4608 * MIB),  # 128 · 36 MiB = 4.5 GiB
        ("moe_conc", CONCENTRATED, 288 * MIB),  # 8 · 36 MiB
    ],
)
def test_experts_without_work_are_not_read(
    figure: str, counts: tuple[int, ...], read_bytes: int
) -> None:
    p = problem(counts, 4)
    evaluation = evaluate_experts(p, contiguous_placement(p))
    assert sum(evaluation.active_experts) * EXPERT_BYTES == read_bytes, figure


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("counts", [BALANCED, CONCENTRATED])
def test_solvers_spread_the_published_counts(backend: str, counts: tuple[int, ...]) -> None:
    p = problem(counts, 4, capacity_bytes=(32,) * 4, uneven=False)
    outcome = solve(p, backend)
    assert (outcome.termination, outcome.value, outcome.bound) == (Termination.OPTIMAL, 128, 128)
    assert evaluate_experts(p, outcome.placement).balance == 1


def test_copies_share_equally_and_each_is_read() -> None:
    p = problem((6, 2), 3, max_copies=3, replica_budget_bytes=2, read_s=F(4), transfer_s=F(1, 2))
    evaluation = evaluate_experts(p, ((0, 1, 2), (1,)))
    assert evaluation.loads == (2, 4, 2)  # 6 / 3, and 2 more on group 1
    assert evaluation.active_experts == (1, 2, 1)
    assert evaluation.resident_bytes == (1, 2, 1)
    # max(4 · 1, 2) + 2 / 2 = 5; max(4 · 2, 4) + 4 / 2 = 10
    assert evaluation.times_s == (5, 10, 5)
    assert evaluation.value_s == 10
    assert evaluation.balance == F(3, 2)  # 4 / (8 / 3)


def test_the_longer_of_reading_and_computing_counts() -> None:
    # 3 assignments of 2 s against one read of 5, 6 and 7 s; exchange 3 · 1 s.
    for read, expected in ((5, 9), (6, 9), (7, 10)):
        p = problem((3,), 1, read_s=F(read), compute_s=F(2), transfer_s=F(1))
        assert evaluate_experts(p, ((0,),)).value_s == expected


def test_without_assignments_there_is_no_balance() -> None:
    assert evaluate_experts(problem((0, 0)), ((0,), (1,))).balance is None


def test_blocks_are_contiguous_and_the_first_are_larger() -> None:
    assert contiguous_placement(problem((1,) * 4)) == ((0,), (0,), (1,), (1,))
    assert contiguous_placement(problem((1,) * 5)) == ((0,), (0,), (0,), (1,), (1,))


def test_memory_from_both_sides() -> None:
    just = problem((5, 3, 2), expert_bytes=10, capacity_bytes=(20, 10))
    short = dataclasses.replace(just, capacity_bytes=(19, 10))
    placement = ((1,), (0,), (0,))
    assert rules(just, placement) == []
    assert rules(short, placement) == [("memory", "group 0", 1)]
    assert best_value(just) == 5
    assert best_value(short) is None  # one expert on each, and the third nowhere


def test_copies_from_both_sides() -> None:
    two = problem((12, 1), 3, max_copies=2, replica_budget_bytes=2)
    three = dataclasses.replace(two, max_copies=3)
    placement = ((0, 1, 2), (0,))
    assert rules(three, placement) == []
    assert rules(two, placement) == [("copies", "expert 0", 1)]
    assert best_value(two) == 6
    assert best_value(three) == 5  # 12 / 3 on each, and the small one on one of them
    assert best_value(dataclasses.replace(three, replica_budget_bytes=4)) == F(13, 3)


def test_replica_budget_from_both_sides() -> None:
    just = problem((8, 4), expert_bytes=10, capacity_bytes=(20, 20), max_copies=2)
    just = dataclasses.replace(just, replica_budget_bytes=10)
    short = dataclasses.replace(just, replica_budget_bytes=9)
    placement = ((0, 1), (0,))
    assert rules(just, placement) == []
    assert rules(short, placement) == [("replica_budget", "placement", 1)]
    assert best_value(just) == best_value(short) == 8  # 4 + 4 on a group is no better
    assert best_value(dataclasses.replace(just, replica_budget_bytes=20)) == 6


def test_one_group_copy_and_range_of_groups() -> None:
    p = problem((4, 4), max_copies=2, replica_budget_bytes=1)
    assert rules(p, ((0, 1), (1,))) == []
    assert rules(p, ((0, 0), (1,))) == [("copies", "expert 0", 1)]
    assert rules(p, ((0,), (2,))) == [("group", "expert 1", 1)]
    assert rules(p, ((-1,), (1,))) == [("group", "expert 0", 1)]


def test_every_expert_of_the_problem_and_no_other_is_placed() -> None:
    p = problem((4, 4))
    assert rules(p, ((0,), ())) == [("unplaced", "expert 1", 1)]
    assert rules(p, ((0,),)) == [("unplaced", "expert 1", 1)]
    assert rules(p, ((0,), (1,), (1,))) == [("copies", "placement", 1)]


def test_uneven_groups_from_both_sides() -> None:
    free = problem((6, 1, 1, 1))
    even = dataclasses.replace(free, uneven=False)
    placement = ((0,), (1,), (1,), (1,))
    assert rules(free, placement) == []
    assert rules(even, placement) == [("uneven_groups", "placement", 2)]
    assert best_value(free) == 6
    assert best_value(even) == 7  # 6 + 1 against 1 + 1


def test_even_groups_may_need_an_extra_copy() -> None:
    # 3 experts on 2 groups: (3 + 1) / 2, so one copy more, and there it helps: 3 + 2 and 3 + 2.
    p = problem((6, 2, 2), max_copies=2, replica_budget_bytes=1, uneven=False)
    assert best_value(p) == 5
    assert best_value(dataclasses.replace(p, replica_budget_bytes=0)) is None


def test_reading_makes_a_copy_too_dear() -> None:
    # Apart: max(3 · 1, 8) = 8. Copied: max(3 · 1, 4) = 4 and max(3 · 2, 5) = 6.
    p = problem((8, 1), max_copies=2, replica_budget_bytes=1, read_s=F(3))
    assert best_value(p) == 6
    assert best_value(dataclasses.replace(p, read_s=F(5))) == 8  # 5 · 2 = 10 is worse


def test_greedy_copies_the_hottest_and_levels_the_rest() -> None:
    # 12 of 20 on one expert: halves of 6, and 4 more for each group.
    p = problem((12, 3, 3, 1, 1), max_copies=2, replica_budget_bytes=1)
    placement = greedy_placement(p)
    assert placement is not None
    assert placement[0] == (0, 1)
    assert evaluate_experts(p, placement).loads == (10, 10)


def test_greedy_divides_pairs_where_longest_first_stops() -> None:
    # Longest first gives 8 + 5 + 4 = 17 against 7 + 6 + 2 = 15; 8 + 6 + 2 = 7 + 5 + 4 = 16.
    p = problem((8, 7, 6, 5, 4, 2), capacity_bytes=(3, 3), uneven=False)
    placement = greedy_placement(p)
    assert placement is not None
    assert evaluate_experts(p, placement).loads == (16, 16)


def test_greedy_finds_no_room_where_there_is_none() -> None:
    assert greedy_placement(problem((1, 1, 1), capacity_bytes=(1, 1))) is None
    assert greedy_placement(problem((1, 1, 1), uneven=False)) is None


def test_bound_by_hand() -> None:
    # Average 21 / 2, without copies whole: 11; halves: 10.5; the hottest alone: 15.
    assert expert_bound(problem((7, 7, 7))) == 11
    assert expert_bound(problem((7, 7, 7), max_copies=2, replica_budget_bytes=1)) == F(21, 2)
    assert expert_bound(problem((15, 3, 3))) == 15
    # Three experts on two groups: one reads two. In the mean (3 · 8 + 6 · 1) / 2 = 15 < 16.
    assert expert_bound(problem((2, 2, 2), read_s=F(8), transfer_s=F(1))) == 16
    # (3 · 8 + 12) / 2 = 18
    assert expert_bound(problem((4, 4, 4), read_s=F(8), transfer_s=F(1))) == 18


def test_the_oracle_declines_what_is_too_large() -> None:
    p = problem((1,) * 10)  # 2^10 placements
    assert best_experts_exhaustively(p, max_placements=1024) is not None
    with pytest.raises(TooLargeError, match="1024 placements"):
        best_experts_exhaustively(p, max_placements=1023)


@pytest.mark.parametrize(
    "changes",
    [
        {"expert_bytes": 0},
        {"num_groups": 0, "capacity_bytes": ()},
        {"max_copies": 0},
        {"capacity_bytes": (1,)},
        {"counts": (1, -1)},
        {"replica_budget_bytes": -1},
        {"read_s": F(-1)},
    ],
)
def test_senseless_problems_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        problem((1, 1), **changes)


# 128 skewed experts, 56,840 assignments: 7105 for each of 8 groups; the hottest has 10,020.
SKEWED = tuple(10_000 // (e + 1) + 20 for e in range(128))


@pytest.mark.parametrize("backend", ["cp-sat", "highs"])
@pytest.mark.parametrize("uneven", [True, False])
def test_a_skewed_layer_is_placed_to_optimality(backend: str, uneven: bool) -> None:
    p = problem(SKEWED, 8, capacity_bytes=(17,) * 8, max_copies=2, replica_budget_bytes=8)
    p = dataclasses.replace(p, read_s=F(60), transfer_s=F(1, 3), uneven=uneven)
    incumbent = greedy_placement(p)
    outcome = solve(p, backend, incumbent=incumbent)
    assert outcome.termination is Termination.OPTIMAL
    assert outcome.value == outcome.bound
    before = evaluate_experts(p, contiguous_placement(p))
    after = evaluate_experts(p, outcome.placement)
    assert after.is_feasible
    assert after.value_s == outcome.value < before.value_s
    assert before.balance is not None
    assert after.balance is not None
    assert before.balance > 3 > after.balance


@pytest.mark.parametrize(
    ("changes", "placement"),
    [
        ({}, ((0,), (1,), (0,))),
        ({}, ((0,), (1,))),
        ({}, ((0,), (1,), (0,), (1,))),
        ({}, ((0,), (1,), ())),
        ({}, ((0,), (1,), (2,))),
        ({}, ((0,), (0,), (0,))),
        ({"max_copies": 2}, ((0, 1), (1,), (0,))),
        ({"max_copies": 2, "replica_budget_bytes": 1}, ((0, 0), (1,), (1,))),
        ({"uneven": False}, ((0,), (1,), (0,))),
    ],
)
def test_a_placement_to_beat_keeps_the_rules(changes: dict[str, Any], placement: Placement) -> None:
    p = problem((5, 3, 2), capacity_bytes=(2, 2), **changes)
    if evaluate_experts(p, placement).is_feasible:
        assert solve(p, "cp-sat", incumbent=placement).value == 5
    else:
        with pytest.raises(MismatchError):
            solve(p, "cp-sat", incumbent=placement)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_time_what_is_known_comes_back(backend: str) -> None:
    p = problem((5, 3, 2, 1))  # 11 / 2: at least 6
    nothing = solve(p, backend, seconds=-1)
    assert nothing.termination is Termination.NO_SOLUTION_FOUND
    assert (nothing.placement, nothing.value, nothing.bound) == (None, None, 6)
    poor = ((0,), (0,), (1,), (1,))  # 5 + 3
    kept = solve(p, backend, seconds=-1, incumbent=poor)
    assert kept.termination is Termination.FEASIBLE
    assert (kept.placement, kept.value, kept.bound) == (poor, 8, 6)
    good = ((0,), (1,), (1,), (0,))  # 5 + 1 and 3 + 2 meet the bound: no solver is needed
    assert solve(p, backend, seconds=-1, incumbent=good).termination is Termination.OPTIMAL


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_beyond_a_row_are_rounded_and_the_bound_stays_valid(backend: str) -> None:
    # Halves and thirds of 10^9 in steps of a sixth exceed 2^31.
    counts = (10**9 + 7, 10**9 + 1, 10**9 // 3, 5)
    p = problem(counts, max_copies=2, replica_budget_bytes=1, read_s=F(10**8), transfer_s=F(1, 7))
    best = best_experts_exhaustively(p)
    assert best is not None
    outcome = solve(p, backend)
    assert outcome.value == evaluate_experts(p, outcome.placement).value_s
    assert outcome.bound <= best[0] <= outcome.value
    assert outcome.value - outcome.bound < best[0] / 10**6
