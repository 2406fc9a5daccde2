"""Limits on objectives: how they are written, what the evaluator and the rules say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from formulations.staging import EngineResult, Limits, first_branches, solve_terms
from instances import InputError, Instance, load_instance, parse_instance
from instances.budget import LIMITED
from instances.quantity import MAX_VALUE
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.objectives import all_terms, budget_ceilings, objective_terms
from optimizer.options import SolveOptions
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Plan, ServingInstance, SessionId
from optimizer.pricing import build_tables
from optimizer.protocols import Ceiling, Measure, Outcome, Selection, Term, Termination
from optimizer.second_opinion import by_bound
from optimizer.solve import solve
from optimizer.verify import verify

Json = dict[str, Any]
NS = Fraction(1, 10**9)
NO_LIMITS = dict.fromkeys(LIMITED)


def problem(
    at_most: Json | None = None,
    *,
    minimise: object = "makespan",
    billing: str = "fleet",
    power_w: int | None = 2,
    sessions: int = 2,
    deadline: str | None = None,
    share: object = 0,
) -> Instance:
    """Return one server of two cards; a session takes 1600 ns on one (see `test_both_sides.py`).

    A server draws 2 W. Two sessions one after the other on one card end at 1600 and 3200 ns.
    """
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": 20, "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, **widths}
    card = {
        "name": "card",
        "memory_bytes": 10**12,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    fabric = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
    server = {"name": "s", "accelerator": card, "num_cards": 2, "fabric": fabric}
    pool = {"name": "p", "server": server | {"power_w": power_w}, "num_servers": 1}
    cohort = {"name": "a", "num_sessions": sessions, "context_tokens": 99, "new_tokens": 1}
    objective: Json = {"minimise": minimise, "billing": billing}
    return parse_instance(
        {
            "name": "budget",
            "model": {**model, "formats": formats},
            "fleet": {"pools": [pool]},
            "workload": {
                "cohorts": [cohort | {"deadline_s": deadline}],
                "min_on_time_fraction": share,
            },
            "runtime": {"workspace_bytes": 28},
            "objective": objective if at_most is None else objective | {"at_most": at_most},
            "search": {"collectives": ["ring"]},
        }
    )


QUEUED = Plan(
    (
        ServingInstance(
            "p", ParallelConfig(), "none", (CardId(0, 0),), (SessionId("a", 0), SessionId("a", 1))
        ),
    )
)


@pytest.mark.parametrize(
    ("name", "text", "objective", "value"),
    [
        ("makespan_s", "150ms", "makespan", Fraction(15, 100)),
        ("max_latency_s", "2min", "max_latency", 120),
        ("mean_completion_s", "1/3s", "mean_completion", Fraction(1, 3)),
        ("cost_per_on_time_session", "0.24card*s", "cost_per_on_time_session", Fraction(24, 100)),
        ("occupied_card_s", "7/9card*s", "occupied_card_seconds", Fraction(7, 9)),
        ("occupied_card_s", 0.1, "occupied_card_seconds", Fraction(1, 10)),
        ("energy_j", "1.3kJ", "energy", 1300),
        ("energy_j", "2kWh", "energy", 7_200_000),
        ("energy_j", "0.5", "energy", Fraction(1, 2)),
        ("num_cards", 3, "cards", 3),
        ("num_cards", 0, "cards", 0),
        ("makespan_s", 0, "makespan", 0),
        ("makespan_s", MAX_VALUE, "makespan", MAX_VALUE),
        ("num_cards", MAX_VALUE, "cards", MAX_VALUE),
    ],
)
def test_limits_are_read_exactly_and_written_back(
    name: str, text: object, objective: str, value: object
) -> None:
    instance = problem({name: text})
    assert dict(instance.objective.at_most.limits()) == {objective: value}
    again = parse_instance(instance.model_dump(mode="json"))
    assert again == instance
    assert again.sha256() == instance.sha256() != problem().sha256()
    (ceiling,) = budget_ceilings(instance)
    assert (ceiling.term, ceiling.most) == (all_terms(instance)[objective], value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("makespan_s", "-1s", "is negative"),
        ("makespan_s", "150mB", "unknown unit 'mB'"),
        ("makespan_s", "0.24card*s", "unknown unit 'card*s'"),
        ("energy_j", "1.3kW", "unknown unit 'kW' for joules"),
        ("occupied_card_s", "3s", "unknown unit 's' for card-seconds"),
        ("makespan_s", "1e31", "is too large"),
        ("makespan_s", True, "is a truth value"),
        ("energy_j", [], "is not a quantity"),
        ("num_cards", -1, "must be at least 0"),
        ("num_cards", "3", "must be a whole number"),
        ("num_cards", 1.5, "must be a whole number"),
        ("num_cards", True, "must be a whole number"),
        ("cards", 3, "no such field"),
        ("held_sessions", 3, "no such field"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_line(name: str, value: object, said: str) -> None:
    with pytest.raises(InputError) as caught:
        problem({name: value})
    assert str(caught.value).startswith(f"instance: objective.at_most.{name}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_limit_is_the_same_as_null() -> None:
    assert problem() == problem({}) == problem(NO_LIMITS)
    assert problem().sha256() == problem(NO_LIMITS).sha256()
    assert list(problem(NO_LIMITS).objective.at_most.limits()) == []


def test_every_objective_to_minimise_can_be_limited() -> None:
    assert set(LIMITED.values()) == set(OBJECTIVE_UNITS) - {"held_sessions"}
    limits = problem(dict.fromkeys(LIMITED, 1)).objective.at_most.limits()
    assert dict(limits) == dict.fromkeys(LIMITED.values(), Fraction(1))


def test_a_limit_on_energy_needs_known_power() -> None:
    problem(power_w=None)
    for at_most, minimise in (({"energy_j": "1kJ"}, "makespan"), ({}, "energy")):
        with pytest.raises(InputError, match=r"fleet\.pools\[0\]\.server\.power_w, which is null"):
            problem(at_most, minimise=minimise, power_w=None)
    problem({"energy_j": None}, power_w=None)
    problem({"energy_j": "1kJ"}, power_w=0)


def test_a_limited_cost_per_on_time_session_needs_one() -> None:
    assert problem({"occupied_card_s": 1}).min_on_time_sessions == 0
    assert problem({"cost_per_on_time_session": 1}).min_on_time_sessions == 1
    assert problem({"cost_per_on_time_session": 1}, share=1).min_on_time_sessions == 2


# QUEUED: ends 1600 and 3200 ns, mean 2400, one card. Billed by the instance 3200 card·ns, 1 W;
# by the fleet 2 · 3200 card·ns and 2 W. Both are on time without a deadline, one by 1600 ns.
@pytest.mark.parametrize(
    ("name", "billing", "value"),
    [
        ("makespan_s", "fleet", 3200 * NS),
        ("max_latency_s", "fleet", 3200 * NS),
        ("mean_completion_s", "fleet", 2400 * NS),
        ("occupied_card_s", "fleet", 6400 * NS),
        ("occupied_card_s", "instance", 3200 * NS),
        ("energy_j", "fleet", 6400 * NS),
        ("energy_j", "instance", 3200 * NS),
        ("cost_per_on_time_session", "fleet", 3200 * NS),
        ("cost_per_on_time_session", "instance", 1600 * NS),
        ("num_cards", "fleet", 1),
    ],
)
def test_the_evaluator_measures_by_how_much_a_limit_is_broken(
    name: str, billing: str, value: Fraction
) -> None:
    step = 1 if name == "num_cards" else Fraction(1, 10**40)
    kept = evaluate(problem({name: value}, billing=billing), QUEUED)
    assert kept.violations == ()
    judged = evaluate(problem({name: value - step}, billing=billing), QUEUED)
    (broken,) = judged.violations
    objective = LIMITED[name]
    assert (broken.rule, broken.where, broken.amount) == ("budget", objective, step)
    assert broken.unit == OBJECTIVE_UNITS[objective]
    assert objective in broken.message
    assert judged.objective(objective) == value
    assert not judged.is_feasible


def test_every_limit_broken_is_named() -> None:
    at_most = {"makespan_s": "3199ns", "num_cards": 0, "mean_completion_s": "2400ns"}
    broken = [(v.where, v.amount) for v in evaluate(problem(at_most), QUEUED).violations]
    assert broken == [("makespan", NS), ("cards", 1)]


def test_a_cost_of_nobody_on_time_is_too_few_on_time() -> None:
    late = problem({"cost_per_on_time_session": 1}, deadline="1ns")
    (broken,) = evaluate(late, QUEUED).violations
    assert (broken.rule, broken.amount) == ("on_time", 1)


def test_a_plan_of_nothing_breaks_no_limit_but_serves_nobody() -> None:
    zero = problem(dict.fromkeys(LIMITED, 0))
    assert [v.rule for v in evaluate(zero, Plan(())).violations] == ["session_missing", "on_time"]


@pytest.mark.parametrize(
    ("at_most", "said"),
    [
        ({"makespan_s": "1199ns"}, "makespan is at least 1.2e-06 s"),
        ({"num_cards": 0}, "cards is at least 1 cards"),
        ({"cost_per_on_time_session": "2399/1000000000"}, "cost_per_on_time_session is at least"),
        ({"cost_per_on_time_session": "2400/1000000000"}, None),
        ({"makespan_s": "1ms", "energy_j": 0}, "energy is at least"),
    ],
)
def test_a_limit_below_every_plan_is_settled_without_a_search(
    at_most: Json, said: str | None
) -> None:
    """Nothing ends before TP2 does, at 1200 ns, for 2 cards of the fleet; nothing has no card."""
    instance = problem(at_most, sessions=1)
    opinion = by_bound(build_tables(instance), objective_terms(instance), None)
    if said is None:
        assert opinion is None
        return
    assert opinion is not None
    assert (opinion.method, opinion.agrees) == ("bound", True)
    assert said in opinion.detail


@pytest.mark.parametrize("solver", ["auto", "cp-sat", "highs", "cbc"])
def test_a_solve_keeps_limits_and_proves_where_it_cannot(solver: str) -> None:
    """Two sessions on one card need 3200 ns, side by side 1600, which two cards allow."""
    options = SolveOptions(solver=solver, threads=1)
    kept = solve(problem({"num_cards": 1}, billing="instance"), options)
    assert (kept.termination, kept.objective.verified_exact) == ("optimal", "1/312500")
    free = solve(problem(billing="instance"), options)
    assert (free.termination, free.objective.verified_exact) == ("optimal", "1/625000")
    none = solve(problem({"num_cards": 1, "makespan_s": "3199ns"}), options)
    assert (none.termination, none.plan) == ("infeasible", None)
    assert none.certificate.second_opinion.agrees
    assert "budget" in none.reason


def test_a_stored_result_is_judged_by_the_limits_of_the_file() -> None:
    data = load_instance("four-sessions-128k").model_dump(mode="json")
    plan = solve(parse_instance(data), SolveOptions(threads=1)).model_dump(mode="json")
    data["objective"]["at_most"]["makespan_s"] = "119ms"  # all done at 119.1 ms
    report = verify(parse_instance(data), plan)
    assert not report.holds
    assert [violation.rule for violation in report.evaluation.violations] == ["budget"]


# Branches: a ceiling of 5 on cost / on time, two sessions: cost <= 5 with one on time or more, or
# cost <= 10 with both.
COST = Term("cost_per_on_time_session", Measure.CARD_SECONDS, Fraction(2), per_on_time=True)
END = Term("makespan", Measure.END, Fraction(1))
NOTHING = Term("energy", Measure.ENERGY, Fraction(0))


def test_ceilings_become_branches() -> None:
    assert first_branches([], 1, 2) == [Limits(min_on_time=1)]
    assert first_branches([Ceiling(END, Fraction(7))], 0, 2) == [Limits({Measure.END: Fraction(7)})]
    assert first_branches([Ceiling(NOTHING, Fraction(0))], 0, 2) == [Limits()]
    cost = {Measure.CARD_SECONDS: Fraction(5)}, {Measure.CARD_SECONDS: Fraction(10)}
    ceiling = Ceiling(COST, Fraction(10))  # 2 · cost / on time
    assert first_branches([ceiling], 0, 2) == [Limits(cost[0], 1), Limits(cost[1], 2)]
    assert first_branches([ceiling], 2, 2) == [Limits(cost[1], 2)]
    plain = Ceiling(Term("x", Measure.CARD_SECONDS, Fraction(2)), Fraction(12))
    both = first_branches([ceiling, plain], 0, 2)
    assert both == first_branches([plain, ceiling], 0, 2)
    assert both == [Limits(cost[0], 1), Limits({Measure.CARD_SECONDS: Fraction(6)}, 2)]


@dataclass
class CoarseEngine:
    """Gives fixed answers, whatever the limits: its arithmetic cannot tell them apart."""

    answers: Sequence[EngineResult]
    asked: list[Limits] = field(default_factory=list)

    def minimise(self, measure: Measure, limits: Limits) -> EngineResult:
        self.asked.append(limits)
        return self.answers[len(self.asked) - 1]


def answer(ended: Termination, value: int, bound: int | None) -> EngineResult:
    known = None if bound is None else Fraction(bound)
    return EngineResult(ended, Fraction(value), known, Selection(()), 1)


def within_seven(*answers: EngineResult, term: Term = END, most: int = 7) -> Outcome:
    limit = Ceiling(Term("limit", term.measure, Fraction(1)), Fraction(most))
    return solve_terms(CoarseEngine(answers), "coarse", [term], 0, 1, [limit])


@pytest.mark.parametrize("term", [END, COST])
def test_an_answer_above_its_own_limit_is_no_optimum(term: Term) -> None:
    """Its bound tells whether there is no plan, or whether that is open."""
    optimal = answer(Termination.OPTIMAL, 7, 7)
    assert within_seven(optimal, term=term).termination is Termination.OPTIMAL
    above = answer(Termination.OPTIMAL, 9, 8)
    assert within_seven(above, term=term).termination is Termination.INFEASIBLE
    for bound in (7, 6, None):
        with pytest.raises(TooLargeError, match="use highs"):
            within_seven(answer(Termination.OPTIMAL, 9, bound), term=term)
    unfinished = within_seven(answer(Termination.FEASIBLE, 9, 6), term=term)
    assert unfinished.termination is Termination.NO_SOLUTION_FOUND
    assert unfinished.selection is None
    assert unfinished.claims[0].value is None
