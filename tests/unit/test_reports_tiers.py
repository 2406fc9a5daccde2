"""Tables of tiers of memory on a report's page."""

from __future__ import annotations

from instances.io import load_instance
from optimizer import SolveOptions
from optimizer.reports.side_tables import side_tables
from optimizer.reports.tables import Table
from optimizer.side.decisions import solve_side


def tables(name: str) -> list[Table]:
    result = solve_side(load_instance(name), SolveOptions(threads=1))
    assert result.evaluation is not None
    return side_tables(result.evaluation)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_tiers_data_step_lookups_and_other_places() -> None:
    found = tables("v41-engram-placement")
    names = ["tiers", "tier-data", "tier-step", "tier-lookups", "tier-others"]
    assert [table.name for table in found] == names
    memory, data, step, lookups, others = map(texts, found)
    assert memory[1][:5] == ["host memory", "host", "host memory", "256.00 GB", "25.38 GB"]
    assert data[2] == ["Engram tables", "lookup_table", "host memory", "25.38 GB"]  # no copies
    assert [row[0] for row in step] == ["reading and computing", "communication and fixed", "all"]
    assert lookups[0][:2] == ["Engram tables", "host memory"]
    assert others[2][:3] == ["Engram tables", "HBM", "37"]
    assert others[2][3] == "with Engram tables in HBM 37 sessions (capacity, not speed)"


def test_copies_and_areas() -> None:
    """Without lookups there is no table of them; ROM has an area."""
    found = tables("remote-kv-idle-and-active")
    assert [table.name for table in found] == ["tiers", "tier-data", "tier-step", "tier-others"]
    assert texts(found[1])[3][2:4] == ["neighbour's HBM", "own HBM"]
    assert "copies fetched" in [row[0] for row in texts(found[2])]
    assert texts(tables("rom-wafers")[0])[0][5].startswith("54,4")
