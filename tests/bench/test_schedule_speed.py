"""Speed of pricing rounds on links; deselected by default. Run it with

    python -m pytest tests/bench/test_schedule_speed.py -m bench -n 0 -s

Fabrics are built outside the measurement, schedules inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from instances.topology import LeafSpineTopology, TorusTopology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import Price, price
from optimizer.schedules.simulate import check_schedule

pytestmark = pytest.mark.bench


def torus() -> Fabric:
    """Return 512 cards in a cube."""
    return build_fabric(
        TorusTopology(
            name="torus",
            extents=(8, 8, 8),
            link_bandwidth_bytes_per_s="50GB/s",
            start_s="1us",
            hop_latency_s="200ns",
        )
    )


def leaves() -> Fabric:
    """Return 4,096 cards under 128 leaves and 32 spines."""
    return build_fabric(
        LeafSpineTopology(
            name="leaves",
            num_leaves=128,
            cards_per_leaf=32,
            ports_per_card=1,
            up_ports=32,
            num_spines=32,
            ports_per_switch=128,
            port_bandwidth_bytes_per_s="25GB/s",
            hop_latency_s="200ns",
        )
    )


def measure(benchmark: BenchmarkFixture, run: Callable[[], Any]) -> Any:
    return benchmark.pedantic(run, rounds=5, iterations=1, warmup_rounds=1)


@pytest.mark.benchmark(group="4096 ranks on leaves and spines")
@pytest.mark.parametrize(
    ("algorithm", "options", "rounds"),
    [
        ("ring", {}, 8190),
        ("halving_doubling", {}, 24),
        ("hierarchical", {"extents": (32, 128)}, 2 * (31 + 127)),
    ],
)
def test_all_reduce_of_4096_ranks(
    benchmark: BenchmarkFixture, algorithm: str, options: dict[str, object], rounds: int
) -> None:
    fabric = leaves()

    def run() -> Price:
        schedule = build_schedule("all_reduce", algorithm, 4096, **options)
        return price(schedule, fabric, [range(4096)])

    assert measure(benchmark, run).num_rounds == rounds


@pytest.mark.benchmark(group="4096 ranks on leaves and spines")
def test_512_rings_of_eight_side_by_side(benchmark: BenchmarkFixture) -> None:
    fabric = leaves()
    groups = np.arange(4096).reshape(8, 512).T.tolist()  # every ring crosses leaves
    run = lambda: price(build_schedule("all_reduce", "ring", 8), fabric, groups)  # noqa: E731
    assert measure(benchmark, run).num_rounds == 14


@pytest.mark.benchmark(group="512 ranks on a torus")
@pytest.mark.parametrize(
    ("operation", "algorithm", "options"),
    [
        ("all_to_all", "direct", {}),
        ("all_to_all", "pairwise", {}),
        ("all_to_all", "two_level", {"extents": (8, 64)}),
        ("all_reduce", "swing", {}),
        ("all_reduce", "dimension_wise", {"extents": (8, 8, 8), "rotations": True}),
    ],
)
def test_512_ranks(
    benchmark: BenchmarkFixture, operation: str, algorithm: str, options: dict[str, object]
) -> None:
    fabric = torus()

    def run() -> Price:
        schedule = build_schedule(operation, algorithm, 512, **options)
        return price(schedule, fabric, [range(512)])

    assert measure(benchmark, run).link_bound_s_per_byte > 0


@pytest.mark.benchmark(group="512 ranks on a torus")
def test_uneven_direct_exchange_of_512_ranks(benchmark: BenchmarkFixture) -> None:
    fabric = torus()
    counts = np.random.default_rng(0).integers(0, 10**6, size=(512, 512))

    def run() -> Price:
        schedule = build_schedule("all_to_all", "direct", 512, counts=counts)
        return price(schedule, fabric, [range(512)])

    assert measure(benchmark, run).total_s > 0


@pytest.mark.benchmark(group="proof by running")
@pytest.mark.parametrize("ranks", [16, 64])
def test_prove_a_swing(benchmark: BenchmarkFixture, ranks: int) -> None:
    measure(benchmark, lambda: check_schedule(build_schedule("all_reduce", "swing", ranks)))
