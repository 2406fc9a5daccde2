"""State that a host's NIC keeps for its connections, and how long they take to set up (6.5.5)."""

from __future__ import annotations

from fractions import Fraction

from instances.quantity import human_seconds
from instances.surroundings import ConnectionSpec

#: Calls for one pairwise connection: it is created, then changes its state three times.
PAIRWISE_CALLS = 4


def state_bytes(spec: ConnectionSpec, num_hosts: int) -> int:
    """Return the bytes that each NIC keeps when `num_hosts` hosts are connected, its own included.

    With A endpoints a host and H hosts: pairwise 512·A²(H-1) + 32A, channels 52A + 56(H-1),
    directory W((H-1)/8 + 8) with W lines (section 6.5.5). Raises ValueError below one host.
    """
    if num_hosts < 1:
        raise ValueError(f"connections are between at least 1 host, not {num_hosts}")
    remote, endpoints = num_hosts - 1, spec.endpoints_per_host
    if spec.organisation == "pairwise":
        return spec.context_bytes * endpoints**2 * remote + spec.segment_bytes * endpoints
    if spec.organisation == "channels":
        own = (spec.endpoint_bytes + spec.segment_bytes) * endpoints
        return own + spec.channel_bytes * remote
    bits = spec.num_lines * remote
    return -(-bits // 8) + spec.num_lines * spec.tag_bytes


def max_hosts(spec: ConnectionSpec) -> int | None:
    """Return the most hosts whose state fits in `cache_bytes`, each host itself included.

    0 where not even what a host keeps without any other host fits; None without a limit.
    """
    if spec.cache_bytes is None:
        return None
    endpoints = spec.endpoints_per_host
    if spec.organisation == "pairwise":
        own, each = spec.segment_bytes * endpoints, Fraction(spec.context_bytes * endpoints**2)
    elif spec.organisation == "channels":
        own = (spec.endpoint_bytes + spec.segment_bytes) * endpoints
        each = Fraction(spec.channel_bytes)
    else:
        own, each = spec.num_lines * spec.tag_bytes, Fraction(spec.num_lines, 8)
    left = spec.cache_bytes - own
    return 0 if left < 0 else 1 + left // each


def setup_s(
    spec: ConnectionSpec, num_endpoints: int, num_peers: int, num_cores: int | None = None
) -> Fraction:
    """Return the seconds until a host's connections are set up (section 6.5.5).

    A pairwise connection takes four calls and a round trip, and there are num_endpoints·num_peers.
    With channels each endpoint takes a call, and then each channel a call and a round trip. Cores
    share this out in whole connections, so that one is never set up faster than a core can.

    Parameters
    ----------
    num_endpoints
        Endpoints of this host.
    num_peers
        Endpoints of all remote hosts for pairwise connections; remote hosts for channels.
    num_cores
        Cores that work at once, `spec.num_cores` if None; 1 sets up one after another.

    Raises
    ------
    ValueError
        For a directory, whose set-up is not known.
    """
    cores = spec.num_cores if num_cores is None else num_cores
    if spec.organisation == "directory":
        raise ValueError("how long a directory takes to set up is not known")
    if spec.organisation == "pairwise":
        rounds = -(-num_endpoints * num_peers // cores)
        return rounds * (PAIRWISE_CALLS * spec.call_s + spec.round_trip_s)
    channels = -(-num_peers // cores) * (spec.call_s + spec.round_trip_s)
    return -(-num_endpoints // cores) * spec.call_s + channels


def host_setup_s(spec: ConnectionSpec, num_hosts: int, num_cores: int | None = None) -> Fraction:
    """Return the seconds in which each of `num_hosts` hosts is connected with all others.

    All hosts work at the same time. Raises ValueError for a directory.
    """
    remote, endpoints = num_hosts - 1, spec.endpoints_per_host
    peers = remote * endpoints if spec.organisation == "pairwise" else remote
    return setup_s(spec, endpoints, peers, num_cores)


def direct_links(num_devices: int) -> int:
    """Return the links that join every two of `num_devices` devices directly: n(n-1)/2."""
    return num_devices * (num_devices - 1) // 2


def state_words(name: str, state: int, cache: int) -> str:
    """Say by how much the state of a serving instance called `name` exceeds the cache, in bytes."""
    return (
        f"{name} needs {state:,} B of NIC state, {state - cache:,} B more than the {cache:,} B "
        f"that a NIC holds"
    )


def setup_words(name: str, needed_s: Fraction, most_s: Fraction) -> str:
    """Say by how much the set-up of a serving instance called `name` exceeds what is allowed."""
    return (
        f"{name} needs {human_seconds(needed_s)} to set up its connections, "
        f"{human_seconds(needed_s - most_s)} more than {human_seconds(most_s)}"
    )
