"""Bundled examples of fleets: what they answer, worked out by hand, proven by two backends.

Of service times only so much is needed as decides how many sessions end by a deadline on one lane;
they are checked in `test_how_many_sessions_a_lane_serves`.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

from instances import Instance, parse_instance
from instances.io import example_text, load_instance
from optimizer import SolveOptions
from optimizer.capacity.building import build_capacity
from optimizer.side.capacity_accounts import CapacityAccountDocument
from optimizer.side.decisions import solve_side
from optimizer.side.result import SideResultDocument

#: Every example and what it must come to, goal by goal.
BY_HAND = {
    "building-120kw": {"sessions": "44", "servers": "11", "power": "112200"},
    "buy-for-three-models": {"price_per_hour": "14792/125", "sessions": "204"},  # 118.336
    "lose-any-rack": {"servers": "8", "racks": "3"},
    "occupied-cluster": {"sessions": "4", "cards": "8"},
    "air-cooled-racks": {"racks": "3", "servers": "15"},
    "two-power-feeds": {
        "sessions": "24",
        "servers": "6",
        "expected_sessions": "594/25",  # 24 · 98% + 2 · 12 · 1%
        "price_per_on_time_session": "344/25",  # 6 · 55.04 / 24
    },
    "mixed-generations": {"price_per_hour": "70146821/500000", "servers": "3"},  # 140.293642
}


@cache
def solved(name: str, solver: str = "auto") -> SideResultDocument:
    return solve_side(load_instance(name), SolveOptions(solver=solver, threads=1))


def changed(name: str, change: Any) -> SideResultDocument:
    """Solve an example after a change of its document."""
    document = json.loads(example_text(name))
    change(document)
    return proven(parse_instance(document))


def proven(instance: Instance) -> SideResultDocument:
    result = solve_side(instance, SolveOptions(threads=1))
    if result.termination == "optimal":
        assert result.certificate.second_opinion.agrees is True
    return result


def values(result: SideResultDocument) -> dict[str, str | None]:
    return {goal.name: goal.verified_exact for goal in (result.objective, *result.then)}


def account(result: SideResultDocument) -> CapacityAccountDocument:
    assert result.evaluation is not None
    assert result.evaluation.capacity is not None
    return result.evaluation.capacity


def taken(result: SideResultDocument) -> dict[str, int]:
    return {cohort.name: cohort.taken for cohort in account(result).cohorts}


def bought(result: SideResultDocument) -> dict[str, int]:
    return {pool.pool: pool.servers for pool in account(result).servers}


def instances(result: SideResultDocument) -> Counter[tuple[str, str, str]]:
    """Serving instances in use, by model, split and pool."""
    return Counter(
        {(i.model, i.label, i.pool): i.number for i in account(result).instances if i.number}
    )


#: Those without failures whose goals servers and racks decide: a third statement is for them, too.
BY_COLUMNS = ("air-cooled-racks", "mixed-generations")


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *((name, solver) for name in BY_HAND for solver in ("highs", "cp-sat")),
        *((name, "columns") for name in BY_COLUMNS),
    ],
)
def test_two_backends_prove_what_was_worked_out_by_hand(name: str, solver: str) -> None:
    result = solved(name, solver)
    assert result.termination == "optimal"
    assert values(result) == BY_HAND[name]
    for goal in (result.objective, *result.then):
        assert goal.bound_exact == goal.verified_exact
        assert goal.gap == 0
    assert result.certificate.second_opinion.agrees is True
    assert result.evaluation is not None
    assert result.evaluation.violations == []


#: Model, split (tp, batch) and pool: sessions of each cohort that one lane ends on time, then how
#: many sessions of a cohort one group holds at once.
LANES = [
    ("building-120kw", "qwen3-32b", (2, 1), "hgx", {"long": (1, 2)}),
    ("building-120kw", "qwen3-32b", (4, 1), "hgx", {"long": (2, 7)}),
    ("building-120kw", "qwen3-32b", (8, 1), "hgx", {"long": (3, 16)}),
    ("lose-any-rack", "qwen3-235b-a22b", (8, 1), "hgx", {"large": (4, 47)}),
    ("occupied-cluster", "qwen3-32b", (2, 1), "hgx", {"urgent": (0, 2), "long": (1, 2)}),
    ("occupied-cluster", "qwen3-32b", (4, 1), "hgx", {"urgent": (1, 7), "long": (2, 7)}),
    ("buy-for-three-models", "qwen3-32b", (8, 8), "h100", {"documents": (1, 16)}),
    ("buy-for-three-models", "qwen3-32b", (4, 1), "h200", {"documents": (2, 14)}),
    ("buy-for-three-models", "qwen3-32b", (2, 1), "h200", {"documents": (1, 6)}),
    ("buy-for-three-models", "qwen3-235b-a22b", (4, 8), "h200", {"large": (4, 26)}),
    ("buy-for-three-models", "llama-3.1-8b", (1, 8), "h100", {"chat": (2, 56), "bulk": (2, 184)}),
    ("buy-for-three-models", "llama-3.1-8b", (1, 8), "h200", {"chat": (3, 112), "bulk": (4, 365)}),
    ("mixed-generations", "llama-3.1-8b", (1, 8), "a100", {"chat": (1, 19)}),
    ("mixed-generations", "llama-3.1-8b", (1, 4), "h100", {"chat": (2, 56), "fast": (1, 56)}),
    ("mixed-generations", "llama-3.1-8b", (1, 8), "h100", {"chat": (2, 56), "fast": (0, 56)}),
    ("mixed-generations", "llama-3.1-8b", (1, 8), "h200", {"chat": (3, 112), "fast": (1, 112)}),
    ("mixed-generations", "qwen3-30b-a3b", (1, 4), "h100", {"experts": (3, 5)}),
    ("mixed-generations", "qwen3-30b-a3b", (1, 4), "h200", {"experts": (5, 24)}),
]


@pytest.mark.parametrize(("name", "model", "split", "pool", "served"), LANES)
def test_how_many_sessions_a_lane_serves(
    name: str, model: str, split: tuple[int, int], pool: str, served: dict[str, tuple[int, int]]
) -> None:
    problem = build_capacity(load_instance(name)).problem
    (option,) = [
        option
        for option in problem.options
        if problem.models[option.model] == model
        and problem.pools[option.pool].name == pool
        and (option.footprint.parallel.tp, option.footprint.batch) == split
    ]
    found = {}
    for c, cohort in enumerate(problem.cohorts):
        if cohort.name in served:
            service_s = option.service_s[c]
            assert service_s is not None
            assert cohort.deadline_s is not None
            held = min(row.free_bytes // row.session_bytes[c] for row in option.memory)
            found[cohort.name] = (int(cohort.deadline_s // service_s), held)
    assert found == served


def test_the_building_holds_eleven_servers() -> None:
    """120 / 10.2 = 11.76; four sessions a server, as 4 × TP2 or 2 × TP4 with two in turn.

    TP8 serves three. So 11 · 4 = 44 sessions, 88 cards, 11 · 10.2 = 112.2 kW; what is left,
    7.8 kW, feeds no server.
    """
    result = solved("building-120kw")
    found = account(result)
    assert bought(result) == {"hgx": 11}
    assert (found.endpoints, found.power.total_w, found.power.left_w) == (88, 112_200, 7_800)
    assert "power" in [resource.name for resource in found.resources if resource.is_binding]


def test_three_models_take_a_server_of_each_kind() -> None:
    """55.04 + 63.296 = 118.336 an hour.

    Eight documents in 130 ms need eight cards of either kind (TP8 with a batch of eight; else a
    session for every two cards), and Qwen3-235B eight H100 or four H200. That is more than one
    server. Two H100 (110.08) are full with it; beside Qwen3-235B on H200 four cards are left for
    Llama, which serve 4 · 8 · 3 = 96 chats, more than 90 of 100. Nothing else costs less than two
    H200 (126.592). In that order, documents on H100: the other way round Llama gets no card. Most
    sessions: 8 + 20 + 96 + 80 = 204.
    """
    result = solved("buy-for-three-models")
    assert bought(result) == {"h100": 1, "h200": 1}
    assert taken(result) == {"documents": 8, "chat": 96, "bulk": 80, "large": 20}
    used = instances(result)
    assert used["qwen3-32b", "TP8, batch 8 (ring)", "h100"] == 1
    assert used["qwen3-235b-a22b", "TP4, batch 8 (ring)", "h200"] == 1
    assert {key[2] for key in used if key[0] == "llama-3.1-8b"} == {"h200"}


def test_all_chats_need_three_servers_and_then_of_one_kind() -> None:
    """100 chats are more than 96: a third server. 3 · 55.04 = 165.12 is the cheapest third.

    Three H100 do it: documents, Qwen3-235B, and Llama with 100 / 16 = 7 cards.
    """

    def all_chats(document: dict[str, Any]) -> None:
        document["workload"]["cohorts"][1]["min_on_time_fraction"] = 1

    result = changed("buy-for-three-models", all_chats)
    assert values(result)["price_per_hour"] == "4128/25"  # 165.12
    assert bought(result) == {"h100": 3, "h200": 0}


@pytest.mark.parametrize(("pool", "price", "servers"), [(0, "4128/25", 3), (1, "15824/125", 2)])
def test_one_kind_of_server_is_dearer(pool: int, price: str, servers: int) -> None:
    """H100 alone: one server for each model, 165.12. H200 alone: two, 126.592."""

    def one_pool(document: dict[str, Any]) -> None:
        document["fleet"]["pools"] = [document["fleet"]["pools"][pool]]

    result = changed("buy-for-three-models", one_pool)
    assert values(result)["price_per_hour"] == price
    assert list(bought(result).values()) == [servers]


def racks_held(result: SideResultDocument) -> list[Counter[str]]:
    """Servers of each model in every rack."""
    assert result.plan is not None
    assert result.plan.capacity is not None
    models = {item.name: item.model for item in result.plan.capacity.instances}
    found: dict[str | None, Counter[str]] = {}
    for fill in result.plan.capacity.servers:
        (model,) = {models[block.instance] for block in fill.instances} or {"idle"}
        found.setdefault(fill.rack, Counter())[model] += fill.count
    return list(found.values())


def test_spares_and_their_spread_follow_from_losing_any_rack() -> None:
    """Four sessions a server: Qwen3-32B needs four servers wherever a rack is lost.

    a in four racks with sum(a) - max(a) ≥ 4: five would need one in each of five racks, so six, two
    in each of three. Qwen3-235B: one more in another rack. 6 + 2 = 8. A rack feeds three
    (40 / 10.2 = 3.9), so three racks.
    """
    result = solved("lose-any-rack")
    assert bought(result) == {"hgx": 8}
    held = racks_held(result)
    assert sum(rack.total() for rack in held) == 8
    assert len(held) == 3
    for model, spare in (("qwen3-32b", 2), ("qwen3-235b-a22b", 1)):
        counts = [rack[model] for rack in held]
        assert max(counts) == spare
        assert sum(counts) - max(counts) >= {"qwen3-32b": 4, "qwen3-235b-a22b": 1}[model]
    for outcome in account(result).after:
        assert outcome.kind == "rack"
        assert outcome.sessions == [16, 1]


def test_without_failures_the_same_takes_five_servers() -> None:
    """16 / 4 + 1 = 5 servers, in two racks of three."""

    def nothing_fails(document: dict[str, Any]) -> None:
        document["capacity"]["failures"] = []

    result = changed("lose-any-rack", nothing_fails)
    assert values(result) == {"servers": "5", "racks": "2"}


def test_with_five_racks_one_spare_of_each_is_enough() -> None:
    """Five racks with one Qwen3-32B server each leave four: 5 + 2 = 7 servers, five racks."""

    def five_racks(document: dict[str, Any]) -> None:
        document["fleet"]["racks"][0]["count"] = 5

    result = changed("lose-any-rack", five_racks)
    assert values(result) == {"servers": "7", "racks": "5"}


def test_no_rack_to_lose_is_no_answer() -> None:
    """Whatever stands in a single rack, nothing is left without it."""

    def one_rack(document: dict[str, Any]) -> None:
        document["fleet"]["racks"][0]["count"] = 1

    result = changed("lose-any-rack", one_rack)
    assert result.termination == "infeasible"
    assert result.plan is None


def test_six_and_two_free_cards_hold_no_tp8() -> None:
    """TP4 on the six: the urgent session by 63.8 ms, another by 127.6; TP2 on both pairs left."""
    result = solved("occupied-cluster")
    assert taken(result) == {"urgent": 1, "long": 3}
    assert instances(result) == {
        ("qwen3-32b", "TP2 (ring)", "hgx"): 2,
        ("qwen3-32b", "TP4 (ring)", "hgx"): 1,
    }
    assert result.plan is not None
    assert result.plan.capacity is not None
    free = {fill.free_cards: fill.instances for fill in result.plan.capacity.servers}
    names = {item.name: item.parallel.tp for item in result.plan.capacity.instances}
    assert {k: {names[b.instance]: b.number for b in v} for k, v in free.items()} == {
        6: {4: 1, 2: 1},
        2: {2: 1},
    }


def test_eight_free_cards_of_two_servers_are_not_eight_of_one() -> None:
    """By 50 ms only TP8 ends (41.2): infeasible on 6 + 2 cards, possible once a server is free."""

    def hurry(document: dict[str, Any]) -> None:
        document["workload"]["cohorts"][0]["deadline_s"] = "50ms"

    def hurry_in_a_free_server(document: dict[str, Any]) -> None:
        hurry(document)
        del document["fleet"]["pools"][0]["occupied"][0]

    assert changed("occupied-cluster", hurry).termination == "infeasible"
    result = changed("occupied-cluster", hurry_in_a_free_server)
    # TP8: the urgent session and two others by 123.5 ms; TP2 on the other server's two cards: one
    assert values(result) == {"sessions": "4", "cards": "10"}


def test_one_liquid_cooled_rack_saves_two() -> None:
    """15 servers: nine in the liquid-cooled rack (91.8 kW of 100), three in each of two others."""
    result = solved("air-cooled-racks")
    found = account(result)
    assert {rack.rack: rack.used for rack in found.racks} == {"air": 2, "liquid": 1}
    assert bought(result) == {"hgx-air": 6, "hgx-liquid": 9}
    for rack in found.placement:
        servers = sum(server.count for server in rack.servers)
        assert (servers, rack.power_w) == {"air": (3, 30_600), "liquid": (9, 91_800)}[
            str(rack.rack)
        ]


def test_air_alone_takes_five_racks_of_three() -> None:
    """60 / 4 = 15 servers, 40 / 10.2 = 3 a rack."""

    def air_only(document: dict[str, Any]) -> None:
        del document["fleet"]["racks"][1], document["fleet"]["pools"][1]

    result = changed("air-cooled-racks", air_only)
    assert values(result) == {"racks": "5", "servers": "15"}
    assert [rack.power_w for rack in account(result).placement] == [30_600]


def test_a_server_of_each_generation() -> None:
    """21.957642 + 55.04 + 63.296 = 140.293642 an hour.

    A card serves in 2 s of chats: A100 8, H100 16, H200 24; of fast ones, by 0.8 s, H100 4 (batch
    of four, one more chat behind each) and H200 8 (two more behind each); of Qwen3-30B-A3B H100 5
    (memory) and H200 20.

    On one H200 and one H100: experts on a H200 and b H100 cards, 20a + 5b ≥ 40. The other H200
    cards end 24 sessions of Llama each, 8 of them fast; the H100 cards that take the fast ones
    left, (8a - 8) / 4 = 2a - 2, end 8 each, the others 16. In all 24(8 - a) + 8(2a - 2) +
    16(8 - b - (2a - 2)): (a, b) = (2, 0) gives 144 + 16 + 96 = 256, (1, 4) 168 + 64 = 232, (0, 8)
    192. Without the 56 fast ones at most 200 chats of 260: a third server, of which A100 is the
    cheapest and adds 64.

    What else costs less: H200 with A100s alone lacks a card (56 / 8 + 40 / 20 = 9), two H100 with
    A100s have too few (40 / 5 + 56 / 4 = 22), and A100s alone do neither.
    """
    result = solved("mixed-generations")
    assert bought(result) == {"a100": 1, "h100": 1, "h200": 1}
    assert taken(result) == {"chat": 260, "fast": 56, "experts": 40}


@pytest.mark.parametrize(("chats", "price", "a100"), [(264, "70146821/500000", 1), (265, None, 2)])
def test_the_a100_serves_64_chats_and_not_one_more(
    chats: int, price: str | None, a100: int
) -> None:
    """200 + 64 = 264; 265 need two A100 (162.251284), still less than a second H100 (173.376)."""

    def more_chats(document: dict[str, Any]) -> None:
        document["workload"]["cohorts"][0]["num_sessions"] = chats

    result = changed("mixed-generations", more_chats)
    assert bought(result) == {"a100": a100, "h100": 1, "h200": 1}
    assert values(result)["price_per_hour"] == (price or "40562821/250000")


def test_without_the_h200_three_h100_are_needed() -> None:
    """40 / 5 = 8 cards of experts and 56 / 4 = 14 of fast ones: 22 of 24, with 2 · 16 + 56 chats.

    172 of 260 chats are left for A100: three (192). 3 · 55.04 + 3 · 21.957642 = 230.992926, less
    than a fourth H100 (220.16), which has 8 · 16 = 128 more, with one A100 (242.117642).
    """

    def no_h200(document: dict[str, Any]) -> None:
        del document["fleet"]["pools"][2]
        for cohort in document["workload"]["cohorts"][1:]:
            cohort["pools"] = ["h100"]

    result = changed("mixed-generations", no_h200)
    assert bought(result) == {"a100": 3, "h100": 3}
    assert values(result)["price_per_hour"] == "115496463/500000"
