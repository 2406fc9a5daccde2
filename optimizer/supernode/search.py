"""Supernodes without a solver: every option with every number of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.supernode.evaluation import SupernodeEvaluation, evaluate_supernode
from optimizer.supernode.problem import Option, SupernodePlan, SupernodeProblem

#: Rules that more sessions than tried break as well.
ENDS = frozenset(
    {
        *("memory", "batch", "not_asked", "alignment", "host_memory"),
        *("connection_state", "connection_setup"),
    }
)


def is_maximised(problem: SupernodeProblem) -> bool:
    """Whether more of the goal is better."""
    return problem.goal != "cost_per_on_time_session"


def is_better(problem: SupernodeProblem, value: Fraction | None, best: Fraction | None) -> bool:
    """Whether a value is strictly better than another; None is worse than any."""
    if value is None or best is None:
        return value is not None and best is None
    return value > best if is_maximised(problem) else value < best


def max_sessions(problem: SupernodeProblem, option: Option) -> int:
    """Return the most sessions of a group that fit on its cards (6-14); below 1 where none does."""
    room = problem.capacity_bytes - option.weight_bytes - problem.workspace_bytes
    return room // option.session_bytes


def plans_of(option: Option) -> Iterator[SupernodePlan]:
    """Yield an option with 1, 2, 3, … sessions, without end."""
    sessions = 0
    while True:
        sessions += 1
        yield SupernodePlan(option.size, option.tables, option.attention_tp, sessions)


def best_of_option(
    problem: SupernodeProblem, option: Option, is_over: Callable[[], bool] = lambda: False
) -> tuple[SupernodePlan, SupernodeEvaluation] | None:
    """Return the best legal plan of an option, with the fewest sessions among equals.

    Tries all numbers of sessions until memory is full. None where none is legal; the best until
    `is_over`.
    """
    best: tuple[SupernodePlan, SupernodeEvaluation] | None = None
    for plan in plans_of(option):
        judged = evaluate_supernode(problem, plan)
        if judged.rules & ENDS or is_over():
            return best
        if judged.is_feasible and is_better(
            problem, judged.value, None if best is None else best[1].value
        ):
            best = plan, judged
    return best


def num_steps(problem: SupernodeProblem) -> int:
    """Return the plans that brute force tries."""
    if problem.goal == "user_rate":
        return 2 * len(problem.options)
    return sum(max(max_sessions(problem, option), 0) + 1 for option in problem.options)


def best_supernode_exhaustively(
    problem: SupernodeProblem, max_steps: int = 1_000_000
) -> SupernodePlan | None:
    """Return a best plan by trying every option and every number of sessions; None without one.

    Raises TooLargeError for more than `max_steps` plans.
    """
    if num_steps(problem) > max_steps:
        raise TooLargeError(f"more than {max_steps} supernodes to try")
    return improved_supernode(problem, lambda: False)


def improved_supernode(
    problem: SupernodeProblem, is_over: Callable[[], bool]
) -> SupernodePlan | None:
    """Return the best plan found until `is_over`; None without one."""
    best: tuple[SupernodePlan, SupernodeEvaluation] | None = None
    for option in problem.options:
        found = best_of_option(problem, option, is_over)
        if found is not None and is_better(
            problem, found[1].value, None if best is None else best[1].value
        ):
            best = found
    return None if best is None else best[0]


def first_supernode(problem: SupernodeProblem) -> SupernodePlan | None:
    """Return the first option that is legal with all the sessions that fit, else with one."""
    for option in problem.options:
        for sessions in (max_sessions(problem, option), 1):
            plan = SupernodePlan(option.size, option.tables, option.attention_tp, sessions)
            if evaluate_supernode(problem, plan).is_feasible:
                return plan
    return None
