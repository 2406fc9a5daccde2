"""Readable reports of results and verifications."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from instances.quantity import human_bytes
from optimizer.plan_document import document_label
from optimizer.result import (
    AlternativesDocument,
    CandidateDocument,
    EvaluationDocument,
    ObjectiveDocument,
    ResultDocument,
)
from optimizer.words import (
    LIMITS,
    card_ranges,
    number,
    rejections_by_key,
    span_text,
    verdict,
)

if TYPE_CHECKING:
    from instances.instance import Instance
    from optimizer.incumbent import Incumbent
    from optimizer.side.result import SideResultDocument
    from optimizer.verify import Verification

#: Sessions and cards shown before a report says "and n more".
MAX_ROWS = 24

#: Width of a report in a pipe, and the least width on a terminal.
MIN_WIDTH = 132


class ReportConsole(Console):
    """A console that leaves a closed pipe to the command line, which knows the exit code."""

    def on_broken_pipe(self) -> None:
        """Raise what rich would turn into exit code 1."""
        raise BrokenPipeError


def report_console() -> Console:
    """Return a console wide enough for tables, also in a pipe."""
    console = ReportConsole(highlight=False, soft_wrap=False)
    if console.is_terminal and console.width >= MIN_WIDTH:
        return console
    return ReportConsole(highlight=False, width=MIN_WIDTH)  # a narrow table would lose its figures


def progress_text(problem: Instance, best: Incumbent) -> str:
    """Return the line shown while solving."""
    name = problem.objective.names[0]
    if best.plan is None or best.values is None:
        return f"solving {problem.name}"
    plan = best.plan.sentence(problem.fleet.num_cards)
    return escape(f"solving {problem.name}: {name} {abs(float(best.values[0])):.4g}, {plan}")


def render_result(problem: Instance, result: ResultDocument) -> None:
    """Print a result: the plan, its proof, candidates, sessions, cards and thresholds."""
    console = report_console()
    console.print(f"[bold]{escape(problem.name)}[/bold]: {headline(result)}")
    if result.plan is not None:
        console.print(f"plan       [bold]{escape(result.plan.sentence)}[/bold]")
        for objective in (result.objective, *result.then):
            console.print(f"objective  {objective_line(objective)}")
    if result.reason:
        console.print(f"reason     {escape(result.reason)}")
    console.print(f"proof      {escape(proof_line(result))}")
    _print_candidates(console, result)
    if result.near_optimal is not None:
        _print_near_optimal(console, result.near_optimal)
    if result.evaluation is not None:
        _print_sessions(console, result.evaluation)
        _print_cards(console, result.evaluation)
    if result.thresholds:
        console.print("\n[bold]What would admit a rejected candidate[/bold]")
        for threshold in result.thresholds:
            console.print(f"  {escape(threshold.message)}")
    if result.termination == "infeasible":
        name = escape(shlex.quote(name_as_given(problem)))
        text = f"supernode explain {name} says which constraints conflict and what would help"
        console.print(f"\n{text}", soft_wrap=True)


def name_as_given(problem: Instance) -> str:
    """Return what the command was given as INSTANCE; its own name where no command runs."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.params.get("instance")
    return str(given or problem.name)


def headline(result: ResultDocument | SideResultDocument) -> str:
    """Return how a solve ended, in a few words."""
    words = {
        "optimal": "[green]optimal[/green], verified",
        "feasible": "[yellow]feasible[/yellow], verified, not proven optimal",
        "infeasible": "[red]infeasible[/red], proven",
        "no_solution_found": "[red]no plan found[/red]",
    }
    text = words[result.termination] + f" in {result.seconds:.2f} s"
    return text + (f" ({LIMITS[result.limit]})" if result.limit else "")


def objective_line(objective: ObjectiveDocument) -> str:
    """Return an objective with its bound and gap."""
    text = f"{objective.name} = {number(objective.verified, objective.unit)}"
    if objective.bound is None:
        return f"{text}, no bound"
    gap = "unknown" if objective.gap is None else f"{objective.gap:.4%}" if objective.gap else "0"
    return f"{text}, bound {number(objective.bound, objective.unit)}, gap {gap}"


