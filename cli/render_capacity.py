"""Readable reports of capacity plans: who is served, what is taken, what breaks first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rich.console import Console
from rich.markup import escape

from cli.tables import print_rows, titled_table
from instances.quantity import human_seconds
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    NotUsedDocument,
    PlacedRackDocument,
    PlacedServerDocument,
    PowerDocument,
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

#: What follows the first of many rows, and columns of words.
MORE = "  … and {:,} more (--json lists them)"
_TEXTS = {"model", "servers", "numbers", "what each holds", ""}

#: Numbers of servers are cut to so many letters.
MAX_NUMBERS = 24

#: Candidates that lost are shown up to this many.
MAX_LOST = 12


def render_capacity(console: Console, account: CapacityAccountDocument) -> None:
    """Print what a plan takes, serves and withstands, and where everything stands."""
    _print(console, "Sessions on time", _SESSION_COLUMNS, _session_rows(account))
    _print(console, "Serving instances", _INSTANCE_COLUMNS, _instance_rows(account))
    _print(console, "Servers and racks", _BUY_COLUMNS, _bought_rows(account))
    _print_power(console, account)
    _print(console, "What breaks first", _RESOURCE_COLUMNS, _resource_rows(account))
    shown = [escape(name) for name in failure_cohorts(account)]
    rows = [(escape(lost), text, *each) for lost, text, each in failure_rows(account)]
    _print(console, "After any one failure", ("lost", "sessions on time", *shown), rows)
    _print(console, "Where everything stands", _PLACE_COLUMNS, _placement_rows(account.placement))


_SESSION_COLUMNS = ("cohort", "model", "on time", "of", "at least", "deadline")


def _session_rows(account: CapacityAccountDocument) -> Iterable[Sequence[str]]:
    for c in account.cohorts:
        deadline = "—"
        if c.deadline_exact is not None:
            deadline = human_seconds(Fraction(c.deadline_exact))
        counts = (f"{n:,}" for n in (c.taken, c.num_sessions, c.min_sessions))
        yield escape(c.name), escape(c.model), *counts, deadline


_INSTANCE_COLUMNS = ("instance", "number", "cards each", "sessions")


def _instance_rows(account: CapacityAccountDocument) -> Iterable[Sequence[str]]:
    for i in account.instances:
        yield escape(i.name), f"{i.number:,}", str(i.num_cards), f"{i.sessions:,}"


_RESOURCE_COLUMNS = ("resource", "used", "most", "left", "")


def _resource_rows(account: CapacityAccountDocument) -> Iterable[Sequence[str]]:
    for r in account.resources:
        yield (
            escape(r.name),
            amount_text(r.used, r.unit),
            "any" if r.most is None else amount_text(r.most, r.unit),
            "" if r.left is None else amount_text(r.left, r.unit),
            "[bold]binding[/bold]" if r.is_binding else "",
        )


_BUY_COLUMNS = ("what", "number", "at most", "idle", "price of one", "")


def _bought_rows(account: CapacityAccountDocument) -> Iterable[Sequence[str]]:
    for pool in account.servers:
        group = pool.servers_per_group
        note = f"in groups of {group}" if group > 1 else ""
        idle = f"{pool.idle:,}" if pool.idle else "—"
        price = _price(pool.price_per_hour)
        name = escape(f"servers of {pool.pool}")
        yield name, f"{pool.servers:,}", f"{pool.most:,}", idle, price, note
    for site in account.racks:
        price = _price(site.price_per_hour)
        yield escape(f"racks {site.rack}"), f"{site.used:,}", f"{site.most:,}", "—", price, ""
    for tier in account.tiers:
        note = f"from endpoint {tier.above_endpoints + 1:,} on"
        number = "1" if tier.is_needed else "0"
        price = _price(tier.price_per_hour)
        yield escape(f"switch tier {tier.name}"), number, "1", "—", price, note


def _price(price: float) -> str:
    return f"{price:,.6g} an hour" if price else "—"


def _print_power(console: Console, account: CapacityAccountDocument) -> None:
    power = account.power
    if not power.total_w and power.budget_w is None:
        return
    rows = [
        (escape(p.name), f"{p.count:,}", f"{p.each_w:,} W", f"{p.watts:,} W") for p in power.parts
    ]
    rows.append(("total", "", "", f"{power.total_w:,} W"))
    if power.budget_w is not None and power.left_w is not None:
        rows.append(("budget", "", "", f"{power.budget_w:,} W"))
        rows.append(("left", "", "", f"{power.left_w:,} W"))
    _print(console, "Power", ("part", "count", "each", "watts"), rows)
    for pool in power.servers:
        if pool.more is not None:
            console.print(f"  power for {pool.more:,} more of {escape(pool.pool)} (6-11)")


def render_power(console: Console, account: CapacityAccountDocument) -> None:
    """Print the sum of all watts line by line, what it leaves, and the next switch tier."""
    power = account.power
    console.print("\n[bold]Power, line by line[/bold]")
    for line in power_lines(power):
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print(f"  {escape(next_tier_text(account))}", soft_wrap=True)


def power_lines(power: PowerDocument) -> list[str]:
    """Return the sum of all watts, the budget, and how many servers it feeds (6-11)."""
    sums = [(p.name, f"{p.count:,} x {p.each_w:,} W", p.watts) for p in power.parts]
    named = max((len(name) for name, _, _ in sums), default=0)
    named = max(named, len("total"), len("budget"))
    widest = max((len(text) for _, text, _ in sums), default=0)
    lines = [f"{name:<{named}}  {text:>{widest}} = {w:>13,} W" for name, text, w in sums]

    def total(name: str, value: int) -> str:
        return f"{name:<{named}}  {'':>{widest}} = {value:>13,} W"

    lines.append(total("total", power.total_w))
    if power.budget_w is None or power.left_w is None:
        return [*lines, "no budget limits the sum"]
    lines += [total("budget", power.budget_w), total("left", power.left_w)]
    for pool in power.servers:
        if pool.alone is None:
            lines.append(f"servers of {pool.pool} draw nothing that is known")
            continue
        less = f"{power.budget_w:,} - {power.fixed_w:,} - {power.tiers_w:,}"
        lines.append(
            f"servers of {pool.pool} alone: floor(({less}) / {pool.server_w:,}) = {pool.alone:,} "
            f"(6-11); beside the plan {pool.more:,} more"
        )
    return lines


_PLACE_COLUMNS = ("rack", "servers", "numbers", "what each holds")


def _placement_rows(racks: Sequence[PlacedRackDocument]) -> Iterable[Sequence[str]]:
    """Yield servers with their racks; of the servers of a rack only the first names it."""
    for rack in racks:
        for number, server in enumerate(rack.servers):
            yield "" if number else escape(rack_text(rack)), *_server_cells(server)


def _server_cells(server: PlacedServerDocument) -> tuple[str, str, str]:
    name = escape(f"{server.count:,} x {server.pool}")
    return name, short(server.numbers, MAX_NUMBERS), escape(held_text(server))


def render_not_used(console: Console, found: NotUsedDocument) -> None:
    """Print why other candidates are not in the plan: counts by rule, and the nearest ones."""
    if not found.examples and not found.possible:
        return
    console.print("\n[bold]Candidates not used[/bold]")
    if found.possible:
        text = f"{found.possible:,} more could be used; the plan has none of them"
        console.print(f"  {text}")
    for lost in found.examples[:MAX_LOST]:
        name = f"{lost.model} {lost.label} on {lost.pool}"
        console.print(f"  {escape(name)}: {escape(lost.message)}")
    total = sum(rule.number for rule in found.rules)
    more = total - min(len(found.examples), MAX_LOST)
    if more > 0:
        console.print(MORE.format(more))
    if found.rules:
        console.print(f"  by rule: {escape(rule_counts_text(found))}")


def _print(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    kept = list(rows)
    if kept:
        console.print()
        print_rows(console, titled_table(title, columns, _TEXTS), kept, MORE)
