"""One serving instance, one session at a time: its steps, the queue, faults, every tie."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import Instance, parse_instance
from optimizer.checks import sessions_in_order
from optimizer.evaluate import evaluate, instance_stalls
from optimizer.footprint_prices import service_time_s
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Footprint, Plan, ServingInstance
from optimizer.steps import decode_step
from optimizer.timeline import SessionRun, Stall, merge_stalls, run_queue, run_session

F = Fraction


def stalls(*pairs: tuple[int, int]) -> tuple[Stall, ...]:
    return tuple(Stall(F(a), F(b)) for a, b in pairs)


def run(ready: int, service: int, *pairs: tuple[int, int]) -> tuple[Fraction, Fraction, int]:
    """Return (start, finish, restarts) of one session."""
    result = run_session(F(ready), F(service), stalls(*pairs))
    return result.start_s, result.finish_s, result.num_restarts


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ([], []),
        ([(3, 5)], [(3, 5)]),
        ([(6, 8), (1, 2)], [(1, 2), (6, 8)]),
        ([(1, 4), (3, 6)], [(1, 6)]),
        ([(1, 9), (3, 6)], [(1, 9)]),
        ([(1, 3), (3, 6)], [(1, 6)]),
        ([(1, 3), (1, 6)], [(1, 6)]),
        ([(1, 3), (1, 3)], [(1, 3)]),
        ([(1, 3), (4, 6), (2, 5)], [(1, 6)]),
    ],
)
def test_stalls_that_overlap_or_touch_become_one_and_others_stay_apart(
    given: list[tuple[int, int]], merged: list[tuple[int, int]]
) -> None:
    assert merge_stalls(stalls(*given)) == stalls(*merged)


def test_without_faults_a_session_runs_from_when_it_is_ready() -> None:
    assert run(3, 10) == (3, 13, 0)


def test_a_fault_in_the_middle_starts_the_session_over_when_the_stall_ends() -> None:
    # Section 6.7.2: fails at 20, stalls 40, so it restarts at 60 and ends 119 later.
    assert run(0, 119, (20, 60)) == (0, 179, 1)


def test_a_fault_exactly_at_the_start_delays_the_start_and_is_no_restart() -> None:
    assert run(5, 10, (5, 8)) == (8, 18, 0)


def test_a_fault_exactly_at_the_finish_finds_the_session_done() -> None:
    assert run(5, 10, (15, 20)) == (5, 15, 0)


def test_a_fault_just_before_the_finish_throws_everything_away() -> None:
    moment = F(15) - F(1, 10**9)
    result = run_session(F(5), F(10), (Stall(moment, F(20)),))
    assert result == SessionRun(F(5), F(30), 1)


def test_a_fault_just_after_the_start_is_a_restart() -> None:
    result = run_session(F(5), F(10), (Stall(F(5) + F(1, 10**9), F(8)),))
    assert result == SessionRun(F(5), F(18), 1)


def test_a_session_ready_inside_a_stall_waits_for_its_end_and_is_not_restarted() -> None:
    assert run(6, 10, (5, 8)) == (8, 18, 0)


def test_a_session_ready_exactly_when_a_stall_ends_starts_at_once() -> None:
    assert run(8, 10, (5, 8)) == (8, 18, 0)


def test_a_stall_that_is_over_before_the_session_is_ready_changes_nothing() -> None:
    assert run(9, 10, (5, 8)) == (9, 19, 0)


def test_a_stall_that_begins_after_the_session_ends_changes_nothing() -> None:
    assert run(0, 10, (11, 20)) == (0, 10, 0)


def test_two_faults_throw_a_session_back_twice_and_the_first_start_is_kept() -> None:
    # Runs 0–4, stalls to 6, runs 6–12, stalls to 13, runs 13–23.
    assert run(0, 10, (4, 6), (12, 13)) == (0, 23, 2)


def test_a_second_fault_exactly_at_the_end_of_the_restarted_run_is_too_late() -> None:
    assert run(0, 10, (4, 6), (16, 20)) == (0, 16, 1)


def test_overlapping_repairs_of_two_cards_run_side_by_side_and_restart_once() -> None:
    merged = merge_stalls(stalls((4, 9), (6, 12)))
    assert run_session(F(0), F(10), merged) == SessionRun(F(0), F(22), 1)


def test_a_session_that_waits_in_a_stall_can_still_be_hit_by_the_next_one() -> None:
    # Ready at 1 inside 0–2, runs 2–5, stalls to 7, runs 7–17.
    assert run(1, 10, (0, 2), (5, 7)) == (2, 17, 1)


def test_a_queue_serves_in_the_given_order_one_after_another() -> None:
    runs = run_queue([(F(0), F(3)), (F(0), F(4)), (F(0), F(5))], ())
    assert [(r.start_s, r.finish_s) for r in runs] == [(0, 3), (3, 7), (7, 12)]


def test_a_queue_idles_until_the_next_session_is_released() -> None:
    runs = run_queue([(F(0), F(3)), (F(10), F(4)), (F(2), F(5))], ())
    # The third is ready at 2 but stands behind the second, which comes at 10.
    assert [(r.start_s, r.finish_s) for r in runs] == [(0, 3), (10, 14), (14, 19)]


def test_a_session_released_inside_a_stall_waits_and_delays_those_behind_it() -> None:
    runs = run_queue([(F(6), F(10)), (F(0), F(1))], stalls((5, 8)))
    assert [(r.start_s, r.finish_s, r.num_restarts) for r in runs] == [(8, 18, 0), (18, 19, 0)]


def test_a_fault_between_two_sessions_restarts_neither() -> None:
    # The first ends at 4 exactly when the fault comes; the second waits for its end.
    runs = run_queue([(F(0), F(4)), (F(0), F(5))], stalls((4, 6)))
    assert [(r.start_s, r.finish_s, r.num_restarts) for r in runs] == [(0, 4, 0), (6, 11, 0)]


def test_a_fault_while_a_session_waits_for_another_restarts_only_the_running_one() -> None:
    runs = run_queue([(F(0), F(10)), (F(1), F(5))], stalls((3, 4)))
    assert [(r.start_s, r.finish_s, r.num_restarts) for r in runs] == [(0, 14, 1), (14, 19, 0)]


def test_an_empty_queue_has_no_runs() -> None:
    assert run_queue([], stalls((1, 2))) == []


# Qwen3-32B by (6-4): 64 layers of 930 MiB and a head of 151936 · 5120 · 2 B are read each step.
WEIGHTS = 64 * 930 * 2**20 + 151_936 * 5120 * 2


def one_server(peak: str = "989.4TFLOP/s") -> Instance:
    card = {"base": "h100-sxm", "peak_flops_per_s": {"bf16": peak}}
    server = {"base": "hgx-h100", "accelerator": card}
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": 0, "new_tokens": 1}
    return parse_instance(
        {
            "name": "steps",
            "model": "qwen3-32b",
            "fleet": {"pools": [{"name": "hgx", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": [cohort]},
            "objective": {"minimise": "makespan"},
        }
    )


READS, BALANCED = one_server(), one_server("6.7TFLOP/s")


def steps_s(instance: Instance, tp: int, start: int, count: int) -> Fraction:
    fields = {"context_tokens": start, "new_tokens": count}
    cohort = instance.workload.cohorts[0].model_copy(update=fields)
    built = Footprint("hgx", ParallelConfig(tp=tp), 1, "ring" if tp > 1 else "none")
    return service_time_s(instance, instance.fleet.pools[0], built, cohort)


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]))
def test_the_steps_of_a_session_add_up_to_the_closed_form(start: int, count: int, tp: int) -> None:
    # n steps read n · (weights + 256 KiB · (s + 1 + (n - 1) / 2)) in all, shared by tp cards at
    # 3350 GB/s; each has 128 rings of 2 (tp - 1) rounds of 822 ns and 10 KiB / tp at 450 GB/s.
    tokens = start + 1 + F(count - 1, 2)
    local_s = (WEIGHTS + 2**18 * tokens) / (tp * 3350 * 10**9)
    ring_s = 2 * (tp - 1) * (F(822, 10**9) + F(10_240, tp * 450 * 10**9))
    assert steps_s(READS, tp, start, count) == count * (local_s + 128 * ring_s)


@settings(max_examples=30, deadline=None, database=None)
@given(st.integers(40_300, 41_000), st.integers(1, 400))
def test_where_compute_overtakes_reads_the_sum_goes_on_step_by_step(start: int, count: int) -> None:
    # At 6.7 TFLOP/s, twice the bytes per second, a token costs 4 · 64 · 64 · 128 = 2^21 FLOP:
    # 2 (W + x) = W + 8 x where x = W / 6 = 256 KiB · (s + 1), so compute rules from 40,670 on.
    tokens = range(start + 1, start + count + 1)
    halves = sum(max(2 * (WEIGHTS + 2**18 * t), WEIGHTS + 2**21 * t) for t in tokens)
    assert steps_s(BALANCED, 1, start, count) == F(halves, 6700 * 10**9)


def test_compute_takes_longer_than_reads_from_the_token_worked_out_by_hand() -> None:
    # 63,967,068,160 / 6 / 2^18 = 40,669.2, so 40,669 tokens still read longer and 40,670 do not.
    alone = Footprint("hgx", ParallelConfig(), 1, "none")
    step = decode_step(BALANCED, BALANCED.fleet.pools[0], alone)
    for tokens, doubled in (
        (40_669, 2 * (WEIGHTS + 2**18 * 40_669)),
        (40_670, WEIGHTS + 2**21 * 40_670),
    ):
        assert step.at(tokens) == F(doubled, 6700 * 10**9)


def two_pools() -> Instance:
    """Return two equal pools; sessions come at 2 s, 0 s and 2 s; card 0 of pool b fails at 1 s."""
    releases = {"late": "2s", "early": "0s", "last": "2s"}
    steps = {"num_sessions": 1, "context_tokens": 0, "new_tokens": 1}
    return parse_instance(
        {
            "name": "two pools",
            "model": "qwen3-32b",
            "fleet": {
                "pools": [{"name": n, "server": "hgx-h100", "num_servers": 1} for n in ("a", "b")]
            },
            "workload": {
                "cohorts": [{"name": n, "release_s": r, **steps} for n, r in releases.items()]
            },
            "objective": {"minimise": "max_latency"},
            "faults": [
                {"card": 0, "pool": "b", "at_s": "1s", "stall_s": "1s"},
                {"card": 1, "at_s": "3s", "stall_s": "1s"},
            ],
        }
    )


def test_sessions_are_ordered_by_release_and_then_as_the_cohorts_are_listed() -> None:
    order = sessions_in_order(two_pools())
    assert [str(session) for session in order] == ["early/0", "late/0", "last/0"]


def test_a_fault_stops_only_the_card_of_its_own_pool_and_the_first_pool_is_the_default() -> None:
    instance, both = two_pools(), (CardId(0, 0), CardId(0, 1))
    found = {
        pool: instance_stalls(instance, ServingInstance(pool, ParallelConfig(tp=2), "ring", both))
        for pool in ("a", "b")
    }
    assert found == {"a": stalls((3, 4)), "b": stalls((1, 2))}


def test_latency_counts_from_release_and_completion_from_time_zero() -> None:
    instance = two_pools()
    early, late, last = sessions_in_order(instance)
    one = ParallelConfig()
    result = evaluate(
        instance,
        Plan(
            (
                ServingInstance("a", one, "none", (CardId(0, 0),), (early, late)),
                ServingInstance("a", one, "none", (CardId(0, 2),), (last,)),
            )
        ),
    )
    # One step from an empty context: weights and the KV of the new token, at 3350 GB/s.
    step_s = F(WEIGHTS + 2**18, 3350 * 10**9)
    assert [outcome.start_s for outcome in result.sessions] == [0, 2, 2]
    assert result.max_latency_s == step_s
    assert result.makespan_s == 2 + step_s
    assert result.mean_completion_s == F(4, 3) + step_s
