"""Pools to documents and back: plans, and the account of what they take (6.6)."""

from __future__ import annotations

import itertools
from fractions import Fraction

from instances.access import Access
from instances.errors import InputError
from instances.pooling import PoolDecision
from instances.quantity import human_bytes, human_seconds
from optimizer.errors import TooLargeError
from optimizer.plan_document import both
from optimizer.pooling.evaluation import PoolEvaluation, evaluate_pool
from optimizer.pooling.problem import Holding, Lease, PoolPlan, PoolProblem
from optimizer.pooling.search import best_pool_exhaustively
from optimizer.pooling.thresholds import LenderThreshold, lender_threshold
from optimizer.side.pool_accounts import (
    PoolAccountDocument,
    PoolLeaseDocument,
    PoolLinkDocument,
    PoolLocalDocument,
    PoolNodeDocument,
    PoolPathDocument,
    PoolPlanDocument,
    PoolReaderDocument,
    PoolThresholdDocument,
)
from optimizer.windows import fewest_in_flight

#: Every search for a threshold may try so many ways to deal chunks.
MAX_THRESHOLD_STEPS = 4_000

#: Thresholds are looked for on up to so many paths in use.
MAX_THRESHOLD_PATHS = 8


def plan_document(problem: PoolProblem, plan: PoolPlan) -> PoolPlanDocument:
    """Return a plan by names."""
    local, leases = [], []
    for h in sorted(plan.holdings, key=lambda h: (h.item, h.node)):
        size = h.num_chunks * problem.chunk_bytes
        if h.lease is None:
            item, node = problem.items[h.item].name, problem.nodes[h.node].name
            local.append(PoolLocalDocument(item=item, node=node, bytes=size))
        else:
            leases.append(_lease_document(problem, h, h.lease))
    return PoolPlanDocument(local=local, leases=leases)


def _lease_document(problem: PoolProblem, h: Holding, lease: Lease) -> PoolLeaseDocument:
    return PoolLeaseDocument(
        item=problem.items[h.item].name,
        lender=problem.nodes[h.node].name,
        bytes=h.num_chunks * problem.chunk_bytes,
        mode=lease.mode,
        readers=[
            PoolReaderDocument(node=problem.nodes[r].name, path=problem.paths[p].name)
            for r, p in lease.readers
        ],
        from_exact=str(lease.from_s),
        until_exact=None if lease.until_s is None else str(lease.until_s),
    )


class PlanReader:
    """Reads plans of one problem; `source` names it in messages."""

    def __init__(self, problem: PoolProblem, source: str) -> None:
        self.problem, self.source = problem, source
        self.numbers = {
            "node": {node.name: n for n, node in enumerate(problem.nodes)},
            "path": {path.name: p for p, path in enumerate(problem.paths)},
            "item": {item.name: i for i, item in enumerate(problem.items)},
        }

    def plan(self, document: PoolPlanDocument) -> PoolPlan:
        """Return a plan; raises InputError for names, sizes and times that mean nothing."""
        found = []
        for n, local in enumerate(document.local):
            field = f"pool.local[{n}]"
            item, node = self._number("item", local.item, field), self._node(local.node, field)
            found.append(Holding(item, node, self._chunks(local.bytes, field)))
        for n, lease in enumerate(document.leases):
            field = f"pool.leases[{n}]"
            readers = tuple(
                (
                    self._node(reader.node, f"{field}.readers[{r}]"),
                    self._number("path", reader.path, f"{field}.readers[{r}]"),
                )
                for r, reader in enumerate(lease.readers)
            )
            until = lease.until_exact
            terms = Lease(
                lease.mode,
                readers,
                self._time(lease.from_exact, f"{field}.from_exact"),
                None if until is None else self._time(until, f"{field}.until_exact"),
            )
            item = self._number("item", lease.item, field)
            lender = self._number("node", lease.lender, field, "lender")
            found.append(Holding(item, lender, self._chunks(lease.bytes, field), terms))
        return PoolPlan(tuple(found))

    def _node(self, name: str, field: str) -> int:
        return self._number("node", name, field)

    def _number(self, kind: str, name: str, field: str, last: str | None = None) -> int:
        found = self.numbers[kind].get(name)
        if found is None:
            rule = f"no {kind} is named {name!r}"
            if kind == "path":
                rule = f"there is no path {name!r} in the instance"
            raise InputError(self.source, f"{field}.{last or kind}", rule)
        return found

    def _chunks(self, size: int, field: str) -> int:
        chunk = self.problem.chunk_bytes
        if size % chunk:
            raise InputError(
                self.source, f"{field}.bytes", f"must be whole chunks of {chunk:,} B", size
            )
        return size // chunk

    def _time(self, text: str, field: str) -> Fraction:
        try:
            found = Fraction(text)
        except (ValueError, ZeroDivisionError):
            found = Fraction(-1)
        if found < 0:
            rule = 'must be exact seconds of 0 or more, such as "1/2"'
            raise InputError(self.source, field, rule, text)
        return found


