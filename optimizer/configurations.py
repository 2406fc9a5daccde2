"""Which footprints a search asks for on a pool, legal or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Degrees, Instance
from optimizer.legality import legal_tp, moe_ffns, redundant_needed
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.surroundings.connections import (
    host_setup_s,
    max_hosts,
    setup_words,
    state_bytes,
    state_words,
)
from optimizer.tables import Rejection

#: Degrees tried for the reader's sake when a search lists none: larger ones surprise nobody.
MAX_TRIED_TP = 64


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def tp_degrees(instance: Instance, pool: Pool) -> tuple[int, ...]:
    """Degrees to consider: those asked for, or all legal ones and what one server might try."""
    if instance.search.tp is not None:
        return tuple(sorted(instance.search.tp))
    if not is_plain(instance):  # expert groups may keep experts whole
        return legal_tp(instance.model, pool.num_cards, instance.engine, with_experts=False)
    legal = legal_tp(instance.model, pool.num_cards, instance.engine)
    tried = range(1, min(pool.server.num_cards, MAX_TRIED_TP) + 1)
    return tuple(sorted({*legal, *tried}))


def is_plain(instance: Instance) -> bool:
    """Whether the search has tensor parallelism alone."""
    search = instance.search
    others = (search.pp, search.ep, search.cp, search.dp, search.dcp, search.attention_copies)
    return not search.sequence_parallel and all(degrees == (1,) for degrees in others)


def _listed(degrees: Degrees | None, every: Iterable[int]) -> Sequence[int]:
    return sorted(degrees) if degrees is not None else list(every)


def configurations(instance: Instance, pool: Pool) -> Iterator[ParallelConfig]:
    """Yield every combination of degrees that the search lists or leaves open.

    Where a degree is open only values that fit the pool's cards are tried; listed values all are.
    """
    search, model = instance.search, instance.model
    has_experts = bool(moe_ffns(model))
    for tp in tp_degrees(instance, pool):
        room = max(pool.num_cards // tp, 1)
        for pp in _listed(search.pp, range(1, min(model.num_layers, room) + 1)):
            for cp in _listed(search.cp, range(1, max(room // pp, 1) + 1)):
                left = max(room // (pp * cp), 1)
                for copies in _listed(search.attention_copies, range(1, left + 1)):
                    most = max(left // copies, 1) if has_experts else 1
                    for dp in _listed(search.dp, range(1, most + 1)):
                        config = ParallelConfig(dp, pp, tp, cp, 1, 1, 1, copies)
                        yield from _within_stage(instance, config, has_experts)


def _within_stage(
    instance: Instance, config: ParallelConfig, has_experts: bool
) -> Iterator[ParallelConfig]:
    """Yield the degrees that share a stage's cards: EP, DCP and SP."""
    search, width = instance.search, config.stage_cards
    open_ep = _divisors(width, width) if has_experts else [1]
    for ep in _listed(search.ep, open_ep):
        redundant = redundant_needed(instance.model, ep) if search.redundant_experts else 0
        for dcp in _listed(search.dcp, _divisors(config.tp, config.tp)):
            for sp in (1, config.tp) if search.sequence_parallel and config.tp > 1 else (1,):
                yield ParallelConfig(
                    dp=config.dp,
                    pp=config.pp,
                    tp=config.tp,
                    cp=config.cp,
                    ep=ep,
                    sp=sp,
                    dcp=dcp,
                    copies=config.copies,
                    redundant=redundant,
                )


def spans(pool: Pool, num_cards: int) -> Iterator[int]:
    """Yield the numbers of servers an instance may span, with equal shares of its cards."""
    for servers in range(1, min(pool.num_servers, num_cards) + 1):
        if num_cards % servers or num_cards // servers > pool.server.num_cards:
            continue
        if servers == 1 or pool.fabric_between is not None:
            yield servers


def whole_spans(pool: Pool, num_cards: int) -> Iterator[int]:
    """Yield the numbers of servers as `spans` does, several only where each gives all its cards."""
    for servers in spans(pool, num_cards):
        if servers == 1 or servers * pool.server.num_cards == num_cards:
            yield servers


def reject_span(pool: Pool, footprint: Footprint) -> Rejection:
    """Say why no number of servers will do for a footprint's cards."""
    label, cards = footprint.parallel.label(), footprint.parallel.num_cards
    if cards > pool.num_cards:
        text = f"{label} needs {cards} cards; pool {pool.name!r} has {pool.num_cards}"
        return Rejection(footprint, "num_cards", cards - pool.num_cards, "cards", text)
    if pool.fabric_between is None and cards > pool.server.num_cards:
        text = (
            f"{label} exceeds a server's {pool.server.num_cards} cards and pool {pool.name!r} "
            f"has no fabric_between"
        )
        return Rejection(footprint, "span", cards - pool.server.num_cards, "cards", text)
    text = (
        f"no number of servers of {pool.name!r} gives {cards} cards in equal shares, in a "
        f"capacity decision all that they have"
    )
    return Rejection(footprint, "uneven_span", 1, "cards", text)


def reject_connections(pool: Pool, footprint: Footprint) -> Rejection | None:
    """Reject more servers than their NICs hold connections of, or have them in time; else None."""
    spec, hosts = pool.connections, footprint.num_servers
    if spec is None or hosts == 1:
        return None
    name = f"{footprint.parallel.label()} over {hosts} servers"
    if spec.cache_bytes is not None and hosts > (max_hosts(spec) or 0):
        state = state_bytes(spec, hosts)
        text = state_words(name, state, spec.cache_bytes)
        return Rejection(footprint, "connection_state", state - spec.cache_bytes, "B", text)
    most_s = spec.max_setup_s
    late_s = Fraction(0) if most_s is None else host_setup_s(spec, hosts) - most_s
    if most_s is None or late_s <= 0:
        return None
    text = setup_words(name, most_s + late_s, most_s)
    return Rejection(footprint, "connection_setup", late_s, "s", text)
