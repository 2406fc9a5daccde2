"""The best sum of several equal lanes whose sizes add up to no more than there is room for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import TooLargeError

#: Sums that are formed at most when one lane is added.
MAX_SUMS = 2_000_000

#: Steps that find the price of size.
PRICE_STEPS = 80

#: A share of values that rounding in floating point stays below.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sizes and values; `before` and `item` say which sum and which load each was made of."""

    sizes: NDArray[np.int64]
    values: NDArray[np.int64]
    before: NDArray[np.int64]
    item: NDArray[np.int64]

    def undominated(self, room: int) -> _Sums:
        """Return those that fit and are worth more than all that are no larger, by size."""
        fitting = np.flatnonzero(self.sizes <= room)
        order = fitting[np.lexsort((-self.values[fitting], self.sizes[fitting]))]
        values = self.values[order]
        is_more = np.ones(len(order), dtype=bool)
        is_more[1:] = values[1:] > np.maximum.accumulate(values)[:-1]
        return self.taken(order[is_more])

    def taken(self, kept: NDArray[np.int64]) -> _Sums:
        """Return some of them."""
        return _Sums(self.sizes[kept], self.values[kept], self.before[kept], self.item[kept])

    def plus(self, loads: _Sums) -> _Sums:
        """Return every sum with every load added."""
        num_sums, num_loads = len(self.sizes), len(loads.sizes)
        if num_sums * num_loads > MAX_SUMS:
            raise TooLargeError(f"more than {MAX_SUMS} sums of lanes")
        return _Sums(
            np.add.outer(self.sizes, loads.sizes).ravel(),
            np.add.outer(self.values, loads.values).ravel(),
            np.repeat(np.arange(num_sums), num_loads),
            np.tile(loads.item, num_sums),
        )


def best_sum(
    sizes: NDArray[np.int64], values: NDArray[np.int64], num_lanes: int, room: int, floor: int
) -> tuple[int, tuple[int, ...]] | None:
    """Return the largest value of a load on each lane within `room`, and the indices of the loads.

    One load is empty. None where no value exceeds `floor`. Raises TooLargeError for too many sums.

    Lane after lane is added. A sum is dropped when another one is no larger and worth no less, or
    when it loses so much against the price of size that it cannot exceed `floor`.
    """
    indices = np.arange(len(sizes))
    loads = _Sums(sizes, values, indices, indices).undominated(room)
    price, per_lane, bound = _price_of_size(loads, num_lanes, room)
    gap = bound - floor + ROUNDING * max(bound, 1.0)
    steps = [_Sums(*(np.zeros(1, dtype=np.int64) for _ in range(4)))]
    for lane in range(1, num_lanes + 1):
        sums = steps[-1].plus(loads).undominated(room)
        loss = per_lane * lane - (sums.values - price * sums.sizes)
        steps.append(sums.taken(np.flatnonzero(loss <= gap)))
        if not len(steps[-1].sizes):
            return None
    at = int(steps[-1].values.argmax())
    best = int(steps[-1].values[at])
    if best <= floor:
        return None
    chosen = []
    for step in reversed(steps[1:]):
        chosen.append(int(step.item[at]))
        at = int(step.before[at])
    return best, tuple(chosen)


def _price_of_size(loads: _Sums, num_lanes: int, room: int) -> tuple[float, float, float]:
    """Return a price of size, what a lane is worth beyond it at most, and the bound they give.

    The bound is num_lanes · max(value - price · size) + price · room, which is convex in the price.
    """
    sizes, values = loads.sizes.astype(np.float64), loads.values.astype(np.float64)

    def per_lane(price: float) -> float:
        return float((values - price * sizes).max())

    def bound(price: float) -> float:
        return num_lanes * per_lane(price) + price * room

    low, high = 0.0, float((values / np.maximum(sizes, 1.0)).max(initial=0.0))
    best = min((low, high), key=bound)
    for _ in range(PRICE_STEPS):
        third = (high - low) / 3
        if bound(low + third) <= bound(high - third):
            high -= third
        else:
            low += third
        best = min((best, low, high), key=bound)
    return best, per_lane(best), bound(best)
