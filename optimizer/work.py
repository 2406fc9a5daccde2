"""What one card does and sends in a step, operator by operator, under any split (sections 2, 3).

A step serves `decode_sessions` sessions of an attention group with one new token each, and may
prefill `prefill_tokens` of another. Operators depend on the context of one session, whose tokens
the caller fills in; the other sessions of the batch have `companion_tokens` each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from instances.engine import TEXTBOOK, EngineProfile
from instances.ffn import MoeFfn
from instances.model import LayerGroup, ModelSpec
from instances.tensors import StatePart, Tensor
from optimizer.context_split import MERGE_NUMBER_BYTES, causal_pairs, contiguous_parts, zigzag_parts
from optimizer.operators import matrices
from optimizer.ownership import StagePlace
from optimizer.parallel import ParallelConfig
from optimizer.routing import RoutingLoad, RoutingPolicy, counted_load, routing_load
from optimizer.shards import card_entry_bytes, shard_of

ZERO = Fraction(0)
ExchangeKind = Literal["all_reduce", "reduce_scatter", "all_to_all", "send"]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one attention group has to do in a step, and how it is accounted for.

    `roofline` "operator" adds up operators, each the longer of computing and reading, with all that
    a card really reads; "step" is one sum per step in which a group of cards reads every weight
    once, as (6-5) does. `expert_counts` are measured assignments per expert and replace `routing`.
    """

    decode_sessions: int = 1
    companion_tokens: int = 0
    prefill_tokens: int = 0
    prefill_before: int = 0
    cp_split: Literal["zigzag", "contiguous"] = "zigzag"
    routing: RoutingPolicy = "balanced"
    expert_counts: tuple[int, ...] | None = None
    roofline: Literal["operator", "step"] = "step"

    def card_tokens(self, config: ParallelConfig) -> int:
        """Tokens whose matrices one card works on: CP deals out those of a prefill."""
        return self.decode_sessions + -(-self.prefill_tokens // config.cp)

    def token_groups(self, config: ParallelConfig) -> int:
        """Groups of a stage's cards that hold different tokens."""
        return config.dp * (config.cp if self.prefill_tokens else 1)

    def sequences(self) -> int:
        """Sequences that end in this step with a new token each."""
        return self.decode_sessions + (1 if self.prefill_tokens else 0)


@dataclass(frozen=True, slots=True)
class EntryWork:
    """FLOP and bytes for every entry of a cache part that the session's step reads."""

    part: StatePart
    flops: Fraction
    read_bytes: Fraction


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a card, `times` times in a step: fixed work, and work per cache entry."""

    name: str
    times: int
    flops: Fraction
    read_bytes: Fraction
    entries: tuple[EntryWork, ...] = ()

    def at(self, tokens: int) -> tuple[Fraction, Fraction]:
        """Return (FLOP, bytes read) once, with `tokens` tokens of the session in the cache."""
        flops, read = self.flops, self.read_bytes
        for work in self.entries:
            count = work.part.read_entries(tokens)
            flops += count * work.flops
            read += count * work.read_bytes
        return flops, read


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message of a card, `times` times in a step, among `ranks` cards.

    The ranks lie in a block of `block` consecutive cards of the serving instance, which tells how
    many servers they span.
    """

    name: str
    kind: ExchangeKind
    ranks: int
    block: int
    message_bytes: Fraction
    times: int


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage's operators and exchanges in a step, and what each card hands to the next stage."""

    operators: tuple[Operator, ...]
    exchanges: tuple[Exchange, ...]
    handoff_bytes: Fraction


class _Stage:
    """Collects the work of one card of a stage."""

    def __init__(
        self,
        model: ModelSpec,
        config: ParallelConfig,
        place: StagePlace,
        load: StepLoad,
        engine: EngineProfile,
    ) -> None:
        self.model, self.config, self.place = model, config, place
        self.load, self.engine = load, engine
        self.tokens = load.card_tokens(config)
        self.is_ideal = load.roofline == "step"
        self.act = model.formats.bytes_of("activations")

    def tensor_work(self, tensor: Tensor, tokens: int) -> tuple[Fraction, Fraction]:
        """Return (FLOP, bytes read) of a matrix that is not an expert's."""
        formats = self.model.formats
        if self.is_ideal:
            flops = Fraction(2 * tokens * tensor.numbers, self.config.tp)
            return flops, Fraction(tensor.total_bytes(formats), self.config.tp)
        shard = shard_of(tensor, self.config, self.engine)
        numbers = shard.count * shard.outputs * shard.inputs
        return Fraction(2 * tokens * numbers), Fraction(shard.num_bytes(tensor, formats))

    def expert_load(self, ffn: MoeFfn) -> RoutingLoad:
        """Routing of all tokens of the stage over its expert groups."""
        config, load = self.config, self.load
        tokens = (load.decode_sessions + load.prefill_tokens) * config.dp
        slots = ffn.num_experts + config.redundant
        if load.expert_counts is None:
            return routing_load(tokens, slots, ffn.experts_per_token, config.ep, load.routing)
        return _scaled_load(load.expert_counts, config.ep, tokens * ffn.experts_per_token)

    def expert_work(self, ffn: MoeFfn, tensors: Sequence[Tensor]) -> tuple[Fraction, Fraction]:
        """Return (FLOP, bytes read) of the experts of the busiest group on one card."""
        load, flops, read = self.expert_load(ffn), ZERO, ZERO
        formats, config = self.model.formats, self.config
        for tensor in tensors:
            if self.is_ideal:
                numbers = Fraction(tensor.numbers, tensor.count * config.moe_tp)
                size = Fraction(tensor.total_bytes(formats), tensor.count * config.moe_tp)
            else:
                shard = shard_of(tensor, config, self.engine)
                numbers = Fraction(shard.outputs * shard.inputs)
                size = Fraction(shard.num_bytes(tensor, formats), shard.count)
            flops += 2 * load.busiest_assignments * numbers
            read += load.most_distinct * size
        return flops, read

    def attention(self, group: LayerGroup, parts: Sequence[StatePart], layers: int) -> Operator:
        """Cache entries read and attended, and recurrent states updated."""
        config, load = self.config, self.load
        dealt = config.cp * config.dcp
        flops = Fraction(group.attention.token_flops() * self.tokens, config.tp)
        read, entries = ZERO, []
        for part in parts:
            # The cards of a DCP group attend for each other's heads, so DCP saves reading only.
            split, groups = (1, 1) if part.is_fixed else (dealt, config.cp)
            size = Fraction(card_entry_bytes(part, config.tp), split)
            scorers = 1 if part.is_scored_by_all else config.tp
            each = Fraction(part.flops_per_entry, scorers * groups)
            if load.decode_sessions:
                others = (load.decode_sessions - 1) * part.read_entries(load.companion_tokens)
                flops, read = flops + others * each, read + others * size
                entries.append(EntryWork(part, each, size))
            if load.prefill_tokens:
                flops += Fraction(part.flops_per_entry, scorers) * self.prefill_entries(part)
                touched = part.prompt_entries(load.prefill_before, load.prefill_tokens)
                read += size * split * touched
        return Operator("attention", layers, flops, read, tuple(entries))

    def prefill_entries(self, part: StatePart) -> Fraction:
        """Entries that the busiest card attends to over all tokens of the prefill."""
        load, cp = self.load, self.config.cp
        first, count = load.prefill_before, load.prefill_tokens
        is_plain = (part.window, part.max_read_entries, part.tokens_per_entry) == (None, None, 1)
        if cp > 1 and is_plain and not part.is_fixed:
            deal = zigzag_parts if load.cp_split == "zigzag" else contiguous_parts
            return Fraction(max(causal_pairs(deal(count, cp), first)))
        return Fraction(sum_read_entries(part, first + 1, count), cp)

    def layer_operators(self, group: LayerGroup, layers: int) -> Iterator[Operator]:
        """Yield the operators of all layers of a group on this stage."""
        index = self.model.groups.index(group)
        tensors = self.model.layer_tensors[index]
        by_name: dict[str, list[Tensor]] = {}
        for tensor in matrices(tensors, experts=False):
            by_name.setdefault(tensor.component, []).append(tensor)
        for name, members in by_name.items():
            work = [self.tensor_work(tensor, self.tokens) for tensor in members]
            yield Operator(
                name, layers, sum((f for f, _ in work), ZERO), sum((r for _, r in work), ZERO)
            )
        yield self.attention(group, self.model.layer_state[index], layers)
        if isinstance(group.ffn, MoeFfn):
            experts = tuple(matrices(tensors, experts=True))
            yield Operator("experts", layers, *self.expert_work(group.ffn, experts))

    def layer_exchanges(self, group: LayerGroup, layers: int) -> Iterator[Exchange]:
        """Yield the exchanges of all layers of a group on this stage."""
        config, tp = self.config, self.config.tp
        hidden = Fraction(self.tokens * self.model.hidden_size * self.act)
        yield from self.merges(group, layers)
        yield from self.tp_reduction("attention", hidden, layers)
        if not isinstance(group.ffn, MoeFfn):
            yield from self.tp_reduction("ffn", hidden, layers)
        elif self.load.token_groups(config) > 1:
            yield from self.dispatch(group.ffn, layers)
            if group.ffn.num_shared_experts:
                yield from self.tp_reduction("shared_experts", hidden, layers)
        elif config.stage_cards == tp:
            yield from self.tp_reduction("ffn", hidden, layers)
        else:
            if config.moe_tp > 1:
                yield Exchange(
                    "experts", "all_reduce", config.moe_tp, config.moe_tp, hidden, layers
                )
            if config.ep > 1:
                yield Exchange(
                    "experts", "all_reduce", config.ep, config.stage_cards, hidden, layers
                )

    def tp_reduction(self, name: str, message: Fraction, layers: int) -> Iterator[Exchange]:
        """An AllReduce over TP's cards; under SP a ReduceScatter and an AllGather."""
        tp = self.config.tp
        if tp == 1:
            return
        if self.config.sp > 1:
            yield Exchange(name, "reduce_scatter", tp, tp, message, 2 * layers)
        else:
            yield Exchange(name, "all_reduce", tp, tp, message, layers)

    def merges(self, group: LayerGroup, layers: int) -> Iterator[Exchange]:
        """Partial softmaxes of a decode step are merged; a prefill passes K and V round a ring."""
        config, load = self.config, self.load
        index = self.model.groups.index(group)
        kept = [part for part in self.model.layer_state[index] if not part.is_fixed]
        if not kept:
            return
        heads, numbers = group.attention.merge_numbers()
        each = Fraction(load.decode_sessions * heads * numbers * MERGE_NUMBER_BYTES, config.tp)
        if config.dcp > 1 and load.decode_sessions:
            yield Exchange("merge", "all_reduce", config.dcp, config.tp, each * config.dcp, layers)
        block = config.cp * config.tp
        if config.cp > 1 and load.decode_sessions:
            yield Exchange("merge", "all_reduce", config.cp, block, each, layers)
        if config.cp > 1 and load.prefill_tokens:
            tokens = load.prefill_before + load.prefill_tokens
            size = sum(
                -(-part.entries(tokens) // config.cp) * card_entry_bytes(part, config.tp)
                for part in kept
            )
            times = layers * (config.cp - 1)
            yield Exchange("kv_ring", "send", config.cp, block, Fraction(size), times)

    def dispatch(self, ffn: MoeFfn, layers: int) -> Iterator[Exchange]:
        """Tokens go to their experts and back, one copy for each other destination card (6.2.6).

        What the busiest card sends or receives counts; an even share of it is its own.
        """
        config, cards = self.config, self.config.stage_cards
        width = ffn.message_size(self.model.hidden_size)
        holders = cards // self.load.token_groups(config)
        if config.ep == 1:
            message = Fraction(self.tokens * self.load.token_groups(config) * width * self.act)
            yield Exchange("dispatch", "reduce_scatter", cards, cards, message, 2 * layers)
        else:
            copies = min(ffn.experts_per_token, config.ep) * config.moe_tp
            everyone = (self.load.decode_sessions + self.load.prefill_tokens) * config.dp
            received = min(self.expert_load(ffn).busiest_assignments, everyone)
            vectors = max(Fraction(self.tokens, holders) * copies, Fraction(received))
            message = vectors * width * self.act * Fraction(cards - 1, cards)
            yield Exchange("dispatch", "all_to_all", cards, cards, message, 2 * layers)
        if holders > 1:
            hidden = Fraction(self.tokens * self.model.hidden_size * self.act)
            yield Exchange("gather", "reduce_scatter", holders, holders, hidden, layers)

    def work(self) -> StageWork:
        operators: list[Operator] = []
        exchanges: list[Exchange] = []
        groups = Counter(self.model.group_of_layer[layer] for layer in self.place.layers)
        for index, layers in sorted(groups.items()):
            operators += self.layer_operators(self.model.groups[index], layers)
            exchanges += self.layer_exchanges(self.model.groups[index], layers)
        if self.place.is_last:
            sequences = self.load.sequences()
            operators.append(
                Operator("lm_head", 1, *self.tensor_work(self.model.lm_head, sequences))
            )
        if self.is_ideal:
            operators = [_summed(operators)]
        handoff = ZERO
        if not self.place.is_last:
            numbers = self.tokens * self.model.residual_streams * self.model.hidden_size
            handoff = Fraction(numbers * self.act, self.config.sp)
        return StageWork(tuple(operators), tuple(exchanges), handoff)


def _summed(operators: Sequence[Operator]) -> Operator:
    """Return one operator that does the work of all."""
    entries = tuple(
        EntryWork(work.part, op.times * work.flops, op.times * work.read_bytes)
        for op in operators
        for work in op.entries
    )
    flops = sum((op.times * op.flops for op in operators), ZERO)
    read = sum((op.times * op.read_bytes for op in operators), ZERO)
    return Operator("step", 1, flops, read, entries)


def _scaled_load(counts: Sequence[int], ep: int, assignments: int) -> RoutingLoad:
    """Share out a step's assignments as measured counts do; a group reads at most what it gets."""
    slots = list(counts) + [0] * (-len(counts) % ep)
    measured = counted_load(slots, ep)
    share = Fraction(assignments, max(measured.num_assignments, 1))
    busiest = -(-measured.busiest_assignments * share // 1)
    distinct = min(Fraction(measured.most_distinct), Fraction(busiest))
    return RoutingLoad(
        assignments,
        min(Fraction(measured.distinct_experts), Fraction(assignments)),
        Fraction(busiest),
        distinct,
        distinct,
        Fraction(assignments, ep),
    )


def sum_read_entries(part: StatePart, first: int, count: int) -> int:
    """Sum the entries read with `first`, `first` + 1, … tokens cached, over `count` steps."""
    if part.is_fixed:
        return count
    per, top = part.tokens_per_entry, None
    limits = [limit for limit in (part.window, _token_limit(part)) if limit is not None]
    if limits:
        top = min(limits)
    rising = count if top is None else min(max(top - first, 0), count)

    def floors(end: int) -> int:
        """Sum of floor(n / per) for n below `end`."""
        whole, rest = divmod(end, per)
        return per * whole * (whole - 1) // 2 + rest * whole

    total = floors(first + rising) - floors(first)
    return total + (count - rising) * (part.read_entries(top) if top is not None else 0)


def _token_limit(part: StatePart) -> int | None:
    """Tokens from which on no more entries are read."""
    if part.max_read_entries is None:
        return None
    return part.max_read_entries * part.tokens_per_entry


def stage_work(
    model: ModelSpec,
    config: ParallelConfig,
    place: StagePlace,
    load: StepLoad,
    engine: EngineProfile = TEXTBOOK,
) -> StageWork:
    """Return what each card of a stage does and sends in a step; the split must be legal."""
    return _Stage(model, config, place, load, engine).work()
