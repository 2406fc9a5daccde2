"""Whether the base plan's deployment is still optimal on a variant, exactly.

A deployment is how many serving instances of which footprint there are; which session runs where,
and on which cards, may change. The base deployment is optimal where its best plan has the values of
the optimum, alone or tied.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from instances.instance import Instance
from optimizer.bounds import term_bound
from optimizer.errors import MismatchError, TooLargeError
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.exhaustive import solve_exhaustively
from optimizer.incumbent import objective_values
from optimizer.objectives import objective_terms
from optimizer.plan import Footprint, Plan
from optimizer.pricing import build_tables
from optimizer.protocols import DeploymentCounts
from optimizer.tables import Candidate, ProblemTables
from optimizer.variants.solver import Solved, VariantSolver

#: Where there are no more plans than this, all are tried to find the optimum.
MAX_TRIED = 2000
#: Plans of the base deployment that are tried on every variant, besides the base plan.
MAX_WITNESSES = 3
#: Rules that judge times and bytes of a plan; all others judge what it is.
MEASURED_RULES = frozenset({"memory", "on_time", "budget"})
#: More combinations of sessions than this and the bytes themselves are compared.
MAX_COMBINATIONS = 256

Values = tuple[Fraction, ...]
Deployment = Counter[Footprint]
Signature = tuple[object, ...]


class Unsettled(Exception):  # noqa: N818 - it is an answer, not a fault
    """A variant could not be decided within the limits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds on one variant.

    `own` is an optimal plan with the base deployment, where there is one; `best` an optimal plan,
    None where nothing fits. Unless it `is_solved`, one method found it: the plan meets a bound that
    no plan goes below, or all plans were tried.
    """

    own: Plan | None
    best: Plan | None
    values: Values | None
    is_solved: bool
    reason: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the base deployment is optimal."""
        return self.own is not None


def deployment_of(plan: Plan) -> Deployment:
    """Return how many serving instances of which footprint a plan has."""
    return Counter(serving.footprint for serving in plan)


def values_of(instance: Instance, evaluation: Evaluation) -> Values | None:
    """Return the values of all objectives; None where the plan is not allowed or one is missing."""
    return objective_values(instance, evaluation) if evaluation.is_feasible else None


def _has_few_plans(instance: Instance) -> bool:
    try:
        solve_exhaustively(instance, MAX_TRIED)
    except TooLargeError:
        return False
    return True


