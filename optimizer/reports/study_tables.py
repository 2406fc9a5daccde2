"""Tables of sweeps, studies and the smaller decisions."""

from __future__ import annotations

from optimizer.conflicts.document import ConflictDocument
from optimizer.reports.curves import CurveChart
from optimizer.reports.tables import (
    Cell,
    Table,
    make_table,
    number_cell,
    text_cell,
)
from optimizer.result import AlternativesDocument
from optimizer.sensitivities.document import InputSensitivity, InputThreshold, SensitivityDocument
from optimizer.sweeps.rows import SweepPoint
from optimizer.words import change, name_text, number, percent


def curve_table(chart: CurveChart) -> Table:
    """Return the pieces or the points of curves."""
    rows = [
        (
            text_cell(series.label),
            text_cell(series.instance),
            number_cell(point.x, chart.x_unit),
            Cell("no limit", float("inf")) if point.to_x is None else number_cell(point.to_x, "s"),
            *_outcome_cells(point.row),
        )
        for series in chart.series
        for point in series.points
    ]
    ends = [f">{name_text(chart.x_name)} from", ">to"]
    columns = ["curve", "instance", *ends, f">{name_text(chart.y_name)}", ">on time"]
    columns += ["outcome", "plan or reason"]
    if not chart.is_exact:
        rows = [(*row[:3], *row[4:]) for row in rows]
        columns = [columns[0], columns[1], f">{name_text(chart.x_name)}", *columns[4:]]
    title = "Pieces of the curves" if chart.is_exact else "Points of the curves"
    return make_table("pieces", title, columns, rows)


def _outcome_cells(row: SweepPoint) -> tuple[Cell, ...]:
    on_time = row.on_time
    text = "" if on_time is None else f"{on_time:,}"
    text += f" of {row.sessions:,}" if text and row.sessions is not None else ""
    return (
        number_cell(row.value, row.unit),
        Cell(text or "—", on_time),
        text_cell(row.termination.replace("_", " ")),
        text_cell(row.plan or row.reason),
    )


def sensitivity_tables(document: SensitivityDocument) -> list[Table]:
    """Return how far each input may move, the nearest threshold first, and what moving it does."""
    moves = []
    for item in document.inputs:
        for direction, found in (("down", item.down), ("up", item.up)):
            if found is not None:
                moves.append((_nearness(item, found), _threshold_row(item, direction, found)))
    moves.sort(key=lambda move: move[0])
    tables = []
    if moves:
        columns = ["input", "moved", ">up to", "then", ">change", ">now", "how sure"]
        title = "How far each input may move before the plan changes"
        tables.append(make_table("input-thresholds", title, columns, [row for _, row in moves]))
    inputs = sorted(document.inputs, key=lambda item: -item.influence)
    rows = [
        (
            text_cell(item.path),
            number_cell(item.value, item.unit),
            Cell(change(item.halved, document.unit), item.halved),
            Cell(change(item.doubled, document.unit), item.doubled),
            Cell(change(item.step_halved_s, "s"), item.step_halved_s),
            Cell(change(item.step_doubled_s, "s"), item.step_doubled_s),
        )
        for item in inputs
    ]
    columns = ["input", ">now", ">halved", ">doubled", ">a step, halved", ">a step, doubled"]
    title = f"What each input moves: changes of {name_text(document.objective)}"
    return [*tables, make_table("influence", title, columns, rows)]


def _nearness(item: InputSensitivity, found: InputThreshold) -> tuple[bool, float]:
    relative = abs(found.change / item.value) if item.value else abs(found.change)
    return found.status == "unchanged", relative


def _threshold_row(
    item: InputSensitivity, direction: str, found: InputThreshold
) -> tuple[Cell, ...]:
    if found.status == "unchanged":
        then, sure = "the plan stays the best", "furthest value looked at"
    else:
        then = found.plan or found.reason or "nothing fits"
        sure = "exact" if found.exact else f"within {number(found.width, item.unit)} beyond it"
        sure += "" if found.is_attained else ", the other plan already at it"
        sure += "" if found.is_first else ", perhaps not the first"
    sure += "" if found.verified else ", not solved again"
    relative = f" ({percent(abs(found.change / item.value))})" if item.value else ""
    return (
        text_cell(item.path),
        text_cell(direction),
        number_cell(found.value, item.unit),
        text_cell(then),
        Cell(change(found.change, item.unit) + relative, found.change),
        number_cell(item.value, item.unit),
        text_cell(sure),
    )


def alternatives_table(document: AlternativesDocument) -> Table:
    """Return every plan within the margin, best first."""
    rows = []
    for n, item in enumerate(document.alternatives):
        spread = "—"
        if item.low is not None and item.high is not None:
            spread = f"{number(item.low)} – {number(item.high, document.unit)}"
        same = "cannot be told from the best" if item.inside_spread and n else ""
        rows.append(
            (
                text_cell(item.sentence, is_strong=n == 0),
                number_cell(item.value, document.unit),
                Cell("best" if item.over == 0 else f"+{percent(item.over)}", item.over),
                Cell(spread, item.low),
                text_cell(same),
                text_cell(item.proof),
            )
        )
    columns = ["plan", f">{name_text(document.objective)}", ">over the best", ">measured spread"]
    title = f"Plans within {percent(document.within)} of the best"
    return make_table("alternatives", title, [*columns, "by measurement", "proof"], rows)


def conflict_tables(document: ConflictDocument) -> list[Table]:
    """Return what conflicts, and the ways out, the smallest change first."""
    constraints = [
        (text_cell(c.name, is_strong=True), text_cell(c.description)) for c in document.constraints
    ]
    fewest = "The fewest constraints" if document.is_smallest else "Constraints"
    tables = []
    if constraints:
        title = f"{fewest} that cannot hold together"
        tables.append(make_table("constraints", title, ["constraint", "what it asks"], constraints))
    if document.relaxations:
        rows = [
            (
                text_cell(r.label or r.path),
                Cell(change(r.change, r.unit), r.change),
                number_cell(r.value, r.unit),
                text_cell(r.message),
                text_cell(r.plan),
                number_cell(r.objective_value),
                text_cell("exact" if r.exact else f"to within {number(r.width, r.unit)}"),
            )
            for r in document.relaxations
        ]
        columns = ["input", ">change", ">then", "what it does", "plan", ">objective", "how sure"]
        tables.append(make_table("relaxations", "Ways out, one input each", columns, rows))
    if document.without_help:
        parts = [text.partition(": ") for text in document.without_help]
        kept = [(text_cell(name), text_cell(why or "—")) for name, _, why in parts]
        title = "What does not help alone"
        tables.append(make_table("without-help", title, ["input", "why not"], kept))
    if document.choices:
        choices = [
            (
                text_cell(c.name),
                text_cell(c.message),
                text_cell(c.plan),
                number_cell(c.objective_value),
            )
            for c in document.choices
        ]
        columns = ["choice", "what helps", "plan", ">objective"]
        tables.append(make_table("choices", "What need only be chosen otherwise", columns, choices))
    return tables
