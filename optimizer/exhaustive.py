"""The brute-force oracle: every plan of a tiny problem instance, scored exactly.

It shares the evaluator's arithmetic and nothing with the solvers. No plan is dropped for being
worse than another; skipped are plans that equal an earlier one up to names (of cards, servers,
sessions, serving instances), and serving instances without sessions where nothing demands them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations, product, starmap
from typing import NamedTuple

from instances.instance import Instance, Objective
from optimizer.checks import sessions_in_order, uniform_cards
from optimizer.collectives import NO_COLLECTIVE, CollectiveUnavailable, all_reduce_s
from optimizer.errors import MismatchError, TooLargeError
from optimizer.evaluate import (
    card_kv_bytes,
    evaluate,
    instance_stalls,
    service_time_s,
    usable_bytes,
)
from optimizer.operators import message_bytes
from optimizer.ownership import card_weight_bytes
from optimizer.parallel import ParallelConfig, check_heads, legal_tp
from optimizer.plan import CardId, Plan, ServingInstance
from optimizer.timeline import ZERO, Stall, run_session

#: Most cards, sessions and new tokens (one of each cohort) for which counting plans is worth a try.
LIMITS = (32, 32, 200_000)

_Cards = tuple[CardId, ...]


@dataclass(frozen=True)
class ExhaustiveResult:
    """Lexicographic optimum over all plans, a plan that reaches it, and how many were scored.

    `values` follows `Objective.minimise` and is None, like `plan`, when no plan is feasible.
    `num_plans` counts complete plans that fit in memory, on time or not.
    """

    values: tuple[Fraction, ...] | None
    plan: Plan | None
    num_plans: int


class _Kind(NamedTuple):
    """What makes serving instances equally fast: everything but the names of sound cards."""

    pool: str
    tp: int
    num_servers: int
    collective: str
    failing: _Cards = ()


#: A serving instance without sessions. Plans that swap slots of one kind are the same plan.
_Slot = tuple[_Kind, _Cards]
_Ways = dict[str, tuple[tuple[_Slot, ...], dict[str, _Cards]]]


class _Row(NamedTuple):
    """One queue (of cohort indices) on one kind; times in whole ticks of 1/unit s."""

    queue: tuple[int, ...]
    card_bytes: int
    end: int
    latency: int
    completions: int
    on_time: int
    card_time: int
    energy: int


#: A plan complete but for names: the slots in plan order and the queue of each.
_Outline = tuple[tuple[_Slot, ...], tuple[_Row, ...]]


class _Prices:
    """Exact results of every (kind, queue) in integers, which add up fast; and the budget."""

    def __init__(self, instance: Instance, max_plans: int) -> None:
        self.instance, self.left = instance, {"plans": max_plans, "partial plans": max_plans + 1000}
        self.cohorts = instance.workload.cohorts
        self.pools = {pool.name: pool for pool in instance.fleet.pools}
        self.service = {
            shape: tuple(
                service_time_s(instance, self.pools[shape.pool], *shape[1:4], cohort)
                for cohort in self.cohorts
            )
            for shape in _shapes(instance)
        }
        times = [*chain(*self.service.values()), *(c.release_s for c in self.cohorts)]
        times += [fault.at_s + s for fault in instance.faults for s in (ZERO, fault.stall_s)]
        # Every end is a sum of these, hence a whole number of ticks.
        self.unit = unit = math.lcm(*(time.denominator for time in times))
        self.ticks = {shape: [time * unit for time in row] for shape, row in self.service.items()}
        self.windows = [(c.release_s * unit, (c.deadline_s or 0) * unit) for c in self.cohorts]
        self.power_unit = math.lcm(*(p.server.num_cards for p in instance.fleet.pools))
        self.shares = math.lcm(*range(1, instance.workload.num_sessions + 1))
        self.failing: dict[str, _Cards] = dict.fromkeys(self.pools, ())
        for fault in instance.faults:
            name, card = fault.pool or next(iter(self.pools)), CardId(fault.server, fault.card)
            self.failing[name] = tuple(sorted({*self.failing[name], card}))
        self._rows: dict[tuple[_Kind, tuple[int, ...]], _Row | None] = {}
        self._tables: dict[_Kind, dict[tuple[int, ...], list[_Row]]] = {}

    def spend(self, what: str = "partial plans", count: int = 1) -> None:
        self.left[what] -= count
        if self.left[what] < 0:
            raise TooLargeError(f"more {what} than exhaustive search was told to look at")

    def row(self, kind: _Kind, queue: tuple[int, ...]) -> _Row | None:
        """Return what a queue gives on a kind; None when it does not fit in memory."""
        if (kind, queue) not in self._rows:
            self.spend()
            self._rows[kind, queue] = self._run(kind, queue)
        return self._rows[kind, queue]

    def _run(self, kind: _Kind, queue: tuple[int, ...]) -> _Row | None:
        pool, power, model = self.pools[kind.pool], self.power_unit, self.instance.model
        usable = usable_bytes(self.instance, pool)
        if not queue:
            need = card_weight_bytes(model, kind.tp) + self.instance.runtime.workspace_bytes
            return _Row(queue, need, 0, 0, 0, 0, 0, 0) if need <= usable else None
        before, cohort = self.row(kind, queue[:-1]), self.cohorts[queue[-1]]
        more = card_kv_bytes(self.instance, kind.tp, (cohort,))
        if before is None or before.card_bytes + more > usable:
            return None
        release, due = self.windows[queue[-1]]
        service = self.ticks[kind._replace(failing=())][queue[-1]]
        # Sound cards never stall, so the failing ones stand for the whole serving instance.
        owner = ServingInstance(kind.pool, ParallelConfig(), NO_COLLECTIVE, kind.failing)
        found = instance_stalls(self.instance, owner)
        stalls = [Stall(s.from_s * self.unit, s.until_s * self.unit) for s in found]
        end = run_session(max(Fraction(before.end), release), service, stalls).finish_s
        late = cohort.deadline_s is not None and end > due
        ticks, latency = int(end), max(before.latency, int(end) - int(release))
        watts = (pool.server.power_w or 0) * power // pool.server.num_cards
        done, on_time = before.completions + ticks, before.on_time + (not late)
        held, paid = before.card_bytes + more, ticks * kind.tp
        return _Row(queue, held, ticks, latency, done, on_time, paid, paid * watts)

    def table(self, kind: _Kind) -> dict[tuple[int, ...], list[_Row]]:
        """Return every queue that fits on a kind, by how many sessions of each cohort it has."""
        if kind not in self._tables:
            sizes = [cohort.num_sessions for cohort in self.cohorts]
            everything = tuple(c for c, size in enumerate(sizes) for _ in range(size))
            orders = math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))
            # One such serving instance alone makes this many plans: fail before listing them.
            if orders > self.left["plans"] and self.row(kind, everything) is not None:
                self.spend("plans", orders)
            table = self._tables[kind] = {}
            queues: list[tuple[int, ...]] = [()]
            for queue in queues:  # grows as it goes
                row = self.row(kind, queue)
                if row is not None:  # else a longer queue does not fit either
                    counts = tuple(queue.count(c) for c in range(len(sizes)))
                    table.setdefault(counts, []).append(row)
                    queues.extend((*queue, c) for c, size in enumerate(sizes) if counts[c] < size)
        return self._tables[kind]


def _measures(instance: Instance, prices: _Prices) -> list[tuple[int, int, int]]:
    """Return each objective as (index, factor, scale): total[index] * factor / scale."""
    cards, unit, sessions = instance.fleet.num_cards, prices.unit, instance.workload.num_sessions
    watts = sum((pool.server.power_w or 0) * pool.num_servers for pool in instance.fleet.pools)
    occupied, energy, cost = (4, 1), (5, 1), (7, 1)
    if instance.objective.billing == "fleet":
        occupied, energy, cost = (0, cards), (0, watts * prices.power_unit), (8, cards)
    known = {
        "makespan": (0, 1, unit),
        "max_latency": (1, 1, unit),
        "mean_completion": (2, 1, unit * sessions),
        "cost_per_on_time_session": (*cost, unit * prices.shares),
        "occupied_card_seconds": (*occupied, unit),
        "energy": (*energy, unit * prices.power_unit),
        "cards": (6, 1, 1),
    }
    return [known[name] for name in instance.objective.minimise]


def _totals(outline: _Outline, shares: int) -> tuple[int, ...]:
    """Return what `_measures` reads: 3 is the sessions on time, 7 and 8 are shared among them."""
    _, _, *columns = zip(*outline[1], strict=True)
    ends, latencies, completions, on_time, card_times, energies = columns
    end, in_time, card_time = max(ends), sum(on_time), sum(card_times)
    each, cards = shares // max(in_time, 1), sum(kind.tp for kind, _ in outline[0])
    first = end, max(latencies), sum(completions), in_time, card_time, sum(energies), cards
    return *first, card_time * each, end * each


class _Best:
    """The best plan so far under one objective. Values are integers of a fixed scale each."""

    def __init__(self, instance: Instance, prices: _Prices) -> None:
        self.instance, self.need = instance, instance.min_on_time_sessions
        self.measures = _measures(instance, prices)
        self.found: tuple[list[int], _Outline] | None = None

    def offer(self, outline: _Outline, totals: tuple[int, ...]) -> None:
        """Keep the plan when it is feasible and strictly better than all before it."""
        if totals[3] >= self.need:
            values = [totals[index] * factor for index, factor, _ in self.measures]
            if self.found is None or values < self.found[0]:
                self.found = values, outline

    def result(self, num_plans: int) -> ExhaustiveResult:
        """Return the optimum with a concrete plan, after the evaluator has confirmed it."""
        if self.found is None:
            return ExhaustiveResult(None, None, num_plans)
        values, outline = self.found
        claimed = tuple(Fraction(v, m[2]) for v, m in zip(values, self.measures, strict=True))
        plan = _concrete(self.instance, outline)
        judged = evaluate(self.instance, plan)
        actual = tuple(judged.objective(name) for name in self.instance.objective.minimise)
        if judged.violations or actual != claimed:
            broken = "; ".join(violation.message for violation in judged.violations)
            raise MismatchError(f"the oracle claims {claimed}, the evaluator {actual} {broken}")
        return ExhaustiveResult(claimed, plan, num_plans)


def _concrete(instance: Instance, outline: _Outline) -> Plan:
    """Name the sessions of every queue: each cohort's in turn, or as round robin deals them."""
    order, names = sessions_in_order(instance), [c.name for c in instance.workload.cohorts]
    waiting = {name: [s for s in order if s.cohort == name] for name in names}
    deal, made = instance.search.dispatch == "round_robin", []
    for i, ((kind, cards), row) in enumerate(zip(*outline, strict=True)):
        mine = tuple(waiting[names[c]].pop(0) for c in row.queue)
        sessions = order[i :: len(outline[0])] if deal else mine
        config = ParallelConfig(tp=kind.tp)
        made.append(ServingInstance(kind.pool, config, kind.collective, cards, sessions))
    return Plan(tuple(made))


