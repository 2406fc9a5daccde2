"""The size of a supernode as an integer program (supernode.md)."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import IntegerProgram, solve_program
from formulations.supernode_data import Pick, fit, picks
from optimizer.errors import MismatchError
from optimizer.protocols import Termination
from optimizer.supernode.problem import Option, SupernodePlan, SupernodeProblem

#: Amounts beyond a limit are stated up to this many units: only whether they are above 0 matters.
MAX_EXCESS = 1000


@dataclass(frozen=True, slots=True)
class SupernodeOutcome:
    """How a solve ended: a plan, its value, and a bound on the value of all plans."""

    termination: Termination
    plan: SupernodePlan | None = None
    value: Fraction | None = None
    bound: Fraction | None = None


@dataclass(frozen=True, slots=True)
class SupernodeModel:
    """The program; `options` and `picked` hold the variables of options and of picks in order."""

    problem: SupernodeProblem
    program: IntegerProgram
    picks: tuple[Pick, ...]
    options: tuple[int, ...]
    picked: tuple[int, ...]
    sessions: int
    #: Values from the best to the worst; the objective counts how many are better.
    values: tuple[Fraction, ...]


def solve_supernode(
    problem: SupernodeProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> SupernodeOutcome:
    """Choose size, places and sessions; `deadline` is a `time.monotonic()` value.

    Raises as `solve_program` does, and TooLargeError for too many numbers of sessions.
    """
    model = build_model(problem)
    found = solve_program(
        model.program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
    )
    bound = None
    if found.bound is not None and model.values:
        bound = model.values[min(max(found.bound, 0), len(model.values) - 1)]
    if found.values is None:
        return SupernodeOutcome(found.termination, bound=bound)
    plan, pick = extract(model, found.values)
    if found.objective is None or model.values[found.objective] != pick.value:
        raise MismatchError(f"{backend} claims rank {found.objective}, its plan is {pick.value}")
    return SupernodeOutcome(found.termination, plan, pick.value, bound)


def build_model(problem: SupernodeProblem) -> SupernodeModel:
    """State the decision; raises TooLargeError."""
    program, listed = IntegerProgram("supernode"), picks(problem)
    options = tuple(program.add_variable(f"option[{o}]", 0, 1) for o in range(len(problem.options)))
    picked = tuple(
        program.add_variable(f"pick[{pick.option},{pick.sessions}]", 0, 1) for pick in listed
    )
    most = max(pick.sessions for pick in listed)
    sessions = program.add_variable("sessions", 1, most)
    found = {pick.value for pick in listed if pick.value is not None}
    values = tuple(sorted(found, reverse=problem.goal != "cost_per_on_time_session"))
    m = SupernodeModel(problem, program, listed, options, picked, sessions, values)
    define_choices(m)
    define_sessions(m)
    define_memory(m)
    define_options(m)
    define_step(m)
    define_on_time(m)
    rank = {value: number for number, value in enumerate(values)}
    program.minimise(
        {
            v: rank[pick.value]
            for v, pick in zip(picked, listed, strict=True)
            if pick.value is not None
        }
    )
    return m


def define_choices(m: SupernodeModel) -> None:
    """One size, one place of tables and one split; the option is that of all three."""
    program, options = m.program, m.problem.options
    parts: tuple[tuple[str, Callable[[Option], Hashable]], ...] = (
        ("size", lambda option: option.size),
        ("tables", lambda option: option.tables),
        ("attention_tp", lambda option: option.attention_tp),
    )
    for name, part in parts:
        chosen = {
            value: program.add_variable(f"{name}[{value}]", 0, 1)
            for value in dict.fromkeys(part(option) for option in options)
        }
        program.add_row(f"one {name}", dict.fromkeys(chosen.values(), 1), 1, 1)
        for value, v in chosen.items():
            same = {
                x: 1 for x, option in zip(m.options, options, strict=True) if part(option) == value
            }
            program.add_row(f"{name}[{value}]", {**same, v: -1}, 0, 0)


def define_sessions(m: SupernodeModel) -> None:
    """The option chosen has one number of sessions, which is n; a single user is alone."""
    row = {m.sessions: -1}
    for v, pick in zip(m.picked, m.picks, strict=True):
        row[v] = pick.sessions
    m.program.add_row("sessions", row, 0, 0)
    for number, x in enumerate(m.options):
        m.program.add_row(f"picks[{number}]", {**_of(m, number), x: -1}, 0, 0)
    if m.problem.goal == "user_rate":
        m.program.add_row("batch", {m.sessions: 1}, None, 1)


def _of(m: SupernodeModel, option: int) -> dict[int, int]:
    return {v: 1 for v, pick in zip(m.picked, m.picks, strict=True) if pick.option == option}


def define_memory(m: SupernodeModel) -> None:
    """Weights, workspace and the sessions' KV fit on a card, in whole sessions (6-14)."""
    for number, (x, option) in enumerate(zip(m.options, m.problem.options, strict=True)):
        row = {
            v: pick.sessions
            for v, pick in zip(m.picked, m.picks, strict=True)
            if pick.option == number
        }
        most = max(fit(m.problem, option), 0)
        m.program.add_row(f"memory[{number}]", {**row, x: -most}, None, 0)


