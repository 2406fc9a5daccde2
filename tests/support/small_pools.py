"""Pools written by hand, and plans of them, for test files of the decision "pool"."""

from __future__ import annotations

from fractions import Fraction

from optimizer.pooling.problem import Holding, Item, Lease, Node, Path, PoolPlan, PoolProblem

F = Fraction


def pool_of(
    nodes: list[int | tuple[int, int | None]],
    paths: list[tuple[int, int, object] | tuple[int, int, object, int]],
    items: list[Item],
    goals: tuple[str, ...] = ("slowest_read", "remote_bytes"),
    horizon_s: int | None = None,
) -> PoolProblem:
    """Chunks are of 1 B. Nodes are chunks, or (chunks, most lent); paths are (reader, lender,
    bytes a second, link), without a link they have their own.
    """
    made = []
    for n, node in enumerate(nodes):
        size, lent = node if isinstance(node, tuple) else (node, None)
        made.append(Node(f"n{n}", size, lent))
    shared: dict[int, int] = {}
    for _, _, _, *link in paths:
        if link:
            shared.setdefault(link[0], len(shared))
    own, found = len(shared), []
    for p, (reader, lender, speed, *link) in enumerate(paths):
        number = shared[link[0]] if link else own
        own += not link
        found.append(Path(f"p{p}", reader, lender, number, F(str(speed))))
    names = tuple(f"l{number}" for number in range(own))
    limit = None if horizon_s is None else F(horizon_s)
    return PoolProblem(tuple(made), names, tuple(found), tuple(items), 1, goals, limit)


def task(
    name: str,
    size: int,
    *readers: int,
    pinned: int = 0,
    rate: object = 0,
    held: tuple[int, int | None] = (0, None),
) -> Item:
    """An item of so many chunks; with several readers it is shared."""
    until = None if held[1] is None else F(held[1])
    mode = "shared" if len(readers) > 1 else "exclusive"
    return Item(name, size, readers, pinned, F(str(rate)), F(held[0]), until, mode)


def plan_of(
    problem: PoolProblem, *holdings: tuple[int, int, int] | tuple[int, int, int, int]
) -> PoolPlan:
    """Holdings are (item, node, chunks), or with the path of their one far reader."""
    found = []
    for item, node, count, *paths in holdings:
        data = problem.items[item]
        lease = None
        if paths:
            readers = tuple((problem.paths[p].reader, p) for p in paths)
            lease = Lease(data.mode, readers, data.from_s, data.until_s)
        found.append(Holding(item, node, count, lease))
    return PoolPlan(tuple(found))
