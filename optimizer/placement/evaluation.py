"""What a placement costs, exactly: round by round, over the links that messages take (6.5.1).

No closed form is used here: the rounds of every phase are sent over a fabric of servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from instances.topology import ServersTopology, SwitchedTopology
from optimizer.evaluation import Violation
from optimizer.fabrics.building import build_fabric
from optimizer.fabrics.fabric import Fabric
from optimizer.placement.problem import Phase, PlacementAnswer, PlacementProblem, Wire
from optimizer.schedules.building import build_schedule
from optimizer.schedules.prices import price
from optimizer.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """What one phase takes: once, and in a whole step.

    `num_spanning` groups have ranks in several domains; `exit_bytes` is what the busiest domain
    sends out to others, or takes in, all rounds of one time together.
    """

    phase: Phase
    algorithm: str
    num_spanning: int
    exit_bytes: Fraction
    once_s: Fraction

    @property
    def step_s(self) -> Fraction:
        """Seconds in a step."""
        return self.phase.times * self.once_s


@dataclass(frozen=True, slots=True)
class PlacementEvaluation:
    """Exact account of a placement; `phases` is empty where a rule is broken."""

    cards: tuple[int, ...]
    phases: tuple[PhaseUse, ...]
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def value_s(self) -> Fraction:
        """Time of all exchanges of a step."""
        return sum((use.step_s for use in self.phases), Fraction(0))


def evaluate_placement(problem: PlacementProblem, answer: PlacementAnswer) -> PlacementEvaluation:
    """Account for a placement and name every rule it breaks; never raises for a bad one."""
    violations = [*_check_ranks(problem, answer), *_check_cards(problem, answer)]
    if not violations:
        violations += _check_phases(problem, answer)
    if violations:
        return PlacementEvaluation(answer.cards, (), tuple(violations))
    cards = answer.cards or lowest_cards(problem, answer.domains)
    fabric = _Fabric(problem, answer.domains, cards)
    uses = tuple(
        fabric.use(phase, algorithm)
        for phase, algorithm in zip(problem.phases, answer.algorithms, strict=True)
    )
    return PlacementEvaluation(cards, uses, ())


def lowest_cards(problem: PlacementProblem, domains: Sequence[int]) -> tuple[int, ...]:
    """Return the lowest free cards of the ranks' domains, in the order of ranks."""
    free = [iter(sorted(cards)) for cards in problem.free_cards]
    return tuple(next(free[domain]) for domain in domains)


def _check_ranks(problem: PlacementProblem, answer: PlacementAnswer) -> Iterator[Violation]:
    """Every rank has a domain that exists, and no domain more ranks than free cards."""
    off, last = len(answer.domains) - problem.num_ranks, len(problem.room) - 1
    if off:
        text = f"{len(answer.domains)} cards for {problem.num_ranks} ranks"
        rule = "rank_missing" if off < 0 else "rank_unknown"
        yield Violation(rule, "placement", abs(off), "ranks", text)
    for rank, domain in enumerate(answer.domains):
        if not 0 <= domain <= last:
            off = -domain if domain < 0 else domain - last
            text = f"rank {rank} is in domain {domain}, but domains are 0 to {last}"
            yield Violation("domain_unknown", f"rank {rank}", off, "domains", text)
    for domain, count in sorted(Counter(answer.domains).items()):
        if 0 <= domain <= last and count > problem.room[domain]:
            over = count - problem.room[domain]
            text = f"domain {domain} has {count} ranks on {problem.room[domain]} free cards"
            yield Violation("domain_full", f"domain {domain}", over, "cards", text)


def _check_cards(problem: PlacementProblem, answer: PlacementAnswer) -> Iterator[Violation]:
    """Cards that are named are free, and each has one rank."""
    if answer.cards and len(answer.cards) != len(answer.domains):
        off = abs(len(answer.cards) - len(answer.domains))
        text = f"{len(answer.cards)} cards for {len(answer.domains)} ranks"
        yield Violation("rank_missing", "placement", off, "ranks", text)
        return
    taken = Counter(zip(answer.domains, answer.cards, strict=False))
    for (domain, card), count in sorted(taken.items()):
        if not 0 <= domain < len(problem.room):
            continue
        over = count - (1 if card in problem.free_cards[domain] else 0)
        if over:
            what = "is taken" if over == count else f"can take 1 rank, not {count}"
            where = f"domain {domain} card {card}"
            yield Violation("card_taken", where, over, "ranks", f"{where} {what}")