def define_options(m: SupernodeModel) -> None:
    """What is not asked for, does not line up, or exceeds hosts and their NICs is not chosen."""
    p = m.problem
    for number, (x, option) in enumerate(zip(m.options, p.options, strict=True)):
        limits: dict[str, tuple[Fraction | int, Fraction | int | None]] = {
            "not_asked": (int(not option.is_asked), 0),
            "alignment": (option.alignment_cards, 0),
            "host_memory": (option.host_bytes, p.host_capacity_bytes),
            "connection_state": (option.state_bytes, p.max_state_bytes),
            "connection_setup": (option.setup_s, p.max_setup_s),
        }
        for name, (amount, most) in limits.items():
            if most is not None and amount > most:
                m.program.add_row(f"{name}[{number}]", {x: _excess(amount - most)}, None, 0)


def define_step(m: SupernodeModel) -> None:
    """A step keeps its target, lookups are hidden where they must be.

    Times are stated by their rank among all times, which orders them exactly.
    """
    if m.problem.step_target_s is not None:
        steps = [pick.step_s for pick in m.picks]
        _rank_row(m, "step_target", steps, m.problem.step_target_s)
    if m.problem.lookups_must_hide:
        _rank_row(m, "lookup", [pick.excess_s for pick in m.picks], Fraction(0))


def _rank_row(m: SupernodeModel, name: str, amounts: Sequence[Fraction], most: Fraction) -> None:
    """Require the amount of what is picked to be at most `most`."""
    ordered = sorted(set(amounts))
    rank = {amount: number for number, amount in enumerate(ordered, start=1)}
    row = {v: rank[amount] for v, amount in zip(m.picked, amounts, strict=True)}
    m.program.add_row(name, row, None, bisect.bisect_right(ordered, most))


def define_on_time(m: SupernodeModel) -> None:
    """Enough sessions end on time, at least one."""
    if not m.problem.demands:
        return
    least = max(m.problem.min_on_time, 1)
    short = {
        v: _excess(least - pick.on_time)
        for v, pick in zip(m.picked, m.picks, strict=True)
        if pick.on_time < least
    }
    m.program.add_row("on_time", short, None, 0)


def _excess(amount: Fraction | int) -> int:
    """Return an amount above 0 in whole units, at least 1."""
    return min(-(-amount // 1), MAX_EXCESS)


def extract(m: SupernodeModel, values: Sequence[int]) -> tuple[SupernodePlan, Pick]:
    """Return the plan of a solution, and its pick."""
    (number,) = (i for i, v in enumerate(m.picked) if values[v])
    pick = m.picks[number]
    option = m.problem.options[pick.option]
    if values[m.sessions] != pick.sessions or not values[m.options[pick.option]]:
        raise MismatchError("supernode: sessions and options are not those picked")
    return SupernodePlan(option.size, option.tables, option.attention_tp, pick.sessions), pick
