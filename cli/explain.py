"""The `supernode explain` command: every byte on every card and why, or why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from cli.common import (
    EXIT_CODES,
    EXIT_INFEASIBLE,
    EXIT_NO_PLAN,
    FiniteSeconds,
    show_and_leave,
    status,
)

if TYPE_CHECKING:
    from rich.console import Console

    from instances.instance import Instance
    from optimizer.communication import ExchangeTime
    from optimizer.ledger import CardAccount, Ledger
    from optimizer.plan import Plan


@click.command(epilog=EXIT_CODES)
@click.argument("instance")
@click.option("--card", type=click.IntRange(0), help="Only this card, counted in plan order.")
@click.option("--plan", "plan_path", metavar="RESULT", help="A result or plan; default: solve.")
@click.option("--time-limit", type=FiniteSeconds(), default=60.0, show_default=True, metavar="S")
@click.option("--json", "as_json", is_flag=True, help="Print accounts or conflict as JSON.")
def explain(
    instance: str, card: int | None, plan_path: str | None, time_limit: float, as_json: bool
) -> None:
    """Account for every byte of a plan for INSTANCE, card by card, and for what cards exchange.

    Without --plan the instance is solved first. Each component says why the card holds it: split,
    or copied because of what. Over all cards it adds up to one copy and the duplication listed.
    Where nothing fits, it says instead which constraints conflict and what change would help.
    """
    import json

    from instances.io import load_instance

    problem = load_instance(instance)
    plan = _plan(problem, plan_path, time_limit)
    if plan is None:
        _explain_conflict(problem, time_limit, as_json)
    from cli.render_exchanges import exchange_documents, render_exchanges

    ledger, exchanges = _ledger(problem, plan, card), _exchanges(problem, plan)
    if as_json:
        document = ledger_document(ledger) | {"communication": exchange_documents(exchanges)}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        render_ledger(problem, ledger)
        render_exchanges(exchanges)


def _explain_conflict(problem: Instance, time_limit: float, as_json: bool) -> NoReturn:
    """Say why nothing fits, and leave."""
    from optimizer.conflicts.explain import explain_infeasible
    from optimizer.options import SolveOptions

    options = SolveOptions(time_limit_s=time_limit, threads=1)
    with status(f"looking for what conflicts in {problem.name}") as update:
        document = explain_infeasible(problem, options, update)

    def show() -> None:
        from cli.render_conflict import render_conflict

        if as_json:
            click.echo(document.to_json(), nl=False)
        else:
            render_conflict(problem, document)

    show_and_leave(EXIT_INFEASIBLE, show)


def _plan(problem: Instance, path: str | None, time_limit: float) -> Plan | None:
    """Return the plan to explain; None where there is proven to be none."""
    from instances.errors import InputError
    from instances.io import parse_json, read_text
    from optimizer.checks import check_structure
    from optimizer.options import SolveOptions
    from optimizer.plan_document import read_plan
    from optimizer.solve import solve

    if problem.decision != "deployment":
        rule = f"decides {problem.decision}, not a deployment; see `supernode solve`"
        raise InputError(problem.name, "decision", rule)
    if path is None:
        result = solve(problem, SolveOptions(time_limit_s=time_limit))
        if result.termination == "infeasible":
            return None
        if result.plan is None:
            click.echo(f"error: there is no plan to explain: {result.reason}", err=True)
            raise SystemExit(EXIT_NO_PLAN)
        return read_plan(result.model_dump(mode="json"), problem.name)
    text, source = read_text(path)
    plan = read_plan(parse_json(text, source), source)
    for violation in check_structure(problem, plan):
        if violation.rule not in ("session_missing", "dispatch", "uniform", "layout"):
            raise InputError(source, violation.where, f"{violation.message} [{violation.rule}]")
    return plan


def _ledger(problem: Instance, plan: Plan, card: int | None) -> Ledger:
    from instances.errors import InputError
    from optimizer.ledger import build_ledger

    if card is not None and card >= plan.num_cards:
        rule = f"the plan uses cards 0..{plan.num_cards - 1} (counted in plan order)"
        raise InputError("--card", "", rule, card)
    return build_ledger(problem, plan, None if card is None else [card])


def _exchanges(problem: Instance, plan: Plan) -> dict[str, list[ExchangeTime]]:
    """Return the exchanges of every kind of serving instance, by its label."""
    from optimizer.communication import exchange_times

    kinds = {instance.footprint: instance.footprint.label() for instance in plan}
    return {label: list(exchange_times(problem, kind)) for kind, label in kinds.items()}


def _parts(parts: Any) -> list[dict[str, Any]]:
    return [{"component": p.component, "bytes": p.num_bytes, "reason": p.reason} for p in parts]


def _card_document(card: CardAccount) -> dict[str, Any]:
    at = card.place
    return {
        "pool": card.pool,
        "server": card.card.server,
        "card": card.card.card,
        "instance": card.instance,
        "coordinates": {
            "stage": at.stage,
            "dp": at.dp,
            "attention_copy": at.copy,
            "cp": at.cp,
            "tp": at.tp,
            "expert_group": at.expert_group,
            "expert_part": at.expert_part,
        },
        "layers": [card.layers.start, card.layers.stop - 1],
        "owns": card.owns,
        "weights": _parts(card.weights),
        "caches": _parts(card.caches),
        "buffers": _parts(card.buffers),
        "weights_bytes": card.weights_bytes,
        "total_bytes": card.total_bytes,
        "capacity_bytes": card.capacity_bytes,
    }


def ledger_document(ledger: Ledger) -> dict[str, Any]:
    """Return all accounts as a JSON document."""
    return {
        "cards": [_card_document(card) for card in ledger.cards],
        "instances": [
            {
                "instance": account.instance,
                "held_bytes": account.held_bytes,
                "one_copy_bytes": account.one_copy_bytes,
                "duplicated": _parts(account.duplications),
                "adds_up": account.is_balanced,
            }
            for account in ledger.instances
        ],
    }


def render_ledger(problem: Instance, ledger: Ledger) -> None:
    """Print accounts: cards with equal accounts once, then what is held beyond one copy."""
    from rich.markup import escape

    from cli.render import report_console

    console = report_console()
    console.print(f"[bold]{escape(problem.name)}[/bold]: every byte on every card")
    alike: dict[str, list[CardAccount]] = {}
    for card in ledger.cards:
        key = repr((card.layers, card.weights, card.caches, card.buffers, card.capacity_bytes))
        alike.setdefault(key, []).append(card)
    for cards in alike.values():
        _print_cards(console, cards)
    for account in ledger.instances:
        extra = account.held_bytes - account.one_copy_bytes
        console.print(
            f"\n[bold]Serving instance {account.instance}[/bold]: {account.held_bytes:,} B of "
            f"weights on all cards = {account.one_copy_bytes:,} B (one copy) + {extra:,} B more"
        )
        for part in account.duplications:
            console.print(escape(f"  {part.component}: {part.num_bytes:,} B, {part.reason}"))


def _print_cards(console: Console, cards: list[CardAccount]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from optimizer.words import card_ranges

    first = cards[0]
    names = card_ranges([(f"{c.pool}/{c.card.server}", c.card.card) for c in cards])
    title = f"{names}: {first.total_bytes:,} of {first.capacity_bytes:,} B"
    title += f", layers {first.layers.start}-{first.layers.stop - 1}"
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None)
    table.add_column("what")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("why")
    for part in (*first.weights, *first.caches, *first.buffers):
        table.add_row(escape(part.component), f"{part.num_bytes:,}", escape(part.reason))
    console.print()
    console.print(table)
    for card in cards[:8]:
        owned = "; ".join(f"{name} {span}" for name, span in card.owns.items())
        console.print(escape(f"  {card.pool}/{card.card.server}/{card.card.card} owns {owned}"))
    if len(cards) > 8:
        console.print(f"  and {len(cards) - 8} more cards (--json lists all)")
