"""Capacity plans as documents and back: everything is named by what it is, not by an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from instances.errors import InputError
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem, Option
from optimizer.plan_document import footprint_document, parallel_document
from optimizer.side.capacity_accounts import (
    BlockDocument,
    CapacityDocument,
    EventLoadsDocument,
    GroupLoadDocument,
    LaneLoadDocument,
    OptionDocument,
    RackFillDocument,
    RackServersDocument,
    RunDocument,
    ServerFillDocument,
)

KeyT = TypeVar("KeyT", bound=Hashable)

#: What an error lists of what is known.
MAX_KNOWN = 8

#: Pool, site, free cards, and the number of a server that is told apart.
ClassKey = tuple[str, str | None, int, int | None]


def told_apart(names: Iterable[str]) -> list[str]:
    """Return names in which those that come again have a number: "a", "b", "a #2"."""
    seen, found = Counter[str](), set[str]()
    unique = []
    for name in names:
        seen[name] += 1
        new = name if seen[name] == 1 else f"{name} #{seen[name]}"
        while new in found:
            seen[name] += 1
            new = f"{name} #{seen[name]}"
        found.add(new)
        unique.append(new)
    return unique


@dataclass(frozen=True)
class PlanNames:
    """What options, sites, classes and events of a problem are called in documents."""

    problem: CapacityProblem

    @cached_property
    def options(self) -> list[str]:
        """Model, degrees and, where there are several, the pool of every option."""
        several = len(self.problem.pools) > 1
        return told_apart(
            f"{self.problem.models[o.model]} {o.footprint.label()}"
            + (f" on {self.problem.pools[o.pool].name}" if several else "")
            for o in self.problem.options
        )

    @cached_property
    def sites(self) -> list[str]:
        """Names of sites, those that are single racks with their number."""
        return told_apart(site.name for site in self.problem.sites)

    @cached_property
    def events(self) -> list[str]:
        """Names of what may be lost."""
        return told_apart(event.name for event in self.problem.events)

    @cached_property
    def class_keys(self) -> list[ClassKey]:
        """What tells the classes apart."""
        is_single = any(event.kind == "server" for event in self.problem.events)
        seen, keys = Counter[int](), []
        for c in self.problem.classes:
            number = (c.servers[0] if c.servers else seen[c.pool]) if is_single else None
            seen[c.pool] += 1
            site = None if c.site is None else self.sites[c.site]
            keys.append((self.problem.pools[c.pool].name, site, c.free_cards, number))
        return keys


def plan_document(names: PlanNames, plan: CapacityPlan, numbers: Sequence[int]) -> CapacityDocument:
    """Return a plan as a document; `numbers` counts the serving instances of every option."""
    return _Writer(names, plan, numbers).document()


@dataclass(frozen=True)
class _Writer:
    names: PlanNames
    plan: CapacityPlan
    numbers: Sequence[int]

    def document(self) -> CapacityDocument:
        options = self.names.problem.options
        return CapacityDocument(
            instances=[self._option(options[o]) for o in sorted(self._used())],
            racks=[self._rack(rack) for rack in self.plan.racks],
            servers=[self._server(fill) for fill in self.plan.servers],
            loads=self._loads(self.plan.loads),
            loads_after=list(self._after()),
        )

    def _used(self) -> set[int]:
        used = {o for fill in self.plan.servers for o, _ in fill.blocks}
        used |= {fill.spanned_by for fill in self.plan.servers if fill.spanned_by is not None}
        dealt = (self.plan.loads, *self.plan.loads_after)
        return used | {load.option for loads in dealt for load in loads}

    def _option(self, option: Option) -> OptionDocument:
        return OptionDocument(
            name=self.names.options[option.index],
            number=self.numbers[option.index],
            model=self.names.problem.models[option.model],
            **footprint_document(option.footprint),
        )

    def _rack(self, rack: RackFill) -> RackFillDocument:
        servers = []
        for c, count in rack.servers:
            pool, _, _, server = self.names.class_keys[c]
            servers.append(RackServersDocument(pool=pool, server=server, count=count))
        name = self.names.sites[rack.site]
        return RackFillDocument(rack=name, count=rack.count, servers=servers)

    def _server(self, fill: ServerFill) -> ServerFillDocument:
        pool, rack, free_cards, server = self.names.class_keys[fill.server_class]
        spanning = fill.spanned_by
        return ServerFillDocument(
            pool=pool,
            rack=rack,
            server=server,
            free_cards=free_cards,
            count=fill.count,
            instances=[
                BlockDocument(instance=self.names.options[o], number=n) for o, n in fill.blocks
            ],
            spanned_by=None if spanning is None else self.names.options[spanning],
        )

    def _loads(self, loads: Sequence[GroupLoad]) -> list[GroupLoadDocument]:
        cohorts = self.names.problem.cohorts
        return [
            GroupLoadDocument(
                instance=self.names.options[load.option],
                groups=load.count,
                lanes=[
                    LaneLoadDocument(
                        count=lane.count,
                        sessions=[
                            RunDocument(cohort=cohorts[c].name, number=n) for c, n in lane.runs
                        ],
                    )
                    for lane in load.lanes
                ],
            )
            for load in loads
        ]

    def _after(self) -> Iterator[EventLoadsDocument]:
        """Yield the loads after events, those after which they are equal together."""
        alike: dict[tuple[GroupLoad, ...], list[str]] = {}
        by_id: dict[int, list[str]] = {}  # thousands of events may share what takes long to hash
        for name, loads in zip(self.names.events, self.plan.loads_after, strict=True):
            if id(loads) not in by_id:
                by_id[id(loads)] = alike.setdefault(loads, [])
            by_id[id(loads)].append(name)
        for loads, events in alike.items():
            same = loads == self.plan.loads
            yield EventLoadsDocument(events=events, loads=None if same else self._loads(loads))


def read_capacity_plan(names: PlanNames, document: CapacityDocument, source: str) -> CapacityPlan:
    """Return the plan in a document; raises InputError for what the problem does not know."""
    return _Reader(names, document, source).plan()


def _option_key(model: str, footprint: OptionDocument) -> Hashable:
    return (
        model,
        footprint.pool,
        footprint.parallel,
        tuple(footprint.stages),
        footprint.batch,
        footprint.micro_batches,
        footprint.num_servers,
        footprint.collective,
    )


class _Reader:
    def __init__(self, names: PlanNames, document: CapacityDocument, source: str) -> None:
        self.names, self.document, self.source = names, document, source
        problem = names.problem
        self.cohorts = {cohort.name: c for c, cohort in enumerate(problem.cohorts)}
        self.sites = {name: s for s, name in enumerate(names.sites)}
        self.classes = {key: c for c, key in enumerate(names.class_keys)}
        self.pools = {pool.name: pool.num_cards for pool in problem.pools}
        self.options = self._options()

    def plan(self) -> CapacityPlan:
        plan = CapacityPlan(
            racks=tuple(self._racks()),
            servers=tuple(self._servers()),
            loads=self._loads(self.document.loads, "loads"),
        )
        after = self._after(plan.loads)
        self._check_numbers(plan.servers)
        return CapacityPlan(plan.racks, plan.servers, plan.loads, after)

    def _find(self, known: dict[KeyT, int], key: KeyT, where: str, what: str) -> int:
        if key in known:
            return known[key]
        shown = ", ".join(str(name) for name in list(known)[:MAX_KNOWN])
        more = f" and {len(known) - MAX_KNOWN} more" if len(known) > MAX_KNOWN else ""
        rule = f"no {what} is named so; known: {shown or 'none'}{more}"
        raise InputError(self.source, f"capacity.{where}", rule, key)

    def _options(self) -> dict[str, int]:
        """Return the option that each name of the document stands for, by what it is."""
        problem = self.names.problem
        known: dict[Hashable, int] = {}
        for option in problem.options:
            footprint = option.footprint
            key = (
                problem.models[option.model],
                footprint.pool,
                parallel_document(footprint.parallel),
                footprint.stages,
                footprint.batch,
                footprint.micro_batches,
                footprint.num_servers,
                footprint.collective or None,
            )
            known[key] = option.index
        found: dict[str, int] = {}
        for i, item in enumerate(self.document.instances):
            where = f"capacity.instances[{i}]"
            if item.name in found:
                raise InputError(self.source, f"{where}.name", "is listed twice", item.name)
            index = known.get(_option_key(item.model, item))
            if index is None:
                rule = "no such serving instance is among the candidates that can be used here"
                raise InputError(self.source, where, rule, item.name)
            if index in found.values():
                rule = "is the same serving instance as one before; list it once"
                raise InputError(self.source, where, rule, item.name)
            found[item.name] = index
        return found

    def _check_numbers(self, servers: Sequence[ServerFill]) -> None:
        """Refuse numbers of serving instances that servers do not hold."""
        held, spanned = Counter[int](), Counter[int]()
        for fill in servers:
            for option, number in fill.blocks:
                held[option] += number * fill.count
            if fill.spanned_by is not None:
                spanned[fill.spanned_by] += fill.count
        for i, item in enumerate(self.document.instances):
            option = self.options[item.name]
            width = self.names.problem.options[option].num_servers
            found = held[option] + spanned[option] // width
            if item.number not in (None, found):
                rule = f"servers hold {found} of {item.name}; correct or leave out the number"
                where = f"capacity.instances[{i}].number"
                raise InputError(self.source, where, rule, item.number)

    def _class(
        self, pool: str, site: str | None, free: int | None, server: int | None, where: str
    ) -> int:
        if pool not in self.pools:
            known = dict.fromkeys(self.pools, 0)
            self._find(known, pool, f"{where}.pool", "pool")
        if site is not None:
            self._find(self.sites, site, f"{where}.rack", "rack")
        key = (pool, site, self.pools[pool] if free is None else free, server)
        if key in self.classes:
            return self.classes[key]
        alike = [k for k in self.classes if k[0] == pool]
        shown = "; ".join(_class_text(k) for k in alike[:MAX_KNOWN]) or "none"
        more = f"; and {len(alike) - MAX_KNOWN} more" if len(alike) > MAX_KNOWN else ""
        rule = f"no such servers: {_class_text(key)}; known: {shown}{more}"
        raise InputError(self.source, f"capacity.{where}", rule)

    def _racks(self) -> Iterator[RackFill]:
        for i, rack in enumerate(self.document.racks):
            where = f"racks[{i}]"
            site = self._find(self.sites, rack.rack, f"{where}.rack", "rack")
            servers = tuple(
                (self._class(s.pool, rack.rack, None, s.server, f"{where}.servers[{j}]"), s.count)
                for j, s in enumerate(rack.servers)
            )
            yield RackFill(site, rack.count, servers)

    def _servers(self) -> Iterator[ServerFill]:
        for i, item in enumerate(self.document.servers):
            where = f"servers[{i}]"
            found = self._class(item.pool, item.rack, item.free_cards, item.server, where)
            blocks = tuple(
                (self._option(block.instance, f"{where}.instances[{j}].instance"), block.number)
                for j, block in enumerate(item.instances)
            )
            spanned_by = None
            if item.spanned_by is not None:
                spanned_by = self._option(item.spanned_by, f"{where}.spanned_by")
            yield ServerFill(found, item.count, blocks, spanned_by)

    def _option(self, name: str, where: str) -> int:
        return self._find(self.options, name, where, "entry of capacity.instances")

    def _loads(self, loads: Sequence[GroupLoadDocument], where: str) -> tuple[GroupLoad, ...]:
        return tuple(
            GroupLoad(
                self._option(load.instance, f"{where}[{i}].instance"),
                load.groups,
                tuple(
                    LaneLoad(lane.count, self._runs(lane.sessions, f"{where}[{i}].lanes[{j}]"))
                    for j, lane in enumerate(load.lanes)
                ),
            )
            for i, load in enumerate(loads)
        )

    def _runs(self, runs: Sequence[RunDocument], where: str) -> tuple[tuple[int, int], ...]:
        return tuple(
            (self._find(self.cohorts, run.cohort, f"{where}.sessions[{k}].cohort", "cohort"), n)
            for k, run in enumerate(runs)
            for n in [run.number]
        )

    def _after(self, healthy: tuple[GroupLoad, ...]) -> tuple[tuple[GroupLoad, ...], ...]:
        """Return the loads after every event, in the problem's order."""
        known = {name: e for e, name in enumerate(self.names.events)}
        found: dict[int, tuple[GroupLoad, ...]] = {}
        for i, item in enumerate(self.document.loads_after):
            where = f"loads_after[{i}]"
            loads = healthy
            if item.loads is not None:
                loads = self._loads(item.loads, f"{where}.loads")
            for j, name in enumerate(item.events):
                event = self._find(known, name, f"{where}.events[{j}]", "failure")
                if event in found:
                    rule = "has loads already; list each failure once"
                    raise InputError(self.source, f"capacity.{where}.events[{j}]", rule, name)
                found[event] = loads
        missing = [name for name, event in known.items() if event not in found]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            rule = f"says nothing of {missing[0]!r}{more}; give the loads after every failure"
            raise InputError(self.source, "capacity.loads_after", rule)
        return tuple(found[e] for e in range(len(known)))


def _class_text(key: ClassKey) -> str:
    pool, site, free_cards, server = key
    name = pool if server is None else f"{pool}/{server}"
    where = "" if site is None else f" in {site}"
    return f"{name}{where} with {free_cards} free cards"
