"""`supernode grow`: which rack, server or kW to add next."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from cli.common import (
    EXIT_CODES,
    EXIT_INFEASIBLE,
    EXIT_SOLVED,
    ExactQuantity,
    show_and_leave,
    solver_of_each,
)

if TYPE_CHECKING:
    from optimizer.capacity.growth import GrowthRow
    from optimizer.side.result import SideResultDocument


@click.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.option(
    "--power",
    type=ExactQuantity("watts"),
    metavar="W",
    help="Watts to add to the budget, such as 10.2kW; default: what the least server draws.",
)
@solver_of_each
@click.option("--threads", type=click.IntRange(0, 1024), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the document alone.")
def grow(
    instance: str,
    power: Fraction | None,
    solver: str,
    time_limit: float,
    threads: int,
    as_json: bool,
) -> None:
    """Solve a capacity decision again with one more rack, server or step of power of each kind.

    Each answer is proven and verified; what changes no goal does not limit the fleet by itself.
    """
    from instances.io import load_instance
    from optimizer.capacity.growth import growth
    from optimizer.options import SolveOptions

    problem = load_instance(instance)
    options = SolveOptions(solver, time_limit, threads)
    step_w = None if power is None else int(power)
    base, rows = growth(problem, options, power_step_w=step_w)

    def show() -> None:
        if as_json:
            click.echo(json.dumps(_document(base, rows), indent=2))
        else:
            _render(problem.name, base, rows)

    show_and_leave(EXIT_SOLVED if base.plan is not None else EXIT_INFEASIBLE, show)


def _document(base: SideResultDocument, rows: tuple[GrowthRow, ...]) -> dict[str, Any]:
    goals = [goal.name for goal in (base.objective, *base.then)]

    def exact(values: tuple[Fraction | None, ...]) -> dict[str, str | None]:
        pairs = zip(goals, values, strict=True)
        return {goal: None if value is None else str(value) for goal, value in pairs}

    return {
        "instance": base.instance,
        "as_it_is": base.model_dump(mode="json"),
        "additions": [
            {
                "name": row.name,
                "termination": row.result.termination,
                "values": exact(row.values),
                "gains": exact(row.gains),
                "helps": row.helps,
                "plan": None if row.result.plan is None else row.result.plan.sentence,
            }
            for row in rows
        ],
    }


def _render(name: str, base: SideResultDocument, rows: tuple[GrowthRow, ...]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from cli.render import report_console

    console, goals = report_console(), (base.objective, *base.then)
    console.print(f"[bold]{escape(name)}[/bold]: {base.termination} as it is")
    if base.plan is not None:
        console.print(f"plan       [bold]{escape(base.plan.sentence)}[/bold]")
    table = Table(title="What to add next", title_justify="left", title_style="bold", box=None)
    table.add_column("added")
    for goal in goals:
        table.add_column(f"{goal.name}, {goal.unit}", justify="right")
        table.add_column("change", justify="right")
    table.add_column("proof")
    for row in rows:
        cells = [escape(row.name)]
        for value, gain in zip(row.values, row.gains, strict=True):
            cells.append("—" if value is None else f"{float(value):,.6g}")
            cells.append("—" if gain is None else f"{float(gain):+,.6g}" if gain else "none")
        table.add_row(*cells, row.result.termination)
    console.print(table)
    if not rows:
        console.print(
            "There is nothing to add: the instance has no racks, servers or budget to grow."
        )
    elif not any(row.helps for row in rows):
        console.print("No single addition changes a goal.")
