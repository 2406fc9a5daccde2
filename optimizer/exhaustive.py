"""The brute-force oracle: every plan of a tiny problem instance, scored exactly.

It shares the evaluator's arithmetic and nothing with the solvers. No plan is dropped for being
worse than another; skipped are plans that equal an earlier one up to names (of cards, servers,
sessions, serving instances), and serving instances without sessions where nothing demands them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations, product, starmap

from instances.instance import Instance
from instances.objective import Objective
from optimizer.checks import sessions_in_order, uniform_cards
from optimizer.errors import MismatchError, TooLargeError
from optimizer.evaluate import evaluate
from optimizer.exhaustive_queues import Cards, Counts, Kind, Queues, Row
from optimizer.plan import CardId, Footprint, Plan, ServingInstance

#: Most cards, sessions and new tokens (one of each cohort) for which counting plans is worth a try.
LIMITS = (32, 32, 200_000)


@dataclass(frozen=True)
class ExhaustiveResult:
    """Lexicographic optimum over all plans, a plan that reaches it, and how many were scored.

    `values` follows `Objective.names`, what is maximised negated; it is None, like `plan`, when no
    plan is feasible. `num_plans` counts complete plans that fit in memory, on time or not.
    """

    values: tuple[Fraction, ...] | None
    plan: Plan | None
    num_plans: int


#: A serving instance without sessions. Plans that swap slots of one kind are the same plan.
_Slot = tuple[Kind, Cards]
_Ways = dict[str, tuple[tuple[_Slot, ...], dict[str, Cards]]]
#: A plan complete but for names: the slots in plan order and the sessions of each.
_Outline = tuple[tuple[_Slot, ...], tuple[Row, ...]]


class _Totals:
    """Adds up whole plans, in integers that `measures` turns into objectives."""

    def __init__(self, queues: Queues) -> None:
        pools, self.queues = queues.pools, queues
        # Each card's share of its server's power is a whole number of watts / power_unit.
        self.power_unit = math.lcm(*(pool.server.num_cards for pool in pools.values()))
        self.shares = math.lcm(*range(1, sum(queues.sizes) + 1))
        self.cards = [shape.parallel.num_cards for shape in queues.shapes]
        self.power = [
            cards * (server.power_w or 0) * self.power_unit // server.num_cards
            for cards, shape in zip(self.cards, queues.shapes, strict=True)
            for server in (pools[shape.pool].server,)
        ]

    def of(self, outline: _Outline) -> tuple[int, ...]:
        """Return what `measures` reads: 3 is the sessions on time, 6 and 7 are shared by them."""
        _, _, ends, latencies, completions, on_time = zip(*outline[1], strict=True)
        shapes = [kind.shape for kind, _ in outline[0]]
        end, in_time = max(ends), sum(on_time)
        card_time = sum(self.cards[s] * t for s, t in zip(shapes, ends, strict=True))
        energy = sum(self.power[s] * t for s, t in zip(shapes, ends, strict=True))
        each, held = self.shares // max(in_time, 1), sum(self.queues.held[s] for s in shapes)
        times = end, max(latencies), sum(completions), in_time, card_time, energy
        return *times, card_time * each, end * each, sum(self.cards[s] for s in shapes), held

    def measures(self, instance: Instance) -> dict[str, tuple[int, int, int]]:
        """Return each objective as (index, factor, scale): total[index] * factor / scale."""
        cards, unit, power = instance.fleet.num_cards, self.queues.unit, self.power_unit
        watts = sum((pool.server.power_w or 0) * pool.num_servers for pool in instance.fleet.pools)
        occupied, energy, cost = (4, 1), (5, 1), (6, 1)
        if instance.objective.billing == "fleet":
            occupied, energy, cost = (0, cards), (0, watts * power), (7, cards)
        return {
            "makespan": (0, 1, unit),
            "max_latency": (1, 1, unit),
            "mean_completion": (2, 1, unit * instance.workload.num_sessions),
            "cost_per_on_time_session": (*cost, unit * self.shares),
            "occupied_card_seconds": (*occupied, unit),
            "energy": (*energy, unit * power),
            "cards": (8, 1, 1),
            "held_sessions": (9, -1, 1),
        }


class _Best:
    """The best plan so far under one objective. Values are integers of a fixed scale each."""

    def __init__(self, instance: Instance, totals: _Totals) -> None:
        self.instance, self.need = instance, instance.min_on_time_sessions
        known, self.queues = totals.measures(instance), totals.queues
        self.measures = [known[name] for name in instance.objective.names]
        self.limits = [(*known[name], most) for name, most in instance.objective.at_most.limits()]
        self.found: tuple[list[int], _Outline] | None = None

    def offer(self, outline: _Outline, totals: tuple[int, ...]) -> None:
        """Keep the plan when it is feasible and strictly better than all before it."""
        if totals[3] >= self.need and self.is_affordable(totals):
            values = [totals[index] * factor for index, factor, _ in self.measures]
            if self.found is None or values < self.found[0]:
                self.found = values, outline

    def is_affordable(self, totals: tuple[int, ...]) -> bool:
        """Whether no objective exceeds its limit."""
        return all(
            totals[index] * factor <= most * scale for index, factor, scale, most in self.limits
        )

    def result(self, num_plans: int) -> ExhaustiveResult:
        """Return the optimum with a concrete plan, after the evaluator has confirmed it."""
        if self.found is None:
            return ExhaustiveResult(None, None, num_plans)
        values, outline = self.found
        claimed = tuple(Fraction(v, m[2]) for v, m in zip(values, self.measures, strict=True))
        plan = _concrete(self.queues, outline)
        judged = evaluate(self.instance, plan)
        actual = tuple(judged.objective(name) for name in self.instance.objective.names)
        if judged.violations or actual != claimed:
            broken = "; ".join(violation.message for violation in judged.violations)
            raise MismatchError(f"the oracle claims {claimed}, the evaluator {actual} {broken}")
        return ExhaustiveResult(claimed, plan, num_plans)


def _concrete(queues: Queues, outline: _Outline) -> Plan:
    """Name the sessions of every lane: each cohort's in turn, or as round robin deals them."""
    instance = queues.instance
    order, names = sessions_in_order(instance), [c.name for c in instance.workload.cohorts]
    waiting = {name: [s for s in order if s.cohort == name] for name in names}
    deal, made = instance.search.dispatch == "round_robin", []
    for i, ((kind, cards), row) in enumerate(zip(*outline, strict=True)):
        built = queues.shapes[kind.shape]
        placed = [
            (group * built.lanes_per_group + lane, waiting[names[c]].pop(0))
            for group, lanes in enumerate(row.order)
            for lane, queue in enumerate(lanes)
            for c in queue
        ]
        is_given = not deal and built.parallel.dp * built.lanes_per_group > 1
        made.append(
            ServingInstance(
                built.pool,
                built.parallel,
                built.collective,
                cards,
                order[i :: len(outline[0])] if deal else tuple(s for _, s in placed),
                built.stages,
                built.batch,
                built.micro_batches,
                tuple(lane for lane, _ in placed) if is_given else (),
            )
        )
    return Plan(tuple(made))


