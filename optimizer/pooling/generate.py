"""Random small pools for tests: seeded, with limits that bind and some that nothing keeps."""

from __future__ import annotations

import random
from fractions import Fraction

from optimizer.pooling.problem import Item, Node, Path, PoolProblem

_GOALS = (
    ("slowest_read", "remote_bytes"),
    ("remote_bytes", "slowest_read"),
    ("slowest_read",),
    ("remote_bytes",),
)


def small_pool(seed: int) -> PoolProblem:
    """Return a pool of two to four nodes and one to four items of a few chunks each."""
    rng = random.Random(seed)
    num_nodes = rng.randint(2, 4)
    nodes = tuple(
        Node(f"n{n}", rng.randint(1, 8), rng.choice((None, None, 0, 2, 3, 4)))
        for n in range(num_nodes)
    )
    links = tuple(f"l{number}" for number in range(rng.randint(1, 4)))
    pairs = [(r, m) for r in range(num_nodes) for m in range(num_nodes) if r != m]
    chosen = [pair for pair in pairs if rng.random() < 0.9]
    if chosen and rng.random() < 0.4:
        chosen.append(rng.choice(chosen))  # two paths between the same nodes
    speeds = rng.choice(((1, 2, 4), (3, 5, 7), (10,)))
    paths = tuple(
        Path(f"p{p}", r, m, rng.randrange(len(links)), Fraction(rng.choice(speeds)))
        for p, (r, m) in enumerate(chosen)
    )
    has_times = rng.random() < 0.5
    items = tuple(_item(rng, i, num_nodes, has_times) for i in range(rng.randint(1, 4)))
    horizon_s = Fraction(10) if has_times else None
    return PoolProblem(nodes, links, paths, items, 10, rng.choice(_GOALS), horizon_s)


def _item(rng: random.Random, number: int, num_nodes: int, has_times: bool) -> Item:
    num_readers = rng.choice((1, 1, 1, 1, min(2, num_nodes), min(3, num_nodes)))
    readers = tuple(rng.sample(range(num_nodes), num_readers))
    num_chunks = rng.randint(0, 8)
    from_s, until_s = Fraction(0), None
    if has_times:
        from_s = Fraction(rng.choice((0, 0, 2, 5)))
        until_s = from_s + rng.choice((1, 3, 10 - from_s))
    return Item(
        name=f"i{number}",
        num_chunks=num_chunks,
        readers=readers,
        pinned_chunks=rng.choice((0, 0, 0, min(1, num_chunks), num_chunks // 2)),
        reads_per_s=Fraction(rng.choice((0, 0, 0, 1, 2, 3)), rng.choice((20, 30, 40))),
        from_s=from_s,
        until_s=until_s,
        mode="exclusive" if num_readers == 1 else "shared",
    )
