"""Recursive halving and doubling, and Swing (section 6.5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import Round, Schedule, Sends, need_power_of_two, read_only


def halving_doubling(operation: str, num_ranks: int) -> Schedule:
    """Recursive halving (ReduceScatter) and doubling (AllGather): partners at distance 1, 2, 4...

    What is sent halves while the distance doubles: log2(n) rounds and (n-1)/n of the message for
    each half of an AllReduce. Raises CollectiveUnavailable unless `num_ranks` is a power of two.
    """
    need_power_of_two("halving_doubling", "recursive halving and doubling", num_ranks)
    ranks = np.arange(num_ranks)
    partners = [ranks ^ (1 << step) for step in range(num_ranks.bit_length() - 1)]
    return _exchanges(operation, "halving_doubling", partners)


def swing(operation: str, num_ranks: int) -> Schedule:
    """Swing: sizes as in recursive halving, partners nearer on a ring (De Sensi et al., NSDI 2024).

    In step s even ranks meet r + rho(s) and odd ranks r - rho(s), where rho(s) is
    (1 - (-2)^(s+1)) / 3: 1, -1, 3, -5... Raises CollectiveUnavailable unless `num_ranks` is a power
    of two.
    """
    need_power_of_two("swing", "swing", num_ranks)
    ranks = np.arange(num_ranks)
    turns = np.where(ranks % 2, -1, 1)
    steps = range(num_ranks.bit_length() - 1)
    partners = [(ranks + turns * ((1 - (-2) ** (step + 1)) // 3)) % num_ranks for step in steps]
    return _exchanges(operation, "swing", partners)


def _exchanges(operation: str, algorithm: str, partners: Sequence[Ints]) -> Schedule:
    for array in partners:
        read_only(array)
    num_ranks = 1 << len(partners)
    rounds = partial(_rounds, operation, partners)
    return Schedule(operation, algorithm, num_ranks, num_ranks, num_ranks, rounds)


def _rounds(operation: str, partners: Sequence[Ints]) -> Iterator[Round]:
    num_ranks = 1 << len(partners)
    ranks = read_only(np.arange(num_ranks))
    steps = range(len(partners))
    if operation != "all_gather":
        for step in steps:
            give = partial(_given, partners, step)
            yield (Sends(ranks, partners[step], num_ranks >> step + 1, True, give),)
    if operation != "reduce_scatter":
        for step in reversed(steps):
            keep = partial(_kept, partners, step + 1)
            yield (Sends(ranks, partners[step], num_ranks >> step + 1, False, keep),)


def _kept(partners: Sequence[Ints], step: int) -> Ints:
    """Chunks [n, n/2^step] that each rank still adds up before a step: its own, and later gifts."""
    kept = np.arange(1 << len(partners))[:, np.newaxis]
    for later in reversed(range(step, len(partners))):
        kept = np.concatenate((kept, kept[partners[later]]), axis=1)
    return kept


def _given(partners: Sequence[Ints], step: int) -> Ints:
    """Chunks that each rank gives away in a step: all that its partner keeps after it."""
    return _kept(partners, step + 1)[partners[step]]
