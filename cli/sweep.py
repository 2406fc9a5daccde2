"""`supernode sweep`: many points of one instance, or the exact frontier."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli.common import (
    EXIT_CODES,
    EXIT_INFEASIBLE,
    EXIT_NO_PLAN,
    EXIT_SOLVED,
    FiniteSeconds,
    show_and_leave,
    solver_of_each,
)

if TYPE_CHECKING:
    from optimizer.options import SolveOptions
    from optimizer.sweeps.files import RowFile
    from optimizer.sweeps.rows import SweepPoint
    from optimizer.sweeps.spec import SweepSpec

Listener = Callable[[list["SweepPoint"]], None]


@click.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.option("--deadline", metavar="RANGE", help="50ms:200ms:1ms, or values with commas.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PATH=RANGE",
    help="Sweep any numeric field; repeatable.",
)
@click.option(
    "--cohort", "cohorts", multiple=True, metavar="NAME", help="Whose deadline moves; repeatable."
)
@click.option("--exact", is_flag=True, help="The step function against the deadline, not a grid.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help=".jsonl, .csv or .parquet")
@click.option("--resume", is_flag=True, help="Continue the file of a sweep that was cut off.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--dask", metavar="ADDRESS", help="Send points to a running Dask scheduler.")
@solver_of_each
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON lines.")
def sweep(
    instance: str,
    deadline: str | None,
    sets: tuple[str, ...],
    cohorts: tuple[str, ...],
    exact: bool,
    output: str | None,
    resume: bool,
    jobs: int,
    dask: str | None,
    solver: str,
    time_limit: float,
    seed: int,
    as_json: bool,
) -> None:
    """Solve INSTANCE at every point of a sweep; one row per point.

    INSTANCE is a path, "-", a bundled example, or a sweep file (bundled: supernode examples
    --sweeps). Points are the cross product of all ranges, in the order given, the deadline last.
    """
    from optimizer.options import SolveOptions

    options = SolveOptions(solver, time_limit, 1, seed)
    spec = _spec(instance, deadline, sets, cohorts, exact)
    rows, file = [], None
    if resume and output is None:
        raise click.UsageError("--resume needs -o with the file to continue")
    if output is not None:
        from optimizer.sweeps.files import open_rows

        file = open_rows(output, spec.identity(options), resume=resume)
        rows = list(file.rows)
    code = _run(spec, options, jobs, dask, file, rows)

    def show() -> None:
        import json

        from cli.render_sweep import render_rows

        if as_json:
            for row in rows:
                click.echo(json.dumps(row, ensure_ascii=False))
        else:
            render_rows(rows, spec.columns)

    show_and_leave(code, show)


def _spec(
    instance: str,
    deadline: str | None,
    sets: tuple[str, ...],
    cohorts: tuple[str, ...],
    exact: bool,
) -> SweepSpec:
    """Return what to sweep: a sweep file's ranges, those of the command line taking their place."""
    from instances.errors import InputError
    from instances.sweep import load_sweep
    from optimizer.sweeps.spec import sweep_spec

    problem, file, source = load_sweep(instance)
    fields: dict[str, Any] = dict(file.set) if file is not None else {}
    for text in sets:
        path, equals, values = text.partition("=")
        if not equals:
            rule = (
                "needs PATH=RANGE, such as fleet.pools[0].server.fabric.alpha_s=0.4us:1.6us:0.4us"
            )
            raise InputError("--set", "", rule, text)
        fields[path.strip()] = values
    if file is not None:
        deadline, cohorts = deadline or file.deadline, cohorts or file.cohorts
    return sweep_spec(
        problem,
        deadline=deadline,
        fields=fields,
        exact=exact or (file is not None and file.exact),
        cohorts=cohorts,
        source=source,
    )


def _run(
    spec: SweepSpec,
    options: SolveOptions,
    jobs: int,
    dask: str | None,
    file: RowFile | None,
    rows: list[dict[str, Any]],
) -> int:
    """Solve what is missing; rows reach the file block by block, also when interrupted."""
    from optimizer.sweeps.run import run_sweep

    is_complete = False
    total, unit = spec.num_points, "frontiers" if spec.exact else "points"
    try:
        with _progress(total, rows) as heard:
            for block in run_sweep(spec, options, jobs=jobs, dask=dask, done=tuple(rows)):
                records = [point.record() for point in block]
                if file is not None:
                    file.add(records)
                rows += records
                heard(block)
        is_complete = True
    except KeyboardInterrupt:
        more = "" if file is None else "; --resume goes on"
        click.echo(f"interrupted: {len(rows)} rows of {total} {unit} are done{more}", err=True)
        return EXIT_NO_PLAN
    finally:
        if file is not None:
            file.close(is_complete=is_complete)
    failed = sum(row["termination"] == "failed" for row in rows)
    if failed:
        click.echo(f"warning: {failed} of {len(rows)} rows failed; `reason` says why", err=True)
    return EXIT_SOLVED


@contextmanager
def _progress(total: int, rows: list[dict[str, Any]]) -> Iterator[Listener]:
    """Show points done, optimal and infeasible, and the time left, on a terminal's stderr."""
    if not sys.stderr.isatty():
        yield lambda block: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    counts = {"optimal": 0, "infeasible": 0}

    def note(terminations: list[str]) -> str:
        for name in counts:
            counts[name] += terminations.count(name)
        return f"{counts['optimal']} optimal, {counts['infeasible']} infeasible"

    columns = (
        TextColumn("solving"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        text = note([str(row["termination"]) for row in rows])
        task = progress.add_task(text, total=total, completed=min(len(rows), total))

        def heard(block: list[SweepPoint]) -> None:
            is_exact = hasattr(block[0], "from_s") if block else False
            text = note([point.termination for point in block])
            progress.update(task, advance=1 if is_exact else len(block), description=text)

        yield heard


@click.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.argument("first")
@click.argument("second")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help=".jsonl, .csv or .parquet")
@click.option("--time-limit", type=FiniteSeconds(), default=60.0, show_default=True, metavar="S")
@click.option("--json", "as_json", is_flag=True, help="Print the document alone.")
def pareto(
    instance: str, first: str, second: str, output: str | None, time_limit: float, as_json: bool
) -> None:
    """Find the exact Pareto set of two objectives, FIRST and SECOND, of INSTANCE.

    Objectives are those of the instance file, such as makespan and occupied_card_seconds. No plan
    is better in one and no worse in the other than any plan found, and none is missing.
    """
    from cli.render_sweep import render_pareto
    from instances.io import load_instance
    from optimizer.frontiers.pareto import pareto as find_pareto
    from optimizer.options import SolveOptions
    from optimizer.sweeps.files import open_rows

    problem = load_instance(instance)
    found = find_pareto(problem, first, second, SolveOptions("auto", time_limit, 1))
    if output is not None:
        file = open_rows(output, found.instance_sha256[:16], resume=False)
        file.add([row.record() for row in found.rows()])
        file.close(is_complete=True)

    def show() -> None:
        if as_json:
            click.echo(found.to_json(), nl=False)
        else:
            render_pareto(found)

    code = EXIT_SOLVED if found.points else EXIT_INFEASIBLE
    show_and_leave(code if found.is_complete or found.points else EXIT_NO_PLAN, show)
