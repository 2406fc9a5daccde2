"""Pipelines as timelines: stages, slots, hand-offs, and rounds of decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from optimizer.pipeline import (
    PipelineRun,
    StageVisit,
    decode_period_s,
    run_decode_rounds,
    run_pipeline,
    steady_interval_s,
)

F = Fraction
MS = F(1, 1000)


def seconds(*values: int | str) -> tuple[Fraction, ...]:
    return tuple(F(value) for value in values)


def at_once(count: int) -> tuple[Fraction, ...]:
    """Return arrivals of micro-batches that are all there at 0."""
    return seconds(*[0] * count)


def visits_of(run: PipelineRun, stage: int) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Return (start, finish, leave) of every micro-batch on one stage."""
    return [(v.start_s, v.finish_s, v.leave_s) for v in (row[stage] for row in run.visits)]


def rounds(result: Sequence[Sequence[Fraction]]) -> list[list[int]]:
    return [[int(moment) for moment in group] for group in result]


UNEVEN = run_pipeline((MS, MS, 2 * MS, MS), at_once(6))


@pytest.mark.parametrize(
    ("name", "value", "expected", "tolerance"),
    [
        ("pp_4_4", run_pipeline(seconds(1, 1, 1, 1), at_once(4)).utilisation, "0.5714", "0.00005"),
        (
            "pp_4_16",
            run_pipeline(seconds(1, 1, 1, 1), at_once(16)).utilisation,
            "0.8421",
            "0.00005",
        ),
        ("pp_uneven", UNEVEN.first_completion_s / MS, "5", "0"),
        ("pp_uneven", UNEVEN.completion_intervals_s[0] / MS, "2", "0"),
    ],
)
def test_figures_of_section_6_2_5(
    name: str, value: Fraction, expected: str, tolerance: str
) -> None:
    assert abs(value - F(expected)) <= F(tolerance), f"{name}: {float(value)} is not {expected}"


def test_even_stages_take_q_plus_b_minus_one_stage_times() -> None:
    # 3 stages of 1/2 s, 5 micro-batches: (3 + 5 - 1) / 2; utilisation 5/7.
    run = run_pipeline(seconds("1/2", "1/2", "1/2"), at_once(5))
    assert run.makespan_s == F(7, 2)
    assert run.utilisation == F(5, 7)


def test_uneven_stages_complete_at_the_pace_of_the_slowest() -> None:
    assert UNEVEN.completions_s == tuple(moment * MS for moment in (5, 7, 9, 11, 13, 15))
    assert set(UNEVEN.completion_intervals_s) == {2 * MS}
    assert UNEVEN.makespan_s == 15 * MS
    # 6 · (1 + 1 + 2 + 1) ms of work on 4 stages in 15 ms
    assert UNEVEN.utilisation == F(1, 2)
    assert steady_interval_s((MS, MS, 2 * MS, MS)) == 2 * MS


def test_without_a_limit_the_queue_before_the_slow_stage_grows() -> None:
    # Micro-batches come at 2, 3, ..., 7 ms and start at 2, 4, 6, ... ms.
    lengths = [UNEVEN.queue_length(2, moment * MS) for moment in range(13)]
    assert lengths == [0, 0, 0, 1, 1, 2, 2, 3, 2, 2, 1, 1, 0]
    assert UNEVEN.longest_queue(2) == 3
    assert UNEVEN.longest_queue(1) == UNEVEN.longest_queue(3) == 0
    # Before the first stage all but the one that starts wait.
    assert UNEVEN.longest_queue(0) == 5


def test_slots_bound_the_queue_and_leave_the_pace_alone() -> None:
    run = run_pipeline((MS, MS, 2 * MS, MS), at_once(6), slots=1)
    assert run.longest_queue(2) == 1
    assert run.completions_s == UNEVEN.completions_s


def test_a_stage_keeps_its_micro_batch_until_the_next_one_has_a_slot() -> None:
    # The second stage starts at 1, 4, 7, 10 and gives a slot back each time.
    run = run_pipeline(seconds(1, 3), at_once(4), slots=1)
    assert visits_of(run, 0) == [(0, 1, 1), (1, 2, 2), (2, 3, 4), (4, 5, 7)]
    assert visits_of(run, 1) == [(1, 4, 4), (4, 7, 7), (7, 10, 10), (10, 13, 13)]


def test_a_second_slot_lets_the_first_stage_work_ahead() -> None:
    run = run_pipeline(seconds(1, 3), at_once(5), slots=2)
    assert visits_of(run, 0) == [(0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4), (4, 5, 7)]
    unlimited = run_pipeline(seconds(1, 3), at_once(5))
    assert visits_of(unlimited, 0)[-1] == (4, 5, 5)
    assert run.completions_s == unlimited.completions_s


