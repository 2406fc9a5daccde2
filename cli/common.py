"""What the commands share: exit codes, and seconds as a parameter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

EXIT_SOLVED, EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_NO_PLAN, EXIT_MISMATCH = 0, 2, 3, 4, 5

EXIT_CODES = """\b
Exit codes: 0 solved and verified, 2 bad input, 3 proven infeasible,
4 limit reached without a plan, 5 a claim does not match its verification."""


class ExactQuantity(click.ParamType[Fraction]):
    """A quantity on the command line, read exactly: "100ms", "293.6us", "256KiB"."""

    def __init__(self, dimension: str) -> None:
        self.name = self.dimension = dimension

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        """Return the value in SI units, or fail with the rule."""
        from instances.quantity import QuantityError, parse_quantity

        try:
            return parse_quantity(value, self.dimension)
        except QuantityError as error:
            self.fail(str(error), param, ctx)


class FiniteSeconds(click.ParamType[float]):
    """Seconds on the command line: "10", "0.5", "500ms", "2min"."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds as a float, or fail with the rule."""
        return float(ExactQuantity("seconds").convert(value, param, ctx))


def solver_of_each(command: CommandT) -> CommandT:
    """Give a command that solves several times --solver and --time-limit."""
    limit = click.option(
        "--time-limit",
        type=FiniteSeconds(),
        default=60.0,
        show_default=True,
        metavar="S",
        help="Of each solve.",
    )
    solver = click.option("--solver", default="auto", show_default=True, metavar="NAME")
    return solver(limit(command))


def check_writable(path: str) -> None:
    """Refuse an output that cannot be written before hours are spent on it."""
    from instances.errors import InputError

    folder = Path(path).parent
    if not folder.is_dir():
        rule = f"folder {str(folder)!r} does not exist, so it cannot be written; create it first"
        raise InputError(path, "", rule)
    if not os.access(folder, os.W_OK):
        raise InputError(path, "", f"folder {str(folder)!r} cannot be written; choose another")


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a line on standard error while a block runs, on a terminal; yields what changes it."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        yield lambda text: shown.update(text)


def show_and_leave(code: int, show: Callable[[], None]) -> NoReturn:
    """Print, and end with an exit code that a reader who stops reading does not change."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