def _uniform(queues: Queues) -> Iterator[tuple[_Slot, ...]]:
    """Yield the layouts that fill every pool with serving instances built alike."""
    index = {shape: i for i, shape in enumerate(queues.shapes)}
    for alike in dict.fromkeys(replace(shape, pool="") for shape in queues.shapes):
        slots: list[_Slot] = []
        for name, pool in queues.pools.items():
            here = replace(alike, pool=name)
            layout = list(uniform_cards(pool, here.parallel.num_cards, here.num_servers))
            if here not in index or not layout:
                break
            for cards in layout:
                broken = tuple(card for card in queues.failing[name] if card in cards)
                slots.append((Kind(index[here], broken), cards))
        else:
            yield tuple(slots)


def _takes(shape: Footprint, free: Cards, failing: Cards) -> Iterator[Cards]:
    """Yield the free cards a shape can own, for each choice of servers and of failing cards."""
    block = shape.parallel.num_cards // shape.num_servers
    by_server: dict[int, list[Cards]] = {}
    for server in sorted({card.server for card in free}):
        here = [card for card in free if card.server == server]
        sound = [card for card in here if card not in failing]
        for n in range(max(0, block - len(sound)), block + 1):
            for bad in combinations([card for card in here if card in failing], n):
                # Sound cards of a server are interchangeable.
                by_server.setdefault(server, []).append((*bad, *sound[: block - n]))
    for servers in combinations(by_server, shape.num_servers):
        for parts in product(*(by_server[server] for server in servers)):
            yield tuple(sorted(chain(*parts)))


