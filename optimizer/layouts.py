"""Kinds of serving instance, and layouts of equal ones, from priced candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from instances.fleet import Pool
from optimizer.checks import uniform_cards
from optimizer.errors import TooLargeError
from optimizer.plan import CardId, Footprint
from optimizer.tables import Candidate, FaultedCard, Kind, Layout

#: More kinds than this and the tables decline the problem.
MAX_KINDS = 20_000


def _union(parts: list[tuple[Fraction, Fraction]]) -> tuple[tuple[Fraction, Fraction], ...]:
    joined: list[tuple[Fraction, Fraction]] = []
    for begin, end in sorted(parts):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def _make_kind(
    index: int, candidate: Candidate, owned: tuple[int, ...], faults: tuple[FaultedCard, ...]
) -> Kind:
    stalls = _union([stall for f in owned for stall in faults[f].stalls])
    return Kind(index, candidate, owned, stalls)


def mixed_kinds(
    candidates: Sequence[Candidate], faults: tuple[FaultedCard, ...]
) -> tuple[Kind, ...]:
    """Every candidate with every set of failing cards it could own."""
    kinds: list[Kind] = []
    for candidate in candidates:
        mine = [i for i, f in enumerate(faults) if f.pool_index == candidate.pool_index]
        for size in range(len(mine) + 1):
            for owned in combinations(mine, size):
                servers = [faults[f].server for f in owned]
                crowded = any(servers.count(s) > candidate.cards_per_server for s in servers)
                if crowded or len(set(servers)) > candidate.num_servers:
                    continue
                kinds.append(_make_kind(len(kinds), candidate, owned, faults))
                if len(kinds) > MAX_KINDS:
                    raise TooLargeError(f"more than {MAX_KINDS} kinds of serving instance")
    return tuple(kinds)


def uniform_layouts(
    pools: Sequence[Pool],
    candidates: Sequence[Candidate],
    faults: tuple[FaultedCard, ...],
    reject: Callable[[Footprint, str, int, str, str], None],
) -> tuple[tuple[Kind, ...], tuple[Layout, ...]]:
    """Return the kinds and layouts of equal serving instances that fill every pool.

    `reject` is told the footprint, rule, amount, unit and message of each that does not.
    """
    kinds: dict[tuple[int, tuple[int, ...]], Kind] = {}
    layouts: list[Layout] = []
    found: dict[Footprint, dict[int, Candidate]] = {}
    for c in candidates:
        found.setdefault(replace(c.footprint, pool=""), {})[c.pool_index] = c
    for shape, by_pool in found.items():
        cards_each, servers = shape.parallel.num_cards, shape.num_servers
        placed: list[tuple[int, tuple[CardId, ...]]] = []
        for i, pool in enumerate(pools):
            blocks = tuple(uniform_cards(pool, cards_each, servers))
            if i not in by_pool or not blocks:
                if i in by_pool:
                    block = cards_each // servers
                    left = pool.server.num_cards % block * pool.num_servers or (
                        pool.num_servers % servers * pool.server.num_cards
                    )
                    label = shape.parallel.label()
                    text = (
                        f"{label} over {servers} server(s) leaves {left} of {pool.num_cards} cards"
                    )
                    reject(replace(shape, pool=pool.name), "uniform", left, "cards", text)
                placed = []
                break
            for cards in blocks:
                owned = tuple(
                    f
                    for f, fault in enumerate(faults)
                    if fault.pool_index == i and CardId(fault.server, fault.card) in cards
                )
                key = (by_pool[i].index, owned)
                if key not in kinds:
                    kinds[key] = _make_kind(len(kinds), by_pool[i], owned, faults)
                placed.append((kinds[key].index, cards))
        if placed:
            layouts.append(Layout(tuple(placed)))
    return tuple(kinds.values()), tuple(layouts)
