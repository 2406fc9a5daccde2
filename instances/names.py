"""Names that must not come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def check_once(names: Iterable[str], what: str) -> None:
    """Raise ValueError for the first name that comes more than once: "WHAT 'a' appears 2 times"."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{what} {name!r} appears {times} times")
