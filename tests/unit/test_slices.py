"""Slices on a torus by hand: both sides of every rule, for every method that places them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable

import pytest

from formulations import slices as formulation
from formulations.integer_program import BACKENDS, IntegerProgram, ProgramOutcome
from formulations.slices import build_model, slice_classes, solve_slices
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.slices.evaluation import (
    best_slices_exhaustively,
    block_chips,
    evaluate_slices,
    first_slices,
    improved_slices,
    slice_bound,
)
from optimizer.slices.problem import Chip, Place, Shape, SliceProblem, SliceRequest

GRID = (4, 4)
ALL = frozenset(itertools.product(range(4), repeat=2))


def wanted(*shapes: Shape | tuple[Shape, ...]) -> tuple[SliceRequest, ...]:
    """Slices named 0, 1, ... with one shape or several."""
    each = [s if isinstance(s[0], tuple) else (s,) for s in shapes]
    return tuple(SliceRequest(str(i), s) for i, s in enumerate(each))  # type: ignore[arg-type]


def on(
    extents: tuple[int, ...], occupied: Iterable[Chip], *shapes: Shape | tuple[Shape, ...]
) -> SliceProblem:
    return SliceProblem(extents, frozenset(occupied), wanted(*shapes))


def optimum(problem: SliceProblem, value: int) -> None:
    """Every method places so many chips and no more; the bound does not cut them off."""
    found = {"exhaustive": best_slices_exhaustively(problem)}
    for backend in BACKENDS:
        outcome = solve_slices(problem, backend, deadline=time.monotonic() + 60)
        assert outcome.termination is Termination.OPTIMAL, backend
        assert (outcome.value, outcome.bound) == (value, value), backend
        assert outcome.placement is not None
        found[backend] = outcome.placement
    for method, placement in found.items():
        evaluation = evaluate_slices(problem, placement)
        assert evaluation.violations == (), method
        assert evaluation.value == value, method
    for placement in (first_slices(problem), improved_slices(problem)):
        evaluation = evaluate_slices(problem, placement)
        assert evaluation.violations == ()
        assert evaluation.value <= value
    assert slice_bound(problem) >= value


def broken(problem: SliceProblem, *places: Place | None) -> list[tuple[str, str, int]]:
    return [(v.rule, v.where, v.amount) for v in evaluate_slices(problem, places).violations]


def test_two_free_rows_of_a_4x4_grid_hold_two_2x2_slices() -> None:
    """Rows 1 and 2: eight chips, two blocks of four."""
    occupied = {chip for chip in ALL if chip[0] in (0, 3)}
    problem = on(GRID, occupied, (2, 2), (2, 2))
    optimum(problem, 8)
    assert slice_bound(problem) == 8
    evaluation = evaluate_slices(problem, ((0, (1, 0)), (0, (1, 2))))
    assert (evaluation.num_placed, evaluation.num_free_chips) == (2, 0)
    # a third one finds no chip
    optimum(on(GRID, occupied, (2, 2), (2, 2), (2, 2)), 8)


def test_a_checkerboard_of_eight_free_chips_holds_none() -> None:
    occupied = {chip for chip in ALL if sum(chip) % 2}
    problem = on(GRID, occupied, (2, 2), (2, 2))
    assert problem.num_free_chips == 8
    optimum(problem, 0)
    assert slice_bound(problem) == 0
    assert best_slices_exhaustively(problem) == (None, None)


def test_a_block_wraps_round_the_torus_but_not_round_a_grid() -> None:
    """Free are the four corners: on a torus they are one 2x2 block that begins at (3, 3)."""
    corners = {(0, 0), (0, 3), (3, 0), (3, 3)}
    problem = on(GRID, ALL - corners, (2, 2))
    optimum(problem, 4)
    assert best_slices_exhaustively(problem) == ((0, (3, 3)),)
    # the same grid without the closing links: one more layer of occupied chips on each axis
    edge = {(4, i) for i in range(5)} | {(i, 4) for i in range(5)}
    optimum(on((5, 5), (ALL - corners) | edge, (2, 2)), 0)


def test_a_shape_is_turned_only_if_it_is_listed_turned() -> None:
    """One free column of four chips, (0..3, 2)."""
    column = ALL - {(i, 2) for i in range(4)}
    optimum(on(GRID, column, (1, 4)), 0)
    optimum(on(GRID, column, ((1, 4), (4, 1))), 4)
    optimum(on(GRID, column, ((2, 2), (4, 1))), 4)
    # eight free chips, a column and a block: the slices have to take different shapes
    room = ALL - {(i, 2) for i in range(4)} - {(i, j) for i in (0, 1) for j in (0, 1)}
    optimum(on(GRID, room, ((2, 2), (4, 1)), ((2, 2), (4, 1))), 8)


def test_chips_count_and_not_slices() -> None:
    """A ring of six chips: one slice of five leaves one chip; three of two take all six."""
    optimum(on((6,), (), (5,), (2,), (2,), (2,)), 6)
    optimum(on((6,), (), (5,), (2,), (2,)), 5)
    optimum(on((6,), (), (5,), (1,), (2,), (2,)), 6)


def test_a_5x5_torus_holds_five_2x2_slices_and_not_six() -> None:
    """A row of five chips meets two blocks at most; five rows meet ten, and each block meets two
    rows: five blocks. By area, 25 over 4, six would fit.
    """
    optimum(on((5, 5), (), *[(2, 2)] * 5), 20)
    optimum(on((5, 5), (), *[(2, 2)] * 6), 20)
    assert slice_bound(on((5, 5), (), *[(2, 2)] * 6)) == 24


def test_three_axes() -> None:
    """4x4x4 holds eight 2x2x2; one occupied chip spoils one of them, wherever blocks begin."""
    eight = [(2, 2, 2)] * 8
    problem = on((4, 4, 4), (), *eight)
    for backend in BACKENDS:
        outcome = solve_slices(problem, backend, deadline=time.monotonic() + 60)
        assert (outcome.value, outcome.bound) == (64, 64), backend
    less = dataclasses.replace(problem, occupied=frozenset({(1, 2, 3)}))
    assert slice_bound(less) == 56
    for backend in BACKENDS:
        outcome = solve_slices(less, backend, deadline=time.monotonic() + 60)
        assert (outcome.value, outcome.bound) == (56, 56), backend


def test_an_axis_that_is_filled_all_round_has_one_beginning() -> None:
    """(4, 2) fills axis 0: four beginnings on axis 1 are left, of which two fit together."""
    problem = on(GRID, (), (4, 2), (4, 2))
    assert len(build_model(problem).blocks) == 4
    optimum(problem, 16)
    assert evaluate_slices(problem, ((0, (3, 1)), (0, (2, 3)))).violations == ()


@pytest.mark.parametrize(("extent", "value"), [(3, 0), (4, 4)])
def test_a_shape_longer_than_the_torus_does_not_fit(extent: int, value: int) -> None:
    problem = on((extent, 2), (), (4, 1))
    optimum(problem, value)
    rules = broken(problem, (0, (0, 0)))
    assert rules == ([] if value else [("extent", "slice 0", 1)])


def test_every_rule_is_measured() -> None:
    """The left half is free: chips (0..3, 0..1)."""
    problem = on(GRID, {c for c in ALL if c[1] > 1}, ((2, 2), (4, 1)), (2, 2))
    assert broken(problem, (0, (0, 0)), (0, (2, 0))) == []
    assert broken(problem, None, None) == []
    assert broken(problem, (1, (0, 0)), (0, (0, 0))) == [("overlap", "slice 1", 2)]
    assert broken(problem, (0, (0, 0)), (0, (1, 0))) == [("overlap", "slice 1", 2)]
    assert broken(problem, (0, (0, 1)), None) == [("occupied", "slice 0", 2)]
    assert broken(problem, (0, (3, 3)), None) == [("occupied", "slice 0", 2)]
    assert broken(problem, (2, (0, 0)), None) == [("shape", "slice 0", 1)]
    assert broken(problem, (-2, (0, 0)), None) == [("shape", "slice 0", 2)]
    assert broken(problem, (0, (0, 5)), None) == [("outside", "slice 0", 2)]
    assert broken(problem, (0, (-1, 0)), None) == [("outside", "slice 0", 1)]
    assert broken(problem, (0, (0,)), None) == [("outside", "slice 0", 1)]
    assert broken(problem, None) == [("slice_count", "placement", 1)]
    assert broken(problem, None, None, None) == [("slice_count", "placement", 1)]
    wrong = evaluate_slices(problem, ((0, (0, 5)), (0, (2, 0))))
    assert (wrong.value, wrong.num_placed, wrong.num_free_chips) == (4, 1, 4)
    assert not wrong.is_feasible


def test_the_chips_of_a_block_that_wraps() -> None:
    assert block_chips((4, 3), (2, 2), (3, 2)) == ((3, 2), (3, 0), (0, 2), (0, 0))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"extents": ()}, "one to three axes"),
        ({"extents": (2, 2, 2, 2)}, "one to three axes"),
        ({"extents": (4, 0)}, "one to three axes"),
        ({"occupied": frozenset({(4, 0)})}, "not on the torus"),
        ({"occupied": frozenset({(0, 0, 0)})}, "not on the torus"),
        ({"requests": ()}, "needs slices"),
        ({"requests": wanted((1, 1)) * 2}, "names of their own"),
        ({"requests": (SliceRequest("a", ()),)}, "has no shape"),
        ({"requests": wanted((2,))}, "needs one number of chips"),
        ({"requests": wanted((2, 0))}, "needs one number of chips"),
        ({"requests": wanted(((2, 2), (3, 1)))}, "differ in their chips"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], rule: str) -> None:
    good = on(GRID, {(3, 0)}, ((2, 2), (4, 1)))
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(good, **changes)  # type: ignore[arg-type]


def test_the_bound_sees_regions_and_sums() -> None:
    """Two free rows of three, apart: a slice of two fits into each once, so 4 of 6 chips.

    A slice of three more fits as well, but 2 + 3 is more than a row: 3 + 2.
    """
    occupied = {(i, j) for i in range(4) for j in range(4) if i % 2 or j == 3}
    assert slice_bound(on(GRID, occupied, *[(1, 2)] * 3)) == 4
    problem = on(GRID, occupied, (1, 3), (1, 2), (1, 2))
    assert slice_bound(problem) == 5
    optimum(problem, 5)


def test_improved_slices_beat_first_slices() -> None:
    """First fit puts the small slice into the only room of the large one.

    Free are a row of four and, apart from it, a row of two.
    """
    occupied = set(itertools.product(range(4), range(6))) - {(0, j) for j in range(4)}
    occupied -= {(2, 0), (2, 1)}
    problem = on((4, 6), occupied, (1, 2), (1, 4))
    assert evaluate_slices(problem, first_slices(problem)).value == 2
    assert improved_slices(problem) == ((0, (2, 0)), (0, (0, 0)))
    assert improved_slices(problem, lambda: True) == first_slices(problem)
    optimum(problem, 6)


def test_slices_with_the_same_shapes_are_one_class_whatever_their_order() -> None:
    problem = on(GRID, (), ((2, 2), (4, 1)), (2, 2), ((4, 1), (2, 2), (4, 1)))
    assert [c.members for c in slice_classes(problem)] == [(0, 2), (1,)]
    # each names the shape by its own list: free are one column and one 2x2 block
    free = {(i, 3) for i in range(4)} | {(0, 0), (0, 1), (1, 0), (1, 1)}
    tight = on(GRID, ALL - free, ((2, 2), (4, 1)), ((4, 1), (2, 2)))
    optimum(tight, 8)


def test_large_problems_are_declined() -> None:
    with pytest.raises(TooLargeError, match="more than 20 places"):
        best_slices_exhaustively(on((5, 5), (), *[(2, 2)] * 6), max_steps=20)
    big = on((16, 16, 16), (), (8, 8, 8))
    with pytest.raises(TooLargeError, match="chips"):
        build_model(big)


def test_limits_and_lies_of_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = on(GRID, (), (2, 2))
    late = solve_slices(problem, "highs", deadline=time.monotonic() - 1)
    assert (late.termination, late.placement) == (Termination.NO_SOLUTION_FOUND, None)

    def infeasible(program: IntegerProgram, *_: object, **__: object) -> ProgramOutcome:
        return ProgramOutcome(Termination.INFEASIBLE)

    monkeypatch.setattr(formulation, "solve_program", infeasible)
    with pytest.raises(MismatchError, match="empty torus"):
        solve_slices(problem, "highs", deadline=time.monotonic() + 60)

    def boasting(program: IntegerProgram, *_: object, **__: object) -> ProgramOutcome:
        return ProgramOutcome(Termination.OPTIMAL, (0,) * len(program.variables), 0, 0)

    monkeypatch.setattr(formulation, "solve_program", boasting)
    with pytest.raises(MismatchError, match="claims 4 chips, its places take 0"):
        solve_slices(problem, "highs", deadline=time.monotonic() + 60)


def test_a_bound_without_a_placement_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def bounded(program: IntegerProgram, *_: object, **__: object) -> ProgramOutcome:
        return ProgramOutcome(Termination.NO_SOLUTION_FOUND, bound=4)

    monkeypatch.setattr(formulation, "solve_program", bounded)
    outcome = solve_slices(on(GRID, (), (2, 2), (2, 2)), "highs", deadline=0)
    assert (outcome.placement, outcome.value, outcome.bound) == (None, None, 4)
