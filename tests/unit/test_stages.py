"""Cuts into pipeline stages by hand: both sides of every rule, for every method that finds them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from formulations import stages as formulation
from formulations.integer_program import BACKENDS, IntegerProgram, ProgramOutcome
from formulations.stages import StageOutcome, allowed_intervals, solve_stages
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.stages.evaluation import best_cut, best_cut_exhaustively, evaluate_stages
from optimizer.stages.problem import Stage, StageGoal, StageLayer, StageProblem

F = Fraction
Number = int | Fraction
GIB = 2**30


def layer(
    num_stages: int, weight: int = 0, kv: int = 0, state: int = 0, s: Number = 0
) -> StageLayer:
    """A layer that costs the same on every stage."""
    return StageLayer(
        (weight,) * num_stages, (kv,) * num_stages, (state,) * num_stages, (F(s),) * num_stages
    )


def without_solver(problem: StageProblem) -> dict[str, tuple[int, ...] | None]:
    """Brute force, where there are few enough cuts, and dynamic programming."""
    found = {"dynamic": best_cut(problem)}
    if len(problem.stages) <= 4:
        found["exhaustive"] = best_cut_exhaustively(problem)
    return found


def optimum(problem: StageProblem, value: Number | None, *cuts: tuple[int, ...]) -> None:
    """Every method finds a cut of this value, which is one of `cuts` if any are given."""
    found = without_solver(problem)
    for backend in BACKENDS:
        outcome = solve_stages(problem, backend, deadline=time.monotonic() + 60)
        assert outcome.termination is Termination.OPTIMAL, backend
        assert (outcome.value, outcome.bound) == (value, value), backend
        found[backend] = outcome.counts
    for method, counts in found.items():
        assert counts is not None, method
        evaluation = evaluate_stages(problem, counts)
        assert evaluation.violations == (), method
        assert evaluation.value == value, method
        assert not cuts or counts in cuts, method


def impossible(problem: StageProblem) -> None:
    """Every method says that there is no cut."""
    assert set(without_solver(problem).values()) == {None}
    for backend in BACKENDS:
        outcome = solve_stages(problem, backend, deadline=time.monotonic() + 60)
        assert outcome == StageOutcome(Termination.INFEASIBLE), backend


def broken(problem: StageProblem, counts: Sequence[int]) -> list[tuple[str, str, Number]]:
    return [(v.rule, v.where, v.amount) for v in evaluate_stages(problem, counts).violations]


# DeepSeek-R1: 3 dense layers of 0.584e9 parameters, 58 of 11.507e9, MLA KV of 1152 B on every card.
def deepseek(
    weight_bytes: int, num_stages: int, capacity: int, goal: StageGoal = "tokens"
) -> StageProblem:
    """R1 over TP8; a stage's time is its layers' bytes at 1 B/s; the head is on the last stage."""
    head = 129_280 * 7168 * weight_bytes // 8
    kinds = [(3, 584_000_000), (58, 11_507_000_000)]
    bytes_ = [params * weight_bytes // 8 for count, params in kinds for _ in range(count)]
    layers = tuple(layer(num_stages, b, 1152, s=b) for b in bytes_)
    stages = [Stage(capacity)] * (num_stages - 1) + [Stage(capacity, head)]
    return StageProblem(layers, tuple(stages), goal)


def test_d12_r1_over_eight_stages_holds_6_64_million_tokens_instead_of_3_58() -> None:
    """0.98 · 80 GiB = 84,181,359,001 B a card; a MoE layer takes 2,876,750,000 B in bf16.

    Twelve in the last stage, and a head of 231,669,760 B, leave 49,428,689,241 B for 12 · 1152 B a
    token: 3,575,570. Eight leave 61,167,359,001 B for 9216 B: 6,637,083. Eight stages of seven
    hold 56 of the 58, so some stage has eight.
    """
    problem = deepseek(2, 8, 98 * 80 * GIB // 100)
    old = evaluate_stages(problem, (7,) * 7 + (12,))
    assert old.value == old.stages[-1].max_tokens == 3_575_570
    assert evaluate_stages(problem, (7, 7, 8, 8, 8, 8, 8, 7)).value == 6_637_083
    assert evaluate_stages(problem, (6, 8, 8, 8, 8, 8, 8, 7)).value == 6_637_083
    optimum(problem, 6_637_083)
    just = dataclasses.replace(problem, held_tokens=6_637_083)
    optimum(just, 6_637_083)
    impossible(dataclasses.replace(problem, held_tokens=6_637_084))


def test_v3_over_four_stages_of_24_gb_cards_is_not_cut_15_15_15_16() -> None:
    """FP8: a MoE layer takes 1,438,375,000 B a card, the head 115,834,880 B.

    The last 16 layers and the head: 23,129,834,880 B (21.5 GiB), which leaves 870,165,120 B for
    18,432 B a token: 47,209. Of 58 MoE layers some stage has 15: 21,575,625,000 B (20.1 GiB), which
    leave 2,424,375,000 B for 17,280 B: 140,299.
    """
    problem = deepseek(1, 4, 24 * 10**9)
    old = evaluate_stages(problem, (15, 15, 15, 16))
    assert old.stages[-1].total_bytes == 23_129_834_880
    assert old.value == 47_209
    optimum(problem, 140_299)
    optimum(deepseek(1, 4, 21_575_625_000, "slowest"), 21_575_625_000)
    impossible(deepseek(1, 4, 21_575_625_000 - 1, "slowest"))


def small(
    capacities: Sequence[int] = (100, 100),
    goal: StageGoal = "slowest",
    times: Sequence[Sequence[Number]] = ((1, 1), (1, 1), (1, 1)),
    extra: Sequence[tuple[int, Number]] = ((0, 0), (0, 0)),
    **rest: Any,
) -> StageProblem:
    """Three layers: weights 4, 5, 6 B, KV 1, 2, 3 B a token, state 10, 0, 20 B a session."""
    sizes = ((4, 1, 10), (5, 2, 0), (6, 3, 20))
    layers = tuple(
        StageLayer((w, w), (kv, kv), (state, state), (F(a), F(b)))
        for (w, kv, state), (a, b) in zip(sizes, times, strict=True)
    )
    stages = tuple(Stage(c, more, F(s)) for c, (more, s) in zip(capacities, extra, strict=True))
    return StageProblem(layers, stages, goal, **rest)


@pytest.mark.parametrize(
    ("first", "last", "rest"),
    [
        (9, 6, {}),  # 4 + 5 | 6
        (9 + 7, 6 + 8, {"extra": ((7, 0), (8, 0))}),
        (9 + 5 * 3, 6 + 5 * 3, {"held_tokens": 5}),  # KV 1 + 2 | 3
        (9 + 2 * 10, 6 + 2 * 20, {"num_sessions": 2}),  # state 10 + 0 | 20
    ],
)
def test_memory_of_both_stages_to_the_byte(first: int, last: int, rest: dict[str, Any]) -> None:
    """The time of the second stage forces the cut after two layers."""
    slow = {"times": ((1, 9), (1, 9), (1, 1)), **rest}
    optimum(small((first, last), **slow), 2, (2, 1))
    short = small((first - 1, last), **slow)
    assert ("memory", "stage 0", 1) in broken(short, (2, 1))
    short = small((first, last - 1), **slow)
    assert broken(short, (2, 1)) == [("memory", "stage 1", 1)]
    impossible(short)  # a longer second stage holds more still


def test_parts_of_the_account_add_up_on_every_stage() -> None:
    """Second stage, layers 1 and 2: weights 11, extra 8, KV 5 · 5, state 2 · 20 B: 84 of 100."""
    problem = small(extra=((7, 0), (8, F(1, 3))), held_tokens=5, num_sessions=2, goal="tokens")
    use = evaluate_stages(problem, (1, 2)).stages[1]
    assert (use.first_layer, use.num_layers, use.capacity_bytes) == (1, 2, 100)
    assert (use.weight_bytes, use.extra_bytes, use.fixed_state_bytes) == (11, 8, 40)
    assert (use.kv_bytes, use.copied_kv_bytes, use.total_bytes) == (25, 0, 84)
    # 100 - 11 - 8 - 40 = 41 B for 5 B a token
    assert (use.kv_bytes_per_token, use.max_tokens, use.time_s) == (5, 8, F(7, 3))


def test_unlike_stages_get_unlike_shares() -> None:
    """A layer takes 3 s on the first stage and 1 s on the second: 3 | 2; two there: 6 | 1."""
    times = ((3, 1), (3, 1), (3, 1))
    optimum(small(times=times), 3, (1, 2))
    optimum(small(times=times, extra=((0, 0), (0, F(4, 3)))), F(10, 3), (1, 2))
    # 2 + 4 = 6 on the second is as much as two layers on the first, 1/9 s more is not
    optimum(small(times=times, extra=((0, 0), (0, 4))), 6)
    optimum(small(times=times, extra=((0, 0), (0, 4 + F(1, 9)))), 6, (2, 1))


def test_times_that_differ_by_less_than_a_float_can_tell() -> None:
    """1 + 10^-20 and 1 are one float; the cut with the larger stage is still the worse one."""
    tiny = F(1, 10**20)
    times = ((F(1, 2), 1), (F(1, 2), tiny), (1, 1))
    optimum(small(times=times), 1, (2, 1))  # (1, 2): tiny + 1 on the second


def test_tokens_are_those_of_the_stage_that_holds_least() -> None:
    """(2, 1): (39 - 9) / 3 = 10 and (39 - 6) / 3 = 11; (1, 2): 35 and (39 - 11) / 5 = 5."""
    optimum(small((39, 39), goal="tokens"), 10, (2, 1))
    optimum(small((38, 39), goal="tokens"), 9, (2, 1))
    optimum(small((42, 38), goal="tokens"), 10, (2, 1))
    optimum(small((42, 39), goal="tokens"), 11, (2, 1))
    optimum(small((42, 39), goal="tokens", held_tokens=11), 11, (2, 1))
    impossible(small((42, 39), goal="tokens", held_tokens=12))


def test_layers_without_kv_hold_any_number_of_tokens() -> None:
    """A stage without KV does not limit; no stage with KV, no limit; but weights must fit."""
    free, keeps = layer(2, 5), layer(2, 5, 2)
    stages = (Stage(10), Stage(10))
    optimum(StageProblem((free, free, keeps), stages, "tokens"), 2, (2, 1))  # (10 - 5) / 2
    optimum(StageProblem((free, free), stages, "tokens", 10**30), None, (1, 1))
    impossible(StageProblem((free, free), (Stage(10), Stage(4)), "tokens"))


def test_any_number_of_tokens_is_more_than_every_byte_could_hold() -> None:
    """Layer 1 keeps 1 B a token on the first stage, 10 tokens, and nothing on the second."""
    free, keeps = layer(2), StageLayer((0, 0), (1, 0), (0, 0), (F(0), F(0)))
    problem = StageProblem((free, keeps, free), (Stage(10), Stage(1)), "tokens")
    assert evaluate_stages(problem, (2, 1)).value == 10
    optimum(problem, None, (1, 2))


def test_a_stage_whose_weights_do_not_fit_holds_no_tokens() -> None:
    """Second stage: 6 B of weights in 5 B."""
    problem = small((39, 5), goal="tokens")
    assert evaluate_stages(problem, (2, 1)).value == 0
    assert broken(problem, (2, 1)) == [("memory", "stage 1", 1)]


def shared(sharing: Any, capacity: int = 100, **rest: Any) -> StageProblem:
    """Four layers of 1 s and 4 B; layers 2 and 3 read the KV of layer 0, 3 B a token, 7 tokens."""
    layers = (layer(2, 4, 3, s=1), *(layer(2, 4, 0, s=1) for _ in range(3)))
    return StageProblem(
        layers,
        (Stage(capacity), Stage(capacity)),
        "slowest",
        held_tokens=7,
        kv_sources=(None, None, 0, 0),
        sharing=sharing,
        **rest,
    )


def test_readers_stay_on_the_stage_of_their_source() -> None:
    """No cut keeps layers 0, 2 and 3 together and leaves the second stage a layer."""
    impossible(shared("same_stage"))
    assert broken(shared("same_stage"), (3, 1)) == [("kv_source", "stage 1", 1)]
    assert broken(shared("same_stage"), (2, 2)) == [("kv_source", "stage 1", 1)]
    one = dataclasses.replace(shared("same_stage"), kv_sources=(None, None, 0, None))
    optimum(one, 3, (3, 1))
    assert broken(one, (2, 2)) == [("kv_source", "stage 1", 1)]
    optimum(dataclasses.replace(one, kv_sources=()), 2, (2, 2))


def test_a_copy_of_the_source_is_held_once_however_many_layers_read_it() -> None:
    """(2, 2): 8 + 7 · 3 = 29 B on both stages; (1, 3): 25 and 12 + 21 = 33 B."""
    optimum(shared("copy", 29), 2, (2, 2))
    use = evaluate_stages(shared("copy", 29), (2, 2)).stages[1]
    assert (use.kv_bytes, use.copied_kv_bytes, use.outside_sources) == (0, 21, (0,))
    impossible(shared("copy", 28))
    assert broken(shared("copy", 28), (2, 2)) == [("memory", s, 1) for s in ("stage 0", "stage 1")]
    tokens = dataclasses.replace(shared("copy", 31), goal="tokens")
    # (2, 2): 23 / 3 = 7 on both; (1, 3): 27 / 3 = 9 and 19 / 3 = 6, which are not 7
    optimum(tokens, 7, (2, 2))


def test_a_copy_has_the_size_it_has_on_the_cards_of_the_reader() -> None:
    """On the second stage's cards a token of layer 0 takes 5 B: 8 + 7 · 5 = 43 B."""
    layers = list(shared("copy").layers)
    layers[0] = dataclasses.replace(layers[0], kv_bytes_per_token=(3, 5))
    problem = dataclasses.replace(shared("copy"), layers=tuple(layers))
    assert evaluate_stages(problem, (2, 2)).stages[1].total_bytes == 43
    fits = dataclasses.replace(problem, stages=(Stage(29), Stage(43)))
    optimum(fits, 2, (2, 2))
    impossible(dataclasses.replace(problem, stages=(Stage(29), Stage(42))))


