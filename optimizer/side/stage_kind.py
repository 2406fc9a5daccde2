"""The cut of layers into pipeline stages as one of the smaller decisions (section 6.2.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from instances.quantity import human_seconds
from optimizer.evaluation import Violation
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import StageDocument
from optimizer.side.kinds import Goal, PlainKind, as_fraction
from optimizer.side.result import SidePlanDocument
from optimizer.stages.decision import stage_footprints, stage_problem
from optimizer.stages.evaluation import best_cut, evaluate_stages
from optimizer.stages.problem import even_cut

Cut = tuple[int, ...]


class StageKind(PlainKind):
    """Cut layers into stages. A cut whose tokens take no memory has a value of 0 tokens."""

    decision = "stages"

    def __init__(self, instance: Instance) -> None:
        self.problem = stage_problem(instance)
        self.pools = [footprint.pool for footprint in stage_footprints(instance)]
        tokens = Goal("tokens", "tokens", is_maximised=True)
        self.goals = (tokens if self.problem.goal == "tokens" else Goal("slowest_stage", "s"),)

    def broken(self, answer: Cut) -> Sequence[Violation]:
        """Rules that a cut breaks."""
        return evaluate_stages(self.problem, answer).violations

    def value(self, answer: Cut) -> Fraction:
        """Tokens that fit, or seconds of the slowest stage."""
        return Fraction(evaluate_stages(self.problem, answer).value or 0)

    def first(self) -> Cut | None:
        """The cut with equally many layers on every stage."""
        return even_cut(len(self.problem.layers), len(self.problem.stages))

    def improved(self, is_over: Callable[[], bool]) -> Cut | None:
        """The best cut, by dynamic programming: a solver has yet to prove it."""
        return best_cut(self.problem)

    def opinion(self, value: Fraction | None) -> SecondOpinion:
        """Solve by dynamic programming, which no formulation shares code with."""
        cut = best_cut(self.problem)
        found = None if cut is None else self.value(cut)
        detail = "the best cut of every run of layers, stage by stage"
        return SecondOpinion("dynamic programming", found == value, detail)

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return counts, value and bound."""
        value = outcome.value
        if outcome.counts is not None and value is None:
            value = 0
        return outcome.counts, as_fraction(value), as_fraction(outcome.bound)

    def plan(self, answer: Cut) -> SidePlanDocument:
        """Return the layers of every stage."""
        value, counts = self.value(answer), ", ".join(map(str, answer))
        is_tokens = self.goals[0].is_maximised
        goal = f"{int(value):,} tokens fit" if is_tokens else human_seconds(value)
        sentence = f"{len(answer)} stages of {counts} layers: {goal}"
        return SidePlanDocument(sentence=sentence, stages=list(answer))

    def read_plan(self, plan: SidePlanDocument) -> Cut | None:
        """Return the layers of every stage."""
        return None if plan.stages is None else tuple(plan.stages)

    def account(self, answer: Cut) -> Mapping[str, Any]:
        """Return the bytes, tokens and time of every stage."""
        uses = evaluate_stages(self.problem, answer).stages
        stages = [
            StageDocument(
                pool=pool,
                first_layer=use.first_layer,
                num_layers=use.num_layers,
                weights_bytes=use.weight_bytes,
                other_bytes=use.extra_bytes,
                kv_bytes=use.kv_bytes + use.copied_kv_bytes,
                state_bytes=use.fixed_state_bytes,
                total_bytes=use.total_bytes,
                capacity_bytes=use.capacity_bytes,
                max_tokens=use.max_tokens,
                time_s=float(use.time_s),
                time_exact=str(use.time_s),
                reads_layers=list(use.outside_sources),
            )
            for pool, use in zip(self.pools, uses, strict=False)
        ]
        return {"stages": stages}
