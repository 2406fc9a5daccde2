"""A report as sections of paragraphs, facts, charts and tables, before it is a page or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from optimizer.conflicts.document import ConflictDocument
from optimizer.reports.capacity_tables import capacity_tables, not_used_table
from optimizer.reports.curve_scene import curve_scene
from optimizer.reports.curves import CurveChart, curve_charts
from optimizer.reports.inputs import ReportInputs
from optimizer.reports.memory import card_stacks, memory_scene, stage_stacks
from optimizer.reports.rack_scene import rack_scene
from optimizer.reports.result_tables import (
    Facts,
    candidate_tables,
    key_figures,
    memory_table,
    overview_table,
    proof_facts,
    session_table,
    threshold_table,
    violation_table,
)
from optimizer.reports.scene import Scene
from optimizer.reports.side_tables import side_tables, stage_table
from optimizer.reports.study_tables import (
    alternatives_table,
    conflict_tables,
    curve_table,
    sensitivity_tables,
)
from optimizer.reports.tables import Table
from optimizer.reports.timeline import timeline_of, timeline_scene
from optimizer.reports.tornado import tornado_of, tornado_scene
from optimizer.result import AlternativesDocument, ResultDocument
from optimizer.sensitivities.document import SensitivityDocument
from optimizer.side.capacity_accounts import CapacityAccountDocument
from optimizer.side.result import SideResultDocument
from optimizer.words import (
    ENDINGS,
    ending,
    name_text,
    number,
    objective_value,
    plural,
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or a few; the lead is what the section says in one line."""

    text: str
    is_lead: bool = False


