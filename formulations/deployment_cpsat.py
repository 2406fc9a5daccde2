"""The deployment decision for CP-SAT: assignment and sequencing, in small whole ticks.

Sets and names are those of formulations/README.md. Times are domains and constants, never
coefficients: every row's coefficients stay small (law 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from formulations.ticks import TickScale, horizon_s
from optimizer.errors import TooLargeError
from optimizer.protocols import SelectedInstance, Selection
from optimizer.tables import ProblemTables

#: More assignment literals than this and the formulation declines.
MAX_LITERALS = 200_000

#: Largest sum of coefficients in a row (or-tools#5293 goes wrong beyond 2^31).
MAX_COEFFICIENT_SUM = 2**31 - 1


class DeploymentModel:
    """One CP-SAT model: built for a measure and limits, solved, read."""

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
        literals = len(self.sessions) * sum(len(kinds) for kinds in self.kinds_at)
        if tables.layouts is None:
            literals += sum(
                tables.pools[kind.candidate.pool_index].num_servers for kind in tables.kinds
            ) * len(self.slots)
        if not tables.is_round_robin:
            literals += len(self.sessions) ** 2 * len(self.slots)  # define_order
        if literals > MAX_LITERALS:
            raise TooLargeError(f"{literals} literals; CP-SAT takes {MAX_LITERALS}")
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.is_kind: dict[tuple[int, int], Any] = {}
        self.runs: dict[tuple[int, int, int], Any] = {}
        self.on_slot: dict[tuple[int, int], Any] = {}
        self.on_server: dict[tuple[int, int, int], Any] = {}
        self.num_instances: dict[int, Any] = {}
        self.is_layout: list[Any] = []
        self.measures: dict[str, tuple[Any, Fraction]] = {}

    def coarse_unit(self, num_terms: int) -> int:
        """Return ticks per step, so that a redundant row of times keeps small coefficients."""
        return self.horizon * num_terms // MAX_COEFFICIENT_SUM + 1

    def at(self, seconds: Fraction) -> int:
        """Return a service, release or stall in ticks."""
        return self.scale.at(seconds)


def define_deployment_variables(m: DeploymentModel) -> None:
    """is_kind[i,k], runs[j,i,k], on_slot[j,i], start[j], end[j]."""
    tables, model = m.tables, m.model
    for i in m.slots:
        for k in m.kinds_at[i]:
            m.is_kind[i, k] = model.new_bool_var(f"is_kind[{i},{k}]")
    for j in m.sessions:
        release = m.at(tables.cohorts[tables.dispatch_order[j]].release_s)
        m.start.append(model.new_int_var(release, m.horizon, f"start[{j}]"))
        m.end.append(model.new_int_var(release, m.horizon, f"end[{j}]"))
        for i in m.slots:
            m.on_slot[j, i] = model.new_bool_var(f"on_slot[{j},{i}]")
            for k in m.kinds_at[i]:
                m.runs[j, i, k] = model.new_bool_var(f"runs[{j},{i},{k}]")
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
    """Every session runs on one slot, as that slot's kind, for that kind's service time."""
    model, tables = m.model, m.tables
    for j in m.sessions:
        model.add_exactly_one(m.on_slot[j, i] for i in m.slots)
        for i in m.slots:
            model.add(sum(m.runs[j, i, k] for k in m.kinds_at[i]) == m.on_slot[j, i])
            for k in m.kinds_at[i]:
                model.add_implication(m.runs[j, i, k], m.is_kind[i, k])
    if tables.layouts is None and not tables.is_round_robin:
        for i in m.slots:  # a used slot serves somebody
            served = [m.on_slot[j, i] for j in m.sessions]
            for k in m.kinds_at[i]:
                model.add_bool_or(served).only_enforce_if(m.is_kind[i, k])


def define_dispatch(m: DeploymentModel) -> None:
    """Round robin: session j sits on slot j mod n, behind session j - n."""
    if not m.tables.is_round_robin:
        return
    if m.tables.layouts is not None:
        counts = [(len(u.instances), m.is_layout[i]) for i, u in enumerate(m.tables.layouts)]
    else:
        counts = list(m.num_instances.items())
    for n, literal in counts:
        for j in m.sessions:
            m.model.add_implication(literal, m.on_slot[j, j % n])
            if j >= n:
                m.model.add(m.start[j] >= m.end[j - n]).only_enforce_if(literal)


def define_sequence(m: DeploymentModel) -> None:
    """Sessions of a slot do not overlap each other nor the stalls of the slot's kind."""
    tables, model = m.tables, m.model
    for i in m.slots:
        intervals = []
        for k in m.kinds_at[i]:
            kind = tables.kinds[k]
            for number, (_, until_s) in enumerate(kind.stalls):
                begin, end = m.scale.stall_begin(kind, number), m.at(until_s)
                intervals.append(
                    model.new_optional_fixed_size_interval_var(
                        begin, end - begin, m.is_kind[i, k], f"stall[{i},{k},{number}]"
                    )
                )
            for j in m.sessions:
                service = m.at(kind.candidate.service_s[tables.dispatch_order[j]])
                intervals.append(
                    model.new_optional_interval_var(
                        m.start[j], service, m.end[j], m.runs[j, i, k], f"run[{j},{i},{k}]"
                    )
                )
        model.add_no_overlap(intervals)
    define_order(m)
    define_least_ends(m)


