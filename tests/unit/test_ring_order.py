"""Rings over NUMA nodes by hand: both sides of every rule, for every method that finds them."""

from __future__ import annotations

import dataclasses
import time
from fractions import Fraction
from typing import Any

import pytest

from formulations import ring_order as formulation
from formulations.integer_program import (
    BACKENDS,
    IntegerProgram,
    ProgramOutcome,
    solve_program,
)
from formulations.ring_order import (
    build_time_model,
    candidate_times_s,
    extract,
    link_uses,
    message_kinds,
    next_nodes,
    solve_ring_order,
)
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.ring_order.evaluation import evaluate_ring, route
from optimizer.ring_order.problem import BufferPolicy, RingOrder, RingProblem, SocketLink
from optimizer.ring_order.search import (
    best_ring_exhaustively,
    first_ring,
    improved_ring,
    ring_bound,
)

F = Fraction
MIB = 2**20


def both_ways(*pairs: tuple[int, int, int]) -> tuple[SocketLink, ...]:
    """Links there and back at one rate, by (node, node, bytes per s)."""
    there = [SocketLink(a, b, F(rate)) for a, b, rate in pairs]
    return (*there, *(SocketLink(k.end, k.start, k.bytes_per_s) for k in there))


def two_nodes(*buffers: BufferPolicy, socket: int = 24 * MIB, pcie: int = 120 * MIB) -> RingProblem:
    """Cards 0 and 1 on node 0 (A), 2 and 3 on node 1 (B); 12 MiB a card."""
    return RingProblem((0, 0, 1, 1), 2, F(pcie), both_ways((0, 1, socket)), 12 * MIB, buffers)


def optimum(problem: RingProblem, value_s: F | int, socket_bytes: int) -> None:
    """Every method finds a ring of these seconds and bytes; the bound does not cut it off."""
    found = {"exhaustive": best_ring_exhaustively(problem)}
    for backend in BACKENDS:
        outcome = solve_ring_order(problem, backend, deadline=time.monotonic() + 60)
        assert outcome.termination is Termination.OPTIMAL, backend
        assert (outcome.value, outcome.bound) == (value_s, value_s), backend
        assert outcome.socket_bytes == outcome.socket_bytes_bound == socket_bytes, backend
        assert outcome.ring is not None
        found[backend] = outcome.ring
    for method, ring in found.items():
        evaluation = evaluate_ring(problem, ring)
        assert evaluation.violations == (), method
        assert evaluation.value == (value_s, socket_bytes), method
    for ring in (first_ring(problem), improved_ring(problem)):
        evaluation = evaluate_ring(problem, ring)
        assert evaluation.violations == ()
        assert evaluation.value is not None
        assert evaluation.value >= (value_s, socket_bytes)
    assert ring_bound(problem) <= (value_s, socket_bytes)
    assert ring_bound(problem)[1] <= socket_bytes


def broken(
    problem: RingProblem, order: tuple[int, ...], buffers: tuple[int, ...]
) -> list[tuple[str, str, int | F]]:
    evaluation = evaluate_ring(problem, RingOrder(order, buffers))
    return [(v.rule, v.where, v.amount) for v in evaluation.violations]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_all_buffers_on_a_cross_24_mib_each_way_whatever_the_order(order: tuple[int, ...]) -> None:
    """Cards 2 and 3 write 2 · 12 MiB to A and read 2 · 12 MiB from A."""
    problem = two_nodes(0)
    evaluation = evaluate_ring(problem, RingOrder(order, (0, 0, 0, 0)))
    assert evaluation.socket_loads_bytes == (24 * MIB, 24 * MIB)
    assert evaluation.value == (1, 48 * MIB)
    assert evaluation.to_host_bytes == evaluation.from_host_bytes == (12 * MIB,) * 4
    optimum(problem, 1, 48 * MIB)


