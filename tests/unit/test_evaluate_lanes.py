"""The evaluator on batches, pipelines and attention groups: every rule from both sides, by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import Instance, parse_instance
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Plan, ServingInstance, SessionId

MS = Fraction(1, 1000)

# Hidden size 4, 2 heads of width 2, FFN or experts of 2 columns, vocabulary 1, bf16, at 1000 B/s:
# a layer reads 128 + 48 B and 16 B of KV per token and weighs norms of 16 B more; the head reads
# 8 B; embedding, head and final norm weigh 8 B each. A fabric sends 400 B/s without delay.
ATTENTION = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 2, "head_dim": 2}
DENSE = {"kind": "dense", "size": 2}
EXPERTS = {"kind": "moe", "num_experts": 2, "experts_per_token": 1, "expert_size": 2}
ANY = {"pp": [1, 2, 3], "dp": [1, 2], "ep": [1, 2], "batch": [1, 2], "micro_batches": [1, 2]}


def problem(
    *,
    layers: int = 1,
    ffn: dict[str, Any] = DENSE,
    memory: int = 10_000,
    prompt: int = 0,
    sessions: int = 2,
    engine: dict[str, Any] | None = None,
    faults: tuple[dict[str, Any], ...] = (),
    deployment: str = "mixed",
    objective: dict[str, Any] | None = None,
    **search: Any,
) -> Instance:
    """Return one server of four cards and one-step sessions from an empty context."""
    card = {"name": "card", "memory_bytes": memory, "memory_bandwidth_bytes_per_s": 1000}
    card["peak_flops_per_s"] = {"bf16": 10**9}
    fabric = {"name": "link", "alpha_s": 0, "bandwidth_bytes_per_s": 400}
    server = {"name": "server", "accelerator": card, "num_cards": 4, "fabric": fabric}
    group = {"name": "all", "layers": list(range(layers)), "attention": ATTENTION, "ffn": ffn}
    cohort = {"name": "chat", "num_sessions": sessions, "context_tokens": 0, "new_tokens": 1}
    return parse_instance(
        {
            "name": "lanes",
            "model": {"name": "hand", "hidden_size": 4, "vocab_size": 1, "groups": [group]},
            "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": [cohort | {"prompt_tokens": prompt}]},
            "runtime": {"workspace_bytes": 0},
            "engine": engine or "textbook",
            "search": {"deployment": deployment, **search},
            "objective": objective or {"minimise": "makespan"},
            "faults": list(faults),
        }
    )


def serve(
    count: int,
    sessions: int = 2,
    *,
    use: str = "none",
    stages: tuple[int, ...] = (),
    batch: int = 1,
    micro: int = 1,
    lanes: tuple[int, ...] = (),
    **degrees: int,
) -> ServingInstance:
    """Return a serving instance on the first `count` cards."""
    config = ParallelConfig(**degrees)
    cards = tuple(CardId(0, card) for card in range(count))
    queue = tuple(SessionId("chat", n) for n in range(sessions))
    return ServingInstance("p", config, use, cards, queue, stages, batch, micro, lanes)


def judge(instance: Instance, *serving: ServingInstance) -> Evaluation:
    return evaluate(instance, Plan(serving))


def rules(instance: Instance, *serving: ServingInstance) -> list[tuple[str, Fraction | int]]:
    """Return (rule, amount) of everything wrong with a plan."""
    return [(v.rule, v.amount) for v in judge(instance, *serving).violations]


def ends_ms(instance: Instance, *serving: ServingInstance) -> list[Fraction]:
    """Return when each session ends, in ms."""
    result = judge(instance, *serving)
    return [outcome.finish_s / MS for outcome in result.sessions if outcome.finish_s is not None]


@pytest.mark.parametrize(
    ("name", "rule", "degrees"),
    [
        ("attention_copies", "attention_copies", {"copies": 2}),
        ("dp", "dp", {"dp": 2, "ep": 2}),
        ("pp", "pp", {"pp": 2}),
        ("batch", "batch", {}),
    ],
)
def test_degrees_must_be_among_those_of_the_search(
    name: str, rule: str, degrees: dict[str, int]
) -> None:
    stages = (1, 1) if "pp" in degrees else ()
    batch = 2 if name == "batch" else 1
    plan = serve(ParallelConfig(**degrees).num_cards, stages=stages, batch=batch, **degrees)
    ffn = EXPERTS if "dp" in degrees else DENSE
    fields: dict[str, Any] = {"layers": 2, "ffn": ffn, "ep": [1, 2]}
    assert rules(problem(**fields, **{name: [1, 2]}), plan) == []
    assert rules(problem(**fields), plan) == [(rule, 1)]


def test_degrees_that_are_no_degrees_are_refused() -> None:
    assert rules(problem(), serve(1)) == []
    for name in ("dp", "pp", "tp", "cp", "ep", "sp", "dcp", "copies"):
        assert ("parallel", 1) in rules(problem(), serve(1, **{name: 0}))
    assert ("attention_dp", 2) in rules(problem(), serve(3, dp=3))  # shares no experts
    assert ("moe_width", 1) in rules(problem(ffn=EXPERTS), serve(1, ep=2))
    assert ("sp", 1) in rules(problem(), serve(1, sp=2))


def test_lanes_number_those_of_all_groups_one_for_each_session() -> None:
    instance = problem(**ANY)
    for lanes in ((), (0, 0), (0, 1), (1, 0), (1, 1)):
        assert rules(instance, serve(1, batch=2, lanes=lanes)) == []
    assert ("lanes", 1) in rules(instance, serve(1, batch=2, lanes=(0, 2)))
    assert ("lanes", 2) in rules(instance, serve(1, batch=2, lanes=(-1, 2)))
    groups = serve(2, dp=2, ep=2, batch=2, lanes=(0, 3))
    assert rules(problem(ffn=EXPERTS, **ANY), groups) == []
    past = replace(groups, lanes=(0, 4))
    assert ("lanes", 1) in rules(problem(ffn=EXPERTS, **ANY), past)


@pytest.mark.parametrize(("lanes", "amount"), [((0,), 1), ((0, 1, 0), 1), ((1,) * 5, 3)])
def test_as_many_lanes_as_sessions_or_none(lanes: tuple[int, ...], amount: int) -> None:
    instance = problem(**ANY)
    assert ("lanes", amount) in rules(instance, serve(1, batch=2, lanes=lanes))


def test_micro_batches_need_a_pipeline() -> None:
    instance = problem(layers=2, **ANY)
    assert rules(instance, serve(2, pp=2, stages=(1, 1), micro=2)) == []
    assert rules(instance, serve(1, micro=2)) == [("micro_batches", 1)]


def test_a_prompt_is_read_with_the_group_at_its_service() -> None:
    assert rules(problem(prompt=1, **ANY), serve(1)) == []
    assert rules(problem(**ANY), serve(1, batch=2)) == []
    assert rules(problem(prompt=1, **ANY), serve(1, batch=2)) == [("prompt_batch", 1)]


def test_stages_hold_all_layers_one_each_at_least() -> None:
    instance = problem(layers=3, **ANY)
    assert rules(instance, serve(2, pp=2, stages=(1, 2))) == []
    assert rules(instance, serve(3, pp=3, stages=(1, 1, 1))) == []
    assert rules(instance, serve(1, stages=(3,))) == []
    for stages in ((), (3,), (1, 1), (2, 2), (0, 3), (1, 1, 1), (-1, 4)):
        found = rules(instance, serve(2, pp=2, stages=stages))
        assert found[0][0] == "stages"


def test_uneven_stages_are_the_affair_of_search_and_engine() -> None:
    plan = serve(2, pp=2, stages=(1, 3))
    assert rules(problem(layers=4, **ANY), plan) == [("stage_cut", 1)]
    assert rules(problem(layers=4, **ANY), serve(2, pp=2, stages=(2, 2))) == []
    assert rules(problem(layers=4, stage_cut="even", **ANY), plan) == [("uneven_stages", 2)]
    strict = {"name": "strict", "uneven_stages": False}
    assert rules(problem(layers=4, engine=strict, **ANY), plan) == [("uneven_stages", 2)]
    # One layer more on a stage is as even as three layers get.
    almost = serve(2, pp=2, stages=(2, 1))
    assert rules(problem(layers=3, stage_cut="even", **ANY), almost) == []


def test_only_an_allreduce_has_an_algorithm_to_choose() -> None:
    # Two groups with an expert each send tokens to and fro; TP adds up partial sums.
    experts, ring = problem(ffn=EXPERTS, **ANY), {"tp": 2, "use": "ring"}
    assert rules(experts, serve(2, dp=2, ep=2)) == []
    assert rules(experts, serve(2, dp=2, ep=2, use="ring")) == [("collective", 1)]
    assert rules(experts, serve(2, **ring)) == []
    assert ("collective", 1) in rules(experts, serve(2, tp=2))
    # Copies of attention whose experts are dealt out add up what the experts give.
    copies = problem(ffn=EXPERTS, attention_copies=[2], **ANY)
    assert rules(copies, serve(2, copies=2, ep=2, use="ring")) == []
    assert ("collective", 1) in rules(copies, serve(2, copies=2, ep=2))


def test_the_groups_of_an_instance_fill_their_own_cards() -> None:
    # 128 + 16 (router) + 48 (one expert) + 16 + 3 · 8 = 232 B, and 16 B a session.
    exact = problem(ffn=EXPERTS, memory=248, **ANY)
    assert rules(exact, serve(2, dp=2, ep=2)) == []
    both = serve(2, dp=2, ep=2, lanes=(1, 1))
    result = judge(exact, both)
    assert [(v.rule, v.where, v.amount) for v in result.violations] == [("memory", "p/0/1", 16)]
    assert [use.kv_bytes for use in result.cards] == [0, 32]
    # Two lanes of one group share its card.
    pairs = judge(exact, serve(2, dp=2, ep=2, batch=2, lanes=(2, 3)))
    assert [use.kv_bytes for use in pairs.cards] == [0, 32]


def test_the_stages_of_an_instance_fill_their_own_cards() -> None:
    # Three layers as 2 + 1: 2 · 192 + 8 (embedding); 192 + 8 + 8. Sessions 16 B a layer.
    result = judge(problem(layers=3, **ANY), serve(2, pp=2, stages=(2, 1)))
    assert [use.weights_bytes for use in result.cards] == [392, 208]
    assert [use.kv_bytes for use in result.cards] == [2 * 32, 2 * 16]
    assert rules(problem(layers=3, memory=456, **ANY), serve(2, pp=2, stages=(2, 1))) == []
    short = rules(problem(layers=3, memory=455, **ANY), serve(2, pp=2, stages=(2, 1)))
    assert ("memory", 1) in short  # and 1 + 2 layers hold one token more than that


def test_a_lane_serves_one_session_after_another_and_lanes_side_by_side() -> None:
    # A batch of two reads weights of 184 B and 2 · 16 B of KV: 216 ms, whoever is there.
    instance = problem(sessions=3, **ANY)
    assert ends_ms(instance, serve(1, 3)) == [200, 400, 600]
    assert ends_ms(instance, serve(1, 3, batch=2)) == [216, 216, 432]
    assert ends_ms(instance, serve(1, 3, batch=2, lanes=(1, 1, 0))) == [216, 432, 216]
    assert ends_ms(instance, serve(1, 3, batch=2, lanes=(0, 0, 0))) == [216, 432, 648]


def test_micro_batches_wait_for_the_slowest_stage_if_they_must() -> None:
    # Stages of 192 and 200 ms, 8 B on in 20 ms and 4 B back in 10 ms: 422 ms a step.
    instance = problem(layers=2, sessions=3, pp=[2], micro_batches=[1, 2, 3])
    pipe: dict[str, Any] = {"pp": 2, "stages": (1, 1)}
    assert ends_ms(instance, serve(2, 3, **pipe)) == [422, 844, 1266]
    # 2 · 200 < 422; the second batch waits 200 ms for its first turn.
    assert ends_ms(instance, serve(2, 3, **pipe, micro=2)) == [622, 622, 1244]
    # 3 · 200 > 422; the third batch waits 400 ms.
    assert ends_ms(instance, serve(2, 3, **pipe, micro=3)) == [1000, 1000, 1000]


def test_a_fault_stops_every_lane_that_is_serving() -> None:
    fault = {"card": 0, "at_s": "100ms", "stall_s": "1s"}
    struck = problem(faults=(fault,), **ANY)
    assert ends_ms(struck, serve(1, batch=2)) == [1316, 1316]
    result = judge(struck, serve(1, batch=2))
    assert [outcome.num_restarts for outcome in result.sessions] == [1, 1]
    # Also when the card belongs to the other attention group: 216 + 20 ms after the stall.
    grouped = problem(ffn=EXPERTS, faults=(fault,), **ANY)
    assert ends_ms(grouped, serve(2, dp=2, ep=2)) == [1336, 1336]


def test_round_robin_deals_to_the_lanes_in_turn() -> None:
    instance = problem(sessions=3, dispatch="round_robin", **ANY)
    for lanes in ((), (0, 1, 0)):
        assert rules(instance, serve(1, 3, batch=2, lanes=lanes)) == []
    for lanes in ((1, 0, 1), (0, 0, 1)):
        assert rules(instance, serve(1, 3, batch=2, lanes=lanes)) == [("dispatch", 1)]


def test_held_sessions_fill_every_group_and_are_better_the_more_there_are() -> None:
    # A card of 280 B has 48 B for sessions of 16 B beside the 232 B of a group: 3 in each of two.
    goal = {"maximise": "held_sessions"}
    uniform = problem(ffn=EXPERTS, memory=280, deployment="uniform", objective=goal, **ANY)
    pair = serve(2, dp=2, ep=2)
    other = replace(pair, cards=(CardId(0, 2), CardId(0, 3)), sessions=())
    result = judge(uniform, pair, other)
    assert result.is_feasible
    assert result.held_sessions == 2 * 2 * 3
    assert result.objective("held_sessions") == -12
    assert result.shown_objective("held_sessions") == 12
    # A pipeline holds what its fullest stage does: stage 0 has (263 - 200) / 16, stage 1, which
    # weighs 208 B, (263 - 208) / 16.
    pipe = judge(problem(layers=2, memory=263, **ANY), serve(2, pp=2, stages=(1, 1)))
    assert pipe.held_sessions == 3


small = st.integers(-1, 3)
any_serving = st.builds(
    ServingInstance,
    st.sampled_from(["p", "q"]),
    st.builds(ParallelConfig, *[small] * 9),
    st.sampled_from(["none", "ring", "?"]),
    st.lists(st.builds(CardId, st.just(0), small), max_size=5).map(tuple),
    st.lists(st.builds(SessionId, st.sampled_from(["chat", "?"]), small), max_size=4).map(tuple),
    st.lists(small, max_size=4).map(tuple),
    small,
    small,
    st.lists(small, max_size=4).map(tuple),
)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(any_serving, max_size=3), st.sampled_from(["mixed", "uniform"]), st.booleans())
def test_evaluate_never_raises_on_random_plans(
    serving: list[ServingInstance], deployment: str, has_experts: bool
) -> None:
    ffn = EXPERTS if has_experts else DENSE
    result = judge(problem(layers=2, ffn=ffn, deployment=deployment, **ANY), *serving)
    assert all(violation.amount > 0 for violation in result.violations)
