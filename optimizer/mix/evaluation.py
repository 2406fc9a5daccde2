"""Exact account of a mix of accelerators: loads, price, broken rules, and a bound on the price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optimizer.evaluation import Violation
from optimizer.mix.problem import Mix, MixProblem

#: Sums of prices are listed up to this many units of price, for the bound.
MAX_SUM = 1_000_000


@dataclass(frozen=True, slots=True)
class MixEvaluation:
    """Account of a mix: the load of every kind, in accelerators kept busy, and the price an hour.

    Pieces that their kind cannot serve, and numbers below 0, are violations and take no part.
    """

    loads: tuple[Fraction, ...]
    price_per_hour: Fraction
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


def evaluate_mix(problem: MixProblem, mix: Mix) -> MixEvaluation:
    """Account for a mix and name every rule it breaks; never raises for a bad one."""
    broken = [*_check_lengths(problem, mix), *_check_pieces(problem, mix)]
    loads = [Fraction(0)] * len(problem.kinds)
    for b, row in enumerate(mix.pieces[: len(problem.buckets)]):
        for g, num in enumerate(row[: len(problem.kinds)]):
            if num > 0 and problem.can_serve(b, g):
                loads[g] += num * problem.piece_load(b, g)
    counts = (*mix.counts, *(0,) * len(problem.kinds))
    price = Fraction(0)
    for kind, load, count in zip(problem.kinds, loads, counts, strict=False):
        broken += _check_count(kind.name, kind.max_count, count, load)
        price += max(count, 0) * kind.price_per_hour
    return MixEvaluation(tuple(loads), price, tuple(broken))


def _check_lengths(problem: MixProblem, mix: Mix) -> Iterator[Violation]:
    """There is a count for each kind, and a row of pieces for each bucket."""
    off = abs(len(mix.counts) - len(problem.kinds))
    if off:
        message = f"{len(mix.counts)} counts for {len(problem.kinds)} kinds of accelerators"
        yield Violation("kind_count", "mix", off, "kinds", message)
    off = abs(len(mix.pieces) - len(problem.buckets))
    if off:
        message = f"pieces of {len(mix.pieces)} buckets for {len(problem.buckets)}"
        yield Violation("bucket_count", "mix", off, "buckets", message)


def _check_pieces(problem: MixProblem, mix: Mix) -> Iterator[Violation]:
    """Every bucket is served wholly, by kinds that can serve it."""
    for b, (bucket, row) in enumerate(zip(problem.buckets, mix.pieces, strict=False)):
        where = f"bucket {bucket.name}"
        off = abs(len(row) - len(problem.kinds))
        if off:
            message = f"{where} has {len(row)} numbers of pieces for {len(problem.kinds)} kinds"
            yield Violation("kind_count", where, off, "kinds", message)
        for g, (kind, num) in enumerate(zip(problem.kinds, row, strict=False)):
            if num < 0:
                message = f"{where} gives {num} pieces to {kind.name}"
                yield Violation("negative", where, -num, "pieces", message)
            elif num and not problem.can_serve(b, g):
                message = f"{where} gives {num} pieces to {kind.name}, which cannot serve it"
                yield Violation("cannot_serve", where, num, "pieces", message)
        off = abs(sum(row) - problem.pieces_per_bucket)
        if off:
            message = f"{where} has {sum(row)} pieces, not {problem.pieces_per_bucket}"
            yield Violation("bucket", where, off, "pieces", message)


def _check_count(
    name: str, max_count: int | None, count: int, load: Fraction
) -> Iterator[Violation]:
    """There are enough accelerators of a kind, and no more than may be had."""
    where = f"accelerator {name}"
    if count < 0:
        yield Violation("negative", where, -count, "cards", f"{where} is counted {count} times")
    if load > count:
        short = math.ceil(load) - max(count, 0)
        message = f"{count} of {name} for a load of {float(load):.6g}: {short} more are needed"
        yield Violation("short", where, short, "cards", message)
    if max_count is not None and count > max_count:
        message = f"{count} of {name}, of which {max_count} may be had"
        yield Violation("max_count", where, count - max_count, "cards", message)


def mix_bound(problem: MixProblem) -> Fraction | None:
    """Return a price that no mix is below, without a search; None where a bucket cannot be served.

    An accelerator costs its price at least for the share that it is busy. So a piece costs at least
    price times load on the kind where that is least. All prices are whole numbers of one unit, and
    the sum of all pieces is rounded up to what some accelerators can cost together.
    """
    least = Fraction(0)
    for b in range(len(problem.buckets)):
        costs = [
            kind.price_per_hour * problem.piece_load(b, g)
            for g, kind in enumerate(problem.kinds)
            if problem.can_serve(b, g)
        ]
        if not costs:
            return None
        least += problem.pieces_per_bucket * min(costs)
    prices = [kind.price_per_hour for kind in problem.kinds if kind.price_per_hour]
    if not least:
        return least
    scale = math.lcm(*(price.denominator for price in prices))
    whole = [int(price * scale) for price in prices]
    unit = math.gcd(*whole)
    units = _least_sum([price // unit for price in whole], math.ceil(least * scale / unit))
    return Fraction(units * unit, scale)


def _least_sum(sizes: Sequence[int], least: int) -> int:
    """Return the smallest sum of sizes, each as often as wanted, that is `least` or more."""
    limit = least + max(sizes)
    if limit > MAX_SUM:
        return least
    sums = 1  # bit n: some of them add up to n
    for size in set(sizes):
        shift = size
        while shift <= limit:
            sums |= (sums << shift) & ((1 << (limit + 1)) - 1)
            shift *= 2
    rest = sums >> least
    return least + (rest & -rest).bit_length() - 1
