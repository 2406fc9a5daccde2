"""The plan that needs no solver: by hand, and legal wherever the evaluator is asked."""

from __future__ import annotations

from instances.io import load_instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.first import first_capacity
from optimizer.capacity.generate import tiny_capacity


def test_a_building_is_filled_to_its_power() -> None:
    """floor(120 / 10.2) = 11 servers of four TP2 each: 44 sessions, as the optimum has."""
    instance = load_instance("building-120kw")
    problem = build_capacity(instance).problem
    plan = first_capacity(problem, lambda: True)
    assert plan is not None
    judged = evaluate_capacity(instance, problem, plan)
    assert judged.is_feasible
    assert judged.values["sessions"] == 44
    assert judged.values["servers"] == 11


def test_most_plans_on_random_fleets_are_legal() -> None:
    """Where nothing fails: it finds one for many, and few of them break a rule."""
    legal = broken = 0
    for seed in range(120):
        instance = tiny_capacity(seed)
        problem = build_capacity(instance).problem
        plan = None if problem.events else first_capacity(problem, lambda: False)
        if plan is not None:
            is_legal = evaluate_capacity(instance, problem, plan).is_feasible
            legal, broken = legal + is_legal, broken + (not is_legal)
    assert legal >= 12
    assert broken <= 3