def proof_line(result: ResultDocument | SideResultDocument) -> str:
    """Return who proved a result and who checked the proof."""
    certificate, opinion = result.certificate, result.certificate.second_opinion
    solver = certificate.solver_version or "no solver was needed"
    if result.termination not in ("optimal", "infeasible"):
        return f"{solver}; none"
    return f"{solver}; second opinion: {opinion.method} ({opinion.detail})"


def _print_candidates(console: Console, result: ResultDocument) -> None:
    runnable = [c for c in result.candidates if c.instances is not None]
    pools = {c.pool for c in result.candidates}
    if runnable:
        title = "Candidates, each deployed alone"
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        columns = ["candidate", "instances", "GB/card", "session", "all done", "on time"]
        for name in columns:
            table.add_column(name, justify="left" if name == "candidate" else "right", no_wrap=True)
        unit = result.objective.unit
        heading = result.objective.name if unit == "s" else unit.replace("*", "·")
        table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        lost = rejections_by_key(result)
        for c in _most_telling(runnable, result.objective.direction == "maximise"):
            value = number(c.value, "s" if unit == "s" else "")
            why = escape(verdict(c, result, lost))
            why = f"[bold]{why}[/bold]" if c.verdict == "chosen" else why
            table.add_row(*_candidate_row(c, value, why, len(pools) > 1))
        console.print()
        console.print(table)
        if len(runnable) > MAX_ROWS:
            console.print(f"  and {len(runnable) - MAX_ROWS} more (--json lists all)")
    left_out = [c for c in result.candidates if c.instances is None]
    unmeasured = sum(c.rule == "no_measurement" for c in left_out)
    left_out = [c for c in left_out if c.rule != "no_measurement"]
    if left_out:
        console.print("\n[bold]Not usable[/bold]")
        for c in left_out[:MAX_ROWS]:
            where = f" in {c.pool}" if len(pools) > 1 else ""
            name = document_label(c)
            reason = c.reason.removeprefix(f"{name}: ")
            console.print(f"  {escape(name + where)}: {escape(reason)}")
        if len(left_out) > MAX_ROWS:
            console.print(f"  and {len(left_out) - MAX_ROWS} more (--json lists all)")
    if unmeasured:
        console.print(f"  {unmeasured} more with a measured AllReduce that nobody has measured")


def _print_near_optimal(console: Console, near: AlternativesDocument) -> None:
    """Print every plan within the margin, and those that the measurements cannot tell apart."""
    whole = "all there are" if near.is_complete else f"there may be more: {near.reason}"
    console.print(
        f"\n[bold]Plans within {near.within * 100:.6g} % of the best[/bold] ({escape(whole)})"
    )
    table = Table(box=None)
    for name in ("plan", near.objective, "over", "measured spread", ""):
        table.add_column(name, justify="left" if name in ("plan", "") else "right", no_wrap=True)
    for item in near.alternatives:
        ends = [number(end, near.unit) for end in (item.low, item.high)]
        spread = "" if item.low is None and item.high is None else " – ".join(ends)
        mark = "inside the spread of the best" if item.inside_spread else ""
        value = number(item.value, near.unit)
        table.add_row(escape(item.sentence), value, f"{item.over:.2%}", spread, mark)
    console.print(table)


def _most_telling(
    candidates: list[CandidateDocument], is_maximised: bool
) -> list[CandidateDocument]:
    """Return the candidates to show: all if few, else the chosen and the best of the others."""
    if len(candidates) <= MAX_ROWS:
        return candidates
    sign = -1 if is_maximised else 1

    def order(candidate: CandidateDocument) -> tuple[bool, bool, float]:
        value = candidate.value
        return candidate.verdict != "chosen", value is None, sign * (value or 0)

    kept = sorted(candidates, key=order)[:MAX_ROWS]
    return [candidate for candidate in candidates if candidate in kept]


