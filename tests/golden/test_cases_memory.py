"""Public bug reports about memory, retold: what a card holds, and which candidates fit."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from instances import Instance, parse_instance
from instances.catalog_store import catalog_entry, resolve_reference
from instances.model import ModelSpec
from optimizer import SolveOptions, solve
from optimizer.footprint_prices import FootprintPrices
from optimizer.inventory import weight_bytes
from optimizer.legality import check_config
from optimizer.operators import kv_bytes_per_token
from optimizer.ownership import card_weight_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.stages.building import capacity_problem, pipeline_cut
from optimizer.stages.evaluation import best_cut, evaluate_stages
from optimizer.stages.problem import Stage, StageLayer, StageProblem

GIB, GB = 2**30, 10**9
#: What a driver reports of an 80 GB card: 79.6 GiB.
H100_BYTES = 796 * GIB // 10
ONE_THREAD = SolveOptions(threads=1)


@cache
def published(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


def modified(name: str, **changes: Any) -> ModelSpec:
    return ModelSpec.model_validate(resolve_reference("models")({"base": name, **changes}))


def fleet(
    model: Any, memory: Any, *, servers: int = 1, cards: int = 8, tokens: int = 2, **more: Any
) -> Instance:
    """Return H100-like servers with `memory` a card and one session that ends with `tokens`."""
    accelerator = {"base": "h100-sxm", "memory_bytes": memory}
    server = {"name": "s", "accelerator": accelerator, "num_cards": cards, "fabric": "nvlink-4"}
    pool: dict[str, Any] = {"name": "pool", "server": server, "num_servers": servers}
    if servers > 1:
        pool["fabric_between"] = "infiniband-ndr"
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": tokens - 1, "new_tokens": 1}
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


def held(problem: Instance, stages: tuple[int, ...] = (), **degrees: int) -> int:
    """Sessions whose caches fit at once on one serving instance."""
    footprint = Footprint("pool", ParallelConfig(**degrees), 1, "ring", stages)
    return FootprintPrices(problem).held_sessions(footprint, problem.workload.cohorts[0])


def on_card(model: ModelSpec, config: ParallelConfig) -> int:
    return stage_weight_bytes(model, config, stage_places(model, ())[0])


def in_units(size: int, unit: int, digits: int = 1) -> Fraction:
    return round(Fraction(size, unit), digits)


def test_d09_a_latent_cache_is_as_large_on_each_card_at_any_tp() -> None:
    """61 · 576 · 2 B = 70,272 B a token: 131,072 tokens are 8.58 GiB, 163,840 are 10.72 GiB."""
    assert kv_bytes_per_token(published("deepseek-r1")) == 70_272
    assert in_units(70_272 * 131_072, GIB, 2) == Fraction("8.58")
    assert in_units(70_272 * 163_840, GIB, 2) == Fraction("10.72")
    problem = fleet("deepseek-r1", "192GiB", tokens=131_072)
    prices, cohort = FootprintPrices(problem), problem.workload.cohorts[0]
    for degrees in ({"tp": 1}, {"tp": 8, "ep": 8}, {"dp": 8, "ep": 8}):
        footprint = Footprint("pool", ParallelConfig(**degrees), 1, "ring")
        assert prices.session_bytes(footprint, cohort) == (70_272 * 131_072,)


def test_d09_attention_groups_or_dealt_tokens_hold_seven_to_eight_times_as_much() -> None:
    """192 GiB less 2 GiB workspace; TP8 has 85.14 GB of weights, DP8 has 100.84 GB.

    TP8: 118.87 / 9.21 = 12.9; DP8: 8 groups of 103.17 / 9.21 = 11.2; DCP8: 118.87 / 1.15 = 103.2.
    """
    problem = fleet("deepseek-r1", "192GiB", tokens=131_072)
    tp8 = held(problem, tp=8, ep=8)
    dp8 = held(problem, dp=8, ep=8)
    dcp8 = held(problem, tp=8, ep=8, dcp=8)
    assert (tp8, dp8, dcp8) == (12, 88, 103)
    assert 7 * tp8 <= dp8 <= 8 * tp8


def test_d09_the_planner_finds_the_split_that_holds_most() -> None:
    problem = fleet(
        "deepseek-r1",
        "192GiB",
        tokens=131_072,
        search={"tp": [1, 8], "dp": [1, 8], "ep": [8], "deployment": "uniform"},
        objective={"maximise": "held_sessions"},
    )
    result = solve(problem, ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    (group,) = result.plan.groups
    assert (group.parallel.dp, group.parallel.tp, group.parallel.ep) == (8, 1, 8)
    assert result.evaluation is not None
    assert result.evaluation.held_sessions == 88


QWEN_14B: dict[str, Any] = {
    "name": "r1-distill-qwen-14b",
    "num_layers": 48,
    "hidden_size": 5120,
    "num_heads": 40,
    "num_kv_heads": 8,
    "head_dim": 128,
    "ffn_size": 13824,
    "vocab_size": 152064,
    "qkv_bias": True,
}


def two_4090s(tokens: int, kv: str = "bf16", stages: tuple[int, ...] = ()) -> Instance:
    """Two cards that have 8.69 GiB left for caches beside 13.95 + 0.44 GiB of 23.08 GiB."""
    model = {**QWEN_14B, "formats": {"kv": kv}}
    spec = ModelSpec.model_validate(model)
    config = ParallelConfig(pp=2) if stages else ParallelConfig(tp=2)
    sizes = [stage_weight_bytes(spec, config, place) for place in stage_places(spec, stages)]
    usable, left = 2308 * GIB // 100, 869 * GIB // 100
    runtime = {"workspace_bytes": usable - left - max(sizes)}
    return fleet(model, usable, cards=2, tokens=tokens, runtime=runtime)


def test_d10_two_pools_of_cache_do_not_add_up() -> None:
    """48 · 8 heads · 128 · 2 · 2 B / 2 = 98,304 B a token and card: 131,072 tokens are 12.0 GiB.

    8.69 GiB hold 94,917 tokens; the engine's 81,536 tokens were 7.46 GiB on the fuller card.
    """
    problem = two_4090s(131_072)
    footprint = Footprint("pool", ParallelConfig(tp=2), 1, "ring")
    (size,) = FootprintPrices(problem).session_bytes(footprint, problem.workload.cohorts[0])
    assert size == 98_304 * 131_072 == 12 * GIB
    assert held(problem, tp=2) == 0
    assert held(two_4090s(94_917), tp=2) == 1
    assert held(two_4090s(94_918), tp=2) == 0
    assert in_units(98_304 * 81_536, GIB, 2) == Fraction("7.46")


def test_d10_an_fp8_cache_fits_and_two_stages_change_nothing() -> None:
    assert held(two_4090s(131_072, "fp8"), tp=2) == 1
    stages = (24, 24)
    problem = two_4090s(131_072, stages=stages)
    footprint = Footprint("pool", ParallelConfig(pp=2), 1, "none", stages)
    sizes = FootprintPrices(problem).session_bytes(footprint, problem.workload.cohorts[0])
    assert sizes == (12 * GIB, 12 * GIB)
    assert held(problem, stages, pp=2) == 0
    assert held(two_4090s(94_917, stages=stages), stages, pp=2) == 1


OLD, NEW = (7, 7, 7, 7, 7, 7, 7, 12), (7, 7, 8, 8, 8, 8, 8, 7)


def r1_on_eight_servers(**search: Any) -> Instance:
    """R1 in bf16 on 8 servers of 8 cards with 0.98 · 80 GiB and nothing else on them."""
    return fleet(
        {"base": "deepseek-r1", "formats": {}},
        "80GiB",
        servers=8,
        runtime={"workspace_bytes": 0, "usable_memory_fraction": "98%"},
        search=search,
    )


def test_d12_a_balanced_cut_of_61_layers_holds_1_86_times_the_tokens() -> None:
    """7·7+12 leaves 35.1 GB and 12 layers of cache on the last stage.

    A stage with 8 layers, all of experts, cannot be avoided: 58 of them over 8 stages. The report
    divides all weights by 8 (34.8 GB, 3.58 M and 6.64 M tokens); the down-projections of the latent
    attention and the router are copied, 30 MB a layer, which costs under 1 % of the tokens.
    """
    problem = r1_on_eight_servers()
    config = ParallelConfig(pp=8, tp=8)
    footprint = Footprint("pool", config, 8, "ring")
    cuts = capacity_problem(problem, (footprint,) * 8)
    last = evaluate_stages(cuts, OLD).stages[-1]
    assert last.kv_bytes_per_token == 12 * 1152
    assert in_units(last.weight_bytes + last.extra_bytes, GB) == Fraction("35.1")
    assert evaluate_stages(cuts, OLD).value == 3_549_696
    found = best_cut(cuts)
    assert found is not None
    most = evaluate_stages(cuts, found).value
    assert most == evaluate_stages(cuts, NEW).value == 6_611_210
    assert round(Fraction(6_611_210, 3_549_696), 2) == Fraction("1.86")
    for tokens, reported in ((3_549_696, 3_580_000), (6_611_210, 6_640_000)):
        assert 0 < reported - tokens < reported // 100


def test_d12_with_the_weights_divided_as_the_report_does_its_numbers_come_out() -> None:
    """A layer of experts has 11.507e9 parameters, a dense one 0.584e9; the head 129280 · 7168."""
    sizes = [2 * 584_000_000 // 8] * 3 + [2 * 11_507_000_000 // 8] * 58
    capacity, head = 80 * GIB * 98 // 100, 2 * 129_280 * 7168 // 8
    layers = tuple(
        StageLayer((size,) * 8, (1152,) * 8, (0,) * 8, (Fraction(0),) * 8) for size in sizes
    )
    stages = (*(Stage(capacity) for _ in range(7)), Stage(capacity, head))
    problem = StageProblem(layers, stages, "tokens")
    tokens = {cut: evaluate_stages(problem, cut).value for cut in (OLD, NEW)}
    assert [round(Fraction(value or 0) / 10**6, 2) for value in tokens.values()] == [
        Fraction("3.58"),
        Fraction("6.64"),
    ]
    found = best_cut(problem)
    assert found is not None
    assert evaluate_stages(problem, found).value == tokens[NEW]
    tie = (6, 8, 8, 8, 8, 8, 8, 7)
    assert evaluate_stages(problem, tie).value == tokens[NEW]


def test_d12_the_planner_cuts_by_bytes_and_an_engine_without_uneven_stages_does_not() -> None:
    footprint = Footprint("pool", ParallelConfig(pp=8, tp=8), 8, "ring")
    problem = r1_on_eight_servers(tp=[8], pp=[8])
    cut = pipeline_cut(problem, footprint)
    assert cut is not None
    cuts = capacity_problem(problem, (footprint,) * 8)
    assert evaluate_stages(cuts, cut).value == 6_611_210
    even = r1_on_eight_servers(stage_cut="even")
    assert pipeline_cut(even, footprint) == (8, 8, 8, 8, 8, 7, 7, 7)


FIVE = {
    "EP8": ParallelConfig(dp=8, ep=8),
    "EP16": ParallelConfig(dp=16, ep=16),
    "EP32": ParallelConfig(dp=32, ep=32),
    "EP64": ParallelConfig(dp=64, ep=64),
    "TP8·EP8": ParallelConfig(tp=8, ep=8),
}


def test_d13_of_five_candidates_ep16_and_ep32_fit_on_32_cards_of_79_6_gib() -> None:
    """The thread's rule, "TP1 never fits", is wrong: 8 cards never do, 16 and 32 at TP1 do."""
    model, usable = published("deepseek-r1"), 9 * 796 * GIB // 100
    assert all(check_config(model, config) == [] for config in FIVE.values())
    fits = {
        name
        for name, config in FIVE.items()
        if config.num_cards <= 32 and on_card(model, config) <= usable
    }
    assert fits == {"EP16", "EP32"}
    assert on_card(model, ParallelConfig(tp=16)) <= usable
    assert on_card(model, FIVE["EP64"]) <= usable  # but it has 64 cards