def pool_account(
    decision: PoolDecision, problem: PoolProblem, plan: PoolPlan, judged: PoolEvaluation
) -> PoolAccountDocument:
    """Return what a plan takes of nodes, links and paths."""
    nodes = _node_documents(decision, problem, plan, judged)
    seconds = judged.slowest_read_s
    return PoolAccountDocument(
        chunk_bytes=problem.chunk_bytes,
        nodes=nodes,
        links=[
            PoolLinkDocument(
                name=name,
                read_s=float(use.read_s),
                read_exact=str(use.read_s),
                load=float(use.load),
                load_exact=str(use.load),
            )
            for name, use in zip(problem.links, judged.links, strict=True)
            if use.read_s
        ],
        paths=_path_documents(decision, problem, plan, judged),
        leases=plan_document(problem, plan).leases,
        free_before_bytes=sum(node.free_before_bytes for node in nodes),
        free_bytes=sum(node.free_bytes for node in nodes),
        slowest_read_s=float(seconds),
        slowest_read_exact=str(seconds),
        remote_bytes=judged.remote_bytes,
    )


def _node_documents(
    decision: PoolDecision, problem: PoolProblem, plan: PoolPlan, judged: PoolEvaluation
) -> list[PoolNodeDocument]:
    demand, borrowed = ([0] * len(problem.nodes) for _ in range(2))
    far = [0] * len(problem.items)
    for h in plan.holdings:
        if h.node != problem.items[h.item].home:
            far[h.item] += h.num_chunks * problem.chunk_bytes
    for _, held in problem.moments:
        needs, borrows = ([0] * len(problem.nodes) for _ in range(2))
        for i in held:
            needs[problem.items[i].home] += decision.items[i].bytes
            borrows[problem.items[i].home] += far[i]
        demand, borrowed = list(map(max, demand, needs)), list(map(max, borrowed, borrows))
    found = []
    for n, (node, used) in enumerate(zip(decision.nodes, judged.used_bytes, strict=True)):
        found.append(
            PoolNodeDocument(
                name=node.name,
                capacity_bytes=node.capacity_bytes,
                demand_bytes=demand[n],
                used_bytes=used,
                lent_bytes=judged.lent_bytes[n],
                borrowed_bytes=borrowed[n],
                free_before_bytes=max(node.capacity_bytes - demand[n], 0),
                free_bytes=max(node.capacity_bytes - used, 0),
            )
        )
    return found


def _path_documents(
    decision: PoolDecision, problem: PoolProblem, plan: PoolPlan, judged: PoolEvaluation
) -> list[PoolPathDocument]:
    taken = _bytes_over_paths(problem, plan)
    is_best = judged.is_feasible and len(taken) <= MAX_THRESHOLD_PATHS and _is_best(problem, judged)
    found = []
    for p, size in sorted(taken.items()):
        path, access = problem.paths[p], decision.paths[p].access
        fewest = None
        if access.transaction_bytes is not None and access.round_trip_s:
            fewest = fewest_in_flight(
                access.bandwidth_bytes_per_s, access.transaction_bytes, access.round_trip_s
            )
        threshold = _threshold(problem, access, p) if is_best else None
        found.append(
            PoolPathDocument(
                name=path.name,
                reader=problem.nodes[path.reader].name,
                lender=problem.nodes[path.lender].name,
                link=problem.links[path.link],
                bytes=size,
                bandwidth_bytes_per_s=float(access.bandwidth_bytes_per_s),
                **both("usable_bytes_per_s", path.bytes_per_s),
                fewest_in_flight=fewest,
                **both("read_s", size / path.bytes_per_s),
                threshold=threshold,
            )
        )
    return found


