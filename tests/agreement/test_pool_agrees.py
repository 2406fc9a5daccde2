"""All plans tried = CP-SAT = HiGHS = CBC on random pools, and both sides of every rule."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from formulations import pooling as formulation
from formulations.integer_program import BACKENDS
from formulations.pooling import solve_pool
from optimizer.pooling.bounds import pool_bound, why_nothing_fits
from optimizer.pooling.evaluation import evaluate_pool
from optimizer.pooling.generate import small_pool
from optimizer.pooling.problem import Item, PoolPlan, PoolProblem
from optimizer.pooling.search import best_pool_exhaustively, first_pool
from optimizer.protocols import Termination
from small_pools import plan_of, pool_of, task

F = Fraction

NUM_SEEDS = 450
BLOCK = 75

Value = tuple[Fraction, ...]


def value_of(problem: PoolProblem, plan: PoolPlan) -> Value:
    judged = evaluate_pool(problem, plan)
    assert judged.violations == ()
    return judged.value(problem.goals)


def check_agreement(problem: PoolProblem, backends: tuple[str, ...], where: str) -> Value | None:
    """Brute force and solvers come to the same value, or to nothing."""
    best = best_pool_exhaustively(problem)
    expected = None if best is None else value_of(problem, best)
    for backend in backends:
        found = solve_pool(problem, backend, deadline=time.monotonic() + 60)
        if expected is None:
            assert (found.termination, found.plan) == (Termination.INFEASIBLE, None), where
            continue
        assert found.termination is Termination.OPTIMAL, (where, backend)
        assert found.value == found.bound == expected, (where, backend)
        assert found.plan is not None
        assert value_of(problem, found.plan) == expected, (where, backend)
    return expected


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_brute_force_and_solvers_agree(first: int) -> None:
    for seed in range(first, first + BLOCK):
        backends = BACKENDS if seed % 3 == 0 else BACKENDS[:2]
        check_agreement(small_pool(seed), backends, f"seed {seed}")


def with_fine_speeds(seed: int) -> PoolProblem:
    """A random pool whose paths have speeds without a common part to speak of."""
    problem, rng = small_pool(seed), random.Random(-seed)
    paths = tuple(
        replace(path, bytes_per_s=F(rng.randint(1000, 9999), rng.randint(900, 1100)))
        for path in problem.paths
    )
    return replace(problem, paths=paths)


@pytest.mark.parametrize("weight", [60, 2000, 250_000])
def test_rounded_seconds_prove_the_same(weight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However coarse the rows, finer ones and covers tell what they cannot."""
    num_legal = 0
    for seed in range(5000, 5100):
        problem = with_fine_speeds(seed)
        backend = BACKENDS[seed % 3]
        monkeypatch.setitem(formulation.MAX_WEIGHT, backend, weight)
        num_legal += check_agreement(problem, (backend,), f"seed {seed}") is not None
    assert num_legal > 40


