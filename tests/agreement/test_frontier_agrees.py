"""The exact frontier against a deadline equals brute force at every deadline looked at.

Deadlines looked at: each breakpoint, a step and half a step below it, half way between neighbours,
and a grid over the whole range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from instances import InputError, Instance, parse_instance
from optimizer import exhaustive_queues
from optimizer.configurations import configurations
from optimizer.errors import TooLargeError
from optimizer.exhaustive import solve_exhaustively
from optimizer.footprint_prices import FootprintPrices
from optimizer.frontiers.deadline import (
    DeadlineLine,
    Step,
    deadline_cohorts,
    exact_steps,
    time_step_s,
    with_deadline,
)
from optimizer.generate import OBJECTIVES, tiny_instance
from optimizer.protocols import Termination
from optimizer.variants.solver import VariantSolver

Json = dict[str, Any]
Values = tuple[Fraction, ...] | None
NS = Fraction(1, 10**9)
NUM_SEEDS, BLOCK, GRID = 300, 15, 20
#: Small enough for the oracle to look at some thirty deadlines.
MOST_PLANS, MOST_PRICES, MOST_CONFIGURATIONS = 100, 60, 8


@cache
def chosen(seed: int) -> Instance | None:
    """Return a random instance on which brute force is quick; None for other seeds.

    Of three seeds one keeps its own objectives; the others have others, some with limits.
    """
    rng, objective = Random(seed), None
    if seed % 3:
        names = rng.sample([*OBJECTIVES, "cost_per_on_time_session"], rng.choice((1, 1, 2)))
        billing = rng.choice(("fleet", "instance"))
        objective = {"minimise": list(dict.fromkeys(names)), "billing": billing}
        if rng.random() < 0.3:
            cost, end = Fraction(rng.randint(1, 400), 10_000), Fraction(rng.randint(1, 60), 1000)
            limits = [{"cost_per_on_time_session": cost}, {"makespan_s": end}]
            objective["at_most"] = rng.choice(limits)
    instance = tiny_instance(seed, objective=objective)
    sizes = (len(list(configurations(instance, pool))) for pool in instance.fleet.pools)
    if sum(sizes) > MOST_CONFIGURATIONS:
        return None
    tokens = sum(cohort.new_tokens for cohort in instance.workload.cohorts)
    if len(list(exhaustive_queues.footprints(instance))) * tokens > MOST_PRICES:
        return None
    free = with_deadline(instance, deadline_cohorts(instance), None)
    try:
        found = solve_exhaustively(free, MOST_PLANS)
    except TooLargeError:
        return None
    is_kept = found.values is not None or seed % 4 == 0  # a few without any plan
    return instance if is_kept else None


def value_at(steps: Sequence[Step], deadline: Fraction) -> Values:
    """Return the frontier's values at a deadline: of the last piece that begins by then."""
    covering = [s for s in steps if s.from_s is None or s.from_s <= deadline]
    assert covering, f"no piece covers {deadline}"
    return covering[-1].solved.values


def looked_at(line: DeadlineLine, steps: Sequence[Step]) -> Iterator[Fraction]:
    """Yield the deadlines to look at, all of them allowed."""
    tick = time_step_s(line.solver.tables(line.at(None)))
    breaks = [step.from_s for step in steps if step.from_s is not None]
    judged = [step.solved.evaluation for step in steps]
    ends = [o.finish_s or Fraction(0) for e in judged if e is not None for o in e.sessions]
    longest = max([line.above_s, *ends]) * Fraction(11, 10) + tick
    found = {
        line.above_s + (longest - line.above_s) * Fraction(i, GRID) for i in range(1, GRID + 1)
    }
    for at in breaks:
        found |= {at, at - tick, at - tick / 2}
    found |= {(a + b) / 2 for a, b in pairwise(breaks)}
    yield from sorted(deadline for deadline in found if deadline > line.above_s)


