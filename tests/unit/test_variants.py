"""A solver of many variants answers each as a fresh solve does: nothing leaks between them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from instances import InputError, Instance, parse_instance
from optimizer.evaluate import evaluate
from optimizer.generate import OBJECTIVES, tiny_instance
from optimizer.objectives import objective_terms
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import plan_document
from optimizer.pricing import build_tables
from optimizer.protocols import Ceiling, Termination
from optimizer.result import ResultDocument
from optimizer.solve import solve
from optimizer.variants.solver import Solved, VariantSolver

Json = dict[str, Any]
Change = Callable[[Random, Json], None]


def _cohort(rng: Random, data: Json) -> Json:
    cohort: Json = rng.choice(data["workload"]["cohorts"])
    return cohort


def _set(section: str, field: str, *values: Any) -> Change:
    def change(rng: Random, data: Json) -> None:
        data[section][field] = rng.choice(values)

    return change


def _set_cohort(field: str, *values: Any) -> Change:
    def change(rng: Random, data: Json) -> None:
        _cohort(rng, data)[field] = rng.choice(values)

    return change


def _set_pool(path: tuple[str, ...], *values: Any) -> Change:
    def change(rng: Random, data: Json) -> None:
        node = data["fleet"]["pools"][0]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = rng.choice(values)

    return change


def _limit(rng: Random, data: Json) -> None:
    field = rng.choice(("makespan_s", "occupied_card_s", "cost_per_on_time_session"))
    data["objective"]["at_most"][field] = rng.choice((None, "1/300", "1/20", 1))


def _minimise(rng: Random, data: Json) -> None:
    data["objective"]["minimise"] = rng.sample(OBJECTIVES, rng.choice((1, 1, 2)))


def _fail(rng: Random, data: Json) -> None:
    fault = {"server": 0, "card": 0, "at_s": "1ms", "stall_s": "3ms"}
    data["faults"] = rng.choice(([], [fault], [fault, fault | {"at_s": "9ms"}]))


def _reverse(rng: Random, data: Json) -> None:
    data["workload"]["cohorts"].reverse()


def _rename(rng: Random, data: Json) -> None:
    _cohort(rng, data)["name"] = f"renamed-{rng.randint(0, 99)}"


def _measure(rng: Random, data: Json) -> None:
    data["measurements"] = [] if rng.random() < 0.4 else [{"tp": 1, "session_s": "2ms"}]


#: Changes that priced tables survive, and changes that they do not (or need not) survive.
KEPT: dict[str, Change] = {
    "deadline": _set_cohort("deadline_s", None, "3ms", "8ms", "50ms"),
    "release": _set_cohort("release_s", 0, "1ms", "2ms"),
    "share": _set("workload", "min_on_time_fraction", 0, "50%", "100%"),
    "billing": _set("objective", "billing", "fleet", "instance"),
    "minimise": _minimise,
    "limit": _limit,
}
PRICED: dict[str, Change] = {
    "maximise": _set("objective", "maximise", None, "held_sessions"),
    "context": _set_cohort("context_tokens", 0, 5, 77),
    "prompt": _set_cohort("prompt_tokens", 0, 40),
    "tokens": _set_cohort("new_tokens", 1, 3, 7),
    "sessions": _set_cohort("num_sessions", 1, 2),
    "servers": _set_pool(("num_servers",), 1, 2),
    "power": _set_pool(("server", "power_w"), 700, 1001),
    "latency": _set_pool(("server", "fabric", "alpha_s"), 0, "822ns"),
    "degrees": _set("search", "tp", None, [1], [1, 2]),
    "dispatch": _set("search", "dispatch", "round_robin", "optimised"),
    "deployment": _set("search", "deployment", "uniform", "mixed"),
    "workspace": _set("runtime", "workspace_bytes", 0, 1000, 5000),
    "roofline": _set("runtime", "roofline", "step", "operator"),
    "routing": _set("workload", "routing", "balanced", "spread"),
    "faults": _fail,
    "order": _reverse,
    "name": _rename,
    "measurements": _measure,
}


def walk(seed: int, length: int) -> list[tuple[str, Instance]]:
    """Return variants of a random instance, each a change of the one before, or the first again."""
    rng, first = Random(seed), tiny_instance(seed)
    start = first.model_dump(mode="json")
    data, variants = copy.deepcopy(start), [("start", first)]
    while len(variants) < length:
        name = rng.choice((*KEPT, *PRICED, "back"))
        changed = copy.deepcopy(start if name == "back" else data)
        if name != "back":
            {**KEPT, **PRICED}[name](rng, changed)
        try:
            variants.append((name, parse_instance(changed)))
        except InputError:
            continue  # two changes that do not go together
        data = changed
    return variants


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_tables_are_those_of_a_fresh_pricing_after_any_changes(first: int) -> None:
    for seed in range(first, first + 10):
        solver = VariantSolver()
        for name, instance in walk(seed, 10):
            assert solver.tables(instance) == build_tables(instance), f"{seed} after {name}"


def exact_values(document: ResultDocument) -> list[str | None]:
    return [objective.verified_exact for objective in (document.objective, *document.then)]


def shown_values(solved: Solved) -> list[str | None]:
    names = solved.instance.objective.names
    if solved.values is None:
        return [None] * len(names)
    signs = [-1 if name == "held_sessions" else 1 for name in names]
    return [str(sign * value) for sign, value in zip(signs, solved.values, strict=True)]


@pytest.mark.parametrize("seed", [1, 4, 12, 16, 33, 40])
def test_variants_have_the_results_of_fresh_solves(seed: int) -> None:
    """Termination, exact values, plan and reason, with the plan before as a hint."""
    solver, hints = VariantSolver(), list[Plan]()
    variants = walk(seed, 7)
    Random(seed).shuffle(variants)
    for name, instance in variants:
        want = solve(instance, SolveOptions(threads=1))
        solved = solver.solve(instance, hints)
        assert solved.termination.value == want.termination, name
        assert shown_values(solved) == exact_values(want), name
        assert solved.reason == want.reason, name
        number = instance.fleet.num_cards
        plan = None if solved.plan is None else plan_document(solved.plan, number)
        assert plan == want.plan, name
        hints = hints if solved.plan is None else [solved.plan]
    assert solver.num_solves == len(variants)


SMALL = tiny_instance(12)


def variant(**changes: Any) -> Instance:
    """Return SMALL with other values at "section__field"."""
    data = SMALL.model_dump(mode="json")
    for path, value in changes.items():
        section, field = path.split("__")
        data[section][field] = value
    return parse_instance(data)


@pytest.mark.parametrize("name", [*KEPT, *(name for name in PRICED if name != "maximise")])
def test_prices_are_kept_where_a_change_does_not_touch_them(name: str) -> None:
    solver, start = VariantSolver(), SMALL.model_dump(mode="json")
    before, rng, data = solver.tables(SMALL), Random(1), copy.deepcopy(start)
    while data == start:
        (KEPT | PRICED)[name](rng, data)
    after = solver.tables(parse_instance(data))
    assert (after.candidates is before.candidates) == (name in KEPT)
    assert (after.kinds is before.kinds) == (name in KEPT)
    assert solver.tables(SMALL) == before


def test_what_is_maximised_decides_which_candidates_are_needed() -> None:
    """With one session more lanes are of no use, unless sessions that fit are counted."""
    data = tiny_instance(4).model_dump(mode="json")
    data["search"] |= {"batch": list(range(1, 70)), "tp": [1, 2]}  # enough to be thinned out
    data["fleet"]["pools"][0]["server"]["accelerator"]["memory_bytes"] = "1GB"
    solver, found = VariantSolver(), []
    for maximise in (None, "held_sessions", None):
        data["objective"] |= {"maximise": maximise, "minimise": ["makespan"]}
        instance = parse_instance(data)
        found.append(len(solver.tables(instance).candidates))
        assert solver.tables(instance) == build_tables(instance)
    assert found[0] == found[2] < found[1]


def test_a_bound_and_a_proof_stand_beside_every_proven_value() -> None:
    solved = VariantSolver().solve(variant(objective__minimise=["makespan", "cards"]))
    assert solved.termination is Termination.OPTIMAL
    assert solved.is_proven
    assert not solved.is_infeasible
    assert solved.bounds == solved.values
    assert solved.limit is None
    assert solved.proof.startswith("highs, ")
    assert solved.plan is not None
    assert solved.evaluation == evaluate(solved.instance, solved.plan)


def test_no_plan_is_proven_and_has_a_reason() -> None:
    data = SMALL.model_dump(mode="json")
    data["objective"]["at_most"]["num_cards"] = 0
    solved = VariantSolver().solve(parse_instance(data))
    assert solved.is_infeasible
    assert solved.is_proven
    assert (solved.plan, solved.evaluation, solved.values, solved.bounds) == (None, None, None, ())
    assert solved.reason
    assert solved.proof.endswith(", bound")


def test_a_hint_above_a_given_ceiling_is_no_better_plan() -> None:
    """The best plan has more than the least cards; asked for fewer, it does not count."""
    instance = variant(objective__minimise=["makespan"])
    solver = VariantSolver()
    best = solver.solve(instance)
    term = objective_terms(variant(objective__minimise=["cards"]))[0]
    least = solver.solve(variant(objective__minimise=["cards", "makespan"]))
    assert best.plan is not None
    assert least.values is not None
    assert least.values[0] < best.plan.num_cards
    limited = solver.solve(instance, [best.plan], ceilings=(Ceiling(term, least.values[0]),))
    assert limited.termination is Termination.OPTIMAL
    assert limited.values == least.values[1:]


def test_a_hint_that_given_tables_lack_is_no_better_plan() -> None:
    """Without the candidates of the best plan, the best of the rest is the answer."""
    instance = variant(objective__minimise=["makespan"])
    solver = VariantSolver()
    best = solver.solve(instance)
    assert best.plan is not None
    assert best.values is not None
    used = {serving.parallel.tp for serving in best.plan}
    fewer = build_tables(variant(objective__minimise=["makespan"], search__tp=[1]))
    assert used != {1}
    rest = solver.solve(instance, [best.plan], tables=fewer)
    assert rest.termination is Termination.OPTIMAL
    assert rest.values is not None
    assert rest.values > best.values


def test_a_hint_that_breaks_a_rule_of_the_variant_is_passed_over() -> None:
    wide, solver = variant(objective__minimise=["makespan"]), VariantSolver()
    best = solver.solve(wide)
    assert best.plan is not None
    narrow = variant(objective__minimise=["makespan"], search__tp=[1])
    solved = solver.solve(narrow, [best.plan])
    fresh = VariantSolver().solve(narrow)
    assert (solved.values, solved.plan) == (fresh.values, fresh.plan)


def test_a_stop_leaves_the_hint_as_the_best_known() -> None:
    instance, stop = variant(objective__minimise=["makespan"]), threading.Event()
    best = VariantSolver().solve(instance)
    assert best.plan is not None
    stop.set()
    solved = VariantSolver().solve(instance, [best.plan], stop=stop)
    assert solved.plan == best.plan
    if not solved.is_proven:
        assert solved.limit == "interrupted"
        assert solved.proof == ""


def test_no_time_is_no_proof() -> None:
    solver = VariantSolver(SolveOptions(threads=1, time_limit_s=0))
    solved = solver.solve(variant(objective__minimise=["makespan"]))
    assert not solved.is_proven
    assert solved.limit == "time"
    assert solved.proof == ""
    assert solved.reason


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="time_limit_s"):
        VariantSolver(SolveOptions(time_limit_s=-1))


def test_a_deadline_finer_than_a_file_may_say_changes_no_price() -> None:
    """A step below an end has more digits than a document takes; only validation would object."""
    cohort = SMALL.workload.cohorts[0].model_copy(update={"deadline_s": Fraction(1, 10**70) + 1})
    rest = SMALL.workload.cohorts[1:]
    workload = SMALL.workload.model_copy(update={"cohorts": (cohort, *rest)})
    fine = SMALL.model_copy(update={"workload": workload})
    solver = VariantSolver()
    before = solver.tables(SMALL)
    assert solver.tables(fine).candidates is before.candidates
    assert solver.solve(fine).is_proven
