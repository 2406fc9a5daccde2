"""Speed of pricing a whole grid of candidates with arrays; deselected by default. Run it with

    python -m pytest tests/bench/test_pricing_speed.py -m bench -n 0 -s

Exact prices, one candidate at a time, are the baseline: both report candidates a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from instances.instance import Instance
from instances.io import parse_instance
from optimizer.arrays.prices import PriceArrays, footprint_arrays, price_arrays
from optimizer.legality import check_config
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes
from optimizer.plan import Footprint
from optimizer.steps import decode_step

pytestmark = pytest.mark.bench
CARDS = 64
BATCHES = np.arange(1, CARDS + 1)
DIVISORS = [degree for degree in range(1, CARDS + 1) if CARDS % degree == 0]


def deepseek_r1(roofline: str) -> Instance:
    """Return DeepSeek-R1 on eight servers of eight H100, with sessions of 4096 tokens and more."""
    pool = {"name": "hgx", "server": "hgx-h100", "num_servers": 8}
    cohort = {"name": "chat", "num_sessions": 64, "context_tokens": 4096, "new_tokens": 1024}
    return parse_instance(
        {
            "name": "grid",
            "model": "deepseek-r1",
            "fleet": {"pools": [pool | {"fabric_between": "infiniband-ndr"}]},
            "workload": {"cohorts": [cohort]},
            "runtime": {"roofline": roofline, "count_activations": True},
            "objective": {"minimise": "makespan"},
        }
    )


def legal_footprints(instance: Instance) -> list[Footprint]:
    """Return every legal TP, PP, DP, EP and CP on all cards, stages as even as they can be."""
    found, layers = [], instance.model.num_layers
    for tp, pp, dp, cp in product(DIVISORS, repeat=4):
        if tp * pp * dp * cp != CARDS or pp > layers:
            continue
        stages = tuple(layers // pp + (i < layers % pp) for i in range(pp))
        for ep in DIVISORS:
            config = ParallelConfig(dp=dp, pp=pp, tp=tp, cp=cp, ep=ep)
            if not check_config(instance.model, config, instance.engine):
                found.append(Footprint("hgx", config, 8, "ring", stages))
    return found


def measure(benchmark: BenchmarkFixture, count: int, run: Callable[[], Any], rounds: int) -> Any:
    """Run and note how many candidates are priced in a second."""
    result = benchmark.pedantic(run, rounds=rounds, iterations=1, warmup_rounds=1)
    benchmark.extra_info["candidates"] = count
    if benchmark.stats is not None:
        per_second = round(count / benchmark.stats.stats.median)
        benchmark.extra_info["candidates_per_s"] = per_second
    print(f"\n{benchmark.extra_info}")
    return result


@pytest.mark.benchmark(group="grid of candidates")
@pytest.mark.parametrize("roofline", ["step", "operator"])
def test_price_all_of_deepseek_r1_on_64_cards(benchmark: BenchmarkFixture, roofline: str) -> None:
    """Bytes and times of every legal footprint with 64 batch sizes, columns made anew."""
    instance = deepseek_r1(roofline)
    footprints, pool = legal_footprints(instance), instance.fleet.pools[0]

    def run() -> PriceArrays:
        return price_arrays(instance, pool, footprint_arrays(instance, footprints), BATCHES)

    prices = measure(benchmark, len(footprints) * len(BATCHES), run, 20)
    assert prices.is_timed.all()


@pytest.mark.benchmark(group="grid of candidates")
@pytest.mark.parametrize("roofline", ["step", "operator"])
def test_price_a_few_of_them_exactly(benchmark: BenchmarkFixture, roofline: str) -> None:
    """Baseline: the exact functions, on every eleventh footprint with one batch."""
    instance = deepseek_r1(roofline)
    model, pool = instance.model, instance.fleet.pools[0]
    held = instance.workload.cohorts[0].held_tokens
    footprints = [replace(item, batch=32) for item in legal_footprints(instance)[::11]]

    def run() -> None:
        for footprint in footprints:
            for place in stage_places(model, footprint.stages):
                stage_weight_bytes(model, footprint.parallel, place)
                session_bytes(model, footprint.parallel, place, held)
            buffer_bytes(instance, footprint)
            decode_step(instance, pool, footprint).at(held)

    measure(benchmark, len(footprints), run, 3)
