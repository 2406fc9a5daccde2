"""The deployment decision for CP-SAT: assignment and sequencing, in small whole ticks.

Sets and names are those of formulations/README.md. Times are domains and constants, never
coefficients: every row's coefficients stay small (law 4).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from formulations.lanes import trimmed, used_lanes
from formulations.ticks import TickScale, horizon_s
from optimizer.errors import TooLargeError
from optimizer.protocols import SelectedInstance, Selection
from optimizer.tables import Candidate, ProblemTables

#: More assignment literals than this and the formulation declines.
MAX_LITERALS = 200_000

#: Largest sum of coefficients in a row (or-tools#5293 goes wrong beyond 2^31).
MAX_COEFFICIENT_SUM = 2**31 - 1


def _lanes(candidate: Candidate, num_sessions: int, *, is_dealt: bool) -> tuple[int, ...]:
    """Return the lanes of an instance that a plan may need, those of the first group first.

    Round robin (`is_dealt`) fills them from the first on. Else groups come in order of their
    sessions, so that group g has at most 1/(g + 1) of all, and no more lanes than that.
    """
    if is_dealt:
        return tuple(range(used_lanes(candidate, num_sessions)))
    per_group = candidate.num_lanes
    return tuple(
        group * per_group + lane
        for group in range(min(candidate.num_groups, num_sessions))
        for lane in range(min(per_group, num_sessions // (group + 1)))
    )


class DeploymentModel:
    """One CP-SAT model: built for a measure and limits, solved, read.

    Queue q is (slot, place); the place indexes `lanes[k]`, whatever kind k the slot is of.
    """

    def __init__(self, tables: ProblemTables, scale: TickScale) -> None:
        self.tables, self.scale = tables, scale
        self.model = cp_model.CpModel()
        slack = tables.num_sessions + len(tables.kinds)  # roundings of one queue
        self.horizon = math.ceil(horizon_s(tables) * scale.per_s) + slack
        self.sessions = range(tables.num_sessions)
        if tables.layouts is None:
            self.slots = range(tables.max_instances)
            self.kinds_at: list[Sequence[int]] = [range(len(tables.kinds)) for _ in self.slots]
        else:
            self.slots = range(max(len(layout.instances) for layout in tables.layouts))
            self.kinds_at = [
                sorted({u.instances[i][0] for u in tables.layouts if i < len(u.instances)})
                for i in self.slots
            ]
        self._check_size([1] * len(tables.kinds))
        self.lanes = [
            _lanes(kind.candidate, tables.num_sessions, is_dealt=tables.is_round_robin)
            for kind in tables.kinds
        ]
        self._check_size([len(lanes) for lanes in self.lanes])
        widths = [max(len(self.lanes[k]) for k in kinds) for kinds in self.kinds_at]
        self.queues = [(i, place) for i in self.slots for place in range(widths[i])]
        self.kinds_on = [
            [k for k in self.kinds_at[i] if place < len(self.lanes[k])] for i, place in self.queues
        ]
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.is_kind: dict[tuple[int, int], Any] = {}
        self.runs: dict[tuple[int, int, int], Any] = {}
        self.on_queue: dict[tuple[int, int], Any] = {}
        self.on_server: dict[tuple[int, int, int], Any] = {}
        self.num_instances: dict[int, Any] = {}
        self.is_layout: list[Any] = []
        self.measures: dict[str, tuple[Any, Fraction]] = {}

    def _check_size(self, num_lanes: Sequence[int]) -> None:
        """Decline a model with too many literals, given the lanes of every kind."""
        tables, sessions = self.tables, len(self.sessions)
        literals = sessions * sum(num_lanes[k] for kinds in self.kinds_at for k in kinds)
        if tables.layouts is None:
            literals += sum(
                tables.pools[kind.candidate.pool_index].num_servers for kind in tables.kinds
            ) * len(self.slots)
        if not tables.is_round_robin:  # define_order
            queues = sum(max(num_lanes[k] for k in kinds) for kinds in self.kinds_at)
            literals += sessions**2 * queues
        if literals > MAX_LITERALS:
            raise TooLargeError(f"{literals} literals; CP-SAT takes {MAX_LITERALS}")

    def queues_of(self, i: int, k: int) -> list[int]:
        """Return the queues of slot i that it has when it is of kind k."""
        return [
            q
            for q, (slot, place) in enumerate(self.queues)
            if slot == i and place < len(self.lanes[k])
        ]

    def groups_of(self, i: int, k: int) -> list[list[int]]:
        """Return the queues of slot i by attention group, when it is of kind k."""
        per_group = self.tables.kinds[k].candidate.num_lanes
        groups: dict[int, list[int]] = defaultdict(list)
        for q, lane in zip(self.queues_of(i, k), self.lanes[k], strict=True):
            groups[lane // per_group].append(q)
        return list(groups.values())

    def coarse_unit(self, num_terms: int) -> int:
        """Return ticks per step, so that a redundant row of times keeps small coefficients."""
        return self.horizon * num_terms // MAX_COEFFICIENT_SUM + 1

    def at(self, seconds: Fraction) -> int:
        """Return a service, release or stall in ticks."""
        return self.scale.at(seconds)


def define_deployment_variables(m: DeploymentModel) -> None:
    """is_kind[i,k], runs[j,q,k], on_queue[j,q], start[j], end[j]."""
    tables, model = m.tables, m.model
    for i in m.slots:
        for k in m.kinds_at[i]:
            m.is_kind[i, k] = model.new_bool_var(f"is_kind[{i},{k}]")
    for j in m.sessions:
        release = m.at(tables.cohorts[tables.dispatch_order[j]].release_s)
        m.start.append(model.new_int_var(release, m.horizon, f"start[{j}]"))
        m.end.append(model.new_int_var(release, m.horizon, f"end[{j}]"))
        for q, kinds in enumerate(m.kinds_on):
            m.on_queue[j, q] = model.new_bool_var(f"on_queue[{j},{q}]")
            for k in kinds:
                m.runs[j, q, k] = model.new_bool_var(f"runs[{j},{q},{k}]")
    if tables.layouts is not None:
        m.is_layout = [model.new_bool_var(f"is_layout[{u}]") for u in range(len(tables.layouts))]
    elif tables.is_round_robin:
        m.num_instances = {n: model.new_bool_var(f"n[{n}]") for n in range(1, len(m.slots) + 1)}


def define_deployment_constraints(m: DeploymentModel) -> None:
    """One function per family, in the order of the README."""
    define_kind_of_slot(m)
    define_assignment(m)
    define_dispatch(m)
    define_sequence(m)
    define_memory(m)
    if m.tables.layouts is None:
        define_placement(m)
    if not m.tables.is_round_robin:
        define_symmetry(m)


def define_kind_of_slot(m: DeploymentModel) -> None:
    """A slot is one kind or unused; under a layout its kind is the layout's."""
    tables, model = m.tables, m.model
    if tables.layouts is not None:
        model.add_exactly_one(m.is_layout)
        for (i, k), literal in m.is_kind.items():
            holders = [
                m.is_layout[u]
                for u, layout in enumerate(tables.layouts)
                if i < len(layout.instances) and layout.instances[i][0] == k
            ]
            model.add(sum(holders) == literal)
        return
    for i in m.slots:
        model.add_at_most_one(m.is_kind[i, k] for k in m.kinds_at[i])
        if i:
            used = [sum(m.is_kind[s, k] for k in m.kinds_at[s]) for s in (i - 1, i)]
            model.add(used[0] >= used[1])
    for n, literal in m.num_instances.items():
        for i in m.slots:
            kinds = [m.is_kind[i, k] for k in m.kinds_at[i]]
            if i < n:
                model.add_bool_or(kinds).only_enforce_if(literal)
            else:
                model.add(sum(kinds) == 0).only_enforce_if(literal)
    if m.num_instances:
        model.add_exactly_one(m.num_instances.values())


