"""A capacity plan: counts of kinds, without prices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RackFill:
    """`count` racks of a site, each with the same servers: (class, number of servers) pairs."""

    site: int
    count: int
    servers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerFill:
    """`count` servers of a class, each with the same serving instances.

    `blocks` are (option, number of instances) pairs of options with cards of one server.
    `spanned_by` is the option over several servers that has the whole server, or None. A server
    that is bought and idle has neither.
    """

    server_class: int
    count: int
    blocks: tuple[tuple[int, int], ...] = ()
    spanned_by: int | None = None


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """`count` lanes that each serve the same sessions: (cohort, number) runs, in order."""

    count: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """`count` attention groups of an option's serving instances, loaded alike."""

    option: int
    count: int
    lanes: tuple[LaneLoad, ...]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Racks that are bought, what every server in use holds, and who serves which sessions.

    `racks` is () for an existing fleet, and where no racks are described. `servers` lists, of a
    purchase, all servers that are bought; of an existing fleet, those in use. `loads` deals the
    sessions where nothing fails, `loads_after[e]` after event e of the problem.
    """

    racks: tuple[RackFill, ...]
    servers: tuple[ServerFill, ...]
    loads: tuple[GroupLoad, ...]
    loads_after: tuple[tuple[GroupLoad, ...], ...] = ()
