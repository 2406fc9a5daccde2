"""A pool from an instance: sentence, account, proofs, and plans that are refused."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text, parse_instance
from optimizer import SolveOptions
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import verify_side
from optimizer.side.pool_kind import PoolKind
from optimizer.side.result import SideResultDocument

Document = dict[str, Any]


def instance(**changes: Any) -> Document:
    """The example borrow-20gb with fields of its section changed."""
    document: Document = json.loads(example_text("borrow-20gb"))
    document["pool"] |= changes
    return document


def with_access(path: str, **changes: Any) -> Document:
    document = instance()
    for entry in document["pool"]["paths"]:
        if f"{entry['reader']}<-{entry['lender']}" == path:
            entry["access"] |= changes
    return document


def solved(document: Document, solver: str = "auto") -> SideResultDocument:
    return solve_side(parse_instance(document), SolveOptions(solver=solver, threads=1))


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_the_example_is_solved_and_judged(solver: str) -> None:
    """20 GB at 50 GB/s take 0.4 s; 50 · 7.52 / 256 = 1468.75, so 1,469 reads fill the path."""
    result = solved(instance(), solver)
    assert result.termination == "optimal"
    assert [o.verified_exact for o in (result.objective, *result.then)] == ["2/5", "20000000000"]
    assert [o.bound_exact for o in (result.objective, *result.then)] == ["2/5", "20000000000"]
    assert result.certificate.second_opinion.method == "bound"
    assert result.certificate.second_opinion.agrees is True
    assert result.plan is not None
    assert result.plan.sentence == (
        "n1 lends 20.00 GB of task 0 to n0: slowest read 400.0 ms, 20.00 GB far from their readers"
    )
    assert result.evaluation is not None
    account = result.evaluation.pool
    assert account is not None
    assert [node.used_bytes // 10**9 for node in account.nodes] == [80, 80, 40, 40]
    assert [node.borrowed_bytes // 10**9 for node in account.nodes] == [20, 0, 0, 0]
    assert [node.lent_bytes // 10**9 for node in account.nodes] == [0, 20, 0, 0]
    assert [node.free_before_bytes // 10**9 for node in account.nodes] == [0, 20, 40, 40]
    assert (account.free_before_bytes, account.free_bytes) == (100 * 10**9, 80 * 10**9)
    (path,) = account.paths
    assert (path.name, path.reader, path.lender) == ("n0<-n1", "n0", "n1")
    assert (path.usable_bytes_per_s_exact, path.fewest_in_flight) == ("50000000000", 1469)
    assert (path.read_exact, path.bytes, path.link) == ("2/5", 20 * 10**9, "adapter of n0")
    (link,) = account.links
    assert (link.read_exact, link.load_exact) == ("2/5", "2/5")
    (lease,) = account.leases
    assert (lease.mode, lease.from_exact, lease.until_exact) == ("exclusive", "0", None)


def test_thresholds_are_in_the_account_and_true() -> None:
    """At the least bandwidth it names n1 lends, at one byte a second less n2."""
    result = solved(instance())
    assert result.evaluation is not None
    assert result.evaluation.pool is not None
    threshold = result.evaluation.pool.paths[0].threshold
    assert threshold is not None
    assert threshold.message == (
        "n1 stays a lender to n0 down to 41,784,888,889 B/s of n0<-n1; at 41,784,888,888 B/s "
        "n2 lends to n0; its round trip may grow to 9.000 µs"
    )
    assert (threshold.is_needed, threshold.is_legal_then) == (True, True)
    assert threshold.limit_bytes_per_s_exact == "376064000000/9"
    assert threshold.max_round_trip_exact == "9/1000000"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"bandwidth_bytes_per_s": threshold.keeps_bytes_per_s}, "n1"),
        ({"bandwidth_bytes_per_s": threshold.loses_bytes_per_s}, "n2"),
        ({"round_trip_s": "8.999us"}, "n1"),
        ({"round_trip_s": "9.001us"}, "n2"),
    ]
    for solver in SOLVERS:
        for change, lender in cases:
            moved = solved(with_access("n0<-n1", **change), solver)
            assert moved.termination == "optimal"
            assert moved.plan is not None
            assert moved.plan.pool is not None
            assert [lease.lender for lease in moved.plan.pool.leases] == [lender], (solver, change)


def test_a_plan_that_is_not_the_best_has_no_thresholds() -> None:
    document, best = instance(), json.loads(example_text("borrow-20gb", ".best.json"))
    (lease,) = best["plan"]["pool"]["leases"]
    lease |= {"lender": "n2", "readers": [{"node": "n0", "path": "n0<-n2"}]}
    judged = verify_side(parse_instance(document), {"pool": best["plan"]["pool"]})
    assert judged["holds"] is True
    assert judged["objective"]["slowest_read"] == "5625/11752"  # 20 GB · 9 µs / (1469 · 256 B)
    (path,) = judged["evaluation"]["pool"]["paths"]
    assert (path["name"], path["threshold"]) == ("n0<-n2", None)


def test_nothing_is_borrowed_where_all_fits() -> None:
    document = instance()
    document["pool"]["items"][0]["bytes"] = "80GB"
    result = solved(document)
    assert result.plan is not None
    assert result.plan.sentence == "nothing is borrowed"
    assert result.objective.verified_exact == "0"


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("180GB", None),
        (
            "181GB",
            "the items take 321,000,000,000 B, all nodes together hold 320,000,000,000 B: "
            "1,000,000,000 B are short",
        ),
    ],
)
def test_more_than_all_nodes_hold_is_infeasible_by_so_much(size: str, reason: str | None) -> None:
    """180 + 60 + 40 + 40 GB are all that there is. Read once a second, 100 GB at 50 GB/s would not
    do; so nobody reads here.
    """
    document = instance()
    for item in document["pool"]["items"]:
        item["reads_per_s"] = 0
    document["pool"]["items"][0]["bytes"] = size
    for solver in SOLVERS:
        result = solved(document, solver)
        assert result.termination == ("optimal" if reason is None else "infeasible")
        assert result.reason == (reason or "")
        assert result.certificate.second_opinion.agrees is True


def test_a_queue_is_named_where_nothing_else_is_wrong() -> None:
    """Twenty gigabytes twenty times a second are 400 GB/s."""
    document = instance()
    document["pool"]["items"][0]["reads_per_s"] = 20
    result = solved(document)
    assert result.termination == "infeasible"
    assert result.reason == (
        "n0 must read 20,000,000,000 B from elsewhere, 4e+11 B/s, and its paths bring 5e+10 B/s: "
        "a queue grows"
    )


def test_leases_have_the_times_of_their_items() -> None:
    document = instance(horizon_s="10s")
    document["pool"]["items"][0] |= {"from_s": "1.5s", "until_s": "4s", "lease": "shared"}
    result = solved(document)
    assert result.plan is not None
    assert result.plan.pool is not None
    (lease,) = result.plan.pool.leases
    assert (lease.mode, lease.from_exact, lease.until_exact) == ("shared", "3/2", "4")
    judged = verify_side(parse_instance(document), json.loads(result.to_json()))
    assert (judged["holds"], judged["mismatches"]) == (True, [])


def plan_with(**lease: Any) -> Document:
    best = json.loads(example_text("borrow-20gb", ".best.json"))
    plan: Document = deepcopy(best["plan"]["pool"])
    plan["leases"][0] |= lease
    return {"pool": plan}


def reader(node: str, path: str) -> list[dict[str, str]]:
    return [{"node": node, "path": path}]


@pytest.mark.parametrize(
    ("lease", "rules"),
    [
        ({}, []),
        ({"bytes": 19 * 10**9}, [("placed", 10**9)]),
        ({"bytes": 21 * 10**9}, [("placed", 10**9), ("capacity", 10**9)]),
        ({"mode": "shared"}, [("shared", 1)]),
        ({"readers": []}, [("path", 20 * 10**9)]),
        ({"readers": reader("n0", "n0<-n2")}, [("path", 20 * 10**9), ("reader", 1)]),
        ({"until_exact": "7/2"}, [("lease_time", 1)]),
        ({"from_exact": "1/2"}, [("lease_time", 0.5)]),
    ],
)
def test_plans_are_judged(lease: Document, rules: list[tuple[str, float]]) -> None:
    judged = verify_side(parse_instance(instance()), plan_with(**lease))
    found = [(v["rule"], v["amount"]) for v in judged["evaluation"]["violations"]]
    assert found == rules
    assert judged["holds"] is not bool(rules)


def test_a_lease_longer_than_the_horizon_is_judged() -> None:
    document = instance(horizon_s="10s")
    judged = verify_side(parse_instance(document), plan_with(until_exact="10"))
    assert judged["holds"] is True
    judged = verify_side(parse_instance(document), plan_with(until_exact="21/2"))
    found = [(v["rule"], v["amount"]) for v in judged["evaluation"]["violations"]]
    assert found == [("lease_time", 0.5), ("horizon", 0.5)]


@pytest.mark.parametrize(
    ("lease", "field", "rule"),
    [
        ({"readers": reader("n0", "n0<-n9")}, "readers[0].path", "there is no path 'n0<-n9'"),
        ({"readers": reader("n9", "n0<-n1")}, "readers[0].node", "no node is named 'n9'"),
        ({"lender": "n9"}, "leases[0].lender", "no node is named 'n9'"),
        ({"item": "task 9"}, "leases[0].item", "no item is named 'task 9'"),
        ({"bytes": 1}, "leases[0].bytes", "must be whole chunks of 1,000,000,000 B"),
        ({"bytes": -(10**9)}, "leases[0].bytes", "must be at least 0"),
        ({"from_exact": "soon"}, "leases[0].from_exact", "must be exact seconds"),
        ({"until_exact": "1/0"}, "leases[0].until_exact", "must be exact seconds"),
        ({"from_exact": "-1"}, "leases[0].from_exact", "must be exact seconds"),
        ({"mode": "lent"}, "leases[0].mode", "must be one of"),
        ({"price": 1}, "leases[0].price", "no such field"),
    ],
)
def test_what_means_no_plan_is_refused_in_one_line(lease: Document, field: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        verify_side(parse_instance(instance()), plan_with(**lease), "plan.json")
    assert caught.value.field.endswith(field)
    assert str(caught.value).startswith("plan.json: ")
    assert rule in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_another_decision_is_no_plan() -> None:
    with pytest.raises(InputError, match="give a field of that name"):
        verify_side(parse_instance(instance()), {"stages": [1]})
    assert PoolKind(parse_instance(instance())).solvers == ("cp-sat", "highs", "cbc")


def test_shared_memory_on_a_third_node() -> None:
    """Two readers of 40 GB on full nodes: on n2, over two links; the lease names both."""
    access = {"bandwidth_bytes_per_s": "50GB/s"}
    document = instance(
        nodes=[{"name": f"n{n}", "capacity_bytes": "40GB"} for n in range(3)],
        paths=[{"reader": f"n{r}", "lender": "n2", "access": access} for r in (0, 1)],
        items=[
            {"name": "a", "bytes": "40GB", "readers": ["n0"]},
            {"name": "b", "bytes": "40GB", "readers": ["n1"]},
            {"name": "kv", "bytes": "30GB", "readers": ["n0", "n1"], "lease": "shared"},
        ],
    )
    result = solved(document)
    assert result.plan is not None
    assert result.plan.sentence == (
        "n2 lends 30.00 GB of kv to n0 and n1: slowest read 600.0 ms, "
        "60.00 GB far from their readers"
    )
    assert result.evaluation is not None
    assert result.evaluation.pool is not None
    messages = [path.threshold.message for path in result.evaluation.pool.paths if path.threshold]
    assert messages == [
        "n2 stays a lender to n0 however slow n0<-n2 is",
        "n2 stays a lender to n1 however slow n1<-n2 is",
    ]
