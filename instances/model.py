"""What a model is: the sizes that fix its bytes and its arithmetic (dense GQA decoders)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Bytes of one number in each storage format.
FORMAT_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


class Frozen(BaseModel):
    """Base of everything that can stand in an instance file: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class ModelFormats(Frozen):
    """Storage format of each component; keys of `FORMAT_BYTES`."""

    weights: str = "bf16"
    embeddings: str = "bf16"
    kv: str = "bf16"
    activations: str = "bf16"

    @model_validator(mode="after")
    def _known(self) -> ModelFormats:
        for component, name in self:
            if name not in FORMAT_BYTES:
                known = ", ".join(FORMAT_BYTES)
                raise ValueError(f"format {name!r} of {component} is not one of {known}")
        return self

    def bytes_of(self, component: str) -> int:
        """Return the bytes of one number of `component` (weights, embeddings, kv, activations)."""
        return FORMAT_BYTES[getattr(self, component)]


class ModelSpec(Frozen):
    """A dense decoder with grouped-query attention and a SwiGLU feed-forward block.

    Every size is a count of numbers (not bytes); `formats` turns counts into bytes.
    """

    name: str = Field(min_length=1, max_length=120)
    num_layers: int = Field(ge=1, le=100_000)
    hidden_size: int = Field(ge=1, le=10_000_000)
    num_heads: int = Field(ge=1, le=1_000_000)
    num_kv_heads: int = Field(ge=1, le=1_000_000)
    head_dim: int = Field(ge=1, le=1_000_000)
    ffn_size: int = Field(ge=1, le=100_000_000)
    vocab_size: int = Field(ge=1, le=100_000_000)
    tied_embeddings: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    formats: ModelFormats = ModelFormats()
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _grouped(self) -> ModelSpec:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads "
                f"{self.num_kv_heads}: every KV head serves the same number of query heads"
            )
        return self