def _check_phases(problem: PlacementProblem, answer: PlacementAnswer) -> Iterator[Violation]:
    """Every phase has an algorithm that it may use and that can run on its groups."""
    off = abs(len(answer.algorithms) - len(problem.phases))
    if off:
        text = f"{len(answer.algorithms)} algorithms for {len(problem.phases)} phases"
        yield Violation("algorithm", "placement", off, "phases", text)
        return
    for phase, algorithm in zip(problem.phases, answer.algorithms, strict=True):
        where = f"phase {phase.name}"
        parts = [Counter(answer.domains[rank] for rank in group) for group in phase.groups]
        if algorithm not in phase.algorithms:
            text = f"{where} may use {', '.join(phase.algorithms)}, not {algorithm}"
            yield Violation("algorithm", where, 1, "algorithms", text)
        elif algorithm == "hierarchical":
            sizes = sorted({size for part in parts for size in part.values()})
            if len(sizes) > 1:
                text = f"{where}: a hierarchical exchange needs equal parts of its groups, "
                text += f"not {', '.join(map(str, sizes))} ranks"
                yield Violation("algorithm", where, sizes[-1] - sizes[0], "ranks", text)
        spanning = sum(len(part) > 1 for part in parts)
        if spanning and problem.between is None:
            text = f"{where}: nothing joins domains, but {spanning} groups span them"
            yield Violation("span", where, spanning, "groups", text)


class _Fabric:
    """The domains that have ranks, as servers with a switch each, and where the ranks are."""

    def __init__(
        self, problem: PlacementProblem, domains: Sequence[int], cards: Sequence[int]
    ) -> None:
        servers = {domain: number for number, domain in enumerate(sorted(set(domains)))}
        width = max(cards) + 1
        self.servers = tuple(servers[domain] for domain in domains)
        self.nodes = tuple(
            server * width + card for server, card in zip(self.servers, cards, strict=True)
        )
        self.width = width
        self.fabric: Fabric = build_fabric(_topology(problem, len(servers), width))

    def use(self, phase: Phase, algorithm: str) -> PhaseUse:
        """Send the rounds of a phase, all groups side by side."""
        groups, schedule = self._schedule(phase, algorithm)
        nodes = [[self.nodes[rank] for rank in group] for group in groups]
        cost = price(schedule, self.fabric, nodes)
        return PhaseUse(
            phase,
            algorithm,
            sum(len({self.servers[rank] for rank in group}) > 1 for group in groups),
            phase.message_bytes * self._exit_share(schedule, nodes),
            cost.seconds(phase.message_bytes),
        )

    def _schedule(self, phase: Phase, algorithm: str) -> tuple[list[list[int]], Schedule]:
        """Return the groups in the order of their schedule: domain by domain, pairs as they are."""
        ranks = phase.group_ranks
        if phase.operation == "send":
            return [list(group) for group in phase.groups], build_schedule("send", "direct", 2)
        groups = [sorted(g, key=lambda rank: (self.servers[rank], rank)) for g in phase.groups]
        num_servers = len({self.servers[rank] for rank in groups[0]})
        if algorithm == "hierarchical" and 1 < num_servers < ranks:
            extents = ranks // num_servers, num_servers
            return groups, build_schedule(phase.operation, algorithm, ranks, extents=extents)
        name = "ring" if algorithm == "hierarchical" else algorithm  # nothing inside, or outside
        return groups, build_schedule(phase.operation, name, ranks)

    def _exit_share(self, schedule: Schedule, nodes: Sequence[Sequence[int]]) -> Fraction:
        """Return what the busiest domain sends out or takes in, as a share of the message."""
        table = np.array(nodes) // self.width
        out, into = np.zeros((2, max(self.servers) + 1), dtype=np.int64)
        for sends in (part for parts in schedule.rounds() for part in parts):
            tails, heads = table[:, sends.senders].ravel(), table[:, sends.receivers].ravel()
            crossing = tails != heads
            np.add.at(out, tails[crossing], sends.chunks_each)
            np.add.at(into, heads[crossing], sends.chunks_each)
        return Fraction(int(max(out.max(), into.max())), schedule.num_parts)


def _topology(problem: PlacementProblem, num_servers: int, width: int) -> ServersTopology:
    between = problem.between or Wire(Fraction(0), Fraction(1))  # never taken
    switch = SwitchedTopology(
        name="domain",
        num_cards=width,
        ports_per_card=1,
        port_bandwidth_bytes_per_s=problem.inside.bytes_per_s,
        num_switches=1,
        ports_per_switch=width,
        start_s=problem.inside.alpha_s,
    )
    return ServersTopology(
        name="domains",
        num_servers=num_servers,
        server=switch,
        nics_per_server=width,
        nic_bandwidth_bytes_per_s=between.bytes_per_s,
        nic_start_s=between.alpha_s,
        exit_bandwidth_bytes_per_s=problem.exit_bytes_per_s,
    )
