"""Brute force, CP-SAT, HiGHS and CBC agree on random small hosts: time, then bytes, exactly."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from fractions import Fraction

import pytest

from formulations.integer_program import BACKENDS
from formulations.ring_order import solve_ring_order
from optimizer.protocols import Termination
from optimizer.ring_order.evaluation import evaluate_ring
from optimizer.ring_order.problem import BufferPolicy, RingOrder, RingProblem, SocketLink
from optimizer.ring_order.search import (
    best_ring_exhaustively,
    first_ring,
    improved_ring,
    ring_bound,
)

NUM_SEEDS = 480
BLOCK = 48
RATES = (1, 2, 3, 3, Fraction(7, 2), 12)
POLICIES: tuple[tuple[BufferPolicy, ...], ...] = (
    ("sender",),
    ("receiver",),
    ("sender", "receiver"),
    (0,),
    (1,),
    (1, "sender"),
    ("receiver", 0),
    (0, 1),
)


def random_links(rng: random.Random, num_nodes: int) -> tuple[SocketLink, ...]:
    """A closed or an open chain of nodes, or some more links; both ways of a pair are unlike."""
    nodes = list(range(num_nodes))
    rng.shuffle(nodes)
    pairs = set(itertools.pairwise([*nodes, nodes[0]]))
    if num_nodes == 2 or rng.random() < 0.7:
        others = set(itertools.permutations(nodes, 2)) - pairs
        backwards = {(b, a) for a, b in pairs}
        pairs |= backwards if rng.random() < 0.5 else others
    if num_nodes == 3 and rng.random() < 0.3:  # an open chain: two links of the triangle go
        pairs = set(itertools.pairwise(nodes)) | set(itertools.pairwise(nodes[::-1]))
    scale = rng.choice((1, 2_876_750_001))
    return tuple(SocketLink(a, b, Fraction(scale * rng.choice(RATES))) for a, b in sorted(pairs))


def small_host(seed: int) -> RingProblem:
    """Up to six cards on two or three nodes, one of which may have none."""
    rng = random.Random(seed)
    num_nodes = rng.choice((2, 3, 3))
    links = random_links(rng, num_nodes)
    used = num_nodes - (rng.random() < 0.2)
    cards = [rng.randrange(used) for _ in range(rng.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 6)))]
    buffers = rng.choice(POLICIES) if num_nodes == 2 or rng.random() < 0.6 else (2, "sender")
    slowest = min(link.bytes_per_s for link in links)
    pcie = slowest * rng.choice((Fraction(1, 7), Fraction(1, 2), 1, 40, 40))
    return RingProblem(
        tuple(cards), num_nodes, pcie, links, rng.choice((1, 5, 12 * 2**20)), buffers
    )


def check(seed: int) -> None:
    """All methods find rings of the same time and bytes, which break no rule."""
    problem = small_host(seed)
    expected = best_ring_exhaustively(problem)
    value = evaluate_ring(problem, expected).value
    assert value is not None
    found = {"exhaustive": expected}
    for backend in BACKENDS:
        outcome = solve_ring_order(problem, backend, deadline=time.monotonic() + 60)
        where = f"seed {seed}, {backend}"
        assert outcome.termination is Termination.OPTIMAL, where
        assert (outcome.value, outcome.socket_bytes) == value, where
        assert (outcome.bound, outcome.socket_bytes_bound) == value, where
        assert outcome.ring is not None
        found[backend] = outcome.ring
    for method, ring in found.items():
        evaluation = evaluate_ring(problem, ring)
        assert evaluation.violations == (), f"seed {seed}, {method}"
        assert evaluation.value == value, f"seed {seed}, {method}"
    for ring in (first_ring(problem), improved_ring(problem)):
        evaluation = evaluate_ring(problem, ring)
        assert evaluation.violations == (), f"seed {seed}"
        assert evaluation.value is not None
        assert evaluation.value >= value, f"seed {seed}"
    bound = ring_bound(problem)
    assert (bound[0] <= value[0], bound[1] <= value[1]) == (True, True), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_all_methods_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check(seed)


def test_brute_force_agrees_with_the_evaluator_on_every_answer_there_is() -> None:
    """Every order with every node as every buffer, illegal ones as well, is evaluated."""
    num_checked = 0
    for seed in range(NUM_SEEDS):
        problem = small_host(seed)
        num_cards = len(problem.card_nodes)
        if num_cards > 4 or (num_cards == 4 and seed % 4):
            continue
        rings = (
            RingOrder(order, buffers)
            for order in itertools.permutations(range(num_cards))
            for buffers in itertools.product(range(problem.num_nodes), repeat=problem.num_messages)
        )
        evaluations = (evaluate_ring(problem, ring) for ring in rings)
        best = min(e.value for e in evaluations if e.is_feasible and e.value is not None)
        assert evaluate_ring(problem, best_ring_exhaustively(problem)).value == best, seed
        num_checked += 1
    assert num_checked >= 60


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, 4 * BLOCK))
def test_the_slowest_link_decides_on_both_sides(first: int) -> None:
    """PCIe exactly as slow as the busiest socket link changes nothing; a bit slower decides."""
    for seed in range(first, first + 4 * BLOCK, 3):
        problem = small_host(seed)
        best = evaluate_ring(problem, best_ring_exhaustively(problem)).value
        if best is None or not problem.num_messages:
            continue
        equal = problem.ring_bytes / best[0]
        for pcie, expected in ((equal, best[0]), (equal * Fraction(99, 100), best[0] * 100 / 99)):
            changed = RingProblem(
                problem.card_nodes,
                problem.num_nodes,
                pcie,
                problem.links,
                problem.ring_bytes,
                problem.buffers,
            )
            ring = best_ring_exhaustively(changed)
            value = evaluate_ring(changed, ring).value
            assert value is not None
            assert value[0] == expected, seed
            outcome = solve_ring_order(changed, BACKENDS[seed % 3], deadline=time.monotonic() + 60)
            assert (outcome.value, outcome.socket_bytes) == value, seed


def test_the_hosts_cover_what_they_should() -> None:
    """Sockets and PCIe as the busiest; detours; a tie that bytes break; loose and tight bounds."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        problem = small_host(seed)
        best = evaluate_ring(problem, best_ring_exhaustively(problem))
        assert best.value is not None
        value = best.value
        seen[f"{problem.num_nodes} nodes"] += 1
        seen[f"{len(set(problem.card_nodes))} nodes with cards"] += 1
        if not problem.num_messages:
            seen["one card"] += 1
            continue
        by_pcie = value[0] == problem.ring_bytes / problem.pcie_bytes_per_s
        seen["pcie" if by_pcie else "sockets"] += 1
        ends = [
            {problem.card_nodes[m.sender], problem.card_nodes[m.receiver]} for m in best.messages
        ]
        seen["detour"] += any(
            m.buffer not in near for m, near in zip(best.messages, ends, strict=True)
        )
        first = evaluate_ring(problem, first_ring(problem)).value
        assert first is not None
        seen["first is slower"] += first[0] > value[0]
        seen["first takes more bytes"] += first[0] == value[0] and first[1] > value[1]
        seen["improved is best"] += evaluate_ring(problem, improved_ring(problem)).value == value
        bound = ring_bound(problem)
        seen["time bound is met" if bound[0] == value[0] else "time bound is loose"] += 1
        seen["bytes bound is met" if bound[1] == value[1] else "bytes bound is loose"] += 1
    least = {"2 nodes": 100, "3 nodes": 200, "3 nodes with cards": 80, "one card": 10}
    least |= {"pcie": 50, "sockets": 50, "detour": 10, "first is slower": 20}
    least |= {"first takes more bytes": 10, "improved is best": 150}
    least |= {"time bound is met": 50, "time bound is loose": 5, "bytes bound is met": 50}
    for what, num in least.items():
        assert seen[what] >= num, (what, seen)
