"""The `supernode` command. Heavy imports wait until a subcommand needs them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cli.calibrate import calibrate
from cli.common import (
    EXIT_BAD_INPUT,
    EXIT_CODES,
    EXIT_INFEASIBLE,
    EXIT_MISMATCH,
    EXIT_NO_PLAN,
    EXIT_SOLVED,
    FiniteSeconds,
    check_writable,
    show_and_leave,
    status,
)
from cli.explain import explain
from cli.fabric import fabric
from cli.grow import grow
from cli.model import model
from cli.report import report
from cli.schema import schema
from cli.sensitivity import sensitivity
from cli.surroundings import hosts, payback
from cli.sweep import pareto, sweep

if TYPE_CHECKING:
    from instances.instance import Instance
    from optimizer.options import SolveOptions
    from optimizer.result import ResultDocument
    from optimizer.side.result import SideResultDocument

#: How threads that run a solver are named (`optimizer.backends.Runner`).
THREAD_PREFIX = "supernode-"
#: Other threads get so long to end.
LAST_WAIT_S = 5.0


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="supernode-planner", prog_name="supernode")
def cli() -> None:
    """Decide how to split a large language model over accelerators, and prove the decision."""


@cli.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, cp-sat, highs, cbc, or a formulation installed from elsewhere.",
)
@click.option("--time-limit", type=FiniteSeconds(), default=60.0, show_default=True, metavar="S")
@click.option("--threads", type=click.IntRange(0, 1024), default=0, help="0: all processors.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--within", metavar="SHARE", help="List every plan within a margin, such as 5%.")
@click.option("--explain-power", is_flag=True, help="Of capacity: sum the watts line by line.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the result document.")
@click.option("--json", "as_json", is_flag=True, help="Print the result document alone.")
def solve(
    instance: str,
    solver: str,
    time_limit: float,
    threads: int,
    seed: int,
    within: str | None,
    explain_power: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Find the best plan for INSTANCE and prove it.

    INSTANCE is a path, "-" for standard input, or the name of a bundled example.
    """
    from instances.io import load_instance, write_atomically
    from optimizer.options import SolveOptions

    problem = load_instance(instance)
    if output is not None:
        check_writable(output)
    if within is not None:
        from optimizer.near_optimal.search import read_margin

        read_margin(within)
    options = SolveOptions(solver, time_limit, threads, seed)
    if explain_power and problem.decision != "capacity":
        _refuse_explain_power(problem)
    if problem.decision != "deployment":
        _solve_side(problem, options, output, as_json, explain_power)
    result = _with_near_optimal(problem, _solve_with_progress(problem, options), options, within)
    if output is not None:
        write_atomically(output, result.to_json())

    def show() -> None:
        from cli.render import render_result

        if as_json:
            click.echo(result.to_json(), nl=False)
        else:
            render_result(problem, result)

    show_and_leave(_exit_code(result), show)


def _with_near_optimal(
    problem: Instance, result: ResultDocument, options: SolveOptions, within: str | None
) -> ResultDocument:
    """Add the plans within a margin, or, where measurements spread, within the spread."""
    from optimizer.variants.spread import at_ends_of_spread

    if result.plan is None or (within is None and at_ends_of_spread(problem) is None):
        return result
    from optimizer.near_optimal.search import alternatives

    with status(f"listing plans close to the best of {problem.name}") as update:
        near = alternatives(problem, within or 0, options, lambda count: update(f"{count} plans"))
    return result.model_copy(update={"near_optimal": near})


def _refuse_explain_power(problem: Instance) -> NoReturn:
    """Say that only capacity plans have a sum of watts."""
    from instances.errors import InputError

    rule = f"is for decision 'capacity'; {problem.name} decides {problem.decision!r}"
    raise InputError("--explain-power", "", rule)


def _solve_side(
    problem: Instance,
    options: SolveOptions,
    output: str | None,
    as_json: bool,
    explain_power: bool,
) -> NoReturn:
    """Solve one of the smaller decisions, print it, and leave."""
    from cli.render_side import render_side
    from instances.io import write_atomically
    from optimizer.side.decisions import solve_side

    result = solve_side(problem, options)
    if output is not None:
        write_atomically(output, result.to_json())

    def show() -> None:
        if as_json:
            click.echo(result.to_json(), nl=False)
        else:
            render_side(problem, result, explain_power=explain_power)

    show_and_leave(_exit_code(result), show)


def _exit_code(result: ResultDocument | SideResultDocument) -> int:
    if result.plan is not None:
        return EXIT_SOLVED
    return EXIT_INFEASIBLE if result.termination == "infeasible" else EXIT_NO_PLAN


def _solve_with_progress(problem: Instance, options: Any) -> ResultDocument:
    """Solve; on a terminal, a line on standard error shows the best plan so far."""
    from optimizer.solve import solve as solve_instance

    if not sys.stderr.isatty():
        return solve_instance(problem, options)
    from cli.render import progress_text

    with status(f"solving {problem.name}") as update:
        return solve_instance(
            problem, options, on_incumbent=lambda best: update(progress_text(problem, best))
        )