class Judge:
    """Judges variants of one problem instance by its optimal plan."""

    def __init__(self, solver: VariantSolver, base: Solved) -> None:
        assert base.plan is not None
        self.solver, self.plan = solver, base.plan
        self.deployment = deployment_of(base.plan)
        self.witnesses: list[Plan] = [base.plan]
        search, workload = base.instance.search, base.instance.workload
        #: Whether a deployment is one plan: sessions dealt out, cards laid out or all alike.
        self.is_rigid = (search.deployment, search.dispatch) == ("uniform", "round_robin") or (
            workload.num_sessions == 1 and not base.instance.faults
        )
        #: Whether the plans are so few that all may be tried.
        self.is_small = _has_few_plans(base.instance)
        self._known: dict[Signature | None, Verdict] = {}
        #: By the identity of an instance, which is kept so that no other one gets it.
        self._signatures: dict[int, tuple[Instance, Signature | None]] = {}
        self._keep(base.instance, Verdict(base.plan, base.plan, base.values, is_solved=True))

    def tables(self, instance: Instance) -> ProblemTables:
        """Return the priced tables of a variant; raises Unsettled where they are too large."""
        try:
            return self.solver.tables(instance)
        except TooLargeError as error:
            raise Unsettled(str(error)) from None

    def signature(self, instance: Instance) -> Signature | None:
        """Return all that the decision depends on: equal for two variants, they decide alike.

        None where the tables lack a candidate of the base deployment, which then may still tie.
        """
        if id(instance) not in self._signatures:
            tables = self.tables(instance)
            footprints = {candidate.footprint for candidate in tables.candidates}
            is_told = tables.is_complete and self.deployment.keys() <= footprints
            self._signatures[id(instance)] = (instance, signature(tables) if is_told else None)
        return self._signatures[id(instance)][1]

    def judge(self, instance: Instance) -> Verdict:
        """Judge one variant; raises Unsettled where it cannot be decided within the limits."""
        known = self._known.get(self.signature(instance))
        return self._keep(instance, self._judge(instance)) if known is None else known

    def settled(self, instance: Instance) -> Verdict:
        """Judge a variant and let solvers confirm what one method alone has found."""
        verdict = self.judge(instance)
        if verdict.is_solved:
            return verdict
        solved = self._proven(instance)
        if solved.values != verdict.values:
            raise MismatchError(f"{solved.proof} found {solved.values}, not {verdict.values}")
        return self._keep(instance, replace(verdict, is_solved=True, reason=solved.reason))

    def _keep(self, instance: Instance, verdict: Verdict) -> Verdict:
        """Remember a verdict, and its plan of the base deployment as one to try elsewhere."""
        if verdict.own is not None and verdict.own not in self.witnesses:
            self.witnesses[1:] = [verdict.own, *self.witnesses[1:MAX_WITNESSES]]
        key = self.signature(instance)
        if key is not None:
            self._known[key] = verdict
        return verdict

    def _judge(self, instance: Instance) -> Verdict:
        tables = self.tables(instance)
        own, values, is_plan_whole = self._best_witness(instance)
        if own is not None and tables.is_complete:
            bounds = tuple(term_bound(tables, term) for term in objective_terms(instance))
            if values == bounds:
                return Verdict(own, own, values, is_solved=False)
        optimum = self._optimum(instance)
        if optimum.best is None or optimum.values is None:
            if own is not None:
                raise MismatchError(f"{instance.name}: a plan was missed that is allowed")
            return optimum
        if values is not None and values < optimum.values:
            raise MismatchError(
                f"{instance.name}: {optimum.values} is no optimum, {values} is less"
            )
        if values == optimum.values:
            return replace(optimum, own=own)
        if deployment_of(optimum.best) == self.deployment:
            return replace(optimum, own=optimum.best)
        if self.is_rigid and is_plan_whole:
            return optimum
        return replace(optimum, own=self._own_plan(instance, tables, optimum.values))

    def _optimum(self, instance: Instance) -> Verdict:
        """Find an optimal plan: by trying all where they are few, else by solvers."""
        if self.is_small:
            with suppress(TooLargeError):
                found = solve_exhaustively(instance, MAX_TRIED)
                return Verdict(None, found.plan, found.values, is_solved=False)
        solved = self._proven(instance)
        return Verdict(None, solved.plan, solved.values, is_solved=True, reason=solved.reason)

    def _own_plan(self, instance: Instance, tables: ProblemTables, optimum: Values) -> Plan | None:
        """Return a plan of the base deployment that reaches the optimum; None where none does."""
        if self._is_dearer(tables, optimum):
            return None
        if self.is_small:
            with suppress(TooLargeError):
                found = solve_exhaustively(narrowed(instance, self.deployment), MAX_TRIED)
                if found.plan is None or found.values != optimum:
                    return None
                if deployment_of(found.plan) == self.deployment:
                    return found.plan
        again = self.best_own(instance)
        return again.plan if again is not None and again.values == optimum else None

    def _is_dearer(self, tables: ProblemTables, optimum: Values) -> bool:
        """Whether a bound proves every plan of the base deployment worse than the optimum."""
        mine = tuple(c for c in tables.candidates if c.footprint in self.deployment)
        if len(mine) < len(self.deployment):
            return False
        narrow = replace(tables, candidates=mine)
        return term_bound(narrow, objective_terms(tables.instance)[0]) > optimum[0]

    def _best_witness(self, instance: Instance) -> tuple[Plan | None, Values | None, bool]:
        """Return the best known plan of the base deployment with its values.

        Also whether the base plan keeps all rules but those on times and bytes.
        """
        best: tuple[Values, Plan] | None = None
        is_plan_whole = False
        for plan in self.witnesses:
            evaluation = evaluate(instance, plan)
            if plan is self.plan:
                is_plan_whole = {v.rule for v in evaluation.violations} <= MEASURED_RULES
            values = values_of(instance, evaluation)
            if values is not None and (best is None or values < best[0]):
                best = values, plan
        return (None, None, is_plan_whole) if best is None else (best[1], best[0], is_plan_whole)

    def _proven(
        self,
        instance: Instance,
        tables: ProblemTables | None = None,
        required: DeploymentCounts | None = None,
    ) -> Solved:
        try:
            solved = self.solver.solve(instance, tables=tables, required=required)
        except TooLargeError as error:
            raise Unsettled(str(error)) from None
        if not solved.is_proven:
            raise Unsettled(f"a solve was not proven within its limits ({solved.limit})")
        return solved

    def best_own(self, instance: Instance) -> Solved | None:
        """Return the best plan of the base deployment; None where it cannot be built or used.

        Raises Unsettled.
        """
        tables = self.tables(instance)
        if tables.layouts is not None:
            layouts = tuple(
                layout
                for layout in tables.layouts
                if Counter(tables.kinds[k].candidate.footprint for k, _ in layout.instances)
                == self.deployment
            )
            if not layouts:
                return None
            solved = self._proven(instance, replace(tables, layouts=layouts))
            return None if solved.plan is None else solved
        if not self.deployment.keys() <= {c.footprint for c in tables.candidates}:
            tables = build_tables(instance, keep_all=True)
        narrow = only_of(tables, self.deployment)
        index = {c.footprint: c.index for c in narrow.candidates}
        if len(index) < len(self.deployment):
            return None
        counts = sorted((index[built], count) for built, count in self.deployment.items())
        solved = self._proven(instance, narrow, DeploymentCounts(tuple(counts)))
        return None if solved.plan is None else solved


