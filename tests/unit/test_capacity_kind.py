"""The capacity decision: sentences, values, candidates that lost, proofs, lying solvers."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from capacity_halls import PURCHASE, Document, kind_of, purchase, purchase_plan
from instances.io import parse_instance
from optimizer import SolveOptions
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.second_opinion import SecondOpinion
from optimizer.side import capacity_kind
from optimizer.side import decisions as side_decisions
from optimizer.side.capacity_kind import CapacityKind, goal_text
from optimizer.side.decisions import solve_side
from optimizer.side.document import side_plan_sha256, verify_side
from optimizer.side.kinds import value_text
from optimizer.side.result import SideResultDocument

F = Fraction


def two_goals() -> Document:
    """Most sessions, then least power: 104 and 139.6 kW of the plan by hand."""
    return purchase(goals=["sessions", "power"])


def test_candidates_that_lost_are_counted_and_the_nearest_shown() -> None:
    kind = kind_of(PURCHASE)
    found = kind.not_used(purchase_plan(kind.problem))
    counts = {rule.rule: rule.number for rule in found.rules}
    assert found.possible == len(kind.problem.options) - 3
    assert sum(counts.values()) == len(kind.capacity.rejections)
    assert counts["memory"] == 1
    first = found.examples[0]
    assert (first.model, first.label, first.rule, first.unit) == ("qwen3-32b", "TP1", "memory", "B")
    assert first.amount == 22_031_468_544
    assert first.message.startswith("a card needs 102.03 GB of its 80.00 GB")
    assert found.examples[-1].rule == "no_measurement"
    assert kind.not_used(None).possible == len(kind.problem.options)


def test_a_plan_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = kind_of(PURCHASE)
    plan = purchase_plan(kind.problem)
    asked, evaluate = [], capacity_kind.evaluate_capacity

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[-1])
        return evaluate(*arguments)

    monkeypatch.setattr(capacity_kind, "evaluate_capacity", counted)
    assert list(kind.broken(plan)) == []
    kind.value(plan), kind.plan(plan), kind.account(plan), kind.not_used(plan)
    assert len(asked) == 1
    other = replace(plan, loads=())
    assert [v.rule for v in kind.broken(other)][:1] != []
    assert [plan is asked[0], other is asked[1], len(asked)] == [True, True, 2]


def test_a_quotient_over_no_session_is_no_answer() -> None:
    document = purchase(goals=["price_per_on_time_session"], period_s="1h")
    for cohort in document["workload"]["cohorts"]:
        cohort["min_on_time_fraction"] = 0
    kind = kind_of(document)
    nothing = CapacityPlan((), (), ())
    assert kind.value(nothing) == (None,)
    assert [v.rule for v in kind.broken(nothing)] == ["no_value"]
    plan = purchase_plan(kind.problem)
    assert list(kind.broken(plan)) == []
    assert kind.value(plan) == (F("1281.16") / 104,)
    assert kind.is_better(kind.value(plan), kind.value(nothing))
    assert not kind.is_better(kind.value(nothing), kind.value(plan))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("price_per_hour", F("1278.16"), "1,278.16 an hour"),
        ("price_per_on_time_session", F(1, 8), "0.125 a session on time"),
        ("price_per_million_tokens", F(7), "7.00 a million tokens"),
        ("servers", F(1), "1 server"),
        ("racks", F(5), "5 racks"),
        ("cards", F(88), "88 cards"),
        ("power", F(112200), "112.2 kW"),
        ("energy", F(3600) * 112200, "403.9 MJ"),
        ("sessions", F(1), "1 session on time"),
        ("worst_case_sessions", F(40), "40 sessions on time after any failure"),
        ("expected_sessions", F(75, 2), "37.5 sessions on time on average over failures"),
    ],
)
def test_goals_are_written_for_people(name: str, value: Fraction, text: str) -> None:
    assert goal_text(name, value) == text


def test_what_is_plain_to_see_says_why_nothing_fits() -> None:
    document = purchase()
    assert kind_of(document).nothing_fits == (
        "no servers that may be bought serve the 104 sessions that must be on time"
    )
    document["workload"]["cohorts"][0]["deadline_s"] = "1ms"
    assert kind_of(document).nothing_fits == "no candidate serves a session of 'long' on time"
    document["workload"]["cohorts"][0]["min_on_time_fraction"] = 0
    assert "the 64 sessions" in kind_of(document).nothing_fits
    document = purchase(failures=[{"kind": "rack"}])
    document["fleet"]["mode"] = "existing"
    document["fleet"]["pools"][0]["num_servers"] = 6
    document["fleet"]["racks"][0]["servers"] = [{"pool": "hgx", "num_servers": 1}]
    assert kind_of(document).nothing_fits == (
        "no servers that are there serve the 104 sessions that must be on time after every single "
        "failure"
    )


def claiming(
    monkeypatch: pytest.MonkeyPatch,
    document: Document,
    termination: Termination,
    bound: Any,
    opinion: SecondOpinion | None = None,
    value: Any = "verified",
) -> SideResultDocument:
    """What becomes of a solver's claims about the plan by hand."""
    kind = kind_of(document)

    def solver(problem: CapacityProblem, backend: str, **limits: Any) -> Any:
        plan = purchase_plan(problem)
        said = kind.value(plan) if value == "verified" else value
        return SimpleNamespace(termination=termination, plan=plan, value=said, bound=bound)

    monkeypatch.setattr(side_decisions, "load_solver", lambda decision: solver)
    monkeypatch.setattr(capacity_kind, "first_capacity", lambda problem, is_over: None)
    monkeypatch.setattr(CapacityKind, "opinion", lambda self, value: opinion)
    return solve_side(parse_instance(document), SolveOptions(solver="highs", threads=1))


