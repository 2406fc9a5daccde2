"""Which sessions fit on time on the options of a problem, and how they are dealt to groups.

Instances of an option have units (`load_units.py`) that are loaded independently of each other:
lanes, or groups of lanes that share their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.capacity.load_units import OptionUnit, PricedLoad, UnitLoad
from optimizer.capacity.plan import GroupLoad, LaneLoad
from optimizer.capacity.problem import CapacityProblem

__all__ = [
    "OptionUnit",
    "PricedLoad",
    "UnitLoad",
    "UnitLoads",
    "best_unit_load",
    "dealt_loads",
    "option_unit",
    "unit_loads",
]


@dataclass(frozen=True, slots=True)
class UnitLoads:
    """The largest loads of a unit of an option; a serving instance has `num_units` units."""

    option: int
    num_units: int
    loads: tuple[UnitLoad, ...]


def option_unit(problem: CapacityProblem, option: int) -> OptionUnit:
    """Return the unit of an option, which is kept with the problem."""
    # as functools.cached_property does it: the problem is read-only, and so is what follows from it
    units: dict[int, OptionUnit] = vars(problem).setdefault("_option_units", {})
    if option not in units:
        units[option] = OptionUnit(problem, problem.options[option])
    return units[option]


def unit_loads(problem: CapacityProblem, option: int, max_loads: int) -> UnitLoads:
    """List the largest loads of a unit: those to which no session can be added.

    No cohort has more sessions than there are. Raises TooLargeError for more than `max_loads`.
    """
    unit = option_unit(problem, option)
    loads = tuple(unit.load(counts) for counts in unit.maximal(max_loads))
    return UnitLoads(option, unit.num_units, loads)


def best_unit_load(
    problem: CapacityProblem, option: int, prices: Sequence[int | Fraction]
) -> tuple[Fraction, UnitLoad]:
    """Return the largest value of a unit's load, and a load that has it.

    `prices` holds what a session of each cohort is worth, none negative.
    """
    best = option_unit(problem, option).priced(prices)
    return best.value, best.load


def dealt_loads(
    problem: CapacityProblem,
    chosen: Iterable[tuple[int, UnitLoad, int]],
    sessions: Sequence[int],
) -> tuple[GroupLoad, ...]:
    """Deal `sessions[c]` sessions of every cohort to loaded units: (option, load, units).

    What units could take beyond that is left out, last units first, and so are empty lanes. Raises
    ValueError where the units take too few.
    """
    units: list[_Unit] = [(option, count, load.lanes) for option, load, count in chosen if count]
    for c, wanted in enumerate(sessions):
        beyond = sum(count * _held(lanes, c) for _, count, lanes in units) - wanted
        if beyond < 0:
            raise ValueError(f"{-beyond} sessions of cohort {c} have no unit to serve them")
        if beyond:
            units = _without(units, c, beyond)
    loads: dict[tuple[int, tuple[LaneLoad, ...]], int] = {}
    for option in sorted({option for option, _, _ in units}):
        mine = [(count, lanes) for owner, count, lanes in units if owner == option and lanes]
        unit = option_unit(problem, option)
        for count, lanes in _in_groups(mine, unit.option.num_lanes) if unit.is_lane else mine:
            loads[option, lanes] = loads.get((option, lanes), 0) + count
    return tuple(GroupLoad(option, count, lanes) for (option, lanes), count in loads.items())


#: Option, number of units, lanes of each.
_Unit = tuple[int, int, tuple[LaneLoad, ...]]


def _held(lanes: Sequence[LaneLoad], cohort: int) -> int:
    """Sessions of a cohort on lanes."""
    return sum(lane.count * sum(n for c, n in lane.runs if c == cohort) for lane in lanes)


def _without(units: Sequence[_Unit], cohort: int, beyond: int) -> list[_Unit]:
    """Return units, in order, with so many sessions of a cohort fewer, taken from the last ones."""
    found: list[_Unit] = []
    for option, count, lanes in reversed(units):
        parts: list[_Unit] = []
        for number, taken in _parted(count, _held(lanes, cohort), beyond):
            kept = tuple(_reduced(lanes, cohort, taken)) if taken else lanes
            parts.append((option, number, kept))
            beyond -= number * taken
        found = parts + found
    return found


def _parted(count: int, each: int, beyond: int) -> list[tuple[int, int]]:
    """Return (number, sessions taken from each) of `count` alike that hold `each`.

    As many as are needed for `beyond` are emptied, at most one loses some; those that lose none
    come first.
    """
    emptied = min(count, beyond // each) if each else 0
    rest = beyond - emptied * each
    reduced = 1 if each and rest and emptied < count else 0
    parts = ((count - emptied - reduced, 0), (reduced, rest), (emptied, each))
    return [(number, taken) for number, taken in parts if number]


def _reduced(lanes: Sequence[LaneLoad], cohort: int, beyond: int) -> Iterator[LaneLoad]:
    """Yield lanes with so many sessions of a cohort fewer; empty lanes are left out."""
    for lane in lanes:
        each = sum(n for c, n in lane.runs if c == cohort)
        for number, taken in _parted(lane.count, each, beyond):
            runs = _fewer(lane.runs, cohort, taken)
            if runs:
                yield LaneLoad(number, runs)
            beyond -= number * taken


def _fewer(
    runs: Sequence[tuple[int, int]], cohort: int, beyond: int
) -> tuple[tuple[int, int], ...]:
    """Leave out sessions of a cohort; those that stay end no later."""
    kept = []
    for c, number in runs:
        taken = min(number, beyond) if c == cohort else 0
        beyond -= taken
        if number > taken:
            kept.append((c, number - taken))
    return tuple(kept)


def _in_groups(
    units: Sequence[tuple[int, tuple[LaneLoad, ...]]], num_lanes: int
) -> Iterator[tuple[int, tuple[LaneLoad, ...]]]:
    """Yield (number, lanes) of groups that hold single lanes, one after another."""
    started: list[LaneLoad] = []
    room = num_lanes
    for count, (lane,) in units:  # a unit is one lane
        runs = lane.runs
        here = min(count, room) if started else 0
        if here:
            started.append(LaneLoad(here, runs))
            room, count = room - here, count - here
            if not room:
                yield 1, tuple(started)
                started, room = [], num_lanes
        if count >= num_lanes:
            yield count // num_lanes, (LaneLoad(num_lanes, runs),)
            count %= num_lanes
        if count:
            started, room = [LaneLoad(count, runs)], num_lanes - count
    if started:
        yield 1, tuple(started)