def test_buffers_near_senders_and_neighbours_together_cross_12_mib() -> None:
    """Messages 1 -> 2 and 3 -> 0 cross, one each way."""
    problem = two_nodes("sender")
    evaluation = evaluate_ring(problem, RingOrder((0, 1, 2, 3), (0, 0, 1, 1)))
    assert evaluation.socket_loads_bytes == (12 * MIB, 12 * MIB)
    assert [(m.sender, m.receiver) for m in evaluation.messages if list(m.hops)] == [(1, 2), (3, 0)]
    optimum(problem, F(1, 2), 24 * MIB)
    assert ring_bound(problem) == (F(1, 2), 24 * MIB)


def test_a_ring_that_alternates_crosses_24_mib_again() -> None:
    evaluation = evaluate_ring(two_nodes("sender"), RingOrder((0, 2, 1, 3), (0, 1, 0, 1)))
    assert evaluation.violations == ()
    assert evaluation.socket_loads_bytes == (24 * MIB, 24 * MIB)
    assert evaluation.value == (1, 48 * MIB)


def test_a_buffer_near_the_receiver_crosses_as_much_as_one_near_the_sender() -> None:
    near = evaluate_ring(two_nodes("receiver"), RingOrder((0, 1, 2, 3), (0, 1, 1, 0)))
    assert near.violations == ()
    assert near.socket_loads_bytes == (12 * MIB, 12 * MIB)
    (reads,) = [m for m in near.messages if (m.sender, m.receiver) == (1, 2)]
    assert (reads.written_over, reads.read_over) == ((0, 1), (1,))
    optimum(two_nodes("receiver"), F(1, 2), 24 * MIB)
    optimum(two_nodes("sender", "receiver", 0, 1), F(1, 2), 24 * MIB)


@pytest.mark.parametrize(("pcie", "value_s"), [(25, F(12, 25)), (24, F(1, 2)), (23, F(12, 23))])
def test_the_busiest_link_may_be_pcie(pcie: int, value_s: F) -> None:
    """12 MiB over PCIe at 25, 24, 23 MiB/s; sockets at 25 MiB/s take 12/25 s or, twice, 24/25 s."""
    optimum(two_nodes("sender", socket=25 * MIB, pcie=pcie * MIB), value_s, 24 * MIB)


def test_equal_times_are_told_apart_by_bytes_across_sockets() -> None:
    """At 6 MiB/s PCIe takes 2 s and sockets, alternating, 1 s: the order does not matter for time.

    Still neighbours stay together: 24 MiB across instead of 48.
    """
    problem = two_nodes("sender", pcie=6 * MIB)
    alternating = evaluate_ring(problem, RingOrder((0, 2, 1, 3), (0, 1, 0, 1)))
    assert alternating.value == (2, 48 * MIB)
    optimum(problem, 2, 24 * MIB)


def test_a_buffer_elsewhere_leads_round_a_slow_link() -> None:
    """Nodes 0, 1, 2 all joined; 0 -> 1 has 1 B/s, the others 10. One card on 0, one on 1; 10 B.

    Direct: 10 s over one link there and one back. A buffer on 2: 0 -> 2 -> 1, 1 s, 30 B in all.
    """
    links = (SocketLink(0, 1, F(1)), SocketLink(1, 0, F(10)))
    links += both_ways((0, 2, 10), (1, 2, 10))
    problem = RingProblem((0, 1), 3, F(100), links, 10, ("sender",))
    optimum(problem, 10, 20)
    free = dataclasses.replace(problem, buffers=("sender", 2))
    optimum(free, 1, 30)
    assert best_ring_exhaustively(free) == RingOrder((0, 1), (2, 1))
    assert improved_ring(free) == RingOrder((0, 1), (2, 1))


def test_messages_share_the_ways_between_two_nodes() -> None:
    """Four cards on 0, one on each of 1 and 2, in a line 1 - 0 - 2; 12 B at 12 B/s, all buffers on
    0. The cards of 1 and 2 write once and read once, whatever the order: 1 s, 4 · 12 B.
    """
    links = both_ways((0, 1, 12), (0, 2, 12))
    optimum(RingProblem((0, 0, 0, 0, 1, 2), 3, F(1000), links, 12, (0,)), 1, 48)
    # buffers on 1: 5 cards write to 1 over 0 -> 1, 5 read over 1 -> 0, and card 5 twice each way
    far = RingProblem((0, 0, 0, 0, 1, 2), 3, F(1000), links, 12, (1,))
    optimum(far, 5, 12 * (5 + 5 + 1 + 1))


