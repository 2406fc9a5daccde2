"""One `check_<rule>` per rule a plan's structure must keep; each returns measured violations.

Capacity and time need prices and are checked by `optimizer.evaluate` itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from instances.fleet import Fleet, Pool
from instances.instance import Instance
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable, all_reduce_s
from optimizer.evaluation import Violation
from optimizer.operators import message_bytes
from optimizer.parallel import check_heads
from optimizer.plan import CardId, Plan, ServingInstance, SessionId


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


def check_parallel(instance: Instance, i: int, serving: ServingInstance) -> Iterator[Violation]:
    """Only tensor parallelism may exceed one, it must be allowed, and the cards must number it."""
    where, degree, config = f"instances[{i}]", serving.parallel.tp, serving.parallel
    others = sum(abs(d - 1) for d in (config.dp, config.pp, config.cp, config.ep, config.sp))
    if others:
        yield Violation(
            "parallel",
            where,
            others,
            "degrees",
            f"{config.label()}: only tensor parallelism is priced",
        )
    if len(serving.cards) != serving.parallel.num_cards:
        yield Violation(
            "num_cards",
            where,
            abs(len(serving.cards) - serving.parallel.num_cards),
            "cards",
            f"{serving.parallel.label()} needs {serving.parallel.num_cards} cards, "
            f"the plan gives {len(serving.cards)}",
        )
    allowed = instance.search.tp
    if allowed is not None and degree not in allowed:
        listed = ", ".join(map(str, allowed))
        yield Violation("tp", where, 1, "degrees", f"TP{degree} is not among search.tp: {listed}")
    broken = check_heads(instance.model, degree)
    if broken is not None:
        yield Violation(broken.rule, where, broken.amount, "heads", broken.message)


def check_span(pool: Pool, i: int, serving: ServingInstance) -> Iterator[Violation]:
    """Across servers there must be a fabric, and every server gives equally many cards."""
    per_server = Counter(card.server for card in serving.cards)
    if len(per_server) < 2:
        return
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


def check_collective(
    instance: Instance, pool: Pool, i: int, serving: ServingInstance
) -> Iterator[Violation]:
    """The collective must be allowed by the search and exist for these ranks."""
    where, degree, name = f"instances[{i}]", serving.parallel.tp, serving.collective
    if degree < 1:
        return
    if degree == 1:
        if name != NO_COLLECTIVE:
            yield Violation(
                "collective", where, 1, "collectives", f"one card needs no collective, not {name!r}"
            )
        return
    if name not in instance.search.collectives:
        listed = ", ".join(instance.search.collectives)
        yield Violation(
            "collective",
            where,
            1,
            "collectives",
            f"{name!r} is not among search.collectives: {listed}",
        )
    num_servers = len(serving.servers)
    fabric = pool.server.fabric if num_servers == 1 else pool.fabric_between
    if fabric is None or name not in ("ring", "tree", "measured"):
        return
    try:
        all_reduce_s(name, fabric, degree, num_servers, message_bytes(instance.model))
    except CollectiveUnavailable as error:
        yield Violation(error.rule, where, degree, "ranks", str(error))


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


def uniform_cards(pool: Pool, tp: int, num_servers: int) -> Iterator[tuple[CardId, ...]]:
    """Yield the cards of equal serving instances of `tp` cards that fill a pool one after another.

    An instance takes tp / num_servers cards in each of `num_servers` consecutive servers. Yields
    nothing unless that fills every card.
    """
    if tp < 1 or num_servers < 1:
        return
    block = tp // num_servers
    cards = pool.server.num_cards
    if tp % num_servers or block > cards or cards % block or pool.num_servers % num_servers:
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
    shapes = {(s.parallel, s.collective, len(s.servers)) for s in plan}
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
        for cards in uniform_cards(pool, first.parallel.tp, len(first.servers))
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


def check_structure(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """All rules of this file, in a fixed order."""
    yield from check_cards(instance.fleet, plan)
    for i, serving in enumerate(plan):
        yield from check_parallel(instance, i, serving)
        pool = find_pool(instance.fleet, serving.pool)
        if pool is not None:
            yield from check_span(pool, i, serving)
            yield from check_collective(instance, pool, i, serving)
    yield from check_sessions(instance, plan)
    yield from check_deployment(instance, plan)
    yield from check_dispatch(instance, plan)
