"""Single charts as SVG and PNG through matplotlib; the same input gives the same bytes."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from instances.errors import InputError
from optimizer.reports.content import Figure, report_of
from optimizer.reports.inputs import ReportInputs
from optimizer.reports.palette import LIGHT
from optimizer.reports.scene import Item, Line, Mark, Rect, Scene, Text, outline_of, stacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Names of charts, in the order in which one is chosen where none is asked for.
CHARTS = ("curves", "timeline", "sensitivity", "racks", "memory")
FORMATS = ("svg", "png")

_PX_PER_INCH = 96.0
_POINTS_PER_PX = 72.0 / _PX_PER_INCH
_PNG_DPI = 192
_FONT = "DejaVu Sans"  # comes with matplotlib, so charts look alike everywhere
_HATCHES = {"/": "////", "\\": "\\\\\\\\", ".": ".."}


def chart(inputs: ReportInputs, name: str | None = None, format: str = "svg") -> bytes:
    """Return a chart as an SVG or PNG file; several of a kind stand below each other.

    Parameters
    ----------
    inputs : what `read_report_inputs` returned.
    name : curves, memory, racks, timeline or sensitivity; None takes the first there is.
    format : svg or png.

    Raises
    ------
    InputError
        When the inputs hold no such chart, or matplotlib is missing.
    """
    if format not in FORMATS:
        raise InputError("chart", "format", "must be svg or png", format)
    return _drawn(stacked(_scenes(inputs, name)), format)


def _scenes(inputs: ReportInputs, name: str | None) -> list[Scene]:
    """Return the charts of a kind that a report of the inputs would show."""
    if name is not None and name not in CHARTS:
        raise InputError("chart", "name", f"must be one of {', '.join(sorted(CHARTS))}", name)
    found: dict[str, list[Scene]] = {}
    for section in report_of(inputs).sections:
        for item in section.items:
            if isinstance(item, Figure):
                found.setdefault(item.kind, []).append(item.scene)
    chosen = name or next((kind for kind in CHARTS if kind in found), None)
    if chosen is None:
        raise InputError("chart", "", "nothing here can be drawn; write a page or Markdown instead")
    if chosen not in found:
        holds = f"they hold {', '.join(sorted(found))}" if found else "they hold no chart at all"
        raise InputError("chart", "", f"the inputs hold nothing for {chosen}; {holds}")
    return found[chosen]


def _drawn(scene: Scene, format: str) -> bytes:
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        rule = "matplotlib is missing; install supernode-planner[report], or write .html or .md"
        raise InputError("chart", "", rule) from None
    size = (scene.width / _PX_PER_INCH, scene.height / _PX_PER_INCH)
    settings: Any = {
        "svg.hashsalt": "supernode",
        "svg.fonttype": "path",
        "hatch.linewidth": 0.7,
        "savefig.bbox": None,
    }
    file = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name may have letters the font lacks
        figure = Canvas(figsize=size, dpi=_PX_PER_INCH, facecolor=LIGHT["paper"])
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0.0, scene.width)
        axes.set_ylim(scene.height, 0.0)
        axes.axis("off")
        for order, item in enumerate(scene.items):
            _draw(axes, item, order)
        # no date and no version, so that the bytes depend on the input alone
        unsaid = {"Date": None} if format == "svg" else {"Software": None}
        canvas = FigureCanvasSVG(figure) if format == "svg" else FigureCanvasAgg(figure)
        canvas.print_figure(
            file, dpi=_PNG_DPI, format=format, metadata={"Title": scene.title, **unsaid}
        )
    return file.getvalue()


def _draw(axes: Axes, item: Item, order: int) -> None:
    if isinstance(item, Line):
        _draw_line(axes, item, order)
    elif isinstance(item, Rect):
        _draw_rect(axes, item, order)
    elif isinstance(item, Mark):
        _draw_mark(axes, item, order)
    else:
        _draw_text(axes, item, order)


def _draw_line(axes: Axes, line: Line, order: int) -> None:
    from matplotlib.lines import Line2D

    style: Any = "solid"
    width = line.width * _POINTS_PER_PX
    if line.dash:  # matplotlib counts dashes in widths of the line
        style = (0, tuple(part / line.width for part in line.dash))
    xs, ys = zip(*line.points, strict=True)
    axes.add_line(
        Line2D(
            xs,
            ys,
            color=LIGHT[line.colour],
            linewidth=width,
            linestyle=style,
            zorder=order,
            dash_capstyle="butt",
            solid_capstyle="butt",
        )
    )


def _draw_rect(axes: Axes, rect: Rect, order: int) -> None:
    from matplotlib.patches import Rectangle

    place, size = (rect.x, rect.y), (rect.width, rect.height)
    edge = LIGHT[rect.outline] if rect.outline else "none"
    axes.add_patch(
        Rectangle(
            place,
            *size,
            facecolor=LIGHT[rect.colour],
            edgecolor=edge,
            linewidth=_POINTS_PER_PX,
            zorder=order,
        )
    )
    if rect.hatch:
        axes.add_patch(
            Rectangle(
                place,
                *size,
                facecolor="none",
                edgecolor=LIGHT["on-bar"],
                linewidth=0.0,
                hatch=_HATCHES[rect.hatch],
                alpha=0.45,
                zorder=order,
            )
        )


def _draw_mark(axes: Axes, mark: Mark, order: int) -> None:
    from matplotlib.patches import Circle, Polygon

    colour = LIGHT[mark.colour]
    fill = colour if mark.filled else LIGHT["paper"]
    style: Any = {"facecolor": fill, "edgecolor": colour, "linewidth": 1.2, "zorder": order}
    if mark.shape == "circle":
        axes.add_patch(Circle((mark.x, mark.y), mark.size, **style))
    else:
        axes.add_patch(Polygon(outline_of(mark), closed=True, **style))


def _draw_text(axes: Axes, text: Text, order: int) -> None:
    sides = {"start": "left", "middle": "center", "end": "right"}
    # a plate in place of a halo, which would write every letter twice
    plate: Any = {"boxstyle": "square,pad=0.08", "facecolor": LIGHT["paper"], "alpha": 0.8}
    plate |= {"edgecolor": "none"}
    axes.text(
        text.x,
        text.y,
        text.text,
        fontsize=text.size * _POINTS_PER_PX,
        fontfamily=_FONT,
        fontweight="bold" if text.bold else "normal",
        color=LIGHT[text.colour],
        horizontalalignment=sides[text.anchor],
        verticalalignment="baseline",
        zorder=order,
        bbox=plate if text.halo else None,
        parse_math=False,
    )
