"""A pool by hand: what nodes hold and links read, and both sides of every rule."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from optimizer.pooling.evaluation import evaluate_pool
from optimizer.pooling.problem import Holding, Item, Lease, PoolPlan, PoolProblem
from small_pools import plan_of, pool_of, task

F = Fraction

#: n0 holds 4 and needs 6; n1 lends at 2 B/s, n2 at 4 B/s, both over n0's one link.
BORROW = pool_of([4, 3, 3], [(0, 1, 2, 9), (0, 2, 4, 9)], [task("a", 6, 0), task("b", 2, 1)])


def broken(problem: PoolProblem, plan: PoolPlan) -> list[tuple[str, str, object]]:
    return [(v.rule, v.where, v.amount) for v in evaluate_pool(problem, plan).violations]


def changed(plan: PoolPlan, number: int, **changes: Any) -> PoolPlan:
    """A plan with the lease of one holding changed."""
    holdings = list(plan.holdings)
    lease = holdings[number].lease
    assert lease is not None
    holdings[number] = dataclasses.replace(
        holdings[number], lease=dataclasses.replace(lease, **changes)
    )
    return PoolPlan(tuple(holdings))


def test_reads_over_one_link_add_up() -> None:
    """One byte over 2 B/s and one over 4 B/s take 1/2 + 1/4 s; two bytes are far."""
    plan = plan_of(BORROW, (0, 0, 4), (0, 1, 1, 0), (0, 2, 1, 1), (1, 1, 2))
    judged = evaluate_pool(BORROW, plan)
    assert judged.violations == ()
    assert judged.is_feasible
    assert (judged.used_bytes, judged.lent_bytes) == ((4, 3, 1), (0, 1, 1))
    assert (judged.slowest_read_s, judged.remote_bytes) == (F(3, 4), 2)
    assert judged.value(("remote_bytes", "slowest_read")) == (2, F(3, 4))
    assert [use.load for use in judged.links] == [0]


def test_links_of_their_own_are_read_at_the_same_time() -> None:
    problem = pool_of([4, 3, 3], [(0, 1, 2), (0, 2, 4)], list(BORROW.items))
    plan = plan_of(problem, (0, 0, 4), (0, 1, 1, 0), (0, 2, 1, 1), (1, 1, 2))
    judged = evaluate_pool(problem, plan)
    assert [use.read_s for use in judged.links] == [F(1, 2), F(1, 4)]
    assert judged.slowest_read_s == F(1, 2)


def test_times_that_do_not_meet_do_not_add_up() -> None:
    """Two items after one another on the same chunk; together they would be too many."""
    items = [task("a", 2, 0, held=(0, 5)), task("b", 2, 0, held=(5, 9))]
    problem = pool_of([1, 1], [(0, 1, 1)], items, horizon_s=9)
    holdings = [(0, 0, 1), (0, 1, 1, 0), (1, 0, 1), (1, 1, 1, 0)]
    judged = evaluate_pool(problem, plan_of(problem, *holdings))
    assert judged.violations == ()
    assert (judged.used_bytes, judged.slowest_read_s, judged.remote_bytes) == ((1, 1), 1, 2)
    later = dataclasses.replace(items[0], until_s=F("5.001"))
    problem = dataclasses.replace(problem, items=(later, items[1]))
    plan = plan_of(problem, *holdings)
    assert broken(problem, plan) == [("capacity", "node n0", 1), ("capacity", "node n1", 1)]
    assert evaluate_pool(problem, plan).slowest_read_s == 2


def test_every_reader_that_is_elsewhere_reads() -> None:
    """Three read: on n0 two of them over paths of 1 and 2 B/s; on n1, where none of n0's paths
    leads, n0 cannot.
    """
    items = [task("a", 2, 0, 1, 2)]
    problem = pool_of([3, 3, 3], [(1, 0, 1), (2, 0, 2), (2, 1, 1)], items)
    judged = evaluate_pool(problem, plan_of(problem, (0, 0, 2, 0, 1)))
    assert judged.violations == ()
    assert [use.read_s for use in judged.links] == [2, 1, 0]
    assert (judged.remote_bytes, judged.lent_bytes) == (4, (0, 0, 0))
    assert broken(problem, plan_of(problem, (0, 1, 2, 2))) == [("path", "item a on n1", 2)]
    assert evaluate_pool(problem, plan_of(problem, (0, 1, 2, 2))).lent_bytes == (0, 2, 0)


def test_every_chunk_is_placed_once() -> None:
    good = [(0, 0, 4), (0, 2, 2, 1), (1, 1, 2)]
    assert broken(BORROW, plan_of(BORROW, *good)) == []
    assert broken(BORROW, plan_of(BORROW, *good[:2])) == [("placed", "item b", 2)]
    more = [*good, (1, 1, 1)]
    assert broken(BORROW, plan_of(BORROW, *more)) == [("placed", "item b", 1)]
    none = [*good, (1, 1, 0)]
    assert broken(BORROW, plan_of(BORROW, *none)) == [("negative", "item b on n1", 1)]
    less = [*good[:2], (1, 1, 4), (1, 1, -2)]
    assert broken(BORROW, plan_of(BORROW, *less)) == [
        *[("negative", "item b on n1", 2), ("capacity", "node n1", 1)],
    ]


def test_capacity_pinned_and_lent() -> None:
    problem = pool_of([4, (3, 1)], [(0, 1, 2)], [task("a", 5, 0, pinned=4), task("b", 2, 1)])
    assert broken(problem, plan_of(problem, (0, 0, 4), (0, 1, 1, 0), (1, 1, 2))) == []
    plan = plan_of(problem, (0, 0, 3), (0, 1, 2, 0), (1, 1, 2))
    assert broken(problem, plan) == [
        *[("pinned", "item a", 1), ("capacity", "node n1", 1), ("max_lent", "node n1", 1)],
    ]
    plan = plan_of(problem, (0, 0, 5), (1, 1, 2))
    assert broken(problem, plan) == [("capacity", "node n0", 1)]
    # what a node's own tasks have there is not lent, even if another reads it
    shared = pool_of([4, (3, 0)], [(0, 1, 2)], [task("b", 3, 1, 0)])
    assert broken(shared, plan_of(shared, (0, 1, 3, 0))) == []


@pytest.mark.parametrize(("rate", "load"), [("1/2", 1), ("0.51", F("1.02")), ("0.49", F("0.98"))])
def test_work_must_not_arrive_faster_than_it_is_read(rate: str, load: F) -> None:
    """Four bytes at 2 B/s take 2 s, so every 2 s is just as often as can be."""
    problem = pool_of([0, 4], [(0, 1, 2)], [task("a", 4, 0, rate=rate)])
    plan = plan_of(problem, (0, 1, 4, 0))
    assert [use.load for use in evaluate_pool(problem, plan).links] == [load]
    assert broken(problem, plan) == ([("queue", "link l0", load - 1)] if load > 1 else [])


def test_leases_name_paths_that_lead_there() -> None:
    plan = plan_of(BORROW, (0, 0, 4), (0, 1, 1, 0), (0, 2, 1, 1), (1, 1, 2))
    where = "item a on n1"
    wrong_way = changed(plan, 1, readers=((0, 1),))  # that path leads to n2
    assert broken(BORROW, wrong_way) == [("path", where, 1), ("reader", where, 1)]
    assert evaluate_pool(BORROW, wrong_way).slowest_read_s == F(1, 4)
    nobody = changed(plan, 1, readers=())
    assert broken(BORROW, nobody) == [("path", where, 1)]
    twice = changed(plan, 1, readers=((0, 0), (0, 0)))
    assert broken(BORROW, twice) == [("reader", where, 1)]
    stranger = changed(plan, 1, readers=((0, 0), (2, 1)))
    assert broken(BORROW, stranger) == [("reader", where, 1), ("exclusive", where, 1)]
    unleased = dataclasses.replace(plan.holdings[1], lease=None)
    bare = PoolPlan((plan.holdings[0], unleased, *plan.holdings[2:]))
    assert broken(BORROW, bare) == [("path", where, 1)]


def test_an_exclusive_lease_has_one_reader() -> None:
    problem = pool_of([3, 3, 3], [(0, 2, 1), (1, 2, 1)], [task("a", 2, 0, 1), task("b", 1, 0)])
    plan = plan_of(problem, (0, 2, 2, 0, 1), (1, 2, 1, 0))
    assert broken(problem, plan) == []
    assert broken(problem, changed(plan, 0, mode="exclusive")) == [
        ("exclusive", "item a on n2", 1),
    ]
    assert broken(problem, changed(plan, 1, mode="shared")) == [("shared", "item b on n2", 1)]
    # on a reader's own node there is one far reader, but two read it
    near = pool_of([3, 3], [(1, 0, 1)], [task("a", 2, 0, 1)])
    plan = plan_of(near, (0, 0, 2, 0))
    assert broken(near, plan) == []
    assert broken(near, changed(plan, 0, mode="exclusive")) == [("exclusive", "item a on n0", 1)]


def test_a_lease_is_as_long_as_its_item_is_held() -> None:
    problem = pool_of([0, 2], [(0, 1, 1)], [task("a", 2, 0, held=(2, 8))], horizon_s=9)
    plan = plan_of(problem, (0, 1, 2, 0))
    where = "item a on n1"
    assert broken(problem, plan) == []
    assert broken(problem, changed(plan, 0, from_s=F(3))) == [("lease_time", where, 1)]
    assert broken(problem, changed(plan, 0, from_s=F(0))) == [("lease_time", where, 2)]
    assert broken(problem, changed(plan, 0, until_s=F(7))) == [("lease_time", where, 1)]
    assert broken(problem, changed(plan, 0, until_s=F(9))) == [("lease_time", where, 1)]
    assert broken(problem, changed(plan, 0, until_s=F("9.5"))) == [
        *[("lease_time", where, F(3, 2)), ("horizon", where, F(1, 2))],
    ]
    assert broken(problem, changed(plan, 0, until_s=None)) == [("lease_time", where, 1)]


def test_nothing_to_place_breaks_nothing() -> None:
    problem = pool_of([0, 0], [], [task("a", 0, 0)])
    judged = evaluate_pool(problem, PoolPlan(()))
    assert (judged.violations, judged.slowest_read_s, judged.remote_bytes) == ((), 0, 0)


NODE, PATH, ITEM = BORROW.nodes[0], BORROW.paths[0], BORROW.items[0]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"nodes": (NODE, NODE, NODE)}, "nodes need names"),
        ({"paths": (PATH, PATH)}, "paths need names"),
        ({"items": (ITEM, ITEM)}, "items need names"),
        ({"goals": ("remote_bytes",) * 2}, "goals need names"),
        ({"goals": ()}, "goals are some of"),
        ({"goals": ("latency",)}, "goals are some of"),
        ({"chunk_bytes": 0}, "a byte or more"),
        ({"paths": (dataclasses.replace(PATH, lender=3),)}, "do not exist"),
        ({"paths": (dataclasses.replace(PATH, link=1),)}, "do not exist"),
        ({"paths": (dataclasses.replace(PATH, lender=0),)}, "joins two nodes"),
        ({"paths": (dataclasses.replace(PATH, bytes_per_s=F(0)),)}, "joins two nodes"),
        ({"items": (dataclasses.replace(ITEM, readers=()),)}, "needs readers"),
        ({"items": (dataclasses.replace(ITEM, readers=(0, 0)),)}, "needs readers"),
        ({"items": (dataclasses.replace(ITEM, readers=(3,)),)}, "does not exist"),
        ({"items": (dataclasses.replace(ITEM, pinned_chunks=7),)}, "pins more"),
        ({"items": (dataclasses.replace(ITEM, reads_per_s=F(-1)),)}, "reads below 0"),
        ({"items": (dataclasses.replace(ITEM, until_s=F(0)),)}, "ends before"),
        ({"items": (dataclasses.replace(ITEM, readers=(0, 1)),)}, "several readers"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(BORROW, **changes)


def test_ways_are_homes_first_then_the_fastest() -> None:
    """n0's item: at home, on n2 at 4 B/s, on n1 at 2 B/s; with two paths to n1 there are two."""
    assert [(way.node, way.paths) for way in BORROW.ways(0)] == [(0, ()), (2, (1,)), (1, (0,))]
    problem = pool_of([1, 1, 1], [(0, 1, 1), (0, 1, 5), (1, 0, 2)], [task("a", 1, 1, 0)])
    # at home n0 reads over either path; on n0 the home reads over its own; n2 reaches nobody
    assert [(way.node, way.paths) for way in problem.ways(0)] == [
        *[(1, (1,)), (1, (0,)), (0, (2,))],
    ]
    lease = problem.lease(0, problem.ways(0)[0])
    assert lease == Lease("shared", ((0, 1),), F(0), None)
    plan = problem.plan({(0, problem.ways(0)[0]): 1, (0, problem.ways(0)[2]): 0})
    assert plan == PoolPlan((Holding(0, 1, 1, lease),))


def test_an_item_is_held_until_its_end_only() -> None:
    item = Item("a", 1, (0,), from_s=F(1), until_s=F(2))
    assert [item.is_held(F(t)) for t in ("0.9", "1", "1.9", "2")] == [False, True, True, False]
