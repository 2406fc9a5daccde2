"""The constraints of a problem instance that can be dropped one by one.

Deadlines, limits, memory, cards, faults and the lists and choices of the search are constraints.
The share of sessions that must be on time is none: it only says how many of the deadlines count, so
it goes with them (as a relaxation it is looked at apart). Releases are given facts; which
degrees heads and kernels allow, and how long reading takes, nobody can drop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import get_args

from instances.budget import LIMITED
from instances.collectives import CollectiveName
from instances.instance import Instance
from instances.quantity import human_bytes, human_seconds
from optimizer.configurations import is_plain
from optimizer.conflicts.changes import (
    rebuilt,
    with_cohort,
    with_connections,
    with_fields,
    with_limit,
    with_memory,
    with_search,
    with_servers,
)
from optimizer.conflicts.words import amount
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.legality import legal_tp
from optimizer.words import plural

#: Usable bytes of a card whose memory is no constraint: far above any session's cache.
AMPLE_BYTES = 10**15
#: A pool whose cards are no constraint has so many times its servers, or one for each session;
MORE_SERVERS = 64
#: but no more cards than this: listing them all would take longer than they could help.
MOST_CARDS = 2**14
#: Most servers that an instance file may give a pool.
MAX_SERVERS = 100_000
#: Limits whose value grows with the fleet under "fleet" billing.
BILLED = frozenset({"cost_per_on_time_session", "occupied_card_seconds", "energy"})
#: Degrees beside `tp` that a search may list; 1 alone is no restriction but how things are.
DEGREES = ("pp", "cp", "dp", "ep", "dcp", "attention_copies")

Change = Callable[[Instance], Instance]


@dataclass(frozen=True, slots=True)
class Constraint:
    """Something an instance demands, and how to build the instance without it.

    `drops` weaken it more and more; the last one is "without it". `may_harm` tells of an instance
    whether that may also forbid plans, so that weaker drops must be tried as well (None: never).
    `is_heavy` says that dropping it makes searches large, `is_choice` that it is chosen rather than
    measured.
    """

    name: str
    description: str
    drops: tuple[Change, ...]
    may_harm: Callable[[Instance], bool] | None = None
    is_heavy: bool = False
    is_choice: bool = False

    @property
    def drop(self) -> Change:
        """The change that leaves the constraint out."""
        return self.drops[-1]


def constraints_of(instance: Instance) -> list[Constraint]:
    """Return every constraint of an instance, those whose absence costs most to solve last."""
    return [
        *_deadlines(instance),
        *_limits(instance),
        *_memory(instance),
        *_connections(instance),
        *_choices(instance),
        *_lists(instance),
        *_cards(instance),
    ]


def variants(
    instance: Instance, constraints: Sequence[Constraint], kept: frozenset[int]
) -> Iterator[Instance]:
    """Yield the instances of which one has a plan exactly if the kept constraints allow one.

    That is one instance without the others, unless more of something may also do harm: all cards
    are paid for under "fleet" billing, and pipelines are cut for what memory there is. Such a
    constraint is dropped step by step, and left as it is, too.
    """
    dropped = [c for i, c in enumerate(constraints) if i not in kept]
    base = _applied(instance, [c.drop for c in dropped if c.may_harm is None])
    rest = [c for c in dropped if c.may_harm is not None]
    harmful = [c for c in rest if c.may_harm is not None and c.may_harm(base)]
    base = _applied(base, [c.drop for c in rest if c not in harmful])
    masks: list[tuple[bool, ...]] = [(True,) * len(harmful), (False,) * len(harmful)]
    if 1 < len(harmful) <= 3:
        masks = list(product((True, False), repeat=len(harmful)))
    for mask in dict.fromkeys(masks):
        chosen = [c for c, is_dropped in zip(harmful, mask, strict=True) if is_dropped]
        levels = max((len(c.drops) for c in chosen), default=1)
        for level in reversed(range(levels)):
            yield _applied(base, [c.drops[min(level, len(c.drops) - 1)] for c in chosen])


def _applied(instance: Instance, changes: Sequence[Change]) -> Instance:
    return reduce(lambda changed, change: change(changed), changes, instance)


def _deadlines(instance: Instance) -> Iterator[Constraint]:
    need, count = instance.min_on_time_sessions, instance.workload.num_sessions
    if not need:
        return  # nobody has to be on time
    shared = "" if need == count else f"; {need} of all {count} sessions must be on time"
    for i, cohort in enumerate(instance.workload.cohorts):
        if cohort.deadline_s is not None:
            text = human_seconds(cohort.deadline_s) + shared
            drop = partial(with_cohort, index=i, deadline_s=None)
            yield Constraint(f"deadline of cohort {cohort.name!r}", text, (drop,))


def _limits(instance: Instance) -> Iterator[Constraint]:
    most = dict(instance.objective.at_most.limits())
    for field, name in LIMITED.items():
        if name in most:
            text = f"at most {amount(most[name], OBJECTIVE_UNITS[name])}"
            drop = partial(with_limit, field=field, most=None)
            yield Constraint(f"limit on {name}", text, (drop,))


def cuts_depend_on_memory(instance: Instance) -> bool:
    """Whether pipelines are cut for what fits: another cut may hold more and take longer."""
    search = instance.search
    return search.pp != (1,) and search.stage_cut == "best" and instance.engine.uneven_stages


def ample_memory_bytes(instance: Instance) -> int:
    """Return a card's memory where that is no constraint."""
    return math.ceil(AMPLE_BYTES / instance.runtime.usable_memory_fraction)


