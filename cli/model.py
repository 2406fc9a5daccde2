"""The `supernode model` command: one model's sizes and legal degrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from instances.engine import EngineProfile
    from optimizer.legality import Rule
    from optimizer.model_report import ModelReport

#: Illegal degrees shown with their reason.
SHOWN_DEGREES = (2, 3, 4, 8, 16, 32, 64, 128, 256)


@click.command()
@click.argument("config_or_name")
@click.option("--engine", default="textbook", show_default=True, metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def model(config_or_name: str, engine: str, as_json: bool) -> None:
    """Show what a model weighs, keeps per token and allows.

    CONFIG_OR_NAME is a name of the catalog, the path of a Hugging Face config.json or of a model
    specification, or "-" for standard input.
    """
    import json

    from instances.huggingface import load_model
    from optimizer.model_report import report_model

    report = report_model(load_model(config_or_name), _engine(engine))
    if as_json:
        click.echo(json.dumps(report.to_document(), indent=2, ensure_ascii=False))
    else:
        render_model(report)


def _engine(name: str) -> EngineProfile:
    """Return a profile of the catalog, or the textbook's; raises InputError for another name."""
    from instances.catalog_store import UnknownEntryError, catalog_entry
    from instances.engine import TEXTBOOK, EngineProfile
    from instances.errors import InputError
    from instances.io import validate

    if name == TEXTBOOK.name:
        return TEXTBOOK
    try:
        return validate(EngineProfile, catalog_entry("engines", name), name)
    except UnknownEntryError as error:
        raise InputError("--engine", "", f"{error}") from None


def render_model(report: ModelReport) -> None:
    """Print a report for people."""
    from rich.markup import escape
    from rich.table import Table

    from cli.render import report_console
    from instances.quantity import human_bytes

    console = report_console()
    spec = report.spec
    console.print(f"[bold]{escape(spec.name)}[/bold]: {report.exactness}")
    console.print(escape(report.exactness_reason))
    for group in spec.groups:
        kinds = f"{group.attention.kind} attention, {group.ffn.kind} FFN"
        console.print(f"layers      {len(group.layers)} × {escape(group.name)}: {kinds}")
    console.print(f"parameters  {report.parameters:,} ({report.parameters_main:,} without parts)")
    table = Table("weights", show_edge=False)
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    totals = {"all": report.weight_bytes, "without parts": report.weight_bytes_main}
    for name, size in report.bytes_by_group.items():
        table.add_row(escape(name), f"{size:,}", human_bytes(size))
    table.add_section()
    for name, size in totals.items():
        table.add_row(name, f"{size:,}", human_bytes(size))
    console.print(table)
    console.print(f"KV          {report.kv_bytes_per_token:,} B a token")
    if report.window_bytes_per_request:
        console.print(f"windows     {report.window_bytes_per_request:,} B a session when full")
    for name, size in report.state_bytes_by_component.items():
        console.print(f"state       {size:,} B a session ({escape(name)})")
    _print_degrees(console, "TP", report.engine, report.legal_tp, report.illegal_tp)
    if spec.is_moe:
        _print_degrees(console, "EP", report.engine, report.legal_ep, report.illegal_ep)
    else:
        console.print("legal EP    1 (no experts)")


def _ranges(degrees: tuple[int, ...]) -> str:
    """Return degrees with runs of three or more shortened: "1-64, 128"."""
    found: list[list[int]] = []
    for degree in degrees:
        if found and degree == found[-1][-1] + 1:
            found[-1].append(degree)
        else:
            found.append([degree])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(str(degree) for degree in run)
        for run in found
    )


def _print_degrees(
    console: Console,
    name: str,
    engine: str,
    legal: tuple[int, ...],
    illegal: Mapping[int, Rule],
) -> None:
    """Print the legal degrees, and why usual ones are illegal."""
    from rich.markup import escape

    console.print(f"legal {name}    {_ranges(legal)} ({escape(engine)})")
    for degree in SHOWN_DEGREES:
        if degree in illegal:
            console.print(f"  not {name}{degree}: {escape(illegal[degree].message)}")
