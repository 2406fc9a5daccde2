"""The experts of one layer on groups of cards, stated once as an integer program.

Experts with equal counts are one class and counted, not named. The time of the busiest group is
not a variable: one program asks how far loads must exceed what a proven bound allows, in whole
steps of load, and its answer raises the bound until a placement meets it. See experts.md.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.expert_bounds import first_bound_s
from formulations.expert_data import (
    ExpertData,
    Placement,
    build_data,
    is_legal,
    placement_excess,
    placement_value_s,
    raised_bound_s,
)
from formulations.integer_program import IntegerProgram, solve_program
from optimizer.errors import MismatchError
from optimizer.experts.problem import ExpertProblem
from optimizer.protocols import Termination


@dataclass(frozen=True, slots=True)
class ExpertOutcome:
    """How a solve ended: a placement with its exact time, and a proven lower bound; seconds."""

    termination: Termination
    placement: Placement | None = None
    value: Fraction | None = None
    bound: Fraction | None = None


@dataclass(frozen=True, slots=True)
class ExpertModel:
    """The program, and its variables by class, number of copies, and group."""

    data: ExpertData
    bound_s: Fraction
    program: IntegerProgram
    copies: dict[tuple[int, int], int]
    on: dict[tuple[int, int, int], int]
    excess: int

    @property
    def groups(self) -> range:
        """All groups."""
        return range(self.data.problem.num_groups)

    def on_group(self, g: int, is_active: bool = False) -> dict[int, int]:
        """Terms that count the experts on a group, or those with work there."""
        return {
            v: 1
            for (c, at, _), v in self.on.items()
            if at == g and (self.data.classes[c].count or not is_active)
        }

    def load(self, g: int) -> dict[int, int]:
        """Terms of a group's load, in units."""
        classes, weight = self.data.classes, self.data.weight
        return {v: weight(classes[c].count, r) for (c, at, r), v in self.on.items() if at == g}


def build_model(data: ExpertData, bound_s: Fraction, max_excess: int | None) -> ExpertModel:
    """State: how far must the loads of some group exceed what a time allows?"""
    program = IntegerProgram("experts")
    most = data.total // data.unit + 1 if max_excess is None else max_excess
    copies: dict[tuple[int, int], int] = {}
    on: dict[tuple[int, int, int], int] = {}
    for c, group in enumerate(data.classes):
        for r in range(1, data.max_copies + 1):
            copies[c, r] = program.add_variable(f"copies[{c},{r}]", 0, group.size)
            for g in range(data.problem.num_groups):
                on[c, g, r] = program.add_variable(f"on[{c},{g},{r}]", 0, group.size)
    excess = program.add_variable("excess", 0, most)
    m = ExpertModel(data, bound_s, program, copies, on, excess)
    define_copies(m)
    define_replica_budget(m)
    define_memory(m)
    define_even_groups(m)
    define_compute_time(m)
    define_read_time(m)
    define_symmetry(m)
    program.minimise({excess: 1})
    return m


def define_copies(m: ExpertModel) -> None:
    """Every expert has one number of copies, and they stand on different groups."""
    for c, group in enumerate(m.data.classes):
        numbers = range(1, m.data.max_copies + 1)
        m.program.add_row(
            f"once[{c}]", {m.copies[c, r]: 1 for r in numbers}, group.size, group.size
        )
        for r in numbers:
            placed = {m.on[c, g, r]: 1 for g in m.groups}
            m.program.add_row(f"placed[{c},{r}]", placed | {m.copies[c, r]: -r}, 0, 0)
            for g in m.groups:
                terms = {m.on[c, g, r]: 1, m.copies[c, r]: -1}
                m.program.add_row(f"different[{c},{g},{r}]", terms, None, 0)


def define_replica_budget(m: ExpertModel) -> None:
    """Extra copies fit into their budget."""
    extra = {v: r - 1 for (_, r), v in m.copies.items()}
    m.program.add_row("replica_budget", extra, None, m.data.max_extra)


def define_memory(m: ExpertModel) -> None:
    """The experts of a group fit into a card of it."""
    for g in m.groups:
        m.program.add_row(f"memory[{g}]", m.on_group(g), None, m.data.slots[g])


def define_even_groups(m: ExpertModel) -> None:
    """All groups hold equally many experts, unless they may be uneven."""
    if m.data.problem.uneven:
        return
    held = m.program.add_variable("held", 0, min(m.data.slots))
    for g in m.groups:
        m.program.add_row(f"even[{g}]", m.on_group(g) | {held: -1}, 0, 0)


