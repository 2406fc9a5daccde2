"""Largest flows and least cuts between two nodes, exactly."""

from __future__ import annotations

from collections.abc import Mapping


def least_cut(
    num_nodes: int, capacities: Mapping[tuple[int, int], int], source: int, sink: int
) -> tuple[int, frozenset[int]]:
    """Return the capacity of a least cut between `source` and `sink`, and the source's side of it.

    `capacities` are of directed pairs of nodes 0..num_nodes-1. Of several least cuts it is the one
    with the smallest side of the source. Largest flow by Dinic's method: rounds of shortest
    augmenting paths.
    """
    heads: list[int] = []
    room: list[int] = []
    edges: list[list[int]] = [[] for _ in range(num_nodes)]
    for (tail, head), capacity in capacities.items():
        for end, other, size in ((tail, head, capacity), (head, tail, 0)):
            edges[end].append(len(heads))
            heads.append(other)
            room.append(size)
    total = 0
    while True:
        level = _levels(edges, heads, room, source)
        if level[sink] < 0:
            return total, frozenset(node for node in range(num_nodes) if level[node] >= 0)
        total += _blocking_flow(edges, heads, room, level, source, sink)


def _levels(edges: list[list[int]], heads: list[int], room: list[int], source: int) -> list[int]:
    """Return how many edges with room lead from the source to each node, -1 for no way."""
    level = [-1] * len(edges)
    level[source] = 0
    reached = [source]
    for node in reached:
        for edge in edges[node]:
            if room[edge] and level[heads[edge]] < 0:
                level[heads[edge]] = level[node] + 1
                reached.append(heads[edge])
    return level


def _blocking_flow(
    edges: list[list[int]],
    heads: list[int],
    room: list[int],
    level: list[int],
    source: int,
    sink: int,
) -> int:
    """Push flow along shortest ways until none of this length has room; return how much."""
    total, node = 0, source
    tried = [0] * len(edges)
    way: list[int] = []
    while True:
        if node == sink:
            size = min(room[edge] for edge in way)
            for edge in way:
                room[edge] -= size
                room[edge ^ 1] += size
            total += size
            full = next(place for place, edge in enumerate(way) if not room[edge])
            node = heads[way[full] ^ 1]
            del way[full:]
        while tried[node] < len(edges[node]):
            edge = edges[node][tried[node]]
            if room[edge] and level[heads[edge]] == level[node] + 1:
                way.append(edge)
                node = heads[edge]
                break
            tried[node] += 1
        else:
            if not way:
                return total
            node = heads[way.pop() ^ 1]
            tried[node] += 1
