"""Plans that name what does not exist or count absurdly are judged, and never raise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity_servers import CARD, SERVER, broken, fleet, judge, pool, use
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill

HUGE = {"10^30": 10**30, "10^400": 10**400, "10^5000": 10**5000}


@pytest.mark.parametrize("number", ["-1", "1", *HUGE])
def test_unknown_what_does_not_exist_is_named_and_takes_no_further_part(number: str) -> None:
    index = HUGE[number] if number in HUGE else int(number)
    instance = fleet(pool(rack_units=4), tp=[1], racks=[{"name": "r", "count": 2, "units": 8}])
    problem = instance.problem
    assert (len(problem.sites), len(problem.classes), len(problem.options)) == (1, 1, 1)
    kept = use(instance, 0, 2)
    rack = RackFill(0, 1, ((0, 2),))
    assert broken(instance, kept, racks=[rack]) == []
    cases: list[tuple[ServerFill, RackFill, str, str]] = [
        (replace(kept, server_class=index), RackFill(0, 1, ()), "servers[0]", "classes"),
        (replace(kept, blocks=((index, 1),)), rack, "servers[0]", "options"),
        (replace(kept, blocks=(), spanned_by=index), rack, "servers[0]", "options"),
        (ServerFill(0, 2), replace(rack, servers=((0, 2), (index, 1))), "racks[0]", "classes"),
    ]
    for fill, held, where, unit in cases:
        assert broken(instance, fill, racks=[held]) == [("unknown", where, 1, unit)]
    site = broken(instance, kept, racks=[rack, RackFill(index, 1, ((0, 1),))])
    assert site == [("unknown", "racks[1]", 1, "sites")]


def test_unknown_where_no_racks_are_described_none_is_bought() -> None:
    plain = fleet()
    assert broken(plain, use(plain, 0, 1)) == []
    racks = [RackFill(0, 1, ((0, 1),))]
    assert broken(plain, use(plain, 0, 1), racks=racks) == [("unknown", "racks[0]", 1, "sites")]


def test_negative_counts_are_named_and_take_no_further_part() -> None:
    instance = fleet(pool(rack_units=4), tp=[1], racks=[{"name": "r", "count": 2, "units": 8}])
    one, rack = use(instance, 0, 1), RackFill(0, 1, ((0, 1),))
    assert broken(instance, replace(one, count=0), racks=[RackFill(0, 0, ())]) == []
    assert broken(instance, one, replace(one, count=-2), racks=[rack]) == [
        ("negative", "servers[1]", 2, "servers")
    ]
    assert broken(instance, replace(one, blocks=((0, -3),)), racks=[rack]) == [
        ("negative", "servers[0]", 3, "instances")
    ]
    assert broken(instance, one, racks=[rack, RackFill(0, -5, ((0, 1),))]) == [
        ("negative", "racks[1]", 5, "racks")
    ]
    assert broken(instance, one, racks=[replace(rack, servers=((0, 1), (0, -7)))]) == [
        ("negative", "racks[0]", 7, "servers")
    ]


@pytest.mark.parametrize("mode", ["purchase", "existing"])
@pytest.mark.parametrize("size", list(HUGE))
def test_absurd_numbers_break_rules_and_never_the_evaluator(mode: str, size: str) -> None:
    huge = HUGE[size]
    held = {"servers": [{"pool": "p", "num_servers": 2}]} if mode == "existing" else {}
    racks = [{"name": "r", "count": 3, "units": 8, "power_w": 2000, **held}]
    tiers = [{"name": "t", "above_endpoints": 4, "power_w": 10, "price_per_hour": 1}]
    fields = {"racks": racks, "switch_tiers": tiers, "power": {"budget_w": 10**6}}
    instance = fleet(pool(rack_units=4, price_per_hour=1), tp=[1], mode=mode, **fields)
    lane = LaneLoad(huge, ((0, huge), (-huge, huge), (0, -huge)))
    plan = CapacityPlan(
        (RackFill(0, huge, ((0, huge), (huge, 1))), RackFill(-huge, huge, ())),
        (ServerFill(0, huge, ((0, huge),), huge), ServerFill(huge, -huge)),
        (GroupLoad(0, huge, (lane,)), GroupLoad(huge, huge, (lane,))),
        ((GroupLoad(0, huge, (lane,)),),) * 3,
    )
    result = evaluate_capacity(instance.source, instance.problem, plan)
    rules = {v.rule for v in result.violations}
    wanted = {"unknown", "negative", "server_cards", "server_count", "rack_count", "power"}
    wanted |= {"lanes", "memory", "sessions", "events"}
    assert wanted <= rules
    assert result.sessions == (huge**3,)
    exact = {v.amount for v in result.violations if v.rule == "server_cards"}
    assert exact == {huge - 4}


def test_an_empty_plan_of_nobody_is_legal_and_costs_nothing() -> None:
    instance = fleet(pool(price_per_hour=3), capacity={"goals": ["price_per_hour"]})
    result = judge(instance)
    assert result.is_feasible
    assert result.values == {
        "price_per_hour": 0,
        "servers": 0,
        "racks": 0,
        "cards": 0,
        "power": 0,
        "sessions": 0,
    }


def test_an_option_that_its_model_forbids_is_refused_by_the_rules_of_deployments() -> None:
    instance = fleet(tp=[1])
    problem = instance.problem
    plan = CapacityPlan((), (use(instance, 0, 1),), ())
    assert evaluate_capacity(instance.source, problem, plan).is_feasible
    built = problem.options[0]
    three = replace(built.footprint.parallel, tp=3)
    wrong = replace(built, footprint=replace(built.footprint, parallel=three))
    result = evaluate_capacity(instance.source, replace(problem, options=(wrong,)), plan)
    # TP3 is not searched for, cannot cut four heads, and needs a collective
    assert {"tp", "heads"} <= {v.rule for v in result.violations}
    assert {v.where for v in result.violations} == {"tiny, TP3 on p"}


def test_memory_an_option_in_use_holds_its_weights_though_no_session_comes() -> None:
    instance = fleet(tp=[1])
    plan = CapacityPlan((), (use(instance, 0, 1),), ())
    # Weights of 3408 B and 100 B of workspace; a smaller card is had from another instance.
    for memory, over in ((3508, 0), (3507, 1)):
        small = {**SERVER, "accelerator": {**CARD, "memory_bytes": memory}}
        other = fleet({"name": "p", "server": small, "num_servers": 6}, tp=[1])
        found = evaluate_capacity(other.source, instance.problem, plan).violations
        expected = [("memory", "tiny, TP1 on p", over)] if over else []
        assert [(v.rule, v.where, v.amount) for v in found] == expected
