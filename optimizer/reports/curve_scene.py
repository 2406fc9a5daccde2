"""Curves drawn: steps with their breakpoints, or lines through points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from optimizer.reports.axes import (
    Scale,
    draw_x_axis,
    draw_y_axis,
    value_range,
    wants_log,
)
from optimizer.reports.curves import CurveChart, Point, Series
from optimizer.reports.labels import Box, place_labels, spread
from optimizer.reports.palette import DASHES, MARKERS, series_role
from optimizer.reports.scene import (
    SMALL_PX,
    Line,
    Mark,
    Scene,
    Text,
    shortened,
    text_width,
)
from optimizer.words import digits, name_text, number, plural, unit_text

#: Curves drawn and breakpoints labelled on one chart; the table beside it holds all.
MAX_SERIES, MAX_LABELS = 21, 40

_WIDTH, _TOP, _PLOT_HEIGHT, _LEFT, _LINE_PX = 980.0, 56.0, 350.0, 64.0, 22.0


@dataclass(frozen=True, slots=True)
class _Frame:
    x: Scale
    y: Scale
    top: float
    base: float


def curve_scene(chart: CurveChart) -> Scene:
    """Return a chart with one curve for each series, named at its right end."""
    shown = [s for s in chart.series if any(p.y is not None for p in s.points)]
    drawn = shown[:MAX_SERIES]
    widest = max(text_width(_end_name(series, chart), SMALL_PX) for series in drawn)
    right = _WIDTH - min(270.0, widest + 26)
    legend_lines = len(chart.instances) if len(chart.instances) > 1 else 0
    top = _TOP + legend_lines * _LINE_PX
    frame = _frame(chart, drawn, top, right)
    scene = Scene(_WIDTH, top + _PLOT_HEIGHT + 50, chart.title, _described(chart, drawn))
    unit = f" ({unit_text(chart.y_unit)})" if chart.y_unit else ""
    scene.add(Text(12, 22, f"{name_text(chart.y_name)}{unit}", size=SMALL_PX, colour="soft"))
    if len(shown) > len(drawn):
        more = f"{len(shown) - len(drawn)} more curves are in the table"
        scene.add(Text(_WIDTH - 12, 22, more, "end", SMALL_PX, "soft"))
    _legend(scene, chart)
    draw_y_axis(scene, frame.y, _LEFT, right)
    draw_x_axis(scene, frame.x, top, frame.base, name_text(chart.x_name), chart.x_unit)
    for series in reversed(drawn):
        _steps(scene, series, frame) if chart.is_exact else _points(scene, series, frame)
    _end_names(scene, chart, drawn, frame)
    if chart.is_exact:
        _label_breakpoints(scene, drawn, frame)
    return scene


def _end_name(series: Series, chart: CurveChart) -> str:
    if len(chart.instances) == 1:
        return series.label
    is_single = len({other.label for other in chart.series}) == 1
    return series.instance if is_single else f"{series.label} · {series.instance}"


def _frame(chart: CurveChart, drawn: list[Series], top: float, right: float) -> _Frame:
    base = top + _PLOT_HEIGHT
    points = [p for series in drawn for p in series.points if p.y is not None]
    low, high = value_range([p.y for p in points if p.y is not None])
    y = Scale(low, high, base, top)
    if not chart.is_exact:
        xs = [p.x for p in points]
        if wants_log(xs):
            return _Frame(Scale(min(xs) / 1.1, max(xs) * 1.1, _LEFT, right, True), y, top, base)
        room = 0.04 * (max(xs) - min(xs)) or abs(xs[0]) or 1.0
        return _Frame(Scale(min(xs) - room, max(xs) + room, _LEFT, right), y, top, base)
    ends = [p.x for p in points if p.x > 0] + [p.to_x for p in points if p.to_x is not None]
    first, last = (min(ends), max(ends)) if ends else (0.0, 1.0)
    span = (last - first) or 0.25 * last
    from_zero = any(p.x == 0 for p in points) or first < 0.15 * span
    start = 0.0 if from_zero else max(0.0, first - 0.14 * span)
    return _Frame(Scale(start, last + 0.18 * span, _LEFT, right), y, top, base)


def _described(chart: CurveChart, drawn: list[Series]) -> str:
    """Return the curves in words, for those who do not see them."""
    if not chart.is_exact:
        return f"{plural(len(chart.series), 'curve')}; the table below holds every value."
    parts = []
    for series in drawn[:6]:
        steps = ", ".join(
            f"{digits(p.y)} from {number(p.x, 's')}" for p in series.breakpoints if p.y is not None
        )
        parts.append(f"{series.label} of {series.instance}: {steps}.")
    return " ".join(parts)


def _legend(scene: Scene, chart: CurveChart) -> None:
    """Name the line style and the marker of each instance above the curves."""
    if len(chart.instances) < 2:
        return
    for n, instance in enumerate(chart.instances):
        y = _TOP - 8 + n * _LINE_PX
        style = n % len(DASHES)
        scene.add(Line(((_LEFT, y - 4), (_LEFT + 44, y - 4)), "ink", 2.2, DASHES[style]))
        scene.add(Mark(_LEFT + 22, y - 4, MARKERS[style], "ink"))
        scene.add(Text(_LEFT + 54, y, shortened(instance, _WIDTH - 200, SMALL_PX), size=SMALL_PX))


def _steps(scene: Scene, series: Series, frame: _Frame) -> None:
    """Draw pieces as level lines, with thin uprights between them and dots where they begin."""
    colour, style = series_role(series.colour), series.style % len(DASHES)
    marks: list[Mark] = []
    before: Point | None = None
    breakpoints = set(map(id, series.breakpoints))
    for point in series.points:
        if point.y is None:
            before = None
            continue
        x, y = frame.x.at(max(point.x, frame.x.low)), frame.y.at(point.y)
        until = frame.x.end if point.to_x is None else frame.x.at(point.to_x)
        tip = f"{series.label}, {series.instance}: {point.tip}; from {number(point.x, 's')}"
        tip += "" if point.to_x is None else f" to just under {number(point.to_x, 's')}"
        if before is not None and before.y is not None:
            scene.add(Line(((x, frame.y.at(before.y)), (x, y)), colour, 1.0, (2, 3)))
            if before.y != point.y:
                marks.append(Mark(x, frame.y.at(before.y), MARKERS[style], colour, False, 3.5))
        scene.add(Line(((x, y), (until, y)), colour, 2.4, DASHES[style], tip))
        if id(point) in breakpoints and point.x >= frame.x.low and point.x > 0:
            marks.append(Mark(x, y, MARKERS[style], colour, tip=tip))
        if point.to_x is None:
            marks.append(Mark(frame.x.end, y, "arrow", colour, size=4.5))
        before = point
    scene.add(*marks)


def _points(scene: Scene, series: Series, frame: _Frame) -> None:
    """Draw a line through points, with gaps where there is no value."""
    colour, style = series_role(series.colour), series.style % len(DASHES)
    runs: list[list[Point]] = [[]]
    for point in series.points:
        if point.y is None:
            runs.append([])
        else:
            runs[-1].append(point)
    with_marks = len(series.points) <= 80
    for run in runs:
        at = [(frame.x.at(p.x), frame.y.at(p.y)) for p in run if p.y is not None]
        if len(at) > 1:
            name = f"{series.label}, {series.instance}"
            scene.add(Line(tuple(at), colour, 2.0, DASHES[style], name))
        if with_marks or len(at) == 1:
            for point, (x, y) in zip(run, at, strict=True):
                tip = f"{series.label}, {series.instance}: {point.tip}"
                scene.add(Mark(x, y, MARKERS[style], colour, size=3.5, tip=tip))


def _end_names(scene: Scene, chart: CurveChart, drawn: list[Series], frame: _Frame) -> None:
    """Write each curve's name beside its right end, moved apart where ends are close."""
    ends = []
    for series in drawn:
        last = [p for p in series.points if p.y is not None][-1]
        is_open = chart.is_exact and last.to_x is None
        x = frame.x.end if is_open else frame.x.at(last.x if last.to_x is None else last.to_x)
        ends.append((x, frame.y.at(last.y or 0.0)))
    heights = spread([y for _, y in ends], SMALL_PX + 3, frame.top + 4, frame.base)
    at = frame.x.end + 16
    for series, (x, y), height in zip(drawn, ends, heights, strict=True):
        if abs(height - y) > 1 or x < frame.x.end - 1:
            if x > frame.x.end - 1:
                scene.add(Line(((x + 6, y), (at - 1, height)), series_role(series.colour), 0.8))
            else:  # the curve ends early: nothing that looks like more of it
                scene.add(Line(((x + 8, y), (at - 1, height)), "soft", 0.8, (1, 4)))
        text = shortened(_end_name(series, chart), _WIDTH - at - 6, SMALL_PX)
        scene.add(Text(at + 2, height + 4, text, size=SMALL_PX))


