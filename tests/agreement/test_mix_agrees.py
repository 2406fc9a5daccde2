"""Brute force, CP-SAT, HiGHS and CBC agree on random small mixes, exactly, on both sides."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections import Counter
from fractions import Fraction

import pytest

from formulations import mix as formulation
from formulations.integer_program import BACKENDS
from formulations.mix import build_model, solve_mix
from optimizer.errors import TooLargeError
from optimizer.mix.evaluation import evaluate_mix, mix_bound
from optimizer.mix.problem import Bucket, Mix, MixKind, MixProblem
from optimizer.mix.search import best_mix_exhaustively, first_mix, improved_mix
from optimizer.protocols import Termination

F = Fraction
NUM_SEEDS = 240
BLOCK = 24
RATES = [F(0), *map(F, ("0.5", "1", "1.5", "2", "3", "4", "5", "7.5", "10", "20"))]
PRICES = [F(p) for p in ("0", "0.5", "1", "1.01", "1.5", "2.2", "3.67", "4", "7")]


def small_mix(seed: int) -> MixProblem:
    """Few kinds and buckets; some kinds are limited, free or cannot serve a bucket."""
    rng = random.Random(seed)
    num_kinds, num_buckets = rng.randint(1, 3), rng.randint(1, 4)
    pieces = rng.choice((1, 1, 2, 3)) if num_kinds == 3 else rng.choice((1, 2, 3, 4))
    kinds = [
        MixKind(
            f"k{g}",
            rng.choice(PRICES[1:] if rng.random() < 0.9 else PRICES),
            rng.choice((None, None, None, 0, 1, 2, 4)),
            tuple(
                rng.choice(RATES if rng.random() < 0.6 else RATES[1:]) for _ in range(num_buckets)
            ),
        )
        for g in range(num_kinds)
    ]
    buckets = [Bucket(f"b{b}", F(rng.randint(0, 60), 10)) for b in range(num_buckets)]
    return MixProblem(tuple(kinds), tuple(buckets), pieces)


def price_of(problem: MixProblem, mix: Mix | None) -> Fraction | None:
    """The price of a legal mix."""
    if mix is None:
        return None
    judged = evaluate_mix(problem, mix)
    assert judged.violations == ()
    return judged.price_per_hour


def check_agreement(problem: MixProblem, backends: tuple[str, ...], where: str) -> Fraction | None:
    """All methods find the same price, or that nothing serves all; return it."""
    price = price_of(problem, best_mix_exhaustively(problem))
    for backend in backends:
        found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
        if price is None:
            assert (found.termination, found.mix) == (Termination.INFEASIBLE, None), where
            continue
        assert found.termination is Termination.OPTIMAL, f"{where}, {backend}"
        assert (found.value, found.bound) == (price, price), f"{where}, {backend}"
        assert price_of(problem, found.mix) == price, f"{where}, {backend}"
    for mix in (first_mix(problem), improved_mix(problem)):
        judged = None if mix is None else evaluate_mix(problem, mix)
        if judged is None or price is None:
            assert judged is None or not judged.is_feasible, where
        elif judged.is_feasible:
            assert judged.price_per_hour >= price, where
        else:
            assert {v.rule for v in judged.violations} == {"max_count"}, where
    bound = mix_bound(problem)
    if price is not None:
        assert bound is not None, where
        assert bound <= price, where
    return price


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check_agreement(small_mix(seed), BACKENDS, f"seed {seed}")


def test_brute_force_agrees_with_the_evaluator_on_every_answer_there_is() -> None:
    """Every count and number of pieces, illegal ones as well, is evaluated; the best legal wins."""
    num_checked = 0
    for seed in range(NUM_SEEDS):
        problem = small_mix(seed)
        pieces, num_kinds = problem.pieces_per_bucket, len(problem.kinds)
        rows = list(itertools.product(range(pieces + 1), repeat=num_kinds))
        if len(rows) ** len(problem.buckets) > 3000:
            continue
        prices = []
        for chosen in itertools.product(rows, repeat=len(problem.buckets)):
            loads = evaluate_mix(problem, Mix((0,) * num_kinds, chosen)).loads
            mix = Mix(tuple(math.ceil(load) for load in loads), chosen)
            judged = evaluate_mix(problem, mix)
            if judged.is_feasible:
                prices.append(judged.price_per_hour)
        expected = min(prices, default=None)
        assert price_of(problem, best_mix_exhaustively(problem)) == expected, seed
        num_checked += 1
    assert num_checked >= 80


def test_rounded_loads_prove_nothing_that_is_not_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may weigh so little that most loads are rounded, by halves of a card at times."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem, backend = small_mix(seed), BACKENDS[seed % 3]
        expected = price_of(problem, best_mix_exhaustively(problem))
        monkeypatch.setitem(formulation.MAX_WEIGHT, backend, random.Random(seed).choice((40, 90)))
        try:
            if build_model(problem, formulation.MAX_WEIGHT[backend]).is_exact:
                continue
            found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
        except TooLargeError:
            seen["declined"] += 1
            continue
        where = f"seed {seed}"
        seen[found.termination.value] += 1
        if found.bound is not None and expected is not None:
            assert found.bound <= expected, where
        if found.mix is not None:
            assert price_of(problem, found.mix) == found.value, where
            assert expected is not None, where
            assert found.value is not None, where
            assert found.value >= expected, where
        if found.termination is Termination.OPTIMAL:
            assert found.value == found.bound == expected, where
        elif found.termination is Termination.INFEASIBLE:
            assert expected is None, where
    least = {"optimal": 30, "feasible": 3, "infeasible": 5, "no_solution_found": 1}
    for what, num in least.items():
        assert seen[what] >= num, (what, seen)


def alone(problem: MixProblem, kind: int) -> MixProblem:
    """The problem with one kind only, of which there are as many as are wanted."""
    only = dataclasses.replace(problem.kinds[kind], max_count=None)
    return dataclasses.replace(problem, kinds=(only,))


def scaled(problem: MixProblem, factor: Fraction) -> MixProblem:
    """All requests times a factor."""
    buckets = [Bucket(b.name, b.requests_per_s * factor) for b in problem.buckets]
    return dataclasses.replace(problem, buckets=tuple(buckets))


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, 2 * BLOCK))
def test_a_load_that_just_fits_and_a_hair_more(first: int) -> None:
    """One kind takes all requests, scaled so that n cards are exactly busy; 1 in 1,000 more needs
    one more card. The evaluator measures it, and a limit of n makes it infeasible.
    """
    for seed in range(first, first + 2 * BLOCK):
        problem, rng = small_mix(seed), random.Random(-seed)
        one = alone(problem, rng.randrange(len(problem.kinds)))
        if any(not one.can_serve(b, 0) for b in range(len(one.buckets))):
            continue
        row = ((one.pieces_per_bucket,),) * len(one.buckets)
        (load,) = evaluate_mix(one, Mix((0,), row)).loads
        if not load:
            continue
        where, price = f"seed {seed}", one.kinds[0].price_per_hour
        backends = BACKENDS if seed % 4 == 0 else BACKENDS[:2]
        num = math.ceil(load)
        just = scaled(one, num / load)
        more = scaled(one, num / load * F(1001, 1000))
        assert check_agreement(just, backends, where) == num * price, where
        assert check_agreement(more, backends, where) == (num + 1) * price, where
        assert evaluate_mix(just, Mix((num,), row)).violations == (), where
        (broken,) = evaluate_mix(more, Mix((num,), row)).violations
        assert (broken.rule, broken.amount) == ("short", 1), where
        kinds = (dataclasses.replace(one.kinds[0], max_count=num),)
        assert check_agreement(dataclasses.replace(just, kinds=kinds), backends, where) is not None
        assert check_agreement(dataclasses.replace(more, kinds=kinds), backends, where) is None


def test_the_mixes_cover_what_they_should() -> None:
    """Infeasible ones, mixes of several kinds, divided buckets, limits that bind, loose bounds."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = small_mix(seed)
        best = best_mix_exhaustively(problem)
        price = price_of(problem, best)
        if best is None:
            is_served = mix_bound(problem) is not None
            seen["max_count is too small" if is_served else "not served"] += 1
            continue
        seen["several kinds"] += sum(map(bool, best.counts)) > 1
        seen["divided"] += any(sum(map(bool, row)) > 1 for row in best.pieces)
        seen["bound is met" if mix_bound(problem) == price else "bound is loose"] += 1
        free = tuple(dataclasses.replace(kind, max_count=None) for kind in problem.kinds)
        unlimited = dataclasses.replace(problem, kinds=free)
        seen["limit binds"] += price_of(unlimited, best_mix_exhaustively(unlimited)) != price
        first, improved = first_mix(problem), improved_mix(problem)
        assert first is not None
        assert improved is not None
        judged = evaluate_mix(problem, first)
        seen["first is not best"] += not judged.is_feasible or judged.price_per_hour != price
        judged = evaluate_mix(problem, improved)
        seen["improved is best"] += judged.is_feasible and judged.price_per_hour == price
    least = {"not served": 15, "max_count is too small": 20, "several kinds": 30, "divided": 10}
    least |= {"bound is met": 30, "bound is loose": 20, "limit binds": 10}
    least |= {"first is not best": 30, "improved is best": 60}
    for what, num in least.items():
        assert seen[what] >= num, (what, seen)
