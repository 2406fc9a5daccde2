"""Where the experts of one mixture-of-experts layer stand: the data of that decision alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class ExpertProblem:
    """Place, and within a byte budget copy, the experts of one layer on groups of cards (6.3.2).

    The copies of an expert stand on different groups and share its assignments equally. A group
    reads each expert that has work there once, while it computes, and then exchanges:

        time = max(read_s · experts with work, compute_s · load) + transfer_s · load

    where its load is the sum of the shares on it. The layer ends with its busiest group, so the
    largest time is to be least. Raises ValueError for sizes and rates that mean nothing.
    """

    #: Assignments (token-expert pairs) of each expert in the measured window.
    counts: tuple[int, ...]
    #: Bytes of one expert on one card of a group; all experts are equally large.
    expert_bytes: int
    num_groups: int
    #: Bytes for experts on one card of each group.
    capacity_bytes: tuple[int, ...]
    #: Most copies of one expert; 1 means placement only.
    max_copies: int
    #: Bytes that all copies beyond the first of every expert may take together.
    replica_budget_bytes: int
    #: Time to read one resident expert once, per card of a group.
    read_s: Fraction
    #: Time to compute one assignment.
    compute_s: Fraction
    #: Time to dispatch one assignment into a group and combine its result.
    transfer_s: Fraction
    #: Whether groups may hold different numbers of experts. Some engines need them equal:
    #: (experts + extra copies) divisible by the groups.
    uneven: bool

    def __post_init__(self) -> None:
        if min(self.expert_bytes, self.num_groups, self.max_copies) < 1:
            raise ValueError("expert_bytes, num_groups and max_copies must be at least 1")
        if len(self.capacity_bytes) != self.num_groups:
            raise ValueError("capacity_bytes must have one entry for each group")
        amounts = (*self.counts, *self.capacity_bytes, self.replica_budget_bytes)
        if min(amounts) < 0 or min(self.read_s, self.compute_s, self.transfer_s) < 0:
            raise ValueError("counts, bytes and times must not be negative")
