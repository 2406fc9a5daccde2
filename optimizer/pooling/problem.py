"""Data of one decision: which node lends how much memory to whom, over which path (6.6)."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from optimizer.errors import TooLargeError

#: More ways to reach one item than this are not listed.
MAX_WAYS = 4096

Mode = Literal["exclusive", "shared"]

#: What may be optimised, and in which unit.
GOAL_UNITS = {"slowest_read": "s", "remote_bytes": "bytes"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node: chunks that it holds, and at most how many of them may be of other nodes' items."""

    name: str
    num_chunks: int
    #: None stands for all that is free.
    max_lent_chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """A way on which a node reads another's memory, at min(B, u·q/L) (6-12), over a link."""

    name: str
    reader: int
    lender: int
    link: int
    bytes_per_s: Fraction


@dataclass(frozen=True, slots=True)
class Item:
    """Data of a task; the first of `readers` is its home. Held until `until_s`, None: for ever."""

    name: str
    num_chunks: int
    readers: tuple[int, ...]
    pinned_chunks: int = 0
    reads_per_s: Fraction = Fraction(0)
    from_s: Fraction = Fraction(0)
    until_s: Fraction | None = None
    mode: Mode = "exclusive"

    @property
    def home(self) -> int:
        """The node whose task has it."""
        return self.readers[0]

    def is_held(self, at_s: Fraction) -> bool:
        """Whether it is in memory at a time; at its end it is not any more."""
        return self.from_s <= at_s and (self.until_s is None or at_s < self.until_s)


@dataclass(frozen=True, slots=True)
class Way:
    """A node that may hold an item, and the path on which each other reader reaches it there."""

    node: int
    paths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """Terms on which a node holds bytes that others read: by whom, over which path, how long."""

    mode: Mode
    #: Pairs of reader and path.
    readers: tuple[tuple[int, int], ...]
    from_s: Fraction
    until_s: Fraction | None


@dataclass(frozen=True, slots=True)
class Holding:
    """Chunks of an item on a node; without a lease only the node itself reads them."""

    item: int
    node: int
    num_chunks: int
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Where all chunks are."""

    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """Place every chunk of every item; `goals` are most important first.

    A chunk stays where it is as long as its item is held. Raises ValueError for names that come
    twice, numbers out of range, and goals that are none.
    """

    nodes: tuple[Node, ...]
    links: tuple[str, ...]
    paths: tuple[Path, ...]
    items: tuple[Item, ...]
    chunk_bytes: int
    goals: tuple[str, ...] = ("slowest_read", "remote_bytes")
    horizon_s: Fraction | None = None
    #: Paths of each pair of reader and lender that has one.
    pairs: dict[tuple[int, int], list[int]] = field(init=False, repr=False, compare=False)
    #: Times at which items begin, and what is held then: at all others no more is held.
    moments: tuple[tuple[Fraction, tuple[int, ...]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for what, names in (
            ("nodes", [node.name for node in self.nodes]),
            ("paths", [path.name for path in self.paths]),
            ("items", [item.name for item in self.items]),
            ("goals", list(self.goals)),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} need names of their own")
        if not self.goals or not set(self.goals) <= set(GOAL_UNITS):
            raise ValueError(f"goals are some of {', '.join(GOAL_UNITS)}")
        if self.chunk_bytes < 1:
            raise ValueError("a chunk has a byte or more")
        nodes, links = range(len(self.nodes)), range(len(self.links))
        for path in self.paths:
            if {path.reader, path.lender} - set(nodes) or path.link not in links:
                raise ValueError(f"path {path.name!r} is of nodes or a link that do not exist")
            if path.reader == path.lender or path.bytes_per_s <= 0:
                raise ValueError(f"path {path.name!r} joins two nodes at a speed above 0")
        for item in self.items:
            self._check_item(item)
        pairs: dict[tuple[int, int], list[int]] = {}
        for p, path in enumerate(self.paths):
            pairs.setdefault((path.reader, path.lender), []).append(p)
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "moments", self._moments())

    def _check_item(self, item: Item) -> None:
        if not item.readers or len(set(item.readers)) != len(item.readers):
            raise ValueError(f"item {item.name!r} needs readers, each once")
        if set(item.readers) - set(range(len(self.nodes))):
            raise ValueError(f"item {item.name!r} has a reader that does not exist")
        if not 0 <= item.pinned_chunks <= item.num_chunks or item.reads_per_s < 0:
            raise ValueError(f"item {item.name!r} pins more than it has, or reads below 0")
        if item.until_s is not None and item.until_s <= item.from_s:
            raise ValueError(f"item {item.name!r} ends before it begins")
        if item.mode == "exclusive" and len(item.readers) > 1:
            raise ValueError(f"item {item.name!r} has several readers of an exclusive lease")

    def _moments(self) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
        times = sorted({item.from_s for item in self.items})
        held: list[list[int]] = [[] for _ in times]
        for i, item in enumerate(self.items):
            end = len(times) if item.until_s is None else bisect_left(times, item.until_s)
            for t in range(bisect_left(times, item.from_s), end):
                held[t].append(i)
        return tuple(zip(times, map(tuple, held), strict=True))

    def chunk_s(self, path: int) -> Fraction:
        """Seconds in which a path reads a chunk."""
        return self.chunk_bytes / self.paths[path].bytes_per_s

    def ways(self, item: int) -> tuple[Way, ...]:
        """Every node that all readers of an item reach, with each choice of paths.

        Its home comes first, then other readers, then the fastest. Raises TooLargeError.
        """
        readers = self.items[item].readers
        found: list[Way] = []
        for node in range(len(self.nodes)):
            choices = [self.pairs.get((r, node), []) for r in readers if r != node]
            if len(found) + math.prod(map(len, choices)) > MAX_WAYS:
                raise TooLargeError(f"more than {MAX_WAYS} ways to reach an item")
            found += [Way(node, paths) for paths in itertools.product(*choices)]
        order = {node: place for place, node in enumerate(readers)}

        def rank(way: Way) -> tuple[int, Fraction]:
            seconds = sum((self.chunk_s(p) for p in way.paths), Fraction(0))
            return order.get(way.node, len(order)), seconds

        return tuple(sorted(found, key=rank))

    def lease(self, item: int, way: Way) -> Lease | None:
        """Terms on which an item is held on a way; None where the node alone reads it."""
        if not way.paths:
            return None
        data = self.items[item]
        readers = tuple((self.paths[p].reader, p) for p in way.paths)
        return Lease(data.mode, readers, data.from_s, data.until_s)

    def plan(self, chunks: dict[tuple[int, Way], int]) -> PoolPlan:
        """Return the plan that holds so many chunks of an item on each way."""
        return PoolPlan(
            tuple(
                Holding(item, way.node, count, self.lease(item, way))
                for (item, way), count in chunks.items()
                if count
            )
        )
