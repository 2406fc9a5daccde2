"""The oracle: every way to give ranks domains, timed by the closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.placement.problem import PlacementAnswer, PlacementProblem
from optimizer.placement.times import Clock

#: The oracle looks at no more assignments than this.
MAX_ASSIGNMENTS = 100_000


def assignments(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    """Yield every way to give all ranks domains with a free card for each, in order."""
    room = list(problem.room)
    chosen: list[int] = []

    def visit() -> Iterator[tuple[int, ...]]:
        if len(chosen) == problem.num_ranks:
            yield tuple(chosen)
            return
        for domain in range(len(room)):
            if room[domain]:
                room[domain] -= 1
                chosen.append(domain)
                yield from visit()
                chosen.pop()
                room[domain] += 1

    return visit()


def best_placement_exhaustively(
    problem: PlacementProblem, max_assignments: int = MAX_ASSIGNMENTS
) -> tuple[Fraction, PlacementAnswer] | None:
    """Return the least time of a step with the first placement that has it, None if none is legal.

    Raises TooLargeError when there could be more than `max_assignments` of ranks to domains.
    """
    if problem.num_free_cards < problem.num_ranks:
        return None
    num_domains = sum(1 for room in problem.room if room)
    if num_domains**problem.num_ranks > max_assignments:
        raise TooLargeError(
            f"{num_domains}^{problem.num_ranks} placements; the oracle takes {max_assignments}"
        )
    clock = Clock(problem)
    best: tuple[Fraction, tuple[int, ...]] | None = None
    for domains in assignments(problem):
        seconds = clock.step_s(domains)
        if seconds is not None and (best is None or seconds < best[0]):
            best = seconds, domains
    if best is None:
        return None
    algorithms = clock.algorithms(best[1])
    assert algorithms is not None
    return best[0], PlacementAnswer(best[1], algorithms)
