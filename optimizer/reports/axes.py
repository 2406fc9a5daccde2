"""Scales of charts: round ticks, handy units, and the frame that charts are drawn in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optimizer.reports.scene import SMALL_PX, Line, Scene, Text
from optimizer.words import digits, unit_text

#: Larger and smaller units, each with its size in SI units.
_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")),
    "FLOP/s": ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
    "W": ((1e6, "MW"), (1e3, "kW")),
    "J": ((1e6, "MJ"), (1e3, "kJ")),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values on a stretch of the canvas, from `start` to `end` in px."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies, in px."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def handy_unit(largest: float, unit: str) -> tuple[float, str]:
    """Return the size and the name of the unit that suits values up to `largest`."""
    for size, name in _UNITS.get(unit, ()):
        if largest >= size * (2 if name == "h" else 1):
            return size, name
    return 1.0, unit_text(unit)


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next((m for m in (1, 2, 5, 10) if span / (m * step) <= most), 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from `low` to `high`, thinned out to about eight."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1, 2, 5), (1,)):
        found = [m * 10.0**d for d in decades for m in leads]
        found = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(found) <= 8:
            break
    return found[:: 1 + len(found) // 9] or [low, high]


def wants_log(values: Iterable[float]) -> bool:
    """Whether values are spread over powers of ten, so that equal steps would bunch them."""
    found = sorted(set(values))
    return len(found) > 3 and found[0] > 0 and found[-1] >= 50 * found[0]


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis for some values: from zero, unless that would flatten them."""
    low, high = min(values), max(values)
    if low == high:
        return (0.0, 1.0) if low == 0 else (min(0.0, 1.25 * low), max(0.0, 1.25 * high))
    if low >= 0 and low <= 0.7 * high:
        return 0.0, high * 1.08
    room = 0.12 * (high - low)
    return low - room, high + room


def _ticks(scale: Scale, size: float) -> list[tuple[float, str]]:
    if scale.is_log:
        values = log_ticks(scale.low / size, scale.high / size)
    else:
        most = 10 if scale.end > scale.start else 7
        values = round_ticks(scale.low / size, scale.high / size, most)
    return [(scale.at(value * size), digits(value)) for value in values]


def draw_x_axis(scene: Scene, scale: Scale, top: float, base: float, name: str, unit: str) -> None:
    """Draw a horizontal axis at `base` with its grid up to `top`, and its name below."""
    size, unit_name = handy_unit(max(abs(scale.low), abs(scale.high)), unit)
    for x, text in _ticks(scale, size):
        scene.add(Line(((x, top), (x, base)), "grid"))
        scene.add(Text(x, base + 18, text, "middle", SMALL_PX, "soft"))
    scene.add(Line(((scale.start, base), (scale.end, base)), "axis"))
    title = f"{name} ({unit_name})" if unit_name else name
    scene.add(Text((scale.start + scale.end) / 2, base + 40, title, "middle", SMALL_PX, "soft"))


def draw_y_axis(scene: Scene, scale: Scale, left: float, right: float) -> None:
    """Draw a vertical axis at `left` with its grid to `right`; the chart names it above."""
    for y, text in _ticks(scale, 1.0):
        scene.add(Line(((left, y), (right, y)), "grid"))
        scene.add(Text(left - 8, y + 4, text, "end", SMALL_PX, "soft"))
    scene.add(Line(((left, scale.start), (left, scale.end)), "axis"))
