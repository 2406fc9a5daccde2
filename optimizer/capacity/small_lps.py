"""Many small linear programs at once, in floating point: what they return only guides.

Whoever needs a proof takes the prices, whatever they are, and counts a bound in whole numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: An entry smaller than this is taken for 0; all programs are scaled to numbers about 1.
TINY = 1e-11


def solve_many(values: Floats, rows: Floats, rooms: Floats) -> tuple[Floats, Floats]:
    """Maximise values · x with rows · x <= rooms and x >= 0, for each program of the stack.

    `values` [N, C], `rows` [N, R, C] and `rooms` [N, R], none of which is negative. Returns about
    the best x [N, C] and the prices of rows [N, R], none negative. Without a best one, x is what
    was reached when the steps ran out.
    """
    num, num_rows, size = rows.shape
    top = np.maximum(np.abs(values).max(axis=1, initial=0.0), 1e-300)
    # condensed tableau: a line for each basic variable, a column for each other one
    table = np.zeros((num, num_rows + 1, size + 1))
    table[:, :num_rows, :size] = rows
    table[:, :num_rows, -1] = rooms
    table[:, num_rows, :size] = -values / top[:, None]
    outside = np.tile(np.arange(size), (num, 1))  # x are 0.., slacks of rows size..
    basic = np.tile(np.arange(size, size + num_rows), (num, 1))
    active = np.arange(num)
    for _ in range(4 * (num_rows + size) + 20):
        part = table[active]
        costs = part[:, num_rows, :-1]
        column = costs.argmin(axis=1)
        is_open = costs[np.arange(len(active)), column] < -1e-10
        active, part, column = active[is_open], part[is_open], column[is_open]
        if not active.size:
            break
        line = _leaving(part, column, num_rows)
        at = np.arange(len(active))
        is_bounded = part[at, line, column] > TINY
        active, part, column, line = (a[is_bounded] for a in (active, part, column, line))
        table[active] = _pivoted(part, line, column)
        leaves = basic[active, line]
        basic[active, line] = outside[active, column]
        outside[active, column] = leaves
    every = np.zeros((num, size + num_rows))
    np.put_along_axis(every, basic, table[:, :num_rows, -1], axis=1)
    prices = np.zeros((num, size + num_rows))
    np.put_along_axis(prices, outside, table[:, num_rows, :-1], axis=1)
    return every[:, :size], np.maximum(prices[:, size:], 0.0) * top[:, None]


def _leaving(part: Floats, column: Ints, num_rows: int) -> Ints:
    """Return for each tableau the line that is exhausted first when a column enters."""
    entries = part[np.arange(len(part)), :num_rows, column]
    steps = np.full(entries.shape, np.inf)
    np.divide(part[:, :num_rows, -1], entries, out=steps, where=entries > TINY)
    return np.asarray(steps.argmin(axis=1))


def _pivoted(part: Floats, line: Ints, column: Ints) -> Floats:
    """Exchange the basic variable of a line for the one of a column, in every tableau."""
    at = np.arange(len(part))
    pivot = part[at, line, column]
    row = part[at, line] / pivot[:, None]
    lane = part[at, :, column].copy()
    moved = part - lane[:, :, None] * row[:, None, :]
    moved[at, line] = row
    moved[at, :, column] = -lane / pivot[:, None]
    moved[at, line, column] = 1.0 / pivot
    return moved
