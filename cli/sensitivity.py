"""`supernode sensitivity`: how far each input may move before the optimal plan changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cli.common import (
    EXIT_CODES,
    EXIT_INFEASIBLE,
    EXIT_SOLVED,
    check_writable,
    show_and_leave,
    solver_of_each,
)

if TYPE_CHECKING:
    from optimizer.sensitivities.document import (
        InputSensitivity,
        InputThreshold,
        SensitivityDocument,
    )
    from optimizer.sensitivities.study import InputListener


@click.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="PATH",
    help="A numeric field, [*] for every element of a list; repeatable. Default: all that matter.",
)
@solver_of_each
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the document.")
@click.option("--json", "as_json", is_flag=True, help="Print the document alone.")
def sensitivity(
    instance: str,
    inputs: tuple[str, ...],
    solver: str,
    time_limit: float,
    seed: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Tell how far each number in INSTANCE may move before the optimal plan changes.

    Every number moves alone, up and down, and a change is solved again on both sides. Also what
    half and twice of it do to the objective while the plan is kept.
    """
    from instances.io import load_instance, write_atomically
    from optimizer.options import SolveOptions
    from optimizer.sensitivities.study import InfeasibleInstance
    from optimizer.sensitivities.study import sensitivity as study

    problem = load_instance(instance)
    if output is not None:
        check_writable(output)
    try:
        with _progress() as heard:
            found = study(problem, inputs or None, SolveOptions(solver, time_limit, 1, seed), heard)
    except InfeasibleInstance as error:
        reason = " ".join(str(error).split())
        click.echo(f"{reason}; `supernode explain {instance}` says what would help", err=True)
        raise SystemExit(EXIT_INFEASIBLE) from None
    if output is not None:
        write_atomically(output, found.to_json())

    def show() -> None:
        if as_json:
            click.echo(found.to_json(), nl=False)
        else:
            render_sensitivity(found)

    show_and_leave(EXIT_SOLVED, show)


@contextmanager
def _progress() -> Iterator[InputListener]:
    """Show the input that is looked at, on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield lambda path, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("solving", total=None)
        yield lambda path, done, total: progress.update(
            task, description=path, completed=done, total=total
        )


def render_sensitivity(found: SensitivityDocument) -> None:
    """Print a study: inputs by influence, where the plan changes, and what matters most."""
    from rich.markup import escape
    from rich.table import Table

    from cli.render import report_console
    from optimizer.words import number, unit_text

    console = report_console()
    console.print(f"[bold]{escape(found.instance)}[/bold]: {escape(found.plan)}")
    console.print(f"objective  {found.objective} = {number(found.value, found.unit)}")
    names = short_names([item.path for item in found.inputs])
    telling = [item for item in found.inputs if _is_telling(item)]
    unit = "" if found.unit == "s" else f" {unit_text(found.unit)}"
    table = Table(box=None)
    table.add_column("input", no_wrap=True)
    for name in ("value", f"× ½{unit}", f"× 2{unit}", "down to", "up to"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("plan beyond")
    for item in sorted(telling, key=lambda item: -item.influence):
        table.add_row(
            escape(names[item.path]),
            number(item.value, item.unit),
            *(_change(change, found.unit) for change in (item.halved, item.doubled)),
            *(_threshold(end, item.unit) for end in (item.down, item.up)),
            escape(_plans(item)),
        )
    if telling:
        console.print()
        console.print(table)
    _print_notes(found, telling, names)


def _print_notes(
    found: SensitivityDocument, telling: Sequence[InputSensitivity], names: dict[str, str]
) -> None:
    """Print what the signs mean, what has no effect, and what matters most."""
    from rich.markup import escape

    from cli.render import report_console

    console = report_console()
    ends = [end for item in telling for end in (item.down, item.up) if end is not None]
    console.print()
    if any(end.status == "changes" and not end.is_first for end in ends):
        console.print("* nearest found; a nearer change is not ruled out")
    if any(end.status == "unchanged" for end in ends):
        console.print("— unchanged as far as was looked (--json says how far)")
    if any(item.value and None in (item.halved, item.doubled) for item in telling):
        console.print("an effect is left out where the plan is not allowed")
    still = [names[item.path] for item in found.inputs if item not in telling]
    if still:
        console.print(f"no effect within reach: {escape(', '.join(still))}", soft_wrap=True)
    leading = next((i for i in found.inputs if i.path == found.most_influential), None)
    if leading is not None:
        halves = abs(leading.halved or 0.0) >= abs(leading.doubled or 0.0)
        sentence = f"{names[leading.path]} moves the objective most of all times, rates and bytes: "
        sentence += _sentence(found, leading, halves)
        console.print(f"[bold]{escape(sentence)}[/bold]", soft_wrap=True)
    for item in found.inputs:
        if ".fabric" in item.path and item is not leading and item.step_halved_s and item.influence:
            halves = item.step_halved_s < 0
            if halves or item.doubled is not None or item.step_doubled_s:  # some cannot double
                console.print(escape(f"{names[item.path]}: {_sentence(found, item, halves)}"))


def _sentence(found: SensitivityDocument, item: InputSensitivity, halves: bool) -> str:
    """Say what halving or doubling an input does to the objective and to a step."""
    from optimizer.words import number

    change = item.halved if halves else item.doubled
    step_s = item.step_halved_s if halves else item.step_doubled_s
    how = "halving" if halves else "doubling"
    is_less = min(change or 0.0, step_s or 0.0) < 0
    verb = "saves" if is_less and found.unit != "sessions" else "loses" if is_less else "adds"
    amounts = [] if change is None else [number(abs(change), found.unit)]
    if step_s:
        amounts.append(f"{number(abs(step_s), 's')} a step")
    return f"{how} it {verb} " + (f"{amounts[0]} ({amounts[1]})" if amounts[1:] else amounts[0])


def _is_telling(item: InputSensitivity) -> bool:
    return bool(item.influence) or any(
        end is not None and end.status == "changes" for end in (item.down, item.up)
    )


def _change(amount: float | None, unit: str) -> str:
    from optimizer.words import change

    if not amount:
        return "" if amount is None else "0"
    return change(amount, unit if unit == "s" else "")


def _threshold(end: InputThreshold | None, unit: str) -> str:
    from optimizer.words import number

    if end is None:
        return ""
    if end.status == "unchanged":
        return "—"
    text = number(end.value, unit)
    sign = "" if end.is_attained else "< " if end.change > 0 else "> "
    return f"{'' if end.exact else '≈ '}{sign}{text}{'' if end.is_first else '*'}"


def _plans(item: InputSensitivity) -> str:
    """Return the plans beyond both thresholds, once if they are the same."""
    beyond = {}
    for sign, end in (("↓", item.down), ("↑", item.up)):
        if end is not None and end.status == "changes":
            plan = end.plan or "nothing fits"
            beyond[sign] = re.sub(r"^\d+ cards = | instances?(?= ×)", "", plan)
    if len(set(beyond.values())) == 1:
        return next(iter(beyond.values()))
    return "\n".join(f"{sign} {plan}" for sign, plan in beyond.items())


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the shortest ends of paths, of two names or more, that tell them apart."""
    names: dict[str, str] = {}
    for path in paths:
        parts = path.split(".")
        for count in range(min(2, len(parts)), len(parts) + 1):
            name = ".".join(parts[-count:])
            alike = [other for other in paths if f".{other}".endswith(f".{name}")]
            names[path] = name
            if len(alike) == 1:
                break
    return names
