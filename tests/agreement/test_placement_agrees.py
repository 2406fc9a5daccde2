"""Brute force, CP-SAT, HiGHS and CBC agree on random tiny placements; so do both timings."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from fractions import Fraction

import pytest

from formulations import placement as statement
from formulations.integer_program import BACKENDS
from formulations.placement import solve_placement
from formulations.placement_data import alike_ranks
from optimizer.placement.bound import placement_bound
from optimizer.placement.evaluation import evaluate_placement
from optimizer.placement.exhaustive import best_placement_exhaustively
from optimizer.placement.problem import (
    ALGORITHMS,
    Algorithm,
    Group,
    Operation,
    Phase,
    PlacementAnswer,
    PlacementProblem,
    Wire,
)
from optimizer.placement.search import good_placement
from optimizer.placement.times import Clock, algorithm_s
from optimizer.protocols import Termination

NUM_SEEDS = 288
BLOCK = 24

#: Seeds of the tests that look at data alone.
MANY_SEEDS = 600


def random_groups(rng: random.Random, operation: Operation, num_ranks: int) -> tuple[Group, ...]:
    """Groups of ranks that lie next to each other, apart, or anyhow; pairs, chains and circles."""
    ranks = list(range(num_ranks))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    if operation == "send":
        ends = [*itertools.pairwise(ranks)]
        kind = rng.choice(("pairs", "chain", "circle"))
        if kind == "pairs":
            return tuple(ends[::2])
        return tuple([*ends, (ranks[-1], ranks[0])] if kind == "circle" else ends)
    size = rng.randint(2, num_ranks)
    count = rng.randint(1, num_ranks // size)
    if rng.random() < 0.5:
        return tuple(tuple(ranks[g * size : (g + 1) * size]) for g in range(count))
    return tuple(tuple(ranks[g : count * size : count]) for g in range(count))


def random_phase(rng: random.Random, number: int, num_ranks: int) -> Phase:
    operation = rng.choice(("all_reduce", "all_reduce", "reduce_scatter", "all_to_all", "send"))
    algorithms: tuple[Algorithm, ...] = ALGORITHMS[operation]
    if operation == "all_reduce" and rng.random() < 0.5:
        algorithms = (rng.choice(algorithms),)
    message = Fraction(rng.choice((1, 6, 12, 77, 1000)), rng.choice((1, 1, 5)))
    groups = random_groups(rng, operation, num_ranks)
    return Phase(f"phase {number}", operation, rng.choice((1, 2, 64)), message, groups, algorithms)


def tiny_problem(seed: int) -> PlacementProblem:
    """Return a problem with free cards for every rank, often no more, or with one too few."""
    rng = random.Random(seed)
    num_ranks, num_domains = rng.randint(2, 7), rng.randint(1, 4)

    def wire(slow: int) -> Wire:
        alpha_s = Fraction(rng.choice((0, 1, 1, 2, 5)) * slow, rng.choice((1, 3)))
        return Wire(alpha_s, Fraction(rng.choice((1, 2, 3, 7, 10)), slow))

    inside, between = wire(1), wire(rng.choice((1, 3, 7)))
    exit_ = Fraction(rng.choice((1, 2, 5, 9)), rng.choice((1, 4))) if rng.random() < 0.6 else None
    phases = tuple(random_phase(rng, k, num_ranks) for k in range(rng.randint(1, 3)))
    needed = num_ranks - (rng.random() < 0.1)
    room = [rng.randint(0, min(num_ranks, 5)) for _ in range(num_domains)]
    while sum(room) < needed:
        room[rng.randrange(num_domains)] += 1
    is_tight = rng.random() < 0.6 or needed < num_ranks
    while is_tight and sum(room) > needed:
        room[rng.choice([d for d in range(num_domains) if room[d]])] -= 1
    free = tuple(tuple(sorted(rng.sample(range(8), cards))) for cards in room)
    has_network = rng.random() < 0.9
    return PlacementProblem(
        num_ranks, free, phases, inside, between if has_network else None, exit_
    )


def check(seed: int) -> None:
    """All methods find placements of the same exact time, or all find none."""
    problem = tiny_problem(seed)
    expected = best_placement_exhaustively(problem)
    good = good_placement(problem)
    # CBC starts a process for every question, so it takes every third problem
    for backend in BACKENDS if seed % 3 == 0 else BACKENDS[:2]:
        incumbent = good if seed % 2 else None
        outcome = solve_placement(
            problem, backend, deadline=time.monotonic() + 30, incumbent=incumbent
        )
        where = f"seed {seed}, {backend}"
        if expected is None:
            assert outcome.termination is Termination.INFEASIBLE, where
            assert (outcome.answer, outcome.value, outcome.bound) == (None, None, None), where
            continue
        assert outcome.termination is Termination.OPTIMAL, where
        assert (outcome.value, outcome.bound) == (expected[0], expected[0]), where
        assert outcome.answer is not None
        judged = evaluate_placement(problem, outcome.answer)
        assert judged.violations == (), where
        assert judged.value_s == expected[0], where
    if expected is None:
        assert good is None
        return
    bound = placement_bound(problem)
    assert bound is not None
    assert bound <= expected[0]
    assert evaluate_placement(problem, expected[1]).value_s == expected[0]


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check(seed)


@pytest.mark.parametrize("max_ticks", [2, 12])
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_rounded_times_hide_no_better_placement(
    backend: str, max_ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ticks so coarse that rounding hides optima, closing finds every one of them."""
    monkeypatch.setattr(statement, "MAX_TICKS", dict.fromkeys(BACKENDS, max_ticks))
    close, seen = statement._close, Counter[str]()

    def counted(*arguments: object) -> object:
        best, bound_s = close(*arguments)  # type: ignore[arg-type]
        seen["closed"] += 1
        seen["improved"] += best is not arguments[3]
        return best, bound_s

    monkeypatch.setattr(statement, "_close", counted)
    for seed in range(1000, 1160):
        problem = tiny_problem(seed)
        expected = best_placement_exhaustively(problem)
        outcome = solve_placement(problem, backend, deadline=time.monotonic() + 30)
        if expected is None:
            assert outcome.termination is Termination.INFEASIBLE, seed
            continue
        assert outcome.termination is Termination.OPTIMAL, seed
        assert outcome.value == outcome.bound == expected[0], seed
    assert seen["closed"] >= 20
    assert seen["improved"] >= 1


