"""Which units of which options can be worth more than their cards, over all options at once.

Values of sessions are whole numbers here, and so are all bounds; floating point only chooses where
to look, and which prices of rows give a good bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optimizer.capacity.loads import OptionUnit, PricedLoad, option_unit
from optimizer.capacity.problem import CapacityProblem, Option
from optimizer.capacity.small_lps import Floats, Ints, solve_many

#: Far above the error of a float64 bound.
MARGIN = 1e-9

#: Bits after the point of the price of a whole row.
ROW_BITS = 40

#: Share by which the value of a load may fall short of the best.
TOLERANCE = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Sessions of a group take `sizes[i]` of `room`, by cohort that its option serves.

    Lanes one after another are a row as well: times of sessions, and the time that all lanes have.
    """

    sizes: tuple[int, ...]
    room: int


def served_cohorts(option: Option) -> tuple[int, ...]:
    """Return the cohorts that an option may serve."""
    return tuple(c for c, time in enumerate(option.service_s) if time is not None)


def group_rows(problem: CapacityProblem, option: Option) -> Iterator[GroupRow]:
    """Yield rows that the sessions of one group keep: memory of its cards, time of its lanes."""
    able = served_cohorts(option)
    for row in option.memory:
        yield GroupRow(tuple(row.session_bytes[c] for c in able), max(row.free_bytes, 0))
    demands = [problem.cohorts[c] for c in able]
    deadlines = [d.deadline_s for d in demands if d.deadline_s is not None]
    if able and len(deadlines) == len(able):
        span = max(max(deadlines) - min(d.release_s for d in demands), Fraction(0))
        times = [option.service_s[c] or Fraction(0) for c in able]
        unit = math.lcm(span.denominator, *(time.denominator for time in times))
        sizes = tuple(int(time * unit) for time in times)
        yield GroupRow(sizes, option.num_lanes * int(span * unit))


@dataclass(frozen=True, slots=True)
class _UnitArrays:
    """Rows of a unit where each cohort is counted in parts of its limit: [row, cohort]."""

    cohorts: Ints
    limits: Floats
    rows: Floats


