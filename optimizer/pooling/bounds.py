"""What no pool can beat, and why none is legal, without a search (6.6)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from optimizer.pooling.problem import PoolProblem


@dataclass(frozen=True, slots=True)
class Shortage:
    """Chunks that a node's tasks read and that it cannot hold itself at a time."""

    node: int
    num_chunks: int
    items: tuple[int, ...]


def shortages(problem: PoolProblem) -> Iterator[Shortage]:
    """Yield what is short on every node at every time, where something is."""
    for _, held in problem.moments:
        read_on: dict[int, list[int]] = {}
        for i in held:
            for reader in problem.items[i].readers:
                read_on.setdefault(reader, []).append(i)
        for n, items in sorted(read_on.items()):
            over = sum(problem.items[i].num_chunks for i in items) - problem.nodes[n].num_chunks
            if over > 0:
                yield Shortage(n, over, tuple(items))


def fastest_paths(problem: PoolProblem, reader: int) -> dict[int, int]:
    """Return the fastest path of a reader on each link that it has a path on."""
    best: dict[int, int] = {}
    for p, path in enumerate(problem.paths):
        if path.reader == reader:
            known = best.get(path.link)
            if known is None or problem.paths[known].bytes_per_s < path.bytes_per_s:
                best[path.link] = p
    return best


def pool_bound(problem: PoolProblem) -> tuple[Fraction, ...] | None:
    """Return goals that no plan is below, each for itself; None where something cannot be read.

    What a node's tasks read beyond its chunks is elsewhere. It comes over the node's links at the
    same time, on each at best over its fastest path, chunk by chunk.
    """
    slowest, remote = Fraction(0), dict[int, int]()
    for short in shortages(problem):
        remote[short.node] = max(remote.get(short.node, 0), short.num_chunks)
    for node, num_chunks in remote.items():
        fastest = fastest_paths(problem, node)
        if not fastest:
            return None
        seconds = {link: problem.chunk_s(p) for link, p in fastest.items()}
        slowest = max(slowest, _least_time(seconds, num_chunks))
    found = {
        "slowest_read": slowest,
        "remote_bytes": Fraction(sum(remote.values()) * problem.chunk_bytes),
    }
    return tuple(found[goal] for goal in problem.goals)


def _least_time(seconds: Mapping[int, Fraction], num_chunks: int) -> Fraction:
    """Return the least time in which links that take so long a chunk bring so many together."""
    rate = sum((1 / each for each in seconds.values()), Fraction(0))
    fluid_s = num_chunks / rate
    # within the fluid time each link brings this many; the few left are dealt one by one
    brought = {link: int(fluid_s / each) for link, each in seconds.items()}
    latest = max((n * seconds[link] for link, n in brought.items()), default=Fraction(0))
    queue = [((n + 1) * seconds[link], link) for link, n in brought.items()]
    heapq.heapify(queue)
    for _ in range(num_chunks - sum(brought.values())):
        latest, link = heapq.heappop(queue)
        heapq.heappush(queue, (latest + seconds[link], link))
    return latest


def why_nothing_fits(problem: PoolProblem) -> str | None:
    """Return what makes every plan break a rule, as far as that is plain; None if nothing is."""
    chunk = problem.chunk_bytes
    room = sum(node.num_chunks for node in problem.nodes)
    sums = (sum(problem.items[i].num_chunks for i in held) for _, held in problem.moments)
    most = max(sums, default=0)
    if most > room:
        return (
            f"the items take {most * chunk:,} B, all nodes together hold {room * chunk:,} B: "
            f"{(most - room) * chunk:,} B are short"
        )
    return (
        _pinned_short(problem)
        or _unreachable(problem)
        or next((text for short in shortages(problem) if (text := _unlent(problem, short))), None)
        or next((text for short in shortages(problem) if (text := _slow(problem, short))), None)
    )


def _pinned_short(problem: PoolProblem) -> str | None:
    for _, held in problem.moments:
        pinned = [0] * len(problem.nodes)
        for i in held:
            pinned[problem.items[i].home] += problem.items[i].pinned_chunks
        for node, count in zip(problem.nodes, pinned, strict=True):
            if count > node.num_chunks:
                size = (count - node.num_chunks) * problem.chunk_bytes
                return f"what is pinned to {node.name} is {size:,} B more than it holds"
    return None


def _unreachable(problem: PoolProblem) -> str | None:
    """An item whose readers reach too little memory, be there nothing else in it."""
    joined = {(path.reader, path.lender) for path in problem.paths}
    for item in problem.items:
        room = 0
        for n, node in enumerate(problem.nodes):
            if all(r == n or (r, n) in joined for r in item.readers):
                lent = None if n == item.home else node.max_lent_chunks
                room += node.num_chunks if lent is None else min(node.num_chunks, lent)
        if room < item.num_chunks:
            size = (item.num_chunks - room) * problem.chunk_bytes
            return (
                f"the readers of {item.name!r} reach too little memory that may be lent: "
                f"{size:,} B are short"
            )
    return None


def _unlent(problem: PoolProblem, short: Shortage) -> str | None:
    """What a node must have elsewhere is more than all nodes that it reaches may lend it."""
    homes = {problem.items[i].home for i in short.items}
    room = 0
    for m in {path.lender for path in problem.paths if path.reader == short.node}:
        node = problem.nodes[m]
        is_limited = m not in homes and node.max_lent_chunks is not None
        most = node.max_lent_chunks if is_limited else None
        room += node.num_chunks if most is None else min(node.num_chunks, most)
    over = short.num_chunks - room
    if over <= 0:
        return None
    chunk, name = problem.chunk_bytes, problem.nodes[short.node].name
    return (
        f"{name} needs {short.num_chunks * chunk:,} B more than it holds, and reaches "
        f"{room * chunk:,} B that may be lent: {over * chunk:,} B are short"
    )


def _slow(problem: PoolProblem, short: Shortage) -> str | None:
    """What a node must read from elsewhere arrives faster than all its links bring it."""
    left, rate = short.num_chunks, Fraction(0)
    for i in sorted(short.items, key=lambda i: problem.items[i].reads_per_s):
        item = problem.items[i]
        is_home = item.home == short.node
        far = min(left, item.num_chunks - (item.pinned_chunks if is_home else 0))
        left -= far
        rate += far * item.reads_per_s * problem.chunk_bytes
    fastest = fastest_paths(problem, short.node).values()
    brought = sum((problem.paths[p].bytes_per_s for p in fastest), Fraction(0))
    if rate <= brought:
        return None
    name = problem.nodes[short.node].name
    return (
        f"{name} must read {short.num_chunks * problem.chunk_bytes:,} B from elsewhere, "
        f"{float(rate):.6g} B/s, and its paths bring {float(brought):.6g} B/s: a queue grows"
    )
