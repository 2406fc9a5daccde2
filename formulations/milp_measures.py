"""Measures of the MILP statement: what can be limited, excluded and minimised.

Largest measures are limited by leaving patterns out, sums in coarse units and, where that is not
enough, by digits with carries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pulp

from formulations.deployment_milp import (
    DeploymentModel,
    define_deployment_constraints,
    define_deployment_variables,
    max_uses,
)
from formulations.exact_sums import Row, scale_for
from formulations.patterns import Pattern
from formulations.staging import Limits
from optimizer.protocols import DeploymentCounts, Measure
from optimizer.tables import ProblemTables

#: Digits of exact sums: with more bits CBC's tolerances made feasible limits infeasible.
DIGIT_BITS = 10
DIGIT = 2**DIGIT_BITS

#: Added to whole limits of whole sums: it changes nothing but the room a tolerance has. Without it
#: CBC called its own optimum infeasible.
HALF = 0.5


def measure_unit(patterns: Sequence[Pattern], measure: Measure) -> Fraction:
    """Return the largest unit in which every pattern's measure is whole."""
    values = [p.score.measures[measure] for p in patterns]
    return Fraction(
        math.gcd(*(v.numerator for v in values)) or 1, math.lcm(*(v.denominator for v in values))
    )


def whole_weights(patterns: Sequence[Pattern], measure: Measure, unit: Fraction) -> tuple[int, ...]:
    """Return every pattern's measure as a whole number of units."""
    return tuple(int(p.score.measures[measure] / unit) for p in patterns)


def _instances_of(m: DeploymentModel, counts: Mapping[int, int]) -> tuple[dict[int, Any], Any]:
    """Return the number of serving instances of some candidates, and of all the others."""
    wanted: dict[int, Any] = {c: pulp.LpAffineExpression() for c in counts}
    others = pulp.LpAffineExpression()
    for k, number in m.num_of_kind.items():
        c = m.tables.kinds[k].candidate.index
        if c in wanted:
            wanted[c] += number
        else:
            others += number
    return wanted, others


def define_deployments(
    m: DeploymentModel, excluded: Sequence[DeploymentCounts], required: DeploymentCounts | None
) -> None:
    """Have the deployment that is required, and none that is excluded (no-good cuts).

    A deployment differs from another when some candidate has more or fewer serving instances;
    `more` and `fewer` are 1 only where that is so. What the other has none of is counted together.
    """
    if required is not None:
        have, others = _instances_of(m, dict(required.counts))
        for index, number in required.counts:
            m.problem += (have[index] == number, f"required_{index}")
        m.problem += (others == 0, "required_others")
    most = max_uses(m.tables)
    for e, other in enumerate(excluded):
        differs = []
        have, others = _instances_of(m, dict(other.counts))
        compared: list[tuple[object, Any, int]] = [("others", others, 0)]
        compared += [(c, have[c], number) for c, number in other.counts]
        for c, count, number in compared:
            more = m.problem.add_variable(f"more_{e}_{c}", cat=pulp.LpBinary)
            m.problem += (count >= (number + 1) * more, f"more_{e}_{c}")
            differs.append(more)
            if number:
                fewer = m.problem.add_variable(f"fewer_{e}_{c}", cat=pulp.LpBinary)
                m.problem += (count <= most - (most - number + 1) * fewer, f"fewer_{e}_{c}")
                differs.append(fewer)
        m.problem += (pulp.lpSum(differs) >= 1, f"excluded_{e}")


