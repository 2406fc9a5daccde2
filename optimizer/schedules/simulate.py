"""Running a schedule on small vectors of whole numbers, to prove what it claims."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.fabrics.fabric import Ints
from optimizer.schedules.schedule import OPERATIONS, SUMS, Round, Schedule, Sends

Truths = npt.NDArray[np.bool_]


class ScheduleError(ValueError):
    """A schedule does what cannot be done, or not what its operation promises."""


@dataclass(slots=True)
class Buffers:
    """What every node (ranks, then adders) has of every chunk.

    `values` [nodes, chunks] are sums, `is_held` [nodes, chunks] says where there is any, and
    `parts` [nodes, chunks, ranks] whose contributions are in them. Operations that only copy keep
    one contribution, the chunk itself.
    """

    values: Ints
    is_held: Truths
    parts: Truths


def simulate(schedule: Schedule, inputs: Ints) -> Buffers:
    """Run all rounds on `inputs` [num_ranks, num_chunks], one whole number for each chunk.

    Every message of a round reads what was there before the round. A node must hold a chunk to send
    it; adders start with nothing; no contribution is added twice; two copies, or a copy and a sum,
    may not meet. A chunk of no bytes is everywhere. Raises ScheduleError with the round otherwise.
    """
    buffers = _start(schedule, inputs)
    for number, sends in enumerate(schedule.rounds()):
        if not sends:
            raise ScheduleError(f"round {number}: nothing is sent")
        for part in sends:
            _check_shapes(schedule, part, f"round {number}")
        _run(buffers, sends, f"round {number}")
    return buffers


def check_schedule(schedule: Schedule, seed: int = 0) -> None:
    """Prove that the rounds do what the operation promises, or raise ScheduleError.

    AllReduce: every rank has the sum of every chunk. ReduceScatter: its owner has. AllGather: every
    rank has every owner's chunk. All-to-All: rank j has what every rank i had for it. Broadcast and
    Reduce: every rank has the root's vector, the root has the sum. Send: rank 1 has rank 0's.
    """
    _check_counts(schedule)
    shape = (schedule.num_ranks, schedule.num_chunks)
    inputs = np.random.default_rng(seed).integers(1, 10**6, size=shape)
    found = simulate(schedule, inputs)
    ranks, chunks, wanted = _promise(schedule, inputs)
    lacks = ~found.parts[ranks, chunks].all(axis=1) | ~found.is_held[ranks, chunks]
    if lacks.any():
        rank, chunk = ranks[lacks][0], chunks[lacks][0]
        without = np.flatnonzero(~found.parts[rank, chunk])
        what = f"what rank {without[0]} brings" if schedule.operation in SUMS else "it"
        raise ScheduleError(f"rank {rank} ends without chunk {chunk}: it never got {what}")
    differs = found.values[ranks, chunks] != wanted
    if differs.any():
        rank, chunk = ranks[differs][0], chunks[differs][0]
        has, should = found.values[rank, chunk], wanted[differs][0]
        raise ScheduleError(f"rank {rank} has {has} in chunk {chunk}, not {should}")


def _check_counts(schedule: Schedule) -> None:
    if schedule.operation not in OPERATIONS:
        raise ScheduleError(f"no operation is named {schedule.operation!r}")
    parts = schedule.num_ranks if schedule.operation == "all_to_all" else schedule.num_chunks
    if schedule.num_parts != parts:
        raise ScheduleError(f"a message has {parts} chunks, not {schedule.num_parts}")
    if schedule.operation == "all_to_all" and schedule.num_chunks != schedule.num_ranks**2:
        raise ScheduleError("an All-to-All has one chunk for every pair of ranks")
    is_owned = schedule.operation in ("reduce_scatter", "all_gather")
    if is_owned and schedule.num_chunks % schedule.num_ranks:
        raise ScheduleError("every rank must own equally many chunks")
    if schedule.sizes is not None and schedule.sizes.shape != (schedule.num_chunks,):
        raise ScheduleError("sizes must have one number for each chunk")


def _start(schedule: Schedule, inputs: Ints) -> Buffers:
    """Return what ranks hold before the first round."""
    num_ranks, num_chunks = schedule.num_ranks, schedule.num_chunks
    if inputs.shape != (num_ranks, num_chunks):
        raise ValueError(f"inputs must be {num_ranks} x {num_chunks}")
    is_held = np.zeros((schedule.num_nodes, num_chunks), dtype=bool)
    every = np.arange(num_chunks)
    if schedule.operation in SUMS:
        is_held[:num_ranks] = True
    elif schedule.operation == "all_gather":
        is_held[schedule.owners, every] = True
    elif schedule.operation == "all_to_all":
        is_held[every // num_ranks, every] = True
    else:
        is_held[schedule.root] = True
    values = np.zeros((schedule.num_nodes, num_chunks), dtype=np.int64)
    values[:num_ranks] = np.where(is_held[:num_ranks], inputs, 0)
    if schedule.operation in SUMS:
        parts = np.zeros((schedule.num_nodes, num_chunks, num_ranks), dtype=bool)
        ranks = np.arange(num_ranks)
        parts[ranks, :, ranks] = True
    else:
        parts = is_held[:, :, np.newaxis].copy()
    if schedule.sizes is not None:
        is_held[:, schedule.sizes == 0] = True
    return Buffers(values, is_held, parts)


def _check_shapes(schedule: Schedule, sends: Sends, where: str) -> None:
    count, chunks = len(sends.senders), sends.chunks
    if sends.receivers.shape != (count,) or chunks.shape != (count, sends.chunks_each):
        raise ScheduleError(f"{where}: senders, receivers and chunks do not match")
    if not count or sends.chunks_each < 1:
        raise ScheduleError(f"{where}: nothing is sent")
    for what, numbers, limit in (
        ("sender", sends.senders, schedule.num_nodes),
        ("receiver", sends.receivers, schedule.num_nodes),
        ("chunk", chunks, schedule.num_chunks),
    ):
        unknown = numbers[(numbers < 0) | (numbers >= limit)]
        if len(unknown):
            raise ScheduleError(f"{where}: there is no {what} {unknown[0]}")
    to_itself = sends.senders[sends.senders == sends.receivers]
    if len(to_itself):
        raise ScheduleError(f"{where}: node {to_itself[0]} sends to itself")


def _run(buffers: Buffers, sends: Round, where: str) -> None:
    """Run one round; all messages read `buffers` as they were before it."""
    num_chunks = buffers.values.shape[1]
    moved: dict[bool, list[tuple[Ints, Ints]]] = {True: [], False: []}
    for part in sends:
        each = part.chunks_each
        senders, chunks = np.repeat(part.senders, each), part.chunks.ravel()
        is_missing = ~buffers.is_held[senders, chunks]
        if is_missing.any():
            sender, chunk = senders[is_missing][0], chunks[is_missing][0]
            raise ScheduleError(f"{where}: node {sender} sends chunk {chunk}, which it has not got")
        sources = senders * num_chunks + chunks
        targets = np.repeat(part.receivers, each) * num_chunks + chunks
        moved[part.is_sum].append((sources, targets))
    added_from, added_to = _joined(moved[True])
    copied_from, copied_to = _joined(moved[False])
    _check_targets(num_chunks, added_to, copied_to, where)

    values, is_held = buffers.values.reshape(-1), buffers.is_held.reshape(-1)
    parts = buffers.parts.reshape(len(values), -1)
    unique, place = np.unique(added_to, return_inverse=True)
    times = parts[unique].astype(np.int64)
    np.add.at(times, place, parts[added_from])
    if times.max(initial=0) > 1:
        row, rank = np.argwhere(times > 1)[0]
        node, chunk = divmod(int(unique[row]), num_chunks)
        raise ScheduleError(
            f"{where}: node {node} adds what rank {rank} brings to chunk {chunk} twice"
        )
    sums = values[unique]
    np.add.at(sums, place, values[added_from])
    copies, copied_parts = values[copied_from], parts[copied_from]
    values[unique], parts[unique], is_held[unique] = sums, times > 0, True
    values[copied_to], parts[copied_to], is_held[copied_to] = copies, copied_parts, True


def _joined(moved: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    if not moved:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    sources, targets = zip(*moved, strict=True)
    return np.concatenate(sources), np.concatenate(targets)


def _check_targets(num_chunks: int, added: Ints, copied: Ints, where: str) -> None:
    """Refuse a copy onto a place that another message writes in the same round."""
    places, times = np.unique(copied, return_counts=True)
    clashes = np.concatenate((places[times > 1], np.intersect1d(places, added)))
    if len(clashes):
        node, chunk = divmod(int(clashes[0]), num_chunks)
        raise ScheduleError(f"{where}: two messages write chunk {chunk} of node {node}")


def _promise(schedule: Schedule, inputs: Ints) -> tuple[Ints, Ints, Ints]:
    """Return ranks, chunks and values [P] that must be there in the end."""
    num_ranks, num_chunks = inputs.shape
    every = np.arange(num_chunks)
    if schedule.operation == "all_to_all":
        sources, targets = np.divmod(every, num_ranks)
        # Rank j ends with the j-th column of the send buffers: the transposed matrix.
        received = inputs.reshape(num_ranks, num_ranks, num_ranks)[sources, sources, targets]
        is_sent = np.ones(num_chunks, dtype=bool) if schedule.sizes is None else schedule.sizes > 0
        return targets[is_sent], every[is_sent], received[is_sent]
    if schedule.operation == "send":
        return np.ones(num_chunks, dtype=np.int64), every, inputs[0]
    sums = inputs.sum(axis=0)
    if schedule.operation == "reduce_scatter":
        return schedule.owners, every, sums
    if schedule.operation == "reduce":
        return np.full(num_chunks, schedule.root), every, sums
    ends = {
        "all_reduce": sums,
        "all_gather": inputs[schedule.owners, every],
        "broadcast": inputs[schedule.root],
    }[schedule.operation]
    ranks = np.repeat(np.arange(num_ranks), num_chunks)
    return ranks, np.tile(every, num_ranks), np.tile(ends, num_ranks)
