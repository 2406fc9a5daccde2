"""Valid documents of capacity decisions, to be spoilt."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from instances import parse_instance
from instances.errors import InputError
from tiny_parts import CARD, FABRIC, MODEL, Json

SERVER = {"name": "s", "accelerator": CARD, "num_cards": 4, "power_w": 800, "fabric": FABRIC}


POOL = {"name": "p", "server": SERVER, "num_servers": 4, "price_per_hour": 2, "rack_units": 2}


COHORT = {"name": "chat", "num_sessions": 10, "context_tokens": 10, "new_tokens": 2}


def bought() -> Json:
    """Return a valid document of servers and racks to be bought."""
    return deepcopy(
        {
            "name": "unit",
            "decision": "capacity",
            "models": [MODEL, {**MODEL, "name": "other"}],
            "fleet": {
                "mode": "purchase",
                "pools": [POOL, {**POOL, "name": "q"}],
                "racks": [{"name": "r", "count": 2, "units": 8}],
                "failure_domains": [{"name": "A", "kind": "switch", "racks": ["r"]}],
            },
            "workload": {"cohorts": [COHORT, {**COHORT, "name": "b", "model": "other"}]},
            "capacity": {"goals": ["price_per_hour"]},
        }
    )


def put(document: Json, path: str, value: object) -> Json:
    """Return a document with another value at a path such as "fleet.pools.0.name"."""
    *way, last = path.split(".")
    place: Any = document
    for part in way:
        place = place[int(part)] if part.isdigit() else place[part]
    place[int(last) if last.isdigit() else last] = value
    return document


def refusal(document: Json) -> str:
    """Return the one line that says what is wrong."""
    with pytest.raises(InputError) as caught:
        parse_instance(document)
    text = str(caught.value)
    assert "\n" not in text
    return text


Start = Callable[[], Json]
