"""Exact account of a pool: what every node holds, how long links read, broken rules (6.6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from optimizer.evaluation import Violation
from optimizer.pooling.problem import Holding, Item, Lease, PoolPlan, PoolProblem


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What a link takes at its busiest: seconds of reading all that is far once, and its load.

    `load` is the share of the time that it reads; above 1 a queue grows.
    """

    read_s: Fraction
    load: Fraction


@dataclass(frozen=True, slots=True)
class PoolEvaluation:
    """Account of a plan.

    `used_bytes` and `lent_bytes` are of every node at its fullest; `remote_bytes` counts what is
    not on its reader's node, for each reader. Only holdings of chunks above 0 take part, and reads
    only over paths from the node to a reader.
    """

    used_bytes: tuple[int, ...]
    lent_bytes: tuple[int, ...]
    links: tuple[LinkUse, ...]
    slowest_read_s: Fraction
    remote_bytes: int
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    def value(self, goals: tuple[str, ...]) -> tuple[Fraction, ...]:
        """Goals in their order."""
        values = {
            "slowest_read": self.slowest_read_s,
            "remote_bytes": Fraction(self.remote_bytes),
        }
        return tuple(values[goal] for goal in goals)


def evaluate_pool(problem: PoolProblem, plan: PoolPlan) -> PoolEvaluation:
    """Account for a plan and name every rule it breaks; never raises for a bad one.

    Node, item, reader and path numbers must exist.
    """
    broken = list(_check_items(problem, plan))
    for holding in plan.holdings:
        broken += _check_holding(problem, holding)
    used, lent = _held(problem, plan)
    read_s, load = _reading(problem, plan)
    broken += _check_nodes(problem, used, lent)
    broken += _check_links(problem, load)
    remote = sum(
        h.num_chunks * problem.chunk_bytes * (reader != h.node)
        for h in plan.holdings
        for reader in problem.items[h.item].readers
        if h.num_chunks > 0
    )
    return PoolEvaluation(
        used_bytes=tuple(used),
        lent_bytes=tuple(lent),
        links=tuple(map(LinkUse, read_s, load)),
        slowest_read_s=max(read_s, default=Fraction(0)),
        remote_bytes=remote,
        violations=tuple(broken),
    )


class _Peaks:
    """Amounts that come and go, and the largest sum there is of them at one time."""

    def __init__(self) -> None:
        self.changes: list[tuple[Fraction, int, Fraction | int]] = []

    def add(self, item: Item, amount: Fraction | int) -> None:
        """Let an amount be there as long as an item is held."""
        self.changes.append((item.from_s, 1, amount))
        if item.until_s is not None:
            self.changes.append((item.until_s, 0, -amount))  # before what begins then

    def peak(self) -> Fraction | int:
        """Return the largest sum; 0 if nothing was ever there."""
        sums = itertools.accumulate(amount for _, _, amount in sorted(self.changes))
        return max(sums, default=0)


def _held(problem: PoolProblem, plan: PoolPlan) -> tuple[list[int], list[int]]:
    """Return bytes on each node at its fullest: all, and those of items whose home is elsewhere."""
    all_on, lent_on = ([_Peaks() for _ in problem.nodes] for _ in range(2))
    for holding in plan.holdings:
        item, size = problem.items[holding.item], holding.num_chunks * problem.chunk_bytes
        if size > 0:
            all_on[holding.node].add(item, size)
            if item.home != holding.node:
                lent_on[holding.node].add(item, size)
    return [int(on.peak()) for on in all_on], [int(on.peak()) for on in lent_on]


def _reading(problem: PoolProblem, plan: PoolPlan) -> tuple[list[Fraction], list[Fraction]]:
    """Return seconds of each link at its busiest: of all reads once, and of a second's arrivals."""
    once, arriving = ([_Peaks() for _ in problem.links] for _ in range(2))
    for holding in plan.holdings:
        item, lease = problem.items[holding.item], holding.lease
        if lease is None or holding.num_chunks <= 0:
            continue
        for _, p in _right_readers(problem, holding, lease):
            path = problem.paths[p]
            seconds = holding.num_chunks * problem.chunk_bytes / path.bytes_per_s
            once[path.link].add(item, seconds)
            arriving[path.link].add(item, item.reads_per_s * seconds)
    return [Fraction(x.peak()) for x in once], [Fraction(x.peak()) for x in arriving]


