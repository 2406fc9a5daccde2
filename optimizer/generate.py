"""Seeded random problem instances, tiny enough that every plan can be looked at.

Half have a dense model and tensor parallelism alone; the others any model and split. Sizes sit on
edges: compute, reads and reductions take about equally long, memory fits to the byte or is one
short, deadlines and faults fall on moments when a session can end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any, get_args

from instances.collectives import CollectiveName
from instances.instance import Instance
from instances.io import parse_instance
from instances.objective import Objective, ObjectiveName
from instances.workload import Cohort
from optimizer.collectives import NEED_LINKS
from optimizer.exhaustive_queues import footprints
from optimizer.footprint_prices import FootprintPrices
from optimizer.legality import legal_tp
from optimizer.operators import step_flops, step_read_bytes
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint

MAX_CARDS = 8
#: (servers, cards in each) of the pools of fleets for any split.
FLEETS = (((1, 4),), ((2, 2),), ((2, 3),), ((1, 6),), ((2, 4),), ((1, 2), (1, 4)), ((2, 2), (1, 2)))
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
COLLECTIVES = tuple(name for name in get_args(CollectiveName) if name not in NEED_LINKS)
#: Enough for the draft to be valid before the real sizes are known.
DRAFT_MEMORY = 10**12
#: More than any tiny plan needs, and few enough that sessions that fit stay small numbers.
PLENTY_BYTES = 10**8
#: Footprints times sessions that make too many plans.
MANY = 24
#: Engines that refuse more than arithmetic does.
ENGINES: tuple[dict[str, Any], ...] = (
    {"replicates_kv_heads": False, "redundant_experts": False},
    {"vocabulary_multiple": 64, "pads_vocabulary_per_card": False, "free_ep": False},
    {"uneven_stages": False, "pads_ffn": False, "vocabulary_multiple": None},
)
#: Lists of degrees; each is used in some of the instances with any split.
DEGREES: dict[str, tuple[Any, ...]] = {
    "pp": ([1, 2], [1, 2], [2], [1, 2, 3], None),
    "dp": ([1, 2], [1, 2], [2], [1, 3], None),
    "ep": ([1, 2], [2, 4], [1, 4], None),
    "cp": ([1, 2], [1, 2], [2]),
    "dcp": ([1, 2], None),
    "attention_copies": ([1, 2], [1, 2], [2]),
    "batch": ([1, 2], [2], [3], [1, 4]),
    "micro_batches": ([1, 2], [2], [1, 3]),
}


def _dense_model(rng: Random) -> dict[str, Any]:
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


def _attention(rng: Random, kind: str) -> dict[str, Any]:
    if kind == "mla":
        sizes = {"kv_lora_rank": rng.choice((16, 24)), "qk_nope_head_dim": 8, "v_head_dim": 8}
        latent = {"q_lora_rank": rng.choice((None, 24)), "qk_rope_head_dim": rng.choice((0, 4))}
        return {"kind": "mla", "num_heads": rng.choice((4, 8)), **sizes, **latent}
    if kind == "linear":
        key_heads = rng.choice((2, 4))
        heads = {"num_key_heads": key_heads, "num_value_heads": key_heads * rng.choice((1, 2))}
        return {"kind": kind, **heads, "key_head_dim": 8, "value_head_dim": 8, "conv_kernel": 4}
    gqa = {"kind": "gqa", "num_heads": 4, "num_kv_heads": rng.choice((1, 2, 4)), "head_dim": 8}
    return gqa | {"window": rng.choice((3, 9, 33)) if kind == "window" else None}


def _ffn(rng: Random, is_moe: bool) -> dict[str, Any]:
    if not is_moe:
        return {"kind": "dense", "size": rng.choice((96, 100, 128))}
    return {
        "kind": "moe",
        "num_experts": rng.randint(4, 8),
        "experts_per_token": rng.choice((1, 2, 3)),
        "expert_size": rng.choice((16, 33, 48)),
        "num_shared_experts": rng.choice((0, 0, 1)),
    }


def _any_model(rng: Random) -> dict[str, Any]:
    """Return a model of one or two groups of layers: any attention, experts, scaled FP8."""
    pairs = (("gqa", "window"), ("gqa", "linear"), ("mla", "linear"))
    kinds = rng.choice((("gqa",), ("gqa",), ("mla",), *pairs))
    layers, has_experts = rng.randint(len(kinds), 4), rng.random() < 0.7
    weights: Any = "bf16"
    if rng.random() < 0.3:
        block = rng.choice(([8, 8], [16, 16], [1, 32]))
        weights = {"number": "fp8", "scale": {"number": "fp32", "block": block}}
    return {
        "name": "tiny",
        "hidden_size": rng.choice((48, 64)),
        "vocab_size": rng.choice((101, 256)),
        "tied_embeddings": rng.random() < 0.3,
        "formats": {"weights": weights, "kv": rng.choice(("bf16", "fp8"))},
        "groups": [
            {
                "name": f"{kind} layers",
                "layers": list(range(g, layers, len(kinds))),
                "attention": _attention(rng, kind),
                "ffn": _ffn(rng, has_experts and (g == 0 or rng.random() < 0.5)),
            }
            for g, kind in enumerate(kinds)
        ],
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


def _plain_sizes(rng: Random) -> list[tuple[int, int]]:
    """Return (servers, cards in each) of one or two pools of at most six cards in all."""
    num_pools, left = rng.choice((1, 2)), 6
    sizes = []
    for i in range(num_pools):
        spare = left - (num_pools - 1 - i)
        servers = min(rng.choice((1, 2, 2)), spare)
        cards = min(rng.randint(1, 4), spare // servers)
        if servers * cards == 1 and num_pools == 1:
            cards = 2
        left -= servers * cards
        sizes.append((servers, cards))
    return sizes


def _fleet(rng: Random, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return pools of the given (servers, cards in each)."""
    pools = []
    for i, (servers, cards) in enumerate(sizes):
        accelerator = {
            "name": f"card-{i}",
            "memory_bytes": DRAFT_MEMORY,
            "memory_bandwidth_bytes_per_s": rng.choice(("3.35GB/s", "2GB/s", "819MB/s")),
            "peak_flops_per_s": {"bf16": "1GFLOP/s", "fp8": "1GFLOP/s"},
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
    listed += [5] if rng.random() < 0.2 else []  # no model here allows it
    return {
        "tp": None if rng.random() < 0.8 else listed,
        "collectives": rng.sample(COLLECTIVES, rng.choice((1, 2, 3, 3))),
        "deployment": rng.choice(("uniform", "mixed", "mixed")),
        "dispatch": rng.choice(("round_robin", "optimised")),
        "collective_choice": rng.choice(("per_plan", "per_plan", "per_plan", "per_message")),
    }


def _any_split(rng: Random, data: dict[str, Any]) -> None:
    """Let the search have more degrees than TP, and change how steps are accounted for."""
    search, cohorts = data["search"], data["workload"]["cohorts"]
    search["collectives"] = search["collectives"][:2]
    experts = {group["ffn"].get("num_experts") for group in data["model"]["groups"]} - {None}
    names = [name for name in DEGREES if experts or name not in ("dp", "ep")]
    if rng.random() < 0.3:
        for one in rng.sample(cohorts, rng.randint(1, len(cohorts))):
            one["prompt_tokens"] = rng.choice((1, 5, 30, 200))
        names = [name for name in names if name not in ("batch", "micro_batches")]
    chosen = rng.sample(names, rng.randint(2, 4))
    if "micro_batches" in chosen:
        chosen.append("pp")  # they need a pipeline
    if "dp" in chosen:
        chosen.append("ep")
    for name in chosen:
        search[name] = rng.choice(DEGREES[name])
    search["sequence_parallel"] = rng.random() < 0.15
    search["redundant_experts"] = rng.random() < 0.5
    search["stage_cut"] = rng.choice(("best", "best", "even"))
    workload = data["workload"]
    workload["routing"] = rng.choice(("balanced", "expected", "concentrated", "spread"))
    if len(experts) == 1 and rng.random() < 0.2:
        workload["expert_counts"] = [1 + rng.randrange(9) for _ in range(experts.pop())]
    data["runtime"]["roofline"] = rng.choice(("step", "operator"))
    data["runtime"]["count_activations"] = rng.random() < 0.3
    if rng.random() < 0.3:
        data["engine"] = {"name": "strict", **rng.choice(ENGINES)}


def _objective(rng: Random, data: dict[str, Any]) -> dict[str, Any]:
    names = rng.sample(OBJECTIVES, rng.choice((1, 1, 2)))
    drawn = {"minimise": names, "billing": rng.choice(("fleet", "instance"))}
    is_capacity = rng.random() < 0.5 and data["search"]["deployment"] == "uniform"
    is_single = len(data["workload"]["cohorts"]) == 1
    return drawn | ({"maximise": "held_sessions"} if is_capacity and is_single else {})


def _balance(rng: Random, draft: Instance, pools: list[dict[str, Any]]) -> None:
    """Set peaks so that compute and reads take about equally long somewhere in the run."""
    model, context = draft.model, rng.choice((0, 10, 50))
    for pool, described in zip(draft.fleet.pools, pools, strict=True):
        bandwidth = pool.server.accelerator.memory_bandwidth_bytes_per_s
        read_s = step_read_bytes(model, context) / bandwidth
        # The ratio crosses one; a whole number keeps the peak readable.
        peak = int(step_flops(model, context) / read_s * Fraction(rng.choice((7, 10, 10, 16)), 10))
        described["server"]["accelerator"]["peak_flops_per_s"] = {"bf16": peak, "fp8": peak}


def _built(draft: Instance) -> list[list[Footprint]]:
    """Return the footprints that the search allows, pool by pool."""
    allowed = list(footprints(draft))
    return [[f for f in allowed if f.pool == pool.name] for pool in draft.fleet.pools]


def _draw(rng: Random, prices: FootprintPrices, built: list[list[Footprint]]) -> list[Footprint]:
    """Return a footprint of each pool that can serve, alike if possible; TP1 where none can."""
    drawn: list[Footprint] = []
    for name, choices in zip(prices.pools, built, strict=True):
        alike = [f for f in choices if drawn and f.parallel == drawn[0].parallel] or choices
        first, tries = prices.instance.workload.cohorts[0], rng.sample(alike, len(alike))
        served = (f for f in tries if prices.service_s(f, first) is not None)
        drawn.append(next(served, Footprint(name, ParallelConfig(), 1, "none")))
    return drawn


def _limit_memory(
    rng: Random,
    prices: FootprintPrices,
    built: list[list[Footprint]],
    pools: list[dict[str, Any]],
) -> None:
    """Set card memory so that a group of a footprint holds some sessions, or just misses.

    Its fullest stage is then full to the byte, or a byte short.
    """
    draft, fraction = prices.instance, prices.instance.runtime.usable_memory_fraction
    sessions = [c for c in draft.workload.cohorts for _ in range(c.num_sessions)]
    for footprint, described in zip(_draw(rng, prices, built), pools, strict=True):
        most = -(-len(sessions) // footprint.parallel.dp)
        held: list[Cohort] = rng.sample(sessions, rng.randint((most + 1) // 2, most))
        caches = [prices.session_bytes(footprint, cohort) for cohort in held]
        stages = zip(prices.stage_weights(footprint), *caches, strict=True)
        need = max(map(sum, stages)) + prices.buffer_bytes(footprint)
        slack = rng.choice((0, 0, -1, 1000, *[PLENTY_BYTES] * 4))
        described["server"]["accelerator"]["memory_bytes"] = math.ceil((need + slack) / fraction)


def _moments(rng: Random, prices: FootprintPrices, built: list[list[Footprint]]) -> list[Fraction]:
    """Return times that sessions take on serving instances, one after another."""
    moments: list[Fraction] = []
    for footprint in _draw(rng, prices, built):
        times = [prices.service_s(footprint, cohort) for cohort in prices.instance.workload.cohorts]
        moments += [time for time in times if time is not None]
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
    for _ in range(rng.choice((0, 1, 1, 2))):
        pool = rng.choice(draft.fleet.pools)
        near = Fraction(rng.choice((0, 1, 1, 2, 2)), 2)
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
    is_plain = rng.random() < 0.5
    pools = _fleet(rng, _plain_sizes(rng) if is_plain else rng.choice(FLEETS))
    cohorts = _cohorts(rng)
    data: dict[str, Any] = {
        "name": f"tiny-{seed}",
        "model": _dense_model(rng) if is_plain else _any_model(rng),
        "fleet": {"pools": pools},
        "workload": {
            "cohorts": cohorts,
            "min_on_time_fraction": rng.choice(("0", "0", "1/2", "1/2", "3/4", "1")),
        },
        "runtime": {
            "workspace_bytes": rng.choice((0, 1000)),
            "usable_memory_fraction": rng.choice(("1", "90%")),
        },
        "objective": {"minimise": "makespan"},
    }
    data["search"] = _search(rng, legal_tp(parse_instance(data).model, MAX_CARDS))
    if not is_plain:
        _any_split(rng, data)
    drawn = _objective(rng, data)
    data["objective"] = drawn if objective is None else objective
    _balance(rng, parse_instance(data), pools)
    draft = parse_instance(data)
    built = _built(draft)
    if not any(built) and rng.random() < 0.5:  # else too many could not be served
        search = data["search"]
        search |= {"tp": None} | {name: [1, 2] for name in DEGREES if name in search}
        draft = parse_instance(data)
        built = _built(draft)
    many = sum(map(len, built)) * draft.workload.num_sessions > MANY
    if many and not is_plain:  # two sessions keep the plans few
        cohorts[:] = [cohort | {"num_sessions": 1} for cohort in cohorts[:2]]
        draft = parse_instance(data)
    prices = FootprintPrices(draft)
    _limit_memory(rng, prices, built, pools)
    moments = _moments(rng, prices, built)
    _schedule(rng, moments, cohorts)
    data["faults"] = _faults(rng, moments, draft)
    return parse_instance(data)
