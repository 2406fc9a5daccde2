"""The `supernode fabric` command: what joins cards, and how long collectives take there."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from cli.common import ExactQuantity, show_and_leave

if TYPE_CHECKING:
    from instances.topology import Topology
    from optimizer.schedules.comparison import Compared

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "send",
)


@click.command()
@click.argument("topology")
@click.option("--operation", type=click.Choice(OPERATIONS), default="all_reduce", show_default=True)
@click.option(
    "--message", type=ExactQuantity("bytes"), default="10KiB", show_default=True, metavar="SIZE"
)
@click.option("--ranks", type=click.IntRange(2), help="The first cards only; default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def fabric(
    topology: str, operation: str, message: Fraction, ranks: int | None, as_json: bool
) -> None:
    """Show the links of TOPOLOGY, and every algorithm of an operation on them.

    TOPOLOGY is a name of the catalog (`supernode catalog topologies`), the path of a JSON file that
    describes one, or "-" for standard input. SIZE is a rank's vector, of an All-to-All its buffer.
    """
    import json

    from instances.errors import InputError
    from optimizer.collectives import CollectiveUnavailable
    from optimizer.fabric_report import fabric_report, report_document

    spec = _read(topology)
    try:
        report = fabric_report(spec, operation, int(message), ranks)
    except (CollectiveUnavailable, ValueError) as error:
        raise InputError("--ranks", "", str(error)) from None

    def show() -> None:
        if as_json:
            click.echo(json.dumps(report_document(report), indent=2, ensure_ascii=False))
        else:
            _render(report)

    show_and_leave(0, show)


def _read(name: str) -> Topology:
    """Return a topology of the catalog or of a file; raises InputError."""
    from pathlib import Path

    from instances.io import parse_json, read_text, validate
    from instances.topology import TopologyFile

    if name != "-" and not name.endswith(".json") and not Path(name).exists():
        return validate(TopologyFile, name, "topology").root
    text, source = read_text(name)
    return validate(TopologyFile, parse_json(text, source), source).root


def _render(report: Any) -> None:
    """Print a report for people."""
    from rich.markup import escape
    from rich.table import Table

    from cli.render import report_console
    from instances.quantity import human_bytes, human_seconds
    from optimizer.words import plural

    console = report_console()
    parts, cut, far = report.parts, report.bisection, report.farthest
    console.print(f"[bold]{escape(report.name)}[/bold]: {plural(parts.num_cards, 'card')}")
    for name, count in parts.links_by_class:
        speed = f"{human_bytes(int(report.speeds[name]))}/s each way"
        console.print(f"links      {count:,} x {escape(name)}, {speed}")
    console.print(f"switches   {parts.num_switches:,}, network adapters {parts.num_nics:,}")
    speed = f"{human_bytes(int(cut.bytes_per_s))}/s each way"
    console.print(f"bisection  {plural(cut.num_links, 'link')}, {speed}")
    console.print(
        f"farthest   cards {far.sender} and {far.receiver}: {plural(far.num_links, 'link')}, "
        f"{plural(far.num_chips, 'chip')} between"
    )
    if report.oversubscription is not None:
        console.print(f"leaves     {float(report.oversubscription):g} times as much down as up")
    console.print()
    title = f"{report.operation} of {human_bytes(report.message_bytes)} on {report.num_ranks} cards"
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    table.add_column("algorithm")
    for name in ("rounds", "a card sends", "busiest link carries", "time", "times the best"):
        table.add_column(name, justify="right", no_wrap=True)
    best = report.compared[0].time_s
    for row in report.compared:
        if row.time_s is None:
            continue
        table.add_row(
            row.algorithm,
            f"{row.num_rounds:,}",
            human_bytes(int(row.sent_bytes)),
            f"{human_bytes(int(row.busiest_link_bytes))} ({escape(row.busiest_link or '—')})",
            human_seconds(row.time_s),
            f"{float(row.time_s / best):.2f}" if best else "—",
        )
    console.print(table)
    if not report.has_start:
        console.print(
            "\nNo start time is given, so that times are of links alone: rounds cost nothing"
        )
    _print_hierarchy(console, report.compared)
    _print_reasons(console, report.compared)


def _print_hierarchy(console: Any, compared: tuple[Compared, ...]) -> None:
    """Say what going over servers level by level is worth against the flat algorithm."""
    from instances.quantity import human_seconds

    times = {row.algorithm: row.time_s for row in compared if row.time_s}
    for level, flat in (("hierarchical", "ring"), ("two_level", "direct")):
        if level in times and flat in times:
            saved = times[flat] - times[level]
            word = "less" if saved >= 0 else "more"
            ratio = float(times[flat] / times[level])
            console.print(
                f"\n{level} takes {human_seconds(abs(saved))} {word} than the flat {flat}, which "
                f"takes {ratio:.2f} times as long"
            )


def _print_reasons(console: Any, compared: tuple[Compared, ...]) -> None:
    from rich.markup import escape

    missing = [row for row in compared if row.reason is not None]
    if missing:
        console.print("\n[bold]Not available[/bold]")
    for row in missing:
        console.print(escape(f"  {row.algorithm}: {row.reason}"))
