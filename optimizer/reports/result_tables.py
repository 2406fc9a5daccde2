"""Tables and facts of a result: candidates, sessions, cards, thresholds, the proof."""

from __future__ import annotations

from collections.abc import Sequence

from instances.quantity import human_bytes
from optimizer.plan_document import document_label
from optimizer.reports.memory import Stacks
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
from optimizer.result import CandidateDocument, ResultDocument, SessionDocument, ViolationDocument
from optimizer.side.result import SideResultDocument
from optimizer.words import (
    ending,
    lateness,
    name_text,
    number,
    objective_proof,
    objective_value,
    opinion_text,
    plural,
    rejections_by_key,
    span_text,
    verdict,
)

Facts = tuple[tuple[str, str], ...]


def key_figures(result: ResultDocument) -> Facts:
    """Return what a reader looks for first: objectives, sessions on time, cards, times, energy."""
    facts = [
        (name_text(o.name), objective_value(o))
        for o in (result.objective, *result.then)
        if o.verified is not None
    ]
    found = result.evaluation
    if found is None:
        return tuple(facts)
    facts.append(("sessions on time", f"{found.num_on_time:,} of {len(found.sessions):,}"))
    if found.cards:
        fullest = max(found.cards, key=lambda card: card.total_bytes - card.capacity_bytes)
        of = f"{human_bytes(fullest.total_bytes)} of {human_bytes(fullest.capacity_bytes)}"
        facts.append(("fullest card", of))
    names = {o.name for o in (result.objective, *result.then)}
    others = (
        ("makespan", "last session ends", found.makespan_s, "s"),
        ("energy", "energy", found.energy_j, "J"),
    )
    facts += [
        (label, number(value, unit))
        for name, label, value, unit in others
        if value is not None and name not in names
    ]
    return tuple(facts)


def proof_facts(result: ResultDocument | SideResultDocument) -> Facts:
    """Return what proves a result, and what another program needs to check it."""
    certificate = result.certificate
    further = result.then if isinstance(result, ResultDocument) else []
    facts = [("outcome", ending(result))]
    if result.reason:
        facts.append(("reason", result.reason))
    for objective in (result.objective, *further):
        if objective.verified is not None or objective.bound is not None:
            facts.append(("objective", objective_proof(objective)))
            if objective.verified_exact and "/" in objective.verified_exact:
                facts.append(("exact value", objective.verified_exact))
    facts.append(("solver", certificate.solver_version or "no solver was needed"))
    facts.append(("second opinion", opinion_text(result)))
    facts.append(("instance SHA-256", certificate.instance_sha256))
    if certificate.plan_sha256:
        facts.append(("plan SHA-256", certificate.plan_sha256))
    threads = plural(certificate.threads, "thread") if certificate.threads else "all processors"
    facts.append(
        ("solved", f"in {number(result.seconds, 's')}, {threads}, seed {certificate.seed}")
    )
    versions = ", ".join(f"{name} {v}" for name, v in sorted(certificate.versions.items()))
    if versions:
        facts.append(("versions", versions))
    return tuple(facts)


def candidate_tables(result: ResultDocument) -> list[Table]:
    """Return the candidates that can be deployed, the best first, and those that cannot."""
    rejections = rejections_by_key(result)
    several = len({c.pool for c in result.candidates}) > 1
    runnable = [c for c in result.candidates if c.instances is not None]
    left_out = [c for c in result.candidates if c.instances is None]
    tables = []
    if runnable:
        sign = -1 if result.objective.direction == "maximise" else 1

        def order(c: CandidateDocument) -> tuple[bool, bool, float]:
            return c.verdict != "chosen", c.value is None, sign * (c.value or 0.0)

        columns = ["candidate", "pool", "verdict", f">{name_text(result.objective.name)}"]
        columns += [">instances", ">bytes a card", ">session", ">all done", ">on time"]
        rows = [
            _candidate_row(c, result, several, verdict(c, result, rejections))
            for c in sorted(runnable, key=order)
        ]
        title = "Candidates, each deployed alone"
        tables.append(make_table("candidates", title, columns, rows))
    if left_out:
        rows = [
            (
                text_cell(document_label(c)),
                text_cell(c.pool if several else ""),
                text_cell((c.rule or "").replace("_", " ")),
                text_cell(c.reason.removeprefix(f"{document_label(c)}: ")),
            )
            for c in left_out
        ]
        columns = ["candidate", "pool", "rule", "why not"]
        tables.append(make_table("not-usable", "Not usable", columns, rows))
    return tables


