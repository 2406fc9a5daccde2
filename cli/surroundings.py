"""`supernode payback` and `supernode hosts`: what surrounds the cards, worked out at once."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from cli.common import EXIT_CODES, EXIT_SOLVED, ExactQuantity, show_and_leave

if TYPE_CHECKING:
    from instances.surroundings import ConnectionSpec


SECONDS, BYTES = ExactQuantity("seconds"), ExactQuantity("bytes")


@click.command(epilog=EXIT_CODES)
@click.option("--cost", type=SECONDS, required=True, metavar="S", help="What the change takes.")
@click.option("--before", type=SECONDS, required=True, metavar="S", help="One use without it.")
@click.option("--after", type=SECONDS, required=True, metavar="S", help="One use with it.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def payback(cost: Fraction, before: Fraction, after: Fraction, as_json: bool) -> None:
    """Tell how often a change must be used until it has paid for the time it takes.

    Such as rewiring an optical switch, or looking for a faster setting: at least cost / (before -
    after) uses. Times have units: 100ms, 293.6us.
    """
    import json

    from instances.quantity import format_exact, human_seconds
    from optimizer.surroundings.payback import uses_to_repay

    uses, saved = uses_to_repay(cost, before, after), before - after
    times = {"cost_s": cost, "before_s": before, "after_s": after, "saved_s": saved}

    def show() -> None:
        if as_json:
            document = {name: format_exact(time, "seconds") for name, time in times.items()}
            click.echo(json.dumps({"uses": uses, **document}, indent=2))
        elif not cost:
            click.echo("0 uses: there is nothing to repay")
        elif uses is None:
            slower = f"takes {human_seconds(-saved)} longer" if saved else "saves nothing"
            click.echo(f"never: a use {slower}, so {human_seconds(cost)} is not repaid")
        else:
            text = "1 use repays" if uses == 1 else f"{uses:,} uses repay"
            click.echo(f"{text} {human_seconds(cost)}: each saves {human_seconds(saved)}")

    show_and_leave(EXIT_SOLVED, show)


@click.command(epilog=EXIT_CODES)
@click.option(
    "--organisation",
    type=click.Choice(["pairwise", "channels", "directory"]),
    required=True,
    help="What a NIC keeps: a connection for each two endpoints, a channel for each remote host, "
    "or a directory of coherent cache lines.",
)
@click.option("--endpoints", type=click.IntRange(1, 1_000_000), required=True, help="Of each host.")
@click.option("--cache", type=BYTES, required=True, metavar="BYTES", help="What a NIC holds.")
@click.option(
    "--hosts",
    "num_hosts",
    type=click.IntRange(1, 10**9),
    help="Hosts to look at; default: the most that fit, at least 2.",
)
@click.option("--call", type=SECONDS, default="5us", show_default=True, metavar="S")
@click.option("--round-trip", type=SECONDS, default="500us", show_default=True, metavar="S")
@click.option("--cores", type=click.IntRange(1, 1_000_000), default=32, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def hosts(
    organisation: str,
    endpoints: int,
    cache: Fraction,
    num_hosts: int | None,
    call: Fraction,
    round_trip: Fraction,
    cores: int,
    as_json: bool,
) -> None:
    """Tell how many hosts can be connected before their state outgrows a NIC's cache.

    Also the state that so many hosts need, and how long a host takes to set up its connections, one
    after another and on several cores.
    """
    import json

    from instances.io import validate
    from instances.surroundings import ConnectionSpec

    fields = {"organisation": organisation, "endpoints_per_host": endpoints, "cache_bytes": cache}
    fields |= {"call_s": call, "round_trip_s": round_trip, "num_cores": cores}
    document = _document(validate(ConnectionSpec, fields, "hosts"), num_hosts)

    def show() -> None:
        if as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            _render(document)

    show_and_leave(EXIT_SOLVED, show)


def _document(spec: ConnectionSpec, num_hosts: int | None) -> dict[str, Any]:
    """Return what there is to say of a number of hosts; times are exact, None where not known."""
    from instances.quantity import format_exact
    from optimizer.surroundings.connections import host_setup_s, max_hosts, state_bytes

    most = max_hosts(spec)
    looked_at = max(2, most or 0) if num_hosts is None else num_hosts
    state = state_bytes(spec, looked_at)
    serial: int | str | None = None
    shared: int | str | None = None
    if spec.organisation != "directory":
        serial = format_exact(host_setup_s(spec, looked_at, 1), "seconds")
        shared = format_exact(host_setup_s(spec, looked_at), "seconds")
    return {
        "organisation": spec.organisation,
        "endpoints_per_host": spec.endpoints_per_host,
        "cache_bytes": spec.cache_bytes,
        "max_hosts": most,
        "hosts": looked_at,
        "state_bytes": state,
        "fits": spec.cache_bytes is None or state <= spec.cache_bytes,
        "setup_serial_s": serial,
        "setup_s": shared,
        "num_cores": spec.num_cores,
    }


def _render(found: dict[str, Any]) -> None:
    """Print the answer for people."""
    from instances.quantity import human_seconds, parse_quantity

    def time(name: str) -> str:
        return human_seconds(parse_quantity(found[name], "seconds"))

    state, cache, count = found["state_bytes"], found["cache_bytes"], found["hosts"]
    fit = "fits" if found["fits"] else f"{state - cache:,} B too many"
    click.echo(f"most hosts  {found['max_hosts']:,} ({found['organisation']}, {cache:,} B a NIC)")
    click.echo(f"state       {state:,} B a NIC for {count:,} hosts: {fit}")
    if found["setup_s"] is None:
        click.echo("set-up      not known")
    else:
        cores = found["num_cores"]
        click.echo(
            f"set-up      {time('setup_serial_s')} serial, {time('setup_s')} on {cores} cores"
        )