@pytest.mark.parametrize(
    ("name", "gigabytes", "gibibytes"),
    [("EP8", "100.7", "93.8"), ("EP16", "59.8", "55.7"), ("EP32", "39.4", "36.7")],
)
def test_d13_attention_groups_hold_what_the_report_adds_up(
    name: str, gigabytes: str, gibibytes: str
) -> None:
    """Experts / EP + 18.98 GB: all at one byte but the vocabulary, and no scales, as reported."""
    model = modified("deepseek-r1", formats={"weights": "fp8"})
    size = on_card(model, FIVE[name])
    assert (in_units(size, GB), in_units(size, GIB)) == (Fraction(gigabytes), Fraction(gibibytes))
    # With the scales and a router of two bytes: 0.02 + 0.11 GB and 0.16 GB / EP more.
    more = on_card(published("deepseek-r1"), FIVE[name]) - size
    assert 0 < more < 2 * GB // 10


def test_d13_tensor_parallelism_copies_what_the_report_divides() -> None:
    """84.1 GB (78.3 GiB) over 8 and 39.2 GiB over 16; 1.03 GB of matrices are on every card."""
    model = modified("deepseek-r1", formats={"weights": "fp8"})
    total = weight_bytes(model, with_parts=False)
    assert in_units(total // 8, GB) == Fraction("84.1")
    assert in_units(total // 8, GIB) == Fraction("78.3")
    assert in_units(total // 16, GIB) == Fraction("39.2")
    # Down-projections (1536 + 576) · 7168 in 61 layers, router 256 · 7168 in 58, norms, its bias.
    copied = 61 * 2112 * 7168 + 58 * 256 * 7168 + 2_013_184 + 59_392
    assert on_card(model, FIVE["TP8·EP8"]) * 8 == total + 7 * copied
    assert on_card(model, ParallelConfig(tp=16)) * 16 == total + 15 * copied


def test_d13_the_planner_takes_the_smallest_that_fits() -> None:
    problem = fleet(
        "deepseek-r1",
        H100_BYTES,
        servers=4,
        runtime={"usable_memory_fraction": "90%"},
        search={"tp": [1], "dp": [8, 16, 32, 64], "ep": [8, 16, 32, 64]},
    )
    result = solve(problem, ONE_THREAD)
    assert result.termination == "optimal"
    assert result.plan is not None
    (group,) = result.plan.groups
    assert (group.count, group.parallel.tp, group.parallel.dp) == (1, 1, 16)
    refused = {(r.parallel.dp, r.parallel.ep): r.rule for r in result.rejected}
    assert refused[8, 8] == "memory"
    assert refused[64, 64] == "num_cards"
    assert "memory" not in {rule for (dp, _), rule in refused.items() if dp in (16, 32)}


def test_an_fp8_cache_of_48_layers_with_4_kv_heads_has_49152_bytes_a_token() -> None:
    """vllm-project/vllm#25350: 221,000 tokens are 10.12 GiB."""
    model = modified("qwen3-30b-a3b", formats={"kv": "fp8"})
    assert kv_bytes_per_token(model) == 49_152
    assert in_units(221_000 * 49_152, GIB, 2) == Fraction("10.12")


def test_a_70b_model_on_one_card_leaves_3_gib_before_activations() -> None:
    """llm-d-benchmark#621: 75.6 GiB may be used; weights 67.7 and 16,000 tokens 4.88 GiB."""
    model = modified("llama-3.1-70b", formats={"weights": "fp8"})
    weights, cache = card_weight_bytes(model, 1), 16_000 * kv_bytes_per_token(model)
    assert in_units(weights, GIB) == Fraction("67.7")
    assert in_units(int(cache), GIB, 2) == Fraction("4.88")
    left = 95 * 796 * GIB // 1000 - weights - int(cache)
    assert in_units(left, GIB, 2) == Fraction("3.07")
    base = {"base": "llama-3.1-70b", "formats": {"weights": "fp8"}}

    def runtime(workspace: str) -> dict[str, Any]:
        return {"usable_memory_fraction": "95%", "workspace_bytes": workspace}

    for workspace, sessions in (("3GiB", 1), ("3.125GiB", 0)):
        problem = fleet(base, H100_BYTES, cards=1, tokens=16_000, runtime=runtime(workspace))
        assert held(problem) == sessions


def test_32_cards_of_24_gb_hold_r1_best_with_fewer_layers_on_the_last_stage() -> None:
    """deepseek-ai/DeepSeek-V3#205: 15/15/15/16 layers put 21.5 GiB on the last of 4 stages.

    One byte a parameter, all divided by 8: 16 · 11.507e9 / 8 + head; 15 such layers are 20.1 GiB.
    """
    sizes = [584_000_000 // 8] * 3 + [11_507_000_000 // 8] * 58
    vocabulary = 129_280 * 7168 // 8

    def heaviest(cut: tuple[int, ...]) -> Fraction:
        ends = [sum(cut[:i]) for i in range(5)]
        stages = [sum(sizes[a:b]) for a, b in pairwise(ends)]
        stages[0] += vocabulary
        stages[-1] += vocabulary
        return round(Fraction(max(stages), GIB), 1)

    assert heaviest((15, 15, 15, 16)) == Fraction("21.5")
    layers = tuple(
        StageLayer((size,) * 4, (1,) * 4, (0,) * 4, (Fraction(size),) * 4) for size in sizes
    )
    ends = (vocabulary, 0, 0, vocabulary)
    stages = tuple(Stage(24 * GIB, extra, Fraction(extra)) for extra in ends)
    found = best_cut(StageProblem(layers, stages, "slowest"))
    assert found is not None
    assert heaviest(found) == Fraction("20.1")
