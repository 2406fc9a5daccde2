"""Public bug reports about fleets, retold: how many cards, which plan, who serves which session."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

from instances import Instance, parse_instance
from instances.catalog_store import catalog_entry
from instances.model import ModelSpec
from optimizer import SolveOptions, solve
from optimizer.checks import check_structure, sessions_in_order
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.place import Place
from optimizer.plan import CardId, Footprint, Plan, ServingInstance
from optimizer.work import StepLoad, stage_work

ONE_THREAD = SolveOptions(threads=1)


@cache
def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


def fleet(
    model: Any, *, servers: int = 1, cards: int = 8, accelerator: Any = "h100-sxm", **more: Any
) -> Instance:
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": 2048, "new_tokens": 1}
    server = {"name": "s", "accelerator": accelerator, "num_cards": cards, "fabric": "nvlink-4"}
    pool = {"name": "pool", "server": server, "num_servers": servers}
    cohort.update(more.pop("cohort", {}))
    return parse_instance(
        {
            "name": "case",
            "model": model,
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": [cohort]},
            "objective": {"minimise": ["cards"]},
            **more,
        }
    )


def gemma_group(name: str, layers: str, **window: int) -> dict[str, Any]:
    heads = {"num_heads": 32, "num_kv_heads": 16, "head_dim": 128, "qk_norm": True}
    return {
        "name": name,
        "layers": layers,
        "attention": {"kind": "gqa", **heads, **window},
        "ffn": {"kind": "dense", "size": 21504},
        "norms_per_layer": 4,
    }


#: gemma-3-27b: every sixth of 62 layers sees everything, the others 1,024 tokens; 0.8 GB of vision.
GEMMA_27B = {
    "name": "gemma-3-27b",
    "hidden_size": 5376,
    "vocab_size": 262208,
    "tied_embeddings": True,
    "groups": [
        gemma_group("global", "5-59:6"),
        gemma_group(
            "sliding",
            "0-4,6-10,12-16,18-22,24-28,30-34,36-40,42-46,48-52,54-58,60-61",
            window=1024,
        ),
    ],
    "parts": [
        {
            "name": "vision",
            "tensors": [{"component": "vision", "outputs": 1152, "inputs": 361_111}],
        }
    ],
}
RTX_3090 = {
    "name": "rtx-3090",
    "memory_bytes": "24GiB",
    "memory_bandwidth_bytes_per_s": "936GB/s",
    "peak_flops_per_s": {"bf16": "71TFLOP/s"},
}


def gemma(**more: Any) -> Instance:
    runtime = {"usable_memory_fraction": "90%", "loaded_parts": ["vision"]}
    cohort = {"context_tokens": 8191}
    return fleet(GEMMA_27B, cards=4, accelerator=RTX_3090, cohort=cohort, runtime=runtime, **more)


def test_d02_a_32_head_model_takes_tp4_because_tp2_is_too_big_and_tp3_cuts_heads() -> None:
    """54.9 GB: TP2 27.4 GB of 0.9 · 24 GiB = 23.2 GB; TP4 13.7 GB; 32 mod 3 = 2."""
    result = solve(gemma(), ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    assert [(g.count, g.parallel.tp) for g in result.plan.groups] == [(1, 4)]
    refused = {(r.parallel.tp, r.rule): r.amount for r in result.rejected}
    assert refused[3, "heads"] == 2
    assert {rule for tp, rule in refused if tp in (1, 2)} == {"memory"}


def test_d02_with_a_pipeline_three_cards_hold_it_and_two_do_not() -> None:
    result = solve(gemma(search={"pp": [1, 2, 3, 4]}), ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    (group,) = result.plan.groups
    assert (group.count, group.parallel.tp, group.parallel.pp) == (1, 1, 3)


def test_d02_stages_of_21_21_20_layers_weigh_what_the_report_says() -> None:
    """A layer has 825.8 MB; the tied embedding, 2.82 GB, is on the first and the last stage."""
    model, config = gemma().model, ParallelConfig(pp=3)
    stages = stage_places(model, (21, 21, 20))
    sizes = [stage_weight_bytes(model, config, place, loaded=("vision",)) for place in stages]
    layer = 2 * (2 * 5376 * 32 * 128 + 2 * 5376 * 16 * 128 + 3 * 5376 * 21504 + 4 * 5376 + 256)
    table = 2 * 262208 * 5376
    vision = 2 * 1152 * 361_111
    assert sizes == [21 * layer + table, 21 * layer, 20 * layer + 2 * 5376 + table + vision]
    assert [round(Fraction(n, 10**9), 1) for n in (21 * layer, table, vision)] == [
        Fraction("17.3"),
        Fraction("2.8"),
        Fraction("0.8"),
    ]
    # 3 global layers keep 8,192 tokens, 18 keep 1,024; 2 · 16 · 128 · 2 B = 8 KiB each.
    held = session_bytes(model, config, stages[0], 8192)
    assert held == 8192 * (3 * 8192 + 18 * 1024)


def serving(first: int, tp: int) -> ServingInstance:
    cards = tuple(CardId(card // 8, card % 8) for card in range(first, first + tp))
    return ServingInstance("pool", ParallelConfig(tp=tp), "ring", cards)


def test_d14_a_plan_of_50_cards_is_refused_on_32() -> None:
    """Five instances of 8 cards and five of 2: 18 cards more than there are."""
    problem = fleet("qwen3-8b", servers=4)
    prefill = [serving(8 * i, 8) for i in range(5)]
    decode = [serving(40 + 2 * i, 2) for i in range(5)]
    plan = Plan((*prefill, *decode))
    assert plan.num_cards == 50
    broken = [v for v in check_structure(problem, plan) if v.rule == "unknown_card"]
    assert sum(v.amount for v in broken) == 18
    within = Plan((*prefill[:3], *(serving(24 + 2 * i, 2) for i in range(4))))
    assert within.num_cards == 32
    assert {v.rule for v in check_structure(problem, within)} == {"session_missing"}


def test_d14_the_best_plan_stays_within_the_fleet() -> None:
    problem = fleet(
        "qwen3-8b",
        servers=4,
        cohort={"num_sessions": 5},
        search={"tp": [8]},
        objective={"minimise": ["mean_completion", "cards"]},
    )
    result = solve(problem, ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    assert [(g.count, g.parallel.tp) for g in result.plan.groups] == [(4, 8)]


def test_d14_too_few_cards_are_an_answer_with_a_reason_not_a_plan() -> None:
    result = solve(fleet("qwen3-8b", cards=4, search={"tp": [8]}), ONE_THREAD)
    assert result.termination == "infeasible"
    assert result.plan is None
    assert [r.parallel.tp for r in result.rejected] == [8]
    assert result.reason


def test_d04_a_plan_with_tp24_over_three_servers_breaks_the_heads_rule() -> None:
    between = {"base": "infiniband-ndr"}
    pool = fleet("deepseek-v4-pro", servers=3).fleet.model_dump(mode="json")["pools"][0]
    joined = {"pools": [pool | {"fabric_between": between}]}
    problem = fleet("deepseek-v4-pro", fleet=joined, search={"tp": None})
    broken = {v.rule: v.amount for v in check_structure(problem, Plan((serving(0, 24),)))}
    assert broken == {"heads": 8, "session_missing": 1}


def test_256_sessions_dealt_over_three_instances_are_86_85_85() -> None:
    """ai-dynamo/aiconfigurator#1560: size an instance for the larger share."""
    problem = fleet(
        "qwen3-8b",
        cards=3,
        cohort={"num_sessions": 256},
        search={"deployment": "uniform", "dispatch": "round_robin", "tp": [1]},
    )
    order = sessions_in_order(problem)
    dealt = [order[i::3] for i in range(3)]
    assert [len(sessions) for sessions in dealt] == [86, 85, 85]

    def plan(*shares: Any) -> Plan:
        return Plan(
            tuple(
                ServingInstance("pool", ParallelConfig(), "none", (CardId(0, i),), sessions)
                for i, sessions in enumerate(shares)
            )
        )

    assert list(check_structure(problem, plan(*dealt))) == []
    wrong = check_structure(problem, plan(order[:86], order[86:171], order[171:]))
    assert {v.rule for v in wrong} == {"dispatch"}


