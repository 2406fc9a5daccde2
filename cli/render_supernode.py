"""Readable reports of supernodes: every size at its best, and what decides between them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from instances.quantity import human_bytes, human_seconds
from optimizer.side.supernode_accounts import SupernodeAccountDocument, SupernodeOptionDocument
from optimizer.words import digits, plural

_COLUMNS = (
    *("cards", "tables", "weights", "sessions", "read", "compute", "exchange", "step"),
    "tokens/s",
)
#: Rows of a table before it says "… and n more".
MAX_ROWS = 40

#: Lines of reasons, and of notes, that are printed.
MAX_LINES = 12

PLACES = {"none": "—", "hbm": "HBM", "host": "host"}


def render_supernode(console: Console, account: SupernodeAccountDocument) -> None:
    """Print what a card holds, the step, every option, and what tables on the host change."""
    free = account.capacity_bytes - account.used_bytes
    console.print(
        f"memory     {human_bytes(account.weight_bytes)} of weights, "
        f"{human_bytes(account.workspace_bytes)} of workspace, "
        f"{human_bytes(account.session_bytes)} a session; {human_bytes(free)} of "
        f"{human_bytes(account.capacity_bytes)} free"
    )
    step = account.step
    if step.lookup_s:
        console.print(
            f"lookup     {account.reads_per_step:,} rows a step: "
            f"{human_seconds(Fraction(step.lookup_exact))}, of which up to "
            f"{human_seconds(Fraction(step.hidden_s))} is hidden"
        )
    if account.on_time is not None and account.end_exact is not None:
        console.print(
            f"on time    {account.on_time:,} sessions, the last after "
            f"{human_seconds(Fraction(account.end_exact))}"
        )
    if account.options:
        shown = account.options[:MAX_ROWS]
        console.print(_option_table(shown))
        if len(account.options) > len(shown):
            console.print(f"… and {len(account.options) - len(shown)} more")
        reasons = [f"{_name(o)}: {o.why}" for o in account.options if not o.is_chosen]
        _print_lines(console, "why", reasons)
    _print_lines(console, "note", account.notes)


def _print_lines(console: Console, name: str, lines: Sequence[str]) -> None:
    """Print lines of one kind, the first few of many."""
    for line in lines[:MAX_LINES]:
        console.print(f"{name:<10} {escape(line)}", soft_wrap=True)
    if len(lines) > MAX_LINES:
        console.print(f"{name:<10} … and {len(lines) - MAX_LINES} more in the result document")


def _option_table(options: list[SupernodeOptionDocument]) -> Table:
    has_splits = any(option.attention_tp > 1 for option in options)
    table = Table(
        title="Supernodes: sessions of a group, tokens/s of a card",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for option in options:
        size = f"{option.size}"
        if has_splits:
            size += f", TP{option.attention_tp}"
        step = option.step
        row = [
            size if option.is_asked else f"({size})",
            PLACES[option.tables],
            human_bytes(option.weight_bytes),
            f"{option.sessions:,}" if option.max_sessions else "0",
            *(
                human_seconds(Fraction(text))
                for text in (
                    step.read_exact,
                    step.compute_exact,
                    step.exchange_exact,
                    step.step_exact,
                )
            ),
            rate_text(option.tokens_per_s_per_card) if option.is_legal else "—",
        ]
        table.add_row(*row)
    return table


def _name(option: SupernodeOptionDocument) -> str:
    """Return what tells an option apart: "8 cards, tables on the host"."""
    name = plural(option.size, "card")
    if option.attention_tp > 1:
        name += f", TP{option.attention_tp}"
    return f"{name}, tables on the host" if option.tables == "host" else name


def rate_text(rate: float) -> str:
    """Write tokens a second: from a thousand on in whole numbers."""
    return f"{rate:,.0f}" if rate >= 1000 else digits(rate)
