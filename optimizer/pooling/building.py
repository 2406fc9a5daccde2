"""The data of a pool from an instance (6.6)."""

from __future__ import annotations

import math
from fractions import Fraction

from instances.instance import Instance
from instances.pooling import PoolItem
from optimizer.pooling.problem import Item, Node, Path, PoolProblem
from optimizer.windows import usable_bytes_per_s


def pool_problem(instance: Instance) -> PoolProblem:
    """Return the data of the instance's pool: whole chunks, and paths as fast as 6-12 allows."""
    pool = instance.pool
    assert pool is not None
    chunk = pool.chunk_bytes
    nodes = tuple(
        Node(
            node.name,
            node.capacity_bytes // chunk,
            None if node.max_lent_bytes is None else node.max_lent_bytes // chunk,
        )
        for node in pool.nodes
    )
    number = {node.name: n for n, node in enumerate(nodes)}
    links: dict[tuple[str, bool], int] = {}  # a path's own link may bear the name of a shared one
    paths = []
    for path in pool.paths:
        key = (path.label, False) if path.link is None else (path.link, True)
        link = links.setdefault(key, len(links))
        speed = usable_bytes_per_s(path.access)
        paths.append(Path(path.label, number[path.reader], number[path.lender], link, speed))
    items = tuple(_item(item, number, chunk, pool.horizon_s) for item in pool.items)
    names = tuple(name for name, _ in links)
    return PoolProblem(nodes, names, tuple(paths), items, chunk, pool.goals, pool.horizon_s)


def _item(item: PoolItem, number: dict[str, int], chunk: int, horizon_s: Fraction | None) -> Item:
    return Item(
        name=item.name,
        num_chunks=math.ceil(Fraction(item.bytes, chunk)),
        readers=tuple(number[reader] for reader in item.readers),
        pinned_chunks=math.ceil(Fraction(item.pinned_bytes, chunk)),
        reads_per_s=item.reads_per_s,
        from_s=item.from_s or Fraction(0),
        until_s=item.until_s or horizon_s,
        mode=item.lease,
    )
