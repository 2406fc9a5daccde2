"""Attention kinds that keep every token's keys and values: grouped-query and latent (section 1)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from instances.formats import Frozen, ModelFormats
from instances.tensors import StatePart, Tensor, vector


class GqaAttention(Frozen):
    """Grouped-query attention; with a `window` a token sees at most that many tokens.

    `output_gate` doubles the query projection; `sinks` are one learnt number per query head.
    """

    kind: Literal["gqa"] = "gqa"
    num_heads: int = Field(ge=1, le=1_000_000)
    num_kv_heads: int = Field(ge=1, le=1_000_000)
    head_dim: int = Field(ge=1, le=1_000_000)
    window: int | None = Field(default=None, ge=1)
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: bool = False
    sinks: bool = False

    @model_validator(mode="after")
    def _grouped(self) -> GqaAttention:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads "
                f"{self.num_kv_heads}: every KV head serves the same number of query heads"
            )
        return self

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q_width = width * (2 if self.output_gate else 1)
        by_head: dict[str, Any] = {"units": self.num_heads, "unit": "query heads"}
        by_kv_head: dict[str, Any] = {
            "units": self.num_kv_heads,
            "unit": "KV heads",
            "is_replicable": True,
        }
        rows: dict[str, Any] = {"inputs": hidden_size, "split": "outputs"}
        found = [
            Tensor(component="attention_q", outputs=q_width, **rows, **by_head),
            Tensor(component="attention_k", outputs=kv_width, **rows, **by_kv_head),
            Tensor(component="attention_v", outputs=kv_width, **rows, **by_kv_head),
            Tensor(
                component="attention_o",
                outputs=hidden_size,
                inputs=width,
                split="inputs",
                **by_head,
            ),
        ]
        if self.qkv_bias:
            found.append(vector("qkv_bias", q_width, split="outputs", **by_head))
            found += [vector("qkv_bias", kv_width, split="outputs", **by_kv_head) for _ in range(2)]
        if self.output_bias:
            found.append(vector("output_bias", hidden_size))
        if self.sinks:
            found.append(vector("sinks", self.num_heads, split="outputs", **by_head))
        if self.qk_norm:
            found += [vector("norms", self.head_dim) for _ in range(2)]
        return tuple(found)

    def state(self, formats: ModelFormats) -> tuple[StatePart, ...]:
        """What a session keeps in one layer."""
        return (
            StatePart(
                component="kv" if self.window is None else "window_kv",
                entry_bytes=2 * self.num_kv_heads * self.head_dim * formats.bytes_of("kv"),
                units=self.num_kv_heads,
                window=self.window,
                flops_per_entry=4 * self.num_heads * self.head_dim,
            ),
        )

    def token_flops(self) -> int:
        """FLOP of a new token besides matrices and cache entries."""
        return 0

    def merge_numbers(self) -> tuple[int, int]:
        """Return (heads, numbers per head) that merge parts of a softmax: vector, max and sum."""
        return self.num_heads, self.head_dim + 2


class MlaAttention(Frozen):
    """Multi-head latent attention: one latent and one rotary key per token, shared by all heads.

    A decode step works on the latents themselves (the up-projections are absorbed), so an entry is
    read once for all heads and never divided by tensor parallelism.

    With an indexer (`num_index_heads` of `index_head_dim` on the query latent) a token attends only
    to the `index_topk` cached ones whose index keys score highest; every card scores them all.
    """

    kind: Literal["mla"] = "mla"
    num_heads: int = Field(ge=1, le=1_000_000)
    q_lora_rank: int | None = Field(default=None, ge=1)
    kv_lora_rank: int = Field(ge=1)
    qk_nope_head_dim: int = Field(ge=1)
    qk_rope_head_dim: int = Field(ge=0)
    v_head_dim: int = Field(ge=1)
    output_gate: bool = False
    num_index_heads: int | None = Field(default=None, ge=1)
    index_head_dim: int | None = Field(default=None, ge=1)
    index_topk: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _whole_indexer(self) -> MlaAttention:
        given = [self.num_index_heads, self.index_head_dim, self.index_topk]
        if given.count(None) not in (0, len(given)):
            raise ValueError("an indexer needs num_index_heads, index_head_dim and index_topk")
        if self.num_index_heads is not None and self.q_lora_rank is None:
            raise ValueError("an indexer reads the query latent, so it needs q_lora_rank")
        return self

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        heads, latent = self.num_heads, self.kv_lora_rank
        q_width = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        by_head: dict[str, Any] = {"units": heads, "unit": "query heads"}
        q_from = self.q_lora_rank or hidden_size
        found: list[Tensor] = []
        if self.q_lora_rank is not None:
            found += [
                Tensor(component="attention_q_down", outputs=self.q_lora_rank, inputs=hidden_size),
                vector("norms", self.q_lora_rank),
            ]
        found += [
            Tensor(
                component="attention_q", outputs=q_width, inputs=q_from, split="outputs", **by_head
            ),
            Tensor(
                component="attention_kv_down",
                outputs=latent + self.qk_rope_head_dim,
                inputs=hidden_size,
            ),
            vector("norms", latent),
            Tensor(
                component="attention_kv_up",
                outputs=heads * (self.qk_nope_head_dim + self.v_head_dim),
                inputs=latent,
                split="outputs",
                **by_head,
            ),
            Tensor(
                component="attention_o",
                outputs=hidden_size,
                inputs=heads * self.v_head_dim,
                split="inputs",
                **by_head,
            ),
        ]
        if self.output_gate:
            found.append(
                Tensor(
                    component="attention_gate",
                    outputs=heads * self.v_head_dim,
                    inputs=hidden_size,
                    split="outputs",
                    **by_head,
                )
            )
        return (*found, *self._indexer_tensors(hidden_size))

    def _indexer_tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Index queries from the query latent, one index key, one weight per index head."""
        heads, size = self.num_index_heads, self.index_head_dim
        if heads is None or size is None or self.q_lora_rank is None:
            return ()
        return (
            Tensor(component="index_q", outputs=heads * size, inputs=self.q_lora_rank),
            Tensor(component="index_k", outputs=size, inputs=hidden_size),
            Tensor(component="index_weights", outputs=heads, inputs=hidden_size),
            vector("index_norm", size, count=2),
        )

    def state(self, formats: ModelFormats) -> tuple[StatePart, ...]:
        """What a session keeps in one layer."""
        width = self.kv_lora_rank + self.qk_rope_head_dim
        latent = StatePart(
            component="latent_kv",
            entry_bytes=width * formats.bytes_of("kv"),
            max_read_entries=self.index_topk,
            flops_per_entry=2 * self.num_heads * (width + self.kv_lora_rank),
        )
        if self.num_index_heads is None or self.index_head_dim is None:
            return (latent,)
        keys = StatePart(
            component="index_keys",
            entry_bytes=self.index_head_dim * formats.bytes_of("kv"),
            is_scored_by_all=True,
            flops_per_entry=2 * self.num_index_heads * self.index_head_dim,
        )
        return latent, keys

    def token_flops(self) -> int:
        """FLOP of a new token besides matrices and cache entries."""
        return 0

    def merge_numbers(self) -> tuple[int, int]:
        """Return (heads, numbers per head) that merge parts of a softmax: vector, max and sum."""
        return self.num_heads, self.kv_lora_rank + 2
