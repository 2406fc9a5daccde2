"""Data of one decision: place slices, each a block of chips, on a torus (6.5.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: A chip: one coordinate on each axis of the torus.
Chip = tuple[int, ...]

#: Chips of a block along each axis of the torus.
Shape = tuple[int, ...]

#: Where a slice stands: the index of its shape, and the chip at which its block begins.
Place = tuple[int, Chip]

#: For each requested slice its place, or None where it is not placed.
SlicePlacement = tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """A slice that somebody wants: any one of the shapes will do, and no other.

    (2, 4) is not (4, 2): a shape that may be turned is listed turned as well.
    """

    name: str
    shapes: tuple[Shape, ...]

    @property
    def num_chips(self) -> int:
        """Chips of the slice, whichever shape it takes."""
        return math.prod(self.shapes[0])


@dataclass(frozen=True, slots=True)
class SliceProblem:
    """Place requested slices on the free chips of a torus so that they take as many as possible.

    A block begins at any chip and goes on in the direction of growing coordinates, past the end of
    an axis to its beginning. No chip belongs to two slices, none of an occupied chip to any. A grid
    that does not close is a torus with one more layer of chips on each axis, all occupied.

    Raises ValueError for a torus without 1 to 3 axes or without chips, an occupied chip outside it,
    no request, a name that comes twice, and shapes of one slice that are none, have an axis too
    many, too few or empty, or differ in their chips.
    """

    #: Chips along each axis, one to three axes.
    extents: tuple[int, ...]
    occupied: frozenset[Chip]
    requests: tuple[SliceRequest, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.extents) <= 3 or min(self.extents) < 1:
            raise ValueError("a torus has one to three axes, each with a chip or more")
        for chip in sorted(self.occupied):
            if not self.has_chip(chip):
                raise ValueError(f"occupied chip {chip} is not on the torus {self.extents}")
        if not self.requests:
            raise ValueError("a placement needs slices")
        if len({r.name for r in self.requests}) != len(self.requests):
            raise ValueError("slices need names of their own")
        for request in self.requests:
            self._check_shapes(request)

    def _check_shapes(self, request: SliceRequest) -> None:
        if not request.shapes:
            raise ValueError(f"slice {request.name!r} has no shape")
        for shape in request.shapes:
            if len(shape) != len(self.extents) or min(shape) < 1:
                raise ValueError(
                    f"slice {request.name!r}: shape {shape} needs one number of chips, 1 or more, "
                    f"for each of the {len(self.extents)} axes"
                )
        if len({math.prod(shape) for shape in request.shapes}) > 1:
            raise ValueError(f"the shapes of slice {request.name!r} differ in their chips")

    def has_chip(self, chip: Chip) -> bool:
        """Whether coordinates name a chip of the torus."""
        if len(chip) != len(self.extents):
            return False
        return all(0 <= at < extent for at, extent in zip(chip, self.extents, strict=True))

    @property
    def num_free_chips(self) -> int:
        """Chips that are not occupied."""
        return math.prod(self.extents) - len(self.occupied)
