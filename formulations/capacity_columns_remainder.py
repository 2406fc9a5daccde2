"""What one model has left to serve, as an integer program for HiGHS."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from formulations.capacity_columns_lp import Column
from formulations.status import highs_termination
from optimizer.capacity.problem import CapacityProblem
from optimizer.protocols import Termination


@dataclass(frozen=True, slots=True)
class Effort:
    """What a run may use: seconds, up to a `time.monotonic()` value, with a seed.

    `cards` are prices of a card of each pool; an answer may cost more than the best by `gap`.
    """

    cards: Sequence[float]
    gap: float
    seconds: float
    deadline: float
    seed: int


@dataclass(slots=True)
class ModelPart:
    """Columns of one model: units of each that are kept, instances, sessions left to serve."""

    columns: list[Column]
    units: list[int]
    instances: dict[int, int]
    left: dict[int, int]


class Remainder:
    """The integer program of what a model has left to serve."""

    def __init__(
        self,
        problem: CapacityProblem,
        model: ModelPart,
        room: Sequence[float],
        effort: Effort,
    ) -> None:
        self.problem, self.model, self.effort = problem, model, effort
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
        seconds = min(self.effort.seconds, self.effort.deadline - time.monotonic())
        if seconds <= 0:
            return None
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", self.effort.seed),
            ("time_limit", seconds),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", self.effort.gap),
        ):
            highs.setOptionValue(name, value)
        self._state(highs)
        highs.run()
        ended = highs_termination(SimpleNamespace(solverModel=highs))
        if ended not in (Termination.OPTIMAL, Termination.FEASIBLE):
            return None
        values = [round(value) for value in highs.getSolution().col_value]
        more = dict(zip(self.options, values, strict=False))
        extra = values[len(self.options) :]
        return (extra, more) if self._is_enough(extra, more) else None

    def _state(self, highs: Any) -> None:
        """Minimise cards by what they are worth: units within instances, instances within room."""
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
            highs.changeColCost(place[k], float(self.effort.cards[spec.pool]) * spec.num_cards)
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
            kept = sum(self.model.instances[k] * self.problem.options[k].num_cards for k in mine)
            sizes = {place[k]: float(self.problem.options[k].num_cards) for k in mine}
            if sizes:
                add(-np.inf, math.floor(cards + 1e-6) - kept, sizes)

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