def test_blocking_reaches_back_over_several_stages() -> None:
    # The last stage starts at 2, 6, 10. The third micro-batch ends on the middle one at 4 and
    # leaves at 6, so the fourth, done on the first at 4, starts there at 6 and leaves it at 10.
    run = run_pipeline(seconds(1, 1, 4), at_once(5), slots=1)
    assert visits_of(run, 1) == [(1, 2, 2), (2, 3, 3), (3, 4, 6), (6, 7, 10), (10, 11, 14)]
    assert visits_of(run, 0) == [(0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4), (4, 5, 6)]
    assert run.completions_s == (6, 10, 14, 18, 22)


def test_a_visit_enters_when_it_takes_its_slot() -> None:
    run = run_pipeline(seconds(1, 3), seconds(2, 2), slots=1, handoff_s=F(4))
    # Leaves at 3, is under way until 7; the second finds the slot taken until then.
    assert run.visits[0] == (
        StageVisit(F(2), F(2), F(3), F(3)),
        StageVisit(F(3), F(7), F(10), F(10)),
    )
    assert run.visits[1] == (
        StageVisit(F(2), F(3), F(4), F(7)),
        StageVisit(F(7), F(11), F(14), F(14)),
    )
    assert [run.queue_length(1, F(moment)) for moment in (2, 3, 6, 7, 11)] == [0, 1, 1, 1, 0]


def test_hand_offs_delay_without_slowing_when_slots_are_unlimited() -> None:
    # 1 + 5 + 1 for the first, then one each second; different links: 1 + 2 + 1 + 3 + 1.
    assert run_pipeline(seconds(1, 1), at_once(3), None, F(5)).completions_s == (7, 8, 9)
    assert run_pipeline(seconds(1, 1, 1), at_once(2), None, seconds(2, 3)).completions_s == (8, 9)
    assert steady_interval_s(seconds(1, 1), None, F(5)) == 1


def test_a_long_hand_off_with_few_slots_sets_the_pace() -> None:
    # One slot, taken for 5 s each time: 7, 12, 17. Two slots: pairs, 5 s apart.
    assert run_pipeline(seconds(1, 1), at_once(3), 1, F(5)).completions_s == (7, 12, 17)
    assert run_pipeline(seconds(1, 1), at_once(4), 2, F(5)).completions_s == (7, 8, 12, 13)
    assert steady_interval_s(seconds(1, 1), 1, F(5)) == 5
    assert steady_interval_s(seconds(1, 1), 2, F(5)) == F(5, 2)
    assert steady_interval_s(seconds(1, 1, 1), 2, seconds(1, 8)) == 4
    assert steady_interval_s(seconds(1, 3), 2, F(5)) == 3
    assert steady_interval_s(seconds(2), 1, F(5)) == 2


def test_a_stage_may_take_another_time_for_each_micro_batch() -> None:
    # 0–1 then 1–3; 1–5 then 5–7.
    run = run_pipeline((seconds(1, 4), F(2)), at_once(2))
    assert visits_of(run, 0) == [(0, 1, 1), (1, 5, 5)]
    assert visits_of(run, 1) == [(1, 3, 3), (5, 7, 7)]
    # 5 + 4 of 2 · 7 stage seconds
    assert run.utilisation == F(9, 14)


def test_micro_batches_wait_for_their_arrival_and_for_those_before_them() -> None:
    run = run_pipeline(seconds(3, 1), seconds(2, 4, 20))
    assert visits_of(run, 0) == [(2, 5, 5), (5, 8, 8), (20, 23, 23)]
    assert run.first_completion_s == 6
    assert run.completion_intervals_s == (3, 15)
    # 3 · 4 s of work on 2 stages between 2 and 24
    assert run.utilisation == F(3, 11)


def test_one_stage_has_nobody_to_wait_for() -> None:
    run = run_pipeline(seconds(2), seconds(10, 10), slots=1, handoff_s=F(5))
    assert run.completions_s == (12, 14)
    assert run.utilisation == 1


def test_a_single_micro_batch_has_no_interval() -> None:
    run = run_pipeline(seconds(1, 1), at_once(1))
    assert run.completion_intervals_s == ()
    # 2 of 2 · 2 stage seconds
    assert run.utilisation == F(1, 2)
    assert run.longest_queue(1) == 0


def test_the_next_token_of_a_group_starts_after_its_last_one_left() -> None:
    # Not 2, 3, 4: future tokens are no micro-batches.
    assert rounds(run_decode_rounds(seconds(1, 1), 1, 3)) == [[2, 4, 6]]


def test_several_groups_fill_the_stages_between_a_groups_tokens() -> None:
    assert rounds(run_decode_rounds(seconds(1, 1), 2, 3)) == [[2, 4, 6], [3, 5, 7]]
    # A third group makes the stages the limit: 3 · 1 s between a group's tokens.
    expected = [[2, 5, 8], [3, 6, 9], [4, 7, 10]]
    assert rounds(run_decode_rounds(seconds(1, 1), 3, 3)) == expected


