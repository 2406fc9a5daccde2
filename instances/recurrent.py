"""Attention kinds that keep one matrix per head instead of every token: gated delta rule and KDA.

A step multiplies the state by its decay, reads out what it holds for the new key, adds the error
as an outer product and reads out the answer to the query. The state neither grows nor is cut by
tokens; tensor parallelism deals it out by heads.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from instances.formats import Frozen, ModelFormats
from instances.tensors import StatePart, Tensor, vector

#: FLOP per number of the state and token: a multiplication and an addition each for the read-out by
#: the key, the rank-one update and the read-out by the query. The decay, one multiplication by a
#: gate, is left out like every other element-wise gate and norm.
STATE_FLOPS = 6


def _state(
    formats: ModelFormats, heads: tuple[int, int], state_numbers: int, conv_numbers: int
) -> tuple[StatePart, ...]:
    """Return state and convolution inputs of a layer, shared by (value, key) heads."""
    value_heads, key_heads = heads
    return (
        StatePart(
            component="recurrent_state",
            entry_bytes=state_numbers * formats.bytes_of("state"),
            units=value_heads,
            is_fixed=True,
        ),
        StatePart(
            component="conv_state",
            entry_bytes=conv_numbers * formats.bytes_of("activations"),
            units=key_heads,
            is_fixed=True,
        ),
    )


class LinearAttention(Frozen):
    """Gated delta net: each of the value heads keeps a key size × value size matrix.

    Value heads share key heads evenly. A short convolution runs over queries, keys and values and
    keeps its last `conv_kernel` inputs; a key head's channels stay with those of its value heads.
    """

    kind: Literal["linear"] = "linear"
    num_key_heads: int = Field(ge=1, le=1_000_000)
    num_value_heads: int = Field(ge=1, le=1_000_000)
    key_head_dim: int = Field(ge=1, le=1_000_000)
    value_head_dim: int = Field(ge=1, le=1_000_000)
    conv_kernel: int = Field(ge=1, le=1000)

    @model_validator(mode="after")
    def _grouped(self) -> LinearAttention:
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_value_heads {self.num_value_heads} must be a multiple of num_key_heads "
                f"{self.num_key_heads}: every key head serves the same number of value heads"
            )
        return self

    @property
    def key_width(self) -> int:
        """Numbers of a token's keys, and of its queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Numbers of a token's values."""
        return self.num_value_heads * self.value_head_dim

    @property
    def state_numbers(self) -> int:
        """Numbers of the recurrent state of one layer."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        heads, keys, values = self.num_value_heads, self.key_width, self.value_width
        by_key: dict[str, Any] = {
            "split": "outputs",
            "units": self.num_key_heads,
            "unit": "key heads",
        }
        by_value: dict[str, Any] = {"split": "outputs", "units": heads, "unit": "value heads"}
        taps = self.conv_kernel
        return (
            Tensor(component="linear_q", outputs=keys, inputs=hidden_size, **by_key),
            Tensor(component="linear_k", outputs=keys, inputs=hidden_size, **by_key),
            Tensor(component="linear_v", outputs=values, inputs=hidden_size, **by_value),
            Tensor(component="linear_gate", outputs=values, inputs=hidden_size, **by_value),
            Tensor(component="linear_beta", outputs=heads, inputs=hidden_size, **by_value),
            Tensor(component="linear_decay", outputs=heads, inputs=hidden_size, **by_value),
            Tensor(component="linear_conv", outputs=keys, inputs=taps, count=2, **by_key),
            Tensor(component="linear_conv", outputs=values, inputs=taps, **by_value),
            vector("linear_decay_bias", heads, **by_value),
            vector("linear_decay_rate", heads, **by_value),
            vector("linear_norm", self.value_head_dim),
            Tensor(
                component="linear_o",
                outputs=hidden_size,
                inputs=values,
                **{**by_value, "split": "inputs"},
            ),
        )

    def state(self, formats: ModelFormats) -> tuple[StatePart, ...]:
        """What a session keeps in one layer."""
        return _state(
            formats,
            (self.num_value_heads, self.num_key_heads),
            self.state_numbers,
            (2 * self.key_width + self.value_width) * self.conv_kernel,
        )

    def token_flops(self) -> int:
        """FLOP of a new token besides matrices and cache entries."""
        return STATE_FLOPS * self.state_numbers

    def merge_numbers(self) -> tuple[int, int]:
        """Return (heads, numbers per head) to merge: none, as no softmax runs over tokens."""
        return 0, 0


