"""Sessions on the serving instances that run them, from start to end, against their deadlines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optimizer.plan_document import read_plan
from optimizer.reports.axes import Scale, draw_x_axis
from optimizer.reports.scene import (
    SMALL_PX,
    Hatch,
    Item,
    Line,
    Rect,
    Scene,
    Text,
    legend,
    on_bar,
    shortened,
    text_width,
)
from optimizer.result import ResultDocument, SessionDocument
from optimizer.words import card_ranges, lateness, number, plural

#: Rows of a chart.
MAX_LANES = 40
#: Deadlines that have a line of their own; with more, each bar shows its own.
MAX_DEADLINE_LINES = 3

#: Stands before a session that a fault made start over.
RESTARTED = "↻"

_WIDTH, _RIGHT, _TOP, _ROW, _BAR = 980.0, 956.0, 66.0, 34.0, 24.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One session: where it runs, from when to when, and whether it is late."""

    session: str
    start_s: float
    finish_s: float
    deadline_s: float | None
    is_late: bool
    restarts: int
    outcome: str

    @property
    def texts(self) -> tuple[str, ...]:
        """What may stand on the bar, the longest first; late is said in words on every one."""
        mark = f"{RESTARTED} " if self.restarts else ""
        again = f", restarted {self.restarts}×" if self.restarts else ""
        if self.is_late:
            name = f"{mark}{self.session}"
            texts = (f"{name}, {self.outcome}{again}", f"{name}, {self.outcome}", f"{name}, late")
            return (*texts, f"{mark}late", "late")
        number_ = self.session.rpartition("/")[2]
        return f"{mark}{self.session}{again}", f"{mark}{self.session}", f"{mark}{number_}"

    @property
    def tip(self) -> str:
        """What a reader sees who points at the bar."""
        text = f"{self.session}: {number(self.start_s, 's')} to {number(self.finish_s, 's')}"
        if self.deadline_s is not None:
            text += f", deadline {number(self.deadline_s, 's')}"
        again = f", restarted {self.restarts}×" if self.restarts else ""
        return f"{text}, {self.outcome}{again}"


@dataclass(frozen=True, slots=True)
class Lane:
    """A row: one serving instance, or one of several sessions that it serves at a time."""

    name: str
    where: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All rows of a plan, at most `MAX_LANES`, and what is not among them."""

    title: str
    lanes: tuple[Lane, ...]
    num_more: int
    num_idle: int
    num_without_instance: int
    deadlines_s: tuple[float, ...]
    makespan_s: float


def timeline_of(result: ResultDocument) -> Timeline | None:
    """Return the timeline of a result's plan; None where no session runs."""
    if result.evaluation is None or result.plan is None:
        return None
    sessions = result.evaluation.sessions
    by_instance: dict[int, list[SessionDocument]] = {}
    for session in sessions:
        if session.instance is not None and session.finish_s is not None:
            by_instance.setdefault(session.instance, []).append(session)
    if not by_instance:
        return None
    serving = read_plan(result.model_dump(mode="json"), result.instance).instances
    lanes = []
    for number_, placed in sorted(by_instance.items()):
        where = ""
        if number_ < len(serving):
            item = serving[number_]
            cards = card_ranges([(f"{item.pool}/{c.server}", c.card) for c in item.cards], most=1)
            where = f"{item.footprint.label()} on {cards}"
        dealt = _lanes(placed)
        for n, bars in enumerate(dealt):
            name = f"instance {number_}" + (f", lane {n}" if len(dealt) > 1 else "")
            lanes.append(Lane(name, where, bars))
    shown = _most_telling(lanes)
    deadlines = {s.deadline_s for s in sessions if s.deadline_s is not None}
    return Timeline(
        title=f"Sessions on serving instances: {result.instance}",
        lanes=shown,
        num_more=len(lanes) - len(shown),
        num_idle=max(0, len(serving) - len(by_instance)),
        num_without_instance=sum(s.instance is None for s in sessions),
        deadlines_s=tuple(sorted(deadlines)),
        makespan_s=max(s.finish_s for s in sessions if s.finish_s is not None),
    )


def _bar(session: SessionDocument) -> Bar:
    outcome = lateness(session.finish_s, session.deadline_s, on_time=session.on_time)
    return Bar(
        session=session.session,
        start_s=session.start_s or 0.0,
        finish_s=session.finish_s or 0.0,
        deadline_s=session.deadline_s,
        is_late=not session.on_time,
        restarts=session.restarts,
        outcome=outcome,
    )


def _lanes(sessions: Iterable[SessionDocument]) -> list[tuple[Bar, ...]]:
    """Deal overlapping sessions to rows: each to the first row that is free when it starts."""
    lanes: list[list[Bar]] = []
    for bar in sorted(map(_bar, sessions), key=lambda b: (b.start_s, b.finish_s)):
        free = next((lane for lane in lanes if lane[-1].finish_s <= bar.start_s), None)
        if free is None:
            lanes.append([bar])
        else:
            free.append(bar)
    return [tuple(lane) for lane in lanes]


def _most_telling(lanes: list[Lane]) -> tuple[Lane, ...]:
    """Return the rows to show, in order: all if few, else those with late sessions first."""
    if len(lanes) <= MAX_LANES:
        return tuple(lanes)

    def is_dull(n: int) -> bool:
        return not any(bar.is_late or bar.restarts for bar in lanes[n].bars)

    kept = sorted(range(len(lanes)), key=lambda n: (is_dull(n), n))[:MAX_LANES]
    return tuple(lanes[n] for n in sorted(kept))


