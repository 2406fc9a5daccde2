"""How many cards work together, as one of the smaller decisions (6.7.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.instance import Instance
from optimizer.evaluation import Violation
from optimizer.plan_document import as_float, both
from optimizer.second_opinion import SecondOpinion
from optimizer.side.kinds import Goal, Kept, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument
from optimizer.side.supernode_accounts import (
    SupernodeAccountDocument,
    SupernodeOptionDocument,
    SupernodePlanDocument,
    SupernodeStepDocument,
)
from optimizer.side.supernode_words import notes, nothing_fits_words, sentence, why
from optimizer.supernode.building import supernode_problem
from optimizer.supernode.comparison import Rival, compare
from optimizer.supernode.evaluation import StepParts, SupernodeEvaluation, evaluate_supernode
from optimizer.supernode.problem import SupernodePlan
from optimizer.supernode.search import (
    best_supernode_exhaustively,
    first_supernode,
    improved_supernode,
    is_maximised,
)

#: The oracle is asked when it needs to try no more plans than this.
MAX_ORACLE_STEPS = 50_000

GOAL_UNITS = {
    "tokens_per_s_per_card": "tokens/s",
    "sessions_per_card": "sessions",
    "user_rate": "tokens/s",
    "cost_per_on_time_session": "card*s",
}


class SupernodeKind(PlainKind):
    """Choose the size of supernodes, where tables are, the split of attention, and sessions."""

    decision = "supernode"
    solvers = ("cp-sat", "highs", "cbc")

    def __init__(self, instance: Instance) -> None:
        self.problem = supernode_problem(instance)
        unit = GOAL_UNITS[self.problem.goal]
        if self.problem.price_per_card_hour is not None:
            unit = ""
        self.goals = (Goal(self.problem.goal, unit, is_maximised(self.problem)),)

        #: The best value of all plans (None: there is none), once they were all tried.
        self.tried: tuple[Fraction | None] | None = None
        self.nothing_fits = nothing_fits_words(self.problem)
        #: Every option beside a plan.
        self.rivals = Kept[SupernodePlan, tuple[Rival, ...]](partial(compare, self.problem))

    def judged(self, answer: SupernodePlan) -> SupernodeEvaluation:
        """Return the evaluation of a plan."""
        return evaluate_supernode(self.problem, answer)

    def broken(self, answer: SupernodePlan) -> Sequence[Violation]:
        """Rules that a plan breaks."""
        return self.judged(answer).violations

    def value(self, answer: SupernodePlan) -> Fraction:
        """Value of a legal plan."""
        value = self.judged(answer).value
        assert value is not None
        return value

    def first(self) -> SupernodePlan | None:
        """The first option that is legal."""
        return first_supernode(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> SupernodePlan | None:
        """The best of all plans, or of those tried in time."""
        was_cut = False

        def ends() -> bool:
            nonlocal was_cut
            was_cut = was_cut or is_over()
            return was_cut

        best = improved_supernode(self.problem, ends)
        if not was_cut:
            self.tried = (None if best is None else self.value(best),)
        return best

    def bound(self) -> Fraction | None:
        """The best value where all plans were tried."""
        return None if self.tried is None else self.tried[0]

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with all plans where they were tried, or are few."""
        detail = "all plans tried"
        if self.tried is not None:
            return SecondOpinion("exhaustive", self.tried == (value,), detail)
        best = partial(best_supernode_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, detail)

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return plan, value and bound."""
        return outcome.plan, outcome.value, outcome.bound

    def plan(self, answer: SupernodePlan) -> SidePlanDocument:
        """Return the plan, and in its sentence what decided against other sizes."""
        judged = self.judged(answer)
        rivals = self.rivals(answer)
        return SidePlanDocument(
            sentence=sentence(self.problem, answer, judged, rivals),
            supernode=SupernodePlanDocument(
                size=answer.size,
                tables=answer.tables,
                attention_tp=answer.attention_tp,
                sessions=answer.sessions,
            ),
        )

    def read_plan(self, plan: SidePlanDocument) -> SupernodePlan | None:
        """Return the plan."""
        found = plan.supernode
        if found is None:
            return None
        return SupernodePlan(found.size, found.tables, found.attention_tp, found.sessions)

    def account(self, answer: SupernodePlan) -> Mapping[str, Any]:
        """Return what a card holds, the step, and every option beside it."""
        judged = self.judged(answer)
        option, step = judged.option, judged.step
        if option is None or step is None:
            return {}
        p, rivals = self.problem, self.rivals(answer)
        served = judged.served
        rate = answer.sessions / (option.attention_tp * step.step_s)
        rows = 0 if option.lookup is None else option.lookup.rows_per_session
        account = SupernodeAccountDocument(
            num_cards=p.num_cards,
            num_instances=p.num_cards // option.size,
            capacity_bytes=p.capacity_bytes,
            workspace_bytes=p.workspace_bytes,
            session_bytes=option.session_bytes,
            used_bytes=judged.used_bytes,
            weight_bytes=option.weight_bytes,
            host_bytes=option.host_bytes,
            sessions_per_card=answer.sessions / option.attention_tp,
            tokens_per_s_per_card=float(rate),
            user_tokens_per_s=float(1 / step.step_s),
            reads_per_step=answer.sessions * rows,
            step=step_document(step),
            on_time=None if served is None else served.on_time,
            **both("end_s", None if served is None else served.end_s),
            options=[self._option(rival, judged) for rival in rivals],
            notes=notes(p, rivals),
        )
        return {"supernode": account}

    def _option(self, rival: Rival, won: SupernodeEvaluation) -> SupernodeOptionDocument:
        """Return an option at its best beside the plan."""
        option, plan, judged = rival.option, rival.plan, rival.judged
        assert judged.step is not None
        rate = plan.sessions / (option.attention_tp * judged.step.step_s)
        value = judged.value if judged.is_feasible else None
        behind = times = None
        if value is not None and won.value is not None:
            behind = won.value - value if is_maximised(self.problem) else value - won.value
            smaller, larger = sorted((value, won.value))
            times = float(larger / smaller) if smaller else None
        return SupernodeOptionDocument(
            size=option.size,
            num_instances=self.problem.num_cards // option.size,
            tables=option.tables,
            attention_tp=option.attention_tp,
            is_asked=option.is_asked,
            is_chosen=rival.decided_by is None,
            weight_bytes=option.weight_bytes,
            replicated_bytes=option.replicated_bytes,
            expert_bytes=option.expert_bytes,
            table_bytes=option.table_bytes,
            host_bytes=option.host_bytes,
            max_sessions=max(rival.max_sessions, 0),
            sessions=plan.sessions,
            sessions_per_card=plan.sessions / option.attention_tp,
            step=step_document(judged.step),
            **both("tokens_per_s_per_card", rate),
            is_legal=judged.is_feasible,
            **both("value", value),
            behind=as_float(behind),
            times=times,
            same_sessions_value=as_float(rival.same_sessions),
            decided_by=rival.decided_by,
            why=why(self.problem, rival, won),
        )


def step_document(step: StepParts) -> SupernodeStepDocument:
    """Return what a step is made of as a document."""
    return SupernodeStepDocument(
        read_bytes=float(step.read_bytes),
        **both("read_s", step.read_s),
        **both("compute_s", step.compute_s),
        **both("exchange_s", step.exchange_s),
        **both("lookup_s", step.lookup_s),
        hidden_s=float(step.hidden_s),
        excess_s=float(step.excess_s),
        **both("step_s", step.step_s),
    )
