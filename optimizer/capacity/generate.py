"""Seeded random capacity decisions, tiny enough that every plan can be looked at.

Sizes sit on edges: memory fits to the byte or is one short, deadlines fall on moments when a
session can really end, and racks, power, tiers and groups let one server more in, or just not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

from instances.capacity import FAILURE_GOALS, RATIO_GOALS
from instances.instance import Instance
from instances.io import parse_instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.problem import CapacityProblem, Option

#: Enough for the draft to be valid before the real sizes are known.
DRAFT_MEMORY = 10**12
#: (servers, cards in each) of the pools. Sizes of serving instances need not divide three or five.
FLEETS = (
    *(((1, 4),), ((2, 2),), ((2, 3),), ((1, 6),), ((3, 2),), ((2, 4),), ((2, 5),), ((4, 2),)),
    *(((3, 3),), ((1, 4), (1, 2)), ((2, 2), (1, 3)), ((1, 3), (2, 2)), ((2, 1), (1, 3))),
    *(((3, 1), (1, 2)), ((2, 2), (2, 2)), ((2, 3), (1, 4)), ((3, 2), (2, 1)), ((2, 3), (2, 2))),
)
#: Degrees of tensor parallelism that are searched, by cards in the largest server.
DEGREES = {
    2: ((1,), (1, 2), (2,), (1, 2)),
    3: ((1, 2), (1, 3), (2, 3), (2,), (1,)),
    4: ((1, 2), (2, 4), (1, 3), (2, 3), (2,), (3,), (4,)),
    5: ((2, 3), (1, 3), (2,), (3,)),
    6: ((2, 3), (3,), (2,), (4,), (3, 6), (2, 4)),
}
SHARES = ("0", "0", "1/4", "1/4", "1/3", "1/2", "1/2", "1")
#: Goals that any decision may have, and those on sessions.
PLAIN_GOALS = ("price_per_hour", "price_per_hour", "servers", "cards", "power", "energy")
#: Rough number of things to try that is too many.
MANY = 120_000


def _model(rng: Random, name: str, has_experts: bool) -> dict[str, Any]:
    """Return a dense model with heads for any of the degrees, or one with experts."""
    formats = {"weights": "bf16", "embeddings": "bf16", "kv": rng.choice(("bf16", "fp8"))}
    sizes = {"hidden_size": rng.choice((48, 64)), "vocab_size": rng.choice((96, 101))}
    if has_experts:
        attention = {"kind": "gqa", "num_heads": 4, "num_kv_heads": rng.choice((1, 2))}
        ffn = {"kind": "moe", "num_experts": 4, "experts_per_token": 2, "expert_size": 32}
        group = {"name": "all", "layers": [0, 1], "attention": attention | {"head_dim": 8}}
        return {"name": name, "formats": formats, "groups": [group | {"ffn": ffn}], **sizes}
    return {
        "name": name,
        "num_layers": rng.randint(1, 3),
        "num_heads": 12,
        "num_kv_heads": rng.choice((1, 1, 6, 12)),
        "head_dim": rng.choice((8, 16)),
        "ffn_size": rng.choice((96, 129)),
        "formats": formats,
        **sizes,
    }


def _pools(
    rng: Random, sizes: Sequence[tuple[int, int]], is_purchase: bool, is_wide: bool
) -> list[Any]:
    """Return pools of the given (servers, cards in each)."""
    pools = []
    for i, (servers, cards) in enumerate(sizes):
        peaks = {"bf16": rng.choice(("1GFLOP/s", "300MFLOP/s")), "fp8": "1GFLOP/s"}
        accelerator = {
            "name": f"card-{i}",
            "memory_bytes": DRAFT_MEMORY,
            "memory_bandwidth_bytes_per_s": rng.choice(("3.35GB/s", "2GB/s", "819MB/s")),
            "peak_flops_per_s": peaks,
        }
        fabric = {
            "name": f"inside-{i}",
            "alpha_s": rng.choice(("822ns", "0s", "4.1us")),
            "bandwidth_bytes_per_s": rng.choice(("450MB/s", "450MB/s", "50MB/s")),
        }
        between = fabric | {"name": f"between-{i}", "alpha_s": rng.choice(("3.76us", "0s"))}
        server = {"name": f"server-{i}", "accelerator": accelerator, "num_cards": cards}
        groups = [d for d in range(1, servers + 1) if servers % d == 0]
        pools.append(
            {
                "name": f"pool-{i}",
                "server": server | {"fabric": fabric, "power_w": rng.choice((300, 700, 1001))},
                "num_servers": servers,
                "fabric_between": between if is_wide or rng.random() < 0.6 else None,
                "price_per_hour": rng.choice(("1", "2", "2.5", "1.01", "98.32", "1/3")),
                "rack_units": rng.choice((1, 2, 3)),
                "servers_per_group": rng.choice((1, 1, *groups)) if is_purchase else 1,
            }
        )
    return pools


def _cohorts(rng: Random, models: Sequence[dict[str, Any]], pools: list[Any]) -> list[Any]:
    """Return one to three cohorts of at most six sessions in all, yet without times."""
    number = rng.randint(len(models), 3)
    sizes = [1] * number
    for _ in range(rng.randint(0, 6 - number)):
        sizes[rng.randrange(number)] += 1
    cohorts = []
    for i, size in enumerate(sizes):
        model = models[i] if i < len(models) else rng.choice(models)
        one = {
            "name": f"cohort-{i}",
            "num_sessions": size,
            "context_tokens": rng.choice((0, 7, 31, 100)),
            "new_tokens": rng.randint(1, 12),
            "model": model["name"] if len(models) > 1 or rng.random() < 0.2 else None,
            "pools": [rng.choice(pools)["name"]] if rng.random() < 0.1 else None,
            "min_on_time_fraction": rng.choice(SHARES) if rng.random() < 0.5 else None,
        }
        cohorts.append(one)
    return cohorts


def _search(rng: Random, sizes: Sequence[tuple[int, int]], flavour: str) -> dict[str, Any]:
    """Return degrees for servers of these sizes: over several of them, of experts, or plain."""
    cards = max(size for _, size in sizes)
    search: dict[str, Any] = {"collectives": ["ring"]}
    if rng.random() < 0.5:
        search["batch"] = list(rng.choice(((2,), (1, 2), (3,), (4,))))
    if flavour == "wide":
        whole = {2 * size for servers, size in sizes if servers > 1}
        return search | {"tp": sorted({1, *whole} if rng.random() < 0.4 else whole)}
    if flavour == "experts":  # attention groups with memory of their own
        return search | {"tp": [1], "dp": rng.choice(([1, 2], [2])), "ep": [1, 2]}
    degrees = rng.choice(DEGREES[cards])
    if 1 not in degrees and rng.random() < 0.3:
        degrees = (1, *degrees)
    if rng.random() < 0.1:
        return search | {"pp": [1, 2], "tp": [degrees[0]], "micro_batches": [1, 2]}
    return search | {"tp": list(degrees)}


def _limit_memory(rng: Random, problem: CapacityProblem, data: dict[str, Any]) -> None:
    """Set the memory of cards so that a group holds some sessions to the byte, or just not."""
    fraction = Fraction(data["runtime"]["usable_memory_fraction"])
    usable = math.floor(DRAFT_MEMORY * fraction)
    for p, described in enumerate(data["fleet"]["pools"]):
        options = [problem.options[o] for o in problem.options_of_pool[p]]
        if not options:
            continue
        option = rng.choice(options)
        held = [rng.randint(0, cohort.num_sessions) for cohort in problem.cohorts]
        need = max(
            usable
            - row.free_bytes
            + sum(n * b for n, b in zip(held, row.session_bytes, strict=True))
            for row in option.memory
        )
        slack = rng.choice((0, 0, 0, 0, -1, *[10**8] * 8))
        memory = math.ceil((need + slack) / fraction)
        described["server"]["accelerator"]["memory_bytes"] = max(memory, 1)


def _moments(rng: Random, options: Sequence[Option], c: int) -> list[Fraction]:
    """Return times that sessions take on one lane, one after another; first cohort c's own."""
    own = sorted({time for option in options if (time := option.service_s[c]) is not None})
    every = [time for option in options for time in option.service_s if time is not None]
    if not own:
        return [Fraction(1, 1000)]
    fast, slow, other = own[0], own[-1], rng.choice(every)
    return [fast, slow, 2 * slow, slow + other, 3 * rng.choice(own), slow + fast]


