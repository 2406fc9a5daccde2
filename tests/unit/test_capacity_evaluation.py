"""Servers of capacity plans: each rule from both sides, amounts by hand.

A server has four cards; sessions need not be served here.
"""

from __future__ import annotations

from fractions import Fraction

from capacity_servers import FABRIC, broken, fleet, judge, option, pool, use
from optimizer.capacity.plan import RackFill, ServerFill


def test_server_cards_a_server_may_be_full_but_holds_no_card_more() -> None:
    plain = fleet()
    one, two = option(plain, "TP1"), option(plain, "TP2")
    # 1 · 2 + 2 · 1 = 4 cards of four; 1 · 2 + 3 · 1 = 5.
    assert broken(plain, ServerFill(0, 2, ((two, 1), (one, 2)))) == []
    over = broken(plain, ServerFill(0, 2, ((two, 1), (one, 3))))
    assert over == [("server_cards", "servers of p", 1, "cards")]
    # the same option listed twice counts twice: 2 + 2 + 1 = 5
    twice = broken(plain, ServerFill(0, 1, ((two, 1), (two, 1), (one, 1))))
    assert twice == [("server_cards", "servers of p", 1, "cards")]


def test_server_cards_of_a_server_with_occupied_cards_only_the_free_ones_are_had() -> None:
    occupied = [{"server": 1, "cards": [0, 3]}]
    existing = fleet(pool(servers=2, occupied=occupied), mode="existing")
    assert [c.free_cards for c in existing.problem.classes] == [4, 2]
    assert broken(existing, use(existing, 1, 1, "TP2")) == []
    where = "server p/1 with 2 free cards"
    over = broken(existing, use(existing, 1, 1, "TP1", 3))
    assert over == [("server_cards", where, 1, "cards")]


def test_server_cards_a_server_that_a_wide_instance_has_holds_nothing_else() -> None:
    wide = fleet(pool(cards=2, fabric_between=FABRIC), tp=[1, 4])
    four, one = option(wide, "TP4"), option(wide, "TP1")
    assert broken(wide, ServerFill(0, 2, (), four)) == []
    # TP4 over two servers takes both cards of each: with one TP1 that is 3 of 2.
    over = broken(wide, ServerFill(0, 2, ((one, 1),), four))
    assert over == [("server_cards", "servers of p", 1, "cards")]


def test_occupied_servers_are_not_spanned() -> None:
    occupied = [{"server": 2, "cards": [1]}]
    spare = pool(cards=2, servers=3, fabric_between=FABRIC, occupied=occupied)
    existing = fleet(spare, tp=[1, 4], mode="existing")
    four = option(existing, "TP4")
    # servers 0 and 1 are whole, server 2 has one card of two
    assert broken(existing, ServerFill(0, 2, (), four)) == []
    mixed = broken(existing, ServerFill(0, 1, (), four), ServerFill(1, 1, (), four))
    where = "server p/2 with 1 free cards"
    assert mixed == [("occupied_servers", where, 1, "servers")]


def test_span_servers_of_a_cell_make_whole_instances() -> None:
    wide = fleet(pool(cards=2, fabric_between=FABRIC), tp=[1, 4])
    four = option(wide, "TP4")
    label = wide.problem.options[four].footprint.label()
    # 4 servers are two instances of two; 5 are two, and one is left over
    assert judge(wide, ServerFill(0, 4, (), four)).instances[four] == 2
    over = broken(wide, ServerFill(0, 5, (), four))
    assert over == [("span", f"tiny, {label} on p", 1, "servers")]
    assert judge(wide, ServerFill(0, 5, (), four)).instances[four] == 2
    cards = {r.name: (r.used, r.most) for r in judge(wide, ServerFill(0, 4, (), four)).resources}
    assert cards["cards of p"] == (8, 8)
    # fills of one cell count together
    assert broken(wide, ServerFill(0, 1, (), four), ServerFill(0, 1, (), four)) == []


