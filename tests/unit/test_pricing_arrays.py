"""Prices of whole grids against the exact ones, one candidate at a time, on random samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from instances.instance import Instance
from instances.io import parse_instance
from optimizer.arrays.prices import PriceArrays, footprint_arrays, price_arrays
from optimizer.collectives import CollectiveUnavailable
from optimizer.footprint_prices import is_meaningful
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes
from optimizer.plan import Footprint
from optimizer.steps import decode_step, prompt_s

TOLERANCE = Fraction(1, 10**12)
BATCHES = (1, 3, 64, 1000)
COHORTS = (
    {"name": "chat", "num_sessions": 1, "context_tokens": 4097, "new_tokens": 301},
    {"name": "summary", "num_sessions": 2, "context_tokens": 0, "new_tokens": 1},
)
PROMPTS = (
    {**COHORTS[0], "prompt_tokens": 1001},
    COHORTS[1],
    {**COHORTS[1], "name": "long", "prompt_tokens": 33_333},
)
#: The exact (6-8) is a power of a fraction with as many digits as there are tokens.
SHORT = ({**COHORTS[0], "prompt_tokens": 131}, COHORTS[1])
COUNTED = {"routing": "balanced", "expert_counts": [(7 * e) % 13 for e in range(128)]}
OPERATOR = {"roofline": "operator"}
ACTIVATIONS = {
    "roofline": "operator",
    "count_activations": True,
    "double_buffers": True,
    "collective_buffer_bytes": 12_345,
    "migration_bytes": 678,
}
TIED = {
    "name": "tied",
    "num_layers": 6,
    "hidden_size": 641,
    "num_heads": 20,
    "num_kv_heads": 5,
    "head_dim": 32,
    "ffn_size": 1001,
    "vocab_size": 32_003,
    "tied_embeddings": True,
    "qk_norm": True,
    "qkv_bias": True,
    "formats": {"weights": {"number": "fp4", "scale": {"number": "fp8", "block": [3, 7]}}},
}
PADDED = {"name": "padded", "vocabulary_multiple": 64, "pads_vocabulary_per_card": False}
LATENT = {
    "name": "latent",
    "hidden_size": 512,
    "vocab_size": 5000,
    "residual_streams": 3,
    "groups": [
        {
            "name": "all",
            "layers": "0-4",
            "attention": {
                "kind": "mla",
                "num_heads": 16,
                "q_lora_rank": 96,
                "kv_lora_rank": 64,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
                "num_index_heads": 4,
                "index_head_dim": 16,
                "index_topk": 512,
            },
            "ffn": {
                "kind": "moe",
                "num_experts": 24,
                "experts_per_token": 5,
                "expert_size": 192,
                "latent_size": 256,
                "expert_bias": True,
                "num_shared_experts": 1,
                "shared_gate": True,
            },
        }
    ],
}


def _table(ranks: int, servers: int, top: int) -> dict[str, Any]:
    """Return a measured table of an AllReduce that ends at 4^top · 1000 bytes."""
    rows = [
        {"message_bytes": 1000 * 4**i, "time_s": f"{20_000 + 997 * i**3}ns"} for i in range(top)
    ]
    return {"name": f"{ranks} on {servers}", "ranks": ranks, "servers": servers, "rows": rows}


def _instance(model: Any, **changes: Any) -> Instance:
    """Return 16 servers of 8 cards, on which model and workload are as asked for."""
    inside = [_table(ranks, 1, top) for ranks, top in ((2, 10), (4, 8), (8, 12))]
    between = [_table(ranks, servers, 9) for ranks, servers in ((16, 2), (8, 2), (4, 4), (32, 4))]
    accelerator = {
        "name": "card",
        "memory_bytes": "80GB",
        "memory_bandwidth_bytes_per_s": "3351GB/s",
        "peak_flops_per_s": {"bf16": "977TFLOP/s", "fp8": "1979TFLOP/s", "fp4": "3TFLOP/s"},
    }
    fabric = {"alpha_s": "821ns", "bandwidth_bytes_per_s": "450GB/s", "measured": inside}
    server = {"name": "node", "accelerator": accelerator, "num_cards": 8}
    server["fabric"] = {"name": "inside", **fabric}
    fabric = {"alpha_s": "3.77us", "bandwidth_bytes_per_s": "49GB/s", "measured": between}
    pool = {"name": "pool", "server": server, "num_servers": 16}
    pool["fabric_between"] = {"name": "between", **fabric} if changes.pop("joined", True) else None
    workload = {"cohorts": changes.pop("cohorts", COHORTS), **changes.pop("workload", {})}
    data = {
        "name": "grid",
        "model": model,
        "fleet": {"pools": [pool]},
        "workload": workload,
        "runtime": {},
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(data | changes)


def _redundant(rng: Random, instance: Instance, ep: int) -> int:
    """Return a number of spare experts with which groups are equal, or 0."""
    sizes = [group.ffn.num_experts for group in instance.model.groups if group.ffn.kind == "moe"]
    return -max(sizes, default=0) % ep + rng.choice((0, 0, ep)) if sizes and ep > 1 else 0


def _cut(rng: Random, layers: int, pp: int) -> tuple[int, ...]:
    ends = [0, *sorted(rng.sample(range(1, layers), pp - 1)), layers]
    return tuple(ends[i + 1] - ends[i] for i in range(pp)) if pp > 1 or rng.random() < 0.5 else ()


def _footprint(rng: Random, instance: Instance) -> Footprint:
    """Return a drawn footprint, meaningful or not."""
    power = [1, 1, 2, 4, 8]
    tp, cp, dcp = (
        rng.choice([1, 2, 4, 5, 8, 16]),
        rng.choice([1, 1, 2, 3, 4]),
        rng.choice([1, 1, 2, 4]),
    )
    dp, copies, pp = rng.choice(power), rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 3, 4])
    cards = dp * copies * cp * tp
    ep = rng.choice([e for e in range(1, cards + 1) if cards % e == 0])
    sp = rng.choice((1, tp))
    config = ParallelConfig(
        dp, pp, tp, cp, ep, sp, dcp, copies, redundant=_redundant(rng, instance, ep)
    )
    return Footprint(
        "pool",
        config,
        rng.randint(1, min(3, cards * pp)) if rng.random() < 0.2 else -(-cards * pp // 8),
        rng.choice(("ring", "tree", "measured")) if cards * pp > 1 else "none",
        _cut(rng, instance.model.num_layers, pp),
        1,
        rng.choice((1, 2, 3, 7)) if pp > 1 else 1,
    )


@cache
def _drawn(seed: int, count: int, make: Callable[[], Instance]) -> tuple[Instance, list[Footprint]]:
    """Return an instance and footprints that mean something on it."""
    rng, instance, found = Random(seed), make(), []
    while len(found) < count:
        footprint = _footprint(rng, instance)
        if is_meaningful(instance, footprint):
            found.append(footprint)
    return instance, found


CASES: dict[str, Callable[[], Instance]] = {
    "qwen3-235b, step": lambda: _instance("qwen3-235b-a22b"),
    "qwen3-235b, expected": lambda: _instance(
        "qwen3-235b-a22b", runtime=OPERATOR, workload={"routing": "expected"}, cohorts=SHORT
    ),
    "qwen3-235b, counted": lambda: _instance(
        "qwen3-235b-a22b", runtime=OPERATOR, workload=COUNTED, cohorts=PROMPTS
    ),
    "deepseek-r1, step": lambda: _instance(
        "deepseek-r1", runtime={"loaded_parts": ["mtp"]}, workload={"routing": "spread"}
    ),
    "deepseek-r1, operator": lambda: _instance(
        "deepseek-r1", runtime=ACTIVATIONS, engine="vllm", cohorts=PROMPTS
    ),
    "qwen3.6-35b, step": lambda: _instance(
        "qwen3.6-35b-a3b",
        workload={"routing": "concentrated"},
        runtime={"loaded_parts": ["vision", "mtp"]},
    ),
    "qwen3.6-35b, operator": lambda: _instance(
        "qwen3.6-35b-a3b", runtime=OPERATOR, cohorts=PROMPTS
    ),
    "deepseek-v4-flash": lambda: _instance("deepseek-v4-flash", runtime=ACTIVATIONS),
    "deepseek-v4.1-flash, copy": lambda: _instance(
        "deepseek-v4.1-flash", runtime=OPERATOR, workload={"routing": "expected"}
    ),
    "deepseek-v4.1-flash, remote": lambda: _instance(
        "deepseek-v4.1-flash", search={"kv_sharing": "remote"}, cohorts=PROMPTS
    ),
    "gpt-oss-120b": lambda: _instance("gpt-oss-120b", cohorts=PROMPTS),
    "gpt-oss-120b, apart": lambda: _instance("gpt-oss-120b", joined=False, runtime=OPERATOR),
    "kimi-k3": lambda: _instance("kimi-k3", workload={"routing": "spread"}, runtime=OPERATOR),
    "tied": lambda: _instance(TIED, cohorts=PROMPTS, runtime=ACTIVATIONS),
    "tied, vocabulary padded in all": lambda: _instance(TIED, runtime=OPERATOR, engine=PADDED),
    "latent": lambda: _instance(
        LATENT, cohorts=PROMPTS, runtime=OPERATOR, workload={"routing": "concentrated"}
    ),
}
NAMES = list(CASES)


def _prices(name: str) -> tuple[Instance, list[Footprint], PriceArrays]:
    instance, footprints = _drawn(NAMES.index(name), 25, CASES[name])
    arrays = footprint_arrays(instance, footprints)
    return (
        instance,
        footprints,
        price_arrays(instance, instance.fleet.pools[0], arrays, np.array(BATCHES)),
    )


def _is_near(found: float, exact: Fraction) -> bool:
    return abs(Fraction(float(found)) - exact) <= TOLERANCE * exact


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_exact_functions_to_the_byte(name: str) -> None:
    instance, footprints, prices = _prices(name)
    model, engine, loaded = instance.model, instance.engine, instance.runtime.loaded_parts
    sharing = instance.search.kv_sharing
    for n, footprint in enumerate(footprints):
        config = footprint.parallel
        places = stage_places(model, footprint.stages)
        weights = [stage_weight_bytes(model, config, p, engine, loaded) for p in places]
        rest = prices.weight_bytes.shape[1] - len(places)
        assert prices.weight_bytes[n].tolist() == weights + [0] * rest, footprint
        for c, cohort in enumerate(instance.workload.cohorts):
            held = [session_bytes(model, config, p, cohort.held_tokens, sharing) for p in places]
            assert prices.session_bytes[n, :, c].tolist() == held + [0] * rest, footprint
        for b, batch in enumerate(BATCHES):
            exact = buffer_bytes(instance, replace(footprint, batch=batch))
            assert prices.buffer_bytes[n, b] == exact, footprint


@pytest.mark.parametrize("name", NAMES)
def test_times_between_tokens_are_the_exact_ones_but_for_the_last_digits(name: str) -> None:
    instance, footprints, prices = _prices(name)
    pool = instance.fleet.pools[0]
    for n, footprint in enumerate(footprints):
        for b, batch in enumerate(BATCHES):
            try:
                step = decode_step(instance, pool, replace(footprint, batch=batch))
            except CollectiveUnavailable:
                assert not prices.is_timed[n, b], footprint
                assert np.isnan(prices.first_s[n, b]).all()
                assert np.isnan(prices.last_s[n, b]).all()
                continue
            assert prices.is_timed[n, b], footprint
            for c, cohort in enumerate(instance.workload.cohorts):
                first = step.at(cohort.held_tokens - cohort.new_tokens + 1)
                assert _is_near(prices.first_s[n, b, c], first), (footprint, batch)
                last = step.at(cohort.held_tokens)
                assert _is_near(prices.last_s[n, b, c], last), (footprint, batch)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_take_as_long_as_exactly_computed(name: str) -> None:
    instance, footprints, prices = _prices(name)
    pool = instance.fleet.pools[0]
    for n, footprint in enumerate(footprints):
        for c, cohort in enumerate(instance.workload.cohorts):
            try:
                exact = prompt_s(instance, pool, footprint, cohort)
            except CollectiveUnavailable:
                assert not prices.is_prompt_timed[n, c], footprint
                assert np.isnan(prices.prompt_s[n, c])
                continue
            assert prices.is_prompt_timed[n, c], footprint
            assert _is_near(prices.prompt_s[n, c], exact), (footprint, cohort.name)


def test_the_samples_have_times_for_every_kind_of_split() -> None:
    footprints, untimed = [], 0
    for name in NAMES:
        _, drawn, prices = _prices(name)
        footprints += [drawn[n] for n in np.flatnonzero(prices.is_timed.any(axis=1))]
        untimed += int((~prices.is_timed.all(axis=1)).sum())
    assert len(footprints) > 200
    assert untimed > 100
    configs = [footprint.parallel for footprint in footprints]
    kinds = {
        "SP": [c.sp > 1 for c in configs],
        "CP": [c.cp > 1 for c in configs],
        "DCP": [c.dcp > 1 for c in configs],
        "copies": [c.copies > 1 for c in configs],
        "attention DP": [c.dp > 1 for c in configs],
        "EP": [c.ep > 1 and c.moe_tp == 1 for c in configs],
        "EP of cut experts": [c.ep > 1 and c.moe_tp > 1 for c in configs],
        "redundant experts": [c.redundant > 0 for c in configs],
        "pipelines": [c.pp > 1 for c in configs],
        "micro-batches": [f.micro_batches > 1 for f in footprints],
        "one card": [c.num_cards == 1 for c in configs],
        "tree": [f.collective == "tree" for f in footprints],
        "measured": [f.collective == "measured" for f in footprints],
    }
    assert all(sum(flags) >= 10 for flags in kinds.values()), kinds
