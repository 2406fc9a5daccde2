"""Exact account of a supernode: memory, the step, sessions on time, and broken rules (6.7.4)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from instances.quantity import human_bytes, human_seconds
from optimizer.evaluation import Violation
from optimizer.routing import expected_distinct_experts
from optimizer.supernode.problem import (
    ExpertReads,
    Line,
    Option,
    SupernodePlan,
    SupernodeProblem,
)

ZERO = Fraction(0)
SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step's time is made of; seconds, and bytes of weights and KV read on a card.

    The step is max(read_s, compute_s) + exchange_s + excess_s, the last what of `lookup_s` is
    longer than `hidden_s`.
    """

    read_bytes: Fraction
    read_s: Fraction
    compute_s: Fraction
    exchange_s: Fraction
    lookup_s: Fraction
    hidden_s: Fraction

    @property
    def excess_s(self) -> Fraction:
        """What the lookup adds."""
        return max(self.lookup_s - self.hidden_s, ZERO)

    @property
    def step_s(self) -> Fraction:
        """The whole step."""
        return max(self.read_s, self.compute_s) + self.exchange_s + self.excess_s


@dataclass(frozen=True, slots=True)
class Served:
    """Sessions taken of each demand, all of them on time, and when the last ends."""

    taken: tuple[int, ...]
    end_s: Fraction

    @property
    def on_time(self) -> int:
        """Sessions on time."""
        return sum(self.taken)


@dataclass(frozen=True, slots=True)
class SupernodeEvaluation:
    """Account of a plan; `option` and `step` are None where the plan names none.

    `value` is in the unit of the goal, None where there is none.
    """

    violations: tuple[Violation, ...]
    option: Option | None = None
    step: StepParts | None = None
    served: Served | None = None
    used_bytes: int = 0
    value: Fraction | None = None
    rules: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", frozenset(v.rule for v in self.violations))

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