def only_of(tables: ProblemTables, deployment: Deployment) -> ProblemTables:
    """Return the tables of a mixed search with no candidates but those of a deployment."""
    kept = [c for c in tables.candidates if c.footprint in deployment]
    renamed = {c.index: replace(c, index=i) for i, c in enumerate(kept)}
    kinds = [kind for kind in tables.kinds if kind.candidate.index in renamed]
    return replace(
        tables,
        candidates=tuple(renamed.values()),
        kinds=tuple(
            replace(kind, index=i, candidate=renamed[kind.candidate.index])
            for i, kind in enumerate(kinds)
        ),
    )


def narrowed(instance: Instance, deployment: Deployment) -> Instance:
    """Return the problem instance with no degrees and collectives but those of a deployment.

    It has all plans of the deployment, and few others.
    """
    degrees = {name: name for name in ("tp", "pp", "cp", "dp", "ep", "dcp")}
    degrees["attention_copies"] = "copies"
    kept: dict[str, object] = {
        name: tuple(sorted({getattr(built.parallel, short) for built in deployment}))
        for name, short in degrees.items()
    }
    for name in ("batch", "micro_batches"):
        kept[name] = tuple(sorted({getattr(built, name) for built in deployment}))
    collectives = {built.collective for built in deployment}
    named = tuple(name for name in instance.search.collectives if name in collectives)
    kept["collectives"] = named or instance.search.collectives
    return instance.model_copy(update={"search": instance.search.model_copy(update=kept)})


def _room(candidate: Candidate, sizes: tuple[int, ...]) -> object:
    """Return which numbers of sessions a group of a candidate holds."""
    if candidate.holds(sizes):
        return "all"
    if prod(size + 1 for size in sizes) > MAX_COMBINATIONS:
        return candidate.memory
    every = product(*(range(size + 1) for size in sizes))
    return tuple(counts for counts in every if candidate.holds(counts))


def rooms(tables: ProblemTables) -> tuple[tuple[Footprint, object], ...]:
    """Return every candidate's footprint with the numbers of sessions its groups hold."""
    sizes = tuple(cohort.num_sessions for cohort in tables.cohorts)
    return tuple((candidate.footprint, _room(candidate, sizes)) for candidate in tables.candidates)


def signature(tables: ProblemTables) -> Signature:
    """Return all that the decision depends on; bytes count by what fits."""
    instance = tables.instance
    objective, cohorts = instance.objective, instance.workload.cohorts
    names = {*objective.names, *dict(objective.at_most.limits())}
    has_energy = "energy" in names
    candidates = tuple(
        (
            c.service_s,
            c.held_sessions if objective.maximise is not None else 0,
            c.power_w if has_energy else 0,
        )
        for c in tables.candidates
    )
    return (
        rooms(tables),
        candidates,
        tables.faulted_cards,
        tuple((kind.candidate.index, kind.faulted) for kind in tables.kinds),
        tables.layouts,
        tables.dispatch_order,
        tuple((c.num_sessions, c.release_s, c.deadline_s) for c in cohorts),
        instance.min_on_time_sessions,
        tuple(objective.names),
        objective.billing,
        tuple(objective.at_most.limits()),
        tuple(
            (p.num_servers, p.server.num_cards, p.server.power_w if has_energy else 0)
            for p in tables.pools
        ),
    )
