"""Where no solver proves anything, a bound that needs none may."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from instances.errors import InputError
from instances.instance import Instance
from instances.io import load_instance
from optimizer.options import SolveOptions
from optimizer.side.decisions import solve_side


def slices(extents: list[int], count: int, occupied: list[list[int]] | None = None) -> Instance:
    """Slices of 64 chips on a torus."""
    document = load_instance("slices-4x4").model_dump(mode="json")
    document["slices"] = {
        "extents": extents,
        "occupied": occupied or [],
        "requests": [{"name": "cube", "count": count, "shapes": [[4, 4, 4], [8, 8, 1]]}],
    }
    return Instance.model_validate(document)


def solved(instance: Instance, seconds: float = 5.0) -> Any:
    return solve_side(instance, SolveOptions(time_limit_s=seconds, threads=1))


def test_all_slices_placed_is_optimal_though_no_solver_takes_the_problem() -> None:
    """4,096 chips times two shapes of 64 are more than the formulation states."""
    result = solved(slices([16, 16, 16], 3))
    assert (result.termination, result.limit, result.reason) == ("optimal", None, "")
    objective = result.objective
    assert (objective.verified, objective.bound, objective.gap) == (192, 192, 0)
    assert result.certificate.solver == "none"
    assert result.certificate.second_opinion.method == "bound"


def test_less_than_the_bound_stays_feasible_and_has_a_gap() -> None:
    """Of 4,096 chips 100 are taken here and there; by number the others hold 62 slices."""
    rng = Random(0)
    cells = rng.sample([[x, y, z] for x in range(16) for y in range(16) for z in range(16)], 100)
    result = solved(slices([16, 16, 16], 64, cells), 1.0)
    assert result.termination == "feasible"
    assert result.objective.bound <= 62 * 64
    assert result.objective.verified < result.objective.bound
    assert result.objective.gap > 0


def test_a_torus_that_is_too_large_to_be_searched_is_refused() -> None:
    assert solved(slices([32, 32, 16], 1)).termination == "optimal"  # 16,384 chips
    with pytest.raises(InputError, match="16896 chips are more than the 16384"):
        solved(slices([33, 32, 16], 1))
