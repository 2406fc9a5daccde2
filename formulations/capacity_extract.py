"""From values of the capacity program to a plan in counts of kinds."""

from __future__ import annotations

from collections.abc import Sequence

from formulations.capacity_rows import CapacityModel
from optimizer.capacity.loads import dealt_loads
from optimizer.capacity.plan import CapacityPlan, GroupLoad, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem

#: Equal servers while they are filled: number, room left (cards, or slots by size), contents.
_Servers = tuple[int, dict[int, int], tuple[tuple[int, int], ...]]


def extract(m: CapacityModel, values: Sequence[int]) -> CapacityPlan:
    """Return the plan; sessions beyond those taken are left out."""
    servers: list[ServerFill] = []
    for j in m.problem.classes:
        blocks = [(k, values[v]) for k, v in m.on_class(m.instances, j)]
        spans = [(k, values[v]) for k, v in m.on_class(m.whole, j)]
        layouts = None
        if j.index in m.layouts:
            sizes = sorted({m.problem.options[k].cards_per_server for k, _ in blocks})
            layouts = [
                (values[v], dict(zip(sizes, slots, strict=True))) for slots, v in m.layouts[j.index]
            ]
        servers += class_fills(m.problem, j.index, values[m.used[j.index]], blocks, spans, layouts)
    racks: list[RackFill] = []
    if m.problem.is_purchase:
        for s in range(len(m.problem.sites)):
            fills = [(one, values[v]) for one, v in m.fills[s]] if s in m.fills else None
            racks += site_fills(m.problem, s, servers, fills)
    loads = [_loads(m, values, e) for e in range(len(m.served))]
    return CapacityPlan(tuple(racks), tuple(servers), loads[0], tuple(loads[1:]))


def _loads(m: CapacityModel, values: Sequence[int], e: int) -> tuple[GroupLoad, ...]:
    chosen = [
        (k, m.loads[k].loads[v], values[variable])
        for k in m.loads
        for v, variable in m.units[e, k].items()
    ]
    return dealt_loads(m.problem, chosen, [values[v] for v in m.served[e]])


def class_fills(
    problem: CapacityProblem,
    j: int,
    used: int,
    blocks: Sequence[tuple[int, int]],
    spans: Sequence[tuple[int, int]],
    layouts: Sequence[tuple[int, dict[int, int]]] | None = None,
) -> list[ServerFill]:
    """Pack (option, instances) on the servers of a class, largest first; equal servers together.

    Without layouts sizes must divide each other, so that nothing is wasted.
    """
    fills = [ServerFill(j, number, (), k) for k, number in spans if number]
    left = used - sum(fill.count for fill in fills)
    options = problem.options
    if layouts is None:
        free = problem.classes[j].free_cards
        groups: list[_Servers] = [(left, {0: free}, ())]
    else:
        groups = [(number, slots, ()) for number, slots in layouts if number]
        idle = left - sum(number for number, _, _ in groups)
        groups += [(idle, {}, ())] if idle else []
    for k, number in sorted(blocks, key=lambda item: -options[item[0]].cards_per_server):
        if number:
            groups = _placed(groups, k, options[k].cards_per_server, number, layouts is not None)
    merged: dict[tuple[tuple[int, int], ...], int] = {}
    for count, _, contents in groups:
        if count and (contents or problem.is_purchase):
            merged[contents] = merged.get(contents, 0) + count
    return fills + [ServerFill(j, count, contents) for contents, count in merged.items()]


def _placed(
    groups: Sequence[_Servers], k: int, size: int, number: int, by_slots: bool
) -> list[_Servers]:
    """Put `number` instances of one size on servers, as many on each as fit."""
    placed: list[_Servers] = []
    for count, room, contents in groups:
        fit = room.get(size, 0) if by_slots else room[0] // size
        each = min(fit, number)
        full = min(count, number // each) if each else 0
        rest = min(number - full * each, fit) if full < count and each else 0
        for servers, here in ((full, each), (1 if rest else 0, rest)):
            if servers and here:
                key, taken = (size, here) if by_slots else (0, here * size)
                left = {**room, key: room[key] - taken}
                placed.append((servers, left, (*contents, (k, here))))
                number -= servers * here
                count -= servers
        if count:
            placed.append((count, room, contents))
    if number:
        raise ValueError(f"{number} instances of option {k} do not fit on their servers")
    return placed


def site_fills(
    problem: CapacityProblem,
    s: int,
    servers: Sequence[ServerFill],
    fills: Sequence[tuple[dict[int, int], int]] | None,
) -> list[RackFill]:
    """Put the servers of a site into its racks, equal racks together."""
    site = problem.sites[s]
    left = {j.index: 0 for j in problem.classes if j.site == s}
    for fill in servers:
        if fill.server_class in left:
            left[fill.server_class] += fill.count
    left = {j: number for j, number in left.items() if number}
    if not left:
        return []
    if fills is None and site.count == 1:
        return [RackFill(s, 1, tuple(left.items()))]
    if fills is None:
        pool = problem.classes[next(iter(left))].pool
        fills = [({pool: problem.rack_holds(s, pool)}, site.count)]
    found: list[RackFill] = []
    for pattern, number in fills:
        while number and left:
            rack = _rack(problem, pattern, left)
            if not rack:
                break
            alike = min([number, *(left[j] // n for j, n in rack.items())])
            found.append(RackFill(s, alike, tuple(rack.items())))
            number -= alike
            left = {j: n - alike * rack.get(j, 0) for j, n in left.items()}
            left = {j: n for j, n in left.items() if n}
    return found


def _rack(
    problem: CapacityProblem, pattern: dict[int, int], left: dict[int, int]
) -> dict[int, int]:
    """Return servers of each class for one rack, no more of a pool than its pattern says."""
    room, rack = dict(pattern), dict[int, int]()
    for j, number in left.items():
        pool = problem.classes[j].pool
        taken = min(room.get(pool, 0), number)
        if taken:
            rack[j] = taken
            room[pool] -= taken
    return rack
