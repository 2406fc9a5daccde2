"""Thins out large searches: what cannot fit, and what no plan can need.

Bytes are exact, so nothing that fits is lost. Times are float64 at first: a candidate leaves only
when another of the same cards is faster by more than their error on every cohort, all its steps as
slow as the last against all the other's as fast as the first, with at least its groups, lanes and
room. What is left is compared once more when it has exact prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from instances.fleet import Pool
from instances.instance import Instance
from instances.quantity import human_bytes
from optimizer.arrays.memory import Floats, Ints
from optimizer.arrays.prices import PriceArrays, footprint_arrays, price_arrays
from optimizer.collectives import MEASURED
from optimizer.errors import TooLargeError
from optimizer.peak import usable_bytes
from optimizer.plan import Footprint
from optimizer.tables import Candidate, MemoryRow, Rejection

#: Smaller searches are priced exactly at once, and kept whole for the reader.
SCREEN_FROM = 96
#: Far above the error of a float64 time.
MARGIN = 1e-9
#: What is late is said to be late by whole microseconds, rounded down.
MICROSECONDS = 10**6


@dataclass(frozen=True, slots=True)
class _Entry:
    """A candidate: its rows of memory, and its times per cohort at their longest and shortest."""

    footprint: Footprint
    rows: tuple[MemoryRow, ...]
    slowest: Floats
    fastest: Floats


class _Frontier:
    """Candidates of the same cards that none of the others could stand for."""

    def __init__(self) -> None:
        self.members: list[_Entry] = []
        self.lanes: Ints = np.zeros((0, 2), dtype=np.int64)
        self.slowest: Floats = np.zeros((0, 0))
        # [member, stage, cohort] and [member, stage]; stages that are missing ask for nothing
        self.session_bytes: Ints = np.zeros((0, 0, 0), dtype=np.int64)
        self.free_bytes: Ints = np.zeros((0, 0), dtype=np.int64)

    def stand_ins(
        self, entry: _Entry, lanes: tuple[int, int], is_exact: bool, margin: float
    ) -> Iterator[_Entry]:
        """Yield members with an entry's groups, lanes and room that are as fast within a margin."""
        if not self.members:
            return
        mine = self.lanes == lanes if is_exact else self.lanes >= lanes
        able = mine.all(axis=1) & (self.slowest <= entry.fastest * (1 + margin)).all(axis=1)
        chosen = np.flatnonzero(able)
        roomy = np.zeros(self.free_bytes[chosen].shape, dtype=bool)
        for row in entry.rows:
            needs = (self.session_bytes[chosen] <= np.array(row.session_bytes)).all(axis=2)
            roomy |= needs & (self.free_bytes[chosen] >= row.free_bytes)
        for index in chosen[roomy.all(axis=1)]:
            yield self.members[int(index)]

    def add(self, entry: _Entry, lanes: tuple[int, int]) -> None:
        """Take an entry in."""
        stages = max(len(entry.rows), self.free_bytes.shape[1])
        sizes = np.zeros((stages, len(entry.rows[0].session_bytes)), dtype=np.int64)
        free = np.full(stages, np.iinfo(np.int64).max, dtype=np.int64)
        for s, row in enumerate(entry.rows):
            sizes[s], free[s] = row.session_bytes, row.free_bytes
        more = stages - self.free_bytes.shape[1]
        if self.members and more:
            self.session_bytes = np.pad(self.session_bytes, ((0, 0), (0, more), (0, 0)))
            filler = np.iinfo(np.int64).max
            self.free_bytes = np.pad(self.free_bytes, ((0, 0), (0, more)), constant_values=filler)
        self.members.append(entry)
        is_first = len(self.members) == 1
        self.slowest = entry.slowest[None] if is_first else np.vstack([self.slowest, entry.slowest])
        self.session_bytes = (
            sizes[None] if is_first else np.concatenate([self.session_bytes, sizes[None]])
        )
        self.free_bytes = free[None] if is_first else np.vstack([self.free_bytes, free])
        self.lanes = np.vstack([self.lanes, lanes])


