"""Exact account of slices on a torus, bound, oracle, and placements without a solver (6.5.4)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from optimizer.errors import TooLargeError
from optimizer.evaluation import Violation
from optimizer.slices.problem import (
    Chip,
    Place,
    Shape,
    SlicePlacement,
    SliceProblem,
    SliceRequest,
)

#: How often `improved_slices` starts anew at most.
MAX_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class SliceEvaluation:
    """Account of a placement: the chips of every slice, none where it is not placed.

    A place that is no block of the torus is a violation and takes no part in the account.
    """

    chips: tuple[tuple[Chip, ...], ...]
    num_free_chips: int
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def num_placed(self) -> int:
        """Slices that are placed."""
        return sum(1 for chips in self.chips if chips)

    @property
    def value(self) -> int:
        """Chips of the slices that are placed."""
        return sum(map(len, self.chips))


def block_chips(extents: Sequence[int], shape: Shape, origin: Chip) -> tuple[Chip, ...]:
    """Return the chips of a block, in the order of growing distance from its first chip."""
    axes = zip(extents, shape, origin, strict=True)
    return tuple(itertools.product(*([(o + i) % e for i in range(s)] for e, s, o in axes)))


def evaluate_slices(problem: SliceProblem, placement: Sequence[Place | None]) -> SliceEvaluation:
    """Account for a placement and name every rule it breaks; never raises for a bad one."""
    broken = list(_check_count(problem, placement))
    holders: Counter[Chip] = Counter()
    chips: list[tuple[Chip, ...]] = []
    for request, place in zip(problem.requests, placement, strict=False):
        wrong = [] if place is None else list(_check_block(problem, request, place))
        broken += wrong
        if place is None or wrong:
            chips.append(())
            continue
        block = block_chips(problem.extents, request.shapes[place[0]], place[1])
        broken += _check_chips(problem, request, block, holders)
        holders.update(block)
        chips.append(block)
    left = problem.num_free_chips - len(holders.keys() - problem.occupied)
    return SliceEvaluation(tuple(chips), left, tuple(broken))


def _check_count(problem: SliceProblem, placement: Sequence[Place | None]) -> Iterator[Violation]:
    off = abs(len(placement) - len(problem.requests))
    if off:
        message = f"{len(placement)} places for {len(problem.requests)} slices"
        yield Violation("slice_count", "placement", off, "slices", message)


def _check_block(problem: SliceProblem, request: SliceRequest, place: Place) -> Iterator[Violation]:
    """The shape is one of the slice's, begins on the torus, and does not run into itself."""
    index, origin = place
    where, last = f"slice {request.name}", len(request.shapes) - 1
    if not 0 <= index <= last:
        off = -index if index < 0 else index - last
        message = f"{where} takes shape {index}, but its shapes are 0 to {last}"
        yield Violation("shape", where, off, "shapes", message)
    else:
        for axis, (s, e) in enumerate(zip(request.shapes[index], problem.extents, strict=True)):
            if s > e:
                message = f"{where} is {s} chips long on axis {axis}, which has {e}"
                yield Violation("extent", where, s - e, "chips", message)
    if len(origin) != len(problem.extents):
        off = abs(len(origin) - len(problem.extents))
        message = f"{where} begins at {origin}, but the torus has {len(problem.extents)} axes"
        yield Violation("outside", where, off, "axes", message)
        return
    for axis, (at, e) in enumerate(zip(origin, problem.extents, strict=True)):
        if not 0 <= at < e:
            off = -at if at < 0 else at - e + 1
            message = f"{where} begins at {at} on axis {axis}, whose chips are 0 to {e - 1}"
            yield Violation("outside", where, off, "chips", message)


def _check_chips(
    problem: SliceProblem, request: SliceRequest, block: Sequence[Chip], holders: Counter[Chip]
) -> Iterator[Violation]:
    """The chips of a block are free, and no slice before it holds one."""
    where = f"slice {request.name}"
    taken = sum(chip in problem.occupied for chip in block)
    if taken:
        message = f"{where} needs {taken} chips that are occupied"
        yield Violation("occupied", where, taken, "chips", message)
    shared = sum(chip in holders for chip in block)
    if shared:
        message = f"{where} needs {shared} chips that slices before it hold"
        yield Violation("overlap", where, shared, "chips", message)


#: A place on free chips, and those chips.
FreePlace = tuple[Place, tuple[Chip, ...]]


def free_places(problem: SliceProblem) -> list[list[FreePlace]]:
    """Return for each request its places on free chips, in the order of shape and origin.

    No set of chips comes twice: an axis that a block fills all round has one beginning. Requests
    with the same shapes share one list.
    """
    known: dict[tuple[Shape, ...], list[FreePlace]] = {}
    for request in problem.requests:
        if request.shapes not in known:
            known[request.shapes] = list(_free_places(problem, request))
    return [known[request.shapes] for request in problem.requests]


def _free_places(problem: SliceProblem, request: SliceRequest) -> Iterator[FreePlace]:
    for index, shape in enumerate(request.shapes):
        sides = list(zip(shape, problem.extents, strict=True))
        if shape in request.shapes[:index] or any(s > e for s, e in sides):
            continue
        for origin in itertools.product(*(range(e if s < e else 1) for s, e in sides)):
            block = block_chips(problem.extents, shape, origin)
            if problem.occupied.isdisjoint(block):
                yield (index, origin), block


