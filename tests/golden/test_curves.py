"""The source's Figures 6-51 and 6-52, exact: cost per on-time session against the deadline.

Eight steps take s(TP) with context 131,064 + 1 .. 131,064 + 8 (section 6.7.1): 119.11 ms for TP2,
63.79 ms for TP4, 41.18 ms for TP8. Eight cards are paid until the last session ends; a curve begins
where three of four sessions are on time.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances import Instance, load_instance
from instances.sweep import load_sweep
from optimizer import SolveOptions, frontier, solve
from optimizer.frontiers.deadline import with_deadline
from optimizer.pricing import build_tables
from optimizer.sweeps.run import run_sweep
from optimizer.sweeps.spec import sweep_spec

MS = Fraction(1, 1000)


def service_s(instance: Instance, tp: int) -> Fraction:
    """Time of one session of eight steps, s."""
    candidates = build_tables(instance).candidates
    return next(c.service_s[0] for c in candidates if c.footprint.parallel.tp == tp)


def curves(name: str) -> dict[int, list[tuple[Fraction, Fraction]]]:
    """Return, by TP, (deadline from which, cost per on-time session) of every piece with a plan."""
    instance, file, source = load_sweep(name)
    assert file is not None
    spec = sweep_spec(instance, fields=file.set, exact=file.exact, source=source)
    found: dict[int, list[tuple[Fraction, Fraction]]] = {}
    for block in run_sweep(spec, SolveOptions(threads=1)):
        for piece in block:
            row = piece.record()
            if row["value_exact"] is not None:
                assert row["termination"] == "optimal"
                assert row["bound_exact"] == row["value_exact"]
                step = Fraction(row["from_exact"]), Fraction(row["value_exact"])
                found.setdefault(row["search.tp"], []).append(step)
    return found


def test_figure_6_51_without_faults() -> None:
    instance = load_instance("four-sessions-128k")
    s2, s4, s8 = (service_s(instance, tp) for tp in (2, 4, 8))
    assert [round(float(s * 1000), 1) for s in (s2, s4, s8)] == [119.1, 63.8, 41.2]
    assert curves("deadlines-128k") == {
        # four instances, one session each: all four end at 119.1 ms; 8 · 119.1 / 4 = 0.238
        2: [(s2, 8 * s2 / 4)],
        # two instances end at 63.8, 63.8, 127.6, 127.6 ms: three (and four) at 127.6; 0.255
        4: [(2 * s4, 8 * 2 * s4 / 4)],
        # one instance ends at 41.2, 82.4, 123.5, 164.7 ms: three at 123.5 ms for 8 · 164.7 / 3
        # = 0.439, four at 164.7 ms for 8 · 164.7 / 4 = 0.329
        8: [(3 * s8, 8 * 4 * s8 / 3), (4 * s8, 8 * 4 * s8 / 4)],
    }


def test_figure_6_52_with_a_fault() -> None:
    """Card 0 fails at 20 ms; its instance starts its session again at 60 ms."""
    instance = load_instance("four-sessions-fault")
    s2, s4, s8 = (service_s(instance, tp) for tp in (2, 4, 8))
    restart = 60 * MS
    assert curves("deadlines-fault") == {
        # 119.1 three times and 179.1 ms: 8 · 179.1 / 3 = 0.478, from 179.1 ms on / 4 = 0.358
        2: [(s2, 8 * (restart + s2) / 3), (restart + s2, 8 * (restart + s2) / 4)],
        # 63.8, 127.6 and, on the failing one, 123.8, 187.6 ms: the third ends at 127.6 ms
        4: [(2 * s4, 8 * (restart + 2 * s4) / 3), (restart + 2 * s4, 8 * (restart + 2 * s4) / 4)],
        # 101.2, 142.4, 183.5, 224.7 ms
        8: [
            (restart + 3 * s8, 8 * (restart + 4 * s8) / 3),
            (restart + 4 * s8, 8 * (restart + 4 * s8) / 4),
        ],
    }


def test_published_values_stand_on_the_curves() -> None:
    """Section 6.7.2: 0.238, 0.255, 0.439 without and 0.478, 0.500 with the fault, at 130 ms."""
    at_130 = {
        name: {
            tp: round(float([v for d, v in steps if d <= 130 * MS][-1]), 3)
            for tp, steps in curves(name).items()
            if steps[0][0] <= 130 * MS
        }
        for name in ("deadlines-128k", "deadlines-fault")
    }
    assert at_130 == {
        "deadlines-128k": {2: 0.238, 4: 0.255, 8: 0.439},
        "deadlines-fault": {2: 0.478, 4: 0.5},  # TP8 has one session on time at 130 ms
    }


@pytest.mark.parametrize("name", ["four-sessions-128k", "four-sessions-fault", "mixed-wins"])
def test_a_solve_at_each_breakpoint_and_just_below_agrees(name: str) -> None:
    instance = load_instance(name)
    exact = frontier(instance)
    cohorts = tuple(range(len(instance.workload.cohorts)))
    assert exact.breakpoints_s
    for at in exact.breakpoints_s:
        for deadline in (at, at - Fraction(1, 10**12), at + Fraction(1, 10**12)):
            result = solve(with_deadline(instance, cohorts, deadline), SolveOptions(threads=1))
            value = exact.value_at(deadline)
            assert result.objective.verified_exact == (None if value is None else str(value))
