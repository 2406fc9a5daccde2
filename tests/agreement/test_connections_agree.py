"""Connections between servers: both sides of each limit by hand, and random ones by brute force.

By hand, one small model (FP8, one layer, hidden size 12; see `test_both_sides.py`): a session takes
1600 ns on TP1, 800 + 2 · 200 = 1200 ns on TP2, and 500 + 2 · 424 = 1348 ns on TP4 with trees,
inside a server or between servers, which have equal fabrics.
"""

from __future__ import annotations

import time
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import optimizer.screening as screening
from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances import Instance, parse_instance
from instances.surroundings import ConnectionSpec
from optimizer.decode import plan_of
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively
from optimizer.generate import tiny_instance
from optimizer.objectives import objective_terms
from optimizer.plan import Plan
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, SolveRequest, Termination
from optimizer.surroundings.connections import host_setup_s, state_bytes

Json = dict[str, Any]
BACKENDS: tuple[type[Formulation], ...] = (CpSatDeployment, HighsDeployment, CbcDeployment)
NS = Fraction(1, 10**9)
ONE, TWO = "TP1/1", "TP2/2"
#: Rules of connections.
RULES = ("connection_state", "connection_setup")
#: About two of three of these seeds have servers that cooperate.
SEEDS, BLOCK, LEAST = range(4000, 4160), 40, 15


def problem(connections: Json | None, cards: int = 1, servers: int = 2, **search: Any) -> Instance:
    """Return one session on equal servers in one pool."""
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": 20, "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, **widths}
    card = {
        "name": "card",
        "memory_bytes": 10**12,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    fabric = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
    server = {"name": "s", "accelerator": card, "num_cards": cards, "fabric": fabric}
    pool = {"name": "p", "server": server, "num_servers": servers, "fabric_between": fabric}
    cohort = {"name": "a", "num_sessions": 1, "context_tokens": 99, "new_tokens": 1}
    return parse_instance(
        {
            "name": "connected",
            "model": {**model, "formats": formats},
            "fleet": {"pools": [pool | {"connections": connections}]},
            "workload": {"cohorts": [cohort]},
            "runtime": {"workspace_bytes": 28},
            "objective": {"minimise": "makespan"},
            "search": {"collectives": ["ring", "tree"], **search},
        }
    )


def outline(plan: Plan) -> list[str]:
    """Return each serving instance as "TP2/2": degree and servers."""
    return [f"TP{s.parallel.tp}/{len(s.servers)}" for s in plan]


def optimum(instance: Instance, nanoseconds: int | None, wanted: str = "") -> Plan:
    """Check the optimum and its plan by brute force, every backend and `evaluate`."""
    oracle, tables = solve_exhaustively(instance), build_tables(instance)
    expected = None if nanoseconds is None else (nanoseconds * NS,)
    assert oracle.values == expected
    plans = [] if oracle.plan is None else [oracle.plan]
    for backend in BACKENDS:
        request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 60)
        found = backend().solve(request)
        if expected is None:
            assert found.termination is Termination.INFEASIBLE, backend
            continue
        assert found.termination is Termination.OPTIMAL, backend
        assert tuple(claim.value for claim in found.claims) == expected, backend
        assert found.selection is not None
        plans.append(plan_of(tables, found.selection))
    for plan in plans:
        assert outline(plan) == [wanted]
        assert evaluate(instance, plan).violations == ()
    return plans[0] if plans else Plan(())


def broken(instance: Instance, plan: Plan) -> list[tuple[str, str, Fraction | int, str]]:
    """Return (rule, where, amount, unit) of everything wrong with a plan."""
    found = evaluate(instance, plan).violations
    return [(v.rule, v.where, v.amount, v.unit) for v in found]


def refused(instance: Instance) -> list[tuple[str, int, Fraction | int, str]]:
    """Return (rule, servers, amount, message) of candidates that connections forbid."""
    rejections = build_tables(instance).rejections
    return [
        (r.rule, r.footprint.num_servers, r.amount, r.message)
        for r in rejections
        if r.rule in RULES
    ]


def pairwise(**fields: Any) -> Json:
    return {"organisation": "pairwise", "endpoints_per_host": 1, "cache_bytes": None, **fields}


