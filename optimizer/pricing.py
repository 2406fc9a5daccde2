"""Prices every candidate of a problem instance; what cannot be used leaves with its reason.

Service times come from closed sums, unlike the evaluator's step-by-step ones, so that each checks
the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

from instances.fleet import Pool
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.checks import uniform_cards
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable, all_reduce_s
from optimizer.errors import TooLargeError
from optimizer.operators import (
    LinearWork,
    card_flops,
    card_read_bytes,
    kv_bytes_per_token_per_card,
    message_bytes,
    reductions_per_step,
)
from optimizer.ownership import card_weight_bytes
from optimizer.parallel import check_heads, legal_tp
from optimizer.plan import CardId
from optimizer.tables import Candidate, FaultedCard, Kind, Layout, ProblemTables, Rejection

#: More kinds than this and the tables decline the problem.
MAX_KINDS = 20_000


def sum_longest_s(first: LinearWork, second: LinearWork, start: int, count: int) -> Fraction:
    """Sum max(first, second) over `count` contexts from `start` on, by arithmetic series."""
    if first.per_token < second.per_token:
        first, second = second, first
    slope = first.per_token - second.per_token
    split = 0  # steps before the faster-growing line is on top
    if slope:
        root = (second.base - first.base) / slope
        split = min(max(-((-root.numerator) // root.denominator) - start, 0), count)
    elif second.base > first.base:
        split = count

    def series(work: LinearWork, begin: int, terms: int) -> Fraction:
        return terms * work.base + work.per_token * (terms * begin + terms * (terms - 1) // 2)

    return series(second, start, split) + series(first, start + split, count - split)


class _Builder:
    """Prices the candidates of one instance and collects the rejections."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.candidates: list[Candidate] = []
        self.rejections: list[Rejection] = []

    def reject(
        self,
        pool: Pool,
        tp: int,
        servers: int,
        collective: str | None,
        rule: str,
        amount: Fraction | int,
        unit: str,
        message: str,
    ) -> None:
        self.rejections.append(
            Rejection(pool.name, tp, servers, collective, rule, amount, unit, message)
        )

    def degrees(self, pool: Pool) -> tuple[int, ...]:
        """Degrees to consider: those asked for, or all legal ones and what one server might try."""
        if self.instance.search.tp is not None:
            return tuple(sorted(self.instance.search.tp))
        legal = legal_tp(self.instance.model, pool.num_cards)
        tried = range(1, min(pool.server.num_cards, 64) + 1)
        return tuple(sorted({*legal, *tried}))

    def spans(self, pool: Pool, tp: int) -> Iterator[int]:
        """Yield the numbers of servers an instance of `tp` cards may span, with equal shares."""
        for servers in range(1, min(pool.num_servers, tp) + 1):
            if tp % servers or tp // servers > pool.server.num_cards:
                continue
            if servers == 1 or pool.fabric_between is not None:
                yield servers

    def price_pool(self, pool_index: int, pool: Pool) -> None:
        for tp in self.degrees(pool):
            broken = check_heads(self.instance.model, tp)
            if broken is not None:
                self.reject(pool, tp, 1, None, broken.rule, broken.amount, "heads", broken.message)
                continue
            spans = tuple(self.spans(pool, tp))
            if not spans:
                self.reject_span(pool, tp)
            elif self.fits(pool, tp):
                for servers in spans:
                    self.price(pool_index, pool, tp, servers)

    def reject_span(self, pool: Pool, tp: int) -> None:
        if tp > pool.num_cards:
            short = tp - pool.num_cards
            text = f"TP{tp} needs {tp} cards; pool {pool.name!r} has {pool.num_cards}"
            self.reject(pool, tp, 1, None, "num_cards", short, "cards", text)
        elif pool.fabric_between is None and tp > pool.server.num_cards:
            short = tp - pool.server.num_cards
            text = (
                f"TP{tp} exceeds a server's {pool.server.num_cards} cards and pool {pool.name!r} "
                f"has no fabric_between"
            )
            self.reject(pool, tp, 1, None, "span", short, "cards", text)
        else:
            text = f"no equal number of cards on several servers of {pool.name!r} makes {tp}"
            self.reject(pool, tp, 1, None, "uneven_span", 1, "cards", text)

    def fits(self, pool: Pool, tp: int) -> bool:
        """Whether a card holds its weights and the smallest session; a rejection if not.

        In a uniform search an instance may stand idle, so there the weights alone are enough.
        """
        smallest = min(c.held_tokens for c in self.instance.workload.cohorts)
        if self.instance.search.deployment == "uniform" and self.free_bytes(pool, tp) >= 0:
            return True
        short = smallest * kv_bytes_per_token_per_card(self.instance.model, tp) - self.free_bytes(
            pool, tp
        )
        if short <= 0:
            return True
        need = self.usable_bytes(pool) + short
        text = (
            f"a card needs {human_bytes(need)} of its {human_bytes(self.usable_bytes(pool))} for "
            f"one session: {human_bytes(short)} ({short} B) short"
        )
        self.reject(pool, tp, 1, None, "memory", short, "B", text)
        return False

    def usable_bytes(self, pool: Pool) -> int:
        fraction = self.instance.runtime.usable_memory_fraction
        return int(pool.server.accelerator.memory_bytes * fraction)

    def free_bytes(self, pool: Pool, tp: int) -> int:
        """Bytes left for KV on a card."""
        taken = card_weight_bytes(self.instance.model, tp) + self.instance.runtime.workspace_bytes
        return self.usable_bytes(pool) - taken

    def price(self, pool_index: int, pool: Pool, tp: int, servers: int) -> None:
        """Add the candidates of one footprint: a collective each, or in a mixed search the best.

        Collectives differ in time alone and every objective prefers earlier, so the slower ones
        are dominated; a uniform search keeps them because all pools must use the same.
        """
        priced: list[tuple[Fraction, str]] = []
        for name in (NO_COLLECTIVE,) if tp == 1 else self.instance.search.collectives:
            fabric = pool.server.fabric if servers == 1 else pool.fabric_between
            assert fabric is not None
            try:
                one = all_reduce_s(name, fabric, tp, servers, message_bytes(self.instance.model))
            except CollectiveUnavailable as error:
                self.reject(pool, tp, servers, name, error.rule, tp, "ranks", str(error))
                continue
            priced.append((reductions_per_step(self.instance.model) * one, name))
        if self.instance.search.deployment == "mixed" and priced:
            best = min(priced)
            for seconds, name in priced:
                if name != best[1]:
                    slower = human_seconds(seconds - best[0])
                    text = f"{name} takes {slower} a step longer than {best[1]}"
                    self.reject(
                        pool, tp, servers, name, "slower_collective", seconds - best[0], "s", text
                    )
            priced = [best]
        for seconds, name in priced:
            self.candidates.append(self.candidate(pool_index, pool, tp, servers, name, seconds))

    def candidate(
        self, pool_index: int, pool: Pool, tp: int, servers: int, name: str, reductions_s: Fraction
    ) -> Candidate:
        model, accelerator = self.instance.model, pool.server.accelerator
        peak = accelerator.peak(model.formats.weights)
        assert peak is not None  # the instance schema demands it
        flops, reads = card_flops(model, tp), card_read_bytes(model, tp)
        bandwidth = accelerator.memory_bandwidth_bytes_per_s
        compute_s = LinearWork(flops.base / peak, flops.per_token / peak)
        read_s = LinearWork(reads.base / bandwidth, reads.per_token / bandwidth)
        services = tuple(
            sum_longest_s(compute_s, read_s, c.context_tokens, c.new_tokens)
            + c.new_tokens * reductions_s
            for c in self.instance.workload.cohorts
        )
        return Candidate(
            index=len(self.candidates),
            pool_index=pool_index,
            pool=pool.name,
            tp=tp,
            num_servers=servers,
            collective=name,
            max_tokens=self.free_bytes(pool, tp) // kv_bytes_per_token_per_card(model, tp),
            service_s=services,
            power_w=Fraction((pool.server.power_w or 0) * tp, pool.server.num_cards),
        )

    def faulted_cards(self) -> tuple[FaultedCard, ...]:
        index = {pool.name: i for i, pool in enumerate(self.instance.fleet.pools)}
        stalls: dict[tuple[int, int, int], list[tuple[Fraction, Fraction]]] = {}
        for fault in self.instance.faults:
            pool_index = index[fault.pool] if fault.pool else 0
            key = (pool_index, fault.server, fault.card)
            stalls.setdefault(key, []).append((fault.at_s, fault.at_s + fault.stall_s))
        return tuple(FaultedCard(*key, tuple(when)) for key, when in sorted(stalls.items()))


