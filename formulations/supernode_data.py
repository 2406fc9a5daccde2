"""Exact numbers of the supernode statement: what each option with n sessions takes and brings.

Computed from the data alone; the evaluator has code of its own for the same definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.supernode.problem import Demand, ExpertReads, Option, SupernodeProblem

#: More pairs of an option and a number of sessions than this are not stated.
MAX_PICKS = 60_000


@dataclass(frozen=True, slots=True)
class Pick:
    """An option with n sessions: its step, lookup that is not hidden, sessions on time, value."""

    option: int
    sessions: int
    step_s: Fraction
    excess_s: Fraction
    on_time: int
    value: Fraction | None


def picks(problem: SupernodeProblem) -> tuple[Pick, ...]:
    """Return every option with n = 1, 2, … up to one more than fits. Raises TooLargeError."""
    counts = [max(fit(problem, option), 0) + 1 for option in problem.options]
    if problem.goal == "user_rate":
        counts = [min(count, 2) for count in counts]
    if sum(counts) > MAX_PICKS:
        raise TooLargeError(
            f"supernode: {sum(counts):,} options and numbers of sessions to state; at most "
            f"{MAX_PICKS:,}. List fewer sizes"
        )
    found: list[Pick] = []
    for number, (option, count) in enumerate(zip(problem.options, counts, strict=True)):
        for sessions, (step_s, excess_s) in enumerate(_steps(problem, option, count), start=1):
            on_time, value = _outcome(problem, option, sessions, step_s)
            found.append(Pick(number, sessions, step_s, excess_s, on_time, value))
    return tuple(found)


def fit(problem: SupernodeProblem, option: Option) -> int:
    """Return the sessions of a group that fit in its cards' memory (6-14); below 0 where W is more.

    n·K <= C - W - U holds for a whole n exactly where n <= floor((C - W - U) / K).
    """
    taken = problem.workspace_bytes + option.replicated_bytes + option.expert_bytes
    return (problem.capacity_bytes - taken - option.table_bytes) // option.session_bytes


def _steps(
    problem: SupernodeProblem, option: Option, count: int
) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield (step, lookup that is not hidden) with 1, 2, … `count` sessions; seconds."""
    per_byte = 1 / Fraction(problem.bandwidth_bytes_per_s)
    fixed_s, read_s = option.read_bytes * per_byte, option.kv_read_bytes * per_byte
    compute_s = option.flops / Fraction(problem.peak_flops_per_s)
    expert_s = [Fraction(0)] * count
    for reads in option.experts:
        layers_s = reads.num_layers * reads.expert_bytes * per_byte
        for n, thousandths in enumerate(_thousandths(problem, option, reads, count)):
            expert_s[n] += layers_s * thousandths / 1000
    for n, experts in enumerate(expert_s, start=1):
        plain_s = max(fixed_s + experts + n * read_s, n * compute_s)
        for exchange in option.exchanges:
            plain_s += exchange.times * min(
                max(line.start_s + n * line.s_per_session for line in lines)
                for lines in exchange.algorithms
            )
        excess_s = Fraction(0)
        if option.lookup is not None:
            hidden_s = option.lookup.hidden_share * plain_s
            for line in option.lookup.lines:
                excess_s = max(excess_s, line.start_s + n * line.s_per_session - hidden_s)
        yield plain_s + excess_s, excess_s


def _thousandths(
    problem: SupernodeProblem, option: Option, reads: ExpertReads, count: int
) -> Iterator[Fraction | int]:
    """Yield thousandths of experts of a layer that a card reads with 1, 2, … `count` sessions."""
    num, each = reads.num_experts, reads.experts_per_token
    if problem.goal == "user_rate":
        yield from [1000 * -(-each // option.size)] * count
        return
    groups = option.size // option.attention_tp
    if reads.routing == "balanced":
        for n in range(1, count + 1):
            chosen = -(-n * groups * each // option.size)
            yield min(Fraction(1000 * num, option.size), Fraction(1000 * chosen))
        return
    # of m tokens, the share of experts that none chooses is missed / whole = ((E - k) / E)^m
    missed = whole = 1
    more_missed, more_whole = (num - each) ** groups, num**groups
    everything = -(-1000 * num // option.size)
    is_all = False
    for _ in range(count):
        if not is_all:
            missed, whole = missed * more_missed, whole * more_whole
            is_all = 1000 * num * missed < whole  # less than a thousandth is missed from now on
        if is_all:
            yield everything
        else:
            yield -(-1000 * num * (whole - missed) // (option.size * whole))


def _outcome(
    problem: SupernodeProblem, option: Option, sessions: int, step_s: Fraction
) -> tuple[int, Fraction | None]:
    """Return (sessions on time, value of the goal) of n sessions with their step."""
    on_time = last_step = 0
    if problem.demands:
        lanes = problem.num_cards // option.attention_tp * sessions
        on_time, last_step = _followed(problem.demands, lanes, step_s)
    if problem.goal == "tokens_per_s_per_card":
        return on_time, sessions / (option.attention_tp * step_s)
    if problem.goal == "sessions_per_card":
        return on_time, Fraction(sessions, option.attention_tp)
    if problem.goal == "user_rate":
        return on_time, 1 / step_s
    price = problem.price_per_card_hour
    each = Fraction(1) if price is None else price / 3600
    total = each * problem.num_cards * last_step * step_s
    return on_time, total / on_time if on_time else None


def _followed(demands: tuple[Demand, ...], lanes: int, step_s: Fraction) -> tuple[int, int]:
    """Return (sessions taken, step after which the last ends); lanes are counted by their steps."""
    timed = [d for d in demands if d.deadline_s is not None]
    ordered = sorted(timed, key=lambda d: d.deadline_s or 0)
    ordered += [d for d in demands if d.deadline_s is None]
    ends = {0: lanes}  # lanes by the steps that they have done
    taken = 0
    for demand in ordered:
        left = demand.num_sessions
        most = None if demand.deadline_s is None else demand.deadline_s // step_s
        while left:
            start = min(ends)
            if most is not None and start + demand.new_tokens > most:
                break
            num = min(left, ends[start])
            ends[start] -= num
            if not ends[start]:
                del ends[start]
            until = start + demand.new_tokens
            ends[until] = ends.get(until, 0) + num
            left, taken = left - num, taken + num
    return taken, max(ends)
