"""Prices every candidate of a problem instance; what cannot be used leaves with its reason.

Service times come from closed sums, unlike the evaluator's step-by-step ones, so that each checks
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

from instances.fleet import Pool
from instances.instance import Instance
from optimizer.collective_choice import Priced, without_replaced, without_slower
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable
from optimizer.configurations import (
    configurations,
    reject_connections,
    reject_span,
    spans,
    whole_spans,
)
from optimizer.footprints import check_degrees, check_lanes, check_stages
from optimizer.layouts import mixed_kinds, uniform_layouts
from optimizer.legality import Rule
from optimizer.measured import measured_session_s
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes, usable_bytes
from optimizer.plan import Footprint
from optimizer.screening import misfit, screen, without_dominated
from optimizer.stages.building import pipeline_cut
from optimizer.stages.problem import even_cut
from optimizer.steps import decode_step, decode_works, prompt_s, reduces
from optimizer.sums import sum_ticks
from optimizer.tables import (
    Candidate,
    FaultedCard,
    Layout,
    MemoryRow,
    PricedCandidates,
    ProblemTables,
    Rejection,
)
from optimizer.work import StageWork

#: Share of the time after which no more candidates are listed, so that some can be priced.
LISTING_SHARE = 0.5


class _Builder:
    """Prices the candidates of one instance and collects the rejections."""

    def __init__(
        self,
        instance: Instance,
        is_over: Callable[[float], bool],
        keep_all: bool,
        spans: Callable[[Pool, int], Iterator[int]],
        longest_s: Sequence[Fraction | None],
    ) -> None:
        self.instance, self.is_over, self.is_complete = instance, is_over, True
        self.keep_all, self.spans, self.longest_s = keep_all, spans, longest_s
        self.candidates: list[Candidate] = []
        self.rejections: list[Rejection] = []
        self.known_works: dict[tuple[object, ...], tuple[StageWork, ...]] = {}
        self.known_sizes: dict[tuple[object, ...], tuple[tuple[tuple[int, ...], int], ...]] = {}
        self.known_broken: dict[ParallelConfig, Rule | None] = {}
        self.misfits: dict[Footprint, Rejection | None] = {}

    def reject(
        self, footprint: Footprint, rule: str, amount: Fraction | int, unit: str, message: str
    ) -> None:
        self.rejections.append(Rejection(footprint, rule, amount, unit, message))

    def price_pool(self, pool_index: int, pool: Pool) -> None:
        """Price every footprint of a pool that breaks no rule and can be needed."""
        found: list[Footprint] = []
        for config in configurations(self.instance, pool):
            if self.is_late(LISTING_SHARE):
                break
            footprint = Footprint(pool.name, config, 1, "")
            servers = tuple(self.spans(pool, config.num_cards))
            broken = self.first_broken(footprint)
            if broken is not None:
                self.reject(footprint, broken.rule, broken.amount, broken.unit, broken.message)
            elif not servers:
                self.rejections.append(reject_span(pool, footprint))
            else:
                servers = self.connected(pool, footprint, servers)
                if servers and self.has_cut(pool, footprint):
                    found += self.batches(footprint, servers)
        worthwhile, beaten = found, list[Rejection]()
        if not self.keep_all:
            worthwhile, beaten = screen(self.instance, pool, found, self.longest_s)
        self.rejections += beaten
        for footprint in worthwhile:
            if self.is_late(1.0):
                break
            if self.fits(pool, footprint):
                self.price(pool_index, pool, footprint)

    def is_late(self, share: float) -> bool:
        """Whether a share of the time is used up; what is not priced by then is missing."""
        is_over = self.is_over(share)
        self.is_complete = self.is_complete and not is_over
        return is_over

    def first_broken(self, footprint: Footprint) -> Rule | None:
        """Return the first rule that the degrees break, whatever the cut and the batch."""
        config = footprint.parallel
        if config not in self.known_broken:
            self.known_broken[config] = next(iter(check_degrees(self.instance, footprint)), None)
        return self.known_broken[config]

    def has_cut(self, pool: Pool, footprint: Footprint) -> bool:
        """Whether the layers can be cut so that all weights fit; a rejection if not.

        The rejection says by how much the even cut falls short.
        """
        pp = footprint.parallel.pp
        if pp == 1 or pipeline_cut(self.instance, footprint) is not None:
            return True
        even = replace(footprint, stages=even_cut(self.instance.model.num_layers, pp))
        usable = usable_bytes(self.instance, pool)
        short = misfit(self.instance, even, self.memory_rows(pool, even), usable)
        if short is not None:
            self.rejections.append(short)
            return False
        text = f"{footprint.label()}: no cut keeps layers with the cache they read and fits"
        self.reject(footprint, "kv_source", 1, "stages", text)
        return False

    def batches(self, footprint: Footprint, servers: tuple[int, ...]) -> Iterator[Footprint]:
        """Yield a footprint with every batch and number of servers that no rule forbids."""
        search, stages = self.instance.search, tuple[int, ...]()
        if footprint.parallel.pp > 1:
            stages = pipeline_cut(self.instance, footprint) or ()
        for batch, micro in product(sorted(search.batch), sorted(search.micro_batches)):
            built = replace(footprint, stages=stages, batch=batch, micro_batches=micro)
            broken = [*check_stages(self.instance, built), *check_lanes(self.instance, built)]
            if broken:
                first = broken[0]
                self.reject(built, first.rule, first.amount, first.unit, first.message)
            else:
                yield from (replace(built, num_servers=span) for span in servers)

    def connected(
        self, pool: Pool, footprint: Footprint, servers: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the numbers of servers that connections allow; a rejection of each other one."""
        kept = list[int]()
        for count in servers:
            refused = reject_connections(pool, replace(footprint, num_servers=count))
            if refused is None:
                kept.append(count)
            else:
                self.rejections.append(refused)
        return tuple(kept)

    def memory_rows(self, pool: Pool, footprint: Footprint) -> tuple[MemoryRow, ...]:
        """Return what sessions take on a card of each stage; equal rows once."""
        room = usable_bytes(self.instance, pool) - buffer_bytes(self.instance, footprint)
        sizes = self.stage_sizes(footprint)
        return tuple(dict.fromkeys(MemoryRow(each, room - weights) for each, weights in sizes))

    def stage_sizes(self, footprint: Footprint) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Return bytes of a session of each cohort, and of weights, on a card of each stage.

        Neither pools nor batches change them.
        """
        key = (footprint.parallel, footprint.stages)
        if key not in self.known_sizes:
            model, config, search = self.instance.model, footprint.parallel, self.instance.search
            engine, loaded = self.instance.engine, self.instance.runtime.loaded_parts
            self.known_sizes[key] = tuple(
                (
                    tuple(
                        session_bytes(model, config, place, c.held_tokens, search.kv_sharing)
                        for c in self.instance.workload.cohorts
                    ),
                    stage_weight_bytes(model, config, place, engine, loaded),
                )
                for place in stage_places(model, footprint.stages)
            )
        return self.known_sizes[key]

    def fits(self, pool: Pool, footprint: Footprint) -> bool:
        """Whether a card holds its weights and the smallest session; a rejection if not.

        In a uniform search an instance may stand idle, so there the weights alone are enough.
        """
        built = replace(footprint, num_servers=1)
        if built not in self.misfits:
            rows, usable = self.memory_rows(pool, built), usable_bytes(self.instance, pool)
            found = self.misfits[built] = misfit(self.instance, built, rows, usable)
            if found is not None:
                self.rejections.append(found)
        return self.misfits[built] is None

    def price(self, pool_index: int, pool: Pool, footprint: Footprint) -> None:
        """Add the candidates of one footprint: a collective each, or in a mixed search the best.

        Collectives differ in time alone and every objective prefers earlier, so the slower ones
        are dominated; a uniform search keeps them because all pools must use the same.
        """
        names: tuple[str, ...] = (NO_COLLECTIVE,)
        works = self.works(footprint)
        if reduces(works):
            names = self.instance.search.collective_options
        priced: list[Priced] = []
        for name in names:
            built = replace(footprint, collective=name)
            try:
                priced.append((built, self.services(pool, built, works)))
            except CollectiveUnavailable as error:
                self.reject(built, error.rule, built.parallel.num_cards, "ranks", str(error))
        priced, replaced = without_replaced(priced)
        self.rejections += replaced
        if self.instance.search.deployment == "mixed" and not self.keep_all:
            priced, slower = without_slower(priced)
            self.rejections += slower
        for built, services in priced:
            self.candidates.append(self.candidate(pool_index, pool, built, services))

    def works(self, footprint: Footprint) -> tuple[StageWork, ...]:
        """Return the work of a step, which servers and collectives do not change."""
        key = (footprint.parallel, footprint.stages, footprint.batch)
        if key not in self.known_works:
            self.known_works[key] = decode_works(self.instance, footprint)
        return self.known_works[key]

    def services(
        self, pool: Pool, footprint: Footprint, works: tuple[StageWork, ...]
    ) -> tuple[Fraction, ...]:
        """Return the time of every cohort's session, in closed form."""
        step = decode_step(self.instance, pool, footprint, works)
        parts = [part for parts in self.instance.model.layer_state for part in parts]
        services = []
        for cohort in self.instance.workload.cohorts:
            measured = measured_session_s(self.instance, footprint, cohort)
            if measured is not None:
                services.append(measured)
                continue
            first = cohort.context_tokens + cohort.prompt_tokens + 1
            ticks = sum_ticks(step, parts, first, cohort.new_tokens)
            prompt = prompt_s(self.instance, pool, footprint, cohort)
            services.append(prompt + step.fill_s(cohort.held_tokens) + Fraction(ticks, step.unit))
        return tuple(services)

    def candidate(
        self, pool_index: int, pool: Pool, footprint: Footprint, services: tuple[Fraction, ...]
    ) -> Candidate:
        cards, rows = footprint.parallel.num_cards, self.memory_rows(pool, footprint)
        return Candidate(
            index=len(self.candidates),
            pool_index=pool_index,
            footprint=footprint,
            memory=rows,
            service_s=services,
            power_w=Fraction((pool.server.power_w or 0) * cards, pool.server.num_cards),
            held_sessions=self.held_sessions(footprint, rows),
        )

    def held_sessions(self, footprint: Footprint, rows: Sequence[MemoryRow]) -> int:
        """Sessions of the only cohort that fit at once; 0 where the workload has several."""
        if len(self.instance.workload.cohorts) > 1:
            return 0
        fits = [
            max(row.free_bytes, 0) // row.session_bytes[0] for row in rows if row.session_bytes[0]
        ]
        return footprint.parallel.dp * min(fits, default=0)

    def faulted_cards(self) -> tuple[FaultedCard, ...]:
        index = {pool.name: i for i, pool in enumerate(self.instance.fleet.pools)}
        stalls: dict[tuple[int, int, int], list[tuple[Fraction, Fraction]]] = {}
        for fault in self.instance.faults:
            pool_index = index[fault.pool] if fault.pool else 0
            key = (pool_index, fault.server, fault.card)
            stalls.setdefault(key, []).append((fault.at_s, fault.at_s + fault.stall_s))
        return tuple(FaultedCard(*key, tuple(when)) for key, when in sorted(stalls.items()))