def _candidate_row(c: CandidateDocument, value: str, why: str, with_pool: bool) -> list[str]:
    return [
        escape(document_label(c) + (f" in {c.pool}" if with_pool else "")),
        str(c.instances),
        "—" if c.card_bytes is None else f"{c.card_bytes / 1e9:.2f}",
        span_text(c.session_s or ()),
        number(c.makespan_s, "s"),
        str(c.num_on_time),
        value,
        why,
    ]


def _print_sessions(console: Console, evaluation: EvaluationDocument) -> None:
    console.print(
        f"\n[bold]Sessions[/bold]: {evaluation.num_on_time} of {len(evaluation.sessions)} on time; "
        f"KV per token {evaluation.kv_bytes_per_token:,} B"
    )
    for s in evaluation.sessions[:MAX_ROWS]:
        deadline = "" if s.deadline_s is None else f", deadline {number(s.deadline_s, 's')}"
        late = "" if s.on_time else " [red]late[/red]"
        again = f", restarted {s.restarts}×" if s.restarts else ""
        where = "no instance" if s.instance is None else f"instance {s.instance}"
        console.print(
            f"  {escape(s.session)}: {where}, ends {number(s.finish_s, 's')}{deadline}{again}{late}"
        )
    if len(evaluation.sessions) > MAX_ROWS:
        console.print(f"  and {len(evaluation.sessions) - MAX_ROWS} more (--json lists all)")


def _print_cards(console: Console, evaluation: EvaluationDocument) -> None:
    console.print("\n[bold]Cards[/bold]")
    lines: dict[str, list[tuple[str, int]]] = {}
    for c in evaluation.cards:
        text = (
            f"{human_bytes(c.total_bytes)} of {human_bytes(c.capacity_bytes)} "
            f"(weights {human_bytes(c.weights_bytes)}, KV {human_bytes(c.kv_bytes)}, "
            f"workspace {human_bytes(c.workspace_bytes)})"
        )
        lines.setdefault(text, []).append((f"{c.pool}/{c.server}", c.card))
    for text, cards in list(lines.items())[:MAX_ROWS]:
        console.print(f"  {escape(card_ranges(cards))}: {escape(text)}")
    if len(lines) > MAX_ROWS:
        console.print(f"  and {len(lines) - MAX_ROWS} more loads (--json lists all)")


def render_verification(problem: Instance, verification: Verification) -> None:
    """Print a verification: the plan's exact values, violations and false claims."""
    from optimizer.evaluation import OBJECTIVE_UNITS
    from optimizer.plan_document import evaluation_document

    console, evaluation = report_console(), verification.evaluation
    verdict = "[green]holds[/green]" if verification.holds else "[red]does not hold[/red]"
    console.print(f"[bold]{escape(problem.name)}[/bold]: the plan {verdict}")
    console.print(f"plan       {escape(verification.plan.sentence(problem.fleet.num_cards))}")
    for name, value in verification.values.items():
        shown = number(None if value is None else float(value), OBJECTIVE_UNITS[name])
        console.print(f"objective  {name} = {shown}" + (f" = {value}" if value is not None else ""))
    document = evaluation_document(problem, evaluation)
    _print_sessions(console, document)
    _print_cards(console, document)
    if evaluation.violations:
        console.print(f"\n[bold]{len(evaluation.violations)} violation(s)[/bold]")
        for v in evaluation.violations:
            console.print(f"  {escape(v.rule)} at {escape(v.where)}: {escape(v.message)}")
    for line in verification.mismatches:
        console.print(f"[red]claim[/red]  {escape(line)}")


def verification_json(problem: Instance, verification: Verification) -> str:
    """Return a verification as JSON."""
    from optimizer.plan_document import as_text, evaluation_document

    document = {
        "holds": verification.holds,
        "objectives": {name: as_text(value) for name, value in verification.values.items()},
        "mismatches": list(verification.mismatches),
        "evaluation": evaluation_document(problem, verification.evaluation).model_dump(mode="json"),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
