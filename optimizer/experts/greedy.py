"""A good placement of experts without a solver: copy the hottest, place the longest first, and
then divide pairs of groups anew as evenly as their experts allow (6.3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from optimizer.experts.evaluation import Placement, evaluate_experts, expert_bound
from optimizer.experts.problem import ExpertProblem

#: Pairs are divided exactly up to this many steps of load, and in coarser steps beyond.
MAX_STEPS = 2**18
#: How many numbers of extra copies are worked out to the end.
MAX_DRAFTS = 6
#: How many experts are tried for the last extra copy.
NUM_RANKS = 3
#: Drafts count as equally promising if their values differ by less than one in so many: then
#: those with the fewest steps of load come first, because they are easier to level.
CLOSE = 50
#: How often a placement within one assignment of the bound is mixed and improved again.
MAX_MIXES = 1


@dataclass(frozen=True, slots=True)
class _Scale:
    """The problem in whole numbers: loads in 1/`steps` assignments, times in 1/`steps` units."""

    steps: int
    read: int
    compute: int
    transfer: int

    @classmethod
    def of(cls, problem: ExpertProblem, copies: list[int]) -> _Scale:
        steps = math.lcm(*copies)
        rates = problem.read_s, problem.compute_s, problem.transfer_s
        unit = math.lcm(*(rate.denominator for rate in rates))
        read, compute, transfer = (int(rate * unit) for rate in rates)
        return cls(steps, read * steps, compute, transfer)

    def time(self, num_active: int, load: int) -> int:
        return max(self.read * num_active, self.compute * load) + self.transfer * load


class _Draft:
    """A placement under construction: experts, load and active experts by group."""

    def __init__(self, problem: ExpertProblem, copies: list[int]) -> None:
        self.scale, self.copies = _Scale.of(problem, copies), copies
        self.share = [
            self.scale.steps * n // r for n, r in zip(problem.counts, copies, strict=True)
        ]
        num_groups = problem.num_groups
        self.on: list[set[int]] = [set() for _ in range(num_groups)]
        self.load, self.active = [0] * num_groups, [0] * num_groups
        self.slots = _slots(problem)
        if not problem.uneven:
            self.slots = [sum(copies) // num_groups] * num_groups

    def time(self, g: int) -> int:
        return self.scale.time(self.active[g], self.load[g])

    def value(self) -> Fraction:
        return Fraction(max(self.time(g) for g in range(len(self.on))), self.scale.steps)

    def placement(self) -> Placement:
        groups = range(len(self.on))
        return tuple(tuple(g for g in groups if e in self.on[g]) for e in range(len(self.copies)))

    def put(self, e: int, g: int) -> None:
        self.on[g].add(e)
        self.load[g] += self.share[e]
        self.active[g] += self.share[e] > 0

    def take(self, e: int, g: int) -> None:
        self.on[g].remove(e)
        self.load[g] -= self.share[e]
        self.active[g] -= self.share[e] > 0

    def fill(self) -> bool:
        """Place the longest first, copied ones before the others; False when one finds no room."""
        order = sorted(range(len(self.copies)), key=lambda e: (-self.copies[e], -self.share[e], e))
        for e in order:
            free = [g for g in range(len(self.on)) if len(self.on[g]) < self.slots[g]]
            if len(free) < self.copies[e]:
                return False
            share = self.share[e]
            free.sort(
                key=lambda g: (
                    self.scale.time(self.active[g] + (share > 0), self.load[g] + share),
                    g,
                )
            )
            for g in free[: self.copies[e]]:
                self.put(e, g)
        return True

    def improve(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Divide the busiest group anew with another one, for as long as that helps.

        Where no division helps the busiest group may pass its excess on to a group that has not
        had it yet: loads come in steps, and another pair may be able to level them.
        """
        passed: set[int] = set()
        while not is_over():
            groups = sorted(range(len(self.on)), key=lambda g: (self.time(g), g))
            busiest = groups.pop()
            if any(_Pair(self, busiest, other).divide() for other in groups):
                passed.clear()
                continue
            passed.add(busiest)
            fresh = [other for other in groups if other not in passed]
            if not any(_Pair(self, busiest, other).divide(is_pass=True) for other in fresh):
                return

    def mix(self, rng: Random) -> None:
        """Exchange experts between pairs of groups without changing any load."""
        groups = list(range(len(self.on)))
        rng.shuffle(groups)
        for g, h in zip(groups[::2], groups[1::2], strict=False):
            _Pair(self, g, h, rng).mix()


