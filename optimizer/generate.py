"""Seeded random problem instances, tiny enough that every plan can be looked at.

Sizes are chosen to sit on edges: compute and memory reads take about equally long, reductions
cost as much as either, memory fits to the byte or is one byte short, and deadlines and faults
fall on moments at which a session can really end.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any, get_args

from instances.instance import CollectiveName, Instance, Objective, ObjectiveName
from instances.io import parse_instance
from optimizer.evaluate import card_kv_bytes, service_time_s
from optimizer.operators import step_flops, step_read_bytes
from optimizer.ownership import card_weight_bytes
from optimizer.parallel import legal_tp

MAX_CARDS = 6
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)
#: Enough for the draft to be a valid instance before the real sizes are known.
DRAFT_MEMORY = 10**12


def _model(rng: Random) -> dict[str, Any]:
    heads = rng.choice((4, 8, 12))
    formats = {"weights": "bf16", "embeddings": "bf16", "kv": rng.choice(("bf16", "fp8"))}
    return {
        "name": "tiny",
        "num_layers": rng.randint(1, 3),
        "hidden_size": rng.choice((48, 64, 96)),
        "num_heads": heads,
        "num_kv_heads": rng.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0]),
        "head_dim": rng.choice((8, 16)),
        "ffn_size": rng.choice((100, 129, 192)),
        "vocab_size": rng.choice((101, 256)),
        "tied_embeddings": rng.random() < 0.3,
        "qk_norm": rng.random() < 0.3,
        "qkv_bias": rng.random() < 0.3,
        "formats": formats,
    }


def _fabric(rng: Random, name: str, ranks: int, servers: int, alphas: tuple[str, ...]) -> Any:
    """Return a fabric, sometimes with a measured table that ends too early for the message."""
    tables = []
    if ranks >= 2 and ranks % servers == 0 and rng.random() < 0.6:
        sizes = sorted(rng.sample((64, 97, 128, 192, 256, 1024), 3))
        rows = [{"message_bytes": size, "time_s": f"{rng.randint(700, 9000)}ns"} for size in sizes]
        tables = [{"name": f"{name}-x{ranks}", "ranks": ranks, "servers": servers, "rows": rows}]
    return {
        "name": name,
        "alpha_s": rng.choice(alphas),
        "bandwidth_bytes_per_s": rng.choice(("450MB/s", "50MB/s", "31.7MB/s")),
        "measured": tables,
    }


def _fleet(rng: Random) -> list[dict[str, Any]]:
    """Return one or two pools of at most `MAX_CARDS` cards in all."""
    num_pools, left = rng.choice((1, 2)), MAX_CARDS
    pools = []
    for i in range(num_pools):
        spare = left - (num_pools - 1 - i)
        servers = min(rng.choice((1, 2, 2)), spare)
        cards = min(rng.randint(1, 4), spare // servers)
        if servers * cards == 1 and num_pools == 1:
            cards = 2
        left -= servers * cards
        accelerator = {
            "name": f"card-{i}",
            "memory_bytes": DRAFT_MEMORY,
            "memory_bandwidth_bytes_per_s": rng.choice(("3.35GB/s", "2GB/s", "819MB/s")),
            "peak_flops_per_s": {"bf16": "1GFLOP/s"},
        }
        server = {
            "name": f"server-{i}",
            "accelerator": accelerator,
            "num_cards": cards,
            "fabric": _fabric(rng, f"inside-{i}", rng.randint(2, 4), 1, ("822ns", "0s", "4.1us")),
            "power_w": rng.choice((700, 1001, 10200)),
        }
        ranks = 2 * rng.randint(1, cards)
        between = _fabric(rng, f"between-{i}", ranks, 2, ("3.76us", "822ns"))
        pools.append(
            {
                "name": f"pool-{i}",
                "server": server,
                "num_servers": servers,
                "fabric_between": between if rng.random() < 0.7 else None,
            }
        )
    return pools


def _cohorts(rng: Random) -> list[dict[str, Any]]:
    """Return one to three cohorts of at most four sessions in all, yet without times."""
    sessions = rng.choice((1, 2, 3, 3, 4, 4))
    count = rng.randint(1, min(3, sessions))
    sizes = [1] * count
    for _ in range(sessions - count):
        sizes[rng.randrange(count)] += 1
    return [
        {
            "name": f"cohort-{i}",
            "num_sessions": size,
            "context_tokens": rng.choice((0, 7, 31, 100)),
            "new_tokens": rng.randint(1, 12),
        }
        for i, size in enumerate(sizes)
    ]


def _search(rng: Random, tp_known: tuple[int, ...]) -> dict[str, Any]:
    listed = rng.sample(tp_known, rng.randint(1, len(tp_known)))
    if rng.random() < 0.2:
        listed.append(5)  # no model here allows it
    return {
        "tp": None if rng.random() < 0.8 else listed,
        "collectives": rng.sample(COLLECTIVES, rng.choice((1, 2, 3, 3))),
        "deployment": rng.choice(("uniform", "mixed", "mixed")),
        "dispatch": rng.choice(("round_robin", "optimised")),
    }


def _objective(rng: Random) -> dict[str, Any]:
    names = rng.sample(OBJECTIVES, rng.choice((1, 1, 2)))
    return {"minimise": names, "billing": rng.choice(("fleet", "instance"))}


def _balance(rng: Random, draft: Instance, pools: list[dict[str, Any]]) -> None:
    """Set peaks so that compute and reads take about equally long somewhere in the run."""
    model, context = draft.model, rng.choice((0, 10, 50))
    for pool, described in zip(draft.fleet.pools, pools, strict=True):
        bandwidth = pool.server.accelerator.memory_bandwidth_bytes_per_s
        read_s = step_read_bytes(model, context) / bandwidth
        # The ratio crosses one; a whole number keeps the peak readable.
        peak = int(step_flops(model, context) / read_s * Fraction(rng.choice((7, 10, 10, 16)), 10))
        described["server"]["accelerator"]["peak_flops_per_s"] = {"bf16": peak}


def _limit_memory(rng: Random, draft: Instance, pools: list[dict[str, Any]]) -> None:
    """Set card memory so that a drawn degree holds a drawn number of sessions, or just misses."""
    model, workload = draft.model, draft.workload
    sessions = [c for c in workload.cohorts for _ in range(c.num_sessions)]
    fraction = draft.runtime.usable_memory_fraction
    for pool, described in zip(draft.fleet.pools, pools, strict=True):
        tp = rng.choice(legal_tp(model, pool.num_cards))
        held = rng.sample(sessions, rng.randint((len(sessions) + 1) // 2, len(sessions)))
        need = card_weight_bytes(model, tp) + card_kv_bytes(draft, tp, held)
        need += draft.runtime.workspace_bytes
        slack = rng.choice((0, 0, -1, 1000, *[DRAFT_MEMORY] * 6))
        described["server"]["accelerator"]["memory_bytes"] = math.ceil((need + slack) / fraction)


def _moments(rng: Random, draft: Instance) -> list[Fraction]:
    """Return times that sessions take on serving instances of the draft, one after another."""
    moments = []
    for pool in draft.fleet.pools:
        tp = rng.choice(legal_tp(draft.model, pool.server.num_cards))
        name = "ring" if tp > 1 else "none"
        moments += [
            service_time_s(draft, pool, tp, 1, name, cohort) for cohort in draft.workload.cohorts
        ]
    return [*moments, *(2 * moment for moment in moments), rng.choice(moments) + moments[0]]


def _schedule(rng: Random, moments: list[Fraction], cohorts: list[dict[str, Any]]) -> None:
    """Give cohorts releases and deadlines near, or exactly at, what service takes."""
    for cohort in cohorts:
        release = Fraction(0)
        if rng.random() < 0.4:
            release = rng.choice(moments) * Fraction(rng.choice((1, 1, 2)), rng.choice((1, 2, 3)))
        cohort["release_s"] = release
        if rng.random() < 0.7:
            stretch = Fraction(rng.choice((10, 10, 20, 20, 9, 25, 40)), 10)
            cohort["deadline_s"] = release + rng.choice(moments) * stretch


def _faults(rng: Random, moments: list[Fraction], draft: Instance) -> list[dict[str, Any]]:
    faults = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        pool = rng.choice(draft.fleet.pools)
        near = rng.choice((Fraction(0), Fraction(1, 2), Fraction(1), Fraction(1)))
        faults.append(
            {
                "pool": None if pool is draft.fleet.pools[0] and rng.random() < 0.5 else pool.name,
                "server": rng.randrange(pool.num_servers),
                "card": rng.randrange(pool.server.num_cards),
                "at_s": rng.choice(moments) * near,
                "stall_s": rng.choice(moments) * Fraction(rng.randint(1, 5), 3),
            }
        )
    return faults


def tiny_instance(seed: int, *, objective: Objective | dict[str, Any] | None = None) -> Instance:
    """Return the random tiny instance of a seed; equal seeds give equal instances.

    Parameters
    ----------
    seed
        Any integer.
    objective
        The objective to use instead of a random one; the rest depends on the seed alone.

    Returns
    -------
    Instance
        At most six cards and four sessions. About one in six has no feasible plan.
    """
    rng = Random(seed)
    drawn = _objective(rng)
    pools, cohorts = _fleet(rng), _cohorts(rng)
    data: dict[str, Any] = {
        "name": f"tiny-{seed}",
        "model": _model(rng),
        "fleet": {"pools": pools},
        "workload": {
            "cohorts": cohorts,
            "min_on_time_fraction": rng.choice(("0", "0", "1/2", "1/2", "3/4", "1")),
        },
        "runtime": {
            "workspace_bytes": rng.choice((0, 1000)),
            "usable_memory_fraction": rng.choice(("1", "90%")),
        },
        "objective": objective or drawn,
    }
    draft = parse_instance(data)
    data["search"] = _search(rng, legal_tp(draft.model, MAX_CARDS))
    _balance(rng, draft, pools)
    _limit_memory(rng, draft, pools)
    draft = parse_instance(data)
    moments = _moments(rng, draft)
    _schedule(rng, moments, cohorts)
    data["faults"] = _faults(rng, moments, draft)
    return parse_instance(data)
