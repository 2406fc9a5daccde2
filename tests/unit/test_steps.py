"""How long a step takes: rooflines, exchanges, stages, hand-offs, against hand sums in seconds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from instances import Instance, parse_instance
from optimizer.collectives import CollectiveUnavailable
from optimizer.evaluate import evaluate
from optimizer.footprint_prices import FootprintPrices, service_time_s
from optimizer.ownership import stage_places
from optimizer.parallel import ParallelConfig
from optimizer.peak import activation_bytes, buffer_bytes
from optimizer.pipeline import decode_period_s, run_decode_rounds
from optimizer.plan import CardId, Footprint, Plan, ServingInstance, SessionId
from optimizer.steps import (
    Place,
    compile_step,
    decode_step,
    needs_collective,
    peak_flops_per_s,
    prompt_s,
    step_load,
)
from optimizer.work import Exchange, stage_work

F = Fraction
#: A layer reads 2 · 576 = 1152 B for any number of sessions and does 1152 FLOP for each; a head of
#: 512 B and 512 FLOP; 16 B of K and V a token, 32 FLOP to attend to it.
MODEL: dict[str, Any] = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 2,
    "ffn_size": 16,
    "vocab_size": 32,
}
COHORT: dict[str, Any] = {"name": "c", "num_sessions": 1, "context_tokens": 10, "new_tokens": 2}


def problem(
    peak: int = 10**6, servers: int = 1, cards: int = 8, joined: bool = True, **changes: Any
) -> Instance:
    """Return servers whose cards read 16 B/s; 1 s and 8 B/s inside one, 10 s and 2 B/s between."""
    accelerator = {
        "name": "card",
        "memory_bytes": 10**6,
        "memory_bandwidth_bytes_per_s": "16B/s",
        "peak_flops_per_s": dict.fromkeys(("bf16", "fp8"), f"{peak}FLOP/s"),
    }
    fabrics = [
        {"name": name, "alpha_s": alpha, "bandwidth_bytes_per_s": bandwidth}
        for name, alpha, bandwidth in (("inside", "1s", "8B/s"), ("between", "10s", "2B/s"))
    ]
    server = {"name": "s", "accelerator": accelerator, "num_cards": cards, "fabric": fabrics[0]}
    pool = {"name": "pool", "server": server, "num_servers": servers}
    pool["fabric_between"] = fabrics[1] if joined else None
    document = {
        "name": "steps",
        "model": changes.pop("model", MODEL),
        "fleet": {"pools": [pool]},
        "workload": {"cohorts": [COHORT | changes.pop("cohort", {})], **changes.pop("load", {})},
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(document | changes)


def layers(count: int) -> dict[str, Any]:
    return MODEL | {"num_layers": count}


def footprint(servers: int = 1, stages: tuple[int, ...] = (), **fields: Any) -> Footprint:
    """Return a footprint with a ring where degrees ask for several cards."""
    lanes = {key: fields.pop(key) for key in ("batch", "micro_batches") if key in fields}
    collective = fields.pop("collective", None)
    config = ParallelConfig(pp=max(len(stages), 1), **fields)
    name = collective or ("ring" if config.num_cards > 1 else "none")
    return Footprint("pool", config, servers, name, stages, **lanes)


def seconds(instance: Instance, how: Footprint, tokens: int) -> Fraction:
    return decode_step(instance, instance.fleet.pools[0], how).at(tokens)


def test_a_step_is_bound_by_all_its_reading_or_all_its_computing() -> None:
    # 2 · 1152 + 512 = 2816 B and 32 B a token over 16 B/s: 176 s and 2 s a token.
    assert seconds(problem(), footprint(), 0) == 176
    assert seconds(problem(), footprint(), 11) == 198
    # 2816 + 64 · 11 = 3520 FLOP at 16 FLOP/s take 220 s; without a token both take 176 s.
    slow = problem(peak=16)
    assert [seconds(slow, footprint(), tokens) for tokens in (0, 11)] == [176, 220]


def test_operator_by_operator_each_takes_the_longer_of_the_two() -> None:
    """Two sessions: matrices compute twice what they read at 16 FLOP/s, 4/3 of it at 24 FLOP/s."""
    operator = problem(peak=24, runtime={"roofline": "operator"})
    # Matrices: 2 · 2816 / 24 = 704/3 s of computing over 176 s of reading. Attention of 11 and 12
    # entries: 23 · 64 / 24 = 184/3 s over 23 · 32 / 16 = 46 s.
    assert seconds(operator, footprint(batch=2), 11) == F(888, 3)
    # At 40 FLOP/s reading takes longer both times: 140.8 s under 176 s, 36.8 s under 46 s.
    faster = problem(peak=40, runtime={"roofline": "operator"})
    assert seconds(faster, footprint(batch=2), 11) == 222
    # One session: 11 entries compute 704 / 24 s over 22 s, matrices read 176 s over 2816 / 24 s.
    assert seconds(operator, footprint(), 11) == 176 + F(704, 24)
    # The sum of all reading, 198 s, exceeds that of all computing: 3520 / 24 s.
    assert seconds(problem(peak=24), footprint(), 11) == 198


def test_companions_are_as_long_as_the_longest_session_ever_is() -> None:
    cohorts = {"cohorts": [COHORT, COHORT | {"name": "long", "context_tokens": 20}]}
    instance = problem(load=cohorts)
    assert step_load(instance, footprint(batch=3)).companion_tokens == 22
    # 176 s, 2 · (11 + 2 · 22) s.
    assert seconds(instance, footprint(batch=3), 11) == 176 + 110


def test_two_cards_halve_the_reading_and_add_four_reductions() -> None:
    # 198 / 2 s; a ring of two takes 2 · (1 + 16 / 2 / 8) = 4 s four times.
    assert seconds(problem(), footprint(tp=2), 11) == 99 + 16
    # One server each: 2 · (10 + 16 / 2 / 2) = 28 s.
    assert seconds(problem(servers=2, cards=1), footprint(2, tp=2), 11) == 99 + 112
    # A tree of two: 2 · (1 + 16 / 8) = 6 s. SP: the ring in two halves.
    assert seconds(problem(), footprint(tp=2, collective="tree"), 11) == 99 + 24
    assert seconds(problem(), footprint(tp=2, sp=2), 11) == 99 + 16


def test_a_pipeline_takes_its_stages_its_hand_offs_and_the_way_back() -> None:
    # Stages of 1152 B and 16 B a token: 72 + 11 s, the second 32 s more for the head.
    step = decode_step(problem(), problem().fleet.pools[0], footprint(stages=(1, 1)))
    assert [F(stage.at(11), step.unit) for stage in step.stages] == [83, 115]
    # 16 B on: 1 + 2 s; a token's number of 4 B back: 1 + 1/2 s.
    assert F(step.handoffs, step.unit) == F(9, 2)
    assert step.at(11) == 198 + F(9, 2)


@pytest.mark.parametrize("stages", [(2, 2), (1, 3), (1, 1, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7])
def test_micro_batches_keep_the_period_of_the_pipelines_timeline(
    stages: tuple[int, ...], micro_batches: int
) -> None:
    """Equal stages and unequal ones: the way round, or all micro-batches on the slowest stage."""
    instance = problem(model=layers(4))
    how = footprint(stages=stages, micro_batches=micro_batches)
    step = decode_step(instance, instance.fleet.pools[0], how)
    times = [F(stage.at(11), step.unit) for stage in step.stages]
    # A layer takes 83 s, the head 32 s; every hand-off 3 s and the way back 3/2 s.
    assert times == [83 * count for count in stages[:-1]] + [83 * stages[-1] + 32]
    period = decode_period_s(times, micro_batches, F(3), F(3, 2))
    assert step.at(11) == period
    for row in run_decode_rounds(times, micro_batches, 4, F(3), F(3, 2)):
        assert {later - earlier for earlier, later in pairwise(row)} == {period}


def test_a_pipeline_hides_few_micro_batches_and_then_waits_for_its_slowest_stage() -> None:
    # 83 and 115 s with 4.5 s on the way: 202.5 s, or m · 115 s.
    times = [seconds(problem(), footprint(stages=(1, 1), micro_batches=m), 11) for m in (1, 2, 3)]
    assert times == [F(405, 2), 230, 345]


@pytest.mark.parametrize(
    ("servers", "stage", "inside"),
    [
        # PP4 on one server; two stages on each of two, where 1 to 2 and 3 to 0 leave the server;
        # one on each of four.
        (1, 0, True),
        (1, 3, True),
        (2, 0, True),
        (2, 1, False),
        (2, 2, True),
        (2, 3, False),
        (4, 0, False),
        (4, 3, False),
    ],
)
def test_a_hand_off_pays_for_the_servers_it_crosses(servers: int, stage: int, inside: bool) -> None:
    instance = problem(servers=servers, model=layers(4))
    place = Place(instance.fleet.pools[0], footprint(servers, (1, 1, 1, 1), tp=2))
    # 16 B: 1 + 16 / 8 s inside a server, 10 + 16 / 2 s between two.
    assert place.handoff_s(F(16), stage) == (3 if inside else 18)


def test_a_stage_wider_than_a_server_hands_on_between_servers() -> None:
    place = Place(problem(servers=4, cards=2).fleet.pools[0], footprint(4, (1, 1), tp=4))
    assert place.handoff_s(F(16)) == 18
    # Stages of 2 cards on servers of 3: the second one lies on both.
    uneven = Place(problem(servers=2, cards=3).fleet.pools[0], footprint(2, (1, 1, 1), tp=2))
    assert [uneven.handoff_s(F(16), stage) for stage in range(3)] == [18, 18, 18]


def test_two_stages_on_each_of_two_servers_cross_over_twice() -> None:
    instance = problem(servers=2, model=layers(4))
    step = decode_step(instance, instance.fleet.pools[0], footprint(2, (1, 1, 1, 1)))
    # 3 s, 18 s, 3 s on, and 10 + 4 / 2 = 12 s back.
    assert F(step.handoffs, step.unit) == 36


@pytest.mark.parametrize(
    ("servers", "cards", "block", "spanned"),
    [(1, 8, 4, 1), (2, 16, 8, 1), (2, 16, 16, 2), (4, 8, 4, 2), (3, 6, 2, 1)],
)
def test_aligned_groups_span_whole_servers(
    servers: int, cards: int, block: int, spanned: int
) -> None:
    pool = problem(servers=servers).fleet.pools[0]
    assert Place(pool, footprint(servers, tp=cards)).servers_of(block) == spanned


def test_groups_that_straddle_servers_have_no_price() -> None:
    pool = problem(servers=2).fleet.pools[0]
    # Two groups of 3 cards, 3 cards of each server; but two of 2 cards do not fit 3 and 3.
    assert Place(pool, footprint(2, tp=3, cp=2)).servers_of(3) == 1
    place = Place(pool, footprint(2, (1, 1, 1), tp=2))
    with pytest.raises(
        CollectiveUnavailable, match="groups of 2 cards do not line up with 3 cards"
    ):
        place.servers_of(2)
    with pytest.raises(CollectiveUnavailable, match="line up") as caught:
        decode_step(problem(servers=2, model=layers(3)), pool, place.footprint)
    assert caught.value.rule == "alignment"


def test_servers_that_nothing_joins_and_cards_without_a_collective_have_no_price() -> None:
    apart = problem(servers=2, cards=1, joined=False)
    with pytest.raises(CollectiveUnavailable, match="has no fabric_between") as caught:
        seconds(apart, footprint(2, tp=2), 1)
    assert caught.value.rule == "span"
    with pytest.raises(CollectiveUnavailable, match="several cards need a collective") as caught:
        seconds(problem(), footprint(tp=2, collective="none"), 1)
    assert caught.value.rule == "collective"


def test_a_plan_with_fewer_cards_than_servers_is_judged_all_the_same() -> None:
    instance = problem(servers=3)
    cards = tuple(CardId(server, 0) for server in range(3))
    config = ParallelConfig(tp=2)
    serving = ServingInstance("pool", config, "ring", cards, (SessionId("c", 0),))
    rules = {violation.rule for violation in evaluate(instance, Plan((serving,))).violations}
    assert "num_cards" in rules


def test_each_kind_of_exchange_has_its_formula() -> None:
    place = Place(problem(servers=2, cards=4).fleet.pools[0], footprint(2, tp=8))

    def took(kind: Any, ranks: int, block: int) -> Fraction:
        return place.exchange_s(Exchange("x", kind, ranks, block, F(32), 1))

    assert took("send", 2, 4) == 1 + 4
    assert took("send", 2, 8) == 10 + 16
    # Three rounds and 32 B in all; three rounds of 8 B; twice that.
    assert took("all_to_all", 4, 4) == 3 + 4
    assert took("reduce_scatter", 4, 4) == 3 * (1 + 1)
    assert took("all_reduce", 4, 4) == 6 * (1 + 1)
    # Two ranks of a block of eight are on two servers: 2 · (10 + 8).
    assert took("all_reduce", 2, 8) == 36


def test_a_step_adds_each_exchange_as_often_as_it_happens() -> None:
    """Attention DP: a dispatch and a return of 1 · 2 · 16 · 3/4 = 24 B, 3 + 3 s, in each layer."""
    group = {
        "name": "all",
        "layers": "0-1",
        "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2},
        "ffn": {"kind": "moe", "num_experts": 4, "experts_per_token": 2, "expert_size": 4},
    }
    model = {"name": "sparse", "hidden_size": 8, "vocab_size": 32, "groups": [group]}
    instance, how = problem(model=model), footprint(dp=4, ep=4)
    config, place = how.parallel, stage_places(instance.model, ())[0]
    work = stage_work(instance.model, config, place, step_load(instance, how))
    alone = compile_step(
        Place(instance.fleet.pools[0], how), [replace(work, exchanges=())], F(1), 1
    )
    both = compile_step(Place(instance.fleet.pools[0], how), [work], F(1), 1)
    assert both.at(5) - alone.at(5) == 2 * 2 * (3 + 3)


def test_a_remote_source_is_read_in_every_step() -> None:
    """V4.1-Flash cut after layer 9: layers 10-13 read layer 8, 4,000 tokens at the longest.

    Each of the four reads 512 compressed entries of 288 B at most, 147,456 B for each session; the
    index keys are read by layer 8 alone.
    """
    how = footprint(stages=(10, 30), batch=2)

    def timed(sharing: str) -> Fraction:
        context = {"context_tokens": 3998}
        search = {"kv_sharing": sharing}
        instance = problem(model="deepseek-v4.1-flash", cohort=context, search=search)
        return seconds(instance, how, 4000)

    assert timed("remote") - timed("copy") == 4 * (1 + F(2 * 147_456, 8))


def test_a_prompt_is_read_in_one_step_through_all_stages() -> None:
    instance = problem(peak=16, cohort={"prompt_tokens": 4})
    pool, cohort = instance.fleet.pools[0], instance.workload.cohorts[0]
    # 4 tokens: 2 · 4 · 1152 FLOP, the head once 512; 4 · 10 + 10 pairs of 64: 12,928 FLOP.
    assert prompt_s(instance, pool, footprint(), cohort) == F(12_928, 16)
    # In stages: 7808 / 16 and 8320 / 16 less a share of attention each: the same sum, 4 · 16 B
    # handed on in 1 + 8 s and 3/2 s back.
    split = prompt_s(instance, pool, footprint(stages=(1, 1)), cohort)
    assert split == F(12_928, 16) + 9 + F(3, 2)
    # Its tokens come 3520 + 64 · 4 and 64 · 5 FLOP later.
    whole = F(12_928, 16) + F(3520 + 256, 16) + F(3520 + 320, 16)
    assert service_time_s(instance, pool, footprint(), cohort) == whole


def test_without_a_prompt_nothing_is_read() -> None:
    instance = problem()
    pool, cohort = instance.fleet.pools[0], instance.workload.cohorts[0]
    assert prompt_s(instance, pool, footprint(), cohort) == 0


def test_a_card_must_know_its_peak_in_the_models_format() -> None:
    instance = problem(model=MODEL | {"formats": {"compute": "fp8"}})
    pool = instance.fleet.pools[0]
    assert peak_flops_per_s(instance, pool) == 10**6
    card = pool.server.accelerator.model_copy(update={"peak_flops_per_s": {"bf16": F(1)}})
    other = pool.model_copy(update={"server": pool.server.model_copy(update={"accelerator": card})})
    with pytest.raises(ValueError, match="card has no known fp8 peak"):
        peak_flops_per_s(instance, other)


@pytest.mark.parametrize(
    ("how", "needed"),
    [
        (footprint(), False),
        (footprint(stages=(1, 1)), False),
        (footprint(tp=2), True),
        (footprint(tp=2, sp=2), False),
        (footprint(cp=2), True),
    ],
)
def test_only_steps_with_an_all_reduce_need_a_collective(how: Footprint, needed: bool) -> None:
    assert needs_collective(problem(), how) is needed


def test_unpriced_footprints_have_no_service_time() -> None:
    instance = problem(servers=2, cards=1, joined=False)
    prices, cohort = FootprintPrices(instance), instance.workload.cohorts[0]
    assert prices.service_s(footprint(2, tp=2), cohort) is None
    # Tokens 11 and 12: 198 + 200 s.
    assert prices.service_s(footprint(), cohort) == 398


def test_activations_are_the_hidden_vectors_of_a_step() -> None:
    counted = {"count_activations": True, "workspace_bytes": 100}
    instance = problem(runtime=counted, cohort={"prompt_tokens": 5})
    # max(batch, prompt) tokens · 8 numbers · 2 B.
    assert activation_bytes(instance, footprint(batch=3)) == 80
    assert activation_bytes(instance, footprint(batch=7)) == 112
    assert activation_bytes(instance, footprint(stages=(1, 1), micro_batches=3)) == 240
    # CP deals 3 of 5 tokens to a card; SP keeps a half or a third, rounded up, TP all.
    assert activation_bytes(instance, footprint(cp=2)) == 48
    assert activation_bytes(instance, footprint(tp=2)) == 80
    assert activation_bytes(instance, footprint(tp=2, sp=2)) == 40
    assert activation_bytes(instance, footprint(tp=3, sp=3)) == 27
    assert buffer_bytes(instance, footprint()) == 180
    doubled = problem(runtime=counted | {"double_buffers": True}, cohort={"prompt_tokens": 5})
    assert buffer_bytes(doubled, footprint()) == 260
    # Several residual streams pass from layer to layer.
    wide = problem(runtime=counted, model=MODEL | {"residual_streams": 3})
    assert activation_bytes(wide, footprint()) == 48
