"""Servers with a fabric of their own each, joined through network adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from instances.topology import ServersTopology
from optimizer.fabrics.fabric import Fabric, Ints, Leg, LinkClass, NodeKind
from optimizer.fabrics.routed import RoutedFabric, make_links, whole


class ServersFabric(RoutedFabric):
    """Inside a server messages take its own links; across, adapter, exit, network, exit, adapter.

    Links of the servers come first, server by server, then card to adapter, adapter to network,
    network to adapter, and adapter to card. Between card and adapter a link is as wide as the
    adapter, so never the narrowest. The network is one node that blocks nobody. An exit is a node
    between the adapters of a server and the network; links from exits and to exits come last.
    """

    def __init__(self, topology: ServersTopology, inner: Fabric) -> None:
        self._inner, self._each, self._servers = inner, inner.num_cards, topology.num_servers
        self._chips = len(inner.node_names) - self._each
        self._nics = topology.nics_per_server
        self._per_card = max(1, self._nics // self._each)
        self._has_exit = topology.exit_bandwidth_bytes_per_s is not None
        blocks = self._blocks()
        self._starts: list[int] = np.cumsum([0, *(len(block[0]) for block in blocks)]).tolist()
        nodes = list(zip(inner.node_names, inner.node_kinds, strict=True))
        chips: list[tuple[str, NodeKind]] = [
            *self._named(nodes[self._each :]),
            *self._named([(f"adapter {nic}", "nic") for nic in range(self._nics)]),
            ("network", "network"),
        ]
        if self._has_exit:
            chips += self._named([("exit", "exit")])
        super().__init__(
            topology.name,
            self._servers * self._each,
            chips,
            make_links(blocks, (*inner.links.classes, *_classes(topology))),
            math.lcm(inner.split, self._per_card),
            tuple(self._outside(np.array(inner.adders, dtype=np.int64)).tolist()),
            [name for name, _ in self._named(nodes[: self._each])],
        )

    def _blocks(self) -> list[tuple[Ints, Ints, Ints | int, Ints | int]]:
        """Return blocks of links (tails, heads, class, wires) in order."""
        links, servers = self._inner.links, self._servers
        first = len(links.classes)
        first_nic = servers * len(self._inner.node_names)
        network = first_nic + servers * self._nics
        card = np.repeat(np.arange(servers * self._each), self._per_card)
        own = first_nic + self._adapter(card, np.arange(len(card)) % self._per_card)
        adapter = first_nic + np.arange(servers * self._nics)
        gate = network + 1 + np.arange(servers) if self._has_exit else np.full(servers, network)
        beyond = np.repeat(gate, self._nics)
        hub = np.full(servers, network)
        blocks: list[tuple[Ints, Ints, Ints | int, Ints | int]] = [
            (
                self._outside(links.tails),
                self._outside(links.heads),
                np.tile(links.class_of, servers),
                np.tile(links.wires, servers),
            ),
            (card, own, first, 1),
            (adapter, beyond, first + 1, 1),
            (beyond, adapter, first + 2, 1),
            (own, card, first, 1),
        ]
        if self._has_exit:
            blocks += [(gate, hub, first + 3, 1), (hub, gate, first + 3, 1)]
        return blocks

    def _outside(self, inner_nodes: Ints) -> Ints:
        """Return nodes [K] of the server's fabric as nodes [servers · K] of this one."""
        server = np.arange(self._servers)[:, np.newaxis]
        as_card = server * self._each + inner_nodes
        as_chip = self._servers * self._each + server * self._chips + inner_nodes - self._each
        found: Ints = np.where(inner_nodes < self._each, as_card, as_chip).ravel()
        return found

    def _inside(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the server of nodes [K], and their numbers there."""
        cards = self._servers * self._each
        is_card = nodes < cards
        server = np.where(is_card, nodes // self._each, (nodes - cards) // max(self._chips, 1))
        inner = np.where(is_card, nodes, nodes - server * self._chips - cards + self._each)
        return server, np.where(is_card, nodes % self._each, inner)

    def _adapter(self, cards: Ints, which: Ints | int) -> Ints:
        """Return the number among all adapters of one of the adapters of each card [K]."""
        server, card = cards // self._each, cards % self._each
        return server * self._nics + card * self._nics // self._each + which

    def _card_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        is_inside = senders // self._each == receivers // self._each
        if is_inside.all():
            yield from self._server_legs(senders, receivers)
            return
        if is_inside.any():
            rows = np.flatnonzero(is_inside)
            legs = self._server_legs(senders[rows], receivers[rows])
            yield from self._of_rows(legs, rows, senders)
        rows = np.flatnonzero(~is_inside)
        yield from self._of_rows(self._network_legs(senders[rows], receivers[rows]), rows, senders)

    def _server_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K] inside servers."""
        server, start = self._inside(senders)
        other, end = self._inside(receivers)
        if (server != other).any():
            raise ValueError("a chip exchanges with nodes of its own server only")
        first, more = server * len(self._inner.links), self.split // self._inner.split
        for leg in self._inner.legs(start, end):
            yield Leg(np.where(leg.links >= 0, first + leg.links, -1), leg.shares * more)

    def _network_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        """Yield the paths of messages [K] between servers."""
        _, to_adapter, out, into, to_card, *exits = self._starts
        share = whole(self.split // self._per_card, len(senders))
        lanes = range(self._per_card)
        for lane in lanes:
            yield Leg(to_adapter + senders * self._per_card + lane, share)
        for lane in lanes:
            yield Leg(out + self._adapter(senders, lane), share)
        if self._has_exit:
            for first, ends in ((exits[0], senders), (exits[1], receivers)):
                yield Leg(first + ends // self._each, whole(self.split, len(senders)))
        for lane in lanes:
            yield Leg(into + self._adapter(receivers, lane), share)
        for lane in lanes:
            yield Leg(to_card + receivers * self._per_card + lane, share)

    def _chip_legs(self, senders: Ints, receivers: Ints) -> Iterator[Leg]:
        if max(senders.max(), receivers.max()) >= self._servers * len(self._inner.node_names):
            raise ValueError("adapters and the network forward messages, but send none")
        return self._server_legs(senders, receivers)

    def _named(self, nodes: list[tuple[str, NodeKind]]) -> list[tuple[str, NodeKind]]:
        """Return the nodes of every server, named after it."""
        return [
            (f"server {server} {name}", kind)
            for server in range(self._servers)
            for name, kind in nodes
        ]

    def adder_weights(self, cards: Ints) -> tuple[int, ...]:
        """Return the weights inside the server that has all the cards; all 0 if several have."""
        server, inner = self._inside(np.asarray(cards))
        each = len(self._inner.adders)
        weights = np.zeros((self._servers, each), dtype=np.int64)
        if (server == server[0]).all():
            weights[server[0]] = self._inner.adder_weights(inner)
        return tuple(weights.ravel().tolist())

    def card_order(self) -> Ints:
        """Return the cards server by server, in each as its own fabric orders them."""
        return self._outside(self._inner.card_order())


def _classes(topology: ServersTopology) -> tuple[LinkClass, ...]:
    nic = topology.nic_bandwidth_bytes_per_s
    classes = (
        LinkClass("card to adapter", nic),
        LinkClass("adapter", nic, topology.nic_start_s),
        LinkClass("adapter", nic, latency_s=topology.network_latency_s),
    )
    if topology.exit_bandwidth_bytes_per_s is None:
        return classes
    return (*classes, LinkClass("exit", topology.exit_bandwidth_bytes_per_s, is_cable=False))
