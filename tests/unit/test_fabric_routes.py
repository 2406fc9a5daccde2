"""Every built fabric against routes that are worked out card by card, on random small topologies.

The routes below know nothing of link numbers and legs: they follow the documented rules and return
parts of a message as (share, names of the nodes passed).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from instances.topology import Topology
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.fabrics.paths import path

READER: TypeAdapter[Any] = TypeAdapter(Topology)
FABRICS_PER_KIND = 40
Parts = list[tuple[Fraction, list[str]]]
ONE = Fraction(1)
FIXED = ("start_s", "hop_latency_s")


def dealt(total: int, places: int) -> list[int]:
    """Deal `total` things to places one by one."""
    counts = [0] * places
    for thing in range(total):
        counts[thing % places] += 1
    return counts


def switched_route(data: Any, a: int, b: int) -> Parts:
    ports = dealt(data["ports_per_card"], data["num_switches"])
    return [
        (Fraction(count, sum(ports)), [f"card {a}", f"switch {chip}", f"card {b}"])
        for chip, count in enumerate(ports)
    ]


def leaf_spine_route(data: Any, a: int, b: int) -> Parts:
    parts: Parts = []
    ports = dealt(data["ports_per_card"], data["num_planes"])
    start, end = a // data["cards_per_leaf"], b // data["cards_per_leaf"]
    for plane, count in enumerate(ports):
        share = Fraction(count, sum(ports))
        first = [f"card {a}", f"leaf {start} of plane {plane}"]
        last = [f"leaf {end} of plane {plane}", f"card {b}"]
        if start == end:
            parts.append((share, [*first, last[1]]))
        elif not data["num_spines"]:
            parts.append((share, first + last))
        elif data["routing"] == "by_destination":
            middle = f"spine {b % data['num_spines']} of plane {plane}"
            parts.append((share, [*first, middle, *last]))
        else:
            wires = dealt(data["up_ports"], data["num_spines"])
            for spine, some in enumerate(wires):
                middle = f"spine {spine} of plane {plane}"
                parts.append((share * some / sum(wires), [*first, middle, *last]))
    return parts


def torus_route(data: Any, a: int, b: int) -> Parts:
    extents = data["extents"]

    def place(card: int) -> list[int]:
        found = []
        for extent in extents:
            found.append(card % extent)
            card //= extent
        return found

    def number(at: list[int]) -> int:
        return sum(x * int(np.prod(extents[:d])) for d, x in enumerate(at))

    parts: Parts = [(ONE, [f"card {a}"])]
    here, goal = place(a), place(b)
    for d, extent in enumerate(extents):
        ahead = (goal[d] - here[d]) % extent
        ways = [w for w in (1, -1) if w * ahead % extent == min(ahead, extent - ahead) % extent]
        if not ahead:
            continue
        longer: Parts = []
        for way in ways:
            at, names = list(here), []
            while at[d] != goal[d]:
                at[d] = (at[d] + way) % extent
                names.append(f"card {number(at)}")
            longer += [(share / len(ways), [*nodes, *names]) for share, nodes in parts]
        parts, here[d] = longer, goal[d]
    return parts


def shortest(near: dict[int, dict[int, int]], a: int, b: int) -> list[int]:
    """Go from a to b by fewest steps, on to the most cables, else to the lowest number."""
    apart = {b: 0}
    queue = [b]
    for node in queue:
        for other in near[node]:
            if other not in apart:
                apart[other] = apart[node] + 1
                queue.append(other)
    way = [a]
    while way[-1] != b:
        options = [n for n in near[way[-1]] if apart[n] == apart[way[-1]] - 1]
        way.append(min(options, key=lambda n: (-near[way[-1]][n], n)))
    return way


def joined(num_nodes: int, links: Iterable[Iterable[int]]) -> dict[int, dict[int, int]]:
    near: dict[int, dict[int, int]] = {node: {} for node in range(num_nodes)}
    for a, b, *count in links:
        near[a][b] = near[b][a] = count[0] if count else 1
    return near


def mesh_route(data: Any, a: int, b: int) -> Parts:
    near = joined(data["num_cards"], data["links"])
    return [(ONE, [f"card {card}" for card in shortest(near, a, b)])]


def numa_route(data: Any, a: int, b: int) -> Parts:
    nodes = data["numa_nodes"]
    everyone = [(i, j) for i in range(len(nodes)) for j in range(i)]
    near = joined(len(nodes), data.get("socket_links") or everyone)
    home = {card: number for number, cards in enumerate(nodes) for card in cards}
    buffer = {"sender": home[a], "receiver": home[b]}.get(data["buffers"], data["buffers"])
    way = shortest(near, home[a], buffer) + shortest(near, buffer, home[b])[1:]
    return [(ONE, [f"card {a}", *(f"NUMA node {n}" for n in way), f"card {b}"])]


def servers_route(data: Any, a: int, b: int) -> Parts:
    inner, nics = data["server"], data["nics_per_server"]
    each = READER.validate_python(inner).num_cards
    (start, a), (end, b) = divmod(a, each), divmod(b, each)
    if start == end:
        parts = ROUTES[inner["kind"]](inner, a, b)
        return [(share, [f"server {start} {n}" for n in names]) for share, names in parts]
    lanes = max(1, nics // each)
    gates = "exit_bandwidth_bytes_per_s" in data
    found: Parts = []
    for lane in range(lanes):
        one, two = a * nics // each + lane, b * nics // each + lane
        names = [f"server {start} card {a}", f"server {start} adapter {one}"]
        names += [f"server {start} exit"] if gates else []
        names += ["network"]
        names += [f"server {end} exit"] if gates else []
        names += [f"server {end} adapter {two}", f"server {end} card {b}"]
        found.append((Fraction(1, lanes), names))
    return found


ROUTES: dict[str, Callable[[Any, int, int], Parts]] = {
    "switched": switched_route,
    "leaf_spine": leaf_spine_route,
    "torus": torus_route,
    "mesh": mesh_route,
    "numa": numa_route,
    "servers": servers_route,
}


def draw_links(rng: random.Random, nodes: int, more: int) -> list[list[int]]:
    """Draw a connected graph: every node to an earlier one, and some pairs on top."""
    pairs = {(rng.randrange(node), node) for node in range(1, nodes)}
    for _ in range(more):
        a, b = rng.randrange(nodes), rng.randrange(nodes)
        if a != b:
            pairs.add((min(a, b), max(a, b)))
    return [list(pair) for pair in sorted(pairs)]


def draw(rng: random.Random, kind: str) -> dict[str, Any]:
    speed = f"{rng.randint(1, 100)}GB/s"
    data: dict[str, Any] = {"kind": kind, "name": kind}
    fixed = ("nic_start_s", "network_latency_s") if kind == "servers" else FIXED
    data |= {field: f"{rng.choice([0, 3, 7])}/3us" for field in fixed}
    if kind == "switched":
        chips = rng.randint(1, 4)
        data |= {"num_cards": rng.randint(2, 9), "num_switches": chips, "ports_per_switch": 99}
        return data | {
            "ports_per_card": chips + rng.randint(0, 5),
            "port_bandwidth_bytes_per_s": speed,
        }
    if kind == "leaf_spine":
        leaves, planes, spines = rng.randint(2, 4), rng.randint(1, 3), rng.randint(0, 3)
        up = spines + rng.randint(0, 4) if spines else (leaves - 1) * rng.randint(1, 3)
        data |= {"num_leaves": leaves, "num_planes": planes, "num_spines": spines, "up_ports": up}
        data |= {"cards_per_leaf": rng.randint(1, 3), "ports_per_card": planes + rng.randint(0, 3)}
        data |= {"routing": rng.choice(["spread", "by_destination"]), "ports_per_switch": 99}
        return data | {"port_bandwidth_bytes_per_s": speed}
    if kind == "torus":
        extents = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        extents[0] = max(extents[0], 2)
        return data | {"extents": extents, "link_bandwidth_bytes_per_s": speed}
    if kind == "mesh":
        cards = rng.randint(2, 10)
        links = [[*pair, rng.randint(1, 3)] for pair in draw_links(rng, cards, rng.randint(0, 12))]
        return data | {"num_cards": cards, "links": links, "link_bandwidth_bytes_per_s": speed}
    if kind == "numa":
        nodes, cards = rng.randint(1, 4), rng.randint(2, 8)
        homes = [rng.randrange(nodes) for _ in range(cards)]
        data["numa_nodes"] = [[c for c in range(cards) if homes[c] == n] for n in range(nodes)]
        data["buffers"] = rng.choice(["sender", "receiver", rng.randrange(nodes)])
        if rng.random() < 0.6:
            data["socket_links"] = draw_links(rng, nodes, rng.randint(0, 2))
        return data | {"pcie_bandwidth_bytes_per_s": speed, "socket_bandwidth_bytes_per_s": speed}
    inner = draw(rng, rng.choice(["switched", "leaf_spine", "torus", "mesh", "numa"]))
    each = READER.validate_python(inner).num_cards
    nics = rng.choice([n for n in range(1, 2 * each + 1) if not (n % each and each % n)])
    data |= {"server": inner, "num_servers": rng.randint(1, 3), "nics_per_server": nics}
    if rng.random() < 0.4:
        data["exit_bandwidth_bytes_per_s"] = speed
    return data | {"nic_bandwidth_bytes_per_s": speed}


def by_names(fabric: Fabric, loads: np.ndarray) -> dict[tuple[str, str], Fraction]:
    """Add up the loads of links between the same nodes."""
    found: dict[tuple[str, str], Fraction] = Counter()  # type: ignore[assignment]
    ends = zip(fabric.links.tails.tolist(), fabric.links.heads.tolist(), strict=True)
    for (tail, head), load in zip(ends, loads.tolist(), strict=True):
        if load:
            name = fabric.node_names[tail], fabric.node_names[head]
            found[name] += Fraction(load, fabric.split)
    return dict(found)


def check_path(fabric: Fabric, a: int, b: int, parts: Parts) -> None:
    """Check that steps go on where the last ones ended, carry all, and match the parts."""
    stages: list[list[Any]] = []
    for step in path(fabric, a, b):
        if step.stage == len(stages):
            stages.append([])
        stages[step.stage].append(step)
        assert fabric.links.tails[step.link] == step.tail
        assert fabric.links.heads[step.link] == step.head
    at = Counter({a: ONE})
    for stage in stages:
        assert sum(step.share for step in stage) == 1
        leaves, arrives = Counter(), Counter()
        for step in stage:
            leaves[step.tail] += step.share
            arrives[step.head] += step.share
        assert leaves == at
        at = arrives
    assert at == Counter({b: ONE})
    wanted: Counter[tuple[int, str, str]] = Counter()
    for share, names in parts:
        for number, (tail, head) in enumerate(pairwise(names)):
            wanted[number, tail, head] += share
    found: Counter[tuple[int, str, str]] = Counter()
    for step in path(fabric, a, b):
        names = fabric.node_names[step.tail], fabric.node_names[step.head]
        found[step.stage, *names] += step.share
    assert found == wanted


def fixed_s(fabric: Fabric, a: int, b: int) -> Fraction:
    """Return the largest start on a path, and the latency of every link but the first."""
    classes, kinds = fabric.links.classes, fabric.links.class_of
    steps = path(fabric, a, b)
    start = max(classes[kinds[step.link]].start_s for step in steps)
    later = [step for step in steps if step.stage]
    return start + sum(step.share * classes[kinds[step.link]].latency_s for step in later)


@pytest.mark.parametrize("kind", ROUTES)
def test_paths_and_loads_are_those_of_the_documented_rules(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(FABRICS_PER_KIND):
        data = draw(rng, kind)
        fabric = build_fabric(READER.validate_python(data))
        pairs = [p for p in product(range(fabric.num_cards), repeat=2) if p[0] != p[1]]
        messages = rng.choices(pairs, k=30)
        units = [rng.randint(0, 1000) for _ in messages]
        wanted: Counter[tuple[str, str]] = Counter()
        for (a, b), size in zip(messages, units, strict=True):
            parts = ROUTES[kind](data, a, b)
            check_path(fabric, a, b, parts)
            for share, names in parts:
                for ends in pairwise(names):
                    wanted[ends] += size * share
        senders, receivers = np.array(messages).T
        loads = fabric.loads(senders, receivers, np.array(units))
        # some kinds add up what takes the same way before they follow it
        one_by_one = Fabric.loads(fabric, senders, receivers, np.array(units))
        assert loads.tolist() == one_by_one.tolist()
        assert by_names(fabric, loads) == {ends: load for ends, load in wanted.items() if load}
        slowest = max(fixed_s(fabric, a, b) for a, b in messages)
        assert fabric.fixed_s(senders, receivers) == slowest
        hops = [len(ROUTES[kind](data, a, b)[0][1]) - 1 for a, b in messages]
        assert fabric.hops(senders, receivers).tolist() == [n * fabric.split for n in hops]
        assert (Fabric.hops(fabric, senders, receivers) == fabric.hops(senders, receivers)).all()


@pytest.mark.parametrize("kind", ROUTES)
def test_links_come_in_pairs_as_many_as_the_topology_says(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(FABRICS_PER_KIND):
        topology = READER.validate_python(draw(rng, kind))
        links = build_fabric(topology).links
        assert len(links) == 2 * topology.num_link_pairs
        columns = links.tails, links.heads, links.wires
        there = Counter(zip(*(c.tolist() for c in columns), strict=True))
        assert there == Counter({(b, a, w): count for (a, b, w), count in there.items()})
        assert all(not column.flags.writeable for column in (*columns, links.class_of))
