"""Placing experts: brute force, CP-SAT, HiGHS and CBC agree on random tiny problems, exactly."""

from __future__ import annotations

import time
from fractions import Fraction
from functools import cache
from random import Random

import pytest

from formulations.experts import solve_experts
from optimizer.experts.evaluation import (
    Placement,
    best_experts_exhaustively,
    contiguous_placement,
    evaluate_experts,
    expert_bound,
)
from optimizer.experts.greedy import greedy_placement
from optimizer.experts.problem import ExpertProblem
from optimizer.protocols import Termination

NUM_SEEDS = 240
BLOCK = 20
#: Most experts by (groups, most copies): the oracle looks at a few thousand placements.
MOST_EXPERTS = {
    (1, 1): 6, (1, 2): 6, (1, 3): 6,
    (2, 1): 8, (2, 2): 6, (2, 3): 6,
    (3, 1): 6, (3, 2): 4, (3, 3): 4,
    (4, 1): 5, (4, 2): 3, (4, 3): 3,
}  # fmt: skip


def tiny_problem(seed: int) -> ExpertProblem:
    """Return a problem on the edge: memory to the byte, zero counts, ties, reading = computing."""
    rng = Random(seed)
    num_groups, copies = rng.choice((1, 2, 2, 3, 3, 4)), rng.choice((1, 2, 2, 3))
    num_experts = rng.randint(1, MOST_EXPERTS[num_groups, copies])
    counts = [rng.choice((0, 1, 2, 3, 5, 7, 8, 12, 20, 33)) for _ in range(num_experts)]
    if rng.random() < 0.3:
        counts = [rng.choice((counts[0], count)) for count in counts]
    size = rng.choice((7, 10))
    needed = -(-num_experts // num_groups)
    slots = rng.choice((needed, needed, needed + 1, num_experts))
    capacities = [size * slots + rng.choice((0, 0, 0, -1, size - 1)) for _ in range(num_groups)]
    if rng.random() < 0.3:
        capacities[rng.randrange(num_groups)] = size * rng.randint(0, num_experts)
    budget = size * rng.choice((0, 1, 2, 3, num_experts)) - rng.choice((0, 0, 1))
    rates = (
        Fraction(rng.choice((0, 1, 3, 10, 25)), rng.choice((1, 3))),
        Fraction(rng.choice((0, 1, 1, 2)), rng.choice((1, 2, 7))),
        Fraction(rng.choice((0, 0, 1, 1, 3)), rng.choice((1, 3, 5))),
    )
    return ExpertProblem(
        counts=tuple(counts),
        expert_bytes=size,
        num_groups=num_groups,
        capacity_bytes=tuple(capacities),
        max_copies=copies,
        replica_budget_bytes=max(budget, 0),
        read_s=rates[0],
        compute_s=rates[1],
        transfer_s=rates[2],
        uneven=rng.random() < 0.5,
    )


@cache
def oracle(seed: int) -> tuple[Fraction, Placement] | None:
    return best_experts_exhaustively(tiny_problem(seed))


def backends(seed: int) -> tuple[str, ...]:
    return ("cp-sat", "highs", "cbc") if seed % 3 == 0 else ("cp-sat", "highs")


def check_backend(
    problem: ExpertProblem, backend: str, expected: Fraction | None, is_helped: bool
) -> None:
    """Solve with one backend, perhaps from the greedy placement, and evaluate its answer."""
    incumbent = greedy_placement(problem) if is_helped else None
    deadline = time.monotonic() + 30
    outcome = solve_experts(problem, backend, deadline=deadline, incumbent=incumbent)
    if expected is None:
        assert outcome.termination is Termination.INFEASIBLE, backend
        assert outcome.placement is None
        return
    assert outcome.termination is Termination.OPTIMAL, backend
    assert outcome.value == outcome.bound == expected, backend
    assert outcome.placement is not None
    evaluation = evaluate_experts(problem, outcome.placement)
    assert evaluation.violations == ()
    assert evaluation.value_s == expected


@pytest.mark.parametrize("block", range(0, NUM_SEEDS, BLOCK))
def test_all_backends_find_the_best_placement(block: int) -> None:
    for seed in range(block, block + BLOCK):
        problem = tiny_problem(seed)
        best = oracle(seed)
        expected = None if best is None else best[0]
        for backend in backends(seed):
            check_backend(problem, backend, expected, is_helped=seed % 2 == 1)


@pytest.mark.parametrize("block", range(0, NUM_SEEDS, BLOCK))
def test_greedy_is_legal_and_nothing_beats_the_bound(block: int) -> None:
    for seed in range(block, block + BLOCK):
        problem = tiny_problem(seed)
        best = oracle(seed)
        greedy = greedy_placement(problem)
        if best is None:
            assert greedy is None, seed
            continue
        assert expert_bound(problem) <= best[0], seed
        if greedy is not None:
            evaluation = evaluate_experts(problem, greedy)
            assert evaluation.violations == (), seed
            assert evaluation.value_s >= best[0], seed


def test_the_problems_sit_on_the_edges() -> None:
    """What the generator promises really occurs, and each rule changes some answer."""
    problems = [tiny_problem(seed) for seed in range(NUM_SEEDS)]
    bests = [oracle(seed) for seed in range(NUM_SEEDS)]
    evaluations = [
        evaluate_experts(problem, best[1])
        for problem, best in zip(problems, bests, strict=True)
        if best is not None
    ]
    solved = [p for p, best in zip(problems, bests, strict=True) if best is not None]
    assert sum(best is None for best in bests) > 20
    assert sum(not problem.uneven for problem in solved) > 40
    assert sum(0 in problem.counts for problem in solved) > 30
    assert sum(len(set(p.counts)) < len(p.counts) for p in solved) > 50
    assert sum(len(set(p.capacity_bytes)) > 1 for p in solved) > 30
    full = [
        any(used == most for used, most in zip(e.resident_bytes, p.capacity_bytes, strict=True))
        for p, e in zip(solved, evaluations, strict=True)
    ]
    assert sum(full) > 50
    placements = [best[1] for best in bests if best is not None]
    assert sum(any(len(groups) > 1 for groups in placement) for placement in placements) > 30
    default = [evaluate_experts(p, contiguous_placement(p)) for p in solved]
    better = [e.value_s < d.value_s for e, d in zip(evaluations, default, strict=True)]
    assert sum(better) > 30