def _label_breakpoints(scene: Scene, drawn: list[Series], frame: _Frame) -> None:
    """Write where each piece begins and its value, clear of curves and of other labels."""
    labels: list[tuple[float, float, str]] = []
    lines: list[tuple[Box, float]] = []
    for series in drawn:
        at = series.breakpoints
        for point in at:
            if point.y is not None and point.x > 0:
                text = f"{number(point.x, 's')}: {digits(point.y)}"
                labels.append((frame.x.at(point.x), frame.y.at(point.y), text))
        for point in series.points:
            if point.y is not None:
                until = frame.x.end if point.to_x is None else frame.x.at(point.to_x)
                y = frame.y.at(point.y)
                level = Box(frame.x.at(max(point.x, frame.x.low)), y - 2, until, y + 2)
                lines.append((level, 3.0))
        for one, other in pairwise(at):
            x = frame.x.at(other.x)
            ends = sorted((frame.y.at(one.y or 0.0), frame.y.at(other.y or 0.0)))
            lines.append((Box(x - 1, ends[0], x + 1, ends[1]), 0.6))
    if len(labels) > MAX_LABELS:
        return
    box = Box(frame.x.start + 2, frame.top - 12, frame.x.end, frame.base - 2)
    for label in place_labels(labels, lines, box):
        if label.leader is not None:
            scene.add(Line(label.leader, "soft", 0.7))
        left, base = label.box.left, label.box.bottom - 4
        scene.add(Text(left, base, label.text, size=SMALL_PX, halo=True))