def test_a_hand_off_of_16_kib_gains_nothing_from_a_wider_link() -> None:
    """vllm-project/vllm#6610: 8,192 numbers of 2 B at 50 GB/s take 0.33 us, at 100 GB/s 0.16."""
    model, config = published("llama-3.1-70b"), ParallelConfig(pp=2, tp=8)
    first, last = (
        stage_work(model, config, place, StepLoad()) for place in stage_places(model, (40, 40))
    )
    assert (first.handoff_bytes, last.handoff_bytes) == (16 * 1024, 0)
    seconds = []
    for bandwidth in ("400Gbit/s", "800Gbit/s"):
        link = {"name": "link", "alpha_s": "0s", "bandwidth_bytes_per_s": bandwidth}
        problem = fleet("llama-3.1-70b", servers=2)
        pool = problem.fleet.model_dump(mode="json")["pools"][0] | {"fabric_between": link}
        joined = fleet("llama-3.1-70b", servers=2, fleet={"pools": [pool]})
        footprint = Footprint("pool", config, 2, "ring", (40, 40))
        place = Place(joined.fleet.pools[0], footprint)
        seconds.append(place.handoff_s(first.handoff_bytes))
    assert seconds == [Fraction(16384, 50 * 10**9), Fraction(16384, 100 * 10**9)]
    assert round(seconds[0] * 10**6, 2) == Fraction("0.33")
