"""Sets and parameters of the placement of ranks on cards, and its symmetries; see placement.md."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from formulations.placement_levels import Level, load_weight, phase_levels
from optimizer.errors import TooLargeError
from optimizer.placement.problem import Phase, PlacementProblem

#: Most ticks that all levels take together. CP-SAT counts in whole numbers; for the others
#: tolerances times such weights stay below one tick.
MAX_TICKS = {"cp-sat": 2**30, "highs": 200_000, "cbc": 200_000}

#: So many exchanges of ranks are looked at for symmetries.
MAX_EXCHANGES = 3000

#: Larger programs are declined.
MAX_VARIABLES = 40_000


@dataclass(frozen=True, slots=True)
class PlacementData:
    """Domains that matter, groups, and the levels of every phase, fastest first.

    `domains` are numbers of the problem's domains. `usable` are the levels that may still be best;
    `levels` are all of them.
    """

    problem: PlacementProblem
    domains: tuple[int, ...]
    groups: tuple[frozenset[int], ...]
    levels: tuple[tuple[Level, ...], ...]
    usable: tuple[tuple[Level, ...], ...]

    def room(self, d: int) -> int:
        """Free cards of a domain, as far as ranks could fill them."""
        return min(len(self.problem.free_cards[d]), self.problem.num_ranks)

    def seconds(self, k: int, level: Level) -> Fraction:
        """Time of a phase in a step at one of its levels."""
        return self.problem.phases[k].times * level.time_s

    @property
    def floor_s(self) -> Fraction:
        """Time of a step with every phase at its fastest level."""
        return sum((self.seconds(k, u[0]) for k, u in enumerate(self.usable)), Fraction(0))


def build_data(problem: PlacementProblem) -> PlacementData:
    """Collect sets and parameters; raises TooLargeError."""
    ranks, kept, seen = problem.num_ranks, [], Counter[int]()
    for d, room in enumerate(problem.room):
        seen[room] += 1
        if room and seen[room] <= ranks:
            kept.append(d)
    groups = dict.fromkeys(frozenset(g) for phase in problem.phases for g in phase.groups)
    rooms = [len(problem.free_cards[d]) for d in kept]
    count = len(kept) * (ranks + sum(min(len(g), max(rooms)) for g in groups))
    if count > MAX_VARIABLES:
        raise TooLargeError(f"about {count} variables; the formulation takes {MAX_VARIABLES}")
    levels = tuple(tuple(phase_levels(problem, phase, rooms)) for phase in problem.phases)
    return PlacementData(problem, tuple(kept), tuple(groups), levels, levels)


def disjoint_groups(groups: Sequence[frozenset[int]]) -> list[list[frozenset[int]]]:
    """Return groups of equal size in families of which no two share a rank."""
    families: list[tuple[list[frozenset[int]], set[int]]] = []
    for group in groups:
        for members, taken in families:
            if len(members[0]) == len(group) and taken.isdisjoint(group):
                members.append(group)
                taken |= group
                break
        else:
            families.append(([group], set(group)))
    return [members for members, _ in families]


def without_slow_levels(data: PlacementData, value_s: Fraction) -> PlacementData:
    """Leave out levels with which a step takes longer than a placement that is at hand."""
    spare = value_s - data.floor_s
    usable = tuple(
        tuple(u for u in levels if data.seconds(k, u) - data.seconds(k, levels[0]) <= spare)
        for k, levels in enumerate(data.usable)
    )
    return replace(data, usable=usable)


def levels_of(data: PlacementData, domains: Sequence[int]) -> tuple[Level, ...] | None:
    """Return the fastest level of every phase that admits a placement; None where one has none."""
    found = []
    for phase, levels in zip(data.problem.phases, data.levels, strict=True):
        counts = [Counter(domains[rank] for rank in group) for group in phase.groups]
        sizes = {size for count in counts for size in count.values()}
        load = _load(phase, counts, domains)
        fitting = (u for u in levels if sizes <= u.sizes and load <= u.most_load)
        level = next(fitting, None)
        if level is None:
            return None
        found.append(level)
    return tuple(found)


def _load(phase: Phase, counts: list[Counter[int]], domains: Sequence[int]) -> int:
    """Return the largest load of one domain's exit."""
    if phase.operation == "send":
        leaving = [(domains[a], domains[b]) for a, b in phase.groups if domains[a] != domains[b]]
        sides = [Counter(a for a, _ in leaving), Counter(b for _, b in leaving)]
        return max((n for side in sides for n in side.values()), default=0)
    total = Counter[int]()
    for count in counts:
        for domain, size in count.items():
            total[domain] += load_weight(phase, size)
    return max(total.values())


