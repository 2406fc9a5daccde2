"""Rings over NUMA nodes without a solver: a bound, the oracle, and good rings (6.5.1)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import mul

from optimizer.errors import TooLargeError
from optimizer.ring_order.evaluation import RingValue, allowed_buffers, evaluate_ring, route
from optimizer.ring_order.problem import RingOrder, RingProblem

#: How many orders of the nodes `improved_ring` tries at most.
MAX_ROUNDS = 120

#: By the nodes of sender and receiver: each allowed buffer, and the numbers of the socket links on
#: the way over it; a link that is taken twice comes twice.
_Ways = dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]]


def ring_bound(problem: RingProblem) -> RingValue:
    """Return seconds and socket bytes that no ring goes below, without a search.

    Every card's PCIe links carry its message. A node's cards send as many messages as they are, and
    one of them at least goes to another node, if another one has cards; so these leave each node,
    and take socket links, at least as often as the cheapest ones do that there could be. What
    leaves a node is spread over its links as evenly in time as whole messages allow. The same
    holds for the messages that the cards receive, and for what enters a node.
    """
    if not problem.num_messages:
        return Fraction(0), 0
    ways = _possible_ways(problem)
    bound_s = problem.ring_bytes / Fraction(problem.pcie_bytes_per_s)
    for node in range(problem.num_nodes):
        for side in (0, 1):  # what leaves the node, what enters it
            rates = [k.bytes_per_s for k in problem.links if (k.start, k.end)[side] == node]
            num = _least(problem, ways, [(k.start, k.end)[side] == node for k in problem.links])
            bound_s = max(bound_s, _spread_s(problem.ring_bytes, rates, num))
    return bound_s, problem.ring_bytes * _least(problem, ways, [True] * len(problem.links))


def _possible_ways(problem: RingProblem) -> _Ways:
    num_cards = Counter(problem.card_nodes)
    number = {(link.start, link.end): i for i, link in enumerate(problem.links)}
    ways: _Ways = {}
    for start, end in itertools.product(sorted(num_cards), repeat=2):
        if start == end and num_cards[start] == 1:
            continue
        ways[start, end] = []
        for buffer in allowed_buffers(problem, start, end):
            written, read = route(problem, start, buffer), route(problem, buffer, end)
            hops = (*itertools.pairwise(written), *itertools.pairwise(read))
            ways[start, end].append((buffer, tuple(number[hop] for hop in hops)))
    return ways


def _least(problem: RingProblem, ways: _Ways, is_counted: Sequence[bool]) -> int:
    """Return how often the ways of all messages take links that count, at least."""
    num_cards = Counter(problem.card_nodes)
    costs = {
        ends: min(sum(is_counted[link] for link in way) for _, way in choices)
        for ends, choices in ways.items()
    }
    totals = []
    for side in (0, 1):
        total = 0
        for node, num in num_cards.items():
            own = {ends: cost for ends, cost in costs.items() if ends[side] == node}
            away = [cost for ends, cost in own.items() if ends[0] != ends[1]]
            total += min(away) + (num - 1) * min(own.values()) if away else num * min(own.values())
        totals.append(total)
    return max(totals)


def _spread_s(message_bytes: int, rates: Sequence[Fraction], num_messages: int) -> Fraction:
    """Return the least time in which links of these rates carry so many messages."""
    if not num_messages:
        return Fraction(0)
    ends = [n * message_bytes / Fraction(r) for r in rates for n in range(1, num_messages + 1)]
    return sorted(ends)[num_messages - 1]


def best_ring_exhaustively(problem: RingProblem, max_steps: int = 1_000_000) -> RingOrder:
    """Return a best ring by trying every order and, in each, every choice of buffers.

    The ring begins with card 0. Of orders that visit the nodes in the same sequence only the first
    is tried: links see nodes, not cards. Left out is only what is no better than the best so far
    before its last message. Raises TooLargeError when more than `max_steps` cards and buffers would
    have to be set.
    """
    return _Oracle(problem, max_steps).search()


class _Host:
    """A host in whole numbers: links by number, times as multiples of one unit."""

    def __init__(self, problem: RingProblem) -> None:
        times = [
            problem.ring_bytes / Fraction(rate)
            for rate in (problem.pcie_bytes_per_s, *(k.bytes_per_s for k in problem.links))
        ]
        unit = math.lcm(*(t.denominator for t in times))
        #: Time of one message on a card's link and on each socket link.
        self.card_time, *self.link_times = (int(t * unit) for t in times)
        self.choices = _possible_ways(problem)

    def value(self, uses: Sequence[int]) -> tuple[int, int]:
        """Return the busiest link's time, and the links taken, when each is taken so often."""
        busiest = max(map(mul, uses, self.link_times), default=0)
        return max(self.card_time, busiest), sum(uses)


