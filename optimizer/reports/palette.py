"""Okabe and Ito's colours, which the colour-blind tell apart, for light and for dark pages."""

from __future__ import annotations

#: Dash patterns in px and markers of successive instances; the first is solid.
DASHES: tuple[tuple[float, ...], ...] = ((), (8, 4), (2, 3), (10, 3, 2, 3))
MARKERS = ("circle", "square", "triangle", "diamond")

_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
_YELLOW, _BLUE, _VERMILLION, _PURPLE = "#f0e442", "#0072b2", "#d55e00", "#cc79a7"

#: Colours of lines; after these they repeat.
NUM_SERIES_COLOURS = 7

#: Colours of bars; after these they repeat.
NUM_BAR_COLOURS = 6

#: Lines need contrast: yellow on white has none, nor has black on a dark page. Bars keep their
#: colours on either, under text and hatches in "on-bar".
LIGHT: dict[str, str] = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#57606a",
    "axis": "#7d8590",
    "grid": "#e4e8ec",
    "track": "#f1f3f5",
    "on-bar": "#14181c",
    "weights": _SKY,
    "kv": _ORANGE,
    "workspace": _GREEN,
    "on-time": _SKY,
    "late": _ORANGE,
    "limit": _VERMILLION,
    "halved": _SKY,
    "doubled": _ORANGE,
    "occupied": "#b3bac2",
    "m0": _SKY,
    "m1": _ORANGE,
    "m2": _GREEN,
    "m3": _PURPLE,
    "m4": _YELLOW,
    "m5": _VERMILLION,
    "c0": _BLUE,
    "c1": _VERMILLION,
    "c2": _GREEN,
    "c3": _PURPLE,
    "c4": _BLACK,
    "c5": _ORANGE,
    "c6": _SKY,
}

DARK: dict[str, str] = {
    **LIGHT,
    "paper": "#15181c",
    "ink": "#e9edf1",
    "soft": "#a9b3bd",
    "axis": "#828c97",
    "grid": "#2a3037",
    "track": "#20252b",
    "c0": _SKY,
    "c1": _ORANGE,
    "c4": "#e9edf1",
    "c5": _VERMILLION,
    "c6": _YELLOW,
}


def series_role(number: int) -> str:
    """Return the role of a series by its number; they repeat after seven."""
    return f"c{number % NUM_SERIES_COLOURS}"


def bar_role(number: int) -> str:
    """Return the role of a kind of bar or cell by its number; they repeat after six."""
    return f"m{number % NUM_BAR_COLOURS}"


def palette_css() -> str:
    """Return both palettes as CSS variables, and the classes that charts use."""
    lines = [":root {", "  color-scheme: light dark;", *_variables(LIGHT), "}"]
    lines += ["@media (prefers-color-scheme: dark) {", "  :root {"]
    lines += [f"  {line}" for line in _variables(DARK)] + ["  }", "}"]
    for role in LIGHT:
        lines.append(f".f-{role} {{ fill: var(--{role}); }}")
        lines.append(f".s-{role} {{ stroke: var(--{role}); }}")
    return "\n".join(lines) + "\n"


def _variables(palette: dict[str, str]) -> list[str]:
    return [f"  --{role}: {colour};" for role, colour in palette.items()]
