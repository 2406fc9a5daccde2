"""What a plan costs, and who decides. The library's front door."""

from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.plan_document import read_plan
from optimizer.result import ResultDocument
from optimizer.solve import solve
from optimizer.verify import Verification, verify

__all__ = [
    "Evaluation",
    "Plan",
    "ResultDocument",
    "SolveOptions",
    "Verification",
    "evaluate",
    "read_plan",
    "solve",
    "verify",
]
