"""How far the objective moves when one input is halved or doubled, as bars about zero."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.reports.axes import Scale, round_ticks
from optimizer.reports.scene import (
    SMALL_PX,
    Anchor,
    Hatch,
    Line,
    Rect,
    Scene,
    Text,
    legend,
    shortened,
)
from optimizer.sensitivities.document import SensitivityDocument
from optimizer.words import change, digits, name_text, number, percent, unit_text

#: Inputs on a chart, the most influential first.
MAX_INPUTS = 20

_WIDTH, _TOP, _ROW, _BAR = 980.0, 48.0, 50.0, 11.0
_LEFT, _RIGHT = 150.0, 830.0


@dataclass(frozen=True, slots=True)
class Swing:
    """One input and the changes of the objective; None: not possible with the plan."""

    path: str
    value: str
    halved: float | None
    doubled: float | None

    @property
    def influence(self) -> float:
        """The larger change."""
        return max(abs(self.halved or 0.0), abs(self.doubled or 0.0))


@dataclass(frozen=True, slots=True)
class Tornado:
    """Inputs from the most to the least influential, and how many more there are."""

    title: str
    objective: str
    unit: str
    value: float
    swings: tuple[Swing, ...]
    num_more: int
    num_without_effect: int


def tornado_of(document: SensitivityDocument) -> Tornado | None:
    """Return the bars of a sensitivity study; None where no input moves the objective."""
    moving = [item for item in document.inputs if item.influence > 0]
    if not moving:
        return None
    moving.sort(key=lambda item: -item.influence)
    swings = tuple(
        Swing(item.path, number(item.value, item.unit), item.halved, item.doubled)
        for item in moving[:MAX_INPUTS]
    )
    return Tornado(
        title=f"What each input moves: {document.instance}",
        objective=document.objective,
        unit=document.unit,
        value=document.value,
        swings=swings,
        num_more=len(moving) - len(swings),
        num_without_effect=len(document.inputs) - len(moving),
    )


def tornado_scene(tornado: Tornado) -> Scene:
    """Return the bars as a chart: an input's name, and below it its two bars about zero."""
    base = _TOP + len(tornado.swings) * _ROW
    scene = Scene(_WIDTH, base + 52, tornado.title, _described(tornado))
    changes = [c for s in tornado.swings for c in (s.halved, s.doubled) if c is not None]
    scale = Scale(min(0.0, *changes), max(0.0, *changes), _LEFT, _RIGHT)
    scene.add(*legend((("halved", "halved", "/"), ("doubled", "doubled", "")), 12, 22))
    more = f"and {tornado.num_more} more inputs; " if tornado.num_more else ""
    if tornado.num_without_effect:
        more += f"{tornado.num_without_effect} without a bar: no change, or not possible"
    if more:
        scene.add(Text(_WIDTH - 12, 22, more.removesuffix("; "), "end", SMALL_PX, "soft"))
    for tick in round_ticks(scale.low, scale.high):
        x = scale.at(tick)
        scene.add(Line(((x, _TOP - 8), (x, base)), "grid"))
        text = "0" if tick == 0 else change(tick).strip()
        scene.add(Text(x, base + 18, text, "middle", SMALL_PX, "soft"))
    unit = f" ({unit_text(tornado.unit)})" if tornado.unit else ""
    name = f"change of {name_text(tornado.objective)}{unit}, now {digits(tornado.value)}"
    scene.add(Text((_LEFT + _RIGHT) / 2, base + 40, name, "middle", SMALL_PX, "soft"))
    zero = scale.at(0.0)
    scene.add(Line(((zero, _TOP - 8), (zero, base)), "axis", 1.4))
    for n, swing in enumerate(tornado.swings):
        _draw(scene, swing, tornado, scale, _TOP + n * _ROW)
    return scene


def _draw(scene: Scene, swing: Swing, tornado: Tornado, scale: Scale, top: float) -> None:
    name = shortened(f"{swing.path} = {swing.value}", _WIDTH - 24, SMALL_PX)
    scene.add(Text(12, top + 12, name, size=SMALL_PX, halo=True))
    zero = scale.at(0.0)
    sides: tuple[tuple[str, float | None, Hatch], ...] = (
        ("halved", swing.halved, "/"),
        ("doubled", swing.doubled, ""),
    )
    for n, (side, moved, hatch) in enumerate(sides):
        y = top + 18 + n * (_BAR + 1)
        if moved is None:
            text = f"{side}: not possible with this plan"
            scene.add(Text(zero + 6, y + 10, text, size=11, colour="soft", halo=True))
            continue
        x = scale.at(moved)
        tip = f"{swing.path} {side}: {change(moved, tornado.unit)}"
        tip += f" ({percent(abs(moved / tornado.value))})" if tornado.value else ""
        left, width = min(x, zero), max(abs(x - zero), 2.0)
        outline = "paper" if width > 4 else ""
        scene.add(Rect(left, y, width, _BAR, side, hatch, outline, tip))
        anchor: Anchor = "start" if moved >= 0 else "end"
        at = x + 6 if moved >= 0 else x - 6
        scene.add(Text(at, y + 10, change(moved), anchor, 11, halo=True))


def _described(tornado: Tornado) -> str:
    """Return the most influential inputs in words, for those who do not see the bars."""
    return "; ".join(
        f"{s.path} halved {change(s.halved, tornado.unit)}, "
        f"doubled {change(s.doubled, tornado.unit)}"
        for s in tornado.swings[:3]
    )
