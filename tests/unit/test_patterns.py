"""Unbeaten deals hold an optimum of every measure; none is missing or superfluous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations import labels
from formulations.lanes import Queues
from formulations.patterns import Pattern, build_patterns, pattern_queues
from formulations.scoring import QueueScore, combine, score_queues
from instances import Instance, parse_instance
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.protocols import Measure
from optimizer.tables import Candidate, Kind, Layout, MemoryRow, ProblemTables

Stalls = tuple[tuple[Fraction, Fraction], ...]
quick = settings(max_examples=100, deadline=None, database=None, derandomize=True)
ZERO = Fraction(0)


def make_instance(cohorts: Sequence[tuple[int, int, int, int]], dispatch: str) -> Instance:
    """Return an instance of (sessions, held tokens, release, deadline or 0) cohorts, 3 cards."""
    card = {"name": "c", "memory_bytes": 1, "memory_bandwidth_bytes_per_s": 1}
    server = {
        "name": "s",
        "accelerator": {**card, "peak_flops_per_s": {"bf16": 1}},
        "num_cards": 3,
        "fabric": {"name": "f", "alpha_s": 0, "bandwidth_bytes_per_s": 1},
    }
    listed = [
        {"name": f"c{i}", "num_sessions": n, "context_tokens": held - 1, "new_tokens": 1}
        | {"release_s": release, "deadline_s": release + due if due else None}
        for i, (n, held, release, due) in enumerate(cohorts)
    ]
    return parse_instance(
        {
            "name": "patterns",
            "model": "qwen3-32b",
            "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": listed},
            "search": {"dispatch": dispatch},
            "objective": {"minimise": "makespan"},
        }
    )


def tables_of(
    cohorts: Sequence[tuple[int, int, int, int]],
    services: Sequence[Sequence[int]],
    stalls: Sequence[Stalls],
    free_bytes: int = 99,
    dispatch: str = "optimised",
    layouts: tuple[Layout, ...] | None = None,
    shape: tuple[int, int] = (1, 1),
) -> ProblemTables:
    """Return tables with a kind (of TP 1, 2, ...) for each row of services.

    A token takes one byte; `shape` is (groups, lanes of each).
    """
    instance = make_instance(cohorts, dispatch)
    row = MemoryRow(tuple(held for _, held, _, _ in cohorts), free_bytes)
    candidates = []
    for i, times in enumerate(services):
        parallel = ParallelConfig(dp=shape[0], tp=i + 1)
        footprint = Footprint("p", parallel, 1, "none", batch=shape[1])
        seconds, power = tuple(map(Fraction, times)), Fraction(7 + i, 2)
        candidates.append(Candidate(i, 0, footprint, (row,), seconds, power))
    kinds = tuple(
        Kind(i, c, (), s) for i, (c, s) in enumerate(zip(candidates, stalls, strict=True))
    )
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c][2])
    dealt = tuple(c for c in order for _ in range(cohorts[c][0]))
    return ProblemTables(instance, tuple(candidates), (), (), kinds, layouts, dealt)


def patterns_of(tables: ProblemTables) -> list[Pattern]:
    return build_patterns(tables, lambda: False)


def only_queue(tables: ProblemTables, pattern: Pattern) -> tuple[int, ...]:
    """Return the queue of a pattern with one lane."""
    (queue,) = pattern_queues(tables, pattern)
    return queue


@st.composite
def random_tables(
    draw: st.DrawFn,
    dispatch: str = "optimised",
    max_cohorts: int = 3,
    shape: tuple[int, int] = (1, 1),
) -> ProblemTables:
    """Draw up to two sessions of each cohort, with all times in small whole seconds."""
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=max_cohorts))
    small = st.integers(0, 6)
    cohorts = [(n, draw(st.integers(1, 3)), draw(small), draw(small)) for n in sizes]
    rows = [[draw(st.integers(1, 5)) for _ in sizes] for _ in range(2)]
    stalls: list[Stalls] = []
    for _ in rows:
        cuts = sorted(draw(st.sets(st.integers(0, 14), max_size=4)))
        pairs = zip(cuts[0::2], cuts[1::2], strict=False)
        stalls.append(tuple((Fraction(a), Fraction(b)) for a, b in pairs))
    return tables_of(cohorts, rows, stalls, draw(st.integers(2, 12)), dispatch, None, shape)


def no_worse(a: QueueScore, b: QueueScore) -> bool:
    """Whether a is at least as good as b in every measure."""
    return a.num_on_time >= b.num_on_time and all(a.measures[m] <= b.measures[m] for m in Measure)


@quick
@given(random_tables())
def test_an_unbeaten_queue_is_optimal_in_each_measure(tables: ProblemTables) -> None:
    """For every kind and set of sessions, against every order of them."""
    patterns = patterns_of(tables)
    for kind in tables.kinds:
        for counts in product(*(range(c.num_sessions + 1) for c in tables.cohorts)):
            kept = [p for p in patterns if (p.kind, p.counts) == (kind.index, counts)]
            sessions = [c for c, n in enumerate(counts) for _ in range(n)]
            held = sum(tables.cohorts[c].held_tokens for c in sessions)
            if not sessions or held > kind.candidate.memory[0].free_bytes:
                assert kept == []
                continue
            scores = [score_queues(tables, kind, (q,)) for q in set(permutations(sessions))]
            for measure in Measure:
                least = min(s.measures[measure] for s in scores)
                assert min(p.score.measures[measure] for p in kept) == least
            assert max(p.score.num_on_time for p in kept) == max(s.num_on_time for s in scores)
            # also where measures pull apart: every order is matched in all of them at once
            assert all(any(no_worse(p.score, s) for p in kept) for s in scores)


@quick
@given(random_tables())
def test_patterns_are_priced_as_their_queue_and_none_beats_another(tables: ProblemTables) -> None:
    """The label's running sums equal a fresh run of its queue."""
    patterns = patterns_of(tables)
    for p in patterns:
        assert p.kind is not None
        queue = only_queue(tables, p)
        assert p.score == score_queues(tables, tables.kinds[p.kind], (queue,))
        assert p.counts == tuple(queue.count(c) for c in range(len(tables.cohorts)))
        rivals = [q for q in patterns if q is not p and (q.kind, q.counts) == (p.kind, p.counts)]
        assert not any(no_worse(q.score, p.score) for q in rivals)


