"""Seeded capacity instances of any size: many cohorts and models, unlike servers, huge fleets.

Models and accelerators are those of the catalog. Servers that it does not have, their fabrics and
power, all prices an hour and all workloads are invented for measuring: plausible, but of no one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from instances.instance import Instance
from instances.io import parse_instance
from optimizer.capacity.building import build_capacity, model_instances
from optimizer.configurations import configurations, whole_spans
from optimizer.footprints import check_degrees
from optimizer.plan import Footprint


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of server. `accelerator` is None where the catalog has the whole server."""

    name: str
    server: str
    accelerator: str | None
    num_cards: int
    power_w: str
    rack_units: int
    cooling: str
    price_per_hour: str
    #: Share of the fleet's cards that may be had of this kind.
    most: float


#: Prices, power and the fabrics of servers with an `accelerator` are invented.
KINDS = (
    _Kind("h100", "hgx-h100", None, 8, "10.2kW", 8, "air", "32", 0.45),
    _Kind("h200", "hgx-h200", None, 8, "10.2kW", 8, "air", "48", 0.45),
    _Kind("b200", "bench-b200", "b200-sxm", 8, "14.3kW", 10, "liquid", "80", 0.35),
    _Kind("a100", "bench-a100", "a100-40gb-sxm", 16, "10kW", 12, "air", "32", 0.45),
    _Kind("l40s", "bench-l40s", "l40s", 4, "2kW", 2, "air", "8", 0.45),
)

#: Catalog models, and milliseconds a token that users may be promised (invented).
MODELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("llama-3.1-8b", (6, 8, 10, 12)),
    ("qwen3-30b-a3b", (6, 8, 10)),
    ("qwen3-32b", (12, 15, 20, 25)),
    ("mixtral-8x7b", (8, 10, 12, 15)),
    ("llama-3.1-70b", (20, 25, 30, 40)),
    ("gpt-oss-120b", (8, 10, 12, 15)),
    ("qwen3-8b", (6, 8, 10, 12)),
    ("glm-4.5", (20, 25, 30)),
    ("mixtral-8x22b", (15, 20, 25)),
    ("qwen3-235b-a22b", (20, 25, 30)),
)
CONTEXTS = (512, 768, 1024, 1536, 2048, 3072, 4096)
NEW_TOKENS = (64, 128, 192, 256, 384, 512)
BATCHES = (4, 8, 12, 16, 24, 32, 48, 64)

#: Sessions of a fleet, in parts of what it takes of each cohort where that is served densest.
LOAD = Fraction(5, 4)

#: Servers are bought by blocks of so many cards, fewer where the fleet is small.
BLOCK_CARDS, BLOCKS = 512, 128


def large_capacity(
    seed: int,
    *,
    num_cards: int = 100_000,
    num_cohorts: int = 48,
    num_models: int = 8,
    num_pools: int = 5,
) -> Instance:
    """Return an instance whose cheapest fleet has about `num_cards` cards.

    Fleets of one seed that differ in `num_cards` alone have the same cohorts in other numbers.
    """
    rng = Random(seed)
    models = [name for name, _ in MODELS[:num_models]]
    cohorts = [_cohort(rng, i, *MODELS[i % num_models]) for i in range(num_cohorts)]
    weights = [rng.randint(50, 150) for _ in cohorts]
    data = _document(seed, num_cards, models, KINDS[:num_pools], cohorts)
    densities = _densities(data)
    total = sum(weights)
    for cohort, weight, density in zip(cohorts, weights, densities, strict=True):
        share = Fraction(weight, total) * num_cards * density * LOAD
        cohort["num_sessions"] = max(int(share), 1)
    return parse_instance(_document(seed, num_cards, models, KINDS[:num_pools], cohorts))