def step_s(data: PlacementData, levels: Sequence[Level]) -> Fraction:
    """Return the time of a step with every phase at a level."""
    return sum((data.seconds(k, level) for k, level in enumerate(levels)), Fraction(0))


@dataclass(frozen=True, slots=True)
class Ticks:
    """Times above those of the fastest levels, in whole ticks of `unit_s`, rounded down."""

    unit_s: Fraction
    is_exact: bool
    of: tuple[tuple[int, ...], ...]  # by phase and usable level


def ticks_of(data: PlacementData, max_ticks: int) -> Ticks:
    """Return the times of levels in ticks: exact ones where they stay small, else rounded down."""
    above = [
        [data.seconds(k, level) - data.seconds(k, levels[0]) for level in levels]
        for k, levels in enumerate(data.usable)
    ]
    total = sum((s for times in above for s in times), Fraction(0))
    if not total:
        return Ticks(Fraction(1), True, tuple((0,) * len(times) for times in above))
    unit = _common_unit([s for times in above for s in times])
    is_exact = total / unit <= max_ticks
    if not is_exact:
        unit = total / max_ticks
    return Ticks(unit, is_exact, tuple(tuple(int(s / unit) for s in times) for times in above))


def _common_unit(times: Sequence[Fraction]) -> Fraction:
    """Return the largest time of which all are whole multiples."""
    scale = math.lcm(*(s.denominator for s in times))
    return Fraction(math.gcd(*(int(s * scale) for s in times)), scale)


def alike_ranks(problem: PlacementProblem) -> Iterator[tuple[int, int]]:
    """Yield pairs a < b of ranks such that an exchange of ranks takes a to b, moves no rank below a

    and turns the groups of every phase into groups of that phase. Not all of them are found.
    """
    found = set[tuple[int, int]]()
    images = [set(_images(phase, range(problem.num_ranks))) for phase in problem.phases]
    for starts, size in itertools.islice(_exchanges(problem.num_ranks), MAX_EXCHANGES):
        pair = starts[0], starts[0] + size
        if pair in found:
            continue
        moved = _moved(problem.num_ranks, starts, size)
        phases = zip(problem.phases, images, strict=True)
        if all(set(_images(phase, moved)) == image for phase, image in phases):
            found.add(pair)
            yield pair


def _exchanges(ranks: int) -> Iterator[tuple[list[int], int]]:
    """Yield where blocks begin that change places with the next one, and their ranks.

    Blocks lie in larger ones; they change places in one of these, or in all.
    """
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for outer, inner in itertools.product(reversed(divisors), divisors):
        if outer % inner or outer == inner:
            continue
        for place in range(0, outer - inner, inner):
            starts = list(range(place, ranks, outer))
            yield starts, inner
            if len(starts) > 1:
                yield from (([start], inner) for start in starts)


def _images(phase: Phase, moved: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the groups of a phase once its ranks are moved; only a "send" has an order in them."""
    for group in phase.groups:
        image = tuple(moved[rank] for rank in group)
        yield image if phase.operation == "send" else tuple(sorted(image))


def _moved(ranks: int, starts: Sequence[int], size: int) -> list[int]:
    """Return where ranks go if at every start a block of `size` changes places with the next."""
    moved = list(range(ranks))
    for start in starts:
        for rank in range(start, start + size):
            moved[rank], moved[rank + size] = rank + size, rank
    return moved
