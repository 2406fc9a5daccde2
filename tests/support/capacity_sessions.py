"""Tiny fleets for rules of sessions: cohorts of which none need be served."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from instances import Instance, parse_instance
from optimizer.capacity.account import CapacityEvaluation
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, ServerFill
from optimizer.capacity.problem import CapacityProblem
from tiny_parts import FABRIC, MODEL, Json

NS = Fraction(1, 10**9)


STEPS = {"context_tokens": 10, "new_tokens": 2}


class Case(NamedTuple):
    """A problem instance and the data of its decision."""

    source: Instance
    problem: CapacityProblem


def chat(num: int = 10, name: str = "chat", **fields: Any) -> Json:
    """Return a cohort of which no session need be served."""
    return {"name": name, "num_sessions": num, "min_on_time_fraction": "0%", **STEPS, **fields}


def case(
    *cohorts: Json,
    memory: int = 10**6,
    cards: int = 4,
    servers: int = 6,
    failures: Sequence[Json] = (),
    period: str | None = None,
    pools: Sequence[str] = ("p",),
    models: Sequence[Json] = (MODEL,),
    fleet: Json | None = None,
    **search: Any,
) -> Case:
    """Return the problem of servers of four cards that 1 B/ns comes from."""
    card = {
        "name": "card",
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"bf16": "1PFLOP/s"},
    }
    server = {"name": "server", "accelerator": card, "num_cards": cards, "fabric": FABRIC}
    each = {"server": server, "num_servers": servers, "fabric_between": FABRIC}
    capacity = {"goals": ["sessions"], "failures": list(failures), "period_s": period}
    instance = parse_instance(
        {
            "name": "unit",
            "decision": "capacity",
            "models": list(models),
            "fleet": {
                "mode": "purchase",
                "pools": [{"name": name, **each} for name in pools],
                **(fleet or {}),
            },
            "workload": {"cohorts": list(cohorts) or [chat()]},
            "runtime": {"workspace_bytes": 100},
            "search": {"tp": [1], **search},
            "capacity": capacity,
        }
    )
    return Case(instance, build_capacity(instance).problem)


def load(option: int, *runs: tuple[int, int], lanes: int = 1, groups: int = 1) -> GroupLoad:
    """Return groups whose lanes all serve the same runs."""
    return GroupLoad(option, groups, (LaneLoad(lanes, runs),))


def judge(
    given_case: Case,
    servers: Sequence[ServerFill],
    loads: Sequence[GroupLoad],
    *after: Sequence[GroupLoad],
) -> CapacityEvaluation:
    """Return the account of a plan."""
    plan = CapacityPlan((), tuple(servers), tuple(loads), tuple(tuple(deal) for deal in after))
    return evaluate_capacity(given_case.source, given_case.problem, plan)


def broken(
    given_case: Case,
    servers: Sequence[ServerFill],
    loads: Sequence[GroupLoad],
    *after: Sequence[GroupLoad],
) -> list[tuple[str, str, Fraction | int, str]]:
    """Return (rule, where, amount, unit) of everything wrong with a plan."""
    result = judge(given_case, servers, loads, *after)
    assert result.is_feasible == (not result.violations)
    assert all(v.amount > 0 and v.message for v in result.violations)
    return [(v.rule, v.where, v.amount, v.unit) for v in result.violations]


TP1 = "tiny, TP1 on p"
