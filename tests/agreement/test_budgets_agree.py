"""Limits on objectives: both sides of each by hand, and random ones against brute force, exactly.

By hand, one small model (FP8, one layer, hidden size 12; see `test_both_sides.py`): a step reads
1600 B at 1 B/ns, so a session takes 1600 ns on TP1 and 800 + 2 · 200 = 1200 ns on TP2. A server of
two cards draws 2 W, that is 1 W a card. Of one session, billed by the instance:

* TP1 ends at 1600 ns on 1 card: 1600 card·ns, 1600 nJ.
* TP2 ends at 1200 ns on 2 cards: 2400 card·ns, 2400 nJ.

Billed by the fleet, both cards are paid: TP1 takes 3200 and TP2 2400 card·ns (and nJ).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any, get_args

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from formulations.ticks import tick_scale
from instances import Instance, parse_instance
from instances.budget import LIMITED, Budget
from instances.objective import Objective, ObjectiveName
from optimizer.decode import plan_of
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively, solve_many
from optimizer.generate import tiny_instance
from optimizer.objectives import budget_ceilings, objective_terms
from optimizer.plan import Plan
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, Outcome, SolveRequest, Termination
from optimizer.tables import ProblemTables

Json = dict[str, Any]
BACKENDS: tuple[type[Formulation], ...] = (CpSatDeployment, HighsDeployment, CbcDeployment)
NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
FIELDS = {objective: field for field, objective in LIMITED.items()}
NS = Fraction(1, 10**9)
NUM_SEEDS, BLOCK = 80, 10
#: TP1 and TP2 alone, and two TP1 side by side, by their sessions.
ONE, TWO, BOTH = ["TP1: a"], ["TP2: a"], ["TP1: a", "TP1: a"]


def problem(at_most: Json, minimise: object, sessions: int = 1, **more: Any) -> Instance:
    """Return one server of two cards with limits on the plan."""
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": more.get("ffn", 20), "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, **widths}
    card = {
        "name": "card",
        "memory_bytes": 10**12,
        "memory_bandwidth_bytes_per_s": more.get("speed", "1GB/s"),
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    fabric = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
    server = {"name": "s", "accelerator": card, "num_cards": 2, "fabric": fabric}
    pool = {"name": "p", "server": server | {"power_w": more.get("power_w", 2)}, "num_servers": 1}
    cohort = {"name": "a", "num_sessions": sessions, "context_tokens": 99, "new_tokens": 1}
    times = {"release_s": more.get("release", 0), "deadline_s": more.get("deadline")}
    billing = more.get("billing", "instance")
    return parse_instance(
        {
            "name": "budget",
            "model": {**model, "formats": formats},
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": [cohort | times], "min_on_time_fraction": 0},
            "runtime": {"workspace_bytes": 28},
            "objective": {"minimise": minimise, "billing": billing, "at_most": at_most},
            "search": {"collectives": ["ring"]},
        }
    )


def outcome_of(backend: type[Formulation], instance: Instance, tables: ProblemTables) -> Outcome:
    """Solve with one backend, which knows limits from the ceilings of its request alone."""
    ceilings = budget_ceilings(instance)
    terms, until = objective_terms(instance), time.monotonic() + 30
    return backend().solve(SolveRequest(tables, terms, until, ceilings=ceilings))


def outcome_unless_declined(
    backend: type[Formulation], instance: Instance, tables: ProblemTables
) -> Outcome | None:
    """Solve with one backend; None where CP-SAT's ticks are too coarse for the limits."""
    try:
        return outcome_of(backend, instance, tables)
    except TooLargeError as error:
        if backend is not CpSatDeployment or "use highs" not in str(error):
            raise
        return None


def outline(plan: Plan) -> list[str]:
    """Return each serving instance as "TP2: aa": degree and sessions."""
    return sorted(
        f"TP{s.parallel.tp}: " + "".join(session.cohort for session in s.sessions) for s in plan
    )