def test_too_many_combinations_end_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for is not claimed: the bound stays below, the placement is kept."""
    monkeypatch.setattr(statement, "MAX_TICKS", dict.fromkeys(BACKENDS, 4))
    monkeypatch.setattr(statement, "MAX_COMBINATIONS", 0)
    ended = Counter[Termination]()
    for seed in range(1000, 1200):
        problem = tiny_problem(seed)
        expected = best_placement_exhaustively(problem)
        if expected is None:
            continue
        outcome = solve_placement(problem, "cp-sat", deadline=time.monotonic() + 30)
        assert outcome.value is not None
        assert outcome.bound is not None
        assert outcome.bound <= expected[0] <= outcome.value, seed
        ended[outcome.termination] += 1
    assert ended[Termination.FEASIBLE] >= 5
    assert ended[Termination.OPTIMAL] >= 5


def test_closed_forms_and_rounds_on_links_give_the_same_fractions() -> None:
    """Any placement, not only good ones: phase by phase, algorithm by algorithm."""
    compared = Counter[str]()
    for seed in range(MANY_SEEDS):
        problem, rng = tiny_problem(seed), random.Random(seed)
        cards = [(d, card) for d, free in enumerate(problem.free_cards) for card in free]
        if len(cards) < problem.num_ranks:
            continue
        rng.shuffle(cards)
        chosen = cards[: problem.num_ranks]
        domains = tuple(d for d, _ in chosen)
        algorithms = tuple(rng.choice(phase.algorithms) for phase in problem.phases)
        answer = PlacementAnswer(domains, algorithms, tuple(card for _, card in chosen))
        judged = evaluate_placement(problem, answer)
        closed = [
            algorithm_s(
                problem, phase, name, tuple(tuple(domains[r] for r in g) for g in phase.groups)
            )
            for phase, name in zip(problem.phases, algorithms, strict=True)
        ]
        assert judged.is_feasible is (None not in closed), seed
        if judged.is_feasible:
            assert [use.once_s for use in judged.phases] == closed, seed
            for use in judged.phases:
                compared[f"{use.phase.operation} {use.algorithm} {use.num_spanning > 0}"] += 1
    assert len(compared) == 10  # five operations with an algorithm, inside and across domains
    assert min(compared.values()) >= 15, compared


def test_exchanges_of_ranks_change_no_time() -> None:
    """Ranks that count as alike: the best time stays although the order of domains is asked for."""
    pairs = 0
    for seed in range(200):
        problem = tiny_problem(seed)
        clock = Clock(problem)
        for a, b in alike_ranks(problem):
            assert a < b
            pairs += 1
            # with room for all, an order of the two domains loses nothing
            apart = [r for r in range(problem.num_ranks) if r not in (a, b)]
            domains = dict.fromkeys(apart, 0) | {a: 0, b: 1}
            swapped = dict.fromkeys(apart, 0) | {a: 1, b: 0}
            times = [
                clock.step_s([m[r] for r in range(problem.num_ranks)]) for m in (domains, swapped)
            ]
            assert times[0] == times[1], (seed, a, b)
    assert pairs >= 100


def test_the_problems_cover_what_can_happen() -> None:
    """Both ends of every question: placements and none, limits and none, plain answers and not."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = tiny_problem(seed)
        expected = best_placement_exhaustively(problem)
        seen["placed" if expected else "not placed"] += 1
        if expected is None:
            continue
        domains = expected[1].domains
        phases = zip(problem.phases, expected[1].algorithms, strict=True)
        for phase, name in phases:
            spans = any(len({domains[r] for r in g}) > 1 for g in phase.groups)
            seen[f"{phase.operation} {name} {'spans' if spans else 'inside'}"] += 1
        seen["tight"] += problem.num_free_cards == problem.num_ranks
        seen["exit"] += problem.exit_bytes_per_s is not None
        seen["no network"] += problem.between is None
        seen["bound met"] += placement_bound(problem) == expected[0]
        seen["bound missed"] += placement_bound(problem) != expected[0]
    assert min(seen.values()) >= 5, seen
    assert seen["tight"] >= 100
    assert len([key for key in seen if " spans" in key or " inside" in key]) == 10
