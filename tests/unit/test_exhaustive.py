"""The oracle against optima and plan counts worked out by hand."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import pytest

import optimizer.exhaustive
from instances.instance import Instance
from instances.io import parse_instance
from instances.objective import Objective
from optimizer.errors import MismatchError, TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively, solve_many
from optimizer.footprint_prices import service_time_s
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint

# One layer with hidden size 4, 2 heads (2 KV heads) of width 2, FFN 2, vocabulary 1, bf16, so
#   attention numbers (2·2 + 2·2)·2·4 = 64, FFN 3·4·2 = 24, head 1·4 = 4,
#   read per step      2·(64 + 24) + 2·4 = 184 B, and KV 2·1·2·2·2 = 16 B per token,
#   step at context s  (184 + 16·(s + 1)) B / 1000 B/s on one card (compute is never the longer).
# Context 0 and one new token make one step: 200 B, 0.2 s on one card, half that on two, plus two
# AllReduces of 8 B on two: ring 2·(a + 4 B / B) = 2·(0 + 0.01 s) each, 0.04 s for both.
ONE, TWO = Fraction(1, 5), Fraction(7, 50)
# Memory of one card: embedding and head 8 + 8, q, k, v, o 4·2·4·4 = 128, FFN 48, norms 3·4·2 = 24.
WEIGHTS, KV = 216, 16
SINGLE = {"num_sessions": 1}


def _instance(**changes: Any) -> Instance:
    cohort = {"name": "a", "num_sessions": 2, "context_tokens": 0, "new_tokens": 1}
    accelerator = {
        "name": "card",
        "memory_bytes": 10_000,
        "memory_bandwidth_bytes_per_s": 1000,
        "peak_flops_per_s": {"bf16": 10**9},
    }
    fabric = {"name": "link", "alpha_s": 0, "bandwidth_bytes_per_s": 400}
    server = {"name": "server", "accelerator": accelerator, "fabric": fabric}
    server |= {"num_cards": changes.pop("num_cards", 2), "power_w": 60}
    accelerator["memory_bytes"] = changes.pop("memory_bytes", 10_000)
    pool = {"name": "pool", "server": server, "num_servers": changes.pop("num_servers", 1)}
    pool["fabric_between"] = changes.pop("fabric_between", None)
    model = {"name": "hand", "num_layers": 1, "hidden_size": 4, "num_heads": 2, "num_kv_heads": 2}
    model |= {"head_dim": 2, "ffn_size": 2, "vocab_size": 1}
    data: dict[str, Any] = {
        "name": "by hand",
        "model": model,
        "fleet": {"pools": [pool]},
        "workload": {
            "cohorts": [cohort | extra for extra in changes.pop("cohorts", ({},))],
            "min_on_time_fraction": changes.pop("share", 1),
        },
        "runtime": {"workspace_bytes": 0},
        "search": {"collectives": ["ring"]} | changes.pop("search", {}),
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(data | changes)


def test_service_times_are_the_ones_of_the_comment() -> None:
    instance = _instance()
    pool, cohort = instance.fleet.pools[0], instance.workload.cohorts[0]
    one = Footprint("pool", ParallelConfig(), 1, "none")
    two = Footprint("pool", ParallelConfig(tp=2), 1, "ring")
    assert service_time_s(instance, pool, one, cohort) == ONE
    assert service_time_s(instance, pool, two, cohort) == TWO


# Two sessions on two cards. Side by side on two TP1: both end at 0.2. One after the other on one
# TP1: 0.2, 0.4; on one TP2: 0.14, 0.28. The fleet has two cards and 60 W.
@pytest.mark.parametrize(
    ("name", "billing", "value"),
    [
        ("makespan", "fleet", ONE),
        ("max_latency", "fleet", ONE),
        ("mean_completion", "fleet", ONE),  # the other two: 0.3 and 0.21
        ("occupied_card_seconds", "fleet", 2 * ONE),
        ("occupied_card_seconds", "instance", 2 * ONE),  # or 0.4 on one card, or 2 · 0.28
        ("cost_per_on_time_session", "fleet", ONE),
        ("cost_per_on_time_session", "instance", ONE),
        ("energy", "fleet", 60 * ONE),
        ("energy", "instance", 60 * ONE),  # 2 · 30 W · 0.2 s, or 30 W · 0.4 s
        ("cards", "fleet", Fraction(1)),
    ],
)
def test_every_objective_by_hand(name: Any, billing: Any, value: Fraction) -> None:
    objective = Objective(minimise=(name,), billing=billing)
    found = solve_exhaustively(_instance(objective=objective))
    assert found.values == (value,)
    assert found.plan is not None


def test_later_objectives_break_ties_in_their_order() -> None:
    first = Objective(minimise=("cards", "makespan"))
    other = Objective(minimise=("makespan", "cards"))
    by_cards, by_time = solve_many(_instance(), (first, other))
    assert by_cards.values == (1, 2 * ONE)
    assert by_time.values == (ONE, 2)
    assert by_cards.num_plans == by_time.num_plans == 3


def test_the_plans_of_a_trivial_mixed_search_are_all_counted() -> None:
    # Deployments of two cards: TP1, TP2, TP1 + TP1 (an idle instance is never useful).
    # Cohorts a and b of one session each. One instance: ab or ba. Two equal ones: a | b only.
    two = (SINGLE, SINGLE | {"name": "b"})
    assert solve_exhaustively(_instance(cohorts=two)).num_plans == 2 + 2 + 1
    # With a third session, c: 3! = 6 orders on TP1 and on TP2; on two equal instances, one has two
    # sessions (3 choices of the single one, 2 orders of the others): 6.
    three = (*two, SINGLE | {"name": "c"})
    assert solve_exhaustively(_instance(cohorts=three)).num_plans == 6 + 6 + 6
    # The tree doubles TP2 and, with "measured" untabled, nothing else.
    search = {"collectives": ["ring", "tree", "measured"]}
    assert solve_exhaustively(_instance(cohorts=two, search=search)).num_plans == 2 + 2 + 2 + 1


def test_the_plans_of_a_uniform_search_are_all_counted() -> None:
    # All cards must be filled: TP1 + TP1 or TP2. Session a and b on two equal instances: both on
    # one (ab, ba) or one each; on TP2: ab, ba.
    two = (SINGLE, SINGLE | {"name": "b"})
    optimised = _instance(cohorts=two, search={"deployment": "uniform"})
    assert solve_exhaustively(optimised).num_plans == 3 + 2
    dealt = _instance(cohorts=two, search={"deployment": "uniform", "dispatch": "round_robin"})
    assert solve_exhaustively(dealt).num_plans == 2
    # Three cards take no TP2, and TP3 does not suit two heads: three TP1, one of them idle.
    three = _instance(num_cards=3, search={"deployment": "uniform", "dispatch": "round_robin"})
    found = solve_exhaustively(three)
    assert found.num_plans == 1
    assert found.plan is not None
    assert [len(serving.sessions) for serving in found.plan] == [1, 1, 0]


def test_under_round_robin_the_order_of_a_mixed_plan_counts() -> None:
    # Three cards: TP1, TP2, TP1 + TP1, and TP1 + TP2 in two orders. (Three TP1 would idle one.)
    search = {"dispatch": "round_robin"}
    instance = _instance(num_cards=3, search=search)
    assert solve_exhaustively(instance).num_plans == 5
    # One short and one long session: a (0.2 s or 0.14 s) is dealt first, b has 10 steps,
    # 10·0.2 + 0.016·(1 + … + 9) = 2.72 s, on TP2 2.72/2 + 0.4 = 1.76 s: b should have the TP2.
    cohorts = ({"num_sessions": 1}, {"name": "b", "num_sessions": 1, "new_tokens": 10})
    found = solve_exhaustively(_instance(num_cards=3, search=search, cohorts=cohorts))
    assert found.values == (Fraction(176, 100),)
    assert found.plan is not None
    assert [serving.parallel.tp for serving in found.plan] == [1, 2]


def test_an_instance_spans_servers_only_over_a_fabric() -> None:
    # Two servers of one card. The fabric between has 800 B/s: 100/1000 + 2·2·4/800 = 0.12 s.
    one = {"cohorts": (SINGLE,), "num_servers": 2, "num_cards": 1}
    assert solve_exhaustively(_instance(**one)).values == (ONE,)
    between = {"name": "wire", "alpha_s": 0, "bandwidth_bytes_per_s": 800}
    found = solve_exhaustively(_instance(**one, fabric_between=between))
    assert found.values == (Fraction(12, 100),)
    assert found.plan is not None
    assert found.plan.instances[0].servers == (0, 1)
    # TP1 on either of two interchangeable servers is one plan, TP2 over both the other.
    assert found.num_plans == 2


@pytest.mark.parametrize(("spare", "values"), [(0, (ONE,)), (-1, None)])
def test_memory_is_kept_to_the_byte(spare: int, values: tuple[Fraction] | None) -> None:
    memory = WEIGHTS + KV + spare
    search = {"tp": [1]}
    found = solve_exhaustively(_instance(memory_bytes=memory, search=search))
    # One session fits on each card, so only the plan with one each is left.
    assert found.values == values
    assert found.num_plans == (values is not None)
    assert (found.plan is None) == (values is None)


def test_a_degree_that_alone_fits_is_found() -> None:
    # On two cards: embedding and head 8 each, q, k, v, o and FFN halved, norms whole: 16 + 88 + 24.
    found = solve_exhaustively(_instance(memory_bytes=128 + 2 * KV // 2))
    assert found.values == (2 * TWO,)
    assert found.num_plans == 1


def test_deadlines_decide_feasibility() -> None:
    exact = ({"deadline_s": "0.14s", "num_sessions": 1},)
    assert solve_exhaustively(_instance(cohorts=exact)).values == (TWO,)
    tight = ({"deadline_s": "0.139999s", "num_sessions": 1},)
    found = solve_exhaustively(_instance(cohorts=tight))
    assert (found.values, found.plan, found.num_plans) == (None, None, 2)
    # A cost per on-time session needs one on time, whatever share is asked for.
    late = _instance(cohorts=tight, share=0)
    cost, span = solve_many(
        late,
        [Objective(minimise=(name,)) for name in ("cost_per_on_time_session", "makespan")],
    )
    assert cost.values is None
    assert span.values == (TWO,)


def test_cost_is_shared_among_sessions_on_time_only() -> None:
    # Deadline 0.2: TP1 + TP1 has both on time, 2 · 0.2 / 2. Under "instance" billing a lone TP1
    # pays 0.4 for one on time.
    cohorts = ({"deadline_s": "0.2s"},)
    cost = Objective(minimise=("cost_per_on_time_session",), billing="instance")
    assert solve_exhaustively(_instance(cohorts=cohorts, objective=cost)).values == (ONE,)
    alone = _instance(cohorts=cohorts, objective=cost, num_cards=1, share="1/2")
    assert solve_exhaustively(alone).values == (2 * ONE,)


def test_a_failing_card_can_be_left_unused_in_a_mixed_search() -> None:
    # Card 0 stalls from 0.1 to 1.1: a session on it ends at 1.3, on card 1 at 0.2.
    fault = {"card": 0, "at_s": "0.1s", "stall_s": "1s"}
    one = {"cohorts": (SINGLE,), "faults": [fault]}
    found = solve_exhaustively(_instance(**one))
    assert found.values == (ONE,)
    assert found.plan is not None
    assert [card.card for card in found.plan.instances[0].cards] == [1]
    # TP1 on the sound card, TP1 on the failing card, TP2 on both.
    assert found.num_plans == 3
    # A uniform deployment owns the card all the same but need not give it a session.
    uniform = {"deployment": "uniform"}
    assert solve_exhaustively(_instance(**one, search=uniform)).values == (ONE,)
    # Unless round robin does: TP1 + TP1 gives card 0 the only session (1.3 s), TP2 restarts at
    # 1.1 and ends 0.14 later.
    dealt = uniform | {"dispatch": "round_robin"}
    assert solve_exhaustively(_instance(**one, search=dealt)).values == (Fraction(124, 100),)


def test_a_failing_card_may_serve_until_it_fails() -> None:
    # The fault comes exactly when the first session has ended, so both cards serve one each.
    fault = {"card": 0, "at_s": "0.2s", "stall_s": "1s"}
    assert solve_exhaustively(_instance(faults=[fault])).values == (ONE,)


def test_the_oracle_counts_while_it_goes() -> None:
    two = _instance(cohorts=(SINGLE, SINGLE | {"name": "b"}))
    count = solve_exhaustively(two).num_plans
    assert solve_exhaustively(two, max_plans=count).num_plans == count
    with pytest.raises(TooLargeError, match="more plans"):
        solve_exhaustively(two, max_plans=count - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"cohorts": ({"num_sessions": 100_000},)},
        {"num_servers": 1000},
        {"cohorts": ({"new_tokens": 1_000_000},)},
        {"cohorts": tuple({"name": f"c{i}"} for i in range(12))},
    ],
)
def test_huge_instances_are_refused_at_once(changes: dict[str, Any]) -> None:
    instance = _instance(**changes)
    began = time.perf_counter()
    with pytest.raises(TooLargeError):
        solve_exhaustively(instance)
    assert time.perf_counter() - began < 1  # about a millisecond when nothing else runs


def test_energy_needs_power() -> None:
    powerless = _instance().model_dump(mode="json")
    powerless["fleet"]["pools"][0]["server"]["power_w"] = None
    with pytest.raises(ValueError, match="power_w"):
        solve_many(parse_instance(powerless), [Objective(minimise=("energy",))])


def test_a_disagreement_with_the_evaluator_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = _instance(cohorts=({"new_tokens": 2},))
    monkeypatch.setattr(optimizer.exhaustive, "evaluate", lambda _, plan: evaluate(slower, plan))
    with pytest.raises(MismatchError, match="oracle claims"):
        solve_exhaustively(_instance())
