"""Attention over compressed entries (DeepSeek V4 and V4.1), one shared key-value head per layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instances.formats import Frozen, ModelFormats
from instances.tensors import StatePart, Tensor, vector


class Compressor(Frozen):
    """Pools every `ratio` tokens into one cache entry, in float numbers until a block is full.

    `overlap` pools over the block before as well, with projections of twice the width. At ratio 1
    an entry is a plain projection, without a gate. `keeps_tail` counts the tokens whose block is
    not full yet. A null `entry_bytes` means head_dim numbers of the kv format.
    """

    ratio: int = Field(ge=1, le=1_000_000)
    overlap: bool = False
    position_bias: bool = False
    keeps_tail: bool = False
    entry_bytes: int | None = Field(default=None, ge=1)

    @property
    def spans(self) -> int:
        """Blocks that an entry is pooled from."""
        return 2 if self.overlap else 1

    def tensors(self, component: str, width: int, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors that make entries of `width` numbers, whole on every card."""
        rows = width * self.spans
        num_matrices = 1 if self.ratio == 1 else 2
        found = [Tensor(component=component, outputs=rows, inputs=hidden_size, count=num_matrices)]
        if self.position_bias:
            found.append(vector(f"{component}_position", rows * self.ratio))
        found.append(vector(f"{component}_norm", width))
        return tuple(found)

    def tail(self, component: str, width: int, formats: ModelFormats) -> tuple[StatePart, ...]:
        """The projections (values and scores) of tokens that wait for their block to be full."""
        if not self.keeps_tail:
            return ()
        return (
            StatePart(
                component=component,
                entry_bytes=2 * width * self.spans * formats.bytes_of("state"),
                window=self.ratio * self.spans,
                # All rows are read once in `ratio` steps: this many per step.
                max_read_entries=self.spans,
            ),
        )


class Indexer(Frozen):
    """Scores compressed entries by small keys, and picks those that the attention reads.

    Keys come from a compressor of their own over the hidden vector, or from the entry ("latent").
    A step scores all keys, or at most `max_scored_entries` where an earlier layer narrows them.
    A null `entry_bytes` means head_dim numbers of the kv format.
    """

    num_heads: int = Field(ge=1, le=1_000_000)
    head_dim: int = Field(ge=1, le=1_000_000)
    keys_from: Literal["hidden", "latent"] = "hidden"
    max_scored_entries: int | None = Field(default=None, ge=1)
    entry_bytes: int | None = Field(default=None, ge=1)


