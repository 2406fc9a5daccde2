"""The times that a phase can take, each with what it admits: see placement.md, "Levels"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.placement.problem import Phase, PlacementProblem

#: A phase with more levels than this is declined.
MAX_LEVELS = 4000

#: Loads of an exit are listed as long as the ways to reach them stay below this.
MAX_LOADS = 40_000


@dataclass(frozen=True, slots=True)
class Level:
    """A time of one phase, and the placements for which it is enough, with one algorithm.

    `sizes` are the numbers of its ranks, above 0, that a group may have in a domain; `most_load` is
    how much of the phase's load may fall on the exit of one domain (see `load_weight`).
    """

    algorithm: str
    time_s: Fraction
    sizes: frozenset[int]
    most_load: int

    def admits(self, other: Level) -> bool:
        """Whether all placements of another level are admitted, in no more time."""
        is_wider = self.sizes >= other.sizes and self.most_load >= other.most_load
        return is_wider and self.time_s <= other.time_s


def load_weight(phase: Phase, size: int) -> int:
    """Return what a group with `size` ranks in a domain adds to the load of that domain's exit.

    A group that spans counts once; in an All-to-All each message does. In a "send" a pair counts
    for the sender's domain and for the receiver's.
    """
    ranks = phase.group_ranks
    if phase.operation == "all_to_all":
        return size * (ranks - size)
    return int(0 < size < ranks)


class _Links:
    """What rounds take: the fixed time of the slowest hop, and the bytes on every kind of link."""

    def __init__(self, problem: PlacementProblem, rooms: Sequence[int]) -> None:
        self.problem, self.max_room = problem, max(rooms)

    def alpha_s(self, is_inside: bool, is_outside: bool) -> Fraction:
        inside, between = self.problem.inside, self.problem.between
        alphas = [inside.alpha_s] if is_inside else []
        if is_outside and between is not None:
            alphas.append(between.alpha_s)
        return max(alphas)

    def inside_s(self, size: Fraction) -> Fraction:
        return size / self.problem.inside.bytes_per_s

    def between_s(self, size: Fraction) -> Fraction:
        assert self.problem.between is not None
        return size / self.problem.between.bytes_per_s

    def exit_s(self, size: Fraction) -> Fraction:
        limit = self.problem.exit_bytes_per_s
        return Fraction(0) if limit is None else size / limit


def phase_levels(problem: PlacementProblem, phase: Phase, rooms: Sequence[int]) -> list[Level]:
    """Return the levels of a phase that are possible and not admitted by another, fastest first.

    `rooms` are the free cards of the domains that matter. Raises TooLargeError when there are more
    than `MAX_LEVELS`.
    """
    links = _Links(problem, rooms)
    levels = [
        level
        for algorithm in phase.algorithms
        for level in _algorithm_levels(links, phase, algorithm)
        if _is_possible(phase, level, rooms)
    ]
    if len(levels) > MAX_LEVELS:
        raise TooLargeError(f"phase {phase.name!r} has {len(levels)} levels, at most {MAX_LEVELS}")
    levels.sort(key=lambda level: (level.time_s, -len(level.sizes), -level.most_load))
    kept: list[Level] = []
    for level in levels:
        if not any(other.admits(level) for other in kept):
            kept.append(level)
    return kept


def _algorithm_levels(links: _Links, phase: Phase, algorithm: str) -> Iterator[Level]:
    if phase.operation == "send":
        yield from _send_levels(links, phase)
    elif algorithm == "direct":
        yield from _direct_levels(links, phase)
    elif algorithm == "hierarchical":
        yield from _hierarchical_levels(links, phase)
    else:
        yield from _ring_levels(links, phase)


def _ring_levels(links: _Links, phase: Phase) -> Iterator[Level]:
    ranks, block = phase.group_ranks, phase.message_bytes / phase.group_ranks
    rounds = (ranks - 1) * (2 if phase.operation == "all_reduce" else 1)
    inside_s = links.inside_s(block)
    inner = links.alpha_s(True, False) + inside_s
    yield Level("ring", rounds * inner, frozenset({ranks}), 0)
    if links.problem.between is None:
        return
    for load in range(1, len(phase.groups) + 1):
        outer_s = max(links.between_s(block), links.exit_s(load * block))
        apart = links.alpha_s(False, True) + outer_s
        yield Level("ring", rounds * apart, frozenset({1}), load)
        mixed = links.alpha_s(True, True) + max(inside_s, outer_s)
        yield Level("ring", rounds * mixed, frozenset(range(1, ranks + 1)), load)


def _hierarchical_levels(links: _Links, phase: Phase) -> Iterator[Level]:
    ranks, message = phase.group_ranks, phase.message_bytes
    for size in (size for size in range(1, ranks + 1) if ranks % size == 0):
        inner = Fraction(0)
        if size > 1:
            inner = 2 * (size - 1) * (links.alpha_s(True, False) + links.inside_s(message / size))
        if size == ranks:
            yield Level("hierarchical", inner, frozenset({ranks}), 0)
            continue
        if links.problem.between is None:
            continue
        for load in range(1, len(phase.groups) + 1):
            block = message / ranks
            sending = max(links.between_s(block), links.exit_s(size * load * block))
            outer = 2 * (ranks // size - 1) * (links.alpha_s(False, True) + sending)
            yield Level("hierarchical", inner + outer, frozenset({size}), load)


def _send_levels(links: _Links, phase: Phase) -> Iterator[Level]:
    size = phase.message_bytes
    inside_s = links.inside_s(size)
    yield Level("direct", links.alpha_s(True, False) + inside_s, frozenset({2}), 0)
    if links.problem.between is None:
        return
    for load in range(1, len(phase.groups) + 1):
        outer_s = max(links.between_s(size), links.exit_s(load * size))
        yield Level("direct", links.alpha_s(False, True) + outer_s, frozenset({1}), load)
        mixed = links.alpha_s(True, True) + max(inside_s, outer_s)
        yield Level("direct", mixed, frozenset({1, 2}), load)


def _direct_levels(links: _Links, phase: Phase) -> Iterator[Level]:
    """For each time that the busiest link may take: the sizes and the load that keep to it."""
    ranks, block = phase.group_ranks, phase.message_bytes / phase.group_ranks
    sending = links.inside_s((ranks - 1) * block)
    yield Level("direct", links.alpha_s(True, False) + sending, frozenset({ranks}), 0)
    if links.problem.between is None:
        return
    most = min(ranks, links.max_room)
    loads = _loads(phase, links.max_room)
    times = {links.inside_s((size - 1) * block) for size in range(1, most + 1)}
    spanning = range(1, min(most, ranks - 1) + 1)
    times |= {links.between_s((ranks - size) * block) for size in spanning}
    times |= {links.exit_s(load * block) for load in loads}
    for longest in sorted(times):
        load = max(load for load in loads if links.exit_s(load * block) <= longest)
        sizes = {
            size
            for size in range(1, most + 1)
            if links.inside_s((size - 1) * block) <= longest
            and (size == ranks or links.between_s((ranks - size) * block) <= longest)
        }
        if sizes:
            mixed = links.alpha_s(True, True) + longest
            yield Level("direct", mixed, frozenset(sizes), load)
        if 1 in sizes:
            yield Level("direct", links.alpha_s(False, True) + longest, frozenset({1}), load)


def _loads(phase: Phase, room: int) -> list[int]:
    """Return the loads that the exit of a domain with most room can have, ascending, with 0."""
    ranks = phase.group_ranks
    weights = [load_weight(phase, size) for size in range(ranks + 1)]
    reached = {(0, 0)}  # cards taken by the groups so far, load
    for _ in phase.groups:
        reached = {
            (cards + size, load + weights[size])
            for cards, load in reached
            for size in range(min(ranks, room - cards) + 1)
        }
        if len(reached) > MAX_LOADS:
            raise TooLargeError(f"phase {phase.name!r} has too many loads of an exit")
    return sorted({load for _, load in reached})


def _is_possible(phase: Phase, level: Level, rooms: Sequence[int]) -> bool:
    """Whether the free cards, divided into parts of the level's sizes, could hold all groups."""
    ranks, count = phase.group_ranks, len(phase.groups)
    if level.sizes == {ranks} and phase.operation != "send":
        return sum(room // ranks for room in rooms) >= count
    if len(level.sizes) == 1 and phase.operation != "send":
        (size,) = level.sizes
        most = min(count, level.most_load // max(load_weight(phase, size), 1))
        places = sum(min(room // size, most) for room in rooms)
        return places >= ranks // size * count
    sums = {0}  # ranks of one group in the domains so far
    for room in rooms:
        parts = [0, *(size for size in level.sizes if size <= min(room, ranks))]
        sums = {total + part for total in sums for part in parts if total + part <= ranks}
    return ranks in sums
