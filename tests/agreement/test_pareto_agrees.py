"""Pareto sets against brute force: every point that is not dominated, and no other."""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances.errors import InputError
from instances.instance import Instance
from instances.io import load_instance, parse_instance
from optimizer import SolveOptions, pareto
from optimizer.errors import TooLargeError
from optimizer.exhaustive import _mixed, _optimised, _round_robin, _Totals, _uniform
from optimizer.exhaustive_queues import Queues
from optimizer.generate import tiny_instance

ONE = SolveOptions(threads=1)
PAIRS = [
    ("makespan", "occupied_card_seconds"),
    ("max_latency", "cards"),
    ("cost_per_on_time_session", "mean_completion"),
    ("energy", "makespan"),
    ("cards", "cost_per_on_time_session"),
]
Point = tuple[Fraction, Fraction]


def every_point(instance: Instance, names: tuple[str, str]) -> set[Point]:
    """Return the two objectives' values of every plan that keeps all rules."""
    queues = Queues(instance, 20_000)
    totals = _Totals(queues)
    measures = totals.measures(instance)
    deployments = _uniform if instance.search.deployment == "uniform" else _mixed
    dispatch = _round_robin if instance.search.dispatch == "round_robin" else _optimised
    need = instance.min_on_time_sessions
    if "cost_per_on_time_session" in names:
        need = max(1, need)
    found: set[Point] = set()
    for slots in deployments(queues):
        for outline in dispatch(queues, slots):
            queues.spend("plans")
            values = totals.of(outline)
            if values[3] >= need:
                a, b = (
                    Fraction(values[i] * factor, scale)
                    for i, factor, scale in (measures[name] for name in names)
                )
                found.add((a, b))
    return found


def not_dominated(points: set[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


@pytest.mark.parametrize("names", PAIRS)
def test_random_problems_have_the_points_that_brute_force_has(names: tuple[str, str]) -> None:
    checked = several = 0
    for seed in range(300):
        data = tiny_instance(seed).model_dump(mode="json")
        data["objective"] = {"minimise": [names[0]], "billing": data["objective"]["billing"]}
        try:
            instance = parse_instance(data)
            wanted = not_dominated(every_point(instance, names))
        except (InputError, TooLargeError):  # energy without power, or too many plans
            continue
        if not wanted or (len(wanted) < 2 and seed % 5):
            continue
        found = pareto(instance, *names, ONE)
        points = [(Fraction(p.first_exact), Fraction(p.second_exact)) for p in found.points]
        assert points == wanted, seed
        assert found.is_complete, seed
        checked += 1
        several += len(wanted) > 1
        if checked == 6:
            break
    assert checked == 6
    assert several >= 2


def test_latest_completion_against_cost_by_hand() -> None:
    """Four sessions of 128K on eight cards, each serving instance billed until its own end.

    With s(TP) = 119.11, 63.79, 41.18 ms a session costs 2 · 119.11 = 0.2382, 4 · 63.79 = 0.2551 and
    8 · 41.18 = 0.3294 card*s. Four on TP2 at once end at 119.11 ms for 0.9529 card*s: nothing is
    cheaper, and nothing is earlier (TP4 twice on two instances ends at 127.6 ms).
    """
    data = load_instance("four-sessions-128k").model_dump(mode="json")
    data["search"] |= {"deployment": "mixed", "dispatch": "optimised"}
    data["objective"] |= {"billing": "instance"}
    found = pareto(parse_instance(data), "makespan", "occupied_card_seconds", ONE)
    assert [round(p.first, 5) for p in found.points] == [0.11911]
    # two sessions: on TP4 each, 63.79 ms for 0.5103; on TP2 each, 119.11 ms for 0.4764 card*s
    data["workload"]["cohorts"][0]["num_sessions"] = 2
    found = pareto(parse_instance(data), "makespan", "occupied_card_seconds", ONE)
    shown = [(round(p.first, 5), round(p.second, 4)) for p in found.points]
    assert shown == [(0.06379, 0.5103), (0.11911, 0.4764)]
    assert found.is_complete
    assert [p.second for p in found.points] == found.to_dataframe()["second"].tolist()