def test_a_remote_read_takes_time_once_for_each_source() -> None:
    """(2, 2): 2 and 2 + r; (3, 1): 3 and 1 + r. A read of 1 s is the last for which they tie."""
    optimum(shared("remote", remote_read_s=F(2, 3)), F(8, 3), (2, 2))
    optimum(shared("remote", remote_read_s=F(1)), 3)
    optimum(shared("remote", remote_read_s=1 + F(1, 9)), 3, (3, 1))
    two = dataclasses.replace(
        shared("remote", remote_read_s=F(2, 3)), kv_sources=(None, None, 0, 1)
    )
    # (2, 2) now reads two sources: 2 + 4/3; (3, 1) reads layer 1 only
    assert evaluate_stages(two, (2, 2)).value == F(10, 3)
    optimum(two, 3, (3, 1))


def test_every_stage_needs_a_layer() -> None:
    one = layer(3, 1, s=1)
    stages = (Stage(1), Stage(1), Stage(1))
    optimum(StageProblem((one,) * 3, stages, "slowest"), 1, (1, 1, 1))
    impossible(StageProblem((one,) * 2, stages, "slowest"))
    impossible(StageProblem((one,) * 4, stages, "slowest"))  # some stage would hold 2 B


def test_counts_that_are_no_cut_are_violations_and_never_raise() -> None:
    assert broken(small(), (3,)) == [("stage_count", "cut", 1)]
    assert broken(small(), (1, 1, 1)) == [("stage_count", "cut", 1)]
    assert broken(small(), (3, 0)) == [("empty_stage", "stage 1", 1)]
    assert broken(small(), (-1, 4)) == [("empty_stage", "stage 0", 2)]
    assert broken(small(), (1, 1)) == [("layer_count", "cut", 1)]
    assert broken(small(), (9, 1)) == [("layer_count", "cut", 7)]
    assert evaluate_stages(small(), ()).value is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "layers and stages"),
        ({"stages": (Stage(1),)}, "layer 0 needs one cost"),
        ({"kv_sources": (None,)}, "one entry for every layer"),
        ({"kv_sources": (0, None, None)}, "layer 0 reads layer 0, which is not before"),
        ({"kv_sources": (None, -1, None)}, "layer 1 reads layer -1"),
        ({"kv_sources": (None, 0, 1)}, "which itself reads another"),
        ({"held_tokens": -1}, "not negative"),
        ({"remote_read_s": F(-1)}, "not negative"),
        ({"stages": (Stage(-1), Stage(1))}, "not negative"),
    ],
)
def test_data_that_does_not_fit_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(small(), **change)


