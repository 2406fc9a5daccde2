"""Curves of sweeps: the source's deadline-cost curves, healthy and faulty on one pair of axes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from instances.io import load_instance
from optimizer.reports.axes import (
    Scale,
    handy_unit,
    log_ticks,
    round_ticks,
    value_range,
    wants_log,
)
from optimizer.reports.curve_scene import MAX_SERIES, curve_scene
from optimizer.reports.curves import CurveChart, curve_charts
from optimizer.reports.inputs import Loaded
from optimizer.reports.labels import Box, place_labels, spread
from optimizer.reports.scene import Line, Mark, Scene, Text
from optimizer.sweeps.chain import Block, solve_block
from optimizer.sweeps.rows import FrontierPiece, SweepPoint
from optimizer.variants.solver import VariantSolver

COST: dict[str, Any] = {"objective": "cost_per_on_time_session", "unit": "card*s"}


def frontier(name: str, tp: int) -> list[SweepPoint]:
    document = load_instance(name).model_dump(mode="json")
    block = Block({("search", "tp"): tp}, {"search.tp": tp}, exact=True)
    return solve_block(VariantSolver(), document, block, name)


@pytest.fixture(scope="module")
def chart() -> CurveChart:
    rows = [
        Loaded(f"{name}.jsonl", row)
        for name in ("four-sessions-128k", "four-sessions-fault")
        for tp in (2, 4, 8)
        for row in frontier(name, tp)
    ]
    (found,) = curve_charts(rows)
    return found


def piece(tp: int, from_s: str, to_s: str | None, value: float | None, **more: Any) -> SweepPoint:
    fields: dict[str, Any] = {"instance": "i", "termination": "optimal", **COST, **more}
    return FrontierPiece(
        swept={"search.tp": tp},
        from_s=float(Fraction(from_s)),
        from_exact=from_s,
        to_s=None if to_s is None else float(Fraction(to_s)),
        to_exact=to_s,
        value=value,
        **fields,
    )


def point(swept: dict[str, float], value: float | None, instance: str = "i") -> SweepPoint:
    ended: Any = "infeasible" if value is None else "optimal"
    return SweepPoint(instance=instance, swept=dict(swept), termination=ended, value=value, **COST)


def loaded(*rows: SweepPoint, source: str = "a.jsonl") -> list[Loaded[SweepPoint]]:
    return [Loaded(source, row) for row in rows]


def texts(scene: Scene) -> list[str]:
    return [item.text for item in scene.items if isinstance(item, Text)]


def test_breakpoints_are_those_of_the_source_figures(chart: CurveChart) -> None:
    found = {
        (series.instance, series.label): [
            (f"{p.x * 1000:.1f}", f"{p.y:.4f}") for p in series.breakpoints if p.y is not None
        ]
        for series in chart.series
    }
    assert found == {
        ("four-sessions-128k", "tp = 2"): [("119.1", "0.2382")],
        ("four-sessions-128k", "tp = 4"): [("127.6", "0.2551")],
        ("four-sessions-128k", "tp = 8"): [("123.5", "0.4392"), ("164.7", "0.3294")],
        ("four-sessions-fault", "tp = 2"): [("119.1", "0.4776"), ("179.1", "0.3582")],
        ("four-sessions-fault", "tp = 4"): [("127.6", "0.5002"), ("187.6", "0.3751")],
        ("four-sessions-fault", "tp = 8"): [("183.5", "0.5992"), ("224.7", "0.4494")],
    }


def test_every_breakpoint_is_labelled_and_every_curve_named(chart: CurveChart) -> None:
    shown = texts(curve_scene(chart))
    labels = ["119.1 ms: 0.2382", "127.6 ms: 0.2551", "123.5 ms: 0.4392", "164.7 ms: 0.3294"]
    labels += ["119.1 ms: 0.4776", "179.1 ms: 0.3582", "127.6 ms: 0.5002", "187.6 ms: 0.3751"]
    labels += ["183.5 ms: 0.5992", "224.7 ms: 0.4494"]
    assert set(labels) <= set(shown)
    names = {f"tp = {tp} · {name}" for tp in (2, 4, 8) for name in chart.instances}
    assert names <= set(shown)


def test_healthy_and_faulty_share_axes_and_differ_in_more_than_colour(chart: CurveChart) -> None:
    by_key = {(s.instance, s.label): s for s in chart.series}
    healthy = by_key["four-sessions-128k", "tp = 8"]
    faulty = by_key["four-sessions-fault", "tp = 8"]
    assert healthy.colour == faulty.colour
    assert healthy.style != faulty.style
    scene = curve_scene(chart)
    thick = [item for item in scene.items if isinstance(item, Line) and item.width == 2.4]
    drawn = {
        line.points[0][1]: (line.dash, line.points[0][0]) for line in thick if line.colour == "c2"
    }
    dashes = [dash for _, (dash, _) in sorted(drawn.items())]
    assert dashes == [(8, 4), (8, 4), (), ()]  # from the top: 0.5992, 0.4494, 0.4392, 0.3294
    heights = sorted(drawn)
    assert (heights[3] - heights[0]) / (heights[2] - heights[1]) == pytest.approx(
        (0.59921 - 0.32941) / (0.44941 - 0.43921), rel=1e-2
    )


def test_a_curve_begins_where_there_is_a_plan(chart: CurveChart) -> None:
    one = next(s for s in chart.series if s.label == "tp = 8")
    assert one.points[0].y is None
    scene = curve_scene(chart)
    marks = [i for i in scene.items if isinstance(i, Mark) and i.shape == "circle"]
    first = [m for m in marks if m.colour == "c2" and m.filled]
    ends = [m for m in marks if m.colour == "c2" and not m.filled]
    assert len(first) == 2
    assert [m.x for m in ends] == [first[1].x]  # just before the second piece begins
    assert "3 of 4 sessions on time" in first[0].tip


def test_neighbours_of_one_value_have_one_breakpoint() -> None:
    rows = loaded(
        piece(2, "0", "1/10", None, termination="infeasible"),
        piece(2, "1/10", "1/5", 0.5),
        piece(2, "1/5", "2/5", 0.5, termination="feasible"),
        piece(2, "2/5", None, 0.25),
    )
    (found,) = curve_charts(rows)
    (series,) = found.series
    assert [p.x for p in series.breakpoints] == [0.1, 0.4]
    assert series.label == "optimum"
    assert found.fixed == "tp = 2"
    assert "not proven optimal" in series.points[2].tip


def test_no_plan_at_any_deadline_is_no_chart_but_a_row() -> None:
    (found,) = curve_charts(loaded(piece(2, "0", None, None, termination="infeasible")))
    assert not found.has_values
    assert len(found.series[0].points) == 1


def test_a_grid_is_drawn_against_the_field_that_varies_most_with_gaps() -> None:
    rows = [
        point({"search.tp": tp, "deadline_s": deadline}, None if deadline == 0.12 else tp / 10)
        for tp in (2, 4)
        for deadline in (0.11, 0.12, 0.13, 0.14)
    ]
    (found,) = curve_charts(loaded(*rows))
    assert (found.x_name, found.x_unit) == ("deadline_s", "s")
    assert [s.label for s in found.series] == ["tp = 2", "tp = 4"]
    lines = [i for i in curve_scene(found).items if isinstance(i, Line) and i.width == 2.0]
    assert [len(line.points) for line in lines] == [2, 2]  # 0.13 to 0.14; 0.11 stands alone
    equal = [point({"search.tp": a, "search.pp": b}, 1.0) for a in (1, 2) for b in (1, 2)]
    (found,) = curve_charts(loaded(*equal))
    assert found.x_name == "search.pp"


def test_rows_of_other_kinds_have_charts_of_their_own() -> None:
    rows = [point({"search.tp": 2}, 1.0), point({"deadline_s": 0.1}, 1.0), piece(2, "0", None, 1.0)]
    rows.append(point({"search.tp": 2}, 1.0).model_copy(update={"objective": "energy"}))
    assert len(curve_charts(loaded(*rows))) == 4


def test_curves_of_one_name_in_two_files_keep_apart() -> None:
    rows = loaded(piece(2, "0", None, 1.0)) + loaded(piece(2, "0", None, 2.0), source="b.csv")
    (found,) = curve_charts(rows)
    assert found.instances == ("i (a.jsonl)", "i (b.csv)")
    one_curve = loaded(piece(2, "0", "1/2", 1.0)) + loaded(piece(2, "1/2", None, 0.5), source="b")
    assert curve_charts(one_curve)[0].instances == ("i",)


def test_fields_that_end_alike_are_named_in_full() -> None:
    rows = [
        point({"a.x_s": a, "b.x_s": b, "deadline_s": d}, 1.0)
        for a in (1, 2)
        for b in (1, 2)
        for d in (1, 2, 3)
    ]
    (found,) = curve_charts(loaded(*rows))
    assert found.series[0].label == "a.x_s = 1.000 s, b.x_s = 1.000 s"


def test_more_curves_than_can_be_told_apart_are_counted() -> None:
    rows = [
        point({"search.tp": tp, "deadline_s": d}, tp) for tp in range(1, 31) for d in range(1, 40)
    ]
    shown = texts(curve_scene(curve_charts(loaded(*rows))[0]))
    assert f"{30 - MAX_SERIES} more curves are in the table" in shown


def test_labels_cover_neither_each_other_nor_points() -> None:
    wanted = [(100.0 + 3 * n, 100.0 + (n % 3), f"label {n}") for n in range(8)]
    frame = Box(0, 0, 600, 400)
    placed = place_labels(wanted, [], frame)
    assert len(placed) == 8
    points = [Box(x - 5, y - 5, x + 5, y + 5) for x, y, _ in wanted]
    for n, one in enumerate(placed):
        assert one.box.is_inside(frame)
        assert all(one.box.overlap(other.box) == 0 for other in placed[:n])
        assert all(one.box.overlap(point) == 0 for point in points)
    assert place_labels(wanted, [], Box(0, 0, 20, 20)) == []


def test_a_label_avoids_a_line() -> None:
    below, above = Box(0, 102, 300, 125), Box(0, 75, 300, 98)
    (under,) = place_labels([(100, 100, "x")], [(above, 3.0)], Box(0, 0, 300, 300))
    (over,) = place_labels([(100, 100, "x")], [(below, 3.0)], Box(0, 0, 300, 300))
    assert under.box.top > 100 > over.box.bottom


def test_names_are_moved_apart_within_their_frame() -> None:
    moved = spread([50, 50, 52, 300], 15, 0, 300)
    assert moved == [50, 65, 80, 300]
    assert spread([290, 299], 15, 0, 300) == [285, 300]


def test_scales_and_ticks() -> None:
    assert Scale(10, 20, 0, 100).at(15) == 50
    assert Scale(1, 100, 0, 100, is_log=True).at(10) == pytest.approx(50)
    assert round_ticks(0.0, 1.0, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_ticks(3, 3) == [3]
    assert log_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert len(log_ticks(1e-9, 1e3)) <= 9
    assert handy_unit(0.2, "s") == (1e-3, "ms")
    assert handy_unit(80e9, "B") == (1e9, "GB")
    assert handy_unit(5.0, "card*s") == (1.0, "card·s")
    assert wants_log([1, 10, 100, 1000])
    assert not wants_log([0, 1, 2, 3, 400])
    assert value_range([0.2, 0.6])[0] == 0
    low, high = value_range([100, 101])
    assert 99 < low < 100 < 101 < high < 102
    assert value_range([0, 0]) == (0, 1)