@pytest.mark.parametrize("screened_from", [0, 96])
@pytest.mark.parametrize(
    ("fields", "state"),
    [
        # 512 · 1² · (2 - 1) + 32 · 1
        ({"organisation": "pairwise", "endpoints_per_host": 1}, 544),
        # 512 · 8² + 32 · 8
        ({"organisation": "pairwise", "endpoints_per_host": 8}, 33_024),
        # (20 + 32) · 3 + 56
        ({"organisation": "channels", "endpoints_per_host": 3}, 212),
        # 20 lines: 20 bits are 2.5, so 3 B, and 20 · 8 B of tags
        ({"organisation": "directory", "endpoints_per_host": 1, "num_lines": 20}, 163),
    ],
)
def test_the_cache_holds_the_state_to_the_byte(
    fields: Json, state: int, screened_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly enough lets TP2 span both servers; a byte less, and TP1 is left."""
    monkeypatch.setattr(screening, "SCREEN_FROM", screened_from)
    kept = problem({**fields, "cache_bytes": state})
    plan = optimum(kept, 1200, TWO)
    assert not refused(kept)
    short = problem({**fields, "cache_bytes": state - 1})
    optimum(short, 1600, ONE)
    assert broken(short, plan) == [("connection_state", "instances[0]", 1, "B")]
    text = f"TP2 over 2 servers needs {state:,} B of NIC state, 1 B more than the {state - 1:,} B"
    assert [found[:3] for found in refused(short)] == [("connection_state", 2, 1)]
    assert refused(short)[0][3].startswith(text)


@pytest.mark.parametrize("screened_from", [0, 96])
@pytest.mark.parametrize(
    ("fields", "microseconds"),
    [
        # 2 · 2 connections of 4 · 5 + 500 us, on 32, 3 and 1 cores: 1, 2 and 4 after another
        ({"organisation": "pairwise", "num_cores": 32}, 520),
        ({"organisation": "pairwise", "num_cores": 3}, 1040),
        ({"organisation": "pairwise", "num_cores": 1}, 2080),
        # 2 endpoints of 5 us, and 1 channel of 5 + 500 us
        ({"organisation": "channels", "num_cores": 1}, 515),
        ({"organisation": "channels", "num_cores": 2}, 510),
    ],
)
def test_connections_are_set_up_in_time_to_the_nanosecond(
    fields: Json, microseconds: int, screened_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screening, "SCREEN_FROM", screened_from)
    spec = {"endpoints_per_host": 2, "cache_bytes": None, **fields}
    plan = optimum(problem({**spec, "max_setup_s": f"{microseconds}us"}), 1200, TWO)
    late = problem({**spec, "max_setup_s": f"{1000 * microseconds - 1}ns"})
    optimum(late, 1600, ONE)
    assert broken(late, plan) == [("connection_setup", "instances[0]", NS, "s")]
    assert [found[:3] for found in refused(late)] == [("connection_setup", 2, NS)]


def test_each_limit_alone_refuses() -> None:
    """544 B and 520 us are needed; both violations are told of a plan that breaks both."""
    plan = optimum(problem(pairwise(cache_bytes=544, max_setup_s="520us")), 1200, TWO)
    for cache, setup in ((543, "520us"), (544, "519us"), (543, "519us")):
        tight = problem(pairwise(cache_bytes=cache, max_setup_s=setup))
        optimum(tight, 1600, ONE)
        rules = [rule for rule, *_ in broken(tight, plan)]
        over = [cache < 544, setup == "519us"]
        assert rules == [rule for rule, is_over in zip(RULES, over, strict=True) if is_over]


def test_more_servers_keep_more_state() -> None:
    """TP4 on four servers of one card: 512 · 3 + 32 = 1568 B, else nothing is left of TP4 alone."""
    plan = optimum(problem(pairwise(cache_bytes=1568), servers=4, tp=[4]), 1348, "TP4/4")
    short = problem(pairwise(cache_bytes=1567), servers=4, tp=[4])
    optimum(short, None)
    assert broken(short, plan) == [("connection_state", "instances[0]", 1, "B")]


def test_fewer_servers_with_more_cards_each_keep_less_state() -> None:
    """Servers of two cards: TP4 spans two (544 B) where four (1568 B) are too many."""
    instance = problem(pairwise(cache_bytes=1567), cards=2, servers=4, tp=[4])
    optimum(instance, 1348, "TP4/2")
    assert [found[:3] for found in refused(instance)] == [("connection_state", 4, 1)]
    optimum(problem(pairwise(cache_bytes=543), cards=2, servers=4, tp=[4]), None)


def test_inside_a_server_nothing_is_connected() -> None:
    """TP2 on two cards of one server needs no state at all, nor any time."""
    nothing = pairwise(cache_bytes=0, max_setup_s="1ns")
    optimum(problem(nothing, cards=2, servers=1), 1200, "TP2/1")
    optimum(problem(nothing, cards=2, servers=2, tp=[2]), 1200, "TP2/1")
    directory = {"organisation": "directory", "endpoints_per_host": 1, "cache_bytes": 0}
    optimum(problem(directory, cards=2, servers=2, tp=[2]), 1200, "TP2/1")


def test_without_limits_connections_change_nothing() -> None:
    for connections in (None, pairwise(), pairwise(cache_bytes=10**15, max_setup_s="1h")):
        instance = problem(connections)
        optimum(instance, 1200, TWO)
        assert not refused(instance)


def test_uniform_deployments_keep_the_limits_too() -> None:
    """Equal instances fill both servers: one TP2 over both, or two TP1."""
    uniform: Json = {"deployment": "uniform"}
    plan = optimum(problem(pairwise(cache_bytes=544), **uniform), 1200, TWO)
    short = problem(pairwise(cache_bytes=543), **uniform, tp=[2])
    optimum(short, None)
    assert broken(short, plan) == [("connection_state", "instances[0]", 1, "B")]


def connections_at_the_edge(rng: Random, num_servers: int) -> Json:
    """Return limits that some number of servers just keeps, or just breaks."""
    organisation = rng.choice(("pairwise", "channels", "directory"))
    spec = ConnectionSpec(
        organisation=organisation,
        endpoints_per_host=rng.randint(1, 3),
        cache_bytes=None,
        num_lines=rng.choice((3, 64)),
        num_cores=rng.randint(1, 4),
    )
    data: Json = spec.model_dump(mode="json")
    limits = rng.choice((("cache",), ("setup",), ("cache", "setup")))
    if organisation == "directory" or "cache" in limits:
        data["cache_bytes"] = state_bytes(spec, rng.randint(2, num_servers)) - rng.choice((0, 1))
    if organisation != "directory" and "setup" in limits:
        edge = host_setup_s(spec, rng.randint(2, num_servers)) - rng.choice((0, 1)) * NS
        data["max_setup_s"] = f"{edge}s"
    return data


def drawn(seed: int) -> tuple[Instance, Instance] | None:
    """Return a random instance without and with connections; None where no servers cooperate.

    Where no card fails, servers may be taken apart into one for each card.
    """
    rng, first = Random(seed), tiny_instance(seed)
    data: Json = first.model_dump(mode="json")
    for pool in data["fleet"]["pools"]:
        server = pool["server"]
        if not first.faults and rng.random() < 0.7:
            pool["fabric_between"] = pool["fabric_between"] or server["fabric"]
            pool["num_servers"] *= server["num_cards"]
            server["num_cards"] = 1
    free = parse_instance(data)
    for pool in data["fleet"]["pools"]:
        if pool["num_servers"] > 1 and pool["fabric_between"]:
            pool["connections"] = connections_at_the_edge(rng, pool["num_servers"])
    if all(pool.get("connections") is None for pool in data["fleet"]["pools"]):
        return None
    return free, parse_instance(data)


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, BLOCK))
def test_random_connections_agree_with_brute_force(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other instance is screened however small; in each block some optima must change."""
    num_asked = num_refused = num_changed = 0
    for seed in range(first, first + BLOCK):
        pair = drawn(seed)
        if pair is None:
            continue
        free, instance = pair
        try:
            before, best = solve_exhaustively(free), solve_exhaustively(instance)
        except TooLargeError:
            continue
        num_asked += 1
        num_changed += before.values != best.values
        monkeypatch.setattr(screening, "SCREEN_FROM", 0 if seed % 2 else 96)
        tables = build_tables(instance)
        num_refused += any(r.rule in RULES for r in tables.rejections)
        for backend in BACKENDS if seed % 3 == 0 else BACKENDS[:2]:
            where = f"{seed} {backend.__name__}"
            request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 30)
            found = backend().solve(request)
            if best.values is None:
                assert found.termination is Termination.INFEASIBLE, where
                continue
            assert found.termination is Termination.OPTIMAL, where
            assert tuple(claim.value for claim in found.claims) == best.values, where
            assert found.selection is not None
            assert evaluate(instance, plan_of(tables, found.selection)).violations == (), where
    assert num_asked >= LEAST
    assert num_refused
    assert num_changed