@quick
@given(random_tables("round_robin"))
def test_round_robin_patterns_are_the_dealt_queues(tables: ProblemTables) -> None:
    """With n instances, place r has sessions r, r + n, ...: one pattern for each kind that fits."""
    patterns = {(p.kind, p.place): p for p in patterns_of(tables)}
    most = min(tables.num_sessions, 3)  # three cards
    for n, kind in product(range(1, most + 1), tables.kinds):
        for r in range(n):
            queue = tables.dispatch_order[r::n]
            held = sum(tables.cohorts[c].held_tokens for c in queue)
            found = patterns.pop((kind.index, (n, r)), None)
            if held > kind.candidate.memory[0].free_bytes:
                assert found is None
            else:
                assert found is not None
                assert only_queue(tables, found) == queue
                assert found.score == score_queues(tables, kind, (queue,))
    assert patterns == {}


def test_orders_that_pull_measures_apart_are_both_kept() -> None:
    """Sessions of 1 s (released at 2) and 3 s: long first ends at 4, short first at 6.

    Short first has the lesser latency of the short one but loses elsewhere; with the long one's
    deadline at 3 it is the on-time count that decides. Long first: ends 3 and 4, latencies 3 and 2.
    Short first: ends 3 and 6, latencies 1 and 6. Long first wins in everything and stands alone.
    """
    alone = tables_of([(1, 1, 2, 0), (1, 1, 0, 0)], [[1, 3]], [()])
    kept = [p for p in patterns_of(alone) if p.counts == (1, 1)]
    assert [only_queue(alone, p) for p in kept] == [(1, 0)]
    # released together, 1 s and 3 s: short first sums 1 + 4 = 5; long first 3 + 4 = 7, but keeps
    # the deadline of 3 s that both cannot: each has something the other lacks
    both = tables_of([(1, 1, 0, 0), (1, 1, 0, 3)], [[1, 3]], [()])
    kept = [p for p in patterns_of(both) if p.counts == (1, 1)]
    assert {only_queue(both, p) for p in kept} == {(0, 1), (1, 0)}


def test_memory_cuts_queues_at_the_last_token() -> None:
    """Two sessions of 3 tokens fit 6 tokens and not 5."""
    counts = [
        [p.counts for p in patterns_of(tables_of([(2, 3, 0, 0)], [[1]], [()], n))] for n in (6, 5)
    ]
    assert counts == [[(1,), (2,)], [(1,)]]


