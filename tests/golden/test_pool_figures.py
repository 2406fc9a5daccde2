"""Figures of section 6.6 from the bundled pool: what is lent, and how fast and often it is read."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from figures import assert_figure
from instances.access import Access
from instances.io import example_text, load_instance, parse_instance
from optimizer import SolveOptions
from optimizer.pooling.building import pool_problem
from optimizer.pooling.evaluation import evaluate_pool
from optimizer.side.decisions import solve_side
from optimizer.side.document import verify_side
from optimizer.side.pool_accounts import PoolAccountDocument
from optimizer.side.pool_plans import PlanReader
from optimizer.side.result import SideResultDocument
from optimizer.windows import (
    fetched_once_s,
    fewest_in_flight,
    read_s,
    usable_bytes_per_s,
    window_bytes_per_s,
)

F = Fraction

SOLVERS = ("auto", "cp-sat", "highs", "cbc")

#: HBM of an H100, bytes a second (6.6.3).
HBM_BYTES_PER_S = F(3350 * 10**9)


def changed(in_flight: int | None = None, reads_per_s: int | None = None) -> dict[str, Any]:
    """The example with other reads under way on all paths, or other reads of task 0."""
    document: dict[str, Any] = json.loads(example_text("borrow-20gb"))
    for path in document["pool"]["paths"] if in_flight is not None else ():
        path["access"]["in_flight"] = in_flight
    if reads_per_s is not None:
        document["pool"]["items"][0]["reads_per_s"] = reads_per_s
    return document


def solved(document: dict[str, Any], solver: str = "auto") -> SideResultDocument:
    return solve_side(parse_instance(document), SolveOptions(solver=solver, threads=1))


def account_of(result: SideResultDocument) -> PoolAccountDocument:
    assert result.termination == "optimal"
    assert result.certificate.second_opinion.agrees is True
    assert result.evaluation is not None
    assert result.evaluation.pool is not None
    return result.evaluation.pool


@pytest.mark.parametrize("solver", SOLVERS)
def test_pool_and_pool_free(solver: str) -> None:
    """ "pool", "pool_free" (6-43, 6-44): 100 GB free on the others before, 80 GB on all after.

    They hold 80, 80, 40 and 40 GB.
    """
    account = account_of(solved(changed(), solver))
    assert [node.used_bytes for node in account.nodes] == [n * 10**9 for n in (80, 80, 40, 40)]
    assert (account.free_before_bytes, account.free_bytes) == (100 * 10**9, 80 * 10**9)
    (lease,) = account.leases
    assert (lease.item, lease.lender, lease.bytes) == ("task 0", "n1", 20 * 10**9)


def the_access() -> Access:
    pool = load_instance("borrow-20gb").pool
    assert pool is not None
    return pool.paths[0].access


def test_win128_umin_and_win4096() -> None:
    """128 · 256 B / 7.52 µs = 4.3574 GB/s; ⌈50e9 · 7.52e-6 / 256⌉ = ⌈1468.75⌉; 4096: 139.4."""
    access = the_access()
    size, round_trip_s = access.transaction_bytes, access.round_trip_s
    assert size == 256
    for name, in_flight, published, tolerance in (
        ("win128", 128, "4.36", "0.005"),
        ("win4096", 4096, "139", "0.6"),
    ):
        window = window_bytes_per_s(in_flight, size, round_trip_s)
        assert_figure(name, window / 10**9, published, tolerance)
    fewest = fewest_in_flight(access.bandwidth_bytes_per_s, size, round_trip_s)
    assert_figure("umin", fewest, "1469", "0")
    assert access.in_flight == 1469
    full, short = (access.model_copy(update={"in_flight": u}) for u in (1469, 1468))
    assert usable_bytes_per_s(full) == 50 * 10**9 > usable_bytes_per_s(short)


@pytest.mark.parametrize("solver", SOLVERS)
def test_read20(solver: str) -> None:
    """ "read20": 20 GB in 0.40 s at 50 GB/s; in 20/4.3574 = 4.59 s with 128 reads under way.

    Once a second is too often for the latter, so there it is read at no given rate.
    """
    account = account_of(solved(changed(), solver))
    assert account.slowest_read_s == pytest.approx(0.4, abs=0.005)
    account = account_of(solved(changed(in_flight=128, reads_per_s=0), solver))
    assert account.slowest_read_s == pytest.approx(4.59, abs=0.005)
    assert account.leases[0].lender == "n1"


def test_ten() -> None:
    """4.0 s from afar; fetched once in 0.4 s and read ten times at 3350 GB/s, 0.46 s."""
    size, far = 20 * 10**9, usable_bytes_per_s(the_access())
    assert_figure("ten", read_s(size, far, 10), "4.0", "0.005")
    assert_figure("ten", fetched_once_s(size, far, HBM_BYTES_PER_S, 10), "0.46", "0.005")
    # 1/r of what is saved by fetching: from the second read on it is faster
    assert fetched_once_s(size, far, HBM_BYTES_PER_S, 1) > read_s(size, far, 1)
    assert fetched_once_s(size, far, HBM_BYTES_PER_S, 2) < read_s(size, far, 2)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("in_flight", "reads_per_s", "load"),
    [(1469, 1, F(2, 5)), (1469, 2, F(4, 5)), (1469, 3, None), (1469, 20, None), (128, 1, None)],
)
def test_work_must_not_arrive_faster_than_it_is_read(
    in_flight: int, reads_per_s: int, load: Fraction | None, solver: str
) -> None:
    """6.6.3: once a second needs 20 of 50 GB/s, twice 40; three times 60, twenty times 400.

    With 128 reads under way once a second is too often.
    """
    result = solved(changed(in_flight, reads_per_s), solver)
    if load is None:
        assert (result.termination, result.plan) == ("infeasible", None)
        assert result.reason.endswith("a queue grows")
        assert result.certificate.second_opinion.agrees is True
    else:
        (link,) = account_of(result).links
        assert F(link.load_exact) == load


def test_the_evaluator_sees_the_queue_of_the_published_plan() -> None:
    best = SideResultDocument.model_validate(json.loads(example_text("borrow-20gb", ".best.json")))
    assert best.plan is not None
    assert best.plan.pool is not None
    for reads_per_s, over in ((1, None), (20, 7)):  # 20 · 0.4 s in a second are 7 s too many
        problem = pool_problem(parse_instance(changed(reads_per_s=reads_per_s)))
        judged = evaluate_pool(problem, PlanReader(problem, "best").plan(best.plan.pool))
        assert [v.amount for v in judged.violations] == ([] if over is None else [over])


def test_the_stored_result_verifies() -> None:
    document = json.loads(example_text("borrow-20gb", ".best.json"))
    judged = verify_side(load_instance("borrow-20gb"), document)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["evaluation"] == document["evaluation"]
