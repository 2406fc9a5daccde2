"""Rounded ticks decide as exact times do: deadlines, stalls, order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formulations.ticks import MAX_TICKS, TickScale, horizon_s, tick_scale
from instances import parse_instance
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.protocols import Measure
from optimizer.tables import Candidate, Kind, MemoryRow, ProblemTables

Stalls = tuple[tuple[Fraction, Fraction], ...]
#: A time that no tick divides: its denominator is a prime beyond 2^30.
ODD = Fraction(1, 2**31 - 1)
EPSILON = Fraction(1, 10**25)
quick = settings(max_examples=120, deadline=None, database=None, derandomize=True)


def tables_of(
    cohorts: Sequence[tuple[int, Fraction, Fraction | None]],
    services: Sequence[Sequence[Fraction]],
    stalls: Sequence[Stalls] = ((),),
    free_bytes: int = 99,
    shape: tuple[int, int] = (1, 1),
    session_bytes: Sequence[int] = (),
) -> ProblemTables:
    """Return tables of (sessions, release, deadline) cohorts; a kind for each row of services.

    Every session holds one byte unless told otherwise; `shape` is (groups, lanes of each).
    """
    card = {"name": "c", "memory_bytes": 1, "memory_bandwidth_bytes_per_s": 1}
    server = {
        "name": "s",
        "accelerator": {**card, "peak_flops_per_s": {"bf16": 1}},
        "num_cards": 8,
        "fabric": {"name": "f", "alpha_s": 0, "bandwidth_bytes_per_s": 1},
    }
    listed = [
        {"name": f"c{i}", "num_sessions": n, "context_tokens": 0, "new_tokens": 1}
        | {"release_s": release, "deadline_s": deadline}
        for i, (n, release, deadline) in enumerate(cohorts)
    ]
    instance = parse_instance(
        {
            "name": "ticks",
            "model": "qwen3-32b",
            "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": listed},
            "objective": {"minimise": "makespan"},
        }
    )
    footprint = Footprint("p", ParallelConfig(dp=shape[0]), 1, "none", batch=shape[1])
    memory = (MemoryRow(tuple(session_bytes) or (1,) * len(cohorts), free_bytes),)
    candidates = tuple(
        Candidate(i, 0, footprint, memory, tuple(row), Fraction(0))
        for i, row in enumerate(services)
    )
    kinds = tuple(
        Kind(i, c, (), tuple(s)) for i, (c, s) in enumerate(zip(candidates, stalls, strict=True))
    )
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c][1])
    dealt = tuple(c for c in order for _ in range(cohorts[c][0]))
    return ProblemTables(instance, candidates, (), (), kinds, None, dealt)


ZERO, ONE = Fraction(0), Fraction(1)


def test_times_with_a_small_common_tick_are_exact() -> None:
    """3 s, 1/2 s and 10/3 s are whole numbers of 1/6 s; limits are rounded down to it."""
    tables = tables_of([(2, Fraction(1, 2), Fraction(10, 3))], [[Fraction(3)]])
    scale = tick_scale(tables)
    assert scale == TickScale(6)
    assert scale.is_exact
    assert (scale.at(Fraction(3)), scale.at(Fraction(1, 2))) == (18, 3)
    assert scale.last_within(Fraction(10, 3)) == 20
    assert scale.last_within(Fraction(10, 3) - EPSILON) == 19


def test_the_horizon_is_all_work_after_the_last_release_and_stall() -> None:
    """The last stall ends at 7; three sessions of 2 s on the slower kind are the most left then."""
    stalls: list[Stalls] = [(), ((Fraction(6), Fraction(7)),)]
    tables = tables_of([(3, Fraction(5), None)], [[ONE], [Fraction(2)]], stalls)
    assert horizon_s(tables) == 7 + 3 * 2


def test_ticks_are_exact_up_to_2_to_the_30_and_rounded_beyond() -> None:
    """One session of 1 s: the deadline's denominator is the number of ticks in the horizon."""
    assert MAX_TICKS == 2**30
    exact = tick_scale(tables_of([(1, ZERO, Fraction(2**30 + 1, 2**30))], [[ONE]]))
    assert exact.is_exact
    assert exact.per_s == 2**30
    rounded = tick_scale(tables_of([(1, ZERO, Fraction(2**31 + 1, 2**31))], [[ONE]]))
    assert not rounded.is_exact
    assert rounded.per_s == 2**30
    assert rounded.ends == ((ZERO, 0), (ONE, 2**30))


