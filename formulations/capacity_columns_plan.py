"""From serving instances and loads of their units to a plan: servers, racks, sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.capacity.loads import UnitLoad, dealt_loads
from optimizer.capacity.multipliers import CountRow, ServerCounts
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem

#: Steps that look for the cheapest servers with given cards.
MAX_NODES = 5_000

#: (option, load of a unit, units).
Use = tuple[int, UnitLoad, int]


@dataclass(frozen=True, slots=True)
class Deal:
    """Serving instances by option, and loads of their units."""

    instances: Mapping[int, int]
    uses: tuple[Use, ...]


def cards_by_pool(problem: CapacityProblem, deal: Deal) -> tuple[int, ...]:
    """Return the cards that all serving instances of a deal take."""
    cards = [0] * len(problem.pools)
    for k, number in deal.instances.items():
        cards[problem.options[k].pool] += number * problem.options[k].num_cards
    return tuple(cards)


def build_plan(
    problem: CapacityProblem, counts: ServerCounts, deal: Deal
) -> tuple[CapacityPlan, tuple[Fraction, ...]] | None:
    """Return the cheapest plan with the instances of a deal and its goals; None if none is legal.

    Racks are filled class by class, and what is left of each one after another, so that where
    racks are tight a plan may be missed.
    """
    rows = []
    for p, needed in enumerate(cards_by_pool(problem, deal)):
        held = {v: cards for v, (pool, cards) in counts.free_cards.items() if pool == p}
        rows.append(CountRow(held, needed))
    found = counts.fewest(rows, MAX_NODES, lambda: False)
    if found.point is None:
        return None
    servers = counts.servers(found.point)
    fills = _filled(problem, servers, deal.instances)
    racks = _racks(problem, servers)
    if fills is None or racks is None:
        return None
    taken = [0] * len(problem.cohorts)
    for _, load, units in deal.uses:
        for c, number in enumerate(load.counts):
            taken[c] += number * units
    sessions = [
        min(n, cohort.num_sessions) for n, cohort in zip(taken, problem.cohorts, strict=True)
    ]
    plan = CapacityPlan(tuple(racks), tuple(fills), dealt_loads(problem, deal.uses, sessions))
    return plan, plan_values(problem, plan)


def _filled(
    problem: CapacityProblem, servers: Sequence[int], instances: Mapping[int, int]
) -> list[ServerFill] | None:
    """Lay instances on servers, whole servers first, then the largest; None if they do not fit.

    Sizes divide each other and what is free, so nothing is wasted but on the last server.
    """
    fills = list[ServerFill]()
    for p, pool in enumerate(problem.pools):
        mine = [k for k in problem.options_of_pool[p] if instances.get(k)]
        mine.sort(key=lambda k: -problem.options[k].cards_per_server)
        whole = [k for k in mine if problem.options[k].cards_per_server == pool.num_cards]
        parts = deque([k, instances[k]] for k in mine if k not in whole)
        left = {c: servers[c] for c in problem.classes_of_pool[p]}
        # occupied servers take parts first, since they cost nothing
        order = sorted(left, key=lambda c: not problem.classes[c].is_occupied)
        for k in whole:
            needed = instances[k] * problem.options[k].num_servers
            is_spanned = problem.options[k].num_servers > 1
            for c in order:
                number = 0 if problem.classes[c].is_occupied else min(needed, left[c])
                if number:
                    blocks: tuple[tuple[int, int], ...] = () if is_spanned else ((k, 1),)
                    fills.append(ServerFill(c, number, blocks, k if is_spanned else None))
                left[c], needed = left[c] - number, needed - number
            if needed:
                return None
        for c in order:
            for number, blocks in _parts(problem, parts, left[c], problem.classes[c].free_cards):
                fills.append(ServerFill(c, number, blocks))
                left[c] -= number
        if parts:
            return None
        if problem.is_purchase:
            fills += [ServerFill(c, number) for c, number in left.items() if number]
    return fills


def _parts(
    problem: CapacityProblem, parts: deque[list[int]], count: int, free: int
) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """Yield (servers, blocks of each) until instances or servers run out; takes them from `parts`.

    Instances come as [option, number], larger ones first.
    """
    while count and parts:
        k, number = parts[0]
        each = free // problem.options[k].num_cards
        equal = min(number // each, count)
        if equal:
            yield equal, ((k, each),)
            parts[0][1] -= equal * each
            count -= equal
            if not parts[0][1]:
                parts.popleft()
            continue
        blocks, room = list[tuple[int, int]](), free
        while parts and room >= problem.options[parts[0][0]].num_cards:
            k, number = parts[0]
            taken = min(number, room // problem.options[k].num_cards)
            blocks.append((k, taken))
            room -= taken * problem.options[k].num_cards
            parts[0][1] -= taken
            if not parts[0][1]:
                parts.popleft()
        yield 1, tuple(blocks)
        count -= 1


def _racks(problem: CapacityProblem, servers: Sequence[int]) -> list[RackFill] | None:
    """Return racks for servers that are bought; None if there are too few."""
    if not problem.is_purchase:
        return []
    fills = list[RackFill]()
    for s, site in enumerate(problem.sites):
        rests = list[int]()
        num_racks = 0
        for one in problem.classes:
            if one.site != s or not servers[one.index]:
                continue
            most = problem.rack_holds(s, one.pool)
            if not most:
                return None
            full, rest = divmod(servers[one.index], most)
            rests += [one.index] * rest
            if full:
                fills.append(RackFill(s, full, ((one.index, most),)))
                num_racks += full
        last = list(_first_fit(problem, s, rests))
        fills += [RackFill(s, 1, held) for held in last]
        if num_racks + len(last) > site.count:
            return None
    return fills


def _first_fit(
    problem: CapacityProblem, site: int, classes: Sequence[int]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield what single racks hold: each server goes to the first rack with room."""
    spec = problem.sites[site]
    racks = list[tuple[list[int], list[int]]]()  # (units and watts left), servers
    pools = {c: problem.pools[problem.classes[c].pool] for c in classes}
    limit_w = sum(pool.power_w for pool in pools.values()) * len(classes)
    limit_w = limit_w if spec.limit_w is None else spec.limit_w
    for c in sorted(classes, key=lambda c: -pools[c].rack_units):
        needs = (pools[c].rack_units, pools[c].power_w)
        place = next(
            (i for i, (left, _) in enumerate(racks) if needs[0] <= left[0] and needs[1] <= left[1]),
            len(racks),
        )
        if place == len(racks):
            racks.append(([spec.units, limit_w], []))
        left, held = racks[place]
        left[0], left[1] = left[0] - needs[0], left[1] - needs[1]
        held.append(c)
    for _, held in racks:
        yield tuple((c, held.count(c)) for c in dict.fromkeys(held))


def plan_values(problem: CapacityProblem, plan: CapacityPlan) -> tuple[Fraction, ...]:
    """Return the goals of a plan; those that counts of servers decide."""
    paid, power = Fraction(0), problem.fixed_w + problem.occupied_w
    endpoints, num_servers = problem.occupied_endpoints, 0
    for fill in plan.servers:
        one = problem.classes[fill.server_class]
        pool = problem.pools[one.pool]
        if one.is_occupied:
            continue
        num_servers += fill.count
        paid += fill.count * pool.price_per_hour
        power += fill.count * pool.power_w
        endpoints += fill.count * pool.num_cards
    for rack in plan.racks:
        paid += rack.count * problem.sites[rack.site].price_per_hour
    for tier in problem.tiers:
        if endpoints > tier.above_endpoints:
            paid += tier.price_per_hour
            power += tier.power_w
    values = {
        "price_per_hour": paid,
        "servers": Fraction(num_servers),
        "racks": Fraction(sum(rack.count for rack in plan.racks)),
        "power": Fraction(power),
        "energy": power * (problem.period_s or Fraction(0)),
    }
    return tuple(values[goal] for goal in problem.goals)
