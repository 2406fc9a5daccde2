"""The placement of ranks on cards as an integer program (see placement.md).

One statement for CP-SAT, HiGHS and CBC. Every phase takes one of finitely many times, its levels;
the program chooses domains of ranks and a level for each phase. Times that are no small whole
numbers are rounded down for solvers, and what rounding may hide is asked for afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from formulations.integer_program import IntegerProgram, ProgramOutcome, solve_program
from formulations.placement_data import (
    MAX_TICKS,
    PlacementData,
    Ticks,
    alike_ranks,
    build_data,
    disjoint_groups,
    levels_of,
    step_s,
    ticks_of,
    without_slow_levels,
)
from formulations.placement_levels import Level, load_weight
from optimizer.errors import MismatchError
from optimizer.placement.problem import PlacementAnswer, PlacementProblem
from optimizer.protocols import Termination

#: More combinations of levels than this are not asked for one by one.
MAX_COMBINATIONS = 400


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """How a solve ended: a placement with its exact time, and a proven lower bound; seconds."""

    termination: Termination
    answer: PlacementAnswer | None = None
    value: Fraction | None = None
    bound: Fraction | None = None


@dataclass(frozen=True, slots=True)
class PlacementModel:
    """The program and its variables: by rank and domain, by group, domain and size, by level."""

    data: PlacementData
    program: IntegerProgram
    on: dict[tuple[int, int], int]
    part: dict[tuple[frozenset[int], int, int], int]
    at: dict[tuple[int, int], int]

    def domains(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the domain of every rank."""
        taken = {rank: d for (rank, d), v in self.on.items() if values[v]}
        return tuple(taken[rank] for rank in range(self.data.problem.num_ranks))


def build_model(data: PlacementData, ticks: Ticks | None) -> PlacementModel:
    """State the program; without ticks any placement will do."""
    program, ranks = IntegerProgram("placement"), range(data.problem.num_ranks)
    on = {(r, d): program.add_variable(f"on[{r},{d}]", 0, 1) for r in ranks for d in data.domains}
    part = {
        (group, d, size): program.add_variable(f"part[{g},{d},{size}]", 0, 1)
        for g, group in enumerate(data.groups)
        for d in data.domains
        for size in range(1, min(len(group), data.room(d)) + 1)
    }
    at = {
        (k, number): program.add_variable(f"at[{k},{number}]", 0, 1)
        for k, levels in enumerate(data.usable)
        for number in range(len(levels))
    }
    m = PlacementModel(data, program, on, part, at)
    define_ranks(m)
    define_parts(m)
    define_whole_parts(m)
    define_levels(m)
    define_all_ranks_in_sizes(m)
    define_exits(m)
    define_symmetry(m)
    if ticks is not None:
        program.minimise({v: ticks.of[k][number] for (k, number), v in at.items()})
    return m


def define_ranks(m: PlacementModel) -> None:
    """Every rank has a domain, and no domain more ranks than free cards."""
    ranks = range(m.data.problem.num_ranks)
    for rank in ranks:
        m.program.add_row(f"once[{rank}]", {m.on[rank, d]: 1 for d in m.data.domains}, 1, 1)
    for d in m.data.domains:
        m.program.add_row(f"room[{d}]", {m.on[rank, d]: 1 for rank in ranks}, None, m.data.room(d))


def define_parts(m: PlacementModel) -> None:
    """A group has one number of ranks in each domain: those that are there."""
    for g, group in enumerate(m.data.groups):
        for d in m.data.domains:
            sizes = range(1, min(len(group), m.data.room(d)) + 1)
            m.program.add_row(
                f"one_part[{g},{d}]", {m.part[group, d, size]: 1 for size in sizes}, None, 1
            )
            counted = {m.part[group, d, size]: size for size in sizes}
            present = {m.on[rank, d]: -1 for rank in sorted(group)}
            m.program.add_row(f"counted[{g},{d}]", counted | present, 0, 0)


def define_whole_parts(m: PlacementModel) -> None:
    """Of groups that share no rank, a domain has parts of n or more only as often as n fits.

    Whole ranks keep this anyway; it keeps fractions of them from filling what is left over.
    """
    for f, family in enumerate(disjoint_groups(m.data.groups)):
        most = len(family[0])
        for d in m.data.domains:
            for least in range(2, min(most, m.data.room(d)) + 1):
                sizes = range(least, min(most, m.data.room(d)) + 1)
                if m.data.room(d) % least:
                    terms = {m.part[group, d, size]: 1 for group in family for size in sizes}
                    fitting = m.data.room(d) // least
                    m.program.add_row(f"whole[{f},{d},{least}]", terms, None, fitting)


