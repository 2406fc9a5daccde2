"""The account of a placement in tiers, computed by hand, and what bad plans are told."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from optimizer.errors import TooLargeError
from optimizer.tiers.evaluation import TierEvaluation, evaluate_tiers
from optimizer.tiers.problem import Data, Machine, Tier, TierPlan, TierProblem
from optimizer.tiers.search import (
    best_sessions,
    best_tiers_exhaustively,
    first_tiers,
    improved_tiers,
    moves,
    num_placements,
)

F = Fraction

MACHINE = Machine(
    num_cards=4,
    tokens_per_step=2,
    peak_flops_per_s=F(100),
    fixed_flops=F(50),
    flops_per_session=F(10),
    communication_s=F(1),
    communication_s_per_session=F(1, 10),
    fixed_s=F(1, 2),
    balance=F(9, 10),
    first_block_share=F(1, 10),
    price_per_hour=F(3),
)
NEAR = Tier("near", 500, F(100), 0, F(50), price_per_hour=F(2))
FAR = Tier("far", 1000, F(10), 1, F(10), F(1, 5), F(40), F(1, 2))
ROM = Tier("rom", 300, F(200), 2, F(200), is_writable=False, bytes_per_mm2=3)

WEIGHTS = Data("weights", (0, 1, 2), 200, read_bytes=F(180))
KV = Data(
    "kv",
    (0, 1),
    10,
    20,
    read_bytes_per_session=F(20),
    write_bytes_per_session=F(5),
    is_written=True,
)
TABLE = Data(
    "table", (0, 1), 100, lookups=2, lookups_per_session=3, lookup_bytes=1, is_prefetched=True
)
IDLE = Data("idle", (0, 1), 60, is_written=True, resumes_per_s=F(1, 10), resume_bytes=20)
SNAPSHOT = Data("snapshot", (1,), 40, read_bytes=F(400), may_copy=True)

PROBLEM = TierProblem(
    MACHINE,
    ("near", "far", "rom"),
    (NEAR, FAR, ROM),
    (WEIGHTS, KV, TABLE, IDLE, SNAPSHOT),
    "sessions",
    max_sessions=20,
)
PLAN = TierPlan((2, 0, 1, 1, 1), (None, None, None, None, 0), 6)


def test_a_step_is_the_sum_of_its_parts() -> None:
    """Six sessions; resumes use 0.1 · 20 / 10 = 0.2 of the far path, which leaves 0.8.

    ROM: 180 / 200 = 0.9 s. Near: KV 120 / 100 + 30 / 50 = 1.8 s, the copy 400 / 100 = 4 s. Far: 20
    lookups of 1 B, 2 s, over 0.8: 2.5 s. Computing: 110 / 100. Longest 5.8 s over 0.9, then 1 + 0.6
    + 0.5 s. Lookups: 0.2 + 2.5 + 20 / 40 = 3.2 s. Fetch: 40 / 10 over 0.8: 5 s.
    """
    judged = evaluate_tiers(PROBLEM, PLAN)
    step = judged.step
    assert judged.violations == ()
    assert judged.resume_shares == (0, F(1, 5), 0)
    assert step.loads_s == (F("5.8"), F("2.5"), F("0.9"))
    assert step.compute_s == F("1.1")
    assert step.core_s == F(58, 9)
    assert step.even_s == F(58, 9) + F("2.1")
    assert step.window_s == step.even_s / 10
    assert step.prefetches_s == (0, F("3.2"), 0)
    assert step.excess_s == F("3.2") - step.window_s
    assert (step.lookups_s, step.fetches_s) == (0, 5)
    assert step.total_s == step.even_s * F(9, 10) + F("3.2") + 5
    assert judged.random_reads_s == (0, F(1, 2), 0)
    assert judged.resumes_s == (None, None, None, F("2.2"), None)


def test_bytes_prices_and_values() -> None:
    """Near: 10 + 120 of KV and 40 of the copy; far 100 + 60 + 40; ROM 200. Price 3 + 2 + 0.5."""
    judged = evaluate_tiers(PROBLEM, PLAN)
    assert judged.used_bytes == (170, 200, 200)
    assert judged.price_per_hour == F("5.5")
    total_s = judged.step.total_s
    assert total_s is not None
    assert judged.value("sessions") == 6
    assert judged.value("user_rate") == judged.user_rate == 2 / total_s
    assert judged.value("throughput_per_card") == 3 / total_s
    assert judged.value("throughput_per_price") == 12 / total_s / F("5.5")


def test_tiers_on_one_path_add_up_and_separate_paths_overlap() -> None:
    """1 s and 2 s: 2 s on paths of their own, 3 s on one (6-15 and its row for GPUs)."""
    tiers = (Tier("a", 99, F(10), 0, F(10)), Tier("b", 99, F(10), 1, F(10)))
    classes = (Data("w", (0,), 10, read_bytes=F(10)), Data("kv", (1,), 20, read_bytes=F(20)))
    apart = TierProblem(Machine(), ("a", "b"), tiers, classes, "user_rate")
    plan = TierPlan((0, 1), (None, None), 1)
    assert evaluate_tiers(apart, plan).step.total_s == 2
    shared = replace(apart, tiers=(tiers[0], replace(tiers[1], path=0)))
    assert evaluate_tiers(shared, plan).step.total_s == 3


def test_prefetched_lookups_of_one_path_follow_one_another() -> None:
    """0.2 s each on the far path make 0.4 s; on two paths the slower counts, 0.2 s."""
    table = Data("t", (0, 1), 1, lookups=1, is_prefetched=True)
    other = replace(NEAR, round_trip_s=F(1, 10))
    problem = TierProblem(
        Machine(communication_s=F(1), first_block_share=F(1, 10)),
        ("near", "far"),
        (other, replace(FAR, max_reads_per_s=None)),
        (table, replace(table, name="u")),
        "user_rate",
    )
    for homes, total_s in (((1, 1), F("1.3")), ((0, 1), F("1.1")), ((0, 0), F("1.1"))):
        plan = TierPlan(homes, (None, None), 1)
        assert evaluate_tiers(problem, plan).step.total_s == total_s


def rules(judged: TierEvaluation) -> list[tuple[str, str, Any]]:
    return [(v.rule, v.where, v.amount) for v in judged.violations]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"homes": (2, 0, 1, 1)}, [("class_count", "tiers", 1), ("placed", "class snapshot", 1)]),
        ({"copies": ()}, [("class_count", "tiers", 5)]),
        ({"homes": (7, 0, 1, 1, 1)}, [("placed", "class weights", 1)]),
        ({"homes": (-1, 0, 1, 1, 1)}, [("placed", "class weights", 1)]),
        ({"homes": (2, 0, 1, 1, None)}, [("placed", "class snapshot", 1)]),
        (
            {"homes": (2, 2, 1, 1, 1)},  # ROM: 330 of 300 B at 3 B a mm2
            [
                ("allowed", "class kv", 1),
                ("read_only", "class kv", 130),
                ("capacity", "tier rom", 10),
            ],
        ),
        ({"copies": (None, None, None, None, 1)}, [("copy", "class snapshot", 1)]),
        ({"copies": (0, None, None, None, 0)}, [("copy", "class weights", 1)]),
        ({"num_sessions": 0}, [("min_sessions", "sessions", 1)]),
        ({"num_sessions": -2}, [("min_sessions", "sessions", 3)]),
        (
            {"num_sessions": 30},  # near: 10 + 600 + 40
            [("capacity", "tier near", 150), ("max_sessions", "sessions", 10)],
        ),
        ({"homes": (2, 0, 1, 1, 1), "num_sessions": 20}, []),
    ],
)
def test_bad_plans_are_told_what_they_break(changes: dict[str, Any], wanted: list[Any]) -> None:
    assert rules(evaluate_tiers(PROBLEM, replace(PLAN, **changes))) == wanted


def test_most_sessions_are_found_for_given_places() -> None:
    """Near holds (500 - 10 - 40) / 20 = 22 sessions; a target of 20 s allows fewer."""
    assert best_sessions(replace(PROBLEM, max_sessions=99), PLAN).num_sessions == 22
    assert best_sessions(PROBLEM, PLAN).num_sessions == 20
    limited = replace(PROBLEM, step_target_s=F(20))
    num = best_sessions(limited, PLAN).num_sessions
    below, above = (
        evaluate_tiers(PROBLEM, replace(PLAN, num_sessions=n)).step.total_s for n in (num, num + 1)
    )
    assert below is not None
    assert above is not None
    assert below <= 20 < above
    rate = replace(PROBLEM, goal="user_rate", min_sessions=2)
    assert best_sessions(rate, PLAN).num_sessions == 2


def test_places_and_moves() -> None:
    """KV has no place in ROM, the snapshot one home, and a copy where it may be written."""
    assert PROBLEM.places(0) == ((0, None), (1, None), (2, None))
    assert PROBLEM.places(1) == ((0, None), (1, None))
    assert PROBLEM.places(4) == ((1, None), (1, 0))
    assert num_placements(PROBLEM) == 3 * 2 * 2 * 2 * 2
    found = list(moves(PROBLEM, PLAN))
    assert [c for c, _ in found] == [0, 0, 1, 2, 3, 4]
    assert found[-1][1].copies[4] is None


def test_the_first_plan_and_single_moves() -> None:
    """What is read most for each byte gets the fastest tier, and moves find the best here."""
    first = first_tiers(PROBLEM)
    assert first is not None
    assert first.homes[0] == 2
    best = best_tiers_exhaustively(PROBLEM)
    assert best is not None
    assert improved_tiers(PROBLEM, lambda: False) is not None
    assert improved_tiers(PROBLEM, lambda: True) == first
    nowhere = replace(PROBLEM, classes=(replace(KV, tiers=(2,)),))
    assert first_tiers(nowhere) is None
    assert improved_tiers(nowhere, lambda: False) is None
    assert best_tiers_exhaustively(nowhere) is None
    with pytest.raises(TooLargeError, match="48 placements to try, more than 47"):
        best_tiers_exhaustively(PROBLEM, 47)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tiers": ()}, "needs a tier and a class"),
        ({"classes": ()}, "needs a tier and a class"),
        ({"min_sessions": 0}, "sessions are at least 1"),
        ({"min_sessions": 21}, "sessions are at least 1"),
        ({"tiers": (NEAR, NEAR, ROM)}, "names of their own"),
        ({"paths": ("near", "far")}, "'rom' is on no path"),
        ({"tiers": (replace(NEAR, bytes_per_s=F(0)), FAR, ROM)}, "speeds are above 0"),
        ({"classes": (replace(KV, tiers=(3,)),)}, "lists a tier that is not there"),
        ({"machine": replace(MACHINE, balance=F(0))}, "are shares"),
        (
            {"machine": replace(MACHINE, price_per_hour=F(0)), "goal": "throughput_per_price"},
            "needs a machine that has one",
        ),
    ],
)
def test_bad_data_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(PROBLEM, **changes)
