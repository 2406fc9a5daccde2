"""Pipeline parallelism as an exact timeline of events (section 6.2.5).

A micro-batch runs on every stage in turn. Between stages it takes a slot of the next one when it
leaves, is under way for the hand-off, waits in the slot and gives it back when it starts. A stage
that finds no free slot keeps its micro-batch and stands still. Hand-offs of several micro-batches
may be under way at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

ZERO = Fraction(0)

#: Seconds of one stage: for every micro-batch the same, or one time for each.
StageTime: TypeAlias = Fraction | Sequence[Fraction]


@dataclass(frozen=True, slots=True)
class StageVisit:
    """One micro-batch on one stage, seconds: slot taken, start, end of the work, stage left."""

    enter_s: Fraction
    start_s: Fraction
    finish_s: Fraction
    leave_s: Fraction


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """Every visit, as `visits[micro_batch][stage]`."""

    visits: tuple[tuple[StageVisit, ...], ...]

    @property
    def completions_s(self) -> tuple[Fraction, ...]:
        """When each micro-batch has left the last stage."""
        return tuple(row[-1].leave_s for row in self.visits)

    @property
    def first_completion_s(self) -> Fraction:
        """When the first micro-batch is done."""
        return self.visits[0][-1].leave_s

    @property
    def makespan_s(self) -> Fraction:
        """When the last micro-batch is done, counted from time 0."""
        return self.visits[-1][-1].leave_s

    @property
    def completion_intervals_s(self) -> tuple[Fraction, ...]:
        """Seconds from each completion to the next."""
        return tuple(later - earlier for earlier, later in pairwise(self.completions_s))

    @property
    def utilisation(self) -> Fraction:
        """Share of working time of all stages, from the first start to the last completion.

        Even stages reach b/(q+b-1) with q stages and b micro-batches (section 6.2.5).
        """
        working = sum((v.finish_s - v.start_s for row in self.visits for v in row), start=ZERO)
        span = self.makespan_s - self.visits[0][0].start_s
        return working / (len(self.visits[0]) * span)

    def queue_length(self, stage: int, at_s: Fraction) -> int:
        """Micro-batches in the slots of `stage`, under way or waiting, just after `at_s`."""
        entered, started = self._queue_events(stage)
        return bisect_right(entered, at_s) - bisect_right(started, at_s)

    def longest_queue(self, stage: int) -> int:
        """Most micro-batches that were in the slots of `stage` at once."""
        entered, started = self._queue_events(stage)
        return max(bisect_right(entered, t) - bisect_right(started, t) for t in entered)

    def _queue_events(self, stage: int) -> tuple[list[Fraction], list[Fraction]]:
        """Ascending moments at which slots of a stage are taken and given back."""
        if not 0 <= stage < len(self.visits[0]):
            raise ValueError(f"stage {stage} is not one of the {len(self.visits[0])} stages")
        column = [row[stage] for row in self.visits]
        return [visit.enter_s for visit in column], [visit.start_s for visit in column]


def run_pipeline(
    stage_s: Sequence[StageTime],
    arrivals_s: Sequence[Fraction],
    slots: int | None = None,
    handoff_s: StageTime = ZERO,
) -> PipelineRun:
    """Run one micro-batch for every arrival through the stages, in order and as early as possible.

    `slots` is the number of slots of every stage after the first (None: no limit; arrivals wait
    without one). `handoff_s` is one time, or one for each pair of neighbouring stages.
    Raises ValueError for a pipeline without stages or micro-batches, arrivals that descend or are
    negative, no slot, and times that are missing or out of range.
    """
    num_batches = len(arrivals_s)
    _check_arrivals(arrivals_s)
    if slots is not None and slots < 1:
        raise ValueError(f"a stage needs at least 1 slot to receive into, not {slots}")
    times = _stage_times(stage_s, num_batches, "micro-batches")
    handoffs = _handoffs(handoff_s, len(times))
    last = len(times) - 1
    visits: list[list[StageVisit]] = []
    for j, arrival in enumerate(arrivals_s):
        row: list[StageVisit] = []
        enter = ready = ZERO + arrival
        for i in range(last + 1):
            start = max(ready, visits[j - 1][i].leave_s) if j else ready
            finish = leave = start + times[i][j]
            if i < last and slots is not None and j >= slots:
                leave = max(finish, visits[j - slots][i + 1].start_s)
            row.append(StageVisit(enter, start, finish, leave))
            if i < last:
                enter, ready = leave, leave + handoffs[i]
        visits.append(row)
    return PipelineRun(tuple(tuple(row) for row in visits))


def steady_interval_s(
    stage_s: Sequence[Fraction], slots: int | None = None, handoff_s: StageTime = ZERO
) -> Fraction:
    """Average seconds between completions of a long run: the slowest stage sets the pace.

    A slot is taken throughout its hand-off, so the slowest hand-off over the slots may set it too.
    """
    times = _stage_times(stage_s, 1, "micro-batches")
    if slots is not None and slots < 1:
        raise ValueError(f"a stage needs at least 1 slot to receive into, not {slots}")
    handoffs = _handoffs(handoff_s, len(times))
    slowest = max(row[0] for row in times)
    return (
        slowest
        if slots is None
        else max([slowest, *(Fraction(handoff, slots) for handoff in handoffs)])
    )


def run_decode_rounds(
    stage_s: Sequence[StageTime],
    num_groups: int,
    tokens_per_group: int,
    handoff_s: StageTime = ZERO,
    return_s: Fraction = ZERO,
) -> tuple[tuple[Fraction, ...], ...]:
    """Completion of every token as `result[group][token]`, seconds, all groups ready at 0.

    The next token of a group is ready on the first stage `return_s` after its last one left the
    final stage: future tokens of a session are no micro-batches (section 6.2.5). Stages serve in
    the order of arrival, lower groups first. A stage has one time, or one for each group; queues
    need no limit, since a group has one token under way.
    """
    _check_rounds(num_groups, return_s)
    if tokens_per_group < 1:
        raise ValueError(f"a group needs at least 1 token, not {tokens_per_group}")
    times = _stage_times(stage_s, num_groups, "groups")
    handoffs = [*_handoffs(handoff_s, len(times)), ZERO]
    completions: list[list[Fraction]] = [[] for _ in range(num_groups)]
    stage_free = [ZERO] * len(times)
    # Stages serve in the order of arrival and the return takes all groups equally long, so none
    # overtakes another: the groups take turns, whatever their times.
    for _ in range(tokens_per_group):
        for group, done in enumerate(completions):
            moment = done[-1] + return_s if done else ZERO
            for i, row in enumerate(times):
                stage_free[i] = max(moment, stage_free[i]) + row[group]
                moment = stage_free[i] + handoffs[i]
            done.append(moment)
    return tuple(tuple(row) for row in completions)


def decode_period_s(
    stage_s: Sequence[Fraction],
    num_groups: int,
    handoff_s: StageTime = ZERO,
    return_s: Fraction = ZERO,
) -> Fraction:
    """Seconds from one token of a group to its next, for equal groups (section 6.2.5).

    The larger of one token's way round (stages, hand-offs, return) and of one token of every
    group on the slowest stage. It holds from the first token on when all groups are ready at 0.
    """
    _check_rounds(num_groups, return_s)
    times = [row[0] for row in _stage_times(stage_s, 1, "groups")]
    way_round = sum([*times, *_handoffs(handoff_s, len(times))], start=return_s)
    return max(way_round, num_groups * max(times))


def _stage_times(stage_s: Sequence[StageTime], count: int, noun: str) -> list[tuple[Fraction, ...]]:
    """Spell out the time of every stage for each of `count` micro-batches or groups."""
    if not stage_s:
        raise ValueError("a pipeline needs at least 1 stage")
    rows = []
    for i, time in enumerate(stage_s):
        row = tuple(time) if isinstance(time, Sequence) else (time,) * count
        if len(row) != count:
            raise ValueError(f"stage {i} has {len(row)} times for {count} {noun}")
        if min(row) <= 0:
            raise ValueError(f"stage {i} must take more than 0 s, not {min(row)}")
        rows.append(row)
    return rows


def _handoffs(handoff_s: StageTime, num_stages: int) -> tuple[Fraction, ...]:
    """Spell out the hand-off from every stage but the last to its successor."""
    links = num_stages - 1
    row = tuple(handoff_s) if isinstance(handoff_s, Sequence) else (handoff_s,) * links
    if len(row) != links:
        raise ValueError(f"{num_stages} stages need {links} hand-off times, not {len(row)}")
    if min(row, default=ZERO) < 0:
        raise ValueError(f"a hand-off must take 0 s or more, not {min(row)}")
    return row


def _check_arrivals(arrivals_s: Sequence[Fraction]) -> None:
    if not arrivals_s:
        raise ValueError("a pipeline needs at least 1 micro-batch")
    if arrivals_s[0] < 0:
        raise ValueError(f"a micro-batch cannot arrive before 0 s, but one does at {arrivals_s[0]}")
    for earlier, later in pairwise(arrivals_s):
        if later < earlier:
            raise ValueError(f"micro-batches keep their order, but {later} s comes after {earlier}")


def _check_rounds(num_groups: int, return_s: Fraction) -> None:
    if num_groups < 1:
        raise ValueError(f"there must be at least 1 group, not {num_groups}")
    if return_s < 0:
        raise ValueError(f"the return must take 0 s or more, not {return_s}")