def test_a_uniform_layout_may_leave_an_instance_idle_and_is_dealt_out_whole() -> None:
    """Optimised: an empty queue beside the others. Round robin: one column for the layout."""
    layout = Layout(((0, ()), (0, ())))
    cohorts, rows, stalls = [(3, 1, 0, 0)], [[2]], [()]
    free = patterns_of(tables_of(cohorts, rows, stalls, layouts=(layout,)))
    assert [p.counts for p in free] == [(0,), (1,), (2,), (3,)]
    assert free[0].score.measures[Measure.CARDS] == 1
    tables = tables_of(cohorts, rows, stalls, dispatch="round_robin", layouts=(layout,))
    (whole,) = patterns_of(tables)
    kind = tables.kinds[0]
    # two sessions on the first instance, one on the second: ends 2, 4 and 2
    parts = [score_queues(tables, kind, ((0, 0),)), score_queues(tables, kind, ((0,),))]
    assert (whole.layout, whole.counts, whole.score) == (0, (3,), combine(parts))
    assert whole.score.measures[Measure.COMPLETION] == 8
    tight = tables_of(cohorts, rows, stalls, 1, "round_robin", (layout,))
    assert patterns_of(tight) == []


def test_listing_stops_when_time_is_over() -> None:
    """The caller's clock is asked while queues grow, of alike sessions and of others."""
    for cohorts in ([(2, 1, 0, 0)], [(1, 1, 0, 0), (1, 1, 0, 0)]):
        with pytest.raises(TooLargeError, match="time ran out"):
            build_patterns(tables_of(cohorts, [[1] * len(cohorts)], [()]), lambda: True)


def deals_of(sessions: Sequence[int], num_lanes: int) -> Iterator[Queues]:
    """Yield every way to give sessions to lanes, in every order."""
    seen: set[Queues] = set()
    for order in set(permutations(sessions)):
        for lanes in product(range(num_lanes), repeat=len(order)):
            queues = tuple(
                tuple(c for c, lane in zip(order, lanes, strict=True) if lane == mine)
                for mine in range(num_lanes)
            )
            if queues not in seen:
                seen.add(queues)
                yield queues


def fits(kind: Kind, queues: Queues) -> bool:
    """Whether each group holds the sessions of its lanes, byte by byte."""
    candidate = kind.candidate
    for group in range(candidate.num_groups):
        first = group * candidate.num_lanes
        given = [c for queue in queues[first : first + candidate.num_lanes] for c in queue]
        for row in candidate.memory:
            if sum(row.session_bytes[c] for c in given) > row.free_bytes:
                return False
    return True


SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2))


@settings(quick, max_examples=40)
@given(SHAPES.flatmap(lambda shape: random_tables(max_cohorts=2, shape=shape)))
def test_every_deal_to_lanes_is_matched_by_an_unbeaten_one(tables: ProblemTables) -> None:
    """Up to four sessions on up to two groups of two lanes, against every deal that fits."""
    patterns = patterns_of(tables)
    for kind in tables.kinds:
        num_lanes = kind.candidate.num_groups * kind.candidate.num_lanes
        for counts in product(*(range(c.num_sessions + 1) for c in tables.cohorts)):
            kept = [p for p in patterns if (p.kind, p.counts) == (kind.index, counts)]
            for p in kept:
                queues = pattern_queues(tables, p)
                assert len(queues) <= num_lanes
                assert fits(kind, queues)
                assert p.score == score_queues(tables, kind, queues)
                assert sorted(sum(queues, ())) == [
                    c for c, n in enumerate(counts) for _ in range(n)
                ]
                assert not any(no_worse(q.score, p.score) for q in kept if q is not p)
            sessions = [c for c, n in enumerate(counts) for _ in range(n)]
            deals = [q for q in deals_of(sessions, num_lanes) if sessions and fits(kind, q)]
            scores = [score_queues(tables, kind, queues) for queues in deals]
            assert all(any(no_worse(p.score, s) for p in kept) for s in scores)
            assert bool(kept) == bool(deals)