def test_a_limit_at_an_end_admits_it_and_one_just_below_does_not() -> None:
    """Ends at s, 2 s and 3 s, released after s/2: nothing lies between two ends."""
    s = ONE + ODD
    scale = tick_scale(tables_of([(3, s / 2, None)], [[s]]))
    assert not scale.is_exact
    ticks = dict(scale.ends)
    ends = [s / 2 + n * s for n in (1, 2, 3)]
    assert list(ticks) == [ZERO, *ends]
    before = 0
    for end in ends:
        assert scale.last_within(end - EPSILON) == before
        assert scale.last_within(end) == scale.last_within(end + EPSILON) == ticks[end]
        before = ticks[end]
    assert scale.last_within(-EPSILON) == -1
    latencies = dict(scale.latencies)
    assert list(latencies) == [s, 2 * s, 3 * s]
    assert scale.last_within(2 * s, Measure.LATENCY) == latencies[2 * s]
    assert scale.last_within(2 * s - EPSILON, Measure.LATENCY) == latencies[s]
    assert scale.last_within(s - EPSILON, Measure.LATENCY) == -1


@pytest.mark.parametrize("early", [ZERO, EPSILON, ODD])
def test_a_stall_that_begins_at_an_end_lets_it_pass_and_an_earlier_one_does_not(
    early: Fraction,
) -> None:
    """The second session ends at 2 s: its tick is at or before the begin, or after it."""
    s = ONE + ODD
    stall = (2 * s - early, Fraction(5))
    tables = tables_of([(2, ZERO, None)], [[s]], [(stall,)])
    scale = tick_scale(tables)
    assert not scale.is_exact
    end = tables.finish_s(tables.kinds[0], s, 0)
    assert end == (5 + s if early else 2 * s)
    second, begin = 2 * scale.at(s), scale.stall_begin(tables.kinds[0], 0)
    assert (begin < second) if early else (begin >= second)
    assert dict(scale.ends)[end] == (scale.at(Fraction(5)) + scale.at(s) if early else second)


def test_a_stall_between_two_ends_of_one_tick_is_declined() -> None:
    """Ends 10^-25 s apart share a tick, so no tick can let one pass and not the other."""
    s = ONE + ODD
    stall: Stalls = ((s + EPSILON / 2, Fraction(3)),)
    tables = tables_of([(1, ZERO, None), (1, ZERO, None)], [[s, s + EPSILON]], [stall])
    with pytest.raises(TooLargeError, match="use highs"):
        tick_scale(tables)


def test_ends_that_share_a_tick_are_noted() -> None:
    """A limit between such ends admits their tick; `keeps_order` says not to believe it."""
    s = ONE + ODD
    apart = tick_scale(tables_of([(1, ZERO, None), (1, ZERO, None)], [[s, 2 * s]]))
    assert apart.keeps_order
    shared = tables_of([(1, ZERO, None), (1, ZERO, None)], [[s, s + EPSILON]])
    scale = tick_scale(shared)
    assert not scale.keeps_order
    assert scale.last_within(s) == scale.last_within(s + EPSILON) == scale.at(s)
    # each end is off by half a tick for each service in it
    assert 0 < scale.error <= Fraction(2, 2)


def run_in_ticks(tables: ProblemTables, kind: Kind, scale: TickScale, ready: int, c: int) -> int:
    """Return the least end in ticks after `ready` that overlaps no stall, as a solver finds it."""
    start = max(ready, scale.at(tables.cohorts[c].release_s))
    service = scale.at(kind.candidate.service_s[c])
    for number, (_, until) in enumerate(kind.stalls):
        if start < scale.at(until) and start + service > scale.stall_begin(kind, number):
            start = scale.at(until)
    return start + service


def queues_of(tables: ProblemTables) -> Iterator[tuple[int, ...]]:
    """Yield every order of every number of sessions."""
    for length in range(1, tables.num_sessions + 1):
        yield from sorted(set(permutations(tables.dispatch_order, length)))


tenths = st.integers(0, 40).map(lambda n: Fraction(n, 10))
services = st.integers(1, 20).map(lambda n: Fraction(n, 10))


