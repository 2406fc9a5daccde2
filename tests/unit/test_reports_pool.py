"""Tables of pools on a report's page."""

from __future__ import annotations

import json
from typing import Any

from instances.io import example_text, parse_instance
from optimizer import SolveOptions
from optimizer.reports.side_tables import side_tables
from optimizer.reports.tables import Table
from optimizer.side.decisions import solve_side


def tables(**changes: Any) -> list[Table]:
    document = json.loads(example_text("borrow-20gb"))
    document["pool"] |= changes
    result = solve_side(parse_instance(document), SolveOptions(threads=1))
    assert result.evaluation is not None
    return side_tables(result.evaluation)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_nodes_leases_and_paths() -> None:
    nodes, leases, paths = tables(horizon_s="5s")
    assert [table.name for table in (nodes, leases, paths)] == ["pool", "leases", "paths"]
    assert texts(nodes)[:2] == [
        ["n0", "80.00 GB", "100.00 GB", "80.00 GB", "—", "20.00 GB", "0 B"],
        ["n1", "80.00 GB", "60.00 GB", "80.00 GB", "20.00 GB", "—", "0 B"],
    ]
    assert texts(leases) == [["task 0", "n1", "n0", "20.00 GB", "exclusive", "0 s", "5.000 s"]]
    ((*path, threshold),) = texts(paths)
    assert path == [
        *["n0<-n1", "adapter of n0", "50 GB/s", "50 GB/s", "1,469", "20.00 GB", "400.0 ms"],
    ]
    assert threshold.startswith("n1 stays a lender to n0 down to 41,784,888,889 B/s of n0<-n1")


def test_an_open_lease_sorts_last() -> None:
    _, leases, _ = tables()
    assert [(cell.text, cell.key) for cell in leases.rows[0]][-1] == ("open", float("inf"))


def test_without_leases_there_are_nodes_only() -> None:
    items = [{"name": "a", "bytes": "1GB", "readers": ["n0"]}]
    assert [table.name for table in tables(items=items)] == ["pool"]
