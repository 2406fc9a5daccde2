"""How cards are joined: kinds of topology, as an instance file writes them (section 6.5)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, RootModel, model_validator

from instances.cabling import MAX_CARDS, check_pairs, check_size, even_parts
from instances.catalog_store import reference
from instances.formats import Frozen
from instances.quantity import PositiveBytesPerSecond, Seconds

#: Shortest paths are tables over all pairs of cards or NUMA nodes.
MAX_MESH_CARDS = 1024
MAX_NUMA_NODES = 64

Cards = Annotated[int, Field(ge=1, le=MAX_CARDS)]
Count = Annotated[int, Field(ge=1, le=MAX_CARDS)]
Number = Annotated[int, Field(ge=0, lt=MAX_CARDS)]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, int) else value


#: One number for every plane, or a list with one for each.
PerPlane = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MAX_CARDS)], ...],
    Field(min_length=1, strict=False),
    BeforeValidator(_listed, json_schema_input_type=int | list[int]),
]


class _Named(Frozen):
    name: Annotated[str, Field(min_length=1, max_length=120)]
    sources: dict[str, str] = Field(default_factory=dict)


class _Timed(_Named):
    """`start_s` is paid once by a message, `hop_latency_s` at each chip that forwards it."""

    start_s: Seconds = Fraction(0)
    hop_latency_s: Seconds = Fraction(0)


class SwitchedTopology(_Timed):
    """Cards on one tier of switch chips; every chip reaches every card.

    The ports of a card are spread over all chips as evenly as possible, alike for every card, and
    a message splits over them in proportion. `reduces` says that a chip can add up messages.
    """

    kind: Literal["switched"] = "switched"
    num_cards: Cards
    ports_per_card: Count
    port_bandwidth_bytes_per_s: PositiveBytesPerSecond
    num_switches: Count
    ports_per_switch: Count
    reduces: bool = False

    @model_validator(mode="after")
    def _ports_suffice(self) -> SwitchedTopology:
        cards, ports, chips = self.num_cards, self.ports_per_card, self.num_switches
        has = chips * self.ports_per_switch
        if cards * ports > has:
            raise ValueError(
                f"{cards} cards x {ports} ports need {cards * ports} switch ports, but {chips} "
                f"switches x {self.ports_per_switch} have {has}"
            )
        if ports < chips:
            raise ValueError(f"a card with {ports} ports cannot reach all {chips} switches")
        busiest = cards * self.ports_at_switches[0]
        if busiest > self.ports_per_switch:
            raise ValueError(
                f"a switch takes {self.ports_at_switches[0]} ports of each card, {busiest} in "
                f"all, but has {self.ports_per_switch}"
            )
        check_size(cards, self.num_link_pairs)
        return self

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links, each a bundle."""
        return self.num_cards * self.num_switches

    @property
    def ports_at_switches(self) -> tuple[int, ...]:
        """Ports that every card has at each switch chip."""
        return even_parts(self.ports_per_card, self.num_switches)