def _mixed(queues: Queues) -> Iterator[tuple[_Slot, ...]]:
    """Yield one deployment for every multiset of kinds that the fleet can hold side by side."""
    whole = {
        name: tuple(starmap(CardId, product(range(pool.num_servers), range(pool.server.num_cards))))
        for name, pool in queues.pools.items()
    }
    special = {(name, card.server) for name, cards in queues.failing.items() for card in cards}

    def leftover(free: dict[str, Cards]) -> str:
        # Servers without failing cards are interchangeable within their pool.
        left = Counter((name, card.server) for name, cards in free.items() for card in cards)
        return str(sorted((p, s if (p, s) in special else -1, n) for (p, s), n in left.items()))

    # For each multiset of kinds the ways to place it (slots, free cards), by what is left.
    level: dict[tuple[Kind, ...], _Ways] = {(): {"": ((), whole)}}
    for _ in range(queues.instance.workload.num_sessions):  # more than that would idle
        wider: dict[tuple[Kind, ...], _Ways] = {}
        for chosen, ways in level.items():
            later = range(chosen[-1].shape if chosen else 0, len(queues.shapes))
            for s, (slots, free) in product(later, ways.values()):
                shape = queues.shapes[s]
                failing = queues.failing[shape.pool]
                for cards in _takes(shape, free[shape.pool], failing):
                    queues.spend()
                    bad = tuple(card for card in cards if card in failing)
                    left = tuple(card for card in free[shape.pool] if card not in cards)
                    kind, after = Kind(s, bad), {**free, shape.pool: left}
                    key = tuple(sorted((*chosen, kind)))
                    way = (*slots, (kind, cards)), after
                    wider.setdefault(key, {}).setdefault(leftover(after), way)
        yield from (next(iter(ways.values()))[0] for ways in wider.values())
        level = wider


def _round_robin(queues: Queues, slots: tuple[_Slot, ...]) -> Iterator[_Outline]:
    """Yield the deployment in every order that counts as another plan; the queues follow."""
    place = {cohort.name: c for c, cohort in enumerate(queues.cohorts)}
    order = tuple(place[session.cohort] for session in sessions_in_order(queues.instance))
    fixed = queues.instance.search.deployment == "uniform"

    def extend(line: tuple[_Slot, ...], rows: tuple[Row, ...]) -> Iterator[_Outline]:
        i, tried = len(rows), set()
        if i == len(line):
            yield line, rows
        for j in range(i, min(i + 1, len(line)) if fixed else len(line)):
            if line[j][0] not in tried:
                tried.add(line[j][0])
                row = queues.dealt(line[j][0], order[i :: len(line)])
                if row is not None:
                    turned = (*line[:i], line[j], *line[i:j], *line[j + 1 :])
                    yield from extend(turned, (*rows, row))

    yield from extend(slots, ())


def _optimised(queues: Queues, slots: tuple[_Slot, ...]) -> Iterator[_Outline]:
    """Yield every way to share out the sessions and to order each lane.

    Of slots of one kind, a later one has an order that compares no smaller.
    """
    may_idle = queues.instance.search.deployment == "uniform"

    def extend(rows: tuple[Row, ...], left: Counts) -> Iterator[_Outline]:
        if len(rows) == len(slots):
            yield slots, rows
            return
        queues.spend()
        kind = slots[len(rows)][0]
        table, pairs = queues.table(kind), zip(slots, rows, strict=False)
        floor = max((row.order for (other, _), row in pairs if other == kind), default=())
        for counts in (left,) if len(rows) == len(slots) - 1 else table:
            rest = tuple(a - b for a, b in zip(left, counts, strict=True))
            if min(rest) >= 0 and (may_idle or any(counts)):
                for row in table.get(counts, ()):
                    if row.order >= floor:
                        yield from extend((*rows, row), rest)

    yield from extend((), queues.sizes)


def solve_many(
    instance: Instance, objectives: Sequence[Objective], max_plans: int = 200_000
) -> list[ExhaustiveResult]:
    """Enumerate the plans once and return the optimum under each objective, in order.

    The objective of `instance` itself is ignored. Ties go to the plan enumerated first.

    Raises TooLargeError as soon as there are more than `max_plans` (or obviously will be),
    MismatchError when the evaluator disagrees, ValueError for energy without known power.
    """
    # Validated again, because the evaluator and the on-time rule read the objective.
    problems = [Instance.model_validate({**dict(instance), "objective": o}) for o in objectives]
    new_tokens = sum(cohort.new_tokens for cohort in instance.workload.cohorts)
    sizes = instance.fleet.num_cards, instance.workload.num_sessions, new_tokens
    if any(have > most for have, most in zip(sizes, LIMITS, strict=True)):
        raise TooLargeError(f"cards, sessions, tokens {sizes}; exhaustive search takes {LIMITS}")
    queues = Queues(instance, max_plans)
    totals = _Totals(queues)
    best = [_Best(problem, totals) for problem in problems]
    deployments = _uniform if instance.search.deployment == "uniform" else _mixed
    dispatch = _round_robin if instance.search.dispatch == "round_robin" else _optimised
    for slots in deployments(queues):
        for outline in dispatch(queues, slots):
            queues.spend("plans")
            values = totals.of(outline)
            for candidate in best:
                candidate.offer(outline, values)
    return [candidate.result(max_plans - queues.left["plans"]) for candidate in best]


def solve_exhaustively(instance: Instance, max_plans: int = 200_000) -> ExhaustiveResult:
    """Return the optimum of `instance.objective` over every plan; raises as `solve_many` does."""
    return solve_many(instance, (instance.objective,), max_plans)[0]
