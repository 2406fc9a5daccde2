"""One `check_<rule>` per rule of servers, racks and power that a capacity plan must keep.

All but the first two look at the part of a plan that exists (`known_part`). Amounts are measured:
of servers and racks that are alike, those of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optimizer.capacity.ledger import (
    FleetCount,
    cards_per_server,
    class_words,
    option_words,
    shown,
)
from optimizer.capacity.plan import CapacityPlan, GroupLoad, RackFill
from optimizer.capacity.problem import CapacityProblem
from optimizer.evaluation import Violation

#: (where, what, number) of something that a plan names or counts.
_Named = tuple[str, str, int]


def _loads(plan: CapacityPlan) -> Iterator[tuple[str, GroupLoad]]:
    """Yield the loads of a plan and where they stand; what events share once."""
    deals = [("loads", plan.loads)]
    deals += [(f"loads_after[{e}]", loads) for e, loads in enumerate(plan.loads_after)]
    seen: set[int] = set()
    for where, loads in deals:
        if id(loads) in seen:
            continue
        seen.add(id(loads))
        for i, load in enumerate(loads):
            if id(load) not in seen:
                seen.add(id(load))
                yield f"{where}[{i}]", load


def _named(plan: CapacityPlan) -> Iterator[_Named]:
    """Yield every site, class, option and cohort that a plan names."""
    for i, rack in enumerate(plan.racks):
        yield f"racks[{i}]", "site", rack.site
        yield from ((f"racks[{i}]", "class", c) for c, _ in rack.servers)
    for i, fill in enumerate(plan.servers):
        yield f"servers[{i}]", "class", fill.server_class
        yield from ((f"servers[{i}]", "option", o) for o, _ in fill.blocks)
        if fill.spanned_by is not None:
            yield f"servers[{i}]", "option", fill.spanned_by
    for where, load in _loads(plan):
        yield where, "option", load.option
        for lane in load.lanes:
            yield from ((where, "cohort", c) for c, _ in lane.runs)


def _counted(plan: CapacityPlan) -> Iterator[_Named]:
    """Yield everything that a plan counts."""
    for i, rack in enumerate(plan.racks):
        yield f"racks[{i}]", "racks", rack.count
        yield from ((f"racks[{i}]", "servers", number) for _, number in rack.servers)
    for i, fill in enumerate(plan.servers):
        yield f"servers[{i}]", "servers", fill.count
        yield from ((f"servers[{i}]", "instances", number) for _, number in fill.blocks)
    for where, load in _loads(plan):
        yield where, "groups", load.count
        for lane in load.lanes:
            yield where, "lanes", lane.count
            yield from ((where, "sessions", number) for _, number in lane.runs)


def check_unknown(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """Sites, classes, options and cohorts that a plan names must exist."""
    known = {
        "site": ("sites", len(problem.sites)),
        "class": ("classes", len(problem.classes)),
        "option": ("options", len(problem.options)),
        "cohort": ("cohorts", len(problem.cohorts)),
    }
    for where, what, index in _named(plan):
        several, size = known[what]
        if not 0 <= index < size:
            text = f"{where} names {what} {shown(index)}; there are {size}, numbered from 0"
            yield Violation("unknown", where, 1, several, text)


def check_negative(plan: CapacityPlan) -> Iterator[Violation]:
    """Nothing is counted below 0."""
    for where, what, count in _counted(plan):
        if count < 0:
            text = f"{where} has {shown(count)} {what}"
            yield Violation("negative", where, -count, what, text)


def check_pool(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """A serving instance stands on servers of the pool that it is priced for."""
    for fill in plan.servers:
        pool = problem.classes[fill.server_class].pool
        spanned = () if fill.spanned_by is None else ((fill.spanned_by, 1),)
        for o, number in (*fill.blocks, *spanned):
            if problem.options[o].pool != pool:
                where = class_words(problem, fill.server_class)
                text = f"{where} hold {option_words(problem, o)}"
                yield Violation("pool", where, fill.count * number, "instances", text)


def check_whole_servers(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """Instances over several servers take them whole, the others cards of one server."""
    for fill in plan.servers:
        for o, number in fill.blocks:
            size = problem.options[o].footprint.num_servers
            if size > 1:
                where = option_words(problem, o)
                text = f"{where}: takes {size} whole servers, not cards of one"
                yield Violation("whole_servers", where, fill.count * number, "instances", text)
        spanned = fill.spanned_by
        if spanned is not None and problem.options[spanned].footprint.num_servers == 1:
            where = option_words(problem, spanned)
            text = f"{where}: takes cards of one server, not whole servers"
            yield Violation("whole_servers", where, fill.count, "servers", text)


def check_server_cards(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """The serving instances of a server take no more cards than it has free."""
    for fill in plan.servers:
        one = problem.classes[fill.server_class]
        cards = sum(number * cards_per_server(problem.options[o]) for o, number in fill.blocks)
        if fill.spanned_by is not None:
            # of a server with occupied cards `check_occupied_servers` has more to say
            whole = cards_per_server(problem.options[fill.spanned_by])
            cards += min(whole, one.free_cards) if one.is_occupied else whole
        if cards > one.free_cards:
            where = class_words(problem, fill.server_class)
            text = f"{where}: instances take {shown(cards)} cards of {one.free_cards} that are free"
            yield Violation("server_cards", where, cards - one.free_cards, "cards", text)


def check_occupied_servers(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """An instance over several servers has none with occupied cards."""
    for fill in plan.servers:
        if fill.spanned_by is None or not problem.classes[fill.server_class].is_occupied:
            continue
        where = class_words(problem, fill.server_class)
        text = f"{where}: {option_words(problem, fill.spanned_by)} needs them whole"
        yield Violation("occupied_servers", where, fill.count, "servers", text)


def check_span(count: FleetCount) -> Iterator[Violation]:
    """Servers of a cell that instances over several servers have make whole instances."""
    problem = count.problem
    for o, c, over in count.left_over():
        size, pool = problem.options[o].footprint.num_servers, problem.classes[c].pool
        where = option_words(problem, o)
        text = (
            f"{where}: of the servers of {problem.pools[pool].name} that may work together, "
            f"{over} are left over from instances of {size}"
        )
        yield Violation("span", where, over, "servers", text)


def check_server_count(count: FleetCount) -> Iterator[Violation]:
    """A class has no more servers in use than there are."""
    for one, servers in zip(count.problem.classes, count.listed, strict=True):
        if servers > one.count:
            where = class_words(count.problem, one.index)
            text = f"{where}: {shown(servers)} of {one.count}"
            yield Violation("server_count", where, servers - one.count, "servers", text)


def check_pool_count(count: FleetCount) -> Iterator[Violation]:
    """A pool has no more servers, over all its classes, than may be had.

    What is beyond a class is `check_server_count`'s, and left out here.
    """
    pairs = zip(count.problem.classes, count.listed, strict=True)
    within = tuple(min(servers, one.count) for one, servers in pairs)
    for pool, servers in zip(count.problem.pools, count.by_pool(within), strict=True):
        if servers > pool.num_servers:
            where = f"pool {pool.name}"
            text = f"{where}: {servers} servers of {pool.num_servers} that may be had"
            yield Violation("pool_count", where, servers - pool.num_servers, "servers", text)


def check_group(count: FleetCount) -> Iterator[Violation]:
    """Servers are bought in whole groups; the amount is what is beyond them."""
    if not count.problem.is_purchase:
        return
    for pool, servers in zip(count.problem.pools, count.by_pool(count.listed), strict=True):
        over = servers % pool.servers_per_group
        if over:
            where = f"pool {pool.name}"
            text = f"{where}: {shown(servers)} servers are no groups of {pool.servers_per_group}"
            yield Violation("group", where, over, "servers", text)


def rack_fill_sizes(problem: CapacityProblem, fill: RackFill) -> tuple[int, int]:
    """Return the rack units and the watts of the servers in one rack."""
    held = [(problem.pools[problem.classes[c].pool], number) for c, number in fill.servers]
    units = sum(number * pool.rack_units for pool, number in held)
    return units, sum(number * pool.power_w for pool, number in held)


def check_rack_count(count: FleetCount, plan: CapacityPlan) -> Iterator[Violation]:
    """No more racks of a site are bought than may be had; of an existing fleet none is."""
    problem = count.problem
    if problem.is_purchase:
        for site, racks in zip(problem.sites, count.racks, strict=True):
            if racks > site.count:
                where = f"rack {site.name}"
                text = f"{where}: {shown(racks)} racks of {site.count} that may be had"
                yield Violation("rack_count", where, racks - site.count, "racks", text)
        return
    for fill in plan.racks:
        where = f"rack {problem.sites[fill.site].name}"
        text = f"{where}: an existing fleet has its racks; none is bought"
        yield Violation("rack_count", where, fill.count, "racks", text)


def check_rack_site(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """A rack that is bought holds servers of its own site."""
    for fill in plan.racks if problem.is_purchase else ():
        for c, number in fill.servers:
            if problem.classes[c].site != fill.site:
                where = f"rack {problem.sites[fill.site].name}"
                text = f"{where} cannot hold {class_words(problem, c)}"
                yield Violation("rack_site", where, fill.count * number, "servers", text)


def check_rack_units(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """The servers in a rack that is bought take no more units than it has."""
    for fill in plan.racks if problem.is_purchase else ():
        site, units = problem.sites[fill.site], rack_fill_sizes(problem, fill)[0]
        if units > site.units:
            where = f"rack {site.name}"
            text = f"{where}: servers take {shown(units)} of {site.units} rack units"
            yield Violation("rack_units", where, units - site.units, "units", text)


def check_rack_power(count: FleetCount, plan: CapacityPlan) -> Iterator[Violation]:
    """The servers of a rack draw no more than it can feed and cool.

    Where racks of an existing site are not told apart, each can feed all its servers.
    """
    problem = count.problem
    drawn: list[tuple[int, int]] = []
    if problem.is_purchase:
        drawn = [(fill.site, rack_fill_sizes(problem, fill)[1]) for fill in plan.racks]
    else:
        drawn = [(s, count.rack_watts(s)) for s, site in enumerate(problem.sites) if site.count < 2]
    for s, watts in drawn:
        site = problem.sites[s]
        if site.limit_w is not None and watts > site.limit_w:
            where = f"rack {site.name}"
            text = f"{where}: servers draw {shown(watts)} of {site.limit_w} W"
            yield Violation("rack_power", where, watts - site.limit_w, "W", text)


def check_rack_servers(count: FleetCount) -> Iterator[Violation]:
    """Every server that is bought stands in a rack that is bought, where racks are described."""
    problem = count.problem
    if not problem.is_purchase:
        return
    for one, bought, held in zip(problem.classes, count.listed, count.in_racks, strict=True):
        if one.site is not None and bought != held:
            where = class_words(problem, one.index)
            text = f"{where}: {shown(bought)} are bought, racks hold {shown(held)}"
            yield Violation("rack_servers", where, abs(bought - held), "servers", text)


def check_power(count: FleetCount) -> Iterator[Violation]:
    """Everything together draws no more than the budget (6-11)."""
    budget_w = count.problem.budget_w
    watts = sum(part.watts for part in count.power_parts())
    if budget_w is not None and watts > budget_w:
        text = f"the fleet draws {shown(watts)} of {budget_w} W"
        yield Violation("power", "fleet", watts - budget_w, "W", text)


def check_fleet(count: FleetCount, plan: CapacityPlan) -> Iterator[Violation]:
    """All rules of servers, racks and power, in a fixed order, of a plan that exists."""
    problem = count.problem
    yield from check_pool(problem, plan)
    yield from check_whole_servers(problem, plan)
    yield from check_server_cards(problem, plan)
    yield from check_occupied_servers(problem, plan)
    yield from check_span(count)
    yield from check_server_count(count)
    yield from check_pool_count(count)
    yield from check_group(count)
    yield from check_rack_count(count, plan)
    yield from check_rack_site(problem, plan)
    yield from check_rack_units(problem, plan)
    yield from check_rack_power(count, plan)
    yield from check_rack_servers(count)
    yield from check_power(count)


def after(event: str, violations: Iterator[Violation]) -> Iterator[Violation]:
    """Say of broken rules that they are broken when an event happens."""
    for one in violations:
        where, message = f"without {event}: {one.where}", f"without {event}: {one.message}"
        yield replace(one, where=where, message=message)
