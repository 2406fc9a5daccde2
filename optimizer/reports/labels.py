"""Places for labels next to points, so that they cover neither each other nor the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.reports.scene import SMALL_PX, text_width

HEIGHT_PX = SMALL_PX + 4


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle on the canvas, from its top left to its bottom right."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Return the area that two boxes share, px²."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, across) * max(0.0, down)

    def is_inside(self, other: Box) -> bool:
        """Whether the box lies within another."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A label that found a place: its box and its point, with a line between them if it is far."""

    text: str
    box: Box
    x: float
    y: float

    @property
    def leader(self) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """The line from the point to the box; None where they are close."""
        x = min(max(self.x, self.box.left), self.box.right)
        y = min(max(self.y, self.box.top), self.box.bottom)
        is_far = abs(x - self.x) + abs(y - self.y) > 14
        return ((self.x, self.y), (x, y)) if is_far else None

    def is_crossed_by(self, other: Placed) -> bool:
        """Whether the line of one runs over the text of the other."""
        return _crosses(self.leader, other.box) or _crosses(other.leader, self.box)


def _crosses(line: tuple[tuple[float, float], tuple[float, float]] | None, box: Box) -> bool:
    if line is None:
        return False
    (x0, y0), (x1, y1) = line
    steps = [n / 20 for n in range(21)]
    return any(
        box.left - 2 < x0 + t * (x1 - x0) < box.right + 2
        and box.top - 1 < y0 + t * (y1 - y0) < box.bottom + 1
        for t in steps
    )


def place_labels(
    labels: Sequence[tuple[float, float, str]], lines: Sequence[tuple[Box, float]], frame: Box
) -> list[Placed]:
    """Return places for labels of points (x, y, text) inside a frame.

    A label never covers another label or a point; it avoids lines, by their weights. One that finds
    no place is left out: the table next to a chart holds every number.
    """
    points = [Box(x - 5, y - 5, x + 5, y + 5) for x, y, _ in labels]
    placed: list[Placed] = []
    for x, y, text in labels:
        best: tuple[float, Placed] | None = None
        for distance, box in _candidates(x, y, text_width(text, SMALL_PX)):
            label = Placed(text, box, x, y)
            taken = [*points, *(other.box for other in placed)]
            if not box.is_inside(frame) or any(box.overlap(other) > 0 for other in taken):
                continue
            cost = distance + sum(weight * box.overlap(line) for line, weight in lines)
            cost += 12 + distance if label.leader else 0
            cost += 2000 * sum(label.is_crossed_by(other) for other in placed)
            if best is None or cost < best[0]:
                best = cost, label
        if best is not None:
            placed.append(best[1])
    return placed


def _candidates(x: float, y: float, width: float) -> list[tuple[float, Box]]:
    """Return boxes around a point with how much they are out of the way."""
    found = []
    for step in range(9):
        off = 7 + 9 * step
        for side, penalty in ((4.0, 0.0), (-width / 2, 3.0), (-width - 4, 4.0)):
            for top in (y - off - HEIGHT_PX, y + off):
                box = Box(x + side, top, x + side + width, top + HEIGHT_PX)
                found.append((off + penalty, box))
        if step < 5:  # beside the point, level with it
            for left in (x + 9 + 14 * step, x - 9 - 14 * step - width):
                box = Box(left, y - HEIGHT_PX / 2, left + width, y + HEIGHT_PX / 2)
                found.append((10.0 + 14 * step, box))
    return found


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Return places moved apart to at least `least` px, in their order, within `low` and `high`."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    at = low
    for i in order:
        moved[i] = at = max(moved[i], at)
        at += least
    at = high
    for i in reversed(order):
        moved[i] = at = min(moved[i], at)
        at -= least
    return moved
