"""One `check_<rule>` per rule a plan's structure must keep; each returns measured violations.

Capacity and time need prices and are checked by `optimizer.evaluate` itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from instances.fleet import Fleet, Pool
from instances.instance import Instance
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable
from optimizer.evaluation import Violation
from optimizer.footprint_prices import is_meaningful
from optimizer.footprints import check_footprint
from optimizer.legality import Rule
from optimizer.measured import is_replaced
from optimizer.plan import CardId, Footprint, Plan, ServingInstance, SessionId
from optimizer.steps import check_prices, needs_collective
from optimizer.surroundings.connections import (
    host_setup_s,
    setup_words,
    state_bytes,
    state_words,
)


def find_pool(fleet: Fleet, name: str) -> Pool | None:
    """Return the pool of that name, or None."""
    return next((pool for pool in fleet.pools if pool.name == name), None)


def sessions_in_order(instance: Instance) -> tuple[SessionId, ...]:
    """Return every session by release, then cohort as listed, then number: the dispatch order."""
    cohorts = sorted(instance.workload.cohorts, key=lambda cohort: cohort.release_s)
    return tuple(SessionId(c.name, i) for c in cohorts for i in range(c.num_sessions))


def check_cards(fleet: Fleet, plan: Plan) -> Iterator[Violation]:
    """Cards must exist and belong to one serving instance only."""
    owned: Counter[tuple[str, CardId]] = Counter()
    for i, serving in enumerate(plan):
        pool = find_pool(fleet, serving.pool)
        if pool is None:
            yield Violation(
                "pool", f"instances[{i}]", 1, "pools", f"no pool is named {serving.pool!r}"
            )
            continue
        for card in serving.cards:
            owned[serving.pool, card] += 1
            if not (0 <= card.server < pool.num_servers and 0 <= card.card < pool.server.num_cards):
                yield Violation(
                    "unknown_card",
                    f"instances[{i}]",
                    1,
                    "cards",
                    f"pool {pool.name!r} has no card {card.card} in a server {card.server}",
                )
    for (name, card), times in owned.items():
        if times > 1:
            yield Violation(
                "card_overlap",
                f"{name}/{card.server}/{card.card}",
                times - 1,
                "cards",
                f"card {card.card} of server {card.server} in {name!r} is owned {times} times",
            )


#: Rules that a footprint breaks, worked out once for all serving instances built alike.
_Rules = dict[Footprint, list[Rule]]


def check_parallel(
    instance: Instance, i: int, serving: ServingInstance, known: _Rules | None = None
) -> Iterator[Violation]:
    """Model, engine, search and fabric must allow the split, and the cards must number it."""
    where, footprint = f"instances[{i}]", serving.footprint
    known = {} if known is None else known
    needed = serving.parallel.num_cards
    if len(serving.cards) != needed:
        yield Violation(
            "num_cards",
            where,
            abs(len(serving.cards) - needed),
            "cards",
            f"{serving.parallel.label()} needs {needed} cards, the plan gives {len(serving.cards)}",
        )
    if footprint not in known:
        known[footprint] = [
            *check_footprint(instance, footprint),
            *_check_collective(instance, footprint),
        ]
    for rule in known[footprint]:
        yield Violation(rule.rule, where, rule.amount, rule.unit, rule.message)
    strays = [lane for lane in serving.lanes if not 0 <= lane < max(serving.num_lanes, 1)]
    if strays or len(serving.lanes) not in (0, len(serving.sessions)):
        off = len(strays) or abs(len(serving.lanes) - len(serving.sessions))
        text = f"lanes number 0..{serving.num_lanes - 1}, one for each session"
        yield Violation("lanes", where, off, "lanes", text)


def check_span(pool: Pool, i: int, serving: ServingInstance) -> Iterator[Violation]:
    """Across servers there must be a fabric, and every server gives equally many cards."""
    per_server = Counter(card.server for card in serving.cards)
    if len(per_server) < 2:
        return
    runs = sum(1 for _ in groupby(card.server for card in serving.cards))
    if runs > len(per_server):
        yield Violation(
            "card_order",
            f"instances[{i}]",
            runs - len(per_server),
            "servers",
            "cards of a server follow each other: TP's are next to each other, then CP's and DP's",
        )
    if pool.fabric_between is None:
        yield Violation(
            "span",
            f"instances[{i}]",
            len(per_server) - 1,
            "servers",
            f"pool {pool.name!r} has no fabric_between, so an instance cannot span servers",
        )
    most, least = max(per_server.values()), min(per_server.values())
    if most != least:
        yield Violation(
            "uneven_span",
            f"instances[{i}]",
            most - least,
            "cards",
            f"servers give between {least} and {most} cards; each must give equally many",
        )


def check_connections(pool: Pool, i: int, serving: ServingInstance) -> Iterator[Violation]:
    """NICs hold the state of all connections between the servers, which are set up in time."""
    spec, hosts, where = pool.connections, len(serving.servers), f"instances[{i}]"
    if spec is None or hosts < 2:
        return
    name = f"{serving.parallel.label()} over {hosts} servers"
    if spec.cache_bytes is not None:
        state, cache = state_bytes(spec, hosts), spec.cache_bytes
        if state > cache:
            text = state_words(name, state, cache)
            yield Violation("connection_state", where, state - cache, "B", text)
    if spec.max_setup_s is not None:
        needed, most = host_setup_s(spec, hosts), spec.max_setup_s
        if needed > most:
            text = setup_words(name, needed, most)
            yield Violation("connection_setup", where, needed - most, "s", text)


def _check_collective(instance: Instance, footprint: Footprint) -> Iterator[Rule]:
    """The collective must be allowed by the search and exist for these ranks."""
    pool, name = find_pool(instance.fleet, footprint.pool), footprint.collective
    if pool is None or not footprint.num_servers or not is_meaningful(instance, footprint):
        return
    label = footprint.parallel.label()
    if not needs_collective(instance, footprint):
        if name != NO_COLLECTIVE:
            text = f"{label} needs no collective, not {name!r}"
            yield Rule("collective", 1, "collectives", text)
            return
    elif name not in instance.search.collective_options:
        listed = ", ".join(instance.search.collective_options)
        text = f"{name!r} is not among search.collectives: {listed}"
        yield Rule("collective", 1, "collectives", text)
        return
    if footprint.num_servers > 1 and pool.fabric_between is None:
        return  # check_span says so
    if is_replaced(instance, pool, footprint):
        text = f"{label} is measured: measured tables replace the modelled {name}"
        yield Rule("measured", 1, "collectives", text)
    try:
        check_prices(instance, pool, footprint)
    except CollectiveUnavailable as error:
        yield Rule(error.rule, footprint.parallel.num_cards, "ranks", str(error))


def check_sessions(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Every session of the workload must be served once, and no other."""
    served = Counter(session for serving in plan for session in serving.sessions)
    known = set(sessions_in_order(instance))
    for session, times in served.items():
        if session not in known:
            yield Violation(
                "unknown_session", str(session), times, "sessions", f"no session is {session}"
            )
        elif times > 1:
            yield Violation(
                "session_repeated",
                str(session),
                times - 1,
                "sessions",
                f"{session} is served {times} times",
            )
    missing = [session for session in sessions_in_order(instance) if session not in served]
    if missing:
        yield Violation(
            "session_missing",
            str(missing[0]),
            len(missing),
            "sessions",
            f"{len(missing)} session(s) are served by no instance, the first is {missing[0]}",
        )