@settings(quick, max_examples=40)
@given(SHAPES.flatmap(lambda shape: random_tables("round_robin", 2, shape)))
def test_round_robin_deals_to_lanes_in_turn(tables: ProblemTables) -> None:
    """Session j of all goes to instance j mod n, there to lane (j div n) mod L."""
    patterns = {(p.kind, p.place): p for p in patterns_of(tables)}
    for n in range(1, tables.max_instances + 1):
        for kind in tables.kinds:
            num_lanes = kind.candidate.num_groups * kind.candidate.num_lanes
            queues: list[list[tuple[int, ...]]] = [[()] * num_lanes for _ in range(n)]
            for j, cohort in enumerate(tables.dispatch_order):
                queues[j % n][j // n % num_lanes] += (cohort,)
            for r, mine in enumerate(map(tuple, queues)):
                found = patterns.pop((kind.index, (n, r)), None)
                assert (found is not None) == fits(kind, mine)
                if found is not None:
                    padding = ((),) * num_lanes
                    assert (pattern_queues(tables, found) + padding)[:num_lanes] == mine
                    assert found.score == score_queues(tables, kind, mine)
    assert patterns == {}


def test_lanes_run_side_by_side_and_last_as_long_as_the_last() -> None:
    """Sessions of 2 s and 3 s (released at 1) on two lanes; a stall [4, 5) hits both lanes.

    Lane 0: 2 s, then 2 s: ends 2, 4. Lane 1: 3 s from 1 would end at 4, then 2 s from 5: 7.
    Latencies: 2, 4 and 4 - 1 = 3, 7. Sum of ends 2 + 4 + 4 + 7 = 17. By 4: the first and second.
    """
    stall = ((Fraction(4), Fraction(5)),)
    tables = tables_of([(3, 1, 0, 4), (1, 1, 1, 2)], [[2, 3]], [stall], shape=(1, 2))
    score = score_queues(tables, tables.kinds[0], ((0, 0), (1, 0)))
    assert [score.measures[m] for m in Measure] == [7, 7, 17, 7, Fraction(7, 2) * 7, 1, 0]
    # deadlines are 4 and 1 + 2 = 3: two of the first cohort by 4, not the third at 7, nor 4 > 3
    assert score.num_on_time == 2


def test_memory_is_a_matter_of_groups_not_of_lanes() -> None:
    """Four sessions of 3 bytes: 6 bytes hold two, in each of two groups; 5 bytes hold one.

    One group of two lanes takes two sessions with 6 bytes and one with 5, and so do two cohorts.
    """

    def most(free_bytes: int, shape: tuple[int, int], num_cohorts: int) -> int:
        cohorts = [(4 // num_cohorts, 3, 0, 0)] * num_cohorts
        tables = tables_of(cohorts, [[1] * num_cohorts], [()], free_bytes, shape=shape)
        patterns = patterns_of(tables)
        assert all(fits(tables.kinds[0], pattern_queues(tables, p)) for p in patterns)
        return max(sum(p.counts) for p in patterns)

    for num_cohorts in (1, 2):
        assert [most(free, (2, 2), num_cohorts) for free in (6, 5)] == [4, 2]
        assert [most(free, (1, 2), num_cohorts) for free in (6, 5)] == [2, 1]


def test_groups_keep_their_lanes_when_one_has_fewer_sessions() -> None:
    """Three sessions on two groups of two lanes: the first takes two, side by side.

    The third lane is the first of the second group; the fourth has nobody and is left out.
    """
    alike = tables_of([(3, 3, 0, 0)], [[1]], [()], 6, shape=(2, 2))
    assert [pattern_queues(alike, p) for p in patterns_of(alike)][-1] == ((0,), (0,), (0,))
    # sessions of 2 and 4 bytes fit no group of 5 together: each has a group, lane 1 stays empty
    apart = tables_of([(1, 2, 0, 0), (1, 4, 0, 0)], [[1, 1]], [()], 5, shape=(2, 2))
    (both,) = [p for p in patterns_of(apart) if p.counts == (1, 1)]
    assert sorted(pattern_queues(apart, both)) == [(), (0,), (1,)]
    assert pattern_queues(apart, both)[1] == ()


def test_lanes_take_different_sessions_where_that_is_better() -> None:
    """Sessions of 4, 3, 3 and 2 s on two lanes end at 6 at best: 4 + 2 and 3 + 3."""
    cohorts = [(1, 1, 0, 0), (2, 1, 0, 0), (1, 1, 0, 0)]
    tables = tables_of(cohorts, [[4, 3, 2]], [()], shape=(1, 2))
    all_served = [p for p in patterns_of(tables) if p.counts == (1, 2, 1)]
    best = min(all_served, key=lambda p: p.score.measures[Measure.END])
    assert best.score.measures[Measure.END] == 6
    assert sorted(map(sorted, pattern_queues(tables, best))) == [[0, 2], [1, 1]]
    # the least sum of ends deals the two shortest first: 2, 3, then 2 + 3 = 5 and 3 + 4 = 7
    assert min(p.score.measures[Measure.COMPLETION] for p in all_served) == 2 + 3 + 5 + 7


def test_too_many_pairs_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes put one deal beside another; with a budget of nothing that is too much."""
    tables = tables_of([(1, 1, 0, 0), (1, 1, 0, 0)], [[1, 1]], [()], shape=(1, 2))
    assert patterns_of(tables)
    monkeypatch.setattr(labels, "MAX_PAIRS", 1)
    with pytest.raises(TooLargeError, match="side by side"):
        patterns_of(tables)