def define_compute_time(m: ExpertModel) -> None:
    """Computing and exchange stay within the time, up to the excess."""
    limit = m.data.compute_limit(m.bound_s)
    if limit is None:
        return
    for g in m.groups:
        m.program.add_row(f"compute[{g}]", m.load(g) | {m.excess: -1}, None, limit)


def define_read_time(m: ExpertModel) -> None:
    """Reading and exchange stay within the time, up to the weighted excess.

    How much load a group may have depends on how many experts it reads, so that number is chosen.
    """
    data, compute = m.data, m.data.compute_limit(m.bound_s)
    for g in m.groups:
        limits = [data.read_limit(m.bound_s, a) for a in range(data.max_active(g) + 1)]
        if compute is not None and limits[-1] >= compute:
            continue
        active = [m.program.add_variable(f"is_active[{g},{a}]", 0, 1) for a in range(len(limits))]
        m.program.add_row(f"one_number[{g}]", dict.fromkeys(active, 1), 1, 1)
        counted = {v: -a for a, v in enumerate(active)}
        m.program.add_row(f"active[{g}]", m.on_group(g, is_active=True) | counted, 0, 0)
        allowed = {v: -limit for v, limit in zip(active, limits, strict=True)}
        terms = m.load(g) | allowed | {m.excess: -data.read_weight}
        m.program.add_row(f"read[{g}]", terms, None, 0)


def define_symmetry(m: ExpertModel) -> None:
    """Of groups with equally many slots, earlier ones hold no fewer of the hottest experts."""
    if not m.data.classes:
        return
    last: dict[int, int] = {}
    for g in m.groups:
        key = m.data.slots[g] if m.data.problem.uneven else 0
        if key in last:
            numbers = range(1, m.data.max_copies + 1)
            before = {m.on[0, last[key], r]: 1 for r in numbers}
            terms = before | {m.on[0, g, r]: -1 for r in numbers}
            m.program.add_row(f"order[{g}]", terms, 0, None)
        last[key] = g


def extract(m: ExpertModel, values: Sequence[int]) -> Placement:
    """Name the experts of every class and deal their copies so that none gets a group twice."""
    groups_of: dict[int, tuple[int, ...]] = {}
    for c, group in enumerate(m.data.classes):
        waiting = iter(group.experts)
        for r in range(1, m.data.max_copies + 1):
            num = values[m.copies[c, r]]
            seats = [g for g in m.groups for _ in range(values[m.on[c, g, r]])]
            for i in range(num):
                groups_of[next(waiting)] = tuple(seats[i::num])
    return tuple(groups_of[e] for e in range(len(groups_of)))


def solve_experts(
    problem: ExpertProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    incumbent: Placement | None = None,
) -> ExpertOutcome:
    """Place the experts so that the busiest group takes least, with a proof if time allows.

    `incumbent` is a placement to beat; a solver is then asked only for better ones. Raises
    TooLargeError and BackendUnavailable as `solve_program` does.
    """
    data = build_data(problem)
    best: tuple[Fraction, Placement] | None = None
    if incumbent is not None:
        if not is_legal(data, incumbent):
            raise MismatchError("the placement to beat breaks a rule")
        best = placement_value_s(data, incumbent), incumbent
    bound_s = first_bound_s(data)
    while best is None or best[0] > bound_s:
        reached = None if best is None else placement_excess(data, best[1], bound_s)
        if reached == 0:
            break  # coarse units cannot tell it from the bound
        m = build_model(data, bound_s, None if reached is None else reached - 1)
        outcome = solve_program(
            m.program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
        )
        excess = outcome.bound or 0
        if outcome.termination is Termination.INFEASIBLE:
            if reached is None:
                return ExpertOutcome(Termination.INFEASIBLE)
            excess = reached
        if outcome.values is not None:
            placement = extract(m, outcome.values)
            value_s = placement_value_s(data, placement)
            if best is None or value_s < best[0]:
                best = value_s, placement
        before_s, bound_s = bound_s, raised_bound_s(data, bound_s, excess)
        is_proof = outcome.termination in (Termination.OPTIMAL, Termination.INFEASIBLE)
        if not is_proof or bound_s == before_s:
            break
    if best is None:
        return ExpertOutcome(Termination.NO_SOLUTION_FOUND, bound=bound_s)
    is_met = best[0] <= bound_s
    ended = Termination.OPTIMAL if is_met else Termination.FEASIBLE
    return ExpertOutcome(ended, best[1], best[0], min(bound_s, best[0]))
