"""How slow a path may get until its lender is not needed: by hand, and solved on both sides."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from instances.access import Access
from instances.io import load_instance
from optimizer.errors import TooLargeError
from optimizer.pooling.building import pool_problem
from optimizer.pooling.evaluation import evaluate_pool
from optimizer.pooling.generate import small_pool
from optimizer.pooling.problem import PoolProblem
from optimizer.pooling.search import best_pool_exhaustively
from optimizer.pooling.thresholds import LenderThreshold, lender_threshold
from small_pools import pool_of, task

F = Fraction


def access(bytes_per_s: object) -> Access:
    return Access.model_validate({"bandwidth_bytes_per_s": bytes_per_s})


def threshold(problem: PoolProblem, path: int) -> LenderThreshold:
    return lender_threshold(problem, access(str(problem.paths[path].bytes_per_s)), path)


def best_value(problem: PoolProblem, path: int, speed: Fraction | None) -> object:
    """Best value with a path at a speed; None takes the path away."""
    paths = list(problem.paths)
    if speed is None:
        del paths[path]
    else:
        paths[path] = replace(paths[path], bytes_per_s=speed)
    changed = replace(problem, paths=tuple(paths))
    plan = best_pool_exhaustively(changed)
    return None if plan is None else evaluate_pool(changed, plan).value(changed.goals)


def lenders(problem: PoolProblem, path: int, speed: object) -> set[int]:
    paths = list(problem.paths)
    paths[path] = replace(paths[path], bytes_per_s=F(str(speed)))
    plan = best_pool_exhaustively(replace(problem, paths=tuple(paths)))
    assert plan is not None
    return {h.node for h in plan.holdings if h.lease is not None}


def test_the_next_fastest_path_is_the_threshold_over_one_link() -> None:
    """n1 lends at 5 B/s, n2 at 2.5: at 3 B/s n1 is still faster, at 2 not any more."""
    problem = pool_of([4, 3, 3], [(0, 1, 5, 9), (0, 2, "2.5", 9)], [task("a", 6, 0)])
    found = threshold(problem, 0)
    assert (found.is_needed, found.keeps_bytes_per_s, found.loses_bytes_per_s) == (True, 3, 2)
    assert (found.limit_bytes_per_s, found.lenders_then) == (F(5, 2), (2,))
    assert found.max_round_trip_s is None
    assert lenders(problem, 0, 3) == {1}
    assert lenders(problem, 0, 2) == {2}


def test_a_whole_number_at_which_both_are_as_good_loses() -> None:
    problem = pool_of([4, 3, 3], [(0, 1, 5, 9), (0, 2, 2, 9)], [task("a", 6, 0)])
    found = threshold(problem, 0)
    assert (found.keeps_bytes_per_s, found.loses_bytes_per_s, found.limit_bytes_per_s) == (3, 2, 2)


def test_a_second_goal_keeps_a_lender_at_the_very_limit() -> None:
    """Chunks of 10 B of "a", read by n0 and n1; n0 pins and holds two, two are elsewhere.

    On n1 they are far from n0 alone, on n2 from both; all links are read at the same time. n2 gives
    n0 both in 20/20 = 1 s, and 6 chunks are far. n1 gives one at s B/s in 10/s: not above 1 s down
    to 10 B/s, where only the 5 far chunks are better; at 9 B/s it is slower.
    """
    paths = [(0, 1, 40), (0, 2, 20), (1, 0, 90), (1, 2, 90)]
    problem = pool_of([2, 2, 2], paths, [task("a", 4, 0, 1, pinned=2)])
    problem = replace(problem, chunk_bytes=10)
    assert best_value(problem, 0, F(40)) == (F(1, 2), 40)
    assert best_value(problem, 0, F(20)) == (F(1, 2), 50)  # one from each
    assert best_value(problem, 0, F(10)) == (1, 50)
    assert best_value(problem, 0, F("9.99")) == best_value(problem, 0, None) == (1, 60)
    found = threshold(problem, 0)
    assert (found.keeps_bytes_per_s, found.loses_bytes_per_s, found.limit_bytes_per_s) == (
        10,
        9,
        10,
    )
    assert found.lenders_then == (2,)


def test_a_path_that_nothing_replaces() -> None:
    """Without it nothing fits: needed at any speed, or as long as no queue grows."""
    problem = pool_of([4, 3], [(0, 1, 5)], [task("a", 6, 0)])
    assert threshold(problem, 0) == LenderThreshold(0, is_needed=True)
    problem = pool_of([4, 3], [(0, 1, 9)], [task("a", 6, 0, rate="7/4")])
    found = threshold(problem, 0)  # two bytes 7/4 times a second are 3.5 B/s
    assert (found.keeps_bytes_per_s, found.loses_bytes_per_s) == (4, 3)
    assert (found.limit_bytes_per_s, found.is_legal_then) == (F(7, 2), False)


def test_fewest_far_bytes_do_not_care_for_speed() -> None:
    """With remote_bytes first and alone, any path of one reader is as good as another."""
    items = [task("a", 6, 0)]
    paths = [(0, 1, 5, 9), (0, 2, 2, 9)]
    problem = pool_of([4, 3, 3], paths, items, goals=("remote_bytes",))
    found = threshold(problem, 0)
    assert (found.is_needed, found.lenders_then) == (False, (2,))
    both = pool_of([4, 3, 3], paths, items, goals=("remote_bytes", "slowest_read"))
    assert threshold(both, 0).keeps_bytes_per_s == 3


def test_a_window_keeps_its_round_trip() -> None:
    """1,469 reads of 256 B in 7.52 µs bring 50.008 GB/s; n2's bring as much in 9 µs as 41.78."""
    instance = load_instance("borrow-20gb")
    assert instance.pool is not None
    problem, path = pool_problem(instance), instance.pool.paths[0]
    assert path.label == "n0<-n1"
    found = lender_threshold(problem, path.access, 0)
    limit = F(1469 * 256 * 10**6, 9)
    assert (found.limit_bytes_per_s, found.max_round_trip_s) == (limit, F(9, 10**6))
    assert (found.keeps_bytes_per_s, found.loses_bytes_per_s) == (41_784_888_889, 41_784_888_888)
    assert found.loses_bytes_per_s < limit < found.keeps_bytes_per_s
    assert found.lenders_then == (2,)
    with pytest.raises(TooLargeError):
        lender_threshold(problem, path.access, 0, max_steps=10)


