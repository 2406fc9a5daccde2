"""Solver statuses are read right: an incumbent is no optimum, a time-out no infeasibility (D17)."""

from __future__ import annotations

from typing import Any

import pulp
import pytest

from formulations.milp_engine import cbc_path
from formulations.status import cpsat_termination, highs_termination, pulp_termination
from optimizer.protocols import Termination

SOLVERS = ("highs", "cbc")


def solver(name: str, seconds: float) -> Any:
    if name == "highs":
        return pulp.HiGHS(msg=False, timeLimit=seconds, gapRel=0.0)
    return pulp.COIN_CMD(path=cbc_path(), msg=False, timeLimit=seconds, gapRel=0.0)


def market_split(rows: int = 5, columns: int = 40, seed: int = 1) -> pulp.LpProblem:
    """A market-split model: slacks make it feasible at once, the optimum is out of reach."""
    import random

    rng = random.Random(seed)
    problem = pulp.LpProblem("market", pulp.LpMinimize)
    x = [problem.add_variable(f"x{i}", cat=pulp.LpBinary) for i in range(columns)]
    slacks = []
    for r in range(rows):
        weights = [rng.randrange(100) for _ in x]
        over, under = problem.add_variable(f"o{r}", 0), problem.add_variable(f"u{r}", 0)
        slacks += [over, under]
        total = pulp.lpSum(w * v for w, v in zip(weights, x, strict=True))
        problem += total + over - under == sum(weights) // 2
    problem.setObjective(pulp.lpSum(slacks))
    return problem


def read(name: str, problem: pulp.LpProblem) -> Termination:
    return highs_termination(problem) if name == "highs" else pulp_termination(problem)


@pytest.mark.parametrize("name", SOLVERS)
def test_d17_a_time_limited_run_is_feasible_though_pulp_calls_it_optimal(name: str) -> None:
    problem = market_split()
    problem.solve(solver(name, 1.0))
    assert pulp.LpStatus[problem.status] == "Optimal"  # the trap
    assert read(name, problem) is Termination.FEASIBLE


@pytest.mark.parametrize("name", SOLVERS)
def test_an_optimum_is_optimal(name: str) -> None:
    problem = pulp.LpProblem("small", pulp.LpMaximize)
    x = problem.add_variable("x", 0, 7, pulp.LpInteger)
    problem += x
    problem += 2 * x <= 9
    problem.solve(solver(name, 10.0))
    assert read(name, problem) is Termination.OPTIMAL
    assert x.value() == 4


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("integer", [True, False])
def test_infeasible_is_infeasible_by_the_relaxation_or_by_whole_numbers(
    name: str, integer: bool
) -> None:
    """CBC words the two differently, and PuLP files them differently."""
    problem = pulp.LpProblem("none", pulp.LpMinimize)
    x, y = (problem.add_variable(n, 0, 50, pulp.LpInteger) for n in "xy")
    problem += x + y
    if integer:
        problem += 6 * x + 10 * y == 51  # an odd sum of even numbers
        problem += x + y >= 3
    else:
        problem += x + y >= 101
    problem.solve(solver(name, 10.0))
    assert read(name, problem) is Termination.INFEASIBLE


@pytest.mark.parametrize(
    ("status", "sol_status", "expected"),
    [
        (pulp.LpStatusOptimal, pulp.LpSolutionOptimal, Termination.OPTIMAL),
        (pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible, Termination.FEASIBLE),
        (pulp.LpStatusOptimal, pulp.LpSolutionNoSolutionFound, Termination.NO_SOLUTION_FOUND),
        (pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound, Termination.NO_SOLUTION_FOUND),
        (pulp.LpStatusInfeasible, pulp.LpSolutionNoSolutionFound, Termination.INFEASIBLE),
        (pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible, Termination.INFEASIBLE),
    ],
)
def test_pulp_statuses(status: int, sol_status: int, expected: Termination) -> None:
    problem = pulp.LpProblem("any", pulp.LpMinimize)
    problem.assignStatus(status, sol_status)
    assert pulp_termination(problem) is expected


def test_cp_sat_statuses_and_an_invalid_model_is_our_own_fault() -> None:
    known = {"OPTIMAL": "optimal", "FEASIBLE": "feasible", "INFEASIBLE": "infeasible"}
    for name, value in known.items():
        assert cpsat_termination(name) == Termination(value)
    assert cpsat_termination("UNKNOWN") is Termination.NO_SOLUTION_FOUND
    with pytest.raises(RuntimeError, match="MODEL_INVALID"):
        cpsat_termination("MODEL_INVALID")
