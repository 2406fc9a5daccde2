"""What a capacity plan adds up to on servers and racks, counted by kinds and never one by one.

Nothing here knows a price of an option: its cards, groups and lanes come from its footprint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.fleet import Fleet
from optimizer.capacity.account import PowerPart
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem, FailureEvent, Option, ServerClass, Tier

#: Integers of more bits than this are not spelled out.
_MAX_BITS = 200


def shown(value: Fraction | int) -> str:
    """Write a number for a message, however absurd it is."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        return "a number too large to print"
    return str(value) if isinstance(value, int) else f"{float(value):.6g}"


def option_words(problem: CapacityProblem, index: int) -> str:
    """Name an option: its model, how it is built, and its pool."""
    option = problem.options[index]
    model, pool = problem.models[option.model], problem.pools[option.pool]
    return f"{model}, {option.footprint.label()} on {pool.name}"


def class_words(problem: CapacityProblem, index: int) -> str:
    """Name a class of servers: its pool, and what tells it apart from others of the pool."""
    one = problem.classes[index]
    pool = problem.pools[one.pool]
    is_alone = len(one.servers) == 1
    text = f"server {pool.name}/{one.servers[0]}" if is_alone else f"servers of {pool.name}"
    if one.site is not None:
        text += f" in rack {problem.sites[one.site].name}"
    return text + (f" with {one.free_cards} free cards" if one.is_occupied else "")


