"""Inputs about connections between servers: what a NIC holds, and how long set-up may take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.conflicts.axes import Axis
from optimizer.conflicts.changes import with_connections
from optimizer.conflicts.probing import Answer
from optimizer.surroundings.connections import host_setup_s, state_bytes


def connection_axes(instance: Instance, index: int) -> Iterator[Axis]:
    """Yield the limits on connections of one pool that more of could let instances span more."""
    pool = instance.fleet.pools[index]
    if pool.connections is None or pool.fabric_between is None or pool.num_servers == 1:
        return
    if pool.connections.cache_bytes is not None:
        yield from _cache(instance, index, pool.connections.cache_bytes)
    if pool.connections.max_setup_s is not None:
        yield from _setup(instance, index, pool.connections.max_setup_s)


def _most_hosts(answer: Answer, pool: Pool) -> int:
    """Return the most servers that a serving instance of the answer's plan spans in a pool."""
    assert answer.plan is not None
    return max((len(s.servers) for s in answer.plan if s.pool == pool.name), default=1)


def _cache(instance: Instance, index: int, has: int) -> Iterator[Axis]:
    pool = instance.fleet.pools[index]
    spec = pool.connections
    assert spec is not None
    most = state_bytes(spec, pool.num_servers) - has
    if most <= 0:
        return

    def needed(answer: Answer, steps: int) -> int:
        hosts = _most_hosts(answer, pool)
        return min(steps, max(1, state_bytes(spec, hosts) - has)) if hosts > 1 else 1

    yield Axis(
        path=f"fleet.pools[{index}].connections.cache_bytes",
        label=f"NIC cache of pool {pool.name!r}",
        unit="B",
        old=Fraction(has),
        most=most,
        at=lambda steps: with_connections(instance, index, cache_bytes=has + steps),
        value=lambda steps: Fraction(has + steps),
        furthest=lambda: with_connections(instance, index, cache_bytes=has + most),
        not_even=f"not even {human_bytes(has + most)} a NIC",
        words=lambda change, value: (
            f"{human_bytes(int(change))} more in every NIC of pool {pool.name!r}, "
            f"{human_bytes(int(value))}"
        ),
        needed=needed,
        is_ranked=True,
    )


def _setup(instance: Instance, index: int, has: Fraction) -> Iterator[Axis]:
    pool = instance.fleet.pools[index]
    spec = pool.connections
    assert spec is not None
    # every set-up time is a sum of calls and round trips
    times = (has, spec.call_s, spec.round_trip_s)
    step_s = Fraction(1, math.lcm(*(time.denominator for time in times)))
    most = int((host_setup_s(spec, pool.num_servers) - has) / step_s)
    if most <= 0:
        return

    def at(steps: int) -> Instance:
        return with_connections(instance, index, max_setup_s=has + steps * step_s)

    def needed(answer: Answer, steps: int) -> int:
        hosts = _most_hosts(answer, pool)
        least = int((host_setup_s(spec, hosts) - has) / step_s) if hosts > 1 else 1
        return min(steps, max(1, least))

    yield Axis(
        path=f"fleet.pools[{index}].connections.max_setup_s",
        label=f"connection set-up of pool {pool.name!r}",
        unit="s",
        old=has,
        most=most,
        at=at,
        value=lambda steps: has + steps * step_s,
        furthest=lambda: at(most),
        not_even=f"not even {human_seconds(has + most * step_s)}",
        words=lambda change, value: (
            f"{human_seconds(change)} more to set up connections in pool {pool.name!r}, "
            f"{human_seconds(value)}"
        ),
        needed=needed,
        is_ranked=True,
    )
