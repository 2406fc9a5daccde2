"""What a placement of experts costs, exactly; its solver-free bound; and the oracle (6.3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

from optimizer.errors import TooLargeError
from optimizer.evaluation import Violation
from optimizer.experts.problem import ExpertProblem

#: For each expert the groups that hold a copy of it.
Placement = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ExpertEvaluation:
    """Exact account of a placement, per group; loads in assignments, times in s."""

    loads: tuple[Fraction, ...]
    active_experts: tuple[int, ...]
    resident_bytes: tuple[int, ...]
    times_s: tuple[Fraction, ...]
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def value_s(self) -> Fraction:
        """Time of the busiest group."""
        return max(self.times_s)

    @property
    def balance(self) -> Fraction | None:
        """Busiest load over average load: 1 is perfect; None when nothing is routed."""
        total = sum(self.loads)
        return max(self.loads) * len(self.loads) / total if total else None


def group_time_s(problem: ExpertProblem, num_active: int, load: Fraction) -> Fraction:
    """Reading overlaps computing (6-2), the exchange follows; seconds."""
    busy_s = max(problem.read_s * num_active, problem.compute_s * load)
    return busy_s + problem.transfer_s * load


def evaluate_experts(problem: ExpertProblem, placement: Placement) -> ExpertEvaluation:
    """Account for a placement and name every rule it breaks; never raises for a bad one.

    A group outside the problem and a second copy on the same group are violations and take
    no part in the account.
    """
    loads = [Fraction(0)] * problem.num_groups
    active = [0] * problem.num_groups
    resident = [0] * problem.num_groups
    for count, groups in zip(problem.counts, placement, strict=False):
        holders = sorted({g for g in groups if 0 <= g < problem.num_groups})
        for g in holders:
            loads[g] += Fraction(count, len(holders))
            active[g] += count > 0
            resident[g] += problem.expert_bytes
    times = [group_time_s(problem, a, load) for a, load in zip(active, loads, strict=True)]
    return ExpertEvaluation(
        loads=tuple(loads),
        active_experts=tuple(active),
        resident_bytes=tuple(resident),
        times_s=tuple(times),
        violations=(
            *_check_copies(problem, placement),
            *_check_replica_budget(problem, placement),
            *_check_groups(problem, resident),
        ),
    )


def _check_copies(problem: ExpertProblem, placement: Placement) -> Iterator[Violation]:
    """Every expert of the problem, and no other, on one to `max_copies` different groups."""
    num_experts = len(problem.counts)
    if len(placement) > num_experts:
        extra = len(placement) - num_experts
        message = f"the placement has {extra} experts more than the problem"
        yield Violation("copies", "placement", extra, "experts", message)
    for e in range(num_experts):
        groups = placement[e] if e < len(placement) else ()
        where = f"expert {e}"
        for g in groups:
            if not 0 <= g < problem.num_groups:
                off = -g if g < 0 else g - problem.num_groups + 1
                message = f"{where} is on group {g}, but groups are 0 to {problem.num_groups - 1}"
                yield Violation("group", where, off, "groups", message)
        if not groups:
            yield Violation("unplaced", where, 1, "experts", f"{where} is on no group")
        if len(groups) > problem.max_copies:
            over = len(groups) - problem.max_copies
            message = f"{where} has {len(groups)} copies, at most {problem.max_copies} are allowed"
            yield Violation("copies", where, over, "copies", message)
        twice = len(groups) - len(set(groups))
        if twice:
            message = f"{where} has several copies on one group"
            yield Violation("copies", where, twice, "copies", message)


def _check_replica_budget(problem: ExpertProblem, placement: Placement) -> Iterator[Violation]:
    extra = sum(max(len(groups) - 1, 0) for groups in placement)
    over = extra * problem.expert_bytes - problem.replica_budget_bytes
    if over > 0:
        message = f"{extra} extra copies exceed the replica budget by {over} bytes"
        yield Violation("replica_budget", "placement", over, "bytes", message)


def _check_groups(problem: ExpertProblem, resident: Sequence[int]) -> Iterator[Violation]:
    for g, (used, capacity) in enumerate(zip(resident, problem.capacity_bytes, strict=True)):
        if used > capacity:
            over = used - capacity
            message = f"group {g} is short of memory by {over} bytes per card"
            yield Violation("memory", f"group {g}", over, "bytes", message)
    if not problem.uneven and len(set(resident)) > 1:
        spread = (max(resident) - min(resident)) // problem.expert_bytes
        message = f"groups must hold equally many experts, they differ by {spread}"
        yield Violation("uneven_groups", "placement", spread, "experts", message)


def contiguous_placement(problem: ExpertProblem) -> Placement:
    """Place experts in index order in blocks, one copy each: what an engine does by default.

    Blocks are equal where the number of experts divides by the groups; else the first are one
    larger.
    """
    size, larger = divmod(len(problem.counts), problem.num_groups)
    sizes = [size + (g < larger) for g in range(problem.num_groups)]
    return tuple((g,) for g, block in enumerate(sizes) for _ in range(block))


def best_experts_exhaustively(
    problem: ExpertProblem, max_placements: int = 300_000
) -> tuple[Fraction, Placement] | None:
    """Evaluate every placement; the least value with the first that has it, None if none is legal.

    Raises TooLargeError when there are more than `max_placements`.
    """
    most = min(problem.max_copies, problem.num_groups)
    choices = [
        groups
        for copies in range(1, most + 1)
        for groups in combinations(range(problem.num_groups), copies)
    ]
    num_placements = len(choices) ** len(problem.counts)
    if num_placements > max_placements:
        raise TooLargeError(f"{num_placements} placements; the oracle takes {max_placements}")
    best: tuple[Fraction, Placement] | None = None
    for placement in product(choices, repeat=len(problem.counts)):
        evaluation = evaluate_experts(problem, placement)
        if evaluation.is_feasible and (best is None or evaluation.value_s < best[0]):
            best = evaluation.value_s, placement
    return best


def expert_bound(problem: ExpertProblem) -> Fraction:
    """Return a time that no placement beats, without a solver; seconds.

    The busiest group is no better than the average one, neither by load nor by reading plus
    exchange, and no better than a group that holds one copy of the hottest expert. Loads come in
    steps of 1 / lcm(1..copies).
    """
    extra = problem.replica_budget_bytes // problem.expert_bytes
    copies = min(problem.max_copies, problem.num_groups, 1 + extra)
    steps = math.lcm(*range(1, copies + 1))
    total = sum(problem.counts)
    least_load = max(
        Fraction(-(-steps * total // problem.num_groups), steps),
        Fraction(max(problem.counts, default=0), copies),
    )
    num_active = sum(count > 0 for count in problem.counts)
    if not problem.uneven and num_active == len(problem.counts):
        num_active = -(-num_active // problem.num_groups) * problem.num_groups
    reads_s = problem.read_s * num_active + problem.transfer_s * total
    return max(
        (problem.compute_s + problem.transfer_s) * least_load,
        group_time_s(problem, -(-num_active // problem.num_groups), Fraction(0)),
        reads_s / problem.num_groups,
    )
