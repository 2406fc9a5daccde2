"""What a plan costs, and who decides. The library's front door."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import read_plan
from optimizer.result import AlternativesDocument, ResultDocument
from optimizer.solve import solve
from optimizer.verify import Verification, verify

if TYPE_CHECKING:
    from optimizer.conflicts.document import ConflictDocument
    from optimizer.conflicts.explain import explain_infeasible
    from optimizer.frontiers.pareto import ParetoDocument, pareto
    from optimizer.near_optimal.search import alternatives
    from optimizer.sensitivities.document import SensitivityDocument
    from optimizer.sensitivities.study import sensitivity
    from optimizer.sweeps.frontier import Frontier, frontier
    from optimizer.sweeps.rows import SweepPoint, SweepResult
    from optimizer.sweeps.run import sweep

#: Where the studies are: a solve needs none of them, so they are imported when first asked for.
_STUDIES = {
    "ConflictDocument": "optimizer.conflicts.document",
    "Frontier": "optimizer.sweeps.frontier",
    "ParetoDocument": "optimizer.frontiers.pareto",
    "SensitivityDocument": "optimizer.sensitivities.document",
    "SweepPoint": "optimizer.sweeps.rows",
    "SweepResult": "optimizer.sweeps.rows",
    "alternatives": "optimizer.near_optimal.search",
    "explain_infeasible": "optimizer.conflicts.explain",
    "frontier": "optimizer.sweeps.frontier",
    "pareto": "optimizer.frontiers.pareto",
    "sensitivity": "optimizer.sensitivities.study",
    "sweep": "optimizer.sweeps.run",
}

__all__ = [
    "AlternativesDocument",
    "ConflictDocument",
    "Evaluation",
    "Frontier",
    "ParetoDocument",
    "Plan",
    "ResultDocument",
    "SensitivityDocument",
    "SolveOptions",
    "SweepPoint",
    "SweepResult",
    "Verification",
    "alternatives",
    "evaluate",
    "explain_infeasible",
    "frontier",
    "pareto",
    "read_plan",
    "sensitivity",
    "solve",
    "sweep",
    "verify",
]

if not TYPE_CHECKING:  # else every name would pass for one of the package's

    def __getattr__(name: str) -> Any:
        """Import a study when it is first asked for."""
        if name not in _STUDIES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_STUDIES[name]), name)
        return value