def test_both_sides_of_random_thresholds() -> None:
    """At the threshold the best plans need the path, a byte a second below they do not.

    In between, at speeds from there to the present one, they need it throughout.
    """
    num_found = num_limited = 0
    for seed in range(2000, 2075):
        problem = small_pool(seed)
        plan = best_pool_exhaustively(problem)
        if plan is None:
            continue
        used = {p for h in plan.holdings if h.lease is not None for _, p in h.lease.readers}
        for p in sorted(used):
            # a byte is a small part of these speeds, as it is in the world
            speed = problem.paths[p].bytes_per_s * 1000
            scaled = tuple(
                replace(path, bytes_per_s=path.bytes_per_s * 1000) for path in problem.paths
            )
            fast = replace(problem, paths=scaled, chunk_bytes=problem.chunk_bytes * 1000)
            found = lender_threshold(fast, access(str(speed)), p)
            num_found += 1
            without = best_value(fast, p, None)
            now = best_value(fast, p, speed)
            assert found.is_needed == (now != without), seed
            if found.keeps_bytes_per_s is None or found.loses_bytes_per_s is None:
                if found.is_needed:
                    assert best_value(fast, p, F(1)) != without, seed
                continue
            num_limited += 1
            keeps = found.keeps_bytes_per_s
            assert found.loses_bytes_per_s == keeps - 1
            assert best_value(fast, p, F(keeps - 1)) == without, seed
            for share in (F(0), F(1, 3), F(2, 3)):
                between = keeps + share * (speed - keeps)
                assert best_value(fast, p, between) != without, seed
    assert num_found > 25
    assert num_limited > 8
