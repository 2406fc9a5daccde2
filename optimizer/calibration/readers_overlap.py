"""Reads CSV files of communication and computation, alone and at once (6.4.3)."""

from __future__ import annotations

import re
from fractions import Fraction

from instances.errors import InputError
from optimizer.calibration import fields
from optimizer.calibration.points import Overlap, Reading
from optimizer.calibration.readers_csv import rows_of

_NEEDED = ("communication_alone", "compute_alone", "together")
_OPTIONAL = ("communication_together", "compute_together")
_TIME = re.compile(r"(?P<name>" + "|".join((*_NEEDED, *_OPTIONAL)) + r")_(?P<unit>ns|us|ms|s)")


def is_overlap(columns: tuple[str, ...]) -> bool:
    """Whether the columns are those of a table of concurrent times."""
    return any(column.startswith("communication_alone") for column in columns)


def read_overlaps(text: str, source: str) -> Reading:
    """Read a table of concurrent times; the end of a column's name is its unit.

    Raises InputError with file, line and rule.
    """
    return Reading(overlaps=tuple(_overlap(row, place) for row, place in rows_of(text, source)))


def _overlap(row: dict[str, str], place: str) -> Overlap:
    columns: dict[str, re.Match[str]] = {}
    for match in filter(None, map(_TIME.fullmatch, row)):
        if match["name"] in columns:
            raise InputError(place, match["name"], "two columns hold this; keep one")
        columns[match["name"]] = match
    for name in _NEEDED:
        if name not in columns:
            rule = "this column is required, with its unit at the end: _s, _ms, _us or _ns"
            raise InputError(place, name, rule)
    if "message_bytes" not in row:
        raise InputError(place, "message_bytes", "this column is required")

    def time(name: str) -> Fraction:
        column = columns[name]
        return fields.time(row[column.string], column["unit"], place, column.string)

    def optional(name: str) -> Fraction | None:
        return time(name) if name in columns and row[columns[name].string] else None

    found = Overlap(
        fields.size(row["message_bytes"], place, "message_bytes"),
        time("communication_alone"),
        time("compute_alone"),
        optional("communication_together"),
        optional("compute_together"),
        time("together"),
        place,
    )
    for name in _OPTIONAL:
        part_s = getattr(found, f"{name}_s")
        if part_s is not None and part_s > found.together_s:
            rule = "both together cannot end before one of them does"
            raise InputError(place, name, rule, row[columns[name].string])
    return found
