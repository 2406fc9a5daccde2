"""The cut of layers into pipeline stages as an integer program (README, section "Stages")."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import IntegerProgram, solve_program
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.stages.problem import StageProblem

#: More intervals than this and the formulation declines: building rows would outlast most limits.
MAX_INTERVALS = 30_000


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a solve ended: layers per stage, the value of that cut, and a bound on all cuts.

    Value and bound are s (bound <= value) or tokens (bound >= value); tokens are None where memory
    does not limit them.
    """

    termination: Termination
    counts: tuple[int, ...] | None = None
    value: Fraction | int | None = None
    bound: Fraction | int | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """Layers first..end-1 on one stage, which fit there; `value` as in `StageOutcome`."""

    stage: int
    first: int
    end: int
    value: Fraction | int | None


def solve_stages(
    problem: StageProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> StageOutcome:
    """Cut the layers; `deadline` is a `time.monotonic()` value. Raises as `solve_program` does."""
    intervals = drop_useless(problem, allowed_intervals(problem))
    if len(intervals) > MAX_INTERVALS:
        raise TooLargeError(f"{len(intervals)} intervals; the formulation takes {MAX_INTERVALS}")
    values = ranked_values(problem, intervals)
    program = build_program(problem, intervals, values)
    found = solve_program(
        program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
    )
    bound = values[max(found.bound, 0)] if values and found.bound is not None else None
    if found.values is None:
        return StageOutcome(found.termination, bound=bound)
    taken = [i for i, x in zip(intervals, found.values, strict=False) if x]
    counts = tuple(i.end - i.first for i in taken)
    if [i.stage for i in taken] != list(range(len(problem.stages))):
        raise MismatchError(f"{backend} took intervals of stages {[i.stage for i in taken]}")
    rank = max(values.index(i.value) for i in taken)
    if found.termination is Termination.OPTIMAL:
        if rank != found.objective:
            raise MismatchError(f"{backend} claims rank {found.objective}, its cut has rank {rank}")
        bound = values[rank]
    return StageOutcome(found.termination, counts, values[rank], bound)


def allowed_intervals(problem: StageProblem) -> list[Interval]:
    """Return every run of layers that fits a stage and leaves a layer for each of the others.

    Sources come before their readers. So a source lies outside an interval exactly when it comes
    before the first layer, and what an interval costs depends on nothing but the interval.
    """
    num_layers, num_stages = len(problem.layers), len(problem.stages)
    found: list[Interval] = []
    for s in range(num_stages):
        is_last = s == num_stages - 1
        starts = range(s, num_layers - num_stages + s + 1) if s else range(1)
        for first in starts:
            ends = _intervals_from(problem, s, first)
            found += (i for i in ends if not is_last or i.end == num_layers)
    return found


def _intervals_from(problem: StageProblem, s: int, first: int) -> Iterator[Interval]:
    """Yield the allowed intervals from one layer, shortest first; the first misfit ends them."""
    stage, sources = problem.stages[s], set[int]()
    room, kv, time_s = stage.capacity_bytes - stage.extra_bytes, 0, stage.extra_time_s
    for number in range(first, len(problem.layers) - len(problem.stages) + s + 1):
        layer, source = problem.layers[number], problem.source_of(number)
        room -= layer.weight_bytes[s] + problem.num_sessions * layer.fixed_state_bytes[s]
        kv += layer.kv_bytes_per_token[s]
        time_s += layer.time_s[s]
        if source is not None and source < first and source not in sources:
            if problem.sharing == "same_stage":
                return
            sources.add(source)
            if problem.sharing == "copy":
                kv += problem.layers[source].kv_bytes_per_token[s]
            else:
                time_s += problem.remote_read_s
        if problem.held_tokens * kv > room:
            return
        tokens = room // kv if kv else None
        value = time_s if problem.goal == "slowest" else tokens
        yield Interval(s, first, number + 1, value)


def drop_useless(problem: StageProblem, intervals: list[Interval]) -> list[Interval]:
    """Leave out what is worse than the worst interval of the even cut: no best cut has that.

    Nothing is left out where the even cut is not allowed.
    """
    each, more = divmod(len(problem.layers), len(problem.stages))
    ends = [s * each + min(s, more) for s in range(len(problem.stages) + 1)]
    even = {(s, a, b) for s, (a, b) in enumerate(itertools.pairwise(ends))}
    rank_of = {value: rank for rank, value in enumerate(ranked_values(problem, intervals))}
    ranks = [rank_of[i.value] for i in intervals if (i.stage, i.first, i.end) in even]
    if len(ranks) < len(problem.stages):
        return intervals
    return [i for i in intervals if rank_of[i.value] <= max(ranks)]


def ranked_values(problem: StageProblem, intervals: list[Interval]) -> list[Fraction | int | None]:
    """Return the distinct values of intervals, best first: least time, or most tokens."""
    values = {i.value for i in intervals}
    known = sorted((v for v in values if v is not None), reverse=problem.goal == "tokens")
    return [None, *known] if None in values else [*known]


def build_program(
    problem: StageProblem, intervals: list[Interval], values: list[Fraction | int | None]
) -> IntegerProgram:
    """Build variables, constraints and the objective; variable x of an interval has its index."""
    program = IntegerProgram("stages")
    for i in intervals:
        program.add_variable(f"holds_{i.stage}_{i.first}_{i.end}", 0, 1)
    worst_rank = program.add_variable("worst_rank", 0, max(len(values) - 1, 0))
    define_depth(program, problem, intervals)
    define_worst_rank(program, problem, intervals, values, worst_rank)
    program.minimise({worst_rank: 1})
    return program


def define_depth(program: IntegerProgram, problem: StageProblem, intervals: list[Interval]) -> None:
    """The first stage starts at layer 0, each other one where the one before it ends.

    Intervals of the last stage end with the last layer, so it needs no row.
    """
    starts: dict[tuple[int, int], dict[int, int]] = {}
    ends: dict[tuple[int, int], dict[int, int]] = {}
    for x, i in enumerate(intervals):
        starts.setdefault((i.stage, i.first), {})[x] = 1
        ends.setdefault((i.stage, i.end), {})[x] = -1
    num_layers, last = len(problem.layers), len(problem.stages) - 1
    program.add_row("starts", starts.get((0, 0), {}), 1, 1)
    for s in range(last):
        for depth in range(1, num_layers):
            terms = {**ends.get((s, depth), {}), **starts.get((s + 1, depth), {})}
            if terms:
                program.add_row(f"depth_{s}_{depth}", terms, 0, 0)


def define_worst_rank(
    program: IntegerProgram,
    problem: StageProblem,
    intervals: list[Interval],
    values: list[Fraction | int | None],
    worst_rank: int,
) -> None:
    """The worst rank is at least the rank of what each stage holds."""
    rank_of = {value: rank for rank, value in enumerate(values)}
    for s in range(len(problem.stages)):
        ranks = {x: rank_of[i.value] for x, i in enumerate(intervals) if i.stage == s}
        program.add_row(f"rank_{s}", {**ranks, worst_rank: -1}, None, 0)
