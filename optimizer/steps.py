"""How long a serving instance takes for a step, in whole ticks of an exact unit (sections 2 to 4).

A step of a stage is its operators one after another (6-2), then its exchanges; a token passes all
stages. Times stay exact: every step is a whole number of 1/unit s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Instance
from instances.tensors import StatePart
from instances.workload import Cohort
from optimizer.ownership import stage_places
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.shards import card_entry_bytes
from optimizer.work import Exchange, Operator, StageWork, StepLoad, stage_work

#: Bytes of a token's number, which the last stage returns to the first.
TOKEN_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Kinked:
    """An operator in ticks: the longer of two sums that grow with the entries read."""

    times: int
    compute: int
    read: int
    entries: tuple[tuple[StatePart, int, int], ...]

    def at(self, tokens: int) -> int:
        compute, read = self.compute, self.read
        for part, flops, size in self.entries:
            count = part.read_entries(tokens)
            compute += count * flops
            read += count * size
        return self.times * max(compute, read)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage's step in ticks: what does not depend on the context, and what does."""

    constant: int
    kinked: tuple[_Kinked, ...]

    def at(self, tokens: int) -> int:
        """Ticks of a step with `tokens` tokens of the session in the cache."""
        return self.constant + sum(part.at(tokens) for part in self.kinked)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time between two tokens of a session: its way through all stages, or, where more batches are
    in flight than the pipeline hides, their turn at the slowest stage. Ticks are 1/unit s.
    """

    unit: int
    stages: tuple[StageTime, ...]
    handoffs: int
    micro_batches: int

    def ticks(self, tokens: int) -> int:
        """Ticks from one token to the next with `tokens` tokens in the cache afterwards."""
        times = [stage.at(tokens) for stage in self.stages]
        through = sum(times) + self.handoffs
        if self.micro_batches == 1:
            return through
        return max(through, self.micro_batches * max(times))

    def at(self, tokens: int) -> Fraction:
        """Seconds from one token to the next with `tokens` tokens in the cache afterwards."""
        return Fraction(self.ticks(tokens), self.unit)

    def fill_s(self, tokens: int) -> Fraction:
        """Seconds until the last of the micro-batches has its first turn at the slowest stage.

        With it the first token of b micro-batches through q equal stages takes q + b - 1 stage
        times (section 6.2.5).
        """
        slowest = max(stage.at(tokens) for stage in self.stages)
        return Fraction((self.micro_batches - 1) * slowest, self.unit)


def step_load(instance: Instance, footprint: Footprint) -> StepLoad:
    """Return what an attention group does in a full decode step.

    The other sessions of the batch are taken to be as long as the longest of the workload ever is,
    so that a step takes no longer than it is priced at, whoever shares it.
    """
    longest = max(cohort.held_tokens for cohort in instance.workload.cohorts)
    return StepLoad(
        decode_sessions=footprint.batch,
        companion_tokens=longest,
        routing=instance.workload.routing,
        expert_counts=instance.workload.expert_counts,
        roofline=instance.runtime.roofline,
    )


def needs_collective(instance: Instance, footprint: Footprint) -> bool:
    """Whether any step of the footprint has an AllReduce, whose algorithm is to be chosen."""
    return reduces(decode_works(instance, footprint))


def reduces(works: Sequence[StageWork]) -> bool:
    """Whether any exchange is an AllReduce."""
    return any(e.kind == "all_reduce" and e.ranks > 1 for w in works for e in w.exchanges)


def _works(instance: Instance, footprint: Footprint, load: StepLoad) -> Iterator[StageWork]:
    for place in stage_places(instance.model, footprint.stages):
        work = stage_work(instance.model, footprint.parallel, place, load, instance.engine)
        if instance.search.kv_sharing == "remote":
            work = replace(
                work, exchanges=(*work.exchanges, *_remote_reads(instance, footprint, place.index))
            )
        yield work


def _remote_reads(instance: Instance, footprint: Footprint, stage: int) -> Iterator[Exchange]:
    """What each layer reads of an earlier stage's cache in a step, of sessions as long as any."""
    model, config = instance.model, footprint.parallel
    longest = max(cohort.held_tokens for cohort in instance.workload.cohorts)
    place = stage_places(model, footprint.stages)[stage]
    for layer in place.layers:
        source = model.kv_source_of(layer)
        if source is None or source in place.layers:
            continue
        size = sum(
            part.read_entries(longest) * card_entry_bytes(part, config.tp)
            for part in model.layer_state[model.group_of_layer[layer]]
            if part.is_borrowed
        )
        sent = Fraction(footprint.batch * size, config.cp * config.dcp)
        yield Exchange("remote_kv", "send", 2, config.num_cards, sent, 1)


