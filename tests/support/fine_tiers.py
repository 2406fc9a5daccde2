"""Tiers of memory with numbers of nine digits, which programs must round."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from optimizer.tiers.problem import TierProblem


def with_fine_numbers(
    problem: TierProblem, rng: random.Random, growth: Callable[[], int] = lambda: 1
) -> TierProblem:
    """Return a problem with bytes and speeds made uneven; `growth` multiplies each capacity."""

    def fine(number: Fraction | int) -> int:
        return int(number * rng.randint(900_000_000, 1_100_000_000))

    tiers = [
        replace(
            tier,
            capacity_bytes=fine(tier.capacity_bytes) * growth(),
            bytes_per_s=Fraction(fine(tier.bytes_per_s)),
            write_bytes_per_s=Fraction(fine(tier.write_bytes_per_s)),
        )
        for tier in problem.tiers
    ]
    classes = [
        replace(
            data,
            bytes=fine(data.bytes),
            bytes_per_session=fine(data.bytes_per_session),
            read_bytes=Fraction(fine(data.read_bytes)),
            read_bytes_per_session=Fraction(fine(data.read_bytes_per_session)),
            lookup_bytes=fine(data.lookup_bytes),
            resume_bytes=fine(data.resume_bytes),
        )
        for data in problem.classes
    ]
    return replace(problem, tiers=tuple(tiers), classes=tuple(classes))
