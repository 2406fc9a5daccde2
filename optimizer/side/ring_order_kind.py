"""The order of a ring over NUMA nodes as one of the smaller decisions (section 6.5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from instances.errors import InputError
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from instances.topology import NumaTopology
from optimizer.evaluation import Violation
from optimizer.ring_order.evaluation import RingEvaluation, evaluate_ring
from optimizer.ring_order.problem import RingOrder, RingProblem, SocketLink
from optimizer.ring_order.search import (
    best_ring_exhaustively,
    first_ring,
    improved_ring,
    ring_bound,
)
from optimizer.second_opinion import SecondOpinion
from optimizer.side.accounts import LinkLoadDocument, RingDocument
from optimizer.side.kinds import Goal, PlainKind, opinion_of_all
from optimizer.side.result import SidePlanDocument

#: The oracle is asked when it needs no more steps than this.
MAX_ORACLE_STEPS = 200_000

#: Seconds of the busiest link, then bytes on all links between NUMA nodes.
RingValue = tuple[Fraction, Fraction]


def ring_problem(instance: Instance) -> RingProblem:
    """Return the data of the instance's ring decision; raises InputError."""
    decision = instance.ring_order
    assert decision is not None
    topology = decision.topology or instance.fleet.pools[0].server.fabric.topology
    if not isinstance(topology, NumaTopology):
        rule = "give a NUMA topology: none joins the cards of the first pool"
        raise InputError(instance.name, "ring_order.topology", rule)
    node_of = {card: n for n, cards in enumerate(topology.numa_nodes) for card in cards}
    num_nodes = len(topology.numa_nodes)
    for i, buffer in enumerate(decision.buffers):
        if isinstance(buffer, int) and buffer >= num_nodes:
            rule = f"NUMA nodes are 0 to {num_nodes - 1}"
            raise InputError(instance.name, f"ring_order.buffers[{i}]", rule, buffer)
    ring_bytes = decision.ring_bytes
    if ring_bytes is None:
        vector = instance.model.hidden_size * instance.model.formats.bytes_of("activations")
        ring_bytes = int(-(-vector // topology.num_cards))
    rate = topology.socket_bandwidth_bytes_per_s
    pairs = [pair for a, b in topology.joined_nodes for pair in ((a, b), (b, a))]
    return RingProblem(
        card_nodes=tuple(node_of[card] for card in range(topology.num_cards)),
        num_nodes=num_nodes,
        pcie_bytes_per_s=topology.pcie_bandwidth_bytes_per_s,
        links=tuple(SocketLink(start, end, rate) for start, end in pairs),
        ring_bytes=ring_bytes,
        buffers=decision.buffers,
    )


class RingOrderKind(PlainKind):
    """Order a ring so that its busiest link takes least, and then fewest bytes cross sockets."""

    decision = "ring_order"
    goals = (Goal("busiest_link", "s"), Goal("socket_bytes", "B"))
    nothing_fits = "there is no ring"

    def __init__(self, instance: Instance) -> None:
        self.problem = ring_problem(instance)

    def broken(self, answer: RingOrder) -> Sequence[Violation]:
        """Rules that a ring breaks."""
        return evaluate_ring(self.problem, answer).violations

    def value(self, answer: RingOrder) -> RingValue:
        """Seconds of the busiest link, and bytes on links between NUMA nodes."""
        found = evaluate_ring(self.problem, answer).value
        assert found is not None
        return found[0], Fraction(found[1])

    def first(self) -> RingOrder:
        """Cards in order, every buffer at the first place that is allowed."""
        return first_ring(self.problem)

    def improved(self, is_over: Callable[[], bool]) -> RingOrder:
        """Cards of a node next to each other, buffers moved to where they load least."""
        return improved_ring(self.problem, is_over)

    def bound(self) -> RingValue:
        """Least time of the busiest link, and least bytes between nodes."""
        least_s, least_bytes = ring_bound(self.problem)
        return least_s, Fraction(least_bytes)

    def opinion(self, value: RingValue | None) -> SecondOpinion | None:
        """Compare with a bound, or try all rings where they are few."""
        if value == self.bound():
            return SecondOpinion("bound", True, "the ring meets the solver-free bound")
        best = partial(best_ring_exhaustively, self.problem, MAX_ORACLE_STEPS)
        return opinion_of_all(value, best, self.value, "all rings tried")

    def read(self, outcome: Any) -> tuple[Any, Any, Any]:
        """Return ring, value and bound."""
        value = bound = None
        if outcome.ring is not None:
            value = outcome.value, Fraction(outcome.socket_bytes)
        if outcome.bound is not None:
            least = outcome.socket_bytes_bound
            bound = outcome.bound, None if least is None else Fraction(least)
        return outcome.ring, value, bound

    def plan(self, answer: RingOrder) -> SidePlanDocument:
        """Return the cards in the order of the ring, and the node of each buffer."""
        seconds, crossing = self.value(answer)
        nodes = ", ".join(map(str, answer.buffers)) or "none"
        sentence = (
            f"ring {'-'.join(map(str, answer.order))}, buffers on nodes {nodes}: busiest link "
        )
        sentence += f"{human_seconds(seconds)}, {human_bytes(int(crossing))} between nodes "
        sentence += f"(card order {human_seconds(self.value(self.first())[0])})"
        ring = RingDocument(order=list(answer.order), buffers=list(answer.buffers))
        return SidePlanDocument(sentence=sentence, ring_order=ring)

    def read_plan(self, plan: SidePlanDocument) -> RingOrder | None:
        """Return the ring."""
        ring = plan.ring_order
        return None if ring is None else RingOrder(tuple(ring.order), tuple(ring.buffers))

    def account(self, answer: RingOrder) -> Mapping[str, Any]:
        """Return the load of every link between NUMA nodes, beside that of cards in order."""
        judged = evaluate_ring(self.problem, answer)
        found: dict[str, Any] = {"links": self._links(judged)}
        if judged.is_feasible:
            first = self.first()
            found["links_before"] = self._links(evaluate_ring(self.problem, first))
            before, after = self.value(first)[0], self.value(answer)[0]
            found |= {"value_before": float(before), "saved": float(before - after)}
        return found

    def _links(self, judged: RingEvaluation) -> list[LinkLoadDocument]:
        pairs = zip(self.problem.links, judged.socket_loads_bytes, strict=False)
        return [
            LinkLoadDocument(
                start=link.start,
                end=link.end,
                load_bytes=load,
                time_s=float(load / link.bytes_per_s),
                time_exact=str(load / link.bytes_per_s),
            )
            for link, load in pairs
        ]
