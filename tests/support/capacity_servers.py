"""Tiny fleets for rules of servers and racks: sessions need not be served."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from instances import Instance, parse_instance
from optimizer.capacity.account import CapacityEvaluation
from optimizer.capacity.building import build_capacity
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem
from tiny_parts import CARD, FABRIC, MODEL, Json

SERVER = {"name": "server", "accelerator": CARD, "num_cards": 4, "power_w": 800, "fabric": FABRIC}


def pool(name: str = "p", *, servers: int = 6, cards: int = 4, **fields: Any) -> Json:
    """Return a pool of servers with so many cards each."""
    server = {**SERVER, "num_cards": cards, "power_w": fields.pop("power_w", 800)}
    return {"name": name, "server": server, "num_servers": servers, **fields}


class Case(NamedTuple):
    """A problem instance and the data of its decision."""

    source: Instance
    problem: CapacityProblem


def fleet(
    *pools: Json, tp: Sequence[int] = (1, 2, 4), mode: str = "purchase", **fields: Any
) -> Case:
    """Return the problem of a fleet that need not serve anybody."""
    cohort = {"name": "chat", "num_sessions": 10, "context_tokens": 10, "new_tokens": 2}
    capacity = {"goals": ["servers"], **fields.pop("capacity", {})}
    instance = parse_instance(
        {
            "name": "unit",
            "decision": "capacity",
            "model": MODEL,
            "fleet": {"mode": mode, "pools": list(pools) or [pool()], **fields},
            "workload": {"cohorts": [cohort], "min_on_time_fraction": "0%"},
            "runtime": {"workspace_bytes": 100},
            "search": {"tp": list(tp)},
            "capacity": capacity,
        }
    )
    return Case(instance, build_capacity(instance).problem)


def option(instance: Case, label: str, on: str = "p") -> int:
    """Return the index of an option by its degrees and its pool."""
    found = [
        o.index
        for o in instance.problem.options
        if o.footprint.parallel.label() == label and o.footprint.pool == on
    ]
    assert len(found) == 1
    return found[0]


def use(instance: Case, c: int, count: int, label: str = "TP1", number: int = 1) -> ServerFill:
    """Return servers of a class that hold so many serving instances each."""
    on = instance.problem.pools[instance.problem.classes[c].pool].name
    return ServerFill(c, count, ((option(instance, label, on), number),))


def judge(
    instance: Case, *servers: ServerFill, racks: Sequence[RackFill] = ()
) -> CapacityEvaluation:
    """Return the account of a plan that serves nobody, not after any event either."""
    plan = CapacityPlan(tuple(racks), servers, (), ((),) * len(instance.problem.events))
    return evaluate_capacity(instance.source, instance.problem, plan)


def broken(
    instance: Case, *servers: ServerFill, racks: Sequence[RackFill] = ()
) -> list[tuple[str, str, Fraction | int, str]]:
    """Return (rule, where, amount, unit) of everything wrong with such a plan."""
    result = judge(instance, *servers, racks=racks)
    assert result.is_feasible == (not result.violations)
    assert all(v.amount > 0 and v.message for v in result.violations)
    return [(v.rule, v.where, v.amount, v.unit) for v in result.violations]
