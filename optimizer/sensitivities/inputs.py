"""Which inputs of a problem instance a study moves, and the instance with another value of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from pydantic import BaseModel

from instances.errors import InputError
from instances.instance import Instance
from optimizer.variants.fields import (
    Number,
    NumericField,
    Path,
    changed_instance,
    fields_at,
    numeric_fields,
    parse_path,
    written,
)

#: Fields that say what was measured or which card fails: another value is another fact.
LABELS = frozenset({"ranks", "servers", "message_bytes", "spread_s", "server", "card"})
#: Parts of the document that describe the model, the software and the question.
FIXED = frozenset({"schema_version", "model", "engine", "search", "stages", "experts"})
#: A value is written with at most so many digits above and below the line.
MAX_DIGITS = 59
#: Digits of a value that stands for one too long to be written, and decimals at most.
SHORT_DIGITS, MAX_PLACES = 40, 57


def default_fields(instance: Instance, document: Any) -> list[NumericField]:
    """Return the inputs that a study moves unless told which: those that describe the situation.

    Left out are the model and the engine, labels, peaks of number formats that the model does not
    use, and the accelerator's own power (that of the server counts).
    """
    used = instance.model.formats.compute_format

    def is_moved(field: NumericField) -> bool:
        path, name = field.path, field.path[-1]
        if path[0] in FIXED or name in LABELS:
            return False
        if path[0] == "measurements":
            return name == "session_s"
        if "peak_flops_per_s" in path:
            return name == used
        return path[-2:] != ("accelerator", "power_w")

    return [field for field in numeric_fields(document) if is_moved(field)]


def chosen_fields(
    instance: Instance, document: Any, inputs: Iterable[str] | None, source: str
) -> list[NumericField]:
    """Return the fields that paths name, each once; all default ones for None.

    Raises InputError for a path that names no number.
    """
    if inputs is None:
        return default_fields(instance, document)
    fields: dict[Path, NumericField] = {}
    for text in inputs:
        for field in fields_at(document, parse_path(text, source), source):
            if field.value is None:
                rule = "holds no single number that could move; give it one in the file"
                raise InputError(source, field.name, rule)
            fields.setdefault(field.path, field)
    return list(fields.values())


def instance_at(document: Any, field: NumericField, value: Number, source: str) -> Instance | None:
    """Return the problem instance with another value of one field; None where it may not have it.

    A threshold may be finer than a file may say. Then the rules are checked at a value nearby, and
    the exact one is put in its place.
    """
    exact = Fraction(value)
    short = exact if _is_short(exact) else _shortened(exact)
    try:
        variant = changed_instance(document, {field.path: written(short, field.dimension)}, source)
    except InputError:
        return None
    if short != exact:  # a fresh copy, so nothing derived from the value nearby is kept
        patched: Instance = _patched(variant, field.path, exact)
        return patched
    return variant


def _is_short(value: Fraction) -> bool:
    return max(len(str(value.numerator)), len(str(value.denominator))) <= MAX_DIGITS


def _shortened(value: Fraction) -> Fraction:
    places = min(SHORT_DIGITS - math.floor(math.log10(value)), MAX_PLACES)
    scale = Fraction(10) ** places
    return round(value * scale) / scale


def _patched(node: Any, path: Sequence[str | int], value: Fraction) -> Any:
    """Return a copy of a part of an instance with one number replaced, unchecked."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(node, BaseModel):
        name = str(key)
        return node.model_copy(update={name: _patched(getattr(node, name), rest, value)})
    if isinstance(node, dict):
        return {**node, key: _patched(node[key], rest, value)}
    return tuple(_patched(item, rest, value) if i == key else item for i, item in enumerate(node))
