"""Tables of a report: cells with what they are sorted by, for pages and Markdown alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from instances.quantity import human_bytes
from optimizer.words import number, plural

#: Rows that a table shows at most; the files hold the others.
MAX_ROWS = 1000
#: Rows of tables that only account for a plan.
MAX_ACCOUNT_ROWS = 40

Key = float | str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, and the number or text it is sorted by (None comes last)."""

    text: str
    key: Key
    is_strong: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading, and whether its cells are numbers, which stand to the right."""

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its heading; `num_more` rows are left out, and `note` says what else to know."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_more: int = 0
    note: str = ""

    @property
    def more_text(self) -> str:
        """What the table leaves out, in words; empty when nothing."""
        return f"and {plural(self.num_more, 'more row')}" if self.num_more else ""


def make_table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    note: str = "",
    most: int = MAX_ROWS,
) -> Table:
    """Return a table of at most `most` rows; a heading that begins with ">" is of numbers.

    Columns in which every cell is a dash or empty are left out.
    """
    kept = [tuple(row) for row in rows]
    named = [Column(c.removeprefix(">"), c.startswith(">")) for c in columns]
    used = [n for n in range(len(named)) if any(row[n].text not in ("", "—") for row in kept)]
    return Table(
        name,
        title,
        tuple(named[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in kept[:most]),
        max(0, len(kept) - most),
        note,
    )


def text_cell(text: str | None, *, is_strong: bool = False) -> Cell:
    """Return a cell of text; none is a dash."""
    return Cell("—", None) if not text else Cell(text, text, is_strong)


def number_cell(value: float | None, unit: str = "") -> Cell:
    """Return a cell of a number with its unit; none is a dash."""
    return Cell(number(value, unit), value)


def count_cell(value: int | None) -> Cell:
    """Return a cell of a count; none is a dash."""
    return Cell("—", None) if value is None else Cell(f"{value:,}", value)


def bytes_cell(value: int | None) -> Cell:
    """Return a cell of bytes; none is a dash."""
    return Cell("—", None) if value is None else Cell(human_bytes(value), value)
