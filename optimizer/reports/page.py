"""A report as one page of HTML that needs nothing else: no network, no server, no scripts to read.

The script of the page adds sorting, filtering and hover texts to what stands there without it.
"""

from __future__ import annotations

import json
import math
import re
from html import escape
from importlib import resources
from string import Template
from typing import Any

from optimizer.reports.content import FactList, Figure, Item, Paragraph, Section, report_of
from optimizer.reports.inputs import ReportInputs
from optimizer.reports.palette import palette_css
from optimizer.reports.svg import svg_text
from optimizer.reports.tables import Cell, Column, Key, Table

#: A cell with more letters than this may break over lines.
_LONG_CELL = 32
_LONG_HEADING = 14
_LARGEST = 1.7976931348623157e308

_GOOD, _BAD = ("Optimal",), ("Proven infeasible", "No plan")


def html_page(inputs: ReportInputs) -> str:
    """Return a report as one self-contained page."""
    report = report_of(inputs)
    page = _Page()
    sections = [page.section(section) for section in report.sections]
    data = {"sources": report.sources, "tables": page.tables}
    style = palette_css() + _asset("page.css")
    return Template(_asset("page.html")).substitute(
        title=_text(f"{report.title} – Supernode Planner"),
        heading=_text(report.title),
        style=style,
        contents=_contents(report.sections),
        sections="".join(sections),
        sources=_text(", ".join(report.sources)),
        # "<" is written as an escape, so that no text can end the element
        data=json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (resources.files("optimizer.reports") / name).read_text("utf-8")


def _text(text: str) -> str:
    """Return text as HTML; control characters, which HTML has no place for, are left out."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text), quote=True)


def _contents(sections: tuple[Section, ...]) -> str:
    if len(sections) < 2:
        return ""
    links = "".join(
        f'<li><a href="#s{n}">{_text(section.title)}</a></li>'
        for n, section in enumerate(sections, start=1)
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


class _Page:
    """Writes sections; counts them, and keeps what tables are sorted by."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self._num_sections = 0
        self._num_blocks = 0

    def section(self, section: Section) -> str:
        """Return a section as HTML."""
        self._num_sections += 1
        name = f"s{self._num_sections}"
        outcome = ""
        if section.outcome:
            is_good, is_bad = section.outcome.startswith(_GOOD), section.outcome.startswith(_BAD)
            kind = " good" if is_good else " bad" if is_bad else ""
            outcome = f'<span class="outcome{kind}">{_text(section.outcome)}</span>'
        title = f'<h2 id="{name}-title">{_text(section.title)}</h2>'
        body = "".join(self._item(item) for item in section.items)
        return (
            f'<section id="{name}" class="{section.kind}" aria-labelledby="{name}-title">\n'
            f'<div class="head">{title}{outcome}</div>\n{body}</section>\n'
        )

    def _item(self, item: Item) -> str:
        if isinstance(item, Paragraph):
            lead = ' class="lead"' if item.is_lead else ""
            return f"<p{lead}>{_text(item.text)}</p>\n"
        if isinstance(item, FactList):
            return _facts(item)
        self._num_blocks += 1
        if isinstance(item, Figure):
            return _figure(item, f"f{self._num_blocks}")
        return self._table(item, f"t{self._num_blocks}-{item.name}")

    def _table(self, table: Table, name: str) -> str:
        self.tables[name] = {
            "title": table.title,
            "columns": [column.name for column in table.columns],
            "keys": [[_key(cell.key) for cell in row] for row in table.rows],
        }
        head = "".join(_heading(column) for column in table.columns)
        body = "\n".join(_row(table.columns, row) for row in table.rows)
        notes = "".join(
            f'<p class="note">{_text(note)}</p>' for note in (table.more_text, table.note) if note
        )
        return (
            f'<div class="block table" id="{name}">\n'
            f'<div class="bar"><h3 id="{name}-title">{_text(table.title)}</h3></div>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">'
            f'<table aria-labelledby="{name}-title">\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>{notes}\n</div>\n"
        )


def _key(key: Key) -> Key:
    """Return what JSON can hold: it knows no infinity."""
    return math.copysign(_LARGEST, key) if isinstance(key, float) and math.isinf(key) else key


def _facts(item: FactList) -> str:
    if item.is_large:
        pairs = "".join(
            f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
            for name, value in item.facts
        )
        return f'<dl class="figures">{pairs}</dl>\n'
    pairs = "".join(f"<dt>{_text(n)}</dt><dd>{_text(value)}</dd>" for n, value in item.facts)
    return f'<div class="block"><h3>{_text(item.title)}</h3><dl class="facts">{pairs}</dl></div>\n'


def _figure(item: Figure, name: str) -> str:
    title = item.scene.title.partition(":")[0] if item.kind != "curves" else "Curves"
    caption = f"<figcaption>{_text(item.caption)}</figcaption>" if item.caption else ""
    return (
        f'<figure class="{item.kind}">\n<h3>{_text(title)}</h3>\n'
        f'<div class="chart" tabindex="0" role="region" aria-label="{_text(title)}">'
        f"{svg_text(item.scene, name)}</div>{caption}\n</figure>\n"
    )


def _heading(column: Column) -> str:
    kinds = ["n"] * column.is_number + ["wide"] * (len(column.name) > _LONG_HEADING)
    side = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<th scope="col"{side}>{_text(column.name)}</th>'


def _row(columns: tuple[Column, ...], row: tuple[Cell, ...]) -> str:
    strong = ' class="strong"' if any(cell.is_strong for cell in row) else ""
    cells = []
    for column, cell in zip(columns, row, strict=True):
        kind = "n" if column.is_number else "long" if len(cell.text) > _LONG_CELL else ""
        side = f' class="{kind}"' if kind else ""
        text = _text(cell.text)
        if kind == "long":  # paths may break after their dots
            text = re.sub(r"(?<=[A-Za-z\]])([._])(?=[A-Za-z])", r"\1<wbr>", text)
        cells.append(f"<td{side}>{text}</td>")
    return f"<tr{strong}>{''.join(cells)}</tr>"
