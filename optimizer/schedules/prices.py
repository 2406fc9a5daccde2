"""What a schedule costs on a fabric: rounds, fixed times, and the busiest links (section 6.5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from optimizer.collectives import CollectiveUnavailable
from optimizer.fabrics.bounds import slowest_link
from optimizer.fabrics.fabric import Fabric, Ints
from optimizer.fabrics.paths import link_name
from optimizer.schedules.schedule import Round, Schedule, Sends

#: Costs of messages between the same ends are kept for so many ends.
MAX_KEPT_COSTS = 32


@dataclass(frozen=True, slots=True)
class Price:
    """What the rounds of a schedule take, one after another, for every byte of the message.

    Where chunks have sizes of their own (`is_sized`), the message is all of them, and the figures
    per byte are those of the whole exchange.

    Attributes
    ----------
    num_rounds:
        Rounds in which anybody sends.
    fixed_s:
        Longest fixed time of every round, added up.
    s_per_byte:
        Time of the busiest link of every round, added up.
    sent_per_byte:
        What the card that sends most sends.
    busiest_link, busiest_link_name:
        Link that takes longest for all rounds together, None where nobody sends.
    link_load_per_byte:
        What that link carries.
    link_bound_s_per_byte:
        Its time: less is impossible on these paths, however rounds overlap.
    """

    num_rounds: int
    fixed_s: Fraction
    s_per_byte: Fraction
    sent_per_byte: Fraction
    busiest_link: int | None
    busiest_link_name: str | None
    link_load_per_byte: Fraction
    link_bound_s_per_byte: Fraction
    is_sized: bool = False

    def seconds(self, message_bytes: int | Fraction) -> Fraction:
        """Return the time of a message; what it counts depends on the operation (`OPERATIONS`).

        Raises ValueError where chunks have sizes of their own: see `total_s`.
        """
        if self.is_sized:
            raise ValueError("the sizes of the chunks are the message; use total_s")
        return self.fixed_s + message_bytes * self.s_per_byte

    @property
    def total_s(self) -> Fraction:
        """Time of an exchange whose chunks have sizes. Raises ValueError where they have none."""
        if not self.is_sized:
            raise ValueError("the message has no size yet; use seconds(message_bytes)")
        return self.fixed_s + self.s_per_byte


@dataclass(frozen=True, slots=True, eq=False)
class RoundLoad:
    """One round on the links: what each carries, and how long it takes.

    `loads` [L] are in units of `unit_bytes`; `hops` are the most links that a message passes.
    """

    num_messages: int
    loads: Ints
    unit_bytes: Fraction
    hops: Fraction
    fixed_s: Fraction
    transfer_s: Fraction

    @property
    def busiest_bytes(self) -> Fraction:
        """What the link with the most bytes carries."""
        return int(self.loads.max(initial=0)) * self.unit_bytes

    @property
    def total_bytes(self) -> Fraction:
        """What all links carry together."""
        return int(self.loads.sum()) * self.unit_bytes


def price(
    schedule: Schedule,
    fabric: Fabric,
    groups: Sequence[Sequence[int]],
    adders: Sequence[Sequence[int]] | None = None,
) -> Price:
    """Price a schedule that all groups run side by side.

    Rank r of group g sits on card groups[g][r]; what groups send adds up on links they share. Adder
    a of group g is node adders[g][a], or adder a of the fabric. Equal chunks make everything linear
    in the message, so one price serves all sizes. Raises CollectiveUnavailable where there are too
    few adders, ValueError for groups that do not fit.
    """
    pricing = _Pricing(schedule, fabric, _node_table(schedule, fabric, groups, adders))
    total = np.zeros(len(fabric.links), dtype=np.int64)
    sent = np.zeros(len(fabric.node_names), dtype=np.int64)
    num_rounds, fixed_s, longest = 0, Fraction(0), Fraction(0)
    for sends, times in _counted(schedule):
        cost = pricing.cost(sends)
        total += times * cost.loads
        sent += times * cost.sent
        num_rounds += times
        fixed_s += times * cost.fixed_s
        longest += times * fabric.seconds_per_unit(cost.loads)
    unit = 1 if schedule.sizes is not None else schedule.num_parts
    link = slowest_link(fabric, total)
    return Price(
        num_rounds=num_rounds,
        fixed_s=fixed_s,
        s_per_byte=longest / unit,
        sent_per_byte=Fraction(int(sent[: fabric.num_cards].max(initial=0)), unit),
        busiest_link=link,
        busiest_link_name=None if link is None else link_name(fabric, link),
        link_load_per_byte=Fraction(0 if link is None else int(total[link]), unit * fabric.split),
        link_bound_s_per_byte=fabric.seconds_per_unit(total) / unit,
        is_sized=schedule.sizes is not None,
    )


def round_loads(
    schedule: Schedule,
    fabric: Fabric,
    groups: Sequence[Sequence[int]],
    message_bytes: int | Fraction | None = None,
    adders: Sequence[Sequence[int]] | None = None,
) -> Iterator[RoundLoad]:
    """Yield what every round puts on the links, in order, for a message of some bytes.

    `message_bytes` is None where the chunks have sizes. The rest is as for `price`.
    """
    if (message_bytes is None) is not (schedule.sizes is not None):
        raise ValueError("give message_bytes where chunks are equal, and only there")
    pricing = _Pricing(schedule, fabric, _node_table(schedule, fabric, groups, adders))
    chunk_bytes = Fraction(1 if message_bytes is None else message_bytes)
    if schedule.sizes is None:
        chunk_bytes /= schedule.num_parts
    for sends in schedule.rounds():
        cost = pricing.cost(sends)
        hops = max(int(fabric.hops(*pricing.ends(part)).max()) for part in sends)
        yield RoundLoad(
            num_messages=sum(len(part.senders) for part in sends) * len(pricing.nodes),
            loads=cost.loads,
            unit_bytes=chunk_bytes / fabric.split,
            hops=Fraction(hops, fabric.split),
            fixed_s=cost.fixed_s,
            transfer_s=chunk_bytes * fabric.seconds_per_unit(cost.loads),
        )


def serving_adders(
    fabric: Fabric, groups: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[list[int]]]:
    """Return the weights of `in_switch` and, for every group, the nodes that are its adders.

    Groups may have switches of their own, such as their leaf, if these have equal weights. Raises
    CollectiveUnavailable otherwise, or where no switch adds up for all cards of a group.
    """
    found: set[tuple[int, ...]] = set()
    adders = []
    for group in groups:
        weights = fabric.adder_weights(np.array(group, dtype=np.int64))
        found.add(tuple(weight for weight in weights if weight))
        adders.append([a for a, weight in zip(fabric.adders, weights, strict=True) if weight])
    if () in found:
        raise CollectiveUnavailable(
            "adders", f"no switch of {fabric.name} adds up what such cards send"
        )
    if len(found) > 1:
        raise CollectiveUnavailable("adders", f"groups reach unlike switches of {fabric.name}")
    return found.pop() if found else (), adders


def _node_table(
    schedule: Schedule,
    fabric: Fabric,
    groups: Sequence[Sequence[int]],
    adders: Sequence[Sequence[int]] | None,
) -> Ints:
    """Return the fabric's node [groups, ranks + adders] of every node of the schedule."""
    if not groups:
        raise ValueError("a schedule needs one group or more")
    for group in groups:
        if len(group) != schedule.num_ranks or len(set(group)) != len(group):
            raise ValueError(f"a group needs {schedule.num_ranks} different cards")
        if min(group) < 0 or max(group) >= fabric.num_cards:
            raise ValueError(f"{fabric.name} has cards 0 to {fabric.num_cards - 1} only")
    count = schedule.num_adders
    chosen = [fabric.adders[:count]] * len(groups) if adders is None else adders
    if len(chosen) != len(groups):
        raise ValueError(f"{len(groups)} groups need a row of adders each, not {len(chosen)} rows")
    if any(len(nodes) < count for nodes in chosen):
        raise CollectiveUnavailable(
            "adders",
            f"{schedule.algorithm} needs {count} switches that add up, {fabric.name} has "
            f"{min(map(len, chosen))}",
        )
    table = [[*group, *nodes[:count]] for group, nodes in zip(groups, chosen, strict=True)]
    return np.array(table, dtype=np.int64)


