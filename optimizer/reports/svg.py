"""Scenes as inline SVG: colours by class, so that a page's style sheet sets them."""

from __future__ import annotations

from html import escape
from math import isfinite

from optimizer.reports.scene import Item, Line, Mark, Rect, Scene, Text, outline_of

#: Hatches as pattern tiles: name, size of the tile, and what is drawn in it.
_HATCHES = {
    "/": ("up", 7, '<path d="M-1,8 L8,-1 M-1,1 L1,-1 M6,8 L8,6" class="s-on-bar hatch"/>'),
    "\\": ("down", 7, '<path d="M-1,-1 L8,8 M6,-1 L8,1 M-1,6 L1,8" class="s-on-bar hatch"/>'),
    ".": ("dots", 6, '<circle cx="3" cy="3" r="0.9" class="f-on-bar dot"/>'),
}


def svg_text(scene: Scene, name: str) -> str:
    """Return a scene as an SVG element; `name` makes the ids of its patterns unique on a page."""
    used = {item.hatch for item in scene.items if isinstance(item, Rect) and item.hatch}
    patterns = "".join(
        f'<pattern id="{name}-{tile}" width="{size}" height="{size}" '
        f'patternUnits="userSpaceOnUse">{drawn}</pattern>'
        for hatch, (tile, size, drawn) in _HATCHES.items()
        if hatch in used
    )
    label = escape(f"{scene.title}. {scene.description}".strip(), quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_px(scene.width)} '
        f'{_px(scene.height)}" role="img" aria-label="{label}">'
    )
    defs = f"<defs>{patterns}</defs>" if patterns else ""
    return head + defs + "".join(_drawn(item, name) for item in scene.items) + "</svg>"


def _px(value: float) -> str:
    assert isfinite(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _drawn(item: Item, name: str) -> str:
    if isinstance(item, Line):
        return _with_tip(_line(item), item.tip)
    if isinstance(item, Rect):
        return _with_tip(_rect(item, name), item.tip)
    if isinstance(item, Mark):
        return _with_tip(_mark(item), item.tip)
    return _text(item)


def _with_tip(drawn: str, tip: str) -> str:
    return f"<g><title>{escape(tip)}</title>{drawn}</g>" if tip else drawn


def _line(line: Line) -> str:
    points = " ".join(f"{_px(x)},{_px(y)}" for x, y in line.points)
    dash = f' stroke-dasharray="{" ".join(map(_px, line.dash))}"' if line.dash else ""
    return (
        f'<polyline points="{points}" class="s-{line.colour} line" '
        f'stroke-width="{_px(line.width)}"{dash}/>'
    )


def _rect(rect: Rect, name: str) -> str:
    place = (
        f'x="{_px(rect.x)}" y="{_px(rect.y)}" width="{_px(rect.width)}" height="{_px(rect.height)}"'
    )
    outline = f" s-{rect.outline}" if rect.outline else ""
    drawn = f'<rect {place} class="f-{rect.colour}{outline}"/>'
    if rect.hatch:
        drawn += f'<rect {place} fill="url(#{name}-{_HATCHES[rect.hatch][0]})"/>'
    return drawn


def _mark(mark: Mark) -> str:
    fill = f"f-{mark.colour}" if mark.filled else "f-paper"
    style = f'class="{fill} s-{mark.colour}" stroke-width="1.6"'
    if mark.shape == "circle":
        return f'<circle cx="{_px(mark.x)}" cy="{_px(mark.y)}" r="{_px(mark.size)}" {style}/>'
    points = " ".join(f"{_px(x)},{_px(y)}" for x, y in outline_of(mark))
    return f'<polygon points="{points}" {style}/>'


def _text(text: Text) -> str:
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    classes = f"f-{text.colour}" + (" bold" if text.bold else "") + (" halo" if text.halo else "")
    return (
        f'<text x="{_px(text.x)}" y="{_px(text.y)}" font-size="{_px(text.size)}"{anchor} '
        f'class="{classes}">{escape(text.text)}</text>'
    )
