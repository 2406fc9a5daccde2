"""Sweeps through the library: points, order, sharing of work, failures as rows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from instances import load_instance, parse_instance
from instances.errors import InputError
from instances.instance import Instance
from optimizer import SolveOptions, frontier, solve, sweep
from optimizer.frontiers.deadline import with_deadline
from optimizer.sweeps.run import run_sweep
from optimizer.sweeps.spec import sweep_spec
from optimizer.variants.solver import VariantSolver

MS = Fraction(1, 1000)
ALPHA = "fleet.pools[0].server.fabric.alpha_s"
CONTEXT = "workload.cohorts[0].context_tokens"


@pytest.fixture(scope="module")
def four() -> Instance:
    return load_instance("four-sessions-128k")


def test_rows_come_in_the_order_of_the_cross_product(four: Instance) -> None:
    found = sweep(four, deadline="200ms,120ms", fields={"search.tp": "4,2", CONTEXT: [1000, 500]})
    assert [tuple(point.swept.values()) for point in found.points] == [
        (tp, context, deadline)
        for tp in (4, 2)
        for context in (1000, 500)
        for deadline in (0.2, 0.12)
    ]
    assert list(found.points[0].record())[:4] == ["instance", "search.tp", CONTEXT, "deadline_s"]


def test_every_row_is_what_a_solve_of_its_own_finds(four: Instance) -> None:
    deadlines = [119, 120, 123, 124, 127, 128, 164, 165]
    for tp in (None, 4, 8):
        fields = {} if tp is None else {"search.tp": tp}
        swept = sweep(four, deadline=[f"{d}ms" for d in deadlines], fields=fields)
        for point, deadline in zip(swept.points, deadlines, strict=True):
            data = four.model_dump(mode="json")
            if tp is not None:
                data["search"]["tp"] = [tp]
            data["workload"]["cohorts"][0]["deadline_s"] = f"{deadline}ms"
            alone = solve(parse_instance(data), SolveOptions(threads=1))
            assert point.termination == alone.termination
            assert point.value_exact == alone.objective.verified_exact
            assert point.bound_exact == alone.objective.bound_exact
            if alone.plan is not None:
                assert alone.evaluation is not None
                assert point.plan == alone.plan.sentence
                assert point.on_time == alone.evaluation.num_on_time
                assert point.cost == alone.evaluation.cost_per_on_time_session
                assert point.energy_j == alone.evaluation.energy_j
                assert point.makespan_s == alone.evaluation.makespan_s
                assert point.gap == 0


def test_one_solve_serves_every_deadline_its_plan_keeps(
    four: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    solvers: list[VariantSolver] = []

    class Counted(VariantSolver):
        def __init__(self, options: SolveOptions | None = None) -> None:
            super().__init__(options)
            solvers.append(self)

    monkeypatch.setattr("optimizer.sweeps.run.VariantSolver", Counted)
    swept = sweep(four, deadline="50ms:1049ms:1ms")
    assert len(swept.points) == 1000
    # ten blocks of 100 deadlines: one solve each, and one more below 119.1 ms in the first
    assert [solver.num_solves for solver in solvers] == [11]


def test_a_point_that_is_no_valid_problem_is_a_row(four: Instance) -> None:
    swept = sweep(four, fields={"workload.min_on_time_fraction": "50%,150%,100%"})
    assert [p.termination for p in swept.points] == ["optimal", "failed", "optimal"]
    assert "min_on_time_fraction cannot exceed 1" in swept.points[1].reason
    assert swept.points[1].value is None
    assert swept.points[1].swept == {"workload.min_on_time_fraction": 1.5}


def test_a_deadline_before_the_release_is_a_row(four: Instance) -> None:
    data = four.model_dump(mode="json")
    data["workload"]["cohorts"][0]["release_s"] = "100ms"
    swept = sweep(parse_instance(data), deadline="50ms,100ms,300ms")
    assert [p.termination for p in swept.points] == ["failed", "failed", "optimal"]
    assert "must be later than release_s" in swept.points[0].reason


def test_a_block_of_deadlines_before_the_release_asks_no_solver(four: Instance) -> None:
    data = four.model_dump(mode="json")
    data["workload"]["cohorts"][0]["release_s"] = "100ms"
    swept = sweep(parse_instance(data), deadline="50ms,60ms")
    assert [p.termination for p in swept.points] == ["failed", "failed"]


def test_a_solver_that_cannot_take_a_point_is_a_row(four: Instance) -> None:
    swept = sweep(four, deadline="120ms,130ms", options=SolveOptions("nobody", threads=1))
    assert [p.termination for p in swept.points] == ["failed", "failed"]
    assert "no solver is named 'nobody'" in swept.points[0].reason
    assert [p.swept for p in swept.points] == [{"deadline_s": 0.12}, {"deadline_s": 0.13}]


def test_rows_without_a_plan_say_how_much_is_missing(four: Instance) -> None:
    early = sweep(four, deadline="100ms,120ms").points[0]
    # 4 x TP2 ends at 119.11080428... ms, the first moment at which three sessions are done
    assert early.reason == "every plan needs a deadline of at least 119.1 ms: 19.11 ms more"
    assert early.termination == "infeasible"


def test_continuing_gives_the_rest_whatever_was_done(four: Instance) -> None:
    spec = sweep_spec(four, deadline="100ms:340ms:1ms", fields={"search.tp": "2,8"})
    rows = [point for block in run_sweep(spec) for point in block]
    assert len(rows) == spec.num_points == 482
    for done in (0, 1, 99, 100, 101, 241, 300, 481, 482):
        records = [row.record() for row in rows[:done]]
        rest = [point for block in run_sweep(spec, done=records) for point in block]
        assert rest == rows[done:]


def test_continuing_an_exact_sweep_gives_the_rest(four: Instance) -> None:
    for interval in (None, "100ms:150ms"):
        spec = sweep_spec(four, deadline=interval, fields={"search.tp": "2,4,8"}, exact=True)
        rows = [point for block in run_sweep(spec) for point in block]
        for done in range(len(rows) + 1):
            records = [row.record() for row in rows[:done]]
            rest = [point for block in run_sweep(spec, done=records) for point in block]
            assert rest == rows[done:]


def test_processes_give_the_rows_of_one_process(four: Instance) -> None:
    ask: dict[str, Any] = {"deadline": "100ms:250ms:1ms", "fields": {ALPHA: "0.4us,0.8us"}}
    assert sweep(four, jobs=2, **ask) == sweep(four, **ask)


def test_identity_tells_sweeps_apart(four: Instance) -> None:
    options = SolveOptions(threads=1)
    first = sweep_spec(four, deadline="100ms,200ms").identity(options)
    others = [
        sweep_spec(four, deadline="100ms,201ms").identity(options),
        sweep_spec(four, deadline="200ms,100ms").identity(options),
        sweep_spec(four, deadline="100ms,200ms").identity(SolveOptions(threads=1, seed=1)),
        sweep_spec(four, fields={CONTEXT: 5}, deadline="100ms,200ms").identity(options),
        sweep_spec(load_instance("four-sessions-fault"), deadline="100ms,200ms").identity(options),
    ]
    assert len({first, *others}) == 6
    assert sweep_spec(four, deadline=["0.1", "0.2s"]).identity(options) == first


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({}, "sweeps nothing"),
        ({"fields": {"fleet.pools[1].num_servers": "1,2"}}, "has 1 elements, numbered from 0"),
        ({"fields": {"fleet.name": "1"}}, "no such field; fleet has pools"),
        ({"fields": {"name": "1"}}, "is not a numeric field"),
        ({"fields": {"fleet..x": "1"}}, "is not a path"),
        ({"fields": {CONTEXT: "1:2000000:1"}}, "more than 1000000 values"),
        ({"fields": {CONTEXT: "1:2000:1"}, "deadline": "1ms:1000ms:1ms"}, "has 2000000 points"),
        ({"deadline": "fast"}, "is not a quantity"),
        ({"exact": True, "deadline": "50ms"}, "needs FIRST:LAST"),
    ],
)
def test_what_is_no_sweep_is_refused_in_one_line(
    four: Instance, ask: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        sweep(four, **ask)
    assert "\n" not in str(caught.value)


def test_smaller_decisions_are_not_swept() -> None:
    with pytest.raises(InputError, match="sweeps are of deployments"):
        sweep(load_instance("qwen3-235b-experts-skewed"), deadline="1s")


def test_the_frontier_is_the_grid_at_every_point(four: Instance) -> None:
    exact = frontier(four)
    for point in sweep(four, deadline="100ms:200ms:1ms").points:
        deadline = Fraction(str(point.swept["deadline_s"]))
        value = exact.value_at(deadline)
        assert (None if value is None else str(value)) == point.value_exact
    assert with_deadline(four, (0,), None).workload.cohorts[0].deadline_s is None


def test_a_frontier_within_an_interval_is_the_part_of_the_whole(four: Instance) -> None:
    whole, part = frontier(four), frontier(four, deadline="119ms:125ms")
    assert [p.from_s for p in part.pieces] == [0.119, whole.pieces[1].from_s]
    assert part.pieces[-1].to_exact == "1/8"
    assert part.breakpoints_s == whole.breakpoints_s
    for at in (119 * MS, 120 * MS, whole.breakpoints_s[0]):
        assert part.value_at(at) == whole.value_at(at)
    with pytest.raises(ValueError, match="outside the frontier"):
        part.value_at(118 * MS)


def test_results_become_data_frames_and_json(four: Instance) -> None:
    swept = sweep(four, deadline="100ms,130ms")
    frame = swept.to_dataframe()
    assert list(frame["deadline_s"]) == [0.1, 0.13]
    assert frame["value"].isna().tolist() == [True, False]
    assert swept.to_json().count("\n") == 4
    pieces = frontier(four).to_dataframe()
    assert list(pieces["termination"]) == ["infeasible", "optimal"]


def test_one_cohort_may_move_alone() -> None:
    mixed = load_instance("mixed-wins")
    exact = frontier(mixed, cohorts=["urgent"])
    # the urgent session first on TP8 (41.18 ms; 8 · 3 · 41.18 / 3 = 0.3294), or on TP4 (63.79 ms)
    # beside two on TP2 (119.11 ms; 8 · 119.11 / 3 = 0.3176)
    steps = [(round(p.from_s, 5), round(p.value, 4)) for p in exact.pieces if p.value is not None]
    assert steps == [(0.04118, 0.3294), (0.06379, 0.3176)]
    swept = sweep(mixed, deadline="50ms:150ms:10ms", cohorts=["urgent"])
    for point in swept.points:
        value = exact.value_at(Fraction(str(point.swept["deadline_s"])))
        assert point.value_exact == (None if value is None else str(value))
    with pytest.raises(InputError, match="no cohort is named 'late'; there are urgent, batch"):
        sweep(mixed, deadline="50ms", cohorts=["late"])
