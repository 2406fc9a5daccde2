"""One measured time, where it comes from, and what operations cost in rounds and bytes (6-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from instances.errors import InputError
from instances.hardware import MeasuredOperation

#: Operations that are read, as the catalog names them.
OPERATIONS: tuple[str, ...] = get_args(MeasuredOperation)

#: Other names of operations, without underscores.
_OTHER_NAMES = {"alltoall": "all_to_all", "sendrecv": "send"}


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured time of an operation; sizes count as in nccl-tests (`MeasuredCollective`).

    `servers` is None where the source does not say. `mode` tells what else was set: in-place or
    out-of-place, eager or graph. `what` says where the point stands: "run.txt:17".
    """

    operation: str
    ranks: int
    servers: int | None
    system: str
    library: str
    dtype: str
    mode: str
    message_bytes: int
    time_s: Fraction
    what: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """A communication and a computation of one size, each alone, and both at once; seconds.

    `together_s` ends when both have ended. The two times while the other runs are None where they
    were not measured.
    """

    message_bytes: int
    communication_alone_s: Fraction
    compute_alone_s: Fraction
    communication_together_s: Fraction | None
    compute_together_s: Fraction | None
    together_s: Fraction
    what: str

    @property
    def saved_s(self) -> Fraction:
        """What running both at once saves over one after the other (6.4.3); may be negative."""
        return self.communication_alone_s + self.compute_alone_s - self.together_s

    @property
    def hidden_share(self) -> Fraction:
        """Share of the shorter one that may be assumed hidden behind the longer one, 0 to 1."""
        shorter_s = min(self.communication_alone_s, self.compute_alone_s)
        return min(max(self.saved_s / shorter_s, Fraction(0)), Fraction(1))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader must be told because a file may not say it.

    `operation`, `ranks` and `servers` stand in where a file names none; `cards_per_server` turns
    servers into ranks where a file counts those. Of nccl-tests' two times of a row the out-of-place
    one is read, or the in-place one.
    """

    is_in_place: bool = False
    operation: str | None = None
    ranks: int | None = None
    servers: int | None = None
    cards_per_server: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file holds: points, overlaps, how many rows were left out by reason, and remarks."""

    points: tuple[MeasuredPoint, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def merge(readings: Iterable[Reading]) -> Reading:
    """Return several readings as one, in their order, equal reasons and remarks once."""
    all_read = list(readings)
    dropped: Counter[str] = Counter()
    for reading in all_read:
        dropped.update(dict(reading.dropped))
    return Reading(
        tuple(point for reading in all_read for point in reading.points),
        tuple(overlap for reading in all_read for overlap in reading.overlaps),
        tuple(dropped.items()),
        tuple(dict.fromkeys(note for reading in all_read for note in reading.notes)),
    )


def operation_named(text: str, place: str) -> str:
    """Return an operation by any of its names ("alltoall", "AllReduce", "all_gather_perf").

    Raises InputError naming `place` for any other.
    """
    plain = text.strip().lower().removesuffix("_perf").replace("-", "").replace("_", "")
    for name in OPERATIONS:
        if plain == name.replace("_", ""):
            return name
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain]
    known = ", ".join(OPERATIONS)
    raise InputError(place, "operation", f"no operation has this name; there are: {known}", text)


def ring_rounds(operation: str, num_ranks: int) -> int:
    """Return the rounds of an operation on a ring, each of which costs alpha once (6-9).

    An AllReduce takes 2(n-1), a send 1, any other n-1.
    """
    if operation == "send":
        return 1
    return (2 if operation == "all_reduce" else 1) * (num_ranks - 1)


def ring_factor(operation: str, num_ranks: int) -> Fraction:
    """Return the bytes that a ring's busiest link carries for one byte of the message (6-9).

    2(n-1)/n of an AllReduce, (n-1)/n of an AllGather, ReduceScatter or All-to-All, 1 of a
    broadcast, a reduce or a send. nccl-tests' busbw is algbw times this factor.
    """
    if operation == "all_reduce":
        return Fraction(2 * (num_ranks - 1), num_ranks)
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return Fraction(num_ranks - 1, num_ranks)
    return Fraction(1)