def optimum(instance: Instance, wanted: list[str] | None) -> Plan | None:
    """Check that brute force and every backend find a plan, None: that there is none."""
    oracle, tables = solve_exhaustively(instance), build_tables(instance)
    plans = [] if oracle.plan is None else [oracle.plan]
    for backend in BACKENDS:
        found = outcome_of(backend, instance, tables)
        if wanted is None:
            assert found.termination is Termination.INFEASIBLE, backend
            continue
        assert found.termination is Termination.OPTIMAL, backend
        assert tuple(claim.value for claim in found.claims) == oracle.values, backend
        assert found.selection is not None
        plans.append(plan_of(tables, found.selection))
    for plan in plans:
        assert outline(plan) == wanted
        assert evaluate(instance, plan).violations == ()
    assert (oracle.plan is None) == (wanted is None)
    return oracle.plan


# (field, limit, plan at the limit, plan for one unit less): ns, card·ns, nJ, cards. The objective
# pulls the other way: towards fewer cards where time is limited, towards early ends elsewhere.
by_instance = pytest.mark.parametrize(
    ("field", "limit", "kept", "left"),
    [
        ("makespan_s", 1600, ONE, TWO),
        ("makespan_s", 1200, TWO, None),
        ("max_latency_s", 1600, ONE, TWO),
        ("max_latency_s", 1200, TWO, None),
        ("mean_completion_s", 1600, ONE, TWO),
        ("mean_completion_s", 1200, TWO, None),
        ("occupied_card_s", 2400, TWO, ONE),
        ("occupied_card_s", 1600, ONE, None),
        ("cost_per_on_time_session", 2400, TWO, ONE),
        ("cost_per_on_time_session", 1600, ONE, None),
        ("energy_j", 2400, TWO, ONE),
        ("energy_j", 1600, ONE, None),
        ("num_cards", 2, TWO, ONE),
        ("num_cards", 1, ONE, None),
    ],
)


def limited(field: str, limit: int, **more: Any) -> Instance:
    is_time = field in ("makespan_s", "max_latency_s", "mean_completion_s")
    most = limit if field == "num_cards" else limit * NS
    return problem({field: most}, "cards" if is_time else "makespan", **more)


@by_instance
def test_a_plan_may_take_all_of_its_limit(
    field: str, limit: int, kept: list[str], left: list[str] | None
) -> None:
    plan = optimum(limited(field, limit), kept)
    assert plan is not None
    tighter = limited(field, limit - 1)
    optimum(tighter, left)
    over = [(v.rule, v.where, v.amount) for v in evaluate(tighter, plan).violations]
    unit = 1 if field == "num_cards" else NS
    assert over == [("budget", LIMITED[field], unit)]


@pytest.mark.parametrize("field", ["occupied_card_s", "energy_j", "cost_per_on_time_session"])
def test_a_limit_on_what_the_whole_fleet_costs(field: str) -> None:
    """TP1 keeps both cards for 1600 ns: 3200; TP2 for 1200 ns: 2400."""
    for limit, wanted in ((3200, ONE), (3199, TWO), (2400, TWO), (2399, None)):
        optimum(problem({field: limit * NS}, "cards", billing="fleet"), wanted)


def test_latency_counts_from_the_release() -> None:
    """Released at 500 ns, TP2 ends at 1700 after 1200 ns."""
    late: Json = {"release": "500ns"}
    optimum(problem({"max_latency_s": "1200ns"}, "cards", **late), TWO)
    optimum(problem({"max_latency_s": "1199ns"}, "cards", **late), None)
    optimum(problem({"makespan_s": "1700ns"}, "cards", **late), TWO)
    optimum(problem({"makespan_s": "1699ns"}, "cards", **late), None)


