"""A mix of accelerators by hand: loads, prices, broken rules, bounds, rounding, lying solvers."""

from __future__ import annotations

import dataclasses
import time
from fractions import Fraction

import pytest

from formulations import mix as formulation
from formulations.integer_program import BACKENDS, IntegerProgram, ProgramOutcome
from formulations.mix import build_model, load_row, solve_mix
from optimizer.errors import MismatchError, TooLargeError
from optimizer.mix.evaluation import evaluate_mix, mix_bound
from optimizer.mix.problem import Bucket, Mix, MixKind, MixProblem
from optimizer.mix.search import (
    best_mix_exhaustively,
    cheapest_by_request,
    first_mix,
    improved_mix,
    mixes_of_one_kind,
)
from optimizer.protocols import Termination

F = Fraction


def mix_of(
    kinds: list[tuple[str, int | None, list[object]]], requests: list[object], pieces: int = 1
) -> MixProblem:
    """Kinds are (price, most, rates); numbers may be text, so that 0.1 is a tenth."""
    return MixProblem(
        tuple(
            MixKind(f"k{g}", F(price), most, tuple(F(str(rate)) for rate in rates))
            for g, (price, most, rates) in enumerate(kinds)
        ),
        tuple(Bucket(f"b{b}", F(str(rate))) for b, rate in enumerate(requests)),
        pieces,
    )


#: Mélange's example: 30 requests a second, of which 20, 10, 50 and 20 % fall in a bucket.
PUBLISHED = mix_of([("1.01", None, [2, 1, 5, 2]), ("3.67", None, [20, 20, 40, 20])], [6, 3, 15, 6])


def optimum(problem: MixProblem, price: str | None) -> None:
    """Brute force and all solvers come to a price; None: no mix serves all."""
    best = best_mix_exhaustively(problem)
    if price is None:
        assert best is None
    else:
        assert best is not None
        judged = evaluate_mix(problem, best)
        assert (judged.violations, judged.price_per_hour) == ((), F(price))
    for backend in BACKENDS:
        found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
        if price is None:
            assert (found.termination, found.mix) == (Termination.INFEASIBLE, None), backend
            continue
        assert found.termination is Termination.OPTIMAL, backend
        assert (found.value, found.bound) == (F(price), F(price)), backend
        assert found.mix is not None
        judged = evaluate_mix(problem, found.mix)
        assert (judged.violations, judged.price_per_hour) == ((), F(price)), backend


def broken(problem: MixProblem, counts: tuple[int, ...], *pieces: tuple[int, ...]) -> object:
    violations = evaluate_mix(problem, Mix(counts, pieces)).violations
    return [(v.rule, v.where, v.amount) for v in violations]


def test_the_published_example() -> None:
    """A10G takes buckets of loads 6/2 or 3/1 or 15/5 or 6/2 = 3 each, A100 .3, .15, .375 and .3.

    All on A100 are a load of 1.125, so two: 7.34. One bucket on three A10G leaves less than one.
    """
    optimum(PUBLISHED, "6.70")
    alone = mixes_of_one_kind(PUBLISHED)
    assert [mix.counts for mix in alone] == [(0, 2), (12, 0)]
    assert first_mix(PUBLISHED) == alone[0]
    mix = Mix((3, 1), ((1, 0), (0, 1), (0, 1), (0, 1)))
    judged = evaluate_mix(PUBLISHED, mix)
    assert (judged.loads, judged.price_per_hour) == ((3, F(825, 1000)), F("6.70"))
    assert judged.is_feasible
    improved = improved_mix(PUBLISHED)
    assert improved is not None
    assert evaluate_mix(PUBLISHED, improved).price_per_hour == F("6.70")
    assert improved_mix(PUBLISHED, lambda: True) == alone[0]


def test_pieces_let_a_bucket_go_to_two_kinds() -> None:
    """Three requests a second; one big sustains 2 and costs 3, one small 1 and costs 2.

    Undivided: two big (6) or three small (6). In three pieces: two on a big, one on a small, 5.
    """
    kinds: list[tuple[str, int | None, list[object]]] = [("3", None, [2]), ("2", None, [1])]
    optimum(mix_of(kinds, [3]), "6")
    optimum(mix_of(kinds, [3], pieces=3), "5")
    optimum(mix_of(kinds, [3], pieces=2), "6")  # 1.5 on a big, 1.5 on two small: 7