@st.composite
def random_tables(draw: st.DrawFn) -> ProblemTables:
    """Draw up to four sessions in up to three cohorts, on kinds with up to two stalls.

    Times meet exactly, or miss by a little, because all are tenths of one odd unit plus crumbs.
    """
    unit = ONE + ODD * draw(st.integers(1, 1000))
    crumb = st.sampled_from([ZERO, ZERO, ZERO, Fraction(1, 10**6)])
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3).filter(lambda n: sum(n) < 5))
    cohorts = [(n, draw(tenths) * unit / 4, None) for n in sizes]
    rows = [[draw(services) * unit + draw(crumb) for _ in sizes] for _ in range(2)]
    stalls = []
    for _ in rows:
        cuts = sorted({draw(tenths) * unit + draw(crumb) for _ in range(draw(st.integers(0, 4)))})
        stalls.append(tuple(zip(cuts[0::2], cuts[1::2], strict=False)))
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    return tables_of(cohorts, rows, stalls, draw(st.integers(1, 4)), shape)


@quick
@given(random_tables(), st.sampled_from([ZERO, EPSILON]))
def test_every_queue_ends_on_the_tick_that_its_deadlines_know(
    tables: ProblemTables, early: Fraction
) -> None:
    """Run every queue in exact seconds and in ticks: each limit separates the same ends."""
    try:
        scale = tick_scale(tables)
    except TooLargeError:
        assume(False)
    assume(not scale.is_exact)
    reached: dict[Fraction, set[int]] = {ZERO: {0}}
    for kind in tables.kinds:
        for queue in queues_of(tables):
            if len(queue) > kind.candidate.memory[0].free_bytes:
                continue
            end, tick = ZERO, 0
            for c in queue:
                end = tables.finish_s(kind, end, c)
                tick = run_in_ticks(tables, kind, scale, tick, c)
            assert abs(tick - end * scale.per_s) <= scale.error
            reached.setdefault(end, set()).add(tick)
    assert [end for end, _ in scale.ends] == sorted(reached)
    limits = [end - early for end in reached] if early else list(reached)
    for limit in limits:
        last = scale.last_within(limit)
        for end, ticks in reached.items():
            if end <= limit:
                assert max(ticks) <= last
            elif scale.keeps_order:
                assert min(ticks) > last


def test_a_lane_reaches_the_ends_that_its_groups_memory_allows() -> None:
    """Sessions of 2 and 3 bytes: 5 bytes hold both, and a lane may serve them in a row; 4 do not.

    Services s and 2 s end at s and 2 s, and together at 3 s whichever comes first, on every lane
    of every group.
    """
    s = ONE + ODD
    cohorts = [(1, ZERO, None), (1, ZERO, None)]
    for free_bytes, ends in ((5, [ZERO, s, 2 * s, 3 * s]), (4, [ZERO, s, 2 * s])):
        for shape in ((1, 1), (1, 2), (2, 1), (2, 2)):
            tables = tables_of(cohorts, [[s, 2 * s]], ((),), free_bytes, shape, (2, 3))
            assert [end for end, _ in tick_scale(tables).ends] == ends


@quick
@given(random_tables())
def test_every_lane_of_every_deal_ends_on_a_known_tick(tables: ProblemTables) -> None:
    """Deal out all sessions that fit, lane by lane: each end is listed, with a tick as late."""
    try:
        scale = tick_scale(tables)
    except TooLargeError:
        assume(False)
    assume(not scale.is_exact)
    known = dict(scale.ends)
    for kind in tables.kinds:
        candidate = kind.candidate
        num_lanes = candidate.num_groups * candidate.num_lanes
        for lanes in product(range(num_lanes), repeat=tables.num_sessions):
            groups = [lane // candidate.num_lanes for lane in lanes]
            if max(map(groups.count, groups)) > candidate.memory[0].free_bytes:
                continue
            ready = [(ZERO, 0)] * num_lanes
            for cohort, lane in zip(tables.dispatch_order, lanes, strict=True):
                end, tick = ready[lane]
                end = tables.finish_s(kind, end, cohort)
                tick = run_in_ticks(tables, kind, scale, tick, cohort)
                ready[lane] = (end, tick)
                assert tick <= known[end]
                assert abs(tick - end * scale.per_s) <= scale.error
