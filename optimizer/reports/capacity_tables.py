"""Tables of a capacity plan: sessions, servers, power, what breaks first, failures, places."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.reports.tables import (
    MAX_ACCOUNT_ROWS,
    Cell,
    Table,
    count_cell,
    make_table,
    number_cell,
    text_cell,
)
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    CohortUseDocument,
    NotUsedDocument,
    OptionUseDocument,
    PlacedRackDocument,
    PowerDocument,
    ResourceDocument,
)
from optimizer.side.capacity_words import (
    amount_text,
    failure_cohorts,
    failure_rows,
    held_text,
    next_tier_text,
    rack_text,
    rule_counts_text,
    short,
)
from optimizer.words import number


def capacity_tables(account: CapacityAccountDocument) -> list[Table]:
    """Return the tables of a plan, without those that would be empty."""
    tables = [
        cohort_table(account.cohorts),
        instance_table(account.instances),
        fleet_table(account),
        resource_table(account.resources),
        failure_table(account),
        placement_table(account.placement),
    ]
    if account.power.total_w or account.power.budget_w is not None:
        tables.insert(3, power_table(account.power, next_tier_text(account)))
    return [table for table in tables if table.rows]


def cohort_table(cohorts: Sequence[CohortUseDocument]) -> Table:
    """Return the sessions of every cohort that are on time."""
    rows = [
        (
            text_cell(cohort.name),
            text_cell(cohort.model),
            count_cell(cohort.taken),
            count_cell(cohort.num_sessions),
            count_cell(cohort.min_sessions),
            number_cell(cohort.deadline_s, "s"),
        )
        for cohort in cohorts
    ]
    columns = ["cohort", "model", ">on time", ">of", ">at least", ">deadline"]
    return make_table("cohorts", "Sessions on time", columns, rows)


def instance_table(options: Sequence[OptionUseDocument]) -> Table:
    """Return the serving instances by kind."""
    rows = [
        (
            text_cell(option.model),
            text_cell(option.label),
            text_cell(option.pool),
            count_cell(option.number),
            count_cell(option.num_cards),
            count_cell(option.sessions),
        )
        for option in options
    ]
    columns = ["model", "serving instance", "pool", ">number", ">cards each", ">sessions"]
    return make_table("serving", "Serving instances", columns, rows)


def fleet_table(account: CapacityAccountDocument) -> Table:
    """Return servers, racks and switch tiers: how many, of at most how many, and their price."""
    rows = [
        (
            text_cell(f"servers of {pool.pool}"),
            count_cell(pool.servers),
            count_cell(pool.most),
            count_cell(pool.idle or None),
            number_cell(pool.price_per_hour or None),
            text_cell(f"{pool.servers_per_group}" if pool.servers_per_group > 1 else None),
        )
        for pool in account.servers
    ]
    rows += [
        (
            text_cell(f"racks {site.rack}"),
            count_cell(site.used),
            count_cell(site.most),
            count_cell(None),
            number_cell(site.price_per_hour or None),
            text_cell(None),
        )
        for site in account.racks
    ]
    rows += [
        (
            text_cell(f"switch tier {tier.name}"),
            count_cell(int(tier.is_needed)),
            count_cell(1),
            count_cell(None),
            number_cell(tier.price_per_hour or None),
            text_cell(None),
        )
        for tier in account.tiers
    ]
    columns = ["what", ">number", ">at most", ">idle", ">price of one, an hour", ">group of"]
    return make_table("fleet", "Servers, racks and switches", columns, rows)


def power_table(power: PowerDocument, next_tier: str) -> Table:
    """Return the sum of all watts, and how many more servers the budget feeds (6-11)."""
    rows: list[tuple[Cell, ...]] = [
        (text_cell(part.name), count_cell(part.count), _watts(part.each_w), _watts(part.watts))
        for part in power.parts
    ]
    sums = (("total", power.total_w), ("budget", power.budget_w), ("left", power.left_w))
    rows += [
        (text_cell(name, is_strong=True), count_cell(None), _watts(None), _watts(value))
        for name, value in sums
        if value is not None
    ]
    more = [f"{p.more:,} more of {p.pool}" for p in power.servers if p.more is not None]
    note = f"What is left feeds {' or '.join(more)} (6-11). " if more else ""
    note += f"{next_tier[:1].upper()}{next_tier[1:]}."
    return make_table("power", "Power", ["part", ">count", ">each", ">watts"], rows, note=note)


def _watts(value: int | None) -> Cell:
    return Cell("—", None) if value is None else Cell(f"{value:,} W", value)


def resource_table(resources: Sequence[ResourceDocument]) -> Table:
    """Return what may run out, what is binding first."""
    rows = [
        (
            text_cell(resource.name, is_strong=resource.is_binding),
            _amount(resource.used, unit),
            Cell("any", float("inf")) if resource.most is None else _amount(resource.most, unit),
            Cell("—", None) if resource.left is None else _amount(resource.left, unit),
            text_cell("binding" if resource.is_binding else None),
        )
        for resource in resources
        for unit in [resource.unit]
    ]
    columns = ["resource", ">used", ">most", ">left", "verdict"]
    title = "What breaks first"
    return make_table("resources", title, columns, rows, most=MAX_ACCOUNT_ROWS)


def _amount(value: int, unit: str) -> Cell:
    return Cell(amount_text(value, unit), value)


def failure_table(account: CapacityAccountDocument) -> Table:
    """Return who is on time after every failure, the worst first."""
    rows = [
        (text_cell(lost), text_cell(total), *map(text_cell, per_cohort))
        for lost, total, per_cohort in failure_rows(account)
    ]
    columns = ["lost", ">sessions on time", *(f">{name}" for name in failure_cohorts(account))]
    title = "After any one failure"
    return make_table("failures", title, columns, rows, most=MAX_ACCOUNT_ROWS)


def placement_table(racks: Sequence[PlacedRackDocument]) -> Table:
    """Return what every server holds, rack by rack, equal ones once."""
    rows = [
        (
            Cell("—" if rack.rack is None else rack_text(rack), n),
            Cell(f"{server.count:,} x {server.pool}", server.count),
            text_cell(short(server.numbers)),
            text_cell(held_text(server)),
        )
        for n, rack in enumerate(racks)
        for server in rack.servers
    ]
    columns = ["rack", "servers", "numbers", "what each holds"]
    title = "Where everything stands"
    return make_table("placement", title, columns, rows, most=MAX_ACCOUNT_ROWS)


def not_used_table(found: NotUsedDocument) -> Table:
    """Return candidates that lost by least, some of each rule."""
    rows = [
        (
            text_cell(lost.model),
            text_cell(lost.label),
            text_cell(lost.pool),
            text_cell(lost.rule),
            Cell(number(lost.amount, lost.unit), lost.amount),
            text_cell(lost.message),
        )
        for lost in found.examples
    ]
    columns = ["model", "candidate", "pool", "rule", ">by", "why"]
    note = f"{found.possible:,} more could be used; the plan has none of them."
    if found.rules:
        note = f"By rule: {rule_counts_text(found)}. {note}"
    title = "Candidates not used"
    return make_table("lost", title, columns, rows, note=note, most=MAX_ACCOUNT_ROWS)
