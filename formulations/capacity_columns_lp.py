"""The linear program over loads of units, to which loads are added as they prove worth it.

HiGHS works in floating point; what it returns guides the search and is never taken for a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formulations.status import highs_termination
from optimizer.capacity.loads import UnitLoad
from optimizer.capacity.multipliers import ServerCounts, UnitPricer
from optimizer.capacity.problem import CapacityProblem
from optimizer.protocols import Termination

Floats = NDArray[np.float64]

#: One of a column's variable is so many cards: keeps the numbers of a program near 1.
CARDS_EACH = 1000.0

#: Servers that are missing cost so many times what all servers cost.
SHORTAGE_COST = 100.0


#: The largest share of a pool's cards that is left idle.
MAX_IDLE = 0.1


@dataclass(frozen=True, slots=True)
class Column:
    """A load of one unit of an option; an instance has `num_units` units and `num_cards` cards."""

    option: int
    load: UnitLoad
    num_units: int
    num_cards: int


@dataclass(frozen=True, slots=True)
class LinearPoint:
    """A solution: its value, prices of a session and of a card, and units of every column.

    `shortage` is the share of servers that is missing, `servers` are by class.
    """

    value: float
    shortage: float
    sessions: Floats
    cards: Floats
    units: Floats
    servers: Floats


class LoadProgram:
    """Servers by class, and units by column, that serve what every cohort asks for at least."""

    def __init__(self, problem: CapacityProblem, counts: ServerCounts, pricer: UnitPricer) -> None:
        import highspy

        self.problem, self.pricer = problem, pricer
        self.columns: list[Column] = []
        self.known: set[tuple[int, tuple[int, ...]]] = set()
        self.wanted = [c for c, d in enumerate(problem.cohorts) if d.min_sessions]
        self.row_of = {c: r for r, c in enumerate(self.wanted)}
        self.num_classes = len(problem.classes)
        self.most = counts.most_servers()
        self.costs = [float(value) for value in counts.server_values()]
        self.highs: Any = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1)):
            self.highs.setOptionValue(name, value)
        for cost, most in zip(self.costs, self.most, strict=True):
            self._add_variable(cost, float(most))
        self.missing = self._add_variable(0.0, np.inf)
        for _ in self.wanted:
            self._add_row(1.0, {})
        for p, pool in enumerate(problem.pools):
            held = {c: float(problem.classes[c].free_cards) for c in problem.classes_of_pool[p]}
            everything = sum(cards * self.most[c] for c, cards in held.items())
            held[self.missing] = max(everything, float(pool.num_cards))
            self._add_row(0.0, held)

    def _add_variable(self, cost: float, most: float) -> int:
        self.highs.addVar(0.0, most)
        index = int(self.highs.getNumCol()) - 1
        self.highs.changeColCost(index, cost)
        return index

    def _add_row(self, least: float, terms: dict[int, float]) -> None:
        kept = {v: size for v, size in terms.items() if size}
        index, values = np.array(list(kept), dtype=np.int32), np.array(list(kept.values()))
        self.highs.addRow(least, np.inf, len(kept), index, values)

    def add(self, option: int, load: UnitLoad) -> bool:
        """Add a column, unless it is known."""
        key = option, load.counts
        if key in self.known or not any(load.counts[c] for c in self.wanted):
            return False
        self.known.add(key)
        spec, unit = self.problem.options[option], self.pricer.unit(option)
        self.columns.append(Column(option, load, unit.num_units, spec.num_cards))
        each = CARDS_EACH * unit.num_units / spec.num_cards
        terms = {
            r: each * load.counts[c] / self.problem.cohorts[c].min_sessions
            for c, r in self.row_of.items()
            if load.counts[c]
        }
        terms[len(self.wanted) + spec.pool] = -CARDS_EACH
        index, values = np.array(list(terms), dtype=np.int32), np.array(list(terms.values()))
        self.highs.addCol(0.0, 0.0, np.inf, len(terms), index, values)
        return True

    def cheapest(self, idle: Sequence[float] | None = None) -> LinearPoint | None:
        """Minimise what servers cost; those that are missing cost much more.

        `idle` cards of every pool at least are left to no instance.
        """
        everything = sum(c * m for c, m in zip(self.costs, self.most, strict=True))
        bounds = [(0.0, float(most)) for most in self.most]
        return self._solve(self.costs, bounds, SHORTAGE_COST * everything + 1, idle)

    def within(
        self, servers: Sequence[float], idle: Sequence[float] | None = None
    ) -> LinearPoint | None:
        """Minimise the share of servers that is missing if there are so many of every class."""
        return self._solve([0.0] * self.num_classes, [(n, n) for n in servers], 1.0, idle)

    def cards(self, point: LinearPoint) -> list[float]:
        """Return the cards of every pool that a solution uses."""
        cards = [0.0] * len(self.problem.pools)
        for column, units in zip(self.columns, point.units, strict=False):
            spec = self.problem.options[column.option]
            cards[spec.pool] += float(units) * column.num_cards / column.num_units
        return cards

    def worth(self, servers: Sequence[int], point: LinearPoint) -> float:
        """Return what servers are worth at most, in parts of what all sessions are worth."""
        cards = sum(
            float(point.cards[one.pool]) * number * one.free_cards
            for one, number in zip(self.problem.classes, servers, strict=True)
        )
        wanted = sum(
            float(point.sessions[c]) * self.problem.cohorts[c].min_sessions for c in self.wanted
        )
        return cards / wanted if wanted else np.inf

    def _solve(
        self,
        costs: Sequence[float],
        bounds: Sequence[tuple[float, float]],
        missing_cost: float,
        idle: Sequence[float] | None,
    ) -> LinearPoint | None:
        """Solve with costs and numbers of servers by class; None where HiGHS finds no optimum."""
        for c, (cost, (least, most)) in enumerate(zip(costs, bounds, strict=True)):
            self.highs.changeColCost(c, cost)
            self.highs.changeColBounds(c, least, most)
        self.highs.changeColCost(self.missing, missing_cost)
        free = [0.0] * len(self.problem.pools)
        for one, (_, most) in zip(self.problem.classes, bounds, strict=True):
            free[one.pool] += most * one.free_cards
        for p, (cards, pool) in enumerate(zip(free, self.problem.pools, strict=True)):
            # of a pool without servers some may be missing, too
            row = len(self.wanted) + p
            self.highs.changeCoeff(row, self.missing, cards or float(pool.num_cards))
            left = 0.0 if idle is None else min(idle[p], MAX_IDLE * cards)
            self.highs.changeRowBounds(row, left, np.inf)
        self.highs.run()
        ended = highs_termination(SimpleNamespace(solverModel=self.highs))
        if ended is not Termination.OPTIMAL:
            return None
        solution = self.highs.getSolution()
        values, duals = np.array(solution.col_value), np.array(solution.row_dual)
        sessions = np.zeros(len(self.problem.cohorts))
        for c, r in self.row_of.items():
            sessions[c] = max(duals[r], 0.0) / self.problem.cohorts[c].min_sessions
        cards = np.maximum(duals[len(self.wanted) :], 0.0)
        used = np.maximum(values[self.missing + 1 :], 0.0) * CARDS_EACH
        per_card = np.array([column.num_units / column.num_cards for column in self.columns])
        value = float(self.highs.getInfo().objective_function_value)
        missing = float(values[self.missing])
        servers = values[: self.num_classes]
        return LinearPoint(value, missing, sessions, cards, used * per_card, servers)
