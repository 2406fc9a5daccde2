"""The tiny capacity decisions are valid, repeatable, small, and cover every rule."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from instances.instance import Instance
from instances.io import parse_instance, parse_json
from optimizer.capacity.building import build_capacity
from optimizer.capacity.exhaustive import CapacityOptimum, capacity_optimum
from optimizer.capacity.generate import tiny_capacity
from optimizer.capacity.problem import CapacityProblem

NUM_SEEDS = 200


@cache
def drawn(seed: int) -> tuple[Instance, CapacityProblem, CapacityOptimum | None]:
    instance = tiny_capacity(seed)
    problem = build_capacity(instance).problem
    return instance, problem, capacity_optimum(problem)


@pytest.mark.parametrize("seed", range(0, NUM_SEEDS, 20))
def test_equal_seeds_give_equal_instances_that_can_be_written_and_read(seed: int) -> None:
    instance = tiny_capacity(seed)
    assert instance == tiny_capacity(seed)
    assert instance != tiny_capacity(seed + 1)
    text = instance.canonical_json()
    assert parse_instance(parse_json(text, "text")) == instance


def test_sizes_stay_small() -> None:
    for seed in range(NUM_SEEDS):
        instance, problem, _ = drawn(seed)
        assert instance.decision == "capacity"
        assert len(problem.models) <= 2
        assert len(problem.pools) <= 2
        assert instance.fleet.num_cards <= 10
        assert instance.workload.num_sessions <= 6


def test_brute_force_solves_them_all_in_both_ways() -> None:
    found = [drawn(seed)[2] for seed in range(NUM_SEEDS)]
    legal = sum(one is not None for one in found)
    assert NUM_SEEDS // 3 <= legal <= 3 * NUM_SEEDS // 4
    served = [one for one in found if one is not None and one.plan.loads]
    assert len(served) >= NUM_SEEDS // 3


def test_the_fleets_cover_what_they_should() -> None:
    """Everything that a fleet may have, and that plans which are best make use of it."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        instance, problem, best = drawn(seed)
        fleet = instance.fleet
        seen.update(problem.goals)
        seen.update({f"lost {event.kind}" for event in problem.events})
        seen[fleet.mode] += 1
        seen["several models"] += len(problem.models) > 1
        seen["several pools"] += len(problem.pools) > 1
        seen["with racks"] += bool(problem.sites)
        seen["racks told apart"] += any(s.number is not None for s in problem.sites)
        seen["rack watts"] += any(s.limit_w is not None for s in problem.sites)
        seen["liquid"] += any(rack.cooling == "liquid" for rack in fleet.racks)
        seen["budget"] += problem.budget_w is not None
        seen["tiers"] += bool(problem.tiers)
        seen["groups of servers"] += any(p.servers_per_group > 1 for p in problem.pools)
        seen["occupied"] += any(c.is_occupied for c in problem.classes)
        seen["over servers"] += any(o.num_servers > 1 for o in problem.options)
        seen["attention groups"] += any(o.num_groups > 1 for o in problem.options)
        seen["batches"] += any(o.num_lanes > 1 for o in problem.options)
        seen["pools of cohorts"] += any(c.pools for c in instance.workload.cohorts)
        seen["releases"] += any(c.release_s for c in problem.cohorts)
        if best is None:
            continue
        plan = best.plan
        seen["racks bought"] += bool(plan.racks)
        seen["several options"] += len({load.option for load in plan.loads}) > 1
        seen["unlike neighbours"] += any(len(fill.blocks) > 1 for fill in plan.servers)
        seen["spanned"] += any(fill.spanned_by is not None for fill in plan.servers)
        lanes = [lane for load in plan.loads for lane in load.lanes]
        seen["unlike sessions on a lane"] += any(len(lane.runs) > 1 for lane in lanes)
    least = dict.fromkeys(("price_per_hour", "servers", "cards", "power", "energy"), 8)
    least |= {
        "racks": 4,
        "with racks": 60,
        "sessions": 20,
        "worst_case_sessions": 12,
        "expected_sessions": 6,
    }
    least |= {"price_per_on_time_session": 8, "price_per_million_tokens": 8}
    least |= {"lost card": 30, "lost server": 20, "lost rack": 10, "lost power_supply": 8}
    least |= {"lost switch": 8, "existing": 70, "purchase": 70, "several models": 40}
    least |= {"several pools": 60, "racks told apart": 30, "rack watts": 25, "liquid": 3}
    least |= {"budget": 70, "tiers": 60, "groups of servers": 15, "occupied": 40}
    least |= {"over servers": 20, "attention groups": 8, "batches": 40, "pools of cohorts": 15}
    least |= {"releases": 50, "racks bought": 15, "several options": 20, "spanned": 2}
    least |= {"unlike neighbours": 10, "unlike sessions on a lane": 20}
    short = {what: seen[what] for what, num in least.items() if seen[what] < num}
    assert not short, seen