def _shapes(instance: Instance) -> Iterator[_Kind]:
    """Yield every (pool, degree, servers, collective) that the search and the fabrics allow."""
    model, search = instance.model, instance.search
    for pool in instance.fleet.pools:
        degrees = search.tp or legal_tp(model, pool.num_cards)
        for tp in (d for d in degrees if d <= pool.num_cards and check_heads(model, d) is None):
            for k in range(1, min(tp, pool.num_servers) + 1):
                fabric = pool.server.fabric if k == 1 else pool.fabric_between
                if tp % k or tp // k > pool.server.num_cards or fabric is None:
                    continue
                for name in search.collectives if tp > 1 else (NO_COLLECTIVE,):
                    with suppress(CollectiveUnavailable):
                        all_reduce_s(name, fabric, tp, k, message_bytes(model))
                        yield _Kind(pool.name, tp, k, name)


def _uniform(prices: _Prices) -> Iterator[tuple[_Slot, ...]]:
    """Yield the layouts that fill every pool with one degree, span and collective."""
    for shape in dict.fromkeys(shape._replace(pool="") for shape in prices.service):
        slots: list[_Slot] = []
        for name, pool in prices.pools.items():
            here = shape._replace(pool=name)
            layout = list(uniform_cards(pool, shape.tp, shape.num_servers))
            if here not in prices.service or not layout:
                break
            for cards in layout:
                broken = tuple(card for card in prices.failing[name] if card in cards)
                slots.append((here._replace(failing=broken), cards))
        else:
            yield tuple(slots)


