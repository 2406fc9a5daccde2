"""One `check_<rule>` per rule of options, groups, lanes and sessions of a capacity plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from optimizer.capacity.group_account import GroupAccount, OptionPrices
from optimizer.capacity.ledger import option_words, shown
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem
from optimizer.checks import check_connections, check_parallel, check_span, find_pool
from optimizer.evaluation import Violation
from optimizer.plan import CardId, Footprint, ServingInstance


def check_events(problem: CapacityProblem, plan: CapacityPlan) -> Iterator[Violation]:
    """Sessions are dealt once for every event."""
    off = abs(len(plan.loads_after) - len(problem.events))
    if off:
        text = f"loads after {len(plan.loads_after)} events, of which there are "
        yield Violation("events", "plan", off, "events", text + str(len(problem.events)))


def _one_of(footprint: Footprint) -> ServingInstance:
    """Return an idle serving instance of a footprint on the first cards of the first servers."""
    num_cards, num_servers = footprint.parallel.num_cards, max(footprint.num_servers, 1)
    each = -(-num_cards // num_servers)
    cards = [CardId(server, card) for server in range(num_servers) for card in range(each)]
    return ServingInstance(
        footprint.pool,
        footprint.parallel,
        footprint.collective,
        tuple(cards[:num_cards]),
        (),
        footprint.stages,
        footprint.batch,
        footprint.micro_batches,
    )


def check_options(prices: OptionPrices, in_use: Iterable[int]) -> Iterator[Violation]:
    """Model, engine, search and fabric allow every option in use, as they do in a deployment."""
    problem = prices.problem
    for o in sorted(in_use):
        where, built = option_words(problem, o), problem.options[o]
        alone, serving = prices.alone[built.model], _one_of(built.footprint)
        pool = None if alone is None else find_pool(alone.fleet, built.footprint.pool)
        if alone is None or pool is None:
            text = f"{where}: the pool cannot compute the model"
            yield Violation("pool", where, 1, "options", text)
            continue
        broken = [
            *check_parallel(alone, 0, serving),
            *check_span(pool, 0, serving),
            *check_connections(pool, 0, serving),
        ]
        yield from (replace(one, where=where) for one in broken)


def check_groups(
    problem: CapacityProblem, loaded: Mapping[int, int], instances: Mapping[int, int]
) -> Iterator[Violation]:
    """No more groups of an option are loaded than its serving instances have."""
    for o, groups in loaded.items():
        most = instances.get(o, 0) * problem.options[o].footprint.parallel.dp
        if groups > most:
            where = option_words(problem, o)
            text = f"{where}: {shown(groups)} groups are loaded of {shown(most)}"
            yield Violation("groups", where, groups - most, "groups", text)


def check_lanes(problem: CapacityProblem, group: GroupAccount) -> Iterator[Violation]:
    """A group has no more lanes than its option."""
    option = problem.options[group.load.option]
    lanes, most = sum(lane.count for lane in group.load.lanes), option.footprint.lanes_per_group
    if lanes > most:
        where = option_words(problem, option.index)
        text = f"{where}: {shown(lanes)} lanes of a group are loaded of {most}"
        yield Violation("lanes", where, lanes - most, "lanes", text)


def check_memory(problem: CapacityProblem, group: GroupAccount) -> Iterator[Violation]:
    """The fullest card of a group holds weights, buffers and all sessions of its lanes (6-1)."""
    short = group.card_bytes - group.usable_bytes
    if short > 0:
        where = option_words(problem, group.load.option)
        text = f"{where}: a card needs {shown(group.card_bytes)} B of {group.usable_bytes} B"
        yield Violation("memory", where, short, "B", text)


def check_idle_memory(prices: OptionPrices, in_use: Iterable[int]) -> Iterator[Violation]:
    """The cards of an option in use hold its weights and buffers, though no session comes."""
    for o in sorted(in_use):
        needed, usable = prices.card_bytes(o, {})
        if needed > usable:
            where = option_words(prices.problem, o)
            text = f"{where}: without sessions a card needs {needed} B of {usable} B"
            yield Violation("memory", where, needed - usable, "B", text)


def check_cannot_serve(problem: CapacityProblem, group: GroupAccount) -> Iterator[Violation]:
    """An option gets sessions of its own model that may use its pool."""
    refused: dict[int, int] = {}
    for lane, stretches in zip(group.load.lanes, group.lanes, strict=True):
        for one in stretches:
            if not one.is_served:
                sessions = group.load.count * lane.count * one.number
                refused[one.cohort] = refused.get(one.cohort, 0) + sessions
    for c, sessions in refused.items():
        where = f"{problem.cohorts[c].name} on {option_words(problem, group.load.option)}"
        text = f"{where}: {shown(sessions)} sessions that it does not serve"
        yield Violation("cannot_serve", where, sessions, "sessions", text)


def check_late(problem: CapacityProblem, group: GroupAccount) -> Iterator[Violation]:
    """Sessions end by their deadline; the amount is what the last one of a lane is late by."""
    for stretches in group.lanes:
        late = [one for one in stretches if one.late_by_s > 0]
        for c in dict.fromkeys(one.cohort for one in late):
            mine = [one for one in late if one.cohort == c]
            by_s = max(one.late_by_s for one in mine)
            sessions = sum(one.number - one.num_on_time for one in mine)
            where = f"{problem.cohorts[c].name} on {option_words(problem, group.load.option)}"
            text = f"{where}: {shown(sessions)} sessions of a lane are late, by up to "
            yield Violation("late", where, by_s, "s", f"{text}{shown(by_s)} s")


def check_group_load(problem: CapacityProblem, group: GroupAccount) -> Iterator[Violation]:
    """All rules that a loaded group breaks by itself."""
    yield from check_lanes(problem, group)
    yield from check_memory(problem, group)
    yield from check_cannot_serve(problem, group)
    yield from check_late(problem, group)


def check_sessions(
    problem: CapacityProblem, taken: Sequence[int], least: Sequence[int]
) -> Iterator[Violation]:
    """Of every cohort as many sessions are taken as must be, and no more than there are."""
    for cohort, sessions, fewest in zip(problem.cohorts, taken, least, strict=True):
        where = f"cohort {cohort.name}"
        if sessions < fewest:
            text = f"{where}: {shown(sessions)} sessions are taken; at least {fewest} must be"
            yield Violation("sessions", where, fewest - sessions, "sessions", text)
        elif sessions > cohort.num_sessions:
            over = sessions - cohort.num_sessions
            text = f"{where}: {shown(sessions)} sessions are taken of {cohort.num_sessions}"
            yield Violation("sessions", where, over, "sessions", text)
