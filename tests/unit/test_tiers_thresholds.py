"""How slow tiers may be, and when lookups stop being hidden: both sides by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from instances.io import load_instance
from optimizer.errors import MismatchError
from optimizer.tiers import thresholds
from optimizer.tiers.building import tier_problem
from optimizer.tiers.evaluation import evaluate_tiers
from optimizer.tiers.generate import GOALS, small_tiers
from optimizer.tiers.problem import Data, Machine, Tier, TierPlan, TierProblem
from optimizer.tiers.search import best_tiers_exhaustively
from optimizer.tiers.thresholds import (
    LookupThreshold,
    lookup_thresholds,
    tier_thresholds,
    with_tier,
)

F = Fraction
US = F(1, 10**6)

#: Ten reads of 2 B: 0.1 s there and back, 0.2 s of bytes, 0.5 s at 20 a second.
TABLE = Data("table", (1,), 20, lookups=10, lookup_bytes=2, is_prefetched=True)
WEIGHTS = Data("weights", (0,), 100, read_bytes=F(100))
PROBLEM = TierProblem(
    Machine(first_block_share=F(1, 10), communication_s=F(2)),
    ("near", "far"),
    (
        Tier("near", 100, F(10), 0, F(10)),
        Tier("far", 100, F(100), 1, F(100), F(1, 10), F(20)),
    ),
    (WEIGHTS, TABLE),
    "user_rate",
)
PLAN = TierPlan((0, 1), (None, None), 1)


def test_a_round_trip_is_hidden_down_to_a_step() -> None:
    """A step of 12 s hides 1.2 s. A round trip of 0.1 s needs 1 s, all 0.8 s need 8 s."""
    (found,) = lookup_thresholds(PROBLEM, PLAN)
    assert found == LookupThreshold(1, 1, F(12), F("1.2"), F(1), F(8))
    for step_s, excess_s in ((F(8), F(0)), (8 - F(1, 1000), F(1, 10_000))):
        quick = replace(WEIGHTS, read_bytes=10 * (step_s - 2))
        changed = replace(PROBLEM, classes=(quick, TABLE))
        assert evaluate_tiers(changed, PLAN).step.excess_s == excess_s


def test_a_tier_keeps_the_step_down_to_a_bandwidth_and_a_round_trip() -> None:
    """Far: 1.2 s less 0.5 s and 0.1 s leave 0.6 s for 20 B: 33.3 B/s, so 34 keep it.

    Its round trip may be 1.2 - 0.5 - 0.2 = 0.5 s. Near: anything less is slower.
    """
    near, far = tier_thresholds(PROBLEM, PLAN)
    assert (near.tier, near.keeps_bytes_per_s, near.longest_round_trip_s) == (0, 10, None)
    assert (far.tier, far.keeps_bytes_per_s, far.longest_round_trip_s) == (1, 34, F(1, 2))
    now_s = evaluate_tiers(PROBLEM, PLAN).step.total_s
    for speed, is_kept in ((34, True), (33, False)):
        slower = with_tier(PROBLEM, 1, bytes_per_s=F(speed))
        assert (evaluate_tiers(slower, PLAN).step.total_s == now_s) is is_kept
    for seconds, is_kept in ((F(1, 2), True), (F(1, 2) + US, False)):
        slower = with_tier(PROBLEM, 1, round_trip_s=seconds)
        assert (evaluate_tiers(slower, PLAN).step.total_s == now_s) is is_kept


def test_what_is_seen_already_has_no_slack() -> None:
    """Waited for in whole, or beyond a window of 0.05 · 12 = 0.6 s, the round trip is the limit."""
    waited = replace(PROBLEM, classes=(WEIGHTS, replace(TABLE, is_prefetched=False)))
    assert tier_thresholds(waited, PLAN)[1].longest_round_trip_s == F(1, 10)
    assert lookup_thresholds(waited, PLAN) == []
    seen = replace(PROBLEM, machine=replace(PROBLEM.machine, first_block_share=F(1, 20)))
    assert tier_thresholds(seen, PLAN)[1].longest_round_trip_s == F(1, 10)
    assert tier_thresholds(seen, PLAN)[1].keeps_bytes_per_s == 100


def test_a_tier_that_is_not_read_may_be_as_slow_as_it_likes() -> None:
    problem = replace(PROBLEM, classes=(WEIGHTS, Data("store", (1,), 50)))
    assert tier_thresholds(problem, PLAN)[1].keeps_bytes_per_s is None


def test_a_bandwidth_that_is_no_whole_number_is_rounded_up() -> None:
    """At 10/3 B/s any less is slower: 4 keeps the step, 3 does not."""
    problem = with_tier(PROBLEM, 0, bytes_per_s=F(10, 3))
    assert tier_thresholds(problem, PLAN)[0].keeps_bytes_per_s == 4


def test_thresholds_of_random_plans_hold_on_both_sides() -> None:
    num_trips = num_speeds = 0
    for seed in range(160):
        problem = small_tiers(seed, GOALS[seed % 4])
        plan = best_tiers_exhaustively(problem)
        if plan is None:
            continue
        lookup_thresholds(problem, plan)  # raises where evaluations do not bear them out
        now_s = evaluate_tiers(problem, plan).step.total_s
        assert now_s is not None
        for found in tier_thresholds(problem, plan):
            keeps, longest = found.keeps_bytes_per_s, found.longest_round_trip_s
            if keeps is not None:
                num_speeds += 1
                slow = with_tier(problem, found.tier, bytes_per_s=F(keeps))
                total_s = evaluate_tiers(slow, plan).step.total_s
                assert total_s is not None, seed
                assert total_s <= now_s, seed
                slow = with_tier(problem, found.tier, bytes_per_s=F(keeps - 1))
                total_s = evaluate_tiers(slow, plan).step.total_s
                assert total_s is None or total_s > now_s, seed
            if longest is not None:
                num_trips += 1
                far = with_tier(problem, found.tier, round_trip_s=longest + US)
                total_s = evaluate_tiers(far, plan).step.total_s
                assert total_s is not None, seed
                assert total_s > now_s, seed
    assert num_speeds >= 40
    assert num_trips >= 25


def test_a_false_threshold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What evaluation does not bear out is never told."""
    monkeypatch.setattr(thresholds, "HAIR", F(0))
    with pytest.raises(MismatchError, match="not hidden down to a step"):
        lookup_thresholds(PROBLEM, PLAN)


@pytest.mark.parametrize(("trip_us", "rate"), [("1.05", F(10**8, 4200)), ("2", F(12_500))])
@pytest.mark.parametrize("name", ["one-user-8xh100", "rom-wafers", "rom-one-wafer"])
def test_a_host_round_trip_is_hidden_on_h100_and_on_wafers(
    name: str, trip_us: str, rate: Fraction
) -> None:
    """40 layers: 1 / (40 · 1.05 us) = 23,810 tokens/s, 42 us (6.7.4); of 2 us 12,500, 80 us."""
    problem = tier_problem(load_instance(name))
    (host,) = (t for t, tier in enumerate(problem.tiers) if tier.name == "host memory")
    problem = with_tier(problem, host, round_trip_s=F(trip_us) * US)
    plan = best_tiers_exhaustively(problem)
    assert plan is not None
    found = {f.tier: f for f in lookup_thresholds(problem, plan)}[host]
    assert 1 / found.round_trip_step_s == rate
    assert found.window_s == found.step_s / 40
