"""Supernodes by hand: a decision small enough to follow on paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from optimizer.supernode.problem import (
    Demand,
    Exchange,
    ExpertReads,
    Line,
    Lookup,
    Option,
    SupernodePlan,
    SupernodeProblem,
)

F = Fraction


def option(**changes: Any) -> Option:
    """Two cards that hold 20 B of weights each, and 5 B for a session.

    A step reads 20 B and 2 B a session, and does 3 FLOP for each.
    """
    plain = Option(
        size=2,
        tables="hbm",
        attention_tp=1,
        replicated_bytes=10,
        expert_bytes=6,
        table_bytes=4,
        session_bytes=5,
        read_bytes=20,
        kv_read_bytes=F(2),
        flops=F(3),
    )
    return replace(plain, **changes)


def problem(*options: Option, **changes: Any) -> SupernodeProblem:
    """Four cards of 40 B, 10 B/s and 5 FLOP/s with 5 B of workspace: three sessions fit.

    Steps of 1, 2, 3 sessions take 2.2, 2.4, 2.6 s, all for reading.
    """
    plain = SupernodeProblem(
        num_cards=4,
        capacity_bytes=40,
        workspace_bytes=5,
        bandwidth_bytes_per_s=F(10),
        peak_flops_per_s=F(5),
        options=options or (option(),),
    )
    return replace(plain, **changes)


def plan(sessions: int = 3, **changes: Any) -> SupernodePlan:
    """The plan of `option()` with so many sessions."""
    return replace(SupernodePlan(2, "hbm", 1, sessions), **changes)


#: Half a second to start, half a second a session.
EXCHANGE = Exchange("exchange", 1, ((Line(F(1, 2), F(1, 2)),),))
EXPERTS = ExpertReads(2, 4, 1, 5)
LOOKUP = Lookup(3, (Line(F(1, 5), F(1, 5)),), F(1, 4))
DEMAND = Demand("a", 12, 2, F(8))
