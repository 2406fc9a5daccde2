"""All-to-All: at once, pairwise, or over servers, with equal or given bytes (6.4.3 and 6.5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from optimizer.fabrics.fabric import MAX_EXACT_UNITS, Ints
from optimizer.schedules.schedule import Round, Schedule, Sends, need_servers, read_only


def direct(operation: str, num_ranks: int, counts: npt.ArrayLike | None = None) -> Schedule:
    """Everything in one round, as grouped sends and receives.

    `counts` [n, n] are whole bytes from each rank to each other; pairs of zero send nothing. Raises
    ValueError for other counts.
    """
    return _exchange(operation, "direct", num_ranks, counts, partial(_direct, num_ranks))


def pairwise(operation: str, num_ranks: int, counts: npt.ArrayLike | None = None) -> Schedule:
    """n-1 rounds; in round s rank r sends to r + s. `counts` as for `direct`."""
    return _exchange(operation, "pairwise", num_ranks, counts, partial(_pairwise, num_ranks))


def two_level(
    operation: str, num_ranks: int, extents: Sequence[int], counts: npt.ArrayLike | None = None
) -> Schedule:
    """Two rounds: across servers to the card of the same local number, then inside servers.

    Each rank sends one message to every other server, with all that goes there. `extents` are ranks
    per server and servers; rank = server · ranks per server + local number. `counts` as for
    `direct`. Raises CollectiveUnavailable unless the extents multiply to `num_ranks`.
    """
    each, num_servers = need_servers(extents, num_ranks)
    rounds = partial(_two_level, each, num_servers)
    return _exchange(operation, "two_level", num_ranks, counts, rounds)


def _exchange(
    operation: str,
    algorithm: str,
    num_ranks: int,
    counts: npt.ArrayLike | None,
    equal_rounds: Callable[[], Iterator[Sends]],
) -> Schedule:
    """Chunk i·n + j goes from rank i to rank j; equal ones are 1/n of a rank's send buffer."""
    sizes = None if counts is None else _checked_sizes(num_ranks, counts)
    rounds = partial(_filled_rounds, equal_rounds, sizes)
    return Schedule(operation, algorithm, num_ranks, num_ranks**2, num_ranks, rounds, sizes=sizes)


def _checked_sizes(num_ranks: int, counts: npt.ArrayLike) -> Ints:
    matrix = np.array(counts)
    if matrix.shape != (num_ranks, num_ranks):
        shape = " x ".join(map(str, matrix.shape))
        raise ValueError(f"counts must be {num_ranks} x {num_ranks}, not {shape or 'one number'}")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise ValueError(f"counts must be whole bytes, not {matrix.dtype}")
    if matrix.min() < 0:
        raise ValueError(f"counts must not be negative, one is {matrix.min()}")
    if sum(map(int, matrix.ravel())) >= MAX_EXACT_UNITS:
        raise ValueError("counts are too large for exact sums; use a larger unit")
    return read_only(matrix.astype(np.int64).ravel())


def _filled_rounds(
    equal_rounds: Callable[[], Iterator[Sends]], sizes: Ints | None
) -> Iterator[Round]:
    """Leave out messages of no bytes, and rounds in which nobody sends."""
    for sends in equal_rounds():
        if sizes is None:
            yield (sends,)
            continue
        chunks = sends.chunks
        is_sent = sizes[chunks].any(axis=1)
        if is_sent.any():
            senders, receivers = sends.senders[is_sent], sends.receivers[is_sent]
            left = partial(np.compress, is_sent, chunks, axis=0)
            yield (Sends(read_only(senders), read_only(receivers), sends.chunks_each, False, left),)


def _direct(num_ranks: int) -> Iterator[Sends]:
    if num_ranks > 1:
        ranks = np.arange(num_ranks)
        senders = read_only(np.repeat(ranks, num_ranks - 1))
        others = (ranks[:, np.newaxis] + np.arange(1, num_ranks)) % num_ranks
        receivers = read_only(others.ravel())
        chunks = partial(_pair_chunks, num_ranks, senders, receivers)
        yield Sends(senders, receivers, 1, False, chunks)


def _pairwise(num_ranks: int) -> Iterator[Sends]:
    senders = read_only(np.arange(num_ranks))
    twice = read_only(np.concatenate((senders, senders)))
    for step in range(1, num_ranks):
        receivers = twice[step : step + num_ranks]
        chunks = partial(_pair_chunks, num_ranks, senders, receivers)
        yield Sends(senders, receivers, 1, False, chunks)


def _pair_chunks(num_ranks: int, senders: Ints, receivers: Ints) -> Ints:
    return (senders * num_ranks + receivers)[:, np.newaxis]


def _two_level(each: int, num_servers: int) -> Iterator[Sends]:
    num_ranks = each * num_servers
    ranks = np.arange(num_ranks)[:, np.newaxis]
    servers, places = ranks // each, ranks % each
    if num_servers > 1:
        others = (servers + np.arange(1, num_servers)) % num_servers
        senders = read_only(np.repeat(ranks.ravel(), num_servers - 1))
        receivers = read_only((others * each + places).ravel())
        across = partial(_chunks_across, num_ranks, each, senders, receivers)
        yield Sends(senders, receivers, each, False, across)
    if each > 1:
        others = (places + np.arange(1, each)) % each
        senders = read_only(np.repeat(ranks.ravel(), each - 1))
        receivers = read_only((servers * each + others).ravel())
        inside = partial(_chunks_inside, num_ranks, each, senders, receivers)
        yield Sends(senders, receivers, num_servers, False, inside)


def _chunks_across(num_ranks: int, each: int, senders: Ints, receivers: Ints) -> Ints:
    """Chunks [K, each] from the sender to every rank of the receiver's server."""
    server = receivers - receivers % each
    return (senders * num_ranks + server)[:, np.newaxis] + np.arange(each)


def _chunks_inside(num_ranks: int, each: int, senders: Ints, receivers: Ints) -> Ints:
    """Chunks [K, servers] to the receiver, from every rank with the sender's local number."""
    sources = (senders % each)[:, np.newaxis] + np.arange(0, num_ranks, each)
    return sources * num_ranks + receivers[:, np.newaxis]
