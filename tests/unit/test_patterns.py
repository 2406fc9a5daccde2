"""Unbeaten queues hold an optimum of every measure; no queue is missing or superfluous."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.patterns import Pattern, build_patterns
from formulations.scoring import QueueScore, combine, score_queue
from instances import Instance, parse_instance
from optimizer.errors import TooLargeError
from optimizer.protocols import Measure
from optimizer.tables import Candidate, Kind, Layout, ProblemTables

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
    max_tokens: int = 99,
    dispatch: str = "optimised",
    layouts: tuple[Layout, ...] | None = None,
) -> ProblemTables:
    """Return tables with a kind (of TP 1, 2, ...) for each row of services."""
    instance = make_instance(cohorts, dispatch)
    candidates = []
    for i, row in enumerate(services):
        times, power = tuple(map(Fraction, row)), Fraction(7 + i, 2)
        sizes = (i + 1, 1, "none", max_tokens)
        candidates.append(Candidate(i, 0, "p", *sizes, times, power))
    kinds = tuple(
        Kind(i, c, (), s) for i, (c, s) in enumerate(zip(candidates, stalls, strict=True))
    )
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c][2])
    dealt = tuple(c for c in order for _ in range(cohorts[c][0]))
    return ProblemTables(instance, tuple(candidates), (), (), kinds, layouts, dealt)


def patterns_of(tables: ProblemTables) -> list[Pattern]:
    return build_patterns(tables, lambda: False)


@st.composite
def random_tables(draw: st.DrawFn, dispatch: str = "optimised") -> ProblemTables:
    """Draw up to five sessions with releases, deadlines and stalls in small whole seconds."""
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    small = st.integers(0, 6)
    cohorts = [(n, draw(st.integers(1, 3)), draw(small), draw(small)) for n in sizes]
    rows = [[draw(st.integers(1, 5)) for _ in sizes] for _ in range(2)]
    stalls: list[Stalls] = []
    for _ in rows:
        cuts = sorted(draw(st.sets(st.integers(0, 14), max_size=4)))
        pairs = zip(cuts[0::2], cuts[1::2], strict=False)
        stalls.append(tuple((Fraction(a), Fraction(b)) for a, b in pairs))
    return tables_of(cohorts, rows, stalls, draw(st.integers(2, 12)), dispatch)


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
            if not sessions or held > kind.candidate.max_tokens:
                assert kept == []
                continue
            scores = [score_queue(tables, kind, q) for q in set(permutations(sessions))]
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
        assert p.score == score_queue(tables, tables.kinds[p.kind], p.queue)
        assert p.counts == tuple(p.queue.count(c) for c in range(len(tables.cohorts)))
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
            if held > kind.candidate.max_tokens:
                assert found is None
            else:
                assert found is not None
                assert found.score == score_queue(tables, kind, queue)
    assert patterns == {}


def test_orders_that_pull_measures_apart_are_both_kept() -> None:
    """Sessions of 1 s (released at 2) and 3 s: long first ends at 4, short first at 6.

    Short first has the lesser latency of the short one but loses elsewhere; with the long one's
    deadline at 3 it is the on-time count that decides. Long first: ends 3 and 4, latencies 3 and 2.
    Short first: ends 3 and 6, latencies 1 and 6. Long first wins in everything and stands alone.
    """
    alone = patterns_of(tables_of([(1, 1, 2, 0), (1, 1, 0, 0)], [[1, 3]], [()]))
    assert [p.queue for p in alone if p.counts == (1, 1)] == [(1, 0)]
    # released together, 1 s and 3 s: short first sums 1 + 4 = 5; long first 3 + 4 = 7, but keeps
    # the deadline of 3 s that both cannot: each has something the other lacks
    both = patterns_of(tables_of([(1, 1, 0, 0), (1, 1, 0, 3)], [[1, 3]], [()]))
    assert {p.queue for p in both if p.counts == (1, 1)} == {(0, 1), (1, 0)}


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
    parts = [score_queue(tables, kind, (0, 0)), score_queue(tables, kind, (0,))]
    assert (whole.layout, whole.counts, whole.score) == (0, (3,), combine(parts))
    assert whole.score.measures[Measure.COMPLETION] == 8
    tight = tables_of(cohorts, rows, stalls, 1, "round_robin", (layout,))
    assert patterns_of(tight) == []


def test_listing_stops_when_time_is_over() -> None:
    """The caller's clock is asked while queues grow."""
    with pytest.raises(TooLargeError, match="time ran out"):
        build_patterns(tables_of([(2, 1, 0, 0)], [[1]], [()]), lambda: True)