def define_levels(m: PlacementModel) -> None:
    """Every phase has a level, and its groups have only parts of sizes that the level admits."""
    for k, (phase, levels) in enumerate(zip(m.data.problem.phases, m.data.usable, strict=True)):
        m.program.add_row(f"level[{k}]", {m.at[k, n]: 1 for n in range(len(levels))}, 1, 1)
        classes: dict[tuple[int, ...], list[int]] = {}
        for size in range(1, phase.group_ranks + 1):
            admitting = tuple(n for n, level in enumerate(levels) if size in level.sizes)
            if len(admitting) < len(levels):
                classes.setdefault(admitting, []).append(size)
        for g, group in enumerate(phase.groups):
            for d in m.data.domains:
                for number, (admitting, sizes) in enumerate(classes.items()):
                    found = (m.part.get((frozenset(group), d, size)) for size in sizes)
                    terms = {v: 1 for v in found if v is not None}
                    if terms:
                        terms |= {m.at[k, n]: -1 for n in admitting}
                        m.program.add_row(f"sizes[{k},{g},{d},{number}]", terms, None, 0)


def define_all_ranks_in_sizes(m: PlacementModel) -> None:
    """All ranks of a group lie in parts of a size that the level admits.

    This follows from `define_levels` for whole choices; it holds fractions of several together.
    """
    for k, (phase, levels) in enumerate(zip(m.data.problem.phases, m.data.usable, strict=True)):
        for number, sizes in enumerate(sorted({level.sizes for level in levels}, key=sorted)):
            within = [m.at[k, n] for n, level in enumerate(levels) if level.sizes <= sizes]
            if len(within) == len(levels):
                continue
            for g, group in enumerate(phase.groups):
                found = (
                    (m.part.get((frozenset(group), d, s)), s) for d in m.data.domains for s in sizes
                )
                terms = {v: size for v, size in found if v is not None}
                terms |= dict.fromkeys(within, -phase.group_ranks)
                m.program.add_row(f"in_sizes[{k},{g},{number}]", terms, 0, None)


def define_exits(m: PlacementModel) -> None:
    """What groups put on the exit of a domain is no more than the level admits."""
    if m.data.problem.exit_bytes_per_s is None:
        return
    for k, (phase, levels) in enumerate(zip(m.data.problem.phases, m.data.usable, strict=True)):
        limit = {m.at[k, n]: -level.most_load for n, level in enumerate(levels)}
        for d in m.data.domains:
            if phase.operation != "send":
                load = {
                    m.part[frozenset(group), d, size]: load_weight(phase, size)
                    for group in phase.groups
                    for size in range(1, min(phase.group_ranks, m.data.room(d)) + 1)
                }
                m.program.add_row(f"exit[{k},{d}]", load | limit, None, 0)
                continue
            # a pair leaves a domain if its sender is there and not both are
            both = dict[int, int]()
            for pair in phase.groups if m.data.room(d) > 1 else ():
                v = m.part[frozenset(pair), d, 2]
                both[v] = both.get(v, 0) - 1  # two ranks may send to each other
            for side, name in ((0, "leave"), (1, "enter")):
                ends = {m.on[pair[side], d]: 1 for pair in phase.groups}
                m.program.add_row(f"{name}[{k},{d}]", ends | both | limit, None, 0)


def define_symmetry(m: PlacementModel) -> None:
    """Of domains with equal room the earlier ones come first, and of ranks that are alike."""
    data = m.data
    last: dict[int, int] = {}
    for d in data.domains:
        room = len(data.problem.free_cards[d])
        if room in last:
            for rank in range(data.problem.num_ranks):
                terms = {m.on[r, last[room]]: -1 for r in range(rank)}
                m.program.add_row(f"first[{rank},{d}]", terms | {m.on[rank, d]: 1}, None, 0)
        last[room] = d
    for a, b in alike_ranks(data.problem):
        places = {d: place for place, d in enumerate(data.domains)}
        before = {m.on[a, d]: place for d, place in places.items()}
        after = {m.on[b, d]: -place for d, place in places.items()}
        m.program.add_row(f"alike[{a},{b}]", before | after, None, 0)