class CompressedAttention(Frozen):
    """Attention over a window of the last tokens and, with a `compressor`, over compressed entries.

    Key and value are one latent of `head_dim` numbers for all query heads, so an entry is never
    divided by tensor parallelism. The output projection has `output_groups` groups of heads, each
    with `output_lora_rank` numbers: both heads and groups are atoms. A step reads all compressed
    entries, or at most `top_k` of them. A layer with `owns_kv` false keeps only its window and
    reads the compressed entries of the nearest layer before it that owns some. Null entry bytes
    mean head_dim numbers of the kv format.
    """

    kind: Literal["compressed"] = "compressed"
    num_heads: int = Field(ge=1, le=1_000_000)
    head_dim: int = Field(ge=1, le=1_000_000)
    q_lora_rank: int = Field(ge=1, le=1_000_000)
    output_groups: int = Field(ge=1, le=1_000_000)
    output_lora_rank: int = Field(ge=1, le=1_000_000)
    window: int = Field(ge=1, le=1_000_000_000)
    window_entry_bytes: int | None = Field(default=None, ge=1)
    sinks: bool = True
    compressor: Compressor | None = None
    indexer: Indexer | None = None
    top_k: int | None = Field(default=None, ge=1)
    owns_kv: bool = True

    @model_validator(mode="after")
    def _fits_together(self) -> CompressedAttention:
        if self.num_heads % self.output_groups:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of output_groups "
                f"{self.output_groups}: every group projects the same number of heads"
            )
        if self.compressor is None:
            for field in ("indexer", "top_k"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field} needs a compressor, whose entries it picks from")
            if not self.owns_kv:
                raise ValueError("owns_kv false needs a compressor, to say what entries are read")
        if self.indexer is not None and self.top_k is None:
            raise ValueError("an indexer needs top_k, the number of entries it picks")
        return self

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        width = self.num_heads * self.head_dim
        found = [
            Tensor(component="attention_q_down", outputs=self.q_lora_rank, inputs=hidden_size),
            vector("norms", self.q_lora_rank),
            Tensor(
                component="attention_q",
                outputs=width,
                inputs=self.q_lora_rank,
                split="outputs",
                units=self.num_heads,
                unit="query heads",
            ),
            Tensor(component="attention_kv", outputs=self.head_dim, inputs=hidden_size),
            vector("norms", self.head_dim),
            Tensor(
                component="attention_o_down",
                outputs=self.output_groups * self.output_lora_rank,
                inputs=width // self.output_groups,
                split="outputs",
                units=self.output_groups,
                unit="output groups",
            ),
            Tensor(
                component="attention_o",
                outputs=hidden_size,
                inputs=self.output_groups * self.output_lora_rank,
                split="inputs",
                units=self.output_groups,
                unit="output groups",
            ),
        ]
        if self.sinks:
            cut = {"split": "outputs", "units": self.num_heads, "unit": "query heads"}
            found.append(vector("sinks", self.num_heads, **cut))
        if self.compressor is not None and self.owns_kv:
            found += self.compressor.tensors("compressor", self.head_dim, hidden_size)
        return (*found, *self._indexer_tensors(hidden_size))

    def _indexer_tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of the indexer, whole on every card.

        DeepSeek's own inference code divides the index heads and then sums the scores of all
        entries over the cards; serving engines copy them, and without that sum so does this model.
        """
        if self.indexer is None or self.compressor is None:
            return ()
        heads, size = self.indexer.num_heads, self.indexer.head_dim
        found = [
            Tensor(component="indexer_q", outputs=heads * size, inputs=self.q_lora_rank),
            Tensor(component="indexer_weights", outputs=heads, inputs=hidden_size),
        ]
        if self.owns_kv and self.indexer.keys_from == "hidden":
            found += self.compressor.tensors("indexer_keys", size, hidden_size)
        elif self.owns_kv:
            found += [
                Tensor(component="indexer_keys", outputs=size, inputs=self.head_dim),
                vector("indexer_keys_norm", size),
            ]
        return tuple(found)

    def state(self, formats: ModelFormats) -> tuple[StatePart, ...]:
        """What a session keeps in one layer, and what a step reads in others' entries."""
        kv_bytes = formats.bytes_of("kv")
        entry_bytes, flops = self.head_dim * kv_bytes, 4 * self.num_heads * self.head_dim
        window = StatePart(
            component="window_kv",
            entry_bytes=self.window_entry_bytes or entry_bytes,
            window=self.window,
            flops_per_entry=flops,
        )
        if self.compressor is None:
            return (window,)
        found = [
            window,
            StatePart(
                component="compressed_kv",
                entry_bytes=self.compressor.entry_bytes or entry_bytes,
                tokens_per_entry=self.compressor.ratio,
                is_borrowed=not self.owns_kv,
                max_read_entries=self.top_k,
                flops_per_entry=flops,
            ),
        ]
        if self.owns_kv:
            found += self.compressor.tail("compressor_tail", self.head_dim, formats)
        if self.indexer is not None:
            heads, size = self.indexer.num_heads, self.indexer.head_dim
            found.append(
                StatePart(
                    component="index_keys",
                    entry_bytes=self.indexer.entry_bytes or size * kv_bytes,
                    tokens_per_entry=self.compressor.ratio,
                    is_borrowed=not self.owns_kv,
                    is_scored_by_all=True,
                    max_read_entries=self.indexer.max_scored_entries,
                    # A score is a weighted sum over the heads of query times key.
                    flops_per_entry=2 * heads * (size + 1),
                )
            )
            if self.owns_kv and self.indexer.keys_from == "hidden":
                found += self.compressor.tail("indexer_tail", size, formats)
        return tuple(found)

    def token_flops(self) -> int:
        """FLOP of a new token besides matrices and cache entries."""
        return 0

    def merge_numbers(self) -> tuple[int, int]:
        """Return (heads, numbers per head) that merge parts of a softmax: vector, max and sum."""
        return self.num_heads, self.head_dim + 2