def timeline_scene(timeline: Timeline) -> Scene:
    """Return the rows as a chart, with dashed lines at the deadlines."""
    base = _TOP + len(timeline.lanes) * _ROW
    scene = Scene(_WIDTH, base + 50, timeline.title, _described(timeline))
    near = [d for d in timeline.deadlines_s if d <= 2.5 * timeline.makespan_s]
    end = max([timeline.makespan_s, *near]) * 1.06 or 1.0
    widest = max(text_width(lane.where, 11) for lane in timeline.lanes)
    scale = Scale(0.0, end, min(max(widest, 110.0), 260.0) + 24, _RIGHT)
    _legend(scene, timeline)
    note = _note(timeline)
    if note:
        scene.add(Text(_WIDTH - 24, 22, note, "end", SMALL_PX, "soft"))
    draw_x_axis(scene, scale, _TOP - 8, base, "time from the start of the plan", "s")
    for n, lane in enumerate(timeline.lanes):
        _draw_lane(scene, lane, scale, _TOP + n * _ROW)
    if len(timeline.deadlines_s) <= MAX_DEADLINE_LINES:
        for deadline in near:
            scene.add(*_deadline(scale.at(deadline), deadline, base))
    else:
        for n, lane in enumerate(timeline.lanes):
            for bar in lane.bars:
                if bar.deadline_s is not None and bar.deadline_s <= end:
                    x, top = scale.at(bar.deadline_s), _TOP + n * _ROW
                    scene.add(Line(((x, top - 3), (x, top + _BAR + 3)), "limit", 2.2, (6, 3)))
    return scene


def _legend(scene: Scene, timeline: Timeline) -> None:
    """Name what occurs: on time, late, deadlines, sessions that started over."""
    bars = [bar for lane in timeline.lanes for bar in lane.bars]
    entries: list[tuple[str, str, Hatch]] = [("on time", "on-time", "")]
    if any(bar.is_late for bar in bars):
        entries.append(("late", "late", "/"))
    scene.add(*legend(entries, 12, 22))
    x = 12.0 + sum(44 + text_width(name, SMALL_PX) for name, _, _ in entries)
    if timeline.deadlines_s:
        scene.add(Line(((x, 17), (x + 26, 17)), "limit", 2.2, (6, 3)))
        scene.add(Text(x + 32, 22, "deadline", size=SMALL_PX))
        x += 108
    if any(bar.restarts for bar in bars):
        scene.add(Text(x, 22, f"{RESTARTED} started over after a fault", size=SMALL_PX))


def _note(timeline: Timeline) -> str:
    """Return what the chart leaves out."""
    parts = []
    if timeline.num_more:
        parts.append(f"and {plural(timeline.num_more, 'more row')}")
    if timeline.num_idle:
        parts.append(f"{plural(timeline.num_idle, 'instance')} without sessions")
    if timeline.num_without_instance:
        parts.append(f"{plural(timeline.num_without_instance, 'session')} without an instance")
    far = [d for d in timeline.deadlines_s if d > 2.5 * timeline.makespan_s]
    if far:
        parts.append(f"deadline {number(far[0], 's')} is beyond the right edge")
    return "; ".join(parts)


def _deadline(x: float, deadline_s: float, base: float) -> list[Item]:
    text = f"deadline {number(deadline_s, 's')}"
    anchor_x = min(x, _WIDTH - 12 - text_width(text, SMALL_PX) / 2)
    return [
        Line(((x, _TOP - 12), (x, base)), "limit", 2.2, (6, 3), text),
        Text(anchor_x, _TOP - 16, text, "middle", SMALL_PX, halo=True),
    ]


def _draw_lane(scene: Scene, lane: Lane, scale: Scale, top: float) -> None:
    middle, edge = top + _BAR / 2, scale.start - 12
    scene.add(Text(edge, middle - 2, lane.name, "end", SMALL_PX))
    scene.add(Text(edge, middle + 12, shortened(lane.where, edge - 8, 11), "end", 11, "soft"))
    for n, bar in enumerate(lane.bars):
        left, right = scale.at(bar.start_s), scale.at(bar.finish_s)
        after = lane.bars[n + 1].start_s if n + 1 < len(lane.bars) else scale.high
        hatch: Hatch = "/" if bar.is_late else ""
        colour = "late" if bar.is_late else "on-time"
        width = max(right - left, 1.0)
        scene.add(Rect(left, top, width, _BAR, colour, hatch, "paper", bar.tip))
        text = next((t for t in bar.texts if _fits(t, right - left)), "")
        if text:
            scene.add(*on_bar(left + 8, middle, text, colour, hatch))
            continue
        beside = next((t for t in bar.texts if _fits(t, scale.at(after) - right)), "")
        if beside:
            scene.add(Text(right + 6, middle + 4, beside, size=SMALL_PX, halo=True))


def _fits(text: str, width: float) -> bool:
    return text_width(text, SMALL_PX) + 12 <= width


def _described(timeline: Timeline) -> str:
    """Return who is late in words, for those who do not see the bars."""
    bars = [bar for lane in timeline.lanes for bar in lane.bars]
    late = [f"{bar.session} {bar.outcome}" for bar in bars if bar.is_late]
    ends = f"The last session ends after {number(timeline.makespan_s, 's')}."
    return f"{ends} {'; '.join(late[:6]) or 'No session is late'}."
