"""Sweep files: which instance, and which of its fields take which values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from instances.errors import InputError
from instances.formats import Frozen
from instances.hardware import Name
from instances.instance import Instance
from instances.io import load_instance, parse_instance, read_document, validate

#: A range as text, or values; `optimizer.sweeps.ranges` reads both.
Range = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "number"},
                {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1},
            ],
            "description": 'FIRST:LAST:STEP ("50ms:200ms:1ms"), FIRST:LAST:xFACTOR, or values',
        }
    ),
]


class SweepFile(Frozen):
    """A sweep: `instance` is a bundled example, a path beside the file, or a whole instance.

    `deadline` moves the deadline of the `cohorts` named, by default of every cohort that has one
    (of all, where none has); `set` gives values to numeric fields by path. Points are the cross
    product. `exact` asks for the step function of the optimum against the deadline instead of a
    grid.
    """

    kind: Literal["sweep"] = "sweep"
    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=120)
    description: str = ""
    instance: str | dict[str, Any]
    deadline: Range = None
    set: dict[str, Range] = Field(default_factory=dict)
    exact: bool = False
    cohorts: tuple[Name, ...] = Field(default=(), strict=False)


def load_sweep(path: str | Path) -> tuple[Instance, SweepFile | None, str]:
    """Return (instance, sweep file, source name); None where the path is of a plain instance.

    The path may be "-", or the name of a bundled example or sweep. Raises InputError.
    """
    document, source, folder = read_document(path, sweeps=True)
    if not (isinstance(document, Mapping) and document.get("kind") == "sweep"):
        return parse_instance(document, source, folder), None, source
    file = validate(SweepFile, document, source)
    if isinstance(file.instance, str):
        beside = None if folder is None else folder / file.instance
        if beside is not None and beside.exists():
            return load_instance(beside), file, source
        try:
            return load_instance(file.instance), file, source
        except InputError as error:
            raise InputError(source, "instance", error.rule, file.instance) from None
    return parse_instance(file.instance, f"{source}: instance", folder), file, source
