"""Both sides of every rule of capacity, for every backend, brute force and the evaluator.

One instance just admits a plan; the other, changed by the least amount, refuses it and every plan
of the first. All numbers are added by hand from one small model (FP8, one layer, hidden size 12,
head size 1):

* 4 query and 2 KV heads: attention (8 + 4) · 12 = 144 B, FFN 3 · 12 · 20 = 720 B, head 28 · 12 =
  336 B. A step reads 1200 B and the KV of context + 1 = 100 tokens, 4 B each: 1600 B, at 1 B/ns.
* A session generates one token. TP1 takes 1600 ns; TP2 800 + 2 ring AllReduces of 2 · (94 + 12/2) =
  200 ns: 1200 ns; TP4 keeps one KV head a card: 300 + 200 = 500 ns and rings of 6 · (94 + 3) = 582:
  1664 ns.
* A card of TP1 holds 1600 B (weights 1572, workspace 28) and 400 B a session.

Servers have 1 card and 700 W unless a case says otherwise, so two sessions that end by 1600 ns need
two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import pytest

from formulations.capacity import solve_capacity
from formulations.integer_program import BACKENDS
from instances import Instance, parse_instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.exhaustive import capacity_optimum
from optimizer.capacity.plan import CapacityPlan
from optimizer.protocols import Termination

Json = dict[str, Any]
NS = Fraction(1, 10**9)
FABRIC = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
MODEL = {
    "name": "m",
    "num_layers": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_size": 12,
    "head_dim": 1,
    "ffn_size": 20,
    "vocab_size": 28,
    "formats": dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8"),
}


def pool(
    name: str = "p", servers: int = 2, *, cards: int = 1, memory: int = 10**9, **more: Any
) -> Json:
    accelerator = {
        "name": "card",
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    server = {"name": "s", "accelerator": accelerator, "num_cards": cards, "fabric": FABRIC}
    return {"name": name, "server": {**server, "power_w": 700}, "num_servers": servers, **more}


def cohort(
    sessions: int = 2, deadline: str | None = "1600ns", name: str = "a", **more: Any
) -> Json:
    tokens = {"context_tokens": 99, "new_tokens": 1}
    return {"name": name, "num_sessions": sessions, "deadline_s": deadline, **tokens, **more}


def asked(
    *cohorts: Json,
    pools: list[Json] | None = None,
    goal: str = "servers",
    tp: int = 1,
    share: str = "1",
    period: str | None = None,
    failures: list[Json] | None = None,
    **fleet: Any,
) -> Json:
    """A capacity decision: two servers in one pool, on which two sessions must end by 1600 ns."""
    return {
        "name": "side",
        "decision": "capacity",
        "model": MODEL,
        "fleet": {"pools": pools or [pool()], **fleet},
        "workload": {"cohorts": list(cohorts) or [cohort()], "min_on_time_fraction": share},
        "runtime": {"workspace_bytes": 28},
        "search": {"tp": [tp], "collectives": ["ring"]},
        "capacity": {"goals": [goal], "period_s": period, "failures": failures or []},
    }


def bought(*cohorts: Json, **more: Any) -> Json:
    """The same, of servers that are to be bought."""
    return asked(*cohorts, mode="purchase", **more)


def rack(
    name: str = "r", units: int = 40, *, held: dict[str, int] | None = None, **more: Any
) -> Json:
    servers = [{"pool": p, "num_servers": n} for p, n in (held or {}).items()]
    return {"name": name, "units": units, "servers": servers, **more}


def lost(kind: str, share: str) -> list[Json]:
    return [{"kind": kind, "min_on_time_fraction": share}]


class Pair(NamedTuple):
    """What just fits, at which value of the goal; what does not, and the rules it breaks."""

    fits: Json
    fails: Json
    value: int
    broken: set[tuple[str, Fraction | int]]


def edge(
    build: Callable[[Any], Json],
    fits: object,
    fails: object,
    value: int,
    *broken: tuple[str, Fraction | int],
) -> Pair:
    """Two instances that differ in one thing."""
    return Pair(build(fits), build(fails), value, set(broken))


def of_servers() -> Iterator[tuple[str, Pair]]:
    two, one = cohort(2, "1200ns"), cohort(1, "1200ns")  # TP2, all at once

    def cards(number: int) -> Json:
        return asked(two, tp=2, pools=[pool(servers=1, cards=number)])

    def busy(cards: list[int]) -> Json:
        taken = [{"server": 0, "cards": cards}]
        return asked(one, tp=2, goal="cards", pools=[pool(servers=1, cards=4, occupied=taken)])

    def group(size: int) -> Json:
        """Three servers draw 2100 W; a fourth would draw 700 W more."""
        pools = [pool(servers=4, servers_per_group=size)]
        return bought(cohort(3), pools=pools, power={"budget_w": 2100})

    def touched(cards: list[int]) -> Json:
        """TP4 over two servers of two cards, which must be whole."""
        taken = [{"server": 1, "cards": cards}] if cards else []
        pools = [pool(cards=2, fabric_between=FABRIC, occupied=taken)]
        return asked(cohort(1, "1664ns"), tp=4, goal="cards", pools=pools)

    yield "server cards", edge(cards, 4, 3, 1, ("server_cards", 1))
    yield "occupied cards", edge(busy, [0, 1], [0, 1, 2], 2, ("server_cards", 1))
    for mode, build in (("there", asked), ("to be bought", bought)):
        yield (
            f"servers of a pool, {mode}",
            edge(lambda n, b=build: b(pools=[pool(servers=n)]), 2, 1, 2, ("server_count", 1)),
        )
    yield "groups of four", edge(group, 1, 4, 3, ("group", 3))
    yield "occupied card, over servers", edge(touched, [], [0], 4, ("server_count", 1))


def of_racks() -> Iterator[tuple[str, Pair]]:
    unlike = [pool("p", 1, rack_units=3), pool("q", 1, rack_units=3)]
    full = [pool(rack_units=3, occupied=[{"server": 0, "cards": [0]}])]

    def new(pools: list[Json] = unlike, **limits: Any) -> Json:
        return bought(pools=pools, racks=[rack(**limits)])

    def count(number: int) -> Json:
        return bought(pools=unlike, racks=[rack(units=3, count=number)], goal="racks")

    def over_racks(servers: int) -> Json:
        """Each rack could take a server, the last one of the pool as well."""
        pools = [pool(servers=servers, rack_units=3)]
        return bought(pools=pools, racks=[rack("r", 3), rack("s", 3)])

    def old(**limits: Any) -> Json:
        return asked(pools=[pool(rack_units=3)], racks=[rack(held={"p": 2}, **limits)])

    def occupied(watts: int) -> Json:
        racks = [rack(held={"p": 2}, power_w=watts)]
        return asked(cohort(1), pools=full, racks=racks)

    def cooled(cooling: str) -> Json:
        """A rack of the other kind is none: nothing of the plan can be bought."""
        return new([pool(rack_units=3, cooling="liquid")], cooling=cooling)

    yield "rack units", edge(lambda n: new(units=n), 6, 5, 2, ("rack_units", 1))
    yield "racks to be bought", edge(count, 2, 1, 2, ("rack_count", 1))
    yield "a pool over several racks", edge(over_racks, 2, 1, 2, ("pool_count", 1))
    for limit in ("power_w", "cooling_w"):
        for mode, build in (("there", old), ("to be bought", new)):
            yield (
                f"{limit} of a rack, {mode}",
                edge(lambda w, b=build, k=limit: b(**{k: w}), 1400, 1399, 2, ("rack_power", 1)),
            )
    yield "an occupied server in a rack", edge(occupied, 1400, 1399, 1, ("rack_power", 1))
    yield "air or liquid", edge(cooled, "liquid", "air", 2, ("unknown", 1), ("groups", 2))


def of_power() -> Iterator[tuple[str, Pair]]:
    busy = [pool(occupied=[{"server": 0, "cards": [0]}])]

    def limit(budget: int, fixed: int = 0) -> Json:
        return {"budget_w": budget, "fixed_w": fixed}

    def tier(above: int, watts: int, budget: int) -> Json:
        """TP4 on two servers of four cards: 8 endpoints, 1400 W."""
        tiers = [{"name": "t", "above_endpoints": above, "power_w": watts}]
        fleet = {"pools": [pool(cards=4)], "switch_tiers": tiers, "power": limit(budget)}
        return bought(cohort(2, "1664ns"), tp=4, **fleet)

    def occupied(budget: int) -> Json:
        return asked(cohort(1), pools=busy, power=limit(budget))

    for mode, build in (("there", asked), ("to be bought", bought)):
        yield (
            f"power, {mode}",
            edge(lambda w, b=build: b(power=limit(w, 100)), 1500, 1499, 2, ("power", 1)),
        )
    yield "fixed power", edge(lambda w: asked(power=limit(1500, w)), 100, 101, 2, ("power", 1))
    yield "power of an occupied server", edge(occupied, 1400, 1399, 1, ("power", 1))
    yield "a tier after 8 cards", edge(lambda n: tier(n, 1, 1400), 8, 7, 2, ("power", 1))
    yield "power of a tier", edge(lambda w: tier(7, w, 1500), 100, 101, 2, ("power", 1))


def of_sessions() -> Iterator[tuple[str, Pair]]:
    one = [pool(servers=1)]

    def memory(size: int) -> Json:
        """1600 + 2 · 400, though one is served after the other."""
        return asked(cohort(2, None), pools=[pool(servers=1, memory=size)])

    def release(at: str) -> Json:
        """Whichever of the two is first ends 1600 ns after its release."""
        pair = (cohort(1, "3200ns", name, release_s=at) for name in "ab")
        return asked(*pair, pools=one)

    def may_use(pools: list[str]) -> Json:
        """Cohort b needs p, and c keeps q worth having; a takes q where it may."""
        others = cohort(1, name="b", pools=["p"]), cohort(1, name="c", min_on_time_fraction="0")
        return asked(cohort(1, pools=pools), *others, pools=[pool("p", 1), pool("q", 1)])

    def share(least: str) -> Json:
        return asked(cohort(3, "3200ns"), pools=one, share=least)

    def own_share(least: str) -> Json:
        return asked(cohort(3, "3200ns", min_on_time_fraction=least), pools=one)

    yield "memory", edge(memory, 2400, 2399, 1, ("memory", 1))
    yield (
        "deadline",
        edge(lambda t: asked(cohort(2, t), pools=one), "3200ns", "3199ns", 1, ("late", NS)),
    )
    yield "release", edge(release, "0s", "1ns", 1, ("late", NS))
    yield (
        "period",
        edge(
            lambda t: asked(cohort(2, None), pools=one, period=t),
            *("3200ns", "3199ns"),
            1,
            ("late", NS),
        ),
    )
    # two of three are 2/3; 67% are three, rounded up
    yield "sessions on time", edge(share, "2/3", "67%", 1, ("sessions", 1))
    yield "sessions of a cohort on time", edge(own_share, "2/3", "67%", 1, ("sessions", 1))
    yield "pools of a cohort", edge(may_use, ["p", "q"], ["p"], 2, ("cannot_serve", 1))


def of_failures() -> Iterator[tuple[str, Pair]]:
    """Two servers serve one session each; without either, one of two is half."""
    racked = {
        "pools": [pool(rack_units=1)],
        "racks": [rack(name, held={"p": 1}) for name in ("r", "s")],
    }

    def domains(kind: str, field: str, *held: list[str]) -> Json:
        found = [{"name": f"d{i}", "kind": kind, field: names} for i, names in enumerate(held)]
        return {"failure_domains": found}

    by_pool = {"pools": [pool("p", 1), pool("q", 1)]}
    fleets: dict[str, Json] = {
        "card": {},
        "server": {},
        "rack": {**racked, "racks": [rack(count=2, held={"p": 1})]},
        "power_supply": racked | domains("power_supply", "racks", ["r"], ["s"]),
        "switch": by_pool | domains("switch", "pools", ["p"], ["q"]),
    }
    room = {"pools": [pool(rack_units=1)], "racks": [rack(units=1, count=2)]}
    for mode, build, kinds in (
        ("there", asked, fleets),
        ("to be bought", bought, {"card": {}, "server": {}, "rack": room}),
    ):
        for kind, fleet in kinds.items():
            yield (
                f"any one {kind}, {mode}",
                edge(
                    lambda share, b=build, k=kind, f=fleet: b(failures=lost(k, share), **f),
                    *("1/2", "51%"),
                    2,
                    ("sessions", 1),
                ),
            )

    def supply(racks: list[str]) -> Json:
        fleet = racked | domains("power_supply", "racks", racks)
        return asked(failures=lost("power_supply", "1/2"), **fleet)

    def over_two(racks: list[str]) -> Json:
        """TP4 over two servers of two cards that fail together, or do not."""
        pools = [pool(cards=2, rack_units=1, fabric_between=FABRIC)]
        fleet = racked | domains("power_supply", "racks", racks) | {"pools": pools}
        return asked(cohort(1, "1664ns"), tp=4, failures=lost("power_supply", "0"), **fleet)

    yield "racks of a power supply", edge(supply, ["r"], ["r", "s"], 2, ("groups", 1))
    yield (
        "over servers that fail together",
        edge(over_two, ["r", "s"], ["r"], 2, ("span", 1), ("groups", 1)),
    )


PAIRS = dict(chain(of_servers(), of_racks(), of_power(), of_sessions(), of_failures()))


def best_plans(instance: Instance) -> dict[str, tuple[CapacityPlan, Fraction] | None]:
    """The best plan of every method, and its goal's value; None where it proves that none is."""
    problem = build_capacity(instance).problem
    optimum = capacity_optimum(problem)
    found: dict[str, tuple[CapacityPlan, Fraction] | None] = {
        "brute force": None if optimum is None else (optimum.plan, optimum.values[0])
    }
    for backend in BACKENDS:
        solved = solve_capacity(problem, backend, deadline=time.monotonic() + 60)
        if solved.termination is Termination.INFEASIBLE:
            found[backend] = None
            continue
        assert solved.termination is Termination.OPTIMAL, backend
        assert solved.plan is not None, backend
        assert solved.value is not None, backend
        assert solved.value[0] is not None, backend
        assert solved.bound == solved.value, backend
        found[backend] = solved.plan, solved.value[0]
    return found


