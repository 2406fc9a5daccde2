"""Reads CSV files of measured times, one row a point, whatever their columns are called."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from instances.errors import InputError
from optimizer.calibration import fields
from optimizer.calibration.points import MeasuredPoint, Reading, ReadOptions, operation_named

if TYPE_CHECKING:
    import _csv

#: Names of columns by what they hold.
_NAMES = {
    "operation": ("operation", "op", "collective"),
    "ranks": ("ranks", "num_ranks", "nranks", "num_gpus"),
    "servers": ("servers", "num_servers", "nodes", "node_num"),
    "system": ("system", "run"),
    "dtype": ("dtype", "type"),
    "mode": ("mode",),
    "size": ("message_bytes", "size_bytes"),
    "correct": ("row_correct",),
    "library": ("library",),
    "nccl_version": ("nccl_version",),
    "framework": ("framework",),
    "version": ("version",),
}
_TIME = re.compile(r"(latency|time)_(?P<unit>ns|us|ms|s)(_median)?")
_BANDWIDTH = re.compile(r"(?P<name>algbw|busbw)(_gb_s|_gbps)?(_recomputed)?")
#: What stands in for a text that a file does not hold.
UNSTATED = "unstated"

WRONG_RESULTS = "wrong results (row_correct is False)"
CORRUPT = "a run named corrupt_*"
OTHER_PLACE = "the other of in-place and out-of-place"


def columns_of(text: str) -> tuple[str, ...]:
    """Return the names in the header of a CSV file, in lower case; none where it is not CSV."""
    try:
        for cells in _csv_reader(text):
            if any(cell.strip() for cell in cells):
                return tuple(cell.strip().lower() for cell in cells)
    except csv.Error:
        pass
    return ()


def _csv_reader(text: str) -> _csv.Reader:
    return csv.reader(io.StringIO(text.lstrip("\ufeff")), strict=True, skipinitialspace=True)


def rows_of(text: str, source: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield every row (by lower-case column name) and its place.

    Raises InputError for a row that is not as long as the header, and for no row at all.
    """
    reader = _csv_reader(text)
    header: list[str] = []
    num_rows = 0
    try:
        for cells in reader:
            place = f"{source}:{reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip().lower() for cell in cells]
                _refuse_doubles(header, place)
                continue
            if len(cells) != len(header):
                rule = f"{len(cells)} columns under a header of {len(header)}: the table ends early"
                raise InputError(place, "row", rule)
            num_rows += 1
            yield {k: cell.strip() for k, cell in zip(header, cells, strict=True)}, place
    except csv.Error as error:
        raise InputError(f"{source}:{reader.line_num}", "", f"not CSV: {error}") from None
    if not num_rows:
        raise InputError(source, "", "the table ends early: it has no rows")


def _refuse_doubles(header: list[str], place: str) -> None:
    for name, count in Counter(header).items():
        if count > 1:
            raise InputError(place, name, "two columns have this name; keep one")


@dataclass(frozen=True, slots=True)
class _Columns:
    """Names of a file's columns by what they hold, and the unit of its times."""

    by_role: dict[str, str]
    time: str
    time_unit: str
    bandwidths: dict[str, str]


def _columns(names: tuple[str, ...], source: str) -> _Columns:
    place = f"{source}:1"
    by_role = {}
    for role, known in _NAMES.items():
        found = [name for name in known if name in names]
        if len(found) > 1:
            raise InputError(place, role, f"both {found[0]} and {found[1]} say this; keep one")
        if found:
            by_role[role] = found[0]
    times = [(name, match["unit"]) for name in names if (match := _TIME.fullmatch(name))]
    if len(times) != 1:
        rule = "exactly one column must hold times: latency or time with its unit, such as time_us"
        raise InputError(place, "time", rule, ", ".join(name for name, _ in times) or None)
    if "size" not in by_role:
        raise InputError(place, "size", "a column must hold sizes: message_bytes or size_bytes")
    bandwidths = {m["name"]: name for name in names if (m := _BANDWIDTH.fullmatch(name))}
    return _Columns(by_role, *times[0], bandwidths)


def read_table(text: str, source: str, options: ReadOptions) -> Reading:
    """Read a CSV file with a row for every point.

    A table of a framework without a column for the operation is one of AllReduces, as inference
    frameworks measure their own. Raises InputError with file, line and rule.
    """
    columns = _columns(columns_of(text), source)
    points: list[MeasuredPoint] = []
    dropped: Counter[str] = Counter()
    for row, place in rows_of(text, source):
        cells = {role: row[name] for role, name in columns.by_role.items()}
        point = _point(cells, row, columns, options, place)
        reason = _reason_to_drop(cells, options, place)
        if reason is None:
            points.append(point)
        else:
            dropped[reason] += 1
    return Reading(tuple(points), (), tuple(dropped.items()))


def _reason_to_drop(cells: dict[str, str], options: ReadOptions, place: str) -> str | None:
    if cells.get("system", "").startswith("corrupt_"):
        return CORRUPT
    verdict = cells.get("correct", "True").lower()
    if verdict not in ("true", "false"):
        raise InputError(place, "row_correct", "must be True or False", cells["correct"])
    if verdict == "false":
        return WRONG_RESULTS
    is_in_place = {"in_place": True, "out_of_place": False}.get(_mode(cells).replace("-", "_"))
    return OTHER_PLACE if is_in_place is (not options.is_in_place) else None


def _point(
    cells: dict[str, str], row: dict[str, str], columns: _Columns, options: ReadOptions, place: str
) -> MeasuredPoint:
    operation = _operation(cells, options, place)
    ranks, servers = options.ranks, options.servers
    if "ranks" in cells:
        ranks = fields.whole(cells["ranks"], place, columns.by_role["ranks"], 2)
    if ranks is None:
        raise InputError(place, "ranks", "no column says how many ranks; say it with --ranks")
    if cells.get("servers"):
        servers = fields.whole(cells["servers"], place, columns.by_role["servers"])
    message_bytes = fields.size(cells["size"], place, columns.by_role["size"])
    time_s = fields.time(row[columns.time], columns.time_unit, place, columns.time)
    number, half = fields.printed(row[columns.time], place, columns.time)
    texts = {name: row[column] for name, column in columns.bandwidths.items()}
    around = (time_s * (1 - half / number), time_s * (1 + half / number))
    fields.Bandwidths(operation, ranks).check(message_bytes, around, texts, place)
    return MeasuredPoint(
        operation, ranks, servers, cells.get("system") or UNSTATED, _library(cells),
        cells.get("dtype") or UNSTATED, _mode(cells), message_bytes, time_s, place,
    )  # fmt: skip


def _operation(cells: dict[str, str], options: ReadOptions, place: str) -> str:
    if "operation" in cells:
        return operation_named(cells["operation"], place)
    if options.operation is not None:
        return options.operation
    if "framework" in cells:
        return "all_reduce"
    raise InputError(place, "operation", "no column names the operation; say it with --operation")


def _library(cells: dict[str, str]) -> str:
    if cells.get("library"):
        return cells["library"]
    if cells.get("nccl_version"):
        return f"NCCL {cells['nccl_version']}"
    return f"{cells.get('framework', '')} {cells.get('version', '')}".strip() or UNSTATED


def _mode(cells: dict[str, str]) -> str:
    """Return the mode; nccl-tests' two modes are spelled as in its own tables."""
    mode = cells.get("mode") or UNSTATED
    return mode.replace("_", "-") if mode in ("in_place", "out_of_place") else mode
