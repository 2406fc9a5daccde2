"""Readable reports of tiers of memory: what lies where, the step, thresholds and other places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from rich.console import Console
from rich.markup import escape

from cli.tables import MAX_ROWS, print_table
from instances.quantity import human_bytes, human_seconds
from optimizer.side.tier_accounts import (
    TierAccountDocument,
    TierDocument,
    TierLookupDocument,
    TierStepDocument,
)
from optimizer.words import plural


def render_tiers(console: Console, account: TierAccountDocument) -> None:
    """Print tiers, classes, the step, and where it begins to grow."""
    print_table(console, "Tiers", _TIER_COLUMNS, map(_tier_row, account.tiers))
    print_table(console, "Data", _CLASS_COLUMNS, _class_rows(account))
    print_table(console, "Paths in a step", _PATH_COLUMNS, _path_rows(account))
    console.print(f"step       {_step_line(account.step)}", soft_wrap=True)
    for line in _rate_lines(account):
        console.print(line, soft_wrap=True)
    for lookup in account.lookups:
        for line in _lookup_lines(lookup):
            console.print(f"threshold  {escape(line)}", soft_wrap=True)
    for tier in account.tiers:
        line = _threshold_line(tier)
        if line:
            console.print(f"threshold  {escape(line)}", soft_wrap=True)
    for number, other in enumerate(account.alternatives):
        if number == MAX_ROWS:
            console.print(f"instead    … and {len(account.alternatives) - MAX_ROWS} more")
            break
        console.print(f"instead    {escape(other.message)}", soft_wrap=True)


_TIER_COLUMNS = ("tier", "kind", "path", "capacity", "holds", "usable", "random reads", "price")


def _tier_row(tier: TierDocument) -> Sequence[str]:
    holds = human_bytes(tier.used_bytes)
    if tier.area_mm2 is not None:
        holds += f", {tier.area_mm2:,.0f} mm2"
    reads = Fraction(tier.random_reads_exact)
    return (
        escape(tier.name),
        tier.kind,
        escape(tier.path),
        human_bytes(tier.capacity_bytes),
        holds,
        _speed(tier.usable_bytes_per_s),
        human_seconds(reads) if reads else "—",
        f"{tier.price_per_hour:,.6g}" if tier.price_per_hour else "—",
    )


_CLASS_COLUMNS = ("data", "kind", "tier", "read from", "size", "a resume")


def _class_rows(account: TierAccountDocument) -> Iterable[Sequence[str]]:
    for data in account.classes:
        resume = data.resume_exact
        yield (
            escape(data.name),
            data.kind,
            escape(data.tier or "none"),
            escape(f"copy in {data.copy_tier}" if data.copy_tier else data.tier or "none"),
            human_bytes(data.bytes),
            "—" if resume is None else human_seconds(Fraction(resume)),
        )


_PATH_COLUMNS = ("path", "reads and writes", "prefetched lookups", "resumes")


def _path_rows(account: TierAccountDocument) -> Iterable[Sequence[str]]:
    for path in account.paths:
        load, ahead = Fraction(path.load_exact), Fraction(path.prefetch_exact)
        yield (
            escape(path.name),
            human_seconds(load) if load else "—",
            human_seconds(ahead) if ahead else "—",
            f"{path.resume_share:.2%} of the time" if path.resume_share else "—",
        )


def _step_line(step: TierStepDocument) -> str:
    if step.total_exact is None:
        return "never ends: resumes leave a path no time"
    core = Fraction(step.core_exact)
    parts = {
        "reading and computing": core,
        "communication and fixed": Fraction(step.even_exact) - core,
        "lookups not hidden": Fraction(step.excess_exact),
        "lookups not prefetched": Fraction(step.lookups_exact),
        "copies fetched": Fraction(step.fetches_exact),
    }
    texts = [f"{name} {human_seconds(seconds)}" for name, seconds in parts.items() if seconds]
    return f"{human_seconds(Fraction(step.total_exact))}: {', '.join(texts) or 'nothing'}"


def _rate_lines(account: TierAccountDocument) -> Iterator[str]:
    if account.user_rate is not None:
        yield (
            f"rate       {account.user_rate:,.6g} tokens/s for each of "
            f"{plural(account.num_sessions, 'session')}"
        )
    if account.alone_user_rate is not None and account.alone_user_rate != account.user_rate:
        yield f"           {account.alone_user_rate:,.6g} tokens/s with the fewest sessions wanted"
    if account.throughput_per_card is not None:
        yield f"           {account.throughput_per_card:,.6g} tokens/s per card"
    if account.price_per_hour:
        yield f"price      {account.price_per_hour:,.6g} an hour"


def _lookup_lines(found: TierLookupDocument) -> Iterator[str]:
    window = human_seconds(Fraction(found.window_exact))
    step = human_seconds(Fraction(found.step_exact))
    start = f"{found.name} in {found.tier}: the first block hides {window} of a step of {step}"
    if found.round_trip_user_rate is not None and found.speed_up is not None:
        limit = human_seconds(Fraction(found.round_trip_step_exact))
        yield (
            f"{start}; a round trip stops being hidden when a step is shorter than {limit}, at "
            f"{found.round_trip_user_rate:,.6g} tokens/s for each user, {found.speed_up:,.4g} "
            f"times as fast as now"
        )
        limit = human_seconds(Fraction(found.whole_step_exact))
        yield (
            f"{found.name} in {found.tier}: with its reads and bytes it stops being hidden below "
            f"{limit}, at {found.whole_user_rate:,.6g} tokens/s for each user"
        )


def _threshold_line(tier: TierDocument) -> str:
    found = tier.threshold
    if found is None:
        return ""
    parts = []
    if found.keeps_bytes_per_s is not None:
        parts.append(f"{_speed(found.keeps_bytes_per_s)} or more")
    if found.longest_round_trip_exact is not None:
        longest = human_seconds(Fraction(found.longest_round_trip_exact))
        parts.append(f"a round trip of {longest} or less")
    return f"{tier.name} keeps the step as short with {', and with '.join(parts)}" if parts else ""


def _speed(bytes_per_s: float) -> str:
    return f"{human_bytes(round(bytes_per_s))}/s"