def broken(instance: Instance, plan: CapacityPlan) -> set[tuple[str, Fraction | int]]:
    """(rule, amount) of everything that is wrong with a plan."""
    judged = evaluate_capacity(instance, build_capacity(instance).problem, plan)
    return {(violation.rule, violation.amount) for violation in judged.violations}


@pytest.mark.parametrize("name", PAIRS)
def test_what_just_fits_and_what_just_does_not(name: str) -> None:
    pair = PAIRS[name]
    fits, fails = parse_instance(pair.fits), parse_instance(pair.fails)
    problem = build_capacity(fits).problem
    for method, found in best_plans(fits).items():
        assert found is not None, method
        plan, value = found
        assert value == pair.value, method
        judged = evaluate_capacity(fits, problem, plan)
        assert judged.violations == (), method
        assert judged.values[problem.goals[0]] == pair.value, method
        assert broken(fails, plan) == pair.broken, method
    assert best_plans(fails) == dict.fromkeys(("brute force", *BACKENDS))


def test_groups_of_four_are_bought_whole() -> None:
    """Three servers would do, four of one group must be; the fifth session brings the second."""
    pools = [pool(servers=8, servers_per_group=4)]
    for sessions, servers in ((3, 4), (4, 4), (5, 8)):
        found = best_plans(parse_instance(bought(cohort(sessions), pools=pools)))
        assert {None if one is None else one[1] for one in found.values()} == {servers}
