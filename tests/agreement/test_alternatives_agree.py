"""Plans within a margin: every deployment and no other, against brute force over deployments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from instances.instance import Instance
from instances.io import load_instance, parse_instance
from optimizer import SolveOptions, alternatives
from optimizer.errors import TooLargeError
from optimizer.exhaustive import _mixed, _optimised, _round_robin, _Totals, _uniform
from optimizer.exhaustive_queues import Queues
from optimizer.generate import tiny_instance
from optimizer.near_optimal.search import deployment_of
from optimizer.plan_document import read_plan
from optimizer.pricing import build_tables
from optimizer.variants.solver import VariantSolver

ONE = SolveOptions(threads=1)
#: Names an outline's serving instances by their footprints.
Deployment = tuple[tuple[Any, int], ...]


def every_deployment(instance: Instance) -> dict[Deployment, Fraction]:
    """Return the least first objective of every deployment that keeps all rules."""
    queues = Queues(instance, 20_000)
    totals = _Totals(queues)
    name = instance.objective.names[0]
    index, factor, scale = totals.measures(instance)[name]
    deployments = _uniform if instance.search.deployment == "uniform" else _mixed
    dispatch = _round_robin if instance.search.dispatch == "round_robin" else _optimised
    least: dict[Deployment, Fraction] = {}
    for slots in deployments(queues):
        for outline in dispatch(queues, slots):
            queues.spend("plans")
            values = totals.of(outline)
            if values[3] < instance.min_on_time_sessions:
                continue
            shapes = Counter(queues.shapes[kind.shape] for kind, _ in outline[0])
            key = tuple(sorted(shapes.items(), key=repr))
            value = Fraction(values[index] * factor, scale)
            least[key] = min(value, least.get(key, value))
    return least


def listed(instance: Instance, within: Fraction) -> tuple[dict[Deployment, Fraction], bool]:
    document = alternatives(instance, within, ONE)
    found = {}
    for item in document.alternatives:
        plan = read_plan(item.plan.model_dump(mode="json"), "plan")
        shapes = Counter(serving.footprint for serving in plan)
        key = tuple(sorted(shapes.items(), key=repr))
        assert key not in found
        sign = -1 if instance.objective.maximise else 1
        found[key] = sign * Fraction(item.value_exact)
    assert list(found.values()) == sorted(found.values())
    return found, document.is_complete


def tiny(seed: int) -> Instance | None:
    """Return a small random problem of one plain objective; None where it is not small."""
    instance = tiny_instance(seed)
    if instance.workload.num_sessions > 5 or instance.fleet.num_cards > 10:
        return None
    return instance


@pytest.mark.parametrize("within", [Fraction(0), Fraction(1, 4)])
def test_random_problems_have_the_deployments_that_brute_force_has(within: Fraction) -> None:
    checked = several = 0
    for seed in range(400):
        instance = tiny(seed)
        if instance is None:
            continue
        try:
            known = every_deployment(instance)
        except TooLargeError:
            continue
        if not 2 <= len(known) <= 40:
            continue
        best = min(known.values())
        wanted = {k: v for k, v in known.items() if v <= best + abs(best) * within}
        found, is_complete = listed(instance, within)
        assert found == wanted, seed
        assert is_complete, seed
        checked += 1
        several += len(wanted) > 1
        if checked == 24:
            break
    assert checked == 24
    assert several >= 5


def test_the_worked_decision_by_hand() -> None:
    # 0.2382, 0.2551 (+ 7.1 %) and 0.4392 card*s (+ 84.4 %): section 6.7.3
    four = load_instance("four-sessions-128k")
    for within, wanted in (("5%", 1), ("7.1%", 1), ("7.2%", 2), ("84.3%", 2), ("84.4%", 3)):
        document = alternatives(four, within, ONE)
        assert len(document.alternatives) == wanted, within
        assert document.is_complete
    assert [a.inside_spread for a in document.alternatives] == [False] * 3
    assert document.to_dataframe()["sentence"].str.contains("TP2").tolist() == [True, False, False]


def test_dominated_candidates_are_listed() -> None:
    data = load_instance("one-session-50ms").model_dump(mode="json")
    data["search"]["collectives"] = ["ring", "tree"]
    data["search"]["deployment"] = "mixed"
    instance = parse_instance(data)
    shown = [a.sentence for a in alternatives(instance, "25%", ONE).alternatives]
    # one session on TP8: tree 34.5 ms, ring 41.2 ms, 19 % more; eight cards are paid either way
    assert shown == ["8 cards = 1 instance × TP8 (tree)", "8 cards = 1 instance × TP8 (ring)"]


def spread_instance(tp2_ms: str, tp4_ms: str, spread_ms: str) -> Instance:
    data = load_instance("four-sessions-128k").model_dump(mode="json")
    data["measurements"] = [
        {"tp": 2, "session_s": f"{tp2_ms}ms", "spread_s": f"{spread_ms}ms"},
        {"tp": 4, "session_s": f"{tp4_ms}ms", "spread_s": f"{spread_ms}ms"},
    ]
    return parse_instance(data)


def test_plans_inside_the_spread_are_kept_and_marked_whatever_the_margin() -> None:
    # 4 x TP2: 119 ms, up to 121 ms; 2 x TP4: 2 · 62.5 = 125 ms, from 2 · 60.5 = 121 ms: they touch
    document = alternatives(spread_instance("119", "62.5", "2"), "0%", ONE)
    first, second = document.alternatives
    assert (first.inside_spread, second.inside_spread) == (False, True)
    assert first.high == second.low == float(Fraction(8 * 121, 4 * 1000))
    assert document.is_complete


def test_plans_outside_the_spread_are_not() -> None:
    # as above, but 0.05 ms more: from 2 · 60.55 = 121.1 ms
    document = alternatives(spread_instance("119", "62.55", "2"), "0%", ONE)
    assert len(document.alternatives) == 1
    within = alternatives(spread_instance("119", "62.55", "2"), "10%", ONE)
    assert [a.inside_spread for a in within.alternatives] == [False, False]


def test_a_required_deployment_is_the_only_one() -> None:
    instance = load_instance("mixed-wins")
    solver = VariantSolver(ONE)
    best = solver.solve(instance)
    tables = solver.tables(instance)
    assert best.plan is not None
    for solver_name in ("highs", "cp-sat", "cbc"):
        asked = VariantSolver(replace(ONE, solver=solver_name))
        same = asked.solve(instance, tables=tables, required=deployment_of(tables, best.plan))
        assert same.values == best.values
        other = asked.solve(
            instance,
            tables=tables,
            required=deployment_of(tables, best.plan),
            excluded=(deployment_of(tables, best.plan),),
        )
        assert other.is_infeasible


def test_a_problem_without_a_plan_lists_nothing() -> None:
    document = alternatives(load_instance("infeasible-deadline"), "5%", ONE)
    assert (document.termination, document.alternatives) == ("infeasible", [])
    assert "30.00 ms to its deadline" in document.reason


def test_candidates_kept_for_alternatives_do_not_change_the_optimum() -> None:
    for seed in range(12):
        instance = tiny_instance(seed)
        every = build_tables(instance, keep_all=True)
        assert len(every.candidates) >= len(build_tables(instance).candidates)
        solver = VariantSolver(ONE)
        assert solver.solve(instance, tables=every).values == solver.solve(instance).values
