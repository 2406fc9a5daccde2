"""Brute force, CP-SAT, HiGHS and CBC agree on random small tori, exactly, on both sides."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections import Counter

import pytest

from formulations.integer_program import BACKENDS
from formulations.slices import solve_slices
from optimizer.protocols import Termination
from optimizer.slices.evaluation import (
    best_slices_exhaustively,
    evaluate_slices,
    first_slices,
    improved_slices,
    slice_bound,
)
from optimizer.slices.problem import Chip, Place, Shape, SliceProblem, SliceRequest

NUM_SEEDS = 240
BLOCK = 24
SIZES = {
    1: [(2,), (6,), (9,), (11,)],
    2: [(1, 5), (2, 3), (3, 3), (3, 4), (4, 4), (3, 5)],
    3: [(2, 2, 2), (1, 3, 3), (2, 2, 3), (3, 2, 2), (2, 3, 3)],
}


def random_shapes(rng: random.Random, extents: tuple[int, ...]) -> tuple[Shape, ...]:
    """Some of the blocks of a number of chips; a few are longer than an axis, a few come twice."""
    num_chips = rng.choice((1, 2, 2, 3, 4, 4, 6))
    sides = itertools.product(range(1, num_chips + 1), repeat=len(extents))
    shapes = [shape for shape in sides if math.prod(shape) == num_chips]
    fitting = [x for x in shapes if all(s <= e for s, e in zip(x, extents, strict=True))]
    return tuple(
        rng.choices(fitting if fitting and rng.random() < 0.8 else shapes, k=rng.randint(1, 3))
    )


def small_torus(seed: int) -> SliceProblem:
    """Few distinct requests, so that many are interchangeable; from empty to nearly full."""
    rng = random.Random(seed)
    num_axes = rng.choice((1, 2, 2, 3))
    extents = rng.choice(SIZES[num_axes])
    share = rng.choice((0.0, 0.1, 0.2, 0.35, 0.7))
    chips = itertools.product(*map(range, extents))
    kinds = [random_shapes(rng, extents) for _ in range(rng.randint(1, 3))]
    requests = []
    for i in range(rng.randint(1, 5)):
        shapes = list(rng.choice(kinds))
        rng.shuffle(shapes)
        requests.append(SliceRequest(f"job {i}", tuple(shapes)))
    occupied = frozenset(chip for chip in chips if rng.random() < share)
    return SliceProblem(extents, occupied, tuple(requests))


def all_places(problem: SliceProblem, request: SliceRequest) -> list[Place | None]:
    """Every shape at every chip, whether it fits or not, and no place."""
    origins = list(itertools.product(*map(range, problem.extents)))
    return [None, *itertools.product(range(len(request.shapes)), origins)]


def check_agreement(problem: SliceProblem, backends: tuple[str, ...], where: str) -> int:
    """All methods place equally many chips and break no rule; return how many."""
    expected = best_slices_exhaustively(problem)
    value = evaluate_slices(problem, expected).value
    found = {"exhaustive": expected}
    for backend in backends:
        outcome = solve_slices(problem, backend, deadline=time.monotonic() + 60)
        assert outcome.termination is Termination.OPTIMAL, f"{where}, {backend}"
        assert (outcome.value, outcome.bound) == (value, value), f"{where}, {backend}"
        assert outcome.placement is not None
        found[backend] = outcome.placement
    for method, placement in found.items():
        evaluation = evaluate_slices(problem, placement)
        assert evaluation.violations == (), f"{where}, {method}"
        assert evaluation.value == value, f"{where}, {method}"
    for placement in (first_slices(problem), improved_slices(problem)):
        evaluation = evaluate_slices(problem, placement)
        assert evaluation.violations == (), where
        assert evaluation.value <= value, where
    assert slice_bound(problem) >= value, where
    return value


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check_agreement(small_torus(seed), BACKENDS, f"seed {seed}")


def test_brute_force_agrees_with_the_evaluator_on_every_answer_there_is() -> None:
    """Every combination of places, illegal ones as well, is evaluated; the best legal one wins."""
    num_checked = 0
    for seed in range(NUM_SEEDS):
        problem = small_torus(seed)
        choices = [all_places(problem, request) for request in problem.requests]
        if math.prod(map(len, choices)) > 1500:
            continue
        evaluations = (evaluate_slices(problem, p) for p in itertools.product(*choices))
        best = max(e.value for e in evaluations if e.is_feasible)
        assert evaluate_slices(problem, best_slices_exhaustively(problem)).value == best, seed
        num_checked += 1
    assert num_checked >= 80


def chips_of(problem: SliceProblem, place: Place, request: SliceRequest) -> set[Chip]:
    """The chips of a block, counted out one by one."""
    shape, origin = request.shapes[place[0]], place[1]
    offsets = itertools.product(*map(range, shape))
    return {
        tuple((o + d) % e for o, d, e in zip(origin, offset, problem.extents, strict=True))
        for offset in offsets
    }


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, 2 * BLOCK))
def test_a_block_that_just_fits_and_one_occupied_chip_more(first: int) -> None:
    """Free are the chips of one slice and no others. It fits; it does not with one chip less."""
    for seed in range(first, first + 2 * BLOCK):
        problem, rng = small_torus(seed), random.Random(-seed)
        placed = [
            (request, place)
            for request, place in zip(
                problem.requests, best_slices_exhaustively(problem), strict=True
            )
            if place is not None
        ]
        if not placed:
            continue
        request, place = rng.choice(placed)
        free = chips_of(problem, place, request)
        everything = frozenset(itertools.product(*map(range, problem.extents)))
        just = SliceProblem(problem.extents, everything - free, (request,))
        where = f"seed {seed}"
        backends = BACKENDS if seed % 4 == 0 else BACKENDS[:2]
        assert check_agreement(just, backends, where) == len(free), where
        assert evaluate_slices(just, (place,)).violations == (), where
        spoiled = rng.choice(sorted(free))
        less = dataclasses.replace(just, occupied=just.occupied | {spoiled})
        assert check_agreement(less, backends, where) == 0, where
        rules = [(v.rule, v.amount) for v in evaluate_slices(less, (place,)).violations]
        assert rules == [("occupied", 1)], where


def test_the_tori_cover_what_they_should() -> None:
    """Every number of axes; all, some and none placed; wraps; slices that are interchangeable."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = small_torus(seed)
        placement = best_slices_exhaustively(problem)
        num_placed = evaluate_slices(problem, placement).num_placed
        seen[f"{len(problem.extents)} axes"] += 1
        seen["all" if num_placed == len(placement) else "some" if num_placed else "none"] += 1
        value = evaluate_slices(problem, placement).value
        seen["bound is met" if slice_bound(problem) == value else "bound is loose"] += 1
        shapes = Counter(tuple(sorted(set(r.shapes))) for r in problem.requests)
        seen["interchangeable"] += max(shapes.values()) > 1
        first = evaluate_slices(problem, first_slices(problem)).value
        seen["first is not best"] += first < value
        for request, place in zip(problem.requests, placement, strict=True):
            if place is not None:
                ends = zip(place[1], request.shapes[place[0]], problem.extents, strict=True)
                seen["wraps"] += any(o + s > e for o, s, e in ends)
            too_long = [
                s > e
                for shape in request.shapes
                for s, e in zip(shape, problem.extents, strict=True)
            ]
            seen["too long"] += any(too_long)
    least = {"1 axes": 30, "2 axes": 60, "3 axes": 30, "all": 40, "some": 40, "none": 20}
    least |= {"wraps": 20, "interchangeable": 60, "too long": 40, "first is not best": 8}
    least |= {"bound is met": 100, "bound is loose": 5}
    for what, num in least.items():
        assert seen[what] >= num, (what, seen)
