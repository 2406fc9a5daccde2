"""The time of a round and the bandwidth that explain measured times best (6-9).

The model is T = rounds·alpha + factor·M/B, a straight line over the size. Least squares of the
relative error fits it: sizes span nine powers of ten, so that absolute errors would listen to the
largest sizes alone, and the median slope of all pairs (Theil-Sen) to the noise among small sizes,
where most pairs lie. A run that was disturbed is too slow, never too fast; the line misses it by
less than its whole time then, so that single outliers, too, move the line little.

All arithmetic is exact until the two numbers are rounded to four digits. Errors are those of the
rounded numbers, as they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

from optimizer.calibration.groups import Group
from optimizer.calibration.points import ring_factor, ring_rounds
from optimizer.calibration.quantities import rounded

#: A line through fewer sizes says nothing about a third.
MIN_SIZES = 3


@dataclass(frozen=True, slots=True)
class Decade:
    """Relative errors |fitted - measured| / measured of sizes from `from_bytes` to ten times it."""

    from_bytes: int
    num_points: int
    median_error: Fraction
    largest_error: Fraction


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Neighbouring sizes, from the smallest to the largest."""

    from_bytes: int
    to_bytes: int
    num_sizes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted line, what it means on a ring, and how far off it is.

    `alpha_s` is a round's fixed time and `bandwidth_bytes_per_s` one way per card, both rounded to
    four digits; `intercept_s` and `slope_s_per_byte` are the line of these. `starts_at_zero` tells
    that the best line would start below 0 and was made to start there. `holds` is the longest run
    of sizes whose errors are at most `tolerance`; None without any.
    """

    rounds: int
    factor: Fraction
    alpha_s: Fraction
    bandwidth_bytes_per_s: Fraction
    starts_at_zero: bool
    decades: tuple[Decade, ...]
    tolerance: Fraction
    holds: SizeRange | None

    @property
    def intercept_s(self) -> Fraction:
        """Time of an empty message."""
        return self.rounds * self.alpha_s

    @property
    def slope_s_per_byte(self) -> Fraction:
        """Time that one byte more takes."""
        return self.factor / self.bandwidth_bytes_per_s


class NotFitted(ValueError):  # noqa: N818 - it is an answer, not a fault
    """No line explains the points; the message says why."""


def fit(group: Group, tolerance: Fraction) -> Fit:
    """Fit a group of points.

    Parameters
    ----------
    group
        Points of one operation on one arrangement of ranks.
    tolerance
        Largest relative error at which the fit is said to hold.

    Raises
    ------
    NotFitted
        With fewer than three sizes, or where time does not grow with size.
    """
    sizes = group.by_size
    if len(sizes) < MIN_SIZES:
        raise NotFitted(f"{len(sizes)} sizes are fewer than the {MIN_SIZES} a line needs")
    points = [(size, time_s) for size, times in sizes.items() for time_s in times]
    intercept_s, slope = _line(points)
    starts_at_zero = intercept_s < 0
    if starts_at_zero:
        intercept_s, slope = Fraction(0), _line_through_zero(points)
    if slope <= 0:
        raise NotFitted("time does not grow with size")
    key = group.key
    rounds, factor = ring_rounds(key.operation, key.ranks), ring_factor(key.operation, key.ranks)
    alpha_s, bandwidth = rounded(intercept_s / rounds), rounded(factor / slope)
    errors = {
        size: [abs(rounds * alpha_s + factor * size / bandwidth - t) / t for t in times]
        for size, times in sizes.items()
    }
    return Fit(
        rounds, factor, alpha_s, bandwidth, starts_at_zero, _decades(errors), tolerance,
        _holds(errors, tolerance),
    )  # fmt: skip


def _line(points: Sequence[tuple[int, Fraction]]) -> tuple[Fraction, Fraction]:
    """Return (intercept, slope) with the least sum of squared relative errors.

    The error of (M, T) is a/T + b·M/T - 1: least squares over u = 1/T and v = M/T.
    """
    uu, uv, vv, u, v = (Fraction(0),) * 5
    for size, time_s in points:
        inverse, rate = 1 / time_s, size / time_s
        uu, uv, vv = uu + inverse * inverse, uv + inverse * rate, vv + rate * rate
        u, v = u + inverse, v + rate
    # positive for two sizes or more
    determinant = uu * vv - uv * uv
    return (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant


def _line_through_zero(points: Sequence[tuple[int, Fraction]]) -> Fraction:
    """Return the slope of the best line that starts at 0."""
    rates = [size / time_s for size, time_s in points]
    return sum(rates, Fraction(0)) / sum((rate * rate for rate in rates), Fraction(0))


def _decades(errors: dict[int, list[Fraction]]) -> tuple[Decade, ...]:
    by_decade: dict[int, list[Fraction]] = {}
    for size, found in errors.items():
        by_decade.setdefault(10 ** (len(str(size)) - 1), []).extend(found)
    return tuple(
        Decade(start, len(found), median(found), max(found)) for start, found in by_decade.items()
    )


def _holds(errors: dict[int, list[Fraction]], tolerance: Fraction) -> SizeRange | None:
    """Return the longest run of sizes within the tolerance; of equally long ones the largest."""
    best: list[int] = []
    run: list[int] = []
    for size, found in errors.items():
        run = [*run, size] if max(found) <= tolerance else []
        if len(run) >= len(best):
            best = run
    return SizeRange(best[0], best[-1], len(best)) if best else None
