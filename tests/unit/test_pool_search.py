"""Pools without a solver: all plans, a first one, bounds, and why none is legal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import pytest

from optimizer.errors import TooLargeError
from optimizer.pooling.bounds import pool_bound, why_nothing_fits
from optimizer.pooling.evaluation import evaluate_pool
from optimizer.pooling.generate import small_pool
from optimizer.pooling.problem import PoolPlan, PoolProblem, Way
from optimizer.pooling.search import best_pool_exhaustively, first_pool
from small_pools import plan_of, pool_of, task

F = Fraction

#: n0 lacks 2; n1 lends at 2 B/s, n2 at 4 B/s.
ONE_LINK = pool_of([4, 3, 3], [(0, 1, 2, 9), (0, 2, 4, 9)], [task("a", 6, 0), task("b", 2, 1)])
OWN_LINKS = pool_of([4, 3, 3], [(0, 1, 2), (0, 2, 4)], [task("a", 6, 0), task("b", 2, 1)])


def value_of(problem: PoolProblem, plan: PoolPlan | None) -> tuple[Fraction, ...] | None:
    if plan is None:
        return None
    judged = evaluate_pool(problem, plan)
    assert judged.violations == ()
    return judged.value(problem.goals)


def test_the_fastest_lends_over_one_link_and_several_over_their_own() -> None:
    """Two bytes over 4 B/s take 1/2 s. A byte each over 2 and 4 B/s is 1/2 + 1/4 over one link.

    Over links of their own it is 1/2 beside 1/4, no better than both from n2; with 3 B/s from n1
    it is 1/3.
    """
    best = best_pool_exhaustively(ONE_LINK)
    assert best == plan_of(ONE_LINK, (0, 0, 4), (0, 2, 2, 1), (1, 1, 2))
    assert value_of(ONE_LINK, best) == value_of(ONE_LINK, first_pool(ONE_LINK)) == (F(1, 2), 2)
    assert value_of(OWN_LINKS, best_pool_exhaustively(OWN_LINKS)) == (F(1, 2), 2)
    faster = pool_of([4, 3, 3], [(0, 1, 3), (0, 2, 4)], [task("a", 6, 0), task("b", 2, 1)])
    assert value_of(faster, best_pool_exhaustively(faster)) == (F(1, 3), 2)
    assert value_of(faster, first_pool(faster)) == (F(1, 2), 2)


def test_a_task_may_make_room_for_another() -> None:
    """A byte of a that n0 lacks room for takes 1 s from n2, at 1 B/s.

    If a byte of b moves there, n1 has room for it: 1/2 s and 1/4 s, but two bytes are far.
    """
    paths = [(0, 1, 2), (0, 2, 1), (1, 2, 4)]
    items = [task("a", 2, 0), task("b", 2, 1)]
    problem = pool_of([1, 2, 1], paths, items)
    assert value_of(problem, best_pool_exhaustively(problem)) == (F(1, 2), 2)
    fewest = pool_of([1, 2, 1], paths, items, goals=("remote_bytes", "slowest_read"))
    assert value_of(fewest, best_pool_exhaustively(fewest)) == (1, 1)


def legal_values(problem: PoolProblem) -> Iterator[tuple[Fraction, ...]]:
    """Values of all legal plans, without any pruning."""
    choices = []
    for i, item in enumerate(problem.items):
        ways = problem.ways(i)
        splits = (
            counts
            for counts in itertools.product(range(item.num_chunks + 1), repeat=len(ways))
            if sum(counts) == item.num_chunks
        )
        choices.append(
            [{(i, way): n for way, n in zip(ways, counts, strict=True)} for counts in splits]
        )
    for chosen in itertools.product(*choices):
        chunks: dict[tuple[int, Way], int] = {}
        for part in chosen:
            chunks |= part
        judged = evaluate_pool(problem, problem.plan(chunks))
        if judged.is_feasible:
            yield judged.value(problem.goals)


def test_all_plans_are_tried() -> None:
    """Pruned search and plain enumeration agree, and nothing is better than the bound."""
    num_legal = num_checked = 0
    for seed in range(1000, 1220):
        problem = small_pool(seed)
        sizes = [
            (item.num_chunks + 1) ** len(problem.ways(i)) for i, item in enumerate(problem.items)
        ]
        if max(sizes) > 350 or sum(map(len, map(problem.ways, range(len(sizes))))) > 8:
            continue
        values = list(legal_values(problem))
        expected = min(values, default=None)
        assert value_of(problem, best_pool_exhaustively(problem)) == expected, seed
        num_checked += 1
        if expected is None:
            continue
        num_legal += 1
        assert why_nothing_fits(problem) is None, seed
        bound = pool_bound(problem)
        assert bound is not None
        for least, *found in zip(bound, *values, strict=True):
            assert least <= min(found), seed
    assert num_checked >= 45
    assert num_legal >= 20


def test_the_bound_reads_over_all_links_at_once() -> None:
    """Two chunks that are short: one over each link, 1/2 s; or both over the faster, 1/2 s.

    Three over 4 and 2 B/s: two and one, 1/2 s. Over one link all at the faster speed, 3/4 s.
    """
    assert pool_bound(OWN_LINKS) == (F(1, 2), 2)
    more = [task("a", 7, 0)]
    assert pool_bound(pool_of([4, 3, 3], [(0, 1, 2), (0, 2, 4)], more)) == (F(1, 2), 3)
    assert pool_bound(pool_of([4, 3, 3], [(0, 1, 2, 9), (0, 2, 4, 9)], more)) == (F(3, 4), 3)
    assert pool_bound(pool_of([4, 3], [(1, 0, 1)], more)) is None
    assert pool_bound(pool_of([9, 0], [], more)) == (0, 0)
    # at no time is more short than 2, however much is so altogether
    items = [task("a", 6, 0, held=(0, 1)), task("b", 5, 0, held=(1, 2))]
    timed = pool_of([4, 3], [(0, 1, 1)], items, horizon_s=2)
    assert pool_bound(timed) == (2, 2)


REASONS = [
    (pool_of([4, 3], [(0, 1, 1)], [task("a", 9, 0)]), "hold 7 B: 2 B are short"),
    (
        pool_of([4, 9], [(0, 1, 1)], [task("a", 5, 0, pinned=5)]),
        "what is pinned to n0 is 1 B more than it holds",
    ),
    (
        pool_of([4, (9, 1)], [(0, 1, 1)], [task("a", 7, 0)]),
        "the readers of 'a' reach too little memory that may be lent: 2 B are short",
    ),
    (
        pool_of([4, (9, 1)], [(0, 1, 1)], [task("a", 3, 0), task("b", 3, 0)]),
        "n0 needs 2 B more than it holds, and reaches 1 B that may be lent: 1 B are short",
    ),
    (
        pool_of([4, 9], [(0, 1, 2)], [task("a", 6, 0, rate="3/2")]),
        "n0 must read 2 B from elsewhere, 3 B/s, and its paths bring 2 B/s: a queue grows",
    ),
]


@pytest.mark.parametrize(("problem", "reason"), REASONS)
def test_why_nothing_fits(problem: PoolProblem, reason: str) -> None:
    found = why_nothing_fits(problem)
    assert found is not None
    assert found.endswith(reason)
    assert best_pool_exhaustively(problem) is None
    assert evaluate_pool(problem, first_pool(problem)).violations


JUST_FITS = [
    pool_of([4, 5], [(0, 1, 1)], [task("a", 9, 0)]),
    pool_of([4, 9], [(0, 1, 1)], [task("a", 5, 0, pinned=4)]),
    pool_of([4, (9, 3)], [(0, 1, 1)], [task("a", 7, 0)]),
    pool_of([4, (9, 2)], [(0, 1, 1)], [task("a", 3, 0), task("b", 3, 0)]),
    pool_of([4, 9], [(0, 1, 2)], [task("a", 6, 0, rate="1")]),
    # what is read seldom goes far: 2 of b at 1/2 a second are 1 B/s
    pool_of([4, 9], [(0, 1, 1)], [task("a", 3, 0, rate=5), task("b", 3, 0, rate="1/2")]),
]


@pytest.mark.parametrize("problem", JUST_FITS)
def test_what_just_fits_has_no_such_reason(problem: PoolProblem) -> None:
    assert why_nothing_fits(problem) is None
    assert best_pool_exhaustively(problem) is not None


def test_large_problems_are_declined() -> None:
    with pytest.raises(TooLargeError, match="more than 3 ways to deal"):
        best_pool_exhaustively(ONE_LINK, max_steps=3)
    many = pool_of([9] * 25, [], [task(f"t{i}", 1, i % 25) for i in range(401)])
    with pytest.raises(TooLargeError, match="more than 400 ways to reach items"):
        best_pool_exhaustively(many)
    ways = pool_of([9, 9], [(1, 0, 1)] * 4097, [task("a", 1, 0, 1)])
    with pytest.raises(TooLargeError, match="ways to reach an item"):
        ways.ways(0)
