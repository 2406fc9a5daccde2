"""Sums of step times over many contexts in closed form, unlike the evaluator's step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

from instances.tensors import StatePart
from optimizer.steps import StepTime


def sum_convex(value: Callable[[int], int], first: int, end: int) -> int:
    """Sum a convex function over the whole numbers first..end-1, straight stretches at once.

    A convex function that lies on its chord in the middle lies on it everywhere in between.
    """
    if end - first <= 2:
        return sum(value(n) for n in range(first, end))
    last, middle = end - 1, (first + end - 1) // 2
    low, high = value(first), value(last)
    if (last - first) * value(middle) == low * (last - middle) + high * (middle - first):
        return (low + high) * (end - first) // 2
    return sum_convex(value, first, middle) + sum_convex(value, middle, end)


def sum_ticks(step: StepTime, parts: Iterable[StatePart], first: int, count: int) -> int:
    """Sum a step's ticks over `count` contexts from `first` on, in closed form.

    Between the contexts at which a window fills or a selection is complete, and among contexts
    with the same remainder by every compression ratio, a step's time is convex.
    """
    parts = tuple(parts)
    period = math.lcm(*(part.tokens_per_entry for part in parts))
    bends = {part.window for part in parts if part.window is not None}
    bends |= {
        part.max_read_entries * part.tokens_per_entry
        for part in parts
        if part.max_read_entries is not None
    }
    if count <= 4 * period:
        return sum(step.ticks(tokens) for tokens in range(first, first + count))
    total = 0
    inner = sorted(bend for bend in bends if first < bend < first + count)
    for begin, end in pairwise((first, *inner, first + count)):
        for offset in range(min(period, end - begin)):
            start, terms = begin + offset, -((begin + offset - end) // period)

            def at(n: int, start: int = start) -> int:
                return step.ticks(start + n * period)

            total += sum_convex(at, 0, terms)
    return total
