"""Footprints as columns, and the exact bytes of all of them at once (section 1).

This is the arithmetic of `ownership`, `shards` and `peak` written a second time, over arrays: it
is fast, and it checks them. Whole numbers are int64; what could exceed `MAX_WHOLE` is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import get_args

import numpy as np
import numpy.typing as npt

from instances.collectives import CollectiveName
from instances.formats import FORMAT_BITS, ModelFormats
from instances.instance import Instance
from instances.model import ModelSpec
from instances.tensors import StatePart, Tensor
from instances.workload import Cohort
from optimizer.collectives import NO_COLLECTIVE, collective_names
from optimizer.errors import TooLargeError
from optimizer.plan import Footprint

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Largest whole number that arrays may hold: int64 with a bit to spare.
MAX_WHOLE = 2**62
#: Largest degree and most cards, so that a product of two fits.
MAX_DEGREE = 10**9
#: Collectives by the bit that stands for them in a column.
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)

_DEGREES = ("dp", "pp", "tp", "cp", "ep", "sp", "dcp", "copies", "redundant")


@dataclass(frozen=True, slots=True)
class FootprintArrays:
    """N footprints of one pool as read-only columns of int64.

    `first_layer` [N, S + 1] has the first layer of each stage, then the number of layers; `layers`
    [N, S, G] counts the layers of each group on each stage. A footprint with fewer than S stages
    has empty ones at the end. `collective` has a bit for each of `COLLECTIVES` that is allowed.
    """

    dp: Ints
    pp: Ints
    tp: Ints
    cp: Ints
    ep: Ints
    sp: Ints
    dcp: Ints
    copies: Ints
    redundant: Ints
    num_servers: Ints
    micro_batches: Ints
    collective: Ints
    first_layer: Ints
    layers: Ints

    def __len__(self) -> int:
        """Return the number of footprints."""
        return len(self.dp)

    @property
    def stage_cards(self) -> Ints:
        """Cards of one pipeline stage."""
        return self.dp * self.copies * self.cp * self.tp

    @property
    def num_cards(self) -> Ints:
        """Cards of one serving instance."""
        return self.pp * self.stage_cards

    @property
    def moe_tp(self) -> Ints:
        """Cards that cut each expert of their expert group between them."""
        return self.stage_cards // self.ep

    @property
    def dealt(self) -> Ints:
        """Cards that the tokens of a session are dealt to."""
        return self.cp * self.dcp

    @property
    def max_stages(self) -> int:
        """Most stages of any footprint (S)."""
        return int(self.layers.shape[1])


def _collective_bits(collective: str) -> int:
    names = collective_names(collective)
    if names == (NO_COLLECTIVE,):
        return 0
    for name in names:
        if name not in COLLECTIVES:
            raise ValueError(f"no collective is named {name!r}")
    return sum(1 << COLLECTIVES.index(name) for name in names)


def _stage_counts(model: ModelSpec, footprint: Footprint) -> tuple[int, ...]:
    counts = footprint.stages or (model.num_layers,)
    pp = footprint.parallel.pp
    if len(counts) != pp or min(counts) < 1 or sum(counts) != model.num_layers:
        listed = ", ".join(map(str, counts))
        raise ValueError(
            f"stages of {listed} layers do not cut {model.num_layers} layers into {pp} stages"
        )
    return counts


def _column(values: Sequence[int]) -> Ints:
    if max(values) > MAX_DEGREE:
        raise TooLargeError(f"arrays price at most {MAX_DEGREE} of anything, not {max(values)}")
    return np.array(values, dtype=np.int64)


def footprint_arrays(instance: Instance, footprints: Sequence[Footprint]) -> FootprintArrays:
    """Return footprints of one pool as columns; their `batch` is ignored.

    Raises ValueError for no footprint, for several pools, for stages that do not cut the model, for
    an unknown collective and for servers that outnumber the cards; TooLargeError for huge degrees.
    """
    model = instance.model
    if len({footprint.pool for footprint in footprints}) != 1:
        raise ValueError("footprints of exactly one pool can be put into arrays")
    counts = [_stage_counts(model, footprint) for footprint in footprints]
    first = np.full((len(footprints), max(map(len, counts)) + 1), model.num_layers, dtype=np.int64)
    for row, stages in zip(first, counts, strict=True):
        row[: len(stages) + 1] = np.cumsum((0, *stages))
    before = np.zeros((model.num_layers + 1, len(model.groups)), dtype=np.int64)
    before[np.arange(1, model.num_layers + 1), model.group_of_layer] = 1
    before = before.cumsum(axis=0)
    columns = {
        name: _column([getattr(footprint.parallel, name) for footprint in footprints])
        for name in _DEGREES
    }
    if any(columns[name].min() < (name != "redundant") for name in _DEGREES):
        raise ValueError("degrees are at least 1, redundant experts at least 0")
    _column([footprint.parallel.num_cards for footprint in footprints])
    arrays = FootprintArrays(
        **columns,
        num_servers=_column([footprint.num_servers for footprint in footprints]),
        micro_batches=_column([footprint.micro_batches for footprint in footprints]),
        collective=_column([_collective_bits(footprint.collective) for footprint in footprints]),
        first_layer=first,
        layers=before[first[:, 1:]] - before[first[:, :-1]],
    )
    if (arrays.num_servers < 1).any() or (arrays.num_servers > arrays.num_cards).any():
        raise ValueError("a serving instance has at least one card in each of its servers")
    for field in fields(arrays):
        getattr(arrays, field.name).flags.writeable = False
    return arrays


def check_whole(*factors: int) -> None:
    """Raise TooLargeError where a product of counts does not fit the arrays."""
    product = 1
    for factor in factors:
        product *= max(int(factor), 1)
    if product > MAX_WHOLE:
        raise TooLargeError(f"a product of about {float(product):.3g} exceeds 2^62")


def ceil_div(dividend: Ints | int, divisor: Ints | int) -> Ints:
    """Divide whole numbers and round up."""
    return np.asarray(-(np.negative(dividend) // divisor), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """A card's part of a tensor, footprint by footprint: `count` of [outputs, inputs] numbers."""

    count: Ints
    outputs: Ints
    inputs: Ints

    def each_bytes(self, tensor: Tensor, formats: ModelFormats) -> Ints:
        """Bytes of one of the tensors, scales included."""
        stored = tensor.format_in(formats)
        numbers = self.outputs * self.inputs
        size = ceil_div(numbers * FORMAT_BITS[stored.number], 8)
        if stored.scale is None:
            return size
        rows, columns = stored.scale.block
        blocks = ceil_div(self.outputs, rows) * ceil_div(self.inputs, columns)
        return np.asarray(size + blocks * FORMAT_BITS[stored.scale.number] // 8, dtype=np.int64)

    def num_bytes(self, tensor: Tensor, formats: ModelFormats) -> Ints:
        """Bytes on each card."""
        return self.count * self.each_bytes(tensor, formats)


def _part_size(instance: Instance, tensor: Tensor, degree: Ints) -> Ints:
    """Numbers along the cut axis that one of `degree` cards holds."""
    size = tensor.outputs if tensor.split == "outputs" else tensor.inputs
    engine = instance.engine
    multiple = (engine.vocabulary_multiple or 1) if tensor.role == "vocabulary" else 1
    if engine.pads_vocabulary_per_card or tensor.role != "vocabulary":
        part = ceil_div(size, degree * multiple) * multiple
    else:
        part = ceil_div(size, multiple) * multiple // degree
    if tensor.is_replicable:
        part = np.where(degree > tensor.units, size // tensor.units, part)
    elif not tensor.is_padded:  # a side part whose atoms do not divide is copied whole
        part = np.where(tensor.units % degree != 0, size, part)
    return np.asarray(part, dtype=np.int64)


def shard_arrays(instance: Instance, arrays: FootprintArrays, tensor: Tensor) -> ShardArrays:
    """Return what a card of the tensor's stage holds of it, for every footprint."""
    shape = (len(arrays),)
    count = np.full(shape, tensor.count, dtype=np.int64)
    degree = arrays.tp
    if tensor.is_expert:
        degree, count = arrays.moe_tp, ceil_div(tensor.count + arrays.redundant, arrays.ep)
    elif tensor.unit == "table rows":
        degree = arrays.stage_cards
    outputs = np.full(shape, tensor.outputs, dtype=np.int64)
    inputs = np.full(shape, tensor.inputs, dtype=np.int64)
    if tensor.split == "outputs":
        outputs = _part_size(instance, tensor, degree)
    elif tensor.split == "inputs":
        inputs = _part_size(instance, tensor, degree)
    # Bits of numbers and scales, the largest products, in every layer there is.
    check_whole(count.max(), outputs.max(), inputs.max(), 2 * 64, instance.model.num_layers)
    return ShardArrays(count, outputs, inputs)


def _held_bytes(instance: Instance, arrays: FootprintArrays, tensors: Sequence[Tensor]) -> Ints:
    """Bytes [N] of tensors on each card of their stage."""
    formats = instance.model.formats
    sizes = [shard_arrays(instance, arrays, t).num_bytes(t, formats) for t in tensors]
    check_whole(sum(int(size.max()) for size in sizes), instance.model.num_layers)
    return np.asarray(sum(sizes, np.zeros(len(arrays), dtype=np.int64)), dtype=np.int64)


def weight_bytes(instance: Instance, arrays: FootprintArrays) -> Ints:
    """Weight bytes [N, S] on each card of each stage; 0 where a footprint has fewer stages."""
    model = instance.model
    first, end = arrays.first_layer[:, :-1], arrays.first_layer[:, 1:]
    stage = np.arange(arrays.max_stages)
    is_last = stage == arrays.pp[:, None] - 1
    found = np.zeros(first.shape, dtype=np.int64)
    bound = 0

    def put(tensors: Sequence[Tensor], times: Ints | Flags) -> None:
        nonlocal found, bound
        size = _held_bytes(instance, arrays, tensors)
        bound += int(size.max()) * int(times.max())
        check_whole(bound)
        found = found + size[:, None] * times

    put((model.embedding,), np.broadcast_to(stage == 0, first.shape))
    for group, tensors in enumerate(model.layer_tensors):
        put(tensors, arrays.layers[:, :, group])
    for table in model.tables:
        put((table.tensor(),), (first <= table.layer) & (table.layer < end))
    put(model.final_tensors, is_last)
    put((model.lm_head,), is_last & (stage > 0) if model.tied_embeddings else is_last)
    for part in model.parts:
        if part.name in instance.runtime.loaded_parts:
            put(part.tensors, is_last)
    return found


def card_entry_arrays(part: StatePart, arrays: FootprintArrays) -> Ints:
    """Bytes [N] of one cache entry on one card of a TP group.

    Raises ValueError where neither of heads and TP divides the other.
    """
    tp = arrays.tp
    if (np.maximum(tp, part.units) % np.minimum(tp, part.units)).any():
        raise ValueError(f"{part.units} {part.component} heads cannot be laid out on every TP")
    check_whole(part.entry_bytes)
    return part.entry_bytes // part.units * np.maximum(1, part.units // tp)


def held_entries(part: StatePart, tokens: int) -> int:
    """Entries that a session with so many tokens keeps of a part; none of another layer's."""
    return 0 if part.is_borrowed else entries_in_reach(part, tokens)


def entries_in_reach(part: StatePart, tokens: int) -> int:
    """Entries there are, whichever layer keeps them."""
    if part.is_fixed:
        return 1
    kept = tokens if part.window is None else min(part.window, tokens)
    return kept // part.tokens_per_entry


def growing_parts(model: ModelSpec, layer: int) -> tuple[StatePart, ...]:
    """Parts of a layer that grow with the context: those that other stages may need."""
    parts = model.layer_state[model.group_of_layer[layer]]
    return tuple(part for part in parts if part.window is None and not part.is_fixed)


def foreign_flags(model: ModelSpec, arrays: FootprintArrays) -> Iterator[tuple[int, Flags]]:
    """Yield each layer whose entries others read, with the stages [N, S] that lie behind it."""
    readers: dict[int, list[int]] = {}
    for layer in range(model.num_layers):
        source = model.kv_source_of(layer)
        if source is not None:
            readers.setdefault(source, []).append(layer)
    first, end = arrays.first_layer[:, :-1], arrays.first_layer[:, 1:]
    for source, layers in readers.items():
        inside = np.searchsorted(layers, end) - np.searchsorted(layers, first)
        yield source, (first > source) & (inside > 0)


def foreign_readers(model: ModelSpec, arrays: FootprintArrays) -> Iterator[tuple[int, Flags]]:
    """Yield each layer that reads an earlier one's entries, and the stages [N, S] where it must."""
    first, end = arrays.first_layer[:, :-1], arrays.first_layer[:, 1:]
    for layer in range(model.num_layers):
        source = model.kv_source_of(layer)
        if source is not None:
            yield layer, (first > source) & (first <= layer) & (layer < end)


def session_bytes_arrays(
    instance: Instance, arrays: FootprintArrays, cohorts: Sequence[Cohort]
) -> Ints:
    """Bytes [N, S, C] that a session of each cohort holds on each card of each stage at its end."""
    model = instance.model
    found = np.zeros((len(arrays), arrays.max_stages, len(cohorts)), dtype=np.int64)
    bound = 0

    def put(part: StatePart, times: Ints | Flags) -> None:
        nonlocal bound
        entry = card_entry_arrays(part, arrays)
        for column, cohort in enumerate(cohorts):
            entries = held_entries(part, cohort.held_tokens)
            bound += int(entry.max()) * entries * model.num_layers
            check_whole(bound)
            # The one entry of a fixed state stays whole: 1 rounded up.
            found[:, :, column] += (ceil_div(entries, arrays.dealt) * entry)[:, None] * times

    for group, parts in enumerate(model.layer_state):
        for part in parts:
            put(part, arrays.layers[:, :, group])
    if instance.search.kv_sharing == "copy":
        for source, flags in foreign_flags(model, arrays):
            for part in growing_parts(model, source):
                put(part, flags)
    return found


def buffer_bytes_arrays(instance: Instance, arrays: FootprintArrays, batches: Ints) -> Ints:
    """Bytes [N, B] of all declared buffers of a card."""
    runtime, model = instance.runtime, instance.model
    fixed = runtime.workspace_bytes + runtime.collective_buffer_bytes + runtime.migration_bytes
    check_whole(fixed, 2)
    buffers = np.full((len(arrays), len(batches)), fixed, dtype=np.int64)
    if not runtime.count_activations:
        return buffers
    prompt = max(cohort.prompt_tokens for cohort in instance.workload.cohorts)
    tokens = np.maximum(batches[None, :], ceil_div(prompt, arrays.cp)[:, None])
    width = model.residual_streams * model.hidden_size * model.formats.bytes_of("activations")
    check_whole(tokens.max(), arrays.micro_batches.max(), width, 4)
    whole = arrays.micro_batches[:, None] * tokens * width
    return buffers + ceil_div(whole, arrays.sp[:, None]) * (2 if runtime.double_buffers else 1)
