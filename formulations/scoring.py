"""Exact measures of a selection, from the tables alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.lanes import Queues
from optimizer.protocols import Measure, Selection
from optimizer.tables import Kind, ProblemTables

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class QueueScore:
    """What one serving instance contributes: every measure, and its sessions on time."""

    measures: Mapping[Measure, Fraction]
    num_on_time: int


def queue_score(
    kind: Kind, end: Fraction, latency: Fraction, completion: Fraction, num_on_time: int
) -> QueueScore:
    """Return every measure of one serving instance from the times of its sessions."""
    return QueueScore(
        {
            Measure.END: end,
            Measure.LATENCY: latency,
            Measure.COMPLETION: completion,
            Measure.CARD_SECONDS: kind.candidate.num_cards * end,
            Measure.ENERGY: kind.candidate.power_w * end,
            Measure.CARDS: Fraction(kind.candidate.num_cards),
            Measure.HELD: Fraction(-kind.candidate.held_sessions),
        },
        num_on_time,
    )


def score_queues(tables: ProblemTables, kind: Kind, queues: Queues) -> QueueScore:
    """Run the queues of an instance's lanes side by side, each session as early as it can."""
    last, latency, completion, on_time = ZERO, ZERO, ZERO, 0
    for queue in queues:
        end = ZERO
        for index in queue:
            cohort = tables.cohorts[index]
            end = tables.finish_s(kind, end, index)
            latency = max(latency, end - cohort.release_s)
            completion += end
            on_time += cohort.deadline_s is None or end <= cohort.deadline_s
        last = max(last, end)
    return queue_score(kind, last, latency, completion, on_time)


def combine(scores: Sequence[QueueScore]) -> QueueScore:
    """Add the sums and take the largest of the largest over serving instances."""
    measures: dict[Measure, Fraction] = {}
    for m in Measure:
        values = [s.measures[m] for s in scores]
        measures[m] = max(values, default=ZERO) if m.is_largest else sum(values, ZERO)
    return QueueScore(measures, sum(s.num_on_time for s in scores))


def score_selection(tables: ProblemTables, selection: Selection) -> QueueScore:
    """Return the exact measures of a whole selection."""
    return combine(
        [score_queues(tables, tables.kinds[i.kind], i.queues) for i in selection.instances]
    )
