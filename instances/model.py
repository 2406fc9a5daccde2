"""What a model is: groups of equal layers, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from instances.attention import GqaAttention, MlaAttention
from instances.compressed import CompressedAttention
from instances.ffn import DenseFfn, MoeFfn
from instances.formats import Format, Frozen, ModelFormats
from instances.recurrent import KdaAttention, LinearAttention
from instances.tensors import StatePart, Tensor, vector

Attention = Annotated[
    GqaAttention | MlaAttention | LinearAttention | KdaAttention | CompressedAttention,
    Field(discriminator="kind"),
]
Ffn = Annotated[DenseFfn | MoeFfn, Field(discriminator="kind")]

#: More layers than this is a mistake in the file.
MAX_LAYERS = 100_000

#: The fields of a plain dense decoder, which may be written without groups.
DENSE_FIELDS = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
DENSE_OPTIONS = ("qk_norm", "qkv_bias")


def _layer_indices(value: Any) -> Any:
    """Expand "0-2,5,7-19:2" to layer indices; anything else is left to the type."""
    if not isinstance(value, str):
        return value
    found: list[int] = []
    for part in value.split(","):
        span, colon, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        try:
            begin, end, by = int(first), int(last if dash else first), int(step if colon else 1)
        except ValueError:
            raise ValueError(
                f'{part.strip()!r} is not a range of layers; write "3", "0-11" or "1-35:2"'
            ) from None
        if by < 1 or end < begin or end > MAX_LAYERS:
            raise ValueError(f"{part.strip()!r} must rise, by at least 1, to at most {MAX_LAYERS}")
        found.extend(range(begin, end + 1, by))
    return tuple(found)


def _borrower(attention: Attention) -> CompressedAttention | None:
    """Return the attention where it reads another layer's compressed entries, else None."""
    if isinstance(attention, CompressedAttention) and not attention.owns_kv:
        return attention
    return None


def _owns(attention: Attention) -> bool:
    """Whether it keeps compressed entries of its own."""
    return (
        isinstance(attention, CompressedAttention)
        and attention.compressor is not None
        and attention.owns_kv
    )


