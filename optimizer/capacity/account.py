"""What the exact evaluator reports about a capacity plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from optimizer.evaluation import Violation


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that may run out: how much of it a plan takes, and how much there is.

    `name` is what a planner calls it, such as "power", "servers of hgx" or "racks air"; `most` is
    None where nothing limits it.
    """

    name: str
    used: int
    most: int | None
    unit: str

    @property
    def left(self) -> int | None:
        """What is left; None without a limit."""
        return None if self.most is None else self.most - self.used


@dataclass(frozen=True, slots=True)
class PowerPart:
    """Watts that one part of the fleet draws: `count` times `each_w`."""

    name: str
    count: int
    each_w: int

    @property
    def watts(self) -> int:
        """All of them together."""
        return self.count * self.each_w


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """Sessions of every cohort that are served on time when one thing is lost."""

    kind: str
    name: str
    sessions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CapacityEvaluation:
    """Exact account of a capacity plan.

    `values` holds every goal that has a value, shown as it is (never negated); a quotient over no
    session has none. `sessions` counts those on time by cohort, `servers` those that are bought (of
    an existing fleet: in use) by pool, `racks` by site, `instances` serving instances by option,
    `endpoints` cards of all servers that are on, and `tiers` names the switches that they need.
    """

    values: dict[str, Fraction]
    sessions: tuple[int, ...]
    after: tuple[EventOutcome, ...]
    servers: tuple[int, ...]
    racks: tuple[int, ...]
    instances: tuple[int, ...]
    endpoints: int
    tiers: tuple[str, ...]
    power: tuple[PowerPart, ...]
    resources: tuple[Resource, ...]
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def power_w(self) -> int:
        """Watts that everything draws."""
        return sum(part.watts for part in self.power)
