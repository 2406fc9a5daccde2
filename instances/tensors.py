"""Tensors of a model: what is stored, in which shape, and how cards may share it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from instances.formats import Format, Frozen, ModelFormats, TensorFormat


class Tensor(Frozen):
    """`count` equal tensors of shape [outputs, inputs]; a vector has one input.

    Tensor parallelism cuts the axis `split` into atoms: `units` of them (heads, groups, columns,
    rows), named by `unit`. `is_replicable` atoms are stored several times where the degree exceeds
    them (KV heads); an axis that `is_padded` is padded up to the degree. Experts (`is_expert`) go
    to expert-parallel groups whole. `role` picks the format unless `format` is given: a step reads
    every matrix whole, only single rows of a table, and vectors are left out as (6-4) does.
    """

    component: str = Field(min_length=1, max_length=60)
    outputs: int = Field(ge=1)
    inputs: int = Field(default=1, ge=1)
    count: int = Field(default=1, ge=1)
    role: Literal["matrix", "vector", "table", "vocabulary"] = "matrix"
    split: Literal["outputs", "inputs", "copy"] = "copy"
    units: int = Field(default=1, ge=1)
    unit: str = ""
    is_replicable: bool = False
    is_padded: bool = False
    is_expert: bool = False
    format: Format | None = None

    @property
    def numbers(self) -> int:
        """Numbers stored, scales not counted."""
        return self.count * self.outputs * self.inputs

    def format_in(self, formats: ModelFormats) -> TensorFormat:
        """Return the tensor's own format, else its component's, else that of its role."""
        if self.format is not None:
            return self.format
        if self.component in formats.components:
            return formats.components[self.component]
        if self.role == "vector":
            return formats.vector_format
        return formats.embeddings if self.role == "vocabulary" else formats.weights

    def payload_bytes(self, formats: ModelFormats) -> int:
        """Bytes of one whole copy without scales."""
        return self.count * self.format_in(formats).payload_bytes(self.outputs, self.inputs)

    def scale_bytes(self, formats: ModelFormats) -> int:
        """Bytes of the scales of one whole copy."""
        return self.count * self.format_in(formats).scale_bytes(self.outputs, self.inputs)

    def total_bytes(self, formats: ModelFormats) -> int:
        """Bytes of one whole copy with scales."""
        return self.payload_bytes(formats) + self.scale_bytes(formats)


class StatePart(Frozen):
    """What a layer keeps for a session besides its weights: cache entries or a fixed state.

    After n tokens it holds floor(min(n, window) / tokens_per_entry) entries, or always one where
    `is_fixed`. `units` heads share an entry evenly under tensor parallelism; one unit is a latent
    that every card of the group holds whole. A step reads at most `max_read_entries` of them and
    does `flops_per_entry` for each token it adds and entry it reads. Entries that are `is_borrowed`
    are held by an earlier layer: this one reads them and keeps none. Index keys are
    `is_scored_by_all`: every card of a TP group does all of their FLOP.
    """

    component: str
    entry_bytes: int = Field(ge=1)
    units: int = Field(default=1, ge=1)
    tokens_per_entry: int = Field(default=1, ge=1)
    window: int | None = Field(default=None, ge=1)
    is_fixed: bool = False
    is_borrowed: bool = False
    is_scored_by_all: bool = False
    max_read_entries: int | None = Field(default=None, ge=1)
    flops_per_entry: int = Field(default=0, ge=0)

    def entries(self, tokens: int) -> int:
        """Entries held after `tokens` tokens."""
        return 0 if self.is_borrowed else self._entries_in_reach(tokens)

    def _entries_in_reach(self, tokens: int) -> int:
        """Entries after `tokens` tokens, whichever layer holds them."""
        if self.is_fixed:
            return 1
        held = tokens if self.window is None else min(tokens, self.window)
        return held // self.tokens_per_entry

    def prompt_entries(self, before: int, count: int) -> int:
        """Entries that `count` new tokens touch at least once after `before` cached ones."""
        if self.is_fixed:
            return 1
        reach = before if self.window is None else min(before, self.window)
        return (reach + count) // self.tokens_per_entry

    def read_entries(self, tokens: int) -> int:
        """Entries that a step reads with `tokens` tokens in the cache."""
        held = self._entries_in_reach(tokens)
        return held if self.max_read_entries is None else min(held, self.max_read_entries)


def vector(component: str, size: int, **fields: object) -> Tensor:
    """Return a vector such as a norm or a bias, copied on every card unless `fields` split it."""
    return Tensor.model_validate(
        {"component": component, "outputs": size, "role": "vector", **fields}
    )
