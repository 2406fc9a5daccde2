"""Mixes of accelerators without a solver: brute force, one kind alone, and local improvement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from random import Random

from optimizer.errors import TooLargeError
from optimizer.mix.evaluation import evaluate_mix, mix_bound
from optimizer.mix.problem import Mix, MixProblem

#: How often `improved_mix` starts anew at most.
MAX_ROUNDS = 20

#: Pieces of every bucket on every kind, being changed.
Pieces = list[list[int]]

#: Moves count loads in whole numbers, which are much faster than fractions: exactly while a card is
#: no more units than this, else in so many that are rounded up.
MAX_CARD_UNITS, ROUNDED_CARD_UNITS = 2**200, 2**40

#: Accelerators that may not be had, price an hour, price of the load: less is better, in order.
#: Prices are in units of `_Search`.
Cost = tuple[int, int, int]


def counted(problem: MixProblem, pieces: Sequence[Sequence[int]]) -> Mix:
    """Return the mix that serves given pieces with no more accelerators than they need."""
    loads = _loads(problem, pieces)
    return Mix(tuple(math.ceil(load) for load in loads), tuple(tuple(row) for row in pieces))


def _loads(problem: MixProblem, pieces: Sequence[Sequence[int]]) -> list[Fraction]:
    return [
        sum(
            (row[g] * problem.piece_load(b, g) for b, row in enumerate(pieces) if row[g]),
            Fraction(0),
        )
        for g in range(len(problem.kinds))
    ]


def best_mix_exhaustively(problem: MixProblem, max_steps: int = 1_000_000) -> Mix | None:
    """Return a mix of least price, by trying every split of every bucket; None where none is legal.

    Left out is only what is already too dear, or needs more accelerators than may be had. Raises
    TooLargeError when more than `max_steps` splits of a bucket would be tried.
    """
    num_kinds = len(problem.kinds)
    best: tuple[Fraction, tuple[tuple[int, ...], ...]] | None = None
    chosen: list[tuple[int, ...]] = []
    steps = 0

    def visit(loads: tuple[Fraction, ...]) -> None:
        nonlocal best, steps
        counts = [math.ceil(load) for load in loads]
        for count, kind in zip(counts, problem.kinds, strict=True):
            if kind.max_count is not None and count > kind.max_count:
                return
        price = sum(
            (n * kind.price_per_hour for n, kind in zip(counts, problem.kinds, strict=True)),
            Fraction(0),
        )
        if best is not None and price >= best[0]:
            return
        b = len(chosen)
        if b == len(problem.buckets):
            best = price, tuple(chosen)
            return
        able = [problem.can_serve(b, g) for g in range(num_kinds)]
        for row in _splits(problem.pieces_per_bucket, able):
            steps += 1
            if steps > max_steps:
                raise TooLargeError(f"more than {max_steps} splits of buckets to try")
            chosen.append(row)
            visit(
                tuple(
                    load + n * problem.piece_load(b, g) if n else load
                    for g, (load, n) in enumerate(zip(loads, row, strict=True))
                )
            )
            chosen.pop()

    visit((Fraction(0),) * num_kinds)
    return None if best is None else counted(problem, best[1])


def _splits(num: int, able: Sequence[bool]) -> Iterator[tuple[int, ...]]:
    """Yield every way to give `num` pieces to kinds, none to those that are not able."""
    if len(able) == 1:
        if able[0] or not num:
            yield (num,)
        return
    for first in range(num, -1, -1) if able[0] else (0,):
        for rest in _splits(num - first, able[1:]):
            yield (first, *rest)


def mixes_of_one_kind(problem: MixProblem) -> list[Mix]:
    """Return the legal mixes of one kind of accelerator alone, the cheapest first."""
    found = []
    for g in range(len(problem.kinds)):
        if all(problem.can_serve(b, g) for b in range(len(problem.buckets))):
            row = [0] * len(problem.kinds)
            row[g] = problem.pieces_per_bucket
            mix = counted(problem, [row] * len(problem.buckets))
            found.append((evaluate_mix(problem, mix), mix))
    legal = [(judged.price_per_hour, mix) for judged, mix in found if judged.is_feasible]
    return [mix for _, mix in sorted(legal, key=lambda pair: pair[0])]


def cheapest_by_request(problem: MixProblem) -> Mix | None:
    """Give every bucket to the kind with the least price a request.

    It may need more accelerators than may be had. None where a bucket cannot be served.
    """
    pieces = []
    for b in range(len(problem.buckets)):
        able = [g for g in range(len(problem.kinds)) if problem.can_serve(b, g)]
        if not able:
            return None
        best = min(able, key=lambda g: problem.kinds[g].price_per_hour * problem.piece_load(b, g))
        row = [0] * len(problem.kinds)
        row[best] = problem.pieces_per_bucket
        pieces.append(row)
    return counted(problem, pieces)


def first_mix(problem: MixProblem) -> Mix | None:
    """Return the cheapest legal mix of one kind, else every bucket by its least price a request."""
    alone = mixes_of_one_kind(problem)
    return alone[0] if alone else cheapest_by_request(problem)


def improved_mix(problem: MixProblem, is_over: Callable[[], bool] = lambda: False) -> Mix | None:
    """Move pieces between kinds while that helps; then shake some and move again.

    Returns the best found when it meets `mix_bound`, after `MAX_ROUNDS`, or once `is_over`. It may
    need more accelerators than may be had. None where a bucket cannot be served.
    """
    best, bound, rng = first_mix(problem), mix_bound(problem), Random(0)
    by_request = cheapest_by_request(problem)
    if best is None or by_request is None:
        return None
    search = _Search(problem, is_over)
    enough = None if bound is None else bound * search.price_scale
    least = search.cost(search.loads_of(best.pieces))
    for number in range(MAX_ROUNDS):
        if is_over() or (least[0] == 0 and least[1] == enough):
            break
        start = [by_request, best][number] if number < 2 else best
        pieces = [list(row) for row in start.pieces]
        if number > 1:
            search.shake(pieces, rng)
        search.descend(pieces)
        cost = search.cost(search.loads_of(pieces))
        if cost < least:
            best, least = counted(problem, pieces), cost
    return best


class _Search:
    """Moves of pieces of a bucket from one kind to another."""

    def __init__(self, problem: MixProblem, is_over: Callable[[], bool]) -> None:
        self.problem, self.is_over = problem, is_over
        self.able = [
            [g for g in range(len(problem.kinds)) if problem.can_serve(b, g)]
            for b in range(len(problem.buckets))
        ]
        exact = [{g: problem.piece_load(b, g) for g in able} for b, able in enumerate(self.able)]
        units = math.lcm(*(load.denominator for loads in exact for load in loads.values()))
        self.card_units = units if units <= MAX_CARD_UNITS else ROUNDED_CARD_UNITS
        self.piece_loads = [
            {g: math.ceil(load * self.card_units) for g, load in loads.items()} for loads in exact
        ]
        prices = [kind.price_per_hour for kind in problem.kinds]
        self.price_scale = math.lcm(*(price.denominator for price in prices))
        self.prices = [int(price * self.price_scale) for price in prices]

    def loads_of(self, pieces: Sequence[Sequence[int]]) -> list[int]:
        """Return the load of every kind."""
        return [
            sum(row[g] * self.piece_loads[b][g] for b, row in enumerate(pieces) if row[g])
            for g in range(len(self.prices))
        ]

    def cost(self, loads: Sequence[int], only: Sequence[int] | None = None) -> Cost:
        """Return what loads cost, of some kinds or of all."""
        over = price = busy = 0
        for g in range(len(loads)) if only is None else only:
            count, most = -(-loads[g] // self.card_units), self.problem.kinds[g].max_count
            if most is not None:
                over += max(count - most, 0)
            price += count * self.prices[g]
            busy += loads[g] * self.prices[g]
        return over, price, busy

    def descend(self, pieces: Pieces) -> None:
        """Make every move that lowers the cost, until none does."""
        loads, is_better = self.loads_of(pieces), True
        while is_better:
            is_better = False
            for b, row in enumerate(pieces):
                if self.is_over():
                    return
                for g in self.able[b]:
                    for h in self.able[b]:
                        if g != h and row[g]:
                            is_better |= self._move(row, loads, b, (g, h))

    def _move(self, row: list[int], loads: list[int], b: int, pair: tuple[int, int]) -> bool:
        """Move the pieces from one kind to another that lower the cost most; tell if any do."""
        (g, h), before = pair, (loads[pair[0]], loads[pair[1]])
        least, best = self.cost(loads, pair), 0
        for num in range(1, row[g] + 1):
            loads[g] = before[0] - num * self.piece_loads[b][g]
            loads[h] = before[1] + num * self.piece_loads[b][h]
            cost = self.cost(loads, pair)
            if cost < least:
                least, best = cost, num
        loads[g] = before[0] - best * self.piece_loads[b][g]
        loads[h] = before[1] + best * self.piece_loads[b][h]
        row[g] -= best
        row[h] += best
        return best > 0

    def shake(self, pieces: Pieces, rng: Random) -> None:
        """Deal some buckets anew, each wholly to one kind."""
        for b in rng.sample(range(len(pieces)), min(len(pieces), rng.randint(1, 3))):
            row = [0] * len(self.problem.kinds)
            row[rng.choice(self.able[b])] = self.problem.pieces_per_bucket
            pieces[b] = row