def _bytes_over_paths(problem: PoolProblem, plan: PoolPlan) -> dict[int, int]:
    """Return what every path in use reads at most at one time."""
    reads: list[list[tuple[int, int]]] = [[] for _ in problem.items]
    for h in plan.holdings:
        for _, p in () if h.lease is None else h.lease.readers:
            reads[h.item].append((p, h.num_chunks * problem.chunk_bytes))
    taken: dict[int, int] = {}
    for _, held in problem.moments:
        now: dict[int, int] = {}
        for p, size in itertools.chain.from_iterable(reads[i] for i in held):
            now[p] = now.get(p, 0) + size
        taken |= {p: max(size, taken.get(p, 0)) for p, size in now.items()}
    return taken


def _is_best(problem: PoolProblem, judged: PoolEvaluation) -> bool:
    """Whether a plan's value is that of the best of all plans, where these are few."""
    try:
        best = best_pool_exhaustively(problem, MAX_THRESHOLD_STEPS)
    except TooLargeError:
        return False
    goals = problem.goals
    return best is not None and evaluate_pool(problem, best).value(goals) == judged.value(goals)


def _threshold(problem: PoolProblem, access: Access, path: int) -> PoolThresholdDocument | None:
    try:
        found = lender_threshold(problem, access, path, MAX_THRESHOLD_STEPS)
    except TooLargeError:
        return None
    return PoolThresholdDocument(
        is_needed=found.is_needed,
        keeps_bytes_per_s=found.keeps_bytes_per_s,
        loses_bytes_per_s=found.loses_bytes_per_s,
        **both("limit_bytes_per_s", found.limit_bytes_per_s),
        **both("max_round_trip_s", found.max_round_trip_s),
        lenders_then=[problem.nodes[n].name for n in found.lenders_then],
        is_legal_then=found.is_legal_then,
        message=threshold_text(problem, found),
    )


def threshold_text(problem: PoolProblem, found: LenderThreshold) -> str:
    """Say how slow a path may get: "n1 stays the lender down to …; at 1 B/s less n2 lends"."""
    path = problem.paths[found.path]
    lender, reader = problem.nodes[path.lender].name, problem.nodes[path.reader].name
    others = " and ".join(problem.nodes[n].name for n in found.lenders_then)
    then = f"{others} {'lends' if len(found.lenders_then) == 1 else 'lend'} to {reader}"
    if not others:
        then = f"nobody lends to {reader}"
    if not found.is_needed:
        return f"{lender} need not lend to {reader} over {path.name}: as good is that {then}"
    if found.keeps_bytes_per_s is None or found.loses_bytes_per_s is None:
        return f"{lender} stays a lender to {reader} however slow {path.name} is"
    if not found.is_legal_then:
        then = "no plan is legal"
    text = (
        f"{lender} stays a lender to {reader} down to {found.keeps_bytes_per_s:,} B/s of "
        f"{path.name}; at {found.loses_bytes_per_s:,} B/s {then}"
    )
    if found.max_round_trip_s is not None:
        text += f"; its round trip may grow to {human_seconds(found.max_round_trip_s)}"
    return text


def lending_text(problem: PoolProblem, plan: PoolPlan, most: int) -> str:
    """Say who lends what to whom, the largest leases first: "n1 lends 20.00 GB of a to n0"."""
    leases = sorted((h for h in plan.holdings if h.lease is not None), key=lambda h: -h.num_chunks)
    parts = []
    for h in leases[:most]:
        assert h.lease is not None
        readers = " and ".join(problem.nodes[r].name for r, _ in h.lease.readers)
        size = human_bytes(h.num_chunks * problem.chunk_bytes)
        name = problem.nodes[h.node].name
        parts.append(f"{name} lends {size} of {problem.items[h.item].name} to {readers}")
    if len(leases) > most:
        parts.append(f"{len(leases) - most} more leases")
    return ", ".join(parts) or "nothing is borrowed"
