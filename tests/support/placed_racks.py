"""Racks with servers and serving instances, as reports are given them."""

from __future__ import annotations

from typing import Any

from optimizer.side.capacity_accounts import (
    BlockDocument,
    OptionUseDocument,
    PlacedRackDocument,
    PlacedServerDocument,
)


def option(model: str, cards: int, label: str = "") -> OptionUseDocument:
    name = label or f"TP{cards} (ring)"
    return OptionUseDocument(
        name=f"{model} {name}",
        model=model,
        label=name,
        pool="hgx",
        number=4,
        num_cards=cards,
        sessions=8,
    )


def server(count: int, *instances: tuple[str, int], **changes: Any) -> PlacedServerDocument:
    fields: dict[str, Any] = {
        "pool": "hgx",
        "count": count,
        "numbers": "",
        "num_cards": 8,
        "free_cards": 8,
        "rack_units": 8,
        "instances": [BlockDocument(instance=name, number=n) for name, n in instances],
        "spanned_by": None,
    }
    return PlacedServerDocument(**{**fields, **changes})


def rack(name: str | None, *servers: PlacedServerDocument, **changes: Any) -> PlacedRackDocument:
    fields: dict[str, Any] = {
        "rack": name,
        "count": 1,
        "units": None if name is None else 42,
        "used_units": None if name is None else sum(s.count * (s.rack_units or 0) for s in servers),
        "limit_w": 40000,
        "power_w": 30600,
        "servers": list(servers),
    }
    return PlacedRackDocument(**{**fields, **changes})


TP2, TP1 = "qwen3-32b TP2 (ring)", "llama-3.1-8b TP1 (ring)"


WIDE = "qwen3-32b TP16 over 2 servers (ring)"


RACKS = [
    rack("air", server(2, (TP2, 4)), server(1, (TP1, 5)), count=3),
    rack("low", server(2, spanned_by=WIDE), server(1, (TP2, 3), free_cards=6, numbers="0")),
]
