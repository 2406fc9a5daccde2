"""Readable reports of the smaller decisions: pipeline cuts and expert placements."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.render import headline, objective_line, proof_line, report_console
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.side.result import SideEvaluationDocument, SideResultDocument


def render_side(problem: Instance, result: SideResultDocument) -> None:
    """Print a result: the decision, its proof, and the account of every stage or group."""
    console = report_console()
    console.print(f"[bold]{escape(problem.name)}[/bold]: {headline(result)}")
    if result.plan is not None:
        console.print(f"plan       [bold]{escape(result.plan.sentence)}[/bold]")
        console.print(f"objective  {objective_line(result.objective)}")
    if result.reason:
        console.print(f"reason     {escape(result.reason)}")
    console.print(f"proof      {escape(proof_line(result))}")
    if result.evaluation is not None:
        _print_account(console, result.evaluation)


def render_side_verification(problem: Instance, verification: dict[str, Any]) -> None:
    """Print a verification: exact value, broken rules, false claims, the account."""
    console = report_console()
    verdict = "[green]holds[/green]" if verification["holds"] else "[red]does not hold[/red]"
    console.print(f"[bold]{escape(problem.name)}[/bold]: the plan {verdict}")
    for name, value in verification["objective"].items():
        console.print(f"objective  {name} = {value}")
    evaluation = SideEvaluationDocument.model_validate(verification["evaluation"])
    _print_account(console, evaluation)
    for v in evaluation.violations:
        console.print(f"  {escape(v.rule)} at {escape(v.where)}: {escape(v.message)}")
    for line in verification["mismatches"]:
        console.print(f"[red]claim[/red]  {escape(line)}")


def _print_account(console: Console, evaluation: SideEvaluationDocument) -> None:
    console.print()
    if evaluation.stages:
        console.print(_stage_table(evaluation))
    if evaluation.groups:
        console.print(_group_table(evaluation))
    if evaluation.balance is not None and evaluation.balance_before is not None:
        before = human_seconds(Fraction(evaluation.value_before or 0))
        console.print(
            f"balance    busiest group {evaluation.balance:.4g} times the average; in index order "
            f"it was {evaluation.balance_before:.4g} times, {before}"
        )


def _stage_table(evaluation: SideEvaluationDocument) -> Table:
    table = Table(title="Stages", title_justify="left", title_style="bold", box=None)
    for name in ("stage", "layers", "weights", "other", "room", "tokens", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, stage in enumerate(evaluation.stages):
        taken = stage.weights_bytes + stage.other_bytes
        tokens = "any" if stage.max_tokens is None else f"{stage.max_tokens:,}"
        table.add_row(
            f"{number} ({escape(stage.pool)})",
            f"{stage.first_layer}-{stage.first_layer + stage.num_layers - 1}",
            human_bytes(stage.weights_bytes),
            human_bytes(stage.other_bytes),
            human_bytes(stage.capacity_bytes - taken),
            tokens,
            human_seconds(Fraction(stage.time_exact)) if stage.time_s else "—",
        )
    return table


def _group_table(evaluation: SideEvaluationDocument) -> Table:
    table = Table(title="Expert groups", title_justify="left", title_style="bold", box=None)
    for name in ("group", "experts", "with work", "assignments", "memory", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, group in enumerate(evaluation.groups):
        table.add_row(
            str(number),
            str(len(group.experts)),
            str(group.active_experts),
            f"{group.load:,.6g}",
            f"{human_bytes(group.resident_bytes)} of {human_bytes(group.capacity_bytes)}",
            human_seconds(Fraction(group.time_s)),
        )
    return table
