"""Rows of sweeps from JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from instances.errors import InputError
from instances.io import parse_json, read_text, validate
from optimizer.sweeps.rows import FrontierPiece, SweepPoint, SweptValue

#: Files whose suffix says that they hold rows.
ROW_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet")

#: Columns of every row; all others are swept fields.
POINT_COLUMNS = frozenset(SweepPoint.model_fields) - {"swept"}
PIECE_COLUMNS = frozenset(FrontierPiece.model_fields) - {"swept"}

#: What a row cannot do without.
_NEEDED = ("instance", "termination", "objective", "unit")


def read_rows(path: str) -> Iterator[SweepPoint]:
    """Yield the rows of a file by its suffix; raises InputError, also for a file without rows."""
    readers = {".csv": _csv_rows, ".parquet": _parquet_rows}
    reader = readers.get(Path(path).suffix.lower(), _json_rows)
    count = 0
    for place, row in reader(path):
        yield row_from(row, f"{path}: {place}")
        count += 1
    if not count:
        raise InputError(path, "", "holds no rows; run the sweep again, or leave the file out")


def _json_rows(path: str) -> Iterator[tuple[str, Any]]:
    text, source = read_text(path)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, source)
        except InputError:
            rule = "is not JSON; continue the sweep with --resume, or delete this line"
            raise InputError(source, f"line {number}", rule) from None
        yield f"line {number}", row


def _csv_rows(path: str) -> Iterator[tuple[str, Any]]:
    text, source = read_text(path)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if None in row or None in row.values():
                rule = f"has not as many cells as the header ({len(reader.fieldnames or [])})"
                raise InputError(source, f"line {reader.line_num}", f"{rule}; mend or delete it")
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        raise InputError(source, f"line {reader.line_num}", f"is not CSV: {error}") from None


def _parquet_rows(path: str) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        rule = "pyarrow is missing; install supernode-planner[parquet], or give .jsonl or .csv"
        raise InputError(path, "", rule) from None
    try:
        with open(path, "rb") as file:
            rows = parquet.read_table(file).to_pylist()
    except pyarrow.ArrowException:
        raise InputError(path, "", "not a Parquet file; give one that the sweep wrote") from None
    except OSError as error:
        reason = (error.strerror or "not a Parquet file").lower()
        raise InputError(path, "", f"{reason}; give a readable file") from None
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def row_from(record: object, source: str) -> SweepPoint:
    """Return the row that a flat record describes; raises InputError."""
    if not isinstance(record, Mapping):
        raise InputError(source, "", "is no row of a sweep; a row is an object of columns")
    cells = {str(name): _cell(value) for name, value in record.items()}
    lacking = [name for name in _NEEDED if cells.get(name) is None]
    if lacking:
        rule = f"is no row of a sweep: it lacks {', '.join(lacking)}; give a file of `supernode`"
        raise InputError(source, "", rule)
    is_piece = cells.get("from_s") is not None
    swept = {  # a file of several sweeps has nulls where a row lacks a column
        name: _swept(value, source, name)
        for name, value in cells.items()
        if name not in PIECE_COLUMNS and value is not None
    }
    kind = FrontierPiece if is_piece else SweepPoint
    known = PIECE_COLUMNS if is_piece else POINT_COLUMNS
    given = {name: value for name, value in cells.items() if name in known and value is not None}
    row = validate(kind, {"swept": swept, **given}, source)
    for name, value in row:
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(source, name, "must be a finite number", value)
    return row


def _cell(value: object) -> object:
    """Return a cell's value; empty text and what is no number are nulls, decimals floats."""
    if isinstance(value, Decimal):
        value = float(value)
    if value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _swept(value: object, source: str, name: str) -> SweptValue:
    """Return the value of a swept field, a number."""
    number: float | None = None
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    if number is None or not math.isfinite(number):
        rule = "is neither a column of sweeps nor a swept number; remove the column"
        raise InputError(source, name, rule, value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