@pytest.mark.parametrize(("rate", "price"), [("2", "2"), ("2.0001", "3"), ("1.9999", "2")])
def test_a_load_that_just_fits_and_a_hair_more(rate: str, price: str) -> None:
    problem = mix_of([("1", None, [1])], [rate])
    optimum(problem, price)
    rules = broken(problem, (2,), (1,))
    assert rules == ([("short", "accelerator k0", 1)] if price == "3" else [])


def test_no_more_than_may_be_had() -> None:
    """Two cheap ones would do, at 2; with one of them half goes to the dear kind, at 1 + 5."""
    optimum(mix_of([("1", 2, [1]), ("5", None, [1])], [2], pieces=2), "2")
    optimum(mix_of([("1", 1, [1]), ("5", None, [1])], [2], pieces=2), "6")
    optimum(mix_of([("1", 1, [1]), ("5", None, [1])], [2], pieces=1), "10")
    optimum(mix_of([("1", 1, [1]), ("5", 1, [1])], [2], pieces=2), "6")
    optimum(mix_of([("1", 1, [1]), ("5", 0, [1])], [2], pieces=2), None)


def test_a_bucket_that_nobody_serves() -> None:
    problem = mix_of([("1", None, [1, 0]), ("2", None, [1, 0])], [1, 1])
    optimum(problem, None)
    assert mix_bound(problem) is None
    assert first_mix(problem) is None
    assert improved_mix(problem) is None
    optimum(mix_of([("1", None, [1, 0])], [1, 0]), "1")  # without requests all serve it
    optimum(mix_of([("0", 2, [1]), ("3", None, [1])], [3], pieces=3), "3")  # two are owned
    optimum(mix_of([("0", None, [1])], [3]), "0")


