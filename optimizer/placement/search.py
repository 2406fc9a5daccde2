"""Placements without a solver: first fit, whole blocks into domains, and small improvements."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from optimizer.placement.bound import placement_bound
from optimizer.placement.problem import PlacementAnswer, PlacementProblem
from optimizer.placement.times import Clock

#: How many of the best block placements are improved rank by rank.
MAX_STARTS = 3

Domains = tuple[int, ...]


def first_fit(problem: PlacementProblem, by_room: bool = False) -> Domains | None:
    """Give ranks the free cards in order, or, `by_room`, those of the emptiest domains first.

    Returns None when there are too few cards.
    """
    order = sorted(range(len(problem.room)), key=lambda d: -problem.room[d] if by_room else 0)
    cards = [domain for domain in order for _ in range(problem.room[domain])]
    return tuple(cards[: problem.num_ranks]) if len(cards) >= problem.num_ranks else None


def fastest_answer(problem: PlacementProblem, domains: Domains | None) -> PlacementAnswer | None:
    """Return domains with the fastest algorithm of every phase; None where a phase has none."""
    algorithms = None if domains is None else Clock(problem).algorithms(domains)
    if domains is None or algorithms is None:
        return None
    return PlacementAnswer(domains, algorithms)


def good_placement(
    problem: PlacementProblem, is_over: Callable[[], bool] = lambda: False
) -> PlacementAnswer | None:
    """Return the best of many block placements, improved by moves and swaps; None without one."""
    clock, bound = Clock(problem), placement_bound(problem)
    timed: dict[Domains, Fraction] = {}
    for domains in _block_placements(problem):
        if domains not in timed:
            seconds = clock.step_s(domains)
            if seconds is not None:
                timed[domains] = seconds
        if is_over() or timed.get(domains) == bound:
            break
    best: tuple[Fraction, Domains] | None = None
    for start in sorted(timed, key=lambda domains: (timed[domains], domains))[:MAX_STARTS]:
        found = _improve(problem, clock, start, timed[start], lambda s: s == bound or is_over())
        if best is None or found < best:
            best = found
        if best[0] == bound or is_over():
            break
    return None if best is None else fastest_answer(problem, best[1])


def _block_placements(problem: PlacementProblem) -> Iterator[Domains]:
    """Yield placements of whole blocks of ranks that lie next to each other, or equally far apart.

    A block goes where it fits: into the first domain, the one with most room, or with least.
    """
    ranks = problem.num_ranks
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    useful = _useful_domains(problem)
    for stride, size in itertools.product(divisors, reversed(divisors)):
        order = sorted(range(ranks), key=lambda rank: (rank % stride, rank // stride))
        for policy in (lambda room: 0, lambda room: -room, lambda room: room):
            domains = _place_blocks(useful, order, size, policy)
            if domains is not None:
                yield domains
    for by_room in (False, True):
        domains = first_fit(problem, by_room)
        if domains is not None:
            yield domains


def _useful_domains(problem: PlacementProblem) -> dict[int, int]:
    """Return the room of domains that some placement needs: of equal ones, one for each rank."""
    seen, found = Counter[int](), dict[int, int]()
    for domain, room in enumerate(problem.room):
        seen[room] += 1
        if room and seen[room] <= problem.num_ranks:
            found[domain] = room
    return found


def _place_blocks(
    rooms: Mapping[int, int], order: Sequence[int], size: int, policy: Callable[[int], int]
) -> Domains | None:
    room, found = dict(rooms), [0] * len(order)
    for first in range(0, len(order), size):
        fitting = [d for d in room if room[d] >= size]
        if not fitting:
            return None
        domain = min(fitting, key=lambda d: policy(room[d]))
        room[domain] -= size
        for rank in order[first : first + size]:
            found[rank] = domain
    return tuple(found)


def _improve(
    problem: PlacementProblem,
    clock: Clock,
    domains: Domains,
    seconds: Fraction,
    is_enough: Callable[[Fraction], bool],
) -> tuple[Fraction, Domains]:
    """Move a rank to a free card or swap two ranks as long as that helps."""
    is_better = True
    while is_better:
        is_better = False
        for moved in _neighbours(problem, domains):
            if is_enough(seconds):
                return seconds, domains
            taken = clock.step_s(moved)
            if taken is not None and taken < seconds:
                domains, seconds, is_better = moved, taken, True
                break
    return seconds, domains


def _neighbours(problem: PlacementProblem, domains: Domains) -> Iterator[Domains]:
    used, unused = Counter(domains), dict[int, int]()
    for domain, room in enumerate(problem.room):
        if domain not in used:
            unused.setdefault(room, domain)  # equal ones that nobody uses are one
    room_left = {d: len(problem.free_cards[d]) - count for d, count in used.items()}
    room_left |= {domain: room for room, domain in unused.items()}
    for rank, to in itertools.product(range(len(domains)), sorted(room_left)):
        if room_left[to] > 0 and to != domains[rank]:
            yield (*domains[:rank], to, *domains[rank + 1 :])
    for a, b in itertools.combinations(range(len(domains)), 2):
        if domains[a] != domains[b]:
            swapped = list(domains)
            swapped[a], swapped[b] = domains[b], domains[a]
            yield tuple(swapped)
