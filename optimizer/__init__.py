"""What a plan costs, and who decides. The library's front door."""

from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.frontiers.pareto import ParetoDocument, pareto
from optimizer.near_optimal.search import alternatives
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import read_plan
from optimizer.result import AlternativesDocument, ResultDocument
from optimizer.solve import solve
from optimizer.sweeps.frontier import Frontier, frontier
from optimizer.sweeps.rows import SweepPoint, SweepResult
from optimizer.sweeps.run import sweep
from optimizer.verify import Verification, verify

__all__ = [
    "AlternativesDocument",
    "Evaluation",
    "Frontier",
    "ParetoDocument",
    "Plan",
    "ResultDocument",
    "SolveOptions",
    "SweepPoint",
    "SweepResult",
    "Verification",
    "alternatives",
    "evaluate",
    "frontier",
    "pareto",
    "read_plan",
    "solve",
    "sweep",
    "verify",
]
