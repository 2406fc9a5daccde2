"""The best verified plan so far, whoever found it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from fractions import Fraction

from instances.instance import Instance
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.plan import Plan
from optimizer.protocols import Selection
from optimizer.tables import ProblemTables


class Incumbent:
    """Keeps the best plan that the evaluator accepted; safe to offer to from several threads."""

    def __init__(
        self, tables: ProblemTables, listener: Callable[[Incumbent], None] | None = None
    ) -> None:
        self.tables, self._listener = tables, listener
        self._lock = threading.Lock()
        self.plan: Plan | None = None
        self.evaluation: Evaluation | None = None
        self.values: tuple[Fraction, ...] | None = None

    def offer(self, plan: Plan, evaluation: Evaluation) -> None:
        """Keep a plan if it breaks no rule and is better than the best."""
        values = objective_values(self.tables.instance, evaluation)
        if not evaluation.is_feasible or values is None:
            return
        with self._lock:
            if self.values is not None and values >= self.values:
                return
            self.plan, self.evaluation, self.values = plan, evaluation, values
        if self._listener is not None:
            self._listener(self)

    def offer_selection(self, selection: Selection) -> None:
        """Evaluate a solver's selection and keep it if it is better."""
        plan = plan_of(self.tables, selection)
        self.offer(plan, evaluate(self.tables.instance, plan))


def objective_values(instance: Instance, evaluation: Evaluation) -> tuple[Fraction, ...] | None:
    """Return the exact value of every objective, or None where one is undefined."""
    values = [evaluation.objective(name) for name in instance.objective.names]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None