@pytest.mark.parametrize("objective", ["cards", "mean_completion", "energy", "max_latency"])
def test_a_cost_per_on_time_session_counts_who_is_on_time(objective: str) -> None:
    """Two sessions due at 1600 ns. Two TP1 have both on time: 3200 / 2 = 1600 card·ns each.

    One TP1 has one on time of 1600 and 3200: 3200 / 1. TP2, at 1200 and 2400: 4800 / 1.
    """
    due: Json = {"sessions": 2, "deadline": "1600ns"}
    # one card is least, and as much energy as two: 3200 nJ
    kept = ["TP1: aa"] if objective == "cards" else BOTH
    names = list(dict.fromkeys([objective, "max_latency"]))
    for limit, wanted in ((3200, kept), (3199, BOTH), (1600, BOTH), (1599, None)):
        optimum(problem({"cost_per_on_time_session": limit * NS}, names, **due), wanted)


def test_a_limited_cost_asks_for_a_session_on_time() -> None:
    """Due at 1199 ns nobody is on time, and the share of 0 allows that; a cost does not."""
    late: Json = {"deadline": "1199ns"}
    optimum(problem({}, "cards", **late), ONE)
    optimum(problem({"cost_per_on_time_session": 10**6}, "cards", **late), None)
    optimum(problem({"cost_per_on_time_session": 10**6}, "cards", deadline="1200ns"), TWO)


def test_two_limits_at_once() -> None:
    """Each is kept by some plan: 1599 ns by TP2 alone, 2399 card·ns by TP1 alone, both by none."""
    for ends, costs, wanted in (
        (1600, 1600, ONE),
        (1599, 2400, TWO),
        (1600, 2399, ONE),
        (1599, 2399, None),
        (1200, 2400, TWO),
    ):
        at_most = {"makespan_s": ends * NS, "occupied_card_s": costs * NS}
        optimum(problem(at_most, "mean_completion"), wanted)
        optimum(problem(at_most | {"cost_per_on_time_session": costs * NS}, "energy"), wanted)


@pytest.mark.parametrize("field", list(LIMITED))
def test_nothing_is_less_than_zero_and_everything_less_than_the_largest_limit(field: str) -> None:
    for billing in ("instance", "fleet"):
        free = problem({}, ["cards", "makespan"], sessions=2, billing=billing)
        huge = problem({field: 10**30}, ["cards", "makespan"], sessions=2, billing=billing)
        assert optimum(huge, ["TP1: aa"]) == optimum(free, ["TP1: aa"])
        optimum(problem({field: 0}, "cards", billing=billing), None)


@pytest.mark.parametrize("billing", ["instance", "fleet"])
def test_no_energy_is_no_more_than_none(billing: str) -> None:
    optimum(problem({"energy_j": 0}, "cards", power_w=0, billing=billing), ONE)
    both = ["energy", "makespan"]
    optimum(problem({"energy_j": 0}, both, power_w=0, billing=billing), TWO)


# 36 B for each of 10^8 FFN columns and 480 B: a TP1 step reads 3,600,000,880 B at 3350 B/ns; the
# first session is released after 1/997 ms. No end is a whole number of ticks, so CP-SAT rounds.
AWKWARD: Json = {"ffn": 10**8, "speed": "3350GB/s", "release": "1/997ms", "sessions": 3}


def least_step(value: Fraction) -> Fraction:
    return Fraction(1, value.denominator)


@pytest.mark.parametrize("name", ["makespan", "max_latency"])
def test_limits_on_largest_times_are_exact_where_ticks_are_not(name: str) -> None:
    free = problem({}, name, **AWKWARD)
    assert not tick_scale(build_tables(free)).is_exact
    found = solve_exhaustively(free)
    assert found.values is not None
    assert found.plan is not None
    best = found.values[0]
    optimum(problem({FIELDS[name]: best}, name, **AWKWARD), outline(found.plan))
    optimum(problem({FIELDS[name]: best - least_step(best)}, name, **AWKWARD), None)