def test_ways_have_the_fewest_links_and_then_the_lowest_nodes() -> None:
    """0 -> 3 over 1 or 2; 3 -> 0 only over 2. Node 4 hangs on 3."""
    links = tuple(
        SocketLink(a, b, F(1)) for a, b in [(0, 2), (2, 3), (0, 1), (1, 3), (3, 2), (2, 0), (1, 0)]
    )
    problem = RingProblem((0, 3), 5, F(1), (*links, *both_ways((3, 4, 1))), 1, ("sender", 4))
    assert route(problem, 0, 3) == (0, 1, 3)
    assert route(problem, 3, 0) == (3, 2, 0)
    assert route(problem, 0, 4) == (0, 1, 3, 4)
    assert route(problem, 2, 1) == (2, 0, 1)
    assert route(problem, 1, 1) == (1,)
    # 0 -> 1 -> 3 -> 4 and back 4 -> 3 -> 2 -> 0, in the order of the links
    uses = link_uses(problem, next_nodes(problem), (0, 4, 0))
    assert uses == (0, 0, 1, 1, 1, 1, 0, 1, 1)


def test_a_message_may_take_a_link_twice() -> None:
    """One-way ring 0 -> 1 -> 2 -> 0. A card on 0 to one on 1 over a buffer on 2: 0 1 2, then 2 0 1.

    Back from 1 to 0 over 2: 1 2 0. Loads 2, 2, 2 with 0 -> 1 twice, 1 -> 2 twice, 2 -> 0 twice.
    """
    links = tuple(SocketLink(a, (a + 1) % 3, F(1)) for a in range(3))
    problem = RingProblem((0, 1), 3, F(100), links, 1, (2,))
    assert evaluate_ring(problem, RingOrder((0, 1), (2, 2))).socket_loads_bytes == (2, 2, 2)
    optimum(problem, 2, 6)
    # near the sender: 0 1 and 1 2 0
    optimum(dataclasses.replace(problem, buffers=("sender", 2)), 1, 3)


def test_every_message_may_take_a_link_twice() -> None:
    """Both cards on 0, the buffer on 3: 0 1 2 3 and 3 1 2 0; 1 -> 2 carries 4 messages of 1 B."""
    links = tuple(SocketLink(a, b, F(1)) for a, b in [(0, 1), (1, 2), (2, 3), (2, 0), (3, 1)])
    optimum(RingProblem((0, 0), 4, F(100), links, 1, (3,)), 4, 12)


@pytest.mark.parametrize("num_cards", [1, 2, 5])
def test_one_node_crosses_nothing(num_cards: int) -> None:
    """One card has nobody to send to; more take 8 B at 4 B/s."""
    problem = RingProblem((0,) * num_cards, 1, F(4), (), 8)
    optimum(problem, 2 if num_cards > 1 else 0, 0)


def test_every_rule_is_measured() -> None:
    problem = two_nodes("sender", 0)
    assert broken(problem, (0, 1, 2, 3), (0, 0, 1, 1)) == []
    assert broken(problem, (2, 3, 0, 1), (0, 1, 0, 0)) == []
    assert broken(problem, (0, 1, 2, 3), (0, 1, 1, 1)) == [("buffer_policy", "message 1", 1)]
    assert broken(problem, (0, 1, 2, 3), (0, 2, 1, -1)) == [
        ("buffer_node", "message 1", 1),
        ("buffer_node", "message 3", 1),
    ]
    assert broken(problem, (0, 1, 2, 3), (0, 0, 1)) == [("buffer_count", "ring", 1)]
    assert broken(problem, (0, 1, 2), (0, 0, 1, 1)) == [("missing_card", "card 3", 1)]
    assert broken(problem, (0, 1, 2, 3, 1, 1), (0, 0, 1, 1)) == [("repeated_card", "card 1", 2)]
    assert broken(problem, (0, 1, 2, 5), (0, 0, 1, 1)) == [
        ("missing_card", "card 3", 1),
        ("unknown_card", "card 5", 2),
    ]
    wrong = evaluate_ring(problem, RingOrder((0,), ()))
    assert (wrong.value, wrong.value_s, wrong.messages) == (None, None, ())
    assert not wrong.is_feasible