class UnitPricer:
    """Finds loads of units under prices of sessions and of cards.

    `rows` holds the rows of each option's groups. A unit is looked at closely (`option_unit`) only
    once these leave it a chance.
    """

    def __init__(self, problem: CapacityProblem) -> None:
        self.problem = problem
        options = problem.options
        self.able = [served_cohorts(option) for option in options]
        self.rows = [tuple(group_rows(problem, option)) for option in options]
        width = max((len(able) for able in self.able), default=0)
        depth = max((len(rows) for rows in self.rows), default=0)
        #: [option, row, cohort served]: sessions of one cohort alone that use up a row
        self.most_alone: Floats = np.full((len(options), depth, width), np.inf)
        self.cohort: Ints = np.full((len(options), width), len(problem.cohorts), dtype=np.int64)
        for k, (able, rows) in enumerate(zip(self.able, self.rows, strict=True)):
            self.cohort[k, : len(able)] = able
            for r, row in enumerate(rows):
                for i, size in enumerate(row.sizes):
                    if size:
                        self.most_alone[k, r, i] = row.room / size
        self._arrays: dict[int, _UnitArrays] = {}
        self._num_units: Floats = np.zeros(len(options))
        self.num_groups: Floats = np.array([o.num_groups for o in options], dtype=np.float64)
        self.num_cards: Floats = np.array([o.num_cards for o in options], dtype=np.float64)
        self.pool: Ints = np.array([o.pool for o in options], dtype=np.int64)

    def promising(self, sessions: Floats, cards: Floats, share: float) -> tuple[Ints, Floats]:
        """Return the options whose instances may be worth more than (1 + share) times their cards.

        `sessions` [cohort] and `cards` [pool] are prices. The second array is about how many times
        the price of its cards an instance is worth at most; the largest come first.
        """
        bound = self._row_bounds(sessions).min(axis=1, initial=np.inf) * self.num_groups
        ratio = bound / np.maximum(cards[self.pool] * self.num_cards, 1e-200)
        found = np.flatnonzero(ratio > 1 + share)
        found = found[np.argsort(-ratio[found], kind="stable")]
        if not found.size:
            return found, ratio[found]
        worth = self.linear_bounds(found, sessions)[0] * self._num_units[found]
        closer = worth / np.maximum((cards[self.pool] * self.num_cards)[found], 1e-200)
        closer = np.minimum(closer, ratio[found])
        order = np.argsort(-closer, kind="stable")
        order = order[closer[order] > 1 + share]
        return found[order], closer[order]

    def tightest_rows(self, sessions: Floats) -> Ints:
        """Return the row of every option's groups that, alone, limits their value most, about."""
        bounds = self._row_bounds(sessions)
        if not bounds.shape[1]:
            return np.zeros(len(bounds), dtype=np.int64)
        return np.asarray(bounds.argmin(axis=1))

    def _row_bounds(self, sessions: Floats) -> Floats:
        """Return about the most that each row alone lets a group be worth: [option, row]."""
        priced = np.append(sessions, 0.0)[self.cohort]  # [option, cohort served]
        with np.errstate(invalid="ignore"):
            most = np.where(priced[:, None, :] > 0, self.most_alone * priced[:, None, :], 0.0)
        return np.asarray(most.max(axis=2, initial=0.0))

    def unit(self, option: int) -> OptionUnit:
        """Return the unit of an option."""
        return option_unit(self.problem, int(option))

    def _unit_arrays(self, option: int) -> _UnitArrays:
        if option not in self._arrays:
            unit = self.unit(option)
            limits = np.array(unit.limits, dtype=np.float64)
            rows = [[size / max(row.most, 1) for size in row.sizes] for row in unit.rows]
            shares = np.array(rows, dtype=np.float64).reshape(len(rows), len(limits)) * limits
            cohorts = np.array(unit.cohorts, dtype=np.int64)
            self._arrays[option] = _UnitArrays(cohorts, limits, shares)
            self._num_units[option] = unit.num_units
        return self._arrays[option]

    def linear_bounds(self, options: Ints, sessions: Floats) -> tuple[Floats, list[Floats]]:
        """Return about the most that a unit's fractional load is worth, and the prices of its rows.

        Rows are those of the units (`OptionUnit.rows`), prices are per whole row.
        """
        units = [self._unit_arrays(int(k)) for k in options]
        width = max(1, *(len(unit.cohorts) for unit in units))
        depth = max(len(unit.rows) for unit in units)
        values = np.zeros((len(units), width))
        # limits of cohorts are rows as well
        rows = np.zeros((len(units), depth + width, width))
        rows[:, depth:, :] = np.eye(width)
        for j, unit in enumerate(units):
            size = len(unit.cohorts)
            values[j, :size] = sessions[unit.cohorts] * unit.limits
            rows[j, : len(unit.rows), :size] = unit.rows
        _, prices = solve_many(values, rows, np.ones((len(units), depth + width)))
        kept = prices[:, :depth]
        left = np.maximum(values - np.einsum("jr,jrc->jc", kept, rows[:, :depth, :]), 0.0)
        bounds = kept.sum(axis=1) + left.sum(axis=1)
        return bounds, [kept[j, : len(unit.rows)] for j, unit in enumerate(units)]

    def priced(self, option: int, sessions: Sequence[int], max_nodes: int | None) -> PricedLoad:
        """Return a load of one unit that is worth most, exactly, and a bound."""
        unit = self.unit(option)
        return unit.priced(sessions, tolerance=TOLERANCE, max_nodes=max_nodes)


def is_bounded_alone(
    option: Option, able: Sequence[int], row: GroupRow, sessions: Sequence[int], card: int
) -> bool:
    """Whether a row alone shows that no instance is worth more than its cards, exactly.

    `able` are the cohorts that the option serves. Those sessions are worth most that have the
    largest value for their size.
    """
    room, most = option.num_groups * row.room, card * option.num_cards
    for c, size in zip(able, row.sizes, strict=True):
        value = sessions[c]
        if value and (not size or value * room > most * size):
            return False
    return True


def unit_bound(
    unit: OptionUnit, sessions: Sequence[int], row_prices: Sequence[float]
) -> tuple[int, int]:
    """Return (n, bits): n / 2^bits bounds the value of a unit's load, whatever the prices of rows.

    With prices y: value <= sum of y · row, and what counts up to their limits are worth beyond it.
    """
    bits = ROW_BITS + max((row.most.bit_length() for row in unit.rows), default=0)
    parts = [
        (int(math.ldexp(max(price, 0.0), ROW_BITS)) << (bits - ROW_BITS)) // row.most
        if row.most
        else 0
        for price, row in zip(row_prices, unit.rows, strict=True)
    ]
    bound = sum(part * row.most for part, row in zip(parts, unit.rows, strict=True))
    used = [(part, row.sizes) for part, row in zip(parts, unit.rows, strict=True) if part]
    for i, (c, limit) in enumerate(zip(unit.cohorts, unit.limits, strict=True)):
        left = sessions[c] << bits
        for part, sizes in used:
            left -= part * sizes[i]
        if left > 0:
            bound += limit * left
    return bound, bits
