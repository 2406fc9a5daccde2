"""Closed forms for the time of a phase (section 6.4.2 on the links of section 6.5.1).

The evaluator adds up rounds and links; these formulas must give the same fractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from optimizer.placement.problem import Phase, PlacementProblem

ZERO = Fraction(0)

#: Where the ranks of every group are: one domain for each rank.
Homes = tuple[tuple[int, ...], ...]


class Clock:
    """Times of a step by the domains of its ranks; phases that look alike are timed once."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self._known: list[dict[Homes, tuple[Fraction, str] | None]] = [{} for _ in problem.phases]

    def fastest(self, number: int, domains: Sequence[int]) -> tuple[Fraction, str] | None:
        """Return the time of a phase, once, and its fastest algorithm; None where none can run."""
        phase = self.problem.phases[number]
        is_send = phase.operation == "send"
        homes = [tuple(domains[rank] for rank in group) for group in phase.groups]
        key = tuple(sorted(homes if is_send else (tuple(sorted(home)) for home in homes)))
        known = self._known[number]
        if key not in known:
            timed = ((algorithm_s(self.problem, phase, a, key), a) for a in phase.algorithms)
            possible = [(seconds, a) for seconds, a in timed if seconds is not None]
            known[key] = min(possible, key=lambda pair: pair[0], default=None)
        return known[key]

    def step_s(self, domains: Sequence[int]) -> Fraction | None:
        """Return the time of all phases of a step; None where one of them cannot run."""
        total = ZERO
        for number, phase in enumerate(self.problem.phases):
            found = self.fastest(number, domains)
            if found is None:
                return None
            total += phase.times * found[0]
        return total

    def algorithms(self, domains: Sequence[int]) -> tuple[str, ...] | None:
        """Return the fastest algorithm of every phase, the first of equals."""
        found = [self.fastest(number, domains) for number in range(len(self.problem.phases))]
        names = [pair[1] for pair in found if pair is not None]
        return tuple(names) if len(names) == len(found) else None


def algorithm_s(
    problem: PlacementProblem, phase: Phase, algorithm: str, homes: Homes
) -> Fraction | None:
    """Return the time of a phase with one algorithm; None where it cannot run there."""
    if problem.between is None and any(len(set(home)) > 1 for home in homes):
        return None
    if phase.operation == "send":
        return _send_s(problem, phase, homes)
    if algorithm == "direct":
        return _all_to_all_s(problem, phase, homes)
    if algorithm == "hierarchical":
        return _hierarchical_s(problem, phase, homes)
    rounds = phase.group_ranks - 1
    return (2 * rounds if phase.operation == "all_reduce" else rounds) * _ring_round_s(
        problem, phase.message_bytes / phase.group_ranks, homes
    )


def round_s(
    problem: PlacementProblem, inside: Fraction, outside: Fraction, leaving: Fraction
) -> Fraction:
    """Return the time of a round from the bytes on its busiest links of every kind, 0 for none.

    `inside` and `outside` are bytes on a card's link, `leaving` those on a domain's exit.
    """
    fixed, busiest = ZERO, ZERO
    if inside:
        fixed = max(fixed, problem.inside.alpha_s)
        busiest = max(busiest, inside / problem.inside.bytes_per_s)
    if outside:
        assert problem.between is not None
        fixed = max(fixed, problem.between.alpha_s)
        busiest = max(busiest, outside / problem.between.bytes_per_s)
        if problem.exit_bytes_per_s is not None:
            busiest = max(busiest, leaving / problem.exit_bytes_per_s)
    return fixed + busiest


def _ring_round_s(problem: PlacementProblem, block: Fraction, homes: Homes) -> Fraction:
    """A ring that spans leaves and enters each of its domains once in a round."""
    spanning = [set(home) for home in homes if len(set(home)) > 1]
    is_inside = any(len(set(home)) < len(home) for home in homes)
    most = max(Counter(d for home in spanning for d in home).values(), default=0)
    return round_s(problem, block * is_inside, block * bool(spanning), block * most)


def _hierarchical_s(problem: PlacementProblem, phase: Phase, homes: Homes) -> Fraction | None:
    """Rings of g inside with blocks of M/g, rings of S between with blocks of M/n."""
    counts = [Counter(home) for home in homes]
    sizes = {size for count in counts for size in count.values()}
    if len(sizes) > 1:
        return None
    size = sizes.pop()
    num_domains = phase.group_ranks // size
    total = ZERO
    if size > 1:
        block = phase.message_bytes / size
        total += 2 * (size - 1) * round_s(problem, block, ZERO, ZERO)
    if num_domains > 1:
        block = phase.message_bytes / phase.group_ranks
        most = size * max(Counter(d for count in counts for d in count).values())
        total += 2 * (num_domains - 1) * round_s(problem, ZERO, block, block * most)
    return total


def _all_to_all_s(problem: PlacementProblem, phase: Phase, homes: Homes) -> Fraction:
    """Of a group's c cards in a domain each sends c - 1 blocks inside and n - c outside."""
    ranks = phase.group_ranks
    block = phase.message_bytes / ranks
    inside, outside, leaving = 0, 0, Counter[int]()
    for home in homes:
        for domain, here in Counter(home).items():
            inside, outside = max(inside, here - 1), max(outside, ranks - here)
            leaving[domain] += here * (ranks - here)
    return round_s(problem, block * inside, block * outside, block * max(leaving.values()))


def _send_s(problem: PlacementProblem, phase: Phase, homes: Homes) -> Fraction:
    """Pairs over domains load the exit of the one and the entry of the other."""
    size = phase.message_bytes
    spanning = [home for home in homes if home[0] != home[1]]
    sent, taken = Counter(home[0] for home in spanning), Counter(home[1] for home in spanning)
    most = max((*sent.values(), *taken.values()), default=0)
    is_inside = len(spanning) < len(homes)
    return round_s(problem, size * is_inside, size * bool(spanning), size * most)
