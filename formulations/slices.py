"""The slices of a torus as an integer program (slices.md)."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from formulations.integer_program import IntegerProgram, solve_program
from optimizer.errors import MismatchError, TooLargeError
from optimizer.protocols import Termination
from optimizer.slices.problem import Chip, Shape, SlicePlacement, SliceProblem

#: More chips of all blocks together than this and the formulation declines.
MAX_TERMS = 400_000


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """How a solve ended: places of the slices, the chips they take, and a bound on all placements.

    Value and bound are chips; bound >= value.
    """

    termination: Termination
    placement: SlicePlacement | None = None
    value: int | None = None
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class SliceClass:
    """Requests that allow the same shapes, by index: they are interchangeable."""

    shapes: tuple[Shape, ...]
    members: tuple[int, ...]

    @property
    def num_chips(self) -> int:
        """Chips of one slice."""
        return math.prod(self.shapes[0])


@dataclass(frozen=True, slots=True)
class Block:
    """A place for a slice of a class; `chips` are numbers of chips, all free."""

    of_class: int
    shape: Shape
    origin: Chip
    chips: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceModel:
    """The program; the variable of a block has the block's index."""

    problem: SliceProblem
    classes: tuple[SliceClass, ...]
    blocks: tuple[Block, ...]
    program: IntegerProgram
    left_out: tuple[int, ...]


def solve_slices(
    problem: SliceProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> SliceOutcome:
    """Place slices; `deadline` is a `time.monotonic()` value. Raises as `solve_program` does."""
    m = build_model(problem)
    found = solve_program(
        m.program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
    )
    if found.termination is Termination.INFEASIBLE:
        raise MismatchError(f"{backend} says that not even an empty torus is a placement")
    requested = sum(request.num_chips for request in problem.requests)
    bound = None if found.bound is None else requested - max(found.bound, 0)
    if found.values is None or found.objective is None:
        return SliceOutcome(found.termination, bound=bound)
    placement = extract(m, found.values)
    pairs = zip(problem.requests, placement, strict=True)
    value = sum(request.num_chips for request, place in pairs if place is not None)
    if value != requested - found.objective:
        raise MismatchError(
            f"{backend} claims {requested - found.objective} chips, its places take {value}"
        )
    return SliceOutcome(found.termination, placement, value, bound)


def slice_classes(problem: SliceProblem) -> tuple[SliceClass, ...]:
    """Return the classes of requests, in the order in which they first come."""
    members: dict[tuple[Shape, ...], list[int]] = {}
    for r, request in enumerate(problem.requests):
        members.setdefault(tuple(sorted(set(request.shapes))), []).append(r)
    return tuple(SliceClass(shapes, tuple(of)) for shapes, of in members.items())


def free_blocks(problem: SliceProblem, classes: Sequence[SliceClass]) -> tuple[Block, ...]:
    """Return every block of free chips of every class, no set of chips twice in a class."""
    strides = [math.prod(problem.extents[axis + 1 :]) for axis in range(len(problem.extents))]
    axes = list(zip(problem.extents, strides, strict=True))
    taken = {
        sum(at * stride for at, stride in zip(chip, strides, strict=True))
        for chip in problem.occupied
    }
    found: list[Block] = []
    num_terms = 0
    for c, group in enumerate(classes):
        for shape in group.shapes:
            if any(s > e for s, e in zip(shape, problem.extents, strict=True)):
                continue
            sides = zip(shape, problem.extents, strict=True)
            for origin in itertools.product(*(range(e if s < e else 1) for s, e in sides)):
                steps = (
                    [(o + i) % e * stride for i in range(s)]
                    for s, o, (e, stride) in zip(shape, origin, axes, strict=True)
                )
                chips = tuple(map(sum, itertools.product(*steps)))
                if taken.isdisjoint(chips):
                    found.append(Block(c, shape, origin, chips))
                    num_terms += len(chips)
            if num_terms > MAX_TERMS:
                raise TooLargeError(
                    f"the blocks have more than {MAX_TERMS} chips; the formulation takes no more"
                )
    return tuple(found)


def build_model(problem: SliceProblem) -> SliceModel:
    """State the program: least chips of slices that are left out. Raises TooLargeError."""
    classes = slice_classes(problem)
    blocks = free_blocks(problem, classes)
    program = IntegerProgram("slices")
    for number, block in enumerate(blocks):
        program.add_variable(f"takes[{block.of_class},{number}]", 0, 1)
    left_out = tuple(
        program.add_variable(f"left_out[{c}]", 0, len(group.members))
        for c, group in enumerate(classes)
    )
    m = SliceModel(problem, classes, blocks, program, left_out)
    define_slices(m)
    define_chips(m)
    program.minimise({v: c.num_chips for v, c in zip(left_out, classes, strict=True)})
    return m


def define_slices(m: SliceModel) -> None:
    """Every slice of a class takes one block or is left out."""
    terms = [{v: 1} for v in m.left_out]
    for b, block in enumerate(m.blocks):
        terms[block.of_class][b] = 1
    for c, group in enumerate(m.classes):
        m.program.add_row(f"slices[{c}]", terms[c], len(group.members), len(group.members))


def define_chips(m: SliceModel) -> None:
    """No chip belongs to two blocks that are taken."""
    holders: dict[int, dict[int, int]] = {}
    for b, block in enumerate(m.blocks):
        for chip in block.chips:
            holders.setdefault(chip, {})[b] = 1
    for chip, terms in sorted(holders.items()):
        if len(terms) > 1:
            m.program.add_row(f"chip[{chip}]", terms, None, 1)


def extract(m: SliceModel, values: Sequence[int]) -> SlicePlacement:
    """Deal the blocks of each class to its requests, in the order of both."""
    places: dict[int, tuple[int, Chip]] = {}
    waiting = [iter(group.members) for group in m.classes]
    for block, is_taken in zip(m.blocks, values, strict=False):
        if is_taken:
            r = next(waiting[block.of_class])
            places[r] = m.problem.requests[r].shapes.index(block.shape), block.origin
    return tuple(places.get(r) for r in range(len(m.problem.requests)))
