"""The table of supernodes: every option at its best, and why it is or is not the plan."""

from __future__ import annotations

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
from optimizer.side.supernode_accounts import SupernodeAccountDocument, SupernodeOptionDocument

PLACES = {"none": None, "hbm": "HBM", "host": "host"}

COLUMNS = (
    *(">cards", ">TP of attention", "tables", ">weights", ">sessions", ">read", ">compute"),
    *(">exchange", ">step", ">tokens/s per card", "why"),
)


def supernode_tables(account: SupernodeAccountDocument) -> list[Table]:
    """Return the table of options, none where they were too many to compare."""
    if not account.options:
        return []
    rows = map(_row, account.options)
    note = " ".join(f"{note}." for note in account.notes)
    title = "Supernodes"
    return [make_table("supernode", title, COLUMNS, rows, note=note, most=MAX_ACCOUNT_ROWS)]


def _row(option: SupernodeOptionDocument) -> tuple[Cell, ...]:
    step = option.step
    size = f"{option.size}" if option.is_asked else f"({option.size})"
    return (
        Cell(size, option.size),
        count_cell(option.attention_tp if option.attention_tp > 1 else None),
        text_cell(PLACES[option.tables]),
        bytes_cell(option.weight_bytes),
        count_cell(option.sessions if option.max_sessions else 0),
        number_cell(step.read_s, "s"),
        number_cell(step.compute_s, "s"),
        number_cell(step.exchange_s, "s"),
        number_cell(step.step_s, "s"),
        number_cell(option.tokens_per_s_per_card if option.is_legal else None),
        text_cell(option.why, is_strong=option.is_chosen),
    )
