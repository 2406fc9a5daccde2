"""Patterns: what one serving instance may do, priced exactly; the columns of the MILP.

Where the solver assigns sessions, a pattern is a kind and the queues of all its lanes. Among those
of the same sessions only the ones that no other beats in every measure are kept: finishing earlier
never makes anything after it later, so the rest cannot be needed. Under round robin the queues
follow from the number of serving instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from formulations.labels import Clock, Deal, Dealer, Times, clock_of, deal_queues
from formulations.lanes import Queues, all_lanes, dealt_queues, even_queues, holds_queues
from formulations.scoring import QueueScore, combine, score_queues
from optimizer.errors import TooLargeError
from optimizer.tables import ProblemTables

#: More patterns than this and the formulation declines.
MAX_PATTERNS = 100_000


@dataclass(frozen=True, slots=True)
class Pattern:
    """One column: a kind with its queues, or a whole uniform layout dealt out by round robin.

    `deal` says how the sessions are dealt to lanes where there are several ways; `place` is (number
    of instances, position) under round robin; `counts[c]` counts the sessions of cohort c.
    """

    kind: int | None
    deal: Deal | None
    counts: tuple[int, ...]
    score: QueueScore
    place: tuple[int, int] | None = None
    layout: int | None = None


def pattern_queues(tables: ProblemTables, pattern: Pattern) -> Queues:
    """Return the queues of the lanes of a pattern that is of one kind."""
    assert pattern.kind is not None
    candidate = tables.kinds[pattern.kind].candidate
    if pattern.place is not None:
        number, position = pattern.place
        return dealt_queues(candidate, tables.dispatch_order[position::number])
    if pattern.deal is not None:
        return deal_queues(pattern.deal, candidate.num_lanes)
    return even_queues(candidate, pattern.counts[0])


def _alike(clock: Clock, is_over: Callable[[], bool]) -> Iterator[tuple[int, Times]]:
    """Yield (number, times) of identical sessions, dealt as evenly as can be.

    Let e(1) < e(2) < ... be the ends on one lane: they depend on nothing else, as sessions and
    lanes are alike. A deal takes from each lane a beginning of this sequence. An even deal takes
    the least n of all ends, so that no other has a lesser last end, latency or sum, or more of them
    by a deadline. Its groups, dealt evenly too, have as few sessions in the fullest as can be, so
    that memory holds it if it holds any deal of n sessions.
    """
    candidate, times, end = clock.kind.candidate, Times(), 0
    for number in range(1, clock.tables.num_sessions + 1):
        if is_over():
            raise TooLargeError("time ran out while patterns were listed")
        if not candidate.holds((-(-number // candidate.num_groups),)):
            return
        if (number - 1) % all_lanes(candidate) == 0:  # every lane has as many
            end = clock.finish(times.end, 0)
        times = clock.after(times, end, 0)
        yield number, times


def _assigned(tables: ProblemTables, is_over: Callable[[], bool]) -> list[Pattern]:
    """Patterns of a search in which the solver assigns the sessions."""
    size = 1
    for cohort in tables.cohorts:
        size *= cohort.num_sessions + 1
    if size * len(tables.kinds) > 10 * MAX_PATTERNS:
        raise TooLargeError(f"{size} mixtures of sessions on {len(tables.kinds)} kinds; use cp-sat")
    dealer = Dealer(tables, is_over)
    patterns: list[Pattern] = []
    idle = (0,) * len(tables.cohorts)
    for kind in tables.kinds:
        k = kind.index
        if tables.layouts is not None:
            patterns.append(Pattern(k, None, idle, score_queues(tables, kind, ())))
        clock, left = clock_of(tables, kind), MAX_PATTERNS - len(patterns)
        if len(tables.cohorts) > 1:
            for counts, deal in dealer.deals(clock, left):
                patterns.append(Pattern(k, deal, counts, clock.score(deal.times)))
            continue
        for number, times in _alike(clock, is_over):
            patterns.append(Pattern(k, None, (number,), clock.score(times)))
        if len(patterns) > MAX_PATTERNS:
            raise TooLargeError(f"more than {MAX_PATTERNS} patterns; use cp-sat")
    return patterns


def _dealt(tables: ProblemTables) -> list[Pattern]:
    """Patterns of a mixed search under round robin: a kind at position r of n instances."""
    size = sum(range(1, tables.max_instances + 1)) * len(tables.kinds)
    if size > MAX_PATTERNS:
        raise TooLargeError(f"{size} round-robin patterns; use cp-sat")
    patterns = []
    for n in range(1, tables.max_instances + 1):
        for position in range(n):
            sessions = tables.dispatch_order[position::n]
            counts = _counts(tables, sessions)
            for kind in tables.kinds:
                queues = dealt_queues(kind.candidate, sessions)
                if holds_queues(kind.candidate, queues, len(counts)):
                    score = score_queues(tables, kind, queues)
                    patterns.append(Pattern(kind.index, None, counts, score, (n, position)))
    return patterns


def _whole_layouts(tables: ProblemTables) -> list[Pattern]:
    """Patterns of a uniform search under round robin: one for each layout that fits."""
    patterns = []
    for u, layout in enumerate(tables.layouts or ()):
        n = len(layout.instances)
        kinds = [tables.kinds[k] for k, _ in layout.instances]
        dealt = [
            (kind, dealt_queues(kind.candidate, tables.dispatch_order[position::n]))
            for position, kind in enumerate(kinds)
        ]
        if all(holds_queues(k.candidate, queues, len(tables.cohorts)) for k, queues in dealt):
            scores = [score_queues(tables, kind, queues) for kind, queues in dealt]
            counts = _counts(tables, tables.dispatch_order)
            patterns.append(Pattern(None, None, counts, combine(scores), layout=u))
    return patterns


def _counts(tables: ProblemTables, queue: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(queue.count(c) for c in range(len(tables.cohorts)))


def build_patterns(tables: ProblemTables, is_over: Callable[[], bool]) -> list[Pattern]:
    """Return every pattern worth having; raises TooLargeError, also once `is_over()`."""
    if not tables.is_round_robin:
        return _assigned(tables, is_over)
    return _dealt(tables) if tables.layouts is None else _whole_layouts(tables)
