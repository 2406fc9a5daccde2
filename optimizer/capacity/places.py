"""Classes of servers, sites of racks, and what may fail at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from instances.building import RackSpec
from instances.fleet import Pool
from instances.instance import Instance
from optimizer.capacity.ledger import option_words
from optimizer.capacity.problem import CapacityProblem, FailureEvent, RackSite, ServerClass
from optimizer.errors import InputError, TooLargeError

#: Where servers or racks fail one by one, so many can be told apart.
MAX_TOLD_APART = 64


@dataclass(frozen=True, slots=True)
class Places:
    """Sites, and classes of servers on them."""

    sites: tuple[RackSite, ...]
    classes: tuple[ServerClass, ...]


@dataclass(frozen=True, slots=True)
class _Stand:
    """Servers of a pool that stand on one site: free cards of each, numbers, how many."""

    pool: int
    site: int | None
    free_cards: int
    count: int
    servers: tuple[int, ...]


def build_places(instance: Instance) -> Places:
    """Lay out sites and classes; raises TooLargeError where too many are to be told apart."""
    assert instance.capacity is not None
    kinds: set[str] = {case.kind for case in instance.capacity.failures}
    sites = tuple(_sites(instance, "rack" in kinds))
    stands = list(
        _purchase(instance, sites) if _is_bought(instance) else _existing(instance, sites)
    )
    if "server" in kinds:
        stands = [one for stand in stands for one in _one_by_one(stand)]
    for what, number, is_apart in (
        ("servers", sum(stand.count for stand in stands), "server" in kinds),
        ("racks", len(sites), "rack" in kinds),
    ):
        if is_apart and number > MAX_TOLD_APART:
            raise TooLargeError(
                f"{number} {what} that may fail one by one; at most {MAX_TOLD_APART} can be told "
                f"apart"
            )
    cells: dict[tuple[object, ...], int] = {}
    classes = list[ServerClass]()
    for stand in stands:
        key = (stand.pool, *_domains(instance, sites, stand, kinds))
        pool = instance.fleet.pools[stand.pool]
        classes.append(
            ServerClass(
                len(classes),
                stand.pool,
                stand.site,
                stand.free_cards,
                stand.count,
                stand.free_cards < pool.server.num_cards,
                stand.servers,
                cells.setdefault(key, len(cells)),
            )
        )
    return Places(sites, tuple(classes))


def _is_bought(instance: Instance) -> bool:
    return instance.fleet.mode == "purchase"


def _sites(instance: Instance, is_one_by_one: bool) -> Iterator[RackSite]:
    """Yield sites; racks stand alone where they fail, or limit or count what is in use."""
    assert instance.capacity is not None
    for kind, rack in enumerate(instance.fleet.racks):
        apart = is_one_by_one
        if not _is_bought(instance):
            counts = "racks" in instance.capacity.goals or rack.price_per_hour > 0
            apart = apart or counts or _is_limiting(instance, rack)
        if apart and rack.count > MAX_TOLD_APART:
            raise TooLargeError(
                f"{rack.count} racks {rack.name!r} are to be told apart, of which at most "
                f"{MAX_TOLD_APART} can be"
            )
        numbers: list[int | None] = list(range(rack.count)) if apart else [None]
        for number in numbers:
            yield RackSite(
                rack.name if number is None else f"{rack.name}/{number}",
                kind,
                number,
                1 if apart else rack.count,
                rack.units,
                rack.limit_w,
                rack.price_per_hour,
            )


def _is_limiting(instance: Instance, rack: RackSpec) -> bool:
    """Whether a rack cannot feed or cool all its servers at once."""
    pools = {pool.name: pool for pool in instance.fleet.pools}
    drawn = sum(s.num_servers * (pools[s.pool].server.power_w or 0) for s in rack.servers)
    return rack.limit_w is not None and drawn > rack.limit_w


def _purchase(instance: Instance, sites: tuple[RackSite, ...]) -> Iterator[_Stand]:
    for p, pool in enumerate(instance.fleet.pools):
        if not sites:
            yield _Stand(p, None, pool.server.num_cards, pool.num_servers, ())
        for s, site in enumerate(sites):
            if instance.fleet.racks[site.kind].cooling != pool.cooling:
                continue
            one = site.holds(pool.rack_units or 1, pool.server.power_w or 0)
            most = min(site.count * one, pool.num_servers)
            if most:
                yield _Stand(p, s, pool.server.num_cards, most, ())


def _existing(instance: Instance, sites: tuple[RackSite, ...]) -> Iterator[_Stand]:
    """Number the servers of every pool through the sites, then part them by free cards."""
    next_server: dict[str, int] = defaultdict(int)
    for p, pool in enumerate(instance.fleet.pools):
        if not sites:
            yield from _by_free_cards(p, pool, None, range(pool.num_servers))
    for s, site in enumerate(sites):
        for held in instance.fleet.racks[site.kind].servers:
            p = next(i for i, pool in enumerate(instance.fleet.pools) if pool.name == held.pool)
            first = next_server[held.pool]
            next_server[held.pool] = last = first + site.count * held.num_servers
            yield from _by_free_cards(p, instance.fleet.pools[p], s, range(first, last))


def _by_free_cards(p: int, pool: Pool, site: int | None, numbers: range) -> Iterator[_Stand]:
    """Yield servers with equally many free cards together; full ones are of no use."""
    taken: dict[int, int] = defaultdict(int)
    for occupied in pool.occupied:
        taken[occupied.server] += len(occupied.cards)
    by_free: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_free[pool.server.num_cards - taken[number]].append(number)
    for free, servers in sorted(by_free.items(), reverse=True):
        yield _Stand(p, site, free, len(servers), tuple(servers))


def _one_by_one(stand: _Stand) -> Iterator[_Stand]:
    if stand.count > MAX_TOLD_APART:
        raise TooLargeError(
            f"{stand.count} servers may fail one by one; at most {MAX_TOLD_APART} can be told apart"
        )
    for i in range(stand.count):
        servers = stand.servers[i : i + 1]
        yield _Stand(stand.pool, stand.site, stand.free_cards, 1, servers)


def _domains(
    instance: Instance, sites: tuple[RackSite, ...], stand: _Stand, kinds: set[str]
) -> Iterator[object]:
    """Yield the domains of every kind that may fail which hold these servers."""
    if "rack" in kinds:
        yield stand.site
    for domain in instance.fleet.failure_domains:
        if domain.kind in kinds:
            yield _holds(instance, sites, stand.pool, stand.site, domain.name)


def _holds(
    instance: Instance, sites: tuple[RackSite, ...], pool: int, site: int | None, name: str
) -> bool:
    domain = next(d for d in instance.fleet.failure_domains if d.name == name)
    racks = instance.fleet.racks
    return instance.fleet.pools[pool].name in domain.pools or (
        site is not None and racks[sites[site].kind].name in domain.racks
    )


def failure_events(instance: Instance, problem: CapacityProblem) -> tuple[FailureEvent, ...]:
    """Return every single failure that a plan is asked about.

    Raises InputError where probabilities of all failures together exceed 1.
    """
    assert instance.capacity is not None
    events: list[FailureEvent] = []
    for case in instance.capacity.failures:
        least = tuple(
            cohort.min_sessions
            if case.min_on_time_fraction is None
            else math.ceil(case.min_on_time_fraction * cohort.num_sessions)
            for cohort in problem.cohorts
        )
        for name, classes, option in _lost(instance, problem, case.kind):
            events.append(FailureEvent(case.kind, name, classes, option, least, case.probability))
    total = sum((event.probability or Fraction(0) for event in events), Fraction(0))
    if total > 1 and "expected_sessions" in problem.goals:
        raise InputError(
            instance.name,
            "capacity.failures",
            f"the probabilities of {len(events)} failures add up to {float(total):.6g}; at most 1",
        )
    return tuple(events)


def _lost(
    instance: Instance, problem: CapacityProblem, kind: str
) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """Yield (name, classes, option) of what each domain of a kind takes with it."""
    if kind == "card":
        for option in problem.options:
            yield f"a card of {option_words(problem, option.index)}", (), option.index
    elif kind == "server":
        numbers: dict[int, int] = defaultdict(int)
        for c in problem.classes:
            number = c.servers[0] if c.servers else numbers[c.pool]
            numbers[c.pool] += 1
            yield f"server {problem.pools[c.pool].name}/{number}", (c.index,), None
    elif kind == "rack":
        for s, site in enumerate(problem.sites):
            held = tuple(c.index for c in problem.classes if c.site == s)
            yield f"rack {site.name}", held, None
    else:
        for domain in instance.fleet.failure_domains:
            if domain.kind == kind:
                held = tuple(
                    c.index
                    for c in problem.classes
                    if _holds(instance, problem.sites, c.pool, c.site, domain.name)
                )
                yield f"{kind.replace('_', ' ')} {domain.name}", held, None
