"""Rows of sweeps as curves: step functions of the deadline, or values against a swept field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optimizer.reports.inputs import Loaded
from optimizer.sweeps.rows import FrontierPiece, SweepPoint
from optimizer.words import (
    ENDINGS,
    field_unit,
    name_text,
    number,
    plural,
)

Row = Loaded[SweepPoint]

#: The column of a frontier's deadline.
DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Point:
    """One row on a curve. A piece of a step function ends at `to_x`, None: it goes on for ever."""

    x: float
    y: float | None
    to_x: float | None
    row: SweepPoint

    @property
    def tip(self) -> str:
        """What a reader sees who points at it."""
        row = self.row
        parts = [number(self.y, row.unit), row.plan or row.reason or ENDINGS[row.termination]]
        if row.on_time is not None and row.sessions is not None:
            parts.append(f"{row.on_time} of {plural(row.sessions, 'session')} on time")
        if row.termination == "feasible":
            parts.append("not proven optimal")
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Series:
    """One curve; equal `colour` is an equal combination, equal `style` the same instance."""

    label: str
    instance: str
    colour: int
    style: int
    points: tuple[Point, ...]

    @property
    def breakpoints(self) -> tuple[Point, ...]:
        """Where the value becomes another one, the first value included."""
        found = []
        before: float | None = None
        for point in self.points:
            if point.y is not None and point.y != before:
                found.append(point)
            before = point.y
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Curves of one objective against one field, comparable on one pair of axes."""

    x_name: str
    x_unit: str
    y_name: str
    y_unit: str
    is_exact: bool
    fixed: str
    instances: tuple[str, ...]
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """Heading of the chart."""
        what = "Exact frontier: " if self.is_exact else ""
        fixed = f", {self.fixed}" if self.fixed else ""
        title = f"{what}{name_text(self.y_name)} against {name_text(self.x_name)}{fixed}"
        return title[0].upper() + title[1:]

    @property
    def has_values(self) -> bool:
        """Whether there is anything to draw."""
        return any(point.y is not None for series in self.series for point in series.points)


def curve_charts(rows: Sequence[Row]) -> list[CurveChart]:
    """Return one chart for each kind of row: exact or not, its swept fields, its objective."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        point = row.document
        is_exact = isinstance(point, FrontierPiece)
        names = frozenset(point.swept) if not is_exact else frozenset()
        key = (is_exact, names, point.objective, point.unit)
        groups.setdefault(key, []).append(row)
    return [_chart(group) for group in groups.values()]


def _chart(rows: Sequence[Row]) -> CurveChart:
    first = rows[0].document
    is_exact = isinstance(first, FrontierPiece)
    x_name = DEADLINE if is_exact else _widest_field(rows)
    names = [n for n in dict.fromkeys(n for r in rows for n in r.document.swept) if n != x_name]
    varying = [n for n in names if len({r.document.swept.get(n) for r in rows}) > 1]
    short = _short_names(names)
    labels = _instance_labels(rows, x_name)
    curves: dict[tuple[str, tuple[object, ...]], list[Point]] = {}
    for row, label in zip(rows, labels, strict=True):
        place = tuple(row.document.swept.get(n) for n in varying)
        curves.setdefault((label, place), []).append(_point(row.document, x_name))
    places = list(dict.fromkeys(place for _, place in curves))
    instances = tuple(dict.fromkeys(label for label, _ in curves))
    series = tuple(
        Series(
            label=_combination(varying, place, short) or "optimum",
            instance=label,
            colour=places.index(place),
            style=instances.index(label),
            points=tuple(sorted(points, key=lambda point: point.x)),
        )
        for (label, place), points in curves.items()
    )
    fixed = [n for n in names if n not in varying]
    return CurveChart(
        x_name=x_name,
        x_unit="s" if is_exact else field_unit(x_name),
        y_name=first.objective,
        y_unit=first.unit,
        is_exact=is_exact,
        fixed=_combination(fixed, [first.swept.get(n) for n in fixed], short),
        instances=instances,
        series=series,
    )


def _widest_field(rows: Sequence[Row]) -> str:
    """Return the swept field with the most values; of equals the last, which varies fastest."""
    counts: dict[str, int] = {}
    for name in rows[0].document.swept:
        counts[name] = len({row.document.swept[name] for row in rows})
    return max(reversed(counts), key=lambda name: counts[name]) if counts else "row"


def _point(row: SweepPoint, x_name: str) -> Point:
    if isinstance(row, FrontierPiece):
        return Point(row.from_s, row.value, row.to_s, row)
    return Point(float(row.swept.get(x_name) or 0.0), row.value, None, row)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the last part of each path, or the whole path where two end alike."""
    last = {name: name.rpartition(".")[2] for name in names}
    ends = list(last.values())
    return {name: end if ends.count(end) == 1 else name for name, end in last.items()}


def _combination(names: Sequence[str], values: Sequence[object], short: dict[str, str]) -> str:
    """Return swept values in words: "tp = 4, alpha = 822.0 ns"."""
    parts = []
    for name, value in zip(names, values, strict=True):
        shown = "any" if value is None else number(float(str(value)), field_unit(name))
        parts.append(f"{name_text(short[name])} = {shown}")
    return ", ".join(parts)


def _instance_labels(rows: Sequence[Row], x_name: str) -> list[str]:
    """Return each row's instance, with its file where two files hold curves of one name."""
    sources: dict[str, set[str]] = {}
    seen: dict[tuple[object, ...], str] = {}
    for row in rows:
        document = row.document
        at = document.from_s if isinstance(document, FrontierPiece) else None
        key = (document.instance, at, tuple(document.swept.items()))
        if seen.setdefault(key, row.source) != row.source:
            sources.setdefault(document.instance, set()).update((seen[key], row.source))
    return [
        f"{r.document.instance} ({r.source})"
        if r.document.instance in sources
        else r.document.instance
        for r in rows
    ]
