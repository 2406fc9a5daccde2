"""Which servers stand in which rack and what each holds: counts of kinds, dealt out in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from optimizer.capacity.plan import CapacityPlan, ServerFill
from optimizer.capacity.problem import RackSite
from optimizer.side.capacity_accounts import (
    BlockDocument,
    PlacedRackDocument,
    PlacedServerDocument,
)
from optimizer.side.capacity_plans import PlanNames


@dataclass(frozen=True, slots=True)
class Held:
    """What a server of a pool holds, as in `ServerFill`; an idle one holds nothing."""

    pool: int
    free_cards: int
    blocks: tuple[tuple[int, int], ...] = ()
    spanned_by: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no serving instance has a card of it."""
        return not self.blocks and self.spanned_by is None

    @property
    def order(self) -> tuple[int, bool, int, bool, int, tuple[tuple[int, int], ...]]:
        """Pools in order; in each those with most free cards first, idle ones last."""
        is_shared, option = self.spanned_by is None, self.spanned_by or 0
        blocks = tuple((-number, option) for option, number in self.blocks)
        return self.pool, self.is_idle, -self.free_cards, is_shared, option, blocks


@dataclass(slots=True)
class _Rack:
    """`count` racks of a kind that hold the same; None: servers that stand in no rack.

    `numbers` are those of the racks, `servers` those of the servers that hold the same.
    """

    site: int | None
    count: int
    content: Counter[Held]
    numbers: list[int] = field(default_factory=list)
    servers: dict[Held, list[int]] = field(default_factory=dict)


def placement(names: PlanNames, plan: CapacityPlan) -> list[PlacedRackDocument]:
    """Return racks with what each of their servers holds, equal ones together.

    What servers hold is dealt to the racks of a site in the order of the plan. Of an existing
    fleet, servers not in use are there as well, and all have their numbers.
    """
    problem = names.problem
    merged: dict[object, _Rack] = {}
    for rack in (_bought if problem.is_purchase else _existing)(names, plan):
        kind = None if rack.site is None else problem.sites[rack.site].kind
        found = merged.setdefault((kind, frozenset(rack.content.items())), rack)
        if found is not rack:
            found.count += rack.count
            found.numbers += rack.numbers
            for held, servers in rack.servers.items():
                found.servers[held] += servers
    return [_document(names, rack) for rack in merged.values()]


def _held(names: PlanNames, fill: ServerFill) -> Held:
    place = names.problem.classes[fill.server_class]
    blocks = tuple(sorted((o, n) for o, n in fill.blocks if n))
    return Held(place.pool, place.free_cards, blocks, fill.spanned_by)