def test_the_pools_cover_what_they_should() -> None:
    """Infeasible ones for many reasons, leases shared and timed, bounds met and missed."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = small_pool(seed)
        best, reason = best_pool_exhaustively(problem), why_nothing_fits(problem)
        if best is None:
            seen["no reason" if reason is None else reason.rsplit(":", 1)[-1][-12:]] += 1
            continue
        assert reason is None, seed
        value = value_of(problem, best)
        leases = [h.lease for h in best.holdings if h.lease is not None]
        seen["nothing lent"] += not leases
        seen["exclusive"] += any(lease.mode == "exclusive" for lease in leases)
        seen["shared"] += any(lease.mode == "shared" for lease in leases)
        seen["timed"] += any(lease.until_s is not None for lease in leases)
        seen["several lenders"] += len({h.node for h in best.holdings if h.lease}) > 1
        seen["bound is met" if pool_bound(problem) == value else "bound is missed"] += 1
        seen["queues bind"] += any(use.load == 1 for use in evaluate_pool(problem, best).links)
        first = evaluate_pool(problem, first_pool(problem))
        seen["first is legal"] += first.is_feasible
        seen["first is best"] += first.is_feasible and first.value(problem.goals) == value
    least = {
        "no reason": 10,
        " B are short": 100,
        " queue grows": 5,
        "queues bind": 3,
        "nothing lent": 30,
    }
    least |= {"exclusive": 60, "shared": 20, "timed": 30, "several lenders": 30}
    least |= {"bound is met": 80, "bound is missed": 30, "first is legal": 80, "first is best": 50}
    for what, num in least.items():
        assert seen[what] >= num, (what, dict(seen))


#: n0 needs 6 and holds 4; n1 holds 4, of which it needs 2.
NODES: list[int | tuple[int, int | None]] = [4, 4]
PATHS: list[tuple[int, int, object] | tuple[int, int, object, int]] = [(0, 1, 2)]
TASKS = [task("a", 6, 0), task("b", 2, 1)]
#: The only plan of them.
PLAN = [(0, 0, 4), (0, 1, 2, 0), (1, 1, 2)]


def pool(
    nodes: list[int | tuple[int, int | None]] = NODES,
    paths: list[tuple[int, int, object] | tuple[int, int, object, int]] = PATHS,
    items: list[Item] = TASKS,
    horizon_s: int | None = None,
) -> PoolProblem:
    return pool_of(nodes, paths, items, horizon_s=horizon_s)


EVER = (0, None)
TIMED = [task("a", 6, 0, held=(0, 5)), task("b", 4, 1, held=(5, 9))]
MEETING = [task("a", 6, 0, held=(0, 6)), task("b", 4, 1, held=(5, 9))]
TWO = [task("a", 4, 0, 1, pinned=4), task("b", 2, 1)]

#: What just keeps a rule, what just breaks it by the amount, and by which plan.
SIDES = [
    ("capacity", pool(), pool([4, 3]), PLAN, 1),
    ("capacity", pool(), pool([3, 4]), PLAN, 1),
    ("max_lent", pool([4, (4, 2)]), pool([4, (4, 1)]), PLAN, 1),
    (
        "pinned",
        pool(items=[task("a", 6, 0, pinned=4), TASKS[1]]),
        pool(items=[task("a", 6, 0, pinned=5), TASKS[1]]),
        PLAN,
        1,
    ),
    ("path", pool(paths=[(0, 1, 2)]), pool(paths=[(1, 0, 2)]), PLAN, 2),
    ("path", pool(paths=[(1, 0, 2)], items=TWO), pool(items=TWO), [(0, 0, 4, 0), (1, 1, 2)], 4),
    (
        "queue",
        pool(items=[task("a", 6, 0, rate=1), TASKS[1]]),
        pool(items=[task("a", 6, 0, rate="1.001"), TASKS[1]]),
        PLAN,
        F(1, 1000),
    ),
    (
        "capacity",
        pool(items=TIMED, horizon_s=9),
        pool(items=MEETING, horizon_s=9),
        [(0, 0, 4), (0, 1, 2, 0), (1, 1, 4)],
        2,
    ),
    ("placed", pool(), pool(items=[task("a", 7, 0), TASKS[1]]), PLAN, 1),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("rule", "keeps", "breaks", "holdings", "amount"), SIDES)
def test_both_sides_of_every_rule(
    rule: str,
    keeps: PoolProblem,
    breaks: PoolProblem,
    holdings: list[tuple[int, int, int]],
    amount: Fraction | int,
    backend: str,
) -> None:
    """The plan that just fits is found; where it just does not, it is rejected and not found."""
    assert evaluate_pool(keeps, plan_of(keeps, *holdings)).violations == ()
    assert check_agreement(keeps, (backend,), rule) is not None
    found = evaluate_pool(breaks, plan_of(breaks, *holdings)).violations
    assert [(v.rule, v.amount) for v in found if v.rule not in ("reader", "exclusive")] == [
        (rule, amount)
    ]
    assert check_agreement(breaks, (backend,), rule) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slower_path_moves_the_lease(backend: str) -> None:
    """n2 lends at 4 B/s, n1 at 3; below 3 n1 takes over, at 3 both are as good."""
    for speed, lender, seconds in (
        ("4", 2, F(1, 2)),
        ("3.01", 2, F(200, 301)),
        ("2.99", 1, F(2, 3)),
    ):
        paths: list[tuple[int, int, object, int]] = [(0, 1, 3, 0), (0, 2, speed, 0)]
        problem = pool_of([4, 2, 2], list(paths), [task("a", 6, 0)])
        found = solve_pool(problem, backend, deadline=time.monotonic() + 60)
        assert found.value == found.bound == (seconds, 2)
        assert found.plan == plan_of(problem, (0, 0, 4), (0, lender, 2, lender - 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_over_deadline_nothing_is_claimed(backend: str) -> None:
    found = solve_pool(pool(), backend, deadline=time.monotonic() - 1)
    assert (found.termination, found.plan) == (Termination.NO_SOLUTION_FOUND, None)
