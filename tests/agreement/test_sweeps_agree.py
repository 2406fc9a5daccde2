"""Dense sweeps against the exact frontier and brute force, on random tiny instances."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from instances.instance import Instance
from optimizer import Frontier, SolveOptions, frontier, sweep
from optimizer.configurations import configurations
from optimizer.errors import TooLargeError
from optimizer.exhaustive import solve_exhaustively
from optimizer.frontiers.deadline import deadline_cohorts, with_deadline
from optimizer.generate import tiny_instance

ONE = SolveOptions(threads=1)
NUM_SEEDS, BLOCK, GRID = 180, 20, 24


def is_small(instance: Instance) -> bool:
    """Whether pricing and brute force take moments."""
    sizes = sum(len(list(configurations(instance, pool))) for pool in instance.fleet.pools)
    return sizes <= 6 and instance.workload.num_sessions <= 4


def grid_of(instance: Instance, exact: Frontier, seed: int) -> list[Fraction]:
    """Return deadlines across the range of the frontier, its breakpoints rounded up among them."""
    ends = [at for at in exact.breakpoints_s if at > 0]
    above = max(instance.workload.cohorts[i].release_s for i in deadline_cohorts(instance))
    reach = max([above, *ends]) * Fraction(5, 4) + Fraction(1, 10**6)
    rng, fine = Random(seed), 10**12
    found = {above + (reach - above) * Fraction(n, GRID) for n in range(1, GRID + 1)}
    found |= set(rng.sample(ends, min(3, len(ends))))
    rounded = {Fraction(-(-(at * fine).numerator // (at * fine).denominator), fine) for at in found}
    return sorted(at for at in rounded if at > above)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_every_row_of_a_dense_sweep_is_on_the_frontier(first: int) -> None:
    for seed in range(first, first + BLOCK):
        instance = tiny_instance(seed)
        if not is_small(instance):
            continue
        exact = frontier(instance, options=ONE)
        grid = grid_of(instance, exact, seed)
        found = sweep(instance, deadline=grid, options=ONE)
        assert [p.swept["deadline_s"] for p in found.points] == [float(at) for at in grid]
        for n, (point, at) in enumerate(zip(found.points, grid, strict=True)):
            piece = exact.piece_at(at)
            assert (point.value_exact, point.termination) == (piece.value_exact, piece.termination)
            if n % 6 == seed % 6:
                brute(instance, at, point.value_exact, seed)


def brute(instance: Instance, at: Fraction, value: str | None, seed: int) -> None:
    """Compare one row with brute force, where that is quick."""
    there = with_deadline(instance, deadline_cohorts(instance), at)
    try:
        oracle = solve_exhaustively(there, 2000)
    except TooLargeError:
        return
    least = None if oracle.values is None else oracle.values[0]
    sign = -1 if instance.objective.maximise else 1
    assert value == (None if least is None else str(sign * least)), (seed, at)


def test_there_are_at_least_a_hundred_instances() -> None:
    assert sum(is_small(tiny_instance(seed)) for seed in range(NUM_SEEDS)) >= 100
