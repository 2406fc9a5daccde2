"""Exact account of a cut into stages, and two exact ways to find the best one without a solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from optimizer.errors import TooLargeError
from optimizer.evaluation import Violation
from optimizer.stages.problem import StageProblem


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage holds on a card and how long it takes.

    `copied_kv_bytes` is the part of the KV that belongs to layers of other stages, for the tokens
    that must fit. `max_tokens` is None where tokens take no memory.
    """

    first_layer: int
    num_layers: int
    weight_bytes: int
    extra_bytes: int
    kv_bytes: int
    copied_kv_bytes: int
    fixed_state_bytes: int
    capacity_bytes: int
    kv_bytes_per_token: int
    max_tokens: int | None
    time_s: Fraction
    outside_sources: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Everything on a card."""
        parts = (self.weight_bytes, self.extra_bytes, self.kv_bytes, self.copied_kv_bytes)
        return sum(parts) + self.fixed_state_bytes


@dataclass(frozen=True, slots=True)
class StageEvaluation:
    """Account of a cut; `stages` is empty when the counts make no cut.

    `value` is the slowest stage's time in s, or the tokens that fit on every stage, None where
    memory does not limit them; it is None too when the counts make no cut.
    """

    stages: tuple[StageUse, ...]
    violations: tuple[Violation, ...]
    value: Fraction | int | None

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


@dataclass(slots=True)
class _Account:
    """Running sums of consecutive layers on one stage."""

    problem: StageProblem
    stage: int
    first_layer: int
    num_layers: int = 0
    weight_bytes: int = 0
    own_kv: int = 0  # bytes per token
    copied_kv: int = 0  # bytes per token
    state_bytes: int = 0  # per session
    time_s: Fraction = Fraction(0)
    is_timed: bool = True
    outside: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time_s = self.problem.stages[self.stage].extra_time_s

    def add_layer(self) -> None:
        """Take the next layer, and its source if that lies before the first layer."""
        problem, s, number = self.problem, self.stage, self.first_layer + self.num_layers
        layer, source = problem.layers[number], problem.source_of(number)
        self.num_layers += 1
        self.weight_bytes += layer.weight_bytes[s]
        self.own_kv += layer.kv_bytes_per_token[s]
        self.state_bytes += layer.fixed_state_bytes[s]
        if self.is_timed:
            self.time_s += layer.time_s[s]
        if source is None or source >= self.first_layer or source in self.outside:
            return
        self.outside.append(source)
        if problem.sharing == "copy":
            self.copied_kv += problem.layers[source].kv_bytes_per_token[s]
        if problem.sharing == "remote":
            self.time_s += problem.remote_read_s

    @property
    def free_bytes(self) -> int:
        """Bytes left for KV; negative when the rest does not fit."""
        stage = self.problem.stages[self.stage]
        state = self.problem.num_sessions * self.state_bytes
        return stage.capacity_bytes - stage.extra_bytes - self.weight_bytes - state

    @property
    def kv_per_token(self) -> int:
        return self.own_kv + self.copied_kv

    @property
    def max_tokens(self) -> int | None:
        """Tokens that fit; None where they take no memory, 0 where the rest does not fit."""
        if self.free_bytes < 0:
            return 0
        return self.free_bytes // self.kv_per_token if self.kv_per_token else None

    @property
    def is_allowed(self) -> bool:
        """Whether memory suffices and no source lies on a stage where it must not."""
        if self.outside and self.problem.sharing == "same_stage":
            return False
        return self.problem.held_tokens * self.kv_per_token <= self.free_bytes

    def use(self) -> StageUse:
        """Return the account in its final form."""
        problem, stage = self.problem, self.problem.stages[self.stage]
        return StageUse(
            first_layer=self.first_layer,
            num_layers=self.num_layers,
            weight_bytes=self.weight_bytes,
            extra_bytes=stage.extra_bytes,
            kv_bytes=problem.held_tokens * self.own_kv,
            copied_kv_bytes=problem.held_tokens * self.copied_kv,
            fixed_state_bytes=problem.num_sessions * self.state_bytes,
            capacity_bytes=stage.capacity_bytes,
            kv_bytes_per_token=self.kv_per_token,
            max_tokens=self.max_tokens,
            time_s=self.time_s,
            outside_sources=tuple(self.outside),
        )


def evaluate_stages(problem: StageProblem, counts: Sequence[int]) -> StageEvaluation:
    """Account for a cut; never raises for a bad one, but lists what is broken and by how much."""
    broken = _shape_violations(problem, counts)
    if broken:
        return StageEvaluation((), tuple(broken), None)
    uses, first = [], 0
    for s, count in enumerate(counts):
        uses.append(_use(problem, s, first, first + count))
        first += count
    for s, use in enumerate(uses):
        broken += _stage_violations(problem, s, use)
    return StageEvaluation(tuple(uses), tuple(broken), _value(problem, uses))


def _use(problem: StageProblem, s: int, first: int, end: int) -> StageUse:
    account = _Account(problem, s, first)
    for _ in range(first, end):
        account.add_layer()
    return account.use()


def _value(problem: StageProblem, uses: Sequence[StageUse]) -> Fraction | int | None:
    if problem.goal == "slowest":
        return max(use.time_s for use in uses)
    return min((use.max_tokens for use in uses if use.max_tokens is not None), default=None)


def _shape_violations(problem: StageProblem, counts: Sequence[int]) -> list[Violation]:
    """Return what keeps counts from being a cut."""
    num_stages, num_layers = len(problem.stages), len(problem.layers)
    if len(counts) != num_stages:
        off = abs(len(counts) - num_stages)
        message = f"{len(counts)} counts for {num_stages} stages"
        return [Violation("stage_count", "cut", off, "stages", message)]
    broken = [
        Violation("empty_stage", f"stage {s}", 1 - n, "layers", f"stage {s} has {n} layers")
        for s, n in enumerate(counts)
        if n < 1
    ]
    if sum(counts) != num_layers:
        off = abs(sum(counts) - num_layers)
        message = f"the stages have {sum(counts)} layers, the model {num_layers}"
        broken.append(Violation("layer_count", "cut", off, "layers", message))
    return broken


def _stage_violations(problem: StageProblem, s: int, use: StageUse) -> Iterator[Violation]:
    where, over = f"stage {s}", use.total_bytes - use.capacity_bytes
    if over > 0:
        message = f"{where} needs {use.total_bytes} B a card and may use {use.capacity_bytes} B"
        yield Violation("memory", where, over, "B", message)
    if use.outside_sources and problem.sharing == "same_stage":
        listed = ", ".join(map(str, use.outside_sources))
        message = f"{where} reads KV of layers that it does not hold: {listed}"
        yield Violation("kv_source", where, len(use.outside_sources), "layers", message)


def best_cut_exhaustively(problem: StageProblem, max_cuts: int = 200_000) -> tuple[int, ...] | None:
    """Return the best cut, the first of equals in the order of counts, or None; tries every one.

    Raises TooLargeError when there are more than `max_cuts`.
    """
    num_layers, num_stages = len(problem.layers), len(problem.stages)
    if math.comb(num_layers - 1, num_stages - 1) > max_cuts:
        raise TooLargeError(f"more than {max_cuts} cuts of {num_layers} layers")
    judged: dict[tuple[int, int, int], Fraction | int | None] = {}
    best: tuple[int, ...] | None = None
    least: Fraction | int | None = None
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        worst: Fraction | int | None = None
        for s, (first, end) in enumerate(itertools.pairwise((0, *inner, num_layers))):
            key = (s, first, end)
            if key not in judged:
                judged[key] = _judge(problem, *key)
            loss = judged[key]
            if loss is None:
                break
            worst = loss if worst is None else max(worst, loss)
        else:
            if worst is not None and (least is None or worst < least):
                ends = (0, *inner, num_layers)
                best, least = tuple(b - a for a, b in itertools.pairwise(ends)), worst
    return best


def _judge(problem: StageProblem, s: int, first: int, end: int) -> Fraction | int | None:
    """Return the loss of a run of layers on stage s, None where it breaks a rule."""
    use = _use(problem, s, first, end)
    if any(_stage_violations(problem, s, use)):
        return None
    return _loss(problem, _value(problem, [use]))


def _loss(problem: StageProblem, value: Fraction | int | None) -> Fraction | int:
    """Return what is to be least: seconds, or tokens with their sign turned."""
    if problem.goal == "slowest":
        assert value is not None
        return value
    unlimited = max(stage.capacity_bytes for stage in problem.stages) + 1
    return -(unlimited if value is None else value)


def best_cut(problem: StageProblem) -> tuple[int, ...] | None:
    """Return the best cut or None, by dynamic programming.

    `reached[i]` is the least loss of the worst stage when the stages so far hold layers 0..i-1. Of
    equal cuts it returns the one whose last stage begins first, then the stage before it, and on.
    """
    num_layers = len(problem.layers)
    reached: dict[int, Fraction | int | None] = {0: None}
    steps: list[dict[int, int]] = []  # per stage: its end and the first layer that led there
    for s in range(len(problem.stages)):
        after: dict[int, Fraction | int | None] = {}
        came_from: dict[int, int] = {}
        for first, loss in reached.items():
            for end, own in _allowed(problem, s, first):
                worst = own if loss is None else max(own, loss)
                known = after.get(end)
                if known is None or worst < known:
                    after[end], came_from[end] = worst, first
        reached = after
        steps.append(came_from)
    if num_layers not in reached:
        return None
    ends = [num_layers]
    for came_from in reversed(steps):
        ends.append(came_from[ends[-1]])
    ends.reverse()
    return tuple(b - a for a, b in itertools.pairwise(ends))


def _allowed(problem: StageProblem, s: int, first: int) -> Iterator[tuple[int, Fraction | int]]:
    """Yield (end, loss) of every run of layers from `first` that stage s may hold.

    A longer run holds and reads more, so the first one that is not allowed ends the search.
    """
    account, stages_left = _Account(problem, s, first), len(problem.stages) - 1 - s
    account.is_timed = problem.goal == "slowest"
    last_end = len(problem.layers) - stages_left
    while account.first_layer + account.num_layers < last_end:
        account.add_layer()
        if not account.is_allowed:
            return
        value = account.time_s if problem.goal == "slowest" else account.max_tokens
        yield first + account.num_layers, _loss(problem, value)