class _Queue:
    """Servers of one class that wait for a rack: runs of equal ones."""

    def __init__(self) -> None:
        self.runs: list[tuple[Held, int]] = []

    def num_alike(self, number: int) -> int:
        """Return how many racks with `number` of these servers would be alike; 1 at least."""
        return max(self.runs[0][1] // number, 1) if self.runs else 1

    def take(self, number: int) -> Iterator[tuple[Held, int]]:
        """Yield what the next `number` servers hold, which wait no more."""
        while number and self.runs:
            held, count = self.runs.pop(0)
            if count > number:
                self.runs.insert(0, (held, count - number))
            yield held, min(count, number)
            number -= min(count, number)


def _bought(names: PlanNames, plan: CapacityPlan) -> Iterator[_Rack]:
    """Deal the servers of every class to the racks that are bought, as many alike as there are."""
    queues = defaultdict[int, _Queue](_Queue)
    for fill in plan.servers:
        if fill.count:
            queues[fill.server_class].runs.append((_held(names, fill), fill.count))
    for rack in plan.racks:
        site = names.problem.sites[rack.site]
        left = rack.count
        while left:
            alike = min([left, *(queues[c].num_alike(n) for c, n in rack.servers if n)])
            content = Counter[Held]()
            for c, number in rack.servers:
                if alike == 1:
                    for held, share in queues[c].take(number):
                        content[held] += share
                    continue
                for held, _ in queues[c].take(number * alike):
                    content[held] += number
            numbers = [] if site.number is None else [site.number]
            yield _Rack(rack.site, alike, content, numbers)
            left -= alike
    rest = Counter[Held]()
    for queue in queues.values():
        for held, count in queue.runs:
            rest[held] += count
    if rest:
        yield _Rack(None, 1, rest)


def _existing(names: PlanNames, plan: CapacityPlan) -> Iterator[_Rack]:
    """Give fills the first servers of their classes, then look rack by rack."""
    racks: dict[tuple[int | None, int], _Rack] = {}
    fills = defaultdict[int, list[ServerFill]](list)
    for fill in plan.servers:
        fills[fill.server_class].append(fill)
    pools = _first_and_share(names)
    for place in names.problem.classes:
        idle = Held(place.pool, place.free_cards)
        waiting = iter(place.servers)
        given = [(_held(names, f), _next(waiting, f.count)) for f in fills[place.index]]
        for held, servers in (*given, (idle, list(waiting))):
            for number in servers:
                first, share = pools[place.pool, place.site]
                at = 0 if place.site is None else (number - first) // share
                rack = racks.setdefault((place.site, at), _Rack(place.site, 1, Counter()))
                rack.content[held] += 1
                rack.servers.setdefault(held, []).append(number)
    for (site, at), rack in sorted(racks.items(), key=lambda item: (item[0][0] or 0, item[0][1])):
        if site is not None:
            only = names.problem.sites[site].number
            rack.numbers = [at if only is None else only]
        yield rack


def _first_and_share(names: PlanNames) -> dict[tuple[int, int | None], tuple[int, int]]:
    """Return the first server of every pool on every site, and how many one rack holds.

    The numbers of a pool's servers run through the equal racks of a site.
    """
    found = defaultdict[tuple[int, int | None], list[int]](list)
    for place in names.problem.classes:
        found[place.pool, place.site] += place.servers
    return {
        (pool, site): (
            min(servers, default=0),
            max(len(servers) // (1 if site is None else names.problem.sites[site].count), 1),
        )
        for (pool, site), servers in found.items()
    }


def _next(servers: Iterator[int], count: int) -> list[int]:
    return [number for _, number in zip(range(count), servers, strict=False)]


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as "0-3, 6"."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def _document(names: PlanNames, rack: _Rack) -> PlacedRackDocument:
    problem = names.problem
    site = None if rack.site is None else problem.sites[rack.site]
    servers = sorted(rack.content.items(), key=lambda item: item[0].order)
    on = [
        (problem.pools[held.pool], number)
        for held, number in servers
        if problem.is_purchase
        or not held.is_idle
        or held.free_cards < problem.pools[held.pool].num_cards
    ]
    used = sum(problem.pools[held.pool].rack_units * number for held, number in servers)
    return PlacedRackDocument(
        rack=None if site is None else _rack_name(site, rack.numbers),
        count=rack.count,
        units=None if site is None else site.units,
        used_units=None if site is None else used,
        limit_w=None if site is None else site.limit_w,
        power_w=sum(pool.power_w * number for pool, number in on),
        servers=[
            _server(names, held, number, rack.servers.get(held, ()), site is not None)
            for held, number in servers
        ],
    )


def kind_name(site: RackSite) -> str:
    """Return what all racks of a kind are called: "air" for the site "air/0" that is one."""
    return site.name if site.number is None else site.name.rpartition("/")[0]


def _rack_name(site: RackSite, numbers: Sequence[int]) -> str:
    """Return the name of racks of a kind with their numbers, where they have any: "air/0-2"."""
    name = kind_name(site)
    return f"{name}/{number_ranges(numbers)}" if numbers else name


def _server(
    names: PlanNames, held: Held, count: int, numbers: Iterable[int], in_rack: bool
) -> PlacedServerDocument:
    pool, spanning = names.problem.pools[held.pool], held.spanned_by
    return PlacedServerDocument(
        pool=pool.name,
        count=count,
        numbers=number_ranges(numbers),
        num_cards=pool.num_cards,
        free_cards=held.free_cards,
        rack_units=pool.rack_units if in_rack else None,
        instances=[BlockDocument(instance=names.options[o], number=n) for o, n in held.blocks],
        spanned_by=None if spanning is None else names.options[spanning],
    )
