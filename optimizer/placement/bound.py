"""A time that no placement beats, without a solver: every phase at its best conceivable place."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from optimizer.placement.problem import Phase, PlacementProblem
from optimizer.placement.times import ZERO, round_s


def placement_bound(problem: PlacementProblem) -> Fraction | None:
    """Return a lower bound on the time of a step; None where nothing can be placed at all."""
    if problem.num_free_cards < problem.num_ranks:
        return None
    total = Fraction(0)
    for phase in problem.phases:
        times = [seconds for name in phase.algorithms for seconds in _least(problem, phase, name)]
        if not times:
            return None
        total += phase.times * min(times)
    return total


def _least(problem: PlacementProblem, phase: Phase, algorithm: str) -> Iterator[Fraction]:
    if algorithm == "hierarchical":
        yield from _least_hierarchical(problem, phase)
    elif phase.operation == "send":
        yield from _least_send(problem, phase)
    elif algorithm == "direct":
        yield from _least_direct(problem, phase)
    else:
        rounds = (phase.group_ranks - 1) * (2 if phase.operation == "all_reduce" else 1)
        yield from (rounds * seconds for seconds in _least_ring_round(problem, phase))


def _num_spanning(problem: PlacementProblem, phase: Phase) -> int:
    """Fewest groups that span domains: each domain has whole ones only as far as they fit.

    Ranks that send as well as receive lie in two pairs; f of them may be f pairs, in a circle.
    """
    members = [rank for group in phase.groups for rank in group]
    each = phase.group_ranks if len(set(members)) == len(members) else 1
    return max(len(phase.groups) - sum(room // each for room in problem.room), 0)


def _least_shared(problem: PlacementProblem, phase: Phase, size: int) -> int | None:
    """Fewest groups that must share a domain if each has `size` cards in each of its domains."""
    places = phase.group_ranks // size * len(phase.groups)
    for most in range(1, len(phase.groups) + 1):
        if sum(min(room // size, most) for room in problem.room) >= places:
            return most
    return None


def _num_domains(problem: PlacementProblem) -> int:
    return sum(1 for room in problem.room if room)


def _least_ring_round(problem: PlacementProblem, phase: Phase) -> Iterator[Fraction]:
    """Everything inside, or every card in another domain, or some of both."""
    block, spanning = phase.message_bytes / phase.group_ranks, _num_spanning(problem, phase)
    if not spanning:
        yield round_s(problem, block, ZERO, ZERO)
    if problem.between is None:
        return
    shared = _least_shared(problem, phase, 1)
    if shared is not None:
        yield round_s(problem, ZERO, block, block * shared)
    # a spanning group is present in two domains or more
    most = max(1, -(-2 * spanning // _num_domains(problem)))
    yield round_s(problem, block, block, block * most)


def _least_hierarchical(problem: PlacementProblem, phase: Phase) -> Iterator[Fraction]:
    """Every size that divides a group, with as few groups in a domain as must be."""
    ranks, message = phase.group_ranks, phase.message_bytes
    for size in (size for size in range(1, ranks + 1) if ranks % size == 0):
        shared = _least_shared(problem, phase, size)
        if shared is None or (size < ranks and problem.between is None):
            continue
        total = Fraction(0)
        if size > 1:
            total += 2 * (size - 1) * round_s(problem, message / size, ZERO, ZERO)
        if size < ranks:
            block = message / ranks
            leaving = block * size * shared
            total += 2 * (ranks // size - 1) * round_s(problem, ZERO, block, leaving)
        yield total


def _least_direct(problem: PlacementProblem, phase: Phase) -> Iterator[Fraction]:
    """A group inside one domain, or one whose smallest part has at most half of its ranks."""
    ranks = phase.group_ranks
    block = phase.message_bytes / ranks
    if not _num_spanning(problem, phase):
        yield round_s(problem, block * (ranks - 1), ZERO, ZERO)
    if problem.between is None:
        return
    largest = -(-ranks // _num_domains(problem))
    smallest = min(ranks // 2, max(problem.room))
    outside, leaving = block * (ranks - smallest), block * (ranks - 1)
    yield round_s(problem, block * (largest - 1), outside, leaving)


def _least_send(problem: PlacementProblem, phase: Phase) -> Iterator[Fraction]:
    size, spanning = phase.message_bytes, _num_spanning(problem, phase)
    if not spanning:
        yield round_s(problem, size, ZERO, ZERO)
    if problem.between is None:
        return
    each = -(-len(phase.groups) // _num_domains(problem))
    yield round_s(problem, ZERO, size, size * each)
    most = max(1, -(-spanning // _num_domains(problem)))
    yield round_s(problem, size, size, size * most)
