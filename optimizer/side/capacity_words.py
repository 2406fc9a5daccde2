"""What capacity accounts say in words, the same in a terminal, on a page and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instances.quantity import human_bytes
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    NotUsedDocument,
    PlacedRackDocument,
    PlacedServerDocument,
)
from optimizer.words import plural

#: Failures after which as many sessions are on time are named up to this many.
MAX_NAMED = 3

#: Of more cohorts than these, a table of failures has only the sum.
MAX_COHORTS = 8

#: Numbers of many servers or racks are cut to so many letters.
MAX_LETTERS = 40


def held_text(server: PlacedServerDocument) -> str:
    """Return what a server holds: "4 x qwen3-32b TP2 (ring), 2 cards occupied"."""
    parts = [f"{block.number:,} x {block.instance}" for block in server.instances]
    if server.spanned_by is not None:
        parts.append(f"part of {server.spanned_by}")
    if not parts:
        parts.append("idle" if server.free_cards == server.num_cards else "nothing of the plan")
    occupied = server.num_cards - server.free_cards
    if occupied:
        parts.append(f"{plural(occupied, 'card')} occupied")
    return ", ".join(parts)


def short(names: str, most: int = MAX_LETTERS) -> str:
    """Return a list of numbers or names cut to so many letters, which the document has whole."""
    return names if len(names) <= most else f"{names[: most - 1].rstrip(', ')}…"


def rack_text(rack: PlacedRackDocument) -> str:
    """Return a rack with its units and watts: "5 x air: 24 of 42 U, 30,600 of 40,000 W"."""
    if rack.rack is None:
        return "no rack"
    name = short(rack.rack)
    name = f"{rack.count:,} x {name}" if rack.count > 1 else name
    taken = [f"{rack.used_units:,} of {rack.units:,} U"]
    if rack.limit_w is not None:
        taken.append(f"{rack.power_w:,} of {rack.limit_w:,} W")
    elif rack.power_w:
        taken.append(f"{rack.power_w:,} W")
    return f"{name}: {', '.join(taken)}"


def failure_rows(account: CapacityAccountDocument) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield what is lost, sessions on time then, and those of `failure_cohorts`; fewest first."""
    num_shown = len(failure_cohorts(account))
    for outcome in sorted(account.after, key=lambda outcome: sum(outcome.sessions)):
        more = len(outcome.events) - MAX_NAMED
        lost = ", ".join(outcome.events[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        text = f"{sum(outcome.sessions):,} of at least {sum(outcome.min_sessions):,}"
        yield lost, text, [f"{number:,}" for number in outcome.sessions[:num_shown]]


def failure_cohorts(account: CapacityAccountDocument) -> list[str]:
    """Return the cohorts that a table of failures has a column for: all of them, or none."""
    names = [cohort.name for cohort in account.cohorts]
    return names if len(names) <= MAX_COHORTS else []


def next_tier_text(account: CapacityAccountDocument) -> str:
    """Return where the next switch tier begins, and what it draws."""
    ahead = [tier for tier in account.tiers if not tier.is_needed]
    text = f"{account.endpoints:,} endpoints"
    if not ahead:
        needs = "all switch tiers are there" if account.tiers else "no switch tier is described"
        return f"{text}; {needs}"
    tier = min(ahead, key=lambda tier: tier.above_endpoints)
    left = tier.above_endpoints - account.endpoints
    return (
        f"{text}; switch tier {tier.name} ({tier.power_w:,} W) is needed from endpoint "
        f"{tier.above_endpoints + 1:,} on, after {left:,} more"
    )


def amount_text(value: int, unit: str) -> str:
    """Return so much of a resource: "112,200 W", "52.09 GB"."""
    return human_bytes(value) if unit == "B" else f"{value:,} {unit}"


def rule_counts_text(found: NotUsedDocument) -> str:
    """Return how many candidates lost by each rule."""
    return ", ".join(f"{rule.rule} {rule.number:,}" for rule in found.rules)
