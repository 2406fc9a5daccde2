"""What the busiest expert group gets, for many footprints and loads at once (6.2.6).

This is the arithmetic of `routing` written a second time, over arrays of N footprints and K loads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instances.ffn import MoeFfn
from instances.workload import Workload
from optimizer.arrays.memory import Floats, FootprintArrays, Ints, ceil_div, check_whole


def busiest_experts(
    workload: Workload, arrays: FootprintArrays, ffn: MoeFfn, new_tokens: Ints
) -> tuple[Floats, Floats]:
    """Return (assignments, distinct experts) [N, K] of the busiest expert group of a layer.

    `new_tokens` [K] are those of each attention group. Raises ValueError where groups are unequal.
    """
    chosen = ffn.experts_per_token
    check_whole(new_tokens.max(), arrays.dp.max(), chosen, 2)
    tokens = arrays.dp[:, None] * new_tokens[None, :]
    if workload.expert_counts is not None:
        return _counted(workload.expert_counts, arrays.ep, tokens * chosen)
    ep, slots = arrays.ep[:, None], (ffn.num_experts + arrays.redundant)[:, None]
    if (slots % ep).any():
        raise ValueError(f"{ffn.num_experts} experts do not form equal groups everywhere")
    if workload.routing == "expected":
        return tokens * chosen / ep, expected_distinct(tokens, slots, chosen, ep)
    if workload.routing == "balanced":
        most = ceil_div(tokens * chosen, ep)
        return most.astype(np.float64), np.minimum(slots // ep, most).astype(np.float64)
    is_packed = workload.routing == "concentrated"
    same = np.minimum(chosen, slots // ep) if is_packed else ceil_div(chosen, ep)
    distinct = np.broadcast_to(same, tokens.shape)
    return (tokens * same).astype(np.float64), distinct.astype(np.float64)


def expected_distinct(tokens: Ints, slots: Ints, chosen: int, ep: Ints) -> Floats:
    """Expected distinct experts (6-8) of each expert group, rounded up to a thousandth.

    What float64 cannot tell from a whole thousandth is worked out exactly, unless almost every
    expert is hit: then fewer than all are, by less than a thousandth.
    """
    missed_by_one = np.log1p(-np.minimum(chosen / slots, 1 - 1e-16))
    hit = np.where(slots == chosen, 1.0, -np.expm1(tokens * missed_by_one))
    most = np.broadcast_to(1000 * (slots // ep), hit.shape)
    thousandths = most * hit
    whole = np.rint(thousandths)
    found = np.minimum(np.ceil(thousandths), most)
    is_near = np.abs(thousandths - whole) <= 1e-12 * thousandths
    found = np.asarray(np.where(is_near, whole, found), dtype=np.float64)
    is_near &= whole < most
    num_experts = np.broadcast_to(slots, hit.shape)
    cases = np.stack([tokens[is_near], num_experts[is_near], most[is_near]], axis=1)
    for case in np.unique(cases, axis=0):
        count, experts, times = map(int, case)
        everything = experts**count
        exact = -(-times * (everything - (experts - chosen) ** count) // everything)
        found[is_near & (tokens == count) & (num_experts == experts) & (most == times)] = exact
    return found / 1000


def _counted(counts: Sequence[int], ep: Ints, assignments: Ints) -> tuple[Floats, Floats]:
    """Share out assignments as measured counts do, the busiest group's rounded up."""
    most, distinct = np.zeros((2, *assignments.shape))
    total = sum(counts)
    check_whole(total, assignments.max())
    for groups in np.unique(ep).tolist():
        rows = ep == groups
        padded = np.zeros(-(-len(counts) // groups) * groups, dtype=np.int64)
        padded[: len(counts)] = counts
        by_group = padded.reshape(groups, -1)
        most[rows] = ceil_div(by_group.sum(axis=1).max() * assignments[rows], total)
        distinct[rows] = (by_group > 0).sum(axis=1).max()
    return most, np.minimum(distinct, most)