def _takes(prices: _Prices, shape: _Kind, free: _Cards) -> Iterator[_Cards]:
    """Yield the free cards a shape can own, for each choice of servers and of failing cards."""
    block, failing = shape.tp // shape.num_servers, prices.failing[shape.pool]
    by_server: dict[int, list[_Cards]] = {}
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


def _mixed(prices: _Prices) -> Iterator[tuple[_Slot, ...]]:
    """Yield one deployment for every multiset of kinds that the fleet can hold side by side."""
    shapes = [shape for shape in sorted(prices.service) if prices.row(shape, ()) is not None]
    whole = {
        name: tuple(starmap(CardId, product(range(pool.num_servers), range(pool.server.num_cards))))
        for name, pool in prices.pools.items()
    }
    special = {(name, card.server) for name, cards in prices.failing.items() for card in cards}

    def leftover(free: dict[str, _Cards]) -> str:
        # Servers without failing cards are interchangeable within their pool.
        left = Counter((name, card.server) for name, cards in free.items() for card in cards)
        return str(sorted((p, s if (p, s) in special else -1, n) for (p, s), n in left.items()))

    # For each multiset of kinds the ways to place it (slots, free cards), by what is left.
    level: dict[tuple[_Kind, ...], _Ways] = {(): {"": ((), whole)}}
    for _ in range(prices.instance.workload.num_sessions):  # more than that would idle
        wider: dict[tuple[_Kind, ...], _Ways] = {}
        for chosen, ways in level.items():
            later = [s for s in shapes if not chosen or s >= chosen[-1]._replace(failing=())]
            for shape, (slots, free) in product(later, ways.values()):
                for cards in _takes(prices, shape, free[shape.pool]):
                    prices.spend()
                    bad = tuple(card for card in cards if card in prices.failing[shape.pool])
                    left = tuple(card for card in free[shape.pool] if card not in cards)
                    kind, after = shape._replace(failing=bad), {**free, shape.pool: left}
                    key = tuple(sorted((*chosen, kind)))
                    way = (*slots, (kind, cards)), after
                    wider.setdefault(key, {}).setdefault(leftover(after), way)
        yield from (next(iter(ways.values()))[0] for ways in wider.values())
        level = wider