@pytest.mark.parametrize("limited_name", ["occupied_card_seconds", "mean_completion", "energy"])
@pytest.mark.parametrize("name", ["same", "makespan", "cost_per_on_time_session"])
def test_cpsat_gives_no_plan_above_a_limit_closer_than_its_ticks(
    name: str, limited_name: str
) -> None:
    """It declines, or proves that there is none; a MILP knows."""
    name = limited_name if name == "same" else name
    found = solve_exhaustively(problem({}, limited_name, **AWKWARD))
    assert found.values is not None
    best = found.values[0]
    below = problem({FIELDS[limited_name]: best - least_step(best)}, name, **AWKWARD)
    tables = build_tables(below)
    assert outcome_of(HighsDeployment, below, tables).termination is Termination.INFEASIBLE
    outcome = outcome_unless_declined(CpSatDeployment, below, tables)
    assert outcome is None or outcome.termination is Termination.INFEASIBLE


def with_objective(
    instance: Instance, names: tuple[str, ...], limits: Mapping[str, Fraction]
) -> Instance:
    """Return the instance with other objectives, and limits on some."""
    at_most = {FIELDS[n]: int(v) if n == "cards" else v for n, v in limits.items()}
    billing = instance.objective.billing
    objective = Objective(minimise=names, billing=billing, at_most=Budget(**at_most))
    return Instance.model_validate({**dict(instance), "objective": objective})


def limits_of(instance: Instance, first: str, second: str) -> list[Fraction]:
    """Return limits on the second objective that bind when the first is minimised.

    They are its optimum, one step less (no plan), what it is where the first is least, and one step
    less (another plan, if any).
    """
    orders = [(second,), tuple(dict.fromkeys((first, second)))]
    asked = [with_objective(instance, names, {}).objective for names in orders]
    least, most = (result.values for result in solve_many(instance, asked))
    if least is None or most is None:
        return []
    found = {least[0], most[-1]}
    below = {1 if second == "cards" else least_step(v): v for v in found if v}
    return sorted(found | {value - step for step, value in below.items()})


def check(
    backend: type[Formulation],
    instance: Instance,
    tables: ProblemTables,
    expected: tuple[Fraction, ...] | None,
) -> bool:
    """Compare one backend with brute force; False where CP-SAT declines."""
    where = f"{instance.name} {instance.objective} {backend.__name__}"
    found = outcome_unless_declined(backend, instance, tables)
    if found is None:
        assert not tick_scale(tables).is_exact, where
        return False
    if expected is None:
        assert found.termination is Termination.INFEASIBLE, where
        return True
    assert found.termination is Termination.OPTIMAL, where
    assert tuple(claim.value for claim in found.claims) == expected, where
    for claim, value in zip(found.claims, expected, strict=True):
        slack = abs(value) / 10**6 if backend is CpSatDeployment else 0
        assert claim.bound is not None, where
        assert value - slack <= claim.bound <= value, where
    assert found.selection is not None
    evaluation = evaluate(instance, plan_of(tables, found.selection))
    assert evaluation.violations == (), where
    return True


@pytest.mark.parametrize("first_seed", range(0, NUM_SEEDS, BLOCK))
def test_random_limits_agree_with_brute_force(first_seed: int) -> None:
    """Minimise one objective (or two) with another at most its optimum, or just less."""
    num_asked = num_declined = 0
    for seed in range(first_seed, first_seed + BLOCK):
        instance, rng = tiny_instance(seed), Random(seed)
        names = rng.sample(NAMES, 2)
        if rng.random() < 0.15:
            names = names[:1] * 2  # a limit on what is minimised
        further = (rng.choice(NAMES),) if rng.random() < 0.3 else ()
        tables = build_tables(instance)
        minimised = tuple(dict.fromkeys((names[0], *further)))
        problems = [
            with_objective(instance, minimised, {names[1]: limit})
            for limit in limits_of(instance, *names)
        ]
        results = solve_many(instance, [p.objective for p in problems])
        for number, (asked, result) in enumerate(zip(problems, results, strict=True)):
            own = replace(tables, instance=asked)
            for backend in BACKENDS if (seed + number) % 3 == 0 else BACKENDS[:2]:
                num_asked += 1
                num_declined += not check(backend, asked, own, result.values)
    assert num_declined * 6 <= num_asked, "CP-SAT declines more often than a coarse tick explains"
