"""What holds of every routing, context split, grid and pipeline, whatever its sizes.

Pipelines are also compared with a clock that ticks in whole seconds and knows only the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from hypothesis import event, given, settings
from hypothesis import strategies as st

from optimizer.context_split import Part, causal_pairs, contiguous_parts, zigzag_parts
from optimizer.grids import (
    all_gather_sent_bytes,
    all_reduce_sent_bytes,
    best_grid,
    grid_split,
    reduce_scatter_sent_bytes,
)
from optimizer.pipeline import (
    decode_period_s,
    run_decode_rounds,
    run_pipeline,
    steady_interval_s,
)
from optimizer.routing import (
    counted_load,
    dispatch_copies,
    dispatch_copies_of,
    expected_distinct_experts,
    routing_load,
)

F = Fraction
quick = settings(max_examples=150, deadline=None, database=None, derandomize=True)
counts = st.integers(1, 40)
fractions = st.fractions(F(1, 8), 5, max_denominator=8)
delays = st.fractions(0, 5, max_denominator=8)


@st.composite
def routings(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw tokens, experts, experts per token and groups that divide the experts."""
    groups, size = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return draw(counts), groups * size, draw(st.integers(1, groups * size)), groups


@quick
@given(routings())
def test_whole_policies_are_loads_of_counts(routing: tuple[int, int, int, int]) -> None:
    """Balanced choices dealt out in turn, and one set of hot experts packed or dealt."""
    tokens, experts, chosen, groups = routing
    round_robin = [expert % groups for expert in range(experts)]
    dealt = [0] * experts
    for assignment in range(tokens * chosen):
        dealt[assignment % experts] += 1
    hot = [tokens] * chosen + [0] * (experts - chosen)
    assert routing_load(*routing, "balanced") == counted_load(dealt, groups, round_robin)
    assert routing_load(*routing, "concentrated") == counted_load(hot, groups)
    assert routing_load(*routing, "spread") == counted_load(hot, groups, round_robin)


@quick
@given(routings())
def test_expected_routing_lies_between_concentrated_and_balanced(
    routing: tuple[int, int, int, int],
) -> None:
    """Tokens that choose independently share some experts, but never fewer than one chooses."""
    tokens, experts, chosen, _ = routing
    concentrated, expected, balanced = (
        routing_load(*routing, policy) for policy in ("concentrated", "expected", "balanced")
    )
    assert concentrated.distinct_experts <= expected.distinct_experts <= balanced.distinct_experts
    assert expected.busiest_assignments <= balanced.busiest_assignments
    assert balanced.busiest_assignments <= concentrated.busiest_assignments
    one_more = routing_load(tokens + 1, *routing[1:], "expected").distinct_experts
    assert expected.distinct_experts <= one_more <= experts
    exact = expected_distinct_experts(tokens, experts, chosen)
    assert exact <= expected.distinct_experts < exact + Fraction(1, 1000)


@quick
@given(routings(), st.data())
def test_no_choice_of_experts_needs_more_copies_than_the_bound(
    routing: tuple[int, int, int, int], data: st.DataObject
) -> None:
    _, experts, chosen, groups = routing
    order = data.draw(st.permutations(range(experts)))
    group_of_expert = [expert % groups for expert in range(experts)]
    bound = dispatch_copies(chosen, groups)
    assert 1 <= dispatch_copies_of(order[:chosen], group_of_expert) <= bound
    assert dispatch_copies_of(range(chosen), group_of_expert) == bound


def num_tokens_of(part: Part) -> int:
    return sum(end - start for start, end in part)


@quick
@given(st.integers(1, 400), st.integers(1, 16), st.integers(0, 1000))
def test_splits_hold_every_position_once_and_every_pair(tokens: int, cp: int, context: int) -> None:
    for split in (contiguous_parts, zigzag_parts):
        parts = split(tokens, cp)
        held = sorted(p for part in parts for start, end in part for p in range(start, end))
        assert held == list(range(tokens))
        sizes = [num_tokens_of(part) for part in parts]
        assert len(sizes) == cp
        assert max(sizes) - min(sizes) <= 1
        pairs = causal_pairs(parts, context)
        assert sum(pairs) == tokens * (tokens + 1) // 2 + tokens * context
        assert max(pairs) * cp >= sum(pairs)
        spelled = [
            sum(p + 1 + context for start, end in part for p in range(start, end)) for part in parts
        ]
        assert list(pairs) == spelled


