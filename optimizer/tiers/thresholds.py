"""Where a placement's step begins to grow: user rates, round trips and bandwidths (6.7.4).

Everything said here was evaluated on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from optimizer.errors import MismatchError
from optimizer.tiers.evaluation import TierEvaluation, TierStep, evaluate_tiers
from optimizer.tiers.problem import TierPlan, TierProblem

#: The other side of a threshold is evaluated this share away from it.
HAIR = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True)
class LookupThreshold:
    """When prefetched lookups of a class stop being hidden, with the fewest sessions wanted.

    One round trip is hidden while the even step takes `round_trip_step_s` or longer, all lookups of
    its path while it takes `whole_step_s`. `step_s` and `window_s` are the even step and its first
    block as things are.
    """

    data: int
    tier: int
    step_s: Fraction
    window_s: Fraction
    round_trip_step_s: Fraction
    whole_step_s: Fraction


@dataclass(frozen=True, slots=True)
class TierThreshold:
    """How slow a tier may be until a step takes longer.

    A step is no longer down to `keeps_bytes_per_s`, and longer at one byte a second less; None
    where bandwidth does not matter. `longest_round_trip_s` is None where no lookup waits for one.
    """

    tier: int
    keeps_bytes_per_s: int | None
    longest_round_trip_s: Fraction | None


def lookup_thresholds(problem: TierProblem, plan: TierPlan) -> list[LookupThreshold]:
    """Return the thresholds of all prefetched lookups of a legal plan, in every tier they may use.

    The tier of the plan comes first; a tier in which the table does not fit is none to use.
    """
    alone, found = replace(plan, num_sessions=problem.min_sessions), []
    for c, data in enumerate(problem.classes):
        here = plan.homes[c]
        if not data.is_prefetched or here is None:
            continue
        if not data.lookups + alone.num_sessions * data.lookups_per_session:
            continue
        homes = [here, *(t for t, copy in problem.places(c) if t != here and copy is None)]
        for t in homes:
            moved = replace(alone, homes=(*plan.homes[:c], t, *plan.homes[c + 1 :]))
            judged = evaluate_tiers(problem, moved)
            if t == here or judged.is_feasible:
                found.append(_lookup_threshold(problem, moved, judged.step, c))
    return found


def _lookup_threshold(
    problem: TierProblem, plan: TierPlan, now: TierStep, c: int
) -> LookupThreshold:
    home, share = plan.homes[c], problem.machine.first_block_share
    assert home is not None
    tier = problem.tiers[home]
    found = LookupThreshold(
        data=c,
        tier=home,
        step_s=now.even_s,
        window_s=now.window_s,
        round_trip_step_s=tier.round_trip_s / share,
        whole_step_s=now.prefetches_s[tier.path] / share,
    )
    _check_round_trip(problem, plan, found)
    _check_whole(problem, plan, found)
    return found


def without_work(problem: TierProblem, *, only: int | None = None) -> TierProblem:
    """Return the problem with nothing to read, compute or exchange but lookups.

    With `only`, there is but the round trip of that class's lookups.
    """
    machine = replace(
        problem.machine,
        fixed_flops=Fraction(0),
        flops_per_session=Fraction(0),
        communication_s=Fraction(0),
        communication_s_per_session=Fraction(0),
        fixed_s=Fraction(0),
    )
    classes = []
    for c, data in enumerate(problem.classes):
        idle = replace(
            data,
            read_bytes=Fraction(0),
            read_bytes_per_session=Fraction(0),
            write_bytes_per_session=Fraction(0),
        )
        if only is not None:
            num = 1 if c == only else 0
            idle = replace(idle, lookups=num, lookups_per_session=0, lookup_bytes=0)
        classes.append(idle)
    tiers = problem.tiers
    if only is not None:
        tiers = tuple(replace(tier, max_reads_per_s=None) for tier in tiers)
    return replace(problem, machine=machine, classes=tuple(classes), tiers=tiers)


def _excess_s(problem: TierProblem, plan: TierPlan, even_s: Fraction) -> Fraction | None:
    """Return what lookups add to an even step of given length; None if they take longer alone."""
    rest = even_s - evaluate_tiers(problem, plan).step.even_s
    if rest < 0:
        return None
    machine = replace(problem.machine, fixed_s=rest)
    return evaluate_tiers(replace(problem, machine=machine), plan).step.excess_s


def _check_round_trip(problem: TierProblem, plan: TierPlan, found: LookupThreshold) -> None:
    if found.round_trip_step_s:
        only = without_work(problem, only=found.data)
        _check_sides(only, plan, found.round_trip_step_s)


def _check_whole(problem: TierProblem, plan: TierPlan, found: LookupThreshold) -> None:
    tiers = problem.tiers
    path = tiers[found.tier].path
    quiet = without_work(problem)
    classes = tuple(  # lookups of other paths have thresholds of their own
        data
        if home is not None and tiers[home].path == path
        else replace(data, lookups=0, lookups_per_session=0)
        for data, home in zip(quiet.classes, plan.homes, strict=True)
    )
    _check_sides(replace(quiet, classes=classes), plan, found.whole_step_s)


def _check_sides(problem: TierProblem, plan: TierPlan, step_s: Fraction) -> None:
    """Raise MismatchError unless lookups are hidden in a step, and not in one a hair shorter."""
    hidden = _excess_s(problem, plan, step_s)
    seen = _excess_s(problem, plan, step_s * (1 - HAIR))
    if hidden or seen == 0:
        raise MismatchError(f"lookups are not hidden down to a step of {float(step_s):.6g} s alone")


def tier_thresholds(problem: TierProblem, plan: TierPlan) -> list[TierThreshold]:
    """Return how slow every tier in use may be, for a legal plan."""
    judged = evaluate_tiers(problem, plan)
    used = sorted({t for t in (*plan.homes, *plan.copies) if t is not None})
    return [
        TierThreshold(t, _least_bytes_per_s(problem, plan, judged, t), _longest(problem, plan, t))
        for t in used
    ]


def with_tier(
    problem: TierProblem,
    t: int,
    *,
    bytes_per_s: Fraction | None = None,
    round_trip_s: Fraction | None = None,
) -> TierProblem:
    """Return the problem with another bandwidth, or round trip, of one tier's reads."""
    tier = problem.tiers[t]
    changed = replace(
        tier,
        bytes_per_s=tier.bytes_per_s if bytes_per_s is None else bytes_per_s,
        round_trip_s=tier.round_trip_s if round_trip_s is None else round_trip_s,
    )
    return replace(problem, tiers=(*problem.tiers[:t], changed, *problem.tiers[t + 1 :]))


