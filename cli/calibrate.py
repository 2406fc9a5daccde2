"""The `supernode calibrate` command: measured collectives, fitted and made a fabric."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from cli.common import EXIT_SOLVED, check_writable, show_and_leave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from optimizer.calibration.document import CalibrationDocument, GroupDocument
    from optimizer.calibration.groups import Group

#: Groups shown before a report says how many more there are.
MAX_GROUPS = 24


class Share(click.ParamType[Fraction]):
    """A share or a factor on the command line: "20%", "0.2", "2"."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        """Return the share exactly, or fail with the rule."""
        from instances.quantity import QuantityError, parse_quantity

        try:
            share = parse_quantity(value, "share")
        except QuantityError as error:
            self.fail(str(error), param, ctx)
        if share == 0:
            self.fail("must be more than 0", param, ctx)
        return share


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--operation", metavar="NAME", help="Only this one; also where a file names none.")
@click.option(
    "--ranks", type=click.IntRange(2), help="Only on so many; also where a file does not say."
)
@click.option(
    "--servers", type=click.IntRange(1), help="Only over so many; also where a file does not say."
)
@click.option("--cards-per-server", type=click.IntRange(1), help="Where a file counts servers.")
@click.option("--system", metavar="NAME")
@click.option("--library", metavar="NAME")
@click.option("--dtype", metavar="NAME")
@click.option("--mode", metavar="NAME")
@click.option("--in-place", is_flag=True, help="Read in-place times, not out-of-place ones.")
@click.option(
    "--drop-outliers",
    type=Share(),
    metavar="X",
    help="Leave out sizes slower than X times both the next smaller and the next larger one.",
)
@click.option(
    "--within",
    type=Share(),
    default="20%",
    show_default=True,
    metavar="SHARE",
    help="Relative error up to which a fit is said to hold.",
)
@click.option(
    "--policy",
    type=click.Choice(["next_larger_size", "linear", "log_linear"]),
    default="next_larger_size",
    show_default=True,
    help="What sizes between two rows of a written table take.",
)
@click.option("--name", metavar="NAME", help="Name of the written fabric.")
@click.option("--source", metavar="TEXT", help="Publication that the written numbers come from.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write a fabric entry.")
@click.option("--json", "as_json", is_flag=True, help="Print the document alone.")
def calibrate(
    files: tuple[str, ...],
    within: Fraction,
    drop_outliers: Fraction | None,
    output: str | None,
    as_json: bool,
    **told: Any,
) -> None:
    """Fit the time of a round and the bandwidth to measured collectives.

    FILE is what nccl-tests printed, or a CSV file of measured times; "-" is standard input. The
    content tells the format. Points of one operation, ranks, system, library, type and mode are
    fitted together. The fabric that -o writes can stand in an instance as "fabric" or
    "fabric_between".
    """
    from instances.io import write_atomically
    from optimizer.calibration.document import calibration_document

    if output is not None:
        check_writable(output)
    reading, groups = _read(files, drop_outliers, told)
    document = calibration_document(files, reading, groups, within)
    if output is not None:
        write_atomically(output, _fabric_text(groups, within, told))

    def show() -> None:
        if as_json:
            click.echo(document.to_json(), nl=False)
        else:
            render_calibration(document)

    show_and_leave(EXIT_SOLVED, show)


def _read(
    files: tuple[str, ...], factor: Fraction | None, told: dict[str, Any]
) -> tuple[Any, list[Group]]:
    """Return what the files hold, and the groups that are looked at."""
    from dataclasses import replace

    from optimizer.calibration.groups import Wanted, grouped, without_outliers
    from optimizer.calibration.points import ReadOptions, operation_named
    from optimizer.calibration.readers import read_files

    operation = told["operation"] and operation_named(told["operation"], "--operation")
    ranks, servers = told["ranks"], told["servers"]
    options = ReadOptions(told["in_place"], operation, ranks, servers, told["cards_per_server"])
    reading = read_files(files, options)
    names = ("system", "library", "dtype", "mode")
    wanted = Wanted(operation, ranks, servers, *(told[name] for name in names))
    groups = grouped(wanted.chosen(reading.points))
    if factor is None:
        return reading, groups
    pairs = [without_outliers(group, factor) for group in groups]
    num_gone = sum(len(gone) for _, gone in pairs)
    if num_gone:
        places = ", ".join(point.what for _, gone in pairs for point in gone)
        reason = f"outliers, slower than {float(factor):g} times both neighbours: {places}"
        reading = replace(reading, dropped=(*reading.dropped, (reason, num_gone)))
    return reading, [group for group, _ in pairs]


def _fabric_text(groups: Sequence[Group], within: Fraction, told: dict[str, Any]) -> str:
    import json

    from optimizer.calibration.fabrics import Wording, fabric_entry

    wording = Wording(told["policy"], told["name"], told["source"])
    entry = fabric_entry(groups, within, wording)
    return json.dumps(entry, indent=2, ensure_ascii=False) + "\n"


def render_calibration(document: CalibrationDocument) -> None:
    """Print a calibration for people: fits, their errors by size, and overlaps."""
    from rich.markup import escape

    from cli.render import report_console

    console = report_console()
    files = ", ".join(document.files)
    counts = f"{document.num_points} measured times of collectives"
    if document.overlaps:
        counts += f", {len(document.overlaps)} sizes of communication and computation at once"
    console.print(f"[bold]{escape(files)}[/bold]: {counts}", soft_wrap=True)
    for dropped in document.dropped:
        console.print(f"left out   {dropped.count} × {escape(dropped.reason)}", soft_wrap=True)
    for note in document.notes:
        console.print(f"note       {escape(note)}", soft_wrap=True)
    if document.groups:
        _print_fits(console, document.groups[:MAX_GROUPS])
        _print_errors(console, document.groups[:MAX_GROUPS])
        more = len(document.groups) - MAX_GROUPS
        if more > 0:
            console.print(f"  and {more} more groups (--json has all; --system and others choose)")
    if document.overlaps:
        _print_overlaps(console, document)


def _print_fits(console: Console, groups: Sequence[GroupDocument]) -> None:
    """Print what was fitted to every group and where it holds."""
    from rich.markup import escape
    from rich.table import Table

    console.print("\n[bold]T = rounds·α + factor·M/B[/bold], least relative squares")
    table = Table(box=None)
    table.add_column("", justify="right")
    for name in ("operation", "system", "library", "type", "mode"):
        table.add_column(name, overflow="fold")
    for name in ("ranks/servers", "sizes", "α a round", "B one way", "holds from", "to"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, group in enumerate(groups, 1):
        servers = "" if group.servers is None else f"/{group.servers}"
        texts = [group.operation, group.system, group.library, group.dtype, group.mode]
        fitted = group.fit
        if fitted is None:
            found = ["not fitted", "", "", ""]
        else:
            holds = fitted.holds
            ends = ("nowhere", "") if holds is None else (holds.from_bytes, holds.to_bytes)
            sizes = [end if isinstance(end, str) else _bytes(end) for end in ends]
            found = [fitted.alpha, fitted.bandwidth, *sizes]
        counted = (f"{group.ranks}{servers}", str(group.num_sizes))
        table.add_row(str(number), *map(escape, (*texts, *counted, *found)))
    console.print(table)
    for number, group in enumerate(groups, 1):
        if group.not_fitted:
            console.print(f"  {number} is not fitted: {escape(group.not_fitted)}")


def _print_errors(console: Console, groups: Sequence[GroupDocument]) -> None:
    """Print median and largest relative errors by powers of ten of the size."""
    from rich.table import Table

    from instances.quantity import human_bytes

    fits = [(number, group.fit) for number, group in enumerate(groups, 1)]
    decades = sorted({d.from_bytes for _, f in fits if f is not None for d in f.residuals})
    if not decades:
        return
    console.print("\n[bold]Relative error of the fit[/bold], median / largest, by size from")
    table = Table(box=None)
    table.add_column("", justify="right")
    for decade in decades:
        table.add_column(human_bytes(decade).replace(".00", ""), justify="right", no_wrap=True)
    for number, fitted in fits:
        if fitted is not None:
            by_decade = {d.from_bytes: d for d in fitted.residuals}
            cells = [
                f"{_percent(d.median_error)}/{_percent(d.largest_error)}%" if d else ""
                for d in map(by_decade.get, decades)
            ]
            table.add_row(str(number), *cells)
    console.print(table)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def _bytes(size: int) -> str:
    """Write a size in the binary unit that divides it, else in a decimal one."""
    from instances.quantity import human_bytes

    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return human_bytes(size)


def _print_overlaps(console: Console, document: CalibrationDocument) -> None:
    """Print what running communication and computation at once saves."""
    from rich.table import Table

    from optimizer.words import number

    console.print("\n[bold]Communication and computation at once[/bold]")
    table = Table(box=None)
    for name in ("size", "communication alone", "compute alone", "at once: communication"):
        table.add_column(name, justify="right")
    for name in ("compute", "both", "saved", "share of the shorter one hidden"):
        table.add_column(name, justify="right")
    for row in document.overlaps:
        times = (
            row.communication_alone_s,
            row.compute_alone_s,
            row.communication_together_s,
            row.compute_together_s,
            row.together_s,
            row.saved_s,
        )
        cells = [number(time, "s") for time in times]
        table.add_row(_bytes(row.message_bytes), *cells, f"{row.hidden_share:.1%}")
    console.print(table)
