"""Models by reference: a Hugging Face configuration, a specification's file or a catalog name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from instances.catalog_store import UnknownEntryError, catalog_entry
from instances.errors import InputError
from instances.huggingface.importer import import_model
from instances.model import ModelSpec


def resolve_model_reference(value: Any, folder: str | Path | None, source: str) -> Any:
    """Turn `{"huggingface": path, "name": …, "formats": …}` into a model; leave the rest alone.

    The path is looked for in `folder` (that of the instance file `source`), then in the working
    directory. `formats` replaces single fields of the imported formats. Raises InputError about
    the field `model.huggingface` of `source`.
    """
    from instances.io import parse_json, read_text

    if not isinstance(value, Mapping) or "huggingface" not in value:
        return value
    where = "model.huggingface"
    odd = sorted(set(value) - {"huggingface", "name", "formats"})
    if odd:
        raise InputError(source, f"model.{odd[0]}", "beside huggingface only name and formats go")
    given, name, formats = value["huggingface"], value.get("name"), value.get("formats", {})
    if not isinstance(given, str) or not given:
        raise InputError(source, where, "must be the path of a config.json", given)
    if name is not None and not isinstance(name, str):
        raise InputError(source, "model.name", "must be a text", name)
    if not isinstance(formats, Mapping):
        raise InputError(source, "model.formats", "must be an object", formats)
    places = [Path(given)] if folder is None else [Path(folder) / given, Path(given)]
    path = next((place for place in places if _is_file(place)), None)
    if path is None:
        rule = "no such file beside the instance or in the working directory; correct the path"
        raise InputError(source, where, rule, given)
    try:
        text, shown = read_text(path)
        model = import_model(parse_json(text, shown), given, name)
    except InputError as error:
        raise InputError(source, where, f"{error}", given) from None
    fields = model.model_dump()
    return {**fields, "formats": {**fields["formats"], **formats}}


def _is_file(path: Path) -> bool:
    """Whether a path names a file; one that no system could hold does not."""
    try:
        return path.is_file()
    except OSError:
        return False


def load_model(reference: str) -> ModelSpec:
    """Return the model of a file ("-": standard input) or of a catalog entry; raises InputError.

    A file holds a Hugging Face configuration or a model specification, as an instance would. A
    file of that name wins over the catalog.
    """
    from instances.io import parse_json, read_text, validate

    if reference != "-" and not os.path.exists(reference):
        try:
            return validate(ModelSpec, catalog_entry("models", reference), reference)
        except UnknownEntryError as error:
            raise InputError(reference, "", f"no such file, and {error}") from None
    text, source = read_text(reference)
    data = parse_json(text, source)
    if isinstance(data, Mapping) and ("model_type" in data or "text_config" in data):
        return import_model(data, source)
    data = resolve_model_reference(data, Path(source).parent, source)
    if isinstance(data, Mapping) and "hidden_size" not in data:
        rule = "neither a Hugging Face config.json (no model_type) nor a model (no hidden_size)"
        raise InputError(source, "", rule)
    return validate(ModelSpec, data, source)