def define_assignment(m: DeploymentModel) -> None:
    """Every session runs on one queue, as its slot's kind, for that kind's service time."""
    model, tables = m.model, m.tables
    for j in m.sessions:
        model.add_exactly_one(m.on_queue[j, q] for q in range(len(m.queues)))
        for q, (i, _) in enumerate(m.queues):
            model.add(sum(m.runs[j, q, k] for k in m.kinds_on[q]) == m.on_queue[j, q])
            for k in m.kinds_on[q]:
                model.add_implication(m.runs[j, q, k], m.is_kind[i, k])
    if tables.layouts is None and not tables.is_round_robin:
        for i in m.slots:  # a used slot serves somebody
            mine = [q for q, (slot, _) in enumerate(m.queues) if slot == i]
            served = [m.on_queue[j, q] for j in m.sessions for q in mine]
            for k in m.kinds_at[i]:
                model.add_bool_or(served).only_enforce_if(m.is_kind[i, k])


def define_dispatch(m: DeploymentModel) -> None:
    """Round robin: session j sits on slot j mod n, there on the lanes in turn."""
    if not m.tables.is_round_robin:
        return
    tables, model = m.tables, m.model
    first_of = [m.queues.index((i, 0)) for i in m.slots]
    if tables.layouts is not None:
        counts = [(len(u.instances), m.is_layout[i]) for i, u in enumerate(tables.layouts)]
    else:
        counts = list(m.num_instances.items())
    for u, (n, literal) in enumerate(counts):
        ways = [_ways_to_deal(m, i, literal, u) for i in range(n)]
        for j in m.sessions:
            for if_all, lanes in ways[j % n]:
                q = first_of[j % n] + j // n % lanes
                model.add_bool_and(m.on_queue[j, q]).only_enforce_if(if_all)
                if j >= n * lanes:
                    model.add(m.start[j] >= m.end[j - n * lanes]).only_enforce_if(if_all)