def experts_read(reads: ExpertReads, size: int, num_tokens: int, *, is_single: bool) -> Fraction:
    """Return the experts of one layer that a card reads, as `ExpertReads` says."""
    num, each = reads.num_experts, reads.experts_per_token
    if is_single:
        return Fraction(-(-each // size))
    share = Fraction(num, size)
    if reads.routing == "balanced":
        return min(share, Fraction(-(-num_tokens * each // size)))
    # (1 - k/E)^m <= e^(-mk/E) < 2^(-mk/E), so here 1000·E of it are less than one: rounded up, a
    # card's share is as large as if every expert were read.
    if each * num_tokens >= num * (1000 * num).bit_length():
        return _thousandths(share)
    return _expected_share(num_tokens, num, each, size)


@lru_cache(maxsize=50_000)
def _expected_share(num_tokens: int, num_experts: int, each: int, size: int) -> Fraction:
    return _thousandths(expected_distinct_experts(num_tokens, num_experts, each) / size)


def _thousandths(number: Fraction) -> Fraction:
    """Round up to a thousandth."""
    return Fraction(-(-1000 * number.numerator // number.denominator), 1000)


def step_parts(problem: SupernodeProblem, option: Option, sessions: int) -> StepParts:
    """Return what a step with `sessions` sessions in each attention group takes."""
    is_single = problem.goal == "user_rate"
    tokens = 1 if is_single else sessions * (option.size // option.attention_tp)
    read = option.read_bytes + sessions * option.kv_read_bytes
    for reads in option.experts:
        num = experts_read(reads, option.size, tokens, is_single=is_single)
        read += reads.num_layers * num * reads.expert_bytes
    read_s = read / problem.bandwidth_bytes_per_s
    compute_s = sessions * option.flops / problem.peak_flops_per_s
    exchange_s = sum(
        (
            exchange.times * min(slowest(lines, sessions) for lines in exchange.algorithms)
            for exchange in option.exchanges
        ),
        ZERO,
    )
    lookup_s = hidden_s = ZERO
    if option.lookup is not None:
        lookup_s = slowest(option.lookup.lines, sessions)
        hidden_s = option.lookup.hidden_share * (max(read_s, compute_s) + exchange_s)
    return StepParts(Fraction(read), read_s, compute_s, exchange_s, lookup_s, hidden_s)


def slowest(lines: Sequence[Line], sessions: int) -> Fraction:
    """Return the time of paths that work at once; 0 without any."""
    return max((line.start_s + sessions * line.s_per_session for line in lines), default=ZERO)


def serve(problem: SupernodeProblem, option: Option, sessions: int, step_s: Fraction) -> Served:
    """Return who is served when all lanes of the fleet take sessions one after another."""
    num_lanes = problem.num_cards // option.attention_tp * sessions
    free: list[tuple[Fraction, int]] = [(ZERO, num_lanes)]  # when lanes are free, how many
    taken = [0] * len(problem.demands)

    def order(index: int) -> tuple[bool, Fraction]:
        deadline = problem.demands[index].deadline_s
        return deadline is None, deadline or ZERO

    for index in sorted(range(len(problem.demands)), key=order):
        demand = problem.demands[index]
        left, time_s = demand.num_sessions, demand.new_tokens * step_s
        while left and free:
            start_s, count = free[0]
            if demand.deadline_s is not None and start_s + time_s > demand.deadline_s:
                break
            heapq.heappop(free)
            num = min(left, count)
            if num < count:
                heapq.heappush(free, (start_s, count - num))
            heapq.heappush(free, (start_s + time_s, num))
            left -= num
        taken[index] = demand.num_sessions - left
    busy = [until for until, _ in free]
    return Served(tuple(taken), max(busy, default=ZERO))


def evaluate_supernode(problem: SupernodeProblem, plan: SupernodePlan) -> SupernodeEvaluation:
    """Account for a plan and name every rule it breaks; never raises for a bad one."""
    option = problem.option(plan.size, plan.tables, plan.attention_tp)
    if option is None:
        text = (
            f"supernodes of {plan.size} cards with attention over {plan.attention_tp} and tables "
            f"{plan.tables} are not among the options"
        )
        return SupernodeEvaluation((Violation("option", "plan", 1, "options", text),))
    where = _cards(plan.size)
    if plan.sessions < 1:
        text = f"groups serve {plan.sessions} sessions; the least is 1"
        short = Violation("sessions", where, 1 - plan.sessions, "sessions", text)
        return SupernodeEvaluation((short, *_check_option(problem, option)), option)
    step = step_parts(problem, option, plan.sessions)
    served = None
    if problem.is_timed:
        served = serve(problem, option, plan.sessions, step.step_s)
    used = option.weight_bytes + problem.workspace_bytes + plan.sessions * option.session_bytes
    broken = [
        *_check_option(problem, option),
        *_check_sessions(problem, plan, used),
        *_check_step(problem, where, step),
        *_check_served(problem, where, served),
    ]
    value = goal_value(problem, option, plan.sessions, step, served)
    return SupernodeEvaluation(tuple(broken), option, step, served, used, value)


def goal_value(
    problem: SupernodeProblem,
    option: Option,
    sessions: int,
    step: StepParts,
    served: Served | None,
) -> Fraction | None:
    """Return the value of the goal; None for the cost of no session."""
    if problem.goal == "sessions_per_card":
        return Fraction(sessions, option.attention_tp)
    if problem.goal == "user_rate":
        return 1 / step.step_s
    if problem.goal == "tokens_per_s_per_card":
        return sessions / (option.attention_tp * step.step_s)
    if served is None or not served.on_time:
        return None
    cost = problem.num_cards * served.end_s
    if problem.price_per_card_hour is not None:
        cost *= problem.price_per_card_hour / SECONDS_AN_HOUR
    return cost / served.on_time


def _cards(size: int) -> str:
    return "1 card" if size == 1 else f"{size} cards"


def _check_option(problem: SupernodeProblem, option: Option) -> Iterator[Violation]:
    """What an option breaks however many sessions it serves."""
    where = _cards(option.size)
    if not option.is_asked:
        text = f"tables {option.tables} are there for comparison only"
        yield Violation("not_asked", where, 1, "options", text)
    if option.alignment_cards:
        text = f"do not line up with domains, {option.alignment_cards} left over"
        yield Violation("alignment", where, option.alignment_cards, "cards", text)
    limit = problem.host_capacity_bytes
    if limit is not None and option.host_bytes > limit:
        over = option.host_bytes - limit
        text = f"{human_bytes(over)} of tables a card more than its host holds"
        yield Violation("host_memory", where, over, "B", text)
    most = problem.max_state_bytes
    if most is not None and option.state_bytes > most:
        over = option.state_bytes - most
        text = f"{over:,} B of NIC state too much over {option.num_hosts} hosts"
        yield Violation("connection_state", where, over, "B", text)
    most_s = problem.max_setup_s
    if most_s is not None and option.setup_s > most_s:
        late_s = option.setup_s - most_s
        text = f"set-up over {option.num_hosts} hosts takes {human_seconds(late_s)} too long"
        yield Violation("connection_setup", where, late_s, "s", text)


def _check_sessions(
    problem: SupernodeProblem, plan: SupernodePlan, used: int
) -> Iterator[Violation]:
    """A card holds what it has to, and a single user is alone."""
    where = _cards(plan.size)
    over = used - problem.capacity_bytes
    if over > 0:
        text = f"{human_bytes(used)} on a card, {human_bytes(over)} more than it holds"
        yield Violation("memory", where, over, "B", text)
    if problem.goal == "user_rate" and plan.sessions > 1:
        text = f"{plan.sessions} sessions; a single user is asked for"
        yield Violation("batch", where, plan.sessions - 1, "sessions", text)


def _check_step(problem: SupernodeProblem, where: str, step: StepParts) -> Iterator[Violation]:
    """A step keeps its target, and lookups end in time where they must."""
    if problem.step_target_s is not None and step.step_s > problem.step_target_s:
        late_s = step.step_s - problem.step_target_s
        text = f"a step takes {human_seconds(step.step_s)}, {human_seconds(late_s)} too long"
        yield Violation("step_target", where, late_s, "s", text)
    if problem.lookups_must_hide and step.excess_s:
        text = (
            f"lookups take {human_seconds(step.lookup_s)}, of which "
            f"{human_seconds(step.hidden_s)} are hidden"
        )
        yield Violation("lookup", where, step.excess_s, "s", text)


def _check_served(
    problem: SupernodeProblem, where: str, served: Served | None
) -> Iterator[Violation]:
    """Enough sessions end on time, one at least."""
    if served is None:
        return
    least = max(problem.min_on_time, 1)
    if served.on_time < least:
        text = f"{served.on_time:,} sessions on time of {least:,} that must be"
        yield Violation("on_time", where, least - served.on_time, "sessions", text)
