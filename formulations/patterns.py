"""Patterns: what one serving instance may do, priced exactly; the columns of the MILP.

Where the solver assigns sessions, a pattern is a kind and a queue of cohorts. Among queues of the
same sessions only those no other queue beats in every measure are kept: finishing earlier never
makes anything after it later, so the rest cannot be needed. Under round robin the queues follow
from the number of serving instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from formulations.scoring import QueueScore, combine, queue_score, score_queue
from optimizer.errors import TooLargeError
from optimizer.tables import Kind, ProblemTables

#: More patterns than this and the formulation declines.
MAX_PATTERNS = 100_000


@dataclass(frozen=True, slots=True)
class Pattern:
    """One column: a kind with its queue, or a whole uniform layout dealt out by round robin.

    `place` is (number of instances, position) under round robin; `counts[c]` counts the sessions of
    cohort c.
    """

    kind: int | None
    label: Label | None
    counts: tuple[int, ...]
    score: QueueScore
    place: tuple[int, int] | None = None
    layout: int | None = None

    @property
    def queue(self) -> tuple[int, ...]:
        """Cohort indices in the order in which they are served."""
        return () if self.label is None else self.label.queue()


@dataclass(frozen=True, slots=True)
class Label:
    """A queue by its last cohort and the queue before it, with its measures."""

    last: int | None
    before: Label | None
    end: Fraction
    latency: Fraction
    completion: Fraction
    on_time: int

    def queue(self) -> tuple[int, ...]:
        """Return the cohort indices of the whole queue, in order."""
        backwards: list[int] = []
        label: Label | None = self
        while label is not None and label.last is not None:
            backwards.append(label.last)
            label = label.before
        return tuple(reversed(backwards))

    def beats(self, other: Label) -> bool:
        """Whether no measure of this queue is worse."""
        return (
            self.end <= other.end
            and self.on_time >= other.on_time
            and self.latency <= other.latency
            and self.completion <= other.completion
        )


def _extend(tables: ProblemTables, kind: Kind, label: Label, index: int) -> Label:
    cohort = tables.cohorts[index]
    end = tables.finish_s(kind, label.end, index)
    return Label(
        index,
        label,
        end,
        max(label.latency, end - cohort.release_s),
        label.completion + end,
        label.on_time + (cohort.deadline_s is None or end <= cohort.deadline_s),
    )


def _unbeaten(labels: Iterable[Label]) -> list[Label]:
    """Return the labels that no other beats; of equal ones the first."""
    kept: list[Label] = []
    for label in labels:
        if not any(other.beats(label) for other in kept):
            kept = [other for other in kept if not label.beats(other)]
            kept.append(label)
    return kept


def _queues(
    tables: ProblemTables, kind: Kind, budget: int, is_over: Callable[[], bool]
) -> list[tuple[tuple[int, ...], Label]]:
    """Return (counts, label) of every queue worth having that the kind's memory holds."""
    zero = Fraction(0)
    limits = [range(cohort.num_sessions + 1) for cohort in tables.cohorts]
    fronts: dict[tuple[int, ...], list[Label]] = {}
    found: list[tuple[tuple[int, ...], Label]] = []
    for counts in product(*limits):
        tokens = sum(n * c.held_tokens for n, c in zip(counts, tables.cohorts, strict=True))
        if tokens > kind.candidate.max_tokens:
            continue
        if not any(counts):
            fronts[counts] = [Label(None, None, zero, zero, zero, 0)]
            continue
        longer: list[Label] = []
        for index, number in enumerate(counts):
            if number:
                before = (*counts[:index], number - 1, *counts[index + 1 :])
                longer += [_extend(tables, kind, x, index) for x in fronts.get(before, [])]
        if is_over():
            raise TooLargeError("time ran out while patterns were listed")
        fronts[counts] = _unbeaten(longer)
        found += [(counts, label) for label in fronts[counts]]
        if len(found) > budget:
            raise TooLargeError(f"more than {MAX_PATTERNS} patterns; use cp-sat")
    return found


def _score(kind: Kind, label: Label) -> QueueScore:
    return queue_score(kind, label.end, label.latency, label.completion, label.on_time)


def _assigned(tables: ProblemTables, is_over: Callable[[], bool]) -> list[Pattern]:
    """Patterns of a search in which the solver assigns the sessions."""
    size = 1
    for cohort in tables.cohorts:
        size *= cohort.num_sessions + 1
    if size * len(tables.kinds) > 10 * MAX_PATTERNS:
        raise TooLargeError(f"{size} mixtures of sessions on {len(tables.kinds)} kinds; use cp-sat")
    patterns: list[Pattern] = []
    idle = (0,) * len(tables.cohorts)
    for kind in tables.kinds:
        if tables.layouts is not None:
            patterns.append(Pattern(kind.index, None, idle, score_queue(tables, kind, ())))
        for counts, label in _queues(tables, kind, MAX_PATTERNS - len(patterns), is_over):
            patterns.append(Pattern(kind.index, label, counts, _score(kind, label)))
    return patterns


def _dealt(tables: ProblemTables) -> list[Pattern]:
    """Patterns of a mixed search under round robin: a kind at position r of n instances."""
    size = sum(range(1, tables.max_instances + 1)) * len(tables.kinds)
    if size > MAX_PATTERNS:
        raise TooLargeError(f"{size} round-robin patterns; use cp-sat")
    patterns = []
    for n in range(1, tables.max_instances + 1):
        for position in range(n):
            queue = tables.dispatch_order[position::n]
            counts = _counts(tables, queue)
            for kind in tables.kinds:
                if _held_tokens(tables, queue) <= kind.candidate.max_tokens:
                    score = score_queue(tables, kind, queue)
                    patterns.append(Pattern(kind.index, None, counts, score, (n, position)))
    return patterns


def _whole_layouts(tables: ProblemTables) -> list[Pattern]:
    """Patterns of a uniform search under round robin: one for each layout that fits."""
    patterns = []
    for u, layout in enumerate(tables.layouts or ()):
        n = len(layout.instances)
        queues = [tables.dispatch_order[position::n] for position in range(n)]
        kinds = [tables.kinds[k] for k, _ in layout.instances]
        if all(
            _held_tokens(tables, queue) <= kind.candidate.max_tokens
            for queue, kind in zip(queues, kinds, strict=True)
        ):
            scores = [score_queue(tables, k, q) for k, q in zip(kinds, queues, strict=True)]
            counts = _counts(tables, tables.dispatch_order)
            patterns.append(Pattern(None, None, counts, combine(scores), layout=u))
    return patterns


def _counts(tables: ProblemTables, queue: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(queue.count(c) for c in range(len(tables.cohorts)))


def _held_tokens(tables: ProblemTables, queue: Iterable[int]) -> int:
    return sum(tables.cohorts[c].held_tokens for c in queue)


def build_patterns(tables: ProblemTables, is_over: Callable[[], bool]) -> list[Pattern]:
    """Return every pattern worth having; raises TooLargeError, also once `is_over()`."""
    if not tables.is_round_robin:
        return _assigned(tables, is_over)
    return _dealt(tables) if tables.layouts is None else _whole_layouts(tables)