@quick
@given(st.integers(1, 400), st.integers(1, 16))
def test_zigzag_is_never_busier_than_contiguous(tokens: int, cp: int) -> None:
    zigzag = max(causal_pairs(zigzag_parts(tokens, cp)))
    contiguous = max(causal_pairs(contiguous_parts(tokens, cp)))
    event("equal" if zigzag == contiguous else "less busy")
    assert zigzag <= contiguous
    if tokens % (2 * cp) == 0:
        # Chunks i and 2·cp-1-i of equal size: every card has the average.
        assert zigzag * cp == tokens * (tokens + 1) // 2


@quick
@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 1000))
def test_cards_with_equal_tokens_prefer_zigzag_after_any_context(
    tokens_per_card: int, cp: int, context: int
) -> None:
    """Every card then sees the context equally often, and the rest is as without one."""
    tokens = tokens_per_card * cp
    zigzag = max(causal_pairs(zigzag_parts(tokens, cp), context))
    assert zigzag <= max(causal_pairs(contiguous_parts(tokens, cp), context))


@quick
@given(counts, counts, counts, st.integers(1, 36), st.booleans())
def test_no_grid_is_cheaper_than_the_best_one(
    m: int, k: int, n: int, cards: int, is_link_shared: bool
) -> None:
    best = best_grid(m, k, n, cards, 2, is_link_shared=is_link_shared)
    assert best.rows * best.cols == cards
    for rows in range(1, cards + 1):
        for cols in range(1, cards + 1):
            if rows * cols == cards:
                other = grid_split(m, k, n, rows, cols, 2)
                least = best.cost_bytes(is_link_shared=is_link_shared)
                assert least <= other.cost_bytes(is_link_shared=is_link_shared)


@quick
@given(counts, counts, counts, st.integers(1, 6), st.integers(1, 6))
def test_padding_a_grid_never_makes_bytes_too_few(
    m: int, k: int, n: int, rows: int, cols: int
) -> None:
    """All cards of a row together send their inputs once to each of the others."""
    grid = grid_split(m, k, n, rows, cols, 2)
    assert grid.row_bytes * rows * cols >= (cols - 1) * m * k * 2
    assert grid.column_bytes * rows * cols >= (rows - 1) * k * n * 2


@quick
@given(st.integers(1, 64), st.integers(0, 10**9))
def test_sequence_parallelism_sends_what_the_all_reduce_sent(ranks: int, message: int) -> None:
    both_halves = reduce_scatter_sent_bytes(ranks, message) + all_gather_sent_bytes(ranks, message)
    assert all_reduce_sent_bytes(ranks, message) == both_halves
    exact = F(2 * (ranks - 1) * message, ranks)
    assert exact <= both_halves < exact + 2 * ranks


@dataclass
class TickingStage:
    """One stage of the ticking clock; micro-batches are numbers."""

    seconds: list[int]
    running: int | None = None
    done_at: int = 0
    slots: list[tuple[int, int]] = field(default_factory=list)  # (micro-batch, there at)
    visits: dict[int, list[int]] = field(default_factory=dict)  # start, finish, leave


def tick_through(
    seconds: list[list[int]], arrivals: list[int], slots: int, handoff: int
) -> list[TickingStage]:
    """Run the rules second by second, until nothing more can move in each one."""
    stages = [TickingStage(times) for times in seconds]
    stages[0].slots = list(enumerate(arrivals))
    last = len(stages) - 1
    now = 0
    while len(stages[last].visits) < len(arrivals) or stages[last].running is not None:
        moved = True
        while moved:
            moved = False
            for i, stage in enumerate(stages):
                if stage.running is not None and stage.done_at <= now:
                    has_room = i == last or len(stages[i + 1].slots) < slots
                    if has_room:
                        stage.visits[stage.running] += [stage.done_at, now]
                        if i < last:
                            stages[i + 1].slots.append((stage.running, now + handoff))
                        stage.running, moved = None, True
                if stage.running is None and stage.slots and stage.slots[0][1] <= now:
                    stage.running = stage.slots.pop(0)[0]
                    stage.done_at = now + stage.seconds[stage.running]
                    stage.visits[stage.running] = [now]
                    moved = True
        now += 1
    return stages


