"""Memory that nodes lend each other as an integer program (pooling.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from formulations.integer_program import MAX_SIZE, IntegerProgram, ProgramOutcome, solve_program
from formulations.pooling_rows import (
    Cover,
    Limit,
    Terms,
    WholeRow,
    common_part,
    cover,
    fits,
    largest_per,
    telling_row,
    whole_row,
)
from optimizer.errors import MismatchError, TooLargeError
from optimizer.pooling.problem import PoolPlan, PoolProblem, Way
from optimizer.protocols import Termination

#: Largest sum of the coefficients of a row of seconds. Whole numbers of a MILP solver may be off by
#: 1e-6, which must stay below half a unit of the row; CP-SAT is held by the row's size alone.
MAX_WEIGHT = {"cp-sat": MAX_SIZE // 4, "highs": 250_000, "cbc": 250_000}

#: How often a program with rounded rows is solved with finer rows at most.
MAX_ROUNDS = 200

#: How often a slowest read is asked to be beaten at most.
MAX_STRICT = 200

#: More ways of all items together than this and the formulation declines.
MAX_COLUMNS = 100_000


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """How a solve ended: a plan, its goals in their order, and bounds on those of all plans.

    The bound of a goal holds for plans that meet the bounds of all goals before it.
    """

    termination: Termination
    plan: PoolPlan | None = None
    value: tuple[Fraction, ...] | None = None
    bound: tuple[Fraction | None, ...] | None = None


@dataclass
class PoolModel:
    """Columns (item, way) and rows; `reads` and `loads` are sums of seconds, of a link each."""

    problem: PoolProblem
    columns: list[tuple[int, Way]] = field(default_factory=list)
    uppers: list[int] = field(default_factory=list)
    rows: list[tuple[str, dict[int, int], int | None, int | None]] = field(default_factory=list)
    reads: list[Terms] = field(default_factory=list)
    loads: list[Limit] = field(default_factory=list)

    @property
    def remote(self) -> dict[int, int]:
        """Reads from afar of a chunk in each column."""
        return {v: len(way.paths) for v, (_, way) in enumerate(self.columns) if way.paths}

    def slowest(self, values: Sequence[int]) -> Fraction:
        """Return the slowest read under values, exactly."""
        sums = (sum((w * values[v] for v, w in row.items()), Fraction(0)) for row in self.reads)
        return max(sums, default=Fraction(0))


def build_model(problem: PoolProblem) -> PoolModel:
    """State the decision; raises TooLargeError."""
    m = PoolModel(problem)
    for i, item in enumerate(problem.items):
        for way in problem.ways(i):
            room = problem.nodes[way.node].num_chunks
            lent = problem.nodes[way.node].max_lent_chunks
            if way.node != item.home and lent is not None:
                room = min(room, lent)
            m.columns.append((i, way))
            m.uppers.append(min(item.num_chunks, room))
        if len(m.columns) > MAX_COLUMNS:
            raise TooLargeError(f"more than {MAX_COLUMNS} ways to reach items")
    define_items(m)
    times = crowded_instants(problem)
    define_nodes(m, times)
    define_links(m, times)
    return m


def crowded_instants(problem: PoolProblem) -> list[frozenset[int]]:
    """Return what is held at each time, without times at which the next one holds it all, too.

    What is held at a time is held at some later time only if nothing of it ends until then, and so
    at the next one as well; at no earlier time, for something begins at each.
    """
    later = (*(at_s for at_s, _ in problem.moments[1:]), None)
    found = []
    for (_, held), next_s in zip(problem.moments, later, strict=False):
        ends = [problem.items[i].until_s for i in held]
        if next_s is None or any(end is not None and end <= next_s for end in ends):
            found.append(frozenset(held))
    return found


def define_items(m: PoolModel) -> None:
    """All chunks of an item are placed, enough of them at home."""
    placed: list[dict[int, int]] = [{} for _ in m.problem.items]
    at_home: list[dict[int, int]] = [{} for _ in m.problem.items]
    for v, (i, way) in enumerate(m.columns):
        placed[i][v] = 1
        if way.node == m.problem.items[i].home:
            at_home[i][v] = 1
    for i, item in enumerate(m.problem.items):
        m.rows.append((f"placed[{i}]", placed[i], item.num_chunks, item.num_chunks))
        if item.pinned_chunks:
            m.rows.append((f"pinned[{i}]", at_home[i], item.pinned_chunks, None))


def define_nodes(m: PoolModel, times: Sequence[frozenset[int]]) -> None:
    """A node holds no more than it can, and lends no more than it may."""
    for t, held in enumerate(times):
        all_on: list[dict[int, int]] = [{} for _ in m.problem.nodes]
        lent_on: list[dict[int, int]] = [{} for _ in m.problem.nodes]
        for v, (i, way) in enumerate(m.columns):
            if i in held:
                all_on[way.node][v] = 1
                if way.node != m.problem.items[i].home:
                    lent_on[way.node][v] = 1
        for n, node in enumerate(m.problem.nodes):
            m.rows.append((f"capacity[{n},{t}]", all_on[n], None, node.num_chunks))
            if node.max_lent_chunks is not None:
                m.rows.append((f"lent[{n},{t}]", lent_on[n], None, node.max_lent_chunks))


def define_links(m: PoolModel, times: Sequence[frozenset[int]]) -> None:
    """Seconds in which a link reads all that is far once, and what a second's arrivals take."""
    problem = m.problem
    seconds = [problem.chunk_s(p) for p in range(len(problem.paths))]
    for t, held in enumerate(times):
        reads: list[dict[int, Fraction]] = [{} for _ in problem.links]
        loads: list[dict[int, Fraction]] = [{} for _ in problem.links]
        for v, (i, way) in enumerate(m.columns):
            for p in way.paths if i in held and m.uppers[v] else ():
                link, rate = problem.paths[p].link, problem.items[i].reads_per_s
                reads[link][v] = reads[link].get(v, Fraction(0)) + seconds[p]
                if rate:
                    loads[link][v] = loads[link].get(v, Fraction(0)) + rate * seconds[p]
        m.reads += [row for row in reads if row]
        m.loads += [
            Limit(f"queue[{link},{t}]", row, Fraction(1)) for link, row in enumerate(loads) if row
        ]


