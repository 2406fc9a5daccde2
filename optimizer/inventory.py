"""What one whole copy of a model weighs, by component (sections 1 and 6.1.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from instances.model import ModelSpec
from instances.tensors import Tensor


def counted_tensors(model: ModelSpec) -> Iterator[tuple[str, Tensor, int]]:
    """Yield (where, tensor, times) of one whole copy; `where` is "" or the name of a side part."""
    yield "", model.embedding, 1
    if not model.tied_embeddings:
        yield "", model.lm_head, 1
    for group, tensors in zip(model.groups, model.layer_tensors, strict=True):
        for tensor in tensors:
            yield "", tensor, len(group.layers)
    for table in model.tables:
        yield "", table.tensor(), 1
    for tensor in model.final_tensors:
        yield "", tensor, 1
    for part in model.parts:
        for tensor in part.tensors:
            yield part.name, tensor, 1


def bytes_by_group(model: ModelSpec) -> dict[str, int]:
    """Return bytes by component; scales apart as "<component>_scale", side parts as "<part>/…"."""
    found: Counter[str] = Counter()
    for where, tensor, times in counted_tensors(model):
        name = f"{where}/{tensor.component}" if where else tensor.component
        found[name] += times * tensor.payload_bytes(model.formats)
        found[f"{name}_scale"] += times * tensor.scale_bytes(model.formats)
    return {name: size for name, size in found.items() if size}


def weight_bytes(model: ModelSpec, with_parts: bool = True) -> int:
    """Bytes of one whole copy, with or without the parts that decoding does not need."""
    return sum(
        times * tensor.total_bytes(model.formats)
        for where, tensor, times in counted_tensors(model)
        if with_parts or not where
    )


def parameters(model: ModelSpec, with_parts: bool = True) -> int:
    """Numbers of one whole copy, scales not counted."""
    return sum(
        times * tensor.numbers
        for where, tensor, times in counted_tensors(model)
        if with_parts or not where
    )