def test_span_classes_of_different_cells_do_not_make_an_instance_together() -> None:
    racks = [{"name": "r", "count": 2, "units": 2, "servers": [{"pool": "p", "num_servers": 2}]}]
    spare = pool(cards=2, servers=4, fabric_between=FABRIC, rack_units=1)
    fields = {"racks": racks, "mode": "existing", "tp": [1, 4]}
    together = fleet(spare, **fields)
    four = option(together, "TP4")
    # racks that may not fail are one site: any two of the four servers
    assert len(together.problem.classes) == 1
    assert broken(together, ServerFill(0, 2, (), four)) == []
    apart = fleet(spare, **fields, capacity={"failures": [{"kind": "rack"}]})
    four = option(apart, "TP4")
    assert [c.cell for c in apart.problem.classes] == [0, 1]
    assert broken(apart, ServerFill(1, 2, (), four)) == []
    both = judge(apart, ServerFill(0, 2, (), four), ServerFill(1, 2, (), four))
    assert (both.instances[four], both.values["cards"]) == (2, 8)
    used = {r.name: (r.used, r.most) for r in both.resources}
    assert used["cards of p"] == (8, 8)
    split = broken(apart, ServerFill(0, 1, (), four), ServerFill(1, 1, (), four))
    where = f"tiny, {apart.problem.options[four].footprint.label()} on p"
    assert split == [("span", where, 1, "servers"), ("span", where, 1, "servers")]


def test_whole_servers_belong_to_instances_over_several_servers_and_to_no_other() -> None:
    wide = fleet(pool(cards=2, fabric_between=FABRIC), tp=[1, 4])
    four, one = option(wide, "TP4"), option(wide, "TP1")
    label = wide.problem.options[four].footprint.label()
    inside = broken(wide, ServerFill(0, 3, ((four, 1),)))
    assert inside == [("whole_servers", f"tiny, {label} on p", 3, "instances")]
    spanned = broken(wide, ServerFill(0, 3, (), one))
    assert spanned == [("whole_servers", "tiny, TP1 on p", 3, "servers")]


def test_pool_an_instance_stands_on_the_pool_that_it_is_priced_for() -> None:
    two = fleet(pool("p"), pool("q"))
    mine, other = option(two, "TP1", "p"), option(two, "TP1", "q")
    assert broken(two, ServerFill(0, 2, ((mine, 3),)), ServerFill(1, 1, ((other, 1),))) == []
    stray = broken(two, ServerFill(0, 2, ((other, 3),)))
    assert stray == [("pool", "servers of p", 2 * 3, "instances")]


def test_server_count_a_class_has_only_so_many_servers() -> None:
    plain = fleet(pool(servers=6))
    assert broken(plain, use(plain, 0, 4), use(plain, 0, 2, "TP2")) == []
    over = broken(plain, use(plain, 0, 4), use(plain, 0, 3, "TP2"))
    assert over == [("server_count", "servers of p", 1, "servers")]


def test_pool_count_holds_over_all_sites() -> None:
    # Each site has room for 2 racks of two servers, 4; of the pool 6 may be had.
    racks = [{"name": name, "count": 2, "units": 8} for name in ("a", "b")]
    instance = fleet(pool(servers=6, rack_units=4), racks=racks)
    assert [c.count for c in instance.problem.classes] == [4, 4]

    def bought(a: int, b: int) -> list[tuple[str, str, Fraction | int, str]]:
        fills = [RackFill(0, 1, ((0, n),)) for n in (2, a - 2) if n]
        fills += [RackFill(1, 1, ((1, n),)) for n in (2, b - 2) if n]
        return broken(instance, use(instance, 0, a), use(instance, 1, b), racks=fills)

    assert bought(4, 2) == []
    assert bought(4, 3) == [("pool_count", "pool p", 1, "servers")]
    assert bought(4, 4) == [("pool_count", "pool p", 2, "servers")]


def test_group_servers_come_in_fours_and_may_be_idle() -> None:
    fours = fleet(pool(servers=8, servers_per_group=4))
    assert broken(fours, use(fours, 0, 4)) == []
    assert broken(fours, use(fours, 0, 3), ServerFill(0, 1)) == []  # the fourth is idle
    assert broken(fours, use(fours, 0, 3)) == [("group", "pool p", 3, "servers")]
    assert broken(fours, use(fours, 0, 5)) == [("group", "pool p", 1, "servers")]  # 5 = 4 + 1
    assert broken(fours) == []