def test_every_rule_is_measured() -> None:
    problem = mix_of([("1", 3, [1, 2]), ("5", None, [4, 0])], [4, 2], pieces=2)
    # bucket 0 is a load of 2 a piece on k0 and 1/2 on k1; bucket 1 is 1/2 a piece on k0
    assert broken(problem, (3, 1), (1, 1), (2, 0)) == []
    assert broken(problem, (2, 1), (1, 1), (2, 0)) == [("short", "accelerator k0", 1)]
    assert broken(problem, (1, 1), (1, 1), (2, 0)) == [("short", "accelerator k0", 2)]
    assert broken(problem, (4, 1), (1, 1), (2, 0)) == [("max_count", "accelerator k0", 1)]
    assert broken(problem, (3, 1), (1, 0), (2, 0)) == [("bucket", "bucket b0", 1)]
    assert broken(problem, (3, 1), (1, 2), (2, 0)) == [("bucket", "bucket b0", 1)]
    assert broken(problem, (3, 1), (1, 1), (1, 1)) == [("cannot_serve", "bucket b1", 1)]
    assert broken(problem, (3, 1), (3, -1), (2, 0)) == [
        *[("negative", "bucket b0", 1), ("short", "accelerator k0", 4)],
    ]
    assert broken(problem, (-1, 1), (0, 2), (2, 0)) == [
        *[("negative", "accelerator k0", 1), ("short", "accelerator k0", 1)],
    ]
    assert broken(problem, (3,), (1, 1), (2, 0)) == [
        *[("kind_count", "mix", 1), ("short", "accelerator k1", 1)],
    ]
    assert broken(problem, (3, 1, 1), (1, 1), (2, 0)) == [("kind_count", "mix", 1)]
    assert broken(problem, (2, 1), (1, 1)) == [("bucket_count", "mix", 1)]
    assert broken(problem, (3, 1), (1, 1), (2, 0), (2, 0)) == [("bucket_count", "mix", 1)]
    assert broken(problem, (3, 1), (1, 1), (2,)) == [("kind_count", "bucket b1", 1)]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"kinds": ()}, "needs an accelerator"),
        ({"buckets": ()}, "needs an accelerator"),
        ({"pieces_per_bucket": 0}, "needs an accelerator"),
        ({"kinds": PUBLISHED.kinds * 2}, "accelerators need names of their own"),
        ({"buckets": PUBLISHED.buckets[:1] * 4}, "buckets need names of their own"),
        ({"buckets": PUBLISHED.buckets[:3]}, "rates for 4 of 3 buckets"),
        ({"buckets": (*PUBLISHED.buckets[:3], Bucket("x", F(-1)))}, "0 or more a second"),
        ({"kinds": (MixKind("x", F(-1), None, (F(1),) * 4),)}, "price and count"),
        ({"kinds": (MixKind("x", F(1), -1, (F(1),) * 4),)}, "price and count"),
        ({"kinds": (MixKind("x", F(1), None, (F(-1),) * 4),)}, "rates are 0 or more"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(PUBLISHED, **changes)  # type: ignore[arg-type]


def test_the_bound_adds_up_prices() -> None:
    """A100 serves all for 1.125 · 3.67 = 4.12875 when shared out; four A10G cost less, 4.04.

    The next sum is 1.01 + 3.67 = 4.68.
    """
    assert mix_bound(PUBLISHED) == F("4.68")
    assert mix_bound(mix_of([("1.5", None, [1]), ("2.5", None, [1])], [2])) == 3
    # sums of 1.5 and 2.5 from 3.3 on: 4, as 1.5 + 2.5
    assert mix_bound(mix_of([("1.5", None, [1]), ("2.5", None, [1])], ["2.2"])) == 4
    # prices with too many sums to list: the least number of units is left, here of 1e-9
    fine = mix_of([("1.000000001", None, [1]), ("1.5", None, [1])], ["1.5"])
    assert mix_bound(fine) == F("1.500000002")
    assert mix_bound(mix_of([("1", None, [1])], [0])) == 0


def test_a_cheap_request_may_need_more_than_may_be_had() -> None:
    problem = mix_of([("1", 1, [1]), ("5", None, [1])], [2], pieces=2)
    cheap = cheapest_by_request(problem)
    assert cheap is not None
    assert [v.rule for v in evaluate_mix(problem, cheap).violations] == ["max_count"]
    improved = improved_mix(problem)
    assert improved is not None
    judged = evaluate_mix(problem, improved)
    assert (judged.violations, judged.price_per_hour) == ((), 6)


def test_loads_are_whole_numbers_of_their_common_part() -> None:
    """Loads 6/2, 3/1, 15/5, 6/2 are whole; .3, .15, .375, .3 are multiples of 1/40."""
    model = build_model(PUBLISHED)
    assert model.is_exact
    assert model.price_unit == F("0.01")
    # (12 + 6 + 15 + 12) + 40 = 85 is the weight of the row
    row = load_row(PUBLISHED, 1, 85, is_rounded_up=False)
    assert (row.piece_units, row.card_units) == ({0: 12, 1: 6, 2: 15, 3: 12}, 40)
    assert row.is_exact
    # one less: (84 - 4) / (1.125 + 1) = 37 units a card; .3, .15 and .375 are 11.1, 5.55, 13.875
    down = load_row(PUBLISHED, 1, 84, is_rounded_up=False)
    assert (down.piece_units, down.card_units) == ({0: 11, 1: 5, 2: 13, 3: 11}, 37)
    up = load_row(PUBLISHED, 1, 84, is_rounded_up=True)
    assert (up.piece_units, up.card_units) == ({0: 12, 1: 6, 2: 14, 3: 12}, 37)
    assert not down.is_exact
    assert not up.is_exact


@pytest.mark.parametrize("backend", BACKENDS)
def test_fine_loads_are_proven_between_down_and_up(backend: str) -> None:
    """Loads whose common denominator has many digits on both kinds."""
    kinds: list[tuple[str, int | None, list[object]]] = [
        ("1", None, ["1.009", "1.013", "1.019"]),
        ("9.5", None, ["10.07", "10.37", "10.39"]),
    ]
    problem = mix_of(kinds, ["3.0000001", "3.0000003", "3.0000007"], pieces=3)
    assert not build_model(problem, formulation.MAX_WEIGHT[backend]).is_exact
    found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
    best = best_mix_exhaustively(problem)
    assert best is not None
    price = evaluate_mix(problem, best).price_per_hour
    assert (found.termination, found.value, found.bound) == (Termination.OPTIMAL, price, price)


@pytest.mark.parametrize("backend", ["highs", "cbc"])
def test_what_rounding_cannot_tell_apart_is_not_proven(backend: str) -> None:
    """A load of 1.0000001 is one card rounded down, two rounded up; CP-SAT takes the row whole."""
    problem = mix_of([("1", None, [1])], ["1.0000001"])
    found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
    assert found.termination is Termination.FEASIBLE
    assert (found.value, found.bound) == (2, 1)
    exact = solve_mix(problem, "cp-sat", deadline=time.monotonic() + 60)
    assert (exact.termination, exact.value, exact.bound) == (Termination.OPTIMAL, 2, 2)
    one = dataclasses.replace(problem, kinds=(MixKind("k0", F(1), 1, (F(1),)),))
    found = solve_mix(one, backend, deadline=time.monotonic() + 60)
    assert (found.termination, found.mix, found.bound) == (Termination.NO_SOLUTION_FOUND, None, 1)
    exact = solve_mix(one, "cp-sat", deadline=time.monotonic() + 60)
    assert exact.termination is Termination.INFEASIBLE


@pytest.mark.parametrize("backend", ["highs", "cbc"])
def test_finer_rows_prove_what_the_first_rounding_cannot(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three loads of 1/3 + 1/301 = 304/903 each come to 1.00997 cards, so two are needed.

    The row weighs 912 + 903. With 305 in all there are (305 - 3) / 2.00997 = 150 units a card, and
    a load is floor(50.498) = 50: one card seems enough. With 149, floor(50.16) = 50 tell.
    """
    problem = mix_of([("1", None, [1, 1, 1])], ["304/903"] * 3)
    monkeypatch.setitem(formulation.MAX_WEIGHT, backend, 305)
    row = load_row(problem, 0, 305, is_rounded_up=False)
    assert (row.piece_units, row.card_units, row.is_exact) == ({0: 50, 1: 50, 2: 50}, 150, False)
    found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
    assert (found.termination, found.value, found.bound) == (Termination.OPTIMAL, 2, 2)
    monkeypatch.setattr(formulation, "MAX_ROUNDS", 1)
    found = solve_mix(problem, backend, deadline=time.monotonic() + 60)
    assert (found.termination, found.value, found.bound) == (Termination.FEASIBLE, 2, 1)


def test_moves_count_loads_too_fine_for_whole_numbers() -> None:
    """Loads with 80 denominators of their own, each a little over a tenth: 8.1 cards in all."""
    requests: list[object] = [f"0.10{1000 + 7 * b}" for b in range(80)]
    rates: list[object] = [f"1.0{1000 + 3 * b}" for b in range(80)]
    problem = mix_of([("1", None, rates), ("3", None, rates)], requests)
    improved = improved_mix(problem)
    assert improved is not None
    judged = evaluate_mix(problem, improved)
    assert judged.violations == ()
    assert judged.price_per_hour == mix_bound(problem) == 9


def test_large_problems_are_declined() -> None:
    with pytest.raises(TooLargeError, match="more than 5 splits"):
        best_mix_exhaustively(PUBLISHED, max_steps=5)
    with pytest.raises(TooLargeError, match="too large to state"):
        build_model(mix_of([("1", None, ["0.0000001"])], [3000]))
    fine = mix_of([("1.0000000001", None, [1]), ("1", None, [1])], [2])
    with pytest.raises(TooLargeError, match="objective"):
        solve_mix(fine, "cp-sat", deadline=time.monotonic() + 60)


def test_limits_and_lies_of_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    late = solve_mix(PUBLISHED, "highs", deadline=time.monotonic() - 1)
    assert (late.termination, late.mix) == (Termination.NO_SOLUTION_FOUND, None)
    model = build_model(PUBLISHED)
    values = [0] * len(model.program.variables)
    for b in range(4):
        values[model.gives[b, 1]] = 1
    values[model.counts[1]] = 2

    def says(outcome: ProgramOutcome) -> None:
        def solve(program: IntegerProgram, *_: object, **__: object) -> ProgramOutcome:
            return outcome

        monkeypatch.setattr(formulation, "solve_program", solve)

    says(ProgramOutcome(Termination.OPTIMAL, tuple(values), 700, 700))
    with pytest.raises(MismatchError, match="claims a price of 7, its mix costs 367/50"):
        solve_mix(PUBLISHED, "highs", deadline=0)
    says(ProgramOutcome(Termination.OPTIMAL, tuple(values), 800, 800))
    with pytest.raises(MismatchError, match="claims a price of 8"):
        solve_mix(PUBLISHED, "highs", deadline=0)
    # before the optimum more may be counted than is needed; the price is that of the mix
    says(ProgramOutcome(Termination.FEASIBLE, tuple(values), 800, 500))
    found = solve_mix(PUBLISHED, "highs", deadline=0)
    assert (found.termination, found.value, found.bound) == (Termination.FEASIBLE, F("7.34"), 5)
    says(ProgramOutcome(Termination.FEASIBLE, tuple(values), 800, 750))
    with pytest.raises(MismatchError, match="no mix costs less than 15/2"):
        solve_mix(PUBLISHED, "highs", deadline=0)
    says(ProgramOutcome(Termination.NO_SOLUTION_FOUND, bound=500))
    found = solve_mix(PUBLISHED, "highs", deadline=0)
    assert (found.termination, found.mix, found.bound) == (Termination.NO_SOLUTION_FOUND, None, 5)