class _Oracle:
    """Depth-first search over orders and buffers."""

    def __init__(self, problem: RingProblem, max_steps: int) -> None:
        self.problem, self.max_steps, self.steps = problem, max_steps, 0
        self.host = _Host(problem)
        self.best: tuple[int, int] | None = None
        self.ring = first_ring(problem)

    def search(self) -> RingOrder:
        """Try all orders."""
        seen: set[tuple[int, ...]] = set()
        others = range(1, len(self.problem.card_nodes))
        for rest in itertools.permutations(others) if self.problem.num_messages else ():
            order = (0, *rest)
            self._count(len(order))
            nodes = tuple(self.problem.card_nodes[card] for card in order)
            if nodes not in seen:
                seen.add(nodes)
                self._visit(order, nodes, [], [0] * len(self.problem.links))
        return self.ring

    def _count(self, num: int) -> None:
        self.steps += num
        if self.steps > self.max_steps:
            raise TooLargeError(f"more than {self.max_steps} cards and buffers to set")

    def _visit(
        self, order: tuple[int, ...], nodes: tuple[int, ...], buffers: list[int], uses: list[int]
    ) -> None:
        """Choose the buffers of all messages after those that have one."""
        value, i = self.host.value(uses), len(buffers)
        if self.best is not None and value >= self.best:
            return  # further messages take further links
        if i == len(order):
            self.best, self.ring = value, RingOrder(order, tuple(buffers))
            return
        for buffer, way in self.host.choices[nodes[i], nodes[(i + 1) % len(nodes)]]:
            self._count(1)
            after = uses.copy()
            for link in way:
                after[link] += 1
            self._visit(order, nodes, [*buffers, buffer], after)


def first_ring(problem: RingProblem) -> RingOrder:
    """Return the cards in the order of their numbers, every buffer by the first policy."""
    order = range(len(problem.card_nodes))
    pairs = _neighbours(problem.card_nodes) if problem.num_messages else ()
    return RingOrder(tuple(order), tuple(allowed_buffers(problem, a, b)[0] for a, b in pairs))


def _neighbours(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return each node with the next one, the last with the first."""
    return list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))


def improved_ring(problem: RingProblem, is_over: Callable[[], bool] = lambda: False) -> RingOrder:
    """Keep the cards of a node together, and move buffers one by one while that helps.

    Tries the nodes in every order, `MAX_ROUNDS` of them at most, until a ring meets `ring_bound`
    or `is_over`. Returns the best ring found.
    """
    best, bound = first_ring(problem), ring_bound(problem)
    value = evaluate_ring(problem, best).value
    assert value is not None
    host, nodes = _Host(problem), sorted(set(problem.card_nodes))
    for rest in itertools.islice(itertools.permutations(nodes[1:]), MAX_ROUNDS):
        if value == bound or is_over():
            break
        place = {node: at for at, node in enumerate((nodes[0], *rest))}
        cards = sorted(range(len(problem.card_nodes)), key=lambda c: place[problem.card_nodes[c]])
        pairs = _neighbours([problem.card_nodes[card] for card in cards])
        ring = RingOrder(tuple(cards), _moved_buffers(host, pairs))
        reached = evaluate_ring(problem, ring).value
        if reached is not None and reached < value:
            best, value = ring, reached
    return best


def _moved_buffers(host: _Host, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Begin with the first buffer of each message; move one at a time until no move helps."""
    chosen = [host.choices[pair][0] for pair in pairs]
    uses = [0] * len(host.link_times)
    for link in itertools.chain.from_iterable(way for _, way in chosen):
        uses[link] += 1
    value, is_new = host.value(uses), True
    while is_new:
        is_new = False
        for i, pair in enumerate(pairs):
            for choice in host.choices[pair]:
                after = uses.copy()
                for link in chosen[i][1]:
                    after[link] -= 1
                for link in choice[1]:
                    after[link] += 1
                if host.value(after) < value:
                    uses, value, is_new, chosen[i] = after, host.value(after), True, choice
    return tuple(buffer for buffer, _ in chosen)
