"""What the planner asks of a formulation and what comes back; formulations plug in by entry point.

A formulation may come from another package: it registers a class with this interface in the
entry-point group `supernode.formulations`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from optimizer.tables import ProblemTables

#: Entry-point group in which formulations are found.
ENTRY_POINT_GROUP = "supernode.formulations"


class Termination(StrEnum):
    """What a solve, or one backend's part of it, established."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION_FOUND = "no_solution_found"


class Measure(StrEnum):
    """A quantity that solvers add up, or take the largest of, over a plan."""

    END = "end"  # s, largest over sessions
    LATENCY = "latency"  # s, largest over sessions
    COMPLETION = "completion"  # s, sum over sessions
    CARD_SECONDS = "card_seconds"  # sum over instances of cards · own last end
    ENERGY = "energy"  # J, sum over instances of power · own last end
    CARDS = "cards"  # sum over instances
    HELD = "held"  # minus the sessions that fit, sum over instances

    @property
    def is_largest(self) -> bool:
        """Whether the measure is a largest value rather than a sum."""
        return self in (Measure.END, Measure.LATENCY)


@dataclass(frozen=True, slots=True)
class Term:
    """One objective: scale · measure, divided by the sessions on time where `per_on_time`."""

    name: str
    measure: Measure
    scale: Fraction
    per_on_time: bool = False


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An objective's value that no plan may exceed, as it is compared (never a maximised one)."""

    term: Term
    most: Fraction


@dataclass(frozen=True, slots=True)
class DeploymentCounts:
    """A deployment: how many serving instances it has of each candidate.

    Pairs of (candidate index, instances), for the candidates of which it has any.
    """

    counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SelectedInstance:
    """One serving instance a solver chose.

    `servers` are where it sits (None under a layout); `queues` lists the cohort indices of each
    lane in order, lanes of the first attention group first. Lanes without sessions may be left out
    at the end.
    """

    kind: int
    servers: tuple[int, ...] | None
    queues: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """A solver's choice in terms of the tables; `layout` indexes `ProblemTables.layouts`."""

    instances: tuple[SelectedInstance, ...]
    layout: int | None = None


@dataclass(frozen=True, slots=True)
class StageClaim:
    """What a solver claims of one objective: its plan's value and a proven bound, or None."""

    name: str
    value: Fraction | None
    bound: Fraction | None


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """What to solve and within which limits.

    `deadline` is a `time.monotonic()` value; `stop` may be set from another thread to end early.
    `on_selection` hears of every better selection found. `ceilings` are constraints;
    deployments in `excluded` do not count, and where one is `required` no other does (mixed
    searches only). `is_whole` says that the tables
    hold every plan of their instance.
    """

    tables: ProblemTables
    terms: tuple[Term, ...]
    deadline: float
    threads: int = 1
    seed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    on_selection: Callable[[Selection], None] | None = None
    ceilings: tuple[Ceiling, ...] = ()
    excluded: tuple[DeploymentCounts, ...] = ()
    required: DeploymentCounts | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one formulation found: claims, not yet verified."""

    solver: str
    termination: Termination
    selection: Selection | None
    claims: tuple[StageClaim, ...]
    reason: str = ""


class Formulation(Protocol):
    """A statement of the deployment decision on one backend."""

    name: str

    def unavailable(self) -> str | None:
        """Return why the backend cannot run on this machine, or None."""
        ...

    def version(self) -> str:
        """Return the backend's name and version."""
        ...

    def solve(self, request: SolveRequest) -> Outcome:
        """Solve; raises TooLargeError when the problem is beyond this formulation."""
        ...
