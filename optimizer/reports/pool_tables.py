"""Tables of pools: what nodes hold and lend, leases, and paths in use with their thresholds."""

from __future__ import annotations

from fractions import Fraction

from instances.quantity import human_seconds
from optimizer.reports.tables import (
    MAX_ACCOUNT_ROWS,
    Cell,
    Table,
    bytes_cell,
    count_cell,
    make_table,
    number_cell,
    text_cell,
)
from optimizer.side.pool_accounts import PoolAccountDocument


def pool_tables(account: PoolAccountDocument) -> list[Table]:
    """Return the tables of a pool; leases and paths only where something is lent."""
    tables = [node_table(account)]
    if account.leases:
        tables += [lease_table(account), path_table(account)]
    return tables


def node_table(account: PoolAccountDocument) -> Table:
    """Return every node's memory at its fullest."""
    rows = [
        (
            text_cell(node.name),
            bytes_cell(node.capacity_bytes),
            bytes_cell(node.demand_bytes),
            bytes_cell(node.used_bytes),
            bytes_cell(node.lent_bytes or None),
            bytes_cell(node.borrowed_bytes or None),
            bytes_cell(node.free_bytes),
        )
        for node in account.nodes
    ]
    columns = ["node", ">capacity", ">its tasks", ">holds", ">lends", ">borrows", ">free"]
    return make_table("pool", "Memory of the nodes", columns, rows, most=MAX_ACCOUNT_ROWS)


def lease_table(account: PoolAccountDocument) -> Table:
    """Return who may read what on whose node, and until when."""
    rows = []
    for lease in account.leases:
        until = None if lease.until_exact is None else Fraction(lease.until_exact)
        rows.append(
            (
                text_cell(lease.item),
                text_cell(lease.lender),
                text_cell(", ".join(reader.node for reader in lease.readers)),
                bytes_cell(lease.bytes),
                text_cell(lease.mode),
                Cell(human_seconds(Fraction(lease.from_exact)), float(Fraction(lease.from_exact))),
                Cell("open", float("inf"))
                if until is None
                else Cell(human_seconds(until), float(until)),
            )
        )
    columns = ["lease", "lender", "readers", ">size", "kind", ">from", ">until"]
    return make_table("leases", "Leases", columns, rows, most=MAX_ACCOUNT_ROWS)


def path_table(account: PoolAccountDocument) -> Table:
    """Return the paths in use, and what would change their lenders."""
    rows = [
        (
            text_cell(path.name),
            text_cell(path.link),
            number_cell(path.bandwidth_bytes_per_s, "B/s"),
            number_cell(path.usable_bytes_per_s, "B/s"),
            count_cell(path.fewest_in_flight),
            bytes_cell(path.bytes),
            number_cell(path.read_s, "s"),
            text_cell(None if path.threshold is None else path.threshold.message),
        )
        for path in account.paths
    ]
    columns = ["path", "link", ">bandwidth", ">usable", ">in flight to fill it", ">reads"]
    columns += [">once in", "threshold"]
    return make_table("paths", "Paths in use", columns, rows, most=MAX_ACCOUNT_ROWS)
