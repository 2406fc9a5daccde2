"""Problem instances of tiny fleets, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instances import Instance, parse_instance
from optimizer.capacity.building import build_capacity
from optimizer.capacity.problem import CapacityProblem
from tiny_parts import FABRIC, MODEL, Json

CHAT = {"name": "chat", "num_sessions": 10, "context_tokens": 10, "new_tokens": 2}


def pool(
    name: str = "p", servers: int = 6, cards: int = 4, peaks: Sequence[str] = ("bf16",), **more: Any
) -> Json:
    """Return a pool of servers that draw 800 W."""
    card = {
        "name": "card",
        "memory_bytes": 10**6,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": dict.fromkeys(peaks, "1PFLOP/s"),
    }
    server = {"name": "s", "accelerator": card, "num_cards": cards, "power_w": 800}
    return {"name": name, "server": {**server, "fabric": FABRIC}, "num_servers": servers, **more}


def source(
    *pools: Json,
    cohorts: Sequence[Json] = (CHAT,),
    models: Sequence[Json] = (MODEL,),
    failures: Sequence[str | Json] = (),
    capacity: Json | None = None,
    search: Json | None = None,
    fraction: str = "100%",
    mode: str = "purchase",
    **fleet: Any,
) -> Instance:
    """Return a problem instance."""
    cases = [{"kind": case} if isinstance(case, str) else case for case in failures]
    return parse_instance(
        {
            "name": "unit",
            "decision": "capacity",
            "models": list(models),
            "fleet": {"mode": mode, "pools": list(pools) or [pool()], **fleet},
            "workload": {"cohorts": list(cohorts), "min_on_time_fraction": fraction},
            "runtime": {"workspace_bytes": 100},
            "search": {"tp": [1], **(search or {})},
            "capacity": {"goals": ["servers"], "failures": cases, **(capacity or {})},
        }
    )


def built(*pools: Json, **fields: Any) -> CapacityProblem:
    """Return the data of a capacity decision."""
    return build_capacity(source(*pools, **fields)).problem
