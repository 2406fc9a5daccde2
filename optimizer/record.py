"""What a solve has established: verified outcomes, the second opinion, the termination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from optimizer.backends import Finished
from optimizer.bounds import term_bound
from optimizer.decode import plan_of
from optimizer.errors import MismatchError
from optimizer.evaluate import evaluate
from optimizer.evaluation import Evaluation
from optimizer.explain import CandidateReport
from optimizer.incumbent import Incumbent, objective_values
from optimizer.plan import Plan
from optimizer.protocols import StageClaim, Term, Termination
from optimizer.second_opinion import SecondOpinion
from optimizer.tables import ProblemTables

LimitName = Literal["time", "interrupted", "size", "second_opinion"]


@dataclass
class SolveRecord:
    """What a solve has established so far; turned into a document at the end."""

    tables: ProblemTables
    terms: Sequence[Term]
    reports: list[CandidateReport]
    incumbent: Incumbent
    termination: Termination = Termination.NO_SOLUTION_FOUND
    limit: LimitName | None = None
    reason: str = ""
    solver: str | None = None
    solver_version: str | None = None
    claims: tuple[StageClaim, ...] = ()
    plan: Plan | None = None
    evaluation: Evaluation | None = None
    opinion: SecondOpinion | None = None
    _claimed: Termination = field(default=Termination.NO_SOLUTION_FOUND)

    def take(self, finished: Finished | None) -> None:
        """Verify a backend's outcome; raises MismatchError where claim and evaluation differ."""
        if finished is None or finished.outcome is None:
            return
        outcome = finished.outcome
        self.solver, self.solver_version = finished.name, finished.version
        self._claimed, self.claims = outcome.termination, outcome.claims
        if outcome.selection is not None:
            self._adopt(plan_of(self.tables, outcome.selection))
            self.claims = tuple(self._check(claim) for claim in outcome.claims)

    def _adopt(self, plan: Plan) -> None:
        """Take a plan that the evaluator accepts; raises MismatchError for any other."""
        self.plan, self.evaluation = plan, evaluate(self.tables.instance, plan)
        if self.evaluation.violations:
            broken = self.evaluation.violations[0]
            raise MismatchError(
                f"{self.solver} returned a plan that breaks {broken.rule}: {broken.message}"
            )

    def _check(self, claim: StageClaim) -> StageClaim:
        """Return a claim with its verified value.

        A solver may be wrong by no more than its own bound admits: a later objective may have moved
        the plan within that.
        """
        assert self.evaluation is not None
        verified = self.evaluation.objective(claim.name)
        if claim.value is None or claim.value == verified:
            return claim
        if verified is None or claim.bound is None or not claim.bound <= verified < claim.value:
            raise MismatchError(
                f"{self.solver} claims {claim.name} = {claim.value}, verified {verified}"
            )
        return StageClaim(claim.name, verified, claim.bound)

    def claim_infeasible(self) -> None:
        """Claim that nothing fits because no candidate is left, without asking a solver."""
        self._claimed = Termination.INFEASIBLE

    @property
    def is_claimed_proof(self) -> bool:
        """Whether the solver claims an optimum or infeasibility."""
        return self._claimed in (Termination.OPTIMAL, Termination.INFEASIBLE)

    def values(self) -> tuple[Fraction, ...] | None:
        """Exact values of the solver's plan; None when it has none."""
        if self.evaluation is None:
            return None
        return objective_values(self.tables.instance, self.evaluation)

    def first_bound(self, claimed: Fraction | None) -> Fraction | None:
        """Return a claimed bound of the first objective, or the solver-free one if it is better."""
        if not (self.tables.candidates and self.tables.is_complete):
            return claimed
        free = term_bound(self.tables, self.terms[0])
        return free if claimed is None else max(claimed, free)

    def conclude(self, is_stopped: bool) -> None:
        """Set the termination from the claim and the second opinion, or what cut the solve short.

        Raises MismatchError when the second opinion, or a verified plan, contradicts the solver.
        """
        if self.is_claimed_proof:
            if self.opinion is not None and self.opinion.agrees is False:
                raise MismatchError(
                    f"{self.solver or 'the rules'} claims {self._claimed.value}, "
                    f"{self.opinion.method} disagrees: {self.opinion.detail}"
                )
            if self.opinion is not None and self.opinion.agrees:
                self._agree(self.opinion)
                return
        if is_stopped:
            self.limit = "interrupted"
        else:
            self.limit = "second_opinion" if self.is_claimed_proof else "time"

    def _agree(self, opinion: SecondOpinion) -> None:
        """Accept a proof: exact now, also where the solver's bound stops short of its value."""
        if opinion.plan is not None:
            self._adopt(opinion.plan)
        mine, best = self.values(), self.incumbent.values
        if best is not None and (mine is None or best < mine):
            raise MismatchError(
                f"{self.solver} claims {self._claimed.value}, but a verified plan is better"
            )
        self.termination = self._claimed
        if mine is not None:
            self.claims = tuple(
                StageClaim(term.name, value, value)
                for term, value in zip(self.terms, mine, strict=True)
            )