def _candidate_row(
    c: CandidateDocument, result: ResultDocument, with_pool: bool, text: str
) -> tuple[Cell, ...]:
    sessions = c.session_s or []
    is_chosen = c.verdict == "chosen"
    return (
        text_cell(document_label(c), is_strong=is_chosen),
        text_cell(c.pool if with_pool else ""),
        text_cell(text, is_strong=is_chosen),
        number_cell(c.value, result.objective.unit),
        count_cell(c.instances),
        bytes_cell(c.card_bytes),
        Cell(span_text(sessions), max(sessions, default=None)),
        number_cell(c.makespan_s, "s"),
        count_cell(c.num_on_time),
    )


def session_table(result: ResultDocument) -> Table | None:
    """Return the sessions, the late ones first where there are too many to show."""
    if result.evaluation is None or not result.evaluation.sessions:
        return None
    sessions = list(result.evaluation.sessions)
    if len(sessions) > MAX_ACCOUNT_ROWS:
        sessions.sort(key=lambda s: (s.on_time, not s.restarts))
    found = result.evaluation
    title = f"Sessions: {found.num_on_time:,} of {len(sessions):,} on time"
    columns = ["session", ">instance", ">start", ">end", ">deadline", ">restarts", "outcome"]
    return make_table(
        "sessions", title, columns, map(_session_row, sessions), most=MAX_ACCOUNT_ROWS
    )


def _session_row(s: SessionDocument) -> tuple[Cell, ...]:
    return (
        text_cell(s.session),
        count_cell(s.instance),
        number_cell(s.start_s, "s"),
        number_cell(s.finish_s, "s"),
        number_cell(s.deadline_s, "s"),
        Cell("", 0) if not s.restarts else count_cell(s.restarts),
        text_cell(lateness(s.finish_s, s.deadline_s, on_time=s.on_time), is_strong=not s.on_time),
    )


def memory_table(stacks: Stacks) -> Table:
    """Return the bytes of a memory chart's bars."""
    rows = [
        (
            text_cell(s.name),
            text_cell(s.kind),
            count_cell(s.num_cards) if s.num_cards > 1 else Cell("", 1),
            bytes_cell(s.weights_bytes),
            bytes_cell(s.kv_bytes),
            bytes_cell(s.workspace_bytes),
            bytes_cell(s.total_bytes),
            bytes_cell(s.capacity_bytes),
            text_cell(s.verdict, is_strong=s.total_bytes > s.capacity_bytes),
        )
        for s in stacks.shown
    ]
    columns = ["card", "of", ">cards", ">weights", ">KV cache", f">{stacks.workspace_name}"]
    columns += [">total", ">capacity", "verdict"]
    title = stacks.title.partition(":")[0]
    table = make_table("memory", title, columns, rows)
    return Table(table.name, table.title, table.columns, table.rows, stacks.num_more)


def threshold_table(result: ResultDocument) -> Table | None:
    """Return what would admit a rejected candidate, the smallest change of each input first."""
    if not result.thresholds:
        return None
    found = sorted(result.thresholds, key=lambda t: (t.input, abs(t.change)))
    inputs = {"deadline_s": "deadline", "memory_bytes": "memory of a card"}
    rows = [
        (
            text_cell(inputs[t.input]),
            Cell(f"+{number(t.change, t.unit)}", t.change),
            number_cell(t.value, t.unit),
            text_cell(t.message),
        )
        for t in found
    ]
    columns = ["input", ">change", ">then", "what it admits"]
    title = "What would admit a rejected candidate"
    return make_table("thresholds", title, columns, rows)


def violation_table(violations: Sequence[ViolationDocument]) -> Table | None:
    """Return the rules that a plan breaks; None where it breaks none."""
    if not violations:
        return None
    rows = [
        (
            text_cell(v.rule.replace("_", " "), is_strong=True),
            text_cell(v.where),
            number_cell(v.amount, v.unit),
            text_cell(v.message),
        )
        for v in violations
    ]
    return make_table("violations", "Broken rules", ["rule", "where", ">amount", "message"], rows)


def overview_table(results: Sequence[ResultDocument]) -> Table:
    """Return one row for each of several results, to compare them."""
    names = {name_text(result.objective.name) for result in results}
    rows = []
    for result in results:
        found, objective = result.evaluation, result.objective
        on_time = None if found is None else f"{found.num_on_time} of {len(found.sessions)}"
        value = objective_value(objective)
        if len(names) > 1 and objective.verified is not None:
            value = f"{name_text(objective.name)} {value}"
        rows.append(
            (
                text_cell(result.instance),
                text_cell(ending(result)),
                text_cell(result.plan.sentence if result.plan else result.reason),
                Cell(value, objective.verified),
                Cell(on_time or "—", None if found is None else found.num_on_time),
            )
        )
    heading = names.pop() if len(names) == 1 else "objective"
    columns = ["instance", "outcome", "plan", f">{heading}", ">on time"]
    return make_table("overview", "Results at a glance", columns, rows)
