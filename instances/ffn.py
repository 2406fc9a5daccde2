"""Feed-forward blocks of a layer: dense SwiGLU, and mixture of experts (section 3)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instances.formats import Format, Frozen, TensorFormat
from instances.tensors import Tensor, vector

FP32 = TensorFormat(number="fp32")
INT64 = TensorFormat(number="int64")


def swiglu(component: str, hidden_size: int, width: int, **fields: object) -> tuple[Tensor, ...]:
    """Return gate and up (cut by outputs) and down (cut by inputs) of a SwiGLU block."""
    common = {"component": component, "units": width, "unit": "FFN columns", "is_padded": True}
    up = {"outputs": width, "inputs": hidden_size, "split": "outputs", **common, **fields}
    down = {"outputs": hidden_size, "inputs": width, "split": "inputs", **common, **fields}
    return (*(Tensor.model_validate(up) for _ in range(2)), Tensor.model_validate(down))


class DenseFfn(Frozen):
    """A SwiGLU block of `size` columns."""

    kind: Literal["dense"] = "dense"
    size: int = Field(ge=1, le=100_000_000)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        return swiglu("ffn", hidden_size, self.size)


class MoeFfn(Frozen):
    """Routed experts, of which each token uses `experts_per_token`, and shared ones for all tokens.

    With a `latent_size` the experts work on a projection of the hidden vector that is made before
    tokens are sent to them. `hash_rows` are rows of a routing table by token id that replaces the
    router's choice on some layers.
    """

    kind: Literal["moe"] = "moe"
    num_experts: int = Field(ge=1, le=1_000_000)
    experts_per_token: int = Field(ge=1, le=1_000_000)
    expert_size: int = Field(ge=1, le=100_000_000)
    num_shared_experts: int = Field(default=0, ge=0, le=1000)
    shared_expert_size: int | None = Field(default=None, ge=1)
    shared_gate: bool = False
    router_bias: Format | None = None
    expert_bias: bool = False
    latent_size: int | None = Field(default=None, ge=1)
    latent_norm: bool = False
    hash_rows: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _enough_experts(self) -> MoeFfn:
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} exceeds num_experts {self.num_experts}"
            )
        return self

    def message_size(self, hidden_size: int) -> int:
        """Numbers of one token that travel to an expert."""
        return self.latent_size or hidden_size

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Tensors of one layer."""
        inner = self.message_size(hidden_size)
        found = [Tensor(component="router", outputs=self.num_experts, inputs=hidden_size)]
        if self.router_bias is not None:
            found.append(vector("router_bias", self.num_experts, format=self.router_bias))
        if self.hash_rows:
            found.append(
                Tensor(
                    component="router_table",
                    outputs=self.hash_rows,
                    inputs=self.experts_per_token,
                    role="table",
                    format=INT64,
                )
            )
        if self.latent_size is not None:
            found += [
                Tensor(component="latent_projection", outputs=inner, inputs=hidden_size),
                Tensor(component="latent_projection", outputs=hidden_size, inputs=inner),
            ]
            if self.latent_norm:
                found.append(vector("latent_norm", inner))
        found += swiglu("experts", inner, self.expert_size, count=self.num_experts, is_expert=True)
        if self.expert_bias:
            each = {"count": self.num_experts, "is_expert": True}
            cut = {"split": "outputs", "units": self.expert_size, "is_padded": True, **each}
            found += [vector("experts_bias", self.expert_size, **cut) for _ in range(2)]
            found.append(vector("experts_bias", inner, **each))
        if self.num_shared_experts:
            width = self.shared_expert_size or self.expert_size * self.num_shared_experts
            found += swiglu("shared_experts", hidden_size, width)
            if self.shared_gate:
                found.append(Tensor(component="shared_gate", outputs=1, inputs=hidden_size))
        return tuple(found)


Ffn = DenseFfn | MoeFfn
