"""The `supernode report` command: a page, Markdown, or a single chart of what was found out."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

import click

from cli.common import EXIT_CODES

#: What an output's suffix asks for.
PAGES, TEXTS, IMAGES = (".html", ".htm"), (".md", ".markdown"), (".svg", ".png")


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="RESULT_OR_SWEEP...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    help="page.html, report.md, or a single chart.svg or chart.png.",
)
@click.option(
    "--chart",
    "chart_name",
    type=click.Choice(["curves", "memory", "racks", "timeline", "sensitivity"]),
    help="The chart to write as .svg or .png; default: the first there is of curves, timeline, "
    "sensitivity, racks, memory.",
)
def report(files: tuple[str, ...], output: str, chart_name: str | None) -> None:
    """Make a page, Markdown or charts of results and sweeps.

    FILES are results of `solve`, rows of sweeps (.jsonl, .csv, .parquet), and sensitivity, Pareto,
    alternatives or conflict documents, in any mix; each is recognised by its content. A page is one
    file that needs no network; curves of several sweeps share one pair of axes. Single charts need
    matplotlib (install supernode-planner[report]).
    """
    from instances.errors import InputError
    from instances.io import write_atomically

    suffix = Path(output).suffix.lower()
    if suffix not in (*PAGES, *TEXTS, *IMAGES):
        rule = "ends in none of .html, .md, .svg, .png; the suffix says what is written"
        raise InputError(output, "", rule)
    if chart_name is not None and suffix not in IMAGES:
        rule = "is for single charts; write to .svg or .png, or leave it out"
        raise InputError(output, "--chart", rule, chart_name)

    from optimizer.reports import chart, html_page, markdown_report, read_report_inputs

    inputs = read_report_inputs(files)
    if suffix in IMAGES:
        content = chart(inputs, chart_name, suffix[1:])
        _write_bytes(output, content)
    else:
        text = html_page(inputs) if suffix in PAGES else markdown_report(inputs)
        content = text.encode()
        write_atomically(output, text)
    click.echo(f"wrote {output}: {len(content):,} bytes from {', '.join(inputs.sources)}")


def _write_bytes(path: str, content: bytes) -> None:
    """Write a file so that it appears whole or not at all; raises InputError."""
    from instances.errors import InputError

    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = (error.strerror or "cannot be written").lower()
        raise InputError(path, "", f"{reason}; nothing was written") from None
