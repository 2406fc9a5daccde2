"""Published figures of section 6.5.2 come out of the capacity decision, and what its exercises ask.

Every figure carries the id under which the source chapter prints it. A DGX H100 draws 10.2 kW and,
as in the chapter's first decision, serves four sessions of 128K within 130 ms: as many sessions as
fit show how many servers do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from instances import parse_instance
from instances.io import example_text
from optimizer import SolveOptions
from optimizer.side.capacity_accounts import CapacityAccountDocument
from optimizer.side.decisions import solve_side

SERVER_W, SESSIONS_A_SERVER = 10_200, 4
TIER = {"name": "second", "above_endpoints": 64, "power_w": "10.2kW"}
Change = Callable[[dict[str, Any]], None]


@cache
def building() -> str:
    """The bundled example, asked for most sessions and for nothing else."""
    document = json.loads(example_text("building-120kw"))
    document["capacity"]["goals"] = ["sessions"]
    return json.dumps(document)


def decided(change: Change) -> CapacityAccountDocument:
    """Solve a changed building; the answer must be proven and keep every rule."""
    document = json.loads(building())
    change(document)
    result = solve_side(parse_instance(document), SolveOptions(threads=1))
    assert result.termination == "optimal"
    assert result.certificate.second_opinion.agrees is True
    assert result.evaluation is not None
    assert result.evaluation.violations == []
    assert result.evaluation.capacity is not None
    return result.evaluation.capacity


def servers_and_cards(found: CapacityAccountDocument) -> tuple[int, int]:
    return sum(pool.servers for pool in found.servers), found.endpoints


def within(
    budget: str, fixed: str = "0W", tiers: tuple[dict[str, Any], ...] = (), group: int = 1
) -> tuple[int, int]:
    """Servers and cards that serve most sessions under a power budget."""

    def change(document: dict[str, Any]) -> None:
        fleet = document["fleet"]
        fleet["power"] = {"budget_w": budget, "fixed_w": fixed}
        fleet["switch_tiers"] = list(tiers)
        fleet["pools"][0]["servers_per_group"] = group

    found = decided(change)
    servers, cards = servers_and_cards(found)
    assert sum(cohort.taken for cohort in found.cohorts) == SESSIONS_A_SERVER * servers
    return servers, cards


@pytest.mark.parametrize(
    ("cards", "published_w"), [(64, 81_600), (72, 91_800), (96, 122_400)], ids=["64", "72", "96"]
)
def test_power_of_so_many_cards(cards: int, published_w: int) -> None:
    """pw: 8 · 10.2, 9 · 10.2 and 12 · 10.2 kW; here as the least power for their sessions."""

    def change(document: dict[str, Any]) -> None:
        cohort = document["workload"]["cohorts"][0]
        cohort["num_sessions"] = cards // 8 * SESSIONS_A_SERVER
        del cohort["min_on_time_fraction"], document["fleet"]["power"]
        document["capacity"]["goals"] = ["power"]

    found = decided(change)
    assert servers_and_cards(found) == (cards // 8, cards)
    assert found.power.total_w == published_w


def test_servers_and_cards_under_120_kw() -> None:
    """pw120: floor(120 / 10.2) = 11 servers, 88 cards."""
    assert within("120kW") == (11, 88)


@pytest.mark.parametrize(("budget", "servers"), [("112.2kW", 11), ("112199W", 10)])
def test_the_eleventh_server_needs_112_2_kw_and_not_a_watt_less(budget: str, servers: int) -> None:
    assert within(budget) == (servers, 8 * servers)


def test_servers_and_cards_under_150_kw() -> None:
    """Exercise (a): floor(150 / 10.2) = 14 servers, 112 cards."""
    assert within("150kW") == (14, 112)


@pytest.mark.parametrize(("fixed", "servers"), [("7.8kW", 11), ("7801W", 10), ("20kW", 9)])
def test_what_is_drawn_anyway_comes_off_the_budget(fixed: str, servers: int) -> None:
    """(6-11) with P_0: (120 - 7.8) / 10.2 = 11 exactly, a watt more 10; (120 - 20) / 10.2 = 9.8."""
    assert within("120kW", fixed) == (servers, 8 * servers)


@pytest.mark.parametrize(
    ("budget", "servers"), [("120kW", 10), ("150kW", 13), ("101.999kW", 8), ("102kW", 9)]
)
def test_a_second_tier_after_64_cards_takes_the_place_of_a_server(
    budget: str, servers: int
) -> None:
    """Exercise (b): (120 - 10.2) / 10.2 = 10.8, (150 - 10.2) / 10.2 = 13.7.

    The ninth server brings the tier: 9 · 10.2 + 10.2 = 102 kW; below that the 64 cards stay.
    """
    assert within(budget, tiers=(TIER,)) == (servers, 8 * servers)


@pytest.mark.parametrize(("above", "servers"), [(88, 11), (87, 10)])
def test_a_tier_begins_above_its_endpoints(above: int, servers: int) -> None:
    """With 88 cards 11 servers need no tier above 88, and 122.4 kW with one above 87."""
    tier = TIER | {"above_endpoints": above}
    assert within("120kW", tiers=(tier,)) == (servers, 8 * servers)


@pytest.mark.parametrize(
    ("budget", "tiers", "servers"),
    [
        ("120kW", (), 8),
        ("122.4kW", (), 12),
        ("120kW", (TIER,), 8),
        ("132.6kW", (TIER,), 12),
        ("132599W", (TIER,), 8),
    ],
)
def test_servers_only_in_fours(
    budget: str, tiers: tuple[dict[str, Any], ...], servers: int
) -> None:
    """Exercise (c): 12 servers need 122.4 kW, with the second tier 132.6; else 8, 64 cards."""
    assert within(budget, tiers=tiers, group=4) == (servers, 8 * servers)


def test_nine_servers_in_fours_are_twelve_that_all_draw_power() -> None:
    """36 sessions need nine; three stand idle, and their cards are endpoints as well."""

    def change(document: dict[str, Any]) -> None:
        cohort = document["workload"]["cohorts"][0]
        cohort["num_sessions"] = 36
        del cohort["min_on_time_fraction"], document["fleet"]["power"]
        document["fleet"]["pools"][0]["servers_per_group"] = 4
        document["capacity"]["goals"] = ["power", "cards"]

    found = decided(change)
    assert servers_and_cards(found) == (12, 96)
    assert found.power.total_w == 12 * SERVER_W
    assert [pool.idle for pool in found.servers] == [3]


@pytest.mark.parametrize(("limit", "servers"), [("40kW", 3), ("40799W", 3), ("40.8kW", 4)])
def test_servers_in_an_air_cooled_rack(limit: str, servers: int) -> None:
    """air: 3 servers, 24 cards, 30.6 kW; four need 40.8 kW. Units do not limit: 42 / 8 = 5."""

    def change(document: dict[str, Any]) -> None:
        fleet = document["fleet"]
        del fleet["power"]
        fleet["pools"][0]["rack_units"] = 8
        fleet["racks"] = [{"name": "air", "units": 42, "cooling_w": limit}]

    found = decided(change)
    assert servers_and_cards(found) == (servers, 8 * servers)
    assert found.power.total_w == servers * SERVER_W
    assert [rack.power_w for rack in found.placement] == [servers * SERVER_W]


@pytest.mark.parametrize(("units", "servers"), [(24, 3), (23, 2)])
def test_units_limit_a_rack_as_power_does(units: int, servers: int) -> None:
    def change(document: dict[str, Any]) -> None:
        fleet = document["fleet"]
        fleet["pools"][0]["rack_units"] = 8
        fleet["racks"] = [{"name": "low", "units": units, "cooling_w": "40kW"}]

    assert servers_and_cards(decided(change)) == (servers, 8 * servers)


def test_two_building_plans_serve_as_much_as_their_cards() -> None:
    """Exercise (d): 64 cards (81.6 kW) serve 32 sessions, 72 cards (91.8 kW) 36."""
    assert within("81.6kW") == (8, 64)
    assert within("91.8kW") == (9, 72)