def test_sizes_that_a_method_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers in two stages have two cuts and 2 + 2 intervals."""
    assert best_cut_exhaustively(small(), max_cuts=2) is not None
    with pytest.raises(TooLargeError, match="more than 1 cuts"):
        best_cut_exhaustively(small(), max_cuts=1)
    assert len(allowed_intervals(small())) == 4
    monkeypatch.setattr(formulation, "MAX_INTERVALS", 3)
    with pytest.raises(TooLargeError, match="4 intervals"):
        solve_stages(small(), "highs", deadline=time.monotonic() + 60)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_time_is_no_answer(backend: str) -> None:
    outcome = solve_stages(small(), backend, deadline=time.monotonic())
    assert outcome == StageOutcome(Termination.NO_SOLUTION_FOUND)


def answer(outcome: ProgramOutcome) -> Any:
    def solve_program(program: IntegerProgram, backend: str, **_: Any) -> ProgramOutcome:
        return outcome

    return solve_program


def test_an_unproven_cut_keeps_its_exact_value_and_the_bound_of_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layer 0 holds 35 tokens, 0 and 1 hold 10; 1 and 2 hold 5, 2 holds 11.

    The even cut (2, 1) has 10, so 1 and 2 together are left out; ranks 0, 1, 2 are 35, 11, 10.
    """
    problem = small((39, 39), goal="tokens")
    known = ProgramOutcome(Termination.FEASIBLE, (0, 1, 1, 2), 2, 1)
    monkeypatch.setattr(formulation, "solve_program", answer(known))
    expected = StageOutcome(Termination.FEASIBLE, (2, 1), 10, 11)
    assert solve_stages(problem, "highs", deadline=0) == expected
    nothing = ProgramOutcome(Termination.NO_SOLUTION_FOUND, bound=1)
    monkeypatch.setattr(formulation, "solve_program", answer(nothing))
    expected = StageOutcome(Termination.NO_SOLUTION_FOUND, bound=11)
    assert solve_stages(problem, "highs", deadline=0) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [((1, 0, 0, 0), "intervals of stages"), ((0, 1, 1, 1), "claims rank 1, its cut has rank 2")],
)
def test_answers_that_contradict_themselves_are_a_mismatch(
    values: tuple[int, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ProgramOutcome(Termination.OPTIMAL, values, 1, 1)
    monkeypatch.setattr(formulation, "solve_program", answer(wrong))
    with pytest.raises(MismatchError, match=message):
        solve_stages(small((39, 39), goal="tokens"), "highs", deadline=0)
