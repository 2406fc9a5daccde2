"""Brute force on servers: every number of them that pools, racks and power allow, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

from optimizer.capacity.exhaustive_sessions import Counts, Steps
from optimizer.capacity.problem import CapacityProblem, FailureEvent

#: Goals that servers and racks decide alone, whatever they hold.
SERVER_GOALS = ("price_per_hour", "servers", "racks", "power", "energy")
#: Every rack of a site: servers of each class.
Racks = tuple[dict[int, int], ...]


@dataclass(frozen=True, slots=True)
class Servers:
    """Numbers of servers of every class, the racks that these take, and what both cost."""

    numbers: Counts
    racks: dict[int, Racks]
    values: dict[str, Fraction]


class ServerSets:
    """Tries numbers of servers; of classes that may change places the first has most."""

    def __init__(self, problem: CapacityProblem, steps: Steps) -> None:
        self.problem, self.steps = problem, steps
        self.is_like_last = [self._is_like_last(j) for j in range(len(problem.classes))]
        self.packed = cache(self._packed)

    def every(self) -> Iterator[Servers]:
        """Yield all numbers of servers that pools, racks and power allow."""
        problem = self.problem
        for numbers in product(*(range(c.count + 1) for c in problem.classes)):
            self.steps.take()
            if any(self.is_like_last[j] and n > numbers[j - 1] for j, n in enumerate(numbers)):
                continue
            by_pool = [0] * len(problem.pools)
            for c, number in zip(problem.classes, numbers, strict=True):
                by_pool[c.pool] += number
            if any(
                number > pool.num_servers
                or (problem.is_purchase and number % pool.servers_per_group)
                for number, pool in zip(by_pool, problem.pools, strict=True)
            ):
                continue
            racks = self._racks(numbers)
            if racks is None:
                continue
            values = self._server_values(numbers, racks)
            if values is not None:
                yield Servers(numbers, racks, values)

    def _is_like_last(self, j: int) -> bool:
        """Whether class j and the one before it may change places without anything else."""
        if j == 0:
            return False
        one, two = self.problem.classes[j - 1 : j + 1]
        mine = (one.pool, one.site, one.free_cards, one.count, one.is_occupied, one.cell)
        if mine != (two.pool, two.site, two.free_cards, two.count, two.is_occupied, two.cell):
            return False

        def lost(event: FailureEvent, swap: dict[int, int]) -> tuple[object, ...]:
            classes = tuple(sorted(swap.get(c, c) for c in event.classes))
            return classes, event.option, event.min_sessions, event.probability

        events = self.problem.events
        swapped = Counter(lost(event, {j: j - 1, j - 1: j}) for event in events)
        return swapped == Counter(lost(event, {}) for event in events)

    def _racks(self, numbers: Counts) -> dict[int, Racks] | None:
        """Return the racks of every site, each with its servers; None where they do not do."""
        problem, found = self.problem, dict[int, Racks]()
        for s, site in enumerate(problem.sites):
            here = [c for c in problem.classes if c.site == s]
            if problem.is_purchase:
                packed = self.packed(s, tuple((c.index, numbers[c.index]) for c in here))
                if packed is None:
                    return None
                found[s] = packed
                continue
            if site.number is None:  # several racks, each of which can feed all its servers
                continue
            watts = sum(
                problem.pools[c.pool].power_w * (c.count if c.is_occupied else numbers[c.index])
                for c in here
            )
            if site.limit_w is not None and watts > site.limit_w:
                return None
            if any(numbers[c.index] for c in here):
                found[s] = ({c.index: numbers[c.index] for c in here},)
        return found

    def _packed(self, s: int, servers: tuple[tuple[int, int], ...]) -> Racks | None:
        """Pack servers into the fewest racks of a site; None where all its racks are too few."""
        queue = [j for j, number in servers for _ in range(number)]
        for most in range(self.problem.sites[s].count + 1):
            racks: list[dict[int, int]] = [{} for _ in range(most)]
            if self._place(s, queue, racks):
                return tuple(racks)
        return None

    def _place(self, s: int, queue: list[int], racks: list[dict[int, int]]) -> bool:
        """Try every rack for the first server of the queue, then for the others."""
        self.steps.take()
        if not queue:
            return True
        site, problem = self.problem.sites[s], self.problem
        for rack in racks:
            rack[queue[0]] = rack.get(queue[0], 0) + 1
            held = [(problem.pools[problem.classes[j].pool], n) for j, n in rack.items()]
            units = sum(pool.rack_units * n for pool, n in held)
            watts = sum(pool.power_w * n for pool, n in held)
            is_within = site.limit_w is None or watts <= site.limit_w
            if units <= site.units and is_within and self._place(s, queue[1:], racks):
                return True
            rack[queue[0]] -= 1
            if not any(rack.values()):
                return False  # the other empty racks are no better
        return False

    def _server_values(
        self, numbers: Counts, racks: dict[int, Racks]
    ) -> dict[str, Fraction] | None:
        """Return the goals that servers and racks decide; None where power does not suffice."""
        problem = self.problem
        price, watts, endpoints, servers = Fraction(0), problem.fixed_w, 0, 0
        for c, number in zip(problem.classes, numbers, strict=True):
            pool = problem.pools[c.pool]
            watts += pool.power_w * (c.count if c.is_occupied else number)
            endpoints += pool.num_cards * (c.count if c.is_occupied else number)
            if not c.is_occupied:
                price += pool.price_per_hour * number
                servers += number
        for tier in problem.tiers:
            if endpoints > tier.above_endpoints:
                watts += tier.power_w
                price += tier.price_per_hour
        price += sum(problem.sites[s].price_per_hour * len(held) for s, held in racks.items())
        if problem.budget_w is not None and watts > problem.budget_w:
            return None
        return {
            "price_per_hour": price,
            "servers": Fraction(servers),
            "racks": Fraction(sum(map(len, racks.values()))),
            "power": Fraction(watts),
            "energy": watts * (problem.period_s or Fraction(0)),
        }
