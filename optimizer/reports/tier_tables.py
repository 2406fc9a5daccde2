"""Tables of tiers of memory: what they hold, where data lie, thresholds, and other places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optimizer.reports.tables import (
    MAX_ACCOUNT_ROWS,
    Cell,
    Table,
    bytes_cell,
    make_table,
    number_cell,
    text_cell,
)
from optimizer.side.tier_accounts import TierAccountDocument, TierStepDocument


def tier_tables(account: TierAccountDocument) -> list[Table]:
    """Return the tables of tiers; thresholds and other places only where there are any."""
    tables = [memory_table(account), data_table(account), step_table(account.step)]
    if account.lookups:
        tables.append(lookup_table(account))
    if account.alternatives:
        tables.append(alternative_table(account))
    return tables


def memory_table(account: TierAccountDocument) -> Table:
    """Return what every tier holds, how fast it is, and how slow it may get."""
    rows = []
    for tier in account.tiers:
        limit = tier.threshold
        rows.append(
            (
                text_cell(tier.name),
                text_cell(tier.kind),
                text_cell(tier.path),
                bytes_cell(tier.capacity_bytes),
                bytes_cell(tier.used_bytes or None),
                number_cell(tier.area_mm2 or None, "mm2"),
                number_cell(tier.usable_bytes_per_s, "B/s"),
                number_cell(tier.random_reads_s or None, "s"),
                number_cell(None if limit is None else limit.keeps_bytes_per_s, "B/s"),
                number_cell(None if limit is None else limit.longest_round_trip_s, "s"),
            )
        )
    columns = ["tier", "kind", "path", ">capacity", ">holds", ">area", ">usable", ">random reads"]
    columns += [">slowest that is as good", ">longest round trip"]
    return make_table("tiers", "Tiers", columns, rows, most=MAX_ACCOUNT_ROWS)


def data_table(account: TierAccountDocument) -> Table:
    """Return where all data lie."""
    rows = [
        (
            text_cell(data.name),
            text_cell(data.kind),
            text_cell(data.tier),
            text_cell(data.copy_tier),
            bytes_cell(data.bytes),
            number_cell(data.resume_s, "s"),
        )
        for data in account.classes
    ]
    columns = ["data", "kind", "tier", "copy in", ">size", ">a resume"]
    return make_table("tier-data", "Data", columns, rows, most=MAX_ACCOUNT_ROWS)


def step_table(step: TierStepDocument) -> Table:
    """Return the parts of a step."""
    columns = ["part of a step", ">time"]
    return make_table("tier-step", "Step", columns, list(_step_rows(step)))


def _step_rows(step: TierStepDocument) -> Iterator[Sequence[Cell]]:
    parts = {
        "reading and computing": step.core_s,
        "communication and fixed": step.even_s - step.core_s,
        "lookups not hidden": step.excess_s,
        "lookups not prefetched": step.lookups_s,
        "copies fetched": step.fetches_s,
    }
    for name, seconds in parts.items():
        if seconds:
            yield text_cell(name), number_cell(seconds, "s")
    yield text_cell("all", is_strong=True), number_cell(step.total_s, "s")


def lookup_table(account: TierAccountDocument) -> Table:
    """Return down to which step, and up to which user rate, lookups are hidden."""
    rows = [
        (
            text_cell(found.name),
            text_cell(found.tier),
            number_cell(found.window_s, "s"),
            number_cell(found.round_trip_step_s or None, "s"),
            number_cell(found.round_trip_user_rate),
            number_cell(found.whole_step_s, "s"),
            number_cell(found.whole_user_rate),
        )
        for found in account.lookups
    ]
    columns = ["lookups", "in", ">first block", ">round trip hidden from a step of"]
    columns += [">up to tokens/s", ">all hidden from a step of", ">up to tokens/s"]
    return make_table("tier-lookups", "Lookups", columns, rows, most=MAX_ACCOUNT_ROWS)


def alternative_table(account: TierAccountDocument) -> Table:
    """Return what comes of each class in another place."""
    rows = [
        (
            text_cell(other.name),
            text_cell(other.tier),
            text_cell(other.copy_tier),
            number_cell(other.value),
            text_cell(other.message),
        )
        for other in account.alternatives
    ]
    columns = ["data", "instead in", "copy in", f">{account.goal.replace('_', ' ')}", "why not"]
    return make_table("tier-others", "Other places", columns, rows, most=MAX_ACCOUNT_ROWS)
