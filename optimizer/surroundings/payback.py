"""When a change that costs time once has paid for itself (sections 6.4.3 and 6.5.4)."""

from __future__ import annotations

import math
from fractions import Fraction


def uses_to_repay(cost_s: Fraction, before_s: Fraction, after_s: Fraction) -> int | None:
    """Return the fewest uses n with n·(before_s - after_s) >= cost_s; None if there is none.

    The cost is the switch of an optical circuit, or the search S of a tuning that saves Δ a call:
    at least S/Δ calls.

    Parameters
    ----------
    cost_s
        Seconds that the change takes, once.
    before_s, after_s
        Seconds of one use without and with it.

    Raises
    ------
    ValueError
        For a negative time.
    """
    if min(cost_s, before_s, after_s) < 0:
        raise ValueError("times are at least 0 s")
    if cost_s == 0:
        return 0
    saved_s = before_s - after_s
    return math.ceil(Fraction(cost_s) / saved_s) if saved_s > 0 else None
