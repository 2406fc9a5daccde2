"""Integer programs: every backend agrees with brute force, and nothing unproven is optimal."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from formulations import milp_engine
from formulations.integer_program import (
    BACKENDS,
    IntegerProgram,
    ProgramOutcome,
    solve_program,
)
from optimizer.errors import BackendUnavailable, MismatchError, TooLargeError
from optimizer.protocols import Termination

NUM_PROGRAMS = 60


def solve(program: IntegerProgram, backend: str, seconds: float = 30.0) -> ProgramOutcome:
    return solve_program(program, backend, deadline=time.monotonic() + seconds)


def random_program(seed: int) -> IntegerProgram:
    """Up to 4 variables of either sign, rows open on one side, on both, or closed."""
    rng = random.Random(seed)
    program = IntegerProgram(f"random {seed}")
    for i in range(rng.randint(1, 4)):
        lower = rng.randint(-4, 3)
        program.add_variable(f"a variable {i}", lower, lower + rng.randint(0, 5))
    indices = range(len(program.variables))
    scale = rng.choice((1, 1, 10_000))  # large rows are compiled with half a unit to spare
    for r in range(rng.randint(0, 3)):
        terms = {v: scale * rng.randint(-4, 4) + rng.randint(-1, 1) for v in indices}
        middle = scale * rng.randint(-12, 12)
        limits: list[tuple[int | None, int | None]] = [
            (middle, None),
            (None, middle),
            (middle, middle + 3 * scale),
            (None, None),
            *([(middle, middle)] if scale == 1 else []),
        ]
        program.add_row(f"row {r}", terms, *rng.choice(limits))
    if rng.random() < 0.8:
        program.minimise({v: rng.randint(-5, 5) for v in indices})
    return program


def brute_force(program: IntegerProgram) -> int | None:
    """Return the least objective over all values, or None."""
    found = []
    for values in itertools.product(*(range(v.lower, v.upper + 1) for v in program.variables)):
        sums = [(r, sum(c * values[v] for v, c in r.terms)) for r in program.rows]
        if all(
            (r.lower is None or r.lower <= s) and (r.upper is None or s <= r.upper) for r, s in sums
        ):
            found.append(sum(c * values[v] for v, c in program.objective))
    return min(found, default=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_programs_agree_with_brute_force(backend: str) -> None:
    infeasible = 0
    for seed in range(NUM_PROGRAMS):
        program = random_program(seed)
        least = brute_force(program)
        outcome = solve(program, backend)
        if least is None:
            infeasible += 1
            assert outcome == ProgramOutcome(Termination.INFEASIBLE), program.name
            continue
        assert outcome.termination is Termination.OPTIMAL, program.name
        assert (outcome.objective, outcome.bound) == (least, least), program.name
        assert outcome.values is not None
        program.check(outcome.values)
        assert program.total(program.objective, outcome.values) == least
    assert 10 <= infeasible <= NUM_PROGRAMS - 30


def knapsack() -> IntegerProgram:
    """Take at most 10 of 3a + 4b + 5c with values 4, 5, 7: a + c is 8 worth 11, b + c 9 worth 12.

    a + b is 7 worth 9, and all three are 12: so 12 it is.
    """
    program = IntegerProgram("knapsack")
    a, b, c = (program.add_variable(name, 0, 1) for name in "abc")
    program.add_row("weight", {a: 3, b: 4, c: 5}, None, 10)
    program.minimise({a: -4, b: -5, c: -7})
    return program


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_knapsack_by_hand(backend: str) -> None:
    assert solve(knapsack(), backend) == ProgramOutcome(Termination.OPTIMAL, (0, 1, 1), -12, -12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_reaching_2_31_are_refused_and_one_less_is_solved(backend: str) -> None:
    for is_row in (True, False):
        for coefficient in (2**30, 2**30 - 1):  # 2 · 2^30 reaches 2^31; 2 · (2^30 - 1) does not
            program = IntegerProgram("large")
            x = program.add_variable("x", -2, 1)
            if is_row:
                program.add_row("r", {x: coefficient}, -coefficient, None)
                program.minimise({x: 1})
            else:
                program.minimise({x: coefficient})
            if coefficient == 2**30:
                with pytest.raises(TooLargeError, match="beyond 2"):
                    solve(program, backend)
                continue
            outcome = solve(program, backend)
            assert outcome.termination is Termination.OPTIMAL
            assert outcome.values == ((-1,) if is_row else (-2,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_may_be_larger_than_any_sum(backend: str) -> None:
    for lower, upper, ended in (
        (-(2**70), 2**70, Termination.OPTIMAL),
        (2**70, None, Termination.INFEASIBLE),
        (None, -(2**70), Termination.INFEASIBLE),
        (2, 1, Termination.INFEASIBLE),
    ):
        program = IntegerProgram("limits")
        x = program.add_variable("x", -3, 3)
        program.add_row("r", {x: 1}, lower, upper)
        program.minimise({x: 1})
        assert solve(program, backend).termination is ended


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_programs_without_terms(backend: str) -> None:
    empty = IntegerProgram("empty")
    assert solve(empty, backend) == ProgramOutcome(Termination.OPTIMAL, (), 0, 0)
    for limit, ended in ((0, Termination.OPTIMAL), (1, Termination.INFEASIBLE)):
        program = IntegerProgram("no terms")
        x = program.add_variable("x", 2, 5)
        program.add_row("nothing", {x: 0}, limit, None)
        outcome = solve(program, backend)
        assert outcome.termination is ended
        if limit == 0:
            assert outcome.values is not None
            assert 2 <= outcome.values[0] <= 5


def test_cbc_does_not_cut_the_optimum_off() -> None:
    """Preprocessing of CBC 2.10.3 leaves x = 1, y = -1 alone, which is -6.

    4x - 2y <= 10, 2x - 4y <= 11 and 6 <= 5x - 4y <= 9: x = 0, y = -2 gives 4, 8 and 8, and
    -x + 5y = -10. No y is smaller, and x = 1 would need 5 + 8 = 13 <= 9.
    """
    program = IntegerProgram("cut off")
    x, y = program.add_variable("x", -3, 1), program.add_variable("y", -2, 2)
    program.add_row("a", {x: 4, y: -2}, None, 10)
    program.add_row("b", {x: 2, y: -4}, None, 11)
    program.add_row("c", {x: 5, y: -4}, 6, 9)
    program.minimise({x: -1, y: 5})
    assert brute_force(program) == -10
    for backend in BACKENDS:
        assert solve(program, backend) == ProgramOutcome(Termination.OPTIMAL, (0, -2), -10, -10)


@pytest.mark.parametrize(
    ("said", "termination"),
    [
        (Termination.INFEASIBLE, Termination.INFEASIBLE),
        (Termination.OPTIMAL, Termination.FEASIBLE),
    ],
)
def test_after_a_crash_of_cbc_only_infeasible_is_believed(
    said: Termination, termination: Termination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_cbc(
        problem: object, _: float, preprocess: bool = True, **__: int
    ) -> tuple[Termination, int]:
        if not preprocess:
            raise BackendUnavailable("CBC did not run")
        for variable in problem.variables():  # type: ignore[attr-defined]
            variable.varValue = 0.0
        return said, 0

    monkeypatch.setattr(milp_engine, "_call_cbc", call_cbc)
    outcome = solve(knapsack(), "cbc")
    assert (outcome.termination, outcome.bound) == (termination, None)


def market_split(num_rows: int = 4, num_columns: int = 40) -> IntegerProgram:
    """Halve every row; feasible at once through slacks, the optimum is out of reach."""
    rng = random.Random(1)
    program = IntegerProgram("market split")
    x = [program.add_variable(f"x{i}", 0, 1) for i in range(num_columns)]
    slacks = []
    for r in range(num_rows):
        weights = [rng.randrange(100) for _ in x]
        over, under = (program.add_variable(f"{side}{r}", 0, 4000) for side in ("o", "u"))
        slacks += [over, under]
        terms = {**dict(zip(x, weights, strict=True)), over: 1, under: -1}
        program.add_row(f"r{r}", terms, sum(weights) // 2, sum(weights) // 2)
    program.minimise(dict.fromkeys(slacks, 1))
    return program


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5])
def test_running_out_of_time_is_never_optimal(backend: str, seconds: float) -> None:
    outcome = solve(market_split(), backend, seconds)
    assert outcome.termination in (Termination.FEASIBLE, Termination.NO_SOLUTION_FOUND)
    if seconds == 0:
        assert outcome == ProgramOutcome(Termination.NO_SOLUTION_FOUND)
    if outcome.objective is not None and outcome.bound is not None:
        assert outcome.bound <= outcome.objective


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stop_that_is_set_ends_at_once(backend: str) -> None:
    stop = threading.Event()
    stop.set()
    outcome = solve_program(knapsack(), backend, deadline=time.monotonic() + 30, stop=stop)
    assert outcome == ProgramOutcome(Termination.NO_SOLUTION_FOUND)


@pytest.mark.parametrize("backend", ["cp-sat", "highs"])
def test_a_stop_in_the_middle_ends_the_run_soon(backend: str) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    began = time.monotonic()
    outcome = solve_program(market_split(), backend, deadline=began + 60, stop=stop)
    timer.join()
    assert time.monotonic() - began < 20
    assert outcome.termination in (Termination.FEASIBLE, Termination.NO_SOLUTION_FOUND)


def test_broken_values_are_a_mismatch() -> None:
    program = knapsack()
    program.check((0, 1, 1))
    with pytest.raises(MismatchError, match="row weight"):
        program.check((1, 1, 1))  # 12 > 10
    with pytest.raises(MismatchError, match="out of bounds"):
        program.check((0, 2, 0))


@pytest.mark.parametrize("backend", ["highs", "cbc"])
def test_values_of_a_solver_that_break_a_row_are_a_mismatch(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver that answers all ones: 12 > 10."""

    def lie(problem: object, *_: object, **__: object) -> tuple[Termination, int]:
        for variable in problem.variables():  # type: ignore[attr-defined]
            variable.varValue = 1.0
        return Termination.OPTIMAL, -16

    monkeypatch.setattr(milp_engine, f"run_{backend}", lie)
    with pytest.raises(MismatchError, match="row weight"):
        solve(knapsack(), backend)


