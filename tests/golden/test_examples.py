"""Bundled examples: best-known plans re-evaluated, re-solved by every backend, anchored."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from instances import parse_instance
from instances.io import example_names, example_text, load_instance
from optimizer import SolveOptions, solve, verify
from optimizer.exhaustive import solve_exhaustively
from optimizer.plan_document import document_label
from optimizer.result import ResultDocument
from optimizer.side.decisions import solve_side
from optimizer.side.document import verify_side
from optimizer.side.result import SideResultDocument

DEPLOYMENTS = tuple(n for n in example_names() if load_instance(n).decision == "deployment")
SIDE = tuple(name for name in example_names() if name not in DEPLOYMENTS)
FEASIBLE = tuple(name for name in DEPLOYMENTS if name != "infeasible-deadline")
SOLVERS = ("auto", "cp-sat", "highs", "cbc")


def best_known(name: str) -> ResultDocument:
    """The stored result of an example."""
    return ResultDocument.model_validate(json.loads(example_text(name, ".best.json")))


def stored_values(name: str) -> list[str | None]:
    best = best_known(name)
    return [o.verified_exact for o in (best.objective, *best.then)]


def solved(name: str, solver: str = "auto") -> ResultDocument:
    return solve(load_instance(name), SolveOptions(solver=solver, threads=1))


@pytest.mark.parametrize("name", FEASIBLE)
def test_the_stored_result_verifies(name: str) -> None:
    """The plan keeps every rule, every claim of the stored result holds, and it meets its bound."""
    instance, best = load_instance(name), best_known(name)
    verification = verify(instance, best.model_dump(mode="json"))
    assert verification.evaluation.violations == ()
    assert verification.mismatches == ()
    assert best.termination == "optimal"
    assert [o.bound_exact for o in (best.objective, *best.then)] == stored_values(name)
    assert [o.name for o in (best.objective, *best.then)] == list(instance.objective.names)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_backend_proves_the_stored_value(name: str, solver: str) -> None:
    result = solved(name, solver)
    assert result.termination == best_known(name).termination
    assert result.certificate.second_opinion.agrees is True
    objectives = (result.objective, *result.then)
    assert [o.verified_exact for o in objectives] == stored_values(name)
    if result.termination == "optimal":
        for found in objectives:
            assert found.claimed == found.verified
            assert found.bound_exact == found.verified_exact
            assert found.gap == 0


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_brute_force_finds_the_stored_value(name: str) -> None:
    values = solve_exhaustively(load_instance(name)).values
    stored = stored_values(name)
    # brute force minimises: what is maximised has its sign turned
    found = [None] * len(stored) if values is None else [str(abs(value)) for value in values]
    assert stored == found


def stored_side(name: str) -> SideResultDocument:
    """The stored result of an example of a smaller decision."""
    return SideResultDocument.model_validate(json.loads(example_text(name, ".best.json")))


@pytest.mark.parametrize("name", SIDE)
def test_the_stored_decision_verifies(name: str) -> None:
    best = stored_side(name)
    judged = verify_side(load_instance(name), best.model_dump(mode="json"))
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert best.termination == "optimal"
    assert best.objective.bound_exact == best.objective.verified_exact
    assert judged["evaluation"]["violations"] == []


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", SIDE)
def test_every_backend_proves_the_stored_decision(name: str, solver: str) -> None:
    result = solve_side(load_instance(name), SolveOptions(solver=solver, threads=1))
    assert result.termination == "optimal"
    assert result.objective.verified_exact == stored_side(name).objective.verified_exact
    assert result.objective.bound_exact == result.objective.verified_exact
    assert result.certificate.second_opinion.agrees is True


def row(result: ResultDocument, tp: int, servers: int = 1, collective: str = "ring") -> Any:
    return next(
        c
        for c in result.candidates
        if (c.parallel.tp, c.num_servers) == (tp, servers) and c.collective in (collective, "none")
    )


def test_decision_1_four_sessions_128k() -> None:
    """4 x TP2 at 8 * 119.11 ms / 4; TP1 misfits; TP4 and TP8 cost 0.2551 and 0.4392."""
    result = solved("four-sessions-128k")
    assert result.plan is not None
    assert result.plan.sentence == "8 cards = 4 instances × TP2 (ring)"
    assert result.objective.verified == pytest.approx(0.2382, abs=5e-5)
    assert row(result, 4).value == pytest.approx(0.2551, abs=1e-4)  # the source rounds to 0.255
    assert row(result, 8).value == pytest.approx(0.4392, abs=5e-5)
    misfit = next(r for r in result.rejected if r.parallel.tp == 1)
    # 65,524,246,528 weights + 34,359,738,368 KV + 2^31 workspace - 80e9 = 22,031,468,544 B
    assert (misfit.rule, misfit.amount, misfit.unit) == ("memory", 22031468544, "B")
    assert [t.change for t in result.thresholds if t.input == "memory_bytes"] == [22031468544]


def test_decision_2_one_session_50ms() -> None:
    """Only TP8 ends within 50 ms; TP4 is late by 63.79 - 50 = 13.79 ms."""
    result = solved("one-session-50ms")
    assert result.plan is not None
    assert result.plan.sentence == "8 cards = 1 instance × TP8 (ring)"
    late = next(r for r in result.rejected if r.parallel.tp == 4)
    assert late.rule == "late"
    assert late.amount == pytest.approx(0.01379, abs=5e-6)
    admits = next(t for t in result.thresholds if t.parallel.tp == 4)
    assert admits.value == pytest.approx(0.06379, abs=5e-6)


def test_decision_3_two_servers_one_session() -> None:
    """TP16 over both servers takes 53.33 ms by the measured AllReduce, so TP8 stays."""
    result = solved("two-servers-one-session")
    assert result.plan is not None
    assert result.plan.sentence == "8 of 16 cards = 1 instance × TP8 (ring)"
    late = next(r for r in result.rejected if r.parallel.tp == 16 and r.collective == "measured")
    assert late.amount == pytest.approx(0.0033, abs=5e-5)
    assert row(result, 16, 2, "measured").makespan_s == pytest.approx(0.0533, abs=5e-5)


def test_decision_4_four_sessions_32k() -> None:
    """TP1 fits but needs 173.3 ms; 4 x TP2 costs 8 * 88.34 ms / 4 = 0.1767."""
    result = solved("four-sessions-32k")
    assert result.plan is not None
    assert result.plan.sentence == "8 cards = 4 instances × TP2 (ring)"
    assert result.objective.verified == pytest.approx(0.17668, abs=5e-6)
    late = next(r for r in result.rejected if r.parallel.tp == 1)
    assert late.rule == "late"
    assert late.amount == pytest.approx(0.1733 - 0.130, abs=5e-5)


def test_the_fault_example() -> None:
    """On time 3, 3 and 1 of 4 for TP2, TP4 and TP8; costs 0.478 and 0.500."""
    result = solved("four-sessions-fault")
    assert [row(result, tp).num_on_time for tp in (2, 4, 8)] == [3, 3, 1]
    assert row(result, 2).value == pytest.approx(0.478, abs=5e-4)
    assert row(result, 4).value == pytest.approx(0.500, abs=5e-4)
    assert row(result, 8).value is None
    assert result.objective.verified == pytest.approx(0.478, abs=5e-4)


def test_the_infeasible_example_says_what_would_help() -> None:
    """30 ms: even TP8 needs 41.18 ms; three sessions of TP8 end by 3 * 41.18 = 123.5 ms."""
    result = solved("infeasible-deadline")
    assert result.plan is None
    assert "41.18 ms" in result.reason
    admits = {t.parallel.tp: t.value for t in result.thresholds if t.input == "deadline_s"}
    assert admits[8] == pytest.approx(0.1235, abs=5e-5)
    assert admits[2] == pytest.approx(0.1191, abs=5e-5)


def test_mixing_beats_every_uniform_plan() -> None:
    """8 * 119.11 ms / 3 = 0.3176 for TP4 + 2 x TP2; uniform: 0.3294 (TP8), 0.3402 (TP4)."""
    mixed = solved("mixed-wins")
    assert mixed.plan is not None
    assert {g.parallel.tp for g in mixed.plan.groups} == {2, 4}
    document = json.loads(example_text("mixed-wins"))
    document["search"]["deployment"] = "uniform"
    uniform = solve(parse_instance(document), SolveOptions(threads=1))
    assert uniform.termination == "optimal"
    best = Fraction(str(mixed.objective.verified_exact))
    assert best < Fraction(str(uniform.objective.verified_exact))
    assert float(best) == pytest.approx(0.3176, abs=5e-5)
    assert uniform.objective.verified == pytest.approx(0.3294, abs=5e-5)


def first(result: ResultDocument, label: str) -> Any:
    """The first candidate with this label, such as "DP2·TP4"."""
    return next(c for c in result.candidates if document_label(c).startswith(label))


def test_attention_groups_hold_more_sessions_than_plain_tp8() -> None:
    """47 sessions of 8192 tokens with plain TP8 (section 6.1.2), whose 4 KV heads stand twice.

    Two groups of TP4 hold each KV head once a group: 94 layers · 2 · 1 head · 128 numbers · 2 B is
    48,128 B a token on each card either way, but each group has sessions of its own.
    """
    result = solved("qwen3-235b-8xh100")
    assert first(result, "TP8").value == 47
    assert result.objective.verified == 86
    assert result.plan is not None
    (group,) = result.plan.groups
    assert (group.parallel.dp, group.parallel.tp) == (2, 4)


def test_tp24_cuts_neither_the_heads_nor_the_output_groups_of_v4_pro() -> None:
    """128 heads over 24 or 12 cards leave 8; three instances of TP8 with two sessions each win."""
    result = solved("deepseek-v4-pro-3xh200")
    for label in ("TP12", "TP24"):
        misfit = first(result, label)
        assert misfit.rule == "heads"
        assert "(8 left over)" in misfit.reason
    assert first(result, "DP3·TP8").value is not None  # legal, but slower
    assert result.plan is not None
    assert result.plan.sentence == "24 cards = 3 instances × TP8, batch 2 (ring)"


def test_context_parallelism_beats_tensor_parallelism_over_servers() -> None:
    result = solved("long-context-cp")
    assert result.plan is not None
    (group,) = result.plan.groups
    assert (group.parallel.tp, group.parallel.cp) == (8, 2)
    assert row(result, 16, 2).value > 3 * (result.objective.verified or 0)


def test_every_stage_of_r1_holds_the_tokens_and_the_tightest_no_more() -> None:
    """A token takes 576 numbers of 2 B a layer (MLA), so 9,216 B on a stage of 8 layers."""
    evaluation = stored_side("r1-bf16-64xa800-stages").evaluation
    assert evaluation is not None
    rooms = []
    for stage in evaluation.stages:
        room = stage.capacity_bytes - stage.weights_bytes - stage.other_bytes - stage.state_bytes
        assert stage.capacity_bytes == 80 * 2**30 * 98 // 100
        assert stage.max_tokens == room // (1152 * stage.num_layers)
        rooms.append(stage.max_tokens)
    assert min(rooms) == 6_611_210
