"""Memory, timelines and sensitivity as charts; SVG and PNG through matplotlib."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text
from optimizer.reports import ReportInputs, chart
from optimizer.reports.memory import MAX_STACKS, card_stacks, memory_scene, stage_stacks
from optimizer.reports.scene import Line, Rect, Scene, Text, text_width
from optimizer.reports.timeline import MAX_LANES, timeline_of, timeline_scene
from optimizer.reports.tornado import MAX_INPUTS, tornado_of, tornado_scene
from optimizer.result import ResultDocument
from optimizer.sensitivities.document import InputSensitivity, SensitivityDocument
from optimizer.side.result import SideResultDocument
from optimizer.sweeps.rows import SweepPoint


def result(name: str) -> ResultDocument:
    return ResultDocument.model_validate_json(example_text(name, ".best.json"))


def many_sessions(count: int, cards: int = 64, late: int = 0, lanes: int = 1) -> ResultDocument:
    """A result with more sessions and cards than a chart can show, `lanes` of them at a time."""
    document: dict[str, Any] = json.loads(example_text("four-sessions-128k", ".best.json"))
    document["plan"] = None
    found = document["evaluation"]
    found["sessions"] = [
        {
            "session": f"chat/{n}",
            "instance": n % 4,
            "start_s": float(n // 4 // lanes),
            "finish_s": float(n // 4 // lanes + 1),
            "finish_exact": None,
            "deadline_s": 5.0,
            "on_time": n >= late,
            "restarts": 0,
        }
        for n in range(count)
    ]
    found["cards"] = [
        {**found["cards"][0], "card": n, "kv_bytes": 10**9 * n, "total_bytes": 0}
        for n in range(cards)
    ]
    plan = json.loads(example_text("four-sessions-128k", ".best.json"))["plan"]
    return ResultDocument.model_validate(document | {"plan": plan})


def sensitivity(*inputs: tuple[str, float | None, float | None]) -> SensitivityDocument:
    return SensitivityDocument(
        instance="i",
        instance_sha256="0",
        plan="8 cards = 4 instances × TP2 (ring)",
        objective="cost_per_on_time_session",
        unit="card*s",
        value=0.25,
        value_exact="1/4",
        most_influential=inputs[0][0],
        inputs=[
            InputSensitivity(
                path=path,
                unit="B/s",
                value=3.35e12,
                value_exact="3350000000000",
                halved=halved,
                doubled=doubled,
                step_halved_s=None,
                step_doubled_s=None,
                down=None,
                up=None,
            )
            for path, halved, doubled in inputs
        ],
    )


def texts(scene: Scene) -> list[str]:
    return [item.text for item in scene.items if isinstance(item, Text)]


def bars(scene: Scene, colour: str) -> list[Rect]:
    return [i for i in scene.items if isinstance(i, Rect) and i.colour == colour and i.tip]


def test_each_card_is_stacked_against_its_capacity() -> None:
    found = result("four-sessions-128k")
    assert found.evaluation is not None
    stacks = card_stacks(found.evaluation, found.instance)
    assert [(s.name, s.kind) for s in stacks.shown[:3]] == [
        ("hgx/0/0", "instance 0"),
        ("hgx/0/1", "instance 0"),
        ("hgx/0/2", "instance 1"),
    ]
    scene = memory_scene(stacks)
    assert texts(scene).count("52.09 GB of 80.00 GB, 27.91 GB free") == 8
    weights, kv, room = (bars(scene, name)[0] for name in ("weights", "kv", "workspace"))
    assert kv.width / weights.width == pytest.approx(17.18 / 32.76, rel=1e-3)
    assert (weights.hatch, kv.hatch, room.hatch) == ("", "/", ".")
    assert kv.x == pytest.approx(weights.x + weights.width)
    capacity = next(i for i in scene.items if isinstance(i, Line) and "capacity" in i.tip)
    assert (capacity.points[0][0] - weights.x) / weights.width == pytest.approx(
        80 / 32.76, rel=1e-3
    )


def test_equal_cards_share_a_bar_and_the_fullest_are_shown() -> None:
    found = result("deepseek-r1-32xh100")
    assert found.evaluation is not None
    stacks = card_stacks(found.evaluation, found.instance)
    assert sum(s.num_cards for s in stacks.shown) == 32
    assert len(stacks.shown) < 10
    many = many_sessions(8).evaluation
    assert many is not None
    stacks = card_stacks(many, "i")
    assert (len(stacks.shown), stacks.num_more) == (MAX_STACKS, 64 - MAX_STACKS)
    assert stacks.shown[0].name == "hgx/0/63"
    assert stacks.shown[0].verdict == "short by 17.91 GB"
    assert f"and {64 - MAX_STACKS} more" in texts(memory_scene(stacks))


def test_stages_of_a_cut_are_stacked() -> None:
    text = example_text("r1-bf16-64xa800-stages", ".best.json")
    found = SideResultDocument.model_validate_json(text).evaluation
    assert found is not None
    stacks = stage_stacks(found.stages, "r1")
    assert len(stacks.shown) == 8
    assert [s.total_bytes for s in stacks.shown] == [s.total_bytes for s in found.stages]


def test_a_late_session_is_hatched_and_called_late() -> None:
    timeline = timeline_of(result("four-sessions-fault"))
    assert timeline is not None
    assert [lane.name for lane in timeline.lanes] == [f"instance {n}" for n in range(4)]
    assert timeline.lanes[0].where == "TP2 (ring) on hgx/0/0-1"
    scene = timeline_scene(timeline)
    (late,) = bars(scene, "late")
    on_time = bars(scene, "on-time")
    assert late.hatch == "/"
    assert [bar.hatch for bar in on_time] == ["", "", ""]
    assert "↻ chat/0, late by 49.11 ms, restarted 1×" in texts(scene)
    assert {"late", "on time", "deadline", "↻ started over after a fault"} <= set(texts(scene))
    assert "deadline 130.0 ms" in texts(scene)
    line = next(i for i in scene.items if isinstance(i, Line) and i.tip == "deadline 130.0 ms")
    assert line.dash
    assert on_time[0].x + on_time[0].width < line.points[0][0] < late.x + late.width
    assert (line.points[0][0] - late.x) / late.width == pytest.approx(130 / 179.11, rel=1e-3)


def test_what_does_not_occur_is_not_in_the_legend() -> None:
    timeline = timeline_of(result("deepseek-r1-32xh100"))
    assert timeline is not None
    shown = texts(timeline_scene(timeline))
    assert not {"late", "deadline", "↻ started over after a fault"} & set(shown)
    assert timeline_of(result("infeasible-deadline")) is None


def test_sessions_at_a_time_have_lanes_and_too_many_are_counted() -> None:
    timeline = timeline_of(many_sessions(16, lanes=2))
    assert timeline is not None
    assert [lane.name for lane in timeline.lanes[:2]] == [
        "instance 0, lane 0",
        "instance 0, lane 1",
    ]
    timeline = timeline_of(many_sessions(1184, lanes=20, late=0))
    assert timeline is not None
    assert (len(timeline.lanes), timeline.num_more) == (MAX_LANES, 4 * 20 - MAX_LANES)
    assert f"and {4 * 20 - MAX_LANES} more rows" in " ".join(texts(timeline_scene(timeline)))


def test_rows_with_late_sessions_are_shown_first() -> None:
    document = many_sessions(1184, lanes=20)
    assert document.evaluation is not None
    sessions = list(document.evaluation.sessions)
    sessions[-1] = sessions[-1].model_copy(update={"on_time": False, "instance": 3})
    evaluation = document.evaluation.model_copy(update={"sessions": sessions})
    timeline = timeline_of(document.model_copy(update={"evaluation": evaluation}))
    assert timeline is not None
    assert any(bar.is_late for lane in timeline.lanes for bar in lane.bars)
    assert timeline.lanes[-1].name.startswith("instance 3")


def test_a_deadline_far_away_is_named_and_squeezes_nothing() -> None:
    document = many_sessions(8)
    assert document.evaluation is not None
    sessions = [s.model_copy(update={"deadline_s": 600.0}) for s in document.evaluation.sessions]
    evaluation = document.evaluation.model_copy(update={"sessions": sessions})
    timeline = timeline_of(document.model_copy(update={"evaluation": evaluation}))
    assert timeline is not None
    scene = timeline_scene(timeline)
    assert "deadline 600.0 s is beyond the right edge" in texts(scene)
    assert bars(scene, "on-time")[0].width > 300


def test_bars_of_a_sensitivity_study_are_about_zero() -> None:
    document = sensitivity(
        ("a", 0.1, -0.05), ("b", None, -0.2), ("still", 0.0, 0.0), ("unknown", None, None)
    )
    tornado = tornado_of(document)
    assert tornado is not None
    assert [swing.path for swing in tornado.swings] == ["b", "a"]
    assert tornado.num_without_effect == 2
    scene = tornado_scene(tornado)
    (halved,), doubled = bars(scene, "halved"), bars(scene, "doubled")
    zero = halved.x
    assert [bar.x + bar.width for bar in doubled] == pytest.approx([zero, zero])
    assert doubled[0].width / halved.width == pytest.approx(2)
    assert "halved: not possible with this plan" in texts(scene)
    assert "b = 3,350 GB/s" in texts(scene)
    assert tornado_of(sensitivity(("still", 0.0, None))) is None
    many = tornado_of(sensitivity(*[(f"x{n}", 0.1, 0.2) for n in range(MAX_INPUTS + 3)]))
    assert many is not None
    assert many.num_more == 3


def test_nothing_is_drawn_outside_of_the_canvas() -> None:
    found = [result(name) for name in ("four-sessions-fault", "deepseek-r1-32xh100")]
    scenes = [timeline_scene(t) for t in map(timeline_of, [*found, many_sessions(1184)]) if t]
    scenes += [memory_scene(card_stacks(r.evaluation, "i")) for r in found if r.evaluation]
    for scene in scenes:
        for item in scene.items:
            if isinstance(item, Rect):
                assert item.x >= 0
                assert item.x + item.width <= scene.width
                assert item.y + item.height <= scene.height
            if isinstance(item, Text):
                width = text_width(item.text, item.size)
                left = item.x - {"start": 0, "middle": width / 2, "end": width}[item.anchor]
                assert left >= 0, item
                assert left + width <= scene.width, item


def filled() -> ReportInputs:
    inputs = ReportInputs()
    inputs.add("r.json", result("four-sessions-fault"))
    inputs.add("s.json", sensitivity(("a.b_c", 0.1, -0.05)))
    for deadline in (0.1, 0.2):
        row = SweepPoint(
            instance="i $x$ 号",
            swept={"deadline_s": deadline},
            termination="optimal",
            objective="energy",
            unit="J",
            value=1200.0 / deadline,
        )
        inputs.add("w.jsonl", row)
    return inputs


@pytest.mark.parametrize("name", ["curves", "memory", "timeline", "sensitivity"])
def test_a_chart_is_the_same_bytes_again(name: str) -> None:
    svg, png = (chart(filled(), name, kind) for kind in ("svg", "png"))
    assert svg == chart(filled(), name, "svg")
    assert png == chart(filled(), name, "png")
    assert png.startswith(b"\x89PNG")
    assert svg.startswith(b"<?xml")
    assert b"<dc:date>" not in svg
    assert b"Software" not in png
    assert b"Date" not in png


def test_an_svg_says_what_the_page_says() -> None:
    svg = chart(filled(), "timeline", "svg").decode()
    assert "chat/0, late by 49.11 ms, restarted 1×" in svg  # as a comment beside its outlines
    assert "deadline 130.0 ms" in svg
    assert "#e69f00" in svg
    assert "<pattern" in svg


def test_the_first_chart_there_is_is_taken() -> None:
    inputs = filled()
    assert chart(inputs) == chart(inputs, "curves")
    inputs.rows.clear()
    assert chart(inputs) == chart(inputs, "timeline")
    inputs.results.clear()
    assert chart(inputs) == chart(inputs, "sensitivity")
    with pytest.raises(InputError, match="nothing for memory; they hold sensitivity"):
        chart(inputs, "memory")
    inputs.sensitivities.clear()
    inputs.add("r.json", result("infeasible-deadline"))
    with pytest.raises(InputError, match="nothing here can be drawn"):
        chart(inputs)
    with pytest.raises(InputError, match="hold no chart at all"):
        chart(inputs, "timeline")
    with pytest.raises(InputError, match="must be svg or png"):
        chart(inputs, "timeline", "pdf")
    with pytest.raises(InputError, match="must be one of curves, memory"):
        chart(inputs, "pie")


def test_charts_without_matplotlib_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"install supernode-planner\[report\]"):
        chart(filled(), "timeline", "png")
