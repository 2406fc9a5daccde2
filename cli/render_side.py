"""Readable reports of the smaller decisions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.render import headline, objective_line, proof_line, report_console
from cli.render_capacity import render_capacity, render_not_used, render_power
from cli.render_pool import render_pool
from cli.render_supernode import render_supernode
from cli.render_tiers import render_tiers
from cli.tables import titled_table
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.side.accounts import LinkLoadDocument, PhaseDocument
from optimizer.side.result import SideEvaluationDocument, SideResultDocument
from optimizer.words import OPERATION_NAMES, plural


def render_side(
    problem: Instance, result: SideResultDocument, *, explain_power: bool = False
) -> None:
    """Print a result: the decision, its proof, and the account of what it takes.

    With `explain_power` the watts of a capacity plan are summed line by line.
    """
    console = report_console()
    console.print(f"[bold]{escape(problem.name)}[/bold]: {headline(result)}")
    if result.plan is not None:
        console.print(f"plan       [bold]{escape(result.plan.sentence)}[/bold]")
        for objective in (result.objective, *result.then):
            console.print(f"objective  {objective_line(objective)}")
    if result.reason:
        console.print(f"reason     {escape(result.reason)}")
    console.print(f"proof      {escape(proof_line(result))}")
    if result.evaluation is not None:
        _print_account(console, result.evaluation)
        if explain_power and result.evaluation.capacity is not None:
            render_power(console, result.evaluation.capacity)
    if result.not_used is not None:
        render_not_used(console, result.not_used)


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
    if evaluation.phases:
        console.print(_phase_table(evaluation.phases, evaluation.phases_before))
        _print_saved(console, evaluation, "first fit in card order")
    if evaluation.slices:
        console.print(_slice_table(evaluation))
        if evaluation.value_before is not None and evaluation.free_chips is not None:
            before = plural(round(evaluation.value_before), "chip")
            console.print(f"first fit  {before} of {evaluation.free_chips} free ones")
    if evaluation.links:
        console.print(_link_table(evaluation.links, evaluation.links_before))
        _print_saved(console, evaluation, "the ring in card order")
    if evaluation.accelerators:
        console.print(_accelerator_table(evaluation))
        console.print(_bucket_table(evaluation))
        if evaluation.value_before is not None and evaluation.saved is not None:
            alone, saved = evaluation.value_before, evaluation.saved
            console.print(f"saved      {saved:,.6g} an hour: one kind alone costs {alone:,.6g}")
    if evaluation.capacity is not None:
        render_capacity(console, evaluation.capacity)
    if evaluation.pool is not None:
        render_pool(console, evaluation.pool)
    if evaluation.tiers is not None:
        render_tiers(console, evaluation.tiers)
    if evaluation.supernode is not None:
        render_supernode(console, evaluation.supernode)
    if evaluation.balance is not None and evaluation.balance_before is not None:
        before = human_seconds(Fraction(evaluation.value_before or 0))
        console.print(
            f"balance    busiest group {evaluation.balance:.4g} times the average; in index order "
            f"it was {evaluation.balance_before:.4g} times, {before}"
        )


def _print_saved(console: Console, evaluation: SideEvaluationDocument, plain: str) -> None:
    """Say what the plain answer takes, and what is saved."""
    if evaluation.value_before is None or evaluation.saved is None:
        return
    before, saved = Fraction(evaluation.value_before), Fraction(evaluation.saved)
    console.print(f"saved      {human_seconds(saved)}: {plain} takes {human_seconds(before)}")


def _phase_table(phases: list[PhaseDocument], before: list[PhaseDocument]) -> Table:
    """Return what every phase takes, beside the plain answer's phases, which are the same ones."""
    names = ("phase", "exchange", "times", "groups", "message", "spanning", "exit", "a step")
    table = titled_table("Exchanges of a step", (*names, *(("first fit",) if before else ())))
    for number, phase in enumerate(phases):
        row = [
            escape(phase.name),
            f"{OPERATION_NAMES[phase.operation]}, {phase.algorithm}",
            str(phase.times),
            f"{phase.groups} x {phase.ranks}",
            human_bytes(round(phase.message_bytes)),
            f"{phase.num_spanning} of {phase.groups}",
            human_bytes(round(phase.exit_bytes)) if phase.exit_bytes else "—",
            human_seconds(Fraction(phase.step_exact)),
        ]
        if before:
            other = before[number]
            row.append(f"{human_seconds(Fraction(other.step_exact))}, {other.algorithm}")
        table.add_row(*row)
    return table


def _slice_table(evaluation: SideEvaluationDocument) -> Table:
    table = titled_table("Slices", ("slice", "chips", "shape", "from chip"))
    for piece in evaluation.slices:
        shape = "not placed" if piece.shape is None else " x ".join(map(str, piece.shape))
        origin = "" if piece.origin is None else f"({', '.join(map(str, piece.origin))})"
        table.add_row(escape(piece.name), str(piece.num_chips), shape, origin)
    return table


def _accelerator_table(evaluation: SideEvaluationDocument) -> Table:
    columns = ("accelerator", "count", "at most", "load", "price an hour")
    table = titled_table("Accelerators", columns)
    for kind in evaluation.accelerators:
        most = "any" if kind.max_count is None else str(kind.max_count)
        price = f"{kind.price_per_hour:,.6g}"
        table.add_row(escape(kind.name), str(kind.count), most, f"{kind.load:,.6g}", price)
    return table


def _bucket_table(evaluation: SideEvaluationDocument) -> Table:
    """Return the requests of every bucket and the pieces that each kind serves."""
    names = [escape(kind.name) for kind in evaluation.accelerators]
    table = titled_table("Pieces of each bucket", ("bucket", "requests/s", *names))
    for bucket in evaluation.buckets:
        pieces = [str(num) if num else "—" for num in bucket.pieces]
        table.add_row(escape(bucket.name), f"{bucket.requests_per_s:,.6g}", *pieces)
    return table


def _link_table(links: list[LinkLoadDocument], before: list[LinkLoadDocument]) -> Table:
    """Return the load of every link between NUMA nodes, beside that of the plain answer."""
    columns = ("link", "load", "time", *(("card order",) if before else ()))
    table = titled_table("Links between NUMA nodes", columns)
    for number, link in enumerate(links):
        row = [
            f"{link.start} to {link.end}",
            human_bytes(link.load_bytes),
            human_seconds(Fraction(link.time_exact)),
        ]
        if before:
            row.append(human_bytes(before[number].load_bytes))
        table.add_row(*row)
    return table


def _stage_table(evaluation: SideEvaluationDocument) -> Table:
    columns = ("stage", "layers", "weights", "other", "room", "tokens", "time")
    table = titled_table("Stages", columns, has_names=False)
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
    columns = ("group", "experts", "with work", "assignments", "memory", "time")
    table = titled_table("Expert groups", columns, has_names=False)
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