def test_hand_offs_and_the_return_lengthen_the_way_round() -> None:
    # 1 + 1 + 1 done, + 2 back: 3, 8, 13; the second group one second behind.
    assert rounds(run_decode_rounds(seconds(1, 1), 2, 3, F(1), F(2))) == [[3, 8, 13], [4, 9, 14]]
    # Links of 1 and 4: 1 + 1 + 1 + 4 + 1.
    assert rounds(run_decode_rounds(seconds(1, 1, 1), 1, 2, seconds(1, 4))) == [[8, 16]]


def test_groups_may_need_different_times() -> None:
    # First stage 0–1 and 1–4, second 1–2 and 4–5; then 4–5 and 5–8, second 5–6 and 8–9.
    assert rounds(run_decode_rounds((seconds(1, 3), F(1)), 2, 2)) == [[2, 6], [5, 9]]


def test_a_token_waits_behind_the_group_that_came_before_it() -> None:
    # Group 0: 0–1, 1–2; group 1: 1–2, 2–4. Then group 0: 2–3 and, behind group 1, 4–5;
    # group 1: 4–5 and 5–7.
    assert rounds(run_decode_rounds((F(1), seconds(1, 2)), 2, 2)) == [[2, 5], [4, 7]]


def test_the_period_is_the_way_round_or_all_groups_on_the_slowest_stage() -> None:
    # Way round 1 + 3 + 1, hand-offs 2 + 2, return 4: 13 s; 5 groups on 3 s: 15 s.
    stages = seconds(1, 3, 1)
    assert decode_period_s(stages, 4, F(2), F(4)) == 13
    assert decode_period_s(stages, 5, F(2), F(4)) == 15
    assert decode_period_s(stages, 1, seconds(2, 7)) == 14
    assert decode_period_s(seconds(3), 1) == 3


ONE = seconds(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run_pipeline((), ONE), "at least 1 stage"),
        (lambda: run_pipeline(ONE, ()), "at least 1 micro-batch"),
        (lambda: run_pipeline(seconds(1, 0), ONE), "stage 1 must take more than 0 s, not 0"),
        (lambda: run_pipeline((seconds(1, -2),), at_once(2)), "more than 0 s, not -2"),
        (lambda: run_pipeline(seconds(-1), ONE), "stage 0 must take more than 0 s, not -1"),
        (lambda: run_pipeline((ONE,), at_once(2)), "stage 0 has 1 times for 2 micro-batches"),
        (lambda: run_pipeline(ONE, seconds(-1)), "before 0 s, but one does at -1"),
        (lambda: run_pipeline(ONE, seconds(2, 1)), "1 s comes after 2"),
        (lambda: run_pipeline(ONE, ONE, 0), "at least 1 slot to receive into, not 0"),
        (lambda: run_pipeline(seconds(1, 1), ONE, 1, F(-1)), "hand-off must take 0 s or more"),
        (
            lambda: run_pipeline(seconds(1, 1), ONE, 1, seconds(1, 1)),
            "need 1 hand-off times, not 2",
        ),
        (lambda: run_pipeline(seconds(1, 1, 1), ONE, 1, seconds(1, -2)), "0 s or more, not -2"),
        (lambda: run_pipeline(seconds(1, 1), at_once(1)).longest_queue(2), "one of the 2 stages"),
        (lambda: UNEVEN.queue_length(4, MS), "stage 4 is not one of the 4 stages"),
        (lambda: UNEVEN.longest_queue(-1), "stage -1 is not one of the 4 stages"),
        (lambda: steady_interval_s(()), "at least 1 stage"),
        (lambda: steady_interval_s(ONE, 0), "at least 1 slot to receive into, not 0"),
        (lambda: steady_interval_s(seconds(1, 1), 1, F(-1)), "hand-off must take 0 s or more"),
        (lambda: run_decode_rounds((), 1, 1), "at least 1 stage"),
        (lambda: run_decode_rounds(ONE, 0, 1), "at least 1 group, not 0"),
        (lambda: run_decode_rounds(ONE, 1, 0), "a group needs at least 1 token, not 0"),
        (lambda: run_decode_rounds((ONE,), 2, 1), "stage 0 has 1 times for 2 groups"),
        (lambda: run_decode_rounds(ONE, 1, 1, F(0), F(-1)), "return must take 0 s or more, not -1"),
        (lambda: run_decode_rounds(seconds(1, 1), 1, 1, F(-1)), "hand-off must take 0 s or more"),
        (lambda: decode_period_s((), 1), "at least 1 stage"),
        (lambda: decode_period_s(ONE, 0), "at least 1 group, not 0"),
        (lambda: decode_period_s(ONE, 1, F(0), F(-1)), "return must take 0 s or more, not -1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
