"""Speed of link loads, for people to compare; deselected by default and never asserted. Run it with

    python -m pytest tests/bench/test_fabric_speed.py -m bench -n 0

The least that numpy can do is to count links that are known already: `ratio` in extra_info is the
median of a whole computation, paths included, over that of one bincount of the same links.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from pytest_benchmark.fixture import BenchmarkFixture

from instances.topology import Topology
from optimizer.fabrics.bounds import bisection
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.fabrics.paths import farthest

pytestmark = pytest.mark.bench
READER: TypeAdapter[Any] = TypeAdapter(Topology)
ROUNDS = 7
WIDE = {
    "kind": "leaf_spine",
    "name": "4,096 cards on 128-port switches",
    "num_leaves": 128,
    "cards_per_leaf": 32,
    "ports_per_card": 1,
    "up_ports": 32,
    "num_spines": 32,
    "ports_per_switch": 128,
    "port_bandwidth_bytes_per_s": "50GB/s",
}


def fabric_of(data: Any) -> Fabric:
    return build_fabric(READER.validate_python(data))


def all_to_all(cards: int) -> tuple[np.ndarray, np.ndarray]:
    senders, receivers = np.divmod(np.arange(cards * cards), cards)
    differ = senders != receivers
    return senders[differ], receivers[differ]


def measure(
    benchmark: BenchmarkFixture, fabric: Fabric, ends: tuple[np.ndarray, np.ndarray]
) -> None:
    """Time the loads of messages, in turns with a bincount of the links that they take."""
    senders, receivers = ends
    units = np.full(len(senders), 1024)
    legs = list(fabric.legs(senders, receivers))
    links = np.concatenate([leg.links[leg.links >= 0] for leg in legs])
    shares = np.concatenate([(leg.shares * units)[leg.links >= 0] for leg in legs])

    def count() -> None:
        np.bincount(links, weights=shares, minlength=len(fabric.links))

    compare(benchmark, lambda: fabric.loads(senders, receivers, units), count)
    benchmark.extra_info["messages"] = len(senders)


def compare(
    benchmark: BenchmarkFixture, ours: Callable[[], object], base: Callable[[], object]
) -> None:
    """Measure a call and note its ratio to a baseline measured in turns with it."""
    taken: dict[Callable[[], object], list[float]] = {base: [], ours: []}

    def in_turns() -> tuple[tuple[()], dict[str, Any]]:
        for call, seconds in taken.items():
            started = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started)
        return (), {}

    benchmark.pedantic(ours, setup=in_turns, rounds=ROUNDS, iterations=1)
    benchmark.extra_info["ratio"] = round(median(taken[ours]) / median(taken[base]), 3)
    print(f"\nratio to the baseline: {benchmark.extra_info['ratio']}")


@pytest.mark.benchmark(group="link loads")
def test_all_to_all_on_a_torus_of_512_cards(benchmark: BenchmarkFixture) -> None:
    """261,632 messages over 6 links on average."""
    fabric = fabric_of("tpu-v4-512")
    measure(benchmark, fabric, all_to_all(fabric.num_cards))


@pytest.mark.benchmark(group="link loads")
def test_all_to_all_of_cloudmatrix384(benchmark: BenchmarkFixture) -> None:
    """147,072 messages, each over 7 planes and 16 spines."""
    fabric = fabric_of("cloudmatrix384")
    measure(benchmark, fabric, all_to_all(fabric.num_cards))


@pytest.mark.benchmark(group="link loads")
def test_one_round_of_a_ring_of_4096_cards(benchmark: BenchmarkFixture) -> None:
    """Every card to the next one on two tiers: one message in 32 leaves its leaf."""
    fabric = fabric_of(WIDE)
    cards = np.arange(fabric.num_cards)
    measure(benchmark, fabric, (cards, (cards + 1) % fabric.num_cards))


@pytest.mark.benchmark(group="fabrics")
def test_build_4096_cards(benchmark: BenchmarkFixture) -> None:
    """From the checked topology to links and routing rules."""
    topology = READER.validate_python(WIDE)
    benchmark.pedantic(build_fabric, args=(topology,), rounds=ROUNDS, iterations=1)


@pytest.mark.benchmark(group="fabrics")
def test_bisection_of_cloudmatrix384(benchmark: BenchmarkFixture) -> None:
    """A largest flow through 448 chips."""
    benchmark.pedantic(bisection, args=(fabric_of("cloudmatrix384"),), rounds=3, iterations=1)


@pytest.mark.benchmark(group="fabrics")
def test_farthest_cards_of_a_torus_of_512(benchmark: BenchmarkFixture) -> None:
    """Hops of all pairs."""
    benchmark.pedantic(farthest, args=(fabric_of("tpu-v4-512"),), rounds=3, iterations=1)