GOOD = two_nodes("sender")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"card_nodes": ()}, "needs cards"),
        ({"card_nodes": (0, 2)}, "a card is on node 2"),
        ({"num_nodes": 3}, "no socket links lead from node 0 to node 2"),
        ({"links": (SocketLink(0, 1, F(1)),)}, "no socket links lead from node 1 to node 0"),
        ({"links": (*GOOD.links, SocketLink(1, 1, F(1)))}, "joins two nodes"),
        ({"links": (*GOOD.links, SocketLink(0, 1, F(1)))}, "go the same way"),
        ({"links": (*GOOD.links, SocketLink(0, 2, F(1)))}, "a socket link is on node 2"),
        ({"links": both_ways((0, 1, 0))}, "must be positive"),
        ({"pcie_bytes_per_s": F(0)}, "must be positive"),
        ({"ring_bytes": 0}, "must be positive"),
        ({"buffers": ()}, "need a buffer"),
        ({"buffers": (2,)}, "a buffer is on node 2"),
        ({"buffers": (-1,)}, "a buffer is on node -1"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(GOOD, **changes)


def test_buffers_that_another_one_always_beats_are_left_out() -> None:
    """Near the sender, near the receiver, and on 0 or 1: all the same between two nodes, and a
    buffer on the other node is worse than one at home.
    """
    kinds = message_kinds(two_nodes("sender", "receiver", 0, 1))
    assert [(k.sender, k.receiver, k.buffer, k.uses) for k in kinds] == [
        (0, 0, 0, (0, 0)),
        (0, 1, 0, (1, 0)),
        (1, 0, 1, (0, 1)),
        (1, 1, 1, (0, 0)),
    ]
    # a worse one that comes first goes as well
    later = message_kinds(two_nodes(0, "sender"))
    assert [k.buffer for k in later] == [0, 0, 0, 1]


def test_times_lie_between_pcie_and_the_plain_ring() -> None:
    """PCIe 12/100 s; sockets at 24 MiB/s take n/2 s, and the plain ring crosses once each way."""
    problem = two_nodes("sender", pcie=100 * MIB)
    assert candidate_times_s(problem, message_kinds(problem)) == [F(12, 100), F(1, 2)]
    on_a = two_nodes(0, pcie=100 * MIB)
    assert candidate_times_s(on_a, message_kinds(on_a)) == [F(12, 100), F(1, 2), 1]


def test_two_rings_are_no_ring() -> None:
    """Messages that stay on their nodes are balanced, but they do not meet."""
    problem = two_nodes("sender")
    kinds = message_kinds(problem)
    m = build_time_model(problem, kinds, candidate_times_s(problem, kinds))
    apart = [2 if k.sender == k.receiver else 0 for k in kinds]
    with pytest.raises(MismatchError, match="no ring of all cards"):
        extract(m, apart)
    together = extract(m, [1] * len(kinds))
    assert evaluate_ring(problem, together).value == (F(1, 2), 24 * MIB)


def test_large_problems_are_declined() -> None:
    links = both_ways(*((0, i, 1) for i in range(1, 8)))
    big = RingProblem(tuple(range(8)) * 2, 8, F(1), links, 1, ("sender",))
    with pytest.raises(TooLargeError, match="more than 1000 cards"):
        best_ring_exhaustively(big, max_steps=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulation, "MAX_KINDS", 8 * 8 - 1)
        with pytest.raises(TooLargeError, match="kinds of messages"):
            message_kinds(big)


def test_sixteen_cards_on_eight_nodes_are_solved() -> None:
    """A closed chain of eight nodes, all links 1 B/s: once round, 8 links, each once, 1 B each."""
    links = both_ways(*((i, (i + 1) % 8, 1) for i in range(8)))
    problem = RingProblem(tuple(i // 2 for i in range(16)), 8, F(2), links, 1)
    assert ring_bound(problem) == (1, 8)
    for backend in BACKENDS:
        outcome = solve_ring_order(problem, backend, deadline=time.monotonic() + 60)
        assert outcome.termination is Termination.OPTIMAL, backend
        assert (outcome.value, outcome.socket_bytes) == (1, 8), backend
    assert evaluate_ring(problem, improved_ring(problem)).value == (1, 8)


def answering(monkeypatch: pytest.MonkeyPatch, *outcomes: ProgramOutcome | None) -> None:
    """Let the programs end so, in turn; None solves."""
    left = iter(outcomes)

    def fake(program: IntegerProgram, backend: str, **limits: Any) -> ProgramOutcome:
        given = next(left)
        return solve_program(program, backend, **limits) if given is None else given

    monkeypatch.setattr(formulation, "solve_program", fake)


def test_limits_of_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, later = two_nodes("sender"), time.monotonic() + 60
    late = solve_ring_order(problem, "highs", deadline=time.monotonic() - 1)
    assert (late.termination, late.ring, late.bound) == (Termination.NO_SOLUTION_FOUND, None, None)
    # a bound without a ring: rank 1 of 12/120 and 1/2 s
    answering(monkeypatch, ProgramOutcome(Termination.NO_SOLUTION_FOUND, bound=1))
    bounded = solve_ring_order(problem, "highs", deadline=later)
    assert (bounded.ring, bounded.bound) == (None, F(1, 2))
    # no time for the second program: the ring of the first one stays, unproven in its bytes
    answering(monkeypatch, None, ProgramOutcome(Termination.NO_SOLUTION_FOUND))
    half = solve_ring_order(problem, "highs", deadline=later)
    assert half.termination is Termination.FEASIBLE
    assert (half.value, half.bound, half.socket_bytes_bound) == (F(1, 2), F(1, 2), None)
    assert half.ring is not None
    assert evaluate_ring(problem, half.ring).value == (half.value, half.socket_bytes)


def test_a_ring_without_a_proof_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds 0-0, 0-1, 1-0, 1-1: twice across each way takes 1 s; flow 0 -> 1 of one unit."""
    problem = two_nodes(0)
    kinds = message_kinds(problem)
    times = candidate_times_s(problem, kinds)
    program = build_time_model(problem, kinds, times).program
    values = {
        "messages[0,1,0]": 2,
        "messages[1,0,0]": 2,
        "flow[0,1]": 1,
        f"takes[{len(times) - 1}]": 1,
    }
    answer = tuple(values.get(v.name, 0) for v in program.variables)
    program.check(answer)
    answering(monkeypatch, ProgramOutcome(Termination.FEASIBLE, answer, len(times) - 1, 0))
    outcome = solve_ring_order(problem, "highs", deadline=time.monotonic() + 60)
    assert outcome.termination is Termination.FEASIBLE
    assert (outcome.value, outcome.bound) == (1, F(12, 120))
    assert (outcome.socket_bytes, outcome.socket_bytes_bound) == (48 * MIB, None)


def test_lies_of_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, later = two_nodes("sender"), time.monotonic() + 60
    answering(monkeypatch, ProgramOutcome(Termination.INFEASIBLE))
    with pytest.raises(MismatchError, match="no ring exists"):
        solve_ring_order(problem, "highs", deadline=later)
    # the messages of a good ring, but with the claim that they keep rank 0
    kinds = message_kinds(problem)
    program = build_time_model(problem, kinds, candidate_times_s(problem, kinds)).program
    answer = tuple(int(v.name.startswith("messages")) for v in program.variables)
    answering(monkeypatch, ProgramOutcome(Termination.OPTIMAL, answer, 0, 0))
    with pytest.raises(MismatchError, match="claims 1/10 s, the busiest link takes 1/2 s"):
        solve_ring_order(problem, "highs", deadline=later)
    answering(monkeypatch, None, ProgramOutcome(Termination.OPTIMAL, (1, 1, 1, 1, 1, 1), 1, 1))
    with pytest.raises(MismatchError, match="claims 1 hops, its ring has 2"):
        solve_ring_order(problem, "highs", deadline=later)