@dataclass(frozen=True, slots=True)
class FactList:
    """Names with values: as large figures, or as a plain list under a title."""

    facts: Facts
    title: str = ""

    @property
    def is_large(self) -> bool:
        """Whether these are the figures to be seen first."""
        return not self.title


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart; `kind` is what it is asked for by, such as curves, memory or racks."""

    kind: str
    scene: Scene
    caption: str = ""


Item = Paragraph | FactList | Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    """One result, the curves of all sweeps with the same axes, or one study."""

    title: str
    kind: str
    outcome: str = ""
    items: list[Item] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """All sections, under one title."""

    title: str
    sources: tuple[str, ...]
    sections: tuple[Section, ...]


def report_of(inputs: ReportInputs) -> Report:
    """Return the sections of a report: results, curves, then studies, in the order of the files."""
    sections = []
    results = [item.document for item in inputs.results]
    if len(results) > 1:
        sections.append(Section("Overview", "overview", items=[overview_table(results)]))
    sections += [_result_section(result) for result in results]
    sections += [_side_section(item.document) for item in inputs.side_results]
    sections += [_curve_section(chart) for chart in curve_charts(inputs.rows)]
    sections += [_sensitivity_section(item.document) for item in inputs.sensitivities]
    sections += [_alternatives_section(item.document) for item in inputs.alternatives]
    sections += [_conflict_section(item.document) for item in inputs.conflicts]
    return Report(_title(inputs), tuple(inputs.sources), tuple(sections))


def _title(inputs: ReportInputs) -> str:
    """Return the names of all instances, at most three."""
    documents: list[Sequence[object]] = [
        [item.document.instance for item in items]
        for items in (
            inputs.results,
            inputs.side_results,
            inputs.rows,
            inputs.sensitivities,
            inputs.alternatives,
            inputs.conflicts,
        )
    ]
    names = list(dict.fromkeys(str(name) for found in documents for name in found))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _result_section(result: ResultDocument) -> Section:
    items: list[Item] = []
    if result.plan is not None:
        items.append(Paragraph(result.plan.sentence, is_lead=True))
    elif result.reason:
        items.append(Paragraph(f"No plan: {result.reason}.", is_lead=True))
    figures = key_figures(result)
    if figures:
        items.append(FactList(figures))
    found = result.evaluation
    stacks = card_stacks(found, result.instance) if found is not None and found.cards else None
    if stacks is not None and found is not None:
        kv = f"KV cache per token: {found.kv_bytes_per_token:,} B."
        items += [Figure("memory", memory_scene(stacks), kv), memory_table(stacks)]
    timeline = timeline_of(result)
    if timeline is not None:
        items.append(Figure("timeline", timeline_scene(timeline)))
    violations = violation_table(found.violations) if found is not None else None
    tables = [session_table(result), violations, *candidate_tables(result)]
    near = result.near_optimal
    if near is not None and near.alternatives:
        tables.append(alternatives_table(near))
    tables.append(threshold_table(result))
    items += [table for table in tables if table is not None]
    items.append(FactList(proof_facts(result), "Proof"))
    return Section(result.instance, "result", ending(result), items)


def _side_section(result: SideResultDocument) -> Section:
    items: list[Item] = []
    if result.plan is not None:
        items.append(Paragraph(result.plan.sentence, is_lead=True))
        objectives = (result.objective, *result.then)
        facts = tuple((name_text(o.name), objective_value(o)) for o in objectives)
        items.append(FactList(facts))
    elif result.reason:
        items.append(Paragraph(f"No plan: {result.reason}.", is_lead=True))
    found = result.evaluation
    if found is not None and found.stages:
        items.append(Figure("memory", memory_scene(stage_stacks(found.stages, result.instance))))
        items.append(stage_table(found.stages))
    if found is not None and found.balance is not None and found.balance_before is not None:
        text = f"The busiest group has {number(found.balance)} times the average load; "
        text += f"in index order it had {number(found.balance_before)} times."
        items.append(Paragraph(text))
    if found is not None:
        items += side_tables(found)
    if found is not None and found.capacity is not None:
        items += _capacity_items(found.capacity, result.instance)
    violations = violation_table(found.violations) if found is not None else None
    if violations is not None:
        items.append(violations)
    if result.not_used is not None and result.not_used.examples:
        items.append(not_used_table(result.not_used))
    items.append(FactList(proof_facts(result), "Proof"))
    return Section(result.instance, "result", ending(result), items)


def _capacity_items(account: CapacityAccountDocument, instance: str) -> list[Item]:
    """Return the picture of a fleet, and the tables that hold its numbers."""
    scene = rack_scene(account, instance)
    caption = "Equal racks are drawn once; heights are to scale of rack units."
    in_racks = any(rack.rack is not None for rack in account.placement)
    figure = [] if scene is None else [Figure("racks", scene, caption if in_racks else "")]
    return [*figure, *capacity_tables(account)]


def _curve_section(chart: CurveChart) -> Section:
    items: list[Item] = []
    if chart.has_values:
        caption = "Lines are named at their right end."
        if len(chart.instances) > 1:
            caption += " Equal colours are equal settings, equal line styles the same instance."
        if chart.is_exact:
            caption += " Each step holds from its filled mark to just before the hollow one."
        items.append(Figure("curves", curve_scene(chart), caption))
    else:
        items.append(Paragraph("There is no plan at any point; the table says why.", is_lead=True))
    items.append(curve_table(chart))
    return Section(chart.title, "curves", items=items)


def _sensitivity_section(document: SensitivityDocument) -> Section:
    value = f"{name_text(document.objective)} {number(document.value, document.unit)}"
    items: list[Item] = [Paragraph(f"{document.plan}: {value}", is_lead=True)]
    if document.most_influential:
        text = f"The input that moves it most is {document.most_influential}."
        items.append(Paragraph(text))
    tornado = tornado_of(document)
    if tornado is not None:
        items.append(Figure("sensitivity", tornado_scene(tornado)))
    else:
        items.append(Paragraph("Halving or doubling any input moves the objective by nothing."))
    items += sensitivity_tables(document)
    items.append(FactList((("instance SHA-256", document.instance_sha256),), "Made from"))
    return Section(f"Sensitivity of {document.instance}", "sensitivity", items=items)


def _alternatives_section(document: AlternativesDocument) -> Section:
    items: list[Item] = []
    if document.reason:
        items.append(Paragraph(document.reason))
    if document.alternatives:
        count = plural(len(document.alternatives), "plan")
        items.append(Paragraph(f"{count} within the margin of the best.", is_lead=True))
        whole = "No other deployment is within the margin: proven."
        part = "There may be more within the margin: the search was not complete."
        items.append(Paragraph(whole if document.is_complete else part))
        items.append(alternatives_table(document))
    items.append(FactList((("instance SHA-256", document.instance_sha256),), "Made from"))
    title = f"Near-optimal plans of {document.instance}"
    return Section(title, "alternatives", ENDINGS[document.termination], items)


def _conflict_section(document: ConflictDocument) -> Section:
    items: list[Item] = []
    if document.reason:
        items.append(Paragraph(document.reason, is_lead=True))
    items += conflict_tables(document)
    items.append(FactList((("instance SHA-256", document.instance_sha256),), "Made from"))
    title = f"Why nothing fits {document.instance}"
    return Section(title, "conflict", ENDINGS[document.termination], items)