def define_limits(m: DeploymentModel, rows: Sequence[Row]) -> None:
    """Enough sessions on time, sums at most their limits, and the given rows (over all patterns).

    A sum is limited in coarse units, which lets through less than one unit per pattern too much;
    the engine checks the answer exactly and asks for the exact limit only where that happened.
    """
    if m.limits.min_on_time:
        on_time = pulp.lpSum(
            p.score.num_on_time * x for p, x in zip(m.patterns, m.times_used, strict=True)
        )
        m.problem += (on_time >= m.limits.min_on_time, "on_time")
    for measure, limit in m.limits.at_most.items():
        if measure.is_largest or not m.patterns:
            continue
        unit = measure_unit(m.patterns, measure)
        weights, most = whole_weights(m.patterns, measure, unit), math.floor(limit / unit)
        scale = scale_for(weights, max_uses(m.tables))
        coarse = pulp.lpSum(w // scale * x for w, x in zip(weights, m.times_used, strict=True))
        m.problem += (coarse <= most // scale + HALF, f"coarse_{measure.value}")
        if measure in m.exact and scale > 1:
            _limit_sum(m, measure.value, weights, most)
    for r, row in enumerate(rows):
        total = pulp.lpSum(row.weights[i] * x for i, x in zip(m.kept, m.times_used, strict=True))
        m.problem += (total <= row.most + HALF, f"row_{r}")


def _digit(number: int, d: int, *, is_top: bool) -> int:
    """Return digit d of a number; the top one keeps the sign, so that all digits add up to it."""
    shifted = number >> (DIGIT_BITS * d)
    return shifted if is_top else shifted % DIGIT


def _limit_sum(m: DeploymentModel, name: str, weights: Sequence[int], most: int) -> None:
    """Sum of weights <= most, digit by digit from the lowest: total = sum of digit_d · DIGIT^d.

    Row d collects its digits and the carry from below; the top row has no remainder. The compare
    walks from the top: `tie` is 1 while all higher digits equal the limit's.
    """
    largest = max(map(abs, (*weights, most, 1)))
    num_digits = math.ceil(largest.bit_length() / DIGIT_BITS)
    most_carry = max_uses(m.tables) + 1  # each use adds less than one carry
    problem, carry = m.problem, pulp.LpAffineExpression()
    digits: list[Any] = []
    for d in range(num_digits):
        row = carry + pulp.lpSum(
            _digit(w, d, is_top=d == num_digits - 1) * x
            for w, x in zip(weights, m.times_used, strict=True)
        )
        if d == num_digits - 1:
            digits.append(row)
            break
        digit = m.problem.add_variable(f"digit_{name}_{d}", 0, DIGIT - 1, pulp.LpInteger)
        over = m.problem.add_variable(f"carry_{name}_{d}", 0, most_carry, pulp.LpInteger)
        problem += (row == DIGIT * over + digit, f"digit_{name}_{d}")
        digits.append(digit)
        carry = 1 * over
    tie: Any = 1
    for d in reversed(range(num_digits)):
        wanted = _digit(most, d, is_top=d == num_digits - 1)
        if d == 0:
            problem += (digits[d] <= wanted + (DIGIT - 1) * (1 - tie), f"limit_{name}_0")
            break
        still = m.problem.add_variable(f"tie_{name}_{d}", cat=pulp.LpBinary)
        problem += (still <= tie, f"tie_{name}_{d}")
        # tied so far: the digit is below the limit's unless it stays tied
        problem += (
            digits[d] <= wanted - 1 + still + DIGIT * (1 - tie),
            f"limit_{name}_{d}",
        )
        tie = still


def define_objective(m: DeploymentModel, weights: Sequence[int] | None) -> None:
    """Minimise the sum of whole weights (over all patterns); None: any plan will do."""
    terms = (
        0 * x if weights is None else weights[i] * x
        for i, x in zip(m.kept, m.times_used, strict=True)
    )
    m.problem.setObjective(pulp.lpSum(terms))


def build_model(
    tables: ProblemTables,
    patterns: Sequence[Pattern],
    limits: Limits,
    exact: frozenset[Measure],
    weights: Sequence[int] | None,
    rows: Sequence[Row],
    excluded: Sequence[DeploymentCounts] = (),
    required: DeploymentCounts | None = None,
) -> DeploymentModel:
    """Build variables, constraints, limits and the objective."""
    m = DeploymentModel(tables, patterns, limits, exact)
    define_deployment_variables(m)
    define_deployment_constraints(m)
    define_deployments(m, excluded, required)
    define_limits(m, rows)
    define_objective(m, weights)
    return m
