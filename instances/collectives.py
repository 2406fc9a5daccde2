"""Names of the algorithms that add up vectors over cards (section 6.4)."""

from __future__ import annotations

from typing import Literal

CollectiveName = Literal[
    "ring",
    "tree",
    "halving_doubling",
    "swing",
    "dimension_wise",
    "hierarchical",
    "in_switch",
    "measured",
]

#: Stands between the names of several collectives, of which every message takes the fastest.
COLLECTIVE_SEPARATOR = "|"
