"""The exact frontier as an object: the optimum at every deadline, with plan and proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from optimizer.errors import PlannerError
from optimizer.frame import to_dataframe
from optimizer.options import SolveOptions
from optimizer.sweeps.rows import FrontierPiece, as_json_list
from optimizer.sweeps.run import run_sweep
from optimizer.sweeps.spec import sweep_spec


@dataclass(frozen=True, slots=True)
class Frontier:
    """The optimum as a step function of the deadline; pieces ascend and leave no gap."""

    pieces: tuple[FrontierPiece, ...]

    @property
    def breakpoints_s(self) -> tuple[Fraction, ...]:
        """Deadlines in s at which the optimum changes, as exact fractions."""
        return tuple(Fraction(piece.from_exact) for piece in self.pieces[1:])

    def piece_at(self, deadline_s: Fraction) -> FrontierPiece:
        """Return the piece that holds a deadline; raises ValueError outside the frontier."""
        for piece in self.pieces:
            if piece.contains(deadline_s):
                return piece
        raise ValueError(f"{float(deadline_s)} s lies outside the frontier")

    def value_at(self, deadline_s: Fraction) -> Fraction | None:
        """Return the exact optimum at a deadline; None where no plan is known.

        Raises ValueError outside the frontier.
        """
        exact = self.piece_at(deadline_s).value_exact
        return None if exact is None else Fraction(exact)

    def to_json(self) -> str:
        """Return the pieces as a JSON list, one a line."""
        return as_json_list(piece.record() for piece in self.pieces)

    def to_dataframe(self) -> Any:
        """Return one row per piece; raises ImportError where pandas is missing."""
        return to_dataframe([piece.record() for piece in self.pieces])


def frontier(
    instance: Instance,
    *,
    deadline: str | None = None,
    cohorts: Sequence[str] = (),
    options: SolveOptions | None = None,
) -> Frontier:
    """Return the exact step function of the optimum against the deadline.

    The deadline is that of `cohorts`, by name; by default of every cohort that has one (of all,
    where none has).

    Parameters
    ----------
    deadline : the interval of interest, such as "50ms:200ms"; None: all deadlines.
    options : how each piece is solved; one thread by default.

    Raises
    ------
    InputError : the interval is not one.
    PlannerError : a piece could not be solved; the message says why.
    """
    spec = sweep_spec(
        instance, deadline=deadline, exact=True, cohorts=cohorts, source=instance.name
    )
    return Frontier(tuple(_pieces(run_sweep(spec, options))))


def _pieces(blocks: Iterable[Iterable[object]]) -> Iterable[FrontierPiece]:
    for block in blocks:
        for piece in block:
            assert isinstance(piece, FrontierPiece)
            if piece.termination == "failed":
                raise PlannerError(piece.reason)
            yield piece