class LeafSpineTopology(_Timed):
    """Two tiers of switch chips, in `num_planes` copies that share nothing but the cards.

    A leaf chip per plane serves `cards_per_leaf` cards and has `up_ports` towards the plane's
    `num_spines` spine chips; without spines, leaves are joined pairwise. Ports of a card are spread
    over planes, and up ports over spines, as evenly as possible. Planes that get more ports of a
    card may have more up ports and spines: a list gives one number for each plane. `routing` is
    "spread" where messages split evenly over all up ports, "by_destination" where all that goes to
    card c takes spine c mod `num_spines`.
    """

    kind: Literal["leaf_spine"] = "leaf_spine"
    num_planes: Count = 1
    num_leaves: Count
    cards_per_leaf: Count
    ports_per_card: Count
    up_ports: PerPlane
    num_spines: PerPlane
    ports_per_switch: Count
    port_bandwidth_bytes_per_s: PositiveBytesPerSecond
    routing: Literal["spread", "by_destination"] = "spread"
    reduces: bool = False

    @model_validator(mode="after")
    def _ports_suffice(self) -> LeafSpineTopology:
        planes = self.num_planes
        for field in ("up_ports", "num_spines"):
            given = len(getattr(self, field))
            if given not in (1, planes):
                raise ValueError(f"{field} lists {given} planes, but there are {planes}")
        if self.ports_per_card < planes:
            raise ValueError(
                f"a card with {self.ports_per_card} ports cannot reach all {planes} planes"
            )
        if 0 in self.num_spines and any(self.num_spines):
            raise ValueError("either all planes have spines or none")
        check_size(self.num_cards, self.num_link_pairs)
        for plane in range(planes):
            self._check_plane(plane)
        return self

    def _check_plane(self, plane: int) -> None:
        down = self.cards_per_leaf * self.ports_at_planes[plane]
        up, spines, radix = self.up_ports_of(plane), self.spines_of(plane), self.ports_per_switch
        if down + up > radix:
            raise ValueError(
                f"a leaf chip of plane {plane} needs {down} ports down and {up} up, but has {radix}"
            )
        others = spines or self.num_leaves - 1
        what = "spines" if spines else "other leaves"
        if up < others:
            raise ValueError(f"{up} up ports cannot reach all {others} {what} of plane {plane}")
        if not spines and others and up % others:
            raise ValueError(f"{up} up ports do not spread evenly over {others} {what}")
        if spines and self.num_leaves * self.wires_to_spines(plane)[0] > radix:
            needed = self.num_leaves * self.wires_to_spines(plane)[0]
            raise ValueError(f"a spine chip of plane {plane} needs {needed} ports, but has {radix}")

    @property
    def num_cards(self) -> int:
        """Cards of all leaves."""
        return self.num_leaves * self.cards_per_leaf

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links, each a bundle."""
        spines = [self.spines_of(plane) for plane in range(self.num_planes)]
        up = sum(n or Fraction(self.num_leaves - 1, 2) for n in spines)
        return self.num_cards * self.num_planes + int(self.num_leaves * up)

    @property
    def ports_at_planes(self) -> tuple[int, ...]:
        """Ports that every card has in each plane."""
        return even_parts(self.ports_per_card, self.num_planes)

    def up_ports_of(self, plane: int) -> int:
        """Up ports of a leaf chip of one plane."""
        return self.up_ports[plane if len(self.up_ports) > 1 else 0]

    def spines_of(self, plane: int) -> int:
        """Spine chips of one plane; 0 where leaves are joined directly."""
        return self.num_spines[plane if len(self.num_spines) > 1 else 0]

    def wires_to_spines(self, plane: int) -> tuple[int, ...]:
        """Cables from each leaf chip of one plane to each of its spine chips."""
        return even_parts(self.up_ports_of(plane), self.spines_of(plane))

    @property
    def down_bytes_per_s(self) -> Fraction:
        """One-way bandwidth of a leaf towards its cards, all planes together."""
        return self.cards_per_leaf * self.ports_per_card * self.port_bandwidth_bytes_per_s

    @property
    def up_bytes_per_s(self) -> Fraction:
        """One-way bandwidth of a leaf towards spines or other leaves, all planes together."""
        up = sum(self.up_ports_of(plane) for plane in range(self.num_planes))
        return up * self.port_bandwidth_bytes_per_s

    @property
    def oversubscription(self) -> Fraction | None:
        """Down ports over up ports of a leaf chip, in the plane where most; None without up ports.

        More than 1 means that the cards of a leaf cannot all send out at full speed.
        """
        planes = [(self.up_ports_of(p), ports) for p, ports in enumerate(self.ports_at_planes)]
        if not all(up for up, _ in planes):
            return None
        return max(Fraction(self.cards_per_leaf * ports, up) for up, ports in planes)


class TorusTopology(_Timed):
    """Cards in one to three dimensions, each closed to a ring; one dimension is a plain ring.

    A card has two ports in every dimension longer than 1; an extent of 2 means two parallel cables.
    Messages go along x first, then y, then z, the shorter way round; where both are equally short
    they split half and half. Card x + X·(y + Y·z) stands at (x, y, z).
    """

    kind: Literal["torus"] = "torus"
    extents: tuple[Cards, ...] = Field(min_length=1, max_length=3, strict=False)
    link_bandwidth_bytes_per_s: PositiveBytesPerSecond

    @model_validator(mode="after")
    def _can_be_laid_out(self) -> TorusTopology:
        check_size(self.num_cards, self.num_link_pairs)
        return self

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links."""
        return self.num_cards * sum(extent > 1 for extent in self.extents)

    @property
    def num_cards(self) -> int:
        """Product of the extents."""
        return math.prod(self.extents)


Cable = Annotated[tuple[Number, Number, Count], Field(strict=False)]


