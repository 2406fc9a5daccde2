"""Pipeline cuts and expert placements from an instance: data, proof, verification, limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from instances.io import example_text, load_instance, parse_instance
from optimizer import SolveOptions
from optimizer.errors import BackendUnavailable, MismatchError, TooLargeError
from optimizer.experts.building import expert_problem
from optimizer.protocols import Termination
from optimizer.side import decisions as side_decisions
from optimizer.side.decisions import SOLVERS, SideOutcome, solve_side
from optimizer.side.document import verify_side
from optimizer.side.result import SideResultDocument
from optimizer.stages.decision import stage_problem
from optimizer.stages.evaluation import best_cut_exhaustively, evaluate_stages

F = Fraction
STAGES, EXPERTS = "r1-bf16-64xa800-stages", "qwen3-235b-experts-skewed"
Document = dict[str, Any]

TINY: Document = {
    "name": "tiny",
    "num_layers": 8,
    "hidden_size": 8,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 2,
    "ffn_size": 16,
    "vocab_size": 32,
}


def solved(document: Document, solver: str = "auto", seconds: float = 60) -> SideResultDocument:
    options = SolveOptions(solver=solver, time_limit_s=seconds, threads=1)
    return solve_side(parse_instance(document), options)


def example(name: str) -> Document:
    document: Document = json.loads(example_text(name))
    return document


def pool(name: str, bytes_per_s: int, **changes: Any) -> Document:
    """One server with one card whose time is reading alone, on a line of 160 B/s."""
    accelerator = {
        "name": name,
        "memory_bytes": changes.pop("memory_bytes", "1GiB"),
        "memory_bandwidth_bytes_per_s": bytes_per_s,
        "peak_flops_per_s": {"bf16": 10**15},
    }
    server = {"name": name, "accelerator": accelerator, "num_cards": 1, "fabric": "nvlink-4"}
    line = {"name": "line", "alpha_s": 0, "bandwidth_bytes_per_s": 160}
    return {"name": name, "server": server, "num_servers": 1, "fabric_between": line, **changes}


def two_pools(*names: str, **stages: Any) -> Document:
    """A fast card (4224 B/s) and a slow one (1408 B/s) share eight layers."""
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": 15, "new_tokens": 1}
    return {
        "name": "unlike",
        "decision": "stages",
        "model": TINY,
        "fleet": {"pools": [pool("fast", 4224), pool("slow", 1408)]},
        "workload": {"cohorts": [cohort]},
        "runtime": {"workspace_bytes": 0},
        "stages": {"num_stages": 2, "goal": "slowest", "pools": list(names), **stages},
    }


def few_experts(**changes: Any) -> Document:
    """Eight experts of Mixtral on two groups; 3^8 = 6561 placements, so that all are tried."""
    cohort = {"name": "chat", "num_sessions": 2, "context_tokens": 1023, "new_tokens": 1}
    return {
        "name": "few experts",
        "decision": "experts",
        "model": "mixtral-8x7b",
        "fleet": {"pools": [{"name": "hgx", "server": "hgx-h100", "num_servers": 1}]},
        "workload": {
            "cohorts": [cohort],
            "expert_counts": [9000, 7000, 5000, 3000, 2000, 1000, 500, 100],
        },
        "experts": {"ep": 2, "max_copies": 2, "replica_budget_bytes": "1GiB"},
        **changes,
    }


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_backend_proves_the_same_cut_value(solver: str) -> None:
    result = solve_side(load_instance(STAGES), SolveOptions(solver=solver, threads=1))
    assert (result.termination, result.limit, result.decision) == ("optimal", None, "stages")
    assert result.objective.verified_exact == result.objective.bound_exact == "6611210"
    assert (result.objective.unit, result.objective.direction) == ("tokens", "maximise")
    assert result.objective.claimed == result.objective.verified == 6611210
    assert result.certificate.solver == solver
    assert result.certificate.second_opinion.method == "dynamic programming"
    assert result.certificate.second_opinion.agrees is True
    assert result.evaluation is not None
    assert min(s.max_tokens or 0 for s in result.evaluation.stages) == 6611210
    assert sum(s.num_layers for s in result.evaluation.stages) == 61
    judged = verify_side(load_instance(STAGES), result.model_dump(mode="json"))
    assert (judged["holds"], judged["mismatches"]) == (True, [])


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_backend_proves_the_same_placement_value(solver: str) -> None:
    instance = parse_instance(few_experts())
    result = solve_side(instance, SolveOptions(solver=solver, threads=1))
    assert (result.termination, result.limit, result.decision) == ("optimal", None, "experts")
    assert result.objective.verified_exact == result.objective.bound_exact
    assert result.certificate.second_opinion.agrees is True
    # 27,600 assignments over two groups are 13,800 each at best.
    problem = expert_problem(instance)
    assert result.objective.verified_exact is not None
    value = F(result.objective.verified_exact)
    assert value >= 13_800 * (problem.compute_s + problem.transfer_s)
    assert value == F(solved(few_experts(), "auto").objective.verified_exact or 0)
    judged = verify_side(instance, result.model_dump(mode="json"))
    assert (judged["holds"], judged["mismatches"]) == (True, [])


def test_the_skewed_example_is_close_to_its_bound_even_without_time() -> None:
    """The first answer is verified, and within 2 % of a bound where index order is 1.6 times it."""
    result = solved(example(EXPERTS), seconds=0)
    assert result.plan is not None
    assert result.evaluation is not None
    assert result.evaluation.violations == []
    assert result.objective.verified is not None
    assert result.evaluation.value_before is not None
    assert result.evaluation.value_before > 1.5 * result.objective.verified
    total = sum(example(EXPERTS)["workload"]["expert_counts"])
    problem = expert_problem(load_instance(EXPERTS))
    least = (problem.compute_s + problem.transfer_s) * F(total, 8)
    assert least <= F(result.objective.verified_exact or 0) <= least * F(102, 100)
    assert verify_side(load_instance(EXPERTS), result.model_dump(mode="json"))["holds"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_faster_card_gets_more_layers(solver: str) -> None:
    """A layer reads (64 + 32 + 32 + 64 + 3 · 128) · 2 B = 1152 B and 16 · 16 B of KV: 1408 B.

    The slow card takes 1 s a layer, the fast one 1/3 s. The first stage hands on 8 · 2 B = 16 B at
    160 B/s: 1/10 s; the last reads a head of 32 · 8 · 2 B = 512 B: 4/11 s or 4/33 s.
    """
    result = solved(two_pools("fast", "slow"), solver)
    assert result.plan is not None
    assert result.evaluation is not None
    # fast 6/3 + 1/10 = 21/10, slow 2 + 4/11 = 26/11; 7 and 1 layers: 7/3 + 1/10 = 73/30 > 26/11
    assert result.plan.stages == [6, 2]
    assert [s.time_exact for s in result.evaluation.stages] == ["21/10", "26/11"]
    assert [s.pool for s in result.evaluation.stages] == ["fast", "slow"]
    assert result.objective.verified_exact == result.objective.bound_exact == "26/11"
    result = solved(two_pools("slow", "fast"), solver)
    assert result.plan is not None
    assert result.plan.stages == [2, 6]
    assert result.objective.verified_exact == "70/33"  # fast 6/3 + 4/33
    assert result.certificate.second_opinion.agrees is True


def test_a_small_card_gets_fewer_layers_than_its_speed_would_take() -> None:
    """Weights of a layer: 576 numbers of matrices and 2 · 8 of norms, 2 B each; KV 16 · 16 B.

    A layer takes 1184 + 256 = 1440 B, the embedding 512 B. 3 · 1440 + 512 = 4832 B.
    """
    for memory, counts in ((4832, [3, 5]), (4831, [2, 6])):
        document = two_pools("fast", "slow")
        document["fleet"]["pools"][0] = pool("fast", 4224, memory_bytes=memory)
        result = solved(document)
        assert result.plan is not None
        assert result.plan.stages == counts, memory


SHARED_KV: Document = {
    "name": "shared KV",
    "decision": "stages",
    "model": "deepseek-v4.1-flash",
    "fleet": {
        "pools": [
            {
                "name": "hgx",
                "server": "hgx-h100",
                "num_servers": 4,
                "fabric_between": "infiniband-ndr",
            }
        ]
    },
    "workload": {
        "cohorts": [
            {"name": "chat", "num_sessions": 2, "context_tokens": 100000, "new_tokens": 1000}
        ]
    },
    "stages": {"num_stages": 4, "goal": "tokens", "tp": 8, "ep": 8},
}
#: Layers that keep compressed entries which later layers read (their owners).
OWNERS = {2, 8, 14, 20}


@pytest.mark.parametrize("sharing", ["same_stage", "copy", "remote"])
def test_layers_that_share_a_cache_are_cut_as_the_search_says(sharing: str) -> None:
    document = {**SHARED_KV, "search": {"kv_sharing": sharing}}
    instance = parse_instance(document)
    problem = stage_problem(instance)
    best = best_cut_exhaustively(problem)
    assert best is not None
    results = [solved(document, solver) for solver in SOLVERS]
    for result in results:
        assert result.termination == "optimal"
        assert F(result.objective.verified_exact or 0) == evaluate_stages(problem, best).value
        assert result.evaluation is not None
        assert result.plan is not None
        for stage in result.evaluation.stages:
            assert set(stage.reads_layers) <= {n for n in OWNERS if n < stage.first_layer}
            if sharing == "same_stage":
                assert stage.reads_layers == []
    # Layers 20 to 39 read layer 20: under "same_stage" the last stage cannot be smaller.
    evaluation = results[0].evaluation
    assert evaluation is not None
    if sharing == "same_stage":
        assert evaluation.stages[-1].num_layers >= 20


def test_a_copied_cache_takes_room_where_it_is_read() -> None:
    """Stage 1 begins inside the layers that read layer 2, and stage 3 inside those of layer 20."""
    cut = {"stages": [5, 5, 10, 20]}
    kv: dict[str, list[int]] = {}
    for sharing in ("copy", "remote"):
        judged = verify_side(parse_instance({**SHARED_KV, "search": {"kv_sharing": sharing}}), cut)
        assert judged["holds"]
        stages = judged["evaluation"]["stages"]
        assert [stage["reads_layers"] for stage in stages] == [[], [2], [8], []]
        kv[sharing] = [stage["kv_bytes"] for stage in stages]
    # An entry of 288 B and a key of 68 B for 2 tokens: 178 B a token, of 2 · 101,000 tokens.
    more = [a - b for a, b in zip(kv["copy"], kv["remote"], strict=True)]
    assert more == [0, 178 * 202_000, 178 * 202_000, 0]
    forbidden = parse_instance({**SHARED_KV, "search": {"kv_sharing": "same_stage"}})
    judged = verify_side(forbidden, cut)
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == ["kv_source", "kv_source"]
    assert judged["holds"] is False


def test_a_result_of_another_instance_and_a_moved_expert_do_not_hold() -> None:
    instance = parse_instance(few_experts())
    document = solve_side(instance, SolveOptions(threads=1)).model_dump(mode="json")
    other = parse_instance(few_experts(description="another"))
    assert any("instance_sha256" in line for line in verify_side(other, document)["mismatches"])
    moved = json.loads(json.dumps(document))
    moved["plan"]["experts"][7] = [0, 1, 1]
    judged = verify_side(instance, moved)
    assert judged["holds"] is False
    assert "copies" in {v["rule"] for v in judged["evaluation"]["violations"]}
    swapped = json.loads(json.dumps(document))
    swapped["plan"]["experts"] = [[0]] * 8
    judged = verify_side(instance, swapped)
    assert any("plan_sha256" in line for line in judged["mismatches"])
    assert any("busiest_group is" in line for line in judged["mismatches"])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("decision", ["stages", "experts"])
def test_what_does_not_fit_is_proven_infeasible(decision: str, solver: str) -> None:
    if decision == "stages":
        document = example(STAGES)
        document["workload"]["cohorts"][0]["num_sessions"] = 51  # 51 · 131,072 > 6,611,210 tokens
    else:
        document = few_experts()
        document["workload"]["cohorts"][0]["num_sessions"] = 10_000
    result = solved(document, solver)
    assert (result.termination, result.limit) == ("infeasible", None)
    assert (result.plan, result.evaluation) == (None, None)
    assert result.reason == "no plan keeps every card within memory"
    assert result.objective.verified_exact is None
    assert result.certificate.second_opinion.agrees is True


def test_the_most_sessions_that_fit_are_as_many_as_the_tokens_say() -> None:
    document = example(STAGES)
    document["workload"]["cohorts"][0]["num_sessions"] = 50  # 50 · 131,072 = 6,553,600 tokens
    assert solved(document, "highs").termination == "optimal"


#: No placement on three groups meets the bound of 27,600 / 3 = 9,200 assignments: one group has
#: expert 0 (9,000), and the other 18,600 divide into 9,100 + 9,500 at best.
SEARCHED = few_experts(experts={"ep": 3})


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("document", [SEARCHED, example(STAGES), example(EXPERTS)])
def test_without_time_the_first_answer_is_kept_and_no_optimum_claimed(
    document: Document, solver: str
) -> None:
    """A claim of an optimum needs a bound that is met and a second opinion, also at once."""
    result, value = solved(document, solver, seconds=0), solved(document, "highs").objective
    assert result.plan is not None
    assert verify_side(parse_instance(document), result.model_dump(mode="json"))["holds"]
    if result.termination == "optimal":
        assert result.objective.verified_exact == result.objective.bound_exact
        assert result.objective.verified_exact == value.verified_exact
        assert result.certificate.second_opinion.agrees is True
    else:
        assert (result.termination, result.limit) == ("feasible", "time")
        assert result.certificate.second_opinion.agrees is None


def test_a_search_that_has_no_time_proves_nothing() -> None:
    for solver in SOLVERS:
        assert solved(SEARCHED, solver, seconds=0).termination == "feasible", solver
        value = F(solved(SEARCHED, solver).objective.verified_exact or 0)
        problem = expert_problem(parse_instance(SEARCHED))
        assert value == 9_500 * (problem.compute_s + problem.transfer_s)


def test_a_stop_asked_for_before_the_start_keeps_the_first_answer() -> None:
    stop = threading.Event()
    stop.set()
    result = solve_side(parse_instance(SEARCHED), SolveOptions(threads=1), stop=stop)
    assert (result.termination, result.limit) == ("feasible", "interrupted")
    assert result.plan is not None


def test_an_interrupt_while_a_solver_runs_keeps_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> SideOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(side_decisions, "_ask", interrupted)
    result = solved(example(STAGES))
    assert (result.termination, result.limit) == ("feasible", "interrupted")
    assert result.plan is not None
    assert result.plan.stages == [8, 8, 8, 8, 8, 7, 7, 7]


def ask(answers: dict[str, Any]) -> Callable[..., SideOutcome]:
    """A replacement for every solver: an outcome, or an error to raise."""

    def replacement(_: Any, name: str, *__: Any) -> SideOutcome:
        found = answers[name]
        if isinstance(found, Exception):
            raise found
        return SideOutcome(name, *found)

    return replacement


EVEN = (8, 8, 8, 8, 8, 7, 7, 7)
LIES = [
    ((Termination.OPTIMAL, EVEN, F(7_000_000), F(7_000_000)), "claims 7000000, verified"),
    ((Termination.OPTIMAL, (61,), F(1), F(1)), "breaks stage_count"),
    ((Termination.INFEASIBLE,), "claims infeasible None, dynamic programming disagrees"),
    ((Termination.OPTIMAL, (9, *EVEN[1:-1], 6), None, None), "dynamic programming disagrees"),
]


@pytest.mark.parametrize(("outcome", "said"), LIES)
def test_a_lie_of_a_solver_is_found(
    outcome: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_decisions, "_ask", ask({"highs": outcome}))
    with pytest.raises(MismatchError, match=said):
        solved(example(STAGES))


def test_solvers_are_asked_in_turn_until_one_takes_the_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, large = BackendUnavailable("not installed"), TooLargeError("too large")
    good = (Termination.OPTIMAL, EVEN, F(6611210), F(6611210))
    monkeypatch.setattr(side_decisions, "_ask", ask({"highs": gone, "cp-sat": large, "cbc": good}))
    result = solved(example(STAGES))
    assert (result.termination, result.certificate.solver) == ("optimal", "cbc")
    monkeypatch.setattr(side_decisions, "_ask", ask(dict.fromkeys(SOLVERS, gone)))
    with pytest.raises(BackendUnavailable, match="not installed"):
        solved(example(STAGES))
    monkeypatch.setattr(side_decisions, "_ask", ask(dict.fromkeys(SOLVERS, large)))
    result = solved(example(STAGES))
    assert (result.termination, result.limit) == ("feasible", "size")
    assert "too large" in result.reason