class _Screen:
    """Sorts candidates of one problem into the needed and the rest."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.is_exact = instance.search.dispatch == "round_robin"
        self.frontiers: dict[tuple[str, int, int], _Frontier] = {}

    def lanes(self, footprint: Footprint) -> tuple[int, int]:
        """Return (groups, lanes of each): more than there are sessions are of no use.

        Under round robin other numbers deal the sessions differently; and where sessions that fit
        are counted, every group counts.
        """
        groups, lanes = footprint.parallel.dp, footprint.lanes_per_group
        if self.is_exact or self.instance.objective.maximise is not None:
            return groups, lanes
        most = self.instance.workload.num_sessions
        return min(groups, most), min(lanes, most)

    def frontier(self, footprint: Footprint) -> _Frontier:
        key = (footprint.pool, footprint.parallel.num_cards, footprint.num_servers)
        return self.frontiers.setdefault(key, _Frontier())

    def stand_ins(self, entry: _Entry, margin: float) -> Iterator[_Entry]:
        """Yield what could stand for an entry in every plan, by floats."""
        lanes = self.lanes(entry.footprint)
        return self.frontier(entry.footprint).stand_ins(entry, lanes, self.is_exact, margin)

    def keep(self, entry: _Entry) -> None:
        self.frontier(entry.footprint).add(entry, self.lanes(entry.footprint))


def is_replaceable(instance: Instance) -> bool:
    """Whether one candidate of the same cards may stand for another in every plan.

    Not where several pools must be built alike.
    """
    return instance.search.deployment == "mixed" or len(instance.fleet.pools) == 1


def screen(
    instance: Instance,
    pool: Pool,
    footprints: Sequence[Footprint],
    longest_s: Sequence[Fraction | None] = (),
) -> tuple[list[Footprint], list[Rejection]]:
    """Return the footprints (without collectives) worth pricing, and why the others are not.

    `longest_s` holds the longest that a session of each cohort may take (None: as long as it
    wants); () asks for none to be on time.
    """
    if not footprints or len(footprints) < SCREEN_FROM:
        return list(footprints), []
    rejections: list[Rejection] = []
    entries: list[_Entry] = []
    usable = usable_bytes(instance, pool)
    try:
        priced = list(_entries(instance, pool, footprints, usable))
    except TooLargeError:  # numbers too large for arrays: price them one by one
        return list(footprints), []
    for entry in priced:
        short = misfit(instance, entry.footprint, entry.rows, usable)
        if short is not None:
            rejections.append(short)
        else:
            entries.append(entry)
    if not is_replaceable(instance) or not _are_times_known(instance, pool):
        return [entry.footprint for entry in entries], rejections
    entries, late = _on_time(entries, longest_s)
    rejections += late
    screened, kept = _Screen(instance), []
    for entry in sorted(entries, key=lambda e: (float(e.slowest.sum()), e.footprint)):
        better = next(screened.stand_ins(entry, -MARGIN), None)
        if better is not None:
            rejections.append(_dominated(entry.footprint, better.footprint))
            continue
        screened.keep(entry)
        kept.append(entry.footprint)
    return kept, rejections


def _on_time(
    entries: Sequence[_Entry], longest_s: Sequence[Fraction | None]
) -> tuple[list[_Entry], list[Rejection]]:
    """Part the entries that may serve a session in time from those that are late for sure."""
    if not longest_s or any(longest is None for longest in longest_s):
        return list(entries), []
    longest = np.array([float(seconds or 0) for seconds in longest_s])
    kept: list[_Entry] = []
    late: list[Rejection] = []
    for entry in entries:
        by_s = float((entry.fastest * (1 - MARGIN) - longest).min())
        if by_s <= 0:
            kept.append(entry)
            continue
        text = f"{entry.footprint.label()} on {entry.footprint.pool}: every session ends too late"
        short = Fraction(int(by_s * MICROSECONDS), MICROSECONDS)
        late.append(Rejection(entry.footprint, "late", short, "s", text))
    return kept, late


def _are_times_known(instance: Instance, pool: Pool) -> bool:
    """Whether arrays have the times: not by links or initiators, nor all that are measured."""
    fabrics = [f for f in (pool.server.fabric, pool.fabric_between) if f is not None]
    others = [t for f in fabrics for t in f.measured if t.operation != "all_reduce"]
    is_started = any(f.initiator is not None for f in fabrics)
    return not (instance.measurements or pool.topologies or others or is_started)


def _entries(
    instance: Instance, pool: Pool, footprints: Sequence[Footprint], usable: int
) -> Iterator[_Entry]:
    """Price all footprints at once, each with its best collective."""
    batches = sorted({footprint.batch for footprint in footprints})
    plain = list(dict.fromkeys(replace(footprint, batch=1) for footprint in footprints))
    place = {footprint: n for n, footprint in enumerate(plain)}
    priced: list[PriceArrays] = []
    for name in instance.search.collective_options:
        arrays = footprint_arrays(instance, [replace(f, collective=name) for f in plain])
        priced.append(price_arrays(instance, pool, arrays, np.array(batches)))
    micro_batches = np.array([footprint.micro_batches for footprint in plain])
    slowest, fastest = _times(instance, priced, micro_batches)
    for footprint in footprints:
        n, b = place[replace(footprint, batch=1)], batches.index(footprint.batch)
        rows = _rows(priced[0], n, b, usable, max(1, len(footprint.stages)))
        yield _Entry(footprint, rows, slowest[n, b], fastest[n, b])


def _times(
    instance: Instance, priced: Sequence[PriceArrays], micro_batches: Ints
) -> tuple[Floats, Floats]:
    """Return [N, B, C] times of a session, at worst with one collective and at best with any.

    At worst every step is as long as the last one, and the pipeline's fill comes on top; at best
    every step is as short as the first. What cannot be timed takes forever.
    """
    counts = np.array([cohort.new_tokens for cohort in instance.workload.cohorts])
    fill = ((micro_batches - 1) / micro_batches)[:, None, None]
    worst = np.stack([(counts + fill) * p.last_s + p.prompt_s[:, None, :] for p in priced])
    best = np.stack([counts * p.first_s + p.prompt_s[:, None, :] for p in priced])
    worst, best = np.nan_to_num(worst, nan=np.inf), np.nan_to_num(best, nan=np.inf)
    if MEASURED in instance.search.collective_options:  # it replaces the others where it has times
        measured = instance.search.collective_options.index(MEASURED)
        is_known = np.isfinite(worst[measured]).all(axis=2, keepdims=True)
        others = [n for n in range(len(priced)) if n != measured]
        worst[others] = np.where(is_known, np.inf, worst[others])
        best[others] = np.where(is_known, np.inf, best[others])
    choice = worst.sum(axis=3).argmin(axis=0)
    slowest = np.take_along_axis(worst, choice[None, :, :, None], axis=0)[0]
    return slowest, best.min(axis=0)


def _rows(prices: PriceArrays, n: int, b: int, usable: int, stages: int) -> tuple[MemoryRow, ...]:
    taken = prices.weight_bytes[n, :stages] + prices.buffer_bytes[n, b]
    return tuple(
        MemoryRow(tuple(map(int, prices.session_bytes[n, s])), usable - int(taken[s]))
        for s in range(stages)
    )


def misfit(
    instance: Instance, footprint: Footprint, rows: Sequence[MemoryRow], usable: int
) -> Rejection | None:
    """Reject what holds not even the smallest session; None where it fits.

    In a uniform search an instance may stand idle, so there the weights alone are enough.
    """
    if instance.search.deployment == "uniform" and all(row.free_bytes >= 0 for row in rows):
        return None
    short = max(min(row.session_bytes) - row.free_bytes for row in rows)
    if short <= 0:
        return None
    text = (
        f"a card needs {human_bytes(usable + short)} of its {human_bytes(usable)} for one "
        f"session: {human_bytes(short)} ({short} B) short"
    )
    return Rejection(footprint, "memory", short, "B", text)


def _dominated(loser: Footprint, winner: Footprint, by_s: Fraction | int = 0) -> Rejection:
    text = f"{winner.label()} has the same cards, at least its room and lanes, and is no slower"
    return Rejection(loser, "dominated", by_s, "s", text)


def without_dominated(
    instance: Instance, candidates: Sequence[Candidate]
) -> tuple[list[Candidate], list[Rejection]]:
    """Leave out priced candidates that another one equals or beats exactly; of equals the first."""
    if len(candidates) < SCREEN_FROM or not is_replaceable(instance):
        return list(candidates), []
    screened = _Screen(instance)
    exact = {candidate.footprint: candidate for candidate in candidates}
    kept: list[Candidate] = []
    rejections: list[Rejection] = []
    for candidate in sorted(candidates, key=lambda c: (sum(c.service_s), c.index)):
        times = np.array([float(s) for s in candidate.service_s])
        entry = _Entry(candidate.footprint, candidate.memory, times, times)
        beaten_by = (
            exact[other.footprint]
            for other in screened.stand_ins(entry, MARGIN)
            if _is_no_slower(exact[other.footprint], candidate)
        )
        better = next(beaten_by, None)
        if better is None:
            screened.keep(entry)
            kept.append(candidate)
            continue
        slower = max(a - b for a, b in zip(candidate.service_s, better.service_s, strict=True))
        rejections.append(_dominated(candidate.footprint, better.footprint, slower))
    return sorted(kept, key=lambda c: c.index), rejections


def _is_no_slower(one: Candidate, other: Candidate) -> bool:
    return all(a <= b for a, b in zip(one.service_s, other.service_s, strict=True))
