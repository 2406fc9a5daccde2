"""Sensitivity against brute force: random tiny instances, both sides of every threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from random import Random

import pytest

from instances.instance import Instance
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import _Best, _mixed, _optimised, _round_robin, _Totals, _uniform
from optimizer.exhaustive_queues import Queues
from optimizer.explain import candidate_reports
from optimizer.generate import tiny_instance
from optimizer.plan import Footprint
from optimizer.pricing import build_tables
from optimizer.sensitivities.axis import sense_of
from optimizer.sensitivities.document import InputSensitivity, InputThreshold
from optimizer.sensitivities.inputs import default_fields, instance_at
from optimizer.sensitivities.study import sensitivity
from optimizer.variants.fields import NumericField
from optimizer.variants.solver import VariantSolver

#: Instances that have a plan, and few enough plans that all are tried quickly.
# fmt: off
SEEDS = (
    9, 11, 14, 16, 17, 18, 26, 27, 31, 38, 40, 41, 43, 44, 45, 46, 50, 56, 58, 59, 61, 63, 67,
    70, 71, 72, 73, 76, 82, 83, 87, 89, 91, 92, 94, 96, 102, 109, 112, 113, 114, 120,
)
# fmt: on
#: Where the base deployment ties with the optimum by another dispatch of the sessions.
TIES = (
    (13, "workload.cohorts[1].release_s"),
    (21, "fleet.pools[0].server.accelerator.memory_bandwidth_bytes_per_s"),
)
MAX_PLANS = 4000
#: Inputs of each instance.
NUM_INPUTS = 2


def is_optimal(instance: Instance, deployment: Counter[Footprint]) -> bool:
    """Whether a deployment is optimal: all plans are tried, those of the deployment apart."""
    queues = Queues(instance, MAX_PLANS)
    totals = _Totals(queues)
    every, own = _Best(instance, totals), _Best(instance, totals)
    layouts = _uniform if instance.search.deployment == "uniform" else _mixed
    dispatch = _round_robin if instance.search.dispatch == "round_robin" else _optimised
    for slots in layouts(queues):
        is_own = Counter(queues.shapes[kind.shape] for kind, _ in slots) == deployment
        for outline in dispatch(queues, slots):
            queues.spend("plans")
            values = totals.of(outline)
            every.offer(outline, values)
            if is_own:
                own.offer(outline, values)
    best = every.result(0).values
    return best is not None and best == own.result(0).values


def sides(
    field: NumericField, item: InputSensitivity, end: InputThreshold, is_up: bool
) -> Iterator[tuple[Fraction, bool]]:
    """Yield values that must and that must not keep the plan, by a step of this test's own."""
    value, sign = Fraction(end.value_exact), 1 if is_up else -1
    if end.status == "unchanged":
        yield value, True
        return
    step = Fraction(1) if field.is_whole else abs(value) / 10**13 or Fraction(1, 10**20)
    if not end.exact:
        yield value, True
        yield value + sign * Fraction(end.width) * Fraction(1_000_001, 1_000_000), False
    else:
        yield value if end.is_attained else value - sign * step, True
        yield value + sign * step if end.is_attained else value, False


@pytest.mark.parametrize(("seed", "path"), [*((seed, None) for seed in SEEDS), *TIES])
def test_thresholds_are_where_brute_force_has_them(seed: int, path: str | None) -> None:
    instance, rng = tiny_instance(seed), Random(seed)
    document = instance.model_dump(mode="json")
    fields = default_fields(instance, document)
    if path is None:
        fields = rng.sample(fields, NUM_INPUTS)
    chosen = {field.name: field for field in fields if path in (None, field.name)}
    found = sensitivity(instance, chosen)
    plan = VariantSolver().solve(instance).plan
    assert plan is not None
    deployment = Counter(serving.footprint for serving in plan)
    for item in found.inputs:
        field = chosen[item.path]
        for end, is_up in ((item.down, False), (item.up, True)):
            if end is None:
                continue
            assert end.verified, (item.path, end)
            assert end.exact or instance.faults, (item.path, end)
            looked = list(sides(field, item, end, is_up))
            if end.is_first:  # proven: so also anywhere on the way
                base, part = Fraction(item.value_exact), Fraction(rng.randrange(1, 10), 10)
                middle = base + (looked[0][0] - base) * part
                looked.append((Fraction(round(middle)) if field.is_whole else middle, True))
            for value, is_kept in looked:
                exact = int(value) if field.is_whole else value
                variant = instance_at(document, field, exact, "test")
                assert variant is not None, (item.path, exact)
                try:
                    found_kept = is_optimal(variant, deployment)
                except TooLargeError:  # more sessions than the oracle takes
                    continue
                assert found_kept is is_kept, (item.path, exact, end)


