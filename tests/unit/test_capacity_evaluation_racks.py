"""Racks and power of capacity plans: each rule from both sides, amounts by hand.

A server has four cards and draws 800 W; sessions need not be served here.
"""

from __future__ import annotations

from capacity_servers import Case, broken, fleet, judge, pool, use
from optimizer.capacity.plan import RackFill, ServerFill


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
