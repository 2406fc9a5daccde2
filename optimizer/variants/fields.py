"""Numeric fields of a problem instance by path, and copies of it with other values there.

A path is written as an error names it: `fleet.pools[0].server.fabric.alpha_s`; `[*]` stands for
every element of a list. Paths refer to the resolved document, in which catalog names are whole
entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.errors import InputError
from instances.instance import Instance
from instances.io import validate
from instances.quantity import QuantityError, format_exact, parse_quantity

#: A field's dimension by the end of its name; the longest end comes first.
_DIMENSIONS = (
    ("_card_s", "card_seconds"),
    ("cost_per_on_time_session", "card_seconds"),
    ("_bytes_per_s", "bytes_per_s"),
    ("_flops_per_s", "flops_per_s"),
    ("_bytes", "bytes"),
    ("_fraction", "share"),
    ("_w", "watts"),
    ("_j", "joules"),
    ("_s", "seconds"),
)
#: SI unit of each dimension, for people; whole numbers have none.
UNITS = {
    "bytes_per_s": "B/s",
    "flops_per_s": "FLOP/s",
    "bytes": "B",
    "share": "",
    "watts": "W",
    "joules": "J",
    "card_seconds": "card*s",
    "seconds": "s",
    "whole": "",
    "number": "",
}
#: Dimensions whose values are whole numbers.
WHOLE = frozenset({"bytes", "watts", "whole"})

Key = str | int
Path = tuple[Key, ...]
Number = int | Fraction

_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d{1,6}|\*)\]")


@dataclass(frozen=True, slots=True)
class NumericField:
    """One numeric field: its path, dimension and present value (None where the file has null)."""

    path: Path
    dimension: str
    value: Number | None

    @property
    def name(self) -> str:
        """The path as it is typed."""
        return path_text(self.path)

    @property
    def unit(self) -> str:
        """SI unit; empty for plain numbers."""
        return UNITS[self.dimension]

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return self.dimension in WHOLE


def path_text(path: Path) -> str:
    """Return a path as it is typed."""
    text = ""
    for part in path:
        text += (
            f"[{part}]" if isinstance(part, int) or part == "*" else f".{part}" if text else part
        )
    return text


def parse_path(text: str, source: str) -> Path:
    """Read a path; raises InputError where it is not one."""
    parts: list[Key] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or (at == 0 and text[0] in ".["):
            rule = "is not a path; write one like fleet.pools[0].server.fabric.alpha_s"
            raise InputError(source, "", f"{text!r} {rule}")
        name, index = found.groups()
        parts.append(name if name is not None else index if index == "*" else int(index))
        at = found.end()
    if not parts:
        raise InputError(source, "", "a path is empty; name a field of the instance")
    return tuple(parts)


def dimension_of(path: Path, value: object) -> str | None:
    """Return the dimension of a field that may hold a number; None for any other."""
    if isinstance(value, bool | dict):
        return None
    names = [part for part in path if isinstance(part, str)]
    if "sources" in names:
        return None  # text about the field of that name
    for name in reversed(names[-2:]):  # entries of a table are named apart: peak_flops_per_s.bf16
        for end, dimension in _DIMENSIONS:
            if name.endswith(end):
                return dimension
    if isinstance(value, int):
        return "whole"
    is_degrees = isinstance(value, list) and all(type(item) is int for item in value)
    return "whole" if is_degrees and value else None


def _children(node: Any) -> Iterator[tuple[Key, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)


def _expand(document: Any, path: Path, source: str, done: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every (path, value) that a path with wildcards names; raises InputError for none."""
    if not path:
        yield done, document
        return
    part, rest = path[0], path[1:]
    where = path_text(done) or "the instance"
    if part == "*":
        if not isinstance(document, list) or not document:
            raise InputError(source, path_text((*done, *path)), f"{where} is no list to go through")
        for i, item in enumerate(document):
            yield from _expand(item, rest, source, (*done, i))
        return
    known = dict(_children(document))
    if part not in known:
        if isinstance(document, list):
            have = f"has {len(document)} elements, numbered from 0"
        else:
            have = f"has {', '.join(map(str, known)) or 'no fields'}"
        raise InputError(source, path_text((*done, *path)), f"no such field; {where} {have}")
    yield from _expand(known[part], rest, source, (*done, part))


