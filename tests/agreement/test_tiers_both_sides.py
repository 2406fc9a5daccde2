"""Every rule of tiers on both sides: a plan that just fits is found, one that just breaks never.

Each case is a problem in which a plan is best, and the same problem with one limit changed so that
the plan breaks that rule by a known amount; evaluator, oracle and all three solvers are asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from formulations.tiers import solve_tiers
from optimizer.protocols import Termination
from optimizer.tiers.evaluation import evaluate_tiers
from optimizer.tiers.problem import Data, Machine, Tier, TierPlan, TierProblem
from optimizer.tiers.search import best_tiers_exhaustively

F = Fraction
HAIR = F(1, 10**6)

#: Ten bytes a second, and one; each on a path of its own.
FAST = Tier("fast", 40, F(10), 0, F(10))
SLOW = Tier("slow", 1000, F(1), 1, F(1))
#: Ten bytes for each session, all read in every step.
KV = Data("kv", (0,), 0, 10, read_bytes_per_session=F(10), is_written=True)
#: 40 bytes, read once a step.
WEIGHTS = Data("weights", (0, 1), 40, read_bytes=F(40))
#: 10 bytes of the slow tier, read ten times a step: 100 s, or 10 s to fetch and 10 s to read.
SNAPSHOT = Data("snapshot", (1,), 10, read_bytes=F(100), may_copy=True)
#: Ten bytes a resume, one a second: all the time of the fast tier.
IDLE = Data("idle", (0,), 20, is_written=True, resumes_per_s=F(1), resume_bytes=10)


@dataclass(frozen=True)
class Case:
    """What fits, what breaks, the plan of both, and how it breaks."""

    fits: TierProblem
    breaks: TierProblem
    plan: TierPlan
    rule: str
    amount: Fraction | int
    unit: str


def problem(*classes: Data, **changes: object) -> TierProblem:
    """Two tiers and one second of communication."""
    found = TierProblem(
        machine=Machine(communication_s=F(1)),
        paths=("a", "b"),
        tiers=(FAST, SLOW),
        classes=classes,
        goal="sessions",
        max_sessions=8,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def tiers(*, fast: Tier = FAST, slow: Tier = SLOW) -> tuple[Tier, Tier]:
    return fast, slow


def plan(homes: tuple[int, ...], num: int, copies: tuple[int | None, ...] = (None,)) -> TierPlan:
    return TierPlan(homes, copies, num)


ROM = replace(FAST, is_writable=False, bytes_per_mm2=4)
RATE = {"goal": "user_rate", "max_sessions": 1}
ALONE = replace(WEIGHTS, tiers=(0,))
WRITTEN = replace(WEIGHTS, is_written=True)
LATE = replace(IDLE, max_resume_s=F(3, 2))
FAR = replace(FAST, round_trip_s=F(1, 2))

CASES = {
    # four sessions take 40 B
    "capacity": Case(
        problem(KV),
        problem(KV, tiers=tiers(fast=replace(FAST, capacity_bytes=39))),
        plan((0,), 4),
        *("capacity", 1, "bytes"),
    ),
    # 40 B of ROM at 4 B a mm2 are 10 mm2
    "area": Case(
        problem(ALONE, tiers=tiers(fast=ROM), max_sessions=1),
        problem(ALONE, tiers=tiers(fast=replace(ROM, capacity_bytes=36)), max_sessions=1),
        plan((0,), 1),
        *("capacity", 1, "mm2"),
    ),
    # 1 + 4 s in the fast tier, 1 + 40 s in the slow one
    "allowed": Case(
        problem(WEIGHTS, **RATE),
        problem(replace(WEIGHTS, tiers=(1,)), **RATE),
        plan((0,), 1),
        *("allowed", 1, "classes"),
    ),
    "read only": Case(
        problem(WRITTEN, **RATE),
        problem(WRITTEN, tiers=tiers(fast=replace(FAST, is_writable=False)), **RATE),
        plan((0,), 1),
        *("read_only", 40, "bytes"),
    ),
    "copy": Case(
        problem(SNAPSHOT, **RATE),
        problem(replace(SNAPSHOT, may_copy=False), **RATE),
        plan((1,), 1, (0,)),
        *("copy", 1, "classes"),
    ),
    "copy in ROM": Case(
        problem(SNAPSHOT, **RATE),
        problem(SNAPSHOT, tiers=tiers(fast=ROM), **RATE),
        plan((1,), 1, (0,)),
        *("copy", 1, "classes"),
    ),
    # a copy takes 10 B as well
    "room for the copy": Case(
        problem(SNAPSHOT, tiers=tiers(fast=replace(FAST, capacity_bytes=10)), **RATE),
        problem(SNAPSHOT, tiers=tiers(fast=replace(FAST, capacity_bytes=9)), **RATE),
        plan((1,), 1, (0,)),
        *("capacity", 1, "bytes"),
    ),
    "fewest": Case(
        problem(KV, min_sessions=4),
        problem(KV, min_sessions=5),
        plan((0,), 4),
        *("min_sessions", 1, "sessions"),
    ),
    "most": Case(
        problem(KV, max_sessions=3),
        problem(KV, max_sessions=2),
        plan((0,), 3),
        *("max_sessions", 1, "sessions"),
    ),
    # 1 s and 1 s for each session
    "target": Case(
        problem(KV, step_target_s=F(4)),
        problem(KV, step_target_s=4 - HAIR),
        plan((0,), 3),
        *("step_target", HAIR, "s"),
    ),
    "queue": Case(
        problem(IDLE),
        problem(replace(IDLE, resumes_per_s=1 + HAIR)),
        plan((0,), 8),
        *("queue", HAIR, "of all time"),
    ),
    # resumes use all of the path's time, and then one byte is to be read
    "no time left": Case(
        problem(IDLE, Data("more", (0,), 1)),
        problem(IDLE, Data("more", (0,), 1, read_bytes=F(1))),
        plan((0, 0), 8, (None, None)),
        *("no_time_left", 1, "paths"),
    ),
    # 0.5 s there and back, 1 s for 10 B
    "resume": Case(
        problem(LATE, tiers=tiers(fast=FAR)),
        problem(replace(LATE, max_resume_s=F(3, 2) - HAIR), tiers=tiers(fast=FAR)),
        plan((0,), 8),
        *("resume", HAIR, "s"),
    ),
    # half of the time of the path is left: 1 s and 2 s for each session
    "target beside resumes": Case(
        problem(KV, replace(IDLE, bytes=0, resumes_per_s=F(1, 2)), step_target_s=F(7)),
        problem(KV, replace(IDLE, bytes=0, resumes_per_s=F(1, 2)), step_target_s=7 - HAIR),
        plan((0, 0), 3, (None, None)),
        *("step_target", HAIR, "s"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_that_just_fits_and_one_that_just_breaks(name: str) -> None:
    case = CASES[name]
    fitting = evaluate_tiers(case.fits, case.plan)
    assert fitting.violations == ()
    value = fitting.value(case.fits.goal)
    assert value is not None
    (broken,) = evaluate_tiers(case.breaks, case.plan).violations
    assert (broken.rule, broken.amount, broken.unit) == (case.rule, case.amount, case.unit)
    for problem_, limit in ((case.fits, None), (case.breaks, value)):
        best = best_tiers_exhaustively(problem_)
        found = None if best is None else evaluate_tiers(problem_, best).value(problem_.goal)
        assert found == value if limit is None else found is None or found < value
        for backend in ("cp-sat", "highs", "cbc"):
            solved = solve_tiers(problem_, backend, deadline=time.monotonic() + 60)
            wanted = Termination.INFEASIBLE if found is None else Termination.OPTIMAL
            assert (solved.termination, solved.value) == (wanted, found), backend
            assert solved.plan is None or not evaluate_tiers(problem_, solved.plan).violations


#: Twenty reads of one byte: 0.5 s there and back, 2 s of bytes at 10 B/s, 2 s at ten a second.
TABLE = Data("table", (0,), 20, lookups=20, lookup_bytes=1, is_prefetched=True)
QUICK = replace(FAST, round_trip_s=F(1, 2), max_reads_per_s=F(10))


@pytest.mark.parametrize("backend", ["cp-sat", "highs", "cbc"])
@pytest.mark.parametrize(
    ("table", "share", "fixed_s", "step_s"),
    [
        # 2 s on the path and 7 s make 9 s, of which half hides all 4.5 s
        (TABLE, F(1, 2), F(7), F(9)),
        # of 8.9 s half hides 4.45 s, and 0.05 s are seen
        (TABLE, F(1, 2), F("6.9"), F("8.95")),
        # waited for in whole, beside nothing but 7 s
        (replace(TABLE, is_prefetched=False), F(1, 2), F(7), F("11.5")),
    ],
)
def test_lookups_are_hidden_up_to_the_first_block(
    table: Data, share: Fraction, fixed_s: Fraction, step_s: Fraction, backend: str
) -> None:
    machine = Machine(fixed_s=fixed_s, first_block_share=share)
    given = problem(table, machine=machine, tiers=tiers(fast=QUICK), **RATE)
    judged = evaluate_tiers(given, plan((0,), 1))
    assert judged.step.total_s == step_s
    assert judged.random_reads_s == (2, 0)
    solved = solve_tiers(given, backend, deadline=time.monotonic() + 60)
    assert (solved.value, solved.plan) == (1 / step_s, plan((0,), 1))
