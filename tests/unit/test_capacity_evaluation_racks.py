"""Racks and power of capacity plans: each rule from both sides, amounts by hand.

A server has four cards and draws 800 W; sessions need not be served here.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from instances import Instance, parse_instance
from optimizer.capacity.account import CapacityEvaluation
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem

Json = dict[str, Any]

WIDTHS = {"hidden_size": 8, "head_dim": 2, "ffn_size": 16, "vocab_size": 32}
MODEL = {"name": "tiny", "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, **WIDTHS}
FABRIC = {"name": "in", "alpha_s": "100ns", "bandwidth_bytes_per_s": "1GB/s"}
CARD = {
    "name": "card",
    "memory_bytes": 10**6,
    "memory_bandwidth_bytes_per_s": "1GB/s",
    "peak_flops_per_s": {"bf16": "1PFLOP/s"},
}
SERVER = {"name": "server", "accelerator": CARD, "num_cards": 4, "power_w": 800, "fabric": FABRIC}


def pool(name: str = "p", *, servers: int = 6, cards: int = 4, **fields: Any) -> Json:
    """Return a pool of servers with so many cards each."""
    server = {**SERVER, "num_cards": cards, "power_w": fields.pop("power_w", 800)}
    return {"name": name, "server": server, "num_servers": servers, **fields}


class Case(NamedTuple):
    """A problem instance and the data of its decision."""

    source: Instance
    problem: CapacityProblem


def fleet(
    *pools: Json, tp: Sequence[int] = (1, 2, 4), mode: str = "purchase", **fields: Any
) -> Case:
    """Return the problem of a fleet that need not serve anybody."""
    cohort = {"name": "chat", "num_sessions": 10, "context_tokens": 10, "new_tokens": 2}
    capacity = {"goals": ["servers"], **fields.pop("capacity", {})}
    instance = parse_instance(
        {
            "name": "unit",
            "decision": "capacity",
            "model": MODEL,
            "fleet": {"mode": mode, "pools": list(pools) or [pool()], **fields},
            "workload": {"cohorts": [cohort], "min_on_time_fraction": "0%"},
            "runtime": {"workspace_bytes": 100},
            "search": {"tp": list(tp)},
            "capacity": capacity,
        }
    )
    return Case(instance, build_capacity(instance).problem)


def option(instance: Case, label: str, on: str = "p") -> int:
    """Return the index of an option by its degrees and its pool."""
    found = [
        o.index
        for o in instance.problem.options
        if o.footprint.parallel.label() == label and o.footprint.pool == on
    ]
    assert len(found) == 1
    return found[0]


def use(instance: Case, c: int, count: int, label: str = "TP1", number: int = 1) -> ServerFill:
    """Return servers of a class that hold so many serving instances each."""
    on = instance.problem.pools[instance.problem.classes[c].pool].name
    return ServerFill(c, count, ((option(instance, label, on), number),))


def judge(
    instance: Case, *servers: ServerFill, racks: Sequence[RackFill] = ()
) -> CapacityEvaluation:
    """Return the account of a plan that serves nobody, not after any event either."""
    plan = CapacityPlan(tuple(racks), servers, (), ((),) * len(instance.problem.events))
    return evaluate_capacity(instance.source, instance.problem, plan)


def broken(
    instance: Case, *servers: ServerFill, racks: Sequence[RackFill] = ()
) -> list[tuple[str, str, Fraction | int, str]]:
    """Return (rule, where, amount, unit) of everything wrong with such a plan."""
    result = judge(instance, *servers, racks=racks)
    assert result.is_feasible == (not result.violations)
    assert all(v.amount > 0 and v.message for v in result.violations)
    return [(v.rule, v.where, v.amount, v.unit) for v in result.violations]


def test_rack_units_a_rack_may_be_full_to_the_unit() -> None:
    # Two servers of four units fill eight units, and leave a rack of nine with one.
    for units, most in ((8, 2), (9, 2), (12, 3)):
        instance = fleet(pool(rack_units=4), racks=[{"name": "r", "count": 2, "units": units}])
        full = broken(instance, use(instance, 0, most), racks=[RackFill(0, 1, ((0, most),))])
        assert full == []
        more = broken(instance, use(instance, 0, 4), racks=[RackFill(0, 1, ((0, 4),))])
        assert more == [("rack_units", "rack r", 16 - units, "units")]  # 4 · 4 = 16


def test_rack_power_the_servers_of_a_rack_draw_no_more_than_it_feeds_and_cools() -> None:
    # 2 · 800 = 1600 W; 3 · 800 = 2400 W
    for limits in ({"power_w": 1600}, {"power_w": 9999, "cooling_w": 1600}):
        rack = {"name": "r", "count": 2, "units": 100, **limits}
        instance = fleet(pool(rack_units=4), racks=[rack])
        two, three = RackFill(0, 1, ((0, 2),)), RackFill(0, 1, ((0, 3),))
        assert broken(instance, use(instance, 0, 2), racks=[two]) == []
        over = broken(instance, use(instance, 0, 3), racks=[three])
        assert over == [("rack_power", "rack r", 800, "W")]
        # an idle server draws as much as any other
        idle = broken(instance, use(instance, 0, 2), ServerFill(0, 1), racks=[three])
        assert idle == [("rack_power", "rack r", 800, "W")]


def test_rack_power_of_an_existing_rack_counts_servers_in_use_and_occupied_ones() -> None:
    def rack(limit_w: int) -> Case:
        held = [{"pool": "p", "num_servers": 3}]
        racks = [{"name": "r", "count": 1, "units": 12, "power_w": limit_w, "servers": held}]
        occupied = [{"server": 0, "cards": [0]}]
        spare = pool(servers=3, rack_units=4, occupied=occupied)
        return fleet(spare, racks=racks, mode="existing")

    # Classes: 0 has servers 1 and 2, 1 has server 0, which others have on. 800 + 800 = 1600 W;
    # both whole servers and the occupied one draw 2400 W.
    for limit_w, over in ((2400, 0), (2399, 1), (1600, 800)):
        instance = rack(limit_w)
        expected = [("rack_power", "rack r/0", over, "W")] if over and limit_w < 2400 else []
        assert broken(instance, use(instance, 0, 2)) == expected
        # its free cards are to be had at no more watts
        assert broken(instance, use(instance, 0, 2), use(instance, 1, 1)) == expected
        assert broken(instance, use(instance, 0, 1)) == []
        # a server that is listed but holds nothing is off
        assert broken(instance, use(instance, 0, 1), ServerFill(0, 1)) == []
        assert broken(instance, use(instance, 0, 1), use(instance, 0, 1, number=0)) == []


def test_rack_power_where_existing_racks_can_feed_all_their_servers_nothing_is_broken() -> None:
    held = [{"pool": "p", "num_servers": 2}]
    racks = [{"name": "r", "count": 2, "units": 8, "power_w": 1600, "servers": held}]
    instance = fleet(pool(servers=4, rack_units=4), racks=racks, mode="existing")
    assert [site.count for site in instance.problem.sites] == [2]
    assert broken(instance, use(instance, 0, 4)) == []  # 2 · 1600 W together


def test_rack_count_no_more_racks_are_bought_than_may_be_had() -> None:
    instance = fleet(pool(rack_units=4), racks=[{"name": "r", "count": 2, "units": 4}])
    one = RackFill(0, 1, ((0, 1),))
    assert broken(instance, use(instance, 0, 2), racks=[one, one]) == []
    # an empty rack is one, too
    empty = broken(instance, use(instance, 0, 2), racks=[one, one, RackFill(0, 3, ())])
    assert empty == [("rack_count", "rack r", 3, "racks")]


def test_rack_count_of_an_existing_fleet_no_rack_is_bought() -> None:
    held = [{"pool": "p", "num_servers": 2}]
    racks = [{"name": "r", "count": 3, "units": 8, "servers": held}]
    instance = fleet(pool(servers=6, rack_units=4), racks=racks, mode="existing")
    assert broken(instance, use(instance, 0, 1)) == []
    extra = broken(instance, use(instance, 0, 1), racks=[RackFill(0, 2, ((0, 1),))])
    assert extra == [("rack_count", "rack r", 2, "racks")]


def test_rack_servers_all_that_are_bought_stand_in_racks() -> None:
    instance = fleet(pool(rack_units=4), racks=[{"name": "r", "count": 3, "units": 8}])
    two = RackFill(0, 2, ((0, 2),))
    assert broken(instance, use(instance, 0, 4), racks=[two]) == []  # 2 · 2 = 4
    for bought, off in ((5, 1), (3, 1), (1, 3)):
        found = broken(instance, use(instance, 0, bought), racks=[two])
        assert found == [("rack_servers", "servers of p in rack r", off, "servers")]


def test_rack_site_a_rack_holds_servers_of_its_own_site() -> None:
    racks = [{"name": name, "count": 2, "units": 8} for name in ("a", "b")]
    instance = fleet(pool(rack_units=4), racks=racks)
    assert broken(instance, use(instance, 1, 2), racks=[RackFill(1, 1, ((1, 2),))]) == []
    stray = broken(instance, use(instance, 1, 2), racks=[RackFill(0, 1, ((1, 2),))])
    assert stray == [("rack_site", "rack a", 2, "servers")]


def test_power_the_budget_may_be_drawn_to_the_watt() -> None:
    # 100 W always, 2 · 800 W: 1700 W
    for budget_w, over in ((1700, 0), (1699, 1)):
        instance = fleet(power={"budget_w": budget_w, "fixed_w": 100})
        expected = [("power", "fleet", over, "W")] if over else []
        assert broken(instance, use(instance, 0, 2)) == expected
        # bought and idle servers draw power, too
        assert broken(instance, use(instance, 0, 1), ServerFill(0, 1)) == expected


def test_power_of_an_existing_fleet_counts_servers_in_use_and_occupied_ones() -> None:
    occupied = [{"server": 0, "cards": [0]}]
    for budget_w, over in ((1600, 0), (1599, 1)):
        power = {"budget_w": budget_w}
        instance = fleet(pool(servers=4, occupied=occupied), mode="existing", power=power)
        expected = [("power", "fleet", over, "W")] if over else []
        # one whole server and the occupied one; whether that one is used makes no difference
        assert broken(instance, use(instance, 0, 1)) == expected
        assert broken(instance, use(instance, 0, 1), use(instance, 1, 1)) == expected
        assert broken(instance, use(instance, 0, 1), ServerFill(0, 2)) == expected


def test_power_a_tier_draws_as_soon_as_one_card_more_than_its_threshold_is_there() -> None:
    # Three servers are 12 endpoints.
    for above, drawn in ((12, 2400), (11, 2900)):
        tiers = [{"name": "spine", "above_endpoints": above, "power_w": 500}]
        instance = fleet(switch_tiers=tiers, power={"budget_w": 2400})
        over = drawn - 2400
        expected = [("power", "fleet", over, "W")] if over else []
        assert broken(instance, use(instance, 0, 3)) == expected
        assert judge(instance, use(instance, 0, 3)).power_w == drawn
