"""Fields of a Hugging Face configuration, read one by one: none is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from instances.errors import InputError
from instances.model import MAX_LAYERS

#: A size above this is a mistake in the file.
MAX_SIZE = 1_000_000_000

#: Storage format of each `torch_dtype`.
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class ModelImportError(InputError):
    """A configuration that cannot be turned into a model: which field, why, and the fix."""


class ConfigReader:
    """One object of a configuration; `outer` is the object around it, itself at the top."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        source: str,
        path: str = "",
        outer: ConfigReader | None = None,
    ) -> None:
        self.fields, self.source, self.path = fields, source, path
        self.outer = self if outer is None else outer

    def error(self, field: str, rule: str, value: object = None) -> ModelImportError:
        """Return the error about one field of this object."""
        return ModelImportError(self.source, self.path + field, rule, value)

    def has(self, field: str) -> bool:
        """Whether the field stands there and is not null."""
        return self.fields.get(field) is not None

    def _required(self, field: str) -> Any:
        if not self.has(field):
            raise self.error(field, "is missing, and its value cannot be guessed; add it")
        return self.fields[field]

    def integer(self, field: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """Return a whole number; raises ModelImportError where it is missing or out of range."""
        value = self._required(field)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not minimum <= value <= maximum:
            rule = f"must be a whole number between {minimum} and {maximum}"
            raise self.error(field, rule, value)
        return int(value)

    def optional_integer(self, field: str, minimum: int = 1) -> int | None:
        """Return a whole number, or None where it is missing or null."""
        return self.integer(field, minimum) if self.has(field) else None

    def count(self, field: str) -> int:
        """Return a whole number that may be 0, which it also is where it is missing."""
        return self.optional_integer(field, 0) or 0

    def integers(self, field: str, minimum: int = 0) -> tuple[int, ...]:
        """Return a list of whole numbers; empty where it is missing or null."""
        values = self.fields.get(field)
        if values is None:
            return ()
        if not isinstance(values, list | tuple) or any(
            isinstance(v, bool) or not isinstance(v, int) or not minimum <= v <= MAX_SIZE
            for v in values
        ):
            raise self.error(field, f"must be a list of whole numbers of at least {minimum}")
        return tuple(values)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of texts; empty where it is missing or null."""
        values = self.fields.get(field)
        if values is None:
            return ()
        if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
            raise self.error(field, "must be a list of texts")
        return tuple(values)

    def flag(self, field: str, default: bool = False) -> bool:
        """Return true or false; `default` where it is missing or null."""
        value = self.fields[field] if self.has(field) else default
        if not isinstance(value, bool):
            raise self.error(field, "must be true or false", value)
        return value

    def text(self, field: str) -> str:
        """Return a text; raises ModelImportError where it is missing."""
        value = self._required(field)
        if not isinstance(value, str):
            raise self.error(field, "must be a text", value)
        return value

    def optional_text(self, field: str) -> str | None:
        """Return a text, or None where it is missing or null."""
        return self.text(field) if self.has(field) else None

    def section(self, field: str) -> ConfigReader:
        """Return a nested object; raises ModelImportError where it is missing."""
        value = self._required(field)
        if not isinstance(value, Mapping):
            raise self.error(field, "must be an object", value)
        return ConfigReader(value, self.source, f"{self.path}{field}.", self)

    def optional_section(self, field: str) -> ConfigReader | None:
        """Return a nested object, or None where it is missing or null."""
        return self.section(field) if self.has(field) else None

    def holder(self, *names: str) -> tuple[ConfigReader, str] | None:
        """Return the object with one of the fields, this one or the outer one, and which field."""
        for reader in (self, self.outer):
            for name in names:
                if reader.has(name):
                    return reader, name
        return None

    def dtype(self, default: str | None = None) -> str:
        """Return the storage format of unquantised tensors; a `default` is a published fact."""
        held = self.holder("torch_dtype", "dtype")
        if held is None:
            if default is not None:
                return default
            raise self.error("torch_dtype", "is missing, and its value cannot be guessed; add it")
        reader, name = held
        value = reader.text(name)
        if value not in DTYPES:
            raise reader.error(name, f"must be one of {', '.join(DTYPES)}", value)
        return DTYPES[value]

    def tied_embeddings(self) -> bool:
        """Return whether the head is the embedding; false is the published default."""
        held = self.holder("tie_word_embeddings")
        return False if held is None else held[0].flag(held[1])

    def num_layers(self) -> int:
        """Return `num_hidden_layers`."""
        return self.integer("num_hidden_layers", maximum=MAX_LAYERS)

    def refuse(self, field: str, allowed: object, why: str) -> None:
        """Raise ModelImportError where a field that must have one value has another."""
        if self.has(field) and self.fields[field] != allowed:
            raise self.error(field, why, self.fields[field])
