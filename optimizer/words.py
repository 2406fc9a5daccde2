"""Numbers, outcomes and verdicts in words, the same on a page, in Markdown and on a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from instances.errors import InputError
from instances.quantity import human_bytes, human_seconds
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.result import (
    CandidateDocument,
    ObjectiveDocument,
    RejectionDocument,
    ResultDocument,
)
from optimizer.side.result import SideResultDocument
from optimizer.variants.fields import UNITS, dimension_of, parse_path

#: How a solve can end, in words.
ENDINGS = {
    "optimal": "Optimal, proven",
    "feasible": "Verified, not proven optimal",
    "infeasible": "Proven infeasible",
    "no_solution_found": "No plan found",
    "failed": "Failed",
}

#: What exchanges are called.
OPERATION_NAMES = {
    "all_reduce": "AllReduce",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "All-to-All",
    "send": "Send",
}

#: What cut a solve short, in words.
LIMITS = {
    "time": "time limit reached",
    "interrupted": "interrupted",
    "size": "too large for the solvers asked",
    "second_opinion": "a solver claims the optimum, but no second opinion was had in time",
}

#: Units at the end of a field's name, which stand beside its values already.
_ENDS = ("_bytes_per_s", "_flops_per_s", "_bytes", "_fraction", "_s")

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Return a number with four significant digits, thousands apart, never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = 3 - math.floor(math.log10(abs(value)))
    if places < 0 or places > 15:
        return f"{value:,.0f}" if places < 0 else f"{value:.4g}"
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def number(value: float | None, unit: str = "") -> str:
    """Return a value with four significant digits and its unit; a dash where there is none."""
    if value is None:
        return "—"
    if unit == "s":
        return human_seconds(Fraction(value))
    if unit == "B":
        return human_bytes(round(value))
    if unit in ("tokens", "sessions", "servers", "racks"):
        whole = float(value).is_integer() or unit == "tokens"
        noun = unit.removesuffix("s") if value == 1 and unit in ("servers", "racks") else unit
        return f"{value:,.0f} {noun}" if whole else f"{digits(value)} {noun}"
    if unit == "cards":
        return f"{value:g} card" if value == 1 else f"{value:g} cards"
    if unit in ("B/s", "FLOP/s", "W", "J"):
        scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= 10 * s), (1.0, ""))
        return f"{digits(value / scale)} {prefix}{unit}"
    return f"{digits(value)} {unit_text(unit)}".strip()


def change(value: float | None, unit: str = "") -> str:
    """Return a change with its sign: "+0.01 card·s", "−0.02 card·s"."""
    if value is None:
        return "—"
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return sign + number(abs(value), unit)


def percent(value: float) -> str:
    """Return a share as a percentage with at most four significant digits."""
    return f"{digits(value * 100)} %"


def unit_text(unit: str) -> str:
    """Return a unit as it is printed: "card·s" for "card*s"."""
    return unit.replace("*", "·")


def name_text(name: str) -> str:
    """Return an objective or a field in words, without its unit; a longer path as it is."""
    if "." in name:
        return name
    bare = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
    return bare.replace("_", " ").replace("on time", "on-time")


def field_unit(name: str) -> str:
    """Return the SI unit of an objective or of a swept field; empty for plain numbers."""
    if name in OBJECTIVE_UNITS:
        return OBJECTIVE_UNITS[name]
    try:
        path = parse_path(name, "field")
    except InputError:
        return ""
    return UNITS.get(dimension_of(path, 0.0) or "number", "")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 session", "4 sessions"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ending(result: ResultDocument | SideResultDocument) -> str:
    """Return how a solve ended, and what cut it short."""
    text = ENDINGS[result.termination]
    return f"{text} ({LIMITS[result.limit]})" if result.limit else text


def objective_value(objective: ObjectiveDocument) -> str:
    """Return an objective's verified value with its unit."""
    return number(objective.verified, objective.unit)


def objective_proof(objective: ObjectiveDocument) -> str:
    """Return an objective with its bound and gap."""
    text = f"{name_text(objective.name)} = {objective_value(objective)}"
    if objective.bound is None:
        return f"{text}, no bound"
    gap = "unknown" if objective.gap is None else percent(objective.gap) if objective.gap else "0"
    return f"{text}, bound {number(objective.bound, objective.unit)}, gap {gap}"


def opinion_text(result: ResultDocument | SideResultDocument) -> str:
    """Return who checked a proof besides the solver, and what came of it."""
    opinion = result.certificate.second_opinion
    agrees = {True: "agrees", False: "disagrees", None: "could not tell"}[opinion.agrees]
    return f"{opinion.method} {agrees}: {opinion.detail}" if opinion.detail else opinion.method


#: What tells candidates of a result apart.
CandidateKey = tuple[object, ...]


def candidate_key(document: CandidateDocument | RejectionDocument) -> CandidateKey:
    """Return what a candidate and its rejection have in common and nothing else has."""
    return (
        document.pool,
        document.parallel,
        tuple(document.stages),
        document.batch,
        document.micro_batches,
        document.num_servers,
        document.collective,
    )


def rejections_by_key(result: ResultDocument) -> dict[CandidateKey, RejectionDocument]:
    """Return the first rejection of each candidate."""
    found: dict[CandidateKey, RejectionDocument] = {}
    for rejection in result.rejected:
        found.setdefault(candidate_key(rejection), rejection)
    return found


def verdict(
    candidate: CandidateDocument,
    result: ResultDocument,
    rejections: Mapping[CandidateKey, RejectionDocument],
) -> str:
    """Return why a candidate is the plan or is not, in a few words."""
    if candidate.verdict == "chosen":
        return "chosen"
    found = rejections.get(candidate_key(candidate))
    amount = 0.0 if found is None else found.amount
    if candidate.rule == "memory":
        return f"short by {human_bytes(int(amount))} a card"
    if candidate.rule == "late":
        return f"late by {number(amount, 's')}"
    if candidate.rule == "objective" and amount > 0:
        if result.objective.direction == "maximise":
            return f"{amount:,.0f} fewer"
        return f"{number(amount, result.objective.unit)} more"
    return "no better" if candidate.rule == "objective" else candidate.reason


def span_text(seconds: Sequence[float]) -> str:
    """Return the shortest and the longest of some times: "119.1 ms" or "1 ms – 2 ms"."""
    if not seconds:
        return "—"
    ends = dict.fromkeys((number(min(seconds), "s"), number(max(seconds), "s")))
    return " – ".join(ends)


def lateness(finish_s: float | None, deadline_s: float | None, *, on_time: bool) -> str:
    """Return whether a session is on time, in words: "on time", "late by 49.11 ms"."""
    if on_time:
        return "on time"
    if finish_s is None or deadline_s is None:
        return "never ends" if finish_s is None else "late"
    return f"late by {number(finish_s - deadline_s, 's')}"


def card_ranges(cards: Sequence[tuple[str, int]], most: int = 8) -> str:
    """Return cards as "pool/server/0-3, pool/server/6", at most `most` ranges."""
    ranges: list[tuple[str, int, int]] = []
    for server, card in sorted(cards):
        if ranges and ranges[-1][0] == server and ranges[-1][2] == card - 1:
            ranges[-1] = (server, ranges[-1][1], card)
        else:
            ranges.append((server, card, card))
    shown = [f"{s}/{a}" if a == b else f"{s}/{a}-{b}" for s, a, b in ranges]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