def _union(parts: list[tuple[Fraction, Fraction]]) -> tuple[tuple[Fraction, Fraction], ...]:
    joined: list[tuple[Fraction, Fraction]] = []
    for begin, end in sorted(parts):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def _make_kind(
    index: int, candidate: Candidate, owned: tuple[int, ...], faults: tuple[FaultedCard, ...]
) -> Kind:
    stalls = _union([stall for f in owned for stall in faults[f].stalls])
    return Kind(index, candidate, owned, stalls)


def _mixed_kinds(candidates: list[Candidate], faults: tuple[FaultedCard, ...]) -> tuple[Kind, ...]:
    """Every candidate with every set of failing cards it could own."""
    kinds: list[Kind] = []
    for candidate in candidates:
        mine = [i for i, f in enumerate(faults) if f.pool_index == candidate.pool_index]
        for size in range(len(mine) + 1):
            for owned in combinations(mine, size):
                servers = [faults[f].server for f in owned]
                crowded = any(servers.count(s) > candidate.cards_per_server for s in servers)
                if crowded or len(set(servers)) > candidate.num_servers:
                    continue
                kinds.append(_make_kind(len(kinds), candidate, owned, faults))
                if len(kinds) > MAX_KINDS:
                    raise TooLargeError(f"more than {MAX_KINDS} kinds of serving instance")
    return tuple(kinds)


