"""A chart as plain marks on a canvas, in px from the top left; SVG and matplotlib both draw it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

#: Size of text in px, and of the space between charts.
TEXT_PX, SMALL_PX, TITLE_PX, GAP_PX = 13.0, 12.0, 15.0, 26.0

Anchor = Literal["start", "middle", "end"]
Hatch = Literal["", "/", "\\", "."]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points; `colour` is a role of the palette."""

    points: tuple[tuple[float, float], ...]
    colour: str = "axis"
    width: float = 1.0
    dash: tuple[float, ...] = ()
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle, with hatching over it where colour alone would tell."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    hatch: Hatch = ""
    outline: str = ""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point: filled where a piece begins, hollow where it ends."""

    x: float
    y: float
    shape: str
    colour: str
    filled: bool = True
    size: float = 4.0
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; `y` is the base line. A halo of paper keeps it readable over lines."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    size: float = TEXT_PX
    colour: str = "ink"
    bold: bool = False
    halo: bool = False


Item = Line | Rect | Mark | Text


@dataclass(slots=True)
class Scene:
    """A chart: its size, what it shows in words, and its marks from back to front."""

    width: float
    height: float
    title: str
    description: str = ""
    items: list[Item] = field(default_factory=list)

    def add(self, *items: Item) -> None:
        """Put marks on top."""
        self.items += items


def outline_of(mark: Mark) -> list[tuple[float, float]]:
    """Return the corners of a mark that is no circle."""
    x, y, r = mark.x, mark.y, mark.size
    if mark.shape == "square":
        return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    if mark.shape == "triangle":
        return [(x, y - 1.2 * r), (x + 1.15 * r, y + 0.9 * r), (x - 1.15 * r, y + 0.9 * r)]
    if mark.shape == "arrow":
        return [(x - r, y - r), (x + r, y), (x - r, y + r)]
    return [(x, y - 1.4 * r), (x + 1.4 * r, y), (x, y + 1.4 * r), (x - 1.4 * r, y)]


#: Widths of letters as shares of their height, in a wide font; others are about 0.62.
_LETTERS = {
    **dict.fromkeys("il'|jI", 0.3),
    **dict.fromkeys(" .,:;!·/-ft()[]r", 0.38),
    **dict.fromkeys('cksxyzvJ_"', 0.56),
    **dict.fromkeys("mwMW@%", 0.97),
    **dict.fromkeys("=×+−→<>~", 0.84),
    **dict.fromkeys("ACDEGHKNOQRUVXYBPFST", 0.7),
}


def text_width(text: str, size: float = TEXT_PX) -> float:
    """Return about how wide a text is in px, in a wide font."""
    return size * sum(
        1.05 if unicodedata.east_asian_width(c) in "WF" else _LETTERS.get(c, 0.63) for c in text
    )


def shortened(text: str, width: float, size: float = TEXT_PX) -> str:
    """Return a text cut to a width, with an ellipsis where something is missing."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""


def moved(item: Item, down: float) -> Item:
    """Return a mark lower on the canvas."""
    if isinstance(item, Line):
        return replace(item, points=tuple((x, y + down) for x, y in item.points))
    return replace(item, y=item.y + down)


def stacked(scenes: Sequence[Scene]) -> Scene:
    """Return charts below each other on one canvas, each under its title."""
    width = max(scene.width for scene in scenes)
    whole = Scene(width, 0.0, "; ".join(scene.title for scene in scenes))
    whole.description = " ".join(scene.description for scene in scenes)
    at = 0.0
    for scene in scenes:
        at += GAP_PX + TITLE_PX
        title = shortened(scene.title, width - 24, TITLE_PX)
        whole.add(Text(12, at - 6, title, size=TITLE_PX, bold=True))
        whole.add(*(moved(item, at) for item in scene.items))
        at += scene.height
    whole.height = at + 8
    return whole


def on_bar(
    x: float, middle: float, text: str, colour: str, hatch: Hatch, anchor: Anchor = "start"
) -> list[Item]:
    """Return text on a bar about its middle line; over hatching it stands on a plain plate."""
    items: list[Item] = []
    if hatch:
        width = text_width(text, SMALL_PX) + 4
        left = {"start": x - 2, "middle": x - width / 2, "end": x - width + 2}[anchor]
        items.append(Rect(left, middle - 8, width, 16, colour))
    items.append(Text(x, middle + 4, text, anchor, SMALL_PX, "on-bar"))
    return items


def legend(entries: Sequence[tuple[str, str, Hatch]], x: float, y: float) -> list[Item]:
    """Return swatches with their names in a row; `y` is the base line of the text."""
    items: list[Item] = []
    for name, colour, hatch in entries:
        items.append(Rect(x, y - 11, 16, 13, colour, hatch, outline="axis"))
        items.append(Text(x + 22, y, name, size=SMALL_PX))
        x += 22 + text_width(name, SMALL_PX) + 22
    return items
