"""What the cards of a serving instance exchange in a step, by which algorithm, and how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.instance import Instance
from optimizer.collectives import MEASURED, CollectiveUnavailable, collective_names
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.steps import decode_works, prompt_works
from optimizer.work import Exchange, StageWork


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """One exchange of a stage: how often in a step, by what, and how long each time.

    `algorithm` is None where there is no choice. `others` are the search's other collectives that
    exist for it, with their seconds, fastest first. `when` is "decode step" or names a prompt.
    """

    when: str
    stage: int
    name: str
    kind: str
    ranks: int
    servers: int
    message_bytes: Fraction
    times: int
    algorithm: str | None
    seconds: Fraction
    others: tuple[tuple[str, Fraction], ...]


def exchange_times(instance: Instance, footprint: Footprint) -> Iterator[ExchangeTime]:
    """Yield the exchanges of a full decode step, then of every cohort's prompt.

    Raises CollectiveUnavailable where one has no price.
    """
    pool = next(pool for pool in instance.fleet.pools if pool.name == footprint.pool)
    place = Place(pool, footprint)
    yield from _times(instance, place, "decode step", decode_works(instance, footprint))
    for cohort in instance.workload.cohorts:
        if cohort.prompt_tokens:
            when = f"prompt of {cohort.prompt_tokens:,} tokens ({cohort.name})"
            yield from _times(instance, place, when, prompt_works(instance, footprint, cohort))


def _times(
    instance: Instance, place: Place, when: str, works: tuple[StageWork, ...]
) -> Iterator[ExchangeTime]:
    for stage, work in enumerate(works):
        for exchange in work.exchanges:
            if exchange.ranks < 2:
                continue
            algorithm, others = _choice(instance, place, exchange)
            yield ExchangeTime(
                when=when,
                stage=stage,
                name=exchange.name,
                kind=exchange.kind,
                ranks=exchange.ranks,
                servers=place.servers_of(exchange.block),
                message_bytes=exchange.message_bytes,
                times=exchange.times,
                algorithm=algorithm,
                seconds=place.exchange_s(exchange),
                others=others,
            )


def _choice(
    instance: Instance, place: Place, exchange: Exchange
) -> tuple[str | None, tuple[tuple[str, Fraction], ...]]:
    """Return the algorithm that an exchange takes, None without a choice, and what others take.

    A measured one is named by its implementation.
    """
    known = dict(place.measured_times(exchange))
    if exchange.kind != "all_reduce":
        is_measured = known and MEASURED in collective_names(place.footprint.collective)
        return _taken(list(known.items()) if is_measured else [])
    chosen = min(place.all_reduces(exchange), key=lambda pair: pair[1])
    found = [chosen] if chosen[0] != MEASURED else []
    for name in instance.search.collectives:
        if name not in (chosen[0], MEASURED):
            other = Place(place.pool, replace(place.footprint, collective=name))
            with suppress(CollectiveUnavailable):
                found += other.all_reduces(exchange)
    measured = [(f"{MEASURED} {name}", seconds) for name, seconds in known.items()]
    if chosen[0] == MEASURED:
        return _taken([measured[0], *sorted([*measured[1:], *found], key=lambda pair: pair[1])])
    is_listed = MEASURED in instance.search.collectives
    others = [*found[1:], *(measured if is_listed else ())]
    return _taken([chosen, *sorted(others, key=lambda pair: pair[1])])


def _taken(
    times: Sequence[tuple[str, Fraction]],
) -> tuple[str | None, tuple[tuple[str, Fraction], ...]]:
    return (times[0][0], tuple(times[1:])) if times else (None, ())