@pytest.mark.parametrize(
    ("said", "termination", "bound"),
    [
        (-13, Termination.FEASIBLE, -13),
        (-12, Termination.OPTIMAL, -12),
        (-11, Termination.OPTIMAL, -12),  # the bound gives way to what is reached
    ],
)
def test_an_optimum_that_misses_its_bound_is_only_feasible(
    said: int, termination: Termination, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.9999996 of c rounds to 1; a bound of -13 that came with it does not prove -12."""

    def coarse(problem: object, *_: object, **__: object) -> tuple[Termination, int]:
        for variable, value in zip(
            problem.variables(),  # type: ignore[attr-defined]
            (0.0, 1.0, 0.9999996),
            strict=True,
        ):
            variable.varValue = value
        return Termination.OPTIMAL, said

    monkeypatch.setattr(milp_engine, "run_highs", coarse)
    assert solve(knapsack(), "highs") == ProgramOutcome(termination, (0, 1, 1), -12, bound)


def test_a_missing_program_is_said() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milp_engine, "cbc_path", lambda: None)
        with pytest.raises(BackendUnavailable, match="CBC"):
            solve(knapsack(), "cbc")
    with pytest.raises(ValueError, match="no solver is named"):
        solve(knapsack(), "scip")


def test_variables_and_indices_are_checked_when_given() -> None:
    program = knapsack()
    with pytest.raises(ValueError, match="exceeds"):
        program.add_variable("d", 2, 1)
    with pytest.raises(ValueError, match="no variable has the index 3"):
        program.add_row("r", {3: 1}, None, 1)
    with pytest.raises(ValueError, match="no variable has the index -1"):
        program.minimise({-1: 1})
