"""What a card of a supernode holds, reads and computes, and what it sends (6.7.4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from instances.ffn import MoeFfn
from instances.instance import Instance
from instances.model import ModelSpec
from instances.tensors import Tensor
from optimizer.operators import expert_bytes, expert_parameters
from optimizer.ownership import session_bytes, stage_places, stage_tensors
from optimizer.parallel import ParallelConfig
from optimizer.shards import shard_of
from optimizer.work import Exchange as Message
from optimizer.work import StageWork, StepLoad, stage_work


@dataclass(frozen=True, slots=True)
class CopiedWeights:
    """What every card has a copy or a cut of: bytes held, and those that a step reads."""

    held_bytes: int
    read_bytes: int


def copied_weights(instance: Instance, degree: int, apart: tuple[str, ...]) -> CopiedWeights:
    """Return what is neither an expert's nor a table's nor of a component named in `apart`.

    Attention and all else that can be cut is cut over `degree` cards. A step reads all of it but
    the embedding, of which it needs single rows, and side parts, which plain decoding leaves alone.
    """
    model, config = instance.model, ParallelConfig(tp=degree)
    held = read = 0
    for tensor, times, part in _tensors(instance):
        if tensor.is_expert or tensor.unit == "table rows" or tensor.component in apart:
            continue
        size = times * shard_of(tensor, config, instance.engine).num_bytes(tensor, model.formats)
        held += size
        is_rows = tensor is model.embedding and not model.tied_embeddings
        read += 0 if part or is_rows else size
    return CopiedWeights(held, read)


def components(instance: Instance) -> set[str]:
    """Return the names of all components that cards have copies or cuts of."""
    return {t.component for t, _, part in _tensors(instance) if not (t.is_expert or part)}


def _tensors(instance: Instance) -> Iterator[tuple[Tensor, int, str]]:
    (place,) = stage_places(instance.model, ())
    return stage_tensors(instance.model, place, instance.runtime.loaded_parts)


def dealt_expert_bytes(model: ModelSpec, size: int) -> int:
    """Return the routed experts' bytes on the fullest of `size` cards.

    All experts of all layers are dealt out evenly and whole, those of each size apart.
    """
    counts: Counter[int] = Counter()
    for group, tensors in zip(model.groups, model.layer_tensors, strict=True):
        if isinstance(group.ffn, MoeFfn):
            each = math.ceil(expert_bytes(model, tensors))
            counts[each] += group.ffn.num_experts * len(group.layers)
    return sum(-(-count // size) * each for each, count in counts.items())


def dealt_table_bytes(model: ModelSpec, size: int) -> int:
    """Return the bytes of lookup tables on the fullest of `size` cards: whole rows."""
    total = 0
    for table in model.tables:
        tensor = table.tensor()
        rows = -(-table.num_rows // size)
        total += tensor.format_in(model.formats).tensor_bytes(rows, table.row_size)
    return total


def dealt_component_bytes(instance: Instance, size: int, apart: tuple[str, ...]) -> int:
    """Return the bytes of components named in `apart` on the fullest of `size` cards."""
    formats = instance.model.formats
    return sum(
        times * -(-tensor.total_bytes(formats) // size)
        for tensor, times, _ in _tensors(instance)
        if tensor.component in apart and not tensor.is_expert and tensor.unit != "table rows"
    )


def rows_per_token(model: ModelSpec) -> tuple[int, int]:
    """Return (rows, their bytes) that a token reads of all tables."""
    rows = sum(table.rows_per_token for table in model.tables)
    size = sum(
        table.rows_per_token
        * table.tensor().format_in(model.formats).tensor_bytes(1, table.row_size)
        for table in model.tables
    )
    return rows, size


def held_tokens(instance: Instance) -> int:
    """Return the tokens that the longest session of all cohorts holds when it ends."""
    return max(cohort.held_tokens for cohort in instance.workload.cohorts)


def kv_bytes(instance: Instance, degree: int) -> int:
    """Return the bytes that the longest session holds on each of `degree` cards of its group."""
    (place,) = stage_places(instance.model, ())
    return session_bytes(instance.model, ParallelConfig(tp=degree), place, held_tokens(instance))


def token_work(instance: Instance, degree: int) -> tuple[Fraction, Fraction]:
    """Return (FLOP, KV bytes read) of a token of the longest session on each card of its group.

    The chosen experts lie anywhere in the supernode, whose cards share out all tokens' choices: a
    card computes as many as one of the group's `degree` cards has sessions.
    """
    model, tokens = instance.model, held_tokens(instance)
    flops = read = Fraction(0)
    for operator in _work(instance, degree, is_alone=True).operators:
        if operator.name == "experts":
            continue
        flops += operator.times * operator.at(tokens)[0]
        for entry in operator.entries:
            read += operator.times * entry.part.read_entries(tokens) * entry.read_bytes
    for group, tensors in zip(model.groups, model.layer_tensors, strict=True):
        if isinstance(group.ffn, MoeFfn):
            chosen = len(group.layers) * group.ffn.experts_per_token
            flops += Fraction(2 * chosen * expert_parameters(tensors), degree)
    return flops, read


def group_messages(instance: Instance, degree: int, *, is_alone: bool) -> tuple[Message, ...]:
    """Return the exchanges of a group of `degree` cards for each session, dispatch left out.

    `is_alone` says that the group is the whole supernode.
    """
    work = _work(instance, degree, is_alone=is_alone)
    return tuple(m for m in work.exchanges if m.name != "dispatch" and m.ranks > 1)


def _work(instance: Instance, degree: int, *, is_alone: bool) -> StageWork:
    """Return the work of a card for one session of its group; of experts all are on it."""
    (place,) = stage_places(instance.model, ())
    config = ParallelConfig(dp=1 if is_alone else 2, tp=degree)
    load = StepLoad(routing="expected", roofline="operator")
    return stage_work(instance.model, config, place, load, instance.engine)
