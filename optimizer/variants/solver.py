"""Solves many variants of one problem instance; prices again only what a change touches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.instance import Instance
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.explain import candidate_reports, rejections
from optimizer.incumbent import Incumbent, objective_values
from optimizer.options import SolveOptions
from optimizer.plan import Plan
from optimizer.pricing import dispatch_order
from optimizer.protocols import Ceiling, DeploymentCounts, Termination
from optimizer.record import LimitName, SolveRecord
from optimizer.result_document import best_of, no_plan_reason
from optimizer.solve import price_in_time, settle
from optimizer.tables import ProblemTables, Rejection


@dataclass(frozen=True, slots=True)
class Solved:
    """What solving one variant established, exactly.

    `values` and `bounds` follow the objectives as they are compared (what is maximised negated);
    a bound is None where none is proven. `proof` names who proved the result and who agreed.
    """

    instance: Instance
    termination: Termination
    limit: LimitName | None
    reason: str
    plan: Plan | None
    evaluation: Evaluation | None
    values: tuple[Fraction, ...] | None
    bounds: tuple[Fraction | None, ...]
    proof: str

    @property
    def is_proven(self) -> bool:
        """Whether the optimum, or that there is no plan, is proven."""
        return self.termination in (Termination.OPTIMAL, Termination.INFEASIBLE)

    @property
    def is_infeasible(self) -> bool:
        """Whether there is proven to be no plan."""
        return self.termination is Termination.INFEASIBLE


class VariantSolver:
    """Solves variants one after another, each to proof; the answer depends on the variant alone.

    One thread by default, so that the same variant gives the same answer again. Not for use from
    several threads at once.
    """

    def __init__(self, options: SolveOptions | None = None) -> None:
        self.options = options or SolveOptions(threads=1)
        self.options.check()
        self.num_solves = 0
        self._tables: ProblemTables | None = None

    def tables(self, instance: Instance) -> ProblemTables:
        """Return priced tables; those of the variant before serve where prices are the same.

        Raises KeyboardInterrupt where pricing was interrupted.
        """
        old = self._tables
        if old is not None and _same_prices(old.instance, instance) and old.is_complete:
            tables = replace(old, instance=instance, dispatch_order=dispatch_order(instance))
        else:
            tables, is_interrupted = price_in_time(
                instance, time.monotonic(), self.options.time_limit_s
            )
            if is_interrupted:
                raise KeyboardInterrupt
        self._tables = tables
        return tables

    def solve(
        self,
        instance: Instance,
        plans: Iterable[Plan] = (),
        *,
        tables: ProblemTables | None = None,
        ceilings: tuple[Ceiling, ...] = (),
        excluded: tuple[DeploymentCounts, ...] = (),
        required: DeploymentCounts | None = None,
        stop: threading.Event | None = None,
    ) -> Solved:
        """Solve a variant; `plans` of other variants are tried first, as hints, where all count.

        Given `tables` may lack or add plans on purpose; `ceilings`, `excluded` and `required` are
        as in `settle`. Raises MismatchError, BackendUnavailable and
        TooLargeError as `optimizer.solve` does, and KeyboardInterrupt when interrupted.
        """
        until = time.monotonic() + self.options.time_limit_s
        is_whole = tables is None
        tables = self.tables(instance) if tables is None else tables
        incumbent = Incumbent(tables)
        is_narrowed = bool(ceilings or excluded or required) or not is_whole
        for plan in () if is_narrowed else plans:  # a hint that does not count would beat the best
            incumbent.offer(plan, evaluate(instance, plan))
        record = settle(
            incumbent,
            self.options,
            until,
            ceilings=ceilings,
            excluded=excluded,
            required=required,
            is_whole=is_whole,
            stop=stop,
        )
        if record.limit == "interrupted" and not (stop is not None and stop.is_set()):
            raise KeyboardInterrupt
        self.num_solves += 1
        return _solved(record)


def _solved(record: SolveRecord) -> Solved:
    plan, evaluation, claims = best_of(record)
    termination = record.termination
    if termination is Termination.NO_SOLUTION_FOUND and plan is not None:
        termination = Termination.FEASIBLE
    tables, rejected = record.tables, list[Rejection]()
    values = None if evaluation is None else objective_values(tables.instance, evaluation)
    if termination is Termination.INFEASIBLE:
        rejected = rejections(tables, list(candidate_reports(tables)), None, None)
    reason = record.reason or no_plan_reason(record, termination, rejected)
    return Solved(
        tables.instance,
        termination,
        record.limit,
        reason,
        plan,
        evaluation,
        values,
        _bounds(record, values, [claim.bound for claim in claims]),
        _proof(record),
    )


def _bounds(
    record: SolveRecord, values: tuple[Fraction, ...] | None, claimed: Sequence[Fraction | None]
) -> tuple[Fraction | None, ...]:
    if values is None:
        return ()
    bounds = [*claimed, *(None,) * (len(values) - len(claimed))]
    bounds[0] = record.first_bound(bounds[0])
    return tuple(bounds)


def _proof(record: SolveRecord) -> str:
    if record.termination not in (Termination.OPTIMAL, Termination.INFEASIBLE):
        return ""
    opinion = record.opinion.method if record.opinion is not None else "none"
    return f"{record.solver or 'rules'}, {opinion}"


def _same_prices(old: Instance, new: Instance) -> bool:
    """Whether candidates, kinds and layouts of one instance serve for another.

    They do not depend on deadlines, releases, shares of sessions on time, budgets or objectives
    (but for `maximise`, which keeps candidates that hold more).
    """
    if old is new:
        return True
    return (
        all(
            getattr(old, name) == getattr(new, name)
            for name in ("fleet", "faults", "search", "runtime", "engine", "measurements", "model")
        )
        and old.objective.maximise == new.objective.maximise
        and _work(old) == _work(new)
    )


def _work(instance: Instance) -> tuple[object, ...]:
    workload = instance.workload
    cohorts = (
        (c.name, c.num_sessions, c.context_tokens, c.prompt_tokens, c.new_tokens)
        for c in workload.cohorts
    )
    return (*cohorts, workload.routing, workload.expert_counts)
