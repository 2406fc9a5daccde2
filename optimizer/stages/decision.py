"""The pipeline-cut decision of an instance: its data, with times of layers and stages (6.2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from instances.errors import InputError
from instances.fleet import Pool
from instances.hardware import FabricSpec
from instances.instance import Instance
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable, send_s
from optimizer.legality import check_config
from optimizer.ownership import StagePlace
from optimizer.parallel import ParallelConfig
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.shards import card_entry_bytes
from optimizer.stages.building import capacity_problem
from optimizer.stages.problem import StageProblem
from optimizer.steps import compile_step, peak_flops_per_s
from optimizer.work import StageWork, StepLoad, stage_work


def stage_footprints(instance: Instance) -> tuple[Footprint, ...]:
    """Return one footprint for each stage that the instance's stage decision asks for."""
    decision = instance.stages
    assert decision is not None
    names = decision.pools or (instance.fleet.pools[0].name,) * decision.num_stages
    config = ParallelConfig(dp=decision.dp, tp=decision.tp, cp=decision.cp, ep=decision.ep)
    pools = {pool.name: pool for pool in instance.fleet.pools}
    return tuple(
        Footprint(
            name,
            config,
            -(-config.num_cards // pools[name].server.num_cards),
            NO_COLLECTIVE,
            batch=decision.batch,
        )
        for name in names
    )


def check_stage_decision(instance: Instance) -> None:
    """Raise InputError when degrees are not legal, or stages need more cards than pools have."""
    needed: dict[str, int] = {}
    for footprint in stage_footprints(instance):
        needed[footprint.pool] = needed.get(footprint.pool, 0) + footprint.parallel.num_cards
    broken = check_config(instance.model, stage_footprints(instance)[0].parallel, instance.engine)
    if broken:
        raise InputError(instance.name, "stages", f"{broken[0].message} [{broken[0].rule}]")
    if instance.stages is not None and instance.stages.num_stages > instance.model.num_layers:
        rule_text = f"a stage needs a layer; the model has {instance.model.num_layers}"
        raise InputError(instance.name, "stages.num_stages", rule_text, instance.stages.num_stages)
    for pool in instance.fleet.pools:
        each, size = stage_footprints(instance)[0].parallel.num_cards, pool.server.num_cards
        if pool.name in needed and size % each and each % size:
            rule_text = f"stages of {each} cards do not line up with servers of {size} cards"
            raise InputError(instance.name, "stages.tp", rule_text, each)
        if needed.get(pool.name, 0) > pool.num_cards:
            rule_text = f"the stages need {needed[pool.name]} cards of pool {pool.name!r}, "
            rule_text += f"which has {pool.num_cards}; use fewer stages or smaller ones"
            raise InputError(instance.name, "stages.num_stages", rule_text)


def _first_cards(footprints: Sequence[Footprint]) -> list[int]:
    """Return each stage's first card in its pool: stages lie there one after another."""
    taken: dict[str, int] = {}
    found = []
    for footprint in footprints:
        found.append(taken.get(footprint.pool, 0))
        taken[footprint.pool] = found[-1] + footprint.parallel.num_cards
    return found


def stage_problem(instance: Instance) -> StageProblem:
    """Return the data of the instance's stage decision; raises InputError."""
    check_stage_decision(instance)
    footprints, model = stage_footprints(instance), instance.model
    longest = max(cohort.held_tokens for cohort in instance.workload.cohorts)
    decision, times, extra, remote = instance.stages, None, None, Fraction(0)
    assert decision is not None
    if decision.goal == "slowest":
        clocks = [
            _StageClock(instance, footprint, longest, first)
            for footprint, first in zip(footprints, _first_cards(footprints), strict=True)
        ]
        columns = [clock.layer_times_s() for clock in clocks]
        times = [tuple(column[layer] for column in columns) for layer in range(model.num_layers)]
        extra = [clock.ends_s(s, clocks) for s, clock in enumerate(clocks)]
        if instance.search.kv_sharing == "remote":
            remote = max(clock.remote_read_s(clocks) for clock in clocks)
    tokens = sum(cohort.num_sessions * cohort.held_tokens for cohort in instance.workload.cohorts)
    return capacity_problem(
        instance,
        footprints,
        goal=decision.goal,
        times_s=times,
        extra_times_s=extra,
        remote_read_s=remote,
        held_tokens=-(-tokens // decision.dp),
        num_sessions=-(-instance.workload.num_sessions // decision.dp),
    )


class _StageClock:
    """Times of a full decode step on one stage's cards, operator by operator."""

    def __init__(
        self, instance: Instance, footprint: Footprint, tokens: int, first_card: int
    ) -> None:
        self.instance, self.footprint, self.tokens = instance, footprint, tokens
        self.first_card = first_card
        self.pool: Pool = next(p for p in instance.fleet.pools if p.name == footprint.pool)
        self.load = StepLoad(
            decode_sessions=footprint.batch,
            companion_tokens=tokens,
            routing=instance.workload.routing,
            expert_counts=instance.workload.expert_counts,
            roofline="operator",
        )

    def work(self, place: StagePlace) -> StageWork:
        instance = self.instance
        config = self.footprint.parallel
        return stage_work(instance.model, config, place, self.load, instance.engine)

    def seconds(self, work: StageWork) -> Fraction:
        """Time of some work with the fastest collective there is; raises InputError if none."""
        names = self.instance.search.collective_options if work.exchanges else (NO_COLLECTIVE,)
        peak, times, reason = peak_flops_per_s(self.instance, self.pool), [], ""
        for name in names:
            place = Place(self.pool, replace(self.footprint, collective=name))
            try:
                times.append(compile_step(place, [work], peak, 1).at(self.tokens))
            except CollectiveUnavailable as error:
                reason = str(error)
        if not times:
            raise InputError(self.instance.name, "search.collectives", reason)
        return min(times)

    def layer_times_s(self) -> tuple[Fraction, ...]:
        """Time of every layer, in depth order."""
        model = self.instance.model
        known: dict[int, Fraction] = {}
        for layer, group in enumerate(model.group_of_layer):
            if group not in known:
                place = StagePlace(1, range(layer, layer + 1), False, False)
                known[group] = self.seconds(self.work(place))
        return tuple(known[group] for group in model.group_of_layer)

    def ends_s(self, stage: int, clocks: list[_StageClock]) -> Fraction:
        """Time of what the stage does besides layers: the output head, handing on its result."""
        is_last = stage == len(clocks) - 1
        work = self.work(StagePlace(stage, range(0), stage == 0, is_last))
        if is_last:
            return self.seconds(work)
        fabric = self.link_to(clocks[stage + 1])
        return send_s(work.handoff_bytes, fabric.alpha_s, fabric.bandwidth_bytes_per_s)

    def remote_read_s(self, clocks: list[_StageClock]) -> Fraction:
        """Longest time that all readers of one layer's cache need to read it on another stage."""
        model, config = self.instance.model, self.footprint.parallel
        reads: dict[int, list[int]] = {}
        for layer in range(model.num_layers):
            source = model.kv_source_of(layer)
            if source is not None:
                size = sum(
                    part.read_entries(self.tokens) * card_entry_bytes(part, config.tp)
                    for part in model.layer_state[model.group_of_layer[layer]]
                    if part.is_borrowed
                )
                reads.setdefault(source, []).append(self.footprint.batch * size)
        fabrics = [clock.pool.fabric_between or clock.pool.server.fabric for clock in clocks]
        times = [
            sum(
                send_s(Fraction(size, config.cp), f.alpha_s, f.bandwidth_bytes_per_s)
                for size in sizes
            )
            for sizes in reads.values()
            for f in fabrics
        ]
        return Fraction(max(times, default=0))

    def link_to(self, other: _StageClock) -> FabricSpec:
        """Return the fabric to the next stage: inside a server where both stages lie in one."""
        size, cards = self.pool.server.num_cards, other.footprint.parallel.num_cards
        if other.pool.name == self.pool.name:
            last = other.first_card + cards - 1
            if self.first_card // size == last // size:
                return self.pool.server.fabric
        fabrics = [pool.fabric_between for pool in (self.pool, other.pool)]
        known = [fabric for fabric in fabrics if fabric is not None]
        if len(known) < 2:
            rule = "stages hand on over fabric_between; both pools need one"
            raise InputError(self.instance.name, "fleet.pools", rule)
        return min(known, key=lambda fabric: fabric.bandwidth_bytes_per_s)