class MeshTopology(_Timed):
    """Cards joined directly, in any pattern: `links` are rows [card, card, number of cables].

    A message takes a path of fewest cards. From each card it goes on, of the neighbours that are
    nearer to its receiver, to the one joined by most cables; of equal ones to the lowest number.
    """

    kind: Literal["mesh"] = "mesh"
    num_cards: Annotated[int, Field(ge=1, le=MAX_MESH_CARDS)]
    links: tuple[Cable, ...] = Field(strict=False)
    link_bandwidth_bytes_per_s: PositiveBytesPerSecond

    @model_validator(mode="after")
    def _is_connected(self) -> MeshTopology:
        check_pairs([(a, b) for a, b, _ in self.links], self.num_cards, "cards")
        return self

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links, each a bundle."""
        return len(self.links)


def _place(value: object) -> object:
    if value in ("sender", "receiver") or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError('must be "sender", "receiver" or the number of a NUMA node')


class NumaTopology(_Timed):
    """Cards that exchange through memory of their host, whose sockets are NUMA nodes.

    `numa_nodes` lists the cards of each. A message goes to a buffer on the NUMA node that `buffers`
    names (that of its sender, of its receiver, or always the same one) and from there to its
    receiver. Every two NUMA nodes are joined, or those in `socket_links` alone; then messages pass
    as few as possible.
    """

    kind: Literal["numa"] = "numa"
    numa_nodes: tuple[Annotated[tuple[Number, ...], Field(strict=False)], ...] = Field(
        min_length=1, max_length=MAX_NUMA_NODES, strict=False
    )
    pcie_bandwidth_bytes_per_s: PositiveBytesPerSecond
    socket_bandwidth_bytes_per_s: PositiveBytesPerSecond
    socket_links: tuple[Annotated[tuple[Number, Number], Field(strict=False)], ...] | None = Field(
        default=None, strict=False
    )
    buffers: Annotated[Literal["sender", "receiver"] | int, BeforeValidator(_place)]

    @model_validator(mode="after")
    def _nodes_exist(self) -> NumaTopology:
        cards = sorted(card for node in self.numa_nodes for card in node)
        if not cards or cards != list(range(len(cards))):
            raise ValueError(
                f"numa_nodes must name every card from 0 to {max(cards, default=0)} once"
            )
        if self.socket_links is not None:
            check_pairs(list(self.socket_links), len(self.numa_nodes), "NUMA nodes")
        if isinstance(self.buffers, int) and not 0 <= self.buffers < len(self.numa_nodes):
            raise ValueError(
                f"buffers are on NUMA node {self.buffers}, but the last one is "
                f"{len(self.numa_nodes) - 1}"
            )
        return self

    @property
    def num_cards(self) -> int:
        """Cards of all NUMA nodes."""
        return sum(len(node) for node in self.numa_nodes)

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links."""
        return self.num_cards + len(self.joined_nodes)

    @property
    def joined_nodes(self) -> tuple[tuple[int, int], ...]:
        """Pairs of NUMA nodes with a direct link."""
        if self.socket_links is not None:
            return self.socket_links
        count = len(self.numa_nodes)
        return tuple((a, b) for a in range(count) for b in range(a + 1, count))


_Server = SwitchedTopology | LeafSpineTopology | TorusTopology | MeshTopology | NumaTopology
#: What joins the cards of one server: any topology but servers again.
ServerTopology = Annotated[_Server, Discriminator("kind"), reference("topologies", _Server)]


class ServersTopology(_Named):
    """Equal servers on an ideal network that blocks nobody; card = server · cards + local card.

    Messages inside a server take its own topology. Others leave through the sender's network
    adapters and arrive through the receiver's. Adapters are dealt to cards in order: several cards
    share one (card c has adapter c·nics // cards), or a card has several and its messages split
    over them. `nic_start_s` is the fixed time of a message between servers, `network_latency_s`
    comes on top. `exit_bandwidth_bytes_per_s` limits all that one server sends out at once, and
    all that it takes in.
    """

    kind: Literal["servers"] = "servers"
    num_servers: Count
    server: ServerTopology
    nics_per_server: Count
    nic_bandwidth_bytes_per_s: PositiveBytesPerSecond
    nic_start_s: Seconds = Fraction(0)
    network_latency_s: Seconds = Fraction(0)
    exit_bandwidth_bytes_per_s: PositiveBytesPerSecond | None = None

    @model_validator(mode="after")
    def _adapters_are_dealt_evenly(self) -> ServersTopology:
        nics, cards = self.nics_per_server, self.server.num_cards
        if nics % cards and cards % nics:
            raise ValueError(f"{nics} adapters cannot be dealt evenly to {cards} cards")
        check_size(self.num_cards, self.num_link_pairs)
        return self

    @property
    def num_link_pairs(self) -> int:
        """Pairs of directed links, each a bundle; an exit is one."""
        nics = self.nics_per_server + max(self.nics_per_server, self.server.num_cards)
        has_exit = self.exit_bandwidth_bytes_per_s is not None
        return self.num_servers * (self.server.num_link_pairs + nics + has_exit)

    @property
    def num_cards(self) -> int:
        """Cards of all servers."""
        return self.num_servers * self.server.num_cards


_Any = _Server | ServersTopology
#: A topology in a document: an object with its kind, the name of a catalog entry, or a changed one.
Topology = Annotated[_Any, Discriminator("kind"), reference("topologies", _Any)]


class TopologyFile(RootModel[Topology]):
    """A topology as a document of its own."""


def is_uniform(topology: Topology) -> bool:
    """Say whether it makes no difference which cards exchange, nor which others do so meanwhile.

    Servers count whose adapters belong to one card each, if groups take the same cards of each.
    """
    if isinstance(topology, ServersTopology):
        is_shared = topology.nics_per_server < topology.server.num_cards
        has_exit = topology.exit_bandwidth_bytes_per_s is not None
        return is_uniform(topology.server) and not is_shared and not has_exit
    return isinstance(topology, SwitchedTopology)