AGREED = SecondOpinion("a test", True, "says so")


def test_an_optimum_is_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    result = claiming(
        monkeypatch,
        two_goals(),
        Termination.OPTIMAL,
        (F(104), None),
        AGREED,
    )
    assert (result.termination, result.limit, result.decision) == ("optimal", None, "capacity")
    first, second = result.objective, result.then[0]
    assert (first.direction, first.unit, first.bound_exact, first.gap) == (
        *("maximise", "sessions", "104", 0),
    )
    assert (second.direction, second.verified_exact, second.bound_exact, second.gap) == (
        *("minimise", "139600", "139600", 0),
    )
    stored = json.loads(result.to_json())
    judged = verify_side(parse_instance(two_goals()), stored)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["objective"] == {"sessions": "104", "power": "139600"}
    assert judged["evaluation"] == stored["evaluation"]
    assert stored["not_used"]["possible"] > 0
    assert result.plan is not None
    assert result.certificate.plan_sha256 == side_plan_sha256(result.plan)
    stored["then"][0]["bound_exact"] = None
    stored["plan"]["capacity"]["servers"][0]["count"] = 0
    stored["plan"]["capacity"]["instances"][0]["number"] = None
    lines = " ".join(verify_side(parse_instance(two_goals()), stored)["mismatches"])
    assert "plan_sha256 differs" in lines
    assert "optimal is claimed, but power does not meet its bound" in lines