def _right_readers(
    problem: PoolProblem, holding: Holding, lease: Lease
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of reader and path that do lead from the node to a reader of the item."""
    for reader, p in lease.readers:
        path = problem.paths[p]
        is_reader = reader in problem.items[holding.item].readers
        if is_reader and (path.reader, path.lender) == (reader, holding.node):
            yield reader, p


def _check_items(problem: PoolProblem, plan: PoolPlan) -> Iterator[Violation]:
    """Every chunk is placed once, and enough of them at home."""
    placed: list[list[tuple[int, int]]] = [[] for _ in problem.items]
    for holding in plan.holdings:
        placed[holding.item].append((holding.node, holding.num_chunks))
    for item, counts in zip(problem.items, placed, strict=True):
        where = f"item {item.name}"
        off = sum(count for _, count in counts) - item.num_chunks
        if off:
            size, total = abs(off) * problem.chunk_bytes, item.num_chunks * problem.chunk_bytes
            text = f"{where}: {size:,} B of {total:,} B are "
            text += "placed nowhere" if off < 0 else "placed once too often"
            yield Violation("placed", where, size, "bytes", text)
        at_home = sum(count for node, count in counts if node == item.home)
        if at_home < item.pinned_chunks:
            size = (item.pinned_chunks - at_home) * problem.chunk_bytes
            text = f"{where}: {size:,} B more must be on {problem.nodes[item.home].name}"
            yield Violation("pinned", where, size, "bytes", text)


def _check_holding(problem: PoolProblem, holding: Holding) -> Iterator[Violation]:
    """What is read from afar is leased, over paths that lead there, to whom and while it may."""
    item, node = problem.items[holding.item], problem.nodes[holding.node].name
    where = f"item {item.name} on {node}"
    size = holding.num_chunks * problem.chunk_bytes
    if holding.num_chunks <= 0:
        text = f"{where}: {size:,} B are no bytes to hold"
        yield Violation("negative", where, max(-size, 1), "bytes", text)
    lease = holding.lease
    right = [] if lease is None else [r for r, _ in _right_readers(problem, holding, lease)]
    for reader in item.readers:
        if reader != holding.node and reader not in right:
            name = problem.nodes[reader].name
            text = f"{where}: {name} has no path to these {size:,} B"
            yield Violation("path", where, max(size, 1), "bytes", text)
    if lease is None:
        return
    wrong = len(lease.readers) - len(set(right) - {holding.node})
    if wrong:
        text = f"{where}: {wrong} of the lease's readers are none, come twice, or have no such path"
        yield Violation("reader", where, wrong, "readers", text)
    others = max(len({r for r, _ in lease.readers} | set(item.readers)) - 1, 0)
    if lease.mode == "exclusive" and others:
        text = f"{where}: an exclusive lease has one reader, not {others + 1}"
        yield Violation("exclusive", where, others, "readers", text)
    if lease.mode == "shared" and item.mode == "exclusive":
        text = f"{where}: the lease is shared, the item's is exclusive"
        yield Violation("shared", where, 1, "leases", text)
    yield from _check_times(problem, holding, lease, where)


def _check_times(
    problem: PoolProblem, holding: Holding, lease: Lease, where: str
) -> Iterator[Violation]:
    """A lease is as long as its item is held: shorter is unread, longer is not given back."""
    item, horizon_s = problem.items[holding.item], problem.horizon_s
    if lease.from_s > item.from_s:
        off = lease.from_s - item.from_s
        text = f"{where}: the lease begins {float(off):.6g} s late"
        yield Violation("lease_time", where, off, "s", text)
    if lease.from_s < item.from_s:
        off = item.from_s - lease.from_s
        text = f"{where}: the lease begins {float(off):.6g} s before there is anything to hold"
        yield Violation("lease_time", where, off, "s", text)
    if lease.until_s != item.until_s:
        if lease.until_s is None or item.until_s is None:
            off, text = Fraction(1), f"{where}: the lease and its item do not both end"
        else:
            off = abs(lease.until_s - item.until_s)
            is_early = lease.until_s < item.until_s
            text = f"{where}: the lease ends {float(off):.6g} s " + (
                "early" if is_early else "late"
            )
        yield Violation("lease_time", where, off, "s", text)
    if horizon_s is not None and lease.until_s is not None and lease.until_s > horizon_s:
        off = lease.until_s - horizon_s
        text = f"{where}: the lease is {float(off):.6g} s longer than the horizon"
        yield Violation("horizon", where, off, "s", text)


def _check_nodes(problem: PoolProblem, used: list[int], lent: list[int]) -> Iterator[Violation]:
    """No node holds more than it can, or lends more than it may, at any time."""
    chunk = problem.chunk_bytes
    for node, used_bytes, lent_bytes in zip(problem.nodes, used, lent, strict=True):
        where = f"node {node.name}"
        over = used_bytes - node.num_chunks * chunk
        if over > 0:
            text = f"{where} holds {used_bytes:,} B, {over:,} B more than its chunks"
            yield Violation("capacity", where, over, "bytes", text)
        if node.max_lent_chunks is not None:
            over = lent_bytes - node.max_lent_chunks * chunk
            if over > 0:
                text = f"{where} lends {lent_bytes:,} B, {over:,} B more than it may"
                yield Violation("max_lent", where, over, "bytes", text)


def _check_links(problem: PoolProblem, loads: list[Fraction]) -> Iterator[Violation]:
    """On no link does work arrive faster than it is read."""
    for name, load in zip(problem.links, loads, strict=True):
        if load > 1:
            where = f"link {name}"
            text = f"{where}: each second brings {float(load):.6g} s of reads, so a queue grows"
            yield Violation("queue", where, load - 1, "s", text)
