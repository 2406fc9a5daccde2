"""Problem instances whose measured times all lie at one end of their spread."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from instances.quantity import parse_quantity
from optimizer.variants.fields import Path, changed_instance, written


def _spreads(node: Any, path: Path = ()) -> Iterator[tuple[Path, Fraction, Fraction]]:
    """Yield (path of a measured time, time, spread), s, where there is a spread."""
    if isinstance(node, dict):
        spread = parse_quantity(node.get("spread_s") or 0, "seconds")
        if spread:
            name = "session_s" if "session_s" in node else "time_s"
            yield (*path, name), parse_quantity(node[name], "seconds"), spread
        for key, value in node.items():
            yield from _spreads(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _spreads(value, (*path, i))


def at_ends_of_spread(instance: Instance) -> tuple[Instance, Instance] | None:
    """Return (all measured times at their least, all at their most); None without any spread."""
    document = instance.model_dump(mode="json")
    spreads = [
        found for part in ("fleet", "measurements") for found in _spreads(document[part], (part,))
    ]
    if not spreads:
        return None
    ends = []
    for sign in (-1, 1):
        values = {path: written(time + sign * spread, "seconds") for path, time, spread in spreads}
        ends.append(changed_instance(document, values, instance.name))
    return ends[0], ends[1]
