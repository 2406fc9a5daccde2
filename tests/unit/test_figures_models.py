"""The published figures of mixtures of experts and hybrids (sections 6.1 to 6.3), Qwen3-32B apart.

Every figure carries the id and the section under which the source chapter prints it. Published
values and tolerances are literals; nothing here computes what it expects.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from figures import assert_figure
from instances import Instance, parse_instance
from instances.model import ModelSpec
from optimizer.collectives import NO_COLLECTIVE
from optimizer.footprint_prices import FootprintPrices
from optimizer.grids import all_reduce_sent_bytes
from optimizer.inventory import weight_bytes
from optimizer.operators import (
    expert_parameters,
    kv_bytes_per_token,
    layer_matrix_bytes,
    spread_sessions,
    step_flops,
    step_state_bytes,
    step_state_read_bytes,
    step_weight_bytes,
)
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes, stage_weight_parts
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.steps import decode_step, peak_flops_per_s
from optimizer.work import Operator, StageWork, StepLoad, stage_work

KIB, MIB, GIB, GB, TERA = 2**10, 2**20, 2**30, 10**9, 10**12
S8, S32, S128, S256 = 8192, 32_768, 131_072, 262_144
TP1, TP8 = ParallelConfig(), ParallelConfig(tp=8)
#: Attention on two cards, a copy of it in each of four expert groups (section 6.3.1).
TP2_EP4 = ParallelConfig(tp=2, ep=4, copies=4)


@cache
def problem(model: str, **formats: str) -> Instance:
    """Return one HGX H100 with sessions of 8192 tokens in all."""
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": S8 - 1, "new_tokens": 1}
    document: dict[str, Any] = {
        "name": "section 6.1",
        "model": {"base": model, "formats": formats} if formats else model,
        "fleet": {"pools": [{"name": "hgx", "server": "hgx-h100", "num_servers": 1}]},
        "workload": {"cohorts": [cohort]},
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(document)


QWEN = problem("qwen3-235b-a22b")
MODEL, POOL = QWEN.model, QWEN.fleet.pools[0]
STAGE = stage_places(MODEL, ())[0]
HBM = POOL.server.accelerator.memory_bandwidth_bytes_per_s
PEAK = peak_flops_per_s(QWEN, POOL)
PRICES = FootprintPrices(QWEN)


def footprint(config: ParallelConfig) -> Footprint:
    return Footprint("hgx", config, 1, "ring" if config.num_cards > 1 else NO_COLLECTIVE)


def card_bytes(config: ParallelConfig) -> int:
    """Weights, one session of 8192 tokens and the workspace on a card."""
    print_ = footprint(config)
    (weights,) = PRICES.stage_weights(print_)
    (session,) = PRICES.session_bytes(print_, QWEN.workload.cohorts[0])
    return weights + session + PRICES.buffer_bytes(print_)


def experts(load: StepLoad, config: ParallelConfig = TP1) -> Operator:
    """Return the experts of one layer of a step, on the card of the busiest group."""
    work = stage_work(MODEL, config, STAGE, load)
    (found,) = [operator for operator in work.operators if operator.name == "experts"]
    return found


def decode(tokens: int, routing: Any = "balanced") -> StepLoad:
    return StepLoad(decode_sessions=tokens, routing=routing, roofline="operator")


def prefill(tokens: int) -> StepLoad:
    return StepLoad(decode_sessions=0, prefill_tokens=tokens, roofline="operator")


def read_bytes(config: ParallelConfig) -> Fraction:
    """Bytes that a card reads for the token after 8192, as (6-5) counts them."""
    (operator,) = stage_work(MODEL, config, STAGE, StepLoad()).operators
    return operator.at(S8 + 1)[1]


def experts_of_a_card(config: ParallelConfig) -> int:
    parts = stage_weight_parts(MODEL, config, STAGE)
    return next(part.num_bytes for part in parts if part.component == "experts")


def sent_per_layer(load: StepLoad) -> Fraction:
    """Bytes that a card of TP2·EP4 sends for each layer: ring AllReduces of FP32 sums."""
    model = problem("qwen3-235b-a22b", activations="fp32").model
    work: StageWork = stage_work(model, TP2_EP4, STAGE, load)
    assert {exchange.kind for exchange in work.exchanges} == {"all_reduce"}
    sent = sum(
        e.times * all_reduce_sent_bytes(e.ranks, int(e.message_bytes)) for e in work.exchanges
    )
    return Fraction(sent, model.num_layers)


Value = Callable[[], Fraction | int]
OF_235B: list[tuple[str, str, Value, str, str]] = [
    ("6.1.2", "w235", lambda: weight_bytes(MODEL), "470187269120", "0"),
    ("6.1.2", "kvtok235", lambda: kv_bytes_per_token(MODEL), "192512", "0"),
    ("6.1.2", "kv8k235", lambda: step_state_bytes(MODEL, S8), "1577058304", "0"),
    ("6.1.2", "w235tp8", lambda: stage_weight_bytes(MODEL, TP8, STAGE), "58959617024", "0"),
    ("6.1.2", "kv235tp8", lambda: session_bytes(MODEL, TP8, STAGE, S8), "394264576", "0"),
    ("6.1.2", "card235tp8", lambda: Fraction(card_bytes(TP8), GB), "61.5", "0.05"),
    ("6.1.2", "one235", lambda: Fraction(card_bytes(TP1), GB), "473.9", "0.05"),
    ("6.1.2", "server235", lambda: Fraction(8 * card_bytes(TP8), GB), "492.0", "0.05"),
    (
        "6.1.2",
        "sess235",
        lambda: PRICES.held_sessions(footprint(TP8), QWEN.workload.cohorts[0]),
        "47",
        "0",
    ),
    ("6.1.2", "exp_mib", lambda: experts(decode(1)).read_bytes / MIB, "288", "0"),
    ("6.1.2", "exp_read", lambda: 10**6 * experts(decode(1)).read_bytes / HBM, "90.1", "0.05"),
    ("6.1.2", "exp_comp", lambda: 10**6 * experts(decode(1)).flops / PEAK, "0.31", "0.005"),
    ("6.1.2", "dec_w235", lambda: step_weight_bytes(MODEL) / GB, "43.1", "0.05"),
    (
        "6.1.2",
        "dec1_235",
        lambda: 1000 * decode_step(QWEN, POOL, footprint(TP1)).at(S8 + 1),
        "13.3",
        "0.05",
    ),
    ("6.1.2", "dec8_bytes", lambda: read_bytes(TP8) / GB, "5.79", "0.005"),
    ("6.1.2", "dec8_235", lambda: 1000 * read_bytes(TP8) / HBM, "1.73", "0.005"),
    ("6.1.3", "pre_read", lambda: 1000 * experts(prefill(S8)).read_bytes / HBM, "1.44", "0.005"),
    ("6.1.3", "pre_comp", lambda: 1000 * experts(prefill(S8)).flops / PEAK, "2.5", "0.05"),
    ("6.2.6", "exp_layer", lambda: experts(decode(S8)).read_bytes / GIB, "4.5", "0.05"),
    (
        "6.2.6",
        "exp_card",
        lambda: Fraction(experts_of_a_card(ParallelConfig(dp=8, ep=8)), GIB),
        "52.9",
        "0.05",
    ),
    ("6.3.1", "tp2ep4_w", lambda: stage_weight_bytes(MODEL, TP2_EP4, STAGE), "64821419008", "0"),
    (
        "6.3.1",
        "tp2ep4_kv",
        lambda: Fraction(session_bytes(MODEL, TP2_EP4, STAGE, S8), MIB),
        "752",
        "0",
    ),
    (
        "6.3.1",
        "tp2ep4_kvall",
        lambda: Fraction(8 * session_bytes(MODEL, TP2_EP4, STAGE, S8), GIB),
        "5.875",
        "0.0005",
    ),
    ("6.3.1", "tp2ep4_send", lambda: sent_per_layer(decode(1)) / KIB, "56", "0"),
    ("6.3.1", "tp2ep4_prefill", lambda: sent_per_layer(prefill(S8)) / MIB, "448", "0"),
    ("6.3.2", "moe_bal", lambda: experts(decode(64)).read_bytes / GIB, "4.5", "0.05"),
    (
        "6.3.2",
        "moe_conc",
        lambda: experts(decode(64, "concentrated")).read_bytes / MIB,
        "288",
        "0",
    ),
    (
        "6.3.2",
        "eactive_read",
        lambda: experts(decode(8, "expected")).read_bytes / GIB,
        "1.8",
        "0.05",
    ),
]


@pytest.mark.parametrize(
    ("section", "name", "value", "published", "tolerance"),
    OF_235B,
    ids=[f"{row[0]} {row[1]}" for row in OF_235B],
)
def test_figures_of_qwen3_235b_a22b(
    section: str, name: str, value: Value, published: str, tolerance: str
) -> None:
    assert_figure(f"{name} ({section})", value(), published, tolerance)


@pytest.mark.parametrize(
    ("name", "routing", "assignments"),
    [
        ("moe_group_bal", "balanced", "128"),
        ("moe_group_conc", "concentrated", "512"),
        ("moe_group_spread", "spread", "128"),
    ],
)
def test_assignments_of_the_busiest_of_four_groups_are_those_of_section_6_3_2(
    name: str, routing: str, assignments: str
) -> None:
    # 64 tokens over four groups of one card; an assignment is 2 FLOP for each number of an expert.
    work = experts(decode(16, routing), ParallelConfig(dp=4, ep=4)).flops
    per_assignment = 2 * expert_parameters(MODEL.layer_tensors[0])
    assert_figure(name, work / per_assignment, assignments, "0")


def at_32k(measure: Callable[..., Fraction | int], batch: int) -> Callable[[ModelSpec], Fraction]:
    return lambda model: Fraction(measure(model, S32, batch))


#: What the table of section 6.2.2 prints of each model, by the first part of its id.
MEASURES: dict[str, Callable[[ModelSpec], Fraction]] = {
    "w": lambda model: Fraction(weight_bytes(model, with_parts=False), GB),
    "kv": lambda model: kv_bytes_per_token(model) / KIB,
    "s128": lambda model: Fraction(step_state_bytes(model, S128), GB),
    "r1": lambda model: step_weight_bytes(model, 1) / GB,
    "r64": lambda model: step_weight_bytes(model, 64) / GB,
    "fl64": lambda model: at_32k(step_flops, 64)(model) / TERA,
    "st64": lambda model: at_32k(step_state_read_bytes, 64)(model) / GB,
}


@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    [
        ("w_qwen3-30b-a3b", "61.06", "0.005"),
        ("kv_qwen3-30b-a3b", "96", "0"),
        ("s128_qwen3-30b-a3b", "12.88", "0.005"),
        ("r1_qwen3-30b-a3b", "6.08", "0.005"),
        ("r64_qwen3-30b-a3b", "60.44", "0.005"),
        ("fl64_qwen3-30b-a3b", "2.04", "0.005"),
        ("st64_qwen3-30b-a3b", "206.2", "0.05"),
        ("w_qwen3.6-35b-a3b", "69.32", "0.005"),
        ("kv_qwen3.6-35b-a3b", "20", "0"),
        ("s128_qwen3.6-35b-a3b", "2.75", "0.005"),
        ("r1_qwen3.6-35b-a3b", "5.89", "0.005"),
        ("r64_qwen3.6-35b-a3b", "68.3", "0.05"),
        ("fl64_qwen3.6-35b-a3b", "0.73", "0.005"),
        ("st64_qwen3.6-35b-a3b", "47.1", "0.05"),
    ],
)
def test_sparse_models_read_and_hold_what_section_6_2_2_prints(
    name: str, published: str, tolerance: str
) -> None:
    measure, model = name.split("_")
    assert_figure(name, MEASURES[measure](problem(model).model), published, tolerance)


def test_a_hybrid_keeps_little_for_a_long_request_as_section_6_2_2_prints() -> None:
    model = problem("qwen3.6-35b-a3b").model
    assert_figure("q36_256k", Fraction(step_state_bytes(model, S256), GB), "5.43", "0.005")


@pytest.mark.parametrize(
    ("name", "cards", "context", "requests"),
    [
        ("fit_qwen3-30b-a3b_1x131072", 1, S128, "1"),
        ("fit_qwen3-30b-a3b_1x32768", 1, S32, "5"),
        ("fit_qwen3-30b-a3b_2x131072", 2, S128, "7"),
        ("fit_qwen3-30b-a3b_2x32768", 2, S32, "29"),
        ("fit_qwen3.6-35b-a3b_1x131072", 1, S128, "3"),
        ("fit_qwen3.6-35b-a3b_1x32768", 1, S32, "11"),
        ("fit_qwen3.6-35b-a3b_2x131072", 2, S128, "31"),
        ("fit_qwen3.6-35b-a3b_2x32768", 2, S32, "117"),
    ],
)
def test_requests_that_fit_one_and_two_cards_are_those_of_section_6_2_2(
    name: str, cards: int, context: int, requests: str
) -> None:
    model = problem(name.split("_")[1]).model
    fitting = spread_sessions(model, context, cards, 80 * GB, 2 * GIB)
    assert_figure(name, fitting, requests, "0")


def test_nothing_fits_where_the_weights_alone_are_too_much() -> None:
    model = problem("qwen3-235b-a22b").model
    assert spread_sessions(model, S8, 5, 80 * GB, 2 * GIB) == 0
    # 6 · (80 GB - 2 GiB) leave -3.07 GB, 7 leave 74.78 GB: 47.4 requests of 1.577 GB.
    assert spread_sessions(model, S8, 6, 80 * GB, 2 * GIB) == 0
    assert spread_sessions(model, S8, 7, 80 * GB, 2 * GIB) == 47


def test_one_layers_experts_are_the_matrices_that_a_long_prompt_reads() -> None:
    # 4.5 GiB of experts, and attention and router of one layer: the rest of its matrices.
    whole = layer_matrix_bytes(MODEL)
    work = stage_work(MODEL, TP1, STAGE, prefill(S8))
    others = ("attention_q", "attention_k", "attention_v", "attention_o", "router", "experts")
    assert whole == sum(o.read_bytes for o in work.operators if o.name in others)
