"""Readable reports of supernodes: every size at its best, and what decides between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rich.console import Console
from rich.markup import escape

from cli.tables import MAX_ROWS, print_rows, titled_table
from instances.quantity import human_bytes, human_seconds
from optimizer.side.supernode_accounts import SupernodeAccountDocument, SupernodeOptionDocument
from optimizer.side.supernode_words import amount
from optimizer.words import plural

_COLUMNS = (
    *("cards", "tables", "weights", "sessions", "read", "compute", "exchange", "step"),
    "tokens/s",
)
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
        title = "Supernodes: sessions of a group, tokens/s of a card"
        table = titled_table(title, _COLUMNS, has_names=False)
        print_rows(console, table, _option_rows(account.options))
        reasons = [f"{_name(o)}: {o.why}" for o in account.options if not o.is_chosen]
        _print_lines(console, "why", reasons)
    _print_lines(console, "note", account.notes)


def _print_lines(console: Console, name: str, lines: Sequence[str]) -> None:
    """Print lines of one kind, the first few of many."""
    for line in lines[:MAX_LINES]:
        console.print(f"{name:<10} {escape(line)}", soft_wrap=True)
    if len(lines) > MAX_LINES:
        console.print(f"{name:<10} … and {len(lines) - MAX_LINES} more in the result document")


def _option_rows(options: Sequence[SupernodeOptionDocument]) -> Iterator[Sequence[str]]:
    has_splits = any(option.attention_tp > 1 for option in options[:MAX_ROWS])
    for option in options:
        size = f"{option.size}"
        if has_splits:
            size += f", TP{option.attention_tp}"
        step = option.step
        times = (step.read_exact, step.compute_exact, step.exchange_exact, step.step_exact)
        yield (
            size if option.is_asked else f"({size})",
            PLACES[option.tables],
            human_bytes(option.weight_bytes),
            f"{option.sessions:,}" if option.max_sessions else "0",
            *(human_seconds(Fraction(text)) for text in times),
            amount(option.tokens_per_s_per_card if option.is_legal else None),
        )


def _name(option: SupernodeOptionDocument) -> str:
    """Return what tells an option apart: "8 cards, tables on the host"."""
    name = plural(option.size, "card")
    if option.attention_tp > 1:
        name += f", TP{option.attention_tp}"
    return f"{name}, tables on the host" if option.tables == "host" else name