def test_a_walk_along_deadlines_finds_what_lies_between_the_places_looked_at() -> None:
    # TP1 and TP2 take as much energy as two TP2. At a fifth of its deadline the third session is on
    # time with two TP2 alone, and the cost per session on time, the second objective, is less. With
    # a still shorter deadline it is late on either.
    instance, path = tiny_instance(210), "workload.cohorts[2].deadline_s"
    document = instance.model_dump(mode="json")
    (item,) = sensitivity(instance, [path]).inputs
    down = item.down
    assert down is not None
    assert (down.status, down.exact, down.is_first, down.verified) == ("changes",) + (True,) * 3
    field = next(f for f in default_fields(instance, document) if f.name == path)
    plan = VariantSolver().solve(instance).plan
    assert plan is not None
    deployment = Counter(serving.footprint for serving in plan)
    base = Fraction(item.value_exact)
    for part, is_kept in (("1/10", True), ("1/2", True), ("1/1000", True), ("1/5", False)):
        variant = instance_at(document, field, base * Fraction(part), "test")
        assert variant is not None
        assert is_optimal(variant, deployment) is is_kept
    for value, is_kept in sides(field, item, down, is_up=False):
        variant = instance_at(document, field, value, "test")
        assert variant is not None
        assert is_optimal(variant, deployment) is is_kept


@pytest.mark.parametrize("seed", range(14))
def test_what_never_helps_never_helps(seed: int) -> None:
    # the proofs rest on it: along an input with a sense no plan gains in the direction of it
    instance = tiny_instance(seed)
    document = instance.model_dump(mode="json")
    plans = [report.plan for report in candidate_reports(build_tables(instance))][:3]
    for field in default_fields(instance, document):
        sense, value = sense_of(instance, field.path), Fraction(field.value or 0)
        less, more = (value * part for part in (Fraction(9, 10), Fraction(4, 3)))
        if field.is_whole:
            less, more = Fraction(round(less)), Fraction(round(more) + 1)
        ends = [
            instance_at(document, field, int(v) if field.is_whole else v, "test")
            for v in ((less, more) if sense > 0 else (more, less))
        ]
        easy, hard = ends
        if not sense or easy is None or hard is None:
            continue
        for plan in plans:
            good, poor = evaluate(easy, plan), evaluate(hard, plan)
            assert good.is_feasible or not poor.is_feasible, field.name
            assert good.num_on_time >= poor.num_on_time, field.name
            if poor.is_feasible:
                for name in instance.objective.names:
                    before, after = good.objective(name), poor.objective(name)
                    assert before is not None
                    assert after is not None
                    assert before <= after, (field.name, name)


def test_the_sense_of_an_input_may_be_unknown() -> None:
    faulty = tiny_instance(0)
    assert sense_of(faulty, ("faults", 0, "stall_s")) == 1
    assert sense_of(faulty, ("faults", 0, "at_s")) == 0
    assert sense_of(faulty, ("fleet", "pools", 0, "num_servers")) == 0
    # pipelines of tiny instance 0 are cut anew by what fits
    assert sense_of(faulty, ("runtime", "workspace_bytes")) == 0
    assert sense_of(faulty, ("workload", "cohorts", 0, "deadline_s")) == -1
