"""What a plan costs, and who decides. The library's front door."""

from optimizer.conflicts.document import ConflictDocument
from optimizer.conflicts.explain import explain_infeasible
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.frontiers.pareto import ParetoDocument, pareto
from optimizer.near_optimal.search import alternatives
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import read_plan
from optimizer.result import AlternativesDocument, ResultDocument
from optimizer.sensitivity.document import SensitivityDocument
from optimizer.sensitivity.study import sensitivity
from optimizer.solve import solve
from optimizer.sweeps.frontier import Frontier, frontier
from optimizer.sweeps.rows import SweepPoint, SweepResult
from optimizer.sweeps.run import sweep
from optimizer.verify import Verification, verify

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