class _Pair:
    """Two groups of a draft, and what the experts that stand on one of them can weigh.

    Experts on both groups, and those without work, stay where they are.
    """

    def __init__(self, draft: _Draft, g: int, h: int, rng: Random | None = None) -> None:
        self.draft, self.g, self.h = draft, g, h
        share = draft.share
        self.loose = sorted(e for e in draft.on[g] ^ draft.on[h] if share[e])
        if rng is not None:
            rng.shuffle(self.loose)
        both = draft.on[g] & draft.on[h]
        self.fixed_active = sum(share[e] > 0 for e in both)
        self.fixed_load = sum(share[e] for e in both)
        self.total = sum(share[e] for e in self.loose)
        self.coarse = 1 + self.total // MAX_STEPS
        self.sums = [[1]]  # sums[i][k]: bit s is set if k of the first i experts can weigh s
        for e in self.loose:
            last, weight = self.sums[-1], share[e] // self.coarse
            kept, added = [*last, 0], [0, *(bits << weight for bits in last)]
            self.sums.append([a | b for a, b in zip(kept, added, strict=True)])

    def times(self, num_mine: int, mine: int) -> tuple[int, int]:
        """Return the times of both groups if g takes so many experts with so much load."""
        time = self.draft.scale.time
        num_rest, rest = len(self.loose) - num_mine, self.total - mine
        return (
            time(self.fixed_active + num_mine, self.fixed_load + mine),
            time(self.fixed_active + num_rest, self.fixed_load + rest),
        )

    def divide(self, is_pass: bool = False) -> bool:
        """Make the larger time as small as it can be; False if it does not fall.

        A pass keeps the larger time, but no longer on g.
        """
        old = max(self.draft.time(self.g), self.draft.time(self.h))
        best: tuple[int, int] | None = None
        chosen: set[int] = set()
        for k, weight in self._divisions():
            picked = self._pick(k, weight)
            mine, rest = self.times(k, sum(self.draft.share[e] for e in picked))
            is_better = max(mine, rest) < old or (is_pass and mine < rest == old)
            if is_better and (best is None or (max(mine, rest), mine) < best):
                best, chosen = (max(mine, rest), mine), picked
        if best is None:
            return False
        self._give(chosen)
        return True

    def mix(self) -> None:
        """Divide as before by number and weight, but perhaps not by experts."""
        mine = [e for e in self.loose if e in self.draft.on[self.g]]
        picked = self._pick(len(mine), sum(self.draft.share[e] // self.coarse for e in mine))
        self._give(picked)

    def _divisions(self) -> Iterator[tuple[int, int]]:
        """Yield (experts, weight) for group g next to where both groups take equally long."""
        on, slots = self.draft.on, self.draft.slots
        staying = [len(on[x].difference(self.loose)) for x in (self.g, self.h)]
        least = max(0, len(self.loose) + staying[1] - slots[self.h])
        most = min(len(self.loose), slots[self.g] - staying[0])
        for k in range(least, most + 1):
            low, high = 0, self.total // self.coarse
            while low < high:
                middle = (low + high) // 2
                mine, rest = self.times(k, middle * self.coarse)
                low, high = (low, middle) if mine >= rest else (middle + 1, high)
            above = self.sums[-1][k] >> low
            below = self.sums[-1][k] & ((1 << low) - 1)
            if above:
                yield k, low + (above & -above).bit_length() - 1
            if below:
                yield k, below.bit_length() - 1

    def _pick(self, k: int, weight: int) -> set[int]:
        """Return k experts of a given weight, which exist."""
        picked: set[int] = set()
        for i in reversed(range(len(self.loose))):
            if k < len(self.sums[i]) and self.sums[i][k] >> weight & 1:
                continue
            e = self.loose[i]
            picked.add(e)
            k, weight = k - 1, weight - self.draft.share[e] // self.coarse
        return picked

    def _give(self, picked: set[int]) -> None:
        """Let g hold the picked ones of the loose experts and h the rest."""
        draft = self.draft
        for e in self.loose:
            draft.take(e, self.g if e in draft.on[self.g] else self.h)
            draft.put(e, self.g if e in picked else self.h)


def _copy_some(
    problem: ExpertProblem, num_extra: int, most: int, rank: int, num_cold: int
) -> list[int] | None:
    """Give each extra copy to the expert with the largest share; None if they cannot be given.

    Only the last one goes to the expert at a rank behind that: a share more or less in halves
    decides whether loads can be level. And some go to the coldest instead: they fill up groups that
    need more experts but no more load.
    """
    copies = [1] * len(problem.counts)
    for i in range(num_extra):
        free = [e for e in range(len(copies)) if copies[e] < most]
        free.sort(key=lambda e: (-Fraction(problem.counts[e], copies[e]), e))
        place = rank if i == num_extra - num_cold - 1 else 0
        if place >= len(free):
            return None
        copies[free[place if i < num_extra - num_cold else -1]] += 1
    return copies


def _slots(problem: ExpertProblem) -> list[int]:
    """Experts that fit on a card of each group."""
    return [size // problem.expert_bytes for size in problem.capacity_bytes]


def _drafts(problem: ExpertProblem) -> Iterator[tuple[int, _Draft]]:
    """Yield a rank and a filled draft for each way to give extra copies that has room."""
    num_experts, num_groups = len(problem.counts), problem.num_groups
    slots = _slots(problem)
    room = sum(slots) if problem.uneven else num_groups * min(slots)
    most_extra = min(room - num_experts, problem.replica_budget_bytes // problem.expert_bytes)
    most_copies = min(problem.max_copies, num_groups)
    for num_extra in range(most_extra + 1):
        if not problem.uneven and (num_experts + num_extra) % num_groups:
            continue
        tried: list[list[int]] = []
        for most in range(1, most_copies + 1):
            kinds = [(rank, 0) for rank in range(NUM_RANKS)]
            if not problem.uneven and num_extra >= most:
                kinds.append((0, num_extra - most + 1))
            for rank, num_cold in kinds:
                copies = _copy_some(problem, num_extra, most, rank, num_cold)
                if copies is None or copies in tried:
                    continue
                tried.append(copies)
                draft = _Draft(problem, copies)
                if draft.fill():
                    yield rank, draft


def greedy_placement(
    problem: ExpertProblem, is_over: Callable[[], bool] = lambda: False
) -> Placement | None:
    """Return a legal placement, good but not proven best; None if this way finds none.

    Once `is_over` the best one so far is returned.

    Longest processing time first with the hottest experts copied, for every number of extra copies;
    the most promising are then improved by dividing pairs of groups anew.
    """
    bound = expert_bound(problem)
    near = bound + problem.compute_s + problem.transfer_s
    best: tuple[Fraction, Placement] | None = None
    for draft in _promising(list(_drafts(problem))):
        rng = Random(0)
        for _ in range(1 + MAX_MIXES):
            draft.improve(is_over)
            placement = draft.placement()
            value = evaluate_experts(problem, placement).value_s
            if best is None or value < best[0]:
                best = value, placement
            if value == bound:
                return placement
            if is_over():
                return best[1]
            if value > near:
                break
            draft.mix(rng)
    return None if best is None else best[1]


def _promising(drafts: list[tuple[int, _Draft]]) -> list[_Draft]:
    """Return the best drafts, of equally promising ones those with the simplest loads first."""
    if not drafts:
        return []
    close = min(draft.value() for _, draft in drafts) / CLOSE

    def order(ranked: tuple[int, _Draft]) -> tuple[int, int, int]:
        rank, draft = ranked
        return int(draft.value() // close) if close else 0, draft.scale.steps, rank

    return [draft for _, draft in sorted(drafts, key=order)[:MAX_DRAFTS]]
