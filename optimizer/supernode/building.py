"""From an instance to the data of its supernode decision, in plain numbers (6.7.4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from instances.ffn import MoeFfn
from instances.instance import Instance
from instances.supernode import DomainLink, SupernodeDecision
from optimizer.errors import InputError
from optimizer.operators import expert_bytes
from optimizer.supernode.checking import check_supernode
from optimizer.supernode.problem import (
    Demand,
    Exchange,
    ExpertReads,
    Line,
    Lookup,
    Option,
    SupernodeProblem,
    TablePlace,
)
from optimizer.supernode.weights import (
    copied_weights,
    dealt_component_bytes,
    dealt_expert_bytes,
    dealt_table_bytes,
    group_messages,
    kv_bytes,
    rows_per_token,
    token_work,
)
from optimizer.surroundings.connections import host_setup_s, state_bytes
from optimizer.windows import usable_bytes_per_s
from optimizer.work import Exchange as Message

#: More options than this are refused.
MAX_OPTIONS = 512


@dataclass(frozen=True, slots=True)
class Domains:
    """How cards are joined: in domains of `cards`, and between them; None: not at all."""

    cards: int
    inside: DomainLink
    between: DomainLink | None

    def lines(self, size: int, per_session: Fraction) -> tuple[Line, ...]:
        """Return the paths of a round in which every card sends evenly to all `size` cards.

        `per_session` bytes go out for each session; a `size`-th of them stays on the card.
        """
        found = []
        for link, peers in (
            (self.inside, min(size, self.cards) - 1),
            (self.between, size - self.cards),
        ):
            if peers > 0 and link is not None:
                sent = per_session * Fraction(peers, size)
                found.append(Line(link.alpha_s, sent / link.bandwidth_bytes_per_s))
        return tuple(found)

    def left_over(self, size: int, degree: int) -> int:
        """Return the cards that do not line up with domains; 0 where supernode and groups do."""
        large, small = max(size, self.cards), min(size, self.cards)
        within = degree if self.cards % degree else 0
        return large % small or within


class _Builder:
    """Puts the options of an instance together."""

    def __init__(self, instance: Instance, section: SupernodeDecision) -> None:
        self.instance, self.section = instance, section
        self.model, self.pool = instance.model, instance.fleet.pools[0]
        self.num_cards = section.num_cards or self.pool.num_cards
        fabric = self.pool.server.fabric
        inside = DomainLink(
            bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s, alpha_s=fabric.alpha_s
        )
        between, other = section.between, self.pool.fabric_between
        if between is None and other is not None:
            between = DomainLink(
                bandwidth_bytes_per_s=other.bandwidth_bytes_per_s, alpha_s=other.alpha_s
            )
        self.domains = Domains(section.domain_cards or self.num_cards, inside, between)
        self.counted = {t: token_work(instance, t) for t in {1, *section.attention_tp}}

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes asked for, ascending."""
        num = self.num_cards
        listed = self.section.sizes or [s for s in range(1, num + 1) if num % s == 0]
        return tuple(sorted(listed))

    def places(self) -> tuple[tuple[TablePlace, bool], ...]:
        """Return places of tables, and whether each is asked for."""
        if not self.model.tables:
            return (("none", True),)
        asked = self.section.tables or ("hbm",)
        known: tuple[TablePlace, ...] = ("hbm",) if self.section.host is None else ("hbm", "host")
        return tuple((place, place in asked) for place in known)

    def options(self) -> Iterator[Option]:
        for size in self.sizes():
            for degree in sorted(self.section.attention_tp):
                if size % degree == 0:
                    for place, is_asked in self.places():
                        yield self.option(size, place, degree, is_asked)

    def option(self, size: int, place: TablePlace, degree: int, is_asked: bool) -> Option:
        apart = self.section.tables_with
        copied = copied_weights(self.instance, degree, apart)
        tables = dealt_table_bytes(self.model, size)
        beside = dealt_component_bytes(self.instance, size, apart)
        hosts = max(-(-size // self.domains.cards), 1)
        spec = self.pool.connections if hosts > 1 else None
        flops, kv_read = self.per_token(degree)
        return Option(
            size=size,
            tables=place,
            attention_tp=degree,
            replicated_bytes=copied.held_bytes,
            expert_bytes=dealt_expert_bytes(self.model, size),
            table_bytes=beside + (tables if place == "hbm" else 0),
            session_bytes=kv_bytes(self.instance, degree),
            read_bytes=copied.read_bytes,
            kv_read_bytes=kv_read,
            flops=flops,
            experts=tuple(self.expert_reads()),
            exchanges=tuple(self.exchanges(size, degree)),
            lookup=self.lookup(size, place),
            host_bytes=tables if place == "host" else 0,
            num_hosts=hosts,
            state_bytes=0 if spec is None else state_bytes(spec, hosts),
            setup_s=(
                Fraction(0)
                if spec is None or spec.max_setup_s is None
                else host_setup_s(spec, hosts)
            ),
            alignment_cards=self.domains.left_over(size, degree),
            is_asked=is_asked,
        )

    def per_token(self, degree: int) -> tuple[Fraction, Fraction]:
        """Return (FLOP, KV bytes read) of a token on each card of a group, given or counted.

        What is given is of an unsplit token; a split changes it as it changes what is counted.
        """
        given = (self.section.flops_per_token, self.section.kv_read_bytes_per_token)
        found = []
        for stated, whole, part in zip(given, self.counted[1], self.counted[degree], strict=True):
            found.append(part if stated is None else stated * part / whole if whole else part)
        return found[0], found[1]

    def expert_reads(self) -> Iterator[ExpertReads]:
        """Yield layers with experts, equal ones together."""
        routing = self.instance.workload.routing
        assert routing in ("balanced", "expected")
        layers: Counter[tuple[int, int, int]] = Counter()
        for group, tensors in zip(self.model.groups, self.model.layer_tensors, strict=True):
            if isinstance(group.ffn, MoeFfn):
                size = math.ceil(expert_bytes(self.model, tensors))
                ffn = group.ffn
                layers[ffn.num_experts, ffn.experts_per_token, size] += len(group.layers)
        for (num, each, size), count in layers.items():
            yield ExpertReads(count, num, each, size, routing)

    def exchanges(self, size: int, degree: int) -> Iterator[Exchange]:
        """Yield dispatch and combine, and what groups that share sessions exchange."""
        is_alone = size == degree
        if size > 1 and not (is_alone and degree > 1):
            for sent, layers in self.dispatches().items():
                lines = self.domains.lines(size, Fraction(sent, degree))
                yield Exchange("dispatch and combine", 2 * layers, (lines,))
        if degree > 1:
            times: Counter[Message] = Counter()
            for message in group_messages(self.instance, degree, is_alone=is_alone):
                times[replace(message, times=1)] += message.times
            for message, count in times.items():
                yield Exchange(message.name, count, self.group_lines(message))

    def dispatches(self) -> Counter[int]:
        """Return layers by the bytes that a session's token sends to their experts."""
        layers: Counter[int] = Counter()
        for group in self.model.groups:
            if isinstance(group.ffn, MoeFfn):
                width = group.ffn.message_size(self.model.hidden_size)
                sent = group.ffn.experts_per_token * width * self.section.bytes_per_number
                layers[sent] += len(group.layers)
        return layers

    def group_lines(self, message: Message) -> tuple[tuple[Line, ...], ...]:
        """Return ring and tree of an AllReduce (6-9, 6-10), or half a ring."""
        alpha_s, bandwidth = self.domains.inside.alpha_s, self.domains.inside.bandwidth_bytes_per_s
        num, sent = message.ranks, message.message_bytes / bandwidth
        rounds = (num - 1) * (2 if message.kind == "all_reduce" else 1)
        ring = (Line(rounds * alpha_s, rounds * sent / num),)
        if message.kind != "all_reduce" or num & (num - 1):
            return (ring,)
        levels = 2 * (num.bit_length() - 1)
        return ring, (Line(levels * alpha_s, levels * sent),)

    def lookup(self, size: int, place: TablePlace) -> Lookup | None:
        rows, row_bytes = rows_per_token(self.model)
        if place == "none" or not rows:
            return None
        share = Fraction(min(t.layer for t in self.model.tables), self.model.num_layers)
        if place == "hbm":
            return Lookup(rows, self.domains.lines(size, Fraction(row_bytes)), share)
        host = self.section.host
        assert host is not None
        start_s = host.access.round_trip_s
        lines = [Line(start_s, row_bytes / usable_bytes_per_s(host.access))]
        if host.max_reads_per_s is not None:
            lines.append(Line(start_s, rows / host.max_reads_per_s))
        return Lookup(rows, tuple(lines), share)

    def demands(self) -> tuple[Demand, ...]:
        """Return the cohorts where they count: for a cost, and where one has a deadline."""
        cohorts = self.instance.workload.cohorts
        is_late = any(cohort.deadline_s is not None for cohort in cohorts)
        if not is_late and self.section.goal != "cost_per_on_time_session":
            return ()
        return tuple(Demand(c.name, c.num_sessions, c.new_tokens, c.deadline_s) for c in cohorts)

    def problem(self) -> SupernodeProblem:
        section, runtime = self.section, self.instance.runtime
        accelerator = self.pool.server.accelerator
        name = section.compute_format or self.model.formats.compute_format
        peak = accelerator.peak(name)
        if peak is None:
            rule = f"{accelerator.name} has no known peak of that format"
            raise InputError(self.instance.name, "supernode.compute_format", rule, name)
        spec, demands = self.pool.connections, self.demands()
        usable = accelerator.memory_bytes * runtime.usable_memory_fraction
        workspace = (
            runtime.workspace_bytes + runtime.collective_buffer_bytes + runtime.migration_bytes
        )
        return SupernodeProblem(
            num_cards=self.num_cards,
            capacity_bytes=math.floor(usable),
            workspace_bytes=workspace,
            bandwidth_bytes_per_s=Fraction(accelerator.memory_bandwidth_bytes_per_s),
            peak_flops_per_s=Fraction(peak),
            options=tuple(self.options()),
            goal=section.goal,
            step_target_s=section.step_target_s,
            host_capacity_bytes=None if section.host is None else section.host.capacity_bytes,
            max_state_bytes=None if spec is None else spec.cache_bytes,
            max_setup_s=None if spec is None else spec.max_setup_s,
            lookups_must_hide=section.lookups_must_hide,
            demands=demands,
            min_on_time=self.instance.workload.min_on_time_sessions if demands else 0,
            price_per_card_hour=section.price_per_card_hour,
        )


def supernode_problem(instance: Instance) -> SupernodeProblem:
    """Return the data of the instance's supernode decision; raises InputError."""
    section = instance.supernode
    assert section is not None
    check_supernode(instance, section)
    builder = _Builder(instance, section)
    count = len(builder.sizes()) * len(section.attention_tp) * len(builder.places())
    if count > MAX_OPTIONS:
        rule = f"{count} options of size, split and tables; at most {MAX_OPTIONS} are compared"
        raise InputError(instance.name, "supernode.sizes", rule)
    return builder.problem()
