"""Wrong answers of CP-SAT 9.15 that the planner's parameters keep away."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from ortools.sat.python import cp_model

from formulations.capacity_rows import build_model as build_capacity_model
from formulations.cpsat_engine import CpSatDeployment, CpSatEngine, configure, set_parameters
from formulations.cpsat_measures import build_model, define_objective
from formulations.deployment_cpsat import MAX_COEFFICIENT_SUM
from formulations.integer_program import MAX_SIZE
from formulations.milp_engine import HighsDeployment
from formulations.staging import Limits
from formulations.ticks import tick_scale
from instances.io import example_names, example_text, load_instance, parse_instance
from optimizer.capacity.building import build_capacity
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import Measure, SolveRequest, Termination

# or-tools#5293: a maximum of 31, which 9.15 reports as 22 with its own defaults
COSTS = (4, 4, 6, 8, 9, 4, 4, -1, 1, 2)
ROW_1 = {5: 787289004, 4: 1635951832, 2: 934830299, 8: 1512557056, 9: 974192232, 3: 1020366518}
ROW_2 = {3: 173586009, 7: 105714302, 2: 37287311, 5: 345765843, 6: 527972037}
MOST_1, MOST_2 = 2428677896, 785147113


def request(instance: Any) -> SolveRequest:
    tables = build_tables(instance)
    return SolveRequest(tables, objective_terms(instance), time.monotonic() + 60)


def test_d16_brute_force_says_31() -> None:
    """The true optimum, over all 1,024 assignments."""
    best = max(
        sum(c * v for c, v in zip(COSTS, x, strict=True))
        for x in itertools.product((0, 1), repeat=10)
        if x[2] + x[3] + x[8] <= 1
        and (not x[0] or sum(c * x[i] for i, c in ROW_1.items()) <= MOST_1)
        and (not x[0] or sum(c * x[i] for i, c in ROW_2.items()) <= MOST_2)
    )
    assert best == 31


def test_d16_cp_sat_as_we_configure_it_says_31() -> None:
    """The planner's parameters give the true optimum of or-tools#5293."""
    model = cp_model.CpModel()
    x = [model.new_bool_var(f"x{i}") for i in range(10)]
    model.add_at_most_one(x[2], x[3], x[8])
    model.add(sum(c * x[i] for i, c in ROW_1.items()) <= MOST_1).only_enforce_if(x[0])
    model.add(sum(c * x[i] for i, c in ROW_2.items()) <= MOST_2).only_enforce_if(x[0])
    model.maximize(sum(c * v for c, v in zip(COSTS, x, strict=True)))
    solver = cp_model.CpSolver()
    configure(solver, request(load_instance("four-sessions-128k")), 30.0)
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == 31
    assert solver.parameters.presolve_inclusion_work_limit == 0


def row_sums(model: cp_model.CpModel) -> list[int]:
    """Return the sum of absolute coefficients of every linear row of a model."""
    return [sum(map(abs, c.linear.coeffs)) for c in model.proto.constraints if c.has_linear()]


#: Capacity decisions are no deployments: they have a program of their own.
CAPACITY = [n for n in example_names() if '"decision": "capacity"' in example_text(n)]


@pytest.mark.parametrize("name", [name for name in example_names() if name not in CAPACITY])
@pytest.mark.parametrize("measure", list(Measure))
def test_no_row_has_coefficients_beyond_2_31(name: str, measure: Measure) -> None:
    """Law 4 on every bundled example, for every measure that may be minimised."""
    tables = build_tables(load_instance(name))
    m = build_model(tables, tick_scale(tables), Limits(min_on_time=1))
    define_objective(m, measure)
    sums = row_sums(m.model)
    assert sums
    assert max(sums) <= MAX_COEFFICIENT_SUM


