"""Lanes of serving instances: how many, whose memory they share, and how sessions are dealt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optimizer.tables import Candidate

#: Cohort indices of the sessions of each lane, in order; lanes of the first group come first.
Queues = tuple[tuple[int, ...], ...]


def all_lanes(candidate: Candidate) -> int:
    """Return the lanes of all groups of an instance."""
    return candidate.num_groups * candidate.num_lanes


def used_lanes(candidate: Candidate, num_sessions: int) -> int:
    """Most lanes of an instance that can have a session."""
    return min(all_lanes(candidate), num_sessions)


def trimmed(queues: Sequence[Sequence[int]]) -> Queues:
    """Return queues without the empty ones at the end."""
    used = max((lane + 1 for lane, queue in enumerate(queues) if queue), default=0)
    return tuple(map(tuple, queues[:used]))


def dealt_queues(candidate: Candidate, sessions: Sequence[int]) -> Queues:
    """Deal an instance's sessions (cohort indices) to its lanes in turn, as round robin does."""
    lanes = all_lanes(candidate)
    return tuple(tuple(sessions[lane::lanes]) for lane in range(min(lanes, len(sessions))))


def even_queues(candidate: Candidate, num_sessions: int) -> Queues:
    """Deal identical sessions of cohort 0 as evenly as can be to groups and, within, to lanes."""
    groups, lanes = candidate.num_groups, candidate.num_lanes
    lengths = [
        len(range(group + groups * lane, num_sessions, groups * lanes))
        for group in range(groups)
        for lane in range(lanes)
    ]
    return trimmed([(0,) * length for length in lengths])


def group_counts(
    candidate: Candidate, queues: Queues, num_cohorts: int
) -> Iterator[tuple[int, ...]]:
    """Yield how many sessions of each cohort every group with a session is given."""
    for first in range(0, len(queues), candidate.num_lanes):
        mine = queues[first : first + candidate.num_lanes]
        yield tuple(sum(q.count(c) for q in mine) for c in range(num_cohorts))


def holds_queues(candidate: Candidate, queues: Queues, num_cohorts: int) -> bool:
    """Whether every group's memory holds the sessions of its lanes."""
    return all(map(candidate.holds, group_counts(candidate, queues, num_cohorts)))
