"""Points that belong together, chosen by what they say, and single points that stand out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from instances.errors import InputError
from optimizer.calibration.points import MeasuredPoint


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What the points of a group have in common."""

    operation: str
    ranks: int
    servers: int | None
    system: str
    library: str
    dtype: str
    mode: str

    def __str__(self) -> str:
        where = "" if self.servers is None else f" over {self.servers} server(s)"
        known = [t for t in (self.system, self.library, self.dtype, self.mode) if t != "unstated"]
        return f"{self.operation} on {self.ranks} ranks{where} ({', '.join(known)})"


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one operation on one arrangement, in order of size."""

    key: GroupKey
    points: tuple[MeasuredPoint, ...]

    @property
    def by_size(self) -> dict[int, tuple[Fraction, ...]]:
        """Times of every size in s, sizes ascending, repeats in order of time."""
        times: dict[int, list[Fraction]] = {}
        for point in self.points:
            times.setdefault(point.message_bytes, []).append(point.time_s)
        return {size: tuple(sorted(times[size])) for size in sorted(times)}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Points that are looked at; None takes all."""

    operation: str | None = None
    ranks: int | None = None
    servers: int | None = None
    system: str | None = None
    library: str | None = None
    dtype: str | None = None
    mode: str | None = None

    def chosen(self, points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
        """Return the points that are wanted.

        Raises InputError where none is, with the values there are of the first name that fails.
        """
        left = list(points)
        for field in fields(self):
            wanted = getattr(self, field.name)
            if wanted is None or not left:
                continue
            there = sorted({getattr(point, field.name) for point in left}, key=str)
            left = [point for point in left if getattr(point, field.name) == wanted]
            if not left:
                known = ", ".join(map(str, there))
                rule = f"no measurement is left with it; there are: {known}"
                raise InputError("measurements", f"--{field.name}", rule, wanted)
        return left


def grouped(points: Iterable[MeasuredPoint]) -> list[Group]:
    """Return points by what they have in common, groups in order of their first points."""
    groups: dict[GroupKey, list[MeasuredPoint]] = {}
    for point in points:
        key = GroupKey(*(getattr(point, field.name) for field in fields(GroupKey)))
        groups.setdefault(key, []).append(point)
    return [
        Group(key, tuple(sorted(found, key=lambda point: (point.message_bytes, point.time_s))))
        for key, found in groups.items()
    ]


def middle_s(times: Sequence[Fraction]) -> Fraction:
    """Return the middle between the fastest and the slowest of repeated times, s."""
    return (min(times) + max(times)) / 2


def outliers(group: Group, factor: Fraction) -> tuple[int, ...]:
    """Return the sizes that take more than `factor` times as long as both their neighbours.

    Neighbours are the next smaller and the next larger size, as measured; the first and the last
    size have only one and are never called outliers. Repeats count by their middle.
    """
    sizes = [(size, middle_s(times)) for size, times in group.by_size.items()]
    triples = zip(sizes, sizes[1:], sizes[2:], strict=False)
    return tuple(
        size
        for (_, before_s), (size, time_s), (_, after_s) in triples
        if time_s > factor * max(before_s, after_s)
    )


def without_outliers(group: Group, factor: Fraction) -> tuple[Group, tuple[MeasuredPoint, ...]]:
    """Return a group without the sizes that `outliers` names, and their points."""
    sizes = set(outliers(group, factor))
    gone = tuple(point for point in group.points if point.message_bytes in sizes)
    kept = tuple(point for point in group.points if point.message_bytes not in sizes)
    return replace(group, points=kept), gone
