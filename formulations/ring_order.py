"""A ring of cards over NUMA nodes, and its buffers, as integer programs (ring_order.md).

Links see nodes, not cards. So the programs count messages between nodes, and a closed walk over
the nodes names the cards afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import IntegerProgram, ProgramOutcome, solve_program
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.ring_order.problem import RingOrder, RingProblem, SocketLink

#: More kinds of messages than this and the formulation declines.
MAX_KINDS = 20_000


@dataclass(frozen=True, slots=True)
class RingOutcome:
    """How a solve ended: a ring, its busiest link's time, and a bound on that of all rings; s.

    `socket_bytes` are the bytes on all socket links of the ring, and `socket_bytes_bound` a bound
    on those of all rings with the same time. An optimum meets both bounds.
    """

    termination: Termination
    ring: RingOrder | None = None
    value: Fraction | None = None
    bound: Fraction | None = None
    socket_bytes: int | None = None
    socket_bytes_bound: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """Messages between cards of two nodes over one buffer; how often one takes each link."""

    sender: int
    receiver: int
    buffer: int
    uses: tuple[int, ...]

    @property
    def num_hops(self) -> int:
        """Socket links that a message takes."""
        return sum(self.uses)


@dataclass(frozen=True, slots=True)
class RingModel:
    """A program with its kinds of messages; the variable of a kind has the kind's index."""

    problem: RingProblem
    kinds: tuple[Kind, ...]
    program: IntegerProgram

    @property
    def num_cards(self) -> dict[int, int]:
        """Cards of each node that has some."""
        nodes = self.problem.card_nodes
        return {node: nodes.count(node) for node in sorted(set(nodes))}


@dataclass(frozen=True, slots=True)
class Limits:
    """How a solver is asked."""

    backend: str
    deadline: float
    threads: int
    seed: int
    stop: threading.Event | None

    def solve(self, program: IntegerProgram) -> ProgramOutcome:
        """Solve; a claim that there is no ring raises MismatchError."""
        found = solve_program(
            program,
            self.backend,
            deadline=self.deadline,
            threads=self.threads,
            seed=self.seed,
            stop=self.stop,
        )
        if found.termination is Termination.INFEASIBLE:
            raise MismatchError(f"{self.backend} says that no ring exists")
        return found