@quick
@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.integers(0, 4))
def test_a_pipeline_does_what_its_rules_say_second_by_second(
    data: st.DataObject, num_stages: int, batches: int, slots: int, handoff: int
) -> None:
    row = st.lists(st.integers(1, 4), min_size=batches, max_size=batches)
    seconds = data.draw(st.lists(row, min_size=num_stages, max_size=num_stages))
    arrivals = sorted(data.draw(st.lists(st.integers(0, 9), min_size=batches, max_size=batches)))
    run = run_pipeline(
        [[F(time) for time in times] for times in seconds],
        [F(arrival) for arrival in arrivals],
        slots,
        F(handoff),
    )
    for i, stage in enumerate(tick_through(seconds, arrivals, slots, handoff)):
        visits = [(v[i].start_s, v[i].finish_s, v[i].leave_s) for v in run.visits]
        assert visits == [tuple(stage.visits[j]) for j in range(batches)]
        if i:
            assert run.longest_queue(i) <= slots


@quick
@given(st.lists(fractions, min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 4), delays)
def test_more_slots_delay_no_micro_batch(
    stages: list[Fraction], batches: int, slots: int, handoff: Fraction
) -> None:
    arrivals = [F(0)] * batches
    few, more, unlimited = (
        run_pipeline(stages, arrivals, limit, handoff) for limit in (slots, slots + 1, None)
    )
    for earlier, later in ((more, few), (unlimited, more)):
        for a, b in zip(earlier.completions_s, later.completions_s, strict=True):
            assert a <= b


@quick
@given(fractions, st.integers(1, 8), st.integers(1, 12), st.integers(1, 3))
def test_even_stages_are_used_b_over_q_plus_b_minus_one(
    stage: Fraction, num_stages: int, batches: int, slots: int
) -> None:
    run = run_pipeline([stage] * num_stages, [F(0)] * batches, slots)
    assert run.makespan_s == (num_stages + batches - 1) * stage
    assert run.utilisation == F(batches, num_stages + batches - 1)


@quick
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from([1, 2, 3, None]),
    st.integers(0, 9),
)
def test_a_long_run_settles_at_the_steady_interval(
    stages: list[int], slots: int | None, handoff: int
) -> None:
    """It repeats after as many micro-batches as a stage has slots."""
    times = [F(time) for time in stages]
    done = run_pipeline(times, [F(0)] * 200, slots, F(handoff)).completions_s
    interval = steady_interval_s(times, slots, F(handoff))
    event("hand-off sets the pace" if interval > max(times) else "slowest stage sets the pace")
    cycle = slots or 1
    assert done[-1] - done[-1 - cycle] == cycle * interval


@quick
@given(st.lists(fractions, min_size=1, max_size=5), st.integers(1, 9), delays, delays)
def test_decode_rounds_repeat_with_the_closed_period_from_the_first_token_on(
    stages: list[Fraction], groups: int, handoff: Fraction, back: Fraction
) -> None:
    """Group g follows group 0 by g times the slowest stage, and every token by one period."""
    handoffs = [handoff * (i + 1) for i in range(len(stages) - 1)]
    period = decode_period_s(stages, groups, handoffs, back)
    way_there = sum(stages) + sum(handoffs)
    event("groups fill the slowest stage" if period > way_there + back else "way round is longer")
    for group, row in enumerate(run_decode_rounds(stages, groups, 5, handoffs, back)):
        first = way_there + group * max(stages)
        assert row == tuple(first + token * period for token in range(5))


@quick
@given(st.lists(fractions, min_size=1, max_size=4), st.integers(1, 6), delays)
def test_one_token_of_every_group_is_a_run_of_micro_batches(
    stages: list[Fraction], groups: int, handoff: Fraction
) -> None:
    first_tokens = tuple(row[0] for row in run_decode_rounds(stages, groups, 1, handoff))
    assert first_tokens == run_pipeline(stages, [F(0)] * groups, None, handoff).completions_s


@quick
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_unequal_groups_take_no_longer_than_if_all_were_the_slowest(
    data: st.DataObject, num_stages: int, groups: int, tokens: int
) -> None:
    """Groups take turns in any case, so longer times can only delay."""
    row = st.lists(fractions, min_size=groups, max_size=groups)
    times = data.draw(st.lists(row, min_size=num_stages, max_size=num_stages))
    slowest = [max(stage) for stage in times]
    unequal = run_decode_rounds(times, groups, tokens)
    for own, bound in zip(unequal, run_decode_rounds(slowest, groups, tokens), strict=True):
        for moment, limit in zip(own, bound, strict=True):
            assert moment <= limit
        # The next token has its whole way before it when the last one is out.
        alone = sum(min(stage) for stage in times)
        assert all(later - earlier >= alone for earlier, later in pairwise(own))