def _ways_to_deal(m: DeploymentModel, i: int, literal: Any, u: int) -> list[tuple[list[Any], int]]:
    """Return (conditions, lanes of slot i) given the literal of a layout or of a number n."""
    if m.tables.layouts is not None:
        return [([literal], len(m.lanes[m.tables.layouts[u].instances[i][0]]))]
    if len({len(m.lanes[k]) for k in m.kinds_at[i]}) == 1:
        return [([literal], len(m.lanes[m.kinds_at[i][0]]))]
    return [([literal, m.is_kind[i, k]], len(m.lanes[k])) for k in m.kinds_at[i]]


def define_sequence(m: DeploymentModel) -> None:
    """Sessions of a queue do not overlap each other nor the stalls of the slot's kind."""
    tables, model = m.tables, m.model
    stalls: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for (i, k), literal in m.is_kind.items():
        for number, (_, until_s) in enumerate(tables.kinds[k].stalls):
            begin, end = m.scale.stall_begin(tables.kinds[k], number), m.at(until_s)
            stalls[i, k].append(
                model.new_optional_fixed_size_interval_var(
                    begin, end - begin, literal, f"stall[{i},{k},{number}]"
                )
            )
    for q, (i, _) in enumerate(m.queues):
        intervals = []
        for k in m.kinds_on[q]:
            intervals += stalls[i, k]
            for j in m.sessions:
                service = m.at(tables.kinds[k].candidate.service_s[tables.dispatch_order[j]])
                intervals.append(
                    model.new_optional_interval_var(
                        m.start[j], service, m.end[j], m.runs[j, q, k], f"run[{j},{q},{k}]"
                    )
                )
        model.add_no_overlap(intervals)
    define_order(m)
    define_least_ends(m)


def define_order(m: DeploymentModel) -> None:
    """Implied: of two sessions on a queue one is first; deciding which fixes all times."""
    if m.tables.is_round_robin:
        return
    for j in m.sessions:
        for later in m.sessions[j + 1 :]:
            if m.tables.dispatch_order[j] == m.tables.dispatch_order[later]:
                continue
            first = m.model.new_bool_var(f"first[{j},{later}]")
            for q in range(len(m.queues)):
                both = [m.on_queue[j, q], m.on_queue[later, q]]
                m.model.add(m.start[later] >= m.end[j]).only_enforce_if(*both, first)
                m.model.add(m.start[j] >= m.end[later]).only_enforce_if(*both, ~first)