def fields_at(document: Any, path: Path, source: str) -> list[NumericField]:
    """Return the numeric fields that a path names, in the resolved document of an instance.

    A list of whole numbers (`search.tp`) and null (`search.tp`, `deadline_s`) may be replaced by
    one number. Raises InputError where there is no such field, or it holds something else.
    """
    fields = []
    for place, value in _expand(document, path, source):
        dimension = dimension_of(place, value)
        if dimension is None and value is None and _is_whole_by_name(place):
            dimension = "whole"
        if dimension is None or (isinstance(value, str) and dimension == "whole"):
            rule = "is not a numeric field; name one that holds a number"
            raise InputError(source, path_text(place), rule)
        number = None if value is None or isinstance(value, list) else _number(value, dimension)
        fields.append(NumericField(place, dimension, number))
    return fields


def _is_whole_by_name(path: Path) -> bool:
    """Whether a whole number goes where null stands: degrees of the search, and counts."""
    return path[0] == "search" or str(path[-1]).startswith("num_")


def _number(value: Any, dimension: str) -> Number:
    if dimension == "whole":
        return int(value)
    exact = parse_quantity(value, dimension)
    return int(exact) if dimension in WHOLE else exact


def numeric_fields(document: Any, below: Path = ()) -> Iterator[NumericField]:
    """Yield every numeric field that holds a number, in the order of the document."""
    node = document
    for part in below:
        node = node[part]
    for key, value in _children(node):
        path = (*below, key)
        if isinstance(value, dict | list):
            if not (isinstance(value, list) and dimension_of(path, value) == "whole"):
                yield from numeric_fields(document, path)
            continue
        dimension = dimension_of(path, value)
        if dimension is None or value is None:
            continue
        try:
            yield NumericField(path, dimension, _number(value, dimension))
        except (QuantityError, ValueError):  # text that only ends like a quantity
            continue


def parse_number(text: object, dimension: str, source: str, where: str) -> Number:
    """Read one value of a dimension; raises InputError."""
    if dimension in ("whole", "number"):
        return _plain(text, dimension == "whole", source, where)
    try:
        return _number(text, dimension)
    except QuantityError as error:
        raise InputError(source, where, str(error)) from None


def _plain(text: object, is_whole: bool, source: str, where: str) -> Number:
    """Read a number without a unit; raises InputError."""
    rule = f"must be a plain {'whole ' if is_whole else ''}number, such as 8"
    try:
        exact = parse_quantity(text, "share")  # the dimension of plain numbers
    except QuantityError:
        raise InputError(source, where, rule, text) from None
    is_percentage = isinstance(text, str) and text.strip().endswith("%")
    if is_percentage or (is_whole and exact.denominator != 1):
        raise InputError(source, where, rule, text)
    return int(exact) if is_whole else exact


def written(value: Number, dimension: str) -> int | str:
    """Return a value as the document writes it."""
    return int(value) if dimension == "whole" else format_exact(Fraction(value), dimension)


def changed(document: Any, values: Mapping[Path, int | str | None]) -> Any:
    """Return a copy of a document with other values at some paths; shares what is the same.

    A number put where a list of numbers (or null) stands under `search` becomes a list of one.
    """
    for path, value in values.items():
        document = _put(document, path, value)
    return document


def _put(node: Any, path: Path, value: Any) -> Any:
    if not path:
        is_list = isinstance(node, list)
        return [value] if is_list and value is not None else value
    key, rest = path[0], path[1:]
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    if node[key] is None and not rest and isinstance(value, int) and isinstance(node, dict):
        copy[key] = [value] if "collectives" in node else value  # degrees of the search
    else:
        copy[key] = _put(node[key], rest, value)
    return copy


def changed_instance(
    document: Any, values: Mapping[Path, int | str | None], source: str
) -> Instance:
    """Return the problem instance with other values at some paths; raises InputError."""
    return validate(Instance, changed(document, values), source)
