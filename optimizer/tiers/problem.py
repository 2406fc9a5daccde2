"""Data of one decision: which tier of memory holds which class of data (6.6.3, 6.7.4)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

#: What may be optimised, and in which unit.
GOAL_UNITS = {
    "sessions": "sessions",
    "user_rate": "tokens/s",
    "throughput_per_card": "tokens/s",
    "throughput_per_price": "tokens/s per price an hour",
}
TierGoal = Literal["sessions", "user_rate", "throughput_per_card", "throughput_per_price"]

#: A home, and the tier that its copy is read from; None: it is read at home.
Place = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a step costs besides reading; `first_block_share` of it hides prefetched lookups.

    A step makes `tokens_per_step` tokens of every session.
    """

    num_cards: int = 1
    tokens_per_step: int = 1
    peak_flops_per_s: Fraction | None = None
    fixed_flops: Fraction = Fraction(0)
    flops_per_session: Fraction = Fraction(0)
    communication_s: Fraction = Fraction(0)
    communication_s_per_session: Fraction = Fraction(0)
    fixed_s: Fraction = Fraction(0)
    balance: Fraction = Fraction(1)
    first_block_share: Fraction = Fraction(0)
    price_per_hour: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class Tier:
    """Memory: bytes it holds, how fast it is read (6-12) and written, over which path."""

    name: str
    capacity_bytes: int
    bytes_per_s: Fraction
    path: int
    write_bytes_per_s: Fraction
    round_trip_s: Fraction = Fraction(0)
    #: Random reads a second; None for as many as are wanted.
    max_reads_per_s: Fraction | None = None
    price_per_hour: Fraction = Fraction(0)
    is_writable: bool = True
    #: Of ROM, which is measured by its area.
    bytes_per_mm2: int | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """A class of data: what it takes, and what a step reads of it, fixed and for each session."""

    name: str
    #: Tiers that it may lie in.
    tiers: tuple[int, ...]
    bytes: int = 0
    bytes_per_session: int = 0
    read_bytes: Fraction = Fraction(0)
    read_bytes_per_session: Fraction = Fraction(0)
    write_bytes_per_session: Fraction = Fraction(0)
    lookups: int = 0
    lookups_per_session: int = 0
    lookup_bytes: int = 0
    is_prefetched: bool = False
    is_written: bool = False
    #: Whether it may be fetched, as a whole, once a step and be read from the copy.
    may_copy: bool = False
    resumes_per_s: Fraction = Fraction(0)
    resume_bytes: int = 0
    #: None stands for any time.
    max_resume_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class TierPlan:
    """The home of every class, the tier of its copy if it has one, and the number of sessions."""

    homes: tuple[int | None, ...]
    copies: tuple[int | None, ...]
    num_sessions: int


@dataclass(frozen=True, slots=True)
class TierProblem:
    """Place all data so that the goal is best.

    A step of n sessions takes T seconds (6-15):

    - Path p carries resumes of idle sessions for the share r of all time, which leaves 1 - r of it
      to steps. load(p) is the sum over what is read, written or looked up ahead there, in bytes
      over bytes a second, over 1 - r.
    - even = max(load of any path, computing) / balance + communication + fixed.
    - Prefetched lookups of a path follow one another, each a round trip, its bytes, and its random
      reads at `max_reads_per_s`. What the slowest path takes longer than `first_block_share` of
      even is added to it.
    - So is what the step waits for with nothing else to do: every lookup that is not prefetched,
      one after another, and the fetch of every copy.

    Raises ValueError for numbers that do not fit.
    """

    machine: Machine
    paths: tuple[str, ...]
    tiers: tuple[Tier, ...]
    classes: tuple[Data, ...]
    goal: TierGoal
    min_sessions: int = 1
    max_sessions: int = 1_000_000
    step_target_s: Fraction | None = None

    def __post_init__(self) -> None:
        if not self.tiers or not self.classes:
            raise ValueError("a decision of tiers needs a tier and a class of data")
        if not 1 <= self.min_sessions <= self.max_sessions:
            raise ValueError("sessions are at least 1, and no fewer at most than at least")
        for names in ([t.name for t in self.tiers], [c.name for c in self.classes]):
            if len(set(names)) != len(names):
                raise ValueError("tiers and classes need names of their own")
        for tier in self.tiers:
            if tier.bytes_per_s <= 0 or tier.write_bytes_per_s <= 0 or tier.capacity_bytes < 0:
                raise ValueError(f"tier {tier.name!r}: speeds are above 0, capacities 0 or more")
            if not 0 <= tier.path < len(self.paths):
                raise ValueError(f"tier {tier.name!r} is on no path")
        for data in self.classes:
            if any(not 0 <= t < len(self.tiers) for t in data.tiers):
                raise ValueError(f"class {data.name!r} lists a tier that is not there")
        if self.goal == "throughput_per_price" and self.machine.price_per_hour <= 0:
            raise ValueError("throughput per price needs a machine that has one")
        if not 0 < self.machine.balance <= 1 or not 0 <= self.machine.first_block_share <= 1:
            raise ValueError("balance and first_block_share are shares")

    def places(self, c: int) -> tuple[Place, ...]:
        """Places that a class may have: homes it lists that may be written if it is, and copies.

        A copy lies in any other tier that may be written.
        """
        data = self.classes[c]
        homes = [t for t in data.tiers if self.tiers[t].is_writable or not data.is_written]
        found: list[Place] = [(home, None) for home in homes]
        if data.may_copy:
            found += [
                (home, t)
                for home in homes
                for t, tier in enumerate(self.tiers)
                if t != home and tier.is_writable
            ]
        return tuple(found)
