"""From a model, degrees and occupied cards to the data of the placement decision (6.5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from instances.errors import InputError
from instances.fleet import Pool
from instances.instance import Instance
from instances.topology import ServersTopology
from optimizer.collectives import NO_COLLECTIVE
from optimizer.legality import check_config
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes, usable_bytes
from optimizer.placement.problem import (
    ALGORITHMS,
    Algorithm,
    Group,
    Operation,
    Phase,
    PlacementProblem,
    Wire,
)
from optimizer.plan import Footprint
from optimizer.stages.building import pipeline_cut
from optimizer.steps import TOKEN_ID_BYTES, decode_works
from optimizer.work import Exchange, StageWork


@dataclass(frozen=True, slots=True)
class _Draft:
    """A phase before equal ones are joined."""

    name: str
    operation: Operation
    message_bytes: Fraction
    groups: tuple[Group, ...]
    times: int


def placement_footprint(instance: Instance) -> Footprint:
    """Return the serving instance that is to be placed; raises InputError for an illegal one."""
    decision, pool = instance.placement, instance.fleet.pools[0]
    assert decision is not None
    config = ParallelConfig(
        dp=decision.dp, pp=decision.pp, tp=decision.tp, cp=decision.cp, ep=decision.ep
    )
    for broken in check_config(instance.model, config, instance.engine):
        raise InputError(instance.name, "placement", f"{broken.message} [{broken.rule}]")
    if config.num_cards > pool.num_cards:
        rule = f"{config.label()} needs {config.num_cards} cards of pool {pool.name!r}, "
        rule += f"which has {pool.num_cards}; use smaller degrees"
        raise InputError(instance.name, "placement", rule)
    servers = -(-config.num_cards // pool.server.num_cards)
    plain = Footprint(pool.name, config, servers, NO_COLLECTIVE, batch=decision.batch)
    if config.pp == 1:
        return plain
    stages = pipeline_cut(instance, plain)
    if stages is None:
        rule = "no cut of the layers fits into memory; use more cards"
        raise InputError(instance.name, "placement.pp", rule, config.pp)
    return Footprint(pool.name, config, servers, NO_COLLECTIVE, stages, decision.batch)


def placement_problem(instance: Instance) -> PlacementProblem:
    """Return the data of the instance's placement decision; raises InputError.

    Domains are the servers of the first pool. Phases are the exchanges of a full decode step, those
    of equal groups and sizes joined.
    """
    decision, pool = instance.placement, instance.fleet.pools[0]
    assert decision is not None
    footprint = placement_footprint(instance)
    _check_memory(instance, pool, footprint)
    free = _free_cards(instance, pool)
    between, num_ranks = pool.fabric_between, footprint.parallel.num_cards
    if between is None and max(map(len, free)) < num_ranks <= sum(map(len, free)):
        rule = f"{num_ranks} cards are free on several servers only, but pool {pool.name!r} has no "
        raise InputError(instance.name, "fleet.pools", rule + "fabric_between")
    inside = pool.server.fabric
    return PlacementProblem(
        num_ranks=num_ranks,
        free_cards=free,
        phases=_phases(instance, footprint),
        inside=Wire(inside.alpha_s, inside.bandwidth_bytes_per_s),
        between=None if between is None else Wire(between.alpha_s, between.bandwidth_bytes_per_s),
        exit_bytes_per_s=_exit_bytes_per_s(instance, pool),
    )


def _exit_bytes_per_s(instance: Instance, pool: Pool) -> Fraction | None:
    """Return the section's limit, else that of the network's topology, if it has one."""
    assert instance.placement is not None
    limit = instance.placement.exit_bandwidth_bytes_per_s
    topology = None if pool.fabric_between is None else pool.fabric_between.topology
    if limit is None and isinstance(topology, ServersTopology):
        limit = topology.exit_bandwidth_bytes_per_s
    return limit


def _free_cards(instance: Instance, pool: Pool) -> tuple[tuple[int, ...], ...]:
    """Return the free cards of every server; raises InputError for occupied ones that are not."""
    assert instance.placement is not None
    taken: dict[int, set[int]] = {}
    for i, occupied in enumerate(instance.placement.occupied):
        field = f"placement.occupied[{i}]"
        if occupied.server >= pool.num_servers:
            rule = f"pool {pool.name!r} has servers 0 to {pool.num_servers - 1}"
            raise InputError(instance.name, f"{field}.server", rule, occupied.server)
        for card in occupied.cards:
            if card >= pool.server.num_cards:
                rule = f"server {pool.server.name!r} has cards 0 to {pool.server.num_cards - 1}"
                raise InputError(instance.name, f"{field}.cards", rule, card)
            if card in taken.setdefault(occupied.server, set()):
                rule = f"card {card} of server {occupied.server} is listed twice"
                raise InputError(instance.name, f"{field}.cards", rule)
            taken[occupied.server].add(card)
    cards = range(pool.server.num_cards)
    return tuple(
        tuple(card for card in cards if card not in taken.get(server, ()))
        for server in range(pool.num_servers)
    )


def _check_memory(instance: Instance, pool: Pool, footprint: Footprint) -> None:
    """Raise InputError where a card cannot hold its weights and the sessions of a full step."""
    model, config = instance.model, footprint.parallel
    longest = max(cohort.held_tokens for cohort in instance.workload.cohorts)
    room = usable_bytes(instance, pool) - buffer_bytes(instance, footprint)
    for place in stage_places(model, footprint.stages):
        needed = stage_weight_bytes(
            model, config, place, instance.engine, instance.runtime.loaded_parts
        )
        sharing = instance.search.kv_sharing
        needed += footprint.batch * session_bytes(model, config, place, longest, sharing)
        if needed > room:
            rule = f"a card of {footprint.label()} is {needed - room} B short of memory for its "
            rule += f"weights and {footprint.batch} sessions; use more cards"
            raise InputError(instance.name, "placement", rule)


def _phases(instance: Instance, footprint: Footprint) -> tuple[Phase, ...]:
    """Return the phases of a decode step in order, equal ones joined under both names."""
    joined: dict[tuple[Operation, Fraction, tuple[Group, ...]], list[_Draft]] = {}
    for draft in _drafts(instance, footprint):
        joined.setdefault((draft.operation, draft.message_bytes, draft.groups), []).append(draft)
    return tuple(
        Phase(
            name=" + ".join(dict.fromkeys(draft.name for draft in drafts)),
            operation=operation,
            times=sum(draft.times for draft in drafts),
            message_bytes=message_bytes,
            groups=groups,
            algorithms=_algorithms(instance, operation),
        )
        for (operation, message_bytes, groups), drafts in joined.items()
    )


def _algorithms(instance: Instance, operation: Operation) -> tuple[Algorithm, ...]:
    """Return what may carry out an operation; raises InputError if the search lists none."""
    known = ALGORITHMS[operation]
    if operation != "all_reduce":
        return known
    listed = tuple(name for name in known if name in instance.search.collectives)
    if not listed:
        rule = f"a placement knows {', '.join(known)}; list one of them"
        raise InputError(instance.name, "search.collectives", rule)
    return listed


def _drafts(instance: Instance, footprint: Footprint) -> Iterator[_Draft]:
    config = footprint.parallel
    works = decode_works(instance, footprint)
    for stage, work in enumerate(works):
        first = stage * config.stage_cards
        label = f" of stage {stage}" if len(works) > 1 else ""
        sources = _remote_sources(instance, footprint, stage)
        for exchange in work.exchanges:
            if exchange.ranks < 2 or exchange.message_bytes <= 0:
                continue
            name, groups = f"{exchange.name}{label}", exchange_groups(exchange, first, config)
            message = exchange.message_bytes
            if exchange.name == "remote_kv":
                groups = _pairs(next(sources), stage, config)
            elif exchange.kind == "all_to_all":
                # an exchange counts what leaves the card, a phase also the share that stays
                message *= Fraction(exchange.ranks, exchange.ranks - 1)
            yield _Draft(name, exchange.kind, message, groups, exchange.times)
    yield from _handoffs(works, config)


def exchange_groups(exchange: Exchange, first: int, config: ParallelConfig) -> tuple[Group, ...]:
    """Return the groups of an exchange: ranks equally far apart in each block of a stage.

    `first` is the stage's first rank.
    """
    stride = exchange.block // exchange.ranks
    return tuple(
        tuple(range(first + start + offset, first + start + exchange.block, stride))
        for start in range(0, config.stage_cards, exchange.block)
        for offset in range(stride)
    )


def _handoffs(works: Sequence[StageWork], config: ParallelConfig) -> Iterator[_Draft]:
    """Every stage hands on to the next one; the last returns tokens to the first."""
    if len(works) == 1:
        return
    for stage, work in enumerate(works[:-1]):
        name = f"hand-off of stage {stage}"
        yield _Draft(name, "send", work.handoff_bytes, _pairs(stage, stage + 1, config), 1)
    back = _pairs(len(works) - 1, 0, config)
    yield _Draft("tokens", "send", Fraction(TOKEN_ID_BYTES), back, 1)


def _pairs(sender: int, receiver: int, config: ParallelConfig) -> tuple[Group, ...]:
    """Return the equal places of two stages."""
    size = config.stage_cards
    return tuple((sender * size + place, receiver * size + place) for place in range(size))


def _remote_sources(instance: Instance, footprint: Footprint, stage: int) -> Iterator[int]:
    """Yield the stages whose caches a stage reads, in the order of its layers that do."""
    model = instance.model
    places = stage_places(model, footprint.stages)
    for layer in places[stage].layers:
        source = model.kv_source_of(layer)
        if source is not None and source not in places[stage].layers:
            yield next(place.index for place in places if source in place.layers)
