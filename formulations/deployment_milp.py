"""The deployment decision for MILP: patterns, counted, and blocks of cards on servers.

Sets and names are those of formulations/README.md. All coefficients are small whole numbers, so
that a solver's tolerances cannot let a row be broken (`milp_measures.py` limits and minimises).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pulp

from formulations.lanes import Queues, dealt_queues
from formulations.patterns import Pattern, pattern_queues
from formulations.staging import Limits
from optimizer.errors import MismatchError
from optimizer.protocols import Measure, SelectedInstance, Selection
from optimizer.tables import Kind, ProblemTables


class DeploymentModel:
    """One MILP over the patterns that the limits leave."""

    def __init__(
        self,
        tables: ProblemTables,
        patterns: Sequence[Pattern],
        limits: Limits,
        exact: frozenset[Measure] = frozenset(),
    ) -> None:
        self.tables, self.limits, self.exact = tables, limits, exact
        largest = {m: v for m, v in limits.at_most.items() if m.is_largest}
        self.kept = [
            i
            for i, p in enumerate(patterns)
            if all(p.score.measures[m] <= v for m, v in largest.items())
        ]
        self.patterns = [patterns[i] for i in self.kept]
        self.problem = pulp.LpProblem("deployment", pulp.LpMinimize)
        self.times_used: list[Any] = []
        self.is_layout: list[Any] = []
        self.num_instances: dict[int, Any] = {}
        self.num_of_kind: dict[int, Any] = {}
        self.blocks: dict[tuple[int, int], Any] = {}


def define_deployment_variables(m: DeploymentModel) -> None:
    """times_used[p], is_layout[u], num_instances[n], blocks[k,s]."""
    tables = m.tables
    for p, pattern in enumerate(m.patterns):
        most = _most_uses(tables, pattern)
        m.times_used.append(m.problem.add_variable(f"times_used_{p}", 0, most, pulp.LpInteger))
    if tables.layouts is not None:
        m.is_layout = [
            m.problem.add_variable(f"is_layout_{u}", cat=pulp.LpBinary)
            for u in range(len(tables.layouts))
        ]
    elif tables.is_round_robin:
        m.num_instances = {
            n: m.problem.add_variable(f"num_instances_{n}", cat=pulp.LpBinary)
            for n in range(1, tables.max_instances + 1)
        }
    m.num_of_kind = defaultdict(pulp.LpAffineExpression)
    for pattern, times in zip(m.patterns, m.times_used, strict=True):
        if pattern.kind is not None:
            m.num_of_kind[pattern.kind] += times
    if tables.layouts is None:
        for k in m.num_of_kind:
            kind = tables.kinds[k]
            for s in range(tables.pools[kind.candidate.pool_index].num_servers):
                most = _most_blocks(tables, kind, s)
                m.blocks[k, s] = m.problem.add_variable(f"blocks_{k}_{s}", 0, most, pulp.LpInteger)


def num_variables(tables: ProblemTables, patterns: Sequence[Pattern]) -> int:
    """Return how many variables a model over these patterns has, but for digits."""
    if tables.layouts is not None:
        return len(patterns) + len(tables.layouts)
    kinds = {p.kind for p in patterns if p.kind is not None}
    servers = (tables.pools[tables.kinds[k].candidate.pool_index].num_servers for k in kinds)
    return len(patterns) + sum(servers)


def _most_uses(tables: ProblemTables, pattern: Pattern) -> int:
    """Upper bound on how often a pattern can be used."""
    if pattern.place is not None or pattern.layout is not None:
        return 1
    kind = tables.kinds[pattern.kind or 0]
    if tables.layouts is not None:
        most = max(sum(k == kind.index for k, _ in u.instances) for u in tables.layouts)
    else:
        most = tables.max_count(kind)
    for number, cohort in zip(pattern.counts, tables.cohorts, strict=True):
        if number:
            most = min(most, cohort.num_sessions // number)
    return most


def _most_blocks(tables: ProblemTables, kind: Kind, server: int) -> int:
    candidate = kind.candidate
    per_server = tables.pools[candidate.pool_index].server.num_cards // candidate.cards_per_server
    return min(per_server, tables.max_count(kind))


def define_deployment_constraints(m: DeploymentModel) -> None:
    """One function per family, in the order of the README; memory is kept by the patterns."""
    define_kind_of_slot(m)
    define_assignment(m)
    define_dispatch(m)
    if m.tables.layouts is None:
        define_placement(m)


def define_kind_of_slot(m: DeploymentModel) -> None:
    """Under a layout, as many patterns of each kind as the layout has instances of it."""
    tables = m.tables
    if tables.layouts is None:
        return
    m.problem += (pulp.lpSum(m.is_layout) == 1, "one_layout")
    if tables.is_round_robin:
        for u, literal in enumerate(m.is_layout):
            uses = [x for p, x in zip(m.patterns, m.times_used, strict=True) if p.layout == u]
            m.problem += (pulp.lpSum(uses) == literal, f"layout_{u}")
        return
    for kind in tables.kinds:
        have = pulp.lpSum(
            sum(k == kind.index for k, _ in layout.instances) * literal
            for layout, literal in zip(tables.layouts, m.is_layout, strict=True)
        )
        m.problem += (m.num_of_kind[kind.index] == have, f"kind_{kind.index}")


def define_assignment(m: DeploymentModel) -> None:
    """Every session is served once."""
    if m.tables.is_round_robin:
        return  # dispatch fixes who serves whom
    for c, cohort in enumerate(m.tables.cohorts):
        served = pulp.lpSum(
            p.counts[c] * x for p, x in zip(m.patterns, m.times_used, strict=True) if p.counts[c]
        )
        m.problem += (served == cohort.num_sessions, f"served_{c}")


def define_dispatch(m: DeploymentModel) -> None:
    """Round robin in a mixed search: with n instances, each of the n positions has one pattern."""
    if not m.num_instances:
        return
    m.problem += (pulp.lpSum(m.num_instances.values()) == 1, "one_number")
    at: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for pattern, times in zip(m.patterns, m.times_used, strict=True):
        if pattern.place is not None:
            at[pattern.place].append(times)
    for n, literal in m.num_instances.items():
        for position in range(n):
            m.problem += (pulp.lpSum(at[n, position]) == literal, f"position_{n}_{position}")


def define_placement(m: DeploymentModel) -> None:
    """Blocks of every kind on servers; at most one of each instance on a server; cards suffice."""
    tables = m.tables
    for k, count in m.num_of_kind.items():
        kind = tables.kinds[k]
        servers = range(tables.pools[kind.candidate.pool_index].num_servers)
        blocks = pulp.lpSum(m.blocks[k, s] for s in servers)
        m.problem += (blocks == kind.candidate.num_servers * count, f"blocks_of_{k}")
        for s in servers:
            if tables.faults_on(kind, s):
                m.problem += (m.blocks[k, s] == count, f"failing_{k}_{s}")
            elif kind.candidate.num_servers > 1:
                m.problem += (m.blocks[k, s] <= count, f"distinct_{k}_{s}")
    for p, pool in enumerate(tables.pools):
        mine = [k for k in m.num_of_kind if tables.kinds[k].candidate.pool_index == p]
        for s in range(pool.num_servers):
            clean = pulp.lpSum(
                (tables.kinds[k].candidate.cards_per_server - tables.faults_on(tables.kinds[k], s))
                * m.blocks[k, s]
                for k in mine
            )
            have = pool.server.num_cards - tables.faulted_in(p, s)
            m.problem += (clean <= have, f"cards_{p}_{s}")
    for f in range(len(tables.faulted_cards)):
        owners = [n for k, n in m.num_of_kind.items() if f in tables.kinds[k].faulted]
        m.problem += (pulp.lpSum(owners) <= 1, f"failing_card_{f}")


def max_uses(tables: ProblemTables) -> int:
    """Upper bound on the number of patterns used in all."""
    if tables.layouts is None:
        return tables.max_instances
    return max(len(layout.instances) for layout in tables.layouts)


def extract(m: DeploymentModel) -> Selection:
    """Read a selection from the rounded values."""
    used = [(p, round(x.value() or 0)) for p, x in zip(m.patterns, m.times_used, strict=True)]
    chosen = [pattern for pattern, times in used for _ in range(times)]
    tables = m.tables
    if tables.layouts is not None:
        layout = next(u for u, x in enumerate(m.is_layout) if round(x.value() or 0))
        return Selection(tuple(_fill_layout(tables, layout, chosen)), layout)
    servers = {k: _servers_of(m, k) for k in {p.kind for p in chosen if p.kind is not None}}
    chosen.sort(key=lambda p: p.place or (0, 0))
    return Selection(
        tuple(
            SelectedInstance(p.kind, servers[p.kind].pop(0), pattern_queues(tables, p))
            for p in chosen
            if p.kind is not None
        )
    )


def _fill_layout(
    tables: ProblemTables, layout: int, chosen: list[Pattern]
) -> list[SelectedInstance]:
    """Give the layout's serving instances their queues."""
    blocks = (tables.layouts or ())[layout].instances
    if tables.is_round_robin:
        queues = [
            dealt_queues(tables.kinds[k].candidate, tables.dispatch_order[i :: len(blocks)])
            for i, (k, _) in enumerate(blocks)
        ]
    else:
        waiting: dict[int | None, list[Queues]] = defaultdict(list)
        for pattern in chosen:
            waiting[pattern.kind].append(pattern_queues(tables, pattern))
        queues = [waiting[k].pop(0) for k, _ in blocks]
    return [SelectedInstance(k, None, q) for (k, _), q in zip(blocks, queues, strict=True)]


def _servers_of(m: DeploymentModel, k: int) -> list[tuple[int, ...]]:
    """Put a kind's blocks together: each instance takes the servers with most blocks left.

    No server holds more blocks than there are instances, so this never gets stuck (Gale-Ryser).
    """
    candidate = m.tables.kinds[k].candidate
    left = {s: round(x.value() or 0) for (kind, s), x in m.blocks.items() if kind == k}
    groups: list[tuple[int, ...]] = []
    while any(left.values()):
        most = sorted(left, key=lambda s: (-left[s], s))[: candidate.num_servers]
        if len(most) < candidate.num_servers or any(left[s] < 1 for s in most):
            raise MismatchError("a solver's blocks cannot be put together to serving instances")
        for s in most:
            left[s] -= 1
        groups.append(tuple(sorted(most)))
    return groups