@cli.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.argument("plan")
@click.option("--json", "as_json", is_flag=True, help="Print the verification as JSON.")
def verify(instance: str, plan: str, as_json: bool) -> None:
    """Judge the plan in PLAN (a result or a hand-written plan) for INSTANCE, exactly.

    Lists every rule it breaks and by how much, and every claim of a result that does not hold.
    """
    from cli.render import render_verification, verification_json
    from instances.io import load_instance, parse_json, read_text
    from optimizer.verify import verify as verify_plan

    problem = load_instance(instance)
    text, source = read_text(plan)
    if problem.decision != "deployment":
        _verify_side(problem, parse_json(text, source), source, as_json)
    verification = verify_plan(problem, parse_json(text, source), source)

    def show() -> None:
        if as_json:
            click.echo(verification_json(problem, verification), nl=False)
        else:
            render_verification(problem, verification)

    show_and_leave(EXIT_SOLVED if verification.holds else EXIT_MISMATCH, show)


def _verify_side(problem: Instance, document: Any, source: str, as_json: bool) -> NoReturn:
    """Judge one of the smaller decisions, print the verdict, and leave."""
    import json

    from cli.render_side import render_side_verification
    from optimizer.side.document import verify_side

    verification = verify_side(problem, document, source)

    def show() -> None:
        if as_json:
            click.echo(json.dumps(verification, indent=2, ensure_ascii=False))
        else:
            render_side_verification(problem, verification)

    show_and_leave(EXIT_SOLVED if verification["holds"] else EXIT_MISMATCH, show)


@cli.command()
@click.argument("kind", required=False)
@click.argument("name", required=False)
def catalog(kind: str | None, name: str | None) -> None:
    """List the catalog's kinds, the entries of a KIND, or one entry NAME with its sources."""
    import json

    from instances.catalog_store import catalog_entry, catalog_kinds, catalog_names
    from instances.errors import InputError

    if kind is None:
        for known in catalog_kinds():
            click.echo(f"{known}: {', '.join(catalog_names(known))}")
        return
    try:
        if name is None:
            for entry in catalog_names(kind):
                click.echo(entry)
        else:
            shown = catalog_entry(kind, name)
            click.echo(json.dumps(shown, indent=2, ensure_ascii=False, default=str))
    except (KeyError, ValueError) as error:
        raise InputError("catalog", "", str(error)) from None


@cli.command()
@click.argument("name", required=False)
@click.option("--best", is_flag=True, help="Print the best-known plan, its value and bound.")
@click.option("--sweeps", is_flag=True, help="List the bundled sweeps instead.")
def examples(name: str | None, best: bool, sweeps: bool) -> None:
    """List the bundled examples, or print one (or a sweep) as JSON."""
    import json

    from instances.io import example_names, example_text, sweep_names

    if name is not None:
        click.echo(example_text(name, ".best.json" if best else ".json"), nl=False)
        return
    for known in sweep_names() if sweeps else example_names():
        click.echo(f"{known}: {json.loads(example_text(known)).get('description', '')}")


cli.add_command(calibrate)
cli.add_command(explain)
cli.add_command(fabric)
cli.add_command(grow)
cli.add_command(hosts)
cli.add_command(model)
cli.add_command(payback)
cli.add_command(report)
cli.add_command(schema)
cli.add_command(sensitivity)
cli.add_command(pareto)
cli.add_command(sweep)


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; every error is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        cli.main(arguments, prog_name="supernode", standalone_mode=False)
    except SystemExit as ended:
        return int(ended.code or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted before any plan was found", EXIT_NO_PLAN)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SOLVED
    except OSError as error:
        return _fail(f"output: {error.strerror or error}; it is not complete", EXIT_BAD_INPUT)
    except Exception as error:
        code = _known_error_code(error)
        if code is None:
            raise
        return _fail(str(error), code)
    return EXIT_SOLVED


def _known_error_code(error: Exception) -> int | None:
    """Return the exit code of an error the planner can explain; None for a bug."""
    from optimizer.errors import BackendUnavailable, InputError, MismatchError, TooLargeError

    if isinstance(error, InputError | BackendUnavailable):
        return EXIT_BAD_INPUT
    if isinstance(error, TooLargeError):
        return EXIT_NO_PLAN
    return EXIT_MISMATCH if isinstance(error, MismatchError) else None


def main() -> None:
    """Entry point of the `supernode` command."""
    code = run()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        if not thread.daemon:
            thread.join(LAST_WAIT_S)  # what waits for stopped worker processes may never end
    if any(t.name.startswith(THREAD_PREFIX) or not t.daemon for t in others if t.is_alive()):
        sys.stderr.flush()
        os._exit(code)  # a solver that is slow to stop would abort an orderly end of the process
    raise SystemExit(code)
