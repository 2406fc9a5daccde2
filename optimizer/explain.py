"""Why every candidate is or is not the plan, and what would admit it.

Each candidate is deployed alone, as many equal serving instances as fit, and judged by the exact
evaluator. Such plans are also the first incumbents of a solve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from instances.quantity import human_bytes, human_seconds
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.evaluation import MAXIMISED, OBJECTIVE_UNITS, Evaluation
from optimizer.plan import CardId, Plan
from optimizer.protocols import SelectedInstance, Selection
from optimizer.tables import Candidate, Kind, Layout, ProblemTables, Rejection


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """A candidate deployed alone: its plan and what the evaluator says of it."""

    candidate: Candidate
    plan: Plan
    evaluation: Evaluation

    @property
    def short_bytes(self) -> int:
        """Bytes by which the fullest card overflows; 0 when all fit."""
        shortages = [v.amount for v in self.evaluation.violations if v.rule == "memory"]
        return int(max(shortages, default=0))


@dataclass(frozen=True, slots=True)
class Threshold:
    """An input whose `change` admits a rejected candidate; `value` is the new input, if one."""

    input: str
    rejection: Rejection
    change: Fraction | int
    value: Fraction | int | None
    unit: str
    message: str


def _blocks(tables: ProblemTables, candidate: Candidate) -> Iterator[tuple[CardId, ...]]:
    """Yield card sets of equal instances of a candidate, cards that never fail first."""
    pool = tables.pools[candidate.pool_index]
    failing = {
        (f.server, f.card) for f in tables.faulted_cards if f.pool_index == candidate.pool_index
    }
    block, span = candidate.cards_per_server, candidate.num_servers
    cards = {
        s: [c for _, c in sorted(((s, c) in failing, c) for c in range(pool.server.num_cards))]
        for s in range(min(pool.num_servers, tables.num_sessions * span))
    }
    for first in range(0, len(cards) - span + 1, span):
        for start in range(0, pool.server.num_cards - block + 1, block):
            yield tuple(
                CardId(s, c)
                for s in range(first, first + span)
                for c in sorted(cards[s][start : start + block])
            )


class _Lane(NamedTuple):
    """One lane of a serving instance, by number, and its attention group."""

    instance: int
    lane: int
    group: int


def _lanes(kinds: Sequence[Kind], most: int) -> list[_Lane]:
    """Return lanes of all instances, first the first of each group; no more than are needed."""
    found = []
    for i, kind in enumerate(kinds):
        per_group = kind.candidate.num_lanes
        order = ((g, n) for n in range(per_group) for g in range(kind.candidate.num_groups))
        found += [_Lane(i, g * per_group + n, g) for g, n in islice(order, most)]
    return found


def _queue_greedily(tables: ProblemTables, kinds: Sequence[Kind]) -> list[list[list[int]]]:
    """Give each session in dispatch order to the lane with room that ends it first.

    Of equal lanes only the one that is free first can be it, so each kind keeps a heap. Where
    nobody has room the first of all takes it, and the evaluator says by how much it overflows.
    """
    lanes = _lanes(kinds, tables.num_sessions)
    queues: list[list[list[int]]] = [
        [[] for _ in range(k.candidate.num_groups * k.candidate.num_lanes)] for k in kinds
    ]
    held: dict[tuple[int, int], list[int]] = {
        (lane.instance, lane.group): [0] * len(tables.cohorts) for lane in lanes
    }
    free: dict[int, list[tuple[Fraction, int]]] = {}
    for number, lane in enumerate(lanes):
        free.setdefault(kinds[lane.instance].index, []).append((Fraction(0), number))

    def has_room(number: int, cohort: int) -> bool:
        lane = lanes[number]
        counts = list(held[lane.instance, lane.group])
        counts[cohort] += 1
        return kinds[lane.instance].candidate.holds(counts)

    for cohort in tables.dispatch_order:
        firsts = [f for heap in free.values() if (f := _pop_first(heap, has_room, cohort))]
        firsts = firsts or [heappop(heap) for heap in free.values()]
        ends = [
            tables.finish_s(kinds[lanes[number].instance], end, cohort) for end, number in firsts
        ]
        best = min(range(len(firsts)), key=lambda n: (ends[n], firsts[n][1]))
        for n, (end, number) in enumerate(firsts):
            kind = kinds[lanes[number].instance].index
            heappush(free[kind], (ends[n] if n == best else end, number))
        chosen = lanes[firsts[best][1]]
        queues[chosen.instance][chosen.lane].append(cohort)
        held[chosen.instance, chosen.group][cohort] += 1
    return queues


def _pop_first(
    heap: list[tuple[Fraction, int]], has_room: Callable[[int, int], bool], cohort: int
) -> tuple[Fraction, int] | None:
    """Take the lane that is free first and has room for a session of `cohort` from a heap."""
    skipped = []
    found = None
    while heap and found is None:
        entry = heappop(heap)
        if has_room(entry[1], cohort):
            found = entry
        else:
            skipped.append(entry)
    for entry in skipped:
        heappush(heap, entry)
    return found


def _selected(tables: ProblemTables, kinds: Sequence[Kind]) -> list[SelectedInstance]:
    """Select instances of these kinds with their queues; round robin deals its own."""
    none: list[list[list[int]]] = [[]] * len(kinds)
    queues = none if tables.is_round_robin else _queue_greedily(tables, kinds)
    return [
        SelectedInstance(kind.index, None, tuple(map(tuple, lanes)))
        for kind, lanes in zip(kinds, queues, strict=True)
    ]


def _deploy_layout(tables: ProblemTables, index: int, layout: Layout) -> Plan:
    chosen = _selected(tables, [tables.kinds[k] for k, _ in layout.instances])
    return plan_of(tables, Selection(tuple(chosen), index))


def _deploy_alone(tables: ProblemTables, candidate: Candidate) -> Plan:
    """Return a mixed plan of one candidate; instances without sessions are left out."""
    failing = {
        (f.server, f.card): i
        for i, f in enumerate(tables.faulted_cards)
        if f.pool_index == candidate.pool_index
    }
    by_faults = {k.faulted: k for k in tables.kinds if k.candidate.index == candidate.index}
    blocks = list(islice(_blocks(tables, candidate), tables.num_sessions))
    owned = [
        sorted(failing[c.server, c.card] for c in cards if (c.server, c.card) in failing)
        for cards in blocks
    ]
    chosen = _selected(tables, [by_faults[tuple(faults)] for faults in owned])
    used = [
        (instance, cards)
        for instance, cards in zip(chosen, blocks, strict=True)
        if any(instance.queues) or tables.is_round_robin
    ]
    return plan_of(tables, Selection(tuple(i for i, _ in used)), [cards for _, cards in used])


def candidate_reports(tables: ProblemTables) -> Iterator[CandidateReport]:
    """Deploy every priced candidate alone and evaluate it, one after another."""
    if tables.layouts is not None:
        for index, layout in enumerate(tables.layouts):
            plan = _deploy_layout(tables, index, layout)
            first = tables.kinds[layout.instances[0][0]].candidate
            yield CandidateReport(first, plan, evaluate(tables.instance, plan))
        return
    for candidate in tables.candidates:
        plan = _deploy_alone(tables, candidate)
        yield CandidateReport(candidate, plan, evaluate(tables.instance, plan))


def late_by_s(tables: ProblemTables, evaluation: Evaluation) -> Fraction:
    """Seconds that all deadlines must move so that enough sessions of this plan are on time."""
    need = tables.instance.min_on_time_sessions
    late = sorted(
        max(o.finish_s - o.deadline_s, Fraction(0)) if o.deadline_s is not None else Fraction(0)
        for o in evaluation.sessions
        if o.finish_s is not None
    )
    return late[need - 1] if 0 < need <= len(late) else Fraction(0)


def is_used(plan: Plan, candidate: Candidate) -> bool:
    """Whether a plan has a serving instance of this candidate."""
    return any(serving.footprint == candidate.footprint for serving in plan)


def reject_loser(
    tables: ProblemTables, report: CandidateReport, best: Evaluation | None
) -> Rejection:
    """Say why a candidate deployed alone is not the plan: memory, lateness, or the objective."""
    candidate, evaluation = report.candidate, report.evaluation
    place = candidate.footprint
    if report.short_bytes:
        short, fullest = report.short_bytes, max(evaluation.cards, key=lambda c: c.total_bytes)
        text = (
            f"a card needs {human_bytes(fullest.total_bytes)} of its "
            f"{human_bytes(fullest.capacity_bytes)}: {human_bytes(short)} ({short} B) short"
        )
        return Rejection(place, "memory", short, "B", text)
    late = late_by_s(tables, evaluation)
    if late:
        need, have = tables.instance.min_on_time_sessions, evaluation.num_on_time
        text = (
            f"late by {human_seconds(late)}: {have} of {len(evaluation.sessions)} on time, "
            f"{need} must be"
        )
        return Rejection(place, "late", late, "s", text)
    over = next((v for v in evaluation.violations if v.rule == "budget"), None)
    if over is not None:
        return Rejection(place, over.rule, over.amount, over.unit, over.message)
    name = tables.instance.objective.names[0]
    unit, mine = OBJECTIVE_UNITS[name], evaluation.objective(name)
    chosen = None if best is None else best.objective(name)
    if mine is None or chosen is None:
        return Rejection(place, "unproven", 0, unit, "no plan was found to compare with")
    text = f"{name} {abs(float(mine)):.4g} {unit}, "
    more = "less" if name in MAXIMISED else "more"
    text += f"{float(mine - chosen):.4g} {more} than the plan" if mine > chosen else "no better"
    return Rejection(place, "objective", mine - chosen, unit, text)


def rejections(
    tables: ProblemTables,
    reports: Sequence[CandidateReport],
    plan: Plan | None,
    best: Evaluation | None,
) -> list[Rejection]:
    """Return a reason for every candidate that the plan does not use."""
    lost = [
        reject_loser(tables, report, best)
        for report in reports
        if plan is None or not is_used(plan, report.candidate)
    ]
    return [*tables.rejections, *lost]


def _connection_threshold(tables: ProblemTables, r: Rejection) -> Threshold | None:
    """Return what a NIC must hold, or how long set-up may take, for more servers; else None."""
    pool = next(pool for pool in tables.pools if pool.name == r.footprint.pool)
    spec, label = pool.connections, r.footprint.label()
    if spec is None:
        return None
    if r.rule == "connection_state" and spec.cache_bytes is not None:
        room = spec.cache_bytes + r.amount
        text = f"{label} fits once each NIC holds {r.amount:,} B more, {room:,} B"
        return Threshold("cache_bytes", r, r.amount, room, "B", text)
    if r.rule == "connection_setup" and spec.max_setup_s is not None:
        more_s, most_s = Fraction(r.amount), spec.max_setup_s + r.amount
        text = f"{label} is connected in time once max_setup_s moves by {human_seconds(more_s)}"
        text += f", to {human_seconds(most_s)}"
        return Threshold("max_setup_s", r, more_s, most_s, "s", text)
    return None


def thresholds(tables: ProblemTables, rejected: Sequence[Rejection]) -> list[Threshold]:
    """Return what admits each candidate that is late, does not fit, or spans too many servers."""
    deadlines = {c.deadline_s for c in tables.cohorts if c.deadline_s is not None}
    found: list[Threshold] = []
    for r in rejected:
        label = r.footprint.label()
        if r.rule == "late":
            value = next(iter(deadlines)) + r.amount if len(deadlines) == 1 else None
            moved = "every deadline" if value is None else "the deadline"
            text = f"{label} is on time once {moved} moves by {human_seconds(Fraction(r.amount))}"
            if value is not None:
                text += f", to {human_seconds(value)}"
            found.append(Threshold("deadline_s", r, r.amount, value, "s", text))
        elif r.rule == "memory":
            text = f"{label} fits once each card has {human_bytes(int(r.amount))} more"
            found.append(Threshold("memory_bytes", r, r.amount, None, "B", text))
        else:
            connected = _connection_threshold(tables, r)
            found += [] if connected is None else [connected]
    return found
