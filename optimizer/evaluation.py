"""What the exact evaluator reports about a plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from optimizer.plan import CardId, SessionId

#: Unit of every objective's value.
OBJECTIVE_UNITS: dict[str, str] = {
    "makespan": "s",
    "max_latency": "s",
    "mean_completion": "s",
    "cost_per_on_time_session": "card*s",
    "occupied_card_seconds": "card*s",
    "energy": "J",
    "cards": "cards",
    "held_sessions": "sessions",
}

#: Objectives of which more is better; everything that compares plans sees them negated.
MAXIMISED = frozenset({"held_sessions"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule and by how much: `amount` is positive, in `unit`."""

    rule: str
    where: str
    amount: Fraction | int
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """When one session ran; times are None for a session that no legal serving instance serves."""

    session: SessionId
    instance: int | None
    start_s: Fraction | None
    finish_s: Fraction | None
    release_s: Fraction
    deadline_s: Fraction | None
    num_restarts: int

    @property
    def on_time(self) -> bool:
        """Whether the session ended, and by its deadline if it has one."""
        if self.finish_s is None:
            return False
        return self.deadline_s is None or self.finish_s <= self.deadline_s


@dataclass(frozen=True, slots=True)
class CardUse:
    """Bytes on one card that a serving instance owns; `capacity_bytes` is what may be used."""

    pool: str
    card: CardId
    instance: int
    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything on the card."""
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Exact account of a plan. Times in s, energy in J, all Fractions; None where undefined."""

    sessions: tuple[SessionOutcome, ...]
    cards: tuple[CardUse, ...]
    violations: tuple[Violation, ...]
    num_cards: int
    makespan_s: Fraction | None
    max_latency_s: Fraction | None
    mean_completion_s: Fraction | None
    occupied_card_s: Fraction | None
    energy_j: Fraction | None
    held_sessions: int | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def num_on_time(self) -> int:
        """Sessions that end by their deadline."""
        return sum(outcome.on_time for outcome in self.sessions)

    @property
    def cost_per_on_time_session(self) -> Fraction | None:
        """Occupied card-seconds over sessions on time (6-13); None when none is on time."""
        if self.occupied_card_s is None or not self.num_on_time:
            return None
        return self.occupied_card_s / self.num_on_time

    def objective(self, name: str) -> Fraction | None:
        """Return the exact value of an objective by its name; less is better, so what is to be

        maximised comes back negated.
        """
        values: dict[str, Fraction | None] = {
            "makespan": self.makespan_s,
            "max_latency": self.max_latency_s,
            "mean_completion": self.mean_completion_s,
            "cost_per_on_time_session": self.cost_per_on_time_session,
            "occupied_card_seconds": self.occupied_card_s,
            "energy": self.energy_j,
            "cards": Fraction(self.num_cards),
            "held_sessions": None if self.held_sessions is None else Fraction(-self.held_sessions),
        }
        return values[name]

    def shown_objective(self, name: str) -> Fraction | None:
        """Return the exact value of an objective as it is shown: never negated."""
        value = self.objective(name)
        return -value if value is not None and name in MAXIMISED else value
