"""Prints what the cards of each kind of serving instance exchange, and by which algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from instances.quantity import human_bytes, human_seconds

if TYPE_CHECKING:
    from optimizer.communication import ExchangeTime


def exchange_documents(exchanges: Mapping[str, Sequence[ExchangeTime]]) -> list[dict[str, Any]]:
    """Return exchanges, by the label of their serving instances, as a JSON document."""
    return [
        {
            "instance": label,
            "when": row.when,
            "stage": row.stage,
            "name": row.name,
            "kind": row.kind,
            "ranks": row.ranks,
            "servers": row.servers,
            "message_bytes": float(row.message_bytes),
            "times": row.times,
            "algorithm": row.algorithm,
            "seconds": float(row.seconds),
            "seconds_exact": str(row.seconds),
            "others": {name: float(seconds) for name, seconds in row.others},
        }
        for label, rows in exchanges.items()
        for row in rows
    ]


def render_exchanges(exchanges: Mapping[str, Sequence[ExchangeTime]]) -> None:
    """Print one table for each kind of serving instance that exchanges anything."""
    from rich.markup import escape
    from rich.table import Table

    from cli.render import report_console

    console = report_console()
    for label, rows in exchanges.items():
        if not rows:
            continue
        title = escape(f"Communication of {label}")
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.add_column("what")
        table.add_column("when")
        for name in ("cards", "message", "times", "each", "together"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("by, and what others would take")
        for row in rows:
            table.add_row(
                escape(f"{row.name} ({row.kind})"),
                escape(row.when),
                f"{row.ranks}" if row.servers == 1 else f"{row.ranks} on {row.servers} servers",
                human_bytes(int(row.message_bytes)),
                str(row.times),
                human_seconds(row.seconds),
                human_seconds(row.times * row.seconds),
                escape(_algorithms(row)),
            )
        console.print()
        console.print(table)


def _algorithms(row: ExchangeTime) -> str:
    """Say which algorithm is taken, and how many times as long others take."""
    if row.algorithm is None:
        return "—"
    others = [f"{name} {float(s / row.seconds):.2f} times as long" for name, s in row.others]
    return "; ".join([row.algorithm, *others])
