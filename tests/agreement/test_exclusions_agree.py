"""Excluding one deployment after another visits each exactly once, best first, and then ends.

A deployment is how many serving instances a plan has of each candidate. Brute force lists them all
with the best value of each: every outline that the oracle looks at, told apart by its deployment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances.budget import Budget
from instances.instance import Instance
from optimizer import exhaustive
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.exhaustive_queues import Queues
from optimizer.generate import tiny_instance
from optimizer.objectives import budget_ceilings, objective_terms
from optimizer.plan import Plan
from optimizer.pricing import build_tables
from optimizer.protocols import DeploymentCounts, Formulation, Outcome, SolveRequest, Termination
from optimizer.tables import ProblemTables
from optimizer.variants.solver import VariantSolver

Counts = tuple[tuple[int, int], ...]
Values = tuple[Fraction, ...]
BACKENDS: tuple[type[Formulation], ...] = (HighsDeployment, CpSatDeployment, CbcDeployment)
NUM_SEEDS, BLOCK = 180, 10
#: Chains of more deployments than this take long and show nothing new.
MOST_DEPLOYMENTS = 7


def deployments(instance: Instance, tables: ProblemTables) -> dict[Counts, Values]:
    """Return the best values of every deployment of priced candidates that has a plan."""
    queues = Queues(instance, 20_000)
    totals = exhaustive._Totals(queues)
    index = {candidate.footprint: candidate.index for candidate in tables.candidates}
    dispatch = exhaustive._round_robin if tables.is_round_robin else exhaustive._optimised
    best: dict[Counts, exhaustive._Best] = {}
    for slots in exhaustive._mixed(queues):
        shapes = [queues.shapes[kind.shape] for kind, _ in slots]
        if not all(shape in index for shape in shapes):
            continue  # a slower collective, which the tables leave out
        counts = tuple(sorted(Counter(index[shape] for shape in shapes).items()))
        here = best.setdefault(counts, exhaustive._Best(instance, totals))
        for outline in dispatch(queues, slots):
            here.offer(outline, totals.of(outline))
    found = {counts: here.result(0).values for counts, here in best.items()}
    return {counts: values for counts, values in found.items() if values is not None}


def ask(
    backend: type[Formulation],
    tables: ProblemTables,
    excluded: Sequence[Counts] = (),
    required: Counts | None = None,
) -> Outcome:
    """Ask one backend for the best plan of the deployments left."""
    return backend().solve(
        SolveRequest(
            tables,
            objective_terms(tables.instance),
            time.monotonic() + 60,
            ceilings=budget_ceilings(tables.instance),
            excluded=tuple(map(DeploymentCounts, excluded)),
            required=None if required is None else DeploymentCounts(required),
        )
    )


def deployment(tables: ProblemTables, plan: Plan) -> Counts:
    index = {candidate.footprint: candidate.index for candidate in tables.candidates}
    return tuple(sorted(Counter(index[serving.footprint] for serving in plan).items()))


def visited(backend: type[Formulation], tables: ProblemTables) -> Iterator[tuple[Counts, Values]]:
    """Yield the deployments in the order in which a backend finds them, until it finds no more."""
    excluded: list[Counts] = []
    while True:
        found = ask(backend, tables, excluded)
        if found.termination is Termination.INFEASIBLE:
            return
        assert found.termination is Termination.OPTIMAL
        assert found.selection is not None
        plan = plan_of(tables, found.selection)
        judged = evaluate(tables.instance, plan)
        assert judged.violations == ()
        values = tuple(judged.objective(name) for name in tables.instance.objective.names)
        assert tuple(claim.value for claim in found.claims) == values
        excluded.append(deployment(tables, plan))
        yield excluded[-1], tuple(value for value in values if value is not None)
        assert len(excluded) <= 50, "a deployment comes again and again"


@cache
def chains(seed: int) -> tuple[ProblemTables, dict[Counts, Values]] | None:
    """Return a mixed instance with few deployments, and its deployments; None for another seed."""
    instance = tiny_instance(seed)
    if instance.search.deployment != "mixed":
        return None
    tables = build_tables(instance)
    found = deployments(instance, tables) if tables.kinds else {}
    if not 1 <= len(found) <= MOST_DEPLOYMENTS:
        return None
    return tables, found


def limited(tables: ProblemTables, plan: Plan) -> ProblemTables:
    """Return tables of the instance with a makespan of at most that of a plan."""
    instance = tables.instance
    most = Budget(makespan_s=evaluate(instance, plan).makespan_s)
    objective = instance.objective.model_copy(update={"at_most": most})
    return build_tables(Instance.model_validate({**dict(instance), "objective": objective}))


def check(backend: type[Formulation], tables: ProblemTables, want: dict[Counts, Values]) -> None:
    where = f"{tables.instance.name} {backend.__name__}"
    found = list(visited(backend, tables))
    assert dict(found) == want, where
    assert len(found) == len(want), where
    values = [value for _, value in found]
    assert values == sorted(values), where


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_every_deployment_is_visited_once_best_first(first: int) -> None:
    """Seed 5 has a model that CBC calls infeasible at its first tolerance."""
    for seed in range(first, first + BLOCK):
        known = chains(seed)
        if known is None:
            continue
        for backend in BACKENDS if seed % 5 == 0 else BACKENDS[:2]:
            check(backend, *known)


def test_there_are_enough_deployments_to_visit() -> None:
    sizes = [len(known[1]) for seed in range(NUM_SEEDS) if (known := chains(seed)) is not None]
    assert len(sizes) >= 40
    assert sum(sizes) >= 160


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_limits_on_objectives_hold_for_every_deployment(backend: type[Formulation]) -> None:
    """With the makespan of the best plan as its limit, fewer deployments are left."""
    num_left = num_all = 0
    for seed in range(40):
        known = chains(seed)
        if known is None or len(known[1]) < 3:
            continue
        best = ask(backend, known[0]).selection
        assert best is not None
        tables = limited(known[0], plan_of(known[0], best))
        want = deployments(tables.instance, tables)
        check(backend, tables, want)
        num_left, num_all = num_left + len(want), num_all + len(known[1])
    assert 0 < num_left < num_all


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_required_deployment_has_its_own_best_plan(backend: type[Formulation]) -> None:
    for seed in range(24):
        known = chains(seed)
        if known is None:
            continue
        tables, want = known
        for counts, values in want.items():
            found = ask(backend, tables, required=counts)
            assert found.termination is Termination.OPTIMAL
            assert tuple(claim.value for claim in found.claims) == values
            assert found.selection is not None
            assert deployment(tables, plan_of(tables, found.selection)) == counts
            found = ask(backend, tables, [counts], required=counts)
            assert found.termination is Termination.INFEASIBLE


def test_the_variant_solver_excludes_and_proves_it_by_two_methods() -> None:
    solver = VariantSolver()
    for seed in (5, 7, 16, 20):
        known = chains(seed)
        if known is None:
            continue
        tables, want = known
        excluded: list[DeploymentCounts] = []
        for values in sorted(want.values()):
            solved = solver.solve(tables.instance, excluded=tuple(excluded))
            assert solved.termination is Termination.OPTIMAL
            assert solved.values == values
            assert solved.plan is not None
            assert "none" not in solved.proof
            excluded.append(
                DeploymentCounts(deployment(solver.tables(tables.instance), solved.plan))
            )
        assert solver.solve(tables.instance, excluded=tuple(excluded)).is_infeasible


def test_a_hint_of_an_excluded_deployment_is_no_better_plan() -> None:
    """It is better than all that is left, and was taken for a contradiction of the proof."""
    known = next(c for s in range(NUM_SEEDS) if (c := chains(s)) and len(set(c[1].values())) > 2)
    instance, solver = known[0].instance, VariantSolver()
    best = solver.solve(instance)
    assert best.plan is not None
    excluded = (DeploymentCounts(deployment(solver.tables(instance), best.plan)),)
    second = solver.solve(instance, [best.plan], excluded=excluded)
    assert second.is_proven
    assert second.values == sorted(known[1].values())[1]
