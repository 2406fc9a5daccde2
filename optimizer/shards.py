"""How much of one tensor a card holds, and how often it is held (section 1)."""

from __future__ import annotations

from dataclasses import dataclass

from instances.engine import EngineProfile
from instances.formats import ModelFormats
from instances.tensors import StatePart, Tensor
from optimizer.parallel import ParallelConfig


@dataclass(frozen=True, slots=True)
class Shard:
    """A card's part of a tensor.

    `degree` cards cut the tensor between them and `holders` of them hold the same numbers; this
    happens `repeats` times in a pipeline stage. `count` tensors of [outputs, inputs] are held.
    """

    count: int
    outputs: int
    inputs: int
    degree: int
    holders: int
    repeats: int

    def num_bytes(self, tensor: Tensor, formats: ModelFormats) -> int:
        """Bytes on the card, scales included."""
        return self.count * tensor.format_in(formats).tensor_bytes(self.outputs, self.inputs)


def cut_degree(tensor: Tensor, config: ParallelConfig) -> int:
    """Cards that cut a tensor between them: an expert's, a lookup table's (all), or TP's."""
    if tensor.is_expert:
        return config.moe_tp
    return config.stage_cards if tensor.unit == "table rows" else config.tp


def _axis(tensor: Tensor, degree: int, engine: EngineProfile) -> tuple[int, int]:
    """Return (numbers along the cut axis on one card, cards that hold the same ones)."""
    size = tensor.outputs if tensor.split == "outputs" else tensor.inputs
    if tensor.is_replicable and degree > tensor.units:
        return size // tensor.units, degree // tensor.units
    if tensor.role != "vocabulary":
        return -(-size // degree), 1
    step = engine.vocabulary_multiple or 1
    if not engine.pads_vocabulary_per_card:
        return -(-size // step) * step // degree, 1
    return -(-size // (degree * step)) * step, 1


def _can_cut(tensor: Tensor, degree: int) -> bool:
    """Whether cards share a tensor without cutting an atom; a side part that cannot is copied."""
    if tensor.is_padded or tensor.units % degree == 0:
        return True
    return tensor.is_replicable and degree % tensor.units == 0


def shard_of(tensor: Tensor, config: ParallelConfig, engine: EngineProfile) -> Shard:
    """Return what each card of the tensor's stage holds of it; the split must be legal."""
    degree = cut_degree(tensor, config)
    count = tensor.count
    repeats = config.stage_cards // degree
    if tensor.is_expert:
        count, repeats = -(-(tensor.count + config.redundant) // config.ep), 1
    if tensor.split == "copy" or not _can_cut(tensor, degree):
        return Shard(count, tensor.outputs, tensor.inputs, degree, degree, repeats)
    part, holders = _axis(tensor, degree, engine)
    if tensor.split == "outputs":
        return Shard(count, part, tensor.inputs, degree, holders, repeats)
    return Shard(count, tensor.outputs, part, degree, holders, repeats)


def state_units(part: StatePart, tp: int) -> int:
    """Heads (or other units) of a cache entry on each card: units / tp, at least one whole.

    Raises ValueError when neither of the two divides the other.
    """
    larger, smaller = max(tp, part.units), min(tp, part.units)
    if tp < 1 or larger % smaller:
        raise ValueError(f"{part.units} {part.component} heads cannot be laid out on {tp} cards")
    return max(1, part.units // tp)


def card_entry_bytes(part: StatePart, tp: int) -> int:
    """Bytes of one cache entry on one card of a TP group."""
    return part.entry_bytes // part.units * state_units(part, tp)


def card_state_bytes(part: StatePart, config: ParallelConfig, tokens: int) -> int:
    """Bytes of a session's cache on one card after `tokens` tokens, in one layer.

    CP and DCP deal the entries to their cards, the fullest of which counts; a fixed state is not
    dealt out.
    """
    entries = part.entries(tokens)
    if not part.is_fixed:
        entries = -(-entries // (config.cp * config.dcp))
    return entries * card_entry_bytes(part, config.tp)
