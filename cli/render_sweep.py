"""Readable reports of sweeps and frontiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from cli.render import report_console
from instances.quantity import human_bytes
from optimizer.words import number

if TYPE_CHECKING:
    from optimizer.frontiers.pareto import ParetoDocument

Row = Mapping[str, Any]

#: Runs of rows shown before a report says "and n more".
MAX_RUNS = 60


def render_rows(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print rows of a sweep; neighbours with the same outcome share a line."""
    console = report_console()
    if not rows:
        console.print("no rows")
        return
    is_exact = "from_s" in rows[0]
    shared = [name for name in columns if name != columns[-1]] if not is_exact else list(columns)
    counts = ", ".join(
        f"{len(list(group))} {name}"
        for name, group in groupby(sorted(str(row["termination"]) for row in rows))
    )
    what = "piece" if is_exact else "point"
    console.print(
        f"[bold]{escape(str(rows[0]['instance']))}[/bold]: "
        f"{len(rows)} {what}{'s' if len(rows) > 1 else ''}, {counts}"
    )
    table = Table(box=None, title_justify="left")
    heads = [*columns, *(["deadline"] if is_exact else [])]
    for name in heads:
        table.add_column(escape(_short(name)), justify="right", no_wrap=True)
    table.add_column(str(rows[0]["objective"]), justify="right", no_wrap=True)
    table.add_column("on time", justify="right")
    table.add_column("plan, or why there is none")
    runs = _runs(rows, shared, is_exact)
    for run in runs[:MAX_RUNS]:
        table.add_row(*_line(run, columns, is_exact))
    console.print(table)
    if len(runs) > MAX_RUNS:
        console.print(f"  and {len(runs) - MAX_RUNS} more lines (-o or --json give all rows)")


def _short(name: str) -> str:
    """Return the part of a path that tells it from others."""
    return name.split(".")[-1] if "." in name else name


def _runs(rows: Sequence[Row], shared: Sequence[str], is_exact: bool) -> list[list[Row]]:
    if is_exact:
        return [[row] for row in rows]

    def outcome(row: Row) -> tuple[Any, ...]:
        same = ("termination", "plan", "value_exact", "on_time")
        text = row["reason"] if row["termination"] == "failed" else ""
        return (*(row[name] for name in shared), *(row[name] for name in same), text)

    return [list(group) for _, group in groupby(rows, key=outcome)]


def _line(run: Sequence[Row], columns: Sequence[str], is_exact: bool) -> list[str]:
    first, last = run[0], run[-1]
    cells = []
    for name in columns:
        begin, end = _value(first[name], name), _value(last[name], name)
        cells.append(begin if begin == end else f"{begin} – {end}")
    if is_exact:
        until = "∞" if first["to_s"] in (None, "") else _value(first["to_s"], "to_s")
        cells.append(f"{_value(first['from_s'], 'from_s')} – {until}")
    value = None if first["value"] in (None, "") else float(first["value"])
    cells.append(number(value, str(first["unit"])))
    on_time = first["on_time"]
    cells.append("—" if on_time in (None, "") else f"{on_time}/{first['sessions']}")
    text = str(first["plan"] or first["reason"])
    if not first["plan"] and first["reason"] != last["reason"]:
        text = text.rpartition(": ")[0] or text  # the amount differs from row to row
    if first["termination"] not in ("optimal", "infeasible"):
        text = f"{first['termination']}: {text}"
    return [*cells, escape(text)]


def _value(value: Any, name: str) -> str:
    """Return a swept value in a handy unit, which the end of its name tells; CSV holds text."""
    if value in (None, ""):
        return "—"
    amount = float(value)
    if name.endswith("bytes_per_s"):
        return f"{amount / 1e9:,.6g} GB/s"
    if "flops_per_s" in name:
        return f"{amount / 1e12:,.6g} TFLOP/s"
    if name.endswith("_bytes"):
        return human_bytes(int(amount))
    if name.endswith("_s"):
        return number(amount, "s")
    unit = " W" if name.endswith("_w") else " J" if name.endswith("_j") else ""
    return f"{amount:,.10g}{unit}"


def render_pareto(found: ParetoDocument) -> None:
    """Print a Pareto set and its proof."""
    console = report_console()
    console.print(f"[bold]{escape(found.instance)}[/bold]: {len(found.points)} Pareto plans")
    table = Table(box=None)
    for name in found.objectives:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("on time", justify="right")
    table.add_column("plan")
    for point in found.points:
        table.add_row(
            number(point.first, found.units[0]),
            number(point.second, found.units[1]),
            str(point.on_time),
            escape(point.plan),
        )
    console.print(table)
    console.print(escape(found.proof))
