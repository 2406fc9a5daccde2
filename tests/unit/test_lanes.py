"""Lanes and attention groups: both statements find the optimum of brute force; plans, bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.cpsat_engine import CpSatDeployment, CpSatEngine
from formulations.cpsat_measures import build_model
from formulations.deployment_cpsat import MAX_COEFFICIENT_SUM
from formulations.lanes import holds_queues
from formulations.milp_engine import HighsDeployment
from formulations.scoring import QueueScore, combine, score_queues, score_selection
from formulations.staging import Limits
from formulations.ticks import tick_scale
from instances import parse_instance
from optimizer.bounds import measure_bound, most_on_time, unserved_cohort
from optimizer.decode import plan_of
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Footprint, SessionId
from optimizer.protocols import (
    Measure,
    SelectedInstance,
    Selection,
    SolveRequest,
    Term,
    Termination,
)
from optimizer.tables import Candidate, Kind, Layout, MemoryRow, ProblemTables

BACKENDS = (CpSatDeployment, HighsDeployment)
Stalls = tuple[tuple[Fraction, Fraction], ...]
quick = settings(max_examples=12, deadline=None, database=None, derandomize=True)
NUM_CARDS = 4


def kind_of(
    index: int,
    service_s: Sequence[int | Fraction],
    session_bytes: Sequence[int],
    free_bytes: int,
    shape: tuple[int, int, int],
    held: int = 0,
    stalls: Stalls = (),
) -> Kind:
    """Return a kind of (groups, lanes of each, cards of each)."""
    groups, lanes, cards = shape
    footprint = Footprint("p", ParallelConfig(dp=groups, tp=cards), 1, "none", batch=lanes)
    memory = (MemoryRow(tuple(session_bytes), free_bytes),)
    times, power_w = tuple(map(Fraction, service_s)), Fraction(3 + index, 2)
    return Kind(index, Candidate(index, 0, footprint, memory, times, power_w, held), (), stalls)


def tables_of(
    cohorts: Sequence[tuple[int, int, int]],
    kinds: Sequence[Kind],
    dispatch: str = "optimised",
    layouts: Sequence[Sequence[int]] | None = None,
) -> ProblemTables:
    """Return tables of (sessions, release, deadline or 0) cohorts; layouts list their kinds."""
    card = {"name": "c", "memory_bytes": 1, "memory_bandwidth_bytes_per_s": 1}
    server = {
        "name": "s",
        "accelerator": {**card, "peak_flops_per_s": {"bf16": 1}},
        "num_cards": NUM_CARDS,
        "power_w": 1000,
        "fabric": {"name": "f", "alpha_s": 0, "bandwidth_bytes_per_s": 1},
    }
    listed = [
        {"name": f"c{i}", "num_sessions": n, "context_tokens": 0, "new_tokens": 1}
        | {"release_s": release, "deadline_s": release + due if due else None}
        for i, (n, release, due) in enumerate(cohorts)
    ]
    instance = parse_instance(
        {
            "name": "lanes",
            "model": "qwen3-32b",
            "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
            "workload": {"cohorts": listed, "min_on_time_fraction": "0%"},
            "search": {"dispatch": dispatch},
            "objective": {"minimise": "makespan"},
        }
    )
    placed = None
    if layouts is not None:
        placed = tuple(Layout(tuple((k, ()) for k in layout)) for layout in layouts)
    order = sorted(range(len(cohorts)), key=lambda c: cohorts[c][1])
    dealt = tuple(c for c in order for _ in range(cohorts[c][0]))
    candidates = tuple(kind.candidate for kind in kinds)
    return ProblemTables(instance, candidates, (), (), tuple(kinds), placed, dealt)


def deployments(tables: ProblemTables) -> Iterator[tuple[int, ...]]:
    """Yield the kinds of the instances of every deployment, in order of dispatch."""
    if tables.layouts is not None:
        yield from (tuple(k for k, _ in layout.instances) for layout in tables.layouts)
        return
    for n in range(1, tables.num_sessions + 1):
        for kinds in combinations_with_replacement(range(len(tables.kinds)), n):
            if sum(tables.kinds[k].candidate.num_cards for k in kinds) <= NUM_CARDS:
                yield from set(permutations(kinds))


def plans(tables: ProblemTables) -> Iterator[QueueScore]:
    """Score every plan, each session anywhere and in every order, or dealt by round robin."""
    orders = {tables.dispatch_order}
    if not tables.is_round_robin:
        orders = set(permutations(tables.dispatch_order))
    for kinds in deployments(tables):
        candidates = [tables.kinds[k].candidate for k in kinds]
        places = [
            (i, lane)
            for i, c in enumerate(candidates)
            for lane in range(c.num_groups * c.num_lanes)
        ]
        if tables.is_round_robin:
            widths = [c.num_groups * c.num_lanes for c in candidates]
            n = len(kinds)
            dealt = [(j % n, j // n % widths[j % n]) for j in range(tables.num_sessions)]
            ways: Iterator[tuple[tuple[int, int], ...]] = iter([tuple(dealt)])
        else:
            ways = product(places, repeat=tables.num_sessions)
        for way in ways:
            if tables.layouts is None and len({i for i, _ in way}) < len(kinds):
                continue
            for order in orders:
                queues = [
                    tuple(
                        tuple(c for c, at in zip(order, way, strict=True) if at == (i, lane))
                        for j, lane in places
                        if j == i
                    )
                    for i in range(len(kinds))
                ]
                mine = list(zip(candidates, queues, strict=True))
                if all(holds_queues(c, q, len(tables.cohorts)) for c, q in mine):
                    dealt_to = zip(kinds, queues, strict=True)
                    yield combine([score_queues(tables, tables.kinds[k], q) for k, q in dealt_to])


def request_of(tables: ProblemTables, *terms: Term) -> SolveRequest:
    return SolveRequest(tables, terms, time.monotonic() + 60)


def check_optima(tables: ProblemTables) -> None:
    """Compare both statements, and the bounds, with the best plan in every measure."""
    scores = list(plans(tables))
    for measure in Measure:
        if measure is Measure.HELD and tables.layouts is None:
            continue
        best = min((s.measures[measure] for s in scores), default=None)
        for backend in BACKENDS:
            found = backend().solve(request_of(tables, Term("t", measure, Fraction(1))))
            assert found.claims[0].value == best, (backend, measure)
            assert found.claims[0].bound == best, (backend, measure)
            assert (found.termination is Termination.INFEASIBLE) == (best is None)
            if found.selection is not None:
                assert score_selection(tables, found.selection).measures[measure] == best
                check_selection(tables, found.selection)
        if best is not None:
            assert measure_bound(tables, measure) <= best
            assert max(s.num_on_time for s in scores) <= most_on_time(tables)


def check_selection(tables: ProblemTables, selection: Selection) -> None:
    """Check that sessions are served once each, on lanes there are, within memory."""
    served = [c for s in selection.instances for queue in s.queues for c in queue]
    assert sorted(served) == sorted(tables.dispatch_order)
    for chosen in selection.instances:
        candidate = tables.kinds[chosen.kind].candidate
        assert len(chosen.queues) <= candidate.num_groups * candidate.num_lanes
        assert holds_queues(candidate, chosen.queues, len(tables.cohorts))


@st.composite
def random_tables(draw: st.DrawFn, dispatch: str, *, uniform: bool) -> ProblemTables:
    """Draw three sessions of one or two cohorts and two kinds, the second with a stall or none."""
    small = st.integers(0, 4)
    sizes = draw(st.sampled_from([(3,), (2, 1), (1, 2)]))
    cohorts = [(n, draw(small), draw(small)) for n in sizes]
    kinds = []
    for index in range(2):
        shape = draw(st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 3, 2), (2, 2, 1)]))
        services = [draw(st.integers(1, 4)) for _ in sizes]
        begin = draw(st.integers(1, 8))
        stalls: Stalls = ((Fraction(begin), Fraction(begin + 2)),) if index else ()
        sizes_bytes = [draw(st.integers(1, 3)) for _ in sizes]
        free, held = draw(st.integers(2, 7)), draw(st.integers(1, 9))
        kinds.append(kind_of(index, services, sizes_bytes, free, shape, held, stalls))
    layouts = [[0], [1], [0, 1], [1, 1]] if uniform else None
    return tables_of(cohorts, kinds, dispatch, layouts)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("dispatch", ["optimised", "round_robin"])
def test_both_statements_find_the_optimum_of_brute_force(dispatch: str, uniform: bool) -> None:
    """Every measure, on kinds with up to two groups of up to three lanes."""

    @quick
    @given(random_tables(dispatch, uniform=uniform))
    def check(tables: ProblemTables) -> None:
        check_optima(tables)

    check()


def test_four_sessions_of_two_cohorts_on_two_groups_of_two_lanes() -> None:
    """Sessions of 2 and 3 bytes, two each: a group of 5 bytes holds one of each, of 4 bytes not.

    With 5: each group has a lane for each, so services 2 and 3 s end at 2 and 3; sum 2·2 + 2·3.
    With 4: a group holds two of 2 bytes or one of 3, so that three groups' worth do not fit two.
    """
    kinds = [kind_of(0, [2, 3], [2, 3], 5, (2, 2, 1))]
    roomy = tables_of([(2, 0, 0), (2, 0, 0)], kinds)
    terms = (Term("end", Measure.END, Fraction(1)), Term("sum", Measure.COMPLETION, Fraction(1)))
    tight = tables_of([(2, 0, 0), (2, 0, 0)], [kind_of(0, [2, 3], [2, 3], 4, (2, 2, 2))])
    for backend in BACKENDS:
        # two cards an instance: one instance of them is enough, and two are no better
        found = backend().solve(request_of(roomy, *terms, Term("n", Measure.CARDS, Fraction(1))))
        assert [claim.value for claim in found.claims] == [3, 10, 2]
        # four cards an instance leave no second one
        assert backend().solve(request_of(tight, *terms)).termination is Termination.INFEASIBLE


def test_held_sessions_are_maximised_among_layouts() -> None:
    """Two instances that hold 5 each (10) beat one of 9; the ends come second."""
    kinds = [
        kind_of(0, [2], [1], 9, (1, 9, 4), held=9),
        kind_of(1, [3], [1], 5, (1, 5, 2), held=5),
    ]
    tables = tables_of([(4, 0, 0)], kinds, layouts=[[0], [1, 1]])
    terms = (Term("held", Measure.HELD, Fraction(1)), Term("end", Measure.END, Fraction(1)))
    assert measure_bound(tables, Measure.HELD) == -10
    for backend in BACKENDS:
        found = backend().solve(request_of(tables, *terms))
        assert [c.value for c in found.claims] == [c.bound for c in found.claims] == [-10, 3]
        swapped = backend().solve(request_of(tables, *reversed(terms)))
        assert [c.value for c in swapped.claims] == [c.bound for c in swapped.claims] == [2, -9]


def test_large_numbers_of_held_sessions_are_limited_to_the_last_one() -> None:
    """10^12 + 1 on one instance ends at 5, 10^12 on another at 3: the second is one short.

    So are limits of 10^12 + 1 sessions or more, on weights of which solvers see 20 bits. CP-SAT
    declines what no unit makes small.
    """
    kinds = [
        kind_of(0, [5], [1], 9, (1, 2, 4), held=10**12 + 1),
        kind_of(1, [3], [1], 9, (1, 2, 4), held=10**12),
    ]
    tables = tables_of([(2, 0, 0)], kinds, layouts=[[0], [1]])
    terms = (Term("held", Measure.HELD, Fraction(1)), Term("end", Measure.END, Fraction(1)))
    found = HighsDeployment().solve(request_of(tables, *terms))
    assert [claim.value for claim in found.claims] == [-(10**12) - 1, 5]
    with pytest.raises(TooLargeError, match="held"):
        CpSatDeployment().solve(request_of(tables, *terms))
    even = tables_of([(2, 0, 0)], [kind_of(0, [3], [1], 9, (1, 2, 4), held=10**12)], layouts=[[0]])
    for backend in BACKENDS:
        found = backend().solve(request_of(even, *terms))
        assert [claim.value for claim in found.claims] == [-(10**12), 3]


def test_a_plan_lists_sessions_lane_by_lane() -> None:
    """Two groups of two lanes with queues (0, 1), (), (0,): lanes 0, 0 and 2."""
    kinds = [kind_of(0, [1, 1], [1, 1], 9, (2, 2, 1)), kind_of(1, [1, 1], [1, 1], 9, (1, 1, 2))]
    tables = tables_of([(3, 0, 0), (1, 0, 0)], kinds)
    several = SelectedInstance(0, (0,), ((0, 1), (), (0,)))
    single = SelectedInstance(1, (0,), ((0,),))
    first, second = sorted(plan_of(tables, Selection((several, single))), key=lambda s: s.cards)
    assert first.cards == (CardId(0, 0), CardId(0, 1))
    assert first.sessions == (SessionId("c0", 0), SessionId("c1", 0), SessionId("c0", 1))
    assert (first.lanes, first.batch, first.parallel) == ((0, 0, 2), 2, ParallelConfig(dp=2))
    assert second.sessions == (SessionId("c0", 2),)
    assert second.lanes == ()


def test_round_robin_leaves_the_lanes_to_the_order_of_sessions() -> None:
    """Two instances of two lanes share five sessions: 0, 2, 4 and 1, 3, each on lanes in turn."""
    tables = tables_of([(5, 0, 0)], [kind_of(0, [1], [1], 9, (1, 2, 1))], "round_robin")
    for backend in BACKENDS:
        found = backend().solve(request_of(tables, Term("end", Measure.END, Fraction(1))))
        assert found.claims[0].value == 1  # on eight lanes, or on six
        assert found.selection is not None
        plan = plan_of(tables, found.selection)
        assert all(s.lanes == () for s in plan)
    chosen = [SelectedInstance(0, (0,), ((0, 0), (0,))), SelectedInstance(0, (0,), ((0,), (0,)))]
    plan = plan_of(tables, Selection(tuple(chosen)))
    assert [[s.number for s in instance.sessions] for instance in plan] == [[0, 2, 4], [1, 3]]


def test_a_makespan_is_at_least_the_share_of_all_lanes() -> None:
    """Eight sessions of 3 s on four cards: one card serves two at a time, 3 / 2 card-seconds each.

    8 · 3/2 / 4 = 3 s; with nine it is 27/8 s. Card-seconds: 12, and for one session on two lanes
    not 3/2 but 3, because the instance is on as long as it runs.
    """
    kinds = [kind_of(0, [3], [1], 9, (1, 2, 1))]
    eight, nine, one = (tables_of([(n, 0, 0)], kinds) for n in (8, 9, 1))
    assert measure_bound(eight, Measure.END) == 3
    assert measure_bound(nine, Measure.END) == Fraction(27, 8)
    assert measure_bound(eight, Measure.CARD_SECONDS) == 12
    assert measure_bound(eight, Measure.ENERGY) == 12 * Fraction(3, 2)
    assert measure_bound(one, Measure.CARD_SECONDS) == 3
    assert unserved_cohort(one) is None
    assert unserved_cohort(tables_of([(1, 0, 0)], [kind_of(0, [3], [9], 8, (1, 2, 1))])) == "c0"


def memory_rows(tables: ProblemTables) -> list[tuple[list[int], int]]:
    """Return the coefficients and the limit of every memory row."""
    model = build_model(tables, tick_scale(tables), Limits()).model
    rows = [c.linear for c in model.proto.constraints if c.name.startswith("memory")]
    return [(sorted(row.coeffs), max(row.domain)) for row in rows]


def test_memory_rows_are_divided_skipped_or_declined() -> None:
    """Bytes 6 and 4 over free 13 are 3 and 2 over 6; a row for each of the groups in use.

    The second of two groups never has more sessions than the first: one of three, on one lane.
    """
    cohorts = [(1, 0, 0), (2, 0, 0)]
    tables = tables_of(cohorts, [kind_of(0, [1, 1], [6, 4], 13, (2, 2, 2))])
    assert memory_rows(tables) == [([2, 2, 2, 2, 3, 3], 6), ([2, 2, 3], 6)]
    # 6 + 4 + 4 = 14 bytes fit whatever happens
    assert memory_rows(tables_of(cohorts, [kind_of(0, [1, 1], [6, 4], 14, (2, 1, 2))])) == []
    # one session of each: the coefficients add up to the most that is taken
    pair = [(1, 0, 0), (1, 0, 0)]
    assert MAX_COEFFICIENT_SUM == 2**30 + 2**30 - 1
    large = tables_of(pair, [kind_of(0, [1, 1], [2**30, 2**30 - 1], 2**30, (1, 1, 4))])
    assert memory_rows(large) == [([2**30 - 1, 2**30], 2**30)]
    beyond = tables_of(pair, [kind_of(0, [1, 1], [2**30, 2**30 + 1], 2**30 + 1, (1, 1, 4))])
    with pytest.raises(TooLargeError, match="bytes"):
        CpSatEngine(request_of(beyond)).minimise(Measure.END, Limits())