def define_order(m: DeploymentModel) -> None:
    """Implied: of two sessions on a slot one is first; deciding which fixes all times."""
    if m.tables.is_round_robin:
        return
    for j in m.sessions:
        for later in m.sessions[j + 1 :]:
            if m.tables.dispatch_order[j] == m.tables.dispatch_order[later]:
                continue
            first = m.model.new_bool_var(f"first[{j},{later}]")
            for i in m.slots:
                both = [m.on_slot[j, i], m.on_slot[later, i]]
                m.model.add(m.start[later] >= m.end[j]).only_enforce_if(*both, first)
                m.model.add(m.start[j] >= m.end[later]).only_enforce_if(*both, ~first)


def define_least_ends(m: DeploymentModel) -> None:
    """Implied, and it tightens the relaxation: an end is at least release plus service time."""
    unit = m.coarse_unit(len(m.is_kind))
    for j in m.sessions:
        c = m.tables.dispatch_order[j]
        release = m.at(m.tables.cohorts[c].release_s)
        soonest = {
            (i, k): (release + m.at(m.tables.kinds[k].candidate.service_s[c])) // unit
            for i, k in m.is_kind
        }
        least = m.model.new_int_var(0, max(soonest.values()), f"least_end[{j}]")
        m.model.add(least == sum(w * m.runs[j, i, k] for (i, k), w in soonest.items()))
        m.model.add(m.end[j] >= unit * least)


def define_memory(m: DeploymentModel) -> None:
    """Tokens held by a slot fit its kind, in units of the tokens' greatest common divisor."""
    tables = m.tables
    tokens = [tables.cohorts[c].held_tokens for c in tables.dispatch_order]
    unit = math.gcd(*tokens)
    for i, k in m.is_kind:
        most = tables.kinds[k].candidate.max_tokens
        if sum(tokens) > most:
            if sum(tokens) // unit > MAX_COEFFICIENT_SUM:
                raise TooLargeError("tokens of all sessions do not fit one CP-SAT row")
            held = sum(tokens[j] // unit * m.runs[j, i, k] for j in m.sessions)
            m.model.add(held <= most // unit).with_name(f"memory[{i},{k}]")


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
    """Identical sessions go to slots in order; interchangeable slots come in order of kind."""
    tables, model = m.tables, m.model
    if tables.layouts is None:
        unused = len(tables.kinds)
        kind_of = [
            unused + sum((k - unused) * m.is_kind[i, k] for k in m.kinds_at[i]) for i in m.slots
        ]
        for a, b in pairwise(kind_of):
            model.add(a <= b)
    for j in m.sessions[1:]:
        if tables.dispatch_order[j] != tables.dispatch_order[j - 1]:
            continue
        slot_of = [sum(i * m.on_slot[s, i] for i in m.slots) for s in (j - 1, j)]
        model.add(slot_of[0] <= slot_of[1])
        for i in m.slots:
            both = [m.on_slot[j - 1, i], m.on_slot[j, i]]
            model.add(m.start[j] >= m.end[j - 1]).only_enforce_if(both)


def extract(m: DeploymentModel, value: Any) -> Selection:
    """Read a selection; `value` maps a variable to its value."""
    tables = m.tables
    queues: list[list[tuple[int, int]]] = [[] for _ in m.slots]
    for (j, i), literal in m.on_slot.items():
        if value(literal):
            queues[i].append((value(m.start[j]), j))
    chosen: list[SelectedInstance] = []
    for i in m.slots:
        for k in m.kinds_at[i]:
            if not value(m.is_kind[i, k]):
                continue
            servers = None
            if tables.layouts is None:
                pool = tables.pools[tables.kinds[k].candidate.pool_index]
                servers = tuple(s for s in range(pool.num_servers) if value(m.on_server[i, k, s]))
            queue = tuple(tables.dispatch_order[j] for _, j in sorted(queues[i]))
            chosen.append(SelectedInstance(k, servers, queue))
    layout = next((u for u, literal in enumerate(m.is_layout) if value(literal)), None)
    return Selection(tuple(chosen), layout)
