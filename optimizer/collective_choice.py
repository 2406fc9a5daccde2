"""Which collectives of a footprint are worth keeping, by the times of its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from instances.quantity import human_seconds
from optimizer.collectives import MEASURED
from optimizer.plan import Footprint
from optimizer.tables import Rejection

#: A footprint with one collective, and the time of every cohort's session in s.
Priced = tuple[Footprint, tuple[Fraction, ...]]


def without_replaced(priced: Sequence[Priced]) -> tuple[list[Priced], list[Rejection]]:
    """Leave out modelled collectives where there are measured times for all they do."""
    measured = [item for item in priced if item[0].collective == MEASURED]
    if not measured:
        return list(priced), []
    rejections = []
    for built, services in priced:
        if built.collective != MEASURED:
            less = max(a - b for a, b in zip(measured[0][1], services, strict=True))
            text = f"measured times replace the model, by which {built.collective} takes "
            text += f"{human_seconds(abs(less))} a session {'less' if less > 0 else 'more'}"
            rejections.append(Rejection(built, "measured", abs(less), "s", text))
    return measured, rejections


def without_slower(priced: Sequence[Priced]) -> tuple[list[Priced], list[Rejection]]:
    """Leave out collectives that another one equals or beats for every cohort."""
    kept: list[Priced] = []
    rejections = []
    for built, services in sorted(priced, key=lambda item: item[1]):
        faster = (other for other in kept if _no_slower(other[1], services))
        best = next(faster, None)
        if best is None:
            kept.append((built, services))
            continue
        slower = max(a - b for a, b in zip(services, best[1], strict=True))
        text = f"{built.collective} takes {human_seconds(slower)} a session longer than "
        text += best[0].collective
        rejections.append(Rejection(built, "slower_collective", slower, "s", text))
    return kept, rejections


def _no_slower(mine: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    return all(a <= b for a, b in zip(mine, other, strict=True))