class KdaAttention(Frozen):
    """Kimi delta attention: each head keeps a head_dim × head_dim matrix that decays by channel.

    The decay comes from a projection of rank `decay_rank`; `num_decay_rates` numbers of its base
    rate are stored where that is more than one per head.
    """

    kind: Literal["kda"] = "kda"
    num_heads: int = Field(ge=1, le=1_000_000)
    head_dim: int = Field(ge=1, le=1_000_000)
    conv_kernel: int = Field(ge=1, le=1000)
    decay_rank: int = Field(ge=1, le=1_000_000)
    num_decay_rates: int | None = Field(default=None, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _a_rate_per_head(self) -> KdaAttention:
        if self.num_decay_rates is not None and self.num_decay_rates < self.num_heads:
            raise ValueError(
                f"num_decay_rates {self.num_decay_rates} is less than num_heads {self.num_heads}"
            )
        return self

    @property
    def width(self) -> int:
        """Numbers of a token's keys, of its queries and of its values."""
        return self.num_heads * self.head_dim

    @property
    def state_numbers(self) -> int:
        """Numbers of the recurrent state of one layer."""
        return self.width * self.head_dim

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        heads, width, rank, taps = self.num_heads, self.width, self.decay_rank, self.conv_kernel
        by_key: dict[str, Any] = {"split": "outputs", "units": heads, "unit": "key heads"}
        by_value: dict[str, Any] = {**by_key, "unit": "value heads"}
        stored = self.num_decay_rates
        # Stored rates beyond the heads have no head to go with, so every card holds them all.
        rates = vector("linear_decay_rate", stored or heads, **({} if stored else by_value))
        return (
            Tensor(component="linear_q", outputs=width, inputs=hidden_size, **by_key),
            Tensor(component="linear_k", outputs=width, inputs=hidden_size, **by_key),
            Tensor(component="linear_v", outputs=width, inputs=hidden_size, **by_value),
            Tensor(component="linear_gate", outputs=width, inputs=hidden_size, **by_value),
            Tensor(component="linear_beta", outputs=heads, inputs=hidden_size, **by_value),
            Tensor(component="linear_decay_down", outputs=rank, inputs=hidden_size),
            Tensor(component="linear_decay", outputs=width, inputs=rank, **by_key),
            Tensor(component="linear_conv", outputs=width, inputs=taps, count=2, **by_key),
            Tensor(component="linear_conv", outputs=width, inputs=taps, **by_value),
            vector("linear_decay_bias", width, **by_key),
            rates,
            vector("linear_norm", self.head_dim),
            Tensor(
                component="linear_o",
                outputs=hidden_size,
                inputs=width,
                **{**by_value, "split": "inputs"},
            ),
        )

    def state(self, formats: ModelFormats) -> tuple[StatePart, ...]:
        """What a session keeps in one layer."""
        return _state(
            formats,
            (self.num_heads, self.num_heads),
            self.state_numbers,
            3 * self.width * self.conv_kernel,
        )

    def token_flops(self) -> int:
        """FLOP of a new token besides matrices and cache entries."""
        return STATE_FLOPS * self.state_numbers

    def merge_numbers(self) -> tuple[int, int]:
        """Return (heads, numbers per head) to merge: none, as no softmax runs over tokens."""
        return 0, 0
