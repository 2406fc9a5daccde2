"""Seeded random supernode decisions, tiny enough that every plan can be looked at.

Limits sit on edges: memory, targets, hosts and deadlines are what some plan just takes, or a hair
less.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import get_args

from optimizer.supernode.evaluation import serve, step_parts
from optimizer.supernode.problem import (
    Demand,
    Exchange,
    ExpertReads,
    Goal,
    Line,
    Lookup,
    Option,
    Routing,
    SupernodeProblem,
    TablePlace,
)

FLEETS = (1, 2, 3, 4, 6, 8, 8, 12)
#: Sessions of a group that fit at most.
MAX_FIT = 12
HAIR = Fraction(1, 10**6)


def tiny_supernode(seed: int) -> SupernodeProblem:
    """Return a decision of a few options with few sessions each; equal seeds give equal ones."""
    rng = Random(seed)
    goal: Goal = rng.choice(get_args(Goal))
    num_cards = rng.choice(FLEETS)
    problem = SupernodeProblem(
        num_cards=num_cards,
        capacity_bytes=10**6,
        workspace_bytes=rng.randint(0, 5),
        bandwidth_bytes_per_s=Fraction(rng.randint(5, 40)),
        peak_flops_per_s=Fraction(rng.randint(5, 40)),
        options=_options(rng, num_cards),
        goal=goal,
        demands=(Demand("a", 1, 1),) if goal == "cost_per_on_time_session" else (),
    )
    return _with_limits(rng, problem)


def _options(rng: Random, num_cards: int) -> tuple[Option, ...]:
    divisors = [size for size in range(1, num_cards + 1) if num_cards % size == 0]
    sizes = sorted(rng.sample(divisors, rng.randint(1, min(3, len(divisors)))))
    places: tuple[TablePlace, ...] = rng.choice((("none",), ("hbm",), ("hbm", "host"), ("host",)))
    degrees = rng.choice(((1,), (1,), (1, 2), (2,)))
    parts = [rng.randint(0, 40) for _ in range(3)]
    experts = tuple(_experts(rng) for _ in range(rng.choice((0, 1, 1, 2))))
    found = [
        _option(rng, size, place, degree, parts, experts)
        for size in sizes
        for degree in degrees
        if size % degree == 0
        for place in places
    ]
    return tuple(found) or (_option(rng, sizes[0], places[0], 1, parts, experts),)


def _experts(rng: Random) -> ExpertReads:
    num = rng.randint(2, 8)
    routing: Routing = rng.choice(("expected", "expected", "balanced"))
    return ExpertReads(rng.randint(1, 3), num, rng.randint(1, num), rng.randint(0, 9), routing)


def _option(
    rng: Random,
    size: int,
    place: TablePlace,
    degree: int,
    parts: list[int],
    experts: tuple[ExpertReads, ...],
) -> Option:
    copied, dealt, tables = parts
    is_broken = rng.random() < 0.1
    return Option(
        size=size,
        tables=place,
        attention_tp=degree,
        replicated_bytes=-(-copied // degree),
        expert_bytes=-(-dealt // size),
        table_bytes=-(-tables // size) if place == "hbm" else 0,
        session_bytes=rng.randint(3, 12),
        read_bytes=rng.randint(0, 40),
        kv_read_bytes=Fraction(rng.randint(1, 20), rng.randint(1, 3)),
        flops=Fraction(rng.randint(0, 30), rng.randint(1, 3)),
        experts=experts,
        exchanges=tuple(_exchange(rng) for _ in range(rng.choice((0, 1, 1, 2)))),
        lookup=None if place == "none" else _lookup(rng),
        host_bytes=-(-tables // size) if place == "host" else 0,
        num_hosts=rng.randint(1, 3),
        state_bytes=rng.randint(0, 9),
        setup_s=Fraction(rng.randint(0, 9), 4),
        alignment_cards=rng.randint(1, 3) if is_broken else 0,
        is_asked=rng.random() < 0.9,
    )


def _line(rng: Random) -> Line:
    return Line(Fraction(rng.randint(0, 12), 6), Fraction(rng.randint(0, 6), rng.randint(1, 9)))


def _exchange(rng: Random) -> Exchange:
    ways = tuple(
        tuple(_line(rng) for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(1, 2))
    )
    return Exchange("exchange", rng.randint(1, 3), ways)


def _lookup(rng: Random) -> Lookup:
    lines = tuple(_line(rng) for _ in range(rng.randint(0, 2)))
    return Lookup(rng.randint(1, 5), lines, Fraction(rng.randint(0, 4), 4))


def _with_limits(rng: Random, problem: SupernodeProblem) -> SupernodeProblem:
    """Return the decision with limits that some plan just keeps, or just misses."""
    option = rng.choice(problem.options)
    fits = rng.randint(1, MAX_FIT)
    capacity = option.weight_bytes + problem.workspace_bytes + fits * option.session_bytes
    problem = replace(problem, capacity_bytes=capacity + rng.choice((0, 0, -1, 1)))
    option = rng.choice(problem.options)
    step = step_parts(problem, option, rng.randint(1, fits))
    changes: dict[str, object] = {}
    if rng.random() < 0.4:
        changes["step_target_s"] = step.step_s * rng.choice((1, 1, 1 - HAIR))
    if rng.random() < 0.3:
        changes["host_capacity_bytes"] = option.host_bytes - rng.choice((0, 0, 1))
    if rng.random() < 0.2:
        changes["max_state_bytes"] = max(option.state_bytes - rng.choice((0, 0, 1)), 0)
    if rng.random() < 0.2:
        changes["max_setup_s"] = option.setup_s * rng.choice((1, 1, 1 - HAIR))
    changes["lookups_must_hide"] = rng.random() < 0.2
    problem = replace(problem, **changes)  # type: ignore[arg-type]
    if problem.goal == "cost_per_on_time_session":
        problem = replace(problem, price_per_card_hour=rng.choice((None, Fraction(3))))
    if problem.demands or (problem.goal != "user_rate" and rng.random() < 0.2):
        problem = _with_demands(rng, problem, option, fits)
    return problem


def _with_demands(
    rng: Random, problem: SupernodeProblem, option: Option, fits: int
) -> SupernodeProblem:
    """Return the decision with sessions whose deadlines some plan just keeps."""
    demands = []
    for number in range(rng.randint(1, 3)):
        step_s = step_parts(problem, option, rng.randint(1, fits)).step_s
        due = rng.randint(1, 8) * step_s * rng.choice((1, 1, 1 - HAIR))
        deadline_s = None if rng.random() < 0.3 else due
        new = rng.randint(1, 4)
        demands.append(Demand(f"d{number}", rng.randint(1, 40), new, deadline_s))
    problem = replace(problem, demands=tuple(demands))
    sessions = rng.randint(1, fits)
    step_s = step_parts(problem, option, sessions).step_s
    kept = serve(problem, option, sessions, step_s).on_time
    least = rng.choice((0, kept, kept, kept + 1))
    return replace(problem, min_on_time=least)