def _least_bytes_per_s(
    problem: TierProblem, plan: TierPlan, judged: TierEvaluation, t: int
) -> int | None:
    """Return the lowest whole bandwidth with which a step takes no longer.

    None where it takes no longer at a byte a second. Slower tiers never make a step shorter.
    """

    def keeps(bytes_per_s: int) -> bool:
        other = with_tier(problem, t, bytes_per_s=Fraction(bytes_per_s))
        return not _is_longer(evaluate_tiers(other, plan).step, judged.step)

    most, least = math.ceil(problem.tiers[t].bytes_per_s), 1
    if keeps(1):
        return None
    while most - least > 1:
        middle = (most + least) // 2
        if keeps(middle):
            most = middle
        else:
            least = middle
    return most


def _longest(problem: TierProblem, plan: TierPlan, t: int) -> Fraction | None:
    """Return the longest round trip of a tier with which a step takes no longer."""
    n = plan.num_sessions
    here = [
        data
        for data, home in zip(problem.classes, plan.homes, strict=True)
        if home == t and data.lookups + n * data.lookups_per_session
    ]
    if not here:
        return None
    step, tier = evaluate_tiers(problem, plan).step, problem.tiers[t]
    slack_s = max(step.prefetches_s) - step.prefetches_s[tier.path]
    slack_s = max(slack_s, step.window_s - step.prefetches_s[tier.path])
    if any(not data.is_prefetched for data in here):
        slack_s = Fraction(0)
    longest = tier.round_trip_s + slack_s / len(here)
    keeps, loses = (
        _step(with_tier(problem, t, round_trip_s=seconds), plan)
        for seconds in (longest, longest + max(longest, Fraction(1)) * HAIR)
    )
    if keeps.total_s != step.total_s or not _is_longer(loses, step):
        raise MismatchError(f"{tier.name} does not keep the step down to the round trip computed")
    return longest


def _step(problem: TierProblem, plan: TierPlan) -> TierStep:
    return evaluate_tiers(problem, plan).step


def _is_longer(one: TierStep, other: TierStep) -> bool:
    return one.total_s is None or (other.total_s is not None and one.total_s > other.total_s)
