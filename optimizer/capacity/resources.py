"""What may run out when capacity is planned, by the names that planners use."""

from __future__ import annotations

from collections.abc import Iterator

from instances.instance import Instance
from optimizer.capacity.account import Resource
from optimizer.capacity.checks import rack_fill_sizes
from optimizer.capacity.group_account import LoadsAccount
from optimizer.capacity.ledger import FleetCount, cards_per_server, is_told_apart, option_words
from optimizer.capacity.plan import CapacityPlan


def capacity_resources(
    instance: Instance, count: FleetCount, plan: CapacityPlan, loads: LoadsAccount
) -> Iterator[Resource]:
    """Yield everything that may run out, and how much of it a plan takes where nothing fails.

    Every part of `plan` exists, and `count` and `loads` are its own.
    """
    problem = count.problem
    if all(pool.server.power_w is not None for pool in instance.fleet.pools):
        watts = sum(part.watts for part in count.power_parts())
        yield Resource("power", watts, problem.budget_w, "W")
    yield from _servers(count)
    yield from _racks(instance, count, plan)
    yield from _endpoints(count)
    for cohort, taken in zip(problem.cohorts, loads.taken, strict=True):
        yield Resource(f"sessions of {cohort.name}", taken, cohort.num_sessions, "sessions")
    fullest: dict[int, tuple[int, int]] = {}
    for group in loads.groups:
        held = group.card_bytes, group.usable_bytes
        fullest[group.load.option] = max(fullest.get(group.load.option, held), held)
    for o, (held_bytes, usable_bytes) in sorted(fullest.items()):
        yield Resource(f"memory of {option_words(problem, o)}", held_bytes, usable_bytes, "B")


def _servers(count: FleetCount) -> Iterator[Resource]:
    """Servers of every pool, and the free cards of those that are bought or in use."""
    problem, bought = count.problem, count.by_pool(count.bought)
    cards = [0] * len(problem.pools)
    for (o, c), number in count.blocks.items():
        cards[problem.classes[c].pool] += number * cards_per_server(problem.options[o])
    for (o, c), servers in count.spanned.items():
        cards[problem.classes[c].pool] += servers * cards_per_server(problem.options[o])
    free = problem.free_cards(count.bought)
    for p, pool in enumerate(problem.pools):
        yield Resource(f"servers of {pool.name}", bought[p], pool.num_servers, "servers")
        yield Resource(f"cards of {pool.name}", cards[p], free[p], "cards")


def _racks(instance: Instance, count: FleetCount, plan: CapacityPlan) -> Iterator[Resource]:
    """Racks of every kind where it is known how many are in use, and what the fullest one takes."""
    problem = count.problem
    for kind, rack in enumerate(instance.fleet.racks):
        sites = [s for s, site in enumerate(problem.sites) if site.kind == kind]
        apart = all(is_told_apart(problem, s) for s in sites)
        if not sites or not apart:
            continue
        racks = sum(count.racks[s] for s in sites)
        yield Resource(f"racks {rack.name}", racks, rack.count, "racks")
        fills = [rack_fill_sizes(problem, fill) for fill in plan.racks if fill.site in sites]
        watts = [drawn for _, drawn in fills]
        if problem.is_purchase:
            units = max((taken for taken, _ in fills), default=0)
            yield Resource(f"units of the fullest rack {rack.name}", units, rack.units, "units")
        else:
            watts = [count.rack_watts(s) for s in sites]
        if rack.limit_w is not None:
            drawn_w = max(watts, default=0)
            yield Resource(f"power of the fullest rack {rack.name}", drawn_w, rack.limit_w, "W")


def _endpoints(count: FleetCount) -> Iterator[Resource]:
    """Cards on the network, up to the next tier that is not needed yet."""
    if not count.problem.tiers:
        return
    needed = count.needed_tiers
    waiting = [tier for tier in count.problem.tiers if tier not in needed]
    following = min(waiting, key=lambda tier: tier.above_endpoints, default=None)
    if following is None:
        yield Resource("endpoints", count.endpoints, None, "cards")
    else:
        name = f"endpoints before tier {following.name}"
        yield Resource(name, count.endpoints, following.above_endpoints, "cards")
