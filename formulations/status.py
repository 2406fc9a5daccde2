"""The one place where solver statuses are read (law 6).

PuLP calls a time-limited run "Optimal": only `sol_status` tells an optimum from an incumbent. An
infeasible CBC run leaves values behind, so values are read only when this file says there are any.
"""

from __future__ import annotations

from typing import Any

from optimizer.protocols import Termination


class SolverFailed(RuntimeError):  # noqa: N818 - the name says what happened
    """A solver ended without an answer although it had time; another setting may help."""


def cpsat_termination(status_name: str) -> Termination:
    """Map the name of a CP-SAT status; MODEL_INVALID raises RuntimeError: it is our mistake."""
    known = {
        "OPTIMAL": Termination.OPTIMAL,
        "FEASIBLE": Termination.FEASIBLE,
        "INFEASIBLE": Termination.INFEASIBLE,
        "UNKNOWN": Termination.NO_SOLUTION_FOUND,
    }
    if status_name not in known:
        raise RuntimeError(f"CP-SAT returned {status_name}")
    return known[status_name]


def pulp_termination(problem: Any) -> Termination:
    """Map a solved `pulp.LpProblem` by its `sol_status`.

    `status` is believed in one case: PuLP files CBC's "Integer infeasible" under "no solution
    found" in `sol_status`, and only `status` tells that from running out of time.
    """
    import pulp

    if problem.status == pulp.LpStatusInfeasible:
        return Termination.INFEASIBLE
    known = {
        pulp.LpSolutionOptimal: Termination.OPTIMAL,
        pulp.LpSolutionIntegerFeasible: Termination.FEASIBLE,
        pulp.LpSolutionInfeasible: Termination.INFEASIBLE,
        pulp.LpSolutionNoSolutionFound: Termination.NO_SOLUTION_FOUND,
        pulp.LpSolutionUnbounded: Termination.NO_SOLUTION_FOUND,
    }
    return known.get(problem.sol_status, Termination.NO_SOLUTION_FOUND)


def highs_termination(problem: Any) -> Termination:
    """Map a problem solved by HiGHS by its own model status, which is finer than PuLP's.

    PuLP reports an interrupted run without any solution as an incumbent of zeros. Raises
    SolverFailed where HiGHS says that it did not solve.
    """
    import highspy

    model = problem.solverModel
    status = model.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return Termination.OPTIMAL
    infeasible = (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,  # no objective here is unbounded
    )
    if status in infeasible:
        return Termination.INFEASIBLE
    if status in (highspy.HighsModelStatus.kNotset, highspy.HighsModelStatus.kSolveError):
        raise SolverFailed(f"HiGHS did not solve: {status}")
    if status == highspy.HighsModelStatus.kModelEmpty:
        return Termination.OPTIMAL
    feasible = model.getInfo().primal_solution_status == int(
        highspy.SolutionStatus.kSolutionStatusFeasible
    )
    return Termination.FEASIBLE if feasible else Termination.NO_SOLUTION_FOUND
