"""The placement of ranks on cards as one of the smaller decisions (section 6.5.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Any

from instances.instance import Instance
from instances.quantity import human_seconds
from optimizer.evaluation import Violation
from optimizer.placement.bound import placement_bound
from optimizer.placement.building import placement_footprint, placement_problem
from optimizer.placement.evaluation import PhaseUse, evaluate_placement
from optimizer.placement.exhaustive import best_placement_exhaustively
from optimizer.placement.problem import PlacementAnswer
from optimizer.placement.search import fastest_answer, first_fit, good_placement
from optimizer.plan_document import as_float
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import PhaseDocument
from optimizer.side.kinds import Goal, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument

#: The oracle is asked when it needs to look at no more placements than this.
MAX_ORACLE_PLACEMENTS = 20_000

#: A sentence names the servers of a placement when they are no more than this.
MAX_NAMED_SERVERS = 4

#: What exchanges are called in a sentence, several of them.
_WORDS = {
    "all_reduce": "all-reduces",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "send": "sends",
}


class PlacementKind(PlainKind):
    """Give ranks cards so that the exchanges of a step take least time together."""

    decision = "placement"
    goals = (Goal("communication", "s"),)
    solvers = ("cp-sat", "highs", "cbc")  # choices and few numbers: CP-SAT is ahead here

    def __init__(self, instance: Instance) -> None:
        self.problem = placement_problem(instance)
        self.label = placement_footprint(instance).parallel.label()
        self.nothing_fits = (
            f"{self.label} needs {self.problem.num_ranks} cards, "
            f"{self.problem.num_free_cards} are free"
        )

    def broken(self, answer: PlacementAnswer) -> Sequence[Violation]:
        """Rules that a placement breaks."""
        return evaluate_placement(self.problem, answer).violations

    def value(self, answer: PlacementAnswer) -> Fraction:
        """Seconds of all exchanges of a step."""
        return evaluate_placement(self.problem, answer).value_s

    def first(self) -> PlacementAnswer | None:
        """Ranks in order on the free cards of the emptiest servers."""
        return fastest_answer(self.problem, first_fit(self.problem, by_room=True))

    def plain(self) -> PlacementAnswer | None:
        """Ranks in order on the free cards in order: what happens without a decision."""
        return fastest_answer(self.problem, first_fit(self.problem))

    def improved(self, is_over: Callable[[], bool]) -> PlacementAnswer | None:
        """Whole blocks of ranks on servers, then moves and swaps."""
        return good_placement(self.problem, is_over)

    def hint(self, answer: PlacementAnswer | None) -> dict[str, Any]:
        """The placement to beat."""
        return {} if answer is None else {"incumbent": answer}

    def bound(self) -> Fraction | None:
        """Every phase as fast as free cards allow; None where they are too few."""
        return placement_bound(self.problem)

    def opinion(self, value: Fraction | None) -> SecondOpinion | None:
        """Compare with a bound, or enumerate all placements where they are few."""
        bound = self.bound()
        if value is None and bound is None:
            return SecondOpinion("bound", True, "too few free cards")
        if value is not None and value == bound:
            return SecondOpinion("bound", True, "every phase meets its solver-free bound")
        best = partial(best_placement_exhaustively, self.problem, MAX_ORACLE_PLACEMENTS)
        return opinion_of_all(value, best, itemgetter(0), "all placements enumerated")

    def read(self, outcome: Any) -> tuple[Any, Fraction | None, Fraction | None]:
        """Return placement, value and bound."""
        return outcome.answer, outcome.value, outcome.bound

    def plan(self, answer: PlacementAnswer) -> SidePlanDocument:
        """Return server and card of every rank, and the algorithm of every phase."""
        judged = evaluate_placement(self.problem, answer)
        plain = self.plain()
        before = "" if plain is None else f" (first fit {human_seconds(self.value(plain))})"
        sentence = f"{self.label}: {_servers_text(answer.domains)}"
        exchanges = Counter[tuple[str, str]]()
        for use in judged.phases:
            exchanges[use.phase.operation, use.algorithm] += use.phase.times
        if exchanges:
            counted = (f"{n} {_WORDS[op]} {name}" for (op, name), n in exchanges.items())
            sentence += f"; {', '.join(counted)}"
        sentence += f"; communication {human_seconds(judged.value_s)} a step{before}"
        pairs = zip(answer.domains, judged.cards, strict=True)
        return SidePlanDocument(
            sentence=sentence,
            placement=[list(pair) for pair in pairs],
            algorithms=list(answer.algorithms),
        )

    def read_plan(self, plan: SidePlanDocument) -> PlacementAnswer | None:
        """Return the placement; without algorithms every phase takes its fastest one."""
        if plan.placement is None:
            return None
        domains = tuple(server for server, _ in plan.placement)
        cards = tuple(card for _, card in plan.placement)
        if plan.algorithms is not None:
            return PlacementAnswer(domains, tuple(plan.algorithms), cards)
        fastest = None
        if len(domains) == self.problem.num_ranks:
            fastest = fastest_answer(self.problem, domains)
        # where nothing can run, the evaluator says why
        plainest = tuple(phase.algorithms[0] for phase in self.problem.phases)
        return PlacementAnswer(domains, fastest.algorithms if fastest else plainest, cards)

    def account(self, answer: PlacementAnswer) -> Mapping[str, Any]:
        """Return what every phase takes, beside the same for ranks on free cards in order."""
        judged, plain = evaluate_placement(self.problem, answer), self.plain()
        found: dict[str, Any] = {"phases": [_phase(use) for use in judged.phases]}
        if plain is not None and judged.is_feasible:
            before = evaluate_placement(self.problem, plain)
            found["phases_before"] = [_phase(use) for use in before.phases]
            found["value_before"] = as_float(before.value_s)
            found["saved"] = as_float(before.value_s - judged.value_s)
        return found


def _phase(use: PhaseUse) -> PhaseDocument:
    return PhaseDocument(
        name=use.phase.name,
        operation=use.phase.operation,
        algorithm=use.algorithm,
        times=use.phase.times,
        groups=len(use.phase.groups),
        ranks=use.phase.group_ranks,
        message_bytes=float(use.phase.message_bytes),
        num_spanning=use.num_spanning,
        exit_bytes=float(use.exit_bytes),
        step_s=float(use.step_s),
        step_exact=str(use.step_s),
    )


def _servers_text(domains: Sequence[int]) -> str:
    """Return "6 cards of server 0 and 2 of server 1", or numbers where servers are many."""
    counts = sorted(Counter(domains).items())
    if len(counts) > MAX_NAMED_SERVERS:
        return f"{len(domains)} cards of {len(counts)} servers"
    (first, count), *others = counts
    named = [f"{count} {'card' if count == 1 else 'cards'} of server {first}"]
    named += [f"{n} of server {server}" for server, n in others]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
