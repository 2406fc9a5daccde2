"""Readable reports of pools: what nodes hold and lend, and when lenders change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rich.console import Console
from rich.markup import escape

from cli.tables import print_table
from instances.quantity import human_bytes, human_seconds
from optimizer.side.pool_accounts import PoolAccountDocument, PoolLeaseDocument
from optimizer.words import number


def render_pool(console: Console, account: PoolAccountDocument) -> None:
    """Print nodes, leases, links and paths, and how slow each path in use may get."""
    print_table(console, "Memory of the nodes", _NODE_COLUMNS, _node_rows(account))
    before, after = human_bytes(account.free_before_bytes), human_bytes(account.free_bytes)
    console.print(f"free       {before} before anything is lent, {after} after")
    print_table(console, "Leases", _LEASE_COLUMNS, map(_lease_row, account.leases))
    print_table(console, "Paths in use", _PATH_COLUMNS, _path_rows(account))
    print_table(console, "Links", ("link", "all read once", "load"), _link_rows(account))
    for path in account.paths:
        if path.threshold is not None:
            console.print(f"threshold  {escape(path.threshold.message)}", soft_wrap=True)


_NODE_COLUMNS = ("node", "capacity", "its tasks", "holds", "lends", "borrows", "free")


def _node_rows(account: PoolAccountDocument) -> Iterable[Sequence[str]]:
    for node in account.nodes:
        sizes = (node.capacity_bytes, node.demand_bytes, node.used_bytes, node.lent_bytes)
        texts = [human_bytes(size) if size else "—" for size in (*sizes, node.borrowed_bytes)]
        yield escape(node.name), *texts, human_bytes(node.free_bytes)


_LEASE_COLUMNS = ("lease", "lender", "readers", "size", "kind", "from", "until")


def _lease_row(lease: PoolLeaseDocument) -> Sequence[str]:
    until = lease.until_exact
    return (
        escape(lease.item),
        escape(lease.lender),
        escape(", ".join(reader.node for reader in lease.readers)),
        human_bytes(lease.bytes),
        lease.mode,
        human_seconds(Fraction(lease.from_exact)),
        "open" if until is None else human_seconds(Fraction(until)),
    )


_PATH_COLUMNS = ("path", "link", "bandwidth", "usable", "to fill it", "reads", "once in")


def _path_rows(account: PoolAccountDocument) -> Iterable[Sequence[str]]:
    for path in account.paths:
        fewest = path.fewest_in_flight
        yield (
            escape(path.name),
            escape(path.link),
            number(path.bandwidth_bytes_per_s, "B/s"),
            number(path.usable_bytes_per_s, "B/s"),
            "—" if fewest is None else f"{fewest:,} in flight",
            human_bytes(path.bytes),
            human_seconds(Fraction(path.read_exact)),
        )


def _link_rows(account: PoolAccountDocument) -> Iterable[Sequence[str]]:
    for link in account.links:
        load = f"{100 * link.load:.4g} %" if link.load else "—"
        yield escape(link.name), human_seconds(Fraction(link.read_exact)), load
