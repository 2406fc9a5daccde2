"""Asks whether problem instances have a plan at all, within one limit of time for all questions.

A yes is a plan that the exact evaluator accepts, whatever it costs; a no is a proof that a second
method confirmed, as in every solve.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from instances.instance import Instance
from optimizer.conflicts.changes import minimising
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.explain import candidate_reports
from optimizer.incumbent import Incumbent
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.protocols import Termination
from optimizer.solve import settle
from optimizer.tables import ProblemTables
from optimizer.variants.solver import Solved, VariantSolver

#: Candidates deployed alone that are looked at before a solver is asked.
MAX_REPORTS = 48
#: One question may take this share of the time that is left, and at least so many seconds.
SHARE, LEAST_S = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an instance has a plan: None where that is not known. A yes comes with the plan."""

    is_feasible: bool | None
    instance: Instance
    plan: Plan | None = None
    evaluation: Evaluation | None = None


class Prober:
    """Answers one question after another until its time is up; then it knows nothing."""

    def __init__(self, options: SolveOptions, on_step: Callable[[str], None] | None = None) -> None:
        self.options, self._on_step = options, on_step
        self.solver = VariantSolver(options)
        self.until = time.monotonic() + options.time_limit_s
        self.num_probes = 0

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return max(0.0, self.until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.left_s <= 0

    def step(self, text: str) -> None:
        """Tell the caller what comes next."""
        if self._on_step is not None:
            self._on_step(text)

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Answer the questions asked inside in a share of the time that is left."""
        whole = self.until
        self.until = time.monotonic() + share * self.left_s
        try:
            yield
        finally:
            self.until = whole

    def tables(self, instance: Instance) -> ProblemTables:
        """Return the priced tables of an instance, as far as time allows."""
        self._limit(max(LEAST_S, SHARE * self.left_s))
        return self.solver.tables(instance)

    def solve(self, instance: Instance, plans: Sequence[Plan] = (), share: float = SHARE) -> Solved:
        """Solve an instance for its own objectives; `plans` are tried first."""
        self._limit(max(LEAST_S, share * self.left_s))
        return self.solver.solve(instance, plans)

    def ask(self, instance: Instance, key: Callable[[Answer], int] | None = None) -> Answer:
        """Answer whether an instance has a plan; raises as `optimizer.solve` does.

        Of the candidates deployed alone the plan is the first that does, or the one of least `key`.
        """
        problem = minimising(instance, ("makespan",))  # what is minimised changes no answer
        if self.is_over:
            return Answer(None, problem)
        self.num_probes += 1
        until = time.monotonic() + max(LEAST_S, SHARE * self.left_s)
        try:
            tables = self.tables(problem)
            simple = self._deployed_alone(tables, key)
            return simple or self._searched(tables, until)
        except TooLargeError:
            return Answer(None, problem)

    def _deployed_alone(
        self, tables: ProblemTables, key: Callable[[Answer], int] | None
    ) -> Answer | None:
        reports = islice(candidate_reports(tables), MAX_REPORTS)
        able = (
            Answer(True, tables.instance, report.plan, report.evaluation)
            for report in reports
            if report.evaluation.is_feasible
        )
        return next(able, None) if key is None else min(able, key=key, default=None)

    def _searched(self, tables: ProblemTables, until: float) -> Answer:
        """Ask the solvers, and stop them at the first plan."""
        found = threading.Event()
        incumbent = Incumbent(tables, lambda best: found.set())
        record = settle(incumbent, self.options, until, stop=found)
        instance = tables.instance
        if record.termination is Termination.INFEASIBLE:
            return Answer(False, instance)
        for plan in (incumbent.plan, record.plan):
            if plan is not None:
                return Answer(True, instance, plan, evaluate(instance, plan))
        if record.limit == "interrupted":
            raise KeyboardInterrupt
        return Answer(None, instance)

    def _limit(self, seconds: float) -> None:
        self.solver.options = replace(self.options, time_limit_s=seconds)