def _counted(schedule: Schedule) -> Iterator[tuple[Round, int]]:
    """Yield unlike rounds and how often they occur; rounds of sized chunks are all unlike."""
    if schedule.sizes is not None:
        yield from ((sends, 1) for sends in schedule.rounds())
        return
    known: dict[tuple[tuple[int, int, int], ...], int] = {}
    rounds: list[Round] = []  # held, so that no other array takes the identity of one seen
    times: list[int] = []
    for sends in schedule.rounds():
        key = tuple((id(s.senders), id(s.receivers), s.chunks_each) for s in sends)
        place = known.setdefault(key, len(rounds))
        if place == len(rounds):
            rounds.append(sends)
            times.append(0)
        times[place] += 1
    yield from zip(rounds, times, strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Cost:
    """What messages put on every link [L], what every node [N] sends, and their fixed time."""

    loads: Ints
    sent: Ints
    fixed_s: Fraction


@dataclass(slots=True)
class _Pricing:
    """Costs of rounds; where chunks are equal, messages between the same ends are routed once."""

    schedule: Schedule
    fabric: Fabric
    nodes: Ints
    kept: dict[tuple[int, int], tuple[Sends, _Cost]] = field(default_factory=dict)

    def ends(self, sends: Sends) -> tuple[Ints, Ints]:
        """Return senders and receivers [groups · K] as nodes of the fabric."""
        return self.nodes[:, sends.senders].ravel(), self.nodes[:, sends.receivers].ravel()

    def cost(self, sends: Round) -> _Cost:
        """Return what a round costs, in chunks, or in bytes where chunks have sizes."""
        loads = np.zeros(len(self.fabric.links), dtype=np.int64)
        sent = np.zeros(len(self.fabric.node_names), dtype=np.int64)
        fixed_s = Fraction(0)
        for part in sends:
            if self.schedule.sizes is None:
                one, times = self._kept_cost(part), part.chunks_each
            else:
                units = self.schedule.sizes[part.chunks].sum(axis=1)
                one, times = self._cost(part, units), 1
            loads += times * one.loads
            sent += times * one.sent
            fixed_s = max(fixed_s, one.fixed_s)
        return _Cost(loads, sent, fixed_s)

    def _kept_cost(self, sends: Sends) -> _Cost:
        key = id(sends.senders), id(sends.receivers)
        if key not in self.kept:
            if len(self.kept) == MAX_KEPT_COSTS:
                self.kept.pop(next(iter(self.kept)))
            # Held with its sends, so that no other array takes the identity of theirs.
            ones = np.ones(len(sends.senders), dtype=np.int64)
            self.kept[key] = sends, self._cost(sends, ones)
        return self.kept[key][1]

    def _cost(self, sends: Sends, units: Ints) -> _Cost:
        ends, all_units = self.ends(sends), np.tile(units, len(self.nodes))
        loads = self.fabric.loads(*ends, all_units)  # refuses sums too large to be exact
        sent = np.bincount(ends[0], weights=all_units, minlength=len(self.fabric.node_names))
        return _Cost(loads, sent.astype(np.int64), self.fabric.fixed_s(*ends))
