"""A capacity plan without a solver: cohort by cohort on the option that serves it cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from optimizer.capacity.loads import UnitLoad, best_unit_load, dealt_loads, option_unit
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem, Option, ServerClass, is_maximised

#: So many cohorts take a moment only, and are served even when time is up: a plan is worth it.
MANY_COHORTS = 64


@dataclass(frozen=True, slots=True)
class _Choice:
    """An option for one cohort: a unit's load of it alone, and the price of a session."""

    option: Option
    load: UnitLoad
    #: sessions of the cohort that one serving instance takes
    sessions: int
    price: Fraction


class _Greedy:
    """Servers, racks and watts that are left, and what has been placed on them."""

    def __init__(self, problem: CapacityProblem) -> None:
        self.problem = problem
        self.left = [j.count for j in problem.classes]
        self.left_of_pool = [pool.num_servers for pool in problem.pools]
        self.left_racks = [site.count for site in problem.sites]
        self.room = [0] * len(problem.classes)  # servers that started racks can still take
        tiers_w = sum(tier.power_w for tier in problem.tiers)  # as if all were needed
        spent_w = problem.fixed_w + problem.occupied_w + tiers_w
        self.left_w = None if problem.budget_w is None else problem.budget_w - spent_w
        self.fills: list[ServerFill] = []
        self.chosen: list[tuple[int, UnitLoad, int]] = []

    def choices(self, c: int) -> Iterator[_Choice]:
        """Yield the options that serve a cohort."""
        wanted = [int(i == c) for i in range(len(self.problem.cohorts))]
        for option in self.problem.options:
            if option.service_s[c] is None:
                continue
            value, load = best_unit_load(self.problem, option.index, wanted)
            number = int(value) * option_unit(self.problem, option.index).num_units
            if number:
                pool = self.problem.pools[option.pool]
                price = (pool.price_per_hour or 1) * Fraction(option.num_cards, pool.num_cards)
                yield _Choice(option, load, number, price / number)

    def serve(self, c: int, sessions: int) -> int:
        """Place instances for sessions of a cohort, the cheapest first; return how many it has."""
        served = 0
        for choice in sorted(self.choices(c), key=lambda one: (one.price, one.option.index)):
            if served >= sessions:
                break
            wanted = -(-(sessions - served) // choice.sessions)
            placed = self._place(choice.option, wanted)
            if placed:
                units = placed * option_unit(self.problem, choice.option.index).num_units
                self.chosen.append((choice.option.index, choice.load, units))
                served += placed * choice.sessions
        return min(served, sessions)

    def _place(self, option: Option, wanted: int) -> int:
        """Give whole servers to instances of one option; return how many instances have some."""
        placed = 0
        for j in self.problem.classes:
            if j.pool != option.pool or placed >= wanted:
                continue
            each = j.free_cards // option.cards_per_server
            if not each or (option.num_servers > 1 and j.is_occupied):
                continue
            needed = -(-(wanted - placed) // each) * option.num_servers
            servers = self._take(j, needed, option.num_servers)
            if not servers:
                continue
            if option.num_servers > 1:
                self.fills.append(ServerFill(j.index, servers, (), option.index))
                placed += servers // option.num_servers
            else:
                placed += self._fill(j, option, servers, each, wanted - placed)
        return placed

    def _fill(self, j: ServerClass, option: Option, servers: int, each: int, wanted: int) -> int:
        """Put instances on servers; the last one may have fewer."""
        number = min(wanted, servers * each)
        full, rest = divmod(number, each)
        for count, here in ((full, each), (1 if rest else 0, rest)):
            if count:
                self.fills.append(ServerFill(j.index, count, ((option.index, here),)))
        return number

    def _take(self, j: ServerClass, wanted: int, multiple: int) -> int:
        """Take servers of a class that have racks and power, a multiple of them."""
        pool, most = self.problem.pools[j.pool], min(wanted, self.left[j.index])
        if self.problem.is_purchase:
            most = min(most, self.left_of_pool[j.pool])
            if j.site is not None:
                fit = self.fit(j)
                most = min(most, self.room[j.index] + fit * self.left_racks[j.site])
        if self.left_w is not None and pool.power_w and not j.is_occupied:
            most = min(most, max(self.left_w, 0) // pool.power_w)
        most -= most % multiple
        self.left[j.index] -= most
        self.left_of_pool[j.pool] -= most
        if self.left_w is not None and not j.is_occupied:
            self.left_w -= most * pool.power_w
        if self.problem.is_purchase and j.site is not None:
            racks = -(-max(most - self.room[j.index], 0) // self.fit(j))
            self.left_racks[j.site] -= racks
            self.room[j.index] += racks * self.fit(j) - most
        return most

    def fit(self, j: ServerClass) -> int:
        """Servers of a class in one rack of its site: where none fits there is no class."""
        assert j.site is not None
        return self.problem.rack_holds(j.site, j.pool)

    def complete_groups(self) -> bool:
        """Add idle servers until every pool has whole groups; False where there is no room."""
        if not self.problem.is_purchase:
            return True
        for p, pool in enumerate(self.problem.pools):
            missing = -(pool.num_servers - self.left_of_pool[p]) % pool.servers_per_group
            for j in self.problem.classes_of_pool[p]:
                taken = self._take(self.problem.classes[j], missing, 1)
                missing -= taken
                if taken:
                    self.fills.append(ServerFill(j, taken))
            if missing:
                return False
        return True

    def racks(self) -> Iterator[RackFill]:
        """Yield the racks: each holds servers of one class."""
        for j in self.problem.classes:
            used = sum(fill.count for fill in self.fills if fill.server_class == j.index)
            if not used or j.site is None or not self.problem.is_purchase:
                continue
            full, rest = divmod(used, self.fit(j))
            for count, servers in ((full, self.fit(j)), (1 if rest else 0, rest)):
                if count:
                    yield RackFill(j.site, count, ((j.index, servers),))


def first_capacity(problem: CapacityProblem, is_over: Callable[[], bool]) -> CapacityPlan | None:
    """Return a plan that is cheap to find, or None; the evaluator judges whether it is legal.

    Every server holds instances of one option, every rack servers of one class. Where something may
    fail nothing is found, unless nothing must be served.
    """
    least = [cohort.min_sessions for cohort in problem.cohorts]
    if problem.events:
        needed = any(least) or any(any(event.min_sessions) for event in problem.events)
        return None if needed else CapacityPlan((), (), (), ((),) * len(problem.events))
    greedy, served = _Greedy(problem), list[int]()
    for c, cohort in enumerate(problem.cohorts):
        if c >= MANY_COHORTS and is_over():
            return None
        wanted = cohort.num_sessions if is_maximised(problem.goals[0]) else cohort.min_sessions
        served.append(greedy.serve(c, wanted))
        if served[-1] < least[c]:
            return None
    if not greedy.complete_groups():
        return None
    loads = dealt_loads(problem, greedy.chosen, served)
    return CapacityPlan(tuple(greedy.racks()), tuple(greedy.fills), loads)
