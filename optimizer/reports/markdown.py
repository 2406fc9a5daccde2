"""A report as Markdown: what the page says, with tables in place of charts."""

from __future__ import annotations

import re

from optimizer.reports.content import FactList, Figure, Item, Paragraph, report_of
from optimizer.reports.inputs import ReportInputs
from optimizer.reports.tables import Cell, Table

#: Characters that mean something in a line of Markdown.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&$])")


def markdown_report(inputs: ReportInputs) -> str:
    """Return a report in GitHub's Markdown."""
    report = report_of(inputs)
    blocks = [f"# {_escaped(report.title)}"]
    for section in report.sections:
        blocks.append(f"## {_escaped(section.title)}")
        if section.outcome:
            blocks.append(f"**{_escaped(section.outcome)}**")
        for item in section.items:
            blocks += _blocks(item)
    blocks.append(f"Made by Supernode Planner from {_escaped(', '.join(report.sources))}.")
    return "\n\n".join(blocks) + "\n"


def _blocks(item: Item) -> list[str]:
    if isinstance(item, Paragraph):
        text = _escaped(item.text)
        return [f"**{text}**" if item.is_lead else text]
    if isinstance(item, FactList):
        lines = [f"- {_escaped(name)}: {_escaped(value)}" for name, value in item.facts]
        return ([f"### {_escaped(item.title)}"] if item.title else []) + ["\n".join(lines)]
    if isinstance(item, Figure):
        return []  # the tables hold its numbers
    return _table(item)


def _table(table: Table) -> list[str]:
    blocks = [f"### {_escaped(table.title)}"]
    head = [_escaped(column.name) for column in table.columns]
    rule = ["---:" if column.is_number else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    blocks.append("\n".join(lines))
    blocks += [_escaped(text) for text in (table.more_text, table.note) if text]
    return blocks


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.is_strong and text else text


def _escaped(text: str) -> str:
    """Return text on one line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
