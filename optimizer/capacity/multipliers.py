"""Bounds on what a fleet must have, as prices that anyone can check without a solver.

If no serving instance is worth more than its cards, then neither is a fleet: whatever it serves is
worth no more than the cards that it has. Prices come from wherever; here they are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optimizer.capacity.count_search import CountRow, Fewest
from optimizer.capacity.problem import CapacityProblem
from optimizer.capacity.server_counts import ServerCounts, check_supported
from optimizer.capacity.unit_pricing import MARGIN, UnitPricer, is_bounded_alone, unit_bound

__all__ = [
    "CountRow",
    "Fewest",
    "Multipliers",
    "ServerCounts",
    "UnitPricer",
    "capacity_bound",
    "check",
    "check_supported",
    "cut_row",
    "valid_multipliers",
]

#: Steps of the search for the best load of a unit.
MAX_NODES = 20_000

#: The largest price of a session has about so many bits.
PRICE_BITS = 44

#: Larger prices are no proof that anyone would write.
MAX_BITS = 500


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What a session of each cohort and a card of each pool are worth, in whole numbers of a unit.

    Valid if no serving instance can serve sessions worth more than its cards. Then in every fleet
    that serves all cohorts: sum of cards[p] · free cards of pool p >= sum of sessions[c] ·
    min_sessions of cohort c.
    """

    sessions: tuple[int, ...]
    cards: tuple[int, ...]


def valid_multipliers(
    problem: CapacityProblem,
    pricer: UnitPricer,
    sessions: Sequence[float],
    cards: Sequence[float],
    *,
    max_nodes: int = MAX_NODES,
) -> Multipliers:
    """Return valid multipliers about as large as given; cards are worth more where they must be.

    `max_nodes` limits the search for the best load of a unit, in place of which its bound counts.
    """
    top = max((price for price in sessions if price > 0), default=0.0)
    scale = Fraction(2) ** (PRICE_BITS - math.frexp(top)[1]) if top else Fraction(1)
    whole = tuple(int(Fraction(max(float(price), 0.0)) * scale) for price in sessions)
    wanted = tuple(math.ceil(Fraction(max(float(price), 0.0)) * scale) for price in cards)
    return Multipliers(whole, _card_prices(problem, pricer, whole, wanted, max_nodes))


def check(
    problem: CapacityProblem, multipliers: Multipliers, pricer: UnitPricer | None = None
) -> bool:
    """Whether multipliers are valid: exactly, option by option, whoever found them."""
    numbers = (*multipliers.sessions, *multipliers.cards)
    sizes = (len(multipliers.sessions), len(multipliers.cards))
    if sizes != (len(problem.cohorts), len(problem.pools)):
        return False
    if any(n < 0 or n.bit_length() > MAX_BITS for n in numbers):
        return False
    pricer = UnitPricer(problem) if pricer is None else pricer
    needed = _card_prices(
        problem, pricer, multipliers.sessions, multipliers.cards, MAX_NODES, is_exact=True
    )
    return needed == multipliers.cards


def _card_prices(
    problem: CapacityProblem,
    pricer: UnitPricer,
    sessions: Sequence[int],
    wanted: Sequence[int],
    max_nodes: int,
    *,
    is_exact: bool = False,
) -> tuple[int, ...]:
    """Return valid prices of cards from `wanted` on, about the least; in whole numbers.

    Where `is_exact`, an option whose bound is too large is searched to the end.
    """
    cards, floats = list(wanted), np.array(sessions, dtype=np.float64)
    left = []
    for option, able, rows, r in zip(
        problem.options, pricer.able, pricer.rows, pricer.tightest_rows(floats), strict=True
    ):
        card = cards[option.pool]
        if r >= len(rows) or not is_bounded_alone(option, able, rows[r], sessions, card):
            left.append(option.index)
    if not left:
        return tuple(cards)
    bounds, row_prices = pricer.linear_bounds(np.array(left), floats)
    for k, about, prices in zip(left, bounds, row_prices, strict=True):
        option, unit = problem.options[k], pricer.unit(k)
        enough = cards[option.pool] * option.num_cards
        if about * unit.num_units * (1 - MARGIN) <= enough:
            bound, bits = unit_bound(unit, sessions, prices.tolist())
            if unit.num_units * bound <= enough << bits:
                continue
        most = unit.num_units * pricer.priced(k, sessions, max_nodes).bound
        if is_exact and most > enough:
            most = unit.num_units * unit.priced(sessions).bound
        cards[option.pool] = max(cards[option.pool], math.ceil(most / option.num_cards))
    return tuple(cards)


def cut_row(counts: ServerCounts, multipliers: Multipliers) -> CountRow:
    """Return what valid multipliers say of numbers of servers."""
    problem = counts.problem
    least = sum(
        price * cohort.min_sessions
        for price, cohort in zip(multipliers.sessions, problem.cohorts, strict=True)
    )
    terms = {v: multipliers.cards[p] * cards for v, (p, cards) in counts.free_cards.items()}
    return CountRow({v: size for v, size in terms.items() if size}, least)


def capacity_bound(
    problem: CapacityProblem,
    proof: Sequence[Multipliers],
    *,
    max_nodes: int = 20_000,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Fraction, ...] | None:
    """Return what no plan can beat, goal by goal, from multipliers alone; None: no plan exists.

    Every one of them is checked, and the fewest servers that all of them allow are counted without
    a solver, in whole numbers. With less time the bound is lower, and still holds. Raises
    ValueError for multipliers that are not valid, TooLargeError where `check_supported` does.
    """
    check_supported(problem)
    pricer, counts = UnitPricer(problem), ServerCounts(problem)
    for i, multipliers in enumerate(proof):
        if not check(problem, multipliers, pricer):
            raise ValueError(f"multipliers {i} are not valid: some instance is worth more")
    found = counts.fewest([cut_row(counts, m) for m in proof], max_nodes, is_over)
    return None if found.bound is None else counts.goal_values(found.bound)