def cards_per_server(option: Option) -> int:
    """Cards that a serving instance takes of each of its servers."""
    footprint = option.footprint
    return -(-footprint.parallel.num_cards // max(footprint.num_servers, 1))


def known_load(problem: CapacityProblem, load: GroupLoad) -> GroupLoad | None:
    """Return a load without what does not exist or is not there at all; None if that is all."""
    if load.count <= 0 or not 0 <= load.option < len(problem.options):
        return None
    lanes = tuple(
        LaneLoad(lane.count, runs)
        for lane in load.lanes
        if lane.count > 0
        and (runs := tuple(run for run in lane.runs if _is_there(run, len(problem.cohorts))))
    )
    return GroupLoad(load.option, load.count, lanes)


def _is_there(pair: tuple[int, int], size: int) -> bool:
    return 0 <= pair[0] < size and pair[1] > 0


def known_part(problem: CapacityProblem, plan: CapacityPlan) -> CapacityPlan:
    """Return racks and servers of a plan without what does not exist and counts below 1."""
    num_classes, num_options = len(problem.classes), len(problem.options)
    racks = tuple(
        RackFill(fill.site, fill.count, tuple(p for p in fill.servers if _is_there(p, num_classes)))
        for fill in plan.racks
        if fill.count > 0 and 0 <= fill.site < len(problem.sites)
    )
    servers = []
    for fill in plan.servers:
        if fill.count > 0 and 0 <= fill.server_class < num_classes:
            spanned = fill.spanned_by
            if spanned is not None and not 0 <= spanned < num_options:
                spanned = None
            blocks = tuple(pair for pair in fill.blocks if _is_there(pair, num_options))
            servers.append(ServerFill(fill.server_class, fill.count, blocks, spanned))
    return replace(plan, racks=racks, servers=tuple(servers))


@dataclass(frozen=True)
class FleetCount:
    """Servers, racks and serving instances of a plan, of which everything exists.

    By class: `listed` servers, those of them that are `in_use` since they hold a serving instance,
    those that are `bought` or of an existing fleet `on`, and those in racks that are bought. By
    site: racks `bought`, or of an existing fleet the fewest that servers in use can stand in.
    `blocks[option, class]` counts serving instances, `spanned[option, class]` servers.
    """

    problem: CapacityProblem
    listed: tuple[int, ...]
    in_use: tuple[int, ...]
    on: tuple[int, ...]
    in_racks: tuple[int, ...]
    racks: tuple[int, ...]
    blocks: Mapping[tuple[int, int], int]
    spanned: Mapping[tuple[int, int], int]

    def by_pool(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Add counts by class up by pool."""
        return tuple(sum(counts[c] for c in held) for held in self.problem.classes_of_pool)

    @property
    def bought(self) -> tuple[int, ...]:
        """Servers by class that are bought; of an existing fleet those in use."""
        return self.listed if self.problem.is_purchase else self.in_use

    @property
    def paid(self) -> tuple[int, ...]:
        """Servers by class that this plan pays: not those that others have on anyway."""
        pairs = zip(self.bought, self.problem.classes, strict=True)
        return tuple(0 if one.is_occupied else count for count, one in pairs)

    @property
    def endpoints(self) -> int:
        """Cards of all servers that are on."""
        return sum(
            count * self.problem.pools[one.pool].num_cards
            for count, one in zip(self.on, self.problem.classes, strict=True)
        )

    @property
    def needed_tiers(self) -> tuple[Tier, ...]:
        """Tiers that so many endpoints need."""
        return tuple(tier for tier in self.problem.tiers if self.endpoints > tier.above_endpoints)

    def instances(self, event: FailureEvent | None = None) -> dict[int, int]:
        """Count serving instances of the options in use, those that an event leaves.

        Of servers that hold instances over several servers of one cell, each that is lost takes an
        instance of its own, as far as there are so many.
        """
        lost = frozenset(() if event is None else event.classes)
        found: dict[int, int] = defaultdict(int)
        for (o, c), count in self.blocks.items():
            found[o] += 0 if c in lost else count
        cells: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for (o, c), count in self.spanned.items():
            cell = cells[o, self.problem.classes[c].cell]
            cell[0] += count
            cell[1] += count if c in lost else 0
        for (o, _), (servers, gone) in cells.items():
            whole = servers // max(self.problem.options[o].footprint.num_servers, 1)
            found[o] += max(whole - gone, 0)
        if event is not None and event.option in found:
            found[event.option] = max(found[event.option] - 1, 0)
        return dict(found)

    def left_over(self) -> Iterator[tuple[int, int, int]]:
        """Yield (option, class, servers) that make no whole serving instance in their cell."""
        cells: dict[tuple[int, int], list[int]] = defaultdict(list)
        for o, c in self.spanned:
            cells[o, self.problem.classes[c].cell].append(c)
        for (o, _), classes in cells.items():
            size = max(self.problem.options[o].footprint.num_servers, 1)
            over = sum(self.spanned[o, c] for c in classes) % size
            if over:
                yield o, classes[0], over

    def power_parts(self) -> tuple[PowerPart, ...]:
        """Return what draws power: fixed, the servers that are on of each pool, each tier."""
        problem, needed = self.problem, self.needed_tiers
        on = zip(problem.pools, self.by_pool(self.on), strict=True)
        return (
            PowerPart("fixed", 1, problem.fixed_w),
            *(PowerPart(f"servers of {pool.name}", count, pool.power_w) for pool, count in on),
            *(PowerPart(f"tier {t.name}", int(t in needed), t.power_w) for t in problem.tiers),
        )

    def rack_watts(self, site: int) -> int:
        """Watts that servers which are on draw on a site."""
        return sum(
            count * self.problem.pools[one.pool].power_w
            for count, one in zip(self.on, self.problem.classes, strict=True)
            if one.site == site
        )


def price_per_hour(count: FleetCount) -> Fraction:
    """Return the price of servers, racks and tiers that a plan pays."""
    problem, price = count.problem, Fraction(0)
    for pool, servers in zip(problem.pools, count.by_pool(count.paid), strict=True):
        price += servers * pool.price_per_hour
    for site, racks in zip(problem.sites, count.racks, strict=True):
        price += racks * site.price_per_hour
    return price + sum((tier.price_per_hour for tier in count.needed_tiers), Fraction(0))


def is_told_apart(problem: CapacityProblem, site: int) -> bool:
    """Whether it is known how many racks of a site are in use."""
    return problem.is_purchase or problem.sites[site].count == 1


def count_fleet(problem: CapacityProblem, fleet: Fleet, plan: CapacityPlan) -> FleetCount:
    """Count a plan of which everything exists."""
    size = len(problem.classes)
    listed, in_use, in_racks = [0] * size, [0] * size, [0] * size
    blocks: dict[tuple[int, int], int] = defaultdict(int)
    spanned: dict[tuple[int, int], int] = defaultdict(int)
    for fill in plan.servers:
        c = fill.server_class
        listed[c] += fill.count
        if fill.blocks or fill.spanned_by is not None:
            in_use[c] += fill.count
        for o, number in fill.blocks:
            blocks[o, c] += fill.count * number
        if fill.spanned_by is not None:
            spanned[fill.spanned_by, c] += fill.count
    racks = [0] * len(problem.sites)
    for rack in plan.racks:
        racks[rack.site] += rack.count
        for c, number in rack.servers:
            in_racks[c] += rack.count * number
    if not problem.is_purchase:
        racks = [_racks_in_use(problem, fleet, s, in_use) for s in range(len(problem.sites))]
    on = [_servers_on(problem, one, listed, in_use) for one in problem.classes]
    return FleetCount(
        problem,
        tuple(listed),
        tuple(in_use),
        tuple(on),
        tuple(in_racks),
        tuple(racks),
        dict(blocks),
        dict(spanned),
    )


def _servers_on(
    problem: CapacityProblem, one: ServerClass, listed: list[int], in_use: list[int]
) -> int:
    """Servers of a class that draw power: bought, in use, or occupied by others."""
    if problem.is_purchase:
        return listed[one.index]
    return one.count if one.is_occupied else in_use[one.index]


def _racks_in_use(problem: CapacityProblem, fleet: Fleet, site: int, in_use: list[int]) -> int:
    """Racks of an existing site with a server in use; the fewest where they are many and alike."""
    fewest = 0
    for held in fleet.racks[problem.sites[site].kind].servers:
        servers = sum(
            in_use[c.index]
            for c in problem.classes
            if c.site == site and problem.pools[c.pool].name == held.pool
        )
        fewest = max(fewest, -(-servers // held.num_servers))
    return min(fewest, problem.sites[site].count)