def best_slices_exhaustively(problem: SliceProblem, max_steps: int = 1_000_000) -> SlicePlacement:
    """Return a placement with the most chips, by trying every place of every slice in turn.

    Left out is only what cannot beat the best so far even if all slices left were placed. Raises
    TooLargeError when more than `max_steps` places would be tried.
    """
    choices = free_places(problem)
    sizes = [request.num_chips for request in problem.requests]
    held: set[Chip] = set()
    places: list[Place | None] = []
    best: tuple[int, SlicePlacement] = (-1, ())
    steps = 0

    def visit(value: int) -> None:
        nonlocal best, steps
        if value + sum(sizes[len(places) :]) <= best[0]:
            return
        if len(places) == len(choices):
            best = value, tuple(places)
            return
        for place, block in choices[len(places)]:
            steps += 1
            if steps > max_steps:
                raise TooLargeError(f"more than {max_steps} places of slices to try")
            if held.isdisjoint(block):
                held.update(block)
                places.append(place)
                visit(value + len(block))
                places.pop()
                held.difference_update(block)
        places.append(None)
        visit(value)
        places.pop()

    visit(0)
    return best[1]


def slice_bound(problem: SliceProblem) -> int:
    """Return a number of chips that no placement exceeds, without a search.

    Two chips belong to one region if a free block has both, or if chips in between link them. A
    slice lies in one region, so the slices of a region take together a sum of sizes that is no
    larger than the region; and all of them take a sum of sizes that is no larger than those sums.
    """
    choices = free_places(problem)
    distinct = {request.shapes: i for i, request in enumerate(problem.requests)}
    region_of = _regions(choices[i] for i in distinct.values())
    regions = {
        shapes: {region_of[block[0]] for _, block in choices[i]} for shapes, i in distinct.items()
    }
    most = 0
    for region, num_chips in Counter(region_of.values()).items():
        most += _largest_sum(
            [r.num_chips for r in problem.requests if region in regions[r.shapes]], num_chips
        )
    return _largest_sum([r.num_chips for r in problem.requests if regions[r.shapes]], most)


def _regions(choices: Iterable[Sequence[FreePlace]]) -> dict[Chip, Chip]:
    """Return for each chip of any place the chip that its region is named after."""
    parent: dict[Chip, Chip] = {}

    def root(chip: Chip) -> Chip:
        while parent[chip] != chip:
            parent[chip] = parent[parent[chip]]
            chip = parent[chip]
        return chip

    for places in choices:
        for _, block in places:
            into = root(parent.setdefault(block[0], block[0]))
            for chip in block:
                parent[root(parent.setdefault(chip, chip))] = into
    return {chip: root(chip) for chip in parent}


def _largest_sum(sizes: Sequence[int], limit: int) -> int:
    """Return the largest sum of some of the sizes that is at most `limit`."""
    sums = 1  # bit n: some of them add up to n
    for size in sizes:
        sums |= (sums << size) & ((1 << (limit + 1)) - 1)
    return sums.bit_length() - 1


def first_slices(problem: SliceProblem) -> SlicePlacement:
    """Place slices as they are requested, each where it fits first: what a plain allocator does."""
    held: set[Chip] = set()
    placement: list[Place | None] = []
    for places in free_places(problem):
        fitting = (p for p in places if held.isdisjoint(p[1]))
        place, block = next(fitting, (None, ()))
        held.update(block)
        placement.append(place)
    return tuple(placement)


def improved_slices(
    problem: SliceProblem, is_over: Callable[[], bool] = lambda: False
) -> SlicePlacement:
    """Place large slices first, each where most chips around it are taken; then try other orders.

    Returns the best found when it meets `slice_bound`, after `MAX_ROUNDS`, or once `is_over`.
    """
    best, bound, rng = first_slices(problem), slice_bound(problem), Random(0)
    value = evaluate_slices(problem, best).value
    if value >= bound or is_over():
        return best
    packer = _Packer(problem)
    order = sorted(range(len(best)), key=lambda r: -problem.requests[r].num_chips)
    for number in range(MAX_ROUNDS):
        if value >= bound or is_over():
            break
        if number:
            keys = [request.num_chips * rng.uniform(0.5, 1) for request in problem.requests]
            order = sorted(range(len(best)), key=keys.__getitem__, reverse=True)
        placement = packer.pack(order)
        packed = evaluate_slices(problem, placement).value
        if packed > value:
            best, value = placement, packed
    return best


class _Packer:
    """Free blocks of every request as sets of bits, one bit a chip."""

    def __init__(self, problem: SliceProblem) -> None:
        self.extents = problem.extents
        self.taken = self._bits(problem.occupied)
        known: dict[tuple[Shape, ...], list[tuple[int, int, Place]]] = {}
        for request, places in zip(problem.requests, free_places(problem), strict=True):
            if request.shapes not in known:
                known[request.shapes] = [
                    (self._bits(block), self._bits(self._around(block)), place)
                    for place, block in places
                ]
        #: Of each request: chips of a block, chips around them, place.
        self.blocks = [known[request.shapes] for request in problem.requests]

    def _bits(self, chips: Iterable[Chip]) -> int:
        total = 0
        for chip in set(chips):
            position = 0
            for at, extent in zip(chip, self.extents, strict=True):
                position = position * extent + at
            total |= 1 << position
        return total

    def _around(self, block: Sequence[Chip]) -> Iterator[Chip]:
        """Yield the chips next to a block, and some of its own."""
        for chip, axis, step in itertools.product(block, range(len(self.extents)), (1, -1)):
            moved = list(chip)
            moved[axis] = (moved[axis] + step) % self.extents[axis]
            yield tuple(moved)

    def pack(self, order: Sequence[int]) -> SlicePlacement:
        """Place slices in an order."""
        taken = self.taken
        places: list[Place | None] = [None] * len(self.blocks)
        for r in order:
            bits, most = 0, -1
            for chips, around, place in self.blocks[r]:
                if not taken & chips and (taken & around).bit_count() > most:
                    bits, most, places[r] = chips, (taken & around).bit_count(), place
            taken |= bits
        return tuple(places)
