"""Times of steps for many footprints and loads at once, in float64 (sections 2 and 3).

This is the arithmetic of `work`, `routing` and `steps` written a second time, over arrays of N
footprints, K loads and T lengths of the context. A time is NaN where an exchange has no price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from instances.ffn import MoeFfn
from instances.fleet import Pool
from instances.instance import Instance
from instances.model import LayerGroup
from instances.tensors import StatePart, Tensor
from optimizer.arrays.exchanges import Network, only_where
from optimizer.arrays.memory import (
    Floats,
    FootprintArrays,
    Ints,
    card_entry_arrays,
    ceil_div,
    entries_in_reach,
    foreign_readers,
    held_entries,
    shard_arrays,
)
from optimizer.arrays.routing import busiest_experts
from optimizer.context_split import MERGE_NUMBER_BYTES
from optimizer.steps import TOKEN_ID_BYTES, peak_flops_per_s


@dataclass(frozen=True, slots=True)
class Loads:
    """K loads of an attention group, all of one sort: sessions that decode, or prompts to read.

    `decode` sessions get a token each, at each of the context lengths `lengths` [T]; or `prompts`
    are read after contexts of `before` tokens, and `lengths` is empty.
    """

    decode: Ints
    prompts: Ints
    before: Ints
    lengths: tuple[int, ...]

    @property
    def is_prompt(self) -> bool:
        """Whether the loads are prompts."""
        return not self.lengths


def decode_loads(batches: Ints, lengths: Sequence[int]) -> Loads:
    """Return decode steps of several batch sizes."""
    none = np.zeros_like(batches)
    return Loads(batches, none, none, tuple(lengths))


def prompt_loads(pairs: Sequence[tuple[int, int]]) -> Loads:
    """Return the reading of prompts, each given as (tokens, tokens before it)."""
    tokens, before = np.array(pairs, dtype=np.int64).T
    return Loads(np.zeros_like(tokens), tokens, before, ())


def read_count(part: StatePart, tokens: int) -> int:
    """Entries that a step reads with so many tokens cached."""
    reach = entries_in_reach(part, tokens)
    return reach if part.max_read_entries is None else min(part.max_read_entries, reach)


def prompt_count(part: StatePart, before: int, count: int) -> int:
    """Entries that `count` new tokens touch at least once after `before` cached ones."""
    if part.is_fixed:
        return 1
    reach = before if part.window is None else min(before, part.window)
    return (reach + count) // part.tokens_per_entry


def summed_reads(part: StatePart, before: int, count: int) -> int:
    """Entries read in `count` steps of one token each after `before` tokens.

    The k-th entry is read from the step on that has k · tokens_per_entry tokens cached, so each
    entry within the limits is counted over the steps that are left.
    """
    if part.is_fixed:
        return count
    per, end = part.tokens_per_entry, before + count
    limits = [end // per]
    if part.window is not None:
        limits.append(part.window // per)
    if part.max_read_entries is not None:
        limits.append(part.max_read_entries)
    most = min(limits)
    always = min(before // per, most)
    late = most - always
    return always * count + late * (end + 1) - per * (always + 1 + most) * late // 2


def busiest_pairs(count: int, before: int, cp: int) -> float:
    """Query-key pairs of the busiest of `cp` cards that have a chunk from each end (6.2.4)."""
    size, over = divmod(count, 2 * cp)
    chunks = np.arange(2 * cp)
    is_longer = chunks < over if over <= cp else chunks >= 2 * cp - over
    sizes = (size + is_longer).astype(np.float64)
    ends = sizes.cumsum()
    pairs = sizes * before + sizes * (2 * ends - sizes + 1) / 2
    return float((pairs + pairs[::-1]).max())


class _StageTimes:
    """Seconds of the layers of a stage; FLOP and bytes are already divided by their rates."""

    def __init__(
        self, instance: Instance, pool: Pool, arrays: FootprintArrays, loads: Loads
    ) -> None:
        self.instance, self.model = instance, instance.model
        self.arrays, self.loads = arrays, loads
        self.network = Network(pool, arrays)
        self.is_ideal = instance.runtime.roofline == "step"
        self.per_flop = float(1 / peak_flops_per_s(instance, pool))
        self.per_byte = float(1 / pool.server.accelerator.memory_bandwidth_bytes_per_s)
        self.tp = arrays.tp[:, None]
        prompts = ceil_div(loads.prompts[None, :], arrays.cp[:, None])
        self.tokens = (loads.decode[None, :] + prompts).astype(np.float64)
        self.token_groups = arrays.dp * (arrays.cp if loads.is_prompt else 1)
        self.act = self.model.formats.bytes_of("activations")
        self.hidden = self.tokens * (self.model.hidden_size * self.act)
        self.reduction_s = self._reduction_s()
        self.longest = max(cohort.held_tokens for cohort in instance.workload.cohorts)

    def _reduction_s(self) -> Floats:
        """An AllReduce over TP's cards, or under SP a ReduceScatter and an AllGather."""
        arrays, network, tp = self.arrays, self.network, self.arrays.tp
        whole = network.all_reduce_s(tp, tp, self.hidden)
        sharded = 2 * network.reduce_scatter_s(tp, self.hidden)
        return only_where(tp > 1, np.where((arrays.sp > 1)[:, None], sharded, whole))

    def matrix_s(self, tensors: Sequence[Tensor], tokens: Floats) -> tuple[Floats, Floats]:
        """Return seconds of (computing [N, K], reading [N, 1]) of matrices that are no experts'."""
        formats = self.model.formats
        numbers, size = np.zeros((2, len(self.arrays), 1))
        for tensor in tensors:
            if self.is_ideal:
                numbers += tensor.numbers / self.tp
                size += tensor.total_bytes(formats) / self.tp
            else:
                shard = shard_arrays(self.instance, self.arrays, tensor)
                numbers[:, 0] += shard.count * shard.outputs * shard.inputs
                size[:, 0] += shard.num_bytes(tensor, formats)
        return 2 * tokens * numbers * self.per_flop, size * self.per_byte

    def expert_s(self, ffn: MoeFfn, tensors: Sequence[Tensor]) -> tuple[Floats, Floats]:
        """Return seconds of (computing, reading) [N, K] of the busiest group's experts."""
        formats, moe_tp = self.model.formats, self.arrays.moe_tp
        numbers, size = np.zeros((2, len(self.arrays)))
        for tensor in tensors:
            if self.is_ideal:
                numbers += tensor.numbers / tensor.count / moe_tp
                size += tensor.total_bytes(formats) / tensor.count / moe_tp
            else:
                shard = shard_arrays(self.instance, self.arrays, tensor)
                numbers += shard.outputs * shard.inputs
                size += shard.each_bytes(tensor, formats)
        new = self.loads.decode + self.loads.prompts
        assignments, distinct = busiest_experts(self.instance.workload, self.arrays, ffn, new)
        return (
            2 * assignments * numbers[:, None] * self.per_flop,
            distinct * size[:, None] * self.per_byte,
        )

    def attention_s(self, group: LayerGroup, parts: Sequence[StatePart]) -> tuple[Floats, Floats]:
        """Return seconds of (computing, reading) [N, K, T] of cache entries and fixed states."""
        loads, arrays = self.loads, self.arrays
        flops = (group.attention.token_flops() * self.tokens / self.tp)[:, :, None]
        read, one = np.zeros((len(arrays), 1, 1)), np.ones_like(arrays.tp)
        for part in parts:
            size = card_entry_arrays(part, arrays)[:, None, None].astype(np.float64)
            each = part.flops_per_entry / (one[:, None] if part.is_scored_by_all else self.tp)
            each = each[:, :, None]
            if loads.is_prompt:
                pairs = zip(loads.before.tolist(), loads.prompts.tolist(), strict=True)
                ends = [prompt_count(part, *pair) for pair in pairs]
                flops = flops + each * self.prompt_reads(part)[:, :, None]
                read = read + size * np.array(ends, dtype=np.float64)[None, :, None]
                continue
            own = np.array([read_count(part, t) for t in loads.lengths], dtype=np.float64)
            others = (loads.decode - 1).astype(np.float64) * read_count(part, self.longest)
            entries = own[None, :] + others[:, None]
            # DCP deals out what is read, but its cards attend for one another's heads.
            for_reads, for_flops = (arrays.dealt, arrays.cp) if not part.is_fixed else (one, one)
            flops = flops + each / for_flops[:, None, None] * entries
            read = read + size / for_reads[:, None, None] * entries
        return flops * self.per_flop, read * self.per_byte

    def prompt_reads(self, part: StatePart) -> Floats:
        """Entries [N, K] that the busiest card attends to over all tokens of each prompt."""
        cp = self.arrays.cp
        found = np.zeros((len(cp), len(self.loads.prompts)))
        is_plain = part.window is None and part.max_read_entries is None
        is_plain = is_plain and part.tokens_per_entry == 1 and not part.is_fixed
        spans = zip(self.loads.prompts.tolist(), self.loads.before.tolist(), strict=True)
        for column, (count, before) in enumerate(spans):
            found[:, column] = summed_reads(part, before, count) / cp
            for degree in np.unique(cp[cp > 1]) if is_plain else ():
                found[cp == degree, column] = busiest_pairs(count, before, int(degree))
        return found

    def exchanges_s(self, group: LayerGroup, parts: Sequence[StatePart]) -> Floats:
        """Seconds [N, K] of the exchanges of a layer."""
        kept = [part for part in parts if not part.is_fixed]
        seconds = self.reduction_s + (self._merge_s(group, kept) if kept else 0.0)
        if not isinstance(group.ffn, MoeFfn):
            return seconds + self.reduction_s
        is_apart = (self.token_groups > 1)[:, None]
        apart = self._dispatch_s(group.ffn)
        if group.ffn.num_shared_experts:
            apart = apart + self.reduction_s
        return seconds + np.where(is_apart, apart, self._joint_experts_s())

    def _joint_experts_s(self) -> Floats:
        """Sum up the experts' results where all cards of a stage hold the same tokens."""
        arrays, cards = self.arrays, self.arrays.stage_cards
        within = self.network.all_reduce_s(arrays.moe_tp, arrays.moe_tp, self.hidden)
        across = self.network.all_reduce_s(arrays.ep, cards, self.hidden)
        both = only_where(arrays.moe_tp > 1, within) + only_where(arrays.ep > 1, across)
        return np.where((cards == arrays.tp)[:, None], self.reduction_s, both)

    def _merge_s(self, group: LayerGroup, kept: Sequence[StatePart]) -> Floats:
        """Merge partial softmaxes, or pass the keys and values of a prompt round a ring."""
        arrays, network, loads = self.arrays, self.network, self.loads
        cp, block = arrays.cp, arrays.cp * arrays.tp
        if loads.is_prompt:
            sent = np.zeros((len(arrays), len(loads.prompts)))
            for part in kept:
                ends = [held_entries(part, t) for t in (loads.before + loads.prompts).tolist()]
                share = ceil_div(np.array(ends, dtype=np.int64)[None, :], cp[:, None])
                sent += share * card_entry_arrays(part, arrays)[:, None].astype(np.float64)
            return only_where(cp > 1, (cp - 1)[:, None] * network.send_s(block, sent))
        heads, numbers = group.attention.merge_numbers()
        each = loads.decode[None, :] * float(heads * numbers * MERGE_NUMBER_BYTES) / self.tp
        shared = each * arrays.dcp[:, None]
        within = network.all_reduce_s(arrays.dcp, arrays.tp, shared)
        across = network.all_reduce_s(cp, block, each)
        return only_where(arrays.dcp > 1, within) + only_where(cp > 1, across)

    def _dispatch_s(self, ffn: MoeFfn) -> Floats:
        """Tokens go to their experts and back where groups of cards hold different ones (6.2.6)."""
        arrays, network, cards = self.arrays, self.network, self.arrays.stage_cards
        vector = ffn.message_size(self.model.hidden_size) * self.act
        holders = cards // self.token_groups
        everyone = self.tokens * self.token_groups[:, None] * vector
        gathered = 2 * network.reduce_scatter_s(cards, everyone)
        copies = np.minimum(ffn.experts_per_token, arrays.ep) * arrays.moe_tp
        new = self.loads.decode + self.loads.prompts
        received, _ = busiest_experts(self.instance.workload, arrays, ffn, new)
        received = np.minimum(received, (arrays.dp[:, None] * new[None, :]).astype(np.float64))
        vectors = np.maximum(self.tokens * (copies / holders)[:, None], received)
        sent = vectors * vector * ((cards - 1) / cards)[:, None]
        back = only_where(holders > 1, network.reduce_scatter_s(holders, self.hidden))
        dealt = 2 * network.all_to_all_s(cards, sent)
        return np.where((arrays.ep == 1)[:, None], gathered, dealt) + back

    def layer_s(self, group: LayerGroup, index: int) -> tuple[Floats, Floats, Floats]:
        """Return seconds [N, K, T] of a layer: (fixed, computing and reading yet to compare)."""
        parts, tensors = self.model.layer_state[index], self.model.layer_tensors[index]
        work = [self.attention_s(group, parts)]
        by_name: dict[str, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.role == "matrix" and not tensor.is_expert:
                by_name.setdefault(tensor.component, []).append(tensor)
        work += [_deep(self.matrix_s(members, self.tokens)) for members in by_name.values()]
        if isinstance(group.ffn, MoeFfn):
            experts = [t for t in tensors if t.role == "matrix" and t.is_expert]
            work.append(_deep(self.expert_s(group.ffn, experts)))
        return self._rooflines(self.exchanges_s(group, parts)[:, :, None], work)

    def _rooflines(
        self, fixed: Floats, work: Sequence[tuple[Floats, Floats]]
    ) -> tuple[Floats, Floats, Floats]:
        """Compare computing and reading of each operator, or put that off to the whole step."""
        zero = np.zeros((1, 1, 1))
        if self.is_ideal:
            compute = sum((pair[0] for pair in work), zero)
            return fixed, compute, sum((pair[1] for pair in work), zero)
        return sum((np.maximum(*pair) for pair in work), fixed), zero, zero

    def head_s(self) -> tuple[Floats, Floats, Floats]:
        """Return the same of the output head, which works on one token of each sequence."""
        sequences = (self.loads.decode + (1 if self.loads.is_prompt else 0)).astype(np.float64)
        pair = _deep(self.matrix_s((self.model.lm_head,), sequences[None, :]))
        return self._rooflines(np.zeros((1, 1, 1)), (pair,))

    def remote_s(self) -> Iterator[Floats]:
        """Yield seconds [N, K] of reading cache entries that earlier stages hold, by stage."""
        arrays, flags = self.arrays, list(foreign_readers(self.model, self.arrays))
        sessions = np.maximum(self.loads.decode, 1).astype(np.float64)
        for stage in range(arrays.max_stages):
            seconds = np.zeros_like(self.tokens)
            for layer, behind in flags:
                size = np.zeros(len(arrays))
                for part in self.model.layer_state[self.model.group_of_layer[layer]]:
                    if part.is_borrowed:
                        count = float(read_count(part, self.longest))
                        size += count * card_entry_arrays(part, arrays)
                sent = (size / arrays.dealt)[:, None] * sessions
                one = self.network.send_s(arrays.num_cards, sent)
                seconds += only_where(behind[:, stage], one)
            yield seconds

    def handoffs_s(self) -> Floats:
        """Seconds [N, K] of all handoffs of a token's way through the pipeline, and back."""
        arrays, network = self.arrays, self.network
        width = self.model.residual_streams * self.model.hidden_size * self.act
        sent = self.tokens * width / arrays.sp[:, None]
        return network.handoffs_s(sent, float(TOKEN_ID_BYTES))


def _deep(pair: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Give both an axis for the lengths of the context."""
    return pair[0][:, :, None], pair[1][:, :, None]


def step_seconds(instance: Instance, pool: Pool, arrays: FootprintArrays, loads: Loads) -> Floats:
    """Seconds [N, K, T] between two tokens, or [N, K, 1] of reading prompts; NaN without a price.

    Raises ValueError where a split is not legal and TooLargeError where numbers are too large.
    """
    times = _StageTimes(instance, pool, arrays, loads)
    layers = [times.layer_s(group, g) for g, group in enumerate(instance.model.groups)]
    head, handoffs = times.head_s(), times.handoffs_s()[:, :, None]
    is_remote = instance.search.kv_sharing == "remote"
    remote = list(times.remote_s()) if is_remote else []
    shape = (*times.tokens.shape, max(len(loads.lengths), 1))
    through, slowest = np.broadcast_to(handoffs, shape).copy(), np.zeros(shape)
    for stage in range(arrays.max_stages):
        rows = np.flatnonzero(arrays.pp > stage)
        counts = arrays.layers[rows, stage].astype(np.float64)[:, :, None, None]
        is_last = (arrays.pp[rows] == stage + 1).astype(np.float64)[:, None, None]
        sums = []
        for kind in range(3):
            total = is_last * _rows_of(head[kind], rows)
            for group, layer in enumerate(layers):
                total = total + counts[:, group] * _rows_of(layer[kind], rows)
            sums.append(total)
        seconds = sums[0] + np.maximum(sums[1], sums[2])
        if is_remote:
            seconds = seconds + remote[stage][rows, :, None]
        through[rows] += seconds
        slowest[rows] = np.maximum(slowest[rows], seconds)
    if loads.is_prompt:
        return through
    rounds = arrays.micro_batches[:, None, None]
    return np.where(rounds == 1, through, np.maximum(through, rounds * slowest))


def _rows_of(values: Floats, rows: Ints) -> Floats:
    """Return some footprints' rows; what all share has one row."""
    return values if len(values) == 1 else values[rows]
