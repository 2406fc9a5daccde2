"""Both sides of every constraint of the decision, for every backend, brute force and `evaluate`.

One instance just admits a plan; the other, changed by the least amount, refuses it. All numbers
are added by hand from one small model (FP8, one layer, hidden size 12, head size 1):

* 4 query and 2 KV heads: attention (8 + 4) · 12 = 144 B, FFN 3 · 12 · 20 = 720 B, head 28 · 12 =
  336 B. A step reads 1200 B and the KV of context + 1 = 100 tokens, 4 B each: 1600 B, at 1 B/ns.
* TP1 takes 1600 ns, and TP2 800 + 2 ring AllReduces of 2 · (94 + 12/2) = 200 ns: 1200 ns.
* TP4 keeps one KV head a card: 300 + 200 = 500 ns and rings of 6 · (94 + 3) = 582: 1664 ns.
  The tree takes 2 · log2(n) · (94 + 12): 212 ns on two cards, 424 on four.
* A card holds weights, 28 B of workspace and the KV of 100 tokens a session. TP1: 336 + 336 + 144 +
  720 + norms 36 = 1572, so 1600 + 400 a session. TP2: 804 + 28 = 832, and 200 a session.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from formulations.ticks import tick_scale
from instances import Instance, parse_instance
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively
from optimizer.objectives import objective_terms
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Plan, ServingInstance, SessionId
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, SolveRequest, Termination

Json = dict[str, Any]
Number = int | Fraction
BACKENDS: tuple[type[Formulation], ...] = (CpSatDeployment, HighsDeployment, CbcDeployment)
NS = Fraction(1, 10**9)


def fabric(alpha: str, bandwidth: str, tables: Sequence[tuple[int, int, int]]) -> Json:
    """Return a fabric; each table is (ranks, servers, last message size), 50 ns throughout."""
    measured = []
    for ranks, servers, size in tables:
        row = {"message_bytes": size, "time_s": "50ns"}
        measured.append({"name": "table", "ranks": ranks, "servers": servers, "rows": [row]})
    speed = {"alpha_s": alpha, "bandwidth_bytes_per_s": bandwidth}
    return {"name": "fabric", **speed, "measured": measured}


def cohort(
    name: str, sessions: int, deadline: object = None, release: str = "0s", context: int = 99
) -> Json:
    times = {"release_s": release, "deadline_s": deadline}
    tokens = {"context_tokens": context, "new_tokens": 1}
    return {"name": name, "num_sessions": sessions, **tokens, **times}


def problem(
    *,
    heads: tuple[int, int] = (4, 2),
    ffn: int = 20,
    cards: int = 1,
    servers: int = 1,
    memory: int = 10**12,
    speed: str = "1GB/s",
    alpha: str = "94ns",
    bandwidth: str = "1GB/s",
    between: bool = False,
    inside: Sequence[tuple[int, int, int]] = (),
    outside: Sequence[tuple[int, int, int]] = (),
    cohorts: Sequence[Json] = (cohort("a", 1),),
    share: str = "0%",
    minimise: str = "makespan",
    usable: str = "100%",
    faults: Sequence[tuple[int, str, str]] = (),
    **search: Any,
) -> Instance:
    """Return equal servers in one pool; a fault is (card of server 0, begin, stall)."""
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": ffn, "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": heads[0], "num_kv_heads": heads[1]}
    accelerator = {
        "name": "card",
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": speed,
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    server = {"name": "s", "accelerator": accelerator, "num_cards": cards}
    pool = {
        "name": "p",
        "server": {**server, "fabric": fabric(alpha, bandwidth, inside)},
        "num_servers": servers,
        "fabric_between": fabric(alpha, bandwidth, outside) if between else None,
    }
    return parse_instance(
        {
            "name": "side",
            "model": {**model, **widths, "formats": formats},
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": list(cohorts), "min_on_time_fraction": share},
            "runtime": {"workspace_bytes": 28, "usable_memory_fraction": usable},
            "objective": {"minimise": minimise},
            "search": search,
            "faults": [{"card": card, "at_s": at, "stall_s": stall} for card, at, stall in faults],
        }
    )


def outline(plan: Plan) -> list[str]:
    """Return each serving instance as "TP2/1 ring: aa": degree, servers, collective, sessions."""
    return sorted(
        f"TP{s.parallel.tp}/{len(s.servers)} {s.collective}: "
        + "".join(session.cohort for session in s.sessions)
        for s in plan
    )


def optimum(instance: Instance, nanoseconds: Number | None, *wanted: str) -> Plan:
    """Check the optimum and its plan by brute force, every backend and `evaluate`."""
    oracle = solve_exhaustively(instance)
    expected = None if nanoseconds is None else nanoseconds * NS
    assert oracle.values == (None if expected is None else (expected,))
    tables = build_tables(instance)
    plans = [] if oracle.plan is None else [oracle.plan]
    for backend in BACKENDS:
        request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 60)
        found = backend().solve(request)
        if expected is None:
            assert found.termination is Termination.INFEASIBLE, backend
            continue
        assert found.termination is Termination.OPTIMAL, backend
        assert found.claims[0].value == expected, backend
        assert found.selection is not None
        plans.append(plan_of(tables, found.selection))
    for plan in plans:
        assert outline(plan) == sorted(wanted)
        judged = evaluate(instance, plan)
        assert judged.violations == ()
        assert judged.objective(instance.objective.minimise[0]) == expected
    return plans[0] if plans else Plan(())


def broken(instance: Instance, plan: Plan) -> list[tuple[str, Number]]:
    """Return (rule, amount) of everything wrong with a plan."""
    return [(v.rule, v.amount) for v in evaluate(instance, plan).violations]


def serve(cards: str, sessions: str, use: str = "ring") -> ServingInstance:
    """Return a serving instance from "server/card ..." and the cohorts of its sessions."""
    owned = tuple(CardId(*map(int, card.split("/"))) for card in cards.split())
    ids = tuple(SessionId(c, sessions[:j].count(c)) for j, c in enumerate(sessions))
    return ServingInstance("p", ParallelConfig(tp=len(owned)), use, owned, ids)


def test_memory_of_one_session_to_the_byte() -> None:
    """1600 + 400 = 2000 B."""
    plan = optimum(problem(memory=2000), 1600, "TP1/1 none: a")
    optimum(problem(memory=1999), None)
    assert broken(problem(memory=1999), plan) == [("memory", 1)]


def test_memory_of_two_queued_sessions_to_the_byte() -> None:
    """TP1: 1600 + 2 · 400 = 2400 B, 3200 ns. TP2: 832 + 2 · 200 = 1232 B on each of two cards."""
    two = [cohort("a", 2)]
    plan = optimum(problem(memory=2400, cohorts=two), 3200, "TP1/1 none: aa")
    optimum(problem(memory=2399, cohorts=two), None)
    assert broken(problem(memory=2399, cohorts=two), plan) == [("memory", 1)]
    pair = optimum(problem(cards=2, memory=1232, cohorts=two), 2400, "TP2/1 ring: aa")
    optimum(problem(cards=2, memory=1231, cohorts=two), None)
    assert broken(problem(cards=2, memory=1231, cohorts=two), pair) == [("memory", 1)] * 2


def test_one_session_more_than_memory_holds() -> None:
    """2400 B hold two sessions; the third is 400 B short, and cannot be left out either."""
    plan = optimum(problem(memory=2400, cohorts=[cohort("a", 2)]), 3200, "TP1/1 none: aa")
    three = problem(memory=2400, cohorts=[cohort("a", 3)])
    optimum(three, None)
    assert broken(three, plan) == [("session_missing", 1)]
    assert broken(three, Plan((serve("0/0", "aaa", "none"),))) == [("memory", 400)]


def test_usable_memory_is_rounded_down_to_whole_bytes() -> None:
    """80% of 2500 B is 2000 B; of 2501 B 2000.8, of which 2000 count; of 2499 B only 1999."""
    for memory in (2500, 2501):
        plan = optimum(problem(memory=memory, usable="80%"), 1600, "TP1/1 none: a")
    optimum(problem(memory=2499, usable="80%"), None)
    assert broken(problem(memory=2499, usable="80%"), plan) == [("memory", 1)]


def test_a_deadline_at_the_completion_is_kept() -> None:
    """One session ends at 1600 ns."""
    at_end = [cohort("a", 1, "1600ns")]
    plan = optimum(problem(cohorts=at_end, share="100%"), 1600, "TP1/1 none: a")
    missed = problem(cohorts=[cohort("a", 1, "1599ns")], share="100%")
    optimum(missed, None)
    assert broken(missed, plan) == [("on_time", 1)]


def test_three_of_four_sessions_must_be_on_time() -> None:
    """One card ends them at 1600, 3200, 4800, 6400 ns; 76% of 4 is rounded up to all 4."""
    four, early = [cohort("a", 4, "4800ns")], [cohort("a", 4, "4799ns")]
    plan = optimum(problem(cohorts=four, share="75%"), 6400, "TP1/1 none: aaaa")
    for tighter in (problem(cohorts=early, share="75%"), problem(cohorts=four, share="76%")):
        optimum(tighter, None)
        assert broken(tighter, plan) == [("on_time", 1)]


def test_a_session_cannot_start_before_its_release() -> None:
    """500 + 1600 = 2100 ns; released 1 ns later it misses a deadline of 2100 ns."""
    kept = problem(cohorts=[cohort("a", 1, "2100ns", "500ns")], share="100%")
    plan = optimum(kept, 2100, "TP1/1 none: a")
    later = problem(cohorts=[cohort("a", 1, "2100ns", "501ns")], share="100%")
    optimum(later, None)
    assert broken(later, plan) == [("on_time", 1)]
    optimum(problem(cohorts=[cohort("a", 1, release="501ns")]), 2101, "TP1/1 none: a")


def test_cards_of_a_server_hold_tp2_and_tp1_only_if_there_are_three() -> None:
    """Mean of 1200 and 1600 is 1400 ns; two cards leave TP1 twice, 1600 (TP2 twice: 1800)."""
    wanted = {"minimise": "mean_completion", "cohorts": [cohort("a", 2)]}
    plan = optimum(problem(cards=3, **wanted), 1400, "TP1/1 none: a", "TP2/1 ring: a")
    optimum(problem(cards=2, **wanted), 1600, "TP1/1 none: a", "TP1/1 none: a")
    assert broken(problem(cards=2, **wanted), plan) == [("unknown_card", 1)]
    # three servers of one card have three cards too, but no server holds two
    optimum(problem(servers=3, **wanted), 1600, "TP1/1 none: a", "TP1/1 none: a")


def test_only_degrees_that_the_search_lists() -> None:
    """TP2 1200 ns; without it TP1 1600."""
    plan = optimum(problem(cards=2, tp=[1, 2]), 1200, "TP2/1 ring: a")
    optimum(problem(cards=2, tp=[1]), 1600, "TP1/1 none: a")
    assert broken(problem(cards=2, tp=[1]), plan) == [("tp", 1)]


def test_one_query_head_less_and_tp2_does_not_divide_them() -> None:
    """4 and 1 heads: 120 + 720 + 336 = 1176, KV 200 B: TP2 588 + 200 + 400 = 1188, TP1 1376.

    3 and 1 heads: 96 + 720 + 336 = 1152, so TP1 takes 1352; 3 mod 2 = 1.
    """
    plan = optimum(problem(heads=(4, 1), cards=2), 1188, "TP2/1 ring: a")
    optimum(problem(heads=(3, 1), cards=2), 1352, "TP1/1 none: a")
    assert broken(problem(heads=(3, 1), cards=2), plan) == [("heads", 1)]


def test_one_kv_head_less_and_tp3_does_not_suit_them() -> None:
    """12 and 3 heads: 360 + 1056 = 1416, KV 600: TP3 472 + 200 + 2 · 4 · (94 + 4) = 1456.

    12 and 2 heads: 336 + 1056 = 1392, KV 400: TP1 1792; 3 mod 2 = 1.
    """
    plan = optimum(problem(heads=(12, 3), cards=3, tp=[1, 3]), 1456, "TP3/1 ring: a")
    optimum(problem(heads=(12, 2), cards=3, tp=[1, 3]), 1792, "TP1/1 none: a")
    assert broken(problem(heads=(12, 2), cards=3, tp=[1, 3]), plan) == [("kv_heads", 1)]


def test_only_collectives_that_the_search_lists() -> None:
    """TP2 with rings 1200 ns, with trees 800 + 2 · 212 = 1224."""
    plan = optimum(problem(cards=2, collectives=["ring", "tree"]), 1200, "TP2/1 ring: a")
    optimum(problem(cards=2, collectives=["tree"]), 1224, "TP2/1 tree: a")
    assert broken(problem(cards=2, collectives=["tree"]), plan) == [("collective", 1)]


def test_the_tree_needs_a_power_of_two() -> None:
    """12 KV heads: 1632 + 2400 B. TP4 408 + 600 + 2 · 424 = 1856; TP3 544 + 800 + 784 = 2128."""
    twelve: Json = {"heads": (12, 12), "cards": 4}
    plan = optimum(problem(**twelve, tp=[4], collectives=["tree"]), 1856, "TP4/1 tree: a")
    assert broken(problem(**twelve, tp=[3], collectives=["tree"]), plan) == [("tp", 1)]
    optimum(problem(**twelve, tp=[3], collectives=["tree"]), None)
    both = problem(**twelve, tp=[3], collectives=["tree", "ring"])
    optimum(both, 2128, "TP3/1 ring: a")
    assert broken(both, Plan((serve("0/0 0/1 0/2", "a", "tree"),))) == [("tree_power_of_two", 3)]


def test_a_measured_table_must_cover_the_message() -> None:
    """The message is 12 B. Measured: 800 + 2 · 50 = 900 ns; a byte less, and the ring is left."""
    plan = optimum(problem(cards=2, inside=[(2, 1, 12)]), 900, "TP2/1 measured: a")
    optimum(problem(cards=2, inside=[(2, 1, 11)]), 1200, "TP2/1 ring: a")
    assert broken(problem(cards=2, inside=[(2, 1, 11)]), plan) == [("no_measurement", 2)]


def test_only_a_fabric_between_servers_lets_an_instance_span_them() -> None:
    """TP2 over two servers 1200 ns; without a fabric TP1 1600."""
    plan = optimum(problem(servers=2, between=True), 1200, "TP2/2 ring: a")
    optimum(problem(servers=2), 1600, "TP1/1 none: a")
    assert broken(problem(servers=2), plan) == [("span", 1)]


def test_a_spanning_instance_takes_equally_many_cards_of_each_server() -> None:
    """TP3 (1456 ns) fits a server of three; servers of two would give two and one; TP4 1288."""
    three = {"heads": (12, 3), "servers": 2, "between": True, "tp": [3]}
    optimum(problem(cards=3, **three), 1456, "TP3/1 ring: a")
    optimum(problem(cards=2, **three), None)
    uneven = Plan((serve("0/0 0/1 1/0", "a"),))
    assert broken(problem(cards=2, **three), uneven) == [("uneven_span", 1)]
    optimum(problem(cards=2, servers=2, between=True, tp=[4]), 1288, "TP4/2 hierarchical: a")


def test_a_spanning_instance_sits_on_distinct_servers() -> None:
    """Only measured: TP4/2 500 + 100 = 600 ns, TP2/2 800 + 100 = 900; b is due at 700, by TP4.

    Three servers of three cards hold both: mean 750. With two cards, TP4 leaves two, but both on
    one server, so a waits for b on TP4: 600 and 1200.
    """
    wanted: Json = {"servers": 3, "between": True, "tp": [2, 4], "share": "100%"}
    wanted |= {"outside": [(4, 2, 12), (2, 2, 12)], "collectives": ["measured"]}
    wanted |= {"cohorts": [cohort("a", 1), cohort("b", 1, "700ns")], "minimise": "mean_completion"}
    optimum(problem(cards=3, **wanted), 750, "TP2/2 measured: a", "TP4/2 measured: b")
    optimum(problem(cards=2, **wanted), 900, "TP4/2 measured: ba")
    squeezed = Plan((serve("0/0 0/1 1/0 1/1", "b", "measured"), serve("2/0 2/1", "a", "measured")))
    # without a measurement a never ends, and so is not on time either
    assert broken(problem(cards=2, **wanted), squeezed) == [("no_measurement", 2), ("on_time", 1)]


def test_a_uniform_deployment_fills_all_cards() -> None:
    """TP2 serves two sessions by 2400 ns; a third card would be left over, unless mixed."""
    wanted = {"cohorts": [cohort("a", 2)], "tp": [2]}
    plan = optimum(problem(cards=2, deployment="uniform", **wanted), 2400, "TP2/1 ring: aa")
    three = problem(cards=3, deployment="uniform", **wanted)
    optimum(three, None)
    assert broken(three, plan) == [("uniform", 1)]
    assert broken(problem(cards=3, **wanted), plan) == []
    optimum(problem(cards=3, **wanted), 2400, "TP2/1 ring: aa")


def test_round_robin_forces_a_worse_assignment() -> None:
    """TP1 takes 2400 ns for a (context 299) and 1600 for each b; round robin joins a and a b: 4000.

    Assigned freely, a is alone and both b together take 3200.
    """
    wanted: Json = {"cards": 2, "tp": [1], "cohorts": [cohort("a", 1, context=299), cohort("b", 2)]}
    optimum(problem(**wanted), 3200, "TP1/1 none: a", "TP1/1 none: bb")
    dealt = problem(**wanted, dispatch="round_robin")
    optimum(dealt, 4000, "TP1/1 none: ab", "TP1/1 none: b")
    best = Plan((serve("0/0", "a", "none"), serve("0/1", "bb", "none")))
    assert broken(dealt, best) == [("dispatch", 1), ("dispatch", 1)]


@pytest.mark.parametrize("kind", ["mixed", "uniform"])
def test_a_stall_at_the_completion_misses_it_and_a_nanosecond_earlier_does_not(kind: str) -> None:
    """Ends at 1600; hit at 1599, it starts over at 1599 + 400 and ends at 3599."""
    missed: Json = {"faults": [(0, "1600ns", "400ns")], "deployment": kind}
    hit: Json = {"faults": [(0, "1599ns", "400ns")], "deployment": kind}
    plan = optimum(problem(**missed), 1600, "TP1/1 none: a")
    optimum(problem(**hit), 3599, "TP1/1 none: a")
    assert evaluate(problem(**hit), plan).makespan_s == 3599 * NS
    due: Json = {"cohorts": [cohort("a", 1, "1600ns")], "share": "100%"}
    optimum(problem(**missed, **due), 1600, "TP1/1 none: a")
    optimum(problem(**hit, **due), None)


def test_a_failing_card_may_stand_idle_in_a_mixed_search_only() -> None:
    """Card 0 stalls for 1000 ns: two sound cards take 1600; round robin over all three, 2600."""
    wanted: Json = {"cards": 3, "tp": [1], "cohorts": [cohort("a", 2)]}
    wanted |= {"dispatch": "round_robin", "faults": [(0, "0s", "1000ns")]}
    plan = optimum(problem(**wanted), 1600, "TP1/1 none: a", "TP1/1 none: a")
    assert {c.card for s in plan for c in s.cards} == {1, 2}
    uniform = problem(**wanted, deployment="uniform")
    optimum(uniform, 2600, "TP1/1 none: ", "TP1/1 none: a", "TP1/1 none: a")
    assert broken(uniform, plan) == [("uniform", 1)]


# 36 B for each of 10^8 FFN columns and 144 + 336 B: a TP1 step reads 3,600,000,880 B with 400 B of
# KV, a TP2 card half of it, and has four rounds of 822 ns + 6 B at 450 GB/s. The first session is
# released after 1/997 ms. No end is a whole number of ticks.
AWKWARD: Json = {"ffn": 10**8, "speed": "3350GB/s", "alpha": "822ns", "bandwidth": "450GB/s"}
TP1_NS = Fraction(3_600_000_880, 3350)
TP2_NS = TP1_NS / 2 + 4 * (822 + Fraction(6, 450))
RELEASE_NS = Fraction(10**6, 997)
rows = pytest.mark.parametrize(
    ("cards", "name", "service"), [(1, "TP1/1 none: ", TP1_NS), (2, "TP2/1 ring: ", TP2_NS)]
)


def awkward(cards: int, sessions: int, due: Number | None = None, **more: Any) -> Instance:
    """Return a problem whose ticks are rounded; `due` in ns."""
    deadline = None if due is None else due * NS
    released = [cohort("a", sessions, deadline, "1/997ms")]
    instance = problem(**AWKWARD, cards=cards, tp=[cards], cohorts=released, share="100%", **more)
    assert not tick_scale(build_tables(instance)).is_exact
    return instance


@rows
def test_deadlines_at_awkward_ends_are_exact(cards: int, name: str, service: Fraction) -> None:
    """Three sessions in a row, the third due exactly when it ends, or a nanosecond before."""
    end = RELEASE_NS + 3 * service
    plan = optimum(awkward(cards, 3, end), end, name + "aaa")
    optimum(awkward(cards, 3, end - 1), None)
    assert broken(awkward(cards, 3, end - 1), plan) == [("on_time", 1)]


@rows
def test_stalls_at_awkward_ends_are_exact(cards: int, name: str, service: Fraction) -> None:
    """A stall of 777 ns begins exactly at the second of two ends, or a nanosecond before."""
    end = RELEASE_NS + 2 * service
    optimum(awkward(cards, 2, faults=[(0, f"{end}ns", "777ns")]), end, name + "aa")
    hit = awkward(cards, 2, faults=[(0, f"{end - 1}ns", "777ns")])
    optimum(hit, end - 1 + 777 + service, name + "aa")