def define_least_ends(m: DeploymentModel) -> None:
    """Implied, and it tightens the relaxation: an end is at least release plus service time."""
    pairs = [(q, k) for q, kinds in enumerate(m.kinds_on) for k in kinds]
    unit = m.coarse_unit(len(pairs))
    for j in m.sessions:
        c = m.tables.dispatch_order[j]
        release = m.at(m.tables.cohorts[c].release_s)
        soonest = [(release + m.at(kind.candidate.service_s[c])) // unit for kind in m.tables.kinds]
        least = m.model.new_int_var(0, max(soonest), f"least_end[{j}]")
        m.model.add(least == sum(soonest[k] * m.runs[j, q, k] for q, k in pairs))
        m.model.add(m.end[j] >= unit * least)


def define_memory(m: DeploymentModel) -> None:
    """Bytes held by a group's lanes fit it, in units of the bytes' greatest common divisor."""
    order = m.tables.dispatch_order
    for i, k in m.is_kind:
        for row in m.tables.kinds[k].candidate.memory:
            held = [row.session_bytes[c] for c in order]
            if sum(held) <= row.free_bytes:
                continue
            unit = math.gcd(*held)
            for group, queues in enumerate(m.groups_of(i, k)):
                if sum(held) // unit * len(queues) > MAX_COEFFICIENT_SUM:
                    raise TooLargeError("bytes of all sessions do not fit one CP-SAT row")
                taken = sum(held[j] // unit * m.runs[j, q, k] for j in m.sessions for q in queues)
                m.model.add(taken <= row.free_bytes // unit).with_name(f"memory[{i},{k},{group}]")


def define_placement(m: DeploymentModel) -> None:
    """Blocks of every slot on distinct servers; a server's clean and failing cards suffice."""
    tables, model = m.tables, m.model
    for p, pool in enumerate(tables.pools):
        mine = [(i, k) for i, k in m.is_kind if tables.kinds[k].candidate.pool_index == p]
        for i, k in mine:
            kind = tables.kinds[k]
            for s in range(pool.num_servers):
                m.on_server[i, k, s] = model.new_bool_var(f"on_server[{i},{k},{s}]")
                if tables.faults_on(kind, s):
                    model.add(m.on_server[i, k, s] == m.is_kind[i, k])
            blocks = sum(m.on_server[i, k, s] for s in range(pool.num_servers))
            model.add(blocks == kind.candidate.num_servers * m.is_kind[i, k])
        for s in range(pool.num_servers):
            clean = sum(
                (tables.kinds[k].candidate.cards_per_server - tables.faults_on(tables.kinds[k], s))
                * m.on_server[i, k, s]
                for i, k in mine
            )
            have = pool.server.num_cards - tables.faulted_in(p, s)
            model.add(clean <= have).with_name(f"cards[{p},{s}]")
    for f in range(len(tables.faulted_cards)):
        model.add_at_most_one(
            literal for (_, k), literal in m.is_kind.items() if f in tables.kinds[k].faulted
        )


def define_symmetry(m: DeploymentModel) -> None:
    """Interchangeable slots, groups, lanes and sessions come in order."""
    tables, model = m.tables, m.model
    if tables.layouts is None:
        unused = len(tables.kinds)
        kind_of = [
            unused + sum((k - unused) * m.is_kind[i, k] for k in m.kinds_at[i]) for i in m.slots
        ]
        for a, b in pairwise(kind_of):
            model.add(a <= b)
    for i, k in m.is_kind:
        groups = m.groups_of(i, k)
        for alike in (groups, *([[q] for q in group] for group in groups)):
            served = [sum(m.runs[j, q, k] for j in m.sessions for q in part) for part in alike]
            for a, b in pairwise(served):
                model.add(a >= b)
    for j in m.sessions[1:]:
        if tables.dispatch_order[j] != tables.dispatch_order[j - 1]:
            continue
        queues = range(len(m.queues))
        queue_of = [sum(q * m.on_queue[s, q] for q in queues) for s in (j - 1, j)]
        model.add(queue_of[0] <= queue_of[1])
        for q in queues:
            both = [m.on_queue[j - 1, q], m.on_queue[j, q]]
            model.add(m.start[j] >= m.end[j - 1]).only_enforce_if(both)


def extract(m: DeploymentModel, value: Any) -> Selection:
    """Read a selection; `value` maps a variable to its value."""
    tables = m.tables
    on_queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (j, q), literal in m.on_queue.items():
        if value(literal):
            on_queue[q].append((value(m.start[j]), j))
    chosen: list[SelectedInstance] = []
    for (i, k), literal in m.is_kind.items():
        if not value(literal):
            continue
        servers = None
        if tables.layouts is None:
            pool = tables.pools[tables.kinds[k].candidate.pool_index]
            servers = tuple(s for s in range(pool.num_servers) if value(m.on_server[i, k, s]))
        queues: list[tuple[int, ...]] = [()] * (max(m.lanes[k]) + 1)
        for q, lane in zip(m.queues_of(i, k), m.lanes[k], strict=True):
            queues[lane] = tuple(tables.dispatch_order[j] for _, j in sorted(on_queue[q]))
        chosen.append(SelectedInstance(k, servers, trimmed(queues)))
    layout = next((u for u, literal in enumerate(m.is_layout) if value(literal)), None)
    return Selection(tuple(chosen), layout)
