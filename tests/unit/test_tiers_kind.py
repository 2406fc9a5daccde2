"""Tiers as a decision: solved and judged, sentences, documents, and plans written by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import parse_instance
from optimizer import SolveOptions
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import verify_side
from optimizer.side.result import SideResultDocument
from optimizer.side.tier_accounts import TierAccountDocument
from optimizer.side.tier_kind import TierKind
from optimizer.side.tier_plans import MAX_ALTERNATIVES, value_words

F = Fraction
Document = dict[str, Any]

#: Weights of 40 B in a fast tier of 100 B leave room for six sessions of 10 B.
SECTION: Document = {
    "machine": {"name": "small", "num_cards": 2, "communication_s": 1, "price_per_hour": "3"},
    "tiers": [
        {
            "name": "fast",
            "kind": "hbm",
            "capacity_bytes": 100,
            "access": {"bandwidth_bytes_per_s": 10},
            "price_per_hour": 2,
        },
        {
            "name": "slow",
            "kind": "host",
            "capacity_bytes": 1000,
            "access": {"bandwidth_bytes_per_s": 1},
        },
    ],
    "classes": [
        {"name": "weights", "kind": "replicated_weights", "bytes": 40, "read_bytes": 40},
        {
            "name": "kv",
            "kind": "active_kv",
            "bytes_per_session": 10,
            "read_bytes_per_session": 10,
            "tiers": ["fast"],
        },
        {"name": "store", "kind": "workspace", "bytes": 30},
    ],
    "sessions": {"max": 50},
}


def instance(**changes: Any) -> Document:
    section = deepcopy({**SECTION, **changes})
    return {"schema_version": 1, "name": "test", "decision": "tiers", "tiers": section}


def solved(document: Document, solver: str = "auto") -> SideResultDocument:
    return solve_side(parse_instance(document), SolveOptions(solver=solver, threads=1))


def account_of(result: SideResultDocument) -> TierAccountDocument:
    assert result.evaluation is not None
    assert result.evaluation.tiers is not None
    return result.evaluation.tiers


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
@pytest.mark.parametrize(
    ("goal", "target_s", "value", "unit"),
    [
        # all but KV in the slow tier: ten sessions
        ("sessions", None, "10", "sessions"),
        # weights in the fast tier: 1 + 4 + n s, so a target of 11 s allows the six that fit
        ("sessions", 11, "6", "sessions"),
        # one session: 1 + 5 s
        ("user_rate", None, "1/6", "tokens/s"),
        # ten sessions in 1 + 40 s, or six in 11 s
        ("throughput_per_card", None, "3/11", "tokens/s"),
        # over 3 + 2 an hour
        ("throughput_per_price", None, "6/55", "tokens/s per price an hour"),
    ],
)
def test_goals_by_every_solver(
    goal: str, target_s: int | None, value: str, unit: str, solver: str
) -> None:
    changes = {} if target_s is None else {"step_target_s": target_s}
    result = solved(instance(goal=goal, **changes), solver)
    assert (result.termination, result.objective.verified_exact) == ("optimal", value)
    assert (result.objective.bound_exact, result.objective.direction) == (value, "maximise")
    assert (result.objective.name, result.objective.unit) == (goal, unit)
    assert result.certificate.second_opinion.agrees is True


def test_a_result_is_documented_and_verified() -> None:
    document = instance(step_target_s=11)
    result = solved(document)
    assert result.plan is not None
    assert result.plan.sentence == (
        "6 sessions: weights, kv in fast; store in slow; with store in fast 3 sessions "
        "(capacity, not speed)"
    )
    account = account_of(result)
    assert (account.machine, account.num_cards, account.num_sessions) == ("small", 2, 6)
    assert (account.user_rate_exact, account.alone_user_rate_exact) == ("1/11", "1/6")
    assert (account.throughput_per_card_exact, account.price_per_hour_exact) == ("3/11", "5")
    fast, slow = account.tiers
    assert (fast.used_bytes, fast.capacity_bytes, fast.price_per_hour) == (100, 100, 2)
    assert (slow.used_bytes, slow.kind, slow.area_mm2) == (30, "host", None)
    assert fast.threshold is not None
    assert (fast.threshold.keeps_bytes_per_s, fast.threshold.loses_bytes_per_s) == (10, 9)
    assert slow.threshold is not None
    assert slow.threshold.keeps_bytes_per_s is None
    assert [path.load_exact for path in account.paths] == ["10", "0"]
    assert (account.step.core_exact, account.step.total_exact) == ("10", "11")
    found = [(a.name, a.tier, a.value_exact, a.reason, a.message) for a in account.alternatives]
    assert found == [
        ("weights", "slow", None, "speed", "with weights in slow a step takes too long "
         "(speed, not capacity)"),
        ("store", "fast", "3", "capacity", "with store in fast 3 sessions (capacity, not speed)"),
    ]  # fmt: skip
    stored = json.loads(result.to_json())
    judged = verify_side(parse_instance(document), stored)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["objective"] == {"sessions": "6"}
    stored["objective"]["verified_exact"] = "7"
    judged = verify_side(parse_instance(document), stored)
    assert any("sessions is 6, not 7" in line for line in judged["mismatches"])
    stored["plan"]["tiers"]["num_sessions"] = 7
    judged = verify_side(parse_instance(document), stored)
    assert any("plan_sha256 differs" in line for line in judged["mismatches"])


def test_what_no_placement_allows_is_infeasible() -> None:
    result = solved(instance(sessions={"min": 11, "max": 50}))
    assert (result.termination, result.plan) == ("infeasible", None)
    assert result.reason == TierKind.nothing_fits
    assert result.certificate.second_opinion.agrees is True


def place(name: str, tier: str, copy_tier: str | None = None) -> Document:
    return {"name": name, "tier": tier, "copy_tier": copy_tier}


LEGAL = [place("weights", "fast"), place("kv", "fast"), place("store", "slow")]


@pytest.mark.parametrize(
    ("classes", "num", "rules"),
    [
        (LEGAL, 6, []),
        (LEGAL, 7, [("capacity", 10)]),
        (LEGAL[1:], 6, [("placed", 1)]),
        ([LEGAL[0], place("kv", "slow"), LEGAL[2]], 6, [("allowed", 1)]),
        ([place("weights", "fast", "slow"), *LEGAL[1:]], 6, [("copy", 1)]),
        (LEGAL, 0, [("min_sessions", 1)]),
    ],
)
def test_a_hand_written_plan_is_judged(
    classes: list[Document], num: int, rules: list[tuple[str, int]]
) -> None:
    plan = {"tiers": {"classes": classes, "num_sessions": num}}
    judged = verify_side(parse_instance(instance()), plan)
    found = [(v["rule"], v["amount"]) for v in judged["evaluation"]["violations"]]
    assert found == rules
    assert judged["holds"] is (not rules)
    assert judged["objective"] == {"sessions": None if rules else str(num)}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"classes": [place("kw", "fast")]}, "no class of data is named 'kw'"),
        ({"classes": [place("kv", "quick")]}, "no tier is named 'quick'"),
        ({"classes": [place("weights", "fast", "quick")]}, "no tier is named 'quick'"),
        ({"classes": [LEGAL[0], LEGAL[0]]}, "'weights' comes twice"),
        ({"classes": LEGAL, "num_sessions": -1}, "num_sessions"),
        ({"classes": LEGAL, "num_sessions": "6"}, "num_sessions"),
        ({"classes": [{"name": "kv"}]}, "tier"),
        ({"classes": "all"}, "classes"),
    ],
)
def test_what_is_no_plan_is_refused(plan: Document, words: str) -> None:
    with pytest.raises(InputError) as raised:
        verify_side(parse_instance(instance()), {"tiers": {"num_sessions": 1, **plan}})
    assert words in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_plan_of_another_decision_is_refused() -> None:
    with pytest.raises(InputError, match="give a field of that name"):
        verify_side(parse_instance(instance()), {"slices": []})


def test_reasons_say_what_is_worse() -> None:
    """The slow tier is free: what is moved into it costs time, and what leaves it costs money."""
    account = account_of(solved(instance(goal="user_rate")))
    reasons = {a.name: a.reason for a in account.alternatives}
    assert reasons == {"weights": "speed", "store": "none"}
    free = deepcopy(SECTION["classes"])
    free[1] |= {"tiers": ["slow"]}
    free[0] |= {"tiers": ["slow"]}
    account = account_of(solved(instance(classes=free, goal="throughput_per_price")))
    assert [(a.name, a.tier, a.reason) for a in account.alternatives] == [
        ("store", "fast", "price")
    ]
    assert account.price_per_hour == 3


def test_long_lists_of_alternatives_end() -> None:
    tiers = [{**SECTION["tiers"][1], "name": f"t{t}"} for t in range(20)]
    classes = [{"name": f"w{c}", "kind": "workspace", "bytes": 1} for c in range(15)]
    result = solved(instance(tiers=tiers, classes=classes, sessions={"max": 2}))
    assert result.termination == "optimal"
    assert len(account_of(result).alternatives) == MAX_ALTERNATIVES


def test_values_are_written_for_people() -> None:
    assert value_words("sessions", F(1)) == "1 session"
    assert value_words("sessions", F(12_345)) == "12,345 sessions"
    assert value_words("user_rate", F(4070)) == "4,070 tokens/s for each session"
    assert value_words("throughput_per_card", F(1, 3)) == "0.333333 tokens/s per card"
