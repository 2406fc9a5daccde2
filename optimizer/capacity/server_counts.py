"""How many servers, racks and tiers there may be: a tiny integer program over counts.

What must be served enters as rows over the free cards (`CountRow`). Rules of racks are stated for
all racks of a site together, which admits all that single racks do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.capacity.count_search import CountProgram, CountRow, Fewest
from optimizer.capacity.problem import CapacityProblem, RackSite
from optimizer.errors import TooLargeError

#: Goals that numbers of servers, racks and tiers decide alone.
COUNTED_GOALS = frozenset({"price_per_hour", "servers", "racks", "power", "energy"})


def check_supported(problem: CapacityProblem) -> None:
    """Raise TooLargeError for what counts of servers cannot decide.

    Those are failures, other goals, racks told apart, and instances that do not fill a server.
    """
    if problem.events:
        raise TooLargeError("capacity by columns: plans that must survive failures are not for it")
    others = [goal for goal in problem.goals if goal not in COUNTED_GOALS]
    if not problem.is_purchase:
        others += [goal for goal in problem.goals if goal == "racks"]
        if any(site.number is not None for site in problem.sites):
            raise TooLargeError("capacity by columns: racks that are told apart are not for it")
    if others:
        raise TooLargeError(f"capacity by columns: goal {others[0]!r} is not for it")
    for p, pool in enumerate(problem.pools):
        classes = [problem.classes[c] for c in problem.classes_of_pool[p]]
        sizes = {problem.options[o].cards_per_server for o in problem.options_of_pool[p]}
        parts = sorted(size for size in sizes if size < pool.num_cards)
        is_filled = all(b % a == 0 for a, b in itertools.pairwise(parts))
        if not is_filled or any(c.free_cards % size for c in classes for size in parts):
            raise TooLargeError(
                f"capacity by columns: instances of {parts} cards do not fill servers of "
                f"{pool.name}"
            )
        if len({c.cell for c in classes}) > 1:
            raise TooLargeError(f"capacity by columns: servers of {pool.name} fail apart")


@dataclass(frozen=True, slots=True)
class _Count:
    """Something that is counted, from `lower` to `upper`: groups, servers, racks, or a tier.

    One of them adds `values` to the goals, and draws `watts`; `endpoints` hang on it.
    """

    lower: int
    upper: int
    values: tuple[Fraction, ...]
    watts: int = 0
    endpoints: int = 0


class ServerCounts:
    """Counts that a problem allows, and what they cost.

    `free_cards[v]` is (pool, free cards) of one of what variable v counts.
    """

    def __init__(self, problem: CapacityProblem) -> None:
        self.problem = problem
        self.free_cards: dict[int, tuple[int, int]] = {}
        self._counts: list[_Count] = []
        #: (variable, servers of one) of each class
        self._servers: list[tuple[int, int]] = [(-1, 0)] * len(problem.classes)
        self._rows: list[CountRow] = []
        (self._purchased if problem.is_purchase else self._existing)()
        self._add_tiers_and_power()
        self._units = self._goal_units()

    def fewest(
        self,
        cuts: Sequence[CountRow],
        max_nodes: int,
        is_over: Callable[[], bool],
        excluded: Collection[tuple[int, ...]] = (),
    ) -> Fewest:
        """Return the best counts that keep all rows, goals in order, and a bound (`goal_values`).

        Points in `excluded` do not count.
        """
        program = CountProgram(
            tuple(count.lower for count in self._counts),
            tuple(count.upper for count in self._counts),
            tuple(self._whole(count.values) for count in self._counts),
            (*self._rows, *cuts),
        )
        return program.fewest(max_nodes, is_over, frozenset(excluded))

    def servers(self, point: Sequence[int]) -> tuple[int, ...]:
        """Return the servers of every class; of a pool's only class, whole groups."""
        return tuple(size * point[v] if v >= 0 else 0 for v, size in self._servers)

    def most_servers(self) -> tuple[int, ...]:
        """Return the most servers of every class."""
        return self.servers([count.upper for count in self._counts])

    def server_values(self) -> tuple[Fraction, ...]:
        """Return by class about what one server more adds to the first goal, with its racks."""
        values, goal = [], self.problem.goals[0]
        for one in self.problem.classes:
            own = Fraction(0) if one.is_occupied else self._server_values(one.pool, 1)[0]
            if self.problem.is_purchase and one.site is not None:
                price = self.problem.sites[one.site].price_per_hour
                racks = {"price_per_hour": price, "racks": Fraction(1)}.get(goal, Fraction(0))
                own += racks / self.problem.rack_holds(one.site, one.pool)
            values.append(own)
        return tuple(values)

    def goal_values(self, total: int) -> tuple[Fraction, ...]:
        """Return the values of the goals that a sum of `fewest` stands for."""
        found = []
        for (unit, weight, _), constant in zip(self._units, self._constants(), strict=True):
            number, total = divmod(total, weight)
            found.append(constant + number * unit)
        return tuple(found)

    def point_values(self, point: Sequence[int]) -> tuple[Fraction, ...]:
        """Return the values of the goals at a point."""
        whole = [self._whole(count.values) for count in self._counts]
        return self.goal_values(sum(n * w for n, w in zip(point, whole, strict=True)))

    def _add(self, count: _Count) -> int:
        self._counts.append(count)
        return len(self._counts) - 1

    def _server_values(self, pool: int, number: int) -> tuple[Fraction, ...]:
        """Return what so many servers of a pool add to the goals."""
        spec = self.problem.pools[pool]
        each = {
            "price_per_hour": spec.price_per_hour,
            "servers": Fraction(1),
            "power": Fraction(spec.power_w),
            "energy": spec.power_w * self._period_s,
        }
        return tuple(number * each.get(goal, Fraction(0)) for goal in self.problem.goals)

    @property
    def _period_s(self) -> Fraction:
        return self.problem.period_s or Fraction(0)

    def _existing(self) -> None:
        """Count servers in use of every class; those with occupied cards are on anyway."""
        for one in self.problem.classes:
            pool, number = self.problem.pools[one.pool], int(not one.is_occupied)
            v = self._add(
                _Count(
                    0,
                    one.count,
                    self._server_values(one.pool, number),
                    number * pool.power_w,
                    number * pool.num_cards,
                )
            )
            self.free_cards[v] = one.pool, one.free_cards
            self._servers[one.index] = v, 1

    def _purchased(self) -> None:
        """Count whole groups of every pool, and servers by class where a pool has several."""
        problem = self.problem
        for p, pool in enumerate(problem.pools):
            classes, size = problem.classes_of_pool[p], pool.servers_per_group
            most = min(pool.num_servers, sum(problem.classes[c].count for c in classes))
            v = self._add(
                _Count(
                    0,
                    most // size,
                    self._server_values(p, size),
                    size * pool.power_w,
                    size * pool.num_cards,
                )
            )
            self.free_cards[v] = p, size * pool.num_cards
            if len(classes) == 1:
                self._servers[classes[0]] = v, size
                continue
            nothing = (Fraction(0),) * len(problem.goals)
            mine = {self._add(_Count(0, problem.classes[c].count, nothing)): c for c in classes}
            for u, c in mine.items():
                self._servers[c] = u, 1
            if mine:
                self._rows.append(CountRow({v: -size, **dict.fromkeys(mine, 1)}, 0))
                self._rows.append(CountRow({v: size, **dict.fromkeys(mine, -1)}, 0))
        for s, site in enumerate(problem.sites):
            self._add_racks(s, site)

    def _add_racks(self, s: int, site: RackSite) -> None:
        """Servers need racks of their site: units and watts of all, and whole servers of each."""
        each = {"price_per_hour": site.price_per_hour, "racks": Fraction(1)}
        values = tuple(each.get(goal, Fraction(0)) for goal in self.problem.goals)
        # racks that cost nothing are all there
        racks = self._add(_Count(0 if any(values) else site.count, site.count, values))
        held = [c for c in self.problem.classes if c.site == s]
        units, watts = {racks: site.units}, {racks: site.limit_w or 0}
        for one in held:
            v, size = self._servers[one.index]
            pool = self.problem.pools[one.pool]
            units[v], watts[v] = -size * pool.rack_units, -size * pool.power_w
            self._rows.append(CountRow({racks: self.problem.rack_holds(s, one.pool), v: -size}, 0))
        if held:
            self._rows.append(CountRow(units, 0))
            self._rows += [CountRow(watts, 0)] if site.limit_w is not None else []

    def _add_tiers_and_power(self) -> None:
        problem = self.problem
        watts = {v: -c.watts for v, c in enumerate(self._counts) if c.watts}
        endpoints = {v: -c.endpoints for v, c in enumerate(self._counts) if c.endpoints}
        most = problem.occupied_endpoints
        most += sum(c.endpoints * c.upper for c in self._counts)
        for tier in problem.tiers:
            left = tier.above_endpoints - problem.occupied_endpoints
            each = {
                "price_per_hour": tier.price_per_hour,
                "power": Fraction(tier.power_w),
                "energy": tier.power_w * self._period_s,
            }
            values = tuple(each.get(goal, Fraction(0)) for goal in problem.goals)
            v = self._add(_Count(int(left < 0), 1, values))
            watts[v] = -tier.power_w
            if left >= 0 and most > tier.above_endpoints:
                beyond = most - tier.above_endpoints
                self._rows.append(CountRow({**endpoints, v: beyond}, -left))
        if problem.budget_w is not None:
            drawn = problem.fixed_w + problem.occupied_w
            kept = {v: w for v, w in watts.items() if w}
            self._rows.append(CountRow(kept, drawn - problem.budget_w))

    def _constants(self) -> Iterator[Fraction]:
        """Yield what every goal is without any server."""
        drawn = Fraction(self.problem.fixed_w + self.problem.occupied_w)
        each: Mapping[str, Fraction] = {"power": drawn, "energy": drawn * self._period_s}
        yield from (each.get(goal, Fraction(0)) for goal in self.problem.goals)

    def _goal_units(self) -> list[tuple[Fraction, int, int]]:
        """Return (unit, weight, most) of every goal: whole numbers of units, earlier goals first.

        A unit of one goal weighs more than all that the goals after it can reach.
        """
        units: list[tuple[Fraction, int, int]] = []
        weight = 1
        for g in range(len(self.problem.goals) - 1, -1, -1):
            values = [count.values[g] for count in self._counts]
            scale = math.lcm(*(value.denominator for value in values))
            unit = Fraction(math.gcd(*(int(value * scale) for value in values)) or 1, scale)
            most = sum(int(v / unit) * c.upper for v, c in zip(values, self._counts, strict=True))
            units.append((unit, weight, most))
            weight *= most + 1
        return units[::-1]

    def _whole(self, values: Sequence[Fraction]) -> int:
        """Return the sum of all goals, as whole numbers by weight."""
        return sum(
            int(value / unit) * weight
            for value, (unit, weight, _) in zip(values, self._units, strict=True)
        )
