"""Number formats: what one number of a tensor, its scale, a cache entry or an activation takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from instances.errors import printable

#: Bits of one number in each storage format ("e8m0" holds power-of-two scales, "int64" indices).
FORMAT_BITS: dict[str, int] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "fp4": 4,
    "int4": 4,
    "e8m0": 8,
    "int64": 64,
}

#: Formats whose numbers take whole bytes: what caches, activations and states are kept in.
WHOLE_BYTE_FORMATS = tuple(name for name, bits in FORMAT_BITS.items() if bits % 8 == 0)


class Frozen(BaseModel):
    """Base of everything that can stand in an instance file: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        """Yield the fields alone: pydantic would add what was worked out and kept."""
        return ((name, getattr(self, name)) for name in type(self).model_fields)


def _known(name: str) -> str:
    if name not in FORMAT_BITS:
        raise ValueError(f"{printable(name)!r} is not one of {', '.join(FORMAT_BITS)}")
    return name


#: A block side that covers any axis: one scale for all of it, which every card keeps a copy of.
WHOLE_AXIS = 2**40


class ScaleFormat(Frozen):
    """One scale for every block of `block` = [outputs, inputs] numbers, rounded up at the edges."""

    number: str
    block: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = Field(strict=False)

    @field_validator("number")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return _known(value)


class TensorFormat(Frozen):
    """How a tensor is stored; a bare name such as "bf16" stands for numbers without scales."""

    number: str
    scale: ScaleFormat | None = None

    @field_validator("number")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return _known(value)

    def payload_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of an outputs × inputs tensor without its scales, rounded up to whole bytes."""
        return -(-outputs * inputs * FORMAT_BITS[self.number] // 8)

    def scale_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of the scales of an outputs × inputs tensor; 0 without scales."""
        if self.scale is None:
            return 0
        rows, columns = self.scale.block
        blocks = -(-outputs // rows) * -(-inputs // columns)
        return blocks * FORMAT_BITS[self.scale.number] // 8

    def tensor_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of an outputs × inputs tensor with its scales."""
        return self.payload_bytes(outputs, inputs) + self.scale_bytes(outputs, inputs)


@cache
def _plain(number: str) -> TensorFormat:
    """Return a format without scales."""
    return TensorFormat(number=number)


def _from_name(value: Any) -> Any:
    return {"number": value} if isinstance(value, str) else value


#: A tensor format in a document: an object, or the bare name of a format without scales.
Format = Annotated[
    TensorFormat, BeforeValidator(_from_name, json_schema_input_type=TensorFormat | str)
]


class ModelFormats(Frozen):
    """Storage formats by role, and by component where a component differs from its role.

    `weights` holds matrices, `embeddings` the vocabulary's two tables, `vectors` norms and biases
    (null: as activations), `kv` cached keys and values, `state` recurrent states, `activations`
    hidden vectors and messages. `compute` is the format of the matrix arithmetic; null means that
    of the weights.
    """

    weights: Format = TensorFormat(number="bf16")
    embeddings: Format = TensorFormat(number="bf16")
    vectors: Format | None = None
    kv: str = "bf16"
    state: str = "fp32"
    activations: str = "bf16"
    compute: str | None = None
    components: dict[str, Format] = Field(default_factory=dict)

    @field_validator("kv", "state", "activations")
    @classmethod
    def _whole_bytes(cls, value: str) -> str:
        if value not in WHOLE_BYTE_FORMATS:
            raise ValueError(
                f"format {printable(value)!r} is not one of {', '.join(WHOLE_BYTE_FORMATS)}"
            )
        return value

    @field_validator("compute")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        return None if value is None else _known(value)

    @property
    def vector_format(self) -> TensorFormat:
        """Format of norms and biases."""
        return self.vectors or _plain(self.activations)

    @property
    def compute_format(self) -> str:
        """Number format whose peak bounds the matrix arithmetic."""
        return self.compute or self.weights.number

    def bytes_of(self, role: str) -> int:
        """Bytes of one number of kv, state or activations."""
        return FORMAT_BITS[getattr(self, role)] // 8
