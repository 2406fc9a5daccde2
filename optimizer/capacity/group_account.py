"""Exact account of loaded attention groups: every lane's sessions in time, every card's bytes.

Bytes and times come from footprints alone, step by step, and not from the tables of a problem.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from instances.instance import Instance
from optimizer.capacity.building import model_instances
from optimizer.capacity.ledger import known_load
from optimizer.capacity.plan import GroupLoad
from optimizer.capacity.problem import CapacityProblem
from optimizer.footprint_prices import FootprintPrices
from optimizer.plan import Footprint
from optimizer.timeline import run_queue


class OptionPrices:
    """Bytes and times of a problem's options, each worked out once."""

    def __init__(self, instance: Instance, problem: CapacityProblem) -> None:
        self.problem, self.alone = problem, model_instances(instance)
        self._prices = [None if one is None else FootprintPrices(one) for one in self.alone]
        self._may_use = [cohort.pools for cohort in instance.workload.cohorts]
        self._services: dict[tuple[int, int], Fraction | None] = {}

    def _priced(self, option: int) -> tuple[FootprintPrices, Footprint] | None:
        """Return the prices of an option's model, and its footprint; None without a meaning."""
        prices = self._prices[self.problem.options[option].model]
        footprint = self.problem.options[option].footprint
        is_known = prices is not None and prices.is_meaningful(footprint)
        return (prices, footprint) if prices is not None and is_known else None

    def service_s(self, option: int, cohort: int) -> Fraction | None:
        """Seconds of a session of a cohort on a lane; None where the option does not serve it."""
        key = (option, cohort)
        if key not in self._services:
            self._services[key] = self._service_s(option, cohort)
        return self._services[key]

    def _service_s(self, option: int, cohort: int) -> Fraction | None:
        built, demand = self.problem.options[option], self.problem.cohorts[cohort]
        priced, allowed = self._priced(option), self._may_use[cohort]
        if priced is None or demand.model != built.model:
            return None
        prices, footprint = priced
        if allowed is not None and footprint.pool not in allowed:
            return None
        sessions = {one.name: one for one in prices.instance.workload.cohorts}
        return prices.service_s(footprint, sessions[demand.name])

    def card_bytes(self, option: int, counts: Mapping[int, int]) -> tuple[int, int]:
        """Bytes on the fullest card of a group with so many sessions of cohorts, and those usable.

        The option serves these cohorts. (0, 0) where bytes of the option are not defined.
        """
        priced = self._priced(option)
        if priced is None:
            return 0, 0
        prices, footprint = priced
        sessions = {one.name: one for one in prices.instance.workload.cohorts}
        stages = list(prices.stage_weights(footprint))
        for c, number in counts.items():
            sizes = prices.session_bytes(footprint, sessions[self.problem.cohorts[c].name])
            stages = [held + number * size for held, size in zip(stages, sizes, strict=True)]
        return max(stages) + prices.buffer_bytes(footprint), prices.usable_bytes(footprint)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sessions of one cohort that follow each other on a lane, and how many of them are on time.

    `late_by_s` is by how much the last one is late. Those that the option does not serve
    (`is_served`) take no time.
    """

    cohort: int
    number: int
    num_on_time: int
    late_by_s: Fraction
    is_served: bool


@dataclass(frozen=True, slots=True)
class GroupAccount:
    """One of a load's groups: the stretches of every kind of lane, and its fullest card's bytes.

    Sessions that the group is given (`taken`), and those of them on time, are counted by cohort.
    """

    load: GroupLoad
    lanes: tuple[tuple[Stretch, ...], ...]
    taken: Mapping[int, int]
    on_time: Mapping[int, int]
    card_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class LoadsAccount:
    """All groups of one deal of the sessions.

    By cohort the sessions that are `taken`, and those of them that end on time; `groups` counts
    loaded groups by option.
    """

    groups: tuple[GroupAccount, ...]
    taken: tuple[int, ...]
    on_time: tuple[int, ...]
    num_groups: Mapping[int, int]


class Accountant:
    """Accounts for loads; equal lanes, and equal groups, are worked out once."""

    def __init__(self, problem: CapacityProblem, prices: OptionPrices) -> None:
        self.problem, self.prices = problem, prices
        self._lanes: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[Stretch, ...]] = {}
        self._groups: dict[GroupLoad, GroupAccount] = {}
        # thousands of events may share their loads, whose hashes take long; ids stay valid since
        # the loads are kept
        self._by_id: dict[int, tuple[GroupLoad, GroupAccount | None]] = {}

    def lane(self, option: int, runs: tuple[tuple[int, int], ...]) -> tuple[Stretch, ...]:
        """Return the stretches of one lane, served in the order given."""
        key = (option, runs)
        if key not in self._lanes:
            self._lanes[key] = self._run(option, runs)
        return self._lanes[key]

    def _run(self, option: int, runs: tuple[tuple[int, int], ...]) -> tuple[Stretch, ...]:
        """Run a lane's queue, equal sessions as one job: each starts as the one before it ends."""
        found: list[Stretch | None] = []
        jobs: list[tuple[Fraction, Fraction]] = []
        served: list[tuple[int, int, Fraction]] = []
        for cohort, number in runs:
            service_s = self.prices.service_s(option, cohort)
            if service_s is None:
                found.append(Stretch(cohort, number, 0, Fraction(0), False))
                continue
            found.append(None)
            served.append((cohort, number, service_s))
            jobs.append((self.problem.cohorts[cohort].release_s, number * service_s))
        ran = [
            self._stretch(*one, run.start_s, run.finish_s)
            for one, run in zip(served, run_queue(jobs, ()), strict=True)
        ]
        rest = iter(ran)
        return tuple(next(rest) if one is None else one for one in found)

    def _stretch(
        self, cohort: int, number: int, service_s: Fraction, start_s: Fraction, finish_s: Fraction
    ) -> Stretch:
        """Session k of a stretch ends at start_s + k·service_s."""
        deadline_s = self.problem.cohorts[cohort].deadline_s
        if deadline_s is None or finish_s <= deadline_s:
            return Stretch(cohort, number, number, Fraction(0), True)
        within = (deadline_s - start_s) // service_s if service_s else 0
        num_on_time = min(max(within, 0), number)
        return Stretch(cohort, number, num_on_time, finish_s - deadline_s, True)

    def group(self, load: GroupLoad) -> GroupAccount | None:
        """Return the account of one of a load's groups; None of what does not exist at all."""
        if id(load) not in self._by_id:
            known = known_load(self.problem, load)
            if known is not None and known not in self._groups:
                self._groups[known] = self._account(known)
            self._by_id[id(load)] = load, None if known is None else self._groups[known]
        return self._by_id[id(load)][1]

    def _account(self, load: GroupLoad) -> GroupAccount:
        lanes = tuple(self.lane(load.option, lane.runs) for lane in load.lanes)
        taken, on_time, held = Counter[int](), Counter[int](), Counter[int]()
        for lane, stretches in zip(load.lanes, lanes, strict=True):
            for one in stretches:
                taken[one.cohort] += lane.count * one.number
                on_time[one.cohort] += lane.count * one.num_on_time
                if one.is_served:
                    held[one.cohort] += lane.count * one.number
        card_bytes = self.prices.card_bytes(load.option, held)
        return GroupAccount(load, lanes, dict(taken), dict(on_time), *card_bytes)

    def loads(self, loads: tuple[GroupLoad, ...]) -> LoadsAccount:
        """Return the account of a deal; what does not exist takes no part."""
        groups = tuple(group for load in loads if (group := self.group(load)) is not None)
        taken, on_time = [0] * len(self.problem.cohorts), [0] * len(self.problem.cohorts)
        num_groups: dict[int, int] = defaultdict(int)
        for group in groups:
            count = group.load.count
            num_groups[group.load.option] += count
            for c, number in group.taken.items():
                taken[c] += count * number
                on_time[c] += count * group.on_time[c]
        return LoadsAccount(groups, tuple(taken), tuple(on_time), dict(num_groups))
