"""Capacity of huge fleets by columns, with a bound that needs no solver (capacity_columns.md)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np

from formulations.capacity_columns_lp import Floats, LinearPoint, LoadProgram
from formulations.capacity_columns_plan import Deal, build_plan, cards_by_pool
from formulations.capacity_columns_rounding import Rounding, round_units
from optimizer.capacity.multipliers import (
    CountRow,
    Multipliers,
    ServerCounts,
    UnitPricer,
    check_supported,
    cut_row,
    valid_multipliers,
)
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination

#: Shares by which loads must be worth more than their cards to be added: none at all for a first
#: plan, then only good ones, at last all.
NONE, ROUGH, FINE = math.inf, 0.02, 1e-7

#: Loads that are added at most before the program is solved again, by model.
MAX_ADDED = 12

#: Steps of the search for one load: at first, and where the bound counts.
FEW_NODES, MANY_NODES = 300, 20_000

#: Steps of the search for counts of servers, and points at which a plan is looked for at most.
MAX_STEPS, MAX_POINTS = 20_000, 40

#: What is missing of servers, as a share, is taken for nothing below this.
NOTHING = 1e-9

#: How far from the cheapest servers to those in question prices are asked for, one by one.
SHARES = (0.05, 0.3, 1.0)

#: Attempts to round with the same servers.
MAX_ROUNDED = 3

#: What is kept of idle cards where they leave no better plan.
LESS_IDLE = 0.8

#: Seconds for what one model has left to serve: at first, and at last.
ROUGH_S, FINE_S = 0.3, 0.3


@dataclass(frozen=True, slots=True)
class ColumnsOutcome:
    """How a solve ended: a plan, its goals, a bound on the goals of all plans, and its proof.

    Goals come in the problem's order; bound <= value. `proof` are multipliers from which
    `optimizer.capacity.multipliers.capacity_bound` counts the bound again.
    """

    termination: Termination
    plan: CapacityPlan | None = None
    value: tuple[Fraction, ...] | None = None
    bound: tuple[Fraction, ...] | None = None
    proof: tuple[Multipliers, ...] = ()


def solve_by_columns(
    problem: CapacityProblem,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> ColumnsOutcome:
    """Choose servers and instances; `deadline` is a `time.monotonic()` value.

    One thread is used, however many there are. Raises TooLargeError for problems that
    `check_supported` declines, and MismatchError where a plan beats the bound.
    """
    check_supported(problem)
    if not problem.options:
        raise TooLargeError("capacity: there is no option to list loads of")
    return _Solver(problem, deadline, seed, stop or threading.Event()).solve()


def is_feasible(point: LinearPoint) -> bool:
    """Whether no servers are missing."""
    return point.shortage <= NOTHING


@dataclass
class _Best:
    """The best plan so far and the bound; the proof holds what the bound follows from."""

    plan: CapacityPlan | None = None
    value: tuple[Fraction, ...] | None = None
    bound: tuple[Fraction, ...] | None = None
    proof: list[Multipliers] = field(default_factory=list)
    is_infeasible: bool = False

    @property
    def is_proven(self) -> bool:
        """Whether nothing is left to find."""
        return self.is_infeasible or (self.value is not None and self.value == self.bound)

    def outcome(self) -> ColumnsOutcome:
        """Return how the solve ended."""
        proof = tuple(self.proof)
        if self.value is not None and self.bound is not None and self.bound > self.value:
            raise MismatchError(f"a plan reaches {self.value}, below the bound {self.bound}")
        if self.is_infeasible:
            if self.plan is not None:
                raise MismatchError("a plan was found where multipliers say that there is none")
            return ColumnsOutcome(Termination.INFEASIBLE, proof=proof)
        if self.plan is None:
            return ColumnsOutcome(Termination.NO_SOLUTION_FOUND, bound=self.bound, proof=proof)
        ended = Termination.OPTIMAL if self.is_proven else Termination.FEASIBLE
        return ColumnsOutcome(ended, self.plan, self.value, self.bound, proof)


class _Solver:
    """Alternates between loads, counts of servers that multipliers allow, and whole plans."""

    def __init__(
        self, problem: CapacityProblem, deadline: float, seed: int, stop: threading.Event
    ) -> None:
        self.problem, self.deadline, self.seed, self.stop = problem, deadline, seed, stop
        self.pricer, self.counts = UnitPricer(problem), ServerCounts(problem)
        self.program = LoadProgram(problem, self.counts, self.pricer)
        self.cuts: list[CountRow] = []
        self.best = _Best()
        #: prices of sessions and cards where servers cost least
        self.guide: LinearPoint | None = None
        #: cards of every pool that linear programs leave idle, for rounding to take
        self.idle = [0.0] * len(problem.pools)

    def is_over(self) -> bool:
        """Whether to stop."""
        return self.stop.is_set() or time.monotonic() >= self.deadline

    def solve(self) -> ColumnsOutcome:
        """Find a rough plan and bound, then close in on the best."""
        if not self._start():
            self.best.is_infeasible = not self.is_over()
            return self.best.outcome()
        for share in (NONE, ROUGH, FINE):
            point = self._converged(self.program.cheapest, share)
            if point is None:
                break
            self.guide = point
            if share != FINE:
                self._plan(None, share)
            if share == NONE:  # prices far from the best prove little
                continue
            self._cut(point)
            if self.best.is_proven:
                break
        self._close()
        return self.best.outcome()

    def _start(self) -> bool:
        """Add for every cohort and pool the densest load; False if a cohort has none at all."""
        pricer = self.pricer
        alone = pricer.most_alone.min(axis=1, initial=np.inf)  # [option, cohort served]
        density = alone * (pricer.num_groups / pricer.num_cards)[:, None]
        for c in self.program.wanted:
            only = [int(o == c) for o in range(len(self.problem.cohorts))]
            column = (pricer.cohort == c).argmax(axis=1)
            able = (pricer.cohort == c).any(axis=1)
            order = np.argsort(-density[np.arange(len(density)), column], kind="stable")
            found: set[int] = set()
            for k in order[able[order]]:
                option = self.problem.options[int(k)]
                if option.pool in found:
                    continue
                if self.is_over():
                    return False
                priced = pricer.priced(int(k), only, FEW_NODES)
                if priced.value:
                    self.program.add(int(k), priced.load)
                    found.add(option.pool)
            if not found:
                return False
        return True

    def _converged(
        self,
        solve: Callable[[], LinearPoint | None],
        share: float,
        is_enough: Callable[[LinearPoint], bool] = lambda point: False,
    ) -> LinearPoint | None:
        """Add loads until none is worth more than its cards, or it is enough; None if time is over.

        A load must be worth more by a share of its cards.
        """
        while not self.is_over():
            point = solve()
            if point is None or is_enough(point):
                return point
            if not self._add_columns(point, share):
                return None if self.is_over() else point
        return None

    def _add_columns(self, point: LinearPoint, share: float) -> int:
        """Add the loads that are worth most against their cards; return how many."""
        top = float(point.sessions.max(initial=0.0))
        if not top:
            return 0
        scale = 2.0 ** (40 - int(np.ceil(np.log2(top))))
        whole = [int(price) for price in point.sessions * scale]
        options, _ = self.pricer.promising(point.sessions, point.cards, share)
        added: dict[int, int] = {}
        nodes = FEW_NODES if share == ROUGH else MANY_NODES
        for k in options:
            option = self.problem.options[int(k)]
            if added.get(option.model, 0) >= MAX_ADDED:
                continue
            if self.is_over():
                break
            priced = self.pricer.priced(int(k), whole, nodes)
            worth = float(priced.value) / scale * self.pricer.unit(int(k)).num_units
            if worth > point.cards[option.pool] * option.num_cards * (1 + share):
                is_new = self.program.add(int(k), priced.load)
                added[option.model] = added.get(option.model, 0) + is_new
        return sum(added.values())

    def _cut(self, point: LinearPoint) -> CountRow:
        """Prove what prices say, count with it from now on, and return it with idle cards."""
        cards: Floats = point.cards * (1 + FINE)
        valid = valid_multipliers(
            self.problem,
            self.pricer,
            point.sessions.tolist(),
            cards.tolist(),
            max_nodes=MANY_NODES,
        )
        self.best.proof.append(valid)
        self.cuts.append(cut_row(self.counts, valid))
        self._count()
        return self._with_idle(len(self.cuts) - 1)

    def _with_idle(self, cut: int) -> CountRow:
        """Return what a cut says of servers that leave cards idle."""
        row, cards = self.cuts[cut], self.best.proof[cut].cards
        idle = sum(price * math.ceil(n) for price, n in zip(cards, self.idle, strict=True))
        return CountRow(row.terms, row.least + idle)

    def _count(self) -> None:
        """Count the fewest servers that all cuts allow, which is a bound."""
        found = self.counts.fewest(self.cuts, MAX_STEPS, self.is_over)
        if found.bound is None:
            self.best.is_infeasible = True
            return
        bound = self.counts.goal_values(found.bound)
        self.best.bound = bound if self.best.bound is None else max(bound, self.best.bound)

    def _roomy(self, excluded: Collection[tuple[int, ...]]) -> tuple[int, ...] | None:
        """Return the best counts that leave enough cards idle; None if none beat the best plan."""
        rows = [self._with_idle(cut) for cut in range(len(self.cuts))]
        point = self.counts.fewest(rows, MAX_STEPS, self.is_over, excluded).point
        if point is None:
            return None
        value = self.best.value
        is_better = value is None or self.counts.point_values(point) < value
        return point if is_better else None

    def _close(self) -> None:
        """Look for a plan with the best counts that are allowed, or for a cut that forbids them.

        Where no counts are left that beat the best plan, less is left idle.
        """
        if not self.cuts:
            self._count()
        excluded: list[tuple[int, ...]] = []
        while not self.is_over() and not self.best.is_proven and len(excluded) < MAX_POINTS:
            counts = self._roomy(excluded)
            if counts is None:
                if not any(self.idle):
                    return
                self.idle = [LESS_IDLE * n if n >= 1 else 0.0 for n in self.idle]
                continue
            servers = self.counts.servers(counts)
            point = self._separated(servers)
            if point is None:
                return
            if not is_feasible(point) and not self._cut(point).keeps(counts):
                continue
            self._plan(servers, FINE)
            excluded.append(counts)

    def _separated(self, servers: Sequence[int]) -> LinearPoint | None:
        """Return prices that forbid the servers, or a solution with them; None if time is over.

        Prices of a fleet between these servers and the cheapest one tell more about fleets that
        are nearly as cheap.
        """
        assert self.guide is not None
        for share in SHARES:
            pairs = zip(servers, self.guide.servers, strict=True)
            between = [share * n + (1 - share) * best for n, best in pairs]
            within = partial(self.program.within, between, self.idle)
            point = self._converged(within, FINE, is_feasible)
            if point is None or share == 1.0:
                return point
            if not is_feasible(point):
                worth = self.program.worth(servers, point)
                if worth < 1 - NOTHING:
                    return point
        return None

    def _plan(self, servers: Sequence[int] | None, share: float) -> None:
        """Round to a plan, with no more than the given servers if there are any; keep the best.

        Loads are added first as `_converged` does with a share. What rounding takes beyond the free
        cards is left idle from now on.
        """
        guide = self.guide
        assert guide is not None
        problem, most = self.problem, self.program.most if servers is None else servers
        free = problem.free_cards(most)
        cards = np.maximum(guide.cards, 1e-9 * guide.cards.max(initial=0.0)).tolist()
        if servers is None:
            gap = 1e-3 * guide.value / max(len(problem.models), 1)
        else:
            worth = sum(n * w for n, w in zip(free, cards, strict=True))
            gap = max(worth - guide.value, 0.0) / (4 * max(len(problem.models), 1))
        rounding = Rounding(
            cards, free, ROUGH_S if servers is None else FINE_S, gap, self.deadline, self.seed
        )
        for _ in range(MAX_ROUNDED):
            solve = partial(self.program.cheapest, self.idle)
            if servers is not None:
                solve = partial(self.program.within, servers, self.idle)
            point = self._converged(solve, share)
            if point is None:
                return
            used = replace(point, sessions=guide.sessions)
            deal = round_units(problem, self.program.columns, used, rounding)
            if deal is None:
                return
            taken = cards_by_pool(problem, deal)
            if servers is None:
                asked = self.program.cards(point)
                self.idle = [max(n - m, 0.0) for n, m in zip(taken, asked, strict=True)]
            if all(n <= room for n, room in zip(taken, free, strict=True)):
                self._keep(deal)
                return
            self.idle = [
                max(n + number - room, 0.0)
                for n, number, room in zip(self.idle, taken, free, strict=True)
            ]

    def _keep(self, deal: Deal) -> None:
        """Build the plan of a deal, and keep it if it is the best."""
        built = build_plan(self.problem, self.counts, deal)
        if built is not None and (self.best.value is None or built[1] < self.best.value):
            self.best.plan, self.best.value = built
