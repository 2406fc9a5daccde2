"""Who starts the requests of a communication: control path, rate, and whose cores are busy (6.4.4).

What is moved crosses PCIe as often whoever starts it, so the payload is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from instances.surroundings import InitiatorName, InitiatorSpec

#: How often the control path of a request crosses PCIe. A proxy thread of the CPU reads the flag
#: that the GPU writes, lets the NIC fetch the descriptor, and tells the GPU of the completion; a
#: GPU rings the NIC and lets it fetch the descriptor; a processor on the NIC crosses nothing.
PCIE_CROSSINGS: dict[str, int] = {"cpu_proxy": 3, "gpu": 2, "nic_processor": 0}

#: Whose execution units write descriptors and wait for completions.
BUSY: dict[str, str] = {"cpu_proxy": "CPU cores", "gpu": "SMs", "nic_processor": "none"}


@dataclass(frozen=True, slots=True)
class Initiator:
    """Where requests start: seconds of one PCIe crossing, and requests that can start a second.

    Neither has a default: crossings take "hundreds of nanoseconds", rates differ by far. Raises
    ValueError for another name, a negative crossing or no requests at all.
    """

    name: InitiatorName
    crossing_s: Fraction
    requests_per_s: Fraction

    def __post_init__(self) -> None:
        if self.name not in PCIE_CROSSINGS:
            raise ValueError(f"no initiator is named {self.name!r}; use {', '.join(BUSY)}")
        if self.crossing_s < 0:
            raise ValueError("crossing_s is at least 0 s")
        if self.requests_per_s <= 0:
            raise ValueError("requests_per_s is more than 0")

    @property
    def num_crossings(self) -> int:
        """PCIe crossings of the control path."""
        return PCIE_CROSSINGS[self.name]

    @property
    def busy(self) -> str:
        """Whose cores are taken from other work: "CPU cores", "SMs" or "none"."""
        return BUSY[self.name]

    @property
    def control_s(self) -> Fraction:
        """Seconds that the control path spends on PCIe before and after a request."""
        return self.num_crossings * self.crossing_s


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Seconds of a batch of requests, and what its rate is bound by."""

    time_s: Fraction
    bound_by: Literal["initiation", "fabric", "both"]


def started_s(
    spec: InitiatorSpec | None, model_s: Fraction, num_rounds: int, num_requests: int
) -> Fraction:
    """Return the time of an exchange whose requests somebody must start.

    Every round waits for the control path; and however fast the fabric is, the card that sends most
    messages cannot start its `num_requests` faster than the rate allows. None starts for nothing.
    """
    if spec is None:
        return model_s
    control_s = num_rounds * PCIE_CROSSINGS[spec.kind] * spec.crossing_s
    if spec.requests_per_s is None:
        return model_s + control_s
    return control_s + max(model_s, Fraction(num_requests, spec.requests_per_s))


def initiation_s(initiator: Initiator, num_requests: int) -> Fraction:
    """Return the least seconds to start `num_requests`: the control path once, then the rate."""
    return initiator.control_s + num_requests / Fraction(initiator.requests_per_s)


def batch_time(
    initiator: Initiator, num_requests: int, request_bytes: int, bandwidth_bytes_per_s: Fraction
) -> BatchTime:
    """Return the least time of a batch of equal requests, and which rate sets it (section 6.4.4).

    Requests follow each other at the slower of two rates: those that the initiator can start, and
    those that the fabric can carry. Raises ValueError for a bandwidth of 0.
    """
    if bandwidth_bytes_per_s <= 0:
        raise ValueError("bandwidth_bytes_per_s is more than 0")
    start_s = 1 / Fraction(initiator.requests_per_s)
    carry_s = request_bytes / Fraction(bandwidth_bytes_per_s)
    time_s = initiator.control_s + num_requests * max(start_s, carry_s)
    if start_s == carry_s:
        return BatchTime(time_s, "both")
    return BatchTime(time_s, "initiation" if start_s > carry_s else "fabric")


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """A published remote read: where the controller sits, and what of the time PCIe takes."""

    controller: str
    size_bytes: int
    num_crossings: int
    crossings_s: Fraction
    time_s: Fraction
    source: str


_READ_SOURCE = (
    "section 6.5.5, line delay 100 ns one way; stage latencies of OpenURMA (arXiv:2605.28717)"
)

#: One read of 64 B behind PCIe and over the processor's on-chip bus; facts, no rule uses them.
REMOTE_READS = (
    RemoteRead("PCIe", 64, 5, Fraction(165, 10**8), Fraction(22, 10**7), _READ_SOURCE),
    RemoteRead("on-chip bus", 64, 0, Fraction(0), Fraction(42, 10**8), _READ_SOURCE),
)