def solve_ring_order(
    problem: RingProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> RingOutcome:
    """Order the ring; `deadline` is a `time.monotonic()` value. Raises as `solve_program` does."""
    if not problem.num_messages:
        return RingOutcome(Termination.OPTIMAL, RingOrder((0,), ()), Fraction(0), Fraction(0), 0, 0)
    limits = Limits(backend, deadline, threads, seed, stop)
    kinds = message_kinds(problem)
    times = candidate_times_s(problem, kinds)
    m = build_time_model(problem, kinds, times)
    found = limits.solve(m.program)
    bound = None if found.bound is None else times[max(found.bound, 0)]
    if found.values is None:
        return RingOutcome(found.termination, bound=bound)
    ring, value, hops = read_ring(m, found.values)
    if found.termination is not Termination.OPTIMAL:
        socket_bytes = hops * problem.ring_bytes
        return RingOutcome(Termination.FEASIBLE, ring, value, bound, socket_bytes)
    if value != bound:
        raise MismatchError(f"{backend} claims {bound} s, the busiest link takes {value} s")
    return with_fewest_bytes(problem, kinds, value, (ring, hops), limits)


def with_fewest_bytes(
    problem: RingProblem,
    kinds: tuple[Kind, ...],
    time_s: Fraction,
    known: tuple[RingOrder, int],
    limits: Limits,
) -> RingOutcome:
    """Keep the least time and ask for the fewest bytes on socket links; `known` is ring, hops."""
    m = build_bytes_model(problem, kinds, time_s)
    found = limits.solve(m.program)
    (ring, hops), least = known, found.bound
    if found.values is not None:
        other, value, num_hops = read_ring(m, found.values)
        if value != time_s:
            raise MismatchError(f"{limits.backend} keeps {time_s} s, its ring takes {value} s")
        if num_hops != found.objective:
            raise MismatchError(
                f"{limits.backend} claims {found.objective} hops, its ring has {num_hops}"
            )
        if num_hops < hops:
            ring, hops = other, num_hops
    is_proven = least is not None and least >= hops
    return RingOutcome(
        Termination.OPTIMAL if is_proven else Termination.FEASIBLE,
        ring,
        time_s,
        time_s,
        hops * problem.ring_bytes,
        None if least is None else min(max(least, 0), hops) * problem.ring_bytes,
    )


def message_kinds(problem: RingProblem) -> tuple[Kind, ...]:
    """Return what messages there can be, without those that another buffer always beats.

    A buffer is left out if another one makes the message take no link more often; of equal ones
    the first stays. Raises TooLargeError.
    """
    onward = next_nodes(problem)
    nodes = sorted(set(problem.card_nodes))
    if len(nodes) ** 2 * len(problem.buffers) > MAX_KINDS:
        raise TooLargeError(f"more than {MAX_KINDS} kinds of messages between NUMA nodes")
    kinds: list[Kind] = []
    for p in nodes:
        for q in nodes:
            if p == q and problem.card_nodes.count(p) == 1:
                continue
            found: list[Kind] = []
            for policy in problem.buffers:
                near = p if policy == "sender" else q
                buffer = policy if isinstance(policy, int) else near
                uses = link_uses(problem, onward, (p, buffer, q))
                if any(all(a <= b for a, b in zip(k.uses, uses, strict=True)) for k in found):
                    continue
                found = [k for k in found if any(a < b for a, b in zip(k.uses, uses, strict=True))]
                found.append(Kind(p, q, buffer, uses))
            kinds += found
    return tuple(kinds)


def next_nodes(problem: RingProblem) -> dict[tuple[int, int], int]:
    """Return for each two nodes the next one on the way from the first to the second.

    It is the lowest-numbered one from which the rest of the way is shortest: distances come first
    (Floyd and Warshall), ways from them.
    """
    nodes = range(problem.num_nodes)
    joined = {(link.start, link.end) for link in problem.links}
    far = problem.num_nodes
    hops = {(p, q): 0 if p == q else 1 if (p, q) in joined else far for p in nodes for q in nodes}
    for via in nodes:
        for p in nodes:
            for q in nodes:
                hops[p, q] = min(hops[p, q], hops[p, via] + hops[via, q])
    return {
        (p, q): min(n for n in nodes if (p, n) in joined and hops[n, q] == hops[p, q] - 1)
        for p in nodes
        for q in nodes
        if p != q
    }


def link_uses(
    problem: RingProblem, onward: dict[tuple[int, int], int], stops: tuple[int, int, int]
) -> tuple[int, ...]:
    """Return how often a message takes each link; its stops are sender, buffer and receiver."""
    number = {(link.start, link.end): i for i, link in enumerate(problem.links)}
    uses, at = [0] * len(problem.links), stops[0]
    for goal in stops[1:]:
        while at != goal:
            after = onward[at, goal]
            uses[number[at, after]] += 1
            at = after
    return tuple(uses)


def time_s(problem: RingProblem, num_uses: Sequence[int]) -> Fraction:
    """Return the time of the busiest link when messages take each socket link so often."""
    rates = [link.bytes_per_s for link in problem.links]
    times = [n * problem.ring_bytes / Fraction(r) for n, r in zip(num_uses, rates, strict=True)]
    return max([problem.ring_bytes / Fraction(problem.pcie_bytes_per_s), *times])


def candidate_times_s(problem: RingProblem, kinds: Sequence[Kind]) -> list[Fraction]:
    """Return every time that a best ring can have, least first.

    None is less than that of a card's PCIe link, none more than that of the cards in the order of
    their nodes, each message of the first kind that it can be.
    """
    least = problem.ring_bytes / Fraction(problem.pcie_bytes_per_s)
    first = {(k.sender, k.receiver): k.uses for k in reversed(kinds)}
    nodes = sorted(problem.card_nodes)
    ways = [first[ends] for ends in zip(nodes, [*nodes[1:], nodes[0]], strict=True)]
    most = time_s(problem, [sum(uses) for uses in zip(*ways, strict=True)])
    times = {least, most}
    for number, link in enumerate(problem.links):
        step = problem.ring_bytes / Fraction(link.bytes_per_s)
        highest = len(nodes) * max(k.uses[number] for k in kinds)
        times |= {n * step for n in range(1, min(highest, most // step) + 1)}
    return sorted(t for t in times if least <= t <= most)


def max_uses(problem: RingProblem, link: SocketLink, within_s: Fraction) -> int:
    """Return how often messages may take a link within a time.

    A message takes no link more than twice, once on the way to its buffer and once from there.
    """
    return min(int(within_s * link.bytes_per_s // problem.ring_bytes), 2 * problem.num_messages)


def build_ring(problem: RingProblem, kinds: tuple[Kind, ...], name: str) -> RingModel:
    """State what a ring is."""
    program = IntegerProgram(name)
    m = RingModel(problem, kinds, program)
    for k in kinds:
        most = min(m.num_cards[k.sender], m.num_cards[k.receiver])
        program.add_variable(f"messages[{k.sender},{k.receiver},{k.buffer}]", 0, most)
    define_cards(m)
    define_one_ring(m)
    return m


def build_time_model(
    problem: RingProblem, kinds: tuple[Kind, ...], times: Sequence[Fraction]
) -> RingModel:
    """State: which of the times is the least that all links keep?"""
    m = build_ring(problem, kinds, "ring_time")
    takes = [m.program.add_variable(f"takes[{rank}]", 0, 1) for rank in range(len(times))]
    m.program.add_row("one_time", dict.fromkeys(takes, 1), 1, 1)
    for number, link in enumerate(problem.links):
        allowed = {v: -max_uses(problem, link, t) for v, t in zip(takes, times, strict=True)}
        m.program.add_row(f"link[{number}]", uses_of(m, number) | allowed, None, 0)
    m.program.minimise({v: rank for rank, v in enumerate(takes)})
    return m


def build_bytes_model(
    problem: RingProblem, kinds: tuple[Kind, ...], within_s: Fraction
) -> RingModel:
    """State: how few socket links can messages take while every link keeps a time?"""
    m = build_ring(problem, kinds, "ring_bytes")
    for number, link in enumerate(problem.links):
        limit = max_uses(problem, link, within_s)
        m.program.add_row(f"link[{number}]", uses_of(m, number), None, limit)
    m.program.minimise({v: k.num_hops for v, k in enumerate(kinds)})
    return m


def uses_of(m: RingModel, number: int) -> dict[int, int]:
    """Terms that count how often messages take a link."""
    return {v: k.uses[number] for v, k in enumerate(m.kinds) if k.uses[number]}


def define_cards(m: RingModel) -> None:
    """Every card sends one message and receives one."""
    for node, num in m.num_cards.items():
        sent = {v: 1 for v, k in enumerate(m.kinds) if k.sender == node}
        received = {v: 1 for v, k in enumerate(m.kinds) if k.receiver == node}
        m.program.add_row(f"sent[{node}]", sent, num, num)
        m.program.add_row(f"received[{node}]", received, num, num)


def define_one_ring(m: RingModel) -> None:
    """Messages join all nodes: a flow from the first node brings one unit to each other one."""
    others = list(m.num_cards)[1:]
    flow: dict[tuple[int, int], int] = {}
    for p, q in sorted({(k.sender, k.receiver) for k in m.kinds if k.sender != k.receiver}):
        flow[p, q] = m.program.add_variable(f"flow[{p},{q}]", 0, len(others))
        messages = {
            v: -len(others) for v, k in enumerate(m.kinds) if (k.sender, k.receiver) == (p, q)
        }
        m.program.add_row(f"joined[{p},{q}]", messages | {flow[p, q]: 1}, None, 0)
    for node in others:
        arriving = {v: 1 for (_, q), v in flow.items() if q == node}
        leaving = {v: -1 for (p, _), v in flow.items() if p == node}
        m.program.add_row(f"reached[{node}]", arriving | leaving, 1, 1)


def read_ring(m: RingModel, values: Sequence[int]) -> tuple[RingOrder, Fraction, int]:
    """Return a ring with its time and the socket links that its messages take."""
    counted = [(k, n) for k, n in zip(m.kinds, values, strict=False) if n]
    links = range(len(m.problem.links))
    num_uses = [sum(n * k.uses[link] for k, n in counted) for link in links]
    return extract(m, values), time_s(m.problem, num_uses), sum(num_uses)


def extract(m: RingModel, values: Sequence[int]) -> RingOrder:
    """Walk over all messages once and back to the start; each visit of a node is its next card.

    Walks are joined where they meet (Hierholzer). Raises MismatchError if there is no such walk.
    """
    waiting: dict[int, list[Kind]] = {node: [] for node in m.num_cards}
    for kind, num in zip(m.kinds, values, strict=False):
        waiting[kind.sender] += [kind] * num
    start = m.problem.card_nodes[0]
    path: list[Kind] = []  # the walk, its last message first
    stack: list[tuple[int, Kind | None]] = [(start, None)]
    while stack:
        node, arrived_by = stack[-1]
        if waiting[node]:
            kind = waiting[node].pop()
            stack.append((kind.receiver, kind))
            continue
        stack.pop()
        if arrived_by is not None:
            path.append(arrived_by)
    path.reverse()
    if len(path) != m.problem.num_messages or path[0].sender != path[-1].receiver:
        raise MismatchError("the messages make no ring of all cards")
    cards = {
        node: iter([c for c, on in enumerate(m.problem.card_nodes) if on == node])
        for node in m.num_cards
    }
    return RingOrder(tuple(next(cards[k.sender]) for k in path), tuple(k.buffer for k in path))
