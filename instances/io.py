"""Problem instances from JSON and back: exact numbers, and one clear line for what is wrong."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from instances.decisions import SELF_CONTAINED
from instances.errors import InputError, printable
from instances.huggingface import resolve_model_reference
from instances.instance import Instance

#: An instance file larger than this is a mistake.
MAX_FILE_BYTES = 64 * 2**20
MAX_LITERAL_CHARS = 60

ModelT = TypeVar("ModelT", bound=BaseModel)


#: What stands outside of text: the parser's own notion of a number, or a constant it accepts.
_LITERALS = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity|-?[0-9][0-9.eE+-]*', re.DOTALL)


class _LiteralError(ValueError):
    """A number that is refused; `parse_json` finds where it stands."""


def _refuse_constant(text: str) -> NoReturn:
    raise _LiteralError(f"{text} is not a number JSON knows; write a finite number")


def _place_of_bad_literal(text: str) -> str:
    """Return where the first refused number stands: the parser reads in this order too."""
    for found in _LITERALS.finditer(text):
        literal = found.group()
        if literal[0] != '"' and (len(literal) > MAX_LITERAL_CHARS or literal[-1] in "Ny"):
            line = text.count("\n", 0, found.start()) + 1
            return f"line {line} column {found.start() - text.rfind(chr(10), 0, found.start())}"
    return "an unknown place"


def _exact_int(text: str) -> int:
    if len(text) > MAX_LITERAL_CHARS:
        raise _LiteralError(f"a number of {len(text)} digits is too long; use at most 60")
    return int(text)


def _exact_decimal(text: str) -> Decimal:
    if len(text) > MAX_LITERAL_CHARS:
        raise _LiteralError(f"a number of {len(text)} characters is too long; use at most 60")
    return Decimal(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} appears twice in one object; keep one")
    return fields


def parse_json(text: str, source: str) -> Any:
    """Parse JSON exactly: decimals stay decimals, repeated keys and NaN are refused.

    Raises InputError with the line and column of what is not JSON.
    """
    try:
        return json.loads(
            text,
            parse_float=_exact_decimal,
            parse_int=_exact_int,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_keys,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InputError(source, "", f"not JSON at {place}: {error.msg}") from None
    except _LiteralError as error:
        place = _place_of_bad_literal(text)
        raise InputError(source, "", f"bad JSON at {place}: {error}") from None
    except RecursionError:
        raise InputError(source, "", "JSON nested too deeply; an instance needs 8 levels") from None
    except ValueError as error:
        raise InputError(source, "", f"bad JSON: {error}") from None


def field_path(location: tuple[int | str, ...]) -> str:
    """Return a pydantic error location as it would be typed: "fleet.pools[0].name"."""
    path = ""
    for part in location:
        name = part if isinstance(part, int) else printable(part)
        path += f"[{name}]" if isinstance(part, int) else f".{name}" if path else str(name)
    return path


def _first_error(error: ValidationError) -> ErrorDetails:
    details = error.errors(include_url=False)
    # pydantic counts the good items of a list only: a list of one bad item is "too short" as well
    deeper = {d["loc"][:n] for d in details for n in range(len(d["loc"]))}
    details = [d for d in details if d["type"] != "too_short" or d["loc"] not in deeper]
    return min(details, key=lambda d: (d["type"] == "missing", len(d["loc"])))


_FIXES = {
    "missing": "this field is required; add it",
    "extra_forbidden": "no such field; remove it or correct its name",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be a text in quotes",
    "tuple_type": "must be a list in [brackets]",
    "dict_type": "must be an object in {braces}",
    "model_type": "must be an object in {braces}",
}
#: What an error of a limit says, and where pydantic keeps the limit.
_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"),
    "less_than": ("less than", "lt"),
    "literal_error": ("one of", "expected"),
}


def _without_tags(location: tuple[int | str, ...], data: object) -> tuple[int | str, ...]:
    """Leave out the kinds of tagged objects, which pydantic puts into a path and a file has not."""
    kept: list[int | str] = []
    here = data
    for place, part in enumerate(location, start=1):
        if isinstance(here, dict) and part not in here:
            is_changed_entry = "base" in here and place < len(location)  # its kind is its base's
            if here.get("kind") == part or is_changed_entry:
                continue
        kept.append(part)
        if isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            here = None
    return tuple(kept)


def _rule(error: ErrorDetails) -> str:
    """Say what is wrong, and where possible what to do."""
    if error["type"] == "union_tag_invalid":
        found = printable(str(error["ctx"]["tag"]))
        return f"no kind is named {found!r}; use one of {error['ctx']['expected_tags']}"
    if error["type"] == "union_tag_not_found":
        return "needs a field 'kind' that says what it is"
    limit = _LIMITS.get(error["type"])
    if limit is not None:
        return f"must be {limit[0]} {error['ctx'][limit[1]]}"
    return _FIXES.get(error["type"], error["msg"].removeprefix("Value error, "))


def validate(kind: type[ModelT], data: object, source: str) -> ModelT:
    """Return `data` as a `kind`; raises InputError naming the first offending field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = _first_error(error)
        rule = _rule(first)
        shown = None if isinstance(first["input"], dict | list) else first["input"]
        if first["type"] == "missing":
            shown = None
        more = error.error_count() - 1
        if more:
            rule += f" (and {more} more)"
        path = field_path(_without_tags(first["loc"], data)) or kind.__name__.lower()
        raise InputError(source, path, rule, shown) from None
    except RecursionError:
        raise InputError(source, "", "nested too deeply") from None