class LayerGroup(Frozen):
    """Layers of one make: their places in the depth (from 0), attention, feed-forward block.

    `norms_per_layer` vectors of the hidden width are normalised in each; `extra` lists tensors of
    one layer that no attention or FFN kind has.
    """

    name: str = Field(min_length=1, max_length=60)
    layers: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MAX_LAYERS)], ...],
        BeforeValidator(_layer_indices, json_schema_input_type=str | list[int]),
    ] = Field(min_length=1, strict=False)
    attention: Attention
    ffn: Ffn
    norms_per_layer: int = Field(default=2, ge=0, le=100)
    extra: tuple[Tensor, ...] = Field(default=(), strict=False)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer of the group."""
        norms = (vector("norms", hidden_size, count=self.norms_per_layer),)
        return (
            *self.attention.tensors(hidden_size),
            *self.ffn.tensors(hidden_size),
            *(norms if self.norms_per_layer else ()),
            *self.extra,
        )


class LookupTable(Frozen):
    """A table beside the layers (Engram): a step reads `rows_per_token` of its rows per token."""

    name: str = Field(min_length=1, max_length=60)
    num_rows: int = Field(ge=1)
    row_size: int = Field(ge=1)
    rows_per_token: int = Field(ge=0)
    layer: int = Field(ge=0, le=MAX_LAYERS)
    format: Format

    def tensor(self) -> Tensor:
        """Return the table as a tensor whose rows are cut over cards."""
        return Tensor(
            component="lookup_tables",
            outputs=self.num_rows,
            inputs=self.row_size,
            role="table",
            split="outputs",
            units=self.num_rows,
            unit="table rows",
            is_padded=True,
            format=self.format,
        )


class SidePart(Frozen):
    """A part that plain decoding does not need (MTP, vision, projector), counted apart."""

    name: str = Field(min_length=1, max_length=60)
    tensors: tuple[Tensor, ...] = Field(min_length=1, strict=False)


class ModelSpec(Frozen):
    """A decoder as groups of equal layers. Sizes count numbers; `formats` turns them into bytes.

    `residual_streams` hidden vectors of a token pass from layer to layer (several with
    hyper-connections), and so from one pipeline stage to the next.

    A dense decoder with grouped-query attention may be written flat, with the `DENSE_FIELDS` in
    place of `groups`.
    """

    name: str = Field(min_length=1, max_length=120)
    hidden_size: int = Field(ge=1, le=10_000_000)
    vocab_size: int = Field(ge=1, le=100_000_000)
    tied_embeddings: bool = False
    residual_streams: int = Field(default=1, ge=1, le=1000)
    groups: tuple[LayerGroup, ...] = Field(min_length=1, max_length=1000, strict=False)
    tables: tuple[LookupTable, ...] = Field(default=(), strict=False)
    extra: tuple[Tensor, ...] = Field(default=(), strict=False)
    parts: tuple[SidePart, ...] = Field(default=(), strict=False)
    formats: ModelFormats = ModelFormats()
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_dense(cls, data: Any) -> Any:
        """Turn the flat form of a dense decoder into one group."""
        if not isinstance(data, dict) or "groups" in data:
            return data
        given = {key: data[key] for key in (*DENSE_FIELDS, *DENSE_OPTIONS) if key in data}
        if not given:
            return data
        missing = [field for field in DENSE_FIELDS if field not in given]
        if missing:
            raise ValueError(f"a dense model needs {', '.join(missing)} as well, or give groups")
        num_layers, size = given.pop("num_layers"), given.pop("ffn_size")
        if isinstance(num_layers, bool) or not isinstance(num_layers, int):
            raise ValueError("num_layers must be a whole number")
        if not 1 <= num_layers <= MAX_LAYERS:
            raise ValueError(f"num_layers must be between 1 and {MAX_LAYERS}, not {num_layers}")
        rest = {key: value for key, value in data.items() if key not in (*DENSE_FIELDS, *given)}
        group = {
            "name": "layers",
            "layers": tuple(range(num_layers)),
            "attention": {"kind": "gqa", **given},
            "ffn": {"kind": "dense", "size": size},
        }
        return {**rest, "groups": (group,)}

    @model_validator(mode="after")
    def _every_layer_once(self) -> ModelSpec:
        places = sorted(layer for group in self.groups for layer in group.layers)
        for place, layer in enumerate(places):
            if layer != place:
                what = f"layer {place} is in no group" if layer > place else f"layer {layer} twice"
                raise ValueError(f"groups must hold every layer from 0 on once: {what}")
        return self

    @model_validator(mode="after")
    def _borrowed_kv_exists(self) -> ModelSpec:
        for layer in range(self.num_layers):
            reader = _borrower(self.attention_of(layer))
            if reader is None:
                continue
            source = self.kv_source_of(layer)
            if source is None:
                raise ValueError(
                    f"layer {layer} owns no compressed entries, and no layer before it does"
                )
            owner = self.attention_of(source)
            if not isinstance(owner, CompressedAttention) or owner.compressor != reader.compressor:
                raise ValueError(
                    f"layer {layer} reads the compressed entries of layer {source}, "
                    "so both must have the same compressor"
                )
            if reader.indexer is not None and owner.indexer is None:
                raise ValueError(
                    f"the indexer of layer {layer} reads the keys of layer {source}, "
                    "which has no indexer"
                )
        return self

    @model_validator(mode="after")
    def _tables_have_a_layer(self) -> ModelSpec:
        for i, table in enumerate(self.tables):
            if table.layer >= self.num_layers:
                raise ValueError(
                    f"tables[{i}].layer is {table.layer}; the layers are 0..{self.num_layers - 1}"
                )
        return self

    @model_validator(mode="after")
    def _components_exist(self) -> ModelSpec:
        known = {tensor.component for tensor in self.all_tensors()}
        for component in self.formats.components:
            if component not in known:
                raise ValueError(
                    f"formats.components names {component!r}; "
                    f"this model has {', '.join(sorted(known))}"
                )
        return self

    @property
    def num_layers(self) -> int:
        """Layers of all groups."""
        return sum(len(group.layers) for group in self.groups)

    @cached_property
    def group_of_layer(self) -> tuple[int, ...]:
        """Index of its group for every layer, in depth order."""
        found = {layer: g for g, group in enumerate(self.groups) for layer in group.layers}
        return tuple(found[layer] for layer in range(self.num_layers))

    def attention_of(self, layer: int) -> Attention:
        """Return the attention of one layer."""
        return self.groups[self.group_of_layer[layer]].attention

    def kv_source_of(self, layer: int) -> int | None:
        """Return the earlier layer whose cache entries `layer` reads; None where it reads its own.

        It is the nearest one before it that owns compressed entries (DeepSeek V4.1). A pipeline cut
        between the two parts a layer from what it reads in every step.
        """
        return self._kv_sources[layer]

    @cached_property
    def _kv_sources(self) -> tuple[int | None, ...]:
        found: list[int | None] = []
        owner = None
        for layer in range(self.num_layers):
            attention = self.attention_of(layer)
            found.append(None if _borrower(attention) is None else owner)
            owner = layer if _owns(attention) else owner
        return tuple(found)

    @cached_property
    def layer_tensors(self) -> tuple[tuple[Tensor, ...], ...]:
        """Tensors of one layer, group by group."""
        return tuple(group.tensors(self.hidden_size) for group in self.groups)

    @cached_property
    def layer_state(self) -> tuple[tuple[StatePart, ...], ...]:
        """What a session keeps in one layer, group by group."""
        return tuple(group.attention.state(self.formats) for group in self.groups)

    @cached_property
    def embedding(self) -> Tensor:
        """The input embedding."""
        return self._vocabulary("embedding")

    @cached_property
    def lm_head(self) -> Tensor:
        """The output head; a tied model reads the embedding's bytes for it."""
        return self._vocabulary("lm_head")

    def _vocabulary(self, component: str) -> Tensor:
        return Tensor(
            component=component,
            outputs=self.vocab_size,
            inputs=self.hidden_size,
            role="vocabulary",
            split="outputs",
            units=self.vocab_size,
            unit="vocabulary rows",
            is_padded=True,
        )

    @cached_property
    def final_tensors(self) -> tuple[Tensor, ...]:
        """What stands after the last layer besides the head: the final norm and `extra`."""
        return (vector("norms", self.hidden_size), *self.extra)

    def all_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of one whole copy once per layer group (not per layer)."""
        yield self.embedding
        if not self.tied_embeddings:
            yield self.lm_head
        yield from self.final_tensors
        yield from (tensor for tensors in self.layer_tensors for tensor in tensors)
        yield from (table.tensor() for table in self.tables)
        yield from (tensor for part in self.parts for tensor in part.tensors)

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(group.ffn, MoeFfn) for group in self.groups)
