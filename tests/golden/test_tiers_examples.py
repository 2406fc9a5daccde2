"""Published figures of 6.6.3 and 6.7.4 that follow from where data lie, by the bundled examples.

Published values and tolerances are literals; nothing here computes what it expects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from figures import assert_figure
from instances.io import example_text, load_instance, parse_instance
from optimizer import SolveOptions
from optimizer.side.decisions import solve_side
from optimizer.side.result import SideResultDocument
from optimizer.side.tier_accounts import TierAccountDocument
from optimizer.tiers.building import tier_problem
from optimizer.tiers.evaluation import evaluate_tiers
from optimizer.tiers.problem import TierPlan, TierProblem

F = Fraction
GB = 10**9
US = F(1, 10**6)
SOLVERS = ("cp-sat", "highs", "cbc")


def solved(document: dict[str, Any] | str, solver: str = "auto") -> SideResultDocument:
    instance = load_instance(document) if isinstance(document, str) else parse_instance(document)
    result = solve_side(instance, SolveOptions(solver=solver, threads=1))
    assert result.certificate.second_opinion.agrees is True
    return result


def account_of(result: SideResultDocument) -> TierAccountDocument:
    assert result.termination == "optimal"
    assert result.evaluation is not None
    assert result.evaluation.tiers is not None
    return result.evaluation.tiers


def places(result: SideResultDocument) -> dict[str, str]:
    assert result.plan is not None
    assert result.plan.tiers is not None
    return {place.name: place.tier for place in result.plan.tiers.classes}


def example(name: str, keep: Iterable[str] | None = None, **tiers: list[str]) -> dict[str, Any]:
    """An example in which some classes may lie only in given tiers, or of which some are kept."""
    document: dict[str, Any] = json.loads(example_text(name))
    classes = document["tiers"]["classes"]
    for data in classes:
        if data["name"] in tiers:
            data["tiers"] = tiers[data["name"]]
    if keep is not None:
        document["tiers"]["classes"] = [data for data in classes if data["name"] in keep]
    return document


@pytest.mark.parametrize("solver", SOLVERS)
def test_tables_on_the_host_make_room_for_sessions(solver: str) -> None:
    """ "v41_host": 178 sessions on a card of S = 8; with the tables in HBM 37, of "v41_8"."""
    result = solved("v41-engram-placement", solver)
    assert places(result)["Engram tables"] == "host memory"
    assert_figure("v41_host", account_of(result).num_sessions, "178", "0")
    assert result.plan is not None
    why = "with Engram tables in HBM 37 sessions (capacity, not speed)"
    assert result.plan.sentence.endswith(why)
    only = example("v41-engram-placement", **{"Engram tables": ["HBM"]}, KV=["HBM"])
    account = account_of(solved(only, solver))
    assert_figure("v41_8, sessions", account.num_sessions, "37", "0")
    # 71.0 GB of weights; all experts are read, a hundredth too many
    weights = sum(data.bytes for data in account.classes if data.name not in ("KV", "workspace"))
    assert_figure("v41_8, weights", F(weights, GB), "71.0", "0.06")
    assert account.step.total_exact is not None
    assert F("14.1") < F(account.step.total_exact) * 1000 < F("14.1") * F(101, 100)


def sixty_four() -> tuple[TierProblem, TierPlan]:
    """The card's problem with experts and tables over 64 cards, and 335 sessions."""
    problem = tier_problem(load_instance("v41-engram-placement"))
    share = {"experts": F(8, 64), "Engram tables": F(8, 64)}
    classes = tuple(
        replace(data, bytes=int(data.bytes * share.get(data.name, 1))) for data in problem.classes
    )
    plan = TierPlan((0, 0, 1, 0, 0), (None,) * 5, 335)
    return replace(problem, classes=classes), plan


def test_random_reads_of_a_card() -> None:
    """engram_reads: 335 sessions look up 48 rows each, 16,080 at 61 million a second."""
    problem, plan = sixty_four()
    judged = evaluate_tiers(problem, plan)
    assert judged.violations == ()
    assert judged.random_reads_s[1] == F(16_080, 61 * 10**6)
    assert_figure("engram_reads", judged.random_reads_s[1] * 1000, "0.26", "0.005")
    assert judged.step.excess_s == 0


@pytest.mark.parametrize(
    ("name", "rate", "core_us", "communication_us"),
    [
        ("one-user-8xh100", "362", "2689", "76"),
        ("one-user-58xb200", "1357", "165", "562"),
        ("rom-wafers", "4070", "77", "159"),
        ("rom-one-wafer", "5037", "69", "119.5"),
    ],
)
def test_the_speed_of_one_user(name: str, rate: str, core_us: str, communication_us: str) -> None:
    """ "rom": the published rates of three machines, and of one wafer without the tables."""
    account = account_of(solved(name))
    assert account.alone_user_rate_exact is not None
    assert_figure(f"rom, {name}", F(account.alone_user_rate_exact), rate, "1.5")
    section = load_instance(name).tiers
    assert section is not None
    assert section.machine.communication_s == F(communication_us) * US
    problem = tier_problem(load_instance(name))
    names = [tier.name for tier in problem.tiers]
    homes = tuple(names.index(data.tier) for data in account.classes if data.tier is not None)
    alone = evaluate_tiers(problem, TierPlan(homes, (None,) * len(homes), 1))
    assert alone.violations == ()
    assert_figure(f"rom, {name}, core", alone.step.core_s / US, core_us, "0.5")


