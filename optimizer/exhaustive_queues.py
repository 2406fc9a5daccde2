"""What the brute-force oracle adds up: every way to keep sessions waiting on a serving instance.

All in integers: bytes, and whole ticks of one unit for the whole problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain, product
from typing import Any, NamedTuple

from instances.fleet import Pool
from instances.instance import Instance
from optimizer.collectives import NO_COLLECTIVE
from optimizer.configurations import configurations
from optimizer.errors import TooLargeError
from optimizer.evaluate import instance_stalls
from optimizer.footprint_prices import FootprintPrices
from optimizer.footprints import check_footprint
from optimizer.legality import check_config
from optimizer.measured import is_replaced
from optimizer.plan import CardId, Footprint, ServingInstance
from optimizer.stages.building import pipeline_cut
from optimizer.steps import needs_collective
from optimizer.surroundings.connections import host_setup_s, state_bytes
from optimizer.timeline import ZERO, Stall, run_session

#: Most decode steps to price one by one; looking at a configuration counts as `CONFIGURATION`.
MAX_STEPS, CONFIGURATION = 2_000_000, 500

Cards = tuple[CardId, ...]
#: How many sessions of each cohort.
Counts = tuple[int, ...]


class Kind(NamedTuple):
    """What makes serving instances equally fast: their footprint, by index, and failing cards."""

    shape: int
    failing: Cards = ()


class Row(NamedTuple):
    """Sessions in order, and what they give; times in ticks.

    `order` lists cohorts on a lane, lanes in an attention group, and groups in an instance.
    """

    order: tuple[Any, ...]
    counts: Counts
    end: int
    latency: int
    completions: int
    on_time: int


def footprints(instance: Instance) -> Iterator[Footprint]:
    """Yield every footprint that model, engine, search and fabrics allow.

    Raises TooLargeError when there are too many to price.
    """
    left, new_tokens = MAX_STEPS, sum(cohort.new_tokens for cohort in instance.workload.cohorts)
    for pool in instance.fleet.pools:
        for config in configurations(instance, pool):
            for footprint in _built(instance, pool, Footprint(pool.name, config, 1, "")):
                yield footprint
                left -= new_tokens
            left -= CONFIGURATION
            if left < 0:
                raise TooLargeError("more footprints than exhaustive search can price")


def _built(instance: Instance, pool: Pool, bare: Footprint) -> Iterator[Footprint]:
    """Yield the footprints of one configuration: batches, spans and collectives."""
    search, config = instance.search, bare.parallel
    spans = [
        k
        for k in range(1, pool.num_servers + 1)
        if config.num_cards % k == 0
        and config.num_cards // k <= pool.server.num_cards
        and (k == 1 or (pool.fabric_between is not None and _is_connected(pool, k)))
    ]
    if not spans or check_config(instance.model, config, instance.engine):
        return
    stages = pipeline_cut(instance, bare) if config.pp > 1 else ()
    if stages is None:
        return
    for batch, micro_batches, k in product(search.batch, search.micro_batches, spans):
        built = Footprint(pool.name, config, k, NO_COLLECTIVE, stages, batch, micro_batches)
        if not check_footprint(instance, built):
            is_open = needs_collective(instance, built)
            for name in search.collective_options if is_open else (NO_COLLECTIVE,):
                named = replace(built, collective=name)
                if not is_replaced(instance, pool, named):
                    yield named


def _is_connected(pool: Pool, num_servers: int) -> bool:
    """Whether NICs hold the connections between so many servers, and have them in time."""
    spec = pool.connections
    if spec is None:
        return True
    if spec.cache_bytes is not None and state_bytes(spec, num_servers) > spec.cache_bytes:
        return False
    return spec.max_setup_s is None or host_setup_s(spec, num_servers) <= spec.max_setup_s


class Queues:
    """Exact results of every way to share sessions out on every kind; and the budget."""

    def __init__(self, instance: Instance, max_plans: int) -> None:
        self.instance, self.left = instance, {"plans": max_plans, "partial plans": max_plans + 1000}
        self.cohorts = instance.workload.cohorts
        self.sizes = tuple(cohort.num_sessions for cohort in self.cohorts)
        self.pools = {pool.name: pool for pool in instance.fleet.pools}
        self.failing: dict[str, Cards] = dict.fromkeys(self.pools, ())
        for fault in instance.faults:
            name, card = fault.pool or next(iter(self.pools)), CardId(fault.server, fault.card)
            self.failing[name] = tuple(sorted({*self.failing[name], card}))
        self._price()
        self._lanes: dict[tuple[Kind, tuple[int, ...]], Row] = {}
        self._dealt: dict[tuple[Kind, tuple[int, ...]], Row | None] = {}
        self._tables: dict[Kind, dict[Counts, list[Row]]] = {}

    def _price(self) -> None:
        """Keep the footprints whose weights fit and whose steps have a price."""
        instance, prices = self.instance, FootprintPrices(self.instance)
        self.shapes: list[Footprint] = []
        #: For each shape: free bytes of its stages, and each session's bytes on them by cohort.
        self.memory: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = []
        self.held: list[int] = []
        service: list[list[Fraction]] = []
        for built in list(footprints(instance)):  # counted first, priced then
            room = prices.usable_bytes(built) - prices.buffer_bytes(built)
            free = tuple(room - weights for weights in prices.stage_weights(built))
            times = [prices.service_s(built, c) for c in self.cohorts] if min(free) >= 0 else []
            known = [time for time in times if time is not None]
            if len(known) == len(self.cohorts):
                self.shapes.append(built)
                bytes_of = (prices.session_bytes(built, cohort) for cohort in self.cohorts)
                self.memory.append((free, tuple(bytes_of)))
                self.held.append(prices.held_sessions(built, self.cohorts[0]))
                service.append(known)
        moments = [cohort.release_s for cohort in self.cohorts]
        moments += [fault.at_s + s for fault in instance.faults for s in (ZERO, fault.stall_s)]
        # Every end is a sum of these, hence a whole number of ticks.
        self.unit = unit = math.lcm(*(t.denominator for t in chain(moments, *service)))
        self.ticks = [[time * unit for time in row] for row in service]
        self.windows = [(c.release_s * unit, (c.deadline_s or 0) * unit) for c in self.cohorts]

    def spend(self, what: str = "partial plans", count: int = 1) -> None:
        """Take from the budget; raises TooLargeError when it is used up."""
        self.left[what] -= count
        if self.left[what] < 0:
            raise TooLargeError(f"more {what} than exhaustive search was told to look at")

    def fits(self, shape: int, counts: Counts) -> bool:
        """Whether an attention group holds so many sessions on every stage."""
        free, sizes = self.memory[shape]
        return all(
            sum(n * size[stage] for n, size in zip(counts, sizes, strict=True)) <= room
            for stage, room in enumerate(free)
        )

    def lane(self, kind: Kind, queue: tuple[int, ...]) -> Row:
        """Return what a lane gives that serves a queue of cohorts, whether it fits or not."""
        if (kind, queue) not in self._lanes:
            self.spend()
            self._lanes[kind, queue] = self._run(kind, queue)
        return self._lanes[kind, queue]

    def _run(self, kind: Kind, queue: tuple[int, ...]) -> Row:
        if not queue:
            return Row((), (0,) * len(self.cohorts), 0, 0, 0, 0)
        before, last = self.lane(kind, queue[:-1]), queue[-1]
        built, (release, due) = self.shapes[kind.shape], self.windows[last]
        # Sound cards never stall, so the failing ones stand for the whole serving instance.
        owner = ServingInstance(built.pool, built.parallel, built.collective, kind.failing)
        found = instance_stalls(self.instance, owner)
        stalls = [Stall(s.from_s * self.unit, s.until_s * self.unit) for s in found]
        ready = max(Fraction(before.end), release)
        end = int(run_session(ready, self.ticks[kind.shape][last], stalls).finish_s)
        late = self.cohorts[last].deadline_s is not None and end > due
        return Row(
            queue,
            tuple(n + (c == last) for c, n in enumerate(before.counts)),
            end,
            max(before.latency, end - int(release)),
            before.completions + end,
            before.on_time + (not late),
        )

    def dealt(self, kind: Kind, cohorts: tuple[int, ...]) -> Row | None:
        """Return sessions dealt to the lanes in turn; None when they do not fit in memory."""
        if (kind, cohorts) not in self._dealt:
            built = self.shapes[kind.shape]
            count, each = built.parallel.dp * built.lanes_per_group, built.lanes_per_group
            lanes = [self.lane(kind, cohorts[i::count]) for i in range(count)]
            groups = [together(lanes[i : i + each]) for i in range(0, count, each)]
            fit = all(self.fits(kind.shape, group.counts) for group in groups)
            self._dealt[kind, cohorts] = together(groups) if fit else None
        return self._dealt[kind, cohorts]

    def table(self, kind: Kind) -> dict[Counts, list[Row]]:
        """Return every way to keep sessions on a kind that fits, by how many of each cohort.

        Lanes of a group are interchangeable, and so are groups.
        """
        if kind not in self._tables:
            # One lane alone makes this many plans: fail before listing them.
            orders = math.factorial(sum(self.sizes)) // math.prod(map(math.factorial, self.sizes))
            if orders > self.left["plans"] and self.fits(kind.shape, self.sizes):
                self.spend("plans", orders)
            built, lanes = self.shapes[kind.shape], list(self._queues(kind))
            groups = list(self._several(kind, lanes, built.lanes_per_group))
            table = self._tables[kind] = {}
            # Groups that are one by one small enough need no look at the sum.
            for row in self._several(None, groups[1:], built.parallel.dp):
                table.setdefault(row.counts, []).append(row)
        return self._tables[kind]

    def _queues(self, kind: Kind) -> Iterator[Row]:
        """Yield every queue of one lane, except the empty one, that fits."""
        queues: list[tuple[int, ...]] = [()]
        for queue in queues:  # grows as it goes
            row = self.lane(kind, queue)
            if self.fits(kind.shape, row.counts):  # else a longer queue does not fit either
                more = (c for c, size in enumerate(self.sizes) if row.counts[c] < size)
                queues.extend((*queue, c) for c in more)
                if queue:
                    yield row

    def _several(self, kind: Kind | None, rows: list[Row], most: int) -> Iterator[Row]:
        """Yield every multiset of at most so many rows, the empty one first.

        It has no more sessions than there are, and fits in the memory of one group of a kind.
        """

        def extend(first: int, chosen: tuple[Row, ...], counts: Counts) -> Iterator[Row]:
            self.spend()
            yield together(chosen) if chosen else Row((), counts, 0, 0, 0, 0)
            for i in range(first, len(rows) if len(chosen) < most else 0):
                held = tuple(map(sum, zip(counts, rows[i].counts, strict=True)))
                are_there = all(n <= size for n, size in zip(held, self.sizes, strict=True))
                if are_there and (kind is None or self.fits(kind.shape, held)):
                    yield from extend(i, (*chosen, rows[i]), held)

        yield from extend(0, (), (0,) * len(self.sizes))


def together(rows: list[Row] | tuple[Row, ...]) -> Row:
    """Return what rows give side by side; at least one."""
    orders, counts, ends, latencies, completions, on_time = zip(*rows, strict=True)
    held = tuple(map(sum, zip(*counts, strict=True)))
    return Row(orders, held, max(ends), max(latencies), sum(completions), sum(on_time))