def count_candidates(instance: Instance) -> int:
    """Return how many candidates a search lists: every legal split and batch, model and pool."""
    found = 0
    for alone in model_instances(instance):
        for pool in () if alone is None else alone.fleet.pools:
            assert alone is not None
            for config in configurations(alone, pool):
                if not check_degrees(alone, Footprint(pool.name, config, 1, "")):
                    found += len(tuple(whole_spans(pool, config.num_cards)))
    return found * len(instance.search.batch)


def _cohort(rng: Random, number: int, model: str, paces_ms: tuple[int, ...]) -> dict[str, Any]:
    new = rng.choice(NEW_TOKENS)
    return {
        "name": f"cohort-{number}",
        "model": model,
        "num_sessions": 1000,
        "context_tokens": rng.choice(CONTEXTS),
        "new_tokens": new,
        "deadline_s": f"{new * rng.choice(paces_ms)}ms",
    }


def _document(
    seed: int,
    num_cards: int,
    models: list[str],
    kinds: tuple[_Kind, ...],
    cohorts: list[dict[str, Any]],
) -> dict[str, Any]:
    block = 2 ** max(int(math.log2(max(num_cards // BLOCKS, 1))), 4)
    block = min(block, BLOCK_CARDS)
    pools = [_pool(kind, num_cards, block, len(kinds)) for kind in kinds]
    air = {"name": "air", "count": num_cards, "units": 42, "power_w": "40kW"}
    liquid = {"name": "liquid", "count": num_cards, "units": 48, "power_w": "120kW"}
    return {
        "name": f"large-{seed}",
        "decision": "capacity",
        "models": models,
        "fleet": {
            "mode": "purchase",
            "pools": pools,
            "racks": [air, liquid | {"cooling": "liquid"}],
            "power": {"budget_w": f"{3 * num_cards}kW", "fixed_w": "100kW"},
        },
        "workload": {"cohorts": cohorts},
        "search": {
            "tp": [1, 2, 4, 8],
            "dp": [1, 2, 4, 8],
            "ep": [1, 2, 4, 8],
            "cp": [1, 2],
            "attention_copies": [1, 2],
            "batch": list(BATCHES),
            "collectives": ["ring"],
        },
        "capacity": {"goals": ["price_per_hour"]},
    }


def _pool(kind: _Kind, num_cards: int, block: int, num_kinds: int) -> dict[str, Any]:
    """Return a pool that is bought by blocks; few kinds may each make up the whole fleet."""
    group = max(block // kind.num_cards, 1)
    most = kind.most if num_kinds > 2 else 3.0
    groups = math.ceil(most * num_cards / (group * kind.num_cards))
    server: Any = kind.server
    if kind.accelerator is not None:
        fabric = {"name": f"inside-{kind.name}", "alpha_s": "1us"}
        server = {
            "name": kind.server,
            "accelerator": kind.accelerator,
            "num_cards": kind.num_cards,
            "fabric": fabric | {"bandwidth_bytes_per_s": "300GB/s"},
            "power_w": kind.power_w,
        }
    return {
        "name": kind.name,
        "server": server,
        "num_servers": groups * group,
        "price_per_hour": kind.price_per_hour,
        "rack_units": kind.rack_units,
        "cooling": kind.cooling,
        "servers_per_group": group,
    }


def _densities(data: dict[str, Any]) -> list[Fraction]:
    """Return the most sessions of each cohort alone that a card takes, over a few candidates."""
    few = {"dp": [1, 8], "ep": [1, 8], "batch": [8, 32, 64], "cp": [1], "attention_copies": [1]}
    problem = build_capacity(parse_instance(data | {"search": data["search"] | few})).problem
    best = [Fraction(0)] * len(problem.cohorts)
    for option in problem.options:
        for c, service_s in enumerate(option.service_s):
            deadline_s = problem.cohorts[c].deadline_s
            if service_s is None or deadline_s is None:
                continue
            number = option.num_lanes * (deadline_s // service_s)
            for row in option.memory:
                if row.session_bytes[c]:
                    number = min(number, row.free_bytes // row.session_bytes[c])
            best[c] = max(best[c], Fraction(option.num_groups * number, option.num_cards))
    return best
