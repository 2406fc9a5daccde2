"""Public bug reports retold as problem instances, with the right answer recomputed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from formulations import milp_engine
from instances import parse_instance
from optimizer import SolveOptions, solve, verify
from optimizer.result import ResultDocument

ONE_THREAD = SolveOptions(threads=1)


def instance(
    model: Any,
    *,
    cards: int = 8,
    accelerator: Any = "h100-sxm",
    context: int = 2048,
    sessions: int = 1,
    new_tokens: int = 1,
    **more: Any,
) -> Any:
    cohort = {
        "name": "chat",
        "num_sessions": sessions,
        "context_tokens": context,
        "new_tokens": new_tokens,
        "deadline_s": more.pop("deadline", None),
    }
    server = {
        "name": "server",
        "accelerator": accelerator,
        "num_cards": cards,
        "fabric": "nvlink-4",
    }
    return parse_instance(
        {
            "name": "case",
            "model": model,
            "fleet": {"pools": [{"name": "pool", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": [cohort]},
            "objective": {"minimise": ["cards"]},
            **more,
        }
    )


def reasons(result: ResultDocument, tp: int) -> set[str]:
    return {r.rule for r in result.rejected if r.parallel.tp == tp}


LLAMA_33B = {
    "name": "llama-33b",
    "num_layers": 60,
    "hidden_size": 6656,
    "num_heads": 52,
    "num_kv_heads": 52,
    "head_dim": 128,
    "ffn_size": 17920,
    "vocab_size": 32000,
}
QWEN2_7B = {
    "name": "qwen2-7b",
    "num_layers": 28,
    "hidden_size": 3584,
    "num_heads": 28,
    "num_kv_heads": 4,
    "head_dim": 128,
    "ffn_size": 18944,
    "vocab_size": 152064,
    "qkv_bias": True,
}
V100 = {
    "name": "v100-32gb",
    "memory_bytes": "32GiB",
    "memory_bandwidth_bytes_per_s": "900GB/s",
    "peak_flops_per_s": {"bf16": "125TFLOP/s"},
}


def test_d01_52_heads_on_8_cards_refuse_tp8_and_take_2_x_tp4() -> None:
    """52 mod 8 = 4; two sessions on 8 cards of 32 GiB: 2 x TP4 (65.06 GB / 4 = 16.3 GB a card)."""
    problem = instance(
        LLAMA_33B,
        accelerator=V100,
        sessions=2,
        objective={"minimise": ["makespan", "cards"]},
    )
    result = solve(problem, ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    assert [(g.count, g.parallel.tp) for g in result.plan.groups] == [(2, 4)]
    heads = next(r for r in result.rejected if r.parallel.tp == 8)
    assert (heads.rule, heads.amount) == ("heads", 4)
    legal = {c.parallel.tp for c in result.candidates if c.rule not in ("heads", "kv_heads")}
    assert legal == {1, 2, 4}


def test_d01_three_cards_tp3_fails_heads_and_tp2_fails_memory() -> None:
    """52 mod 3 = 1; TP2 holds 32.5 GB of 0.9 * 32 GiB = 30.9 GB. PP3 is not priced yet."""
    problem = instance(
        LLAMA_33B, cards=3, accelerator=V100, runtime={"usable_memory_fraction": "90%"}
    )
    result = solve(problem, ONE_THREAD)
    assert result.termination == "infeasible"
    assert reasons(result, 3) == {"heads"}
    assert reasons(result, 2) == {"memory"}
    assert next(r for r in result.rejected if r.parallel.tp == 3).amount == 1


def test_d03_28_heads_4_kv_heads_explain_tp7_and_tp8() -> None:
    """28 mod 8 = 4; 7 divides 28 but 7 mod 4 = 3; within 8 cards TP 1, 2, 4 are legal."""
    result = solve(instance(QWEN2_7B), ONE_THREAD)
    assert result.termination == "optimal"
    assert reasons(result, 8) == {"heads"}
    seven = next(r for r in result.rejected if r.parallel.tp == 7)
    assert (seven.rule, seven.amount) == ("kv_heads", 3)
    legal = {c.parallel.tp for c in result.candidates if c.rule not in ("heads", "kv_heads")}
    assert legal == {1, 2, 4}


def test_d11_kv_bytes_follow_kv_heads_not_the_hidden_size() -> None:
    """2 * 28 * 4 * 128 * 2 = 57,344 B a token; 3,072 tokens are 168 MiB."""
    problem = instance(QWEN2_7B, cards=1, context=3071)
    result = solve(problem, ONE_THREAD)
    assert result.evaluation is not None
    assert result.evaluation.kv_bytes_per_token == 57_344
    assert [c.kv_bytes for c in result.evaluation.cards] == [168 * 2**20]
    assert verify(problem, result.model_dump(mode="json")).holds


QWEN3_32B_FP8 = {"base": "qwen3-32b", "formats": {"weights": "fp8"}}


def test_d15_a_deadline_below_the_weight_bound_is_infeasible_and_names_it() -> None:
    """FP8 matrices 31.21 GB + BF16 head 1.56 GB = 32.76 GB; over 8 * 4.8 TB/s: 853.2 us."""
    problem = instance(QWEN3_32B_FP8, accelerator="h200-sxm", context=0, deadline="0.5ms")
    result = solve(problem, ONE_THREAD)
    assert result.termination == "infeasible"
    assert result.plan is None
    assert "853.2 µs" in result.reason
    assert "32.76 GB over TP8" in result.reason


def test_d15_at_2_ms_the_weight_bound_rules_nothing_out() -> None:
    """0.853 ms of reads and 128 tree reductions (0.65 ms) on TP8 stay below 2 ms."""
    problem = instance(QWEN3_32B_FP8, accelerator="h200-sxm", context=0, deadline="2ms")
    result = solve(problem, ONE_THREAD)
    assert result.termination == "optimal"
    assert result.evaluation is not None
    assert result.evaluation.num_on_time == 1


def test_d15_feasibility_is_monotone_in_the_deadline() -> None:
    """Once a deadline can be kept, every longer one can."""
    feasible = [
        solve(
            instance(QWEN3_32B_FP8, accelerator="h200-sxm", context=0, deadline=f"{d}us"),
            ONE_THREAD,
        ).plan
        is not None
        for d in (500, 850, 1000, 1400, 1600, 2000, 5000, 10000)
    ]
    assert feasible == sorted(feasible)
    assert not feasible[0]
    assert feasible[-1]


def test_d17_no_time_is_never_optimal() -> None:
    """With 0.01 s on a problem that needs more, the answer is a verified plan, not an optimum."""
    problem = instance(
        "qwen3-32b",
        context=32760,
        sessions=30,
        new_tokens=64,
        objective={"minimise": ["mean_completion"], "billing": "instance"},
    )
    result = solve(problem, SolveOptions(time_limit_s=0.01, threads=1))
    assert result.termination == "feasible"
    assert result.limit == "time"
    assert result.objective.gap is not None
    assert result.objective.gap > 0
    assert verify(problem, result.model_dump(mode="json")).holds


def test_d18_without_cbc_the_others_reach_the_same_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing CBC is named when it is asked for, and does not matter when it is not."""
    from optimizer.errors import BackendUnavailable

    problem = instance("qwen3-32b", context=131064, sessions=2)
    with_cbc = solve(problem, SolveOptions(solver="cbc", threads=1))
    monkeypatch.setattr(milp_engine, "cbc_path", lambda: None)
    with pytest.raises(BackendUnavailable, match="use highs or cp-sat"):
        solve(problem, SolveOptions(solver="cbc", threads=1))
    for solver in ("auto", "highs", "cp-sat"):
        found = solve(problem, SolveOptions(solver=solver, threads=1))
        assert found.objective.verified_exact == with_cbc.objective.verified_exact