def test_bounds_may_be_missing_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 130 sessions: (130 - 104) / 104 off; of power nothing is known."""
    result = claiming(monkeypatch, two_goals(), Termination.FEASIBLE, (F(130), None))
    assert (result.termination, result.limit) == ("feasible", "size")
    assert (result.objective.bound, result.objective.gap) == (130, 0.25)
    assert (result.then[0].bound, result.then[0].gap) == (None, None)
    assert verify_side(parse_instance(two_goals()), json.loads(result.to_json()))["holds"]


def test_a_free_bound_stands_where_a_solver_has_a_worse_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CapacityKind, "bound", lambda self: (F(120), None))
    for said, found in (
        ((None, None), 120),
        (None, 120),
        ((F(130), None), 120),
        ((F(110), None), 110),
    ):
        result = claiming(monkeypatch, two_goals(), Termination.FEASIBLE, said)
        assert (result.termination, result.objective.bound) == ("feasible", found)
    monkeypatch.setattr(CapacityKind, "bound", lambda self: (F(104), F(139600)))
    result = claiming(monkeypatch, two_goals(), Termination.FEASIBLE, None, AGREED)
    assert (result.termination, result.then[0].bound_exact) == ("optimal", "139600")


def test_a_solver_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    feasible = Termination.FEASIBLE
    with pytest.raises(
        MismatchError, match="claims a bound of 100, None, but a plan with 104, 1396"
    ):
        claiming(monkeypatch, two_goals(), feasible, (F(100), None))
    with pytest.raises(MismatchError, match="is better in power"):
        claiming(monkeypatch, two_goals(), feasible, (F(104), F(139601)))
    with pytest.raises(MismatchError, match="claims 110, 139600, verified 104, 139600"):
        claiming(
            monkeypatch,
            two_goals(),
            feasible,
            None,
            value=(F(110), F(139600)),
        )
    denied = SecondOpinion("a test", False, "says no")
    with pytest.raises(MismatchError, match="a test disagrees: says no"):
        claiming(monkeypatch, two_goals(), Termination.OPTIMAL, None, denied)
    document = two_goals()
    document["workload"]["cohorts"][0]["num_sessions"] = 41
    with pytest.raises(MismatchError, match="returned a plan that breaks sessions"):
        claiming(monkeypatch, document, feasible, None)
    assert value_text(F(1, 3)) == "1/3"


def test_the_oracle_gives_an_opinion_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four long sessions need four TP2, a server; two would have room for eight."""
    document = purchase()
    document["fleet"]["pools"][0]["num_servers"] = 2
    document["fleet"]["racks"][0]["count"] = 1
    document["workload"]["cohorts"] = document["workload"]["cohorts"][:1]
    document["workload"]["cohorts"][0]["num_sessions"] = 4
    kind = kind_of(document)
    # one server and the leaf switch
    opinion = kind.opinion((F("101.32"),))
    assert opinion is not None
    assert (opinion.method, opinion.agrees) == ("exhaustive", True)
    opinion = kind.opinion((F("199.64"),))
    assert opinion is not None
    assert opinion.agrees is False
    opinion = kind.opinion(None)
    assert opinion is not None
    assert opinion.agrees is False

    def too_large(problem: CapacityProblem, most: int) -> None:
        raise TooLargeError("too large")

    monkeypatch.setattr(capacity_kind, "best_capacity_exhaustively", too_large)
    assert kind.opinion(None) is None


def test_a_result_without_a_plan_says_why_candidates_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    document = purchase()
    document["workload"]["cohorts"][0]["deadline_s"] = "1ms"
    outcome = SimpleNamespace(termination=Termination.INFEASIBLE, plan=None, value=None, bound=None)
    monkeypatch.setattr(side_decisions, "load_solver", lambda d: lambda *a, **k: outcome)
    monkeypatch.setattr(capacity_kind, "first_capacity", lambda problem, is_over: None)
    monkeypatch.setattr(CapacityKind, "opinion", lambda self, value: AGREED)
    result = solve_side(parse_instance(document), SolveOptions(solver="highs", threads=1))
    assert (result.termination, result.plan) == ("infeasible", None)
    assert result.reason == "no candidate serves a session of 'long' on time"
    assert result.not_used is not None
    late = [lost for lost in result.not_used.examples if lost.rule == "late"]
    assert {lost.model for lost in late} == {"qwen3-32b"}
    assert late[0].message == "no session that it may serve ends on time"
