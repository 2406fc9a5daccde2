"""Random tiny problems on fabrics with links: brute force, CP-SAT, HiGHS and CBC agree exactly."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances.instance import Instance
from optimizer.decode import plan_of
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_many
from optimizer.generate import tiny_instance
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import SolveRequest, Termination

SEEDS, BLOCK = 72, 12
NAMES = ("ring", "tree", "halving_doubling", "swing", "dimension_wise", "hierarchical", "in_switch")


def inside(rng: Random, cards: int, is_uniform: bool) -> dict[str, Any]:
    """Return a topology of a server: where any cards may be taken, one where all are alike."""
    speed = rng.choice(("450MB/s", "50MB/s"))
    timed = {"name": "inside", "start_s": rng.choice(("822ns", "0s")), "hop_latency_s": "200ns"}
    kinds = ("switched", "torus", "mesh", "numa") if is_uniform else ("switched",)
    kind = rng.choice(kinds)
    if kind == "switched":
        return {
            **timed,
            "kind": kind,
            "num_cards": cards,
            "ports_per_card": 3,
            "port_bandwidth_bytes_per_s": speed,
            "num_switches": 2,
            "ports_per_switch": 64,
            "reduces": rng.random() < 0.5,
        }
    if kind == "torus":
        extents = rng.choice([[a, cards // a] for a in range(1, cards + 1) if cards % a == 0])
        return {**timed, "kind": kind, "extents": extents, "link_bandwidth_bytes_per_s": speed}
    if kind == "mesh":
        links = [[a, a + 1, rng.randint(1, 2)] for a in range(cards - 1)]
        return {
            **timed,
            "kind": kind,
            "num_cards": cards,
            "links": links,
            "link_bandwidth_bytes_per_s": speed,
        }
    half = (cards + 1) // 2
    nodes = [list(range(half)), list(range(half, cards))]
    return {
        **timed,
        "kind": "numa",
        "numa_nodes": [node for node in nodes if node],
        "pcie_bandwidth_bytes_per_s": speed,
        "socket_bandwidth_bytes_per_s": "80MB/s",
        "buffers": rng.choice(("sender", "receiver", 0)),
    }


def with_links(seed: int) -> Instance:
    """Return a tiny problem whose fabrics have topologies, and collectives that need them."""
    rng, data = Random(seed), tiny_instance(seed).model_dump(mode="json")
    search = data["search"]
    for pool in data["fleet"]["pools"]:
        server = pool["server"]
        fabric = inside(rng, server["num_cards"], search["deployment"] == "uniform")
        server["fabric"]["topology"] = fabric
        if pool["fabric_between"] is not None and rng.random() < 0.7:
            pool["fabric_between"]["topology"] = {
                "kind": "servers",
                "name": "between",
                "num_servers": pool["num_servers"],
                "server": fabric,
                "nics_per_server": server["num_cards"],
                "nic_bandwidth_bytes_per_s": "50MB/s",
                "nic_start_s": "3.76us",
            }
    search["collectives"] = rng.sample(NAMES, rng.randint(1, 4))
    search["collective_choice"] = rng.choice(("per_plan", "per_message"))
    return Instance.model_validate(data)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_all_backends_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        instance = with_links(seed)
        try:
            (result,) = solve_many(instance, [instance.objective])
        except TooLargeError:
            continue
        tables, terms = build_tables(instance), objective_terms(instance)
        backends = (CpSatDeployment, HighsDeployment, CbcDeployment)[: 3 if seed % 4 == 0 else 2]
        for backend in backends:
            outcome = backend().solve(SolveRequest(tables, terms, time.monotonic() + 30))
            where = f"{seed} {backend.__name__}"
            if result.values is None:
                assert outcome.termination is Termination.INFEASIBLE, where
                continue
            assert outcome.termination is Termination.OPTIMAL, where
            assert tuple(claim.value for claim in outcome.claims) == result.values, where
            assert outcome.selection is not None
            judged = evaluate(instance, plan_of(tables, outcome.selection))
            assert judged.violations == (), where
            assert tuple(judged.objective(term.name) for term in terms) == result.values, where


def test_the_problems_are_not_all_alike() -> None:
    """Some have a plan whose collective goes by links, and some choose by message."""
    chosen = set()
    for seed in range(SEEDS):
        instance = with_links(seed)
        for candidate in build_tables(instance).candidates:
            chosen |= set(candidate.footprint.collective.split("|"))
    assert {"swing", "in_switch", "dimension_wise", "halving_doubling"} <= chosen