@pytest.mark.parametrize("solver", SOLVERS)
def test_kv_in_hbm_and_in_sram(solver: str) -> None:
    """6.7.4: 9,637 sessions with KV in HBM, one in SRAM, at the same speed of one user.

    Tables in HBM take the room of 1,124 sessions; in ROM they take 21,651 mm2.
    """
    best = solved("rom-wafers", solver)
    assert places(best)["KV"] == "HBM"
    account = account_of(best)
    assert account.num_sessions == 9637
    sram = account_of(solved(example("rom-wafers", KV=["SRAM"]), solver))
    assert sram.num_sessions == 1
    assert sram.alone_user_rate_exact == account.alone_user_rate_exact
    hbm = account_of(solved(example("rom-wafers", **{"Engram tables": ["HBM"]}), solver))
    assert account.num_sessions - hbm.num_sessions == 1124
    rom = solved(example("rom-wafers", **{"Engram tables": ["ROM"]}), solver)
    (all_of_it,) = (tier.area_mm2 for tier in account_of(rom).tiers if tier.kind == "rom")
    (less,) = (tier.area_mm2 for tier in hbm.tiers if tier.kind == "rom")
    assert all_of_it is not None
    assert less is not None
    assert_figure("area of the tables", F(all_of_it - less), "21651", "0.5")


def test_one_wafer_holds_no_tables() -> None:
    """54,405 mm2 are too many for a wafer of 46,225: nothing fits with the tables in ROM."""
    result = solve_side(
        parse_instance(example("rom-one-wafer", **{"Engram tables": ["ROM"]})),
        SolveOptions(threads=1),
    )
    assert (result.termination, result.plan) == ("infeasible", None)
    assert places(solved("rom-one-wafer"))["Engram tables"] == "host memory"


@pytest.mark.parametrize(("num_wafers", "is_enough"), [(11, False), (12, True)])
def test_wafers_of_sram_for_the_checkpoint(num_wafers: int, is_enough: bool) -> None:
    """ "wse": 510.3 GB in 44 GB a wafer need 12 wafers, as published."""
    document = example("rom-wafers")
    section = document["tiers"]
    section["tiers"] = [dict(section["tiers"][1], capacity_bytes=num_wafers * 44 * GB)]
    section["classes"] = [
        {**data, "tiers": ["SRAM"]} for data in section["classes"] if data["name"] != "KV"
    ]
    section["sessions"] = {"max": 1}
    result = solve_side(parse_instance(document), SolveOptions(threads=1))
    assert result.termination == ("optimal" if is_enough else "infeasible")
    if is_enough:
        account = account_of(result)
        assert_figure("checkpoint", F(account.tiers[0].used_bytes, GB), "510.3", "0.05")


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_snapshot_read_ten_times_is_fetched_once(solver: str) -> None:
    """ "ten": 4.0 s over the path as published; fetched once and read ten times from HBM 0.46 s."""
    document = example("remote-kv-idle-and-active", keep=["snapshot"])
    document["tiers"] |= {"goal": "user_rate", "sessions": {"max": 1}, "step_target_s": None}
    del document["tiers"]["step_target_s"]
    document["tiers"]["machine"]["flops_per_session"] = 0
    result = solved(document, solver)
    assert result.plan is not None
    assert result.plan.tiers is not None
    assert result.plan.tiers.classes[0].copy_tier == "own HBM"
    fetched = account_of(result).step
    assert fetched.total_exact is not None
    problem = tier_problem(parse_instance(document))
    direct_s = evaluate_tiers(problem, TierPlan((1,), (None,), 1)).step.total_s
    assert direct_s is not None
    assert_figure("ten, direct", direct_s, "4.0", "0.005")
    assert_figure("ten, fetched", F(fetched.total_exact), "0.46", "0.005")
    assert_figure("ten, fetch", F(fetched.fetches_exact), "0.40", "0.005")
    assert_figure("ten, reads", F(fetched.core_exact), "0.06", "0.005")


@pytest.mark.parametrize("solver", SOLVERS)
def test_idle_kv_goes_far_and_active_kv_stays(solver: str) -> None:
    """6.6.3: 80 GB less weights, copy and workspace hold 34 active sessions; 14 beside idle ones.

    41,471,045,632 B / 1,207,959,552 B = 34.3; less 24,159,191,040 B, 14.3.
    """
    result = solved("remote-kv-idle-and-active", solver)
    found = places(result)
    assert (found["idle KV"], found["active KV"]) == ("neighbour's HBM", "own HBM")
    assert account_of(result).num_sessions == 34
    near = account_of(
        solved(example("remote-kv-idle-and-active", **{"idle KV": ["own HBM"]}), solver)
    )
    assert near.num_sessions == 14
    far = example("remote-kv-idle-and-active", **{"active KV": ["neighbour's HBM"]})
    assert account_of(solved(far, solver)).num_sessions < 14


def test_windows_and_round_trips_of_lookups() -> None:
    """6.7.4: the first block lasts 69 us on H100, 6.1 us on the wafer; hidden down to 42 us."""
    windows = {"one-user-8xh100": ("69", "0.5"), "rom-wafers": ("6.1", "0.05")}
    for name, (published, tolerance) in windows.items():
        found = {lookup.tier: lookup for lookup in account_of(solved(name)).lookups}
        host = found["host memory"]
        assert_figure(f"window, {name}", F(host.window_exact) / US, published, tolerance)
        assert F(host.round_trip_step_exact) == 42 * US
        assert host.round_trip_user_rate_exact == "500000/21"
    wafer = account_of(solved("rom-wafers")).lookups[-1]
    # "a sixth of this time": 1.05 / 6.14 = 0.171
    assert_figure("share of the window", F("1.05") * US / F(wafer.window_exact), "0.167", "0.005")