def define_cover(program: IntegerProgram, row: Cover, uppers: Sequence[int]) -> None:
    """Some variable is smaller than its count."""
    if any(uppers[v] < count for v, count in row.counts.items()):
        return
    smaller = []
    for v, count in row.counts.items():
        chosen = program.add_variable(f"smaller[{v}]", 0, 1)
        gap = uppers[v] - count + 1
        program.add_row(f"{row.name}.smaller[{v}]", {v: 1, chosen: gap}, None, uppers[v])
        smaller.append(chosen)
    program.add_row(f"{row.name}.cover", dict.fromkeys(smaller, 1), 1, None)


@dataclass
class _Solver:
    """What solves a program, and the largest sum of coefficients that it takes in a row."""

    model: PoolModel
    run: Callable[[IntegerProgram], ProgramOutcome]
    most_weight: int

    def ask(self, limits: Sequence[Limit], goal: str) -> tuple[ProgramOutcome, Fraction]:
        """Return values that keep all limits exactly, best in a goal, and the goal's unit.

        Limits too fine for whole numbers are rounded down, and finer rows, or counts that are too
        many, are added while values break them. Without values that keep all, the bound still
        holds.
        """
        uppers = list(self.model.uppers)
        for limit in limits:
            for v in limit.terms:
                uppers[v] = min(uppers[v], max(limit.upper(v), 0))
            if limit.most < 0 or (limit.is_strict and not limit.most):
                return ProgramOutcome(Termination.INFEASIBLE), Fraction(1)
        rows: list[WholeRow | Cover] = [
            whole_row(limit, uppers, self.most_weight)[0] for limit in limits
        ]
        found, unit = ProgramOutcome(Termination.NO_SOLUTION_FOUND), Fraction(1)
        for _ in range(MAX_ROUNDS):
            program, unit = self.program(uppers, rows, goal)
            found = self.run(program)
            if found.values is None:
                return found, unit
            broken = [limit for limit in limits if not limit.is_kept(found.values)]
            if not broken:
                return found, unit
            for limit in broken:
                finer = telling_row(limit, found.values, uppers, self.most_weight)
                rows.append(finer or cover(limit, found.values))
        return ProgramOutcome(Termination.NO_SOLUTION_FOUND, bound=found.bound), unit

    def program(
        self, uppers: Sequence[int], rows: Sequence[WholeRow | Cover], goal: str
    ) -> tuple[IntegerProgram, Fraction]:
        """State a goal under whole rows; one of its objective is at least the unit returned."""
        m, program = self.model, IntegerProgram("pool")
        for (i, way), upper in zip(m.columns, uppers, strict=True):
            program.add_variable(f"holds[{i},{way.node}]", 0, upper)
        for name, terms, lower, most in m.rows:
            program.add_row(name, terms, lower, most)
        for row in rows:
            if isinstance(row, Cover):
                define_cover(program, row, uppers)
            else:
                program.add_row(row.name, row.units, None, row.most)
        if goal == "remote_bytes":
            program.minimise(m.remote)
            return program, Fraction(m.problem.chunk_bytes)
        per = self.units_per_s(uppers)
        reads = [{v: int(w * per) for v, w in row.items()} for row in m.reads]
        longest = max((sum(n * uppers[v] for v, n in row.items()) for row in reads), default=0)
        slowest = program.add_variable("slowest", 0, longest)
        for number, units in enumerate(reads):
            program.add_row(f"read[{number}]", {**units, slowest: -1}, None, 0)
        program.minimise({slowest: 1})
        return program, 1 / per

    def units_per_s(self, uppers: Sequence[int]) -> Fraction:
        """Return how many units make a second of the slowest read: exact if they are few."""
        most = self.most_weight // 2  # the other half is the slowest read's own
        rows = [{v: w for v, w in row.items() if uppers[v]} for row in self.model.reads]
        rows = [row for row in rows if row]
        if not rows:
            return Fraction(1)
        per = 1 / common_part([weight for row in rows for weight in row.values()])
        twice = [2 * upper for upper in uppers]
        if all(fits(row, per, twice, most) for row in rows):
            return per
        return min(largest_per(row, twice, most) for row in rows)


