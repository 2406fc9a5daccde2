"""Inputs about what there is and what is asked: memory, cards, sessions, context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from instances.instance import Instance
from instances.quantity import human_bytes
from optimizer.conflicts.axes import Axis
from optimizer.conflicts.changes import (
    rebuilt,
    with_cohort,
    with_fields,
    with_memory,
    with_server_cards,
    with_servers,
)
from optimizer.conflicts.connections import connection_axes
from optimizer.conflicts.constraints import (
    BILLED,
    ample_memory_bytes,
    cuts_depend_on_memory,
    more_servers,
)
from optimizer.conflicts.probing import Answer
from optimizer.evaluate import evaluate
from optimizer.words import plural

#: Steps tried one by one where more steps may also do harm.
SCANNED = 16


def quantity_axes(instance: Instance) -> Iterator[Axis]:
    """Yield memory, workspace, connections, servers, then sessions and context of each cohort."""
    for i in range(len(instance.fleet.pools)):
        yield from _memory(instance, i)
    yield from _workspace(instance)
    for i in range(len(instance.fleet.pools)):
        yield from connection_axes(instance, i)
    for i in range(len(instance.fleet.pools)):
        yield from _servers(instance, i)
    for i in range(len(instance.workload.cohorts)):
        yield from _sessions(instance, i)
        yield from _context(instance, i)


def _kept(
    answer: Answer, at: Callable[[int], Instance], least: int, steps: int, is_monotone: bool
) -> int:
    """Return the steps that a plan needs for its bytes; as many as it has if its cut goes wrong."""
    assert answer.plan is not None
    return least if is_monotone or evaluate(at(least), answer.plan).is_feasible else steps


def _memory(instance: Instance, index: int) -> Iterator[Axis]:
    pool, share = instance.fleet.pools[index], instance.runtime.usable_memory_fraction
    has, is_monotone = pool.server.accelerator.memory_bytes, not cuts_depend_on_memory(instance)
    most = ample_memory_bytes(instance)
    if has >= most:
        return

    def at(steps: int) -> Instance:
        return with_memory(instance, index, has + steps)

    def needed(answer: Answer, steps: int) -> int:
        assert answer.evaluation is not None
        used = [c.total_bytes for c in answer.evaluation.cards if c.pool == pool.name]
        least = min(steps, max(1, math.ceil(max(used, default=0) / share) - has))
        return _kept(answer, at, least, steps, is_monotone)

    def words(change: Fraction, value: Fraction) -> str:
        each = f"{human_bytes(int(change))} more on every card of pool {pool.name!r}"
        return f"{each}, {human_bytes(int(value))}"

    yield Axis(
        path=f"fleet.pools[{index}].server.accelerator.memory_bytes",
        label=f"memory of pool {pool.name!r}",
        unit="B",
        old=Fraction(has),
        most=most - has,
        at=at,
        value=lambda steps: Fraction(has + steps),
        furthest=lambda: at(most - has),
        not_even=f"not even {human_bytes(most)} a card",
        words=words,
        needed=needed,
        is_ranked=True,
        is_monotone=is_monotone,
    )


def _workspace(instance: Instance) -> Iterator[Axis]:
    has, is_monotone = instance.runtime.workspace_bytes, not cuts_depend_on_memory(instance)
    if not has:
        return

    def at(steps: int) -> Instance:
        runtime = rebuilt(instance.runtime, instance.name, workspace_bytes=has - steps)
        return with_fields(instance, runtime=runtime)

    def needed(answer: Answer, steps: int) -> int:
        assert answer.evaluation is not None
        room = [c.capacity_bytes - c.total_bytes for c in answer.evaluation.cards]
        least = max(1, steps - min(room, default=0))
        return _kept(answer, at, least, steps, is_monotone)

    yield Axis(
        path="runtime.workspace_bytes",
        label="workspace of a card",
        unit="B",
        old=Fraction(has),
        most=has,
        at=at,
        value=lambda steps: Fraction(has - steps),
        furthest=lambda: at(has),
        not_even="not even none",
        words=lambda change, value: (
            f"{human_bytes(int(-change))} less workspace on every card, {human_bytes(int(value))}"
        ),
        needed=needed,
        is_ranked=True,
        is_monotone=is_monotone,
    )


def _servers(instance: Instance, index: int) -> Iterator[Axis]:
    pool, most = instance.fleet.pools[index], more_servers(instance, index)
    has, each = pool.num_servers, pool.server.num_cards
    limits = set(dict(instance.objective.at_most.limits()))
    is_paid = instance.objective.billing == "fleet" and bool(limits & BILLED)
    is_monotone = instance.search.deployment == "mixed" and not is_paid

    def words(change: Fraction, value: Fraction) -> str:
        more = f"{plural(int(change), 'server')} ({plural(int(change) * each, 'card')}) more"
        return f"{more} in pool {pool.name!r}, {plural(int(value), 'server')}"

    def at(steps: int) -> Instance:
        return with_servers(instance, index, has + steps)

    def needed(answer: Answer, steps: int) -> int:
        assert answer.evaluation is not None
        used = (c.card.server for c in answer.evaluation.cards if c.pool == pool.name)
        return min(steps, max(1, max(used, default=0) + 1 - has)) if is_monotone else steps

    if has == 1:
        yield _one_more_card(instance, index)
    if most == has:
        return
    yield Axis(
        path=f"fleet.pools[{index}].num_servers",
        label=f"servers of pool {pool.name!r}",
        unit="servers",
        old=Fraction(has),
        most=most - has,
        at=at,
        value=lambda steps: Fraction(has + steps),
        furthest=lambda: at(most - has),
        not_even=f"not even {plural(most, 'server')} ({plural(most * each, 'card')})",
        words=words,
        needed=needed,
        is_ranked=True,
        is_monotone=is_monotone,
        scanned=SCANNED,
    )


def _one_more_card(instance: Instance, index: int) -> Axis:
    """Return the axis of a single card more; larger servers are other hardware."""
    pool = instance.fleet.pools[index]
    has = pool.server.num_cards
    return Axis(
        path=f"fleet.pools[{index}].server.num_cards",
        label=f"cards of the server of pool {pool.name!r}",
        unit="cards",
        old=Fraction(has),
        most=1,
        at=lambda steps: with_server_cards(instance, index, has + steps),
        value=lambda steps: Fraction(has + steps),
        furthest=lambda: with_server_cards(instance, index, has + 1),
        not_even="",  # more servers say more
        words=lambda change, value: (
            f"1 card more in the server of pool {pool.name!r}, {plural(int(value), 'card')}"
        ),
    )


def _sessions(instance: Instance, index: int) -> Iterator[Axis]:
    """Yield the sessions of a cohort; with fewer, fewer can be on time or finish early."""
    cohorts, workload = instance.workload.cohorts, instance.workload
    has, name = cohorts[index].num_sessions, cohorts[index].name
    limits = set(dict(instance.objective.at_most.limits()))
    is_alone = len(cohorts) == 1 or instance.min_on_time_sessions == workload.num_sessions
    is_shared = bool(limits & {"mean_completion", "cost_per_on_time_session"})
    if has == 1:
        return

    def at(steps: int) -> Instance:
        return with_cohort(instance, index, num_sessions=has - steps)

    yield Axis(
        path=f"workload.cohorts[{index}].num_sessions",
        label=f"sessions of cohort {name!r}",
        unit="sessions",
        old=Fraction(has),
        most=has - 1,
        at=at,
        value=lambda steps: Fraction(has - steps),
        furthest=lambda: at(has - 1),
        not_even="not even 1",
        words=lambda change, value: (
            f"{plural(int(-change), 'session')} fewer in cohort {name!r}, "
            f"{plural(int(value), 'session')}"
        ),
        is_monotone=instance.search.dispatch == "optimised" and is_alone and not is_shared,
        scanned=SCANNED,
    )


def _context(instance: Instance, index: int) -> Iterator[Axis]:
    cohort, is_monotone = instance.workload.cohorts[index], not cuts_depend_on_memory(instance)
    has = cohort.context_tokens
    if not has:
        return

    def at(steps: int) -> Instance:
        return with_cohort(instance, index, context_tokens=has - steps)

    def needed(answer: Answer, steps: int) -> int:
        if answer.plan is None:
            return steps
        low, high = 0, steps
        while high - low > 1:  # the plan keeps its cards and queues; only times and bytes grow
            middle = (low + high) // 2
            is_kept = evaluate(at(middle), answer.plan).is_feasible
            low, high = (low, middle) if is_kept else (middle, high)
        return high

    yield Axis(
        path=f"workload.cohorts[{index}].context_tokens",
        label=f"context of cohort {cohort.name!r}",
        unit="tokens",
        old=Fraction(has),
        most=has,
        at=at,
        value=lambda steps: Fraction(has - steps),
        furthest=lambda: at(has),
        not_even="not even none",
        words=lambda change, value: (
            f"{plural(int(-change), 'token')} of context fewer in cohort "
            f"{cohort.name!r}, {plural(int(value), 'token')}"
        ),
        needed=needed,
        is_monotone=is_monotone,
    )
