"""What a topology is made of, and how an operation's algorithms compare on it (6.5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.quantity import format_exact
from instances.topology import LeafSpineTopology, Topology
from optimizer.fabrics.bounds import Cut, Parts, bisection, parts
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.paths import Farthest, farthest
from optimizer.schedules.comparison import Compared, compare


@dataclass(frozen=True, slots=True)
class FabricReport:
    """Parts, narrowest half, farthest cards; `speeds` are one-way bytes/s of a cable by class.

    `oversubscription` is down over up ports of a leaf, None where there are no leaves. `has_start`
    says whether the topology gives any time to start a message; without one a round costs nothing.
    """

    name: str
    kind: str
    operation: str
    message_bytes: int
    num_ranks: int
    parts: Parts
    speeds: dict[str, Fraction]
    bisection: Cut
    farthest: Farthest
    has_start: bool
    oversubscription: Fraction | None
    compared: tuple[Compared, ...]


def fabric_report(
    topology: Topology, operation: str, message_bytes: int, num_ranks: int | None = None
) -> FabricReport:
    """Return the report; raises ValueError for one card, an unknown operation or wrong ranks.

    Raises CollectiveUnavailable where the ranks would take a server in part.
    """
    fabric = build_fabric(topology)
    over = topology.oversubscription if isinstance(topology, LeafSpineTopology) else None
    return FabricReport(
        name=topology.name,
        kind=topology.kind,
        operation=operation,
        message_bytes=message_bytes,
        num_ranks=fabric.num_cards if num_ranks is None else num_ranks,
        parts=parts(fabric),
        speeds={c.name: c.bytes_per_s for c in fabric.links.classes},
        bisection=bisection(fabric),
        farthest=farthest(fabric),
        has_start=any(c.start_s for c in fabric.links.classes),
        oversubscription=over,
        compared=compare(topology, operation, message_bytes, num_ranks),
    )


def report_document(report: FabricReport) -> dict[str, Any]:
    """Return a report as a JSON document; exact times as text with their unit."""
    return {
        "name": report.name,
        "kind": report.kind,
        "num_cards": report.parts.num_cards,
        "num_links": report.parts.num_links,
        "links": [
            {
                "class": name,
                "count": count,
                "bytes_per_s": format_exact(report.speeds[name], "bytes_per_s"),
            }
            for name, count in report.parts.links_by_class
        ],
        "num_switches": report.parts.num_switches,
        "num_nics": report.parts.num_nics,
        "bisection": {
            "num_links": report.bisection.num_links,
            "bytes_per_s": format_exact(report.bisection.bytes_per_s, "bytes_per_s"),
        },
        "farthest": {
            "sender": report.farthest.sender,
            "receiver": report.farthest.receiver,
            "num_links": report.farthest.num_links,
            "num_chips": report.farthest.num_chips,
        },
        "has_start": report.has_start,
        "oversubscription": None
        if report.oversubscription is None
        else float(report.oversubscription),
        "operation": report.operation,
        "message_bytes": report.message_bytes,
        "num_ranks": report.num_ranks,
        "algorithms": [_row(row) for row in report.compared],
    }


def _row(row: Compared) -> dict[str, Any]:
    if row.time_s is None:
        return {"algorithm": row.algorithm, "reason": row.reason}
    return {
        "algorithm": row.algorithm,
        "num_rounds": row.num_rounds,
        "sent_bytes": float(row.sent_bytes),
        "busiest_link": row.busiest_link,
        "busiest_link_bytes": float(row.busiest_link_bytes),
        "link_bound_s": float(row.link_bound_s),
        "time_s": float(row.time_s),
        "time_exact": str(row.time_s),
    }
