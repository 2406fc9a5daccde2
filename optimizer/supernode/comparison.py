"""Why one size of supernode beats another: what each can do at its best, and what decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from optimizer.supernode.evaluation import SupernodeEvaluation, evaluate_supernode
from optimizer.supernode.problem import Option, SupernodePlan, SupernodeProblem
from optimizer.supernode.search import best_of_option, is_better, max_sessions

#: Options are compared while this many plans or fewer are to be tried.
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Rival:
    """What an option can do: its best plan, judged as if it were asked for.

    Where no plan is legal, `plan` has all sessions that fit, at least one, and `judged` says what
    it breaks. `same_sessions` is the value that the option would have with as many sessions a card
    as the plan it is compared with, were its memory large enough; None where that is no whole
    number of sessions. `decided_by` is None for the plan's own option, else what it loses by:

    "capacity", "speed"
        Most of the gap closes, or does not, with `same_sessions`; only where memory is what keeps
        it from serving more is it capacity.
    "target"
        Memory has room, but more sessions would be too slow for the target.
    "none"
        It loses nothing.

    or the rule that keeps it from any plan.
    """

    option: Option
    plan: SupernodePlan
    judged: SupernodeEvaluation
    max_sessions: int
    same_sessions: Fraction | None
    decided_by: str | None


def compare(problem: SupernodeProblem, chosen: SupernodePlan) -> tuple[Rival, ...]:
    """Return every option beside a plan, in the order of options; () where that takes too long."""
    option = problem.option(chosen.size, chosen.tables, chosen.attention_tp)
    if option is None:
        return ()
    asked = tuple(replace(other, is_asked=True) for other in problem.options)
    open_problem = replace(problem, options=asked)
    steps = sum(max(max_sessions(problem, other), 0) + 1 for other in asked)
    if steps > MAX_STEPS and problem.goal != "user_rate":
        return ()
    won = evaluate_supernode(open_problem, chosen)
    return tuple(
        _rival(open_problem, other, original, chosen, won)
        for other, original in zip(asked, problem.options, strict=True)
    )


def _rival(
    problem: SupernodeProblem,
    option: Option,
    original: Option,
    chosen: SupernodePlan,
    won: SupernodeEvaluation,
) -> Rival:
    most = max_sessions(problem, option)
    is_chosen = option.key == (chosen.size, chosen.tables, chosen.attention_tp)
    found = (chosen, won) if is_chosen else best_of_option(problem, option)
    if found is None:
        plan = SupernodePlan(option.size, option.tables, option.attention_tp, max(most, 1))
        judged = evaluate_supernode(problem, plan)
        rule = judged.violations[0].rule if judged.violations else "none"
        decided = "capacity" if rule == "memory" else rule
        return Rival(original, plan, judged, most, None, decided)
    plan, judged = found
    same = _same_sessions(problem, option, chosen)
    decided_by = None
    if not is_chosen:
        decided_by = _decided_by(problem, judged, same, won, is_full=plan.sessions >= most)
    value = None if same is None else same.value
    return Rival(original, plan, judged, most, value, decided_by)


def _same_sessions(
    problem: SupernodeProblem, option: Option, chosen: SupernodePlan
) -> SupernodeEvaluation | None:
    """Judge an option with the sessions a card of the plan chosen; None where they are no whole."""
    num = Fraction(chosen.sessions * option.attention_tp, chosen.attention_tp)
    if num.denominator > 1:
        return None
    plan = SupernodePlan(option.size, option.tables, option.attention_tp, int(num))
    return evaluate_supernode(problem, plan)


def _decided_by(
    problem: SupernodeProblem,
    judged: SupernodeEvaluation,
    same: SupernodeEvaluation | None,
    won: SupernodeEvaluation,
    *,
    is_full: bool,
) -> str:
    if not is_better(problem, won.value, judged.value):
        return "none"
    if same is None or won.value is None or judged.value is None or same.value is None:
        return "capacity" if is_full else "speed"
    if not is_full:
        late = {"step_target", "lookup"} & same.rules
        return "target" if late else "speed"
    gap = abs(won.value - judged.value)
    closed = abs(same.value - judged.value)
    is_helped = is_better(problem, same.value, judged.value)
    return "capacity" if is_helped and 2 * closed >= gap else "speed"


def fewer_tables(
    rivals: Sequence[Rival],
) -> list[tuple[Rival, Rival]]:
    """Return pairs of (tables in HBM, tables on the host) of the same size and split."""
    places = {rival.option.key: rival for rival in rivals}
    found = []
    for rival in rivals:
        size, tables, degree = rival.option.key
        other = places.get((size, "host", degree))
        if tables == "hbm" and other is not None:
            found.append((rival, other))
    return found