@pytest.mark.parametrize("name", CAPACITY)
def test_no_row_of_a_capacity_program_has_coefficients_beyond_2_31(name: str) -> None:
    program = build_capacity_model(build_capacity(load_instance(name)).problem).program
    sums = [sum(abs(c) for _, c in row.terms) for row in program.rows]
    assert sums
    assert max(sums) <= MAX_COEFFICIENT_SUM
    assert max(program.size(row.terms) for row in program.rows) < MAX_SIZE


def test_probing_does_not_prove_a_feasible_model_infeasible() -> None:
    """With probing on, 9.15 calls the second stage of this problem infeasible (2^36 ticks)."""
    instance = parse_instance(
        {
            "name": "energy, then mean completion, with a fault",
            "model": "qwen3-32b",
            "fleet": {"pools": [{"name": "hgx", "server": "hgx-h100", "num_servers": 1}]},
            "workload": {
                "cohorts": [
                    {
                        "name": "chat",
                        "num_sessions": 4,
                        "context_tokens": 131064,
                        "new_tokens": 8,
                        "deadline_s": "130ms",
                    }
                ],
                "min_on_time_fraction": "75%",
            },
            "objective": {"minimise": ["energy", "mean_completion"], "billing": "instance"},
            "faults": [{"card": 0, "at_s": "20ms", "stall_s": "40ms"}],
        }
    )
    assert build_tables(instance).kinds
    asked = request(instance)
    outcome = CpSatDeployment().solve(asked)
    assert outcome.termination is Termination.OPTIMAL
    assert [c.value for c in outcome.claims] == [
        c.value for c in HighsDeployment().solve(asked).claims
    ]
    # three instances of TP2: 3 end at s, the fourth session at 2 s, s the TP2 service time;
    # energy = 2 cards * 1275 W * (s + s + 2 s), mean = (s + s + s + 2 s) / 4
    tp2 = next(c for c in asked.tables.candidates if c.num_cards == 2).service_s[0]
    assert [c.value for c in outcome.claims] == [2 * 1275 * 4 * tp2, 5 * tp2 / 4]


def test_a_run_that_fits_nowhere_does_not_make_a_model_infeasible() -> None:
    """A run of 1 s between 3 and 5 cannot be beside a fixed one of 2 to 5, and need not be there.

    Everything absent is a solution. With probing off, 9.15 calls the model infeasible: its linear
    relaxation of `no_overlap` takes the run for present. Probing leaves no such run behind.
    """
    model = cp_model.CpModel()
    start, end = model.new_int_var(3, 17, "start"), model.new_int_var(3, 5, "end")
    other_start, other_end = (model.new_int_var(3, 17, name) for name in ("from", "to"))
    here, there, later, other = (model.new_bool_var(n) for n in ("here", "there", "later", "other"))
    fixed = model.new_fixed_size_interval_var(2, 3, "fixed")
    model.add_no_overlap([fixed, model.new_optional_interval_var(start, 1, end, here, "a")])
    model.add_no_overlap(
        [
            model.new_optional_interval_var(start, 2, end, there, "b"),
            model.new_optional_interval_var(other_start, 2, other_end, other, "c"),
        ]
    )
    least = end - 4 * here - 5 * there - 4 * later
    model.add_linear_expression_in_domain(least, cp_model.Domain(0, 5))
    solver = cp_model.CpSolver()
    set_parameters(solver, 30.0, threads=1, seed=0)
    assert solver.solve(model) == cp_model.OPTIMAL


@pytest.mark.parametrize("measure", list(Measure))
def test_a_bound_never_exceeds_the_optimum(measure: Measure) -> None:
    """Largest measures meet their bound; sums of rounded ticks stop just short of it."""
    asked = request(load_instance("mixed-wins"))
    best = CpSatEngine(asked).minimise(measure, Limits(min_on_time=3))
    assert best.termination is Termination.OPTIMAL
    assert best.value is not None
    assert best.bound is not None
    if measure.is_largest or measure in (Measure.CARDS, Measure.HELD):
        assert best.bound == best.value
    assert 0 <= best.value - best.bound <= abs(best.value) / 10**7