@dataclass(frozen=True, slots=True)
class _Run:
    """One solver with its options."""

    backend: str
    deadline: float
    threads: int
    seed: int
    stop: threading.Event | None

    def __call__(self, m: PlacementModel) -> ProgramOutcome:
        return solve_program(
            m.program,
            self.backend,
            deadline=self.deadline,
            threads=self.threads,
            seed=self.seed,
            stop=self.stop,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A placement with its levels and its time in s."""

    value_s: Fraction
    domains: tuple[int, ...]
    levels: tuple[Level, ...]


def solve_placement(
    problem: PlacementProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    incumbent: PlacementAnswer | None = None,
) -> PlacementOutcome:
    """Place the ranks so that a step's exchanges take least time, with a proof if time allows.

    `incumbent` is a placement to beat. Raises TooLargeError and BackendUnavailable as
    `solve_program` does.
    """
    if problem.num_free_cards < problem.num_ranks:
        return PlacementOutcome(Termination.INFEASIBLE)
    data = build_data(problem)
    if not all(data.levels):
        return PlacementOutcome(Termination.INFEASIBLE)
    best = None if incumbent is None else _judge(data, incumbent.domains)
    if best is not None:
        if best.value_s == data.floor_s:
            return _outcome(best, best.value_s)
        data = without_slow_levels(data, best.value_s)
    ticks, run = ticks_of(data, MAX_TICKS[backend]), _Run(backend, deadline, threads, seed, stop)
    m = build_model(data, ticks)
    outcome = run(m)
    if outcome.termination is Termination.INFEASIBLE:
        if best is not None:
            raise MismatchError(f"{backend} finds no placement, but there is one")
        return PlacementOutcome(Termination.INFEASIBLE)
    if outcome.values is not None:
        found = _judge(data, m.domains(outcome.values))
        if best is None or found.value_s < best.value_s:
            best = found
    if best is None:
        return PlacementOutcome(Termination.NO_SOLUTION_FOUND)
    bound_s = data.floor_s + (outcome.bound or 0) * ticks.unit_s
    if outcome.termination is Termination.OPTIMAL and not ticks.is_exact:
        assert outcome.objective is not None
        best, bound_s = _close(data, ticks, outcome.objective, best, run)
    return _outcome(best, min(bound_s, best.value_s))


def _judge(data: PlacementData, domains: tuple[int, ...]) -> _Found:
    """Return a placement with its exact time; raises MismatchError for one that cannot be."""
    room = data.problem.room
    is_legal = len(domains) == data.problem.num_ranks and all(
        0 <= d < len(room) and domains.count(d) <= room[d] for d in set(domains)
    )
    levels = levels_of(data, domains) if is_legal else None
    if levels is None:
        raise MismatchError(f"no legal placement: {domains}")
    return _Found(step_s(data, levels), domains, levels)


def _outcome(best: _Found, bound_s: Fraction) -> PlacementOutcome:
    ended = Termination.OPTIMAL if bound_s == best.value_s else Termination.FEASIBLE
    answer = PlacementAnswer(best.domains, tuple(level.algorithm for level in best.levels))
    return PlacementOutcome(ended, answer, best.value_s, bound_s)


def _close(
    data: PlacementData, ticks: Ticks, least: int, best: _Found, run: _Run
) -> tuple[_Found, Fraction]:
    """Ask for every combination of levels that rounding may have hidden, fastest first.

    `least` is the least sum of rounded times. Returns the best placement and a bound.
    """
    proven_s = data.floor_s + least * ticks.unit_s
    chosen = list(_combinations(data, ticks, least, best.value_s))
    if len(chosen) > MAX_COMBINATIONS:
        return best, proven_s
    for seconds, levels in sorted(chosen, key=lambda pair: pair[0]):
        fixed = replace(data, usable=tuple((level,) for level in levels))
        m = build_model(fixed, None)
        outcome = run(m)
        if outcome.values is not None:
            found = _judge(data, m.domains(outcome.values))
            return min(found, best, key=lambda f: f.value_s), seconds
        if outcome.termination is not Termination.INFEASIBLE:
            return best, max(proven_s, seconds)
    return best, best.value_s


def _combinations(
    data: PlacementData, ticks: Ticks, least: int, value_s: Fraction
) -> Iterator[tuple[Fraction, tuple[Level, ...]]]:
    """Yield levels with a rounded sum of at least `least` and a time below `value_s`, with that.

    One more than `MAX_COMBINATIONS` at most.
    """
    count = len(data.usable)
    most = [max(of) for of in ticks.of]
    fastest = [data.seconds(k, levels[0]) for k, levels in enumerate(data.usable)]
    num_found = 0

    def visit(
        k: int, seconds: Fraction, rounded: int, chosen: tuple[Level, ...]
    ) -> Iterator[tuple[Fraction, tuple[Level, ...]]]:
        nonlocal num_found
        if num_found > MAX_COMBINATIONS or rounded + sum(most[k:]) < least:
            return
        if k == count:
            num_found += 1
            yield seconds, chosen
            return
        for level, tick in zip(data.usable[k], ticks.of[k], strict=True):
            taken = seconds + data.seconds(k, level)
            if taken + sum(fastest[k + 1 :]) >= value_s:
                break
            yield from visit(k + 1, taken, rounded + tick, (*chosen, level))

    return visit(0, Fraction(0), 0, ())
