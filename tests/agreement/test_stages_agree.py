"""Brute force, dynamic programming, CP-SAT, HiGHS and CBC agree on random tiny cuts, exactly."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections import Counter
from fractions import Fraction

import pytest

from formulations.integer_program import BACKENDS
from formulations.stages import solve_stages
from optimizer.protocols import Termination
from optimizer.stages.evaluation import best_cut, best_cut_exhaustively, evaluate_stages
from optimizer.stages.problem import Stage, StageLayer, StageProblem

NUM_SEEDS = 264
BLOCK = 24
ROOMY = 10**9


def random_layers(rng: random.Random, num_layers: int, num_stages: int) -> tuple[StageLayer, ...]:
    """Few distinct numbers, so that ties are common; unlike stages in half of the problems."""
    is_unlike = rng.random() < 0.5

    def per_stage(low: int, high: int) -> tuple[int, ...]:
        one = rng.randint(low, high)
        return tuple(rng.randint(low, high) if is_unlike else one for _ in range(num_stages))

    has_kv, has_state = rng.random() < 0.85, rng.random() < 0.5
    scale = rng.choice((1, 2_876_750_000))
    return tuple(
        StageLayer(
            tuple(scale * w for w in per_stage(0, 5)),
            per_stage(0, 4) if has_kv else (0,) * num_stages,
            per_stage(0, 30) if has_state else (0,) * num_stages,
            tuple(Fraction(t, rng.choice((1, 3, 10**12))) for t in per_stage(0, 4)),
        )
        for _ in range(num_layers)
    )


def random_sources(rng: random.Random, num_layers: int) -> tuple[int | None, ...]:
    """Some layers read the KV of an earlier layer that reads nobody else's."""
    if rng.random() < 0.25:
        return ()
    sources: list[int | None] = []
    for number in range(num_layers):
        own = [i for i in range(number) if sources[i] is None]
        sources.append(rng.choice(own) if own and rng.random() < 0.35 else None)
    return tuple(sources)


def tiny_problem(seed: int) -> StageProblem:
    """Return a problem whose memory fits some cut exactly, misses it by a byte, or is ample."""
    rng = random.Random(seed)
    num_layers = rng.randint(1, 8)
    num_stages = rng.randint(1, min(4, num_layers + (rng.random() < 0.1)))
    stages = tuple(
        Stage(ROOMY, rng.choice((0, 0, 7)), Fraction(rng.choice((0, 0, 1)), rng.choice((1, 2))))
        for _ in range(num_stages)
    )
    problem = StageProblem(
        random_layers(rng, num_layers, num_stages),
        stages,
        rng.choice(("slowest", "tokens")),
        held_tokens=rng.choice((0, 1, 9, 40)),
        num_sessions=rng.choice((0, 1, 3)),
        kv_sources=random_sources(rng, num_layers),
        sharing=rng.choice(("same_stage", "copy", "remote")),
        remote_read_s=Fraction(rng.randint(0, 4), 2),
    )
    if num_stages > num_layers:
        return problem
    ends = [0, *sorted(rng.sample(range(1, num_layers), num_stages - 1)), num_layers]
    counts = [b - a for a, b in itertools.pairwise(ends)]
    needs = [use.total_bytes for use in evaluate_stages(problem, counts).stages]
    spare = [rng.choice((0, 0, 0, 5, 60, ROOMY)) for _ in needs]
    if rng.random() < 0.35:
        spare[rng.randrange(num_stages)] = -1
    sized = zip(stages, needs, spare, strict=True)
    return dataclasses.replace(
        problem,
        stages=tuple(
            dataclasses.replace(stage, capacity_bytes=max(need + more, 0))
            for stage, need, more in sized
        ),
    )


def check(seed: int) -> None:
    """All methods find cuts of the same exact value, or all find none."""
    problem = tiny_problem(seed)
    expected = best_cut_exhaustively(problem)
    found = {"dynamic": best_cut(problem)}
    # CBC starts a process for every question, so it takes every third problem
    backends = BACKENDS if seed % 3 == 0 else BACKENDS[:2]
    for backend in backends:
        outcome = solve_stages(problem, backend, deadline=time.monotonic() + 30)
        found[backend] = outcome.counts
        where = f"seed {seed}, {backend}"
        if expected is None:
            assert outcome.termination is Termination.INFEASIBLE, where
            assert (outcome.value, outcome.bound) == (None, None), where
            continue
        value = evaluate_stages(problem, expected).value
        assert outcome.termination is Termination.OPTIMAL, where
        assert (outcome.value, outcome.bound) == (value, value), where
    for method, counts in found.items():
        assert (counts is None) == (expected is None), f"seed {seed}, {method}"
        if counts is None or expected is None:
            continue
        evaluation = evaluate_stages(problem, counts)
        assert evaluation.violations == (), f"seed {seed}, {method}"
        assert evaluation.value == evaluate_stages(problem, expected).value, f"{seed}, {method}"


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check(seed)


def test_the_problems_cover_both_goals_every_sharing_and_both_ends() -> None:
    """Each of the six combinations has problems with a cut and problems without one."""
    seen: Counter[tuple[str, str, bool]] = Counter()
    reads = limits = unlimited = 0
    for seed in range(NUM_SEEDS):
        problem = tiny_problem(seed)
        counts = best_cut(problem)
        seen[problem.goal, problem.sharing, counts is not None] += 1
        if counts is None:
            continue
        evaluation = evaluate_stages(problem, counts)
        reads += any(use.outside_sources for use in evaluation.stages)
        limits += any(use.total_bytes == use.capacity_bytes for use in evaluation.stages)
        unlimited += evaluation.value is None
    assert len(seen) == 12
    assert min(seen.values()) >= 4
    assert min(reads, limits) >= 30
    assert unlimited >= 4
