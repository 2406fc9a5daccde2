"""Changed copies of a problem instance, each checked against the rules again.

A copy by `model_copy` would keep pipeline cuts that were worked out for other memory, so every
change here builds the instance anew; the parts that do not change are shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, TypeVar

from pydantic import BaseModel

from instances.fleet import Pool
from instances.instance import Instance
from instances.io import validate
from instances.objective import Objective
from instances.workload import Cohort

ModelT = TypeVar("ModelT", bound=BaseModel)


def rebuilt(model: ModelT, source: str, **fields: Any) -> ModelT:
    """Return a model with other values in some fields; raises InputError for a broken rule."""
    known = {name: getattr(model, name) for name in type(model).model_fields}
    return validate(type(model), known | fields, source)


def with_fields(instance: Instance, **fields: Any) -> Instance:
    """Return the instance with other sections."""
    return rebuilt(instance, instance.name, **fields)


def with_search(instance: Instance, **fields: Any) -> Instance:
    """Return the instance with other lists or choices in its search."""
    return with_fields(instance, search=rebuilt(instance.search, instance.name, **fields))


def with_pool(instance: Instance, index: int, pool: Pool) -> Instance:
    """Return the instance with another pool in place of one."""
    pools = list(instance.fleet.pools)
    pools[index] = pool
    return with_fields(instance, fleet=rebuilt(instance.fleet, instance.name, pools=tuple(pools)))


def with_memory(instance: Instance, index: int, memory_bytes: int) -> Instance:
    """Return the instance with other card memory in one pool."""
    name, pool = instance.name, instance.fleet.pools[index]
    accelerator = rebuilt(pool.server.accelerator, name, memory_bytes=memory_bytes)
    server = rebuilt(pool.server, name, accelerator=accelerator)
    return with_pool(instance, index, rebuilt(pool, name, server=server))


def with_servers(instance: Instance, index: int, num_servers: int) -> Instance:
    """Return the instance with another number of servers in one pool."""
    pool = rebuilt(instance.fleet.pools[index], instance.name, num_servers=num_servers)
    return with_pool(instance, index, pool)


def with_connections(instance: Instance, index: int, **fields: Any) -> Instance:
    """Return the instance with other limits on the connections of one pool, which has some."""
    pool = instance.fleet.pools[index]
    assert pool.connections is not None
    connections = rebuilt(pool.connections, instance.name, **fields)
    return with_pool(instance, index, rebuilt(pool, instance.name, connections=connections))


def with_server_cards(instance: Instance, index: int, num_cards: int) -> Instance:
    """Return the instance with another number of cards in each server of one pool."""
    pool = instance.fleet.pools[index]
    server = rebuilt(pool.server, instance.name, num_cards=num_cards)
    return with_pool(instance, index, rebuilt(pool, instance.name, server=server))


def with_cohort(instance: Instance, index: int, **fields: Any) -> Instance:
    """Return the instance with other fields in one cohort."""
    cohorts: list[Cohort] = list(instance.workload.cohorts)
    cohorts[index] = rebuilt(cohorts[index], instance.name, **fields)
    return with_workload(instance, cohorts=tuple(cohorts))


def with_workload(instance: Instance, **fields: Any) -> Instance:
    """Return the instance with other fields in its workload."""
    return with_fields(instance, workload=rebuilt(instance.workload, instance.name, **fields))


def with_limit(instance: Instance, field: str, most: Fraction | int | None) -> Instance:
    """Return the instance with another limit in `objective.at_most`; None: no limit."""
    objective = instance.objective
    budget = rebuilt(objective.at_most, instance.name, **{field: most})
    return with_fields(instance, objective=rebuilt(objective, instance.name, at_most=budget))


def minimising(instance: Instance, names: Iterable[str]) -> Instance:
    """Return the instance with other objectives to minimise, and the same plans allowed.

    A cost per session on time asks for one on time wherever it is named, so the share on time is
    written out first.
    """
    workload, old = instance.workload, instance.objective
    need = Fraction(instance.min_on_time_sessions, workload.num_sessions)
    objective = Objective(minimise=tuple(names), billing=old.billing, at_most=old.at_most)
    kept = rebuilt(workload, instance.name, min_on_time_fraction=need)
    # copied, so that deadlines may be finer than a file may say; no cut depends on what changes
    return instance.model_copy(update={"workload": kept, "objective": objective})
