"""From an instance to what is asked of a capacity decision, and to its options."""

from __future__ import annotations

from fractions import Fraction

from capacity_sources import CHAT, FABRIC, MODEL, Json, built, pool, source
from optimizer.capacity.building import build_capacity, model_instances
from optimizer.capacity.problem import CohortDemand

NS = Fraction(1, 10**9)

OTHER = {**MODEL, "name": "other"}


def test_demands_end_by_deadline_and_period_whichever_is_first() -> None:
    cohorts = [
        {**CHAT, "name": "a", "deadline_s": "5s", "release_s": "1s"},
        {**CHAT, "name": "b", "deadline_s": "15s", "model": "other"},
        {**CHAT, "name": "c", "num_sessions": 3, "min_on_time_fraction": "50%"},
    ]
    fields: Json = {"cohorts": cohorts, "models": [MODEL, OTHER], "fraction": "75%"}
    problem = built(**fields, capacity={"period_s": "10s"})
    # 75% of 10 is 7.5: 8; half of 3 is 1.5: 2
    assert problem.cohorts == (
        CohortDemand("a", 0, 10, 8, 2, Fraction(1), Fraction(5)),
        CohortDemand("b", 1, 10, 8, 2, Fraction(0), Fraction(10)),
        CohortDemand("c", 0, 3, 2, 2, Fraction(0), Fraction(10)),
    )
    assert [d.deadline_s for d in built(**fields).cohorts] == [5, 15, None]


def test_options_serve_the_sessions_of_their_model_that_may_use_their_pool() -> None:
    cohorts = [
        {**CHAT, "name": "a"},
        {**CHAT, "name": "b", "model": "other"},
        {**CHAT, "name": "c", "model": "tiny", "pools": ["q"], "context_tokens": 110},
    ]
    pools = (pool("p"), pool("q"))
    problem = built(*pools, cohorts=cohorts, models=[MODEL, OTHER])
    # a token more of context is 32 B more to read, in each of two steps: 6368 + 100 · 64 = 12768
    shown = [(o.model, o.pool, o.service_s) for o in problem.options]
    assert shown == [
        (0, 0, (6368 * NS, None, None)),
        (0, 1, (6368 * NS, None, 12_768 * NS)),
        (1, 0, (None, 6368 * NS, None)),
        (1, 1, (None, 6368 * NS, None)),
    ]
    # 12 tokens of 32 B, 112 of them; weights 3408 B and 100 B of workspace
    rows = [(row.session_bytes, row.free_bytes) for row in problem.options[1].memory]
    assert rows == [((384, 0, 3584), 10**6 - 3508)]
    assert [o.index for o in problem.options] == [0, 1, 2, 3]
    assert problem.options_of_pool == ((0, 2), (1, 3))


def test_options_over_several_servers_take_whole_servers() -> None:
    spare = pool(cards=2, fabric_between=FABRIC)
    found = build_capacity(source(spare, search={"tp": [1, 2, 4]}))
    shown = [
        (o.footprint.parallel.tp, o.num_servers, o.cards_per_server, o.num_cards)
        for o in found.problem.options
    ]
    assert shown == [(1, 1, 1, 1), (2, 1, 2, 2), (4, 2, 2, 4)]


def test_options_whose_every_session_would_be_late_are_rejected_by_how_much() -> None:
    fields: Json = {"cohorts": [{**CHAT, "release_s": "100ns", "deadline_s": "6468ns"}]}
    assert len(built(**fields).options) == 1
    fields["cohorts"] = [{**CHAT, "release_s": "100ns", "deadline_s": "6467ns"}]
    found = build_capacity(source(**fields))
    assert found.problem.options == ()
    late = [
        (r.model, r.rejection.rule, r.rejection.amount, r.rejection.unit) for r in found.rejections
    ]
    assert late == [("tiny", "late", NS, "s")]
    # of several cohorts the one that misses least says by how much; every model says it
    named = (("a", "5ns", "tiny"), ("b", "6360ns", "tiny"), ("c", "6366ns", "other"))
    fields["cohorts"] = [
        {**CHAT, "name": name, "deadline_s": deadline, "model": model}
        for name, deadline, model in named
    ]
    found = build_capacity(source(**fields, models=[MODEL, OTHER]))
    shown = [(r.model, r.rejection.rule, r.rejection.amount) for r in found.rejections]
    assert shown == [("tiny", "late", 8 * NS), ("other", "late", 2 * NS)]


def test_rejections_of_every_model_are_kept_and_what_time_cuts_short_is_not_complete() -> None:
    cohorts = [CHAT, {**CHAT, "name": "b", "model": "other"}]
    # TP3 would cut four heads
    instance = source(cohorts=cohorts, models=[MODEL, OTHER], search={"tp": [1, 3]})
    found = build_capacity(instance)
    assert [(r.model, r.rejection.rule) for r in found.rejections] == [
        ("tiny", "heads"),
        ("other", "heads"),
    ]
    assert found.is_complete
    asked: list[float] = []

    def is_over(share: float) -> bool:
        asked.append(share)
        return len(asked) < 2  # only while the first model is listed

    assert not build_capacity(instance, is_over).is_complete


def test_models_stand_alone_with_their_cohorts_and_the_pools_that_can_compute_them() -> None:
    cohorts = [
        {**CHAT, "name": "a", "min_on_time_fraction": "50%"},
        {**CHAT, "name": "b", "model": "other", "num_sessions": 10**9},
    ]
    eights = {**OTHER, "formats": {"weights": "fp8"}}
    third = {**MODEL, "name": "third"}
    pools = (pool("p", servers=4, servers_per_group=4), pool("q", peaks=["bf16", "fp8"]))
    alone = model_instances(source(*pools, cohorts=cohorts, models=[MODEL, eights, third]))
    assert [one is not None for one in alone] == [True, True, False]
    first, second = alone[0], alone[1]
    assert first is not None
    assert second is not None
    assert [p.name for p in first.fleet.pools] == ["p", "q"]
    assert [p.servers_per_group for p in first.fleet.pools] == [1, 1]
    assert [p.name for p in second.fleet.pools] == ["q"]
    assert [c.name for c in second.workload.cohorts] == ["b"]
    assert second.workload.cohorts[0].num_sessions == 100_000  # lanes are never more
    assert (first.decision, second.model.name) == ("deployment", "other")
    none = model_instances(source(pool("p"), cohorts=cohorts, models=[MODEL, eights]))
    assert none[1] is None