def _memory(instance: Instance) -> Iterator[Constraint]:
    share = instance.runtime.usable_memory_fraction
    for i, pool in enumerate(instance.fleet.pools):
        has = pool.server.accelerator.memory_bytes
        ample = ample_memory_bytes(instance)
        if has >= ample:
            continue
        text = f"{human_bytes(has)} a card" + (
            "" if share == 1 else f", {amount(share, '')} usable"
        )
        drop = partial(with_memory, index=i, memory_bytes=ample)
        yield Constraint(f"memory of pool {pool.name!r}", text, (drop,), cuts_depend_on_memory)


def _connections(instance: Instance) -> Iterator[Constraint]:
    for i, pool in enumerate(instance.fleet.pools):
        spec = pool.connections
        if spec is None or pool.fabric_between is None:
            continue  # no serving instance needs any
        if spec.cache_bytes is not None:
            text = f"{spec.organisation}, {human_bytes(spec.cache_bytes)} a NIC"
            drop = partial(with_connections, index=i, cache_bytes=None)
            yield Constraint(f"NIC cache of pool {pool.name!r}", text, (drop,))
        if spec.max_setup_s is not None:
            text = f"{spec.organisation}, at most {human_seconds(spec.max_setup_s)}"
            drop = partial(with_connections, index=i, max_setup_s=None)
            yield Constraint(f"connection set-up of pool {pool.name!r}", text, (drop,))


def _choices(instance: Instance) -> Iterator[Constraint]:
    search, every = instance.search, get_args(CollectiveName)
    if instance.faults:
        text = plural(len(instance.faults), "failing card")
        yield _choice("faults", text, partial(with_fields, faults=()))
    if set(search.collectives) != set(every):
        drop = partial(with_search, collectives=every)
        yield _choice("search.collectives", f"only {', '.join(search.collectives)}", drop)
    if search.dispatch == "round_robin":
        text = "round robin: sessions are dealt out in order of release"
        yield _choice("search.dispatch", text, partial(with_search, dispatch="optimised"))
    if search.deployment == "uniform":
        text = "uniform: equal serving instances that fill all cards"
        yield _choice("search.deployment", text, _mixed)


def _choice(name: str, text: str, drop: Change, is_heavy: bool = False) -> Constraint:
    return Constraint(name, text, (drop,), is_heavy=is_heavy, is_choice=True)


def _mixed(instance: Instance) -> Instance:
    """Allow any deployment; sessions that fit are counted on uniform ones only."""
    objective = instance.objective
    if objective.maximise is not None:
        names = objective.minimise or ("makespan",)
        objective = rebuilt(objective, instance.name, maximise=None, minimise=names)
    search = rebuilt(instance.search, instance.name, deployment="mixed")
    return with_fields(instance, objective=objective, search=search)


def _lists(instance: Instance) -> Iterator[Constraint]:
    search = instance.search
    listed = {"tp": search.tp} | {
        name: getattr(search, name) for name in DEGREES if getattr(search, name) != (1,)
    }
    for name, degrees in listed.items():
        if degrees is None or (name == "tp" and not _left_out(instance, degrees)):
            continue
        text = f"only {', '.join(map(str, degrees))}"
        yield _choice(f"search.{name}", text, partial(_unlisted, name=name), is_heavy=True)


def _unlisted(instance: Instance, name: str) -> Instance:
    return with_search(instance, **{name: None})


def _left_out(instance: Instance, degrees: Sequence[int]) -> bool:
    """Whether the search leaves out a degree of TP that is legal on more cards than there are."""
    most = MOST_CARDS + instance.fleet.num_cards
    legal = legal_tp(instance.model, most, instance.engine, with_experts=is_plain(instance))
    return not set(legal) <= set(degrees)


def more_servers(instance: Instance, index: int) -> int:
    """Return how many servers a pool has whose cards are no constraint: a multiple of its own."""
    pool = instance.fleet.pools[index]
    has = pool.num_servers
    wanted = max(MORE_SERVERS, -(-instance.workload.num_sessions // has))
    factor = min(max(2, min(wanted, MOST_CARDS // pool.num_cards)), MAX_SERVERS // has)
    return factor * has


def cards_may_harm(instance: Instance) -> bool:
    """Whether more servers may forbid plans although the old ones still divide them.

    Limits count idle cards under "fleet" billing, and the cards of a uniform deployment; round
    robin over uniform pools moves sessions to other pools.
    """
    search, objective = instance.search, instance.objective
    limited = set(dict(objective.at_most.limits()))
    is_uniform = search.deployment == "uniform"
    is_dealt = is_uniform and search.dispatch == "round_robin" and len(instance.fleet.pools) > 1
    is_paid = objective.billing == "fleet" and bool(limited & BILLED)
    return is_paid or is_dealt or (is_uniform and "cards" in limited)


def _cards(instance: Instance) -> Iterator[Constraint]:
    for i, pool in enumerate(instance.fleet.pools):
        has, most = pool.num_servers, more_servers(instance, i)
        if most == has:
            continue
        each = f"{plural(has, 'server')} of {pool.server.num_cards}"
        text = f"{plural(pool.num_cards, 'card')} ({each})"
        steps = [has * 2**n for n in range(1, 20) if has * 2**n < most]
        drops = tuple(partial(with_servers, index=i, num_servers=n) for n in (*steps, most))
        name = f"cards of pool {pool.name!r}"
        yield Constraint(name, text, drops, cards_may_harm, is_heavy=True)
