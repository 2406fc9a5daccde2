"""How slow a path may get before the best plans do without it (6.6.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.access import Access
from optimizer.errors import MismatchError
from optimizer.pooling.evaluation import evaluate_pool
from optimizer.pooling.problem import PoolPlan, PoolProblem
from optimizer.pooling.search import best_pool_exhaustively
from optimizer.windows import window_bytes_per_s

Value = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class LenderThreshold:
    """How slow one path may get, all else unchanged, until its lender is no longer needed.

    Down to `keeps_bytes_per_s` of bandwidth, in whole bytes a second, every best plan reads over
    the path; at `loses_bytes_per_s`, one less, a plan without it is as good or better, in which
    `lenders_then` lend to the reader (`is_legal_then` False: there is no legal plan). Both are None
    where the path is needed however slow it is, or is not needed as it is (`is_needed`).
    `limit_bytes_per_s` is the usable speed between the two, exactly, and `max_round_trip_s` the
    round trip at which reads under way bring just that; None where they are unlimited.
    """

    path: int
    is_needed: bool
    keeps_bytes_per_s: int | None = None
    loses_bytes_per_s: int | None = None
    limit_bytes_per_s: Fraction | None = None
    max_round_trip_s: Fraction | None = None
    lenders_then: tuple[int, ...] = ()
    is_legal_then: bool = True


@dataclass(frozen=True, slots=True)
class _Slowed:
    """A problem in which one path has another bandwidth; its window stays."""

    problem: PoolProblem
    access: Access
    path: int
    max_steps: int

    @property
    def window(self) -> Fraction | None:
        """u·q/L of the path; None where reads under way are unlimited."""
        access = self.access
        if access.in_flight is None or access.transaction_bytes is None:
            return None
        return window_bytes_per_s(access.in_flight, access.transaction_bytes, access.round_trip_s)

    def at(self, bytes_per_s: int) -> PoolProblem:
        """Return the problem with a bandwidth of the path."""
        window, speed = self.window, Fraction(bytes_per_s)
        slowed = replace(
            self.problem.paths[self.path],
            bytes_per_s=speed if window is None else min(speed, window),
        )
        paths = list(self.problem.paths)
        paths[self.path] = slowed
        return replace(self.problem, paths=tuple(paths))

    def best(self, problem: PoolProblem) -> tuple[PoolPlan | None, Value | None]:
        """Return a best plan and its value; None where there is none."""
        plan = best_pool_exhaustively(problem, self.max_steps)
        if plan is None:
            return None, None
        return plan, evaluate_pool(problem, plan).value(problem.goals)


def lender_threshold(
    problem: PoolProblem, access: Access, path: int, max_steps: int = 100_000
) -> LenderThreshold:
    """Return how slow a path may get; `access` is what it is in the instance.

    A slower path makes no plan better, so there is one such speed. A plan stays better than all
    without the path down to a speed that follows from its reads; at the next whole number of bytes
    a second everything is tried again, until nothing over the path is better. Raises TooLargeError
    where plans are too many to try all.
    """
    slowed = _Slowed(problem, access, path, max_steps)
    others = tuple(other for p, other in enumerate(problem.paths) if p != path)
    cut = replace(problem, paths=others)
    instead, without = slowed.best(cut)
    plan, value = slowed.best(problem)
    if plan is None or not _is_less(value, without):
        return LenderThreshold(
            path, is_needed=False, lenders_then=_lenders(cut, instead, problem.paths[path].reader)
        )
    while True:
        kept = _kept_until(problem, plan, path, without)
        if kept is None:
            return LenderThreshold(path, is_needed=True)
        limit, keeps = kept
        if keeps <= 1:
            return LenderThreshold(path, is_needed=True)
        next_plan, value = slowed.best(slowed.at(keeps - 1))
        if next_plan is None or not _is_less(value, without):
            break
        plan = next_plan
    _, value = slowed.best(slowed.at(keeps))
    if not _is_less(value, without):
        raise MismatchError(f"path {problem.paths[path].name}: no better at {keeps} B/s, it seems")
    longest = None
    if access.in_flight is not None and access.transaction_bytes is not None:
        longest = access.in_flight * access.transaction_bytes / limit
    return LenderThreshold(
        path,
        is_needed=True,
        keeps_bytes_per_s=keeps,
        loses_bytes_per_s=keeps - 1,
        limit_bytes_per_s=limit,
        max_round_trip_s=longest,
        lenders_then=_lenders(cut, instead, problem.paths[path].reader),
        is_legal_then=instead is not None,
    )


def _is_less(value: Value | None, other: Value | None) -> bool:
    """Whether a value is better; None, no plan at all, is worse than any."""
    return value is not None and (other is None or value < other)


def _lenders(problem: PoolProblem, plan: PoolPlan | None, reader: int) -> tuple[int, ...]:
    """Return the nodes that lend to a reader, those that lend most first."""
    lent: dict[int, int] = {}
    for holding in () if plan is None else plan.holdings:
        if holding.lease is not None and any(r == reader for r, _ in holding.lease.readers):
            lent[holding.node] = lent.get(holding.node, 0) + holding.num_chunks
    return tuple(sorted(lent, key=lambda node: (-lent[node], node)))


def _kept_until(
    problem: PoolProblem, plan: PoolPlan, path: int, without: Value | None
) -> tuple[Fraction, int] | None:
    """Return the speed to which a plan stays legal and better than without the path.

    Also the least whole number of bytes a second at which it is; None: at any speed.
    """
    limits: list[tuple[Fraction, int]] = []
    for taken, rest in _sums(problem, plan, path, is_load=True):
        limit = taken / (1 - rest)
        limits.append((limit, math.ceil(limit)))
    most = _longest_read(problem, plan, without)
    if most is not None:
        longest, is_strict = most
        for taken, rest in _sums(problem, plan, path, is_load=False):
            limit = taken / (longest - rest)
            limits.append((limit, math.floor(limit) + 1 if is_strict else math.ceil(limit)))
    return max(limits, key=lambda pair: (pair[1], pair[0]), default=None)


def _longest_read(
    problem: PoolProblem, plan: PoolPlan, without: Value | None
) -> tuple[Fraction, bool] | None:
    """Return the slowest read up to which a plan stays better, and whether it must be below it.

    None where it stays better whatever it reads. The goals before and after are not changed by a
    slower path.
    """
    if without is None or "slowest_read" not in problem.goals:
        return None
    place = problem.goals.index("slowest_read")
    value = evaluate_pool(problem, plan).value(problem.goals)
    if value[:place] < without[:place]:
        return None
    return without[place], value[place + 1 :] >= without[place + 1 :]


def _sums(
    problem: PoolProblem, plan: PoolPlan, path: int, *, is_load: bool
) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield, by time, bytes read over the path (a second), and seconds of its link's other reads.

    Only times at which the path is read at all.
    """
    for at_s, _ in problem.moments:
        taken, rest = Fraction(0), Fraction(0)
        for holding in plan.holdings:
            item, lease = problem.items[holding.item], holding.lease
            if lease is None or not item.is_held(at_s):
                continue
            size = holding.num_chunks * problem.chunk_bytes * (item.reads_per_s if is_load else 1)
            for _, p in lease.readers:
                if p == path:
                    taken += size
                elif problem.paths[p].link == problem.paths[path].link:
                    rest += Fraction(size) / problem.paths[p].bytes_per_s
        if taken:
            yield taken, rest
