"""Sets and parameters of the placement of experts, as the statement and its bounds need them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from optimizer.experts.problem import ExpertProblem

#: For each expert the groups that hold a copy of it.
Placement = tuple[tuple[int, ...], ...]

#: A row of loads stays below this; larger counts are rounded down to a coarser step.
MAX_ROW = 2**31 - 1
#: Largest weight of the excess in reading rows: it only speeds up the raising of the bound.
MAX_READ_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class ExpertClass:
    """Experts with the same count."""

    count: int
    experts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of experts."""
        return len(self.experts)


@dataclass(frozen=True, slots=True)
class ExpertData:
    """Sets and parameters: classes from hottest to coldest, copies, slots, and steps of load.

    A load of `steps` is one assignment; rows count loads in units of `unit` steps.
    """

    problem: ExpertProblem
    classes: tuple[ExpertClass, ...]
    max_extra: int
    max_copies: int
    slots: tuple[int, ...]
    steps: int
    unit: int
    read_weight: int

    @property
    def total(self) -> int:
        """All load, in steps."""
        return self.steps * sum(self.problem.counts)

    @property
    def num_active(self) -> int:
        """Experts with work."""
        return sum(count > 0 for count in self.problem.counts)

    def weight(self, count: int, copies: int) -> int:
        """Load of one of several copies, in units, rounded down."""
        return self.steps * count // (copies * self.unit)

    def max_active(self, g: int) -> int:
        """Most experts with work on a group."""
        return min(self.slots[g], self.num_active)

    def time_s(self, num_active: int, load: Fraction) -> Fraction:
        """Time of a group with so many experts with work and so much load, in assignments."""
        p = self.problem
        return max(p.read_s * num_active, p.compute_s * load) + p.transfer_s * load

    def step_time_s(self, num_active: int, load: int) -> Fraction:
        """Time of a group as above; load in steps."""
        return self.time_s(num_active, Fraction(load, self.steps))

    def compute_limit(self, bound_s: Fraction) -> int | None:
        """Largest load, in units, that computing and exchange allow within a time; None: any."""
        rate_s = self.problem.compute_s + self.problem.transfer_s
        if not rate_s:
            return None
        return min(self.steps * bound_s // rate_s, self.total) // self.unit

    def read_limit(self, bound_s: Fraction, num_active: int) -> int:
        """Largest load, in units, that reading and exchange allow; negative if none does."""
        left_s = bound_s - self.problem.read_s * num_active
        if left_s < 0:
            return -1
        if not self.problem.transfer_s:
            return self.total // self.unit
        return min(self.steps * left_s // self.problem.transfer_s, self.total) // self.unit


def build_data(problem: ExpertProblem) -> ExpertData:
    """Derive sets and parameters."""
    members: dict[int, list[int]] = {}
    for e, count in enumerate(problem.counts):
        members.setdefault(count, []).append(e)
    classes = tuple(ExpertClass(n, tuple(members[n])) for n in sorted(members, reverse=True))
    max_extra = problem.replica_budget_bytes // problem.expert_bytes
    copies = min(problem.max_copies, problem.num_groups, 1 + max_extra)
    slots = tuple(
        min(size // problem.expert_bytes, len(problem.counts)) for size in problem.capacity_bytes
    )
    steps = math.lcm(*range(1, copies + 1))
    rate_s, transfer_s = problem.compute_s + problem.transfer_s, problem.transfer_s
    read_weight = MAX_READ_WEIGHT
    if transfer_s:
        read_weight = max(1, min(rate_s // transfer_s, MAX_READ_WEIGHT))
    # shares with every number of copies, a limit for every number of experts, and the excess
    per_step = copies + max(slots, default=0) + 2 + read_weight
    unit = 1 + steps * sum(problem.counts) * per_step // MAX_ROW
    return ExpertData(problem, classes, max_extra, copies, slots, steps, unit, read_weight)


def placement_value_s(data: ExpertData, placement: Placement) -> Fraction:
    """Time of the busiest group."""
    loads = [Fraction(0)] * data.problem.num_groups
    active = [0] * data.problem.num_groups
    for count, groups in zip(data.problem.counts, placement, strict=True):
        for g in groups:
            loads[g] += Fraction(count, len(groups))
            active[g] += count > 0
    return max(data.time_s(a, load) for a, load in zip(active, loads, strict=True))


def placement_excess(data: ExpertData, placement: Placement, bound_s: Fraction) -> int:
    """How far a placement exceeds what a time allows, as the program counts it."""
    loads, active = [0] * data.problem.num_groups, [0] * data.problem.num_groups
    for count, groups in zip(data.problem.counts, placement, strict=True):
        for g in groups:
            loads[g] += data.weight(count, len(groups))
            active[g] += count > 0
    compute = data.compute_limit(bound_s)
    worst = 0
    for load, a in zip(loads, active, strict=True):
        over = load - data.read_limit(bound_s, a)
        worst = max(worst, -(-over // data.read_weight))
        if compute is not None:
            worst = max(worst, load - compute)
    return worst


def raised_bound_s(data: ExpertData, bound_s: Fraction, excess: int) -> Fraction:
    """Return what a group takes at least that exceeds what `bound_s` allows by `excess`."""
    if excess <= 0:
        return bound_s
    compute = data.compute_limit(bound_s)
    loads = [] if compute is None else [(0, compute + excess)]
    for a in range(max(map(data.max_active, range(data.problem.num_groups))) + 1):
        over = data.read_limit(bound_s, a) + data.read_weight * (excess - 1) + 1
        loads.append((a, max(over, 0)))
    times_s = [
        data.time_s(a, Fraction(data.unit * load, data.steps))
        for a, load in loads
        if load <= data.total // data.unit  # no group has more
    ]
    return max(bound_s, min(times_s, default=bound_s))


def is_legal(data: ExpertData, placement: Placement) -> bool:
    """Whether a placement from elsewhere keeps every rule."""
    p = data.problem
    held = [0] * p.num_groups
    for groups in placement:
        if not groups or len(set(groups)) < len(groups) or len(groups) > data.max_copies:
            return False
        for g in groups:
            if not 0 <= g < p.num_groups:
                return False
            held[g] += 1
    return (
        len(placement) == len(p.counts)
        and sum(held) - len(placement) <= data.max_extra
        and all(n <= most for n, most in zip(held, data.slots, strict=True))
        and (p.uneven or len(set(held)) == 1)
    )