def _schedule(rng: Random, options: Sequence[Option], cohorts: list[Any]) -> list[Fraction]:
    """Give cohorts releases and deadlines near, or exactly at, what service takes; return these."""
    ends = []
    for c, cohort in enumerate(cohorts):
        moments = _moments(rng, options, c)
        release = Fraction(0)
        if rng.random() < 0.3:
            release = rng.choice(moments) * Fraction(rng.choice((1, 1, 2)), rng.choice((1, 2, 3)))
        cohort["release_s"] = release
        stretch = Fraction(rng.choice((10, 10, 10, 20, 20, 9, 25)), 10)
        ends.append(release + rng.choice(moments) * stretch)
        if rng.random() < 0.85:
            cohort["deadline_s"] = ends[-1]
    return ends


def _relieve(rng: Random, data: dict[str, Any]) -> None:
    """Give cohorts that nothing can serve more time, and all cards more memory, if it is drawn."""
    problem = build_capacity(parse_instance(data)).problem
    for c, cohort in enumerate(data["workload"]["cohorts"]):
        served = any(option.service_s[c] is not None for option in problem.options)
        if not served and rng.random() < 0.8:
            cohort |= {"deadline_s": None, "pools": None}
            for pool in data["fleet"]["pools"]:
                pool["server"]["accelerator"]["memory_bytes"] = DRAFT_MEMORY


