"""Readable report of why an instance has no plan, and what would change that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.render import report_console
from optimizer.conflicts.words import amount
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.words import number

if TYPE_CHECKING:
    from instances.instance import Instance
    from optimizer.conflicts.document import ConflictDocument, RelaxationDocument


def render_conflict(problem: Instance, document: ConflictDocument) -> None:
    """Print what conflicts, each change of one input that would do, and what would not."""
    console = report_console()
    is_proven = document.termination == "infeasible"
    verdict = "[red]infeasible[/red], proven" if is_proven else document.termination
    console.print(f"[bold]{escape(problem.name)}[/bold]: {verdict}")
    console.print(f"reason     {escape(document.reason)}")
    if not is_proven:
        return
    _print_constraints(console, document)
    _print_relaxations(console, problem, document)
    if document.without_help:
        console.print("\n[bold]No help alone[/bold]")
        for line in document.without_help:
            console.print(f"  {escape(line)}")


def _print_constraints(console: Console, document: ConflictDocument) -> None:
    constraints = document.constraints
    if not constraints:
        return
    if len(constraints) == 1:
        title = "Conflict: this constraint cannot hold, whatever else is dropped"
    else:
        title = f"Conflict: these {len(constraints)} constraints cannot hold together"
    if not document.is_smallest:
        title += " (a smaller set may do: there was no time to tell)"
    console.print(f"\n[bold]{title}[/bold]")
    for constraint in constraints:
        console.print(f"  {escape(constraint.name)}: {escape(constraint.description)}")


def _print_relaxations(console: Console, problem: Instance, document: ConflictDocument) -> None:
    """Print a table of what would do alone: changed inputs, then what is only chosen."""
    if not document.relaxations and not document.choices:
        console.print("\n[bold]No change of one input alone would do[/bold]")
        return
    name = problem.objective.names[0]
    unit = OBJECTIVE_UNITS[name]
    title = "Any one of these would do"
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for column in ("change", "to", "plan", name):
        table.add_column(column, justify="left" if column in ("change", "plan") else "right")
    for item in document.relaxations:
        value = number(item.objective_value, unit)
        table.add_row(*map(escape, (_change(item), _to(item), item.plan, value)))
    for choice in document.choices:
        value = number(choice.objective_value, unit)
        table.add_row(*map(escape, (f"without {choice.name}", "", choice.plan, value)))
    console.print()
    console.print(table)


def _change(item: RelaxationDocument) -> str:
    sign = "+" if item.change > 0 else "−"
    return f"{item.label or item.path} {sign}{amount(abs(item.change), item.unit)}"


def _to(item: RelaxationDocument) -> str:
    """Return the new value, and which way it may be better where it is not exact."""
    better = "" if item.exact else " or less" if item.change > 0 else " or more"
    return amount(item.value, item.unit) + better