#: What stands for model, fleet and workload where decisions that do not read them leave them out.
UNREAD: dict[str, Any] = {
    "model": "qwen3-32b",
    "fleet": {"pools": [{"name": "unread", "server": "hgx-h100", "num_servers": 1}]},
    "workload": {
        "cohorts": [{"name": "unread", "num_sessions": 1, "context_tokens": 1, "new_tokens": 1}]
    },
}


def parse_instance(
    data: Mapping[str, Any], source: str = "instance", folder: str | Path | None = None
) -> Instance:
    """Return the problem instance a mapping describes; raises InputError.

    A model given as a Hugging Face configuration is looked for in `folder` first.
    """
    if not isinstance(data, Mapping):
        raise InputError(source, "", f"an instance is a JSON object, not a {type(data).__name__}")
    document = dict(data)
    if document.get("decision") in SELF_CONTAINED:
        document = deepcopy(UNREAD) | document
    if "model" in document:
        document["model"] = resolve_model_reference(document["model"], folder, source)
    if isinstance(document.get("models"), list):
        document["models"] = [
            resolve_model_reference(model, folder, source) for model in document["models"]
        ]
    return validate(Instance, document, source)


def read_text(path: str | Path) -> tuple[str, str]:
    """Return (text, source name) of a file or, for "-", of standard input; raises InputError."""
    if str(path) == "-":
        return sys.stdin.read(MAX_FILE_BYTES), "<stdin>"
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            raise InputError(str(path), "", f"larger than {MAX_FILE_BYTES} bytes; not an instance")
        return Path(path).read_text(encoding="utf-8-sig"), str(path)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise InputError(str(path), "", f"{reason}; give a readable file") from None
    except (UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), "", "not UTF-8 text; save it as UTF-8 JSON") from None


def _bundled(folder: str) -> tuple[str, ...]:
    entries = (entry.name for entry in (resources.files("instances") / folder).iterdir())
    return tuple(sorted(n[:-5] for n in entries if n.endswith(".json") and ".best." not in n))


def example_names() -> tuple[str, ...]:
    """Return the names of the bundled example instances, sorted."""
    return _bundled("examples")


def sweep_names() -> tuple[str, ...]:
    """Return the names of the bundled sweeps, sorted."""
    return _bundled("sweeps")


def example_text(name: str, suffix: str = ".json") -> str:
    """Return the text of a bundled example (".json") or its best-known plan (".best.json").

    A bundled sweep has a text, too. Raises InputError for an unknown name.
    """
    if name in sweep_names() and suffix == ".json":
        return (resources.files("instances") / "sweeps" / f"{name}.json").read_text("utf-8")
    if name not in example_names():
        known = ", ".join(example_names())
        raise InputError(name, "", f"no bundled example has this name; there are: {known}")
    return (resources.files("instances") / "examples" / f"{name}{suffix}").read_text("utf-8")


def read_document(path: str | Path, *, sweeps: bool = False) -> tuple[Any, str, Path | None]:
    """Return (parsed JSON, source name, its folder) of a path, "-" or a bundled example's name.

    A file of that name wins over the example; bundled `sweeps` are known where they are asked for.
    Raises InputError.
    """
    names = (*example_names(), *(sweep_names() if sweeps else ()))
    if str(path) == "-" or os.path.exists(path):
        text, source = read_text(path)
    elif str(path) in names:
        text, source = example_text(str(path)), str(path)
    else:
        rule = "no such file, and no bundled example has this name; there are: " + ", ".join(names)
        raise InputError(str(path), "", rule)
    return parse_json(text, source), source, Path(path).parent if os.path.exists(path) else None


def load_instance(path: str | Path) -> Instance:
    """Load a problem instance from a path, "-" (standard input) or a bundled example's name.

    A file of that name wins over the example. Raises InputError.
    """
    return parse_instance(*read_document(path))


def write_atomically(path: str | Path, text: str) -> None:
    """Write a file so that it appears whole or not at all; raises InputError.

    What is no regular file (a pipe, a terminal) cannot be replaced and is written to directly.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    is_special = target.exists() and not target.is_file()
    try:
        with open(
            target if is_special else temporary, "w" if is_special else "x", encoding="utf-8"
        ) as file:
            file.write(text)
            file.flush()
            if not is_special:
                os.fsync(file.fileno())
        if not is_special:
            os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = (error.strerror or "cannot be written").lower()
        raise InputError(str(path), "", f"{reason}; nothing was written") from None
