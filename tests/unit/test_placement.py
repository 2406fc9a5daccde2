"""Placements of ranks on cards: times by hand, broken rules, bounds, and limits from both sides."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from formulations.integer_program import BACKENDS
from formulations.placement import solve_placement
from optimizer.errors import TooLargeError
from optimizer.placement.bound import placement_bound
from optimizer.placement.evaluation import evaluate_placement, lowest_cards
from optimizer.placement.exhaustive import assignments, best_placement_exhaustively
from optimizer.placement.problem import (
    ALGORITHMS,
    Algorithm,
    Group,
    Operation,
    Phase,
    PlacementAnswer,
    PlacementProblem,
    Wire,
)
from optimizer.placement.search import fastest_answer, first_fit, good_placement
from optimizer.placement.times import Clock, algorithm_s
from optimizer.protocols import Termination

F = Fraction

#: A round takes 1 s and 10 B/s inside a domain, 3 s and 2 B/s between domains.
INSIDE, BETWEEN = Wire(F(1), F(10)), Wire(F(3), F(2))


def phase(
    operation: Operation, message: int, *groups: Group, times: int = 1, name: str = "x"
) -> Phase:
    return Phase(name, operation, times, F(message), groups, ALGORITHMS[operation])


def problem(
    num_ranks: int, room: tuple[int, ...], *phases: Phase, exit_: Fraction | None = None
) -> PlacementProblem:
    free = tuple(tuple(range(cards)) for cards in room)
    return PlacementProblem(num_ranks, free, phases, INSIDE, BETWEEN, exit_)


def once_s(
    p: PlacementProblem, domains: tuple[int, ...], algorithm: Algorithm | str
) -> Fraction | None:
    """Time of the only phase, by rounds and links; the closed form must say the same."""
    (only,) = p.phases
    homes = tuple(tuple(domains[rank] for rank in group) for group in only.groups)
    closed = algorithm_s(p, only, algorithm, homes)
    judged = evaluate_placement(p, PlacementAnswer(domains, (algorithm,)))
    if not judged.is_feasible:
        assert closed is None
        return None
    assert judged.phases[0].once_s == closed
    return closed


FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("domains", "exit_", "seconds"),
    [
        ((0, 0, 0, 0), None, F(36, 5)),  # 6 rounds of 1 + 2/10
        ((0, 0, 0, 1), None, F(24)),  # 6 rounds of 3 + 2/2: some hop always crosses
        ((0, 1, 0, 1), None, F(24)),  # the ring is laid domain by domain, whatever the ranks
        ((0, 1, 2, 3), None, F(24)),
        ((0, 0, 1, 1), F(2), F(24)),  # one block of 2 B leaves a domain: 2/2 as on the card
        ((0, 0, 1, 1), F(1), F(30)),  # 2/1
        ((0, 0, 0, 0), F(1), F(36, 5)),
    ],
)
def test_a_ring_takes_its_slowest_hop(
    domains: tuple[int, ...], exit_: Fraction | None, seconds: Fraction
) -> None:
    p = problem(4, (4, 4, 4, 4), phase("all_reduce", 8, FOUR), exit_=exit_)
    assert once_s(p, domains, "ring") == seconds
    half = replace(p, phases=(phase("reduce_scatter", 8, FOUR),))
    assert once_s(half, domains, "ring") == seconds / 2


def test_groups_that_leave_the_same_domain_share_its_exit() -> None:
    """Each of two groups sends a block of 2 B out in every round: 4/2 = 2 s instead of 2/2."""
    both = phase("all_reduce", 4, (0, 1), (2, 3))
    p = problem(4, (2, 2, 2), both, exit_=F(2))
    assert once_s(p, (0, 1, 0, 1), "ring") == 2 * (3 + F(2))
    assert once_s(p, (0, 1, 0, 2), "ring") == 2 * (3 + F(2))  # domain 0 has both
    assert once_s(p, (0, 0, 1, 2), "ring") == 2 * (3 + F(1))  # only one leaves
    assert once_s(p, (0, 0, 1, 1), "ring") == 2 * (1 + F(2, 10))


def test_a_hierarchical_exchange_needs_equal_parts() -> None:
    """2 + 2: 2 rounds of 1 + 4/10 inside, 2 rounds of 3 + 2/2 between; 2 · 2 B leave at once."""
    p = problem(4, (4, 4, 4, 4), phase("all_reduce", 8, FOUR))
    assert once_s(p, (0, 0, 1, 1), "hierarchical") == F(14, 5) + 8
    assert once_s(p, (0, 1, 1, 0), "hierarchical") == F(14, 5) + 8
    limited = replace(p, exit_bytes_per_s=F(2))
    assert once_s(limited, (0, 0, 1, 1), "hierarchical") == F(14, 5) + 2 * (3 + F(4, 2))
    assert once_s(p, (0, 0, 0, 1), "hierarchical") is None
    assert once_s(p, (0, 0, 1, 2), "hierarchical") is None
    # nothing to do between, or inside: a plain ring
    assert once_s(p, (0, 0, 0, 0), "hierarchical") == F(36, 5)
    assert once_s(p, (0, 1, 2, 3), "hierarchical") == F(24)
    # all groups of a phase must be divided alike
    two = problem(4, (4, 4), phase("all_reduce", 8, (0, 1), (2, 3)))
    assert once_s(two, (0, 0, 0, 1), "hierarchical") is None


def test_a_direct_exchange_takes_its_busiest_link() -> None:
    """Blocks of 2 B; of 3 + 1 ranks the lone one sends 3 outside: 3 · 2/2 = 3 s after 3 s."""
    p = problem(4, (4, 4), phase("all_to_all", 8, FOUR))
    assert once_s(p, (0, 0, 0, 0), "direct") == 1 + F(3 * 2, 10)
    assert once_s(p, (0, 0, 0, 1), "direct") == 3 + 3
    assert once_s(p, (0, 0, 1, 1), "direct") == 3 + 2
    # 3 + 1: three blocks leave a domain, 2 + 2: four do
    limited = replace(p, exit_bytes_per_s=F(1))
    assert once_s(limited, (0, 0, 0, 1), "direct") == 3 + 6
    assert once_s(limited, (0, 0, 1, 1), "direct") == 3 + 8
    # two blocks inside take 2 · 2/(1/2) = 8 s where the inner links are slow
    slow = replace(p, inside=Wire(F(1), F(1, 2)))
    assert once_s(slow, (0, 0, 0, 1), "direct") == 3 + 8


def test_sends_count_what_leaves_and_what_enters_apart() -> None:
    """Messages of 4 B at 2 B/s a card and 2 B/s an exit."""
    ahead = problem(4, (2, 2), phase("send", 4, (0, 2), (1, 3)), exit_=F(2))
    assert once_s(ahead, (0, 0, 1, 1), "direct") == 3 + F(8, 2)  # both leave domain 0
    across = problem(4, (2, 2), phase("send", 4, (0, 2), (3, 1)), exit_=F(2))
    assert once_s(across, (0, 0, 1, 1), "direct") == 3 + F(4, 2)  # one each way
    assert once_s(across, (0, 1, 0, 1), "direct") == 1 + F(4, 10)
    gather = problem(4, (1, 1, 2), phase("send", 4, (0, 2), (1, 3)), exit_=F(2))
    assert once_s(gather, (0, 1, 2, 2), "direct") == 3 + F(8, 2)  # both enter domain 2


def test_the_slower_kind_of_hop_sets_the_fixed_time() -> None:
    """Links inside may be the slower ones: 5 s and 1/2 B/s against 3 s and 2 B/s."""
    p = problem(2, (2, 2), phase("all_reduce", 2, (0, 1)))
    slow = replace(p, inside=Wire(F(5), F(1, 2)))
    assert once_s(slow, (0, 0), "ring") == 2 * (5 + F(2))
    assert once_s(slow, (0, 1), "ring") == 2 * (3 + F(1, 2))
    both = replace(slow, num_ranks=4, phases=(phase("all_reduce", 2, (0, 1), (2, 3)),))
    both = replace(both, free_cards=((0, 1, 2), (0, 1, 2)))
    assert once_s(both, (0, 0, 0, 1), "ring") == 2 * (5 + F(2))


def test_an_account_says_what_spans_and_what_leaves() -> None:
    p = problem(4, (3, 2), phase("all_reduce", 8, FOUR, times=5), exit_=F(1))
    judged = evaluate_placement(p, PlacementAnswer((0, 0, 0, 1), ("ring",)))
    (use,) = judged.phases
    # in each of 6 rounds a block of 2 B leaves domain 0
    assert (use.num_spanning, use.exit_bytes, use.once_s) == (1, 12, 30)
    assert judged.value_s == use.step_s == 150
    assert judged.cards == (0, 1, 2, 0)
    inside = evaluate_placement(replace(p, free_cards=((5, 3, 4, 9),)), _in_one())
    assert (inside.phases[0].num_spanning, inside.phases[0].exit_bytes) == (0, 0)
    assert inside.cards == (3, 4, 5, 9)  # the lowest free ones, in the order of ranks


def _in_one() -> PlacementAnswer:
    return PlacementAnswer((0, 0, 0, 0), ("ring",))


PLAIN = problem(4, (3, 2), phase("all_reduce", 8, FOUR))
BROKEN: list[tuple[PlacementAnswer, tuple[str, str, int, str]]] = [
    (PlacementAnswer((0, 0, 1), ("ring",)), ("rank_missing", "placement", 1, "ranks")),
    (PlacementAnswer((0, 0, 0, 1, 1), ("ring",)), ("rank_unknown", "placement", 1, "ranks")),
    (PlacementAnswer((0, 0, 0, 3), ("ring",)), ("domain_unknown", "rank 3", 2, "domains")),
    (PlacementAnswer((0, 0, 0, -1), ("ring",)), ("domain_unknown", "rank 3", 1, "domains")),
    (PlacementAnswer((1, 1, 1, 1), ("ring",)), ("domain_full", "domain 1", 2, "cards")),
    (
        PlacementAnswer((0, 0, 0, 1), ("ring",), (0, 1, 2, 2)),
        ("card_taken", "domain 1 card 2", 1, "ranks"),
    ),
    (
        PlacementAnswer((0, 0, 0, 1), ("ring",), (0, 1, 1, 0)),
        ("card_taken", "domain 0 card 1", 1, "ranks"),
    ),
    (
        PlacementAnswer((0, 0, 0, 1), ("ring",), (0, 1, 2)),
        ("rank_missing", "placement", 1, "ranks"),
    ),
    (PlacementAnswer((0, 0, 0, 1), ()), ("algorithm", "placement", 1, "phases")),
    (PlacementAnswer((0, 0, 0, 1), ("tree",)), ("algorithm", "phase x", 1, "algorithms")),
    (PlacementAnswer((0, 0, 0, 1), ("hierarchical",)), ("algorithm", "phase x", 2, "ranks")),
]


@pytest.mark.parametrize(("answer", "expected"), BROKEN)
def test_a_broken_rule_is_named_and_measured(
    answer: PlacementAnswer, expected: tuple[str, str, int, str]
) -> None:
    judged = evaluate_placement(PLAIN, answer)
    found = [(v.rule, v.where, v.amount, v.unit) for v in judged.violations]
    assert found == [expected]
    assert judged.phases == ()


def test_without_a_network_no_group_spans() -> None:
    p = replace(problem(4, (4, 4), phase("all_reduce", 8, FOUR)), between=None)
    judged = evaluate_placement(p, PlacementAnswer((0, 0, 1, 1), ("ring",)))
    assert [(v.rule, v.amount) for v in judged.violations] == [("span", 1)]
    assert evaluate_placement(p, PlacementAnswer((1, 1, 1, 1), ("ring",))).value_s == F(36, 5)
    best = best_placement_exhaustively(p)
    assert best is not None
    assert best[0] == F(36, 5) == placement_bound(p)
    tight = replace(p, free_cards=((0, 1), (0, 1)))
    assert best_placement_exhaustively(tight) is None
    assert placement_bound(tight) is None
    assert good_placement(tight) is None
    for backend in BACKENDS:
        assert solved(tight, backend).termination is Termination.INFEASIBLE


def solved(p: PlacementProblem, backend: str, **options: Any) -> Any:
    return solve_placement(p, backend, deadline=time.monotonic() + 30, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_just_fit_or_there_is_one_card_too_few(backend: str) -> None:
    p = problem(8, (6, 2), phase("all_reduce", 8, tuple(range(8))))
    outcome = solved(p, backend)
    # 14 rounds of 3 + 1/2: no domain holds all, and 6 + 2 are no equal parts
    assert outcome.termination is Termination.OPTIMAL
    assert (outcome.value, outcome.bound) == (49, 49)
    assert sorted(outcome.answer.domains) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert outcome.answer.algorithms == ("ring",)
    fewer = replace(p, free_cards=(p.free_cards[0], (0,)))
    assert solved(fewer, backend).termination is Termination.INFEASIBLE
    assert (placement_bound(fewer), first_fit(fewer), good_placement(fewer)) == (None, None, None)
    # with two more cards on the other one, equal parts are faster:
    # 2 · 3 · (1 + 2/10) + 2 · (3 + 1/2) = 71/5
    more = replace(p, free_cards=(p.free_cards[0], (0, 1, 2, 3)))
    outcome = solved(more, backend)
    assert (outcome.value, outcome.answer.algorithms) == (F(71, 5), ("hierarchical",))
    assert sorted(outcome.answer.domains) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_exit_at_which_staying_inside_begins_to_matter(backend: str) -> None:
    """Two groups of two ranks and messages of 2 B; inside 1 B/s, 2 rounds of 1/1: 2 s.

    Spanning, cards have 2 B/s, but two blocks of 1 B leave each domain: 2 rounds of 2/E. That is
    less from E > 2 B/s on, and 1 s from 4 B/s on.
    """
    both = phase("all_reduce", 2, (0, 1), (2, 3))
    p = PlacementProblem(4, ((0, 1), (0, 1)), (both,), Wire(F(0), F(1)), Wire(F(0), F(2)))
    for exit_, seconds, spans in (
        (F(1), F(2), False),
        (F(1999, 1000), F(2), False),
        (F(2001, 1000), F(4000, 2001), True),
        (F(4), F(1), True),
        (None, F(1), True),
    ):
        limited = replace(p, exit_bytes_per_s=exit_)
        outcome = solved(limited, backend)
        assert (outcome.termination, outcome.value) == (Termination.OPTIMAL, seconds), exit_
        domains = outcome.answer.domains
        assert (domains[0] != domains[1]) is spans, exit_
        best = best_placement_exhaustively(limited)
        assert best is not None
        assert best[0] == seconds


def test_an_incumbent_is_kept_or_beaten_and_a_bad_one_refused() -> None:
    p = problem(4, (2, 2), phase("all_reduce", 8, (0, 1), (2, 3)))
    poor = fastest_answer(p, (0, 1, 0, 1))
    assert poor is not None
    for backend in BACKENDS:
        outcome = solved(p, backend, incumbent=poor)
        assert (outcome.termination, outcome.value) == (Termination.OPTIMAL, 2 * (1 + F(4, 10)))
    late = solve_placement(p, "highs", deadline=time.monotonic() - 1, incumbent=poor)
    assert (late.termination, late.answer) == (Termination.FEASIBLE, poor)
    assert late.bound < late.value
    nothing = solve_placement(p, "highs", deadline=time.monotonic() - 1)
    assert nothing.termination is Termination.NO_SOLUTION_FOUND


def test_first_fit_goes_by_card_order_or_by_room() -> None:
    p = problem(5, (1, 3, 2), phase("all_reduce", 8, FOUR))
    assert first_fit(p) == (0, 1, 1, 1, 2)
    assert first_fit(p, by_room=True) == (1, 1, 1, 2, 2)
    assert first_fit(replace(p, num_ranks=7)) is None
    assert lowest_cards(p, (1, 0, 1, 2, 1)) == (0, 0, 1, 0, 2)


def test_the_oracle_counts_before_it_looks() -> None:
    p = problem(4, (3, 0, 2), phase("all_reduce", 8, FOUR))
    found = list(assignments(p))
    assert len(found) == len(set(found)) == 10  # 4 of 3 + 2 cards: 4 with one, 6 with two in 2
    assert best_placement_exhaustively(p, max_assignments=16) is not None
    with pytest.raises(TooLargeError, match=r"2\^4 placements; the oracle takes 15"):
        best_placement_exhaustively(p, max_assignments=15)


def test_a_large_search_is_declined_by_the_formulation() -> None:
    free = tuple(tuple(range(room)) for room in range(1, 100))
    p = PlacementProblem(999, free, (phase("send", 1, (0, 1)),), INSIDE, BETWEEN)
    with pytest.raises(TooLargeError, match="variables"):
        solved(p, "highs")


def test_phases_with_the_same_pairs_both_ways_load_the_exit_once_each_way() -> None:
    """Two ranks that send to each other: one message leaves a domain, one enters."""
    p = problem(2, (1, 1), phase("send", 4, (0, 1), (1, 0)), exit_=F(2))
    for backend in BACKENDS:
        assert solved(p, backend).value == 3 + F(4, 2)
    assert once_s(p, (0, 1), "direct") == 5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_messages_that_meet_at_one_end_load_it_together(backend: str, is_turned: bool) -> None:
    """Ranks 2 and 3 want one domain for their reduction, 1 s + 2/10 a round instead of 3 + 2/2.

    But each exchanges 4 B with another rank, ten times: at 2 B/s two of these take 4 s on one side
    of an exit, where one takes 2 s. So 2 and 3 part: 10 · (3 + 2) + 2 · 4 = 58 s.
    """
    pairs = ((2, 0), (3, 1)) if is_turned else ((0, 2), (1, 3))
    phases = phase("send", 4, *pairs, times=10), phase("all_reduce", 4, (2, 3), name="y")
    p = problem(4, (1, 1, 2, 1), *phases, exit_=F(2))
    outcome = solved(p, backend)
    assert (outcome.termination, outcome.value) == (Termination.OPTIMAL, 58)
    assert outcome.answer.domains[2] != outcome.answer.domains[3]
    best = best_placement_exhaustively(p)
    assert best is not None
    assert best[0] == 58


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_ranks": 0}, "needs ranks and domains"),
    ({"free_cards": ()}, "needs ranks and domains"),
    ({"free_cards": ((0, 0),)}, "numbers of their own"),
    ({"free_cards": ((-1,),)}, "numbers of their own"),
    ({"inside": Wire(F(-1), F(1))}, "no negative time"),
    ({"between": Wire(F(1), F(0))}, "bandwidth above 0"),
    ({"exit_bytes_per_s": F(0)}, "bandwidth above 0"),
    ({"phases": (phase("all_reduce", 0, FOUR),)}, "something to exchange"),
    ({"phases": (phase("all_reduce", 8, FOUR, times=0),)}, "at least once"),
    ({"phases": (phase("all_reduce", 8),)}, "needs groups"),
    ({"phases": (phase("all_reduce", 8, (0,)),)}, "two or more"),
    ({"phases": (phase("all_reduce", 8, (0, 1, 2), (3, 0)),)}, "equally many ranks"),
    ({"phases": (phase("all_reduce", 8, (0, 4)),)}, "ranks are 0 to 3"),
    ({"phases": (phase("all_reduce", 8, (0, 1), (1, 2)),)}, "belongs to one group"),
    ({"phases": (phase("send", 8, (0, 1, 2)),)}, "one rank to another"),
    ({"phases": (phase("send", 8, (1, 1)),)}, "one rank to another"),
    ({"phases": (phase("send", 8, (0, 1), (0, 2)),)}, "sends and receives one message"),
    ({"phases": (replace(phase("all_reduce", 8, FOUR), algorithms=()),)}, "may use"),
    ({"phases": (replace(phase("send", 8, (0, 1)), algorithms=("ring",)),)}, "send may use direct"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_data_that_mean_nothing_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(PLAIN, **changes)


def test_equal_placements_are_timed_once() -> None:
    clock = Clock(problem(4, (4, 4), phase("all_reduce", 8, (0, 1), (2, 3), times=3)))
    assert clock.step_s((0, 0, 0, 1)) == clock.step_s((0, 1, 1, 1)) == 3 * 2 * (3 + F(2))
    assert clock.algorithms((0, 0, 0, 1)) == ("ring",)
