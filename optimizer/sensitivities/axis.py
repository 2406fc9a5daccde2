"""One input as an axis: the places it may take, where to look first, and what is known of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from instances.instance import Instance
from optimizer.variants.fields import Number, NumericField, Path

Place = int | Fraction
#: -1 is down, +1 is up.
Direction = int

#: Factors by which values move, nearest first; 0 comes last where it is allowed.
FACTORS_UP = tuple(map(Fraction, ("1.01", "1.1", "2", "10", "1000")))
FACTORS_DOWN = tuple(map(Fraction, ("0.99", "0.9", "1/2", "1/10", "1/1000")))
#: How far to look from 0, as parts of the time that the plan takes.
PARTS_OF_SPAN = tuple(map(Fraction, ("1/1000000", "1/1000", "1/100", "1/10", "1", "10", "1000")))
#: Inputs that count servers, cards or sessions; more of them make larger problems.
COUNTS = frozenset({"num_sessions", "num_servers", "num_cards"})
#: Inputs that take bytes and time.
GROWING = frozenset({"context_tokens", "prompt_tokens", "new_tokens"}) | frozenset(
    {"workspace_bytes", "collective_buffer_bytes", "migration_bytes"}
)
#: How far counts and new tokens are looked at, as a factor and at least.
COUNT_REACH, TOKEN_REACH = (4, 8), (2, 4096)
#: Whole numbers so near that each is looked at.
NEAR = 8
#: "Just beyond" is nearer than this part of the way to the next place looked at.
JUST = Fraction(1, 10**12)


@dataclass(frozen=True, slots=True)
class Axis:
    """One input.

    Where only whole numbers matter, places are whole numbers of 1/`per`; else they are values.
    A place stands for all values from it up to the next place (`open_side` +1, a value rounded
    down), or down to it (-1, rounded up). Times are convex and piecewise linear in the value, or in
    its reciprocal if it `is_rate`. `sense` says that no plan gets better, earlier or allowed where
    the value rises (+1), or where it falls (-1); 0: nothing is known.
    """

    field: NumericField
    start: Place
    is_whole: bool
    per: int = 1
    open_side: int = 0
    is_rate: bool = False
    sense: int = 0
    stops: tuple[Fraction, ...] = ()

    @property
    def is_count(self) -> bool:
        """Whether the input counts sessions, servers or cards."""
        return self.field.path[-1] in COUNTS

    @property
    def base(self) -> Fraction:
        """Present value."""
        return Fraction(self.field.value or 0)

    def value(self, place: Place) -> Number:
        """Return the value at a place."""
        if not self.is_whole:
            return place
        return int(place) if self.per == 1 and self.field.is_whole else Fraction(place, self.per)

    def edge(self, place: Place, direction: Direction) -> tuple[Fraction, bool]:
        """Return how far a place reaches, and whether the value there still belongs to it."""
        if self.open_side == direction:
            return Fraction(self.value(place + direction)), False
        return Fraction(self.value(place)), True

    def coordinate(self, place: Place) -> Fraction:
        """Return the coordinate in which times are piecewise linear."""
        return 1 / Fraction(place) if self.is_rate else Fraction(place)

    def place_of(self, coordinate: Fraction) -> Fraction:
        """Return the place of a coordinate, perhaps not a whole number; none is negative."""
        if not self.is_rate:
            return coordinate
        return 1 / coordinate if coordinate > 0 else Fraction(-1)

    def is_adjacent(self, one: Place, other: Place) -> bool:
        """Whether there is no place between two."""
        return self.is_whole and distance(one, other) <= 1

    def beyond(self, place: Place, towards: Place) -> Place:
        """Return the next place in the direction of another, or one that is just beyond."""
        if self.is_whole:
            return place + (1 if towards > place else -1)
        return between(place, place + (towards - place) * JUST)

    def middle(self, one: Place, other: Place) -> Place:
        """Return a place about halfway between two that are not adjacent."""
        return (int(one) + int(other)) // 2 if self.is_whole else between(one, other)


def distance(one: Place, other: Place) -> Fraction:
    """Return how far apart two places are."""
    return abs(Fraction(one) - Fraction(other))


def between(one: Place, other: Place) -> Fraction:
    """Return a value with few digits strictly between two, near the middle."""
    middle, gap = Fraction(one + other) / 2, abs(Fraction(other - one))
    places = max(0, math.ceil(-math.log10(gap)) + 1) if gap < 10 else 0
    while True:
        scale = 10**places
        near = Fraction(round(middle * scale), scale)
        if min(one, other) < near < max(one, other):
            return near
        places += 1


def axis_of(instance: Instance, field: NumericField) -> Axis:
    """Return the axis of an input."""
    value, name = field.value or 0, field.path[-1]
    sense = sense_of(instance, field.path)
    if name == "usable_memory_fraction":
        # rounded down to whole bytes in each pool
        sizes = (pool.server.accelerator.memory_bytes for pool in instance.fleet.pools)
        per = math.lcm(*sizes)
        return Axis(field, math.floor(value * per), True, per, open_side=1, sense=sense)
    if name == "min_on_time_fraction":
        per = instance.workload.num_sessions  # rounded up to whole sessions
        return Axis(field, math.ceil(value * per), True, per, open_side=-1, sense=sense)
    if field.is_whole:
        return Axis(field, int(value), True, sense=sense)
    is_rate = field.dimension in ("bytes_per_s", "flops_per_s")
    return Axis(
        field, Fraction(value), False, is_rate=is_rate, sense=sense, stops=_stops(instance, field)
    )


def _stops(instance: Instance, field: NumericField) -> tuple[Fraction, ...]:
    """Return values of a release or deadline at which orders of dispatch or its range end."""
    if field.path[0] != "workload" or field.path[-1] not in ("release_s", "deadline_s"):
        return ()
    mine = instance.workload.cohorts[int(field.path[2])]
    if field.path[-1] == "deadline_s":
        return (between(mine.release_s, mine.release_s + (field.value or 0) * JUST),)
    others = {c.release_s for c in instance.workload.cohorts if c is not mine}
    ends = [] if mine.deadline_s is None else [mine.deadline_s]
    near = [between(end - (end - mine.release_s) * JUST, end) for end in ends]
    return (*sorted(others - {mine.release_s}), *near)


def sense_of(instance: Instance, path: Path) -> int:
    """Return +1 if no plan gains where the value rises, -1 if none where it falls, 0 if unknown.

    To gain is to become allowed, to have a better value of any objective, or a session on time. A
    session that starts later, takes longer, or meets a longer stall never ends earlier: it takes
    the first long enough stretch free of stalls. Where pipelines are cut anew by what fits, the
    plans themselves change with the bytes.
    """
    name, cut_anew = path[-1], instance.search.pp != (1,)
    names = {*instance.objective.names, *dict(instance.objective.at_most.limits())}
    if path[0] == "objective" and "at_most" in path:
        return -1
    if path[0] == "faults":
        return 1 if name == "stall_s" else 0
    if name == "release_s":
        is_dealt = instance.search.dispatch == "round_robin" and len(instance.workload.cohorts) > 1
        return 0 if is_dealt or "max_latency" in names else 1
    if name in ("alpha_s", "time_s", "session_s", "min_on_time_fraction"):
        return 1
    if "peak_flops_per_s" in path or str(name).endswith("bandwidth_bytes_per_s"):
        return -1
    if name == "deadline_s":
        return -1
    if path[-2:] == ("server", "power_w"):
        return 1
    if name in ("memory_bytes", "usable_memory_fraction"):
        return 0 if cut_anew else -1
    return 1 if name in GROWING and not cut_anew else 0


def probes(axis: Axis, direction: Direction, span_s: Fraction, capacity: int) -> list[Place]:
    """Return the places to look at in one direction, nearest first.

    Where the present value is 0, times are measured by `span_s` and bytes by `capacity`.
    """
    found = _whole_probes if axis.is_whole else _value_probes
    places = {
        p for p in found(axis, direction, span_s, capacity) if (p - axis.start) * direction > 0
    }
    return sorted(places, key=lambda place: distance(place, axis.start))


def _value_probes(
    axis: Axis, direction: Direction, span_s: Fraction, capacity: int
) -> Iterator[Place]:
    base = axis.base
    if base:
        factors = FACTORS_UP if direction > 0 else FACTORS_DOWN
        yield from (base * factor for factor in factors)
        yield Fraction(0)
    else:
        digits = Fraction(10) ** math.floor(math.log10(span_s))
        yield from (part * digits for part in PARTS_OF_SPAN)
    yield from axis.stops


def _whole_probes(
    axis: Axis, direction: Direction, span_s: Fraction, capacity: int
) -> Iterator[Place]:
    start, name = int(axis.start), axis.field.path[-1]
    if name in COUNTS or name == "min_on_time_fraction":
        factor, least = COUNT_REACH
        most = max(start * factor, start + least) if name in COUNTS else axis.per
        yield from range(max(start - NEAR, 0), min(start + NEAR, most) + 1)
        yield from (start // 2, 2 * start, most, 0)
        return
    yield from (start - 1, start + 1, 0, 1)
    factors = FACTORS_UP if direction > 0 else FACTORS_DOWN
    scaled = [round(start * factor) for factor in factors]
    if name == "new_tokens":
        factor, least = TOKEN_REACH
        scaled = [min(place, max(start * factor, least)) for place in scaled]
    elif name == "usable_memory_fraction":
        scaled = [min(place, axis.per) for place in scaled]
    elif not start:
        is_bytes = axis.field.dimension == "bytes"
        scaled = [capacity // 10**n for n in range(4)] if is_bytes else [8**n for n in range(7)]
    yield from scaled
