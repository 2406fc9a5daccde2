"""The evaluator names every rule a plan breaks, by how much, and bills to the nanosecond.

All rules are shown from both sides: a plan that just passes, and the smallest change that breaks
it. The model is small enough to add by hand (see `MODEL`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import Instance, parse_instance
from optimizer.evaluate import evaluate
from optimizer.evaluation import OBJECTIVE_UNITS, Evaluation
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Plan, ServingInstance, SessionId

Json = dict[str, Any]
NS = Fraction(1, 10**9)
quick = settings(max_examples=60, deadline=None, database=None)

# 2 layers of (4+2+2+4 heads · 2 · 8 + 3 · 8 · 16) · 2 B = 1152 B and a head of 32 · 8 · 2 = 512 B:
# a step at s tokens reads 2816 + 32 (s + 1) B, at 1 B/ns. A message is 8 · 2 = 16 B, 4 per step.
# Two tokens after 10: TP1 3168 + 3200 = 6368 ns; TP2 half of that, 3184, + 8 · 2 (100 + 8) = 4912.
WIDTHS = {"hidden_size": 8, "head_dim": 2, "ffn_size": 16, "vocab_size": 32}
MODEL = {"name": "tiny", "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, **WIDTHS}
SIX_HEADS = {**MODEL, "num_heads": 6}


def problem(
    *,
    model: Json = MODEL,
    memory: int = 10**6,
    servers: int = 1,
    power: int | None = 800,
    between: bool = True,
    last_row: int = 16,
    sessions: int = 2,
    deadline: str | None = None,
    share: str = "0%",
    billing: str = "fleet",
    usable: str = "100%",
    speed: tuple[int, int] = (1, 1),
    alpha: int = 1,
    faults: Sequence[Json] = (),
    **search: Any,
) -> Instance:
    """Return servers of four cards, 1 B/ns from memory and between cards, 100 ns a round."""
    rows = [{"message_bytes": size, "time_s": "700ns"} for size in (8, last_row)]
    table = {"name": "table", "ranks": 4, "servers": 2, "rows": rows}
    fabric = {"alpha_s": f"{100 * alpha}ns", "bandwidth_bytes_per_s": f"{speed[1]}GB/s"}
    card = {
        "name": "card",
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": f"{speed[0]}GB/s",
        "peak_flops_per_s": {"bf16": "1PFLOP/s"},
    }
    inside, outside = {"name": "in", **fabric}, {"name": "out", **fabric, "measured": [table]}
    server = {"name": "server", "accelerator": card, "num_cards": 4, "power_w": power}
    pool = {"name": "p", "server": {**server, "fabric": inside}, "num_servers": servers}
    steps = {"context_tokens": 10, "new_tokens": 2}
    cohort = {"name": "chat", "num_sessions": sessions, "deadline_s": deadline, **steps}
    return parse_instance(
        {
            "name": "unit",
            "model": model,
            "fleet": {"pools": [{**pool, "fabric_between": outside if between else None}]},
            "workload": {"cohorts": [cohort], "min_on_time_fraction": share},
            "runtime": {"workspace_bytes": 100, "usable_memory_fraction": usable},
            "objective": {"minimise": "makespan", "billing": billing},
            "search": search,
            "faults": list(faults),
        }
    )


def serve(
    cards: str, sessions: str = "0 1", *, use: str = "", pool: str = "p", **degrees: int
) -> ServingInstance:
    """Return a serving instance from "server/card server/card" and "session session"."""
    owned = tuple(CardId(*map(int, card.split("/"))) for card in cards.split())
    parallel = ParallelConfig(**{"tp": len(owned), **degrees})
    numbers = tuple(SessionId("chat", int(n)) for n in sessions.split())
    use = use or ("ring" if parallel.tp > 1 else "none")
    return ServingInstance(pool, parallel, use, owned, numbers)


def broken(instance: Instance, *serving: ServingInstance) -> list[tuple[str, str, Fraction | int]]:
    """Return (rule, where, amount) of everything wrong with a plan."""
    result = evaluate(instance, Plan(serving))
    assert result.is_feasible == (not result.violations)
    return [(v.rule, v.where, v.amount) for v in result.violations]


def first(rule: str, amount: int = 1) -> list[tuple[str, str, int]]:
    """Return the one violation expected of the first serving instance."""
    return [(rule, "instances[0]", amount)]


def test_pool_a_serving_instance_must_name_a_pool_of_the_fleet() -> None:
    assert broken(problem(), serve("0/0", pool="p")) == []
    assert broken(problem(), serve("0/0", pool="q")) == first("pool")


def test_unknown_card_the_last_card_exists_and_the_one_after_it_does_not() -> None:
    assert broken(problem(servers=2), serve("1/3")) == []
    for card in ("1/4", "2/0", "0/-1", "-1/0"):
        assert broken(problem(servers=2), serve(card)) == first("unknown_card")


def test_card_overlap_a_card_has_one_owner_only() -> None:
    assert broken(problem(), serve("0/0", "0"), serve("0/1", "1")) == []
    for plan in ((serve("0/0", "0"), serve("0/0", "1")), (serve("0/0 0/0"),)):
        assert broken(problem(), *plan) == [("card_overlap", "p/0/0", 1)]


def test_num_cards_the_cards_must_number_the_degree() -> None:
    assert broken(problem(), serve("0/0 0/1", tp=2)) == []
    assert broken(problem(), serve("0/0", tp=2)) == first("num_cards", 1)
    assert broken(problem(), serve("0/0 0/1 0/2 0/3", tp=2)) == first("num_cards", 2)


def test_tp_the_degree_must_be_among_those_of_the_search() -> None:
    assert broken(problem(tp=[1, 4]), serve("0/0")) == []
    assert broken(problem(tp=[1, 4]), serve("0/0 0/1")) == first("tp")


def test_heads_the_degree_must_divide_the_query_heads() -> None:
    assert broken(problem(), serve("0/0 0/1 0/2 0/3")) == []
    assert broken(problem(), serve("0/0 0/1 0/2")) == first("heads", 1)  # 4 mod 3


def test_kv_heads_the_degree_must_divide_the_kv_heads_or_the_reverse() -> None:
    assert broken(problem(model=SIX_HEADS), serve("0/0 0/1")) == []
    assert broken(problem(model=SIX_HEADS), serve("0/0 0/1 0/2")) == first("kv_heads", 1)  # 3 mod 2


def test_span_only_a_fabric_between_servers_lets_an_instance_cross_them() -> None:
    assert broken(problem(servers=2, between=False), serve("0/0 0/1")) == []
    assert broken(problem(servers=2), serve("0/0 1/0")) == []
    assert broken(problem(servers=2, between=False), serve("0/0 1/0")) == first("span")


def test_uneven_span_every_server_gives_equally_many_cards() -> None:
    for card, wanted in (("1/0", []), ("0/2", first("uneven_span", 2))):
        assert broken(problem(servers=2), serve(f"0/0 0/1 {card} 1/1", use="measured")) == wanted


def test_collective_must_be_among_those_of_the_search() -> None:
    assert broken(problem(collectives=["tree"]), serve("0/0 0/1", use="tree")) == []
    for name in ("ring", "none", "butterfly"):
        plan = serve("0/0 0/1", use=name)
        assert broken(problem(collectives=["tree"]), plan) == first("collective")


def test_collective_one_card_uses_none() -> None:
    assert broken(problem(), serve("0/0", use="none")) == []
    assert broken(problem(), serve("0/0", use="ring")) == first("collective")


def test_tree_power_of_two_the_tree_refuses_three_ranks() -> None:
    three_heads = {**MODEL, "num_heads": 6, "num_kv_heads": 6}
    assert broken(problem(model=three_heads), serve("0/0 0/1 0/2", use="ring")) == []
    assert broken(problem(model=three_heads), serve("0/0 0/1", use="tree")) == []
    plan = serve("0/0 0/1 0/2", use="tree")
    assert broken(problem(model=three_heads), plan) == first("tree_power_of_two", 3)


def test_measured_a_table_that_covers_all_messages_replaces_the_model() -> None:
    """The message is 16 B; the table of four ranks on two servers ends there, or a byte before."""
    modelled = serve("0/0 0/1 1/0 1/1", use="ring")
    assert broken(problem(servers=2), modelled) == first("measured", 1)
    for other in (problem(servers=2, last_row=15), problem(servers=2, collectives=["ring"])):
        assert broken(other, modelled) == []


def test_no_measurement_the_table_must_cover_ranks_servers_and_message() -> None:
    covered = serve("0/0 0/1 1/0 1/1", use="measured")
    assert broken(problem(servers=2), covered) == []  # the message is the last row's 16 B
    assert broken(problem(servers=2, last_row=15), covered) == first("no_measurement", 4)
    inside = serve("0/0 0/1 0/2 0/3", use="measured")
    assert broken(problem(servers=2), inside) == first("no_measurement", 4)
    pair = serve("0/0 1/0", use="measured")
    assert broken(problem(servers=2), pair) == first("no_measurement", 2)


def test_unknown_session_a_session_beyond_the_cohort_does_not_exist() -> None:
    assert broken(problem(), serve("0/0", "0 1")) == []
    assert broken(problem(), serve("0/0", "0 1 2")) == [("unknown_session", "chat/2", 1)]
    assert broken(problem(), serve("0/0", "0 1 -1")) == [("unknown_session", "chat/-1", 1)]
    stranger = replace(serve("0/1"), sessions=(SessionId("talk", 0),) * 2)
    assert broken(problem(), serve("0/0"), stranger) == [("unknown_session", "talk/0", 2)]


def test_session_repeated_a_session_is_served_once() -> None:
    assert broken(problem(), serve("0/0", "0 1")) == []
    assert broken(problem(), serve("0/0", "0 1 0")) == [("session_repeated", "chat/0", 1)]
    twice = broken(problem(), serve("0/0", "0 1"), serve("0/1", "1 1"))
    assert twice == [("session_repeated", "chat/1", 2)]


def test_session_missing_every_session_is_served() -> None:
    assert broken(problem(), serve("0/0", "0 1")) == []
    assert broken(problem(), serve("0/0", "0")) == [("session_missing", "chat/1", 1)]
    assert broken(problem()) == [("session_missing", "chat/0", 2)]


def test_uniform_serving_instances_are_equal_and_leave_no_card() -> None:
    uniform = problem(deployment="uniform")
    assert broken(uniform, serve("0/0 0/1"), serve("0/2 0/3", "")) == []
    mixed = broken(uniform, serve("0/0 0/1"), serve("0/2", ""), serve("0/3", ""))
    assert mixed == [("uniform", "plan", 1)]
    split = (serve("0/0 0/1"), serve("0/2 1/2", ""), serve("0/3 1/3", ""), serve("1/0 1/1", ""))
    assert broken(problem(servers=2, deployment="uniform"), *split) == mixed
    three = (serve("0/0"), serve("0/1", ""), serve("0/2", ""))
    assert broken(uniform, *three) == [("uniform", "plan", 1)]


def test_layout_uniform_instances_own_consecutive_cards_in_order_under_round_robin() -> None:
    uniform = problem(deployment="uniform")
    ordered = problem(deployment="uniform", dispatch="round_robin")
    low, high = serve("0/0 0/1", "0"), serve("0/2 0/3", "1")
    assert broken(ordered, low, high) == []
    assert broken(uniform, high, low) == []
    interleaved = broken(uniform, serve("0/0 0/2", "0"), serve("0/1 0/3", "1"))
    assert interleaved == [("layout", "plan", 2)]
    swapped = (replace(high, sessions=low.sessions), replace(low, sessions=high.sessions))
    assert broken(ordered, *swapped) == [("layout", "plan", 2)]


def test_dispatch_round_robin_gives_session_j_to_instance_j_mod_n_in_order() -> None:
    ordered = problem(dispatch="round_robin", sessions=3)
    assert broken(ordered, serve("0/0", "0 2"), serve("0/1", "1")) == []
    assert broken(ordered, serve("0/0", "2 0"), serve("0/1", "1")) == first("dispatch", 1)
    moved = broken(ordered, serve("0/0", "0"), serve("0/1", "1 2"))
    assert moved == [("dispatch", "instances[0]", 1), ("dispatch", "instances[1]", 1)]


def test_memory_a_card_may_be_full_to_the_byte_and_not_one_byte_more() -> None:
    # TP1: weights 3408, workspace 100, KV 2 sessions · 12 tokens · 32 B = 768: 4276 B on 0/2.
    plan = (serve("0/1", ""), serve("0/2", "0 1"))
    assert broken(problem(memory=4276), *plan) == []
    assert broken(problem(memory=4275), *plan) == [("memory", "p/0/2", 1)]
    # Half of 8553 B is 4276.5 B, of which 4276 whole bytes; half of 8551 B is 4275.
    assert broken(problem(memory=8553, usable="50%"), *plan) == []
    assert broken(problem(memory=8551, usable="50%"), *plan) == [("memory", "p/0/2", 1)]
    # TP2: weights 1744, workspace 100, KV half of 768: 2228 B on each of two cards.
    assert broken(problem(memory=2228), serve("0/0 0/1")) == []
    short = broken(problem(memory=2227), serve("0/0 0/1"))
    assert short == [("memory", "p/0/0", 1), ("memory", "p/0/1", 1)]


def test_on_time_a_session_may_end_at_its_deadline_but_not_a_nanosecond_later() -> None:
    # One after the other: 6368 and 12736 ns.
    assert broken(problem(deadline="12736ns", share="100%"), serve("0/0")) == []
    late = [("on_time", "workload", 1)]
    assert broken(problem(deadline="12735ns", share="100%"), serve("0/0")) == late
    assert broken(problem(deadline="12735ns", share="50%"), serve("0/0")) == []
    assert broken(problem(deadline="6367ns", share="50%"), serve("0/0")) == late


def test_fleet_billing_pays_all_cards_and_instance_billing_pays_until_each_is_done() -> None:
    # TP2 serves two sessions until 9824 ns, TP1 one until 6368 ns; the third instance has none.
    plan = Plan((serve("0/0 0/1"), serve("0/2", "2"), serve("0/3", "")))
    fleet = evaluate(problem(servers=2, sessions=3), plan)
    assert (fleet.makespan_s, fleet.num_cards, fleet.num_on_time) == (9824 * NS, 4, 3)
    assert fleet.mean_completion_s == Fraction(4912 + 9824 + 6368, 3) * NS
    assert fleet.occupied_card_s == 8 * 9824 * NS
    assert fleet.cost_per_on_time_session == Fraction(8 * 9824, 3) * NS
    assert fleet.energy_j == 2 * 800 * 9824 * NS
    by_instance = evaluate(problem(servers=2, sessions=3, billing="instance"), plan)
    assert by_instance.occupied_card_s == (2 * 9824 + 6368) * NS
    assert by_instance.energy_j == 200 * (2 * 9824 + 6368) * NS  # 800 W over four cards
    for billing in ("fleet", "instance"):
        unknown = problem(servers=2, sessions=3, billing=billing, power=None)
        assert evaluate(unknown, plan).energy_j is None


def test_only_faults_of_its_own_cards_stop_an_instance() -> None:
    fault = {"server": 0, "card": 1, "at_s": "1000ns", "stall_s": "500ns"}
    hit = evaluate(problem(faults=[fault]), Plan((serve("0/0", "0"), serve("0/1", "1"))))
    ends = [(o.finish_s, o.num_restarts) for o in hit.sessions]
    assert ends == [(6368 * NS, 0), ((1500 + 6368) * NS, 1)]


ABSURD = {
    "no instances": (),
    "no cards": (serve("", tp=2),),
    "tp 0, ring": (serve("0/0", tp=0, use="ring"),),
    "tp -2": (serve("0/0 0/1", tp=-2, use="tree"),),
    "dp and pp -1": (serve("0/0 0/1", tp=2, dp=-1, pp=-1),),
    "all degrees 0": (serve("", tp=0, dp=0, pp=0, cp=0, ep=0, sp=0),),
    "negative cards": (serve("-1/-1 -1/-2"),),
    "huge degree": (serve("0/0", tp=10**30, use="ring"),),
    "nowhere": (serve("9/9", "7 7", pool="nowhere", tp=0, use="?"),),
}


@pytest.mark.parametrize("deployment", ["mixed", "uniform"])
@pytest.mark.parametrize("dispatch", ["optimised", "round_robin"])
@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_plan_is_refused_and_never_raises(
    name: str, dispatch: str, deployment: str
) -> None:
    instance = problem(servers=2, deployment=deployment, dispatch=dispatch)
    result = evaluate(instance, Plan(ABSURD[name]))
    assert not result.is_feasible
    assert all(violation.amount > 0 for violation in result.violations)


small = st.integers(-2, 5)
any_serving = st.builds(
    ServingInstance,
    st.sampled_from(["p", "q"]),
    st.builds(ParallelConfig, tp=small, pp=st.integers(-1, 2)),
    st.sampled_from(["none", "ring", "tree", "measured", "?"]),
    st.lists(st.builds(CardId, small, small), max_size=5).map(tuple),
    st.lists(st.builds(SessionId, st.sampled_from(["chat", "?"]), small), max_size=4).map(tuple),
)


@quick
@given(st.lists(any_serving, max_size=4), st.sampled_from(["mixed", "uniform"]))
def test_evaluate_never_raises_on_random_plans(
    serving: list[ServingInstance], deployment: str
) -> None:
    result = evaluate(problem(servers=2, deployment=deployment), Plan(tuple(serving)))
    assert all(violation.amount > 0 for violation in result.violations)


deals = st.lists(st.integers(0, 2), min_size=5, max_size=5)
moments, places = st.integers(1, 30_000).map("{}ns".format), st.integers(0, 3)
fault = st.builds(dict, server=st.integers(0, 1), card=places, at_s=moments, stall_s=moments)
faults = st.lists(fault, max_size=3)


def dealt(deal: list[int], use: str, names: Sequence[int] = range(5), first: int = 0) -> Plan:
    """Return TP1, TP2 and a TP4 over two servers that share five sessions as dealt."""
    queues = [" ".join(str(names[j]) for j, i in enumerate(deal) if i == k) for k in range(3)]
    a, b = first, 1 - first
    cards = (f"{a}/0", f"{b}/0 {b}/1", f"{a}/2 {a}/3 {b}/2 {b}/3")
    uses = ("none", use, use)
    parts = zip(cards, queues, uses, strict=True)
    return Plan(tuple(serve(owned, queue, use=name) for owned, queue, name in parts))


def ends(deal: list[int], use: str, hit: list[Json], **changes: Any) -> list[Fraction]:
    """Return when each of the five sessions ends."""
    result = evaluate(problem(servers=2, sessions=5, faults=hit, **changes), dealt(deal, use))
    return [outcome.finish_s for outcome in result.sessions if outcome.finish_s is not None]


@quick
@given(deals, st.sampled_from(["ring", "tree"]), faults, st.integers(1, 9), st.integers(1, 9))
def test_more_bandwidth_never_makes_a_session_later(
    deal: list[int], use: str, hit: list[Json], memory: int, fabric: int
) -> None:
    slow, fast = ends(deal, use, hit), ends(deal, use, hit, speed=(memory, fabric))
    assert len(slow) == len(fast) == 5
    assert all(after <= before for before, after in zip(slow, fast, strict=True))


@quick
@given(deals, st.sampled_from(["ring", "tree"]), faults)
def test_doubling_alpha_never_makes_a_session_earlier(
    deal: list[int], use: str, hit: list[Json]
) -> None:
    base, doubled = ends(deal, use, hit), ends(deal, use, hit, alpha=2)
    assert len(base) == len(doubled) == 5
    assert all(after >= before for before, after in zip(base, doubled, strict=True))


def metrics(result: Evaluation) -> list[object]:
    """Return every objective, what is broken, and how full the cards are."""
    return [
        *(result.objective(name) for name in OBJECTIVE_UNITS),
        [(v.rule, v.amount) for v in result.violations],
        sorted(card.total_bytes for card in result.cards),
    ]


@quick
@given(deals, faults, st.permutations(range(5)))
def test_swapping_servers_and_renaming_sessions_leaves_all_metrics_equal(
    deal: list[int], hit: list[Json], names: list[int]
) -> None:
    mirrored = [{**fault, "server": 1 - fault["server"]} for fault in hit]
    deadline = {"servers": 2, "sessions": 5, "deadline": "15us", "share": "60%"}
    one = evaluate(problem(**deadline, faults=hit), dealt(deal, "ring"))
    plan = dealt(deal, "ring", names, first=1)
    two = evaluate(problem(**deadline, faults=mirrored), plan)
    assert metrics(two) == metrics(one)
    for j, outcome in enumerate(one.sessions):
        assert replace(two.sessions[names[j]], session=outcome.session) == outcome
