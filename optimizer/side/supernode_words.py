"""What a supernode decision says in words: the plan, why others lose, what tables cost."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from instances.quantity import human_seconds
from optimizer.supernode.comparison import Rival, fewer_tables
from optimizer.supernode.evaluation import SupernodeEvaluation, evaluate_supernode
from optimizer.supernode.problem import Option, SupernodePlan, SupernodeProblem
from optimizer.supernode.search import is_maximised
from optimizer.words import digits, plural

#: Unit of each goal, for tables and sentences.
GOAL_WORDS = {
    "tokens_per_s_per_card": "tokens/s per card",
    "sessions_per_card": "sessions a card",
    "user_rate": "tokens/s of a single user",
    "cost_per_on_time_session": "card·s an on-time session",
}
PLACES = {"none": "", "hbm": "tables in HBM", "host": "tables on the host"}

#: A sentence names so many sizes that lose for the same reason.
MAX_NAMED = 4


def goal_words(problem: SupernodeProblem) -> str:
    """Return the unit of the goal in words."""
    if problem.goal == "cost_per_on_time_session" and problem.price_per_card_hour is not None:
        return "an on-time session"
    return GOAL_WORDS[problem.goal]


def amount(value: Fraction | float | None) -> str:
    """Write a value of a goal: from a thousand on in whole numbers."""
    if value is None:
        return "—"
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 1000 else digits(number)


def sessions_words(option: Option, sessions: int) -> str:
    """Return "335 sessions a card", or those of a group that shares them."""
    if option.attention_tp == 1:
        return f"{plural(sessions, 'session')} a card"
    return f"{plural(sessions, 'session')} for each {option.attention_tp} cards"


def option_words(option: Option) -> str:
    """Return "8 cards, tables on the host"."""
    parts = [plural(option.size, "card")]
    if option.attention_tp > 1:
        parts.append(f"attention over {option.attention_tp}")
    if PLACES[option.tables]:
        parts.append(PLACES[option.tables])
    return ", ".join(parts)


def why(problem: SupernodeProblem, rival: Rival, won: SupernodeEvaluation) -> str:
    """Say in one line why an option is not the plan, or that it is."""
    if rival.decided_by is None:
        return "chosen"
    if rival.judged.violations:
        return rival.judged.violations[0].message
    value, best = rival.judged.value, won.value
    if rival.decided_by == "none" or value is None or best is None:
        text = "no worse" if value == best else "better"
        return text if rival.option.is_asked else f"{text}, but not asked for"
    gap = f"{amount(abs(best - value))} {'less' if is_maximised(problem) else 'more'}"
    text = f"{gap}{_times(best, value)}: {rival.decided_by}"
    same = "" if rival.same_sessions is None else amount(rival.same_sessions)
    if rival.decided_by == "capacity":
        text += f", {sessions_words(rival.option, rival.max_sessions)} fit"
        return f"{text}; {same} with as many as the plan" if same else text
    if rival.decided_by == "speed" and same:
        text += f", {same} with as many sessions as the plan"
    return text


def _times(best: Fraction, value: Fraction) -> str:
    """Return " (7.4 times)" for values a tenth or more apart."""
    smaller, larger = sorted((best, value))
    if not smaller or larger < smaller * Fraction(11, 10):
        return ""
    return f" ({float(larger / smaller):.1f} times)"


def sentence(
    problem: SupernodeProblem,
    plan: SupernodePlan,
    judged: SupernodeEvaluation,
    rivals: Sequence[Rival],
) -> str:
    """Return the decision in a sentence, and what decided against other sizes."""
    option, step = judged.option, judged.step
    assert option is not None
    assert step is not None
    count = problem.num_cards // plan.size
    text = f"{plural(plan.size, 'card')} x {plural(count, 'instance')}"
    details = option_words(option).partition(", ")[2]
    text += f", {details}" if details else ""
    text += (
        f", {sessions_words(option, plan.sessions)}: {amount(judged.value)} {goal_words(problem)}, "
        f"a step of {human_seconds(step.step_s)}"
    )
    lost = _lost_words(problem, plan, rivals)
    return f"{text}. {lost}" if lost else text


def _lost_words(problem: SupernodeProblem, plan: SupernodePlan, rivals: Sequence[Rival]) -> str:
    """Say what decides against each other size with tables and attention as in the plan."""
    hosts = {hbm.option.key: host for hbm, host in fewer_tables(rivals)}
    full: list[str] = []
    crowded: list[str] = []
    others: list[str] = []
    for rival in rivals:
        option = rival.option
        is_same = (option.tables, option.attention_tp) == (plan.tables, plan.attention_tp)
        if rival.decided_by in (None, "none") or not is_same or option.size == plan.size:
            continue
        cards = plural(option.size, "card")
        if rival.max_sessions < 1:
            full.append(str(option.size))
        elif rival.judged.violations:
            others.append(f"{cards}: {rival.decided_by}")
        elif rival.decided_by != "capacity":
            others.append(f"{cards} ({amount(rival.judged.value)}): {rival.decided_by}")
        else:
            text = f"{cards} ({amount(rival.judged.value)}): capacity, not speed, decides; "
            text += f"{sessions_words(option, rival.max_sessions)} fit"
            host = hosts.get(option.key)
            if host is not None and host.max_sessions > rival.max_sessions:
                text += f", with the tables on the host {host.max_sessions}"
            crowded.append(text)
    none = [f"no session fits supernodes of {', '.join(full)}"] if full else []
    return "; ".join([*none, *crowded[:MAX_NAMED], *others[:MAX_NAMED]])


def notes(problem: SupernodeProblem, rivals: Sequence[Rival]) -> list[str]:
    """Say for each size what tables on the host instead of in HBM would give and take."""
    found = []
    for hbm, host in fewer_tables(rivals):
        if not host.judged.is_feasible:
            continue
        name = plural(hbm.option.size, "card")
        if hbm.option.attention_tp > 1:
            name += f", attention over {hbm.option.attention_tp}"
        before = amount(hbm.judged.value) if hbm.judged.is_feasible else "no plan"
        found.append(
            f"{name}: tables on the host free {max(hbm.max_sessions, 0)} -> {host.max_sessions} "
            f"sessions, {before} -> {amount(host.judged.value)} {goal_words(problem)}"
        )
    return found


def nothing_fits_words(problem: SupernodeProblem) -> str:
    """Say why there is no plan: what each option breaks with a single session."""
    text = "no size of supernode keeps within memory, targets and deadlines"
    found = []
    for option in problem.options:
        plan = SupernodePlan(option.size, option.tables, option.attention_tp, 1)
        broken = [v for v in evaluate_supernode(problem, plan).violations if v.rule != "on_time"]
        if broken and option.is_asked:
            found.append(f"{broken[0].where}: {broken[0].message}")
    shown = "; ".join(dict.fromkeys(found[:MAX_NAMED]))
    return f"{text}: {shown}" if shown else text