def dispatch_order(instance: Instance) -> tuple[int, ...]:
    """Return cohort indices session by session, by release, then cohort."""
    cohorts = instance.workload.cohorts
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c].release_s)
    return tuple(c for c in order for _ in range(cohorts[c].num_sessions))


def _priced(
    instance: Instance,
    is_over: Callable[[float], bool],
    *,
    keep_all: bool = False,
    spans: Callable[[Pool, int], Iterator[int]] = spans,
    longest_s: Sequence[Fraction | None] = (),
) -> _Builder:
    builder = _Builder(instance, is_over, keep_all, spans, longest_s)
    for i, pool in enumerate(instance.fleet.pools):
        builder.price_pool(i, pool)
    if not keep_all:
        kept, beaten = without_dominated(instance, builder.candidates)
        builder.candidates = [replace(c, index=i) for i, c in enumerate(kept)]
        builder.rejections += beaten
    return builder


def price_candidates(
    instance: Instance,
    is_over: Callable[[float], bool] = lambda share: False,
    longest_s: Sequence[Fraction | None] = (),
) -> PricedCandidates:
    """Price candidates as `build_tables` does, over several servers those of whole servers only.

    `longest_s` holds the longest that a session of each cohort may take; of a large search,
    candidates whose sessions all take longer are not priced exactly.
    """
    found = _priced(instance, is_over, spans=whole_spans, longest_s=longest_s)
    return PricedCandidates(tuple(found.candidates), tuple(found.rejections), found.is_complete)


def build_tables(
    instance: Instance,
    is_over: Callable[[float], bool] = lambda share: False,
    *,
    keep_all: bool = False,
) -> ProblemTables:
    """Price every candidate of a problem instance, or as many as there is time for.

    `is_over(share)` tells whether that share of the time is used up. `keep_all` keeps candidates
    that no optimal plan needs because another one is at least as good.

    Raises TooLargeError when failing cards multiply the kinds beyond `MAX_KINDS`.
    """
    builder = _priced(instance, is_over, keep_all=keep_all)
    faults = builder.faulted_cards()
    layouts: tuple[Layout, ...] | None = None
    if instance.search.deployment == "uniform":
        kinds, layouts = uniform_layouts(
            instance.fleet.pools, builder.candidates, faults, builder.reject
        )
    else:
        kinds = mixed_kinds(builder.candidates, faults)
    return ProblemTables(
        instance=instance,
        candidates=tuple(builder.candidates),
        rejections=tuple(builder.rejections),
        faulted_cards=faults,
        kinds=kinds,
        layouts=layouts,
        dispatch_order=dispatch_order(instance),
        is_complete=builder.is_complete,
    )
