"""AllReduce inside switches: they add up what ranks send and return the sum (section 6.4.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from optimizer.collectives import CollectiveUnavailable
from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import Round, Schedule, Sends, read_only


def in_switch(
    operation: str, num_ranks: int, num_adders: int = 1, weights: Sequence[int] | None = None
) -> Schedule:
    """Two rounds: every rank sends its whole vector up, and the sum comes back.

    Adders take equal shares of the vector, or shares in proportion to `weights`. Raises
    CollectiveUnavailable without an adder, ValueError for weights below 0.
    """
    if weights is None:
        weights = (1,) * num_adders
    if min(weights, default=0) < 0:
        raise ValueError(f"weights of adders must not be negative, not {tuple(weights)}")
    if not any(weights):
        raise CollectiveUnavailable("adders", "in_switch needs a switch that adds up messages")
    unit = math.gcd(*weights)
    shares = tuple(weight // unit for weight in weights)
    rounds = partial(_rounds, num_ranks, shares)
    num_chunks = sum(shares)
    return Schedule(
        operation, "in_switch", num_ranks, num_chunks, num_chunks, rounds, num_adders=len(shares)
    )


def _rounds(num_ranks: int, shares: tuple[int, ...]) -> Iterator[Round]:
    if num_ranks == 1:
        return
    up, down = [], []
    for share in sorted(set(shares) - {0}):
        adders = np.array([a for a, each in enumerate(shares) if each == share])
        ranks = read_only(np.repeat(np.arange(num_ranks), len(adders)))
        nodes = read_only(np.tile(num_ranks + adders, num_ranks))
        chunks = partial(_chunks, shares, adders, num_ranks)
        up.append(Sends(ranks, nodes, share, True, chunks))
        down.append(Sends(nodes, ranks, share, False, chunks))
    yield tuple(up)
    yield tuple(down)


def _chunks(shares: tuple[int, ...], adders: Ints, num_ranks: int) -> Ints:
    """Chunks [ranks · adders, share] of adders with equal shares: consecutive ones for each."""
    starts = np.cumsum((0, *shares))[adders]
    return np.tile(starts[:, np.newaxis] + np.arange(shares[adders[0]]), (num_ranks, 1))