def _round_robin(prices: _Prices, slots: tuple[_Slot, ...]) -> Iterator[_Outline]:
    """Yield the deployment in every order that counts as another plan; the queues follow."""
    place = {cohort.name: c for c, cohort in enumerate(prices.cohorts)}
    order = tuple(place[session.cohort] for session in sessions_in_order(prices.instance))
    fixed = prices.instance.search.deployment == "uniform"

    def extend(line: tuple[_Slot, ...], rows: tuple[_Row, ...]) -> Iterator[_Outline]:
        i, tried = len(rows), set()
        if i == len(line):
            yield line, rows
        for j in range(i, min(i + 1, len(line)) if fixed else len(line)):
            row = prices.row(line[j][0], order[i :: len(line)])
            if row is not None and line[j][0] not in tried:
                tried.add(line[j][0])
                yield from extend((*line[:i], line[j], *line[i:j], *line[j + 1 :]), (*rows, row))

    yield from extend(slots, ())


def _optimised(prices: _Prices, slots: tuple[_Slot, ...]) -> Iterator[_Outline]:
    """Yield every way to share out the sessions and to order each queue.

    Of slots of one kind, a later one has a queue that compares no smaller.
    """
    may_idle = prices.instance.search.deployment == "uniform"

    def extend(rows: tuple[_Row, ...], left: tuple[int, ...]) -> Iterator[_Outline]:
        if len(rows) == len(slots):
            yield slots, rows
            return
        prices.spend()
        kind = slots[len(rows)][0]
        table, pairs = prices.table(kind), zip(slots, rows, strict=False)
        floor = max((row.queue for (other, _), row in pairs if other == kind), default=())
        for counts in (left,) if len(rows) == len(slots) - 1 else table:
            rest = tuple(a - b for a, b in zip(left, counts, strict=True))
            if min(rest) >= 0 and (may_idle or any(counts)):
                for row in table.get(counts, ()):
                    if row.queue >= floor:
                        yield from extend((*rows, row), rest)

    yield from extend((), tuple(cohort.num_sessions for cohort in prices.cohorts))


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
    prices = _Prices(instance, max_plans)
    best = [_Best(problem, prices) for problem in problems]
    deployments = _uniform if instance.search.deployment == "uniform" else _mixed
    dispatch = _round_robin if instance.search.dispatch == "round_robin" else _optimised
    for slots in deployments(prices):
        for outline in dispatch(prices, slots):
            prices.spend("plans")
            totals = _totals(outline, prices.shares)
            for candidate in best:
                candidate.offer(outline, totals)
    return [candidate.result(max_plans - prices.left["plans"]) for candidate in best]


def solve_exhaustively(instance: Instance, max_plans: int = 200_000) -> ExhaustiveResult:
    """Return the optimum of `instance.objective` over every plan; raises as `solve_many` does."""
    return solve_many(instance, (instance.objective,), max_plans)[0]
