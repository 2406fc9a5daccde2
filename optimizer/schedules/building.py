"""Schedules by operation and algorithm."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.schedules import exchange, tree
from optimizer.schedules.grid import dimension_wise, hierarchical
from optimizer.schedules.halving import halving_doubling, swing
from optimizer.schedules.in_switch import in_switch
from optimizer.schedules.ring import ring
from optimizer.schedules.schedule import Schedule

_HALVES: dict[str, Callable[..., Schedule]] = {
    "ring": ring,
    "halving_doubling": halving_doubling,
    "swing": swing,
    "dimension_wise": dimension_wise,
    "hierarchical": hierarchical,
}
_ROOTED: dict[str, Callable[..., Schedule]] = {"binomial": tree.binomial, "chain": tree.chain}
_BUILDERS: dict[str, dict[str, Callable[..., Schedule]]] = {
    "all_reduce": {**_HALVES, "tree": tree.tree, "in_switch": in_switch},
    "reduce_scatter": _HALVES,
    "all_gather": _HALVES,
    "all_to_all": {
        "direct": exchange.direct,
        "pairwise": exchange.pairwise,
        "two_level": exchange.two_level,
    },
    "broadcast": _ROOTED,
    "reduce": _ROOTED,
    "send": {"direct": tree.send},
}


def algorithms(operation: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms. Raises ValueError for an unknown operation."""
    if operation not in _BUILDERS:
        raise ValueError(f"no operation is named {operation!r}; use {', '.join(_BUILDERS)}")
    return tuple(_BUILDERS[operation])


def build_schedule(operation: str, algorithm: str, num_ranks: int, **options: object) -> Schedule:
    """Return the rounds of an operation over `num_ranks` ranks.

    Options: dimension_wise takes `extents` and `rotations`; hierarchical and two_level `extents`
    (ranks per server, servers); in_switch `num_adders` or `weights`; binomial and chain `root`,
    chain also `num_segments`; direct, pairwise and two_level `counts`.

    Raises
    ------
    CollectiveUnavailable
        The algorithm does not exist on so many ranks.
    ValueError
        No such operation or algorithm, or an option is out of range.
    TypeError
        The algorithm has no such option, or one is missing.
    """
    if algorithm not in algorithms(operation):
        names = ", ".join(algorithms(operation))
        raise ValueError(f"{operation} has no algorithm {algorithm!r}; use {names}")
    if num_ranks < 1:
        raise ValueError(f"a schedule needs one rank or more, not {num_ranks}")
    return _BUILDERS[operation][algorithm](operation, num_ranks, **options)
