"""Whole serving instances and units near a fractional solution, model by model.

Most of the fractional solution is kept, rounded down. What is left to serve is little, whatever
the size of the fleet, and is stated as an integer program of one model at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from formulations.capacity_columns_lp import Column, LinearPoint
from formulations.capacity_columns_plan import Deal, cards_by_pool
from formulations.status import highs_termination
from optimizer.capacity.problem import CapacityProblem
from optimizer.protocols import Termination

#: Instances of an option that are decided anew although the fractional solution has them.
LOOSE_INSTANCES = 2

#: What cards within the room count, sweep by sweep over the models: at first they are saved for
#: the models that follow, then each makes up for what the others take too much.
THRIFT = (1.0, 0.1, 0.02)

#: Columns of a model that may be used, and by what share of its cards one may be worth less.
MAX_COLUMNS, MAX_LOSS = 60, 0.3


@dataclass(frozen=True, slots=True)
class Rounding:
    """How to round: prices of cards and free cards of every pool, and until when.

    `gap` is by how much a model may cost more than the best found, in prices of cards. Of the
    price, cards within the room count `thrift`.
    """

    cards: Sequence[float]
    free: Sequence[int]
    seconds_each: float
    gap: float
    deadline: float
    seed: int
    thrift: float = 1.0


@dataclass(slots=True)
class _Model:
    """Columns of one model: units of each that are kept, instances, sessions left to serve."""

    columns: list[Column]
    units: list[int]
    instances: dict[int, int]
    left: dict[int, int]


def round_units(
    problem: CapacityProblem, columns: Sequence[Column], point: LinearPoint, rounding: Rounding
) -> Deal | None:
    """Return whole instances and units that serve all minima; None where no way is found.

    They take no more cards of a pool than are free where that can be helped.
    """
    #: cards of every pool by model: at first those of the fractional solution
    used = [[0.0] * len(problem.pools) for _ in problem.models]
    for column, units in zip(columns, point.units, strict=True):
        spec = problem.options[column.option]
        used[spec.model][spec.pool] += units * column.num_cards / column.num_units
    # models on one pool first: those on several can make up for what rounding takes
    order = sorted(range(len(problem.models)), key=lambda m: sum(n > 1e-6 for n in used[m]))
    rounded: dict[int, _Model] = {}
    for thrift in THRIFT:
        for m in order:
            taken = [sum(row) for row in zip(*used, strict=True)]
            beyond = [n > most + 1e-6 for n, most in zip(taken, rounding.free, strict=True)]
            if m in rounded and not any(
                is_so and n for is_so, n in zip(beyond, used[m], strict=True)
            ):
                continue
            model = _kept(problem, m, columns, point, rounding)
            if not any(model.left.values()) and not model.instances:
                continue
            room = [
                most - (n - own) for most, n, own in zip(rounding.free, taken, used[m], strict=True)
            ]
            if not _complete(problem, model, room, replace(rounding, thrift=thrift)):
                return None
            rounded[m] = model
            used[m] = [*map(float, cards_by_pool(problem, Deal(model.instances, ())))]
    instances = {k: n for model in rounded.values() for k, n in model.instances.items()}
    uses = [
        (column.option, column.load, units)
        for model in rounded.values()
        for column, units in zip(model.columns, model.units, strict=True)
        if units
    ]
    return Deal(instances, tuple(uses))


def _kept(
    problem: CapacityProblem,
    m: int,
    columns: Sequence[Column],
    point: LinearPoint,
    rounding: Rounding,
) -> _Model:
    """Return the columns of a model worth a look, with what is kept of the fractional solution."""
    chosen: list[tuple[float, int]] = []
    for i, column in enumerate(columns):
        spec = problem.options[column.option]
        if spec.model != m:
            continue
        cost = rounding.cards[spec.pool] * column.num_cards / column.num_units
        worth = sum(n * point.sessions[c] for c, n in enumerate(column.load.counts) if n)
        loss = 0.0 if point.units[i] > 1e-9 else (1 - worth / cost if cost else 0.0)
        # nothing is laid on pools that are not there
        if loss <= MAX_LOSS and rounding.free[spec.pool]:
            chosen.append((loss, i))
    kept = sorted(i for _, i in sorted(chosen)[:MAX_COLUMNS])
    shares: dict[int, float] = {}
    for i in kept:
        option, size = columns[i].option, columns[i].num_units
        shares[option] = shares.get(option, 0.0) + float(point.units[i]) / size
    instances = {k: max(int(n + 1e-6) - LOOSE_INSTANCES, 0) for k, n in shares.items()}
    units = []
    for i in kept:
        k = columns[i].option
        units.append(int(point.units[i] * instances[k] / shares[k]) if instances[k] else 0)
    mine = [c for c, d in enumerate(problem.cohorts) if d.model == m and d.min_sessions]
    left = {}
    for c in mine:
        pairs = zip(kept, units, strict=True)
        served = sum(n * columns[i].load.counts[c] for i, n in pairs)
        left[c] = max(problem.cohorts[c].min_sessions - served, 0)
    return _Model([columns[i] for i in kept], units, instances, left)


def _complete(
    problem: CapacityProblem, model: _Model, room: Sequence[float], rounding: Rounding
) -> bool:
    """Add the units and instances that are still needed, as cheaply as they are found.

    Units that are kept leave no more than what a rounded instance lacks to be used.
    """
    program = _Remainder(problem, model, room, rounding)
    values = program.solve() or program.plainly()
    if values is None:
        return False
    extra, more = values
    model.units = [a + b for a, b in zip(model.units, extra, strict=True)]
    for k, number in more.items():
        model.instances[k] += number
    return True


class _Remainder:
    """The integer program of what a model has left to serve."""

    def __init__(
        self,
        problem: CapacityProblem,
        model: _Model,
        room: Sequence[float],
        rounding: Rounding,
    ) -> None:
        self.problem, self.model, self.rounding = problem, model, rounding
        self.options = sorted({column.option for column in model.columns})
        self.num_units = {column.option: column.num_units for column in model.columns}
        #: units of kept instances that no kept load uses
        self.spare = {k: self.num_units[k] * model.instances[k] for k in self.options}
        for column, units in zip(model.columns, model.units, strict=True):
            self.spare[column.option] -= units
        self.room = room

    def most_units(self, column: Column) -> int:
        """Return how many units of a column could be of use."""
        return max(
            (
                -(-left // column.load.counts[c])
                for c, left in self.model.left.items()
                if column.load.counts[c]
            ),
            default=0,
        )

    def solve(self) -> tuple[list[int], dict[int, int]] | None:
        """Return units of every column and instances of every option; None without a solution."""
        import highspy

        highs: Any = highspy.Highs()
        seconds = min(self.rounding.seconds_each, self.rounding.deadline - time.monotonic())
        if seconds <= 0:
            return None
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", self.rounding.seed),
            ("time_limit", seconds),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", self.rounding.gap * self.rounding.thrift),
        ):
            highs.setOptionValue(name, value)
        self._state(highs)
        highs.run()
        ended = highs_termination(SimpleNamespace(solverModel=highs))
        if ended not in (Termination.OPTIMAL, Termination.FEASIBLE):
            return None
        values = [round(value) for value in highs.getSolution().col_value]
        more = dict(zip(self.options, values, strict=False))
        extra = values[len(self.options) : len(self.options) + len(self.model.columns)]
        return (extra, more) if self._is_enough(extra, more) else None

    def _state(self, highs: Any) -> None:
        """Minimise cards by what they are worth; those beyond the room count more."""
        import highspy

        columns, options = self.model.columns, self.options
        most = [self.most_units(column) for column in columns]
        place = {k: v for v, k in enumerate(options)}
        uses: dict[int, dict[int, float]] = {k: {} for k in options}
        for i, column in enumerate(columns):
            uses[column.option][len(options) + i] = 1.0
        for k in options:
            own = [most[i] for i, column in enumerate(columns) if column.option == k]
            spec = self.problem.options[k]
            highs.addVar(0.0, float(-(-sum(own) // self.num_units[k])))
            each = self.rounding.cards[spec.pool] * self.rounding.thrift
            highs.changeColCost(place[k], float(each) * spec.num_cards)
        for number in most:
            highs.addVar(0.0, float(number))
        for v in range(len(options) + len(columns)):
            highs.changeColIntegrality(v, highspy.HighsVarType.kInteger)

        def add(least: float, upper: float, terms: dict[int, float]) -> None:
            index = np.array(list(terms), dtype=np.int32)
            highs.addRow(least, upper, len(terms), index, np.array(list(terms.values())))

        for c, left in self.model.left.items():
            served = {
                len(options) + i: float(column.load.counts[c])
                for i, column in enumerate(columns)
                if column.load.counts[c]
            }
            if left:
                add(float(left), np.inf, served)
        for k in options:
            add(-np.inf, float(self.spare[k]), {**uses[k], place[k]: -float(self.num_units[k])})
        for p, cards in enumerate(self.room):
            mine = [k for k in options if self.problem.options[k].pool == p]
            if not mine:
                continue
            kept = sum(self.model.instances[k] * self.problem.options[k].num_cards for k in mine)
            sizes = {place[k]: float(self.problem.options[k].num_cards) for k in mine}
            highs.addVar(0.0, np.inf)
            beyond = int(highs.getNumCol()) - 1
            highs.changeColCost(beyond, float(self.rounding.cards[p]))
            add(-np.inf, math.floor(cards + 1e-6) - kept, {**sizes, beyond: -1.0})

    def _is_enough(self, extra: Sequence[int], more: dict[int, int]) -> bool:
        """Whether rounded values keep all rows but those of room, in whole numbers."""
        pairs = list(zip(self.model.columns, extra, strict=True))
        served = all(
            sum(n * column.load.counts[c] for column, n in pairs) >= left
            for c, left in self.model.left.items()
        )
        return served and all(
            sum(n for column, n in pairs if column.option == k)
            <= self.spare[k] + self.num_units[k] * more[k]
            for k in self.options
        )

    def plainly(self) -> tuple[list[int], dict[int, int]] | None:
        """Serve what is left cohort by cohort, each with the column that needs fewest cards."""
        extra, left = [0] * len(self.model.columns), dict(self.model.left)
        for c in left:
            able = [i for i, col in enumerate(self.model.columns) if col.load.counts[c]]
            if left[c] <= 0:
                continue
            if not able:
                return None

            def cards(i: int, c: int = c) -> float:
                column = self.model.columns[i]
                weight = self.rounding.cards[self.problem.options[column.option].pool]
                each = column.num_units * column.load.counts[c]
                return float(weight) * column.num_cards / each

            i = min(able, key=cards)
            load = self.model.columns[i].load
            number = -(-left[c] // load.counts[c])
            extra[i] += number
            left = {o: n - number * load.counts[o] for o, n in left.items()}
        more = {}
        for k in self.options:
            pairs = zip(self.model.columns, extra, strict=True)
            needed = sum(n for column, n in pairs if column.option == k) - self.spare[k]
            more[k] = max(-(-needed // self.num_units[k]), 0)
        return extra, more
