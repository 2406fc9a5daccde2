"""Goals of the capacity decision as sums over its variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from formulations.capacity_rows import CapacityModel
from instances.capacity import MAXIMISED_GOALS

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class LinearGoal:
    """A sum that is minimised: negated where more is better. value = sign · (sum + constant)."""

    terms: Mapping[int, Fraction]
    constant: Fraction
    sign: int

    def scaled(self) -> tuple[dict[int, int], Fraction]:
        """Return whole coefficients, and what one unit of their sum is worth."""
        values = [value for value in self.terms.values() if value]
        scale = math.lcm(*(value.denominator for value in values))
        divisor = math.gcd(*(int(value * scale) for value in values)) or 1
        whole = {v: int(value * scale) // divisor for v, value in self.terms.items() if value}
        return whole, Fraction(divisor, scale)

    def value(self, total: Fraction) -> Fraction:
        """Return the goal's value for a sum of its terms."""
        return self.sign * (total + self.constant)


def linear_goal(m: CapacityModel, goal: str) -> LinearGoal:
    """Return a goal that is no quotient."""
    if goal == "sessions":
        terms = {v: Fraction(1) for v in m.served[0]}
    elif goal == "worst_case_sessions":
        terms = {_worst(m): Fraction(1)}
    elif goal == "expected_sessions":
        terms = _expected(m)
    elif goal == "energy":
        power, period = linear_goal(m, "power"), m.problem.period_s or Fraction(0)
        scaled = {v: value * period for v, value in power.terms.items()}
        return LinearGoal(scaled, power.constant * period, 1)
    else:
        constant = Fraction(0)
        if goal == "power":
            constant = Fraction(m.problem.fixed_w + m.problem.occupied_w)
        return LinearGoal(_terms(m, goal), constant, 1)
    assert goal in MAXIMISED_GOALS
    return LinearGoal({v: -value for v, value in terms.items()}, Fraction(0), -1)


def _terms(m: CapacityModel, goal: str) -> dict[int, Fraction]:
    problem = m.problem
    new = [j for j in problem.classes if not j.is_occupied]
    if goal == "servers":
        return {m.used[j.index]: Fraction(1) for j in new}
    if goal == "racks":
        return {v: Fraction(1) for v in m.racks.values()}
    if goal == "cards":
        return {
            v: Fraction(option.num_cards)
            for option in problem.options
            for v in m.in_use(option.index)
        }
    is_price = goal == "price_per_hour"
    found = {}
    for j in new:
        pool = problem.pools[j.pool]
        found[m.used[j.index]] = pool.price_per_hour if is_price else Fraction(pool.power_w)
    for tier, variable in zip(problem.tiers, m.tiers, strict=True):
        if variable is not None:
            found[variable] = tier.price_per_hour if is_price else Fraction(tier.power_w)
    if is_price:
        found |= {v: problem.sites[s].price_per_hour for s, v in m.racks.items()}
    return found


def _worst(m: CapacityModel) -> int:
    """A variable that is at most the sessions after every event; of none, those of no event."""
    if m.worst is None:
        total = sum(cohort.num_sessions for cohort in m.problem.cohorts)
        m.worst = m.program.add_variable("worst", 0, total)
        for e in range(min(1, len(m.served) - 1), len(m.served)):
            row = {m.worst: 1} | dict.fromkeys(m.served[e], -1)
            m.program.add_row(f"worst[{e}]", row, None, 0)
    return m.worst


def _expected(m: CapacityModel) -> dict[int, Fraction]:
    shares = [event.probability or Fraction(0) for event in m.problem.events]
    shares = [1 - sum(shares, Fraction(0)), *shares]
    return {v: share for share, served in zip(shares, m.served, strict=True) for v in served}


@dataclass(frozen=True, slots=True)
class Quotient:
    """A goal above / below, both sums; `below` is above 0 for every plan that has a value."""

    above: dict[int, Fraction]
    above_constant: Fraction
    below: dict[int, Fraction]


def quotient(m: CapacityModel, goal: str) -> Quotient:
    """Return the price over the period per session on time, or per million tokens."""
    price = linear_goal(m, "price_per_hour")
    hours = (m.problem.period_s or Fraction(0)) / HOUR_S
    worth = [
        Fraction(1) if goal == "price_per_on_time_session" else Fraction(c.new_tokens, 10**6)
        for c in m.problem.cohorts
    ]
    return Quotient(
        {v: value * hours for v, value in price.terms.items()},
        price.constant * hours,
        dict(zip(m.served[0], worth, strict=True)),
    )