def check(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare a frontier with brute force; returns how many pieces it has."""
    line = DeadlineLine(VariantSolver(), instance)
    steps = exact_steps(line)
    assert all(step.solved.is_proven for step in steps)
    assert [s.from_s for s in steps[1:]] == sorted({s.from_s for s in steps[1:]} - {None})
    values = [s.solved.values for s in steps if s.solved.values is not None]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    # bytes and times do not depend on deadlines, so the oracle may keep them
    listed, prices = list(exhaustive_queues.footprints(instance)), FootprintPrices(instance)
    monkeypatch.setattr(exhaustive_queues, "footprints", lambda _: iter(listed))
    monkeypatch.setattr(exhaustive_queues, "FootprintPrices", lambda _: prices)
    for deadline in looked_at(line, steps):
        want = solve_exhaustively(line.at(deadline)).values
        assert value_at(steps, deadline) == want, f"{instance.name} at {deadline}"
    monkeypatch.undo()
    return len(steps)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_the_frontier_equals_brute_force(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + BLOCK):
        instance = chosen(seed)
        if instance is not None:
            check(instance, monkeypatch)


def test_the_random_instances_are_many_and_of_every_sort() -> None:
    kept = [i for seed in range(NUM_SEEDS) if (i := chosen(seed)) is not None]
    assert len(kept) >= 100
    for sort in (
        [i.search.deployment == "uniform" for i in kept],
        [i.search.deployment == "mixed" for i in kept],
        [i.search.dispatch == "round_robin" for i in kept],
        [bool(i.faults) for i in kept],
        [any(c.release_s for c in i.workload.cohorts) for i in kept],
        [len(i.workload.cohorts) > 1 for i in kept],
        [len(i.objective.names) > 1 for i in kept],
        [any(i.objective.at_most.limits()) for i in kept],
        ["cost_per_on_time_session" in i.objective.names for i in kept],
    ):
        assert sum(sort) >= 12


def by_hand(**more: Any) -> Instance:
    """Return two sessions of 1600 ns on one card, at 1600 and 3200 ns (see `test_both_sides.py`).

    Half of them must be on time; `more` changes the cohorts.
    """
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": 20, "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, **widths}
    card = {
        "name": "card",
        "memory_bytes": 10**12,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    fabric = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
    server = {"name": "s", "accelerator": card, "num_cards": 1, "fabric": fabric}
    cohort = {"name": "a", "num_sessions": 2, "context_tokens": 99, "new_tokens": 1}
    return parse_instance(
        {
            "name": "by hand",
            "model": {**model, "formats": formats},
            "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
            "workload": {
                "cohorts": more.pop("cohorts", [cohort]),
                "min_on_time_fraction": more.pop("share", "50%"),
            },
            "runtime": {"workspace_bytes": 28},
            "objective": {"minimise": more.pop("minimise", "makespan")},
            **more,
        }
    )


def pieces(line: DeadlineLine, *between: Fraction | None) -> list[tuple[Any, Any]]:
    """Return (from in ns, first value in ns or None) of every piece."""
    return [
        (
            None if step.from_s is None else step.from_s / NS,
            None if step.solved.values is None else step.solved.values[0] / NS,
        )
        for step in exact_steps(line, *between)
    ]


def line_of(instance: Instance) -> DeadlineLine:
    return DeadlineLine(VariantSolver(), instance)


def test_deadlines_shorter_than_the_first_end_have_a_piece_though_no_whole_step_is_left() -> None:
    """All ends are multiples of 1600 ns, so one step below the first is 0, which is no deadline."""
    assert pieces(line_of(by_hand())) == [(None, None), (1600, 3200)]
    # one or both on time: 3200 or 1600 card·ns for each of them
    cost = by_hand(minimise="cost_per_on_time_session")
    assert pieces(line_of(cost)) == [(None, None), (1600, 3200), (3200, 1600)]


def test_an_interval_that_begins_within_a_step_has_a_piece_for_its_beginning() -> None:
    """From 1300 ns on; the step below 1600 ns would be 0."""
    line = line_of(by_hand(minimise="cost_per_on_time_session"))
    wanted = [(None, None), (1600, 3200), (3200, 1600)]
    assert pieces(line, 1300 * NS, None) == wanted
    assert pieces(line, 1600 * NS, None) == wanted[1:]
    assert pieces(line, 1601 * NS, 3199 * NS) == [(1600, 3200)]
    assert pieces(line, 1300 * NS, 1599 * NS) == [(None, None)]
    assert pieces(line, 3200 * NS, 3200 * NS) == [(3200, 1600)]
    assert pieces(line, Fraction(0), 1600 * NS) == wanted[:2]


def test_a_share_of_nothing_asks_for_no_deadline() -> None:
    assert pieces(line_of(by_hand(share=0))) == [(None, 3200)]


def test_only_cohorts_with_a_deadline_move_unless_none_has_one() -> None:
    """b keeps its lack of one: always on time. a comes first, or second after b."""
    one = {"num_sessions": 1, "context_tokens": 99, "new_tokens": 1}
    a, b = {"name": "a", **one, "deadline_s": 1}, {"name": "b", **one}
    line = line_of(by_hand(cohorts=[a, b], share="100%"))
    assert line.names == {"a"}
    assert pieces(line) == [(None, None), (1600, 3200)]
    assert pieces(line_of(by_hand(cohorts=[a, b]))) == [(None, 3200)]  # b alone is half
    both = line_of(by_hand(cohorts=[{"name": "a", **one}, b], share="100%"))
    assert both.names == {"a", "b"}
    assert pieces(both) == [(None, None), (3200, 3200)]


def test_deadlines_start_after_the_latest_release() -> None:
    """a is ready at 0, b at 2000 ns: 1600 and 3600 ns; b's must be later than 2000."""
    one = {"num_sessions": 1, "context_tokens": 99, "new_tokens": 1}
    cohorts = [{"name": "a", **one}, {"name": "b", **one, "release_s": "2000ns"}]
    line = line_of(by_hand(cohorts=cohorts, share="50%"))
    assert line.above_s == 2000 * NS
    # a is on time at every deadline allowed
    assert pieces(line) == [(1600, 3600)]
    assert pieces(line_of(by_hand(cohorts=cohorts, share="100%"))) == [(None, None), (3600, 3600)]
    with pytest.raises(InputError, match=r"cohorts\[1\]\.deadline_s .*must be later than release"):
        line.at(2000 * NS)
    assert line.at(2001 * NS).workload.cohorts[1].deadline_s == 2001 * NS


def test_a_walk_looks_at_the_deadlines_it_is_given() -> None:
    line = line_of(by_hand(minimise="cost_per_on_time_session"))
    given = [Fraction(n) * NS for n in (5000, 3300, 3200, 3100, 1500, 1000)]
    below = lambda at: next((d for d in given if d < at), None)  # noqa: E731
    walked = list(line.walk(given[0], below))
    assert [s.solved.instance.workload.cohorts[0].deadline_s for s in walked] == [
        given[0],  # holds down to 3200
        given[3],  # holds down to 1600
        given[4],
    ]
    assert walked[-1].solved.termination is Termination.INFEASIBLE
    assert line.solver.num_solves == 3
