"""What surrounds the cards: who starts requests (6.4.4), what NICs keep of connections (6.5.5)."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from pydantic import Field, model_validator

from instances.formats import Frozen
from instances.quantity import Bytes, PositiveBytes, PositiveSeconds, Seconds

#: Who starts the requests of a communication (section 6.4.4).
InitiatorName = Literal["cpu_proxy", "gpu", "nic_processor"]

Organisation = Literal["pairwise", "channels", "directory"]

#: Where the sizes and times that `ConnectionSpec` takes for granted come from.
DEFAULTS_SOURCE = (
    "section 6.5.5: record sizes of OpenURMA (arXiv:2605.28717, tables 3 and 7, section 7.2); "
    "directory of 2^20 lines with 1 bit for each remote host; 5 us a call, 500 us a round trip"
)


class InitiatorSpec(Frozen):
    """Who starts the requests that leave over a fabric, and how fast (section 6.4.4).

    The control path of a request crosses PCIe three times behind a proxy thread of the CPU, twice
    when a GPU starts it, and not at all when a processor on the adapter does; every round of an
    exchange waits for that. A card starts at most `requests_per_s`; null means no limit.
    """

    kind: InitiatorName
    crossing_s: Seconds
    requests_per_s: int | None = Field(default=None, ge=1, le=10**12)
    sources: dict[str, str] = Field(default_factory=dict)


class ConnectionSpec(Frozen):
    """Connections between the hosts (servers) that one serving instance spans.

    Every one of the `endpoints_per_host` endpoints of a host talks to every endpoint of every other
    host. `organisation` says what a host's NIC keeps for that:

    "pairwise"
        `context_bytes` for each pair of a local and a remote endpoint, `segment_bytes` for each
        local endpoint (reliable connections of RDMA).
    "channels"
        `endpoint_bytes` and `segment_bytes` for each local endpoint, `channel_bytes` for each
        remote host (Unified Bus).
    "directory"
        `tag_bytes` for each of `num_lines` cache lines and 1 bit of each line for each remote host
        (coherent caches).

    All of it must fit in `cache_bytes`; null means no limit. A host's connections must be set up
    within `max_setup_s`, null means no limit, by `num_cores` cores; a call takes `call_s`, an
    exchange of identifiers with a remote host `round_trip_s`. An instance inside one server needs
    no connections.
    """

    organisation: Organisation
    endpoints_per_host: int = Field(ge=1, le=1_000_000)
    cache_bytes: Bytes | None
    context_bytes: PositiveBytes = 512
    segment_bytes: Bytes = 32
    endpoint_bytes: Bytes = 20
    channel_bytes: PositiveBytes = 56
    num_lines: int = Field(default=2**20, ge=1, le=2**40)
    tag_bytes: Bytes = 8
    max_setup_s: PositiveSeconds | None = None
    call_s: Seconds = Fraction(5, 10**6)
    round_trip_s: Seconds = Fraction(500, 10**6)
    num_cores: int = Field(default=32, ge=1, le=1_000_000)
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _set_up_is_known(self) -> ConnectionSpec:
        if self.organisation == "directory" and self.max_setup_s is not None:
            raise ValueError(
                "max_setup_s goes with organisation 'pairwise' or 'channels'; how long a directory "
                "takes to set up is not known"
            )
        return self
