"""Pools without a solver: all plans, and a first one that fills homes before it borrows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.pooling.bounds import pool_bound
from optimizer.pooling.problem import PoolPlan, PoolProblem, Way

#: Slowest read in units of the search, and chunks read from afar, in the order of the goals.
Cost = tuple[Fraction | int, ...]

#: More ways of all items together than this are not tried one by one.
MAX_WAYS = 400

#: Chunks of items on ways.
Chunks = dict[tuple[int, Way], int]


class _Ledger:
    """What is still free at every time, and what links read; times are whole numbers of a unit."""

    def __init__(self, problem: PoolProblem) -> None:
        self.problem = problem
        items, nodes, instants = problem.items, problem.nodes, problem.moments
        self.at: list[list[int]] = [[] for _ in items]
        for t, (_, held) in enumerate(instants):
            for i in held:
                self.at[i].append(t)
        seconds = [problem.chunk_s(p) for p in range(len(problem.paths))]
        unit = math.lcm(*(s.denominator for s in seconds))
        per = math.lcm(*(item.reads_per_s.denominator for item in items))
        self.read = [int(s * unit) for s in seconds]
        self.rate = [int(item.reads_per_s * per) for item in items]
        self.unit, self.full = unit, unit * per
        self.free = [[node.num_chunks for node in nodes] for _ in instants]
        self.lendable = [
            [n.num_chunks if n.max_lent_chunks is None else n.max_lent_chunks for n in nodes]
            for _ in instants
        ]
        self.reads = [[0] * len(problem.links) for _ in instants]
        self.loads = [[0] * len(problem.links) for _ in instants]

    def room(self, item: int, way: Way) -> int:
        """Chunks of an item that a way has room for."""
        is_lent = way.node != self.problem.items[item].home
        rows = (self.free, self.lendable) if is_lent else (self.free,)
        return min(row[t][way.node] for row in rows for t in self.at[item])

    def take(self, item: int, way: Way, count: int) -> None:
        """Put chunks on a way; a negative number takes them away."""
        is_lent = way.node != self.problem.items[item].home
        for t in self.at[item]:
            self.free[t][way.node] -= count
            self.lendable[t][way.node] -= count * is_lent
            for p in way.paths:
                link = self.problem.paths[p].link
                self.reads[t][link] += count * self.read[p]
                self.loads[t][link] += count * self.read[p] * self.rate[item]

    def slowest(self, item: int, way: Way) -> int | None:
        """Return the slowest read of the links of a way; None where a queue grows."""
        links = [self.problem.paths[p].link for p in way.paths]
        if any(self.loads[t][link] > self.full for t in self.at[item] for link in links):
            return None
        return max((self.reads[t][link] for t in self.at[item] for link in links), default=0)

    def least(self, item: int, ways: Sequence[Way], count: int) -> int:
        """Return a time that the links read at least once more chunks are dealt to some ways.

        Links on which a reader may reach all of them bring their parts at the same time.
        """
        paths, t, found = self.problem.paths, self.at[item][0], 0
        for reader in self.problem.items[item].readers:
            if any(way.node == reader for way in ways):
                continue
            fastest: dict[int, int] = {}
            for p in {p for way in ways for p in way.paths if paths[p].reader == reader}:
                link = paths[p].link
                fastest[link] = min(fastest.get(link, self.read[p]), self.read[p])
            done = sum(Fraction(self.reads[t][link], each) for link, each in fastest.items())
            rate = sum(Fraction(1, each) for each in fastest.values())
            found = max(found, math.ceil((count + done) / rate))
        return found


class _Search:
    """Chunks of one item after another are dealt to its ways, homes first.

    Left out is only what breaks a rule already, or is in no case better than the best. Nothing is
    better than a plan that meets the bound.
    """

    def __init__(self, problem: PoolProblem, max_steps: int) -> None:
        self.problem, self.max_steps, self.steps = problem, max_steps, 0
        self.ways: list[tuple[Way, ...]] = []
        for i in range(len(problem.items)):
            self.ways.append(problem.ways(i))
            if sum(map(len, self.ways)) > MAX_WAYS:
                raise TooLargeError(f"more than {MAX_WAYS} ways to reach items to try")
        self.ledger = _Ledger(problem)
        sizes = [item.num_chunks for item in problem.items]
        self.order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        self.chosen: Chunks = {}
        self.best: tuple[Cost, Chunks] | None = None
        units = {"slowest_read": Fraction(self.ledger.unit)}
        units["remote_bytes"] = Fraction(1, problem.chunk_bytes)
        bound = pool_bound(problem) or (Fraction(0),) * len(problem.goals)
        self.least = tuple(b * units[goal] for b, goal in zip(bound, problem.goals, strict=True))

    def is_beaten(self, slowest: int, remote: int) -> bool:
        """Whether nothing from here on can be better than the best."""
        if self.best is None:
            return False
        return self.best[0] <= self.least or self.cost(slowest, remote) >= self.best[0]

    def cost(self, slowest: int, remote: int) -> Cost:
        """Return goals in their order."""
        values = {"slowest_read": slowest, "remote_bytes": remote}
        return tuple(values[goal] for goal in self.problem.goals)

    def visit(self, place: int, slowest: int, remote: int) -> None:
        """Deal the items from a place in the order on."""
        if self.is_beaten(slowest, remote):
            return
        if place == len(self.order):
            self.best = self.cost(slowest, remote), dict(self.chosen)
        else:
            count = self.problem.items[self.order[place]].num_chunks
            self.deal(place, 0, count, slowest, remote)

    def deal(self, place: int, w: int, left: int, slowest: int, remote: int) -> None:
        """Deal what is left of an item to its ways from w on."""
        self.steps += 1
        if self.steps > self.max_steps:
            raise TooLargeError(f"more than {self.max_steps} ways to deal chunks to try")
        item = self.order[place]
        data, ways = self.problem.items[item], self.ways[item]
        is_past_home = w == len(ways) or ways[w].node != data.home
        if is_past_home and data.num_chunks - left < data.pinned_chunks:
            return
        if not left:
            self.visit(place + 1, slowest, remote)
            return
        if w == len(ways):
            return
        rest = ways[w:]
        far = remote + left * min(len(way.paths) for way in rest)
        if self.is_beaten(max(slowest, self.ledger.least(item, rest, left)), far):
            return
        way = ways[w]
        for count in range(min(left, self.ledger.room(item, way)), -1, -1):
            self.ledger.take(item, way, count)
            now = self.ledger.slowest(item, way)
            if now is not None:
                self.chosen[item, way] = count
                far = remote + count * len(way.paths)
                self.deal(place, w + 1, left - count, max(slowest, now), far)
                del self.chosen[item, way]
            self.ledger.take(item, way, -count)


def best_pool_exhaustively(problem: PoolProblem, max_steps: int = 1_000_000) -> PoolPlan | None:
    """Return a best plan, by trying every way to deal chunks; None where none is legal.

    Raises TooLargeError when more than `max_steps` or `MAX_WAYS` would be tried.
    """
    search = _Search(problem, max_steps)
    search.visit(0, 0, 0)
    return None if search.best is None else problem.plan(search.best[1])


def first_pool(problem: PoolProblem) -> PoolPlan:
    """Fill homes first, largest items first, then borrow over the fastest paths.

    The plan may leave chunks unplaced, and queues may grow.
    """
    ledger, chunks = _Ledger(problem), Chunks()
    left = [item.num_chunks for item in problem.items]
    order = sorted(range(len(left)), key=lambda i: (-problem.items[i].pinned_chunks, -left[i]))

    def deal(item: int, way: Way, most: int) -> None:
        count = min(most, ledger.room(item, way))
        if count > 0:
            ledger.take(item, way, count)
            chunks[item, way] = chunks.get((item, way), 0) + count
            left[item] -= count

    for is_home in (True, False):
        for item in order:
            data = problem.items[item]
            for way in problem.ways(item) if left[item] else ():
                if (way.node == data.home) == is_home:
                    deal(item, way, left[item])
    return problem.plan(chunks)
