"""The exact evaluator of capacity plans: what they cost, whom they serve, which rules they break.

Knows of the problem what stands where and what is asked; bytes and times of options come from
their footprints, step by step (`group_account`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from instances.capacity import FAILURE_GOALS
from instances.instance import Instance
from optimizer.capacity.account import CapacityEvaluation, EventOutcome
from optimizer.capacity.checks import after, check_fleet, check_negative, check_unknown
from optimizer.capacity.group_account import Accountant, LoadsAccount, OptionPrices
from optimizer.capacity.ledger import (
    FleetCount,
    count_fleet,
    is_told_apart,
    known_part,
    price_per_hour,
)
from optimizer.capacity.load_checks import (
    check_events,
    check_group_load,
    check_groups,
    check_idle_memory,
    check_options,
    check_sessions,
)
from optimizer.capacity.plan import CapacityPlan, GroupLoad
from optimizer.capacity.problem import CapacityProblem
from optimizer.capacity.resources import capacity_resources
from optimizer.evaluation import Violation

HOUR_S, MILLION = 3600, 10**6


class _Deals:
    """Accounts of the deals of a plan: healthy, and after every event that has one."""

    def __init__(self, problem: CapacityProblem, accountant: Accountant, plan: CapacityPlan):
        self.problem, self.accountant = problem, accountant
        # by id, since thousands of events may share their loads; the plan keeps these alive
        self._known: dict[int, LoadsAccount] = {}
        self.healthy = self._account(plan.loads)
        self.after = [
            self._account(loads) for loads, _ in zip(plan.loads_after, problem.events, strict=False)
        ]

    def _account(self, loads: tuple[GroupLoad, ...]) -> LoadsAccount:
        if id(loads) not in self._known:
            self._known[id(loads)] = self.accountant.loads(loads)
        return self._known[id(loads)]

    def outcomes(self) -> tuple[EventOutcome, ...]:
        """Return what every event leaves; nobody where the plan has no loads for it."""
        nobody = (0,) * len(self.problem.cohorts)
        return tuple(
            EventOutcome(event.kind, event.name, found.on_time if found is not None else nobody)
            for event, found in zip(
                self.problem.events,
                (*self.after, *[None] * (len(self.problem.events) - len(self.after))),
                strict=True,
            )
        )

    def check(self, count: FleetCount) -> Iterator[Violation]:
        """Rules of all deals. A group that breaks one by itself is named once, where it is met."""
        problem = self.problem
        least = tuple(cohort.min_sessions for cohort in problem.cohorts)
        judged: set[int] = set()  # equal groups have one account

        def by_themselves(account: LoadsAccount) -> Iterator[Violation]:
            for group in account.groups:
                if id(group) not in judged:
                    judged.add(id(group))
                    yield from check_group_load(problem, group)

        yield from check_groups(problem, self.healthy.num_groups, count.instances())
        yield from by_themselves(self.healthy)
        yield from check_sessions(problem, self.healthy.taken, least)
        for event, account in zip(problem.events, self.after, strict=False):
            left = count.instances(event)
            yield from after(event.name, check_groups(problem, account.num_groups, left))
            yield from after(event.name, by_themselves(account))
            yield from after(event.name, check_sessions(problem, account.taken, event.min_sessions))


def _money(
    instance: Instance, count: FleetCount, sessions: tuple[int, ...]
) -> Iterator[tuple[str, Fraction]]:
    """Yield the goals that are prices, unless a server has none."""
    problem = count.problem
    if any(pool.price_per_hour is None for pool in instance.fleet.pools):
        return
    price = price_per_hour(count)
    yield "price_per_hour", price
    if problem.period_s is None:
        return
    paid, tokens = price * problem.period_s / HOUR_S, 0
    for cohort, number in zip(problem.cohorts, sessions, strict=True):
        tokens += number * cohort.new_tokens
    if tokens:
        yield "price_per_on_time_session", paid / sum(sessions)
        yield "price_per_million_tokens", paid * MILLION / tokens


def _sessions(
    problem: CapacityProblem, sessions: tuple[int, ...], outcomes: tuple[EventOutcome, ...]
) -> Iterator[tuple[str, Fraction]]:
    """Yield the goals that count sessions on time. Where nothing can fail, the worst is none."""
    yield "sessions", Fraction(sum(sessions))
    if not outcomes and not FAILURE_GOALS & set(problem.goals):
        return
    after = (sum(one.sessions) for one in outcomes)
    yield "worst_case_sessions", Fraction(min(after, default=sum(sessions)))
    probabilities = [event.probability for event in problem.events]
    known = [probability for probability in probabilities if probability is not None]
    if len(known) < len(probabilities) or sum(known) > 1:
        return
    expected = (1 - sum(known, Fraction(0))) * sum(sessions)
    for probability, one in zip(known, outcomes, strict=True):
        expected += probability * sum(one.sessions)
    yield "expected_sessions", expected


def _values(
    instance: Instance,
    count: FleetCount,
    sessions: tuple[int, ...],
    outcomes: tuple[EventOutcome, ...],
) -> dict[str, Fraction]:
    """Return every goal that has a value."""
    problem, found = count.problem, dict(_money(instance, count, sessions))
    found["servers"] = Fraction(sum(count.paid))
    if all(is_told_apart(problem, s) for s in range(len(problem.sites))):
        found["racks"] = Fraction(sum(count.racks))
    cards = sum(
        number * problem.options[o].footprint.parallel.num_cards
        for o, number in count.instances().items()
    )
    found["cards"] = Fraction(cards)
    if all(pool.server.power_w is not None for pool in instance.fleet.pools):
        found["power"] = Fraction(sum(part.watts for part in count.power_parts()))
        if problem.period_s is not None:
            found["energy"] = found["power"] * problem.period_s
    found.update(_sessions(problem, sessions, outcomes))
    return found


def evaluate_capacity(
    instance: Instance,
    problem: CapacityProblem,
    plan: CapacityPlan,
    prices: OptionPrices | None = None,
) -> CapacityEvaluation:
    """Judge a capacity plan exactly: every goal, every session, every rule broken.

    `problem` is that of the instance, and so are `prices`, which calls may share. Never raises for
    a bad plan: what is wrong with it is in `violations`, and what does not exist or is counted
    below 0 takes no further part.
    """
    known = known_part(problem, plan)
    count = count_fleet(problem, instance.fleet, known)
    prices = prices or OptionPrices(instance, problem)
    deals = _Deals(problem, Accountant(problem, prices), plan)
    instances, outcomes = count.instances(), deals.outcomes()
    idle = instances.keys() - deals.healthy.num_groups.keys()
    violations = [
        *check_unknown(problem, plan),
        *check_negative(plan),
        *check_fleet(count, known),
        *check_options(prices, instances),
        *check_idle_memory(prices, idle),
        *check_events(problem, plan),
        *deals.check(count),
    ]
    return CapacityEvaluation(
        values=_values(instance, count, deals.healthy.on_time, outcomes),
        sessions=deals.healthy.on_time,
        after=outcomes,
        servers=count.by_pool(count.bought),
        racks=count.racks,
        instances=tuple(instances.get(o, 0) for o in range(len(problem.options))),
        endpoints=count.endpoints,
        tiers=tuple(tier.name for tier in count.needed_tiers),
        power=count.power_parts(),
        resources=tuple(capacity_resources(instance, count, known, deals.healthy)),
        violations=tuple(violations),
    )
