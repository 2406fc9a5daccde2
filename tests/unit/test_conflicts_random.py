"""Conflicts and relaxations of random tiny instances against brute force.

Where cards are no constraint a pool has twice its servers here (or one for each session), not 64
times as many, so that brute force can look at every plan. It gives up on some instances; then what
it cannot tell is not checked.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations
from random import Random

import pytest

from instances.budget import LIMITED
from instances.instance import Instance
from optimizer.configurations import is_plain
from optimizer.conflicts import constraints as constraints_module
from optimizer.conflicts.axes import Axis, deadline_axes, on_time_axis
from optimizer.conflicts.changes import with_cohort, with_limit, with_memory
from optimizer.conflicts.constraints import Constraint, constraints_of, variants
from optimizer.conflicts.explain import explain_infeasible
from optimizer.conflicts.probing import Prober
from optimizer.conflicts.quantities import quantity_axes
from optimizer.conflicts.relaxations import Least, least_steps
from optimizer.conflicts.smallest import Conflict, ConflictSearch
from optimizer.errors import TooLargeError
from optimizer.exhaustive import solve_exhaustively
from optimizer.frontiers.deadline import time_step_s
from optimizer.generate import tiny_instance
from optimizer.options import SolveOptions
from optimizer.pricing import build_tables

SEEDS = range(150, 395)
#: Plans that brute force looks at, and subsets of constraints that are tried.
MAX_PLANS, MAX_SUBSETS = 1000, 5
OPTIONS = SolveOptions(threads=1, time_limit_s=600)


def worsened(seed: int) -> Instance:
    """Return a tiny instance with some deadlines shorter and sometimes less memory."""
    rng, instance = Random(seed), tiny_instance(seed)
    for i, cohort in enumerate(instance.workload.cohorts):
        if cohort.deadline_s is not None and rng.random() < 0.7:
            left = (cohort.deadline_s - cohort.release_s) * Fraction(rng.choice((1, 2, 3, 9)), 10)
            instance = with_cohort(instance, i, deadline_s=cohort.release_s + left)
    if rng.random() < 0.5:
        i = rng.randrange(len(instance.fleet.pools))
        memory = instance.fleet.pools[i].server.accelerator.memory_bytes
        instance = with_memory(instance, i, max(1, memory * rng.choice((1, 3, 9)) // 10))
    return instance


@cache
def infeasible() -> tuple[Instance, ...]:
    """Return the instances without a plan: every plain search, and some with any split."""
    drawn = (worsened(seed) for seed in SEEDS if is_plain(tiny_instance(seed)) or seed % 10 == 0)
    prober = Prober(OPTIONS)
    return tuple(instance for instance in drawn if prober.ask(instance).is_feasible is False)


@pytest.fixture(autouse=True)
def few_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints_module, "MORE_SERVERS", 2)


def has_plan(instance: Instance) -> bool | None:
    """Whether brute force finds a plan; None where there is too much to look at."""
    try:
        return solve_exhaustively(instance, max_plans=MAX_PLANS).plan is not None
    except TooLargeError:
        return None


def allows(instance: Instance, known: list[Constraint], kept: frozenset[int]) -> bool | None:
    answers = [has_plan(variant) for variant in variants(instance, known, kept)]
    return True if any(answers) else None if None in answers else False


def found(instance: Instance) -> Conflict:
    return ConflictSearch(Prober(OPTIONS), instance, constraints_of(instance)).find()


def test_enough_instances_are_looked_at() -> None:
    assert len(infeasible()) >= 60


def test_no_smaller_set_conflicts_and_none_of_it_can_be_spared() -> None:
    checked = 0
    for instance in infeasible():
        known, conflict = constraints_of(instance), found(instance)
        members = frozenset(conflict.members)
        assert conflict.is_smallest
        assert allows(instance, known, members) is not True, instance.name
        spared = [allows(instance, known, members - {i}) for i in members]
        assert False not in spared, instance.name
        smaller = [
            frozenset(subset)
            for size in range(1, len(members))
            for subset in combinations(range(len(known)), size)
            if not members > frozenset(subset)  # those are looked at above
        ]
        rng = Random(instance.name)
        for subset in rng.sample(smaller, min(len(smaller), MAX_SUBSETS)):
            answer = allows(instance, known, subset)
            assert answer is not False, (instance.name, subset)
            checked += answer is True
        checked += sum(answer is True for answer in spared)
    assert checked > 120


def axes(instance: Instance) -> list[Axis]:
    step_s = time_step_s(build_tables(instance))
    return [
        *deadline_axes(instance, step_s),
        *on_time_axis(instance),
        *quantity_axes(instance),
    ]


def test_the_least_change_does_and_no_less_does() -> None:
    exact = refused = 0
    for instance in infeasible():
        prober, rng = Prober(OPTIONS), Random(instance.name)
        for axis in axes(instance):
            least = least_steps(prober, axis)
            if not isinstance(least, Least):
                assert "not known" not in least, (instance.name, axis.label)
                assert has_plan(axis.furthest()) is not True, (instance.name, axis.label)
                continue
            assert has_plan(axis.at(least.steps)) is not False, (instance.name, axis.label)
            if axis.is_monotone:
                assert least.too_few == least.steps - 1, (instance.name, axis.label)
            if least.too_few:
                exact += 1
                for steps in {least.too_few, rng.randint(1, least.too_few)}:
                    answer = has_plan(axis.at(steps))
                    assert answer is not True, (instance.name, axis.label, steps)
                    refused += answer is False
    assert exact > 60
    assert refused > 100


@pytest.mark.parametrize("seed", range(3, 10))
def test_a_limit_is_raised_to_the_optimum_and_no_further(seed: int) -> None:
    """The least limit is the least value of its objective, which brute force knows."""
    field, name = list(LIMITED.items())[seed % len(LIMITED)]
    drawn = (tiny_instance(1000 * seed + n, objective={"minimise": [name]}) for n in range(100))
    able = ((x, solve_exhaustively(x, MAX_PLANS)) for x in drawn if is_plain(x))
    instance, best = next((x, solved) for x, solved in able if solved.values is not None)
    assert best.values is not None
    optimum = best.values[0]
    limit = optimum * 9 / 10
    limited = with_limit(instance, field, int(limit) if field == "num_cards" else limit)
    document = explain_infeasible(limited, OPTIONS)
    assert document.termination == "infeasible"
    assert document.is_smallest
    (raised,) = [item for item in document.relaxations if item.path.endswith(field)]
    assert raised.exact
    assert Fraction(raised.value_exact) == optimum
    assert raised.objective_value == float(optimum)
    for item in document.relaxations:
        assert item.plan
        assert item.proof
        assert item.change
