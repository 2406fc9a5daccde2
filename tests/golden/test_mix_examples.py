"""The published mixes of accelerators (Mélange): their costs and counts, by every solver."""

from __future__ import annotations

import pytest

from instances.io import load_instance
from optimizer import SolveOptions
from optimizer.side.decisions import solve_side

#: Cost an hour, and how many A10G and A100-80GB, as Mélange's own solver finds them.
PUBLISHED = [
    ("mix-two-gpus", 6.7, "67/10", [3, 1]),
    ("mix-rate-82", 14.04, "351/25", [3, 3]),
    ("mix-tight-slo", 10.37, "1037/100", [3, 2]),
]


@pytest.mark.parametrize("solver", ["auto", "cp-sat", "highs", "cbc"])
@pytest.mark.parametrize(("name", "cost", "exact", "counts"), PUBLISHED)
def test_the_published_cost_is_proven(
    name: str, cost: float, exact: str, counts: list[int], solver: str
) -> None:
    result = solve_side(load_instance(name), SolveOptions(solver=solver, threads=1))
    assert result.termination == "optimal"
    assert result.certificate.second_opinion.agrees is True
    assert (result.objective.verified, result.objective.verified_exact) == (cost, exact)
    assert result.objective.bound_exact == exact
    assert result.plan is not None
    assert result.plan.mix is not None
    assert result.plan.mix.counts == counts