def solve_pool(
    problem: PoolProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> PoolOutcome:
    """Decide who lends to whom; `deadline` is a `time.monotonic()` value.

    Goals are optimised one after another, each among the plans that are best in those before it.
    Raises as `solve_program` does.
    """
    m = build_model(problem)
    run = partial(
        solve_program, backend=backend, deadline=deadline, threads=threads, seed=seed, stop=stop
    )
    solver = _Solver(m, run, MAX_WEIGHT.get(backend, MAX_SIZE))
    limits = list(m.loads)
    best: tuple[int, ...] | None = None
    bounds: list[Fraction | None] = []
    for goal in problem.goals:
        ended, values, bound = _optimised(solver, limits, goal)
        if ended is Termination.INFEASIBLE:
            if best is not None:
                raise MismatchError(f"{backend} finds no plan where it found one before")
            return PoolOutcome(ended)
        best, bounds = best if values is None else values, [*bounds, bound]
        if ended is not Termination.OPTIMAL or values is None:
            break
        limits += _kept(m, goal, values)
    missing = len(problem.goals) - len(bounds)
    bounds += [None] * missing
    if best is None:
        return PoolOutcome(Termination.NO_SOLUTION_FOUND, bound=tuple(bounds))
    counts = dict(zip(m.columns, best, strict=True))
    value = tuple(_value(m, goal, best) for goal in problem.goals)
    ended = Termination.OPTIMAL if tuple(bounds) == value else Termination.FEASIBLE
    return PoolOutcome(ended, problem.plan(counts), value, tuple(bounds))


def _value(m: PoolModel, goal: str, values: Sequence[int]) -> Fraction:
    if goal == "slowest_read":
        return m.slowest(values)
    chunks = sum(far * values[v] for v, far in m.remote.items())
    return Fraction(chunks * m.problem.chunk_bytes)


def _kept(m: PoolModel, goal: str, values: Sequence[int]) -> list[Limit]:
    """Return limits of plans that are as good in a goal."""
    if goal == "slowest_read":
        most = m.slowest(values)
        return [Limit(f"read[{number}]", row, most) for number, row in enumerate(m.reads)]
    chunks = sum(far * values[v] for v, far in m.remote.items())
    terms = {v: Fraction(far) for v, far in m.remote.items()}
    return [Limit("remote", terms, Fraction(chunks))] if terms else []


def _optimised(
    solver: _Solver, limits: Sequence[Limit], goal: str
) -> tuple[Termination, tuple[int, ...] | None, Fraction | None]:
    """Return how a goal's solve ended, the best values, and a bound on the goal.

    Where the slowest read is rounded, plans with a shorter one are asked for until there is none.
    """
    m, width = solver.model, len(solver.model.columns)
    found, unit = solver.ask(limits, goal)
    if found.termination is Termination.INFEASIBLE:
        return found.termination, None, None
    bound = None if found.bound is None else max(found.bound, 0) * unit
    if found.values is None:
        return Termination.NO_SOLUTION_FOUND, None, bound
    best = found.values[:width]
    value = _value(m, goal, best)
    if goal == "slowest_read":
        for _ in range(MAX_STRICT):
            if value == bound:
                break
            shorter = [Limit(f"shorter[{n}]", row, value, True) for n, row in enumerate(m.reads)]
            found, unit = solver.ask([*limits, *shorter], goal)
            if found.termination is Termination.INFEASIBLE:
                bound = value
            if found.values is None:
                break
            best = found.values[:width]
            value = m.slowest(best)
    ended = Termination.OPTIMAL if value == bound else Termination.FEASIBLE
    return ended, best, bound
