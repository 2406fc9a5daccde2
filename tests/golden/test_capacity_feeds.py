"""The bundled example of power feeds: how much of a fleet one of them may take with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from instances import parse_instance
from instances.io import example_text
from optimizer import SolveOptions
from optimizer.side.decisions import solve_side
from optimizer.side.result import SideResultDocument


def solved(change: Callable[[Any], None] = lambda document: None) -> SideResultDocument:
    """Solve the example after a change of its document."""
    document = json.loads(example_text("two-power-feeds"))
    change(document)
    return solve_side(parse_instance(document), SolveOptions(threads=1))


def test_half_of_the_sessions_survive_a_power_feed_and_not_one_more() -> None:
    """Seven servers of four sessions: of four and three, losing four leaves 12 of 24."""
    found = solved()
    assert found.plan is not None
    assert found.plan.capacity is not None
    counts = {
        rack.rack: sum(held.count for held in rack.servers) * rack.count
        for rack in found.plan.capacity.racks
    }
    assert counts == {"left": 3, "right": 3}

    def thirteen(document: Any) -> None:
        document["capacity"]["failures"][0]["min_on_time_fraction"] = "13/24"

    def unlikely(document: Any) -> None:
        document["capacity"]["failures"][0] |= {"probability": "0.1%", "min_on_time_fraction": 0}

    assert solved(thirteen).termination == "infeasible"
    # 24 · 99.8% + 24 · 0.1%, wherever the servers stand
    assert solved(unlikely).then[1].verified_exact == "2997/125"
