"""The catalog: published numbers about models and hardware, each kept once with its source.

The numbers are JSON files beside this module. They are read on first use and handed out as
fresh copies, so nobody can change the catalog for the next reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

_KINDS: Final = (
    "models",
    "accelerators",
    "fabrics",
    "servers",
    "measurements",
    "engines",
    "topologies",
    "memory",
)
_MAX_SHOWN_CHARS: Final = 60


class UnknownEntryError(KeyError, ValueError):
    """No such kind or entry in the catalog.

    It is a ``ValueError`` as well, because only those become validation errors (with the path
    of the field) when a reference is resolved inside a pydantic model.
    """

    def __str__(self) -> str:
        # KeyError would print the repr of its message, quotes and escapes included.
        return str(self.args[0])


def catalog_kinds() -> tuple[str, ...]:
    """Return the kinds of entry: models, accelerators, fabrics, servers, topologies and others."""
    return _KINDS


def _show(name: str) -> str:
    return repr(name if len(name) <= _MAX_SHOWN_CHARS else name[:_MAX_SHOWN_CHARS] + "...")


def _nearest(name: str, known: tuple[str, ...]) -> str:
    matches = get_close_matches(name[:_MAX_SHOWN_CHARS].lower(), known, n=3, cutoff=0.4)
    return f"nearest: {', '.join(matches)}" if matches else "nothing has a similar name"


@cache
def _load(kind: str) -> dict[str, dict[str, Any]]:
    if kind not in _KINDS:
        raise UnknownEntryError(
            f"unknown catalog kind {_show(kind)}; use one of {', '.join(_KINDS)}"
        )
    text = files("instances").joinpath("catalog", f"{kind}.json").read_text(encoding="utf-8")
    # Decimal keeps a number as it is written; a binary float would not.
    entries: dict[str, dict[str, Any]] = json.loads(text, parse_float=Decimal)["entries"]
    return entries


def catalog_names(kind: str) -> tuple[str, ...]:
    """Return the names of all entries of one kind, sorted.

    Parameters
    ----------
    kind
        One of `catalog_kinds`.

    Raises
    ------
    UnknownEntryError
        When there is no such kind.
    """
    return tuple(sorted(_load(kind)))


def catalog_entry(kind: str, name: str) -> dict[str, Any]:
    """Return a fresh copy of one entry, with its ``name`` filled in.

    Parameters
    ----------
    kind
        One of `catalog_kinds`.
    name
        One of ``catalog_names(kind)``.

    Returns
    -------
    dict
        The fields as written in the catalog: quantities are text with their unit
        (``"80GB"``), unknown ones are None; ``sources`` says where each one comes from.

    Raises
    ------
    UnknownEntryError
        When there is no such kind or entry; the message names the nearest entries.
    """
    entries = _load(kind)
    if name not in entries:
        hint = _nearest(name, tuple(sorted(entries)))
        raise UnknownEntryError(
            f"no entry {_show(name)} in catalog {kind}; {hint}; list all: supernode catalog {kind}"
        )
    return {"name": name, **deepcopy(entries[name])}


def _modified(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Apply ``changes`` (its ``base`` names an entry) over a copy of that entry."""
    base = changes["base"]
    if not isinstance(base, str):
        raise UnknownEntryError(
            f"base must be the name of an entry of catalog {kind}, not a value of type "
            f"{type(base).__name__}; list all: supernode catalog {kind}"
        )
    entry = catalog_entry(kind, base)
    overrides = {field: value for field, value in changes.items() if field != "base"}
    given = overrides.get("sources", {})
    if isinstance(given, dict):
        # The published source vouches for the published number only, not for its replacement.
        kept = {f: source for f, source in entry["sources"].items() if f not in overrides}
        overrides["sources"] = {**kept, **given}
    return {**entry, "name": f"{base} (modified)", **overrides}


def resolve_reference(kind: str) -> Callable[[object], object]:
    """Make a pydantic before-validator that accepts catalog references.

    Parameters
    ----------
    kind
        One of `catalog_kinds`.

    Returns
    -------
    Callable
        Turns an entry's name into that entry; turns a dict with a ``base`` into the base entry
        with the other keys replacing whole fields (and dropping the sources of those fields);
        returns anything else as it is. Raises `UnknownEntryError` for a name not in the catalog.
    """

    def resolve(value: object) -> object:
        if isinstance(value, str):
            return catalog_entry(kind, value)
        if isinstance(value, dict) and "base" in value:
            return _modified(kind, value)
        return value

    return resolve


#: A catalog entry with some of its fields replaced, as a JSON Schema knows it.
Modified = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {"type": "object", "properties": {"base": {"type": "string"}}, "required": ["base"]}
    ),
]


def reference(kind: str, spec: Any, *forms: Any) -> BeforeValidator:
    """Accept an entry's name or a change of one where a `spec` is wanted; the schema says so.

    `forms` are further ways to write one, for the schema alone.
    """
    accepted = spec | str | Modified
    for form in forms:
        accepted |= form
    return BeforeValidator(resolve_reference(kind), json_schema_input_type=accepted)
