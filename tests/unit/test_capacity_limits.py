"""What a capacity decision says where candidates are missing, or nothing can fail."""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from capacity_sources import CHAT, MODEL, built, pool, source
from optimizer import SolveOptions, screening
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.exhaustive import best_capacity_exhaustively
from optimizer.protocols import Termination
from optimizer.side import decisions
from optimizer.side.decisions import solve_side

OTHER = {**MODEL, "name": "other"}
SOLVERS = ("highs", "cp-sat", "cbc")


def test_a_pool_that_cannot_compute_a_model_is_named_once() -> None:
    pools = (pool("p"), pool("q", peaks=["fp16"]))
    cohorts = [CHAT, {**CHAT, "name": "b", "model": "other"}]
    found = build_capacity(source(*pools, cohorts=cohorts, models=[MODEL, OTHER]))
    shown = [
        (r.model, r.rejection.footprint.pool, r.rejection.rule, r.rejection.message)
        for r in found.rejections
    ]
    text = "card has no peak rate in bf16"
    assert shown == [("tiny", "q", "number_format", text), ("other", "q", "number_format", text)]
    assert {o.pool for o in found.problem.options} == {0}
    # nobody asks for a model without cohorts
    idle = build_capacity(source(*pools, models=[MODEL, OTHER]))
    assert [r.model for r in idle.rejections] == ["tiny"]


def test_where_no_pool_can_compute_a_model_the_result_says_so() -> None:
    result = solve_side(source(pool(peaks=["fp16"])), SolveOptions(solver="highs"))
    assert result.termination == "infeasible"
    assert result.not_used is not None
    assert [rule.rule for rule in result.not_used.rules] == ["number_format"]


def test_every_model_has_its_part_of_the_time_and_what_is_left() -> None:
    cohorts = [CHAT, {**CHAT, "name": "b", "model": "other"}]
    shares: list[float] = []

    def is_over(share: float) -> bool:
        shares.append(share)
        return False

    assert build_capacity(source(cohorts=cohorts, models=[MODEL, OTHER]), is_over).is_complete
    # two models: the last check of each is at 1/2 and at 2/2
    assert max(s for s in shares if s <= 0.5) == 0.5
    assert max(shares) == 1.0
    assert shares == sorted(shares, key=lambda s: s > 0.5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_is_proven_where_candidates_were_not_priced(
    monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    instance = source()
    options = SolveOptions(solver=solver, time_limit_s=30)
    assert solve_side(instance, options).termination == "optimal"
    monkeypatch.setattr(decisions, "DATA_SHARE", 0.0)
    result = solve_side(instance, options)
    assert (result.termination, result.limit) == ("no_solution_found", "time")
    assert result.objective is None or result.objective.bound is None


def test_an_outcome_without_its_proof_keeps_its_plan() -> None:
    found = decisions.SideOutcome("highs", Termination.OPTIMAL, "plan", Fraction(1), Fraction(1))
    kept = found.unproven()
    assert (kept.termination, kept.answer, kept.bound) == (Termination.FEASIBLE, "plan", None)
    none = decisions.SideOutcome("highs", Termination.INFEASIBLE).unproven()
    assert none.termination is Termination.NO_SOLUTION_FOUND


@pytest.mark.parametrize("solver", SOLVERS)
def test_where_nothing_can_fail_the_worst_case_is_no_failure(solver: str) -> None:
    # cards may fail, but no candidate serves anybody, so that no serving instance has a card
    late = {**CHAT, "deadline_s": "1ns"}
    goals = {"goals": ["worst_case_sessions"]}
    instance = source(cohorts=[late], fraction="0%", failures=["card"], capacity=goals)
    problem = build_capacity(instance).problem
    assert (problem.options, problem.events) == ((), ())
    best = best_capacity_exhaustively(problem, 1000)
    assert best is not None
    assert evaluate_capacity(instance, problem, best).values["worst_case_sessions"] == 0
    result = solve_side(instance, SolveOptions(solver=solver))
    assert (result.termination, result.objective.verified) == ("optimal", 0)


def test_without_events_worst_and_expected_sessions_are_the_healthy_ones() -> None:
    goals = {"goals": ["worst_case_sessions", "sessions"]}
    instance = source(pool(servers=1), failures=["server"], fraction="0%", capacity=goals)
    problem = build_capacity(instance).problem
    quiet = replace(problem, events=())
    best = best_capacity_exhaustively(quiet, 10_000)
    assert best is not None
    values = evaluate_capacity(instance, quiet, best).values
    assert values["worst_case_sessions"] == values["sessions"] == 10
    plain = replace(quiet, goals=("sessions",))
    assert "worst_case_sessions" not in evaluate_capacity(instance, plain, best).values
    assert built(pool(servers=1), failures=["server"], fraction="0%").events


def test_an_interrupted_solve_keeps_the_plan_that_the_solver_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The solver's thread hands over its plan after Ctrl-C; what it claims of others is dropped."""
    instance = source()
    best = solve_side(instance, SolveOptions(solver="highs"))
    taken: list[float] = []
    wait = decisions._handed_over

    def interrupted(results: queue.Queue[Any], until: float) -> Any:
        taken.append(until)
        if len(taken) == 1:
            while results.empty():
                time.sleep(0.01)
            raise KeyboardInterrupt
        return wait(results, until)

    monkeypatch.setattr(decisions, "_handed_over", interrupted)
    # without a first plan of its own, all that is left is the solver's
    monkeypatch.setattr(type(decisions.side_kind(instance)), "improved", lambda self, over: None)
    result = solve_side(instance, SolveOptions(solver="highs"))
    assert (result.termination, result.limit) == ("feasible", "interrupted")
    assert result.objective.verified == best.objective.verified
    assert result.objective.bound is None
    assert len(taken) == 2


def test_large_searches_leave_out_what_is_late_and_price_the_same_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session takes 6,368 ns on one lane: a deadline of that is met, one nanosecond less is not.

    Where many candidates are late they are not priced exactly: late by whole microseconds.
    """
    for deadline_s, is_met in (("6368ns", True), ("6367ns", False), ("1ns", False)):
        instance = source(cohorts=[{**CHAT, "deadline_s": deadline_s}])
        exact = build_capacity(instance)
        with monkeypatch.context() as patch:
            patch.setattr(screening, "SCREEN_FROM", 0)
            screened = build_capacity(instance)
        assert screened.problem == exact.problem
        assert len(screened.problem.options) == int(is_met)
        rules = [r.rejection.rule for r in screened.rejections]
        assert rules == [r.rejection.rule for r in exact.rejections] == ([] if is_met else ["late"])
    assert [r.rejection.amount for r in screened.rejections] == [Fraction(6, 10**6)]
    assert [r.rejection.amount for r in exact.rejections] == [Fraction(6367, 10**9)]


def test_power_and_racks_that_allow_no_server_are_named() -> None:
    racks = [{"name": "r", "count": 2, "units": 4}]
    tall = {**pool(), "rack_units": 5}
    reasons = [
        solve_side(source(*pools, **fleet), SolveOptions(solver="highs")).reason
        for pools, fleet in (
            ((pool(),), {"power": {"budget_w": 5000, "fixed_w": 5001}}),
            ((tall,), {"racks": racks}),
            (({**tall, "rack_units": 4},), {"racks": racks}),
        )
    ]
    assert reasons == [
        "5,001 W are drawn whatever the servers, 1 W more than the budget of 5,000 W",
        "no server fits into a rack: its units, watts or cooling are too much for each",
        "",
    ]
