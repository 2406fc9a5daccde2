"""The evaluator of supernodes by hand: memory, every part of a step, deadlines, both sides."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from optimizer.errors import TooLargeError
from optimizer.routing import routing_load
from optimizer.supernode.evaluation import (
    SupernodeEvaluation,
    evaluate_supernode,
    experts_read,
    serve,
    step_parts,
)
from optimizer.supernode.problem import (
    Demand,
    ExpertReads,
    Line,
    Lookup,
    SupernodePlan,
    SupernodeProblem,
)
from optimizer.supernode.search import (
    best_supernode_exhaustively,
    first_supernode,
    improved_supernode,
    max_sessions,
)
from tiny_supernodes import DEMAND, EXCHANGE, EXPERTS, LOOKUP, option, plan, problem

F = Fraction


def step_of(sessions: int = 3, **changes: Any) -> Any:
    """What a step of the option with some changes takes."""
    return step_parts(problem(), option(**changes), sessions)


def one_violation(judged: SupernodeEvaluation) -> tuple[str, Fraction | int, str]:
    (broken,) = judged.violations
    return broken.rule, broken.amount, broken.unit


def test_three_sessions_fit_and_a_fourth_does_not() -> None:
    """20 B of weights, 5 of workspace and 3 · 5 of sessions are the 40 B there are (6-14)."""
    judged = evaluate_supernode(problem(), plan(3))
    assert judged.is_feasible
    assert judged.used_bytes == 40
    assert max_sessions(problem(), option()) == 3
    assert one_violation(evaluate_supernode(problem(), plan(4))) == ("memory", 5, "B")
    short = problem(capacity_bytes=39)
    assert max_sessions(short, option()) == 2
    assert one_violation(evaluate_supernode(short, plan(3))) == ("memory", 1, "B")


def test_a_step_is_the_longer_of_reading_and_computing() -> None:
    """Three sessions read 26 B in 2.6 s and compute 9 FLOP in 1.8 s; of 5 FLOP each, 3 s."""
    step = step_of()
    assert (step.read_bytes, step.read_s, step.compute_s) == (26, F(13, 5), F(9, 5))
    assert step.step_s == F(13, 5)
    assert step_of(flops=F(5)).step_s == 3


def test_an_exchange_takes_its_fastest_algorithm_and_that_its_slowest_path() -> None:
    """0.5 + 3 · 0.5 = 2 s; twice 4 s. Paths of 2 and 3 s take 3, an algorithm of 1 s beats both."""
    assert step_of(exchanges=(EXCHANGE,)).exchange_s == 2
    assert step_of(exchanges=(replace(EXCHANGE, times=2),)).exchange_s == 4
    paths = (Line(F(2), F(0)), Line(F(0), F(1)))
    both = replace(EXCHANGE, algorithms=(paths,))
    assert step_of(exchanges=(both,)).exchange_s == 3
    either = replace(EXCHANGE, algorithms=(paths, (Line(F(1), F(0)),)))
    assert step_of(exchanges=(either,)).exchange_s == 1
    assert step_of(exchanges=(either, EXCHANGE)).step_s == F(13, 5) + 3


def test_only_what_a_lookup_takes_beyond_the_layers_before_it_is_added() -> None:
    """0.2 + 3 · 0.2 = 0.8 s, of which a quarter of 2.6 s is hidden: 0.15 s are left.

    With an exchange of 2 s the step before it is 4.6 s, and a quarter of that hides all.
    """
    step = step_of(lookup=LOOKUP)
    assert (step.lookup_s, step.hidden_s) == (F(4, 5), F(13, 20))
    assert (step.excess_s, step.step_s) == (F(3, 20), F(11, 4))
    hidden = step_of(lookup=LOOKUP, exchanges=(EXCHANGE,))
    assert (hidden.hidden_s, hidden.excess_s) == (F(23, 20), 0)
    assert hidden.step_s == F(23, 5)
    exact = replace(LOOKUP, lines=(Line(F(13, 20), F(0)),))
    assert step_of(lookup=exact).excess_s == 0
    assert step_of(lookup=Lookup(3, (), F(1, 4))).lookup_s == 0


def test_experts_that_any_token_chooses_are_read() -> None:
    """Six tokens choose one of four experts each: 4 · (1 - (3/4)^6) / 2 = 1.6440… a card and layer.

    Rounded up to 1.645, of 5 B in two layers: 16.45 B. A single token chooses one expert, on one
    card; balanced, six choices over two cards are more than the two experts that a card has.
    """
    assert 2 * (1 - F(3, 4) ** 6) == F("1.64404296875")
    assert step_of(experts=(EXPERTS,)).read_bytes == 26 + F("16.45")
    balanced = replace(EXPERTS, routing="balanced")
    assert step_of(experts=(balanced,)).read_bytes == 26 + 20
    assert step_of(1, experts=(balanced,)).read_bytes == 22 + 10
    alone = problem(option(experts=(EXPERTS,)), goal="user_rate")
    judged = evaluate_supernode(alone, plan(1))
    assert judged.step is not None
    assert judged.step.read_bytes == 22 + 10
    three = replace(EXPERTS, experts_per_token=3)  # 2 of the 3 on the fuller of two cards
    judged = evaluate_supernode(problem(option(experts=(three,)), goal="user_rate"), plan(1))
    assert judged.step is not None
    assert judged.step.read_bytes == 22 + 20


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_experts_read_are_those_of_the_routing_model(size: int) -> None:
    """The shortcut for many tokens changes nothing, and sizes need not divide the experts."""
    reads = ExpertReads(1, 16, 3, 1)
    for num_tokens in (1, 2, 5, 40, 73, 74, 75, 76, 200, 1000):
        expected = routing_load(num_tokens, 16, 3, size, "expected").busiest_distinct
        assert experts_read(reads, size, num_tokens, is_single=False) == expected, num_tokens
    uneven = ExpertReads(1, 384, 6, 1)
    assert experts_read(uneven, 256, 10**6, is_single=False) == F(3, 2)
    assert experts_read(uneven, 5, 10**6, is_single=False) == F("76.8")
    assert experts_read(ExpertReads(1, 7, 1, 1), 3, 10**6, is_single=False) == F("2.334")


def test_a_split_of_attention_shares_sessions() -> None:
    """Four sessions of a group of two cards are two a card: 4 / (2 · 2.8) tokens/s per card.

    The group is the whole supernode, so its four tokens choose experts once, not eight.
    """
    pair = option(attention_tp=2, session_bytes=3, experts=(EXPERTS,))
    split = problem(pair)
    judged = evaluate_supernode(split, plan(4, attention_tp=2))
    read = 28 + 10 * F("1.368")  # 2 · (1 - (3/4)^4) = 1.36718…
    assert judged.value == 4 / (2 * read / 10)
    assert max_sessions(split, pair) == 5
    split = replace(split, goal="sessions_per_card")
    assert evaluate_supernode(split, plan(4, attention_tp=2)).value == 2


GOALS = {"tokens_per_s_per_card": F(15, 13), "sessions_per_card": F(3)}


@pytest.mark.parametrize("goal", GOALS)
def test_values_of_goals(goal: str) -> None:
    """3 / 2.6 tokens/s per card, or three sessions a card."""
    assert evaluate_supernode(problem(goal=goal), plan(3)).value == GOALS[goal]


def test_a_single_user_is_alone() -> None:
    """2.2 s a token alone; a second session breaks the rule by one."""
    alone = problem(goal="user_rate")
    assert evaluate_supernode(alone, plan(1)).value == F(5, 11)
    assert one_violation(evaluate_supernode(alone, plan(2))) == ("batch", 1, "sessions")


def served(*demands: Demand, sessions: int = 3, **changes: Any) -> tuple[tuple[int, ...], Fraction]:
    p = problem(demands=demands, **changes)
    found = serve(p, p.options[0], sessions, F(2))
    return found.taken, found.end_s


def test_lanes_take_sessions_one_after_another() -> None:
    """Four cards with three sessions each are 12 lanes; two steps of 2 s are 4 s a session."""
    assert served(Demand("a", 12, 2)) == ((12,), F(4))
    assert served(Demand("a", 13, 2)) == ((13,), F(8))
    assert served(Demand("a", 25, 2, F(8))) == ((24,), F(8))
    assert served(Demand("a", 24, 2, F(8) - F(1, 1000))) == ((12,), F(4))
    assert served(Demand("a", 1, 5, F(9))) == ((0,), F(0))


def test_the_earliest_deadline_goes_first_and_free_lanes_take_over() -> None:
    """Six sessions of 2 s must end by 4 s, then seven without deadline take 6 s each.

    Six lanes are free at once; the seventh session starts on a lane free at 2 s.
    """
    urgent, late = Demand("urgent", 6, 1, F(4)), Demand("late", 7, 3)
    assert served(late, urgent) == ((7, 6), F(8))
    assert served(late, urgent, sessions=2) == ((7, 6), F(8))
    # 8 lanes and ten urgent ones: six lanes are free at 2 s, two more at 4 s
    many = replace(urgent, num_sessions=10)
    assert served(replace(late, num_sessions=6), many, sessions=2) == ((6, 10), F(8))
    assert served(late, many, sessions=2) == ((7, 10), F(10))
    same = Demand("same", 12, 1, F(4))  # among equals the order given: 24 of 12 lanes in 4 s
    assert served(same, replace(urgent, num_sessions=13)) == ((12, 12), F(4))


def test_the_cost_of_a_session_on_time() -> None:
    """12 sessions of two steps, 2.6 s each with three sessions: 4 cards · 5.2 s / 12; at 3 an hour
    a 1200th of that. With one session a card, three waves of 4.4 s: 4 · 13.2 / 12.
    """
    timed = problem(demands=(DEMAND,), goal="cost_per_on_time_session")
    assert evaluate_supernode(timed, plan(3)).value == 4 * F("5.2") / 12
    priced = replace(timed, price_per_card_hour=F(3))
    assert evaluate_supernode(priced, plan(3)).value == 4 * F("5.2") / 12 / 1200
    free = replace(timed, demands=(replace(DEMAND, deadline_s=None),))
    assert evaluate_supernode(free, plan(1)).value == 4 * F("13.2") / 12
    # 8 s are one wave of 4.4 s: 4 sessions
    short = replace(timed, min_on_time=4)
    judged = evaluate_supernode(short, plan(1))
    assert judged.is_feasible
    assert judged.value == 4 * F("4.4") / 4
    short = replace(timed, min_on_time=5)
    assert one_violation(evaluate_supernode(short, plan(1))) == ("on_time", 1, "sessions")
    none = replace(timed, demands=(replace(DEMAND, deadline_s=F(4)),))
    judged = evaluate_supernode(none, plan(1))
    assert one_violation(judged) == ("on_time", 1, "sessions")
    assert judged.value is None


#: Rule, what the option has, a limit that it just keeps, one that it breaks, by how much.
LIMITS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], Any]] = [
    ("step_target", {}, {"step_target_s": F("2.6")}, {"step_target_s": F("2.59")}, F("0.01")),
    ("host_memory", {"host_bytes": 9}, {"host_capacity_bytes": 9}, {"host_capacity_bytes": 7}, 2),
    ("connection_state", {"state_bytes": 9}, {"max_state_bytes": 9}, {"max_state_bytes": 8}, 1),
    ("connection_setup", {"setup_s": F(9)}, {"max_setup_s": F(9)}, {"max_setup_s": F(8)}, 1),
    ("lookup", {"lookup": LOOKUP}, {}, {"lookups_must_hide": True}, F(3, 20)),
]


@pytest.mark.parametrize(("rule", "has", "kept", "broken", "amount"), LIMITS)
def test_limits_from_both_sides(
    rule: str, has: dict[str, Any], kept: dict[str, Any], broken: dict[str, Any], amount: Any
) -> None:
    built = option(**has)
    assert evaluate_supernode(problem(built, **kept), plan()).violations == ()
    (found,) = evaluate_supernode(problem(built, **broken), plan()).violations
    assert (found.rule, found.amount) == (rule, amount)


def test_what_is_not_among_the_options() -> None:
    """Options for comparison, those that do not line up, unknown ones, and no sessions at all."""
    other = problem(option(is_asked=False))
    assert one_violation(evaluate_supernode(other, plan()))[0] == "not_asked"
    uneven = problem(option(alignment_cards=2))
    assert one_violation(evaluate_supernode(uneven, plan())) == ("alignment", 2, "cards")
    for unknown in (plan(size=4), plan(tables="host"), plan(attention_tp=2)):
        judged = evaluate_supernode(problem(), unknown)
        assert one_violation(judged)[0] == "option"
        assert judged.value is None
    assert one_violation(evaluate_supernode(problem(), plan(0))) == ("sessions", 1, "sessions")
    assert one_violation(evaluate_supernode(problem(), plan(-2))) == ("sessions", 3, "sessions")


def test_the_search_finds_the_best_and_knows_its_limits() -> None:
    """One card alone holds 30 B of weights, so one session, at 1/2.2 tokens/s; two hold three."""
    small = option(size=1, replicated_bytes=20)
    both = problem(small, option())
    assert best_supernode_exhaustively(both) == plan(3)
    assert first_supernode(both) == SupernodePlan(1, "hbm", 1, 1)
    with pytest.raises(TooLargeError, match="more than 5"):
        best_supernode_exhaustively(both, 5)  # 2 and 4 plans
    assert best_supernode_exhaustively(both, 6) == plan(3)
    assert improved_supernode(both, lambda: True) is None
    full = problem(option(replicated_bytes=40))
    assert best_supernode_exhaustively(full) is None
    assert first_supernode(full) is None
    # all sessions that fit are too slow together, one alone is not
    slow = problem(step_target_s=F("2.3"))
    assert first_supernode(slow) == plan(1)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("needs an option", {"options": ()}),
    ("the same", {"options": (option(), option())}),
    ("above 0", {"peak_flops_per_s": F(0)}),
    ("do not divide 2 cards", {"options": (option(attention_tp=3),)}),
    ("supernodes of 3", {"options": (option(size=3),)}),
    ("at least 1 byte", {"options": (option(session_bytes=0),)}),
    ("0 or more", {"options": (option(read_bytes=-1),)}),
    ("takes some time", {"options": (option(read_bytes=0, kv_read_bytes=F(0), flops=F(0)),)}),
    ("has an algorithm", {"options": (option(exchanges=(replace(EXCHANGE, algorithms=()),)),)}),
    ("needs sessions", {"goal": "cost_per_on_time_session"}),
    ("single user", {"goal": "user_rate", "demands": (DEMAND,)}),
]


@pytest.mark.parametrize(("rule", "changes"), BAD)
def test_data_that_mean_nothing(rule: str, changes: dict[str, Any]) -> None:
    assert isinstance(problem(), SupernodeProblem)
    with pytest.raises(ValueError, match=rule):
        problem(**changes)
