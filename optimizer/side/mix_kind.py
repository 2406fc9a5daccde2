"""The mix of unlike accelerators as one of the smaller decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.instance import Instance
from optimizer.evaluation import Violation
from optimizer.mix.evaluation import evaluate_mix, mix_bound
from optimizer.mix.problem import Bucket, Mix, MixKind, MixProblem
from optimizer.mix.search import (
    best_mix_exhaustively,
    first_mix,
    improved_mix,
    mixes_of_one_kind,
)
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import MixAcceleratorDocument, MixBucketDocument, MixDocument
from optimizer.side.kinds import Goal, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument

#: Up to this many pairs of bucket and kind a mix is small.
SMALL = 150

#: The oracle is asked when it needs to try no more splits of buckets than this.
MAX_ORACLE_STEPS = 200_000


def mix_problem(instance: Instance) -> MixProblem:
    """Return the data of the instance's mix decision."""
    decision = instance.mix
    assert decision is not None
    kinds = [
        MixKind(
            accelerator.name,
            accelerator.price_per_hour,
            accelerator.max_count,
            tuple(rate or Fraction(0) for rate in accelerator.max_requests_per_s),
        )
        for accelerator in decision.accelerators
    ]
    buckets = [Bucket(b.name, b.share * decision.requests_per_s) for b in decision.buckets]
    return MixProblem(tuple(kinds), tuple(buckets), decision.pieces_per_bucket)


def price_text(price: Fraction) -> str:
    """Write a price for people: in hundredths where it comes to whole ones."""
    return f"{float(price):,.2f}" if 100 % price.denominator == 0 else f"{float(price):,.6g}"


class MixDecisionKind(PlainKind):
    """Serve all buckets at the least price an hour."""

    decision = "mix"
    goals = (Goal("price_per_hour", "an hour"),)
    nothing_fits = "no accelerators that may be had serve every bucket"

    def __init__(self, instance: Instance) -> None:
        self.problem = mix_problem(instance)
        size = len(self.problem.kinds) * len(self.problem.buckets)
        # CP-SAT states finer loads exactly, MILP solvers prove large mixes sooner
        self.solvers = ("highs", "cbc", "cp-sat") if size > SMALL else ("cp-sat", "highs", "cbc")

    def broken(self, answer: Mix) -> Sequence[Violation]:
        """Rules that a mix breaks."""
        return evaluate_mix(self.problem, answer).violations

    def value(self, answer: Mix) -> Fraction:
        """Price an hour."""
        return evaluate_mix(self.problem, answer).price_per_hour

    def first(self) -> Mix | None:
        """The cheapest kind alone, else every bucket by its least price a request."""
        return first_mix(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> Mix | None:
        """Pieces moved between kinds while that helps."""
        return improved_mix(self.problem, is_over)

    def bound(self) -> Fraction | None:
        """A price that no mix is below."""
        return mix_bound(self.problem)

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with a bound, or try all mixes where they are few."""
        if value is not None and value == self.bound():
            return SecondOpinion("bound", True, "the mix meets the solver-free bound")
        best = partial(best_mix_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all mixes tried")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return mix, value and bound."""
        return outcome.mix, outcome.value, outcome.bound

    def plan(self, answer: Mix) -> SidePlanDocument:
        """Return the accelerators of every kind and the pieces they serve."""
        pairs = zip(answer.counts, self.problem.kinds, strict=True)
        chosen = " + ".join(f"{n} x {kind.name}" for n, kind in pairs if n) or "nothing"
        sentence = f"{chosen}: {price_text(self.value(answer))} an hour"
        before = self._before()
        if before is not None:
            sentence += f" (one kind alone {price_text(before)})"
        pieces = [list(row) for row in answer.pieces]
        return SidePlanDocument(
            sentence=sentence, mix=MixDocument(counts=list(answer.counts), pieces=pieces)
        )

    def _before(self) -> Fraction | None:
        """Price of the cheapest legal mix of one kind."""
        alone = mixes_of_one_kind(self.problem)
        return self.value(alone[0]) if alone else None

    def read_plan(self, plan: SidePlanDocument) -> Mix | None:
        """Return the mix."""
        if plan.mix is None:
            return None
        return Mix(tuple(plan.mix.counts), tuple(tuple(row) for row in plan.mix.pieces))

    def account(self, answer: Mix) -> Mapping[str, Any]:
        """Return load and price of every kind, beside the price of one kind alone."""
        judged = evaluate_mix(self.problem, answer)
        kinds = zip(self.problem.kinds, answer.counts, judged.loads, strict=False)
        found: dict[str, Any] = {
            "accelerators": [
                MixAcceleratorDocument(
                    name=kind.name,
                    count=count,
                    max_count=kind.max_count,
                    load=float(load),
                    load_exact=str(load),
                    price_per_hour=float(count * kind.price_per_hour),
                    price_per_hour_exact=str(count * kind.price_per_hour),
                )
                for kind, count, load in kinds
            ],
            "buckets": [
                MixBucketDocument(
                    name=bucket.name,
                    requests_per_s=float(bucket.requests_per_s),
                    requests_per_s_exact=str(bucket.requests_per_s),
                    pieces=list(row),
                )
                for bucket, row in zip(self.problem.buckets, answer.pieces, strict=False)
            ],
        }
        before = self._before() if judged.is_feasible else None
        if before is not None:
            saved = before - judged.price_per_hour
            found |= {"value_before": float(before), "saved": float(saved)}
        return found
