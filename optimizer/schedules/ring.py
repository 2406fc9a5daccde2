"""Ring AllReduce, ReduceScatter and AllGather (section 6.4.2, figures 6-23 and 6-24)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import Round, Schedule, Sends, read_only


def ring(operation: str, num_ranks: int) -> Schedule:
    """Ring: every rank sends a chunk to the next one, n-1 rounds for each half of an AllReduce.

    In an AllReduce rank r first sends chunk r, and ends the first half with chunk r+1, as figure
    6-23 has it; alone, a ReduceScatter ends and an AllGather starts with chunk r on rank r.
    """
    return Schedule(
        operation, "ring", num_ranks, num_ranks, num_ranks, partial(_rounds, operation, num_ranks)
    )


def _rounds(operation: str, num_ranks: int) -> Iterator[Round]:
    senders = read_only(np.arange(num_ranks))
    receivers = read_only((senders + 1) % num_ranks)
    twice = read_only(np.concatenate((senders, senders)))

    def chunks(back: int) -> Ints:
        """Rank r sends chunk r - back."""
        start = -back % num_ranks
        return twice[start : start + num_ranks, np.newaxis]

    if operation != "all_gather":
        first = 0 if operation == "all_reduce" else 1
        for back in range(first, first + num_ranks - 1):
            yield (Sends(senders, receivers, 1, True, partial(chunks, back)),)
    if operation != "reduce_scatter":
        first = -1 if operation == "all_reduce" else 0
        for back in range(first, first + num_ranks - 1):
            yield (Sends(senders, receivers, 1, False, partial(chunks, back)),)
