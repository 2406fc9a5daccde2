"""Tables of the terminal: a title, a column of names, columns of numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table

#: Rows of a table before it says how many more there are.
MAX_ROWS = 40


def titled_table(
    title: str, columns: Sequence[str], texts: Collection[str] = (), *, has_names: bool = True
) -> Table:
    """Return a table without lines: columns of numbers, but for `texts` and a first one of names.

    Without names the first column has numbers as well.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for place, name in enumerate(columns):
        is_number = (place > 0 or not has_names) and name not in texts
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def print_rows(
    console: Console, table: Table, rows: Iterable[Sequence[str]], more: str = "… and {:,} more"
) -> None:
    """Print a table with the first of many rows, and how many more there are."""
    listed = list(rows)
    for row in listed[:MAX_ROWS]:
        table.add_row(*row)
    console.print(table)
    if len(listed) > MAX_ROWS:
        console.print(more.format(len(listed) - MAX_ROWS))


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table of names and numbers, nothing without rows."""
    listed = list(rows)
    if listed:
        print_rows(console, titled_table(title, columns), listed)