def _split(rng: Random, number: int) -> list[tuple[int, int]]:
    """Split servers into (racks, servers in each)."""
    if number > 1 and rng.random() < 0.4:
        return [(1, number - 1), (1, 1)]
    count = rng.choice([d for d in range(1, number + 1) if number % d == 0])
    return [(count, number // count)]


def _racks(rng: Random, pools: list[Any], is_purchase: bool) -> list[dict[str, Any]]:
    """Return racks with room for some servers, or those that hold the servers there are."""
    racks: list[dict[str, Any]] = []
    if is_purchase:
        for _ in range(rng.choice((1, 2))):
            held = [(pool, rng.choice((0, 1, 2, 2))) for pool in pools]
            racks.append(
                {"count": rng.choice((1, 1, 1, 2, 2 if len(pools) > 1 else 3)), "held": held}
            )
    elif len(pools) > 1 and pools[0]["num_servers"] == pools[1]["num_servers"]:
        held = [(pool, 1) for pool in pools]
        racks.append({"count": pools[0]["num_servers"], "held": held})
    else:
        for pool in pools:
            for count, each in _split(rng, pool["num_servers"]):
                racks.append({"count": count, "held": [(pool, each)]})
    for i, rack in enumerate(racks):
        held = rack.pop("held")
        units = sum(pool["rack_units"] * n for pool, n in held)
        watts = sum(pool["server"]["power_w"] * n for pool, n in held)
        most = max(watts + rng.choice((0, 0, -1, -300, 500)), 0)
        rack |= {
            "name": f"rack-{i}",
            "units": max(units + (rng.choice((0, 0, -1, -1, -1)) if is_purchase else 0), 1),
            "power_w": most if rng.random() < 0.4 else None,
            "cooling_w": most if rng.random() < 0.2 else None,
            "price_per_hour": rng.choice(("0", "0", "1", "0.5", "3")),
        }
        if not is_purchase:
            rack["servers"] = [{"pool": pool["name"], "num_servers": n} for pool, n in held]
    if is_purchase and rng.random() < 0.2:
        rng.choice(racks)["cooling"] = rng.choice(pools)["cooling"] = "liquid"
    return racks


def _surroundings(rng: Random, fleet: dict[str, Any], is_purchase: bool, is_wide: bool) -> None:
    """Add racks, tiers, a power budget, failure domains and occupied cards to a fleet."""
    pools = fleet["pools"]
    if rng.random() < (0.8 if is_wide else 0.5):
        fleet["racks"] = _racks(rng, pools, is_purchase)
    if not is_purchase and rng.random() < 0.6:
        for pool in rng.sample(pools, rng.randint(1, len(pools))):
            cards = pool["server"]["num_cards"]
            taken = rng.sample(range(cards), rng.choice((1, 1, min(2, cards), cards)))
            pool["occupied"] = [{"server": rng.randrange(pool["num_servers"]), "cards": taken}]
    endpoints = [
        pool["server"]["num_cards"] * rng.randint(1, pool["num_servers"]) for pool in pools
    ]
    for i in range(rng.choice((0, 0, 1, 2))):
        above = max(rng.choice((*endpoints, sum(endpoints))) - rng.choice((0, 1)), 0)
        price, watts = rng.choice(("0", "1", "20.5")), rng.choice((0, 500, 10_200))
        tier = {"name": f"tier-{i}", "above_endpoints": above, "power_w": watts}
        fleet.setdefault("switch_tiers", []).append(tier | {"price_per_hour": price})
    if rng.random() < 0.5:
        fixed = rng.choice((0, 0, 250))
        watts = fixed + sum(
            pool["server"]["power_w"] * rng.randint(1, pool["num_servers"]) for pool in pools
        )
        watts += rng.choice((0, sum(tier["power_w"] for tier in fleet.get("switch_tiers", ()))))
        budget = max(watts - rng.choice((0, 0, 0, 1)), fixed)
        fleet["power"] = {"budget_w": budget, "fixed_w": fixed}
    for i in range(rng.choice((0, 1, 2))):
        domain: dict[str, Any] = {"name": f"domain-{i}"}
        domain["kind"] = rng.choice(("power_supply", "switch"))
        racks = fleet.get("racks", ())
        named = "racks" if racks and rng.random() < 0.7 else "pools"
        domain[named] = [rng.choice(racks or pools if named == "racks" else pools)["name"]]
        fleet.setdefault("failure_domains", []).append(domain)


def _failures(rng: Random, fleet: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {"card", "server", *(domain["kind"] for domain in fleet.get("failure_domains", ()))}
    kinds |= {"rack"} if fleet.get("racks") else set()
    chosen = rng.sample(sorted(kinds), min(rng.choice((0, 0, 1, 1, 1, 2)), len(kinds)))
    return [
        {
            "kind": kind,
            "min_on_time_fraction": rng.choice((None, "0", "0", "0", "0", "0", "1/4", "1/2")),
            "probability": rng.choice(("0", "1/20", "3%", "1/40")),
        }
        for kind in chosen
    ]


def _goals(rng: Random, failures: list[dict[str, Any]], has_racks: bool) -> list[str]:
    known = [*PLAIN_GOALS, "sessions", "sessions", *sorted(RATIO_GOALS)]
    known += ["racks"] * 2 if has_racks else []
    if failures:
        known += ["worst_case_sessions"] * 3
        if all(case["kind"] != "card" for case in failures):
            known += ["expected_sessions"] * 3
    listed = list(dict.fromkeys(rng.choice(known) for _ in range(rng.choice((1, 1, 2, 3)))))
    quotients = [goal for goal in listed if goal in RATIO_GOALS]
    return [goal for goal in listed if goal not in RATIO_GOALS] + quotients[:1]


def _rough_size(problem: CapacityProblem) -> int:
    """Return about how much there is to try: what all servers can hold, one by one."""
    size = (1 + len(problem.events)) * (1 + len(problem.options))
    for c in problem.classes:
        ways = [1] + [0] * c.free_cards  # to take so many cards
        options = [problem.options[o] for o in problem.options_of_pool[c.pool]]
        for option in options:
            for cards in range(option.num_cards, c.free_cards + 1):
                ways[cards] += ways[cards - option.num_cards]
        contents = sum(ways) + sum(option.num_servers > 1 for option in options)
        size *= math.comb(contents + c.count, c.count)
    return size


def _shrunk(data: dict[str, Any]) -> Instance:
    """Return the instance of the data; where brute force would take too long, leave things out."""
    search, capacity = data["search"], data["capacity"]
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (search, {"micro_batches": [1], "pp": [1]}),
        (search, {"batch": search.get("batch", [1])[:1]}),
        (search, {"tp": search["tp"][-1:]}),
        (capacity, {"failures": [], "goals": ["sessions"]}),
    ]
    while True:
        instance = parse_instance(data)
        problem = build_capacity(instance).problem
        if set(capacity["goals"]) & FAILURE_GOALS and not problem.events:
            plain = [goal for goal in capacity["goals"] if goal not in FAILURE_GOALS]
            capacity["goals"] = plain or ["sessions"]
        elif not changes or _rough_size(problem) <= MANY:
            return instance
        else:
            part, change = changes.pop(0)
            part |= change


def tiny_capacity(seed: int) -> Instance:
    """Return the random tiny capacity decision of a seed; equal seeds give equal instances.

    It has at most two models, two pools, ten cards and six sessions. About one in three has no
    legal plan.
    """
    rng = Random(seed)
    is_purchase, sizes = rng.random() < 0.5, rng.choice(FLEETS)
    flavour = rng.choice(("plain", "plain", "plain", "experts", "wide"))
    if flavour == "wide" and all(servers == 1 for servers, _ in sizes):
        sizes = rng.choice((((2, 2),), ((3, 2),), ((4, 1),), ((2, 3),), ((3, 1), (1, 2))))
    names = ["tiny-a", "tiny-b"][: rng.choice((1, 1, 2))]
    models = [_model(rng, name, flavour == "experts") for name in names]
    pools = _pools(rng, sizes, is_purchase, flavour == "wide")
    fleet = {"mode": "purchase" if is_purchase else "existing", "pools": pools}
    cohorts = _cohorts(rng, models, pools)
    data: dict[str, Any] = {
        "name": f"tiny-capacity-{seed}",
        "decision": "capacity",
        "models": models,
        "fleet": fleet,
        "workload": {"cohorts": cohorts, "min_on_time_fraction": rng.choice(SHARES)},
        "runtime": {"workspace_bytes": 0, "usable_memory_fraction": rng.choice(("1", "9/10"))},
        "search": _search(rng, sizes, flavour),
        "capacity": {"goals": ["cards"]},
    }
    draft = build_capacity(parse_instance(data)).problem
    _limit_memory(rng, draft, data)
    ends = _schedule(rng, draft.options, cohorts)
    _relieve(rng, data)
    _surroundings(rng, fleet, is_purchase, flavour == "wide")
    failures = _failures(rng, fleet)
    goals = _goals(rng, failures, "racks" in fleet)
    period_s = rng.choice((Fraction(3600), Fraction(3600), 2 * max(ends), max(ends)))
    is_over_a_period = bool({*RATIO_GOALS, "energy"} & set(goals)) or rng.random() < 0.1
    data["capacity"] = {
        "goals": goals,
        "failures": failures,
        "period_s": period_s if is_over_a_period else None,
    }
    return _shrunk(data)