def _uniform(
    builder: _Builder, faults: tuple[FaultedCard, ...]
) -> tuple[tuple[Kind, ...], tuple[Layout, ...]]:
    """Return the kinds and layouts of equal serving instances that fill every pool."""
    pools = builder.instance.fleet.pools
    kinds: dict[tuple[int, tuple[int, ...]], Kind] = {}
    layouts: list[Layout] = []
    found: dict[tuple[int, int, str], dict[int, Candidate]] = {}
    for c in builder.candidates:
        found.setdefault((c.tp, c.num_servers, c.collective), {})[c.pool_index] = c
    for (tp, servers, name), by_pool in found.items():
        placed: list[tuple[int, tuple[CardId, ...]]] = []
        for i, pool in enumerate(pools):
            blocks = tuple(uniform_cards(pool, tp, servers))
            if i not in by_pool or not blocks:
                if i in by_pool:
                    block = tp // servers
                    left = pool.server.num_cards % block * pool.num_servers or (
                        pool.num_servers % servers * pool.server.num_cards
                    )
                    text = (
                        f"TP{tp} over {servers} server(s) leaves {left} of {pool.num_cards} cards"
                    )
                    builder.reject(pool, tp, servers, name, "uniform", left, "cards", text)
                placed = []
                break
            for cards in blocks:
                owned = tuple(
                    f
                    for f, fault in enumerate(faults)
                    if fault.pool_index == i and CardId(fault.server, fault.card) in cards
                )
                key = (by_pool[i].index, owned)
                if key not in kinds:
                    kinds[key] = _make_kind(len(kinds), by_pool[i], owned, faults)
                placed.append((kinds[key].index, cards))
        if placed:
            layouts.append(Layout(tuple(placed)))
    return tuple(kinds.values()), tuple(layouts)


def build_tables(instance: Instance) -> ProblemTables:
    """Price every candidate of a problem instance.

    Raises TooLargeError when failing cards multiply the kinds beyond `MAX_KINDS`.
    """
    builder = _Builder(instance)
    for i, pool in enumerate(instance.fleet.pools):
        builder.price_pool(i, pool)
    faults = builder.faulted_cards()
    layouts: tuple[Layout, ...] | None = None
    if instance.search.deployment == "uniform":
        kinds, layouts = _uniform(builder, faults)
    else:
        kinds = _mixed_kinds(builder.candidates, faults)
    cohorts = instance.workload.cohorts
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c].release_s)
    return ProblemTables(
        instance=instance,
        candidates=tuple(builder.candidates),
        rejections=tuple(builder.rejections),
        faulted_cards=faults,
        kinds=kinds,
        layouts=layouts,
        dispatch_order=tuple(c for c in order for _ in range(cohorts[c].num_sessions)),
    )
