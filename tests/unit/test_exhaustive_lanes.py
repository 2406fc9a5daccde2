"""The oracle on lanes, attention groups and pipelines: by hand, and against every plan there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from typing import Any, get_args

import pytest

from instances.instance import Instance
from instances.io import parse_instance
from instances.objective import Objective, ObjectiveName
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively, solve_many
from optimizer.exhaustive_queues import MAX_STEPS, footprints
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Plan, ServingInstance, SessionId
from optimizer.stages.building import pipeline_cut

# Hidden size 4, 2 heads and KV heads of width 2, FFN 2, vocabulary 1, all in bf16: a layer reads
# 2·(64 + 24) = 176 B and 16 B of KV per token, the head 8 B, at 1000 B/s; compute is never longer.
# It weighs 128 (attention) + 48 (FFN) + 16 (norms) = 192 B; embedding, head, final norm 8 B each.
ATTENTION = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 2, "head_dim": 2}
DENSE = {"kind": "dense", "size": 2}
# Two experts as large as the dense FFN, one of them for a token, and a router of 2·4 numbers, 16 B.
EXPERTS = {"kind": "moe", "num_experts": 2, "experts_per_token": 1, "expert_size": 2}
OTHER = {"name": "b", "num_sessions": 1}


def _instance(
    *,
    cards: int = 1,
    memory: int = 10_000,
    layers: int = 1,
    ffn: dict[str, Any] = DENSE,
    cohorts: Sequence[dict[str, Any]] = ({},),
    share: Any = 1,
    **changes: Any,
) -> Instance:
    """Return one server of cards; a cohort is two sessions that make one step from context 0."""
    cohort = {"name": "a", "num_sessions": 2, "context_tokens": 0, "new_tokens": 1}
    accelerator = {"name": "card", "memory_bytes": memory, "memory_bandwidth_bytes_per_s": 1000}
    accelerator["peak_flops_per_s"] = {"bf16": 10**9}
    fabric = {"name": "link", "alpha_s": 0, "bandwidth_bytes_per_s": 400}
    server = {"name": "server", "accelerator": accelerator, "fabric": fabric, "num_cards": cards}
    pool = {"name": "pool", "server": server | {"power_w": 60}, "num_servers": 1}
    group = {"name": "all", "layers": list(range(layers)), "attention": ATTENTION, "ffn": ffn}
    data = {
        "name": "lanes",
        "model": {"name": "hand", "hidden_size": 4, "vocab_size": 1, "groups": [group]},
        "fleet": {"pools": [pool]},
        "workload": {
            "cohorts": [cohort | extra for extra in cohorts],
            "min_on_time_fraction": share,
        },
        "runtime": {"workspace_bytes": 0},
        "search": {"tp": [1], "collectives": ["ring"]} | changes.pop("search", {}),
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(data | changes)


# Two in a batch read the weights once and the KV of both, 184 + 2·16 = 216 B; alone it is 200 B.
BATCH = Fraction(216, 1000)


def test_a_batch_ends_together_and_a_lane_serves_one_after_another() -> None:
    found = solve_exhaustively(_instance(search={"batch": [1, 2]}))
    assert found.values == (BATCH,)
    # Batch 1 has one lane, batch 2 has both sessions on one lane or one on each.
    assert found.num_plans == 1 + 2
    assert found.plan is not None
    assert (found.plan.instances[0].batch, found.plan.instances[0].lanes) == (2, (0, 1))
    # Three sessions in two lanes: 2 and 1 (or 3 and 0), the step as slow when a lane is idle.
    three = _instance(search={"batch": [2]}, cohorts=({"num_sessions": 3},))
    found = solve_exhaustively(three)
    assert (found.values, found.num_plans) == ((2 * BATCH,), 2)


def test_sessions_of_different_cohorts_share_lanes_in_every_way() -> None:
    # a, a, b in two interchangeable lanes: one lane aab, aba, baa; two lanes aa|b, ab|a, ba|a.
    mixed = _instance(search={"batch": [2]}, cohorts=({}, OTHER))
    assert solve_exhaustively(mixed).num_plans == 3 + 3
    # In three lanes also a|a|b.
    assert (
        solve_exhaustively(_instance(search={"batch": [3]}, cohorts=({}, OTHER))).num_plans
        == 3 + 3 + 1
    )


@pytest.mark.parametrize(("spare", "feasible"), [(0, True), (-1, False)])
def test_all_lanes_of_a_group_share_its_memory(spare: int, feasible: bool) -> None:
    # 192 + 3·8 B of weights and 16 B for each of two sessions, whichever lanes they are on.
    found = solve_exhaustively(_instance(memory=216 + 32 + spare, search={"batch": [2]}))
    assert found.num_plans == (2 if feasible else 0)
    assert (found.values is not None) == feasible


# On two cards with a pipeline: stage 0 reads 176 + 16 B, stage 1 the head as well, 200 B; 8 B of
# hidden vector go on at 400 B/s (0.02 s) and a token of 4 B comes back (0.01 s): 0.422 s in all.
THROUGH = Fraction(422, 1000)
PIPE = {"pp": [2], "micro_batches": [1, 2, 3]}


def test_micro_batches_take_turns_at_the_slowest_stage() -> None:
    two = solve_exhaustively(_instance(cards=2, layers=2, search=PIPE))
    # Two in flight need 2 · 0.2 s at stage 1, less than the way through; the second waits 0.2 s.
    assert two.values == (THROUGH + Fraction(2, 10),)
    assert two.plan is not None
    assert (two.plan.instances[0].stages, two.plan.instances[0].micro_batches) == ((1, 1), 2)
    # One lane 1 plan, two lanes 2, three lanes 2.
    assert two.num_plans == 1 + 2 + 2
    # Three in flight need 0.6 s and a wait of 0.4 s; two in flight serve three sessions in 1.244 s.
    three = _instance(cards=2, layers=2, search=PIPE, cohorts=({"num_sessions": 3},))
    assert solve_exhaustively(three).values == (Fraction(1),)


@pytest.mark.parametrize(("spare", "feasible"), [(0, True), (-1, False)])
def test_every_stage_must_hold_its_layers_and_their_caches(spare: int, feasible: bool) -> None:
    # Stage 1 is the fuller one: 192 + head 8 + final norm 8, and 16 B for each of two sessions.
    # Stage 0 has 8 B less: with one byte short a cut of 2 and 0 layers is none, so nothing fits.
    found = solve_exhaustively(_instance(cards=2, layers=2, memory=240 + spare, search=PIPE))
    assert (found.values is not None) == feasible


# Attention DP 2 with an expert on each card: attention 128 B, router 16 B, one expert 48 B, head
# 8 B and 16 B of KV make 216 B; a token goes to the other card with probability 1/2, 4 of 8 B at
# 400 B/s, and back: 0.02 s. Each card weighs 128 + 16 + 48 + norms 16 + 3·8 = 232 B.
GROUPS = {"dp": [2], "ep": [2]}
DP = Fraction(236, 1000)


def test_attention_groups_serve_and_remember_sessions_of_their_own() -> None:
    instance = _instance(cards=2, ffn=EXPERTS, memory=232 + 16, search=GROUPS)
    found = solve_exhaustively(instance)
    assert (found.values, found.num_plans) == ((DP,), 1)
    assert found.plan is not None
    assert found.plan.instances[0].lanes == (0, 1)
    # With room for two sessions in a group both may also be in the same one.
    instance = _instance(cards=2, ffn=EXPERTS, memory=232 + 32, search=GROUPS)
    assert solve_exhaustively(instance).num_plans == 2
    instance = _instance(cards=2, ffn=EXPERTS, memory=232 + 15, search=GROUPS)
    assert solve_exhaustively(instance).values is None


def test_lanes_of_other_groups_are_not_those_of_the_same_group() -> None:
    # Two groups of two lanes, sessions a, b: together on a lane (ab, ba), on two lanes of a group,
    # or in two groups.
    search = GROUPS | {"batch": [2]}
    cohorts = ({"num_sessions": 1}, OTHER)
    instance = _instance(cards=2, ffn=EXPERTS, cohorts=cohorts, search=search)
    assert solve_exhaustively(instance).num_plans == 2 + 1 + 1
    # Room for one session in each group leaves the last one.
    instance = _instance(cards=2, ffn=EXPERTS, cohorts=cohorts, search=search, memory=248)
    assert solve_exhaustively(instance).num_plans == 1


def test_round_robin_deals_the_sessions_of_an_instance_to_its_lanes_in_turn() -> None:
    # a/0, a/1, b/0 on two lanes: a/0 and then b/0 on one, a/1 on the other.
    # b makes two steps: with the longest context 2 the companion has 2 tokens; 184 + 16 + 32 =
    # 232 B, and 184 + 32 + 32 = 248 B in b's second step.
    cohorts = ({}, OTHER | {"new_tokens": 2})
    search = {"batch": [2], "dispatch": "round_robin"}
    found = solve_exhaustively(_instance(cohorts=cohorts, search=search))
    assert found.values == (Fraction(232 + 232 + 248, 1000),)
    assert found.num_plans == 1
    assert found.plan is not None
    assert found.plan.instances[0].lanes == ()
    # Neighbours in the queue go to different lanes: a/0 and b/0 on one, a/1 and b/1 on the other.
    four = ({}, OTHER | {"num_sessions": 2, "new_tokens": 2})
    found = solve_exhaustively(_instance(cohorts=four, search=search))
    assert found.values == (Fraction(232 + 232 + 248, 1000),)
    # Left to choose, both a go on one lane: 2 · 0.232 s, b takes 0.48 s.
    found = solve_exhaustively(_instance(cohorts=cohorts, search={"batch": [2]}))
    assert found.values == (Fraction(480, 1000),)


def test_a_fault_stops_all_lanes_of_an_instance() -> None:
    fault = {"card": 0, "at_s": "0.1s", "stall_s": "1s"}
    found = solve_exhaustively(_instance(search={"batch": [2]}, faults=[fault]))
    assert found.values == (Fraction(11, 10) + BATCH,)


def test_held_sessions_come_first_and_are_negated() -> None:
    # On 279 B, TP1 has 63 left: 3 sessions each. TP2 weighs 24 + 64 + 24 + 16 = 128, so that
    # 151 B are left for 8 B a session: 18. Its step is 0.1 s and two rings of 8 B, 0.04 s.
    search = {"tp": [1, 2], "deployment": "uniform"}
    goal = {"maximise": "held_sessions", "minimise": "makespan"}
    instance = _instance(cards=2, memory=279, search=search, objective=goal)
    assert solve_exhaustively(instance).values == (-18, Fraction(28, 100))
    # Two batches of a card hold what one does: 2 · 3 sessions beat nothing but come second.
    search["tp"] = [1]
    instance = _instance(cards=2, memory=279, search=search, objective=goal)
    assert solve_exhaustively(instance).values == (-6, Fraction(2, 10))


def test_too_many_footprints_are_refused_before_they_are_priced() -> None:
    long = _instance(cohorts=({"new_tokens": 150_000},), search={"batch": list(range(1, 20))})
    assert MAX_STEPS < 19 * 150_000
    with pytest.raises(TooLargeError, match="footprints"):
        solve_exhaustively(long)


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *inner, layers)))


def _idle_instances(instance: Instance) -> Iterator[ServingInstance]:
    """Yield everything that evaluate allows to be built, out of any degrees up to the cards."""
    pool, search = instance.fleet.pools[0], instance.search
    everywhere = [CardId(0, card) for card in range(pool.server.num_cards)]
    numbers = range(1, pool.num_cards + 1)
    for dp, pp, tp, cp, ep, dcp, copies in product(numbers, repeat=7):
        count = dp * pp * tp * cp * copies
        if count > pool.num_cards:
            continue
        lanes = product(search.batch, search.micro_batches)
        for (batch, micro), spare, sp in product(lanes, (0, 1), {1, tp}):
            config = ParallelConfig(dp, pp, tp, cp, ep, sp, dcp, copies, spare)
            for cut in _cuts(instance.model.num_layers, pp):
                stages = cut if pp > 1 else ()
                for name in ("none", *search.collectives):
                    built = ServingInstance(
                        "pool", config, name, tuple(everywhere[:count]), (), stages, batch, micro
                    )
                    rules = {v.rule for v in evaluate(instance, Plan((built,))).violations}
                    if rules - {"session_missing", "on_time", "uniform", "layout", "dispatch"}:
                        continue
                    if pp > 1 and pipeline_cut(instance, built.footprint) != cut:
                        continue
                    for owned in combinations(everywhere, count):
                        yield ServingInstance("pool", config, name, owned, (), stages, batch, micro)


def _shares(
    sessions: tuple[SessionId, ...], lanes: Sequence[int]
) -> Iterator[list[list[tuple[SessionId, int]]]]:
    """Yield every order of the sessions with every lane for each, instance by instance."""
    places = [(i, lane) for i, count in enumerate(lanes) for lane in range(count)]
    for line in permutations(sessions):
        for chosen in product(places, repeat=len(line)):
            shares: list[list[tuple[SessionId, int]]] = [[] for _ in lanes]
            for session, (i, lane) in zip(line, chosen, strict=True):
                shares[i].append((session, lane))
            yield shares


def _every_plan(instance: Instance) -> Iterator[Plan]:
    """Yield every plan without any symmetry, idle serving instances included."""
    idle = list(_idle_instances(instance))
    dealt = instance.search.dispatch == "round_robin"
    sessions = tuple(
        SessionId(c.name, n) for c in instance.workload.cohorts for n in range(c.num_sessions)
    )
    for count in range(1, instance.fleet.num_cards + 1):
        for group in permutations(idle, count) if dealt else combinations(idle, count):
            owned = [card for serving in group for card in serving.cards]
            if len(set(owned)) < len(owned):
                continue
            if dealt:
                shares = [[[(s, -1) for s in sessions[i::count]] for i in range(count)]]
            else:
                shares = _shares(sessions, [serving.num_lanes for serving in group])
            for share in shares:
                yield Plan(
                    tuple(
                        ServingInstance(
                            *(s.pool, s.parallel, s.collective, s.cards),
                            tuple(session for session, _ in mine),
                            *(s.stages, s.batch, s.micro_batches),
                            () if dealt else tuple(lane for _, lane in mine),
                        )
                        for s, mine in zip(group, share, strict=True)
                    )
                )


FAULT = {"card": 1, "at_s": "0.15s", "stall_s": "0.3s"}
SHORT = ({"num_sessions": 1, "deadline_s": "0.4s"}, OTHER | {"new_tokens": 2, "release_s": "0.1s"})
#: Everything is tried on these: (fields of the instance, its search).
PROBLEMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "batches": ({"cards": 2, "share": "1/2"}, {"batch": [1, 2], "tp": None}),
    "a full card": ({"cards": 2, "memory": 216 + 40}, {"batch": [2], "tp": None}),
    "groups": ({"cards": 2, "ffn": EXPERTS}, {"dp": None, "ep": None, "batch": [1, 2]}),
    "full groups": ({"cards": 2, "ffn": EXPERTS, "memory": 270}, {"dp": None, "ep": None}),
    "spare experts": (
        {"cards": 2, "ffn": EXPERTS | {"num_experts": 3}},
        {"dp": None, "ep": None, "redundant_experts": True},
    ),
    "pipeline": ({"cards": 2, "layers": 3}, {"pp": None, "micro_batches": [1, 2]}),
    "a full stage": ({"cards": 2, "layers": 3, "memory": 480}, {"pp": None, "tp": None}),
    "context": ({"cards": 2, "layers": 1}, {"cp": None, "tp": None, "sequence_parallel": True}),
    "copies": (
        {"cards": 2, "ffn": EXPERTS},
        {"attention_copies": None, "ep": None, "micro_batches": [1]},
    ),
    "three cards": ({"cards": 3, "layers": 2}, {"pp": None, "batch": [2]}),
}


@pytest.mark.parametrize("dispatch", ["optimised", "round_robin"])
@pytest.mark.parametrize("deployment", ["mixed", "uniform"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_oracle_misses_no_plan_that_evaluate_accepts(
    name: str, deployment: str, dispatch: str
) -> None:
    fields, search = PROBLEMS[name]
    search = {"deployment": deployment, "dispatch": dispatch} | search
    instance = _instance(
        **({"share": 0, "cohorts": SHORT, "faults": [FAULT]} | fields), search=search
    )
    objectives = [
        Objective(minimise=(goal,), billing=billing)
        for billing in ("fleet", "instance")
        for goal in get_args(ObjectiveName)
    ]
    best: list[tuple[Fraction, ...] | None] = [None] * len(objectives)
    for plan in _every_plan(instance):
        for i, objective in enumerate(objectives):
            problem = instance.model_copy(update={"objective": objective})
            if i in (0, len(objectives) // 2):  # the account depends on nothing but the billing
                judged = evaluate(problem, plan)
            if {violation.rule for violation in judged.violations} - {"on_time"}:
                break
            if judged.num_on_time >= problem.min_on_time_sessions:
                values = tuple(judged.objective(goal) for goal in objective.minimise)
                best[i] = min(best[i] or values, values)
    assert [result.values for result in solve_many(instance, objectives)] == best
    assert None not in best
    assert len(list(footprints(instance))) > 1