def _stage_seconds(
    place: Place, work: StageWork, bandwidth: Fraction, peak: Fraction
) -> tuple[Fraction, list[tuple[Operator, Fraction, Fraction]]]:
    """Return (seconds that never change, operators that depend on the context with their rates)."""
    constant = sum((e.times * place.exchange_s(e) for e in work.exchanges), Fraction(0))
    growing = []
    for operator in work.operators:
        if operator.entries:
            growing.append((operator, 1 / peak, 1 / bandwidth))
        else:
            longest = max(operator.flops / peak, operator.read_bytes / bandwidth)
            constant += operator.times * longest
    return constant, growing


def compile_step(
    place: Place, works: Sequence[StageWork], peak: Fraction, micro_batches: int
) -> StepTime:
    """Return the exact time of a step as a function of the context, in whole ticks.

    Raises CollectiveUnavailable when an exchange has no price on this fabric.
    """
    bandwidth = place.pool.server.accelerator.memory_bandwidth_bytes_per_s
    stages = [_stage_seconds(place, work, bandwidth, peak) for work in works]
    handoffs = Fraction(0)
    if len(works) > 1:
        sent = [*(work.handoff_bytes for work in works[:-1]), Fraction(TOKEN_ID_BYTES)]
        handoffs += sum(place.handoff_s(size, stage) for stage, size in enumerate(sent))
    numbers = [constant for constant, _ in stages] + [handoffs]
    for _, growing in stages:
        for op, per_flop, per_byte in growing:
            numbers += [op.flops * per_flop, op.read_bytes * per_byte]
            numbers += [w.flops * per_flop for w in op.entries]
            numbers += [w.read_bytes * per_byte for w in op.entries]
    unit = math.lcm(*(number.denominator for number in numbers))
    return StepTime(
        unit,
        tuple(
            StageTime(int(constant * unit), tuple(_kinked(*item, unit) for item in growing))
            for constant, growing in stages
        ),
        int(handoffs * unit),
        micro_batches,
    )


def _kinked(op: Operator, per_flop: Fraction, per_byte: Fraction, unit: int) -> _Kinked:
    return _Kinked(
        op.times,
        int(op.flops * per_flop * unit),
        int(op.read_bytes * per_byte * unit),
        tuple(
            (w.part, int(w.flops * per_flop * unit), int(w.read_bytes * per_byte * unit))
            for w in op.entries
        ),
    )


def peak_flops_per_s(instance: Instance, pool: Pool) -> Fraction:
    """Return the peak that bounds the model's matrix work; raises ValueError when unknown."""
    name = instance.model.formats.compute_format
    peak = pool.server.accelerator.peak(name)
    if peak is None:
        raise ValueError(f"{pool.server.accelerator.name} has no known {name} peak")
    return peak


def decode_step(
    instance: Instance,
    pool: Pool,
    footprint: Footprint,
    works: Sequence[StageWork] | None = None,
) -> StepTime:
    """Return the time between two tokens of a session while every lane is busy.

    `works` may hand in what `decode_works` returned for the same degrees, cut and batch.
    Raises CollectiveUnavailable, or ValueError where the split is not legal.
    """
    works = decode_works(instance, footprint) if works is None else works
    place, peak = Place(pool, footprint), peak_flops_per_s(instance, pool)
    return compile_step(place, works, peak, footprint.micro_batches)


def decode_works(instance: Instance, footprint: Footprint) -> tuple[StageWork, ...]:
    """Return what the cards of every stage do in a full decode step, whatever the servers."""
    return tuple(_works(instance, footprint, step_load(instance, footprint)))


def check_prices(instance: Instance, pool: Pool, footprint: Footprint) -> None:
    """Raise as `decode_step` does where a step or a prompt has an exchange without a price."""
    decode_step(instance, pool, footprint)
    for cohort in instance.workload.cohorts:
        prompt_s(instance, pool, footprint, cohort)


def prompt_works(instance: Instance, footprint: Footprint, cohort: Cohort) -> tuple[StageWork, ...]:
    """Return what the cards of every stage do to read a session's prompt in one step."""
    load = replace(
        step_load(instance, footprint),
        decode_sessions=0,
        prefill_tokens=cohort.prompt_tokens,
        prefill_before=cohort.context_tokens,
    )
    return tuple(_works(instance, footprint, load))


def prompt_s(instance: Instance, pool: Pool, footprint: Footprint, cohort: Cohort) -> Fraction:
    """Return the seconds of reading a session's prompt in one step through all stages; 0 without.

    Raises as `decode_step` does.
    """
    if not cohort.prompt_tokens:
        return Fraction(0)
    works = prompt_works(instance, footprint, cohort)
    step = compile_step(Place(pool, footprint), works, peak_flops_per_s(instance, pool), 1)
    return step.at(cohort.context_tokens + cohort.prompt_tokens)