def uniform_cards(pool: Pool, num_cards: int, num_servers: int) -> Iterator[tuple[CardId, ...]]:
    """Yield the cards of equal serving instances that fill a pool one after another.

    An instance takes num_cards / num_servers cards in each of `num_servers` consecutive servers.
    Yields nothing unless that fills every card.
    """
    if num_cards < 1 or num_servers < 1:
        return
    block = num_cards // num_servers
    cards = pool.server.num_cards
    if num_cards % num_servers or block > cards or cards % block or pool.num_servers % num_servers:
        return
    for first in range(0, pool.num_servers, num_servers):
        for start in range(0, cards, block):
            yield tuple(
                CardId(server, card)
                for server in range(first, first + num_servers)
                for card in range(start, start + block)
            )


def check_deployment(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """A uniform deployment has equal serving instances that fill all cards one after another."""
    if instance.search.deployment != "uniform" or not plan.instances:
        return
    shapes = {replace(s.footprint, pool="") for s in plan}
    if len(shapes) > 1:
        yield Violation(
            "uniform",
            "plan",
            len(shapes) - 1,
            "kinds",
            f"{len(shapes)} kinds of serving instance where the search wants one",
        )
        return
    first = plan.instances[0]
    wanted = [
        (pool.name, cards)
        for pool in instance.fleet.pools
        for cards in uniform_cards(pool, first.parallel.num_cards, len(first.servers))
    ]
    found = [(s.pool, tuple(sorted(s.cards))) for s in plan]
    if instance.search.dispatch != "round_robin":
        wanted.sort()
        found.sort()
    idle = instance.fleet.num_cards - plan.num_cards
    if idle > 0:
        yield Violation(
            "uniform", "plan", idle, "cards", f"{idle} cards are left over; uniform fills all"
        )
    elif wanted != found:
        yield Violation(
            "layout",
            "plan",
            sum(a != b for a, b in zip(wanted, found, strict=False)) or 1,
            "instances",
            "uniform serving instances own consecutive cards, listed in that order",
        )


def check_dispatch(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Round robin gives session j, in dispatch order, to serving instance j mod n."""
    if instance.search.dispatch != "round_robin" or not plan.instances:
        return
    order, count = sessions_in_order(instance), len(plan.instances)
    for i, serving in enumerate(plan):
        if serving.sessions != order[i::count]:
            yield Violation(
                "dispatch",
                f"instances[{i}]",
                len(set(serving.sessions) ^ set(order[i::count])) or 1,
                "sessions",
                f"round robin over {count} instances gives this one "
                f"{', '.join(map(str, order[i::count][:4])) or 'no session'}"
                f"{' …' if len(order[i::count]) > 4 else ''}",
            )
        elif serving.lanes and any(
            lane != i % max(serving.num_lanes, 1) for i, lane in enumerate(serving.lanes)
        ):
            text = "round robin deals the sessions of an instance to its lanes in turn"
            yield Violation("dispatch", f"instances[{i}]", 1, "lanes", text)


def check_structure(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """All rules of this file, in a fixed order."""
    known: _Rules = {}
    yield from check_cards(instance.fleet, plan)
    for i, serving in enumerate(plan):
        yield from check_parallel(instance, i, serving, known)
        pool = find_pool(instance.fleet, serving.pool)
        if pool is not None:
            yield from check_span(pool, i, serving)
            yield from check_connections(pool, i, serving)
    yield from check_sessions(instance, plan)
    yield from check_deployment(instance, plan)
    yield from check_dispatch(instance, plan)
