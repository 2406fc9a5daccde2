"""Exact account of a ring of cards over NUMA nodes (6.5.1)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.evaluation import Violation
from optimizer.ring_order.problem import RingOrder, RingProblem

#: What is to be least: seconds of the busiest link, then bytes on all socket links.
RingValue = tuple[Fraction, int]


@dataclass(frozen=True, slots=True)
class RingMessage:
    """One message: its cards, its buffer's node, and the nodes that it is written and read over."""

    sender: int
    receiver: int
    buffer: int
    written_over: tuple[int, ...]
    read_over: tuple[int, ...]

    @property
    def hops(self) -> Iterator[tuple[int, int]]:
        """Socket links on the way, as pairs of nodes; a link that is taken twice comes twice."""
        yield from itertools.pairwise(self.written_over)
        yield from itertools.pairwise(self.read_over)


@dataclass(frozen=True, slots=True)
class RingEvaluation:
    """Account of a ring; empty when the order is no ring of the cards or a buffer is on no node.

    `socket_loads_bytes` has one entry for each socket link, in the order of the problem;
    `to_host_bytes` and `from_host_bytes` are what each card writes and reads over PCIe.
    """

    messages: tuple[RingMessage, ...]
    socket_loads_bytes: tuple[int, ...]
    to_host_bytes: tuple[int, ...]
    from_host_bytes: tuple[int, ...]
    violations: tuple[Violation, ...]
    value_s: Fraction | None

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def socket_bytes(self) -> int:
        """Bytes on all socket links together."""
        return sum(self.socket_loads_bytes)

    @property
    def value(self) -> RingValue | None:
        """Seconds of the busiest link and bytes on socket links; None without an account."""
        return None if self.value_s is None else (self.value_s, self.socket_bytes)


def route(problem: RingProblem, start: int, end: int) -> tuple[int, ...]:
    """Return the nodes of the way from one node to another, both included.

    Ways are tried by length and, among equally long ones, in the order of their nodes.
    """
    onward: dict[int, list[int]] = {}
    for link in sorted(problem.links, key=lambda link: link.end):
        onward.setdefault(link.start, []).append(link.end)
    ways: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    for way in ways:  # grows while it is read
        if way[-1] == end:
            return way
        for node in onward.get(way[-1], ()):
            if node not in seen:
                seen.add(node)
                ways.append((*way, node))
    raise ValueError(f"no socket links lead from node {start} to node {end}")


def allowed_buffers(problem: RingProblem, sender_node: int, receiver_node: int) -> tuple[int, ...]:
    """Return the nodes on which a message's buffer may be, in the order of the policies."""
    near = {"sender": sender_node, "receiver": receiver_node}
    nodes = (near[p] if isinstance(p, str) else p for p in problem.buffers)
    return tuple(dict.fromkeys(nodes))


def evaluate_ring(problem: RingProblem, ring: RingOrder) -> RingEvaluation:
    """Account for a ring and name every rule it breaks; never raises for a bad one."""
    broken = [*_check_order(problem, ring), *_check_buffer_nodes(problem, ring)]
    if broken:
        return RingEvaluation((), (), (), (), tuple(broken), None)
    messages = tuple(_messages(problem, ring))
    crossings: Counter[tuple[int, int]] = Counter()
    written, read = [0] * len(problem.card_nodes), [0] * len(problem.card_nodes)
    for message in messages:
        written[message.sender] += problem.ring_bytes
        read[message.receiver] += problem.ring_bytes
        crossings.update(message.hops)
    loads = [problem.ring_bytes * crossings[link.start, link.end] for link in problem.links]
    pairs = zip(loads, problem.links, strict=True)
    times = [Fraction(load) / link.bytes_per_s for load, link in pairs]
    times += [Fraction(load) / problem.pcie_bytes_per_s for load in (*written, *read)]
    return RingEvaluation(
        messages=messages,
        socket_loads_bytes=tuple(loads),
        to_host_bytes=tuple(written),
        from_host_bytes=tuple(read),
        violations=tuple(_check_policies(problem, messages)),
        value_s=max(times),
    )


def _messages(problem: RingProblem, ring: RingOrder) -> Iterator[RingMessage]:
    cards = ring.order
    for i, buffer in enumerate(ring.buffers):
        sender, receiver = cards[i], cards[(i + 1) % len(cards)]
        first, last = problem.card_nodes[sender], problem.card_nodes[receiver]
        yield RingMessage(
            sender, receiver, buffer, route(problem, first, buffer), route(problem, buffer, last)
        )


def _check_order(problem: RingProblem, ring: RingOrder) -> Iterator[Violation]:
    """Every card of the host, and no other, comes once."""
    times = Counter(ring.order)
    num_cards = len(problem.card_nodes)
    for card in range(num_cards):
        if not times[card]:
            yield Violation(
                "missing_card", f"card {card}", 1, "cards", f"card {card} is not in the ring"
            )
    for card, num in sorted(times.items()):
        if not 0 <= card < num_cards:
            off = -card if card < 0 else card - num_cards + 1
            message = f"card {card} is in the ring, but cards are 0 to {num_cards - 1}"
            yield Violation("unknown_card", f"card {card}", off, "cards", message)
        elif num > 1:
            message = f"card {card} is in the ring {num} times"
            yield Violation("repeated_card", f"card {card}", num - 1, "cards", message)


def _check_buffer_nodes(problem: RingProblem, ring: RingOrder) -> Iterator[Violation]:
    """Every message has a buffer, on a node of the host."""
    off = abs(len(ring.buffers) - problem.num_messages)
    if off:
        message = f"{len(ring.buffers)} buffers for {problem.num_messages} messages"
        yield Violation("buffer_count", "ring", off, "buffers", message)
    for i, node in enumerate(ring.buffers):
        if not 0 <= node < problem.num_nodes:
            off = -node if node < 0 else node - problem.num_nodes + 1
            where, last = f"message {i}", problem.num_nodes - 1
            message = f"the buffer of {where} is on node {node}, but nodes are 0 to {last}"
            yield Violation("buffer_node", where, off, "nodes", message)


def _check_policies(problem: RingProblem, messages: Sequence[RingMessage]) -> Iterator[Violation]:
    """Every buffer is where one of the allowed policies puts it."""
    for i, m in enumerate(messages):
        ends = problem.card_nodes[m.sender], problem.card_nodes[m.receiver]
        allowed = allowed_buffers(problem, *ends)
        if m.buffer not in allowed:
            listed = ", ".join(map(str, allowed))
            message = f"the buffer of message {i} is on node {m.buffer}, allowed are {listed}"
            yield Violation("buffer_policy", f"message {i}", 1, "buffers", message)
